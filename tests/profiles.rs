//! Profiles as users write them: the shipped ones, TRex's configuration, mistakes, capture files.

#[path = "support/capture_files.rs"]
mod capture_files;

use std::{
    io,
    net::IpAddr,
    path::{Path, PathBuf},
};

use capture_files::{pcap, pcapng};
use plimsoll::{
    caveat::Code,
    error::ErrorKind,
    profile::{self, Profile},
    program::{Compiled, Mode, PortFacts, compile},
    units::Rate,
    wire::{capture, mac::Mac, parse::parse},
};
use proptest::prelude::*;

fn read(path: &Path) -> io::Result<Vec<u8>> {
    std::fs::read(path)
}

fn shipped() -> Vec<PathBuf> {
    let mut paths: Vec<_> = std::fs::read_dir("profiles")
        .expect("profiles/ is there")
        .map(|entry| entry.expect("profiles/ is readable").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "yaml"))
        .collect();
    paths.sort();
    paths
}

fn load(name: &str) -> Profile {
    profile::load(&Path::new("profiles").join(name), &read).unwrap_or_else(|error| panic!("{error}"))
}

fn compiled(profile: &Profile) -> Compiled {
    compile(profile, &[], 0x9C4B_0001, profile.seed).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn every_shipped_profile_loads_and_compiles() {
    let paths = shipped();
    assert_eq!(paths.len(), 11, "{paths:?}");
    for path in paths {
        let profile = profile::load(&path, &read).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(profile.real_ports().count(), 2, "{path:?}");
        let compiled = compiled(&profile);
        // Two TCP segments of the capture have no payload, so nothing can be put there.
        let expected = usize::from(path.ends_with("pcap.yaml"));
        assert!(!compiled.programs.is_empty());
        assert_eq!(compiled.caveats.len(), expected, "{path:?}: {:?}", compiled.caveats);
    }
}

#[test]
fn the_field_case_is_357_bytes_and_three_and_a_half_gigabits_are_1_2_mpps() {
    let compiled = compiled(&load("vm-dut.yaml"));
    let mean = compiled.programs[0].mean_frame();
    assert_eq!(mean.bytes, 357 * mean.frames);
    assert_eq!(compiled.load_fps, [Some(1_225_490)]);
}

#[test]
fn rfc_2544_uses_its_addresses_and_port_7() {
    let compiled = compiled(&load("rfc2544.yaml"));
    let bytes = &compiled.programs[0].streams[0].templates[0].bytes;
    assert_eq!(
        (&bytes[26..30], &bytes[30..34], &bytes[36..38]),
        (&[198, 18, 1, 2][..], &[198, 19, 1, 2][..], &[0, 7][..])
    );
}

#[test]
fn burst_profiles_chain_and_only_the_first_starts() {
    let compiled = compiled(&load("burst.yaml"));
    let streams = &compiled.programs[0].streams;
    let starts: Vec<_> = streams.iter().map(|stream| stream.schedule.self_start).collect();
    assert_eq!(starts, [true, true, false, false, false]);
    let nexts: Vec<_> = streams.iter().map(|stream| stream.schedule.next).collect();
    assert_eq!(nexts, [None, Some(2), Some(3), Some(4), Some(1)]);
    let weights: Vec<_> = streams.iter().map(|stream| stream.schedule.weight).collect();
    assert_eq!(weights, [1, 100, 100, 100, 100]);
    assert_eq!(streams[1].schedule.mode, Mode::MultiBurst { frames: 16, gap_ns: 1_000_000, count: 4 });
}

/// One mistake per line: text of the profile, where the error is, what it says.
const MISTAKES: &[(&str, &str, &[&str])] = &[
    ("ports:\n\t- interface: g0\n", ":2:1:", &["tab"]),
    ("ports:\n- interface: g0\n  src_ip: 1.1.1.1\n  src_pi: 1.1.1.2\n", ":4:3:", &["src_pi", "did you mean `src_ip`"]),
    ("prots:\n- interface: g0\n", ":1:1:", &["prots", "did you mean `ports`"]),
    ("ports:\n- interface: g0\n  src_ip: 10.1.0.2\n  src_ip: 10.1.0.3\n", ":4:3:", &["duplicate", "src_ip"]),
    ("ports:\n- interface: g0\n  src_ip: 10.1.0.2\n  ip: 10.1.0.3\n", ":4:3:", &["`ip`", "`src_ip`", "twice"]),
    ("ports:\n- interface: g0\n  src_ip: 300.1.1.1\n", ":3:11:", &["300.1.1.1", "not an IP address"]),
    ("ports:\n- interface: g0\n  src_ip: 10.1.0.2/33\n", ":3:11:", &["33", "mask"]),
    ("ports:\n- interface: g0\n  src_ip: 10.1.0.2\n  mask: 255.0.255.0\n", ":4:9:", &["255.0.255.0"]),
    ("ports:\n- interface: g0\n  src_ip: 10.1.0.2\n  default_gw: fd00::1\n", ":4:15:", &["families"]),
    ("ports:\n- interface: g0\n  src_ip: 10.1.0.2\n  default_gw: 10.1.0.2\n", ":4:15:", &["own"]),
    ("ports:\n- interface: g0\n- interface: g0@if5\n", ":3:14:", &["g0", "line 2"]),
    ("ports:\n- interface: 03:00.0\n", ":2:14:", &["PCI address", "0000:03:00.0/net"]),
    ("ports:\n- src_ip: 10.1.0.2\n", ":2:3:", &["interface"]),
    ("ports:\n- interfce: g0\n  src_ip: 10.1.0.2\n", ":2:3:", &["interfce", "did you mean `interface`"]),
    ("- interfces: [g0]\n  port_info: []\n", ":1:3:", &["interfces", "did you mean `interfaces`"]),
    ("ports:\n- interface: g0\n  src_mac: 01:00:5e:00:00:01\n", ":3:12:", &["group"]),
    ("ports:\n- interface: g0\n  dest_mac: 02:00:00:00:00\n", ":3:13:", &["MAC address"]),
    ("ports:\n- interface: g0\n  vlan: 5000\n", ":3:9:", &["5000", "0…4095"]),
    ("ports: []\n", "", &["no port"]),
    ("", ":1:1:", &["mapping with `ports:`", "nothing"]),
    ("ports: [{interface: g0}]\n---\nports: []\n", ":3:1:", &["second YAML document"]),
    ("ports:\n- interface: g0\n   src_ip: 1.1.1.1\n", ":3:10:", &["indentation"]),
    ("from trex_stl_lib.api import *\nclass S(object):\n  def f (self):\n", ":1:1:", &["TRex profile in Python"]),
    ("streams:\n- headers: [udp]\n", ":1:1:", &["between which ports", "add ports"]),
    ("- cap_info:\n  - name: cap2/dns.pcap\n", ":1:1:", &["TRex traffic file"]),
    ("- name: s1\n  stream: {}\n", ":1:1:", &["TRex stream file"]),
    ("- interface: g0\n  src_ip: 10.1.0.2\n", ":1:1:", &["ports:"]),
    ("just text\n", ":1:1:", &["mapping with `ports:`"]),
    ("- interfaces: [g0, g1]\n  port_info: []\n  prot_limit: 2\n", ":3:3:", &["prot_limit", "port_limit"]),
    ("- interfaces: ['03:00.0']\n", ":1:16:", &["PCI address"]),
    ("- interfaces: [g0]\n  port_info: [{ip: 1.1.1.1}, {ip: 1.1.1.2}]\n", ":2:30:", &["2 entries for 1 interfaces"]),
];

/// The same for what follows a good `ports:` of two lines.
const STREAM_MISTAKES: &[(&str, &str, &[&str])] = &[
    ("rate: 5\n", ":3:7:", &["`5` is not a rate", "1mpps"]),
    ("size: 40\n", ":3:7:", &["40", "64…9216"]),
    ("size: imix:xyz\n", ":3:7:", &["`x`"]),
    ("duration: 10\n", ":3:11:", &["duration"]),
    ("streams: [{headers: [upd]}]\n", ":3:22:", &["upd", "did you mean `udp`"]),
    ("streams: [{headers: {udp: {dst_prot: 9}}}]\n", ":3:28:", &["dst_prot", "did you mean `dst_port`"]),
    ("streams: [{headers: {udp: {dst_port: 70000}}}]\n", ":3:38:", &["70000", "16 bits"]),
    ("streams: [{headers: {udp: {dst_port: 9-x}}}]\n", ":3:38:", &["`x` is not a whole number"]),
    ("streams: [{headers: {ipv4: {dst: 10.0.0.256}}}]\n", ":3:34:", &["10.0.0.256", "IPv4 address"]),
    ("streams: [{headers: {tcp: {flags: sny}}}]\n", ":3:35:", &["sny", "syn"]),
    ("streams: [{headers: {udp: {src_port: {}}}}]\n", ":3:38:", &["how it varies"]),
    ("streams: [{headers: {udp: {src_port: {random: 9-1}}}}]\n", ":3:47:", &["smaller"]),
    ("streams: [{headers: {udp: {src_port: {random: 1-9, list: [1]}}}}]\n", ":3:58:", &["two ways"]),
    ("streams: [{headers: {udp: {src_port: {random: 1-9, step: 2}}}}]\n", ":3:58:", &["step", "beside random"]),
    ("streams: [{headers: {udp: {src_port: {list: [1, 2], step: 2}}}}]\n", ":3:59:", &["step", "beside list"]),
    ("streams: [{headers: {udp: {src_port: {list: [1, 2], count: 2}}}}]\n", ":3:60:", &["count", "beside list"]),
    ("streams: [{headers: {udp: {src_port: {increment: 1-5, count: 6}}}}]\n", ":3:62:", &["6 values by 1", "has 5"]),
    ("streams: [{headers: {udp: {src_port: {decrement: 1-9, step: 4, count: 4}}}}]\n", ":3:71:", &["has 3"]),
    ("streams: [{name: \"a\\e[31m\"}]\n", ":3:18:", &["control characters"]),
    ("streams: [{headers: {udp: {src_port: {start: 65000, count: 1000}}}}]\n", ":3:60:", &["0…65535"]),
    ("streams: [{mode: burts}]\n", ":3:18:", &["burts", "did you mean `burst`"]),
    ("streams: [{mode: burst}]\n", ":3:18:", &["frames"]),
    ("streams: [{gap: 1ms, mode: continuous}]\n", ":3:17:", &["gap"]),
    ("streams: [{name: a, mode: burst, frames: 1, next: b}]\n", ":3:51:", &["no stream `b`"]),
    ("streams: [{name: a, next: a}]\n", ":3:27:", &["continuous stream never ends"]),
    ("streams: [{name: a}, {name: a}]\n", ":3:22:", &["line 3"]),
    ("streams: [{port: 7}]\n", ":3:18:", &["no port", "0…1"]),
    ("streams: [{rate: 1kpps, share: 2}]\n", ":3:32:", &["not both"]),
    ("streams: [{pcap: {fil: x}}]\n", ":3:19:", &["fil", "did you mean `file`"]),
    ("streams: [{pcap: nothing.pcap}]\n", ":3:18:", &["nothing.pcap"]),
    ("streams: [{headers: [{raw: 0g}]}]\n", ":3:28:", &["`g`"]),
    ("streams: [{headers: [{raw: 123}]}]\n", ":3:28:", &["3 hexadecimal digits"]),
    ("dut: {observe: telepathy}\n", ":3:16:", &["telepathy", "netns:NAME"]),
    ("dut: {observe: [vm:a, telepathy]}\n", ":3:23:", &["telepathy"]),
    ("dut: {observe: [vm:a, ssh:b@c]}\n", ":3:16:", &["two observers of one kind"]),
    ("dut: {observe: []}\n", ":3:16:", &["empty"]),
    ("dut: {interface: d0}\n", ":3:6:", &["observe"]),
    ("dut: {observe: local, restroe: false}\n", ":3:23:", &["did you mean `restore`"]),
];

#[test]
fn a_mistake_is_named_with_file_line_column_and_remedy() {
    let ports = "ports: [{interface: g0, src_ip: 10.1.0.2, default_gw: 10.1.0.1},\n        {interface: g1, src_ip: 10.2.0.2}]\n";
    let alone = MISTAKES.iter().map(|&(text, place, words)| (text.to_owned(), place, words));
    let after = STREAM_MISTAKES.iter().map(|&(text, place, words)| (format!("{ports}{text}"), place, words));
    for (text, place, words) in alone.chain(after) {
        let error = profile::parse(&text, "p.yaml").expect_err(&text);
        assert_eq!(error.kind(), ErrorKind::Usage);
        let said = error.to_string();
        assert!(said.starts_with(&format!("cannot read p.yaml{place}")), "{text}\n{said}");
        for word in words {
            assert!(said.contains(word), "{text}\n{said}\nlacks {word}");
        }
    }
}

/// Mistakes that only the whole shows: what follows a good `ports:`, what the error says.
const COMPILE_MISTAKES: &[(&str, &[&str])] = &[
    (
        "streams: [{headers: {ipv6: {src: fd00::1, dst: fd00::2}, udp: {}}, size: 64}]",
        &["64 bytes is too short", "66", "80"],
    ),
    ("streams: [{headers: [udp, ipv4]}]", &["ipv4 cannot follow udp"]),
    ("streams: [{headers: [tcp, udp]}]", &["udp cannot follow"]),
    ("streams: [{headers: {ipv6: {}, udp: {}}, size: 128}]", &["IPv6 address", "ipv6 header"]),
    ("streams: [{headers: [{udp: {src_port: {increment: 1-9, every: dts_port}}}]}]", &["dts_port", "udp.src_port"]),
    (
        "streams: [{headers: [{udp: {src_port: {increment: 1-9, every: dst_port}, dst_port: {increment: 1-9, every: src_port}}}]}]",
        &["waits for it"],
    ),
    (
        "streams: [{headers: [{udp: {src_port: {random: 1-9}, dst_port: {list: [1, 2], every: src_port}}}]}]",
        &["never starts again"],
    ),
    ("rate: 50%", &["link speed is unknown", "link_speed"]),
    ("rate: 9999999gpps", &["no link carries"]),
    ("streams: [{rate: 9999999gpps}]", &["no link carries"]),
    ("streams: [{rate: 1kpps}, {name: b}]", &["none", "each a share"]),
    ("streams: [{headers: [vlan, udp]}]", &["vlan", "id"]),
];

#[test]
fn what_cannot_be_compiled_says_which_stream_and_why() {
    for (text, words) in COMPILE_MISTAKES {
        let text = format!(
            "ports: [{{interface: g0, src_ip: 10.1.0.2, default_gw: 10.1.0.1}}, {{interface: g1, src_ip: 10.2.0.2}}]\n{text}\n"
        );
        let profile = profile::parse(&text, "p.yaml").unwrap_or_else(|error| panic!("{text}: {error}"));
        let said = compile(&profile, &[], 1, 1).expect_err(&text).to_string();
        for word in *words {
            assert!(said.contains(word), "{text}\n{said}\nlacks {word}");
        }
    }
}

#[test]
fn a_frame_longer_than_the_mtu_is_refused_before_anything_is_sent() {
    let profile =
        profile::parse("ports: [{interface: g0, src_ip: 10.1.0.2, default_gw: 10.1.0.1}]\nsize: 1600", "p.yaml");
    let facts = PortFacts { mtu: Some(1500), ..PortFacts::placeholder(0) };
    let said = compile(&profile.unwrap(), &[facts], 1, 1).unwrap_err().to_string();
    assert!(said.contains("1600") && said.contains("MTU 1500 + 14 + 4 (FCS) = 1518"), "{said}");
}

#[test]
fn trex_configurations_work_as_they_are() {
    let by_mac = "
- port_limit      : 2
  version         : 2
  interfaces      : ['eth1', 'dummy', 'eth2', 'dummy']
  port_bandwidth_gb : 10
  port_info       :
          - dest_mac        :   [0x0,0x0,0x0,0x1,0x0,0x00]
            src_mac         :   02:00:00:00:00:aa
          - dest_mac        :   '00:00:00:02:00:00'
          - dest_mac        :   \"00-00-00-03-00-00\"
";
    let profile =
        profile::parse(&by_mac.replace("port_limit      : 2", "port_limit: 4"), "/etc/trex_cfg.yaml").unwrap();
    assert_eq!(profile.real_ports().collect::<Vec<_>>(), [0, 2]);
    assert_eq!((profile.streams[0].port, profile.streams[0].rx_port), (0, Some(2)));
    assert_eq!(
        (profile.ports[0].dest_mac, profile.ports[2].dest_mac),
        (Some([0, 0, 0, 1, 0, 0]), Some([0, 0, 0, 3, 0, 0]))
    );
    let compiled = compiled(&profile);
    let bytes = &compiled.programs[0].streams[0].templates[0].bytes;
    assert_eq!(bytes[..12], [0, 0, 0, 1, 0, 0, 2, 0, 0, 0, 0, 0xAA]);
    assert_eq!(bytes[26..34], [198, 18, 0, 2, 198, 18, 2, 2], "addresses of RFC 2544 stand in");

    let limited =
        profile::parse("interfaces: [a, b]\nport_limit: 1\nport_info: [{ip: 1.1.1.1, default_gw: 2.2.2.2}]", "c")
            .unwrap();
    assert_eq!(limited.ports.len(), 1);
    assert_eq!(limited.ports[0].default_gw, Some(IpAddr::from([2, 2, 2, 2])));
}

#[test]
fn a_profile_takes_its_ports_from_a_trex_configuration() {
    let files = |path: &Path| match path.to_str() {
        Some("dir/p.yaml") => Ok(b"ports: trex.yaml\nstreams: [{headers: [tcp]}]\n".to_vec()),
        Some("dir/trex.yaml") => {
            Ok(b"- interfaces: [g0, g1]\n  port_info: [{ip: 10.1.0.2, default_gw: 10.1.0.1}, {ip: 10.2.0.2}]\n"
                .to_vec())
        }
        _ => Err(io::Error::from(io::ErrorKind::NotFound)),
    };
    let profile = profile::load(Path::new("dir/p.yaml"), &files).unwrap();
    assert_eq!(profile.ports[1].interface, "g1");
}

#[test]
fn anchors_and_merge_keys_have_a_place() {
    let text =
        "x-link: &link {default_gw: 10.1.0.1, vlan: 7}\nports:\n- {interface: g0, src_ip: 10.1.0.2, <<: *link}\n";
    let port = profile::parse(text, "p").unwrap().ports.remove(0);
    assert_eq!((port.default_gw, port.vlans.len()), (Some(IpAddr::from([10, 1, 0, 1])), 1));
}

#[test]
fn a_file_that_is_no_text_is_recognised() {
    let pcap = profile::load(Path::new("x"), &|_| std::fs::read("profiles/sample.pcap")).unwrap_err().to_string();
    assert!(pcap.contains("capture file"), "{pcap}");
    let binary = profile::load(Path::new("x"), &|_| Ok(b"ports:\n\xFF\xFE".to_vec())).unwrap_err().to_string();
    assert!(binary.contains("x:2:1") && binary.contains("not text"), "{binary}");
    let missing = profile::load(Path::new("no/such.yaml"), &read).unwrap_err().to_string();
    assert!(missing.contains("no/such.yaml"), "{missing}");
}

#[test]
fn the_other_direction_swaps_addresses_and_keeps_ports() {
    let mut profile = load("udp-64.yaml");
    profile.set_bidirectional().unwrap();
    let compiled = compiled(&profile);
    assert_eq!(compiled.programs.len(), 2);
    let (there, back) = (&compiled.programs[0].streams[0], &compiled.programs[1].streams[0]);
    assert_eq!(there.templates[0].bytes[26..30], back.templates[0].bytes[30..34]);
    assert_eq!(there.fields[0].value(5), back.fields[0].value(5));
    assert_eq!(back.name, "udp-64-back");
    let mut alone = profile::parse("ports: [{interface: g0, src_ip: 10.1.0.2, default_gw: 10.1.0.1}]", "p").unwrap();
    assert!(alone.set_bidirectional().unwrap_err().to_string().contains("no port receives it"));
}

#[test]
fn a_port_is_tagged_like_its_streams() {
    let tags = |headers: &str| {
        let text = format!("ports: [{{interface: g0, src_ip: 10.1.0.2, default_gw: 10.1.0.1}}]\nstreams: {headers}\n");
        let profile = profile::parse(&text, "p").unwrap_or_else(|error| panic!("{error}"));
        profile.ports[0].vlans.iter().map(|tag| (tag.tpid, tag.id)).collect::<Vec<_>>()
    };
    assert_eq!(tags("[{headers: [{vlan: 100}, udp]}]"), [(0x8100, 100)]);
    assert_eq!(tags("[{headers: [ethernet, {vlan: 200}, {vlan: 100}, udp]}]"), [(0x88A8, 200), (0x8100, 100)]);
    assert_eq!(tags("[{headers: [{vlan: {id: 1-9}}, udp]}]"), []);
    assert_eq!(tags("[{headers: [{vlan: 100}, udp]}, {headers: [udp]}]"), []);
    let text = "ports: [{interface: a, src_ip: 10.1.0.2, default_gw: 10.1.0.1}, {interface: b, src_ip: 10.2.0.2}]
bidirectional: true
streams: [{headers: [{vlan: 100}, udp]}]";
    let profile = profile::parse(text, "p").unwrap();
    assert_eq!(profile.ports[1].vlans.len(), 1, "the way back is tagged too");
}

#[test]
fn four_ports_are_two_pairs() {
    let text = "interfaces: [a, b, c, d]\nport_info: [{ip: 1.1.1.1}, {ip: 1.1.2.1}, {ip: 1.1.3.1}, {ip: 1.1.4.1}]\n";
    let ports = |_: &Path| Ok(text.as_bytes().to_vec());
    let text = "ports: x\nstreams: [{port: 0}, {port: 1}, {port: 2}, {port: d}]\n";
    let profile = profile::parse_with(text, "p", &ports).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(profile.streams.iter().map(|s| s.rx_port).collect::<Vec<_>>(), [Some(1), Some(0), Some(3), Some(2)]);
}

#[test]
fn doubts_about_a_profile_travel_with_it() {
    let codes = |text: &str| {
        let profile = profile::parse(text, "p").unwrap_or_else(|error| panic!("{error}"));
        compiled(&profile).caveats.iter().map(|caveat| caveat.code).collect::<Vec<_>>()
    };
    let port = |more: &str| format!("ports: [{{interface: g0, src_ip: 10.1.0.2/24, default_gw: 10.1.0.1{more}}}]\n");
    assert_eq!(codes(&port("")), []);
    assert_eq!(codes(&(port("") + "flows: 1\n")), [Code::SingleFlow]);
    assert_eq!(
        codes(
            &(port("")
                + "streams: [{track: false, headers: [{udp: {src_port: 5}}]}, {track: false, headers: [tcp]}]\n")
        ),
        []
    );
    assert_eq!(codes(&port(", src_mac: '02:00:00:00:00:77'")), [Code::ForgedSourceMac]);
    assert_eq!(codes(&port("").replace("10.1.0.1", "10.9.0.1")), [Code::GatewayOffSubnet]);
    assert_eq!(codes(&(port("") + "size: 64\nstreams: [{headers: [tcp, {raw: '0011'}]}]\n")), [Code::NoSignature]);
}

#[test]
fn rates_become_weights_and_the_sum_is_the_load() {
    let text = "ports: [{interface: g0, src_ip: 10.1.0.2, default_gw: 10.1.0.1}]
streams:
- {name: a, rate: 30kpps}
- {name: b, rate: 8mbps, size: 100}
";
    let mut profile = profile::parse(text, "p").unwrap();
    let first = compiled(&profile);
    assert_eq!(first.load_fps, [Some(40_000)]);
    let weights =
        |compiled: &Compiled| compiled.programs[0].streams.iter().map(|s| s.schedule.weight).collect::<Vec<_>>();
    assert_eq!(weights(&first), [3, 1]);
    profile.rate = Some(Rate::Fps(400));
    let over = compiled(&profile);
    assert_eq!((over.load_fps.clone(), weights(&over)), (vec![Some(400)], vec![3, 1]));
}

#[test]
fn ports_answer_for_their_streams_on_link_addresses_and_never_for_the_gateway() {
    let text = "ports:
- {interface: g0, src_ip: 10.1.0.2/24, default_gw: 10.1.0.1}
- {interface: g1, src_ip: 10.2.0.2/24, default_gw: 10.2.0.1}
streams:
- headers: {ipv4: {src: 10.1.0.10-10.1.0.19, dst: 10.1.255.250-10.2.0.30}, udp: {}}
- {name: b, headers: {ipv4: {dst: [10.2.0.99, 10.3.0.1]}, udp: {}}}
";
    let compiled = compiled(&profile::parse(text, "p").unwrap());
    let answers = |port: usize, ip: [u8; 4]| compiled.on_link[port].contains(IpAddr::from(ip));
    for (port, ip, expected) in [
        (0, [10, 1, 0, 2], true),
        (0, [10, 1, 0, 15], true),
        (0, [10, 1, 0, 20], false),
        (0, [10, 1, 0, 1], false),
        (1, [10, 2, 0, 2], true),
        (1, [10, 2, 0, 30], true),
        (1, [10, 2, 0, 31], false),
        (1, [10, 2, 0, 1], false),
        (1, [10, 2, 0, 99], true),
        (1, [10, 3, 0, 1], false),
    ] {
        assert_eq!(answers(port, ip), expected, "{port} {ip:?}");
    }
}

/// Ten UDP frames of 82 bytes.
fn frames() -> Vec<Vec<u8>> {
    let text = "ports: [{interface: g0, src_ip: 10.1.0.2, default_gw: 10.1.0.1}]\nsize: 86\n";
    let compiled = compiled(&profile::parse(text, "p").unwrap());
    let make = |index| {
        let mut out = Vec::new();
        plimsoll::program::reference::frame(&compiled.programs[0].streams[0], index, 0, &mut out);
        out
    };
    (0..10).map(make).collect()
}

#[test]
fn captures_of_every_format_have_ten_frames_one_millisecond_apart() {
    let mut files: Vec<(String, Vec<u8>)> = Vec::new();
    for (big, nano) in [(false, false), (true, false), (false, true), (true, true)] {
        files.push((format!("pcap big {big} nano {nano}"), pcap(&frames(), big, nano, 1, 65_535)));
    }
    files.push(("pcapng µs".into(), pcapng(&frames(), None, 1_000)));
    files.push(("pcapng ns".into(), pcapng(&frames(), Some(9), 1_000_000)));
    for (name, bytes) in files {
        let parsed = capture::parse(&bytes).unwrap_or_else(|fault| panic!("{name}: {}", fault.cause));
        assert!(parsed.faults.is_empty(), "{name}: {:?}", parsed.faults);
        let due: Vec<_> = parsed.frames.iter().map(|frame| frame.due_ns).collect();
        assert_eq!(due, (0..10).map(|index| index * 1_000_000).collect::<Vec<u64>>(), "{name}");
        let bytes: Vec<_> = parsed.frames.into_iter().map(|frame| frame.bytes).collect();
        assert_eq!(bytes, frames(), "{name}");
    }
}

#[test]
fn broken_captures_are_named_and_never_sent_in_silence() {
    let whole = pcap(&frames(), false, false, 1, 65_535);
    let cut_tail = capture::parse(&whole[..whole.len() - 20]).unwrap();
    assert_eq!(cut_tail.frames.len(), 9);
    assert!(cut_tail.faults[0].contains("cut off") && cut_tail.faults[0].contains('9'), "{:?}", cut_tail.faults);

    let snapped = capture::parse(&pcap(&frames(), false, false, 1, 60)).unwrap();
    assert_eq!((snapped.frames[0].bytes.len(), snapped.frames[0].len), (60, 82));
    assert!(snapped.faults[0].contains("10 of 10") && snapped.faults[0].contains("cut"), "{:?}", snapped.faults);

    let raw_ip = capture::parse(&pcap(&frames(), false, false, 101, 65_535)).unwrap_err();
    assert!(raw_ip.cause.contains("101") && raw_ip.cause.contains("not Ethernet"), "{}", raw_ip.cause);

    let mut insane = whole.clone();
    insane[24 + 8..24 + 12].copy_from_slice(&0xFFFF_FFF0u32.to_le_bytes());
    assert!(capture::parse(&insane).unwrap_err().cause.contains("record 1 claims 4294967280 bytes"));

    assert!(capture::parse(&whole[..24]).unwrap_err().cause.contains("no complete frame"));
    assert!(capture::parse(b"hello").unwrap_err().cause.contains("not a capture"));
    assert!(capture::parse(&pcapng(&frames(), None, 1_000)[..60]).unwrap_err().cause.contains("no complete frame"));
}

#[test]
fn a_captures_frames_are_moved_to_the_port_with_good_checksums() {
    let compiled = compiled(&load("pcap.yaml"));
    let stream = &compiled.programs[0].streams[0];
    assert_eq!(stream.templates.len(), 10);
    assert!(
        matches!(&stream.schedule.mode, Mode::Recorded { due_ns, pass_ns: 10_000_000, count: 1 } if due_ns[9] == 9_000_000)
    );
    let bytes = &stream.templates[0].bytes;
    assert_eq!(bytes[..6], PortFacts::placeholder(0).dest_mac.unwrap());
    assert_eq!(bytes[26..34], [10, 1, 0, 2, 10, 2, 0, 2]);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_text_makes_the_parser_panic(text in "\\PC{0,200}", yaml in "[ -~\\n]{0,200}") {
        let _ = profile::parse(&text, "any");
        let _ = profile::parse(&yaml, "any");
        let _ = profile::parse_size_list(&text);
        let _ = text.parse::<Mac>();
    }

    #[test]
    fn no_bytes_make_the_frame_and_capture_parsers_panic(bytes in proptest::collection::vec(any::<u8>(), 0..120), kind in 0usize..4) {
        let starts: [&[u8]; 4] = [&[0xD4, 0xC3, 0xB2, 0xA1], &[0x0A, 0x0D, 0x0D, 0x0A], &[0xA1, 0xB2, 0x3C, 0x4D], &[]];
        let _ = capture::parse(&[starts[kind], &bytes].concat());
        for ethertype in [[0x08, 0x00], [0x86, 0xDD], [0x81, 0x00], [0x88, 0x47]] {
            let frame = [&[0; 12][..], &ethertype, &bytes].concat();
            if let Some(ip) = parse(&frame) {
                prop_assert!(ip.end <= frame.len() && ip.l4 <= ip.end);
                prop_assert!(ip.payload(&frame).is_none_or(|start| start <= ip.end));
                prop_assert!(ip.l4_checksum(&frame).is_none_or(|(at, ..)| at + 2 <= ip.end));
            }
        }
    }
}
