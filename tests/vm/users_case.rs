//! The users' case: bursts at DUTs with the receive rings that NICs have, accounted for to the frame. It prints the README's table.

use serde_json::Value;

use crate::{
    fixture::{self, DUT_NICS, Machine, RUN},
    support::{harness::Test, run::Plimsoll},
};

pub fn tests() -> Vec<Test> {
    crate::tests![
        bursts_at_three_vmxnet3_rings_are_accounted_for_to_the_frame,
        bursts_at_the_other_models_default_rings_are_accounted_for_to_the_frame,
    ]
}

/// Frames in a burst, more than a ring of 64 or 256 can hold.
const BURST: u64 = 512;
/// Bursts, ten a second.
const BURSTS: u64 = 10;
const SIZES: [u64; 3] = [64, 512, 1518];

/// What became of the bursts of one frame size, by the report.
struct Row {
    received: u64,
    ring_drops: u64,
    tap_drops: u64,
}

/// Sends the bursts at one NIC of the DUT in every size, checks that all are accounted for, and prints the rows of the table.
fn bursts(dut: &Machine, nic: usize, ring: u64) -> Vec<Row> {
    let (tap, guest) = (format!("t{nic}"), format!("nic{nic}"));
    assert_eq!(
        dut.sh(&format!("ethtool -g {guest} | grep ^RX: | tail -1")).split_whitespace().last(),
        Some(&*ring.to_string())
    );
    let profile = format!(
        "ports:
  - {{interface: {tap}, src_ip: 10.{0}.0.2, default_gw: 10.{0}.0.1, dest_mac: '{1}'}}
dut: {{observe: 'vm:{2}', interface: {guest}}}
streams:
  - {{mode: multi_burst, frames: {BURST}, gap: 100ms, bursts: {BURSTS}}}
",
        nic + 1,
        dut.spec().mac(nic),
        dut.spec().dir.display()
    );
    let read = || {
        let full = dut.driver_counter(&guest, "ring full");
        (dut.counter(&guest, "rx_packets"), dut.driver_counter(&guest, "pkts rx OOB"), full)
    };
    let wire = || dut.netns.counter(&tap, "tx_packets");
    let (before, wire_before) = (read(), wire());
    let sizes = SIZES.map(|size| size.to_string()).join(",");
    let arguments = format!("run PROFILE --backend packet --frame-size {sizes}");
    let outcome = Plimsoll::with_profile(&profile).run(&dut.netns, &arguments, RUN).expect_code(0);
    let (after, wire_after) = (read(), wire());
    // All that the tap gave, the start-up test's frames included, was either received or had no buffer.
    assert_eq!(after.0 - before.0 + after.1 - before.1, wire_after - wire_before, "{guest} ring {ring}");
    assert_eq!(after.2, before.2, "`ring full` is about transmission and must not move");

    let row = |(trial, bytes): (usize, u64)| {
        let trial = outcome.trial(trial);
        assert_eq!(trial["frame_size"], bytes);
        let told = |name: &str| -> u64 {
            let deltas = trial["dut"].as_array().cloned().unwrap_or_default();
            let is_same = |delta: &&Value| delta["counter"].as_str().is_some_and(|counter| counter.ends_with(name));
            deltas.iter().filter(is_same).map(|delta| delta["delta"].as_u64().expect("a count")).sum()
        };
        // Nobody listens on the port: what arrived is what the DUT's UDP layer had no use for.
        let (received, ring_drops) = (told("Udp.NoPorts"), told("pkts rx OOB"));
        let tap_drops = trial["ports"][0]["device"]["tx_dropped"].as_u64().unwrap_or(0);
        let offered = trial["offered_frames"].as_u64().expect("a count");
        assert_eq!(offered, BURST * BURSTS);
        assert_eq!(received + ring_drops + tap_drops, offered, "{guest} ring {ring}: {trial}");
        assert_eq!(trial["received_frames"], received, "what the report calls received");
        let model = DUT_NICS[nic].to_string();
        println!(
            "{model:<17} {ring:>5} {bytes:>6} {offered:>9} {received:>9} {ring_drops:>11} {tap_drops:>10}  {:>5.1} %",
            100.0 * (ring_drops + tap_drops) as f64 / offered as f64
        );
        Row { received, ring_drops, tap_drops }
    };
    SIZES.into_iter().enumerate().map(row).collect()
}

fn heading() {
    println!("\nNIC                RX ring  bytes   offered  received  ring drops  tap drops  lost");
}

fn bursts_at_three_vmxnet3_rings_are_accounted_for_to_the_frame() {
    let dut = fixture::dut();
    heading();
    let mut lost = Vec::new();
    for ring in [64, 256, 1024] {
        dut.sh(&format!("ethtool -G nic0 rx {ring}"));
        lost.push(bursts(&dut, 0, ring).iter().map(|row| row.ring_drops).collect::<Vec<_>>());
    }
    dut.sh("ethtool -G nic0 rx 1024");
    for (size, bytes) in SIZES.iter().enumerate() {
        let lost: Vec<u64> = lost.iter().map(|rows| rows[size]).collect();
        // A ring of 1024 takes a whole burst; two or three come at once where the host keeps the guest waiting.
        let few = BURST * BURSTS / 100;
        assert!(lost[0] > lost[1] && lost[1] > few && lost[2] < few, "{bytes} bytes, rings 64, 256, 1024: {lost:?}");
    }
}

fn bursts_at_the_other_models_default_rings_are_accounted_for_to_the_frame() {
    let dut = fixture::dut();
    heading();
    for nic in [2, 3, 4] {
        for row in bursts(&dut, nic, 256) {
            assert_eq!(row.ring_drops, 0, "QEMU stops reading the tap instead");
            assert!(row.received > 0 && row.tap_drops < BURST * BURSTS);
        }
    }
}
