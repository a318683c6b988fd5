//! Sending ports on real interfaces: nothing is lost or invented, queues have owners, links misbehave.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use plimsoll::{
    clock,
    engine::{BackendChoice, BoundMode, OpenPort, TrialSpec, TxPort, counters::TxSnapshot},
    error::Result,
    host::link::Link,
    ids::{PortId, QueueId, StreamId},
    program::{Field, Generator, Mode, Schedule, StreamProgram, Template, TxProgram, Write},
    units::{FrameLen, NS_PER_S},
};
use rustix::{
    process::{Resource, Rlimit, getrlimit, setrlimit},
    thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities},
};

use crate::support::{
    harness::Test,
    netns::{Options, Topology},
};

pub fn tests() -> Vec<Test> {
    crate::tests![
        every_requested_frame_reaches_the_peer,
        a_rate_is_the_same_through_every_backend,
        ten_runs_back_to_back_find_their_queue_free,
        a_queue_in_use_is_named_and_its_owner_keeps_working,
        four_queues_open_four_sockets_and_a_fifth_is_refused,
        zero_copy_is_refused_by_name_and_auto_says_why_not,
        copy_mode_needs_no_capability_but_net_raw,
        a_locked_memory_limit_is_named_with_the_bytes_needed,
        sending_goes_on_after_the_link_or_its_carrier_was_away,
        a_removed_interface_ends_the_trial_with_totals,
    ]
}

/// 60-byte frames to nobody, 64 source ports.
fn program() -> Arc<TxProgram> {
    let mut bytes = vec![0u8; 60];
    bytes[..14].copy_from_slice(&[2, 0, 0, 0, 0, 9, 2, 0, 0, 0, 0, 1, 0x88, 0xB5]);
    let template = Template {
        bytes: bytes.into(),
        frame_len: FrameLen::MIN,
        writes: vec![Write { field: 0, offset: 34, width: 2, shift: 0, mask: 0xFFFF }],
        signature: None,
        checksums: vec![],
    };
    let field = Field { name: "f".into(), generator: Generator::Step { start: 1024, step: 1 }, div: 1, period: 64 };
    let schedule =
        Schedule { weight: 1, start_delay_ns: 0, mode: Mode::Continuous, next: None, self_start: true, loops: 0 };
    let stream = StreamProgram {
        id: StreamId(0),
        name: "s".into(),
        templates: vec![template],
        pattern: vec![0],
        fields: vec![field],
        schedule,
        flows: 64,
    };
    Arc::new(TxProgram { port: PortId(0), run_tag: 7, streams: vec![stream] })
}

/// A port on `g0` of the namespace the caller is in.
fn open(backend: BackendChoice, queues: &[u32]) -> Result<TxPort> {
    open_until(backend, queues, Arc::default())
}

fn open_until(backend: BackendChoice, queues: &[u32], stop: Arc<AtomicBool>) -> Result<TxPort> {
    let link = Link::find("g0")?;
    let port = OpenPort {
        ifname: "g0".into(),
        ifindex: link.index,
        queues: queues.iter().map(|&queue| QueueId(queue)).collect(),
        cpus: vec![],
        backend,
        program: program(),
        mtu: 1500,
    };
    TxPort::open(port, stop)
}

fn send(port: &mut TxPort, load_fps: Option<u64>, count: u64) -> TxSnapshot {
    port.start(TrialSpec { load_fps, duration_ns: 20 * NS_PER_S, count: Some(count), start: clock::now() }).unwrap();
    let report = port.finish().unwrap();
    assert_eq!(report.error(), None);
    report.counts
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

fn every_requested_frame_reaches_the_peer() {
    let topology = Topology::sink(Options { queues: 2, ..Options::default() });
    for backend in [BackendChoice::XskCopy, BackendChoice::Packet] {
        for queues in [&[0][..], &[0, 1]] {
            let before = topology.dut.counter("d0", "rx_packets");
            let counts = topology.generator.enter(|| {
                let mut port = open(backend.clone(), queues).unwrap();
                // 179 frames, 200 times, and sizes around a burst; without losing a slot anywhere.
                let totals = [1, 63, 64, 65, 179 * 200, 179 * 200].map(|count| {
                    let total = send(&mut port, None, count).total();
                    assert_eq!(
                        (total.offered_frames, total.completed_frames),
                        (count, count),
                        "{backend:?} {queues:?}"
                    );
                    count
                });
                totals.iter().sum::<u64>()
            });
            let received = topology.dut.counter("d0", "rx_packets") - before;
            assert_eq!(received, counts, "{backend:?} {queues:?}");
        }
    }
}

fn a_rate_is_the_same_through_every_backend() {
    let topology = Topology::sink(Options::default());
    for backend in [BackendChoice::XskCopy, BackendChoice::Packet] {
        topology.generator.enter(|| {
            let mut port = open(backend.clone(), &[0]).unwrap();
            let spec = TrialSpec { load_fps: Some(20_000), duration_ns: NS_PER_S, count: None, start: clock::now() };
            port.start(spec).unwrap();
            let report = port.finish().unwrap();
            let (total, own) = (report.counts.total(), report.counts.own());
            assert_eq!(report.intended_frames, [20_000]);
            // Only what this machine took away for longer than the pacer repays may be missing, and is counted.
            let missing = 20_000 - total.completed_frames;
            assert!(missing <= 20 + own.forgiven_ns / 50_000, "{backend:?}: {missing} missing, {own:?}");
        });
    }
}

fn ten_runs_back_to_back_find_their_queue_free() {
    let topology = Topology::sink(Options::default());
    topology.generator.enter(|| {
        for _ in 0..10 {
            let mut port = open(BackendChoice::XskCopy, &[0]).unwrap();
            assert_eq!(send(&mut port, None, 100).total().completed_frames, 100);
        }
    });
}

fn a_queue_in_use_is_named_and_its_owner_keeps_working() {
    let topology = Topology::sink(Options { queues: 2, ..Options::default() });
    topology.generator.enter(|| {
        let mut owner = open(BackendChoice::XskCopy, &[1]).unwrap();
        let start = Instant::now();
        let error = open(BackendChoice::XskCopy, &[1]).unwrap_err();
        assert!(error.to_string().contains("queue 1 of g0 is in use by another AF_XDP socket"), "{error}");
        assert!((2..4).contains(&start.elapsed().as_secs()), "gave up after {:?}", start.elapsed());
        assert_eq!(send(&mut owner, None, 1000).total().completed_frames, 1000);
    });
}

fn four_queues_open_four_sockets_and_a_fifth_is_refused() {
    let topology = Topology::sink(Options { queues: 4, ..Options::default() });
    topology.generator.enter(|| {
        let mut port = open(BackendChoice::XskCopy, &[0, 1, 2, 3]).unwrap();
        assert_eq!(send(&mut port, None, 1003).total().completed_frames, 1003);
        let error = open(BackendChoice::XskCopy, &[4]).unwrap_err().to_string();
        assert!(error.contains("g0 queue 4") && error.contains("ethtool -l"), "{error}");
    });
}

fn zero_copy_is_refused_by_name_and_auto_says_why_not() {
    let topology = Topology::sink(Options::default());
    topology.generator.enter(|| {
        let error = open(BackendChoice::XskZeroCopy, &[0]).unwrap_err().to_string();
        assert!(error.contains("g0 queue 0 in zero-copy mode") && error.contains("--backend xsk-copy"), "{error}");
        let port = open(BackendChoice::XskAuto, &[0]).unwrap();
        let bound = &port.bound()[0];
        assert_eq!(bound.mode, BoundMode::Copy);
        assert!(bound.why_not_zero_copy.as_ref().is_some_and(|why| why.contains("not supported")), "{bound:?}");
    });
}

/// Runs on a thread that has only these capabilities.
fn with_only<T: Send>(only: CapabilitySet, body: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let sets = CapabilitySets { effective: only, permitted: only, inheritable: CapabilitySet::empty() };
            set_capabilities(None, sets).expect("capabilities can be dropped");
            body()
        });
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Runs with this soft limit of locked memory for the process.
fn with_memlock<T>(bytes: Option<u64>, body: impl FnOnce() -> T) -> T {
    struct Restore(Rlimit);
    impl Drop for Restore {
        fn drop(&mut self) {
            setrlimit(Resource::Memlock, self.0).expect("the old limit can be set again");
        }
    }
    let old = getrlimit(Resource::Memlock);
    let maximum = old.maximum;
    let _restore = Restore(old);
    setrlimit(Resource::Memlock, Rlimit { current: bytes, maximum }).expect("root may set its limits");
    body()
}

fn copy_mode_needs_no_capability_but_net_raw() {
    let topology = Topology::sink(Options::default());
    with_memlock(Some(8 << 20), || {
        topology.generator.enter(|| {
            with_only(CapabilitySet::NET_RAW, || {
                let mut port = open(BackendChoice::XskCopy, &[0]).unwrap();
                assert_eq!(send(&mut port, None, 1000).total().completed_frames, 1000);
            });
            with_only(capabilities(None).unwrap().permitted - CapabilitySet::NET_RAW, || {
                for backend in [BackendChoice::XskCopy, BackendChoice::Packet] {
                    let error = open(backend, &[0]).unwrap_err().to_string();
                    assert!(error.contains("CAP_NET_RAW"), "{error}");
                }
            });
        });
    });
    assert_eq!(topology.generator.xdp_program("g0"), None);
}

fn a_locked_memory_limit_is_named_with_the_bytes_needed() {
    let topology = Topology::sink(Options::default());
    with_memlock(Some(64 << 10), || {
        topology.generator.enter(|| {
            with_only(CapabilitySet::NET_RAW, || {
                let error = open(BackendChoice::XskCopy, &[0]).unwrap_err().to_string();
                assert!(error.contains("2048 KiB are needed") && error.contains("64 KiB"), "{error}");
            });
        });
    });
}

fn sending_goes_on_after_the_link_or_its_carrier_was_away() {
    let topology = Topology::sink(Options::default());
    // The generator's own interface down, then only its carrier.
    for (netns, interface) in [(&topology.generator, "g0"), (&topology.dut, "d0")] {
        for backend in [BackendChoice::XskCopy, BackendChoice::Packet] {
            let stop: Arc<AtomicBool> = Arc::default();
            let mut port = topology.generator.enter(|| open_until(backend.clone(), &[0], stop.clone())).unwrap();
            let spec =
                TrialSpec { load_fps: Some(10_000), duration_ns: 60 * NS_PER_S, count: None, start: clock::now() };
            port.start(spec).unwrap();
            let limit = Duration::from_secs(5);
            until(limit, || port.counters().sent_frames() > 100);
            netns.sh(&format!("ip link set {interface} down"));
            until(limit, || port.counters().own().link_down_ns > 300_000_000);
            netns.sh(&format!("ip link set {interface} up"));
            let received = topology.dut.counter("d0", "rx_packets");
            let took = until(limit, || topology.dut.counter("d0", "rx_packets") > received + 100);
            assert!(took < Duration::from_secs(2), "{backend:?} on {interface}: resumed after {took:?}");
            stop.store(true, Relaxed);
            let report = port.finish().unwrap();
            assert_eq!(report.error(), None);
            assert_eq!(report.workers[0].outstanding_frames, 0, "{backend:?} on {interface}");
        }
    }
}

fn a_removed_interface_ends_the_trial_with_totals() {
    for backend in [BackendChoice::XskCopy, BackendChoice::Packet] {
        let topology = Topology::sink(Options::default());
        let mut port = topology.generator.enter(|| open(backend.clone(), &[0])).unwrap();
        let spec = TrialSpec { load_fps: Some(10_000), duration_ns: 60 * NS_PER_S, count: None, start: clock::now() };
        port.start(spec).unwrap();
        until(Duration::from_secs(5), || port.counters().sent_frames() > 100);
        topology.generator.sh("ip link del g0");
        let start = Instant::now();
        let report = port.finish().unwrap();
        assert!(start.elapsed() < Duration::from_secs(5), "{backend:?} took {:?}", start.elapsed());
        let error = report.error().expect("a removed interface is an error").to_string();
        assert!(error.contains("g0 queue 0") && error.contains("removed"), "{error}");
        assert!(report.counts.total().completed_frames > 100);
    }
}
