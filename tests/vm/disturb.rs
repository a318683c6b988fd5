//! A DUT that is killed, rebooted or unplugged in mid-trial: the run ends in time and says what happened.

use std::{
    thread::sleep,
    time::{Duration, Instant},
};

use plimsoll::lab::vm::{Nic, NicModel};

use crate::{
    fixture::{Machine, SHORT},
    support::{
        harness::Test,
        run::{Outcome, Plimsoll},
    },
};

pub fn tests() -> Vec<Test> {
    crate::tests![a_dut_that_is_unplugged_rebooted_and_killed_in_mid_trial_is_reported]
}

/// Sends for five seconds at 2 kpps, and does `what` after a good second of them.
fn trial(machine: &mut Machine, what: impl FnOnce(&mut Machine)) -> Outcome {
    let profile = format!(
        "ports:
  - {{interface: t0, src_ip: 10.1.0.2, default_gw: 10.1.0.1, dest_mac: '{}'}}
dut: {{observe: 'vm:{}', interface: nic0}}
",
        machine.spec().mac(0),
        machine.spec().dir.display()
    );
    let plimsoll = Plimsoll::with_profile(&profile);
    let started = Instant::now();
    let running = plimsoll.spawn(&machine.netns, "run PROFILE --backend packet --rate 2kpps --duration 5s");
    let sent = machine.netns.counter("t0", "tx_packets") + machine.netns.counter("t0", "tx_dropped") + 2500;
    while machine.netns.counter("t0", "tx_packets") + machine.netns.counter("t0", "tx_dropped") < sent {
        assert!(started.elapsed() < SHORT, "no traffic");
        sleep(Duration::from_millis(50));
    }
    what(machine);
    plimsoll.outcome(running, started, Duration::from_secs(60))
}

/// Whether the report's DUT counters have one of this name.
fn tells(outcome: &Outcome, name: &str) -> bool {
    let deltas = outcome.trial(0)["dut"].as_array().cloned().unwrap_or_default();
    deltas.iter().any(|delta| delta["counter"].as_str().is_some_and(|counter| counter.ends_with(name)))
}

fn a_dut_that_is_unplugged_rebooted_and_killed_in_mid_trial_is_reported() {
    let mut machine = Machine::boot("victim", 1, vec![Nic::tap(NicModel::E1000e, "t0")]);

    let outcome = trial(&mut machine, |machine| {
        machine.set_link(0, false).expect("QEMU answers");
        sleep(Duration::from_secs(1));
        machine.set_link(0, true).expect("QEMU answers");
    })
    .expect_code(0);
    assert!(tells(&outcome, "carrier_down_count"), "{}", outcome.trial(0));

    let boot = machine.sh("cat /proc/sys/kernel/random/boot_id");
    let outcome = trial(&mut machine, |machine| machine.reset().expect("QEMU answers")).expect_code(0);
    assert!(outcome.caveats().contains(&"observer_failed".to_owned()), "{:?}", outcome.caveats());
    machine.wait_ready().expect("it boots again");
    assert_ne!(machine.sh("cat /proc/sys/kernel/random/boot_id"), boot);

    let outcome = trial(&mut machine, |machine| machine.guest_mut().kill()).expect_code(0);
    for caveat in ["link_outage", "observer_failed"] {
        assert!(outcome.caveats().contains(&caveat.to_owned()), "{:?}", outcome.caveats());
    }
}
