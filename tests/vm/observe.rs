//! A DUT seen through its control channel: what the observer reads of every NIC model's real driver.

use plimsoll::dut::{
    counters::{Snapshot, Source},
    script,
};

use crate::{
    fixture::{self, Machine, SHORT},
    support::harness::Test,
};

pub fn tests() -> Vec<Test> {
    crate::tests![
        the_observer_reads_every_models_driver_claim_and_ring,
        vmxnet3_has_ring_full_among_its_transmit_counters_only,
        a_ring_that_the_driver_rounds_is_read_back_as_it_is,
    ]
}

/// One reading of these interfaces through the channel that observers use.
fn snapshot(machine: &Machine, interfaces: &[&str]) -> Snapshot {
    let interfaces: Vec<String> = interfaces.iter().map(|name| (*name).to_owned()).collect();
    let output = machine.for_others().run(&script::compose(&interfaces), SHORT).expect("the guest answers");
    assert_eq!(output.status, 0, "{}", output.stderr);
    script::read(&output.stdout)
}

fn the_observer_reads_every_models_driver_claim_and_ring() {
    let dut = fixture::dut();
    let names = ["nic0", "nic1", "nic2", "nic3", "nic4", "nic5"];
    let snapshot = snapshot(&dut, &names);
    assert!(snapshot.doubts.is_empty(), "{:?}", snapshot.doubts);
    let seen: Vec<_> = names
        .iter()
        .map(|name| {
            let facts = &snapshot.interfaces[*name];
            (facts.driver.as_deref().unwrap_or("?"), facts.claim_mbps, facts.rx_ring, facts.rx_ring_max)
        })
        .collect();
    let expected = [
        ("vmxnet3", Some(1000), Some(1024), Some(4096)),
        ("e1000", Some(1000), Some(256), Some(4096)),
        ("e1000e", Some(1000), Some(256), Some(4096)),
        ("igb", Some(1000), Some(256), Some(4096)),
        ("virtio_net", None, Some(256), Some(256)),
        ("virtio_net", Some(10_000), Some(256), Some(256)),
    ];
    assert_eq!(seen, expected);
}

fn vmxnet3_has_ring_full_among_its_transmit_counters_only() {
    let snapshot = snapshot(&fixture::dut(), &["nic0"]);
    let sections = |name: &str| -> Vec<&str> {
        let same = snapshot.counters.keys().filter(|c| c.source == Source::Ethtool && c.name == name);
        same.map(|counter| counter.section.as_str()).collect()
    };
    let (oob, full) = (sections("pkts rx OOB"), sections("ring full"));
    assert!(!oob.is_empty() && oob.iter().all(|section| section.starts_with("Rx Queue")), "{oob:?}");
    assert!(!full.is_empty() && full.iter().all(|section| section.starts_with("Tx Queue")), "{full:?}");
}

fn a_ring_that_the_driver_rounds_is_read_back_as_it_is() {
    let dut = fixture::dut();
    let set = |nic: &str, slots: u32| dut.run(&format!("ethtool -G {nic} rx {slots}"), SHORT).unwrap().status;
    let ring = |nic: &str| snapshot(&dut, &[nic]).interfaces[nic].rx_ring;
    // vmxnet3 takes what it likes and says that all is well.
    assert_eq!((set("nic0", 80), ring("nic0")), (0, Some(96)));
    assert_eq!((set("nic0", 1024), ring("nic0")), (0, Some(1024)));
    // virtio refuses what is no power of two, and keeps what it has.
    assert_ne!(set("nic4", 80), 0);
    assert_eq!(ring("nic4"), Some(256));
}
