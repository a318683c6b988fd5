//! The counting program on real interfaces: what is ours, what is not, and that it leaves nothing.

use plimsoll::{
    caveat::Code,
    host::{link::Link, packet::PacketSocket},
    ids::StreamId,
    wire::signature::{SignatureKind, SignatureSite, run_tag, stamp},
    xdp::{
        attach::XdpMode,
        rx::{MAX_SITES, Receiver, RxConfig, RxSnapshot, RxStream, XdpChoice},
    },
};

use crate::support::{
    harness::Test,
    netns::{Options, Topology},
};

pub fn tests() -> Vec<Test> {
    crate::tests![
        our_frames_are_counted_per_stream_and_never_reach_the_kernel,
        tags_taken_off_on_the_way_do_not_matter,
        short_signatures_are_recognised,
        duplicates_and_reordering_are_told_from_loss,
        the_next_trial_starts_clean,
        other_frames_are_counted_by_kind_and_passed_on,
        an_icmp_error_that_quotes_our_frame_is_not_ours,
        latency_is_counted_for_stamped_frames_only,
        a_foreign_program_is_named_and_left_alone,
        a_jumbo_mtu_is_counted_natively_in_fragments,
        a_device_without_native_xdp_says_why_it_is_generic,
        nothing_is_left_when_the_receiver_is_dropped,
        forced_native_mode_fails_with_the_kernels_reason,
        every_queue_is_counted,
        every_one_of_the_most_sites_is_recognised,
        streams_beyond_the_memory_for_windows_are_still_counted,
    ]
}

const TAG: u32 = 0x9C4B_1234;
const FULL: SignatureSite = SignatureSite { offset: 42, kind: SignatureKind::Full };
const SHORT: SignatureSite = SignatureSite { offset: 54, kind: SignatureKind::Short };

fn stream(id: u16, sites: &[SignatureSite], order_classes: u16) -> RxStream {
    RxStream { id: StreamId(id), sites: sites.to_vec(), order_classes }
}

fn config(streams: Vec<RxStream>) -> RxConfig {
    RxConfig { run_tag: TAG, streams }
}

/// A frame of `bytes` that carries a full signature at `at`.
fn full(bytes: usize, at: usize, tag: u32, stream: u16, sequence: u32, stamp: u32) -> Vec<u8> {
    let mut frame = ethernet(bytes, 0x0800);
    frame[14] = 0x45;
    frame[23] = 17;
    frame[at..at + 4].copy_from_slice(&tag.to_be_bytes());
    frame[at + 4..at + 6].copy_from_slice(&stream.to_be_bytes());
    frame[at + 6..at + 10].copy_from_slice(&sequence.to_be_bytes());
    frame[at + 10..at + 14].copy_from_slice(&stamp.to_be_bytes());
    frame
}

fn short(bytes: usize, at: usize, tag: u32, stream: u8, sequence: u32) -> Vec<u8> {
    let mut frame = ethernet(bytes, 0x0800);
    frame[at..at + 2].copy_from_slice(&(tag as u16).to_be_bytes());
    frame[at + 2] = stream;
    frame[at + 3..at + 6].copy_from_slice(&sequence.to_be_bytes()[1..]);
    frame
}

fn ethernet(bytes: usize, kind: u16) -> Vec<u8> {
    let mut frame = vec![0; bytes];
    frame[..6].copy_from_slice(&[0xFF; 6]);
    frame[6..12].copy_from_slice(&[2, 0, 0, 0, 0, 9]);
    frame[12..14].copy_from_slice(&kind.to_be_bytes());
    frame
}

/// Sends frames out of `d0`, to `g0`.
fn send(t: &Topology, frames: &[Vec<u8>]) {
    t.dut.enter(|| {
        let socket = PacketSocket::open(Link::find("d0").unwrap().index).unwrap();
        frames.iter().for_each(|frame| socket.send(frame).unwrap());
    });
}

/// Attaches on `g0`, sends, and returns what was counted meanwhile. veth delivers before a send returns or, with NAPI, soon
/// after: waits until all frames are counted as something, five seconds at most.
fn counted(t: &Topology, config: &RxConfig, choice: XdpChoice, frames: &[Vec<u8>]) -> RxSnapshot {
    t.generator.enter(|| {
        let receiver = Receiver::attach(&Link::find("g0").unwrap(), config, choice).unwrap();
        count(t, &receiver, frames)
    })
}

fn count(t: &Topology, receiver: &Receiver, frames: &[Vec<u8>]) -> RxSnapshot {
    let before = receiver.snapshot();
    send(t, frames);
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(5);
    loop {
        let got = receiver.snapshot().since(&before);
        if got.frames() + got.others.iter().sum::<u64>() >= frames.len() as u64 {
            return got;
        }
        assert!(std::time::Instant::now() < deadline, "only {got:?}");
        std::thread::yield_now();
    }
}

fn our_frames_are_counted_per_stream_and_never_reach_the_kernel() {
    for choice in [XdpChoice::Native, XdpChoice::Generic] {
        let t = Topology::sink(Options::default());
        let config = config(vec![stream(0, &[FULL], 1), stream(5, &[FULL], 1)]);
        let frames: Vec<_> = (0..10)
            .map(|n| full(60, 42, TAG, 0, n, 0))
            .chain((0..4).map(|n| full(124, 42, TAG, 5, n, 0)))
            .chain([full(60, 42, TAG, 3, 0, 0), full(60, 42, TAG, 900, 0, 0)])
            .collect();
        let before = t.generator.mib("IpInReceives");
        let got = counted(&t, &config, choice, &frames);
        let per_stream: Vec<_> = got.streams.iter().map(|s| (s.id.0, s.frames, s.bytes)).collect();
        assert_eq!(per_stream, [(0, 10, 640), (5, 4, 512)], "{choice:?}");
        assert_eq!((got.frames(), got.bytes(), got.queues[0]), (14, 1152, 14));
        // Streams that nobody announced are strays.
        assert_eq!(got.others().get("ipv4_udp"), Some(&2), "{:?}", got.others());
        assert_eq!(t.generator.mib("IpInReceives") - before, 2);
    }
}

fn tags_taken_off_on_the_way_do_not_matter() {
    let t = Topology::sink(Options::default());
    let tagged_twice = SignatureSite { offset: 50, kind: SignatureKind::Full };
    let frames: Vec<_> = [50, 46, 42].into_iter().map(|at| full(68, at, TAG, 0, at as u32, 0)).collect();
    let got = counted(&t, &config(vec![stream(0, &[tagged_twice], 1)]), XdpChoice::Auto, &frames);
    assert_eq!(got.frames(), 3);
}

fn short_signatures_are_recognised() {
    let t = Topology::sink(Options::default());
    let config = config(vec![stream(0, &[SHORT], 1), stream(7, &[SHORT, FULL], 2)]);
    let frames = [
        short(60, 54, TAG, 0, 1),
        short(60, 54, TAG, 7, 0xFF_FFFE),
        short(60, 54, TAG, 7, 0xFF_FFFF),
        short(60, 54, TAG, 7, 0),
        short(60, 54, TAG, 7, 1),
        // Full signatures are allowed for stream 7 only.
        full(90, 42, TAG, 7, 0x0100_0002, 0),
        full(90, 42, TAG, 0, 2, 0),
        short(60, 54, TAG + 1, 0, 3),
    ];
    let got = counted(&t, &config, XdpChoice::Auto, &frames);
    let counts: Vec<_> = got.streams.iter().map(|s| (s.frames, s.duplicates, s.reordered)).collect();
    assert_eq!(counts, [(1, Some(0), Some(0)), (5, Some(0), Some(0))], "the sequence wraps without reordering");
    assert_eq!(got.others.iter().sum::<u64>(), 2);
}

fn duplicates_and_reordering_are_told_from_loss() {
    let t = Topology::sink(Options::default());
    let config = config(vec![stream(0, &[FULL], 3), stream(1, &[FULL], 0), stream(2, &[FULL], 1)]);
    let send =
        |stream, sequences: &[u32]| sequences.iter().map(|&n| full(60, 42, TAG, stream, n, 0)).collect::<Vec<_>>();
    let frames = [
        // Three paths: 0 3 6, 1 4 7, 2 5 8. Between them any order is fine; within one, 3 after 6 is not. 4 is lost; 8 comes
        // twice, at once and later.
        send(0, &[2, 1, 0, 6, 3, 5, 8, 8, 7, 9, 8]),
        send(1, &[5, 4, 3, 3]),
        send(2, &[0, 1, 2, 10, 9, 8, 11]),
    ]
    .concat();
    let got = counted(&t, &config, XdpChoice::Auto, &frames);
    let counts: Vec<_> = got.streams.iter().map(|s| (s.frames, s.duplicates, s.reordered)).collect();
    assert_eq!(counts, [(11, Some(2), Some(1)), (4, Some(1), None), (7, Some(0), Some(2))]);
}

fn the_next_trial_starts_clean() {
    let t = Topology::sink(Options::default());
    t.generator.enter(|| {
        let link = Link::find("g0").unwrap();
        let receiver = Receiver::attach(&link, &config(vec![stream(0, &[FULL], 1)]), XdpChoice::Auto).unwrap();
        let frames = |tag| (0..20).map(|n| full(60, 42, tag, 0, n, 0)).collect::<Vec<_>>();
        assert_eq!(count(&t, &receiver, &frames(TAG)).frames(), 20);
        let next = run_tag(77);
        receiver.begin_trial(next);
        let late = count(&t, &receiver, &frames(TAG)[..3]);
        assert_eq!((late.frames(), late.others().get("another_run")), (0, Some(&3)));
        let got = count(&t, &receiver, &frames(next));
        let stream = &got.streams[0];
        assert_eq!((stream.frames, stream.duplicates, stream.reordered), (20, Some(0), Some(0)));
        assert_eq!(receiver.totals().frames, 40);
    });
}

fn other_frames_are_counted_by_kind_and_passed_on() {
    let t = Topology::sink(Options::default());
    let ipv4 = |protocol: u8, kind: u8, code: u8| {
        let mut frame = ethernet(60, 0x0800);
        (frame[14], frame[23], frame[34], frame[35]) = (0x45, protocol, kind, code);
        frame
    };
    let ipv6 = |next: u8, kind: u8, code: u8| {
        let mut frame = ethernet(70, 0x86DD);
        (frame[14], frame[20], frame[54], frame[55]) = (0x60, next, kind, code);
        frame
    };
    let mut tagged = ethernet(64, 0x8100);
    tagged[16..18].copy_from_slice(&0x0806u16.to_be_bytes());
    let frames = [
        (ethernet(60, 0x0806), "arp"),
        (tagged, "arp"),
        (ipv4(1, 8, 0), "icmp_echo_request"),
        (ipv4(1, 0, 0), "icmp_echo_reply"),
        (ipv4(1, 3, 0), "icmp_net_unreachable"),
        (ipv4(1, 3, 1), "icmp_host_unreachable"),
        (ipv4(1, 3, 3), "icmp_port_unreachable"),
        (ipv4(1, 3, 4), "icmp_unreachable"),
        (ipv4(1, 11, 0), "icmp_time_exceeded"),
        (ipv4(1, 5, 0), "icmp"),
        (ipv4(17, 0, 0), "ipv4_udp"),
        (ipv4(6, 0, 0), "ipv4_tcp"),
        (ipv4(89, 0, 0), "ipv4"),
        (ipv6(58, 135, 0), "nd"),
        (ipv6(58, 136, 0), "nd"),
        (ipv6(58, 1, 4), "icmp6_port_unreachable"),
        (ipv6(58, 1, 0), "icmp6_unreachable"),
        (ipv6(58, 3, 0), "icmp6_time_exceeded"),
        (ipv6(58, 128, 0), "icmp6"),
        (ipv6(0, 0, 0), "ipv6"),
        (ipv6(17, 0, 0), "ipv6_udp"),
        (ipv6(6, 0, 0), "ipv6_tcp"),
        (ethernet(60, 0x88CC), "lldp"),
        (ethernet(60, 0x0026), "llc"),
        (ethernet(60, 0x1234), "unknown"),
        (full(60, 42, TAG + 1, 0, 0, 0), "another_run"),
    ];
    let mut expected = std::collections::BTreeMap::<String, u64>::new();
    frames.iter().for_each(|(_, kind)| *expected.entry((*kind).to_owned()).or_default() += 1);
    let frames = frames.map(|(frame, _)| frame);
    let before = t.generator.counter("g0", "rx_packets");
    let got = counted(&t, &config(vec![stream(0, &[FULL], 1)]), XdpChoice::Auto, &frames);
    assert_eq!((got.others(), got.frames()), (expected, 0));
    assert_eq!(t.generator.counter("g0", "rx_packets") - before, frames.len() as u64);
}

fn an_icmp_error_that_quotes_our_frame_is_not_ours() {
    let t = Topology::sink(Options::default());
    // The quoted frame's signature stands 28 bytes later, where another stream has its own.
    let other_site = SignatureSite { offset: 70, kind: SignatureKind::Full };
    let config = config(vec![stream(0, &[FULL], 1), stream(1, &[other_site], 1)]);
    let mut error = full(102, 70, TAG, 0, 5, 0);
    (error[14], error[23], error[34], error[35]) = (0x45, 1, 3, 3);
    let got = counted(&t, &config, XdpChoice::Auto, &[error]);
    assert_eq!((got.frames(), got.others().get("icmp_port_unreachable")), (0, Some(&1)));
}

fn latency_is_counted_for_stamped_frames_only() {
    let t = Topology::sink(Options::default());
    let config = config(vec![stream(0, &[FULL], 1), stream(1, &[FULL], 1)]);
    let old = || stamp(plimsoll::clock::now().0.wrapping_sub(50_000_000));
    let frames: Vec<_> = (0..100).map(|n| full(60, 42, TAG, 0, n, if n % 10 == 0 { old() } else { 0 })).collect();
    let got = counted(&t, &config, XdpChoice::Auto, &frames);
    let latency = got.streams[0].latency.as_ref().unwrap().summary(got.frames()).unwrap();
    assert_eq!((latency.count, latency.share), (10, 0.1));
    assert!(latency.min >= 49_000_000 && latency.max < 2_000_000_000, "{latency:?}");
    assert_eq!(got.latency.count(), 10);
    assert_eq!(got.streams[1].latency.as_ref().unwrap().summary(0), None);
}

fn a_foreign_program_is_named_and_left_alone() {
    let t = Topology::sink(Options::default());
    let config = config(vec![stream(0, &[FULL], 1)]);
    t.generator.enter(|| {
        let link = Link::find("g0").unwrap();
        let ours = Receiver::attach(&link, &config, XdpChoice::Generic).unwrap();
        let attached = t.generator.xdp_program("g0");
        let now = Link::by_index(link.index).unwrap();
        for link in [&link, &now] {
            let error = Receiver::attach(link, &config, XdpChoice::Auto).unwrap_err();
            assert_eq!(error.errno(), Some(libc::EBUSY), "{error}");
            let text = error.to_string();
            assert!(text.contains("plimsoll_rx") && text.contains("generic") && text.contains("g0"), "{text}");
        }
        assert_eq!(t.generator.xdp_program("g0"), attached);
        drop(ours);
    });
}

fn a_jumbo_mtu_is_counted_natively_in_fragments() {
    let t = Topology::sink(Options { mtu: 9000, ..Options::default() });
    let config = config(vec![stream(0, &[FULL, SignatureSite { offset: 8000, kind: SignatureKind::Full }], 1)]);
    let frames = [full(60, 42, TAG, 0, 0, 0), full(9014, 42, TAG, 0, 1, 0), full(9014, 8000, TAG, 0, 2, 0)];
    t.generator.enter(|| {
        let receiver = Receiver::attach(&Link::find("g0").unwrap(), &config, XdpChoice::Auto).unwrap();
        assert_eq!((receiver.mode(), receiver.caveats()), (XdpMode::Native, &[][..]));
        let got = count(&t, &receiver, &frames);
        assert_eq!((got.frames(), got.bytes()), (3, 64 + 2 * 9018));
    });
}

fn a_device_without_native_xdp_says_why_it_is_generic() {
    let t = Topology::sink(Options::default());
    t.generator.sh("ip link add m0 link g0 type macvlan mode bridge; ip link set m0 up");
    t.generator.enter(|| {
        let link = Link::find("m0").unwrap();
        let receiver = Receiver::attach(&link, &config(vec![stream(0, &[FULL], 1)]), XdpChoice::Auto).unwrap();
        assert_eq!(receiver.mode(), XdpMode::Generic);
        let caveat = receiver.caveats().iter().find(|caveat| caveat.code == Code::XdpFallback).unwrap();
        assert!(caveat.text.contains("m0") && caveat.text.contains("not supported"), "{}", caveat.text);
    });
}

fn forced_native_mode_fails_with_the_kernels_reason() {
    let t = Topology::sink(Options::default());
    t.generator.sh("ip link add m0 link g0 type macvlan mode bridge; ip link set m0 up");
    t.generator.enter(|| {
        let link = Link::find("m0").unwrap();
        let error = Receiver::attach(&link, &config(vec![stream(0, &[FULL], 1)]), XdpChoice::Native).unwrap_err();
        let text = error.to_string();
        assert!(
            text.contains("m0")
                && text.contains("native")
                && text.contains("Underlying driver does not support XDP in native mode"),
            "{text}"
        );
        assert_eq!(t.generator.xdp_program("m0"), None);
    });
}

fn nothing_is_left_when_the_receiver_is_dropped() {
    let t = Topology::sink(Options::default());
    t.generator.enter(|| {
        let link = Link::find("g0").unwrap();
        let receiver = Receiver::attach(&link, &config(vec![stream(0, &[FULL], 1)]), XdpChoice::Auto).unwrap();
        assert!(t.generator.xdp_program("g0").is_some());
        drop(receiver);
        assert_eq!(t.generator.xdp_program("g0"), None);
    });
}

fn every_queue_is_counted() {
    let t = Topology::sink(Options { queues: 4, ..Options::default() });
    // The kernel spreads what it sends over queues by the flow's hash.
    let frames: Vec<_> = (0..256u32)
        .map(|n| {
            let mut frame = full(60, 42, TAG, 0, n, 0);
            frame[26..34].copy_from_slice(&[10, 1, 0, 1, 10, 1, (n >> 8) as u8, n as u8]);
            frame
        })
        .collect();
    let got = counted(&t, &config(vec![stream(0, &[FULL], 0)]), XdpChoice::Auto, &frames);
    assert_eq!((got.frames(), got.queues.iter().sum::<u64>()), (256, 256));
}

fn streams_beyond_the_memory_for_windows_are_still_counted() {
    let t = Topology::sink(Options::default());
    let config = config((0..20_000).map(|id| stream(id, &[FULL], 1)).collect());
    let frames = [full(60, 42, TAG, 0, 0, 1), full(60, 42, TAG, 19_999, 0, 1)];
    let got = counted(&t, &config, XdpChoice::Auto, &frames);
    let (first, last) = (&got.streams[0], &got.streams[19_999]);
    assert_eq!((first.frames, first.duplicates, first.latency.is_some()), (1, Some(0), true));
    assert_eq!((last.frames, last.duplicates, last.latency.is_some()), (1, None, false));
    assert_eq!(got.latency.count(), 2);
}

fn every_one_of_the_most_sites_is_recognised() {
    let sites: Vec<_> =
        (0..MAX_SITES as u16).map(|n| SignatureSite { offset: 42 + 16 * n, kind: SignatureKind::Full }).collect();
    let frames: Vec<_> =
        sites.iter().map(|site| full(1200, site.offset.into(), TAG, 0, site.offset.into(), 0)).collect();
    // An MTU over a page takes the program for frames in fragments.
    for mtu in [1500, 9000] {
        let t = Topology::sink(Options { mtu, ..Options::default() });
        let got = counted(&t, &config(vec![stream(0, &sites, 0)]), XdpChoice::Native, &frames);
        assert_eq!(got.frames(), MAX_SITES as u64, "MTU {mtu}: {:?}", got.others());
        let short = |site: &SignatureSite| SignatureSite { kind: SignatureKind::Short, ..*site };
        let mixed: Vec<_> = sites.iter().take(8).flat_map(|site| [*site, short(site)]).collect();
        let got = counted(&t, &config(vec![stream(0, &mixed, 0)]), XdpChoice::Native, &frames[..8]);
        assert_eq!(got.frames(), 8, "MTU {mtu}, both kinds: {:?}", got.others());
    }
    let t = Topology::sink(Options::default());
    let more = SignatureSite { offset: 1200, kind: SignatureKind::Full };
    let too_many = config(vec![stream(0, &[&sites[..], &[more]].concat(), 0)]);
    let error =
        t.generator.enter(|| Receiver::attach(&Link::find("g0").unwrap(), &too_many, XdpChoice::Auto).unwrap_err());
    assert!(error.to_string().contains("17 different signature positions"), "{error}");
}
