//! `plimsoll claim` and `plimsoll sweep` on links that claim much, little and nothing.

use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;

use crate::support::{
    frames::{inside, open_tap, read_tap},
    harness::{Test, skip},
    netns::{Netns, Options, Topology},
    run::{FORWARD, Outcome, Plimsoll, wait_until},
};

pub fn tests() -> Vec<Test> {
    crate::tests![
        a_veth_claims_10_gbps_and_both_sides_are_compared,
        a_tap_set_to_10_mbps_carries_more_than_it_claims,
        a_claim_that_is_stopped_lists_only_what_it_measured_and_says_so,
        a_bridge_claims_nothing,
        a_sweep_has_a_ceiling_at_every_place_of_its_matrix,
        a_place_that_cannot_be_is_told_before_the_first_trial,
        a_sink_writes_what_it_counted_as_json,
    ]
}

const SECOND: Duration = Duration::from_secs(1);

/// The claims about an interface, in the order of the sizes.
#[track_caller]
fn claims<'a>(run: &'a Outcome, port: &str) -> Vec<&'a Value> {
    let all = run.json["claims"].as_array().unwrap_or_else(|| panic!("no claims\n{}", run.text()));
    all.iter().filter(|claim| claim["port"] == port).collect()
}

fn a_veth_claims_10_gbps_and_both_sides_are_compared() {
    let topology = Topology::forward(Options::default());
    let profile = format!("{FORWARD}dut: {{observe: 'netns:{}', interface: d0}}\n", topology.dut.name());
    let run = Plimsoll::with_profile(&profile)
        .run(&topology.generator, "claim PROFILE --frame-size 64,1518 --max 20kpps --trial 300ms", 60 * SECOND)
        .expect_code(0);
    for port in ["g0", "g1", "DUT d0"] {
        let [small, large] = claims(&run, port)[..] else { panic!("two claims of {port}\n{}", run.text()) };
        assert_eq!(
            [small, large].map(|claim| (claim["claim_mbps"].as_u64(), claim["theoretical_fps"].as_u64())),
            [(Some(10_000), Some(14_880_952)), (Some(10_000), Some(812_743))]
        );
        for claim in [small, large] {
            if claim["measured_fps"].as_u64().is_some_and(|fps| fps < 19_800) {
                skip("idle", "the host kept the generator from sending 20 kpps");
            }
            let sentence = claim["sentence"].as_str().unwrap_or_default();
            assert!(sentence.starts_with("at least ") && sentence.contains("--max was the limit"), "{sentence}");
        }
        assert!(large["ratio"].as_f64().is_some_and(|ratio| 0.001 < ratio && ratio < 0.03), "{large}");
    }
}

fn a_tap_set_to_10_mbps_carries_more_than_it_claims() {
    let netns = Netns::new("tap");
    let tap = inside(&netns, || open_tap("tap0"));
    netns.sh("ethtool -s tap0 speed 10 duplex full; ip link set tap0 up");
    let profile =
        "ports:\n  - {interface: tap0, src_ip: 10.1.0.2, default_gw: 10.1.0.1, dest_mac: '02:00:00:00:00:09'}\n";
    let plimsoll = Plimsoll::with_profile(profile);
    let mut running =
        plimsoll.spawn(&netns, "claim PROFILE --frame-size 1518 --max 4kpps --trial 500ms --backend packet");
    let started = std::time::Instant::now();
    let mut read = 0;
    while running.is_running() && started.elapsed() < 30 * SECOND {
        read += read_tap(&tap);
        std::thread::sleep(Duration::from_millis(1));
    }
    let run = plimsoll.outcome(running, started, SECOND).expect_code(0);
    let [claim] = claims(&run, "tap0")[..] else { panic!("one claim\n{}", run.text()) };
    assert_eq!(
        (claim["claim_mbps"].as_u64(), claim["theoretical_fps"].as_u64()),
        (Some(10), Some(812)),
        "{}",
        run.text()
    );
    assert!(read > 0 && claim["measured_fps"].as_u64().is_some_and(|fps| fps > 1_000), "{claim}");
    let sentence = claim["sentence"].as_str().unwrap_or_default();
    assert!(sentence.starts_with("the claim is not the limit: ") && sentence.contains("claims 10 Mb/s"), "{sentence}");
}

fn a_claim_that_is_stopped_lists_only_what_it_measured_and_says_so() {
    let topology = Topology::forward(Options::default());
    let plimsoll = Plimsoll::with_profile(FORWARD);
    let running = plimsoll.spawn(&topology.generator, "claim PROFILE --frame-size 64,512,1518 --max 1kpps --trial 1s");
    let saved = || std::fs::read(plimsoll.result()).ok().and_then(|bytes| serde_json::from_slice::<Value>(&bytes).ok());
    let frames = || topology.dut.counter("d0", "rx_packets");
    wait_until("a size is measured", || {
        saved().is_some_and(|file| file["claims"].as_array().is_some_and(|c| !c.is_empty()))
    });
    let before = frames();
    wait_until("the next is under way", || frames() > before + 300);
    running.signal(Signal::INT);
    let run = plimsoll.outcome(running, std::time::Instant::now(), 10 * SECOND).expect_code(130);
    assert!(run.stdout.contains("only 1 of 3 frame sizes"), "{}", run.text());
    let sizes: Vec<&Value> = claims(&run, "g0").iter().map(|claim| &claim["frame_size"]).collect();
    assert_eq!(sizes, [&Value::from(64)], "{}", run.text());
}

fn a_bridge_claims_nothing() {
    let netns = Netns::new("bridge");
    netns.sh("ip link add dummy0 type dummy; ip link add br0 type bridge; ip link set dummy0 master br0; ip link set dummy0 up; ip link set br0 up");
    let profile =
        "ports:\n  - {interface: br0, src_ip: 10.1.0.2, default_gw: 10.1.0.1, dest_mac: '02:00:00:00:00:09'}\n";
    let run = Plimsoll::with_profile(profile)
        .run(&netns, "claim PROFILE --frame-size 64 --max 2kpps --trial 300ms --backend packet", 30 * SECOND)
        .expect_code(0);
    let [claim] = claims(&run, "br0")[..] else { panic!("one claim\n{}", run.text()) };
    assert_eq!([&claim["claim_mbps"], &claim["theoretical_fps"], &claim["ratio"]], [&Value::Null; 3], "{claim}");
    assert!(claim["sentence"].as_str().is_some_and(|text| text.starts_with("no link speed is claimed")), "{claim}");
}

fn a_sweep_has_a_ceiling_at_every_place_of_its_matrix() {
    let topology = Topology::forward(Options::default());
    let arguments = "sweep PROFILE --frame-size 64,512 --sweep-backends xsk-copy,packet --max 2kpps --goal my=1% --trial 100ms --repeat 1";
    let run = Plimsoll::with_profile(FORWARD).run(&topology.generator, arguments, 60 * SECOND).expect_code(0);
    let ceilings = run.json["ceilings"].as_array().cloned().unwrap_or_default();
    let places: Vec<_> = ceilings.iter().map(|c| (c["frame_size"].as_u64(), c["axes"]["backend"].as_str())).collect();
    let expected = [("xsk-copy", 64), ("xsk-copy", 512), ("packet", 64), ("packet", 512)];
    assert_eq!(places, expected.map(|(backend, size)| (Some(size), Some(backend))), "{}", run.text());
    assert!(ceilings.iter().all(|ceiling| ceiling["outcome"] == "at_least_max"), "{}", run.text());
}

fn a_place_that_cannot_be_is_told_before_the_first_trial() {
    let topology = Topology::forward(Options::default());
    let arguments =
        "sweep PROFILE --frame-size 64 --sweep-workers 1,64 --max 2kpps --goal my=1% --trial 100ms --repeat 1";
    let run = Plimsoll::with_profile(FORWARD).run(&topology.generator, arguments, 20 * SECOND).expect_code(2);
    assert!(run.json.is_null() && run.stderr.contains("64 workers on g0"), "{}", run.text());
    assert!(!run.stderr.contains("--workers"), "the axis has another flag: {}", run.stderr);
}

fn a_sink_writes_what_it_counted_as_json() {
    let topology = Topology::sink(Options::default());
    let plimsoll = Plimsoll::with_profile(FORWARD);
    let run = plimsoll.run(&topology.dut, "sink d0 --duration 200ms", 20 * SECOND);
    assert_eq!(run.code, Some(0), "{}", run.text());
    assert_eq!((&run.json["schema"], &run.json["interface"]), (&"plimsoll-sink/1".into(), &"d0".into()));
    assert_eq!(run.json["received_frames"].as_u64(), Some(0), "{}", run.json);
}
