//! Sweeps of a DUT's settings, black box: the best ring is found at equal loads, and the DUT is always as it was afterwards.

use std::{
    process::ExitCode,
    time::{Duration, Instant},
};

use plimsoll::xdp::model::{Model, ModelConfig, Stage};
use rustix::process::Signal;
use serde_json::Value;

use super::dut::model;
use crate::support::{
    frames::inside_named,
    harness::{Test, needs_an_idle_machine},
    netns::{Options, Topology},
    run::{FORWARD, Plimsoll, SINK},
    traffic::UdpSink,
};

pub fn tests() -> Vec<Test> {
    crate::tests![
        the_best_ring_of_a_dut_that_gets_slower_with_large_ones_is_found_and_the_old_one_put_back,
        a_queue_count_is_swept_by_ethtool_and_put_back,
        an_interrupted_sweep_puts_the_ring_back,
        killed_sweeps_leave_a_ring_that_the_next_run_puts_back,
        what_a_dut_ingested_comes_from_its_own_counters_without_a_sink,
        a_hypervisors_port_is_read_beside_the_dut,
    ]
}

/// A modelled DUT's ring as a `command:` observer and `set_ring:` see it: this binary, started with these words.
const HELPER: &str = "modelled-ring";

/// Serves as the modelled DUT's management interface when the test binary is started as such: `HELPER NETNS [SLOTS]`.
pub fn helper() -> Option<ExitCode> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let (netns, slots) = match words.as_slice() {
        [helper, netns] if helper == HELPER => (netns.clone(), None),
        [helper, netns, slots] if helper == HELPER => (netns.clone(), Some(slots.parse().expect("slots are a number"))),
        _ => return None,
    };
    let (config, counters) = inside_named(&netns, move || {
        let name = std::ffi::CString::new("d0").expect("a name");
        // SAFETY: the name is a C string.
        let model = Model::find(unsafe { libc::if_nametoindex(name.as_ptr()) }).expect("the model is there");
        if let Some(slots) = slots {
            model.set_ring(slots).expect("it can be set");
        }
        (model.config().expect("it can be read"), model.counters().expect("they can be read"))
    });
    println!("rx_ring: {}\nvnic_ring/ring_full: {}", config.ring.expect("it has a ring").slots, counters.ring_full);
    Some(ExitCode::SUCCESS)
}

fn helper_line(topology: &Topology) -> String {
    let binary = std::env::current_exe().expect("this test runs from a file");
    format!("{} {HELPER} {}", binary.display(), topology.dut.name())
}

fn state(plimsoll: &Plimsoll) -> String {
    format!("env XDG_STATE_HOME={}", plimsoll.dir.path().join("state").display())
}

/// Rings with what they serve: more is better up to 256, and worse at 512.
const CURVE: [(u64, u64); 3] = [(64, 6_000), (256, 20_000), (512, 9_000)];

fn the_best_ring_of_a_dut_that_gets_slower_with_large_ones_is_found_and_the_old_one_put_back() {
    needs_an_idle_machine();
    let topology = Topology::forward(Options::default());
    let curve: Vec<Stage> = CURVE.iter().map(|&(slots, rate_fps)| Stage { rate_fps, slots }).collect();
    model(&topology, ModelConfig { ring: Some(curve[2]), curve, ..ModelConfig::default() });
    let line = helper_line(&topology);
    let profile = format!(
        "{FORWARD}dut: {{observe: 'command:{line}', interface: d0, set_ring: '{line} {{ring}}'}}\nframe_size: 128\n"
    );
    let plimsoll = Plimsoll::with_profile(&profile);
    let arguments =
        "sweep PROFILE --dut-rx-rings 64,256,512 --max 40kpps --goal my=1% --trial 200ms --repeat 3 --width 8%";
    let begun = Instant::now();
    let running = topology.generator.spawn(&format!("{} {}", state(&plimsoll), plimsoll.line(arguments)));
    let outcome = plimsoll.outcome(running, begun, Duration::from_secs(240)).unless_disturbed().expect_code(0);

    let comparison = &outcome.json["comparisons"][0];
    assert_eq!(
        (&comparison["best"], &comparison["original"]),
        (&Value::from(256), &Value::from(512)),
        "{comparison:#}"
    );
    assert!(outcome.stdout.contains("best RX ring: 256 (set it)"), "{}", outcome.stdout);
    // Every value was measured at the same loads, and the model's truth was found at each: min(load, rate + slots / time).
    let trials = outcome.json["trials"].as_array().expect("there are trials");
    for (slots, rate) in CURVE {
        let of_ring =
            |trial: &&Value| trial["axes"]["dut_rx_ring"] == slots && trial["load_fps"] == comparison["load_fps"];
        let at_load: Vec<&Value> = trials.iter().filter(of_ring).collect();
        assert!(!at_load.is_empty(), "ring {slots} at {}", comparison["load_fps"]);
        let truth = rate + slots * 5;
        let ceilings = outcome.json["ceilings"].as_array().expect("there are ceilings");
        let of_ring = |ceiling: &&Value| ceiling["axes"]["dut_rx_ring"] == slots;
        let ceiling = ceilings.iter().rfind(of_ring).expect("one for each ring");
        let found = ceiling["throughput_fps"].as_u64().unwrap_or_else(|| panic!("no throughput in {ceiling:#}"));
        assert!(found.abs_diff(truth) * 10 < truth, "ring {slots}: found {found}, true is {truth}: {ceiling:#}");
        assert_eq!(ceiling["verdict"]["stage"], "vnic_ring", "{ceiling:#}");
    }
    assert!(topology.generator.sh(&line).contains("rx_ring: 512"), "the old ring is back");
    let left = std::fs::read_dir(plimsoll.dir.path().join("state/plimsoll")).expect("the journal's folder").count();
    assert_eq!(left, 0, "the journal is empty");
}

fn a_queue_count_is_swept_by_ethtool_and_put_back() {
    needs_an_idle_machine();
    let topology = Topology::forward(Options { queues: 2, ..Options::default() });
    let queues = || topology.dut.sh("ethtool -l d0 | tail -4 | head -1").split_whitespace().last().map(str::to_owned);
    topology.dut.sh("ethtool -L d0 rx 2");
    let before = queues();
    let profile = format!("{FORWARD}dut: {{observe: 'netns:{}', interface: d0}}\n", topology.dut.name());
    let plimsoll = Plimsoll::with_profile(&profile);
    let arguments =
        "sweep PROFILE --dut-queues 1,2 --max 5kpps --min 1kpps --goal my=1% --trial 100ms --repeat 5 --width 20%";
    let begun = Instant::now();
    let running = topology.generator.spawn(&format!("{} {}", state(&plimsoll), plimsoll.line(arguments)));
    let outcome = plimsoll.outcome(running, begun, Duration::from_secs(120)).unless_disturbed().expect_code(0);
    let comparison = &outcome.json["comparisons"][0];
    assert_eq!(
        (&comparison["axis"], &comparison["original"]),
        (&Value::from("dut_queues"), &Value::from(2)),
        "{comparison:#}"
    );
    assert!(
        comparison["sentences"][0].as_str().is_some_and(|text| text.contains("no queue count is better")),
        "{comparison:#}"
    );
    let values: Vec<&Value> =
        outcome.json["ceilings"].as_array().expect("a list").iter().map(|c| &c["axes"]["dut_queues"]).collect();
    assert_eq!(values, [&Value::from(1), &Value::from(2)]);
    assert_eq!(queues(), before);
}

/// A DUT whose ring is a file: it takes a while to change it, so that kills fall into changes too.
struct FileDut {
    topology: Topology,
    plimsoll: Plimsoll,
}

impl FileDut {
    fn new() -> FileDut {
        let topology = Topology::forward(Options::default());
        let dir = tempfile::TempDir::new().expect("a scratch folder").keep();
        let ring = dir.join("ring");
        let profile = format!(
            "{FORWARD}dut: {{observe: 'command:cat {0}', interface: d0, set_ring: 'sleep 0.03; echo rx_ring: {{ring}} > {0}; sleep 0.03'}}\n",
            ring.display()
        );
        let plimsoll = Plimsoll::with_profile(&profile);
        std::fs::write(&ring, "rx_ring: 256\n").expect("it can be written");
        let dut = FileDut { topology, plimsoll };
        // The profile's own folder goes with the test; this one is named in it.
        std::fs::write(dut.plimsoll.dir.path().join("where"), ring.display().to_string()).expect("it can be written");
        dut
    }

    fn ring_file(&self) -> String {
        std::fs::read_to_string(self.plimsoll.dir.path().join("where")).expect("it was written")
    }

    fn ring(&self) -> String {
        std::fs::read_to_string(self.ring_file()).expect("it can be read")
    }

    fn line(&self, arguments: &str) -> String {
        format!("{} {}", state(&self.plimsoll), self.plimsoll.line(arguments))
    }

    const SWEEP: &str = "sweep PROFILE --dut-rx-rings 64,128,512,1024 --backend packet --max 3kpps --min 1kpps --goal my=1% --trial 50ms --width 30%";
}

impl Drop for FileDut {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(std::path::Path::new(&self.ring_file()).parent().expect("it is in a folder"));
    }
}

/// Waits until the ring has left its first value.
fn wait_for_a_change(dut: &FileDut) {
    let begun = Instant::now();
    while dut.ring() == "rx_ring: 256\n" {
        assert!(begun.elapsed() < Duration::from_secs(20), "the sweep changed nothing");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn an_interrupted_sweep_puts_the_ring_back() {
    let dut = FileDut::new();
    for signal in [Signal::INT, Signal::TERM] {
        let begun = Instant::now();
        let running = dut.topology.generator.spawn(&dut.line(FileDut::SWEEP));
        wait_for_a_change(&dut);
        running.signal(signal);
        let outcome = dut.plimsoll.outcome(running, begun, Duration::from_secs(30)).expect_code(130);
        assert_eq!(dut.ring(), "rx_ring: 256\n", "{signal:?}: {}", outcome.text());
    }
}

fn killed_sweeps_leave_a_ring_that_the_next_run_puts_back() {
    let kills: u64 = std::env::var("PLIMSOLL_KILLS").ok().and_then(|kills| kills.parse().ok()).unwrap_or(10);
    let dut = FileDut::new();
    let mut random = 0x9E37_79B9_7F4A_7C15_u64;
    let mut caught = 0;
    for kill in 0..kills {
        let running = dut.topology.generator.spawn(&dut.line(FileDut::SWEEP));
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        // Half of the moments are counted from the start, half from the first change.
        if kill % 2 == 0 {
            wait_for_a_change(&dut);
        }
        std::thread::sleep(Duration::from_millis((random >> 33) % 900));
        running.signal(Signal::KILL);
        drop(running);
        caught += u64::from(dut.ring() != "rx_ring: 256\n");
        // The next run: by turns a restore, and an ordinary run with this DUT.
        let next =
            if kill % 3 == 0 { "run PROFILE --rate 1kpps --duration 50ms --backend packet" } else { "sweep --restore" };
        let begun = Instant::now();
        let running = dut.topology.generator.spawn(&dut.line(next));
        let outcome = dut.plimsoll.outcome(running, begun, Duration::from_secs(30)).expect_code(0);
        assert_eq!(dut.ring(), "rx_ring: 256\n", "kill {kill}, then {next}: {}", outcome.text());
    }
    assert!(caught * 4 > kills, "only {caught} of {kills} kills found the ring changed");
    let left = std::fs::read_dir(dut.plimsoll.dir.path().join("state/plimsoll")).expect("the journal's folder").count();
    assert_eq!(left, 0, "the journal is empty");
}

fn what_a_dut_ingested_comes_from_its_own_counters_without_a_sink() {
    let topology = Topology::sink(Options::default());
    let profile = format!("{SINK}dut: {{observe: 'netns:{}', interface: d0}}\n", topology.dut.name());
    let plimsoll = Plimsoll::with_profile(&profile);
    let run = || {
        let arguments = "run PROFILE --rate 10kpps --count 5000 --frame-size 128";
        plimsoll.run(&topology.generator, arguments, Duration::from_secs(30)).expect_code(0)
    };
    // Nobody listens: what IP delivered was ingested, and that is said.
    let closed = run();
    assert_eq!(closed.count("received_frames"), 5000);
    assert!(closed.caveats().contains(&"port_closed".to_owned()), "{:?}", closed.caveats());
    assert_eq!(closed.trial(0)["verdict"], Value::Null, "{:#}", closed.trial(0)["verdict"]);
    let sink = UdpSink::bind(&topology.dut, "10.1.0.1:9");
    let open = run();
    assert_eq!((open.count("received_frames"), sink.finish().datagrams), (5000, 5000));
}

fn a_hypervisors_port_is_read_beside_the_dut() {
    let topology = Topology::sink(Options::default());
    let folder = tempfile::tempdir().expect("a scratch folder");
    let file = |name: &str, full: u64| {
        let path = folder.path().join(name);
        std::fs::write(&path, format!("pkts rx ok:1 running out of buffers:{full}\n")).expect("it can be written");
        path.display().to_string()
    };
    let vsish = format!("vsish:file:{},{}", file("before", 5), file("after", 55));
    let profile = format!("{SINK}dut: {{observe: ['{vsish}', 'netns:{}'], interface: d0}}\n", topology.dut.name());
    let outcome = Plimsoll::with_profile(&profile)
        .run(&topology.generator, "run PROFILE --rate 10kpps --count 1000 --frame-size 128", Duration::from_secs(30))
        .expect_code(0);
    assert_eq!(outcome.count("received_frames"), 1000, "the guest's own count");
    let counters = outcome.trial(0)["dut"].as_array().expect("a list").clone();
    let tells = |name: &str, delta: u64| {
        counters
            .iter()
            .any(|c| c["counter"].as_str().is_some_and(|counter| counter.contains(name)) && c["delta"] == delta)
    };
    assert!(tells("running out of buffers", 50) && tells("Udp.NoPorts", 1000), "{counters:#?}");
    assert!(!outcome.caveats().contains(&"observer_failed".to_owned()), "{:?}", outcome.caveats());
}
