//! `plimsoll sink` on a DUT that terminates: by XDP and by a packet socket, and that the DUT keeps its frames.

use std::time::{Duration, Instant};

use plimsoll::{
    host::{link::Link, packet::PacketSocket},
    wire::signature::{RUN_MAGIC, SignatureKind},
    xdp::{
        attach::XdpMode,
        rx::XdpChoice,
        tally::{Counted, XdpTally},
    },
};
use rustix::process::Signal;
use serde_json::Value;

use crate::support::{
    harness::Test,
    netns::{Options, Topology},
    run::{Plimsoll, SINK, wait_until},
};

pub fn tests() -> Vec<Test> {
    crate::tests![
        both_signatures_are_counted_by_xdp_and_the_dut_keeps_the_frames,
        a_tail_in_a_fragment_is_counted,
        what_a_terminating_dut_received_is_what_its_sink_counted,
        a_sink_that_may_not_use_bpf_counts_by_a_packet_socket,
        an_old_kernel_is_not_asked_for_bpf,
        beside_a_program_of_somebody_else_a_packet_socket_counts,
    ]
}

const TAG: u32 = (RUN_MAGIC as u32) << 16 | 0x1234;

/// An Ethernet frame of `length` bytes.
fn ethernet(kind: u16, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    bytes[..6].copy_from_slice(&[0xFF; 6]);
    bytes[6..12].copy_from_slice(&[2, 0, 0, 0, 0, 9]);
    bytes[12..14].copy_from_slice(&kind.to_be_bytes());
    bytes
}

/// An IPv4 frame with these bytes as the payload of UDP or TCP.
fn frame(protocol: u8, payload: &[u8]) -> Vec<u8> {
    let header = if protocol == 6 { 20 } else { 8 };
    let mut bytes = ethernet(0x0800, 34 + header + payload.len());
    let length = (bytes.len() - 14) as u16;
    (bytes[14], bytes[22], bytes[23], bytes[46]) = (0x45, 64, protocol, 0x50);
    bytes[16..18].copy_from_slice(&length.to_be_bytes());
    if protocol == 17 {
        bytes[46] = 0;
    }
    bytes[34 + header..].copy_from_slice(payload);
    bytes
}

fn short(stream: u8, sequence: u32) -> Vec<u8> {
    let mut payload = SignatureKind::Short.constant(TAG, stream.into());
    payload[3..].copy_from_slice(&sequence.to_be_bytes()[1..]);
    frame(6, &payload)
}

fn full(length: usize) -> Vec<u8> {
    let mut payload = SignatureKind::Full.constant(TAG, 3);
    payload.resize(length, 0);
    frame(17, &payload)
}

/// Sends the frames out of `g0` by one CPU, and waits until `d0` has them.
fn send(t: &Topology, frames: &[Vec<u8>]) {
    let arrived = || t.dut.counter("d0", "rx_packets");
    let before = arrived();
    t.generator.enter(|| {
        let mut cpu = rustix::thread::CpuSet::new();
        cpu.set(0);
        rustix::thread::sched_setaffinity(None, &cpu).unwrap();
        let socket = PacketSocket::open(Link::find("g0").unwrap().index).unwrap();
        frames.iter().for_each(|frame| socket.send(frame).unwrap());
    });
    wait_until("all frames have arrived", || arrived() - before >= frames.len() as u64);
}

fn both_signatures_are_counted_by_xdp_and_the_dut_keeps_the_frames() {
    for choice in [XdpChoice::Native, XdpChoice::Generic] {
        let t = Topology::sink(Options::default());
        let mut ours: Vec<_> = (0..40).map(|n| short(2, 7 * n)).collect();
        // Workers and flows interleave; a sequence wraps; a burst was lost.
        ours.extend([0xFF_FFFE, 0xFF_FFFF, 0, 1, 90_000, 90_001].map(|n| short(9, n)));
        let shorts = ours.len() as u64;
        ours.extend((0..20).map(|n| full(18 + n)));
        let mut at_the_end = ethernet(0x88B5, 60);
        at_the_end[46..50].copy_from_slice(&TAG.to_be_bytes());
        ours.push(at_the_end);
        let others: Vec<_> = (0..30)
            .map(|_| frame(6, &[7; 6]))
            .chain((0..30).map(|n: u32| frame(17, &n.wrapping_mul(0x9E37_79B9).to_be_bytes().repeat(2))))
            .chain((0..30).map(|_| frame(17, &[0; 18])))
            .chain([frame(6, &[1, 2, 3, 4, 5, 6]), frame(6, &[]), ethernet(0x0800, 20)])
            .collect();
        let before = t.dut.mib("IpInReceives");
        let (counted, mode, ip) = t.dut.enter(|| {
            let tally = XdpTally::attach(&Link::find("d0").unwrap(), choice).unwrap();
            send(&t, &ours);
            send(&t, &others);
            (tally.counted().unwrap(), tally.mode(), t.dut.mib("IpInReceives") - before)
        });
        assert_eq!(counted, Counted { frames: ours.len() as u64, short_frames: shorts }, "{choice:?}");
        assert_eq!(mode == XdpMode::Native, choice == XdpChoice::Native);
        // All but the one of another type, and the cut one that IP does not take.
        assert!(ip + 2 >= (ours.len() + others.len()) as u64, "{ip} frames came to IP");
        assert_eq!(t.dut.xdp_program("d0"), None);
    }
}

fn a_tail_in_a_fragment_is_counted() {
    let t = Topology::sink(Options { mtu: 9000, ..Options::default() });
    let mut tail = ethernet(0x88B5, 9014);
    tail[9000..9004].copy_from_slice(&TAG.to_be_bytes());
    let frames = [tail, full(8000), full(18), short(1, 1), short(1, 2), ethernet(0x88B5, 9014)];
    let (counted, mode) = t.dut.enter(|| {
        let tally = XdpTally::attach(&Link::find("d0").unwrap(), XdpChoice::Native).unwrap();
        send(&t, &frames);
        (tally.counted().unwrap(), tally.mode())
    });
    assert_eq!((counted, mode), (Counted { frames: 5, short_frames: 2 }, XdpMode::Native));
}

/// A sink on `d0`, once it counts.
fn sink(topology: &Topology, arguments: &str) -> crate::support::netns::Running {
    let sink = topology.dut.spawn(&format!("{} sink d0 {arguments}", Plimsoll::binary()));
    let begun = Instant::now();
    // The file's name has the namespace in it: no other sink's is seen.
    while topology.dut.sh("ls /run/plimsoll-sink.$(readlink /proc/self/ns/net).d0 2>/dev/null || true").is_empty() {
        assert!(begun.elapsed() < Duration::from_secs(10), "the sink does not start");
        std::thread::sleep(Duration::from_millis(20));
    }
    sink
}

const TCP: &str = "streams: [{headers: {ipv4: {dst: 10.1.0.1}, tcp: {dst_port: 9}}}]\n";

fn what_a_terminating_dut_received_is_what_its_sink_counted() {
    for (mode, streams, size, last) in [
        ("packet", "", 128, "counted by a packet socket"),
        ("xdp", "", 128, "counted by native XDP"),
        ("auto", TCP, 64, "counted by native XDP"),
    ] {
        let topology = Topology::sink(Options::default());
        let sink = sink(&topology, &format!("--mode {mode}"));
        let profile = format!("{SINK}{streams}dut: {{observe: 'netns:{}', interface: d0}}\n", topology.dut.name());
        let arguments = format!("run PROFILE --rate 20kpps --count 10000 --workers 1 --frame-size {size}");
        let plimsoll = Plimsoll::with_profile(&profile);
        let outcome = plimsoll.run(&topology.generator, &arguments, Duration::from_secs(30)).expect_code(0);
        assert_eq!((outcome.count("completed_frames"), outcome.count("received_frames")), (10_000, 10_000), "{mode}");
        assert_eq!(outcome.trial(0)["verdict"], Value::Null, "{:#}", outcome.trial(0)["verdict"]);
        sink.signal(Signal::INT);
        let output = sink.finish(Duration::from_secs(5));
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let received: u64 = text
            .strip_prefix("received: ")
            .and_then(|rest| rest.split_whitespace().next()?.parse().ok())
            .unwrap_or_else(|| panic!("it says how many: {text}"));
        // The frames of the generator's start-up test carry a signature too.
        assert!((10_000..10_600).contains(&received), "{mode}: {text}");
        assert!(text.contains(last), "{mode}: {text}");
        let left = topology.dut.sh("ls /run/plimsoll-sink.$(readlink /proc/self/ns/net).* 2>/dev/null || true");
        assert!(left.is_empty(), "the sink's file is gone: {left}");
        assert_eq!(topology.dut.xdp_program("d0"), None);
    }
}

fn a_sink_that_may_not_use_bpf_counts_by_a_packet_socket() {
    let topology = Topology::sink(Options::default());
    let run = |mode: &str| {
        let line = format!(
            "capsh --drop=cap_bpf,cap_sys_admin,cap_net_admin,cap_perfmon -- -c '{} sink d0 --mode {mode} --duration 200ms'",
            Plimsoll::binary()
        );
        let output = topology.dut.spawn(&line).finish(Duration::from_secs(10));
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    };
    let (code, stdout, stderr) = run("auto");
    assert_eq!((code, stdout.trim()), (Some(0), "received: 0 (counted by a packet socket)"), "{stderr}");
    assert!(stderr.contains("no XDP here") && stderr.contains("CAP_NET_ADMIN"), "{stderr}");
    let (code, _, stderr) = run("xdp");
    assert!(code == Some(3) && stderr.contains("CAP_NET_ADMIN"), "{stderr}");
}

fn an_old_kernel_is_not_asked_for_bpf() {
    let topology = Topology::sink(Options::default());
    // The kernel says that it is 2.6.x to this process; what it would refuse is not even tried.
    let line = format!("setarch --uname-2.6 {} sink d0 --duration 200ms", Plimsoll::binary());
    let output = topology.dut.spawn(&line).finish(Duration::from_secs(10));
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(
        (output.status.code(), stdout.trim()),
        (Some(0), "received: 0 (counted by a packet socket)"),
        "{stderr}"
    );
    assert!(stderr.contains("no XDP here") && stderr.contains("kernel 2.6."), "{stderr}");
    assert!(!stderr.contains("attaching"), "{stderr}");
}

fn beside_a_program_of_somebody_else_a_packet_socket_counts() {
    let t = Topology::sink(Options::default());
    let mut counts = Vec::new();
    t.dut.enter(|| {
        let theirs = XdpTally::attach(&Link::find("d0").unwrap(), XdpChoice::Native).unwrap();
        let ours = sink(&t, "--mode auto");
        send(&t, &(0..50).map(|_| full(18)).collect::<Vec<_>>());
        ours.signal(Signal::INT);
        counts.push(String::from_utf8_lossy(&ours.finish(Duration::from_secs(5)).stdout).trim().to_owned());
        assert_eq!(theirs.counted().unwrap().frames, 50);
    });
    assert_eq!(counts, ["received: 50 (counted by a packet socket)"]);
}
