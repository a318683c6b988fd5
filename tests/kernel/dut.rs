//! Fault injection: one place after the other loses frames, on real interfaces, and the verdict must name it.
//!
//! Every site is provoked alone, three times. The sender is a plain packet socket and the counts are the kernel's own, so nothing of the
//! product but its observers and its diagnosis is under test here.

use std::time::Duration;

use plimsoll::{
    diagnose::{Stage, TrialCounts, Verdict, VerdictKind, diagnose},
    dut::{
        observer::{Observer, Target},
        sink::SinkFile,
        stages::Side,
        story::Story,
    },
    host::tally::Tally,
    xdp::model::{Model, ModelConfig, Stage as ModelStage},
};

use crate::support::{
    frames::{Frame, deaf_socket, drain, inside, open_tap, read_tap},
    harness::{Test, skip},
    netns::{Netns, Options, Topology},
    run::wait_until,
    traffic::UdpSink,
};

pub fn tests() -> Vec<Test> {
    crate::tests![
        a_full_ring_of_the_duts_port_is_named,
        a_modelled_ring_is_named_by_its_command,
        a_driver_that_drops_is_named,
        a_full_softnet_backlog_is_named,
        a_missing_route_is_named,
        an_expired_time_to_live_is_named,
        a_bad_ip_checksum_is_named,
        a_bad_udp_checksum_is_named,
        a_full_socket_buffer_is_named,
        a_closed_port_is_named,
        a_wrong_mac_address_is_named,
        a_shaper_on_the_return_path_is_named,
        a_full_ring_of_the_generators_receiver_is_named,
        a_tap_that_nobody_reads_is_named,
        a_link_that_bounced_is_named,
        what_a_sink_counts_is_what_the_dut_received,
        five_healthy_set_ups_are_blamed_for_nothing,
    ]
}

/// Times that each site is provoked.
const RUNS: usize = 3;

/// The observers of a topology: the DUT's ports and the generator's.
struct Eyes {
    dut: Vec<Observer>,
    generator: Observer,
}

impl Eyes {
    fn of(topology: &Topology, dut_interfaces: &[&str], generator_interfaces: &[&str]) -> Eyes {
        let open = |netns: &str, interfaces: &[&str]| {
            let interfaces = interfaces.iter().map(|name| (*name).to_owned()).collect();
            Observer::open(&Target::Netns(netns.into()), interfaces).expect("a namespace can be observed")
        };
        let dut = vec![open(topology.dut.name(), dut_interfaces)];
        Eyes { dut, generator: open(topology.generator.name(), generator_interfaces) }
    }

    /// Watches a trial. `act` returns the intended, completed and received frames.
    fn watch(&self, act: impl FnOnce() -> [u64; 3]) -> (Option<Verdict>, Story) {
        let read = || -> Vec<_> { self.dut.iter().chain([&self.generator]).map(Observer::observe).collect() };
        let before = read();
        let [intended_frames, completed_frames, received] = act();
        let after = read();
        let sides = self.dut.iter().map(|observer| (observer, Side::Dut)).chain([(&self.generator, Side::Generator)]);
        let stories = sides
            .zip(before)
            .zip(after)
            .map(|(((observer, side), before), after)| Story::of(before, after, observer.interfaces(), side));
        let story = stories.reduce(Story::and).expect("there are two observers");
        let counts = TrialCounts {
            intended_frames,
            completed_frames,
            received_frames: Some(received),
            ..TrialCounts::default()
        };
        (diagnose(&counts, &story.moved, &story.facts, &[]), story)
    }

    /// The verdict of a trial must name `stage`, and explain nearly all of the loss.
    #[track_caller]
    fn expect(&self, stage: Stage, kind: VerdictKind, counter: &str, act: impl FnOnce() -> [u64; 3]) {
        let (verdict, story) = self.watch(act);
        let verdict = verdict.unwrap_or_else(|| panic!("no verdict; moved: {:#?}", story.moved));
        assert_eq!((verdict.stage, verdict.kind), (Some(stage), kind), "{verdict:#?}");
        assert!(verdict.evidence.iter().any(|evidence| evidence.counter.contains(counter)), "{counter}: {verdict:#?}");
        assert!(!verdict.advice.is_empty(), "{verdict:#?}");
        assert!(story.caveats.iter().all(|caveat| !caveat.text.contains("not observed")), "{:?}", story.caveats);
    }
}

/// A forwarding topology in which frames to 10.2.0.2 leave by `g1`, counted there.
fn forwarding() -> Topology {
    let topology = Topology::forward(Options::default());
    topology.dut.sh("ip neigh replace 10.2.0.2 lladdr 02:00:00:00:00:03 dev d1 nud permanent");
    // g1 has no address: what arrives is counted by its link and by nothing else.
    topology.generator.sh("ip link set g1 promisc on");
    topology
}

fn through(topology: &Topology) -> Frame {
    Frame::new(topology.dut.mac("d0"), [10, 2, 0, 2])
}

fn to_the_dut(topology: &Topology) -> Frame {
    Frame::new(topology.dut.mac("d0"), [10, 1, 0, 1])
}

/// Sends `count` frames through the DUT; what `g0` sent and what `g1` got.
fn forward(topology: &Topology, frame: &Frame, count: u64) -> [u64; 3] {
    let counter = |name, counter| topology.generator.counter(name, counter);
    let (sent, received) = (counter("g0", "tx_packets"), counter("g1", "rx_packets"));
    frame.send(&topology.generator, "g0", count, 50, Duration::from_micros(500));
    settle(topology);
    [count, counter("g0", "tx_packets") - sent, counter("g1", "rx_packets") - received]
}

/// Sends `count` frames at once; what was meant to go and what `g0` sent.
fn forward_burst(topology: &Topology, count: u64) -> [u64; 2] {
    let sent = || topology.generator.counter("g0", "tx_packets");
    let before = sent();
    through(topology).send(&topology.generator, "g0", count, 0, Duration::ZERO);
    [count, sent() - before]
}

/// Sends `count` frames to a terminating DUT that delivers `received()` of them.
fn terminate(topology: &Topology, frame: &Frame, count: u64, received: impl FnOnce() -> u64) -> [u64; 3] {
    let before = topology.generator.counter("g0", "tx_packets");
    frame.send(&topology.generator, "g0", count, 50, Duration::from_micros(500));
    settle(topology);
    [count, topology.generator.counter("g0", "tx_packets") - before, received()]
}

/// Waits until the counters of the last interface stand still: what is under way has arrived or is lost.
fn settle(topology: &Topology) {
    let all = || {
        topology.dut.sh("cat /sys/class/net/d*/statistics/[rt]x_packets")
            + &topology.generator.sh("cat /sys/class/net/g*/statistics/rx_*")
    };
    let mut last = all();
    for _ in 0..100 {
        std::thread::sleep(Duration::from_millis(30));
        let now = all();
        if now == last {
            return;
        }
        last = now;
    }
}

/// Makes every frame that comes in by `interface` cost tens of microseconds, on CPU 1.
fn slow_down(netns: &Netns, interface: &str) {
    netns.sh(&format!(
        "tc qdisc add dev {interface} clsact && for n in $(seq 1 2000); do \
         echo filter add dev {interface} ingress protocol ip pref $n u32 match ip dst 192.0.2.$((n % 250)) match ip sport $n 0xffff flowid 1:1; \
         done | tc -b -"
    ));
}

/// Gives `receiver` a NAPI thread of its own, so that the sender's CPU does not do its work. A veth uses NAPI only for frames that could
/// be merged, and takes those of a sender without segmentation offload for such.
fn own_thread((sender, from): (&Netns, &str), (receiver, to): (&Netns, &str)) {
    sender.sh(&format!("ethtool -K {from} tso off"));
    receiver.sh(&format!("ethtool -K {to} gro on && echo 1 > /sys/class/net/{to}/threaded"));
}

fn a_full_ring_of_the_duts_port_is_named() {
    let topology = forwarding();
    own_thread((&topology.generator, "g0"), (&topology.dut, "d0"));
    slow_down(&topology.dut, "d0");
    let eyes = Eyes::of(&topology, &["d0", "d1"], &["g0", "g1"]);
    for _ in 0..RUNS {
        // A veth reports what the peer's ring of 256 refused as its own tx_dropped: sent by nobody, refused by the DUT.
        eyes.expect(Stage::VnicRing, VerdictKind::DutLimited, "g0", || {
            let frame = through(&topology);
            let counter = |name, counter| topology.generator.counter(name, counter);
            let (sent, received) = (counter("g0", "tx_packets"), counter("g1", "rx_packets"));
            frame.send(&topology.generator, "g0", 20_000, 0, Duration::ZERO);
            settle(&topology);
            [20_000, counter("g0", "tx_packets") - sent, counter("g1", "rx_packets") - received]
        });
    }
}

/// Attaches the modelled DUT to d0 and returns it.
pub fn model(topology: &Topology, config: ModelConfig) {
    topology.generator.sh("ethtool -K g1 gro on");
    let mac = |text: String| -> [u8; 6] {
        let bytes: Vec<u8> = text.split(':').map(|byte| u8::from_str_radix(byte, 16).expect("a MAC address")).collect();
        bytes.try_into().expect("six bytes")
    };
    let config = ModelConfig {
        out_ifindex: index(&topology.dut, "d1"),
        source: mac(topology.dut.mac("d1")),
        destination: mac(topology.generator.mac("g1")),
        ..config
    };
    let d0 = index(&topology.dut, "d0");
    inside(&topology.dut, move || Model::attach(d0, &config).map(drop)).expect("the model can be attached");
}

fn a_modelled_ring_is_named_by_its_command() {
    let topology = forwarding();
    model(&topology, ModelConfig { ring: Some(ModelStage { rate_fps: 5_000, slots: 64 }), ..ModelConfig::default() });
    // As `plimsoll lab model` prints it. The driver's count of XDP drops moves too, at a later stage.
    let file = tempfile::NamedTempFile::new().expect("a scratch file can be made");
    let d0 = index(&topology.dut, "d0");
    let write_counters = || {
        let counters =
            inside(&topology.dut, move || Model::find(d0).and_then(|model| model.counters())).expect("it is there");
        std::fs::write(file.path(), format!("vnic_ring/ring_full: {}\n", counters.ring_full))
            .expect("it can be written");
    };
    let mut eyes = Eyes::of(&topology, &["d0", "d1"], &["g0", "g1"]);
    let command = Target::Command(format!("cat {}", file.path().display()));
    eyes.dut.insert(0, Observer::open(&command, vec!["d0".into()]).expect("a command can be observed"));
    for _ in 0..RUNS {
        write_counters();
        eyes.expect(Stage::VnicRing, VerdictKind::DutLimited, "ring_full", || {
            let counts = forward(&topology, &through(&topology), 3000);
            write_counters();
            counts
        });
    }
}

fn a_driver_that_drops_is_named() {
    let topology = forwarding();
    model(&topology, ModelConfig { loss_ppb: 300_000_000, ..ModelConfig::default() });
    let eyes = Eyes::of(&topology, &["d0", "d1"], &["g0", "g1"]);
    for _ in 0..RUNS {
        eyes.expect(Stage::Driver, VerdictKind::DutLimited, "xdp_drops", || {
            forward(&topology, &through(&topology), 2000)
        });
    }
}

fn a_full_softnet_backlog_is_named() {
    needs_two_cpus();
    let topology = forwarding();
    // Receive packet steering hands frames to CPU 1's backlog of 1000, and there each costs its filters.
    topology.dut.sh("echo 2 > /sys/class/net/d0/queues/rx-0/rps_cpus");
    slow_down(&topology.dut, "d0");
    let eyes = Eyes::of(&topology, &["d0", "d1"], &["g0", "g1"]);
    for _ in 0..RUNS {
        eyes.expect(Stage::Softnet, VerdictKind::DutLimited, "softnet", || {
            let counter = |name, counter| topology.generator.counter(name, counter);
            let (sent, received) = (counter("g0", "tx_packets"), counter("g1", "rx_packets"));
            through(&topology).on_cpu(0).send(&topology.generator, "g0", 20_000, 0, Duration::ZERO);
            settle(&topology);
            [20_000, counter("g0", "tx_packets") - sent, counter("g1", "rx_packets") - received]
        });
    }
}

fn a_missing_route_is_named() {
    let topology = forwarding();
    let eyes = Eyes::of(&topology, &["d0", "d1"], &["g0", "g1"]);
    let frame = Frame::new(topology.dut.mac("d0"), [203, 0, 113, 1]);
    for _ in 0..RUNS {
        eyes.expect(Stage::Ip, VerdictKind::DutLimited, "NoRoutes", || forward(&topology, &frame, 1000));
    }
}

fn an_expired_time_to_live_is_named() {
    let topology = forwarding();
    let eyes = Eyes::of(&topology, &["d0", "d1"], &["g0", "g1"]);
    let frame = Frame { ttl: 1, ..through(&topology) };
    for _ in 0..RUNS {
        eyes.expect(Stage::Ip, VerdictKind::DutLimited, "InHdrErrors", || forward(&topology, &frame, 1000));
    }
}

fn a_bad_ip_checksum_is_named() {
    let topology = forwarding();
    let eyes = Eyes::of(&topology, &["d0", "d1"], &["g0", "g1"]);
    let frame = Frame { ip_checksum_error: 1, ..through(&topology) };
    for _ in 0..RUNS {
        eyes.expect(Stage::Ip, VerdictKind::DutLimited, "InCsumErrors", || forward(&topology, &frame, 1000));
    }
}

fn a_bad_udp_checksum_is_named() {
    let topology = Topology::sink(Options::default());
    let eyes = Eyes::of(&topology, &["d0"], &["g0"]);
    let frame = Frame { udp_checksum_error: 1, ..to_the_dut(&topology) };
    let sink = UdpSink::bind(&topology.dut, "10.1.0.1:9");
    for _ in 0..RUNS {
        eyes.expect(Stage::Socket, VerdictKind::DutLimited, "Udp.InCsumErrors", || {
            terminate(&topology, &frame, 1000, || 0)
        });
    }
    assert_eq!(sink.finish().datagrams, 0);
}

fn a_full_socket_buffer_is_named() {
    let topology = Topology::sink(Options::default());
    let eyes = Eyes::of(&topology, &["d0"], &["g0"]);
    let socket = deaf_socket(&topology.dut, 9);
    for _ in 0..RUNS {
        eyes.expect(Stage::Socket, VerdictKind::DutLimited, "Udp.RcvbufErrors", || {
            terminate(&topology, &to_the_dut(&topology), 3000, || drain(&socket))
        });
    }
}

fn a_closed_port_is_named() {
    let topology = Topology::sink(Options::default());
    let eyes = Eyes::of(&topology, &["d0"], &["g0"]);
    for _ in 0..RUNS {
        eyes.expect(Stage::Socket, VerdictKind::DutLimited, "Udp.NoPorts", || {
            terminate(&topology, &to_the_dut(&topology), 1000, || 0)
        });
    }
}

fn a_wrong_mac_address_is_named() {
    let topology = forwarding();
    let eyes = Eyes::of(&topology, &["d0", "d1"], &["g0", "g1"]);
    let frame = Frame::new("02:00:00:00:00:77".into(), [10, 2, 0, 2]);
    for _ in 0..RUNS {
        eyes.expect(Stage::Link, VerdictKind::Inconclusive, "otherhost", || forward(&topology, &frame, 1000));
    }
}

fn a_shaper_on_the_return_path_is_named() {
    let topology = forwarding();
    topology.dut.sh("tc qdisc add dev d1 root tbf rate 500kbit burst 2000 limit 3000");
    let eyes = Eyes::of(&topology, &["d0", "d1"], &["g0", "g1"]);
    for _ in 0..RUNS {
        eyes.expect(Stage::Link, VerdictKind::Inconclusive, "qdisc", || forward(&topology, &through(&topology), 2000));
    }
}

fn a_full_ring_of_the_generators_receiver_is_named() {
    let topology = forwarding();
    own_thread((&topology.dut, "d1"), (&topology.generator, "g1"));
    slow_down(&topology.generator, "g1");
    let eyes = Eyes::of(&topology, &["d0", "d1"], &["g0", "g1"]);
    for _ in 0..RUNS {
        eyes.expect(Stage::GenRx, VerdictKind::GeneratorLimited, "d1 link tx_dropped", || {
            let counter = |name, counter| topology.generator.counter(name, counter);
            let (sent, received) = (counter("g0", "tx_packets"), counter("g1", "rx_packets"));
            through(&topology).send(&topology.generator, "g0", 10_000, 0, Duration::ZERO);
            settle(&topology);
            [10_000, counter("g0", "tx_packets") - sent, counter("g1", "rx_packets") - received]
        });
    }
}

fn a_tap_that_nobody_reads_is_named() {
    let topology = forwarding();
    // A guest behind a tap: the far end of the DUT's return path is a queue that a program must empty.
    let tap = inside(&topology.dut, || open_tap("t0"));
    topology.dut.sh("ip link set t0 up; ip addr add 10.3.0.1/24 dev t0; ip neigh replace 10.3.0.2 lladdr 02:00:00:00:00:04 dev t0 nud permanent");
    let eyes = Eyes::of(&topology, &["d0", "t0"], &["g0"]);
    let frame = Frame::new(topology.dut.mac("d0"), [10, 3, 0, 2]);
    for _ in 0..RUNS {
        eyes.expect(Stage::Vswitch, VerdictKind::DutLimited, "t0 link tx_dropped", || {
            let before = topology.generator.counter("g0", "tx_packets");
            frame.send(&topology.generator, "g0", 5_000, 50, Duration::from_micros(500));
            settle(&topology);
            [5_000, topology.generator.counter("g0", "tx_packets") - before, read_tap(&tap)]
        });
    }
}

fn a_link_that_bounced_is_named() {
    let topology = forwarding();
    let eyes = Eyes::of(&topology, &["d0", "d1"], &["g0", "g1"]);
    let mac = topology.dut.mac("d0");
    for _ in 0..RUNS {
        eyes.expect(Stage::Link, VerdictKind::Inconclusive, "carrier", || {
            let frame = Frame::new(mac.clone(), [10, 2, 0, 2]);
            let counter = |name, counter| topology.generator.counter(name, counter);
            let (sent, received) = (counter("g0", "tx_packets"), counter("g1", "rx_packets"));
            frame.send(&topology.generator, "g0", 500, 50, Duration::from_micros(500));
            topology.dut.sh("ip link set d1 down");
            frame.send(&topology.generator, "g0", 500, 50, Duration::from_micros(500));
            topology
                .dut
                .sh("ip link set d1 up; ip neigh replace 10.2.0.2 lladdr 02:00:00:00:00:03 dev d1 nud permanent");
            frame.send(&topology.generator, "g0", 500, 50, Duration::from_micros(500));
            settle(&topology);
            [1500, counter("g0", "tx_packets") - sent, counter("g1", "rx_packets") - received]
        });
    }
}

fn what_a_sink_counts_is_what_the_dut_received() {
    let topology = Topology::sink(Options::default());
    let eyes = Eyes::of(&topology, &["d0"], &["g0"]);
    let d0 = index(&topology.dut, "d0");
    let (mut tally, mut file) = inside(&topology.dut, move || {
        (Tally::open(d0).expect("root may open it"), SinkFile::create("d0").expect("root may write it"))
    });
    let signed = Frame { signed: true, ..to_the_dut(&topology) };
    let mut count = 0;
    for _ in 0..RUNS {
        let (verdict, story) = eyes.watch(|| {
            let before = count;
            let counts = terminate(&topology, &signed, 5000, || {
                to_the_dut(&topology).send(&topology.generator, "g0", 100, 50, Duration::ZERO);
                settle(&topology);
                count = tally.frames().expect("it can be read");
                count - before
            });
            file.write(count).expect("it can be written");
            counts
        });
        assert_eq!(verdict, None, "{:#?}", story.moved);
        let ingested = story.ingested.expect("the sink tells");
        assert_eq!((ingested.frames, ingested.counter), (5000, "received"), "frames of others are not counted");
    }
    drop(file);
    let (_, story) = eyes.watch(|| terminate(&topology, &signed, 100, || 100));
    assert_eq!(
        story.ingested.expect("the kernel tells").counter,
        "Ip.InDelivers",
        "without a sink the kernel's count serves"
    );
}

fn five_healthy_set_ups_are_blamed_for_nothing() {
    #[track_caller]
    fn healthy(what: &str, eyes: &Eyes, act: impl Fn() -> [u64; 3]) {
        for _ in 0..RUNS {
            let (verdict, story) = eyes.watch(&act);
            assert_eq!(verdict, None, "{what}: {:#?}", story.moved);
            assert!(story.caveats.is_empty(), "{what}: {:?}", story.caveats);
        }
    }
    let topology = forwarding();
    let eyes = Eyes::of(&topology, &["d0", "d1"], &["g0", "g1"]);
    healthy("a router", &eyes, || forward(&topology, &through(&topology), 2000));

    own_thread((&topology.generator, "g0"), (&topology.dut, "d0"));
    // A thread that the machine keeps waiting overflows its ring of 256, which is a loss: the next burst waits for the last.
    let in_step = |topology: &Topology| {
        let received = || topology.generator.counter("g1", "rx_packets");
        let (begun, mut sum) = (received(), [0; 3]);
        for burst in 1..=10 {
            let counts = forward_burst(topology, 200);
            sum = [sum[0] + counts[0], sum[1] + counts[1], 0];
            wait_until("the burst is through", || received() - begun >= 200 * burst);
        }
        [sum[0], sum[1], received() - begun]
    };
    healthy("a router with a thread of its own", &eyes, || in_step(&topology));

    healthy("a router that drops the frames of others", &eyes, || {
        let others = Frame { port: 7, ..Frame::new(topology.dut.mac("d0"), [203, 0, 113, 1]) };
        let counts = in_step(&topology);
        others.send(&topology.generator, "g0", 200, 0, Duration::ZERO);
        settle(&topology);
        counts
    });

    let sink = Topology::sink(Options::default());
    let eyes = Eyes::of(&sink, &["d0"], &["g0"]);
    let socket = UdpSink::bind(&sink.dut, "10.1.0.1:9");
    healthy("a program that reads", &eyes, || {
        let before = sink.dut.mib("UdpInDatagrams");
        terminate(&sink, &to_the_dut(&sink), 2000, || sink.dut.mib("UdpInDatagrams") - before)
    });
    assert_eq!(socket.finish().datagrams, 2000 * RUNS as u64);

    let modelled = forwarding();
    model(
        &modelled,
        ModelConfig { ring: Some(ModelStage { rate_fps: 10_000_000, slots: 4096 }), ..ModelConfig::default() },
    );
    let eyes = Eyes::of(&modelled, &["d0", "d1"], &["g0", "g1"]);
    healthy("a modelled DUT below its ceiling", &eyes, || forward(&modelled, &through(&modelled), 2000));
}

fn needs_two_cpus() {
    if std::thread::available_parallelism().map_or(1, std::num::NonZero::get) < 2 {
        skip("two-cpus", "the sender and the DUT's backlog need a CPU each");
    }
}

pub fn index(netns: &Netns, name: &str) -> u32 {
    netns.sh(&format!("cat /sys/class/net/{name}/ifindex")).parse().expect("an index is a number")
}
