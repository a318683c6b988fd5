//! Black-box cases of streams on real interfaces: captures replayed, VLAN tags, IPv6. The DUT's sockets and captures judge.

use std::{fs, time::Duration};

use plimsoll::{
    profile,
    program::{compile, reference},
};

use crate::support::{
    capture_files::{pcap, pcapng},
    harness::Test,
    inspect::{Layer, inspect},
    netns::{Options, Topology},
    run::{FORWARD, Outcome, Plimsoll, SINK},
    traffic::{Capture, UdpSink},
};

pub fn tests() -> Vec<Test> {
    crate::tests![
        c11_an_ipv6_gateway_is_found_by_neighbour_discovery,
        c18_a_vlan_tag_stands_inside_the_size,
        c18_without_a_mac_the_arp_request_is_tagged_too,
        c24_captures_of_every_format_are_replayed_at_their_timing,
        c24_a_cut_tail_and_cut_frames_are_said,
        c24_a_capture_without_ethernet_sends_nothing,
        a_captured_frame_is_counted_when_it_is_tracked,
        macs_are_rewritten_unless_the_profile_says_not_to,
        c15_a_jumbo_mtu_is_received_and_the_mode_is_said,
        nine_thousand_byte_frames_go_through_and_come_back,
        two_tags_leave_in_their_order,
        both_directions_are_sent_and_counted_apart,
        streams_share_the_load_as_asked,
        bursts_pause_and_chain_and_every_frame_is_counted,
        a_64_byte_tcp_syn_is_counted_by_its_short_signature,
        more_than_four_gibibytes_are_counted,
        a_rate_replaces_the_recorded_times,
        shipped_profiles_come_back_through_a_router,
    ]
}

const LIMIT: Duration = Duration::from_secs(20);

fn c11_an_ipv6_gateway_is_found_by_neighbour_discovery() {
    let topology = Topology::sink(Options { ipv6: true, ..Options::default() });
    let sink = UdpSink::bind(&topology.dut, "[::]:9");
    let plimsoll =
        Plimsoll::with_profile("ports: [{interface: g0, src_ip: 'fd00:1::2/64', default_gw: 'fd00:1::1'}]\n");
    let line = "run PROFILE --rate 2000pps --count 2000 --frame-size";
    plimsoll.run(&topology.generator, &format!("{line} 128"), LIMIT).expect_code(0);
    assert_eq!(sink.finish().datagrams, 2000);
    assert_eq!(topology.dut.mib("Udp6InCsumErrors"), 0);
    let refused = plimsoll.run(&topology.generator, &format!("{line} 64"), LIMIT).expect_code(2);
    assert!(refused.stderr.contains("at least 66 bytes"), "{}", refused.stderr);
}

/// The sink's port in VLAN 100.
fn in_vlan_100(dest_mac: &str) -> String {
    let port = SINK.replace("10.1.0.1}", &format!("10.1.0.1{dest_mac}}}"));
    format!("{port}size: 128\nstreams: [{{headers: [{{vlan: 100}}, udp]}}]\n")
}

fn c18_a_vlan_tag_stands_inside_the_size() {
    let topology = Topology::sink(Options::default());
    let capture = Capture::start(&topology.dut, "d0", "vlan 100 and udp");
    let dest_mac = format!(", dest_mac: '{}'", topology.dut.mac("d0"));
    Plimsoll::with_profile(&in_vlan_100(&dest_mac))
        .run(&topology.generator, "run PROFILE --rate 1000pps --count 100", LIMIT)
        .expect_code(0);
    let frames = capture.finish_with(100);
    assert_eq!(frames.len(), 100);
    for frame in frames {
        assert_eq!(frame.bytes.len(), 124, "128 bytes with the FCS and the tag");
        let layers = inspect(&frame.bytes);
        assert_eq!(layers[1], Layer::Vlan { tpid: 0x8100, id: 100 }, "{layers:?}");
        assert!(matches!(layers[3], Layer::Udp { dst: 9, .. }), "{layers:?}");
    }
}

fn c18_without_a_mac_the_arp_request_is_tagged_too() {
    let topology = Topology::sink(Options::default());
    let capture = Capture::start(&topology.dut, "d0", "");
    // Nobody answers in VLAN 100 here: the DUT has no interface in it.
    Plimsoll::with_profile(&in_vlan_100(""))
        .run(&topology.generator, "run PROFILE --rate 1000pps --count 100", LIMIT)
        .expect_code(3);
    let frames = capture.finish();
    let tagged_arp = |bytes: &[u8]| bytes[12..16] == [0x81, 0x00, 0, 100] && bytes[16..18] == [0x08, 0x06];
    assert!(!frames.is_empty() && frames.iter().all(|frame| tagged_arp(&frame.bytes)), "only ARP, only tagged");
}

/// Ten frames of 82 bytes from 10.1.0.2 to 10.1.0.1 port 9, for some other station's MAC.
fn frames() -> Vec<Vec<u8>> {
    let text =
        "ports: [{interface: g0, src_ip: 10.1.0.2, default_gw: 10.1.0.1, dest_mac: '02:00:00:00:00:02'}]\nsize: 86\n";
    let profile = profile::parse(text, "frames").expect("a good profile");
    let compiled = compile(&profile, &[], 1, 1).expect("a good profile");
    let frame = |index| {
        let mut bytes = Vec::new();
        reference::frame(&compiled.programs[0].streams[0], index, 0, &mut bytes);
        bytes
    };
    (0..10).map(frame).collect()
}

/// A profile that replays this file once; `more` are further keys of the stream.
fn replay(file: &[u8], more: &str) -> Plimsoll {
    let plimsoll = Plimsoll::with_profile(&format!("{SINK}streams: [{{pcap: replayed.pcap{more}}}]\n"));
    fs::write(plimsoll.dir.path().join("replayed.pcap"), file).expect("the capture can be written");
    plimsoll
}

fn c24_captures_of_every_format_are_replayed_at_their_timing() {
    let topology = Topology::sink(Options::default());
    let _sink = UdpSink::bind(&topology.dut, "10.1.0.1:9");
    let frames = frames();
    let files = [
        ("le_us", pcap(&frames, false, false, 1, 65_535)),
        ("be_us", pcap(&frames, true, false, 1, 65_535)),
        ("le_ns", pcap(&frames, false, true, 1, 65_535)),
        ("be_ns", pcap(&frames, true, true, 1, 65_535)),
        ("pcapng", pcapng(&frames, None, 1_000)),
    ];
    let mut spreads_ns = Vec::new();
    for (name, file) in files {
        let capture = Capture::start(&topology.dut, "d0", "udp port 9");
        let run = replay(&file, "").run(&topology.generator, "run PROFILE --duration 1s", LIMIT).expect_code(0);
        assert_eq!(run.count("completed_frames"), 10, "{name}");
        let captured = capture.finish_with(10);
        assert_eq!(captured.len(), 10, "{name}");
        // Neither 9 s nor 9 µs; a host that takes the CPU away may press the first frames together.
        let spread_ns = captured[9].at_ns - captured[0].at_ns;
        assert!((1_000_000..=100_000_000).contains(&spread_ns), "{name}: {spread_ns} ns");
        spreads_ns.push(spread_ns);
        for (sent, original) in captured.iter().zip(&frames) {
            assert_eq!(sent.bytes[12..], original[12..], "{name}: only MACs are rewritten");
        }
    }
    spreads_ns.sort_unstable();
    assert!((7_000_000..=11_000_000).contains(&spreads_ns[2]), "the median of {spreads_ns:?} is not 9 ms");
    assert_eq!(topology.dut.mib("UdpInCsumErrors"), 0);
    assert_eq!(topology.dut.mib("UdpInDatagrams"), 50);
}

fn c24_a_cut_tail_and_cut_frames_are_said() {
    let topology = Topology::sink(Options::default());
    let _sink = UdpSink::bind(&topology.dut, "10.1.0.1:9");
    let whole = pcap(&frames(), false, false, 1, 65_535);
    let run = replay(&whole[..whole.len() - 20], "")
        .run(&topology.generator, "run PROFILE --duration 1s", LIMIT)
        .expect_code(0);
    assert_eq!(run.count("completed_frames"), 9);
    assert!(
        run.caveats().contains(&"capture_incomplete".to_owned()) && run.text().contains("cut off"),
        "{}",
        run.text()
    );
    let snapped = pcap(&frames(), false, false, 1, 60);
    let run = replay(&snapped, "").run(&topology.generator, "run PROFILE --duration 1s", LIMIT).expect_code(0);
    assert_eq!(run.count("completed_frames"), 10);
    assert!(run.text().contains("10 of 10 frames were cut"), "{}", run.text());
    assert_eq!(topology.dut.mib("UdpInCsumErrors"), 0, "padded frames get a new checksum");
    assert_eq!(topology.dut.mib("UdpInDatagrams"), 19);
}

fn c24_a_capture_without_ethernet_sends_nothing() {
    let topology = Topology::sink(Options::default());
    let before = topology.generator.counter("g0", "tx_packets");
    let raw_ip: Vec<Vec<u8>> = frames().iter().map(|frame| frame[14..].to_vec()).collect();
    let run = replay(&pcap(&raw_ip, false, false, 101, 65_535), "")
        .run(&topology.generator, "run PROFILE --duration 1s", LIMIT)
        .expect_code(2);
    assert!(run.stderr.contains("link type 101") && run.stderr.contains("not Ethernet"), "{}", run.stderr);
    assert_eq!(topology.generator.counter("g0", "tx_packets"), before);
}

fn a_captured_frame_is_counted_when_it_is_tracked() {
    let topology = Topology::forward(Options::default());
    let profile = "ports:
- {interface: g0, src_ip: 10.1.0.2, default_gw: 10.1.0.1}
- {interface: g1, src_ip: 10.2.0.2, default_gw: 10.2.0.1}
streams: [{pcap: {file: replayed.pcap, timing: rate, passes: 0, rewrite: {dst_ip: 10.2.0.2}}, track: true}]
";
    let plimsoll = Plimsoll::with_profile(profile);
    fs::write(plimsoll.dir.path().join("replayed.pcap"), pcap(&frames(), false, false, 1, 65_535))
        .expect("a file can be written");
    let run = plimsoll.run(&topology.generator, "run PROFILE --rate 1000pps --count 500", LIMIT).expect_code(0);
    assert_eq!((run.count("completed_frames"), run.count("received_frames")), (500, 500), "{}", run.text());
}

fn a_rate_replaces_the_recorded_times() {
    let topology = Topology::sink(Options::default());
    let plimsoll = replay(&pcap(&frames(), false, false, 1, 65_535), "");
    let run = plimsoll.run(&topology.generator, "run PROFILE --rate 1000pps --count 100", LIMIT).expect_code(0);
    assert_eq!(run.count("completed_frames"), 100, "{}", run.text());
}

/// All but those whose networks this router does not have (198.18.0.0/15, VLANs).
fn shipped_profiles_come_back_through_a_router() {
    let topology = Topology::forward(Options { ipv6: true, ..Options::default() });
    for name in ["udp-64", "imix", "vm-dut", "trex_cfg", "tcp-syn", "burst", "ipv6"] {
        let profile = format!("{}/profiles/{name}.yaml", env!("CARGO_MANIFEST_DIR"));
        let run = Plimsoll::with_profile("")
            .run(&topology.generator, &format!("run {profile} --rate 4000pps --count 400"), LIMIT)
            .expect_code(0);
        assert_eq!((run.count("completed_frames"), run.count("received_frames")), (400, 400), "{name}: {}", run.text());
    }
}

fn macs_are_rewritten_unless_the_profile_says_not_to() {
    let topology = Topology::sink(Options::default());
    let mac = |text: &str| -> [u8; 6] {
        let bytes: Vec<u8> = text.split(':').map(|byte| u8::from_str_radix(byte, 16).expect("hex")).collect();
        bytes.try_into().expect("six bytes")
    };
    let frames = frames();
    let of_the_port = (mac(&topology.dut.mac("d0")), mac(&topology.generator.mac("g0")));
    let recorded = (frames[0][..6].try_into().expect("six"), frames[0][6..12].try_into().expect("six"));
    let chosen = ([2, 0, 0, 0, 0, 0x22], [2, 0, 0, 0, 0, 0x11]);
    for (rewrite, (dst, src), host) in [
        ("", of_the_port, 2),
        (", rewrite: none", recorded, 2),
        (
            ", rewrite: {src_mac: '02:00:00:00:00:11', dst_mac: '02:00:00:00:00:22', map: {10.1.0.2: 10.1.0.3}}",
            chosen,
            3,
        ),
    ] {
        let profile = format!("{SINK}streams: [{{pcap: {{file: replayed.pcap{rewrite}}}}}]\n");
        let plimsoll = Plimsoll::with_profile(&profile);
        fs::write(plimsoll.dir.path().join("replayed.pcap"), pcap(&frames, false, false, 1, 65_535))
            .expect("a scratch folder");
        let capture = Capture::start(&topology.dut, "d0", "udp port 9");
        plimsoll.run(&topology.generator, "run PROFILE --duration 200ms", LIMIT).expect_code(0);
        let captured = capture.finish_with(10);
        assert_eq!(captured.len(), 10, "{rewrite}");
        for frame in captured {
            let layers = inspect(&frame.bytes);
            assert_eq!(layers[0], Layer::Ethernet { src, dst }, "{rewrite}");
            assert!(matches!(layers[1], Layer::Ipv4 { src, .. } if src == [10, 1, 0, host]), "{rewrite}: {layers:?}");
        }
    }
}

fn c15_a_jumbo_mtu_is_received_and_the_mode_is_said() {
    let topology = Topology::forward(Options { mtu: 9000, ..Options::default() });
    let run = Plimsoll::with_profile(FORWARD)
        .run(&topology.generator, "run PROFILE --frame-size 512 --rate 1000pps --count 1000", LIMIT)
        .expect_code(0);
    assert_eq!(run.count("received_frames"), 1000, "{}", run.text());
    for port in run.json["ports"].as_array().expect("ports") {
        let xdp = port["xdp"].as_str().expect("a mode");
        let said = run.caveats().iter().any(|code| code == "xdp_fallback");
        assert!(xdp == "native" || (xdp == "generic" && said), "{port}\n{}", run.text());
        assert!(run.stdout.contains(xdp), "{}", run.text());
    }
}

fn nine_thousand_byte_frames_go_through_and_come_back() {
    let topology = Topology::forward(Options { mtu: 9000, ..Options::default() });
    // With GRO there, live frames are what auto tries first: too short a carrier for these.
    topology.dut.sh("ethtool -K d0 gro on");
    let run = Plimsoll::with_profile(FORWARD)
        .run(&topology.generator, "run PROFILE --frame-size 9000 --rate 1000pps --count 500", LIMIT)
        .expect_code(0);
    let counts = ["completed_frames", "received_frames", "tx_bytes", "rx_bytes"].map(|name| run.count(name));
    assert_eq!(counts, [500, 500, 4_500_000, 4_500_000], "{}", run.text());
    // What cannot carry them says how long its frames may be.
    for backend in ["xsk-copy", "live"] {
        let arguments = format!("run PROFILE --backend {backend} --frame-size 9000 --count 10");
        let run = Plimsoll::with_profile(FORWARD).run(&topology.generator, &arguments, LIMIT);
        assert!(run.stderr.contains("at most") && run.stderr.contains("9000"), "{backend}: {}", run.text());
        assert!(matches!(run.code, Some(2 | 3)), "{backend}: {:?}", run.code);
    }
}

/// One port with these tags, whose frames go to the DUT's MAC address.
fn tagged(topology: &Topology, vlan: &str) -> String {
    SINK.replace("10.1.0.1}", &format!("10.1.0.1, dest_mac: '{}', vlan: {vlan}}}", topology.dut.mac("d0")))
}

fn two_tags_leave_in_their_order() {
    let topology = Topology::sink(Options::default());
    let capture = Capture::start(&topology.dut, "d0", "");
    Plimsoll::with_profile(&tagged(&topology, "[{id: 200, pcp: 5}, 100]"))
        .run(&topology.generator, "run PROFILE --frame-size 128 --rate 1000pps --count 100", LIMIT)
        .expect_code(0);
    let frames = capture.finish();
    let tagged = frames.iter().filter(|frame| frame.bytes[12..20] == [0x88, 0xA8, 0xA0, 200, 0x81, 0x00, 0, 100]);
    let ip = tagged.filter(|frame| frame.bytes[20..22] == [8, 0]);
    assert_eq!(ip.inspect(|frame| drop(inspect(&frame.bytes))).count(), 100);
}

/// The named counts of the n-th stream.
fn stream<const N: usize>(run: &Outcome, n: usize, names: [&str; N]) -> [u64; N] {
    names.map(|name| run.trial(0)["streams"][n][name].as_u64().unwrap_or_else(|| panic!("no {name}: {}", run.text())))
}

fn both_directions_are_sent_and_counted_apart() {
    let topology = Topology::forward(Options::default());
    let run = Plimsoll::with_profile(FORWARD)
        .run(&topology.generator, "run PROFILE --bidirectional --rate 2000pps --count 1000", LIMIT)
        .expect_code(0);
    assert_eq!([run.count("completed_frames"), run.count("received_frames")], [2000, 2000], "{}", run.text());
    for port in 0..2 {
        let port = &run.trial(0)["ports"][port];
        assert_eq!((&port["completed_frames"], &port["received_frames"]), (&1000.into(), &1000.into()), "{port}");
    }
}

fn streams_share_the_load_as_asked() {
    let topology = Topology::forward(Options::default());
    let profile = format!(
        "{FORWARD}streams:
  - {{name: three, share: 3, size: 128, headers: [{{udp: {{dst_port: 9}}}}]}}
  - {{name: one, share: 1, size: 256, headers: [{{udp: {{dst_port: 10}}}}]}}
",
    );
    let run = Plimsoll::with_profile(&profile)
        .run(&topology.generator, "run PROFILE --rate 4000pps --count 2000", LIMIT)
        .expect_code(0);
    let names = ["completed_frames", "received_frames", "tx_bytes"];
    assert_eq!(stream(&run, 0, names), [1500, 1500, 1500 * 128], "{}", run.text());
    assert_eq!(stream(&run, 1, names), [500, 500, 500 * 256], "{}", run.text());
}

fn bursts_pause_and_chain_and_every_frame_is_counted() {
    let topology = Topology::forward(Options::default());
    let profile = format!(
        "{FORWARD}size: 128
streams:
  - {{name: pulses, rate: 100kpps, mode: multi_burst, frames: 20, gap: 100ms, bursts: 3, next: last}}
  - {{name: last, rate: 100kpps, mode: burst, frames: 50, start_delay: 100ms}}
",
    );
    let capture = Capture::start(&topology.dut, "d0", "udp");
    let run = Plimsoll::with_profile(&profile).run(&topology.generator, "run PROFILE", LIMIT).expect_code(0);
    assert!(
        run.wall < Duration::from_secs(5),
        "it ends with its last burst, not after the default 10 s: {:?}",
        run.wall
    );
    let names = ["intended_frames", "completed_frames", "received_frames"];
    assert_eq!(stream(&run, 0, names), [60; 3], "{}", run.text());
    assert_eq!(stream(&run, 1, names), [50; 3], "{}", run.text());
    let frames = capture.finish();
    let starts: Vec<usize> =
        (1..frames.len()).filter(|&n| frames[n].at_ns - frames[n - 1].at_ns > 50_000_000).collect();
    assert_eq!((frames.len(), starts), (110, vec![20, 40, 60]));
    for start in [20, 40, 60] {
        let pause = frames[start].at_ns - frames[start - 1].at_ns;
        assert!((90_000_000..150_000_000).contains(&pause), "{pause} ns before frame {start}");
    }
}

fn a_64_byte_tcp_syn_is_counted_by_its_short_signature() {
    let topology = Topology::forward(Options::default());
    let profile =
        format!("{FORWARD}streams: [{{name: syn, size: 64, headers: [{{tcp: {{dst_port: 80, flags: syn}}}}]}}]\n");
    let run = Plimsoll::with_profile(&profile)
        .run(&topology.generator, "run PROFILE --rate 5000pps --count 2000", LIMIT)
        .expect_code(0);
    assert_eq!([run.count("completed_frames"), run.count("received_frames")], [2000, 2000], "{}", run.text());
    assert!(run.trial(0)["latency_ns"].is_null(), "no room for a stamp: {}", run.text());
}

fn more_than_four_gibibytes_are_counted() {
    let topology = Topology::sink(Options { mtu: 3400, ..Options::default() });
    // Without an address the DUT drops them all, at little cost; live frames, the fastest here, want GRO.
    topology.dut.sh("ethtool -K d0 gro on; ip addr flush dev d0");
    let port = SINK.replace("10.1.0.1}", &format!("10.1.0.1, dest_mac: '{}'}}", topology.dut.mac("d0")));
    let run = Plimsoll::with_profile(&port)
        .run(&topology.generator, "run PROFILE --frame-size 3400 --count 1300000", LIMIT)
        .expect_code(0);
    assert_eq!(run.count("tx_bytes"), 1_300_000 * 3400, "{}", run.text());
    assert!(run.count("tx_bytes") > u64::from(u32::MAX));
}
