//! Black-box cases of configuration: profiles that must be refused, and the names an interface may be called by.

use std::time::{Duration, Instant};

use crate::support::{
    harness::{Test, skip},
    netns::{Options, Topology},
    run::{FORWARD, Plimsoll, SINK},
};

pub fn tests() -> Vec<Test> {
    crate::tests![
        x1_wrong_profiles_are_refused_with_file_and_line,
        x1_the_same_nic_twice_is_refused,
        x2_altnames_and_peer_names_are_accepted,
        x2_a_rename_while_running_is_survived,
        a_trex_configuration_runs_as_it_is,
        a_missing_interface_names_its_namespace,
    ]
}

const LIMIT: Duration = Duration::from_secs(15);

fn x1_wrong_profiles_are_refused_with_file_and_line() {
    let topology = Topology::sink(Options::default());
    let table = [
        ("ports:\n\t- interface: g0\n", 2, "tab"),
        ("ports:\n  - interface: g0\n    sr_ip: 10.1.0.2\n", 3, "src_ip"),
        ("ports:\n  - interface: g0\n    src_ip: 10.1.0.2\n    src_ip: 10.1.0.3\n", 4, "src_ip"),
        ("ports:\n  - interface: g0\n    src_ip: 300.1.1.1\n", 3, "300.1.1.1"),
        ("- name: a-flow-file\n  stream: {}\n", 1, "profile"),
    ];
    for (text, line, word) in table {
        let plimsoll = Plimsoll::with_profile(text);
        for command in ["check PROFILE", "run PROFILE --count 1"] {
            let run = plimsoll.run(&topology.generator, command, LIMIT).expect_code(2);
            let place = format!("profile.yaml:{line}:");
            assert!(run.stderr.contains(&place), "{place} in {}", run.stderr);
            assert!(run.stderr.to_lowercase().contains(word), "{word} in {}", run.stderr);
        }
    }
    assert_eq!(topology.generator.counter("g0", "tx_packets"), 0);
}

fn x1_the_same_nic_twice_is_refused() {
    let topology = Topology::sink(Options::default());
    topology.generator.sh("ip link property add dev g0 altname gen-a0");
    for second in ["g0", "gen-a0", "g0@if2"] {
        let profile = format!(
            "ports:\n  - {{interface: g0, src_ip: 10.1.0.2, default_gw: 10.1.0.1}}\n  \
             - {{interface: {second}, src_ip: 10.2.0.2, default_gw: 10.2.0.1}}\n"
        );
        let run =
            Plimsoll::with_profile(&profile).run(&topology.generator, "run PROFILE --count 1", LIMIT).expect_code(2);
        assert!(
            run.stderr.contains("g0") && (run.stderr.contains("twice") || run.stderr.contains("already")),
            "{}",
            run.stderr
        );
    }
    assert_eq!(topology.generator.counter("g0", "tx_packets"), 0);
}

fn x2_altnames_and_peer_names_are_accepted() {
    let topology = Topology::sink(Options::default());
    topology.generator.sh("ip link property add dev g0 altname gen-a0");
    for name in ["gen-a0", "g0@if2"] {
        let profile = SINK.replace("g0", name);
        let run = Plimsoll::with_profile(&profile)
            .run(&topology.generator, "run PROFILE --rate 1000pps --count 100", LIMIT)
            .expect_code(0);
        assert_eq!(run.count("completed_frames"), 100);
    }
}

fn x2_a_rename_while_running_is_survived() {
    let topology = Topology::forward(Options::default());
    let plimsoll = Plimsoll::with_profile(FORWARD);
    let started = Instant::now();
    let running = plimsoll.spawn(&topology.generator, "run PROFILE --rate 1000pps --duration 4s");
    // The rename must fall into the middle of the run.
    std::thread::sleep(Duration::from_secs(2));
    topology.generator.sh("ip link set g0 name gx");
    let run = plimsoll.outcome(running, started, LIMIT).expect_code(0);
    let received = run.count("received_frames");
    if received < 3_990 && run.was_disturbed() {
        skip(
            "idle",
            format!("{received} of 4,000 frames: the host took the CPU from the generator, and the report says so"),
        );
    }
    assert!((3_990..=4010).contains(&received), "{}", run.text());
}

fn a_trex_configuration_runs_as_it_is() {
    let topology = Topology::forward(Options::default());
    let by_ip = "- port_limit: 2
  version: 2
  interfaces: ['g0', 'g1']
  port_info:
    - ip: 10.1.0.2
      default_gw: 10.1.0.1
    - ip: 10.2.0.2
      default_gw: 10.2.0.1
";
    let run = Plimsoll::with_profile(by_ip)
        .run(&topology.generator, "run PROFILE --rate 1000pps --count 200", LIMIT)
        .expect_code(0);
    assert_eq!(run.count("received_frames"), 200);
    let (d0, g0) = (topology.dut.mac("d0"), topology.generator.mac("g0"));
    let by_mac = format!(
        "- port_limit: 2
  version: 2
  interfaces: ['g0', 'dummy']
  port_info:
    - dest_mac: '{d0}'
      src_mac: '{g0}'
    - dest_mac: '{g0}'
      src_mac: '{d0}'
"
    );
    let before = topology.dut.counter("d0", "rx_packets");
    Plimsoll::with_profile(&by_mac)
        .run(&topology.generator, "run PROFILE --rate 1000pps --count 200", LIMIT)
        .expect_code(0);
    assert!(topology.dut.counter("d0", "rx_packets") >= before + 200);
}

fn a_missing_interface_names_its_namespace() {
    let topology = Topology::sink(Options::default());
    let name = topology.generator.name();
    let profile = SINK.replace("g0", "nosuch0");
    let run = Plimsoll::with_profile(&profile).run(&topology.generator, "run PROFILE --count 1", LIMIT).expect_code(3);
    assert!(run.stderr.contains("nosuch0") && run.stderr.contains(name), "{}", run.stderr);
}
