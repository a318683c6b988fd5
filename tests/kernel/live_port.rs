//! Sending ports on the live backend: the same frames as every other backend, exact counts, rates, outages.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use plimsoll::{
    backend::{live::LivePort, mem::MemSink},
    clock,
    engine::{BackendChoice, BoundMode, OpenPort, TrialSpec, TxPort, TxReport},
    host::link::Link,
    ids::QueueId,
    profile,
    program::{
        TxProgram,
        compile::{PortFacts, compile},
        reference,
    },
    units::NS_PER_S,
};

use crate::support::{
    harness::Test,
    netns::{Options, Topology},
    traffic::Capture,
};

pub fn tests() -> Vec<Test> {
    crate::tests![
        live_sends_the_same_frames_as_the_simulation,
        a_router_that_rewrites_the_pages_leaves_no_trace_in_later_frames,
        every_requested_live_frame_completes_and_reaches_the_peer,
        a_live_rate_is_kept_and_one_kpps_leaves_frame_by_frame,
        a_live_trial_sends_what_is_due_in_its_last_microsecond,
        an_unpaced_live_trial_ends_on_time_and_stops_at_once,
        live_sending_goes_on_after_the_link_or_its_carrier_was_away,
        a_removed_interface_ends_a_live_trial_with_totals,
    ]
}

/// The program of the profile's first port with the topology's MAC addresses.
fn compiled(topology: &Topology, text: &str) -> Arc<TxProgram> {
    let mac = |text: String| {
        let bytes: Vec<u8> = text.split(':').map(|byte| u8::from_str_radix(byte, 16).unwrap()).collect();
        <[u8; 6]>::try_from(bytes).unwrap()
    };
    let facts = |g: &str, d: &str| PortFacts {
        mac: mac(topology.generator.mac(g)),
        dest_mac: Some(mac(topology.dut.mac(d))),
        mtu: Some(1500),
        link_bps: None,
    };
    let profile = profile::parse(text, "test.yaml").unwrap();
    let facts: Vec<_> = (0..profile.ports.len()).map(|n| facts(&format!("g{n}"), &format!("d{n}"))).collect();
    Arc::new(compile(&profile, &facts, 0x1234_5678, 42).unwrap().programs[0].clone())
}

/// A port on `g0` of the namespace the caller is in.
fn open(program: &Arc<TxProgram>, queues: u32, stop: Arc<AtomicBool>) -> TxPort {
    let link = Link::find("g0").unwrap();
    let port = OpenPort {
        ifname: "g0".into(),
        ifindex: link.index,
        queues: (0..queues).map(QueueId).collect(),
        cpus: vec![],
        backend: BackendChoice::Live(LivePort::open("g0", link.index).unwrap()),
        program: program.clone(),
        mtu: 1500,
    };
    TxPort::open(port, stop).unwrap()
}

fn run(port: &mut TxPort, load_fps: Option<u64>, duration_ns: u64, count: Option<u64>) -> TxReport {
    port.start(TrialSpec { load_fps, duration_ns, count, start: clock::now() }).unwrap();
    let report = port.finish().unwrap();
    assert_eq!(report.error(), None);
    report
}

/// Without GRO (or XDP) on its peer, veth takes no live frames.
fn sink(options: Options) -> Topology {
    let topology = Topology::sink(options);
    topology.dut.sh("ethtool -K d0 gro on");
    topology
}

/// The stream, frame index and stamp that a frame's signature says, by any of the program's signature sites.
fn signed(program: &TxProgram, frame: &[u8]) -> Option<(usize, u64, u32)> {
    let number = |bytes: &[u8]| bytes.iter().fold(0u64, |value, &byte| value << 8 | u64::from(byte));
    (program.streams.iter().enumerate()).find_map(|(n, stream)| {
        stream.templates.iter().filter(|template| template.bytes.len() == frame.len()).find_map(|template| {
            let site = template.signature?;
            let signature = frame.get(usize::from(site.offset)..)?.get(..site.kind.len())?;
            let (at, width) = site.kind.sequence();
            let constant = site.kind.constant(program.run_tag, stream.id.0);
            let is_ours = signature[..at] == constant[..at];
            let stamp = site.kind.stamp().map_or(0, |at| number(&signature[at..at + 4]) as u32);
            is_ours.then(|| (n, number(&signature[at..at + width]), stamp))
        })
    })
}

/// Every frame of the program up to `counts`, exactly once, each byte as the reference defines it (after `change`).
fn assert_frames(program: &TxProgram, counts: &[u64], frames: Vec<Vec<u8>>, change: impl Fn(&mut [u8]), what: &str) {
    let mut seen: Vec<Vec<u64>> = vec![Vec::new(); counts.len()];
    let mut expected = Vec::new();
    let mut stamped = 0;
    for frame in &frames {
        let (stream, index, stamp) = signed(program, frame).unwrap_or_else(|| panic!("{what}: not ours: {frame:02x?}"));
        reference::frame(&program.streams[stream], index, stamp, &mut expected);
        change(&mut expected);
        assert_eq!(frame, &expected, "{what}: stream {stream} frame {index}");
        seen[stream].push(index);
        stamped += u64::from(stamp != 0);
    }
    for (indices, &count) in seen.iter_mut().zip(counts) {
        indices.sort_unstable();
        let missing: Vec<u64> = (0..count).filter(|index| indices.binary_search(index).is_err()).take(5).collect();
        assert!(
            indices.iter().copied().eq(0..count),
            "{what}: {} of {count} frames, without {missing:?}",
            indices.len()
        );
    }
    let can_stamp = program
        .streams
        .iter()
        .flat_map(|s| &s.templates)
        .all(|t| t.signature.is_some_and(|s| s.kind.stamp().is_some()));
    assert!(!can_stamp || stamped * 17 > frames.len() as u64, "{what}: {stamped} stamps in {} frames", frames.len());
}

const PROFILES: [&str; 7] = ["udp-64", "imix", "vlan", "qinq", "ipv6", "tcp-syn", "rfc2544"];

fn profile_text(name: &str) -> String {
    std::fs::read_to_string(format!("{}/profiles/{name}.yaml", env!("CARGO_MANIFEST_DIR"))).unwrap()
}

fn frames_of(capture: Capture, frames: usize) -> Vec<Vec<u8>> {
    capture.finish_with(frames).into_iter().map(|captured| captured.bytes).collect()
}

fn live_sends_the_same_frames_as_the_simulation() {
    let topology = Topology::forward(Options { queues: 2, ..Options::default() });
    topology
        .dut
        .sh("ethtool -K d0 gro on; sysctl -qw net.ipv4.ip_forward=0; sysctl -qw net.ipv6.conf.d0.disable_ipv6=1");
    // (A filter on the direction would cost tcpdump its first frame.)
    let from_g0 = format!("ether src {}", topology.generator.mac("g0"));
    for name in PROFILES {
        let program = compiled(&topology, &profile_text(name));
        for workers in [1, 2] {
            let capture = Capture::start(&topology.dut, "d0", &from_g0);
            let report = topology.generator.enter(|| {
                let mut port = open(&program, workers, Arc::default());
                assert!(port.bound().iter().all(|bound| bound.mode == BoundMode::Live));
                run(&mut port, Some(200_000), u64::MAX, Some(2001))
            });
            assert_eq!((report.counts.sent_frames(), report.counts.own().refused_frames), (2001, 0), "{name}");
            let simulated = {
                let mut port = mem(&program, workers);
                run(&mut port, Some(200_000), u64::MAX, Some(2001)).counts.streams()
            };
            assert_eq!(report.counts.streams(), simulated, "{name}: frames and bytes by stream");
            let counts: Vec<u64> = simulated.iter().map(|stream| stream.completed_frames).collect();
            assert_frames(&program, &counts, frames_of(capture, 2001), |_| {}, name);
        }
    }
}

/// The same program on a simulated port.
fn mem(program: &Arc<TxProgram>, workers: u32) -> TxPort {
    let port = OpenPort {
        ifname: "mem".into(),
        ifindex: 0,
        queues: (0..workers).map(QueueId).collect(),
        cpus: vec![],
        backend: BackendChoice::Mem(MemSink::counting()),
        program: program.clone(),
        mtu: 1500,
    };
    TxPort::open(port, Arc::default()).unwrap()
}

fn a_router_that_rewrites_the_pages_leaves_no_trace_in_later_frames() {
    let topology = Topology::forward(Options::default());
    topology.dut.sh("ethtool -K d0 gro on && ip neigh add 10.2.0.2 lladdr 02:00:00:00:00:77 dev d1");
    let program = compiled(&topology, &profile_text("imix"));
    let d1 = topology.dut.mac("d1");
    let d1: Vec<u8> = d1.split(':').map(|byte| u8::from_str_radix(byte, 16).unwrap()).collect();
    let capture = Capture::start(&topology.generator, "g1", "udp");
    let report = topology.generator.enter(|| {
        let mut port = open(&program, 1, Arc::default());
        run(&mut port, Some(50_000), u64::MAX, Some(5000))
    });
    assert_eq!(report.counts.sent_frames(), 5000);
    let forwarded = |frame: &mut [u8]| {
        frame[..6].copy_from_slice(&[2, 0, 0, 0, 0, 0x77]);
        frame[6..12].copy_from_slice(&d1);
        frame[22] -= 1;
        // RFC 1624 for a TTL that is one less.
        let checksum = u32::from(u16::from_be_bytes([frame[24], frame[25]])) + 0x100;
        frame[24..26].copy_from_slice(&((checksum + (checksum >> 16)) as u16).to_be_bytes());
    };
    let counts: Vec<u64> = report.counts.streams().iter().map(|stream| stream.completed_frames).collect();
    assert_frames(&program, &counts, frames_of(capture, 5000), forwarded, "behind the router");
}

fn every_requested_live_frame_completes_and_reaches_the_peer() {
    let topology = sink(Options { queues: 2, ..Options::default() });
    let program = compiled(&topology, ONE_PORT);
    for queues in [1, 2] {
        let before = topology.dut.counter("d0", "rx_packets");
        let (sent, refused) = topology.generator.enter(|| {
            let mut port = open(&program, queues, Arc::default());
            let (mut sent, mut refused) = (0, 0);
            for count in [1, 15, 16, 17, 255, 257, 179 * 200, 1_000_000] {
                let counts = run(&mut port, None, u64::MAX, Some(count)).counts;
                let total = counts.total();
                assert_eq!((total.offered_frames, total.completed_frames), (count, count));
                (sent, refused) = (sent + counts.sent_frames(), refused + counts.own().refused_frames);
            }
            assert_eq!(sent + refused, 1 + 15 + 16 + 17 + 255 + 257 + 179 * 200 + 1_000_000);
            (sent, refused)
        });
        let received = topology.dut.counter("d0", "rx_packets") - before;
        assert_eq!(received, sent, "{queues} queues, {refused} refused");
    }
}

const ONE_PORT: &str = "ports: [{interface: g0, src_ip: 10.1.0.2, default_gw: 10.1.0.1}]";

fn a_live_rate_is_kept_and_one_kpps_leaves_frame_by_frame() {
    let topology = sink(Options::default());
    let program = compiled(&topology, ONE_PORT);
    for load in [1_000, 20_000, 500_000] {
        let capture = (load == 1_000).then(|| Capture::start(&topology.dut, "d0", "udp"));
        topology.generator.enter(|| {
            let mut port = open(&program, 1, Arc::default());
            let report = run(&mut port, Some(load), NS_PER_S, None);
            let (total, own) = (report.counts.total(), report.counts.own());
            assert_eq!(report.intended_frames, [load]);
            // Only what this machine took away for longer than the pacer repays may be missing, and is counted.
            let missing = load - total.completed_frames;
            let forgiven = own.forgiven_ns * load / NS_PER_S;
            assert!(missing <= 20 + forgiven + forgiven / 50 + load / 500, "{missing} of {load} missing, {own:?}");
        });
        let Some(capture) = capture else { continue };
        let frames = capture.finish();
        // Behind by at most the debt that is repaid (1 ms), never a burst.
        let burst = frames.windows(4).find(|four| four[3].at_ns - four[0].at_ns < 500_000);
        assert!(frames.len() > 100 && burst.is_none(), "{} frames, {burst:?}", frames.len());
    }
}

fn a_live_trial_sends_what_is_due_in_its_last_microsecond() {
    let topology = sink(Options::default());
    let program = compiled(&topology, ONE_PORT);
    topology.generator.enter(|| {
        let mut port = open(&program, 1, Arc::default());
        // The last frame is due 0.4 to 0.6 µs before the end, at a fraction of a nanosecond.
        for (load, duration_ns) in [(99_991, 200_018_400), (300_007, 199_995_800), (350_276, 200_000_000)] {
            let mut missing = Vec::new();
            // A trial from which the host took the CPU for longer than is repaid says nothing.
            let is_whole = (0..20).any(|_| {
                let report = run(&mut port, Some(load), duration_ns, None);
                let intended: u64 = report.intended_frames.iter().sum();
                missing.push((intended - report.counts.total().offered_frames, report.counts.own().forgiven_ns));
                missing[missing.len() - 1].0 == 0
            });
            assert!(is_whole, "{load} frames/s: frames missing and ns forgiven, by trial: {missing:?}");
        }
    });
}

/// Waits for a condition, at most `limit`; returns how long it took.
fn until(limit: Duration, mut done: impl FnMut() -> bool) -> Duration {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < limit, "did not happen within {limit:?}");
        std::thread::sleep(Duration::from_millis(2));
    }
    start.elapsed()
}

fn an_unpaced_live_trial_ends_on_time_and_stops_at_once() {
    let topology = sink(Options::default());
    let program = compiled(&topology, ONE_PORT);
    topology.generator.enter(|| {
        let stop: Arc<AtomicBool> = Arc::default();
        let mut port = open(&program, 1, stop.clone());
        let start = clock::now();
        let report = run(&mut port, None, 200_000_000, None);
        let took = clock::now().since_ns(start);
        assert!((200_000_000..300_000_000).contains(&took), "{took} ns for a trial of 200 ms");
        assert!(report.counts.sent_frames() > 10_000);
        port.start(TrialSpec { load_fps: None, duration_ns: 60 * NS_PER_S, count: None, start: clock::now() }).unwrap();
        until(Duration::from_secs(5), || port.counters().sent_frames() > 100_000);
        stop.store(true, Relaxed);
        let stopped = Instant::now();
        let report = port.finish().unwrap();
        assert!(report.interrupted && stopped.elapsed() < Duration::from_millis(50), "{:?}", stopped.elapsed());
    });
}

fn live_sending_goes_on_after_the_link_or_its_carrier_was_away() {
    let topology = sink(Options::default());
    let program = compiled(&topology, ONE_PORT);
    for (netns, interface) in [(&topology.generator, "g0"), (&topology.dut, "d0")] {
        let stop: Arc<AtomicBool> = Arc::default();
        let mut port = topology.generator.enter(|| open(&program, 1, stop.clone()));
        let spec = TrialSpec { load_fps: Some(10_000), duration_ns: 60 * NS_PER_S, count: None, start: clock::now() };
        port.start(spec).unwrap();
        let limit = Duration::from_secs(5);
        until(limit, || port.counters().sent_frames() > 100);
        netns.sh(&format!("ip link set {interface} down"));
        until(limit, || port.counters().own().link_down_ns > 300_000_000);
        netns.sh(&format!("ip link set {interface} up"));
        let received = topology.dut.counter("d0", "rx_packets");
        let took = until(limit, || topology.dut.counter("d0", "rx_packets") > received + 100);
        assert!(took < Duration::from_secs(2), "{interface}: resumed after {took:?}");
        stop.store(true, Relaxed);
        let report = port.finish().unwrap();
        assert_eq!(report.error(), None);
        let own = report.counts.own();
        assert!(own.refused_frames > 0 && report.counts.sent_frames() > 200, "{own:?}");
    }
}

fn a_removed_interface_ends_a_live_trial_with_totals() {
    let topology = sink(Options::default());
    let program = compiled(&topology, ONE_PORT);
    let mut port = topology.generator.enter(|| open(&program, 1, Arc::default()));
    let spec = TrialSpec { load_fps: Some(10_000), duration_ns: 60 * NS_PER_S, count: None, start: clock::now() };
    port.start(spec).unwrap();
    until(Duration::from_secs(5), || port.counters().sent_frames() > 100);
    topology.generator.sh("ip link del g0");
    let start = Instant::now();
    let report = port.finish().unwrap();
    assert!(start.elapsed() < Duration::from_secs(5), "took {:?}", start.elapsed());
    let error = report.error().expect("a removed interface is an error").to_string();
    assert!(error.contains("g0") && error.contains("removed"), "{error}");
    assert!(report.counts.total().completed_frames > 100);
}
