//! ARP, Neighbour Discovery and ping by the control plane, against the kernel's own stack and against itself.

use std::{
    net::IpAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use plimsoll::{
    engine::control::{AddressRange, Control, ControlChange, ControlEvent, ControlPort, Identity},
    error::ErrorKind,
    host::{link::Link, packet::PacketSocket},
    profile::VlanTag,
    wire::{
        mac::Mac,
        neighbour::{Message, hear},
    },
    xdp::rx::{Receiver, RxConfig, XdpChoice},
};

use crate::support::{
    harness::Test,
    netns::{Netns, Options, Topology},
};

pub fn tests() -> Vec<Test> {
    crate::tests![
        a_gateway_is_resolved_by_arp_under_the_counting_program,
        a_gateway_is_resolved_by_neighbour_discovery,
        a_silent_gateway_is_named_and_asked_a_few_times,
        failing_to_send_is_not_no_reply,
        addresses_and_ranges_are_answered_for_and_pinged,
        ipv6_addresses_are_answered_for_and_pinged,
        tagged_ports_resolve_within_their_vlans_only,
        a_gateway_that_moves_is_noticed,
        another_station_with_our_address_is_noticed,
        a_foreign_source_mac_is_promiscuous_only_while_running,
        an_interrupt_ends_a_resolution,
    ]
}

const SECOND: u64 = 1_000_000_000;

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn port(name: &str, vlans: &[u16], addresses: &[&str]) -> ControlPort {
    let link = Link::find(name).unwrap();
    let range = |text: &&str| {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        AddressRange { first: ip(first), last: ip(last) }
    };
    let identity = Identity {
        mac: link.mac,
        vlans: vlans.iter().map(|id| VlanTag { tpid: 0x8100, id: *id, pcp: 0 }).collect(),
        addresses: addresses.iter().map(range).collect(),
    };
    ControlPort {
        index: link.index,
        name: link.name,
        nic_mac: link.mac,
        is_promiscuous: false,
        identities: vec![identity],
    }
}

fn start(ports: Vec<ControlPort>) -> Control {
    Control::start(ports, Arc::new(AtomicBool::new(false))).unwrap()
}

fn a_gateway_is_resolved_by_arp_under_the_counting_program() {
    for choice in [XdpChoice::Native, XdpChoice::Generic] {
        let t = Topology::sink(Options::default());
        t.generator.enter(|| {
            let _receiver = Receiver::attach(&Link::find("g0").unwrap(), &RxConfig::default(), choice).unwrap();
            let control = start(vec![port("g0", &[], &["10.1.0.2"])]);
            let mac = control.resolve(0, 0, ip("10.1.0.2"), ip("10.1.0.1"), 5 * SECOND).unwrap();
            assert_eq!(mac.to_string(), t.dut.mac("d0"));
            let (frames, bytes) = control.sent(0);
            assert!((2..5).contains(&frames) && bytes == 60 * frames, "{frames} frames, {bytes} bytes");
        });
    }
}

fn a_gateway_is_resolved_by_neighbour_discovery() {
    let t = Topology::sink(Options { ipv6: true, ..Options::default() });
    t.generator.enter(|| {
        let control = start(vec![port("g0", &[], &["fd00:1::2"])]);
        let mac = control.resolve(0, 0, ip("fd00:1::2"), ip("fd00:1::1"), 5 * SECOND).unwrap();
        assert_eq!(mac.to_string(), t.dut.mac("d0"));
    });
}

fn a_silent_gateway_is_named_and_asked_a_few_times() {
    let t = Topology::sink(Options::default());
    let listener = t.dut.enter(|| PacketSocket::open(Link::find("d0").unwrap().index).unwrap());
    t.generator.enter(|| {
        let control = start(vec![port("g0", &[], &["10.1.0.2"])]);
        let began = Instant::now();
        let error = control.resolve(0, 0, ip("10.1.0.2"), ip("10.1.0.77"), 2 * SECOND).unwrap_err();
        assert!((2.0..3.0).contains(&began.elapsed().as_secs_f64()));
        let text = error.to_string();
        assert!(text.contains("10.1.0.77") && text.contains("g0") && text.contains("no reply"), "{text}");
        assert_eq!(error.kind(), ErrorKind::Environment);
    });
    let mut asked = 0;
    let mut frame = Vec::new();
    while let Some(()) = listener.receive(&mut frame).unwrap() {
        match hear(&frame).expect("only ARP is sent").message {
            Message::Ask { sender, target, .. } if target == ip("10.1.0.77") => {
                assert_eq!(sender, ip("10.1.0.2"));
                asked += 1;
            }
            Message::Ask { sender, target, .. } => assert_eq!(sender, target, "the gratuitous ARP"),
            other => panic!("{other:?}"),
        }
    }
    assert!((3..=6).contains(&asked), "{asked}");
}

fn failing_to_send_is_not_no_reply() {
    let t = Topology::sink(Options::default());
    t.generator.enter(|| {
        let control = start(vec![port("g0", &[], &["10.1.0.2"])]);
        t.generator.sh("ip link set g0 down");
        let error = control.resolve(0, 0, ip("10.1.0.2"), ip("10.1.0.1"), SECOND / 5).unwrap_err();
        assert!(error.to_string().contains("could not be sent"), "{error}");
        assert_eq!(error.errno(), Some(libc::ENETDOWN));
    });
}

fn addresses_and_ranges_are_answered_for_and_pinged() {
    let t = Topology::sink(Options::default());
    t.generator.enter(|| {
        let _control = start(vec![port("g0", &[], &["10.1.0.2", "10.1.0.100-10.1.0.120"])]);
        for address in ["10.1.0.2", "10.1.0.100", "10.1.0.120"] {
            t.dut.sh("ip neigh flush dev d0");
            t.dut.sh(&format!("ping -c 2 -i 0.01 -W 2 {address}"));
            let entry = t.dut.sh(&format!("ip neigh show {address}"));
            assert!(entry.contains(&t.generator.mac("g0")), "{entry}");
        }
        let outside = t.dut.try_sh("ping -c 1 -W 1 10.1.0.121");
        assert!(!outside.status.success(), "nobody has that address");
    });
}

fn ipv6_addresses_are_answered_for_and_pinged() {
    let t = Topology::sink(Options { ipv6: true, ..Options::default() });
    t.generator.enter(|| {
        let _control = start(vec![port("g0", &[], &["fd00:1::2", "fd00:1::100-fd00:1::104"])]);
        for address in ["fd00:1::2", "fd00:1::104"] {
            t.dut.sh("ip -6 neigh flush dev d0");
            t.dut.sh(&format!("ping -6 -c 2 -i 0.01 -W 2 {address}"));
        }
    });
}

fn tagged_ports_resolve_within_their_vlans_only() {
    let t = Topology::sink(Options::default());
    for vlans in [&[100][..], &[200, 100]] {
        t.dut.enter(|| {
            let _dut = start(vec![port("d0", vlans, &["10.9.0.1"])]);
            t.generator.enter(|| {
                let ask = |vlans: &[u16], within| {
                    let control = start(vec![port("g0", vlans, &["10.9.0.2"])]);
                    control.resolve(0, 0, ip("10.9.0.2"), ip("10.9.0.1"), within)
                };
                assert_eq!(ask(vlans, 5 * SECOND).unwrap().to_string(), t.dut.mac("d0"), "{vlans:?}");
                for other in [&[][..], &[101], &[100, 200]] {
                    assert!(ask(other, SECOND / 5).is_err(), "{other:?} for {vlans:?}");
                }
            });
        });
    }
}

/// Waits for the next event, five seconds at most.
fn next_event(control: &Control) -> ControlEvent {
    let deadline = Instant::now() + Duration::from_secs(5);
    loop {
        if let Some(event) = control.take_events().pop() {
            return event;
        }
        assert!(Instant::now() < deadline, "no event");
        std::thread::yield_now();
    }
}

fn a_gateway_that_moves_is_noticed() {
    let t = Topology::sink(Options::default());
    t.generator.enter(|| {
        let control = start(vec![port("g0", &[], &["10.1.0.2"])]);
        let from = control.resolve(0, 0, ip("10.1.0.2"), ip("10.1.0.1"), 5 * SECOND).unwrap();
        t.dut.sh("sysctl -qw net.ipv4.conf.d0.arp_notify=1; ip link set d0 address 02:00:00:00:00:77");
        let to = Mac([2, 0, 0, 0, 0, 0x77]);
        let event = next_event(&control);
        assert_eq!(event.change, ControlChange::Moved { address: ip("10.1.0.1"), from, to });
        let text = event.caveat("g0").text;
        assert!(text.contains("10.1.0.1") && text.contains("02:00:00:00:00:77") && text.contains("g0"), "{text}");
    });
}

fn another_station_with_our_address_is_noticed() {
    let t = Topology::sink(Options::default());
    t.generator.enter(|| {
        let control = start(vec![port("g0", &[], &["10.1.0.2"])]);
        t.dut.enter(|| {
            let other = start(vec![port("d0", &[], &["10.1.0.2"])]);
            let mac = Link::find("d0").unwrap().mac;
            assert_eq!(next_event(&control).change, ControlChange::Conflict { address: ip("10.1.0.2"), mac });
            drop(other);
        });
    });
}

fn a_foreign_source_mac_is_promiscuous_only_while_running() {
    let t = Topology::sink(Options::default());
    let promiscuous = |netns: &Netns| netns.enter(|| Link::find("g0").unwrap().promiscuity);
    t.generator.enter(|| {
        let mut foreign = port("g0", &[], &["10.1.0.2"]);
        foreign.identities[0].mac = Mac([2, 0, 0, 0, 0, 0x55]);
        let control = start(vec![foreign]);
        assert_eq!(promiscuous(&t.generator), 1);
        t.dut.sh("ping -c 1 -W 2 10.1.0.2");
        assert!(t.dut.sh("ip neigh show 10.1.0.2").contains("02:00:00:00:00:55"));
        drop(control);
        assert_eq!(promiscuous(&t.generator), 0);
        drop(start(vec![port("g0", &[], &["10.1.0.2"])]));
    });
}

fn an_interrupt_ends_a_resolution() {
    let t = Topology::sink(Options::default());
    t.generator.enter(|| {
        let interrupt = Arc::new(AtomicBool::new(false));
        let control = Control::start(vec![port("g0", &[], &["10.1.0.2"])], interrupt.clone()).unwrap();
        let began = Instant::now();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| control.resolve(0, 0, ip("10.1.0.2"), ip("10.1.0.77"), 60 * SECOND));
            interrupt.store(true, Ordering::Relaxed);
            assert_eq!(waiting.join().unwrap().unwrap_err().kind(), ErrorKind::Interrupted);
        });
        assert!(began.elapsed() < Duration::from_secs(1));
    });
}
