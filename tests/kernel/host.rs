//! Facts about interfaces: names, speeds, queues, routes, events.

use std::time::{Duration, Instant};

use plimsoll::host::{
    link::{self, Device, Link},
    netns, routes, system,
    watch::{LinkChange, LinkWatch},
};

use crate::support::{
    harness::Test,
    netns::{Netns, Options, Topology},
};

pub fn tests() -> Vec<Test> {
    crate::tests![
        an_interface_is_found_by_name_altname_and_name_at_peer,
        a_missing_interface_names_the_namespace_and_what_is_there,
        a_link_tells_mtu_carrier_kind_and_xdp,
        a_device_tells_driver_claim_queues_and_features,
        an_interface_without_link_speed_claims_none,
        upper_devices_name_the_device_below,
        default_routes_are_found_in_their_namespace,
        a_watch_sees_flap_rename_and_removal,
        device_counters_have_unique_names,
        entering_an_unknown_namespace_lists_the_known,
    ]
}

fn an_interface_is_found_by_name_altname_and_name_at_peer() {
    let t = Topology::sink(Options::default());
    t.generator.sh(
        "ip link property add dev g0 altname gen-a0; ip link property add dev g0 altname a-very-long-alternative-name",
    );
    t.generator.enter(|| {
        let link = Link::find("g0").unwrap();
        for name in ["gen-a0", "a-very-long-alternative-name", "g0@if2", "gen-a0@whatever"] {
            assert_eq!(Link::find(name).unwrap().index, link.index, "{name}");
        }
        assert_eq!(link.altnames, ["gen-a0", "a-very-long-alternative-name"]);
        assert_eq!(Link::by_index(link.index).unwrap().name, "g0");
    });
}

fn a_missing_interface_names_the_namespace_and_what_is_there() {
    let t = Topology::sink(Options::default());
    let error = t.generator.enter(|| Link::find("nic7").unwrap_err());
    let text = error.to_string();
    assert!(text.contains("nic7") && text.contains(t.generator.name()) && text.contains("g0"), "{text}");
    assert_eq!(error.errno(), Some(libc::ENODEV));
}

fn a_link_tells_mtu_carrier_kind_and_xdp() {
    let t = Topology::sink(Options { mtu: 2000, ..Options::default() });
    t.generator.enter(|| {
        let link = Link::find("g0").unwrap();
        assert_eq!((link.mtu, link.is_up, link.has_carrier, link.kind.as_deref()), (2000, true, true, Some("veth")));
        assert_eq!((link.mac.to_string(), link.xdp), (t.generator.mac("g0"), None));
    });
    t.dut.sh("ip link set d0 down");
    t.generator.enter(|| {
        let link = Link::find("g0").unwrap();
        assert!(link.is_up && !link.has_carrier, "{link:?}");
        let error = link::wait_for_carrier(link.index, 100_000_000).unwrap_err();
        assert!(error.to_string().contains("g0") && error.to_string().contains("carrier"), "{error}");
    });
}

fn a_device_tells_driver_claim_queues_and_features() {
    let t = Topology::sink(Options { queues: 2, ..Options::default() });
    t.generator.enter(|| {
        let link = Link::find("g0").unwrap();
        let device = Device::of(&link);
        assert_eq!((device.driver.as_deref(), device.claim_mbps), (Some("veth"), Some(10_000)));
        assert_eq!((device.rx_queues(&link), device.tx_queues(&link)), (2, 2));
        assert!(device.has_feature("tx-checksum-ip-generic") && !device.has_feature("rx-gro"), "{:?}", device.features);
        assert!(!device.features["tx-checksum-ip-generic"].is_fixed);
    });
}

fn an_interface_without_link_speed_claims_none() {
    let netns = Netns::new("a");
    netns.sh("ip link add br0 type bridge; ip link add i0 type ifb");
    netns.enter(|| {
        for name in ["br0", "i0", "lo"] {
            assert_eq!(Device::of(&Link::find(name).unwrap()).claim_mbps, None, "{name}");
        }
    });
}

fn upper_devices_name_the_device_below() {
    let t = Topology::sink(Options::default());
    t.generator.sh("ip link add m0 link g0 type macvlan; ip link add br0 type bridge");
    t.generator.enter(|| {
        let hint = |name| Link::find(name).unwrap().upper_device_hint();
        assert!(hint("m0").unwrap().contains("g0"), "{:?}", hint("m0"));
        assert!(hint("br0").unwrap().contains("ports"));
        assert_eq!(hint("g0"), None);
    });
}

fn default_routes_are_found_in_their_namespace() {
    let t = Topology::sink(Options { ipv6: true, ..Options::default() });
    t.dut.sh("ip route add default via 10.1.0.2 dev d0; ip -6 route add default via fd00:1::2 dev d0");
    let via = |netns: &Netns, name: &str| {
        netns.enter(|| routes::default_routes_via(Link::find(name).unwrap().index).unwrap())
    };
    assert_eq!(via(&t.dut, "d0"), ["IPv4", "IPv6"]);
    assert!(via(&t.dut, "lo").is_empty());
    assert!(via(&t.generator, "g0").is_empty());
}

/// Drains the watch until `wanted` events have come, or five seconds are over.
fn changes(watch: &LinkWatch, wanted: usize) -> Vec<LinkChange> {
    let deadline = Instant::now() + Duration::from_secs(5);
    let mut changes = Vec::new();
    while changes.len() < wanted && Instant::now() < deadline {
        changes.extend(watch.take_events().into_iter().map(|event| event.change));
        std::thread::yield_now();
    }
    changes
}

fn a_watch_sees_flap_rename_and_removal() {
    let t = Topology::sink(Options::default());
    t.generator.enter(|| {
        let link = Link::find("g0").unwrap();
        let watch = LinkWatch::start(&[link.index]).unwrap();
        assert!(watch.is_up(link.index) && !watch.is_removed(link.index));
        t.dut.sh("ip link set d0 down");
        assert_eq!(changes(&watch, 1), [LinkChange::Down]);
        assert!(!watch.is_up(link.index));
        t.dut.sh("ip link set d0 up");
        assert_eq!(changes(&watch, 1), [LinkChange::Up]);
        t.generator.sh("ip link set g0 name gx");
        assert_eq!(changes(&watch, 1), [LinkChange::Renamed("gx".into())]);
        t.generator.sh("ip link del gx");
        let end = changes(&watch, 2);
        assert_eq!(end.last(), Some(&LinkChange::Removed), "{end:?}");
        assert!(watch.is_removed(link.index) && !watch.is_up(link.index));
        assert_eq!(Link::by_index(link.index).unwrap_err().errno(), Some(libc::ENODEV));
    });
}

fn device_counters_have_unique_names() {
    let t = Topology::sink(Options { queues: 2, ..Options::default() });
    t.generator.enter(|| {
        let counters = link::device_counters(Link::find("g0").unwrap().index);
        let names: std::collections::BTreeSet<_> = counters.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names.len(), counters.len());
        assert!(names.contains("rx_queue_1_xdp_packets") && names.contains("peer_ifindex"), "{names:?}");
    });
}

fn entering_an_unknown_namespace_lists_the_known() {
    let known = Netns::new("a");
    let error = netns::enter("plimt-none").unwrap_err().to_string();
    assert!(error.contains("plimt-none") && error.contains(known.name()), "{error}");
    known.enter(|| assert_eq!(system::host().netns.as_deref(), Some(known.name())));
}
