//! Black-box cases of `plimsoll run`: what a user must be able to rely on, checked by the DUT's own counters.

use std::time::{Duration, Instant};

use pnet_packet::{Packet, ipv4::Ipv4Packet, udp, udp::UdpPacket};

use crate::support::{
    harness::{Test, skip},
    netns::{Options, Topology},
    run::{FORWARD, Plimsoll, SINK, kernel_log, wait_until},
    traffic::{Capture, UdpSink},
};

pub fn tests() -> Vec<Test> {
    crate::tests![
        c01_exactly_as_many_frames_as_asked_reach_a_socket_with_good_checksums,
        c01_every_frame_carries_a_checksum_that_is_not_zero,
        c03_a_two_second_link_flap_is_survived_and_said,
        c05_a_trial_lasts_as_long_as_asked,
        c05_more_than_possible_is_said_and_not_called_loss,
        c07_sizes_count_the_fcs,
        c07_impossible_sizes_are_refused_before_sending,
        c09_without_an_answer_from_the_gateway_no_frame_leaves,
        c13_a_killed_run_leaves_nothing_that_blocks,
        x4_errors_from_a_closed_port_are_never_received_frames,
        x5_twenty_interrupts_under_full_load,
        x6_the_port_with_the_default_route_is_refused,
        a_forwarding_dut_returns_every_frame_with_latency,
        a_dut_that_duplicates_shows_more_received_than_sent,
    ]
}

const SECOND: Duration = Duration::from_secs(1);

fn c01_exactly_as_many_frames_as_asked_reach_a_socket_with_good_checksums() {
    let topology = Topology::sink(Options::default());
    let sink = UdpSink::bind(&topology.dut, "10.1.0.1:9");
    let before = topology.generator.counter("g0", "tx_packets");
    let run = Plimsoll::with_profile(SINK)
        .run(&topology.generator, "run PROFILE --frame-size 256 --rate 5000pps --count 20000", 20 * SECOND)
        .expect_code(0);
    let delivered = sink.finish();
    let sent = run.count("completed_frames");
    assert_eq!((sent, delivered.datagrams, delivered.sources), (20_000, 20_000, 64));
    assert_eq!(topology.dut.mib("UdpInCsumErrors"), 0);
    let on_wire = topology.generator.counter("g0", "tx_packets") - before;
    assert!((sent..=sent + 10).contains(&on_wire), "{on_wire} frames for {sent}");
}

fn c01_every_frame_carries_a_checksum_that_is_not_zero() {
    let topology = Topology::sink(Options::default());
    let _sink = UdpSink::bind(&topology.dut, "10.1.0.1:9");
    let capture = Capture::start(&topology.dut, "d0", "udp port 9");
    Plimsoll::with_profile(SINK)
        .run(&topology.generator, "run PROFILE --rate 5000pps --count 1000", 20 * SECOND)
        .expect_code(0);
    let frames = capture.finish();
    assert_eq!(frames.len(), 1000);
    for frame in frames {
        let ip = Ipv4Packet::new(&frame.bytes[14..]).expect("an IPv4 header");
        let payload = &ip.payload()[..usize::from(ip.get_total_length()) - 20];
        let datagram = UdpPacket::new(payload).expect("a UDP header");
        assert_ne!(datagram.get_checksum(), 0);
        let expected = udp::ipv4_checksum(&datagram, &ip.get_source(), &ip.get_destination());
        assert_eq!(datagram.get_checksum(), expected);
    }
}

fn c03_a_two_second_link_flap_is_survived_and_said() {
    let topology = Topology::sink(Options::default());
    let sink = UdpSink::bind(&topology.dut, "10.1.0.1:9");
    let before = topology.generator.counter("g0", "tx_packets");
    let plimsoll = Plimsoll::with_profile(SINK);
    let started = Instant::now();
    let running = plimsoll.spawn(&topology.generator, "run PROFILE --rate 2000pps --duration 10s");
    // The flap is part of the case: it needs its own clock, not the run's.
    std::thread::sleep(3 * SECOND);
    topology.dut.sh("ip link set d0 down");
    std::thread::sleep(2 * SECOND);
    topology.dut.sh("ip link set d0 up");
    let run = plimsoll.outcome(running, started, 20 * SECOND).expect_code(0);
    let delivered = sink.finish();
    assert!((14_500..=16_500).contains(&delivered.datagrams), "{}", delivered.datagrams);
    assert!(run.caveats().iter().any(|code| code == "link_outage"), "{}", run.text());
    let on_wire = topology.generator.counter("g0", "tx_packets") - before;
    let sent = run.count("completed_frames");
    assert!(sent.abs_diff(on_wire) * 100 <= on_wire, "{sent} reported, {on_wire} on the wire");
    let peak = delivered.per_100ms.iter().max().copied().unwrap_or_default();
    assert!(peak <= 400, "a burst of {peak} frames in 100 ms at 200 per 100 ms: {:?}", delivered.per_100ms);
}

fn c05_a_trial_lasts_as_long_as_asked() {
    let topology = Topology::sink(Options::default());
    let _sink = UdpSink::bind(&topology.dut, "10.1.0.1:9");
    let run = Plimsoll::with_profile(SINK)
        .run(&topology.generator, "run PROFILE --rate 5000pps --duration 6s", 15 * SECOND)
        .expect_code(0);
    let duration = run.trial(0)["duration_s"].as_f64().expect("a duration");
    assert!((5.9..=6.1).contains(&duration), "{duration}");
    let sent = run.count("completed_frames");
    if sent < 29_700 && run.was_disturbed() {
        skip(
            "idle",
            format!("{sent} of 30,000 frames: the host took the CPU from the generator, and the report says so"),
        );
    }
    assert!((29_700..=30_300).contains(&sent), "{}", run.text());
}

fn c05_more_than_possible_is_said_and_not_called_loss() {
    let topology = Topology::sink(Options::default());
    let _sink = UdpSink::bind(&topology.dut, "10.1.0.1:9");
    let run = Plimsoll::with_profile(SINK)
        .run(&topology.generator, "run PROFILE --rate 50mpps --duration 3s", 8 * SECOND)
        .expect_code(0);
    let duration = run.trial(0)["duration_s"].as_f64().expect("a duration");
    assert!((2.7..=3.3).contains(&duration), "{duration}");
    assert!(run.caveats().iter().any(|code| code == "rate_not_reached"), "{}", run.text());
    assert!(run.count("intended_frames") > run.count("offered_frames"));
    assert!(run.trial(0)["lost_frames"].is_null(), "nobody counted at the DUT, so nothing is known to be lost");
}

fn c07_sizes_count_the_fcs() {
    let topology = Topology::sink(Options::default());
    let _sink = UdpSink::bind(&topology.dut, "10.1.0.1:9");
    for size in [64_u16, 128, 512, 1024, 1518] {
        let capture = Capture::start(&topology.dut, "d0", "udp port 9");
        Plimsoll::with_profile(SINK)
            .run(
                &topology.generator,
                &format!("run PROFILE --frame-size {size} --rate 1000pps --count 200"),
                15 * SECOND,
            )
            .expect_code(0);
        let frames = capture.finish();
        assert_eq!(frames.len(), 200);
        for frame in frames {
            assert_eq!(frame.bytes.len(), usize::from(size) - 4);
            let ip = Ipv4Packet::new(&frame.bytes[14..]).expect("an IPv4 header");
            assert_eq!(usize::from(ip.get_total_length()), frame.bytes.len() - 14);
        }
    }
    assert_eq!(topology.dut.mib("UdpInCsumErrors"), 0);
}

fn c07_impossible_sizes_are_refused_before_sending() {
    let topology = Topology::sink(Options::default());
    for (size, limit) in [("40", "64"), ("1600", "1518")] {
        let run = Plimsoll::with_profile(SINK)
            .run(&topology.generator, &format!("run PROFILE --frame-size {size} --count 10"), 10 * SECOND)
            .expect_code(2);
        assert!(run.stderr.contains(limit), "{limit} in {}", run.stderr);
    }
    assert_eq!(topology.generator.counter("g0", "tx_packets"), 0);
    assert_eq!(topology.generator.counter("g0", "tx_dropped"), 0);
}

fn c09_without_an_answer_from_the_gateway_no_frame_leaves() {
    let topology = Topology::sink(Options::default());
    let capture = Capture::start(&topology.dut, "d0", "");
    let profile = "ports:
  - {interface: g0, src_ip: 10.1.0.2, default_gw: 10.1.0.77}
streams:
  - name: s
    headers:
      - ipv4: {dst: 10.1.0.200}
      - udp: {dst: 9}
";
    let run = Plimsoll::with_profile(profile)
        .run(&topology.generator, "run PROFILE --rate 1000pps --duration 5s", 15 * SECOND)
        .expect_code(3);
    assert!(run.stderr.contains("10.1.0.77") && run.stderr.contains("g0"), "{}", run.stderr);
    let frames = capture.finish();
    let arp = frames.iter().filter(|frame| frame.bytes[12..14] == [0x08, 0x06]);
    let requests: Vec<_> = arp.filter(|frame| frame.bytes[38..42] == [10, 1, 0, 77]).collect();
    assert!((1..=20).contains(&requests.len()), "{} requests", requests.len());
    assert!(requests.iter().all(|frame| frame.bytes[28..32] == [10, 1, 0, 2]));
    assert_eq!(frames.iter().filter(|frame| frame.bytes[12..14] == [0x08, 0x00]).count(), 0);
}

fn c13_a_killed_run_leaves_nothing_that_blocks() {
    let topology = Topology::forward(Options::default());
    let plimsoll = Plimsoll::with_profile(FORWARD);
    let running = plimsoll.spawn(&topology.generator, "run PROFILE --rate 10kpps --duration 30s");
    wait_until("frames flow", || topology.generator.counter("g1", "rx_packets") > 1000);
    running.signal(rustix::process::Signal::KILL);
    wait_until("the XDP program is gone", || topology.generator.xdp_program("g1").is_none());
    assert!(topology.generator.xdp_program("g0").is_none());
    wait_until("nobody wants promiscuous mode", || !topology.generator.is_promiscuous("g1"));
    drop(running);
    let again = Plimsoll::with_profile(FORWARD)
        .run(&topology.generator, "run PROFILE --rate 1000pps --count 500", 15 * SECOND)
        .expect_code(0);
    assert_eq!(again.count("received_frames"), 500);
    topology.generator.sh("ip addr add 10.2.0.9/24 dev g1");
    let sink = UdpSink::bind(&topology.dut, "10.2.0.1:5000");
    topology
        .generator
        .sh("echo hello > /dev/udp/10.2.0.1/5000 2>/dev/null || bash -c 'echo hello > /dev/udp/10.2.0.1/5000'");
    assert_eq!(sink.finish().datagrams, 1);
}

fn x4_errors_from_a_closed_port_are_never_received_frames() {
    let topology = Topology::sink(Options::default());
    topology.dut.sh("sysctl -qw net.ipv4.icmp_ratelimit=0");
    let run = Plimsoll::with_profile(SINK)
        .run(&topology.generator, "run PROFILE --rate 1000pps --count 1000", 15 * SECOND)
        .expect_code(0);
    assert!(run.trial(0)["received_frames"].is_null());
    assert!(topology.dut.mib("UdpNoPorts") >= 1000);
    assert!(run.caveats().iter().any(|code| code == "port_closed"), "{}", run.text());
}

fn x5_twenty_interrupts_under_full_load() {
    let topology = Topology::forward(Options::default());
    let mark = kernel_log();
    for round in 0..20_u64 {
        let plimsoll = Plimsoll::with_profile(FORWARD);
        let mut running = plimsoll.spawn(&topology.generator, "run PROFILE --rate max --duration 20s");
        let before = topology.generator.counter("g0", "tx_packets");
        wait_until("frames leave", || topology.generator.counter("g0", "tx_packets") > before + 2000);
        // A random moment: the case asks for it; the seed is the round.
        std::thread::sleep(Duration::from_millis(round * 7919 % 400));
        assert!(running.is_running());
        running.signal(rustix::process::Signal::INT);
        let interrupted = Instant::now();
        let run = plimsoll.outcome(running, interrupted, 5 * SECOND);
        assert!(run.wall <= SECOND, "round {round}: {:?} from SIGINT to the end", run.wall);
        let run = run.expect_code(130);
        assert!(run.count("completed_frames") > 0);
        assert!(topology.generator.xdp_program("g1").is_none());
    }
    assert_eq!(kernel_log(), mark, "the kernel log grew");
}

fn x6_the_port_with_the_default_route_is_refused() {
    let topology = Topology::sink(Options::default());
    topology.generator.sh("ip addr add 10.1.0.9/24 dev g0; ip route add default via 10.1.0.1");
    let plimsoll = Plimsoll::with_profile(SINK);
    let before = topology.generator.counter("g0", "tx_packets");
    let run = plimsoll.run(&topology.generator, "run PROFILE --count 10", 10 * SECOND).expect_code(3);
    assert!(run.stderr.contains("default route") && run.stderr.contains("--force"), "{}", run.stderr);
    assert_eq!(topology.generator.counter("g0", "tx_packets"), before);
    plimsoll.run(&topology.generator, "run PROFILE --count 10 --force", 15 * SECOND).expect_code(0);
}

fn a_forwarding_dut_returns_every_frame_with_latency() {
    let topology = Topology::forward(Options { queues: 4, ..Options::default() });
    let run = Plimsoll::with_profile(FORWARD)
        .run(&topology.generator, "run PROFILE --rate 20kpps --count 40000", 20 * SECOND)
        .expect_code(0);
    assert_eq!(
        ["offered_frames", "completed_frames", "received_frames"].map(|name| run.count(name)),
        [40_000; 3],
        "{}",
        run.text()
    );
    let latency = &run.trial(0)["latency_ns"];
    let [min, p50, max] = ["min", "p50", "max"].map(|name| latency[name].as_u64().expect("latency is measured"));
    assert!(0 < min && min <= p50 && p50 <= max && max < 2_000_000_000, "{latency}");
    assert!(latency["share"].as_f64().expect("a share") > 0.1, "{latency}");
    assert_eq!(run.trial(0)["streams"][0]["duplicate_frames"], 0);
}

fn a_dut_that_duplicates_shows_more_received_than_sent() {
    let topology = Topology::forward(Options::default());
    let object = crate::support::bpf::compile("duplicate");
    topology.dut.sh("tc qdisc add dev d1 clsact");
    topology.dut.sh(&format!("tc filter add dev d1 egress bpf da obj {} sec tc", object.path().display()));
    let run = Plimsoll::with_profile(FORWARD)
        .run(&topology.generator, "run PROFILE --rate 1000pps --count 1000", 15 * SECOND)
        .expect_code(0);
    assert_eq!((run.count("completed_frames"), run.count("received_frames")), (1000, 2000), "{}", run.text());
    assert_eq!(run.trial(0)["lost_frames"], -1000);
    assert!(run.caveats().iter().any(|code| code == "received_more_than_completed"), "{}", run.text());
    assert_eq!(run.trial(0)["streams"][0]["duplicate_frames"], 1000);
}
