//! Black-box cases of what is counted, and of what casts doubt on it.

use std::time::{Duration, Instant};

use plimsoll::host::system;

use crate::support::{
    frames::Frame,
    harness::Test,
    netns::{Options, Topology},
    run::{FORWARD, Outcome, Plimsoll, SINK, wait_until},
};

pub fn tests() -> Vec<Test> {
    crate::tests![
        a_rate_is_the_ports_however_many_workers_send,
        more_workers_than_cpus_are_said_and_more_than_queues_refused,
        frames_of_somebody_else_on_the_port_are_noticed,
        frames_that_come_late_are_waited_for,
        a_foreign_source_mac_and_a_single_flow_are_said,
        a_share_of_an_unknown_link_speed_asks_for_an_absolute_rate,
    ]
}

const LIMIT: Duration = Duration::from_secs(20);

#[track_caller]
fn assert_caveat(run: &Outcome, code: &str) {
    assert!(run.caveats().iter().any(|given| given == code), "no {code}: {:?}\n{}", run.caveats(), run.text());
}

fn a_rate_is_the_ports_however_many_workers_send() {
    let topology = Topology::sink(Options { queues: 2, ..Options::default() });
    for backend in ["xsk-copy", "packet"] {
        for workers in [1, 2] {
            let arguments = format!("run PROFILE --backend {backend} --workers {workers} --rate 10kpps --duration 1s");
            let run = Plimsoll::with_profile(SINK).run(&topology.generator, &arguments, LIMIT).expect_code(0);
            let [intended, sent] = ["intended_frames", "completed_frames"].map(|name| run.count(name));
            // Never more; less only where this machine took the CPU away, and then it is said.
            let is_less = sent < 9_800;
            assert!(intended == 10_000 && sent <= 10_000, "{arguments}: {intended} {sent}");
            assert!(!is_less || run.caveats().iter().any(|code| code == "pacing_forgiven"), "{arguments}: {sent}");
        }
    }
}

fn more_workers_than_cpus_are_said_and_more_than_queues_refused() {
    let workers = system::allowed_cpus().len() as u32 + 1;
    let topology = Topology::sink(Options { queues: workers, ..Options::default() });
    let plimsoll = Plimsoll::with_profile(SINK);
    let arguments = |workers| format!("run PROFILE --backend packet --workers {workers} --rate 1000pps --count 100");
    let run = plimsoll.run(&topology.generator, &arguments(workers), LIMIT).expect_code(0);
    assert_eq!(run.count("completed_frames"), 100);
    assert_caveat(&run, "shared_cpu");
    let run = plimsoll.run(&topology.generator, &arguments(workers + 1), LIMIT).expect_code(2);
    assert!(run.stderr.contains(&format!("g0 has {workers} TX queue")), "{}", run.stderr);
}

fn frames_of_somebody_else_on_the_port_are_noticed() {
    let topology = Topology::sink(Options::default());
    let plimsoll = Plimsoll::with_profile(SINK);
    let started = Instant::now();
    let running = plimsoll.spawn(&topology.generator, "run PROFILE --rate 2000pps --duration 2s");
    wait_until("frames flow", || topology.dut.counter("d0", "rx_packets") > 500);
    let foreign = Frame::new(topology.dut.mac("d0"), [10, 1, 0, 1]);
    assert_eq!(foreign.send(&topology.generator, "g0", 300, 0, Duration::ZERO), 300);
    let run = plimsoll.outcome(running, started, LIMIT).expect_code(0);
    assert_caveat(&run, "counters_disagree");
}

fn frames_that_come_late_are_waited_for() {
    let topology = Topology::forward(Options::default());
    // 4 Mbit/s are about 4,000 frames/s of 124 bytes: the last of 3,000 leave the DUT a quarter of a second late.
    topology.dut.sh("tc qdisc add dev d1 root tbf rate 4mbit burst 2kb limit 1mb");
    let run = Plimsoll::with_profile(FORWARD)
        .run(&topology.generator, "run PROFILE --frame-size 128 --rate 6000pps --count 3000", LIMIT)
        .expect_code(0);
    assert_eq!(["completed_frames", "received_frames"].map(|name| run.count(name)), [3000; 2], "{}", run.text());
}

fn a_foreign_source_mac_and_a_single_flow_are_said() {
    let topology = Topology::sink(Options::default());
    let profile = format!(
        "{}streams: [{{headers: [{{udp: {{src_port: 1024}}}}]}}]\n",
        SINK.replace("src_ip", "src_mac: '02:00:00:00:00:77', src_ip")
    );
    let run = Plimsoll::with_profile(&profile)
        .run(&topology.generator, "run PROFILE --rate 1000pps --count 100", LIMIT)
        .expect_code(0);
    assert_caveat(&run, "forged_source_mac");
    assert_caveat(&run, "single_flow");
}

fn a_share_of_an_unknown_link_speed_asks_for_an_absolute_rate() {
    let topology = Topology::sink(Options::default());
    topology.generator.sh("ip link add ifb9 type ifb; ip link set ifb9 up");
    let profile = "ports:\n  - {interface: ifb9, src_ip: 10.1.0.2, dest_mac: '02:00:00:00:00:02'}\n\
                   streams: [{headers: [{ipv4: {dst: 10.1.0.1}}, udp]}]\n";
    let run = Plimsoll::with_profile(profile)
        .run(&topology.generator, "run PROFILE --rate 50% --count 100", LIMIT)
        .expect_code(2);
    assert!(run.stderr.contains("absolute rate"), "{}", run.stderr);
}
