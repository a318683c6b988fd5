//! `plimsoll probe`: facts and ways, without disturbing anything.

use plimsoll::host::{
    link::Link,
    probe::{PortProbe, Verdict, probe},
};
use serde_json::Value;

use crate::support::{
    harness::Test,
    netns::{Options, Topology},
};

pub fn tests() -> Vec<Test> {
    crate::tests![
        a_veth_is_told_with_what_works_and_why_the_rest_does_not,
        probing_disturbs_nothing,
        a_macvlan_names_its_lower_device,
        a_missing_capability_is_named_for_what_needs_it,
        the_command_prints_and_writes_json,
    ]
}

const BINARY: &str = env!("CARGO_BIN_EXE_plimsoll");

/// Verdict and reason of a way.
fn way(port: &PortProbe, name: &str) -> (Verdict, String) {
    let way = port.ways.iter().find(|way| way.name == name).unwrap_or_else(|| panic!("no {name} in {port:?}"));
    (way.verdict, way.reason.clone())
}

fn a_veth_is_told_with_what_works_and_why_the_rest_does_not() {
    let t = Topology::sink(Options { queues: 2, ..Options::default() });
    let look = || t.generator.enter(|| probe(&["g0@if2".to_owned()]).unwrap().ports.remove(0));
    let port = look();
    assert_eq!((port.name.as_str(), port.driver.as_str(), port.claim_mbps), ("g0", "veth 1.0", Some(10_000)));
    assert_eq!((port.rx_queues, port.tx_queues, port.state), (2, 2, "up"));
    let (verdict, reason) = way(&port, "xsk-zc");
    assert!(verdict == Verdict::No && reason.contains("veth"), "{reason}");
    assert_eq!(way(&port, "live").0, Verdict::No, "the peer takes no frames");
    assert!(port.hints.iter().any(|hint| hint.contains("GRO on the peer")), "{:?}", port.hints);
    for name in ["xsk-copy", "packet", "rx generic"] {
        assert_eq!(way(&port, name).0, Verdict::Works, "{name}: {}", way(&port, name).1);
    }
    assert_eq!(way(&port, "rx native").0, Verdict::Announced);
    t.dut.sh("ethtool -K d0 gro on");
    assert_eq!(way(&look(), "live").0, Verdict::Works);
    t.dut.sh("ip link set d0 down");
    assert_eq!(look().state, "up, no carrier");
}

fn probing_disturbs_nothing() {
    let t = Topology::sink(Options::default());
    t.generator.enter(|| {
        let before = Link::find("g0").unwrap();
        probe(&[]).unwrap();
        let after = Link::find("g0").unwrap();
        assert_eq!((after.xdp, after.carrier_changes, after.promiscuity), (None, before.carrier_changes, 0));
        assert_eq!(after.stats.tx_packets, before.stats.tx_packets);
    });
}

fn a_macvlan_names_its_lower_device() {
    let t = Topology::sink(Options::default());
    t.generator.sh("ip link add m0 link g0 type macvlan; ip link set m0 up; ip route add default dev m0");
    let port = t.generator.enter(|| probe(&["m0".to_owned()]).unwrap().ports.remove(0));
    assert!(port.hints.iter().any(|hint| hint.contains("g0")), "{:?}", port.hints);
    assert!(port.hints.iter().any(|hint| hint.contains("IPv4 default route")), "{:?}", port.hints);
    assert_eq!(way(&port, "rx native").0, Verdict::No);
}

fn a_missing_capability_is_named_for_what_needs_it() {
    let t = Topology::sink(Options::default());
    let as_json = |drop: &str| -> Value {
        let line = format!("capsh --drop={drop} -- -c '{BINARY} --json - probe g0'");
        serde_json::from_str(&t.generator.sh(&line)).expect("probe writes JSON")
    };
    let way = |probe: &Value, name: &str| {
        let ways = probe["ports"][0]["ways"].as_array().unwrap().clone();
        ways.into_iter().find(|way| way["name"] == name).unwrap()
    };
    let no_bpf = as_json("cap_net_admin,cap_sys_admin,cap_bpf");
    assert!(no_bpf["notes"].to_string().contains("CAP_BPF or CAP_SYS_ADMIN"), "{}", no_bpf["notes"]);
    assert!(!no_bpf["notes"].to_string().contains("CAP_NET_RAW"));
    assert_eq!(
        (&way(&no_bpf, "xsk-copy")["verdict"], &way(&no_bpf, "rx generic")["verdict"]),
        (&"works".into(), &"no".into())
    );
    let no_raw = as_json("cap_net_raw");
    assert!(no_raw["notes"].to_string().contains("CAP_NET_RAW"));
    assert_eq!(
        (&way(&no_raw, "packet")["verdict"], &way(&no_raw, "rx generic")["verdict"]),
        (&"no".into(), &"works".into())
    );
}

fn the_command_prints_and_writes_json() {
    let t = Topology::sink(Options::default());
    let text = t.generator.sh(&format!("{BINARY} probe g0"));
    for word in ["g0", "veth", "xsk-copy", "rx generic", "claimed link speed", "10"] {
        assert!(text.contains(word), "{word} in\n{text}");
    }
    let json = t.generator.sh(&format!("{BINARY} --json - probe g0"));
    let json: Value = serde_json::from_str(&json).expect("probe writes JSON");
    assert_eq!((&json["schema"], &json["ports"][0]["name"]), (&"plimsoll-probe/1".into(), &"g0".into()));
    let failed = t.generator.try_sh(&format!("{BINARY} probe nic9"));
    let error = String::from_utf8_lossy(&failed.stderr);
    assert_eq!(failed.status.code(), Some(3), "{error}");
    assert!(error.contains("nic9") && error.contains(t.generator.name()) && error.contains("g0"), "{error}");
}
