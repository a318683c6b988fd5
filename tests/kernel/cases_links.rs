//! Black-box cases of ports and links that misbehave, of other owners, of missing privileges; nothing is left behind.

use std::time::{Duration, Instant};

use plimsoll::{
    backend::xsk::{XskMode, XskQueue},
    ids::QueueId,
};
use rustix::process::Signal;

use crate::support::{
    bpf,
    harness::Test,
    netns::{Netns, Options, Topology},
    run::{FORWARD, Outcome, Plimsoll, SINK, kernel_log, wait_until},
    traffic::UdpSink,
};

pub fn tests() -> Vec<Test> {
    crate::tests![
        c25_a_missing_capability_is_named,
        c25_a_locked_memory_limit_is_named,
        c25_net_raw_alone_is_enough_to_send,
        a_removed_interface_ends_the_run_with_its_totals,
        sending_that_fails_in_mid_run_is_an_error_and_nobodys_limit,
        an_interface_that_is_down_is_refused_with_the_remedy,
        a_link_without_carrier_is_refused_by_name,
        a_frame_longer_than_the_mtu_is_refused_before_sending,
        a_queue_with_another_owner_is_named_and_auto_goes_round_it,
        a_second_generator_leaves_the_first_one_working,
        a_foreign_xdp_program_is_named_left_alone_and_sent_beside,
        ten_runs_back_to_back_all_succeed,
        a_gateway_outside_the_subnet_is_used_and_said,
        lopsided_queues_are_said,
        the_duts_neighbour_table_may_be_flushed_while_running,
        sigterm_ends_a_run_with_partial_totals,
        twenty_kills_under_load_leave_nothing_behind,
    ]
}

const SECOND: Duration = Duration::from_secs(1);
const LIMIT: Duration = Duration::from_secs(15);

/// Runs the binary without some capabilities, and with a soft limit of locked memory, inside the generator's namespace.
fn run_without(topology: &Topology, capabilities: &str, memlock_kib: &str, arguments: &str) -> Outcome {
    let plimsoll = Plimsoll::with_profile(SINK);
    let line = plimsoll.line(arguments);
    let started = Instant::now();
    let running =
        topology.generator.spawn(&format!("capsh --drop={capabilities} -- -c 'ulimit -l {memlock_kib}; exec {line}'"));
    plimsoll.outcome(running, started, LIMIT)
}

fn c25_a_missing_capability_is_named() {
    let topology = Topology::sink(Options::default());
    let run = run_without(&topology, "cap_net_raw", "8192", "run PROFILE --rate 1000pps --duration 1s").expect_code(3);
    assert!(run.stderr.contains("CAP_NET_RAW"), "{}", run.stderr);
    assert!(run.wall <= 5 * SECOND, "{:?}", run.wall);
}

fn c25_a_locked_memory_limit_is_named() {
    let topology = Topology::sink(Options::default());
    let run =
        run_without(&topology, "cap_ipc_lock", "64", "run PROFILE --backend xsk-copy --rate 1000pps --duration 1s")
            .expect_code(3);
    assert!(run.stderr.contains("64 KiB") && run.stderr.contains("ulimit -l"), "{}", run.stderr);
    assert!(run.wall <= 5 * SECOND, "{:?}", run.wall);
}

fn c25_net_raw_alone_is_enough_to_send() {
    let topology = Topology::sink(Options::default());
    let sink = UdpSink::bind(&topology.dut, "10.1.0.1:9");
    let arguments = "run PROFILE --backend xsk-copy --rate 1000pps --count 1000";
    let run = run_without(&topology, "cap_net_admin,cap_sys_admin,cap_bpf", "8192", arguments).expect_code(0);
    assert_eq!((run.count("completed_frames"), sink.finish().datagrams), (1000, 1000));
    assert_eq!(run.json["ports"][0]["mode"], "copy");
    // What cannot be done is said, with the capability that it needs.
    assert!(run.caveats().iter().any(|code| code == "receive_not_counted"), "{}", run.text());
    assert!(run.text().contains("CAP_"), "{}", run.text());
    assert!(run.wall <= 5 * SECOND, "{:?}", run.wall);
}

fn a_removed_interface_ends_the_run_with_its_totals() {
    for backend in ["auto", "xsk-copy", "packet"] {
        let topology = Topology::forward(Options::default());
        let plimsoll = Plimsoll::with_profile(FORWARD);
        let arguments = format!("run PROFILE --backend {backend} --rate 5000pps --duration 30s");
        let running = plimsoll.spawn(&topology.generator, &arguments);
        wait_until("frames flow", || topology.dut.counter("d0", "rx_packets") > 1000);
        topology.generator.sh("ip link del g0");
        let run = plimsoll.outcome(running, Instant::now(), 10 * SECOND);
        assert!(run.wall <= 5 * SECOND, "{backend}: {:?} after the removal", run.wall);
        let run = run.expect_code(3);
        assert!(run.stderr.contains("g0") && run.stderr.contains("removed"), "{backend}: {}", run.stderr);
        assert!(run.count("completed_frames") >= 900, "{backend}: {}", run.text());
        assert!(run.caveats().iter().any(|code| code == "interface_removed"), "{backend}: {}", run.text());
    }
}

fn sending_that_fails_in_mid_run_is_an_error_and_nobodys_limit() {
    let topology = Topology::forward(Options::default());
    let plimsoll = Plimsoll::with_profile(FORWARD);
    let arguments = "run PROFILE --backend packet --frame-size 1518 --rate 2000pps --duration 2s";
    let running = plimsoll.spawn(&topology.generator, arguments);
    wait_until("frames flow", || topology.dut.counter("d0", "rx_packets") > 500);
    topology.generator.sh("ip link set g0 mtu 1300");
    let run = plimsoll.outcome(running, Instant::now(), LIMIT).expect_code(3);
    assert!(run.stderr.contains("Message too long"), "{}", run.stderr);
    assert!(run.caveats().iter().any(|code| code == "send_failed"), "{}", run.text());
    assert_eq!(run.trial(0)["verdict"]["kind"], "inconclusive", "{}", run.text());
}

fn an_interface_that_is_down_is_refused_with_the_remedy() {
    let topology = Topology::sink(Options::default());
    topology.generator.sh("ip link set g0 down");
    let run = Plimsoll::with_profile(SINK).run(&topology.generator, "run PROFILE --count 10", LIMIT).expect_code(3);
    assert!(run.stderr.contains("ip link set g0 up"), "{}", run.stderr);
}

fn a_link_without_carrier_is_refused_by_name() {
    let topology = Topology::sink(Options::default());
    topology.dut.sh("ip link set d0 down");
    let run = Plimsoll::with_profile(SINK).run(&topology.generator, "run PROFILE --count 10", LIMIT).expect_code(3);
    assert!(run.stderr.contains("g0") && run.stderr.contains("no carrier"), "{}", run.stderr);
    assert_eq!(topology.generator.counter("g0", "tx_dropped"), 0, "nothing was tried");
}

fn a_frame_longer_than_the_mtu_is_refused_before_sending() {
    let topology = Topology::sink(Options { mtu: 600, ..Options::default() });
    for backend in ["auto", "xsk-copy", "packet", "live"] {
        let run = Plimsoll::with_profile(SINK)
            .run(&topology.generator, &format!("run PROFILE --backend {backend} --frame-size 619 --count 10"), LIMIT)
            .expect_code(2);
        assert!(run.stderr.contains("600") && run.stderr.contains("618"), "{backend}: {}", run.stderr);
    }
    assert_eq!(["tx_packets", "tx_dropped"].map(|name| topology.generator.counter("g0", name)), [0, 0]);
}

fn a_queue_with_another_owner_is_named_and_auto_goes_round_it() {
    let topology = Topology::sink(Options::default());
    let plimsoll = Plimsoll::with_profile(SINK);
    let run = |arguments: &str| plimsoll.run(&topology.generator, arguments, LIMIT);
    topology.generator.enter(|| {
        let _owner = XskQueue::open("g0", QueueId(0), XskMode::Copy, 1514).expect("it is free");
        let refused = run("run PROFILE --backend xsk-copy --count 10").expect_code(3);
        let sentence = "queue 0 of g0 is in use by another AF_XDP socket";
        assert!(refused.stderr.contains(sentence), "{}", refused.stderr);
        let other = run("run PROFILE --rate 1000pps --count 100").expect_code(0);
        assert_eq!(other.count("completed_frames"), 100);
        let port = &other.json["ports"][0];
        assert!(port["backend"] == "packet" || port["backend"] == "live", "{port}");
        assert!(port["why_not"].to_string().contains("in use"), "{port}");
    });
    run("run PROFILE --backend xsk-copy --rate 1000pps --count 100").expect_code(0);
}

fn a_second_generator_leaves_the_first_one_working() {
    let topology = Topology::sink(Options::default());
    let sink = UdpSink::bind(&topology.dut, "10.1.0.1:9");
    let arguments = "run PROFILE --backend xsk-copy --rate 2000pps --duration 5s";
    let first = Plimsoll::with_profile(SINK);
    let started = Instant::now();
    let running = first.spawn(&topology.generator, arguments);
    wait_until("the first one sends", || topology.dut.counter("d0", "rx_packets") > 500);
    let second = Plimsoll::with_profile(SINK).run(&topology.generator, arguments, LIMIT).expect_code(3);
    assert!(second.stderr.contains("another plimsoll (process "), "{}", second.stderr);
    assert!(second.wall < Duration::from_secs(1), "it took {:?} to say so", second.wall);
    let run = first.outcome(running, started, LIMIT).expect_code(0);
    assert_eq!(run.count("completed_frames"), sink.finish().datagrams, "{}", run.text());
}

fn a_foreign_xdp_program_is_named_left_alone_and_sent_beside() {
    let topology = Topology::forward(Options::default());
    let object = bpf::compile("pass");
    topology.generator.sh(&format!("ip link set dev g1 xdpgeneric obj {} sec xdp", object.path().display()));
    let before = topology.generator.xdp_program("g1").expect("it is attached");
    let run = Plimsoll::with_profile(FORWARD)
        .run(&topology.generator, "run PROFILE --rate 1000pps --count 200", LIMIT)
        .expect_code(0);
    assert_eq!(run.count("completed_frames"), 200);
    assert!(run.trial(0)["received_frames"].is_null(), "nobody counted: {}", run.text());
    assert!(run.caveats().iter().any(|code| code == "receive_not_counted"), "{}", run.text());
    assert!(run.text().contains("theirs"), "the program is named: {}", run.text());
    assert_eq!(topology.generator.xdp_program("g1"), Some(before));
}

fn ten_runs_back_to_back_all_succeed() {
    let topology = Topology::sink(Options::default());
    let plimsoll = Plimsoll::with_profile(SINK);
    for _ in 0..10 {
        let run = plimsoll
            .run(&topology.generator, "run PROFILE --backend xsk-copy --rate 10kpps --count 100", LIMIT)
            .expect_code(0);
        assert_eq!(run.count("completed_frames"), 100);
    }
}

fn a_gateway_outside_the_subnet_is_used_and_said() {
    let topology = Topology::sink(Options::default());
    let profile = SINK.replace("10.1.0.2", "10.1.0.130/25");
    let run = Plimsoll::with_profile(&profile)
        .run(&topology.generator, "run PROFILE --rate 1000pps --count 100", LIMIT)
        .expect_code(0);
    assert_eq!(run.count("completed_frames"), 100);
    assert!(run.caveats().iter().any(|code| code == "gateway_off_subnet"), "{}", run.text());
}

fn lopsided_queues_are_said() {
    let topology = Topology::forward(Options { queues: 4, ..Options::default() });
    // The DUT sends all it forwards from one queue, and veth keeps a frame in the queue that it left by.
    topology.dut.sh("ethtool -L d1 tx 1");
    let run = Plimsoll::with_profile(FORWARD)
        .run(&topology.generator, "run PROFILE --workers 1 --backend xsk-copy --rate 10kpps --count 4000", LIMIT)
        .expect_code(0);
    let queues: Vec<u64> = run.trial(0)["ports"][1]["rx_queues"]
        .as_array()
        .expect("queues")
        .iter()
        .map(|frames| frames.as_u64().expect("a number"))
        .collect();
    assert_eq!((queues.len(), queues.iter().sum::<u64>()), (4, 4000), "{}", run.text());
    let starved = queues.iter().any(|frames| frames * 10 < 1000);
    let said = run.caveats().iter().any(|code| code == "lopsided_queues");
    assert_eq!((starved, said), (true, true), "{queues:?}\n{}", run.text());
}

fn the_duts_neighbour_table_may_be_flushed_while_running() {
    let topology = Topology::forward(Options::default());
    let plimsoll = Plimsoll::with_profile(FORWARD);
    let started = Instant::now();
    let running = plimsoll.spawn(&topology.generator, "run PROFILE --rate 2000pps --count 6000");
    wait_until("frames flow", || topology.generator.counter("g1", "rx_packets") > 1000);
    topology.dut.sh("ip neigh flush dev d0; ip neigh flush dev d1");
    let run = plimsoll.outcome(running, started, LIMIT).expect_code(0);
    let [sent, received] = ["completed_frames", "received_frames"].map(|name| run.count(name));
    assert!(sent == 6000 && (sent - received) * 200 < sent, "{sent} sent, {received} received");
    assert!(topology.dut.sh("ip neigh show dev d1").contains("10.2.0.2"), "the DUT asked again");
}

fn sigterm_ends_a_run_with_partial_totals() {
    let topology = Topology::forward(Options::default());
    let plimsoll = Plimsoll::with_profile(FORWARD);
    let running = plimsoll.spawn(&topology.generator, "run PROFILE --rate 5000pps --duration 30s");
    wait_until("frames flow", || topology.generator.counter("g1", "rx_packets") > 500);
    running.signal(Signal::TERM);
    let run = plimsoll.outcome(running, Instant::now(), 5 * SECOND).expect_code(130);
    assert!(run.wall <= SECOND, "{:?} from SIGTERM to the end", run.wall);
    assert!(run.count("completed_frames") >= 500 && run.stdout.contains("g0"), "{}", run.text());
    assert!(topology.generator.xdp_program("g1").is_none());
}

/// Processes inside a namespace.
fn processes(netns: &Netns) -> String {
    netns.sh(&format!("ip netns pids {} | grep -vx $$ | xargs -r ps -o comm= -p | grep plimsoll || true", netns.name()))
}

/// Our BPF programs in the kernel. One that a process held in a namespace of its own has no name to be found by but this.
fn our_bpf_programs() -> usize {
    let name = |program: &libbpf_rs::query::ProgramInfo| program.name.to_string_lossy().into_owned();
    libbpf_rs::query::ProgInfoIter::default()
        .filter(|program| name(program).starts_with("plimsoll") || name(program).starts_with("live_xmit"))
        .count()
}

fn twenty_kills_under_load_leave_nothing_behind() {
    let topology = Topology::forward(Options { queues: 2, ..Options::default() });
    topology.dut.sh("ethtool -K d0 gro on");
    let namespaces = || {
        let output = std::process::Command::new("ip").args(["netns", "list"]).output().expect("ip runs");
        String::from_utf8_lossy(&output.stdout).lines().filter(|name| name.contains("plimsoll")).count()
    };
    let (log, namespaces_before, programs_before) = (kernel_log(), namespaces(), our_bpf_programs());
    let mut most_programs = 0;
    for round in 0..20_u64 {
        let backend = ["auto", "live", "xsk-copy", "packet"][round as usize % 4];
        let plimsoll = Plimsoll::with_profile(FORWARD);
        let running =
            plimsoll.spawn(&topology.generator, &format!("run PROFILE --backend {backend} --rate max --duration 30s"));
        let before = topology.generator.counter("g0", "tx_packets");
        wait_until("frames leave", || topology.generator.counter("g0", "tx_packets") > before + 1000);
        // A random moment is what the case is about; the seed is the round.
        std::thread::sleep(Duration::from_millis(round * 7919 % 300));
        most_programs = most_programs.max(our_bpf_programs());
        running.signal(Signal::KILL);
        drop(running);
        wait_until("no BPF program of the run is left", || our_bpf_programs() == programs_before);
        for port in ["g0", "g1"] {
            wait_until("the XDP program is gone", || topology.generator.xdp_program(port).is_none());
            wait_until("nobody wants promiscuous mode", || !topology.generator.is_promiscuous(port));
        }
        assert_eq!(processes(&topology.generator), "", "round {round}, {backend}");
    }
    assert!(most_programs > programs_before, "a run's programs are seen at all");
    assert_eq!(namespaces(), namespaces_before, "a network namespace is left");
    Plimsoll::with_profile(FORWARD)
        .run(&topology.generator, "run PROFILE --rate 1000pps --count 200", LIMIT)
        .expect_code(0);
    assert_eq!(kernel_log(), log, "the kernel log grew");
}
