//! The users' case: bursts at a vmxnet3 DUT with small receive rings, accounted for to the frame.

use serde_json::Value;

use crate::{
    fixture::{self, RUN},
    support::{harness::Test, run::Plimsoll},
};

pub fn tests() -> Vec<Test> {
    crate::tests![bursts_at_three_vmxnet3_rings_are_accounted_for_to_the_frame]
}

/// Frames in a burst, more than a ring of 64 or 256 can hold.
const BURST: u64 = 512;
/// Bursts, ten a second.
const BURSTS: u64 = 20;

fn bursts_at_three_vmxnet3_rings_are_accounted_for_to_the_frame() {
    let dut = fixture::dut();
    let profile = format!(
        "ports:
  - {{interface: t0, src_ip: 10.1.0.2, default_gw: 10.1.0.1, dest_mac: '{}'}}
dut: {{observe: 'vm:{}', interface: nic0}}
streams:
  - {{mode: multi_burst, frames: {BURST}, gap: 100ms, bursts: {BURSTS}}}
",
        dut.spec().mac(0),
        dut.spec().dir.display()
    );
    let plimsoll = Plimsoll::with_profile(&profile);
    let mut lost = Vec::new();
    for ring in [64, 256, 1024] {
        dut.sh(&format!("ethtool -G nic0 rx {ring}"));
        assert_eq!(dut.sh("ethtool -g nic0 | grep ^RX: | tail -1").split_whitespace().last(), Some(&*ring.to_string()));
        let read = || {
            let full = dut.driver_counter("nic0", "ring full");
            (dut.counter("nic0", "rx_packets"), dut.driver_counter("nic0", "pkts rx OOB"), full)
        };
        let wire = || dut.netns.counter("t0", "tx_packets");
        let (before, wire_before) = (read(), wire());
        let outcome = plimsoll.run(&dut.netns, "run PROFILE --backend packet", RUN).expect_code(0);
        let (after, wire_after) = (read(), wire());
        // All that the tap gave, the start-up test's frames included, was either received or had no buffer.
        assert_eq!(after.0 - before.0 + after.1 - before.1, wire_after - wire_before, "ring {ring}");
        assert_eq!(after.2, before.2, "`ring full` is about transmission and must not move");

        let told = |name: &str| -> u64 {
            let deltas = outcome.trial(0)["dut"].as_array().cloned().unwrap_or_default();
            let is_same = |delta: &&Value| delta["counter"].as_str().is_some_and(|counter| counter.ends_with(name));
            deltas.iter().filter(is_same).map(|delta| delta["delta"].as_u64().expect("a count")).sum()
        };
        let completed = outcome.count("completed_frames");
        // Nobody listens on the port: what arrived is what the DUT's UDP layer had no use for.
        let (received, oob) = (told("Udp.NoPorts"), told("pkts rx OOB"));
        assert_eq!((outcome.count("offered_frames"), completed), (BURST * BURSTS, BURST * BURSTS));
        assert_eq!(received + oob, completed, "ring {ring}: what the report says: {}", outcome.trial(0)["dut"]);
        eprintln!("ring {ring}: offered {completed}, received {received}, out of buffers {oob}");
        lost.push(oob);
    }
    dut.sh("ethtool -G nic0 rx 1024");
    assert!(lost[0] > lost[1] && lost[1] > 0 && lost[2] == 0, "lost at rings 64, 256, 1024: {lost:?}");
}
