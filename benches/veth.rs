//! One core and a veth pair in namespaces of their own; the receiver drops in native XDP on the sender's CPU. Frames/s are
//! read from the sending device's own counter, the same way for every row.

use std::{
    fs,
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use plimsoll::{
    engine::{BackendChoice, TrialSpec, TxPort},
    host::{
        link::{self, Link},
        scheduling::favour_this_thread,
    },
};
use rustix::thread::{CpuSet, sched_setaffinity};

use crate::{
    bare_xsk, port,
    rounds::{Claim, Outcome, Row, measure},
    support::{
        bpf,
        netns::{Options, Topology},
    },
};

/// How long a row is measured, once frames flow.
const RUN: Duration = Duration::from_millis(700);
const WARM_UP: Duration = Duration::from_millis(200);
/// How long a tool may take until its first frame.
const START_WITHIN: Duration = Duration::from_secs(20);

/// Longer than any row is measured.
const LONGEST_NS: u64 = 60_000_000_000;

/// The link under test: `g0` sends, `d0` drops.
pub struct Veth {
    /// Its two namespaces.
    pub topology: Topology,
}

impl Veth {
    /// Makes it, with this many queues.
    pub fn new(queues: u32) -> Veth {
        let topology = Topology::sink(Options { queues, ..Options::default() });
        let object = bpf::compile("drop");
        topology.dut.sh(&format!("ip link set d0 xdpdrv obj {} sec xdp", object.path().display()));
        Veth { topology }
    }

    /// Frames/s of whatever sends meanwhile, after it has started and warmed up. Reads the counter by netlink on a favoured thread:
    /// where senders fill every CPU, a child process would get its turn only after they have ended.
    pub fn rate(&self, is_alive: impl FnMut() -> Result<(), String> + Send) -> Result<f64, String> {
        self.topology.generator.enter(|| rate_here(is_alive))
    }

    /// Our engine as fast as possible, one worker per queue.
    pub fn engine(&self, backend: &BackendChoice, queues: u32) -> Result<f64, String> {
        let stop = Arc::new(AtomicBool::new(false));
        let mut port = self.topology.generator.enter(|| {
            let link = Link::find("g0").map_err(|error| error.to_string())?;
            port::open(backend.clone(), link.index, queues, stop.clone())
        })?;
        self.measure(&mut port, None, &stop)
    }

    /// The rate of a port that sends until it was measured.
    pub fn measure(&self, port: &mut TxPort, load_fps: Option<u64>, stop: &AtomicBool) -> Result<f64, String> {
        let spec = TrialSpec { load_fps, duration_ns: LONGEST_NS, count: None, start: plimsoll::clock::now() };
        port.start(spec).map_err(|error| error.to_string())?;
        let rate = self.rate(|| Ok(()));
        stop.store(true, Relaxed);
        let report = port.finish().map_err(|error| error.to_string())?;
        report.error().map_or(rate, |error| Err(error.to_string()))
    }

    /// The bare AF_XDP loop on CPU 0.
    pub fn bare(&self) -> Result<f64, String> {
        let stop = Arc::new(AtomicBool::new(false));
        let frame = port::default_program().streams[0].templates[0].bytes.clone();
        let sender = self.topology.generator.enter(|| {
            let stop = stop.clone();
            std::thread::spawn(move || {
                let mut cpus = CpuSet::new();
                cpus.set(0);
                sched_setaffinity(None, &cpus).map_err(|error| error.to_string())?;
                bare_xsk::send("g0", &frame, &stop)
            })
        });
        let rate = self.rate(|| if sender.is_finished() { Err("it ended early".into()) } else { Ok(()) });
        stop.store(true, Relaxed);
        sender.join().map_err(|_| "it panicked".to_owned())??;
        rate
    }

    /// Another tool, started inside the generator's namespace and killed after the measurement.
    pub fn tool(&self, program: &str, arguments: &[&str]) -> Result<f64, String> {
        let found = Command::new("sh").args(["-c", &format!("command -v {program}")]).output();
        if !found.is_ok_and(|output| output.status.success()) {
            return Err(format!("{program} is not installed"));
        }
        let log = tempfile::NamedTempFile::new().map_err(|error| error.to_string())?;
        let output = || log.reopen().map(Stdio::from).map_err(|error| error.to_string());
        let child = self
            .topology
            .generator
            .command(program)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(output()?)
            .stderr(output()?)
            .spawn()
            .map_err(|error| error.to_string())?;
        let mut tool = Tool(child);
        let rate = self.rate(|| match tool.0.try_wait() {
            Ok(None) => Ok(()),
            _ => {
                let text = fs::read_to_string(log.path()).unwrap_or_default();
                Err(format!("it ended early: {}", text.lines().last().unwrap_or("without a word")))
            }
        });
        drop(tool);
        // testpmd leaves the interface down and its own program attached.
        self.topology.generator.sh("ip link set g0 xdp off; ip link set g0 up");
        rate
    }
}

/// [`Veth::rate`] in the sender's namespace.
fn rate_here(mut is_alive: impl FnMut() -> Result<(), String>) -> Result<f64, String> {
    favour_this_thread().map_err(|error| error.to_string())?;
    let index = Link::find("g0").map_err(|error| error.to_string())?.index;
    let sent = || link::stats(index).map(|stats| stats.tx_packets).map_err(|error| error.to_string());
    let (before, asked) = (sent()?, Instant::now());
    while sent()? < before + 1000 {
        is_alive()?;
        if asked.elapsed() > START_WITHIN {
            return Err(format!("sent nothing within {START_WITHIN:?}"));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    std::thread::sleep(WARM_UP);
    let (start, from) = (Instant::now(), sent()?);
    std::thread::sleep(RUN);
    let (end, to) = (Instant::now(), sent()?);
    Ok((to - from) as f64 / (end - start).as_secs_f64())
}

/// A tool that ends with the measurement.
struct Tool(Child);

impl Drop for Tool {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// DPDK's testpmd, transmit only on net_af_xdp: the forwarding core is CPU 0, the idle main core CPU 1.
pub fn testpmd(veth: &Veth) -> Result<f64, String> {
    veth.tool(
        "dpdk-testpmd",
        &[
            "--no-huge",
            "-m",
            "1024",
            "--no-pci",
            "--no-telemetry",
            "--lcores",
            "0@1,1@0",
            "-d",
            "librte_net_af_xdp.so",
            "--vdev",
            "net_af_xdp0,iface=g0",
            "--",
            "--total-num-mbufs=16384",
            "--forward-mode=txonly",
            "--txpkts=60",
            "--burst=64",
            "--auto-start",
        ],
    )
}

/// `xsk-copy` beside testpmd and the bare loop.
pub fn one_core(rounds: usize) -> Outcome {
    let veth = Veth::new(1);
    let rows = vec![
        Row::new("xsk-copy", || veth.engine(&BackendChoice::XskCopy, 1)),
        Row::new("bare xsk loop", || veth.bare()),
        Row::new("testpmd net_af_xdp", || testpmd(&veth)),
        Row::new("packet", || veth.engine(&BackendChoice::Packet, 1)),
    ];
    let claims = vec![
        Claim { row: "xsk-copy", of: "testpmd net_af_xdp", ratio: 0.97 },
        Claim { row: "xsk-copy", of: "bare xsk loop", ratio: 0.97 },
    ];
    measure("veth, one core", rounds, rows, claims)
}

/// Two workers on two queues and two CPUs beside one.
pub fn two_cores(rounds: usize) -> Outcome {
    let veth = Veth::new(2);
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let rows = vec![
        Row::new("one worker", || veth.engine(&BackendChoice::XskCopy, 1)),
        Row::new("two workers", || {
            if cpus < 2 { Err("needs two CPUs".into()) } else { veth.engine(&BackendChoice::XskCopy, 2) }
        }),
    ];
    let claims = vec![Claim { row: "two workers", of: "one worker", ratio: 1.8 }];
    measure("veth, two cores", rounds, rows, claims)
}
