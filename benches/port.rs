//! What our own rows send: the default stream, through the same engine as `plimsoll run`.

use std::sync::{Arc, atomic::AtomicBool};

use plimsoll::{
    clock,
    engine::{BackendChoice, OpenPort, TrialSpec, TxPort},
    ids::QueueId,
    profile,
    program::{PortFacts, TxProgram, compile},
};

/// The default stream of a pair of ports at this frame size: 64 flows, UDP checksum, sequence and stamp.
pub fn default_program() -> Arc<TxProgram> {
    let profile = profile::parse(
        "ports:\n- {interface: g0, src_ip: 10.1.0.2, default_gw: 10.1.0.1}\n- {interface: g1, src_ip: 10.2.0.2, default_gw: 10.2.0.1}\n",
        "bench.yaml",
    )
    .expect("the smallest useful profile");
    let facts = [PortFacts::placeholder(0), PortFacts::placeholder(1)];
    let compiled = compile(&profile, &facts, 0xBE9C_0001, 1).expect("it compiles");
    Arc::new(compiled.programs[0].clone())
}

/// Opens a port with one worker per queue, the n-th on the n-th CPU.
pub fn open(backend: BackendChoice, ifindex: u32, queues: u32, stop: Arc<AtomicBool>) -> Result<TxPort, String> {
    let port = OpenPort {
        ifname: "g0".into(),
        ifindex,
        queues: (0..queues).map(QueueId).collect(),
        cpus: (0..queues as usize).collect(),
        backend,
        program: default_program(),
        mtu: 1500,
    };
    TxPort::open(port, stop).map_err(|error| error.to_string())
}

/// One trial; frames completed per second of sending.
pub fn run(port: &mut TxPort, load_fps: Option<u64>, duration_ns: u64) -> Result<f64, String> {
    let spec = TrialSpec { load_fps, duration_ns, count: None, start: clock::now() };
    port.start(spec).map_err(|error| error.to_string())?;
    let report = port.finish().map_err(|error| error.to_string())?;
    if let Some(error) = report.error() {
        return Err(error.to_string());
    }
    Ok(report.counts.sent_frames() as f64 * 1e9 / report.sent_for_ns as f64)
}
