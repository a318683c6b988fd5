//! The lab itself: drivers, the control channel, and the ways to disturb a guest.

use std::{
    process::Command,
    time::{Duration, Instant},
};

use plimsoll::lab::vm::{Nic, NicModel};

use crate::{
    fixture::{self, Machine, SHORT},
    support::{
        harness::{Test, skip},
        netns::Netns,
        run::Plimsoll,
    },
};

pub fn tests() -> Vec<Test> {
    crate::tests![
        each_model_gets_its_real_driver_and_claims_its_speed,
        a_command_returns_its_outputs_and_status,
        a_command_past_its_limit_is_killed_and_the_next_one_runs,
        long_output_comes_back_whole,
        packages_that_cannot_be_had_are_a_clear_error,
        a_standing_lab_serves_commands_and_leaves_the_machine_as_it_was,
        a_killed_guest_is_an_error_and_its_removal_leaves_nothing,
    ]
}

fn each_model_gets_its_real_driver_and_claims_its_speed() {
    let dut = fixture::dut();
    let expected = [
        ("vmxnet3", "1000"),
        ("e1000", "1000"),
        ("e1000e", "1000"),
        ("igb", "1000"),
        ("virtio_net", "-1"),
        ("virtio_net", "10000"),
    ];
    let script = "for n in 0 1 2 3 4 5; do d=/sys/class/net/nic$n; echo $(basename $(readlink $d/device/driver)) $(cat $d/speed); done";
    let seen = dut.sh(script);
    let seen: Vec<&str> = seen.lines().collect();
    let expected: Vec<String> = expected.iter().map(|(driver, speed)| format!("{driver} {speed}")).collect();
    assert_eq!(seen, expected);
}

fn a_command_returns_its_outputs_and_status() {
    let output = fixture::dut().run("echo out; echo err >&2; exit 7", SHORT).unwrap();
    assert_eq!((output.status, output.stdout.as_str(), output.stderr.as_str()), (7, "out\n", "err"));
}

fn a_command_past_its_limit_is_killed_and_the_next_one_runs() {
    let dut = fixture::dut();
    let begun = Instant::now();
    let output = dut.run("sleep 600 & sleep 600", Duration::from_secs(1)).unwrap();
    assert_eq!(output.status, 124);
    assert!(begun.elapsed() < Duration::from_secs(15), "{:?}", begun.elapsed());
    assert_eq!(dut.sh("pgrep -f 'sleep 600' || echo none"), "none");
}

fn long_output_comes_back_whole() {
    let output = fixture::dut().output("seq 1 30000", SHORT).unwrap();
    assert_eq!(output.lines().count(), 30_000);
    assert!(output.ends_with("\n30000\n"));
}

fn a_killed_guest_is_an_error_and_its_removal_leaves_nothing() {
    let mut machine = Machine::boot("victim", 1, vec![Nic::tap(NicModel::VIRTIO, "t0")]);
    let dir = machine.spec().dir.clone();
    machine.guest_mut().kill();
    let begun = Instant::now();
    let error = machine.run("true", SHORT).unwrap_err();
    assert_eq!(error.kind(), plimsoll::error::ErrorKind::Environment);
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    // The tap stays, without a carrier, as a cable does whose other end is pulled.
    assert_eq!(machine.netns.sh("cat /sys/class/net/t0/carrier"), "0");
    let netns = machine.netns.name().to_owned();
    drop(machine);
    assert!(!dir.exists());
    let left = std::process::Command::new("ip").args(["netns", "list"]).output().unwrap().stdout;
    assert!(!String::from_utf8_lossy(&left).contains(&netns));
}

fn packages_that_cannot_be_had_are_a_clear_error() {
    fixture::packages();
    let offline = Netns::new("offline");
    let cache = tempfile::tempdir().unwrap();
    let mut command = offline.command(env!("CARGO_BIN_EXE_plimsoll"));
    // The lab that may stand on this machine is taken down only once the packages are there.
    let output = command.args(["lab", "up", "--vm"]).env("XDG_CACHE_HOME", cache.path()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(3), "{text}");
    assert!(text.starts_with("plimsoll: cannot fetch qemu-system-x86: apt-get: Failed to fetch"), "{text}");
    assert!(text.trim_end().ends_with("the lab without --vm needs no packages"), "{text}");
    assert_eq!(
        std::fs::read_dir(cache.path().join("plimsoll/vm")).unwrap().count(),
        0,
        "something was left in the cache"
    );
}

fn a_standing_lab_serves_commands_and_leaves_the_machine_as_it_was() {
    fixture::packages();
    let lab = |arguments: &[&str]| Plimsoll::run_here(&[&["lab"], arguments].concat());
    // It has fixed names, so that there is one on a machine; somebody's is not ours to remove.
    if !lab(&["status"]).stdout.contains("the lab is down") {
        skip("vm", "a lab is up on this machine");
    }
    let machine = || {
        let script =
            "dpkg-query -W 2>/dev/null; ip -br link; ip route; ip netns list | grep plimsoll; ls /run/plimsoll-vm";
        Command::new("sh").args(["-c", script]).output().unwrap().stdout
    };
    let before = machine();
    let up = lab(&["up", "--vm", "--nic", "virtio:speed=10000"]);
    let exec = lab(&["exec", "cat /sys/class/net/nic1/speed; echo complaint >&2; exit 9"]);
    let link = Command::new("ip").args(["-n", "plimsoll-gen", "-br", "link", "show", "g1"]).output().unwrap();
    let status = lab(&["status"]);
    let down = lab(&["down"]);
    assert_eq!(machine(), before);
    let up = up.expect_code(0);
    assert!(up.stdout.contains("vm dut with virtio:speed=10000"), "{}", up.stdout);
    let exec = exec.expect_code(9);
    assert_eq!((exec.stdout.as_str(), exec.stderr.as_str()), ("10000\n", "complaint\n"));
    assert!(String::from_utf8_lossy(&link.stdout).contains("LOWER_UP"));
    assert!(status.stdout.contains(": up"), "{}", status.stdout);
    assert!(down.expect_code(0).stdout.contains("the lab is down"));
}
