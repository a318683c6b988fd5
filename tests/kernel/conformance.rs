//! The same profile and seed give the same frames through every backend, with one worker and with two.
//!
//! What the far end of a veth captures is compared with the simulation as a multiset: byte for byte but for the time stamp,
//! which is put back to 0 together with the checksums over it, after a plain definition and an independent parser have verified
//! the frame as it was.

use std::{
    collections::BTreeMap,
    path::Path,
    sync::{Arc, atomic::AtomicBool},
};

use plimsoll::{
    backend::{live::LivePort, mem::MemSink},
    clock,
    engine::{BackendChoice, OpenPort, TrialSpec, TxPort},
    host::link::Link,
    ids::QueueId,
    profile::{self, Profile},
    program::{TxProgram, compile, compile::PortFacts, reference},
    units::NS_PER_S,
};
use proptest::{
    strategy::{Strategy, ValueTree},
    test_runner::TestRunner,
};

use crate::support::{
    harness::Test,
    inspect::inspect,
    netns::{Options, Topology},
    profiles::profile_text,
    traffic::Capture,
};

pub fn tests() -> Vec<Test> {
    crate::tests![
        every_shipped_profile_sends_the_same_frames_through_every_backend,
        generated_profiles_send_the_same_frames_through_every_backend,
    ]
}

/// Frames of a run: enough for every stream, size and pattern of the shipped profiles, few enough for tcpdump.
const FRAMES: u64 = 400;
/// Frames/s: a rate at which neither a veth's ring nor tcpdump's buffer loses any.
const LOAD_FPS: u64 = 50_000;
const GENERATED: usize = 12;
/// Generated frames are up to 1,500 bytes longer than their headers.
const MTU: u32 = 2500;

/// How often each frame came, stamps masked.
type Multiset = BTreeMap<Vec<u8>, usize>;

fn topology() -> Topology {
    let topology = Topology::sink(Options { queues: 2, mtu: MTU, ..Options::default() });
    // The DUT only listens: live frames need GRO there, and nobody may answer.
    topology.dut.sh("ethtool -K d0 gro on; ip addr flush dev d0");
    topology
}

/// The program of each port that sends, with the topology's MAC addresses: all of them leave through `g0`.
fn programs(topology: &Topology, profile: &Profile) -> Vec<Arc<TxProgram>> {
    let mac = |text: String| -> [u8; 6] {
        let bytes: Vec<u8> = text.split(':').map(|byte| u8::from_str_radix(byte, 16).expect("hex")).collect();
        bytes.try_into().expect("six bytes")
    };
    let mut facts: Vec<_> = (0..profile.ports.len()).map(PortFacts::placeholder).collect();
    let (own, dut) = (mac(topology.generator.mac("g0")), mac(topology.dut.mac("d0")));
    for port in &mut facts {
        (port.mac, port.dest_mac, port.mtu) = (own, Some(dut), Some(MTU.into()));
    }
    let compiled = compile(profile, &facts, 0x1234_5678, profile.seed).unwrap_or_else(|error| panic!("{error}"));
    compiled.programs.into_iter().filter(|program| !program.streams.is_empty()).map(Arc::new).collect()
}

/// Runs the program; returns how many frames left.
fn run(program: &Arc<TxProgram>, backend: BackendChoice, ifindex: u32, workers: u32) -> u64 {
    let port = OpenPort {
        ifname: "g0".into(),
        ifindex,
        queues: (0..workers).map(QueueId).collect(),
        cpus: vec![],
        backend,
        program: program.clone(),
        mtu: MTU.into(),
    };
    let mut port = TxPort::open(port, Arc::<AtomicBool>::default()).unwrap_or_else(|error| panic!("{error}"));
    let spec =
        TrialSpec { load_fps: Some(LOAD_FPS), duration_ns: 10 * NS_PER_S, count: Some(FRAMES), start: clock::now() };
    port.start(spec).expect("the workers wait");
    let report = port.finish().expect("the workers end");
    assert_eq!((report.error(), report.counts.own().refused_frames), (None, 0));
    report.counts.sent_frames()
}

/// What the simulation sends.
fn simulated(program: &Arc<TxProgram>, workers: u32) -> Multiset {
    let sink = MemSink::capturing(usize::MAX);
    run(program, BackendChoice::Mem(sink.clone()), 0, workers);
    let frames = sink.captured.lock().expect("no worker panicked").clone();
    multiset(program, &frames)
}

fn multiset<'a>(program: &TxProgram, frames: impl IntoIterator<Item = &'a Vec<u8>>) -> Multiset {
    let mut set = Multiset::new();
    for frame in frames {
        *set.entry(masked(program, frame)).or_default() += 1;
    }
    set
}

/// The frame without its stamp. Panics where a byte is not as defined, or a checksum is wrong.
fn masked(program: &TxProgram, frame: &[u8]) -> Vec<u8> {
    drop(inspect(frame));
    let number = |bytes: &[u8]| bytes.iter().fold(0u64, |value, &byte| value << 8 | u64::from(byte));
    for stream in &program.streams {
        for template in stream.templates.iter().filter(|template| template.bytes.len() == frame.len()) {
            let Some(site) = template.signature else { continue };
            let signature = &frame[usize::from(site.offset)..][..site.kind.len()];
            let (at, width) = site.kind.sequence();
            if signature[..at] != site.kind.constant(program.run_tag, stream.id.0)[..at] {
                continue;
            }
            let index = number(&signature[at..at + width]);
            let stamp = site.kind.stamp().map_or(0, |at| number(&signature[at..at + 4]) as u32);
            let mut expected = Vec::new();
            reference::frame(stream, index, stamp, &mut expected);
            assert_eq!(frame, expected, "stream {} frame {index}", stream.name);
            reference::frame(stream, index, 0, &mut expected);
            return expected;
        }
    }
    frame.to_vec()
}

/// Sends what each of the profile's ports sends in every way, and compares.
fn assert_conforms(topology: &Topology, profile: &Profile, what: &str) {
    let programs = programs(topology, profile);
    assert!(!programs.is_empty(), "{what}");
    for (n, program) in programs.into_iter().enumerate() {
        assert_port_conforms(topology, &program, &format!("{what}, sending port {n}"));
    }
}

fn assert_port_conforms(topology: &Topology, program: &Arc<TxProgram>, what: &str) {
    let expected = simulated(program, 1);
    assert!(!expected.is_empty(), "{what}");
    assert_eq!(simulated(program, 2), expected, "{what}: the simulation with two workers");
    let frames: usize = expected.values().sum();
    // (A filter on the direction would cost tcpdump its first frame; a stream may have any source.)
    let capture = Capture::start(&topology.dut, "d0", &format!("not ether src {}", topology.dut.mac("d0")));
    let mut runs = Vec::new();
    topology.generator.enter(|| {
        let link = Link::find("g0").expect("it is there");
        for workers in [1, 2] {
            let live = LivePort::open(&link.name, link.index).expect("the peer has GRO");
            for backend in [BackendChoice::XskCopy, BackendChoice::Packet, BackendChoice::Live(live)] {
                let name = format!("{what}: {backend:?} with {workers} workers");
                assert_eq!(run(program, backend, link.index, workers), frames as u64, "{name}");
                runs.push(name);
            }
        }
    });
    let captured: Vec<Vec<u8>> =
        capture.finish_with(frames * runs.len()).into_iter().map(|captured| captured.bytes).collect();
    assert_eq!(captured.len(), frames * runs.len(), "{what}: frames of all runs");
    // One run ends before the next begins, so each has its part of the capture.
    for (name, captured) in runs.iter().zip(captured.chunks(frames)) {
        let sent = multiset(program, captured);
        let differs = sent.iter().find(|(frame, count)| expected.get(*frame) != Some(count));
        assert!(
            sent == expected,
            "{name}: {} distinct frames instead of {}: {differs:02x?}",
            sent.len(),
            expected.len()
        );
    }
}

fn every_shipped_profile_sends_the_same_frames_through_every_backend() {
    let topology = topology();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("profiles");
    let mut paths: Vec<_> = folder.read_dir().expect("a folder").map(|entry| entry.expect("an entry").path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "yaml"));
    paths.sort();
    assert!(paths.len() >= 11, "{paths:?}");
    for path in paths {
        let profile = profile::load(&path, &|path| std::fs::read(path)).unwrap_or_else(|error| panic!("{error}"));
        assert_conforms(&topology, &profile, &path.display().to_string());
    }
}

fn generated_profiles_send_the_same_frames_through_every_backend() {
    let topology = topology();
    let mut runner = TestRunner::deterministic();
    for _ in 0..GENERATED {
        let text = profile_text().new_tree(&mut runner).expect("a profile can be made").current();
        let profile = profile::parse(&text, "generated").unwrap_or_else(|error| panic!("{text}\n{error}"));
        assert_conforms(&topology, &profile, &text);
    }
}
