//! `plimsoll claim` on real drivers: what each claims, what passed all the same, and the sentence that follows.

use serde_json::Value;

use crate::{
    fixture::{self, RUN},
    support::{
        harness::{Test, skip},
        run::{Outcome, Plimsoll},
    },
};

pub fn tests() -> Vec<Test> {
    crate::tests![
        a_vmxnet3_dut_claims_a_gigabit_and_the_claim_is_not_called_the_limit,
        a_virtio_dut_claims_nothing_unless_it_is_told_to,
        more_than_a_gigabit_through_an_igb_that_claims_one_is_no_contradiction,
    ]
}

/// What was found of one interface with one frame size; the printed summary must say the same.
fn found<'a>(outcome: &'a Outcome, interface: &str, bytes: u64) -> (&'a Value, &'a str) {
    let claims = outcome.json["claims"].as_array().map(Vec::as_slice).unwrap_or_default();
    let claim = claims.iter().find(|claim| claim["port"] == interface && claim["frame_size"] == bytes);
    let claim = claim.unwrap_or_else(|| panic!("no claim of {interface} at {bytes} bytes in {claims:?}"));
    let sentence = claim["sentence"].as_str().expect("a sentence");
    assert!(outcome.stdout.contains(&format!("{interface}: {sentence}.")), "{sentence} is not in\n{}", outcome.stdout);
    eprintln!("{interface}: {sentence}");
    (claim, sentence)
}

/// The command against a NIC of the DUT, sent into its tap.
fn claim_of_dut(nic: usize) -> Outcome {
    let dut = fixture::dut();
    let profile = format!(
        "ports:
  - {{interface: t{nic}, src_ip: 10.{0}.0.2, default_gw: 10.{0}.0.1, dest_mac: '{1}'}}
dut: {{observe: 'vm:{2}', interface: nic{nic}}}
",
        nic + 1,
        dut.spec().mac(nic),
        dut.spec().dir.display()
    );
    let arguments = "claim PROFILE --backend packet --frame-size 64,1518 --trial 500ms";
    Plimsoll::with_profile(&profile).run(&dut.netns, arguments, RUN).expect_code(0)
}

fn a_vmxnet3_dut_claims_a_gigabit_and_the_claim_is_not_called_the_limit() {
    let outcome = claim_of_dut(0);
    let (long, sentence) = found(&outcome, "DUT nic0", 1518);
    assert_eq!((&long["claim_mbps"], &long["theoretical_fps"]), (&1000.into(), &81_274.into()), "{long}");
    assert!(sentence.starts_with("the claim is not the limit: ") && sentence.contains("1 Gb/s"), "{sentence}");
    // Short frames are far from the claim too, whichever of the two sentences says so.
    let (short, sentence) = found(&outcome, "DUT nic0", 64);
    assert!(short["ratio"].as_f64().is_some_and(|ratio| ratio > 0.0 && ratio < 0.9), "{short}");
    assert!(sentence.contains("64-byte frames use") && sentence.contains("claim"), "{sentence}");
}

fn a_virtio_dut_claims_nothing_unless_it_is_told_to() {
    let outcome = claim_of_dut(4);
    let (claim, sentence) = found(&outcome, "DUT nic4", 1518);
    assert_eq!((&claim["claim_mbps"], &claim["ratio"]), (&Value::Null, &Value::Null), "{claim}");
    assert!(sentence.starts_with("no link speed is claimed; 1518-byte frames carried "), "{sentence}");

    let outcome = claim_of_dut(5);
    let (claim, sentence) = found(&outcome, "DUT nic5", 1518);
    assert_eq!((&claim["claim_mbps"], &claim["theoretical_fps"]), (&10_000.into(), &812_743.into()), "{claim}");
    assert!(sentence.starts_with("the claim is not the limit: ") && sentence.contains("10 Gb/s"), "{sentence}");
}

fn more_than_a_gigabit_through_an_igb_that_claims_one_is_no_contradiction() {
    let generator = fixture::generator();
    let profile = format!(
        "ports:\n  - {{interface: nic4, src_ip: 10.9.0.2, default_gw: 10.9.0.1, dest_mac: '02:00:00:00:00:09', src_mac: '{}'}}\n",
        generator.spec().mac(4)
    );
    let on_tap = || generator.netns.counter("t4", "rx_bytes");
    let before = on_tap();
    let arguments = "claim PROFILE --backend xsk-zc --frame-size 1518 --trial 1s --workers 1";
    let outcome = generator.plimsoll(&profile, arguments, RUN).expect_code(0);
    let arrived = on_tap() - before;
    let (claim, sentence) = found(&outcome, "nic4", 1518);
    let (ratio, bps_l2) = (claim["ratio"].as_f64().expect("a ratio"), claim["bps_l2"].as_u64().expect("a rate"));
    assert_eq!(claim["claim_mbps"], 1000, "{claim}");
    if ratio <= 1.01 {
        // More than a gigabit takes a good part of one CPU.
        skip("idle", format!("only {ratio:.2} of the claim passed: the emulator needs the CPUs for itself"));
    }
    // The host's tap is the witness that it really passed: one second of it, without the FCS.
    assert!(ratio > 1.01 && arrived * 8 > 1_000_000_000, "{arrived} bytes arrived: {claim}");
    assert!(arrived * 8 > bps_l2 / 100 * 98, "{arrived} bytes arrived: {claim}");
    assert!(sentence.starts_with("the claim is not the limit: "), "{sentence}");
    assert!(sentence.contains(" Gb/s (L1) through a NIC that claims 1 Gb/s ("), "{sentence}");
}
