//! Which backend runs on which driver: what works, what is refused with its reason, and that `auto` does what `probe` says.

use serde_json::Value;

use crate::{
    fixture::{self, Machine, RUN},
    support::{harness::Test, run::Outcome},
};

pub fn tests() -> Vec<Test> {
    crate::tests![
        zero_copy_on_default_virtio_is_refused_by_name,
        auto_on_default_virtio_reports_what_runs_instead_of_zero_copy,
        live_on_vmxnet3_sends_or_says_why_not,
        live_on_virtio_sends_or_says_why_not,
        auto_runs_what_probe_says,
        a_link_that_was_not_up_at_the_start_is_waited_for_again_after_attaching,
    ]
}

/// A run that is refused may still have told its neighbours where its addresses are.
const GRATUITOUS: u64 = 2;

/// One port on the tap of its number, to an address where nobody answers.
fn port(machine: &Machine, nic: usize) -> String {
    format!(
        "ports:\n  - {{interface: nic{nic}, src_ip: 10.9.0.2, default_gw: 10.9.0.1, dest_mac: '02:00:00:00:00:09', src_mac: '{}'}}\n",
        machine.spec().mac(nic)
    )
}

/// Runs 2,000 frames and counts what the host's tap takes from the guest.
fn run(machine: &Machine, nic: usize, backend: &str) -> (Outcome, u64) {
    let tap = format!("t{nic}");
    let before = machine.netns.counter(&tap, "rx_packets");
    let arguments = format!("run PROFILE --backend {backend} --rate 5kpps --count 2000 --workers 1");
    let outcome = machine.plimsoll(&port(machine, nic), &arguments, RUN);
    (outcome, machine.netns.counter(&tap, "rx_packets") - before)
}

fn zero_copy_on_default_virtio_is_refused_by_name() {
    let (outcome, seen) = run(&fixture::generator(), 6, "xsk-zc");
    let outcome = outcome.expect_code(3);
    for word in ["nic6", "zero-copy", "driver virtio_net", "iommu_platform=on"] {
        assert!(outcome.stderr.contains(word), "{word} in {}", outcome.stderr);
    }
    assert!(seen <= GRATUITOUS, "{seen}");
}

fn auto_on_default_virtio_reports_what_runs_instead_of_zero_copy() {
    let (outcome, seen) = run(&fixture::generator(), 6, "auto");
    let outcome = outcome.expect_code(0);
    let port = &outcome.json["ports"][0];
    assert_ne!(port["mode"], "zero-copy");
    assert!(port["why_not"].as_object().is_some_and(|why| why.keys().any(|key| key.contains("zc"))), "{port}");
    assert_eq!(outcome.count("completed_frames"), 2000);
    assert!(seen >= 2000, "{seen}");
}

/// Live frames either leave, all of them, or the refusal has a reason; nothing in between.
fn live(nic: usize, driver: &str) {
    let (outcome, seen) = run(&fixture::generator(), nic, "live");
    if outcome.code == Some(0) {
        assert_eq!(outcome.json["ports"][0]["mode"], "live");
        assert_eq!(outcome.count("completed_frames"), 2000);
        // The self-test's frames come on top.
        assert!((2000..2200).contains(&seen), "{seen}");
    } else {
        let outcome = outcome.expect_code(3);
        assert!(outcome.stderr.contains(&format!("nic{nic}")) && outcome.stderr.contains(driver), "{}", outcome.stderr);
        assert!(seen <= GRATUITOUS, "{seen}");
    }
    eprintln!("live on {driver}: {}", if seen > GRATUITOUS { "works" } else { "refused" });
}

fn live_on_vmxnet3_sends_or_says_why_not() {
    live(7, "vmxnet3");
}

fn live_on_virtio_sends_or_says_why_not() {
    live(6, "virtio_net");
}

/// Every way to send that is faster than the one that `auto` took is one of which `probe` says that it does not work, or that it
/// is announced by the driver and the run says why it was not to be had.
fn auto_runs_what_probe_says() {
    let machine = fixture::generator();
    let text = machine.output("plimsoll probe nic4 nic5 nic6 nic7 --json -", RUN).unwrap_or_else(|e| panic!("{e}"));
    let probe: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error} in {text}"));
    for port in probe["ports"].as_array().expect("ports") {
        let name = port["name"].as_str().expect("a name");
        let (outcome, _) = run(&machine, name.trim_start_matches("nic").parse().expect("a number"), "auto");
        let outcome = outcome.expect_code(0);
        let ran = &outcome.json["ports"][0];
        let way = match ran["mode"].as_str() {
            Some("zero-copy") => "xsk-zc",
            Some("copy") => "xsk-copy",
            Some(other) => other,
            None => panic!("no mode in {ran}"),
        };
        eprintln!("{name} ({}): {way}", port["driver"]);
        let ways = port["ways"].as_array().expect("ways");
        let taken = ways.iter().position(|told| told["name"] == way).unwrap_or_else(|| panic!("no {way} in {port}"));
        assert_ne!(ways[taken]["verdict"], "no", "{port}");
        for faster in &ways[..taken] {
            let why = &ran["why_not"][faster["name"].as_str().expect("a name")];
            assert!(faster["verdict"] == "no" || why.is_string(), "{faster} was passed over without a reason: {ran}");
        }
    }
}

/// igb takes its link down when a program is attached, also where the run had to wait for it already.
fn a_link_that_was_not_up_at_the_start_is_waited_for_again_after_attaching() {
    let machine = fixture::generator();
    let arguments = "run PROFILE --backend xsk-copy --rate 5kpps --count 2000 --workers 1";
    machine.write_file("/run/profile.yaml", &port(&machine, 4)).unwrap_or_else(|error| panic!("{error}"));
    // In one script, so that the run begins before the link is there.
    let script = format!(
        "ip link set nic4 down; ip link set nic4 up; [ $(cat /sys/class/net/nic4/carrier) = 0 ] || exit 99; plimsoll {}",
        arguments.replace("PROFILE", "/run/profile.yaml")
    );
    let output = machine.run(&script, RUN).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(output.status, 0, "{}{}", output.stdout, output.stderr);
    assert!(output.stdout.contains("2,000 frames left"), "{}", output.stdout);
}
