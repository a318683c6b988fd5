//! Live frames beside a bare live redirect and other tools; the receiver drops in native XDP on the sender's CPU.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering::Relaxed},
};

use plimsoll::{
    backend::live::LivePort,
    engine::{BackendChoice, OpenPort, TxPort},
    host::{link::Link, scheduling::favour_this_thread},
    ids::QueueId,
    profile,
    program::{
        Generator, StreamProgram, Template, TxProgram,
        compile::{PortFacts, compile},
    },
    xdp::rx::{Receiver, RxConfig, XdpChoice},
};
use rustix::thread::{CpuSet, sched_setaffinity};

use crate::{
    bare_live::BareLive,
    port::default_program,
    rounds::{Claim, Outcome, Row, measure},
    support::{
        bpf,
        program::{FIVE, program, udp_stream},
    },
    veth::{Veth, testpmd},
};

/// A load nobody reaches: paced, in calls of a fraction of a millisecond, yet as fast as that goes.
const UNREACHABLE_FPS: u64 = 50_000_000;

impl Veth {
    /// Our engine on live frames, one worker per queue.
    fn live(&self, program: &Arc<TxProgram>, queues: u32, load_fps: Option<u64>) -> Result<f64, String> {
        let stop = Arc::new(AtomicBool::new(false));
        let open = || {
            let link = Link::find("g0")?;
            let port = OpenPort {
                ifname: "g0".into(),
                ifindex: link.index,
                queues: (0..queues).map(QueueId).collect(),
                cpus: (0..queues as usize).collect(),
                backend: BackendChoice::Live(LivePort::open("g0", link.index)?),
                program: program.clone(),
                mtu: 1500,
            };
            TxPort::open(port, stop.clone())
        };
        let mut port = self.topology.generator.enter(open).map_err(|error| error.to_string())?;
        self.measure(&mut port, load_fps, &stop)
    }

    /// The bare redirect on CPUs 0 up to `cpus`.
    fn bare_live(&self, cpus: usize, frames_a_call: u32, batch: u32) -> Result<f64, String> {
        let stop = AtomicBool::new(false);
        self.topology.generator.enter(|| {
            let ifindex = Link::find("g0").map_err(|error| error.to_string())?.index;
            std::thread::scope(|scope| {
                for cpu in 0..cpus {
                    let stop = &stop;
                    scope.spawn(move || {
                        let mut own = CpuSet::new();
                        own.set(cpu);
                        sched_setaffinity(None, &own).expect("the CPU exists");
                        // As the engine's workers do: on a busy machine anything else would compare priorities.
                        favour_this_thread().expect("root may favour a thread");
                        let bare = BareLive::open(ifindex);
                        while !stop.load(Relaxed) {
                            bare.send(frames_a_call, batch);
                        }
                    });
                }
                let rate = self.rate(|| Ok(()));
                stop.store(true, Relaxed);
                rate
            })
        })
    }
}

/// The default stream in another size.
fn sized(size: &str) -> Arc<TxProgram> {
    let text = format!("ports: [{{interface: g0, src_ip: 10.1.0.2, default_gw: 10.1.0.1}}]\nsize: {size}\n");
    let profile = profile::parse(&text, "bench.yaml").expect("a profile");
    let compiled = compile(&profile, &[PortFacts::placeholder(0)], 0xBE9C_0001, 1).expect("it compiles");
    Arc::new(compiled.programs[0].clone())
}

/// The five fields at random.
fn five_random() -> Arc<TxProgram> {
    let mut program = TxProgram::clone(&five_fields());
    for (seed, field) in (1..).zip(&mut program.streams[0].fields) {
        field.generator = Generator::Random { seed, low: 1024, span: field.period };
        field.period = 1 << 63;
    }
    Arc::new(program)
}

/// Four copies of the default stream with equal shares.
fn four_streams() -> Arc<TxProgram> {
    let mut program = TxProgram::clone(&default_program());
    program.streams = vec![program.streams[0].clone(); 4];
    Arc::new(program)
}

fn five_fields() -> Arc<TxProgram> {
    Arc::new(program(vec![udp_stream([2, 0, 0, 0, 0, 2], [2, 0, 0, 0, 0, 1], &FIVE)]))
}

/// The default stream as trafgen writes it: 64 source ports, checksums, on CPU 0.
fn trafgen(veth: &Veth) -> Result<f64, String> {
    let config = tempfile::NamedTempFile::new().map_err(|error| error.to_string())?;
    let text = "{ eth(da=02:00:00:00:00:02, sa=02:00:00:00:00:01), ipv4(sa=10.1.0.2, da=10.2.0.2, ttl=64), \
                udp(sp=dinc(1024,1087), dp=9), fill(0x00, 18) }";
    std::fs::write(config.path(), text).map_err(|error| error.to_string())?;
    let path = config.path().display().to_string();
    veth.tool("taskset", &["-c", "0", "trafgen", "--dev", "g0", "--conf", &path, "--cpus", "1"])
}

fn xdp_trafficgen(veth: &Veth) -> Result<f64, String> {
    let arguments =
        ["udp", "g0", "-m", "02:00:00:00:00:01", "-M", "02:00:00:00:00:02", "-a", "fd00::1", "-A", "fd00::2"];
    veth.tool("xdp-trafficgen", &arguments)
}

/// One core.
pub fn one_core(rounds: usize) -> Outcome {
    let veth = Veth::new(1);
    let (default, five) = (default_program(), five_fields());
    let rows = vec![
        Row::new("bare live redirect", || veth.bare_live(1, 1 << 20, 256)),
        Row::new("bare, batches of 64", || veth.bare_live(1, 1 << 20, 64)),
        Row::new("live", || veth.live(&default, 1, None)),
        Row::new("live, 5 fields", || veth.live(&five, 1, None)),
        Row::new("live, paced", || veth.live(&default, 1, Some(UNREACHABLE_FPS))),
        Row::new("testpmd net_af_xdp", || testpmd(&veth)),
        Row::new("trafgen", || trafgen(&veth)),
        Row::new("xdp-trafficgen", || xdp_trafficgen(&veth)),
    ];
    let claims = vec![
        Claim { row: "live", of: "bare live redirect", ratio: 0.92 },
        Claim { row: "live, paced", of: "bare live redirect", ratio: 0.85 },
        Claim { row: "live, 5 fields", of: "bare live redirect", ratio: 0.80 },
        Claim { row: "live", of: "testpmd net_af_xdp", ratio: 7.0 },
        Claim { row: "live", of: "trafgen", ratio: 12.0 },
    ];
    measure("live, one core", rounds, rows, claims)
}

/// Two workers on two queues and two CPUs beside one.
pub fn two_cores(rounds: usize) -> Outcome {
    let veth = Veth::new(2);
    let default = default_program();
    let rows = vec![
        Row::new("bare, one core", || veth.bare_live(1, 1 << 16, 64)),
        Row::new("bare, two cores", || veth.bare_live(2, 1 << 16, 64)),
        Row::new("live, one core", || veth.live(&default, 1, None)),
        Row::new("live, two cores", || veth.live(&default, 2, None)),
    ];
    // Live scales at least 0.95 × as well as the bare loop, beside which one core of it reaches at least 0.92.
    let claims = vec![Claim { row: "live, two cores", of: "bare, two cores", ratio: 0.95 * 0.92 }];
    measure("live, two cores", rounds, rows, claims)
}

/// What the parts of a program cost, for ARCHITECTURE.md.
pub fn costs(rounds: usize) -> Outcome {
    let veth = Veth::new(1);
    let bare = Arc::new(program(vec![StreamProgram {
        templates: vec![Template {
            signature: None,
            checksums: vec![],
            ..udp_stream([2; 6], [4; 6], &[]).templates[0].clone()
        }],
        ..udp_stream([2; 6], [4; 6], &[])
    }]));
    let signed = Arc::new(program(vec![udp_stream([2; 6], [4; 6], &[])]));
    let (default, five, random) = (default_program(), five_fields(), five_random());
    let (four, imix, long) = (four_streams(), sized("imix"), sized("1518"));
    let rows = vec![
        Row::new("bare live redirect", || veth.bare_live(1, 1 << 20, 64)),
        Row::new("constant frame", || veth.live(&bare, 1, None)),
        Row::new("+ signature, checksum", || veth.live(&signed, 1, None)),
        Row::new("+ 64 flows (default)", || veth.live(&default, 1, None)),
        Row::new("5 fields", || veth.live(&five, 1, None)),
        Row::new("5 random fields", || veth.live(&random, 1, None)),
        Row::new("4 streams", || veth.live(&four, 1, None)),
        Row::new("imix", || veth.live(&imix, 1, None)),
        Row::new("1518 bytes", || veth.live(&long, 1, None)),
    ];
    measure("live, costs", rounds, rows, vec![])
}

/// Our counting program, latency and order included, beside one that only counts; a live sender on the same core.
pub fn receive(rounds: usize) -> Outcome {
    let veth = Veth::new(1);
    let default = default_program();
    let bare = |fixture: &str| {
        let object = bpf::compile(fixture);
        veth.topology
            .dut
            .sh(&format!("ip link set d0 xdp off; ip link set d0 xdpdrv obj {} sec xdp", object.path().display()));
        veth.live(&default, 1, None)
    };
    let rows = vec![
        Row::new("bare counting drop", || bare("count")),
        Row::new("bare drop", || bare("drop")),
        Row::new("full counting", || {
            veth.topology.dut.sh("ip link set d0 xdp off");
            let config = RxConfig::of_programs([(&*default, 1)]);
            let attach = || Receiver::attach(&Link::find("d0")?, &config, XdpChoice::Native);
            let receiver = veth.topology.dut.enter(attach).map_err(|error| error.to_string())?;
            let rate = veth.live(&default, 1, None);
            let counted = receiver.snapshot();
            assert!(counted.frames() > 0 && counted.latency.count() > 0, "stamped frames arrived");
            rate
        }),
    ];
    let claims = vec![Claim { row: "full counting", of: "bare counting drop", ratio: 0.85 }];
    measure("live, receive", rounds, rows, claims)
}
