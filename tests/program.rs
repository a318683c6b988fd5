//! Compiles profiles and checks the frames with an independent parser (`pnet_packet`): lengths, addresses, every checksum.

#[path = "support/inspect.rs"]
mod inspect;
#[path = "support/profiles.rs"]
mod profiles;

use inspect::{Layer, inspect};
use plimsoll::{
    profile::{self, Profile},
    program::{
        Compiled, PortFacts, compile,
        cursor::{BURST, Cursor, Tag},
        preview::preview,
        reference,
    },
    report::capture::to_pcap,
    wire::signature::{SignatureKind, run_tag},
};
use proptest::prelude::*;
use std::{path::Path, process::Command};

const PAIR: &str = "
ports:
  - {interface: g0, src_ip: 10.1.0.2, default_gw: 10.1.0.1}
  - {interface: g1, src_ip: 10.2.0.2, default_gw: 10.2.0.1}
";

fn load(text: &str) -> Profile {
    profile::parse(text, "test.yaml").unwrap_or_else(|error| panic!("{error}"))
}

fn build(text: &str) -> Compiled {
    let profile = load(text);
    let facts: Vec<_> = (0..profile.ports.len()).map(PortFacts::placeholder).collect();
    compile(&profile, &facts, 0x9C4B_1234, profile.seed).unwrap_or_else(|error| panic!("{error}"))
}

/// The first frames of a program's stream.
fn frames(compiled: &Compiled, program: usize, stream: usize, count: u64) -> Vec<Vec<u8>> {
    let stream = &compiled.programs[program].streams[stream];
    let frame = |index| {
        let mut out = Vec::new();
        reference::frame(stream, index, 0x89AB_CDEF, &mut out);
        out
    };
    (0..count).map(frame).collect()
}

#[test]
fn two_ports_alone_mean_udp_from_the_first_to_the_second_in_64_flows() {
    let compiled = build(PAIR);
    assert_eq!(compiled.programs.len(), 1);
    let stream = &compiled.programs[0].streams[0];
    assert_eq!((stream.flows, stream.templates.len()), (64, 1));
    assert_eq!(stream.templates[0].signature.unwrap().kind, SignatureKind::Full);
    let frames = frames(&compiled, 0, 0, 128);
    let mut ports = std::collections::BTreeSet::new();
    for frame in &frames {
        assert_eq!(frame.len(), 60);
        let layers = inspect(frame);
        assert!(
            layers.contains(&Layer::Ipv4 { src: [10, 1, 0, 2], dst: [10, 2, 0, 2], ttl: 64, df: true }),
            "{layers:?}"
        );
        let Some(Layer::Udp { src, dst: 9, .. }) = layers.last() else { panic!("{layers:?}") };
        ports.insert(*src);
    }
    assert_eq!(ports.len(), 64);
    assert_eq!(frames[0][6..12], PortFacts::placeholder(0).mac);
}

#[test]
fn a_single_port_sends_to_its_gateway() {
    let compiled = build("ports: [{interface: g0, src_ip: 10.1.0.2, default_gw: 10.1.0.1}]");
    let layers = inspect(&frames(&compiled, 0, 0, 1)[0]);
    assert!(layers.contains(&Layer::Ipv4 { src: [10, 1, 0, 2], dst: [10, 1, 0, 1], ttl: 64, df: true }), "{layers:?}");
    assert_eq!(compiled.rx_of_stream, [None]);
}

#[test]
fn every_header_gets_valid_checksums_whatever_varies() {
    let stacks = [
        "{udp: {}}",
        "{tcp: {flags: syn, seq: {random: 0-4294967295}}}",
        "{icmp: {seq: 0-65535}}",
        "{vlan: 100, udp: {}}",
        "[{vlan: 200}, {vlan: {id: 1-50}}, {ipv4: {src: 10.1.0.2-10.1.0.200, dscp: [0, 46]}}, udp]",
        "[{mpls: {label: 16-40}}, {mpls: 17}, udp]",
        "[{ipv6: {src: fd00::2, dst: 'fd00:1::1-fd00:1::ffff', flow_label: {random: 0-1048575}}}, udp]",
        "[{ipv6: {src: [fd00::1, fe00::1], dst: fd00:1::9}}, tcp]",
        "[{ipv6: {src: fd00::2, dst: fd00:1::9}}, {icmpv6: {id: 1-9}}]",
        "[{gre: {key: 1-100}}, {ipv4: {src: 192.0.2.1-192.0.2.77}}, udp]",
        "[gre, {ipv6: {src: fd00::1, dst: fd00::2}}, {tcp: {}}]",
        "[{vxlan: {vni: 1-99}}, {ethernet: {src: '02:00:00:00:00:01-02:00:00:00:00:63'}}, {ipv4: {}}, {udp: {dst_port: [7, 9]}}]",
        "[{ipv6: {src: fd00::1, dst: fd00::2}}, udp, {vxlan: {vni: 1-99}}, ethernet, ipv4, {udp: {src_port: {random: 1024-65535}}}]",
        "[udp, {raw: '00112233445566'}]",
        "[{ethernet: {type: 0x88b5, dst: '02:00:00:00:00:09'}}, {raw: '00'}]",
    ];
    for headers in stacks {
        for size in [64, 65, 97, 128, 333, 1518, 9216] {
            let text = format!("{PAIR}\nsize: {size}\nstreams: [{{headers: {headers}}}]\n");
            let profile = load(&text);
            let compiled = match compile(&profile, &[], 0x9C4B_1234, 7) {
                Ok(compiled) => compiled,
                Err(error) => {
                    assert!(size < 128 && error.to_string().contains("use at least"), "{headers} {size}: {error}");
                    continue;
                }
            };
            for frame in frames(&compiled, 0, 0, 300) {
                assert_eq!(frame.len(), size - 4, "{headers}");
                let layers = inspect(&frame);
                assert!(layers.len() > 1, "{headers}: {layers:?}");
            }
        }
    }
}

/// The first frame of a stream with these headers, in 256 bytes.
fn first_frame(headers: &str) -> Vec<u8> {
    let compiled = build(&format!("{PAIR}\nsize: 256\nstreams: [{{headers: {headers}}}]\n"));
    frames(&compiled, 0, 0, 1).remove(0)
}

#[test]
fn every_field_stands_where_an_independent_parser_reads_it() {
    use pnet_packet::{
        Packet, icmp::echo_request::EchoRequestPacket, ipv4::Ipv4Packet, ipv6::Ipv6Packet, tcp::TcpPacket,
        udp::UdpPacket, vlan::VlanPacket,
    };
    let frame = first_frame(
        "[{ethernet: {dst: '02:00:00:00:00:09'}}, {vlan: {id: 1234, pcp: 5, dei: 1, tpid: 0x9100}}, {ipv4: {dscp: 46, ecn: 2, id: 4660, df: 0, mf: 1, fragment_offset: 300, ttl: 9}}, {tcp: {src_port: 1111, dst_port: 2222, seq: 305419896, ack: 2271560481, flags: syn+ece, window: 500, urgent: 7}}]",
    );
    assert_eq!((&frame[..6], &frame[12..14]), (&[2, 0, 0, 0, 0, 9][..], &[0x91, 0x00][..]));
    let vlan = VlanPacket::new(&frame[14..]).unwrap();
    assert_eq!(
        (vlan.get_vlan_identifier(), vlan.get_priority_code_point().0, vlan.get_drop_eligible_indicator()),
        (1234, 5, 1)
    );
    let ip = Ipv4Packet::new(vlan.payload()).unwrap();
    assert_eq!((ip.get_dscp(), ip.get_ecn(), ip.get_identification(), ip.get_ttl()), (46, 2, 4660, 9));
    assert_eq!((ip.get_flags(), ip.get_fragment_offset()), (1, 300));
    let tcp = TcpPacket::new(ip.payload()).unwrap();
    assert_eq!((tcp.get_source(), tcp.get_destination(), tcp.get_sequence()), (1111, 2222, 305_419_896));
    assert_eq!((tcp.get_acknowledgement(), tcp.get_flags(), tcp.get_window()), (2_271_560_481, 0x42, 500));
    assert_eq!((tcp.get_urgent_ptr(), tcp.get_data_offset()), (7, 5));

    let frame = first_frame(
        "[{ipv6: {src: 'fd00::7', dst: 'fd00::8', dscp: 33, ecn: 1, flow_label: 703710, hop_limit: 3}}, {udp: {src_port: 1, dst_port: 65535}}]",
    );
    let ip = Ipv6Packet::new(&frame[14..]).unwrap();
    assert_eq!((ip.get_traffic_class(), ip.get_flow_label(), ip.get_hop_limit()), (33 << 2 | 1, 703_710, 3));
    assert_eq!(
        (ip.get_source().to_string(), ip.get_destination().to_string()),
        ("fd00::7".to_owned(), "fd00::8".to_owned())
    );
    let udp = UdpPacket::new(ip.payload()).unwrap();
    assert_eq!((udp.get_source(), udp.get_destination()), (1, 65_535));

    let frame = first_frame("[{mpls: {label: 703710, tc: 5, ttl: 77}}, {icmp: {type: 8, code: 0, id: 258, seq: 772}}]");
    assert_eq!(frame[12..18], [0x88, 0x47, 0xAB, 0xCD, 0xEB, 77], "label, then tc 5 and the bottom bit");
    let ip = Ipv4Packet::new(&frame[18..]).unwrap();
    let echo = EchoRequestPacket::new(ip.payload()).unwrap();
    assert_eq!((echo.get_icmp_type().0, echo.get_identifier(), echo.get_sequence_number()), (8, 258, 772));

    let layers = inspect(&first_frame("[{gre: {key: 3735928559}}, ipv4, udp]"));
    assert!(layers.contains(&Layer::Gre { key: Some(0xDEAD_BEEF) }), "{layers:?}");
    let layers = inspect(&first_frame("[{vxlan: {vni: 11259375}}]"));
    assert!(layers.contains(&Layer::Vxlan { vni: 11_259_375 }), "{layers:?}");
    let layers = inspect(&first_frame("[ethernet, {ipv4: {protocol: 89}}]"));
    assert!(layers.contains(&Layer::Payload { protocol: 89, bytes: 218 }), "{layers:?}");
}

#[test]
fn fields_take_their_values_in_the_order_and_pace_that_was_asked() {
    let ports = |fields: &str, count: u64| {
        let compiled = build(&format!("{PAIR}\nstreams: [{{headers: [{{udp: {{{fields}}}}}]}}]\n"));
        let pairs = frames(&compiled, 0, 0, count).into_iter().map(|frame| match inspect(&frame).last() {
            Some(Layer::Udp { src, dst, .. }) => (*src, *dst),
            other => panic!("{other:?}"),
        });
        pairs.collect::<Vec<_>>()
    };
    assert_eq!(
        ports("src_port: 5-7, dst_port: [80, 443]", 7),
        [(5, 80), (6, 443), (7, 80), (5, 443), (6, 80), (7, 443), (5, 80)]
    );
    assert_eq!(ports("src_port: {decrement: 1-9, step: 4}, dst_port: 1", 4), [(9, 1), (5, 1), (1, 1), (9, 1)]);
    assert_eq!(ports("src_port: {start: 7, step: 10, count: 3}, dst_port: 1", 4), [(7, 1), (17, 1), (27, 1), (7, 1)]);
    assert_eq!(ports("src_port: 9-7, dst_port: {list: [1, 2], every: 2}", 5), [(9, 1), (8, 1), (7, 2), (9, 2), (8, 1)]);
    assert_eq!(
        ports("src_port: 1-2, dst_port: {increment: 5-6, every: src_port}", 5),
        [(1, 5), (2, 5), (1, 6), (2, 6), (1, 5)]
    );
    let random = ports("src_port: {random: 100-199, count: 10}, dst_port: {random: 7-7}", 20);
    assert_eq!(random[..10], random[10..], "repeats after ten");
    assert!(random.iter().all(|&(src, dst)| (100..200).contains(&src) && dst == 7));
}

/// Frames of each shipped profile kept as a capture file; `BLESS=1` writes them anew.
const GOLDEN_FRAMES: u64 = 40;

#[test]
fn shipped_profiles_send_the_frames_that_are_kept_as_golden_captures() {
    let tcpdump = Command::new("tcpdump").arg("--version").output().is_ok();
    for entry in std::fs::read_dir("profiles").expect("profiles/ is there") {
        let path = entry.expect("profiles/ is readable").path();
        if path.extension().is_none_or(|extension| extension != "yaml") {
            continue;
        }
        let profile = profile::load(&path, &|path| std::fs::read(path)).unwrap_or_else(|error| panic!("{error}"));
        let facts: Vec<_> = (0..profile.ports.len()).map(PortFacts::placeholder).collect();
        let compiled = compile(&profile, &facts, run_tag(0), profile.seed).unwrap_or_else(|error| panic!("{error}"));
        let frames = preview(&compiled, GOLDEN_FRAMES);
        assert!(frames.len() as u64 == GOLDEN_FRAMES || frames.len() == 10 && path.ends_with("pcap.yaml"), "{path:?}");
        for frame in &frames {
            assert!(inspect(&frame.bytes).len() >= 3, "{path:?}");
        }
        let bytes = to_pcap(&frames).expect("times fit");
        let golden = Path::new("tests/golden/profiles").join(path.file_stem().expect("a name")).with_extension("pcap");
        if std::env::var_os("BLESS").is_some() {
            std::fs::write(&golden, &bytes).expect("golden files can be written");
        }
        let kept = std::fs::read(&golden).unwrap_or_else(|error| panic!("{golden:?}: {error}"));
        assert!(kept == bytes, "{path:?} sends other frames than {golden:?}");
        if tcpdump {
            verify_with_tcpdump(&golden, frames.len());
        }
    }
}

/// tcpdump's verdict on every checksum. `pnet_packet` has verified them already; this is a second opinion where it exists.
fn verify_with_tcpdump(file: &Path, frames: usize) {
    let output = Command::new("tcpdump").args(["-nvvt", "-r"]).arg(file).output().expect("tcpdump runs");
    let text = String::from_utf8_lossy(&output.stdout);
    let good = text.matches("udp sum ok").count() + text.matches("(correct)").count();
    let bad = ["bad udp cksum", "bad cksum", "(incorrect", "bad length", "truncated"];
    assert!(bad.iter().all(|word| !text.contains(word)), "{file:?}:\n{text}");
    assert_eq!(good, frames, "{file:?}:\n{text}");
}

/// The workers' interpreter against the definition: bursts of odd lengths, slots used again, from 1 to 3 workers.
fn assert_workers_equal_the_definition(compiled: &Compiled, what: &str) {
    let mut expected = Vec::new();
    for stream in compiled.programs.iter().flat_map(|program| &program.streams) {
        let longest = stream.templates.iter().map(|template| template.bytes.len()).max().expect("a template");
        for (worker, workers) in [(0, 1), (0, 2), (1, 2), (2, 3)] {
            let mut cursor = Cursor::new(stream, worker, workers);
            let mut slots = vec![(vec![0xEE; longest], Tag::EMPTY); 5];
            let mut index = u64::from(worker);
            for (burst, frames) in [1, 7, BURST, 30].into_iter().enumerate() {
                let stamp = 0xABCD_0000 + burst as u32;
                cursor.prepare(frames, stamp);
                for run in cursor.runs(0) {
                    for nth in run.frames.clone() {
                        let (bytes, holds) = &mut slots[index as usize % 5];
                        run.write(nth, bytes, *holds);
                        *holds = run.tag;
                        reference::frame(stream, index, if nth == 0 { stamp } else { 0 }, &mut expected);
                        assert!(bytes[..run.buf_len()] == expected[..], "{what}: {}, frame {index}", stream.name);
                        index += u64::from(workers);
                    }
                }
                assert_eq!(index, cursor.index());
            }
        }
    }
}

#[test]
fn workers_send_the_shipped_profiles_as_they_are_defined() {
    for entry in std::fs::read_dir("profiles").expect("profiles/ is there") {
        let path = entry.expect("profiles/ is readable").path();
        if path.extension().is_some_and(|extension| extension == "yaml") {
            let profile = profile::load(&path, &|path| std::fs::read(path)).unwrap_or_else(|error| panic!("{error}"));
            let compiled = compile(&profile, &[], run_tag(0), profile.seed).unwrap_or_else(|error| panic!("{error}"));
            assert_workers_equal_the_definition(&compiled, &path.display().to_string());
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn workers_send_any_profile_as_it_is_defined(text in profiles::profile_text()) {
        assert_workers_equal_the_definition(&build(&text), &text);
    }

    /// Whatever the profile: an independent parser finds every length and checksum right, and the signature where it is said
    /// to be.
    #[test]
    fn any_profiles_frames_are_valid(text in profiles::profile_text(), start in any::<u64>(), stamp in any::<u32>()) {
        let profile = load(&text);
        let compiled = compile(&profile, &[], 0x9C4B_1234, profile.seed).unwrap_or_else(|error| panic!("{text}\n{error}"));
        let mut frame = Vec::new();
        for program in &compiled.programs {
            for stream in &program.streams {
                for index in (0..12).map(|offset| (start >> 1).wrapping_add(offset)).chain(0..4) {
                    reference::frame(stream, index, stamp, &mut frame);
                    let layers = inspect(&frame);
                    prop_assert!(layers.len() >= 3, "{text}\n{layers:?}");
                    let template = &stream.templates[usize::from(stream.pattern[(index % stream.pattern.len() as u64) as usize])];
                    prop_assert_eq!(frame.len() as u64 + 4, template.frame_len.bytes());
                    if let Some(site) = template.signature {
                        let at = &frame[usize::from(site.offset)..][..site.kind.len()];
                        let (offset, width) = site.kind.sequence();
                        let sequence = at[offset..offset + width].iter().fold(0u64, |acc, &byte| acc << 8 | u64::from(byte));
                        prop_assert_eq!(sequence, index & (u64::MAX >> (64 - 8 * width)));
                        let constant = site.kind.constant(0x9C4B_1234, stream.id.0);
                        prop_assert_eq!(&at[..offset], &constant[..offset]);
                    }
                }
            }
        }
    }
}
