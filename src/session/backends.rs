//! Which backend sends: the one asked for, or the fastest that is proved to work on this NIC.
//!
//! Control plane. `auto` tries zero-copy, live, copy, AF_PACKET in this order; each must open and pass the self-test: a few
//! frames complete *and* move the device's own counter. The report says why each faster one did not run.

use std::{
    collections::BTreeMap,
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use super::options::BackendChoice;
use crate::{
    backend::live::LivePort,
    clock,
    engine::{self, OpenPort, TrialSpec, TxPort},
    error::{Error, Result},
    host::link,
    ids::{PortId, StreamId},
    program::{Mode, Schedule, StreamProgram, Template, TxProgram},
    units::FrameLen,
};

/// The self-test's frames have one second to complete and to show in the device's counter.
const SELF_TEST_NS: u64 = 1_000_000_000;
/// Local experimental EtherType (IEEE 802): no stack answers it, no bridge treats it specially.
const SELF_TEST_ETHERTYPE: [u8; 2] = [0x88, 0xB5];

/// A port that sends, and why it does not do so faster.
pub(super) struct Chosen {
    pub port: TxPort,
    pub why_not: BTreeMap<String, String>,
}

/// Opens `port` (whose `backend` is overwritten) as `choice` says.
///
/// # Errors
/// An explicit choice that does not work; no backend that works.
pub(super) fn open(port: &OpenPort, choice: BackendChoice, stop: &Arc<AtomicBool>) -> Result<Chosen> {
    let candidates: &[Candidate] = match choice {
        BackendChoice::Auto => &[Candidate::XskZeroCopy, Candidate::Live, Candidate::XskCopy, Candidate::Packet],
        BackendChoice::Xsk => &[Candidate::XskZeroCopy, Candidate::XskCopy],
        BackendChoice::XskZeroCopy => &[Candidate::XskZeroCopy],
        BackendChoice::XskCopy => &[Candidate::XskCopy],
        BackendChoice::Live => &[Candidate::Live],
        BackendChoice::Packet => &[Candidate::Packet],
    };
    let mut why_not = BTreeMap::new();
    let mut last = None;
    for candidate in candidates {
        match candidate.open(port, stop) {
            Ok(port) => return Ok(Chosen { port, why_not }),
            Err(error) => {
                why_not.insert(candidate.name().to_owned(), error.to_string());
                last = Some(error);
            }
        }
    }
    let last = last.expect("every choice has a candidate");
    if candidates.len() == 1 {
        return Err(last);
    }
    let tried: Vec<String> = why_not.iter().map(|(name, why)| format!("{name}: {why}")).collect();
    Err(Error::environment("send on", &port.ifname).because(format!("no backend works ({})", tried.join("; "))))
}

/// A way to send that can be tried.
#[derive(Debug, Clone, Copy)]
enum Candidate {
    XskZeroCopy,
    Live,
    XskCopy,
    Packet,
}

impl Candidate {
    /// As `--backend` writes it.
    fn name(self) -> &'static str {
        match self {
            Candidate::XskZeroCopy => "xsk-zc",
            Candidate::Live => "live",
            Candidate::XskCopy => "xsk-copy",
            Candidate::Packet => "packet",
        }
    }

    /// Opens the port this way, and proves that frames leave.
    fn open(self, port: &OpenPort, stop: &Arc<AtomicBool>) -> Result<TxPort> {
        let backend = match self {
            Candidate::XskZeroCopy => engine::BackendChoice::XskZeroCopy,
            Candidate::Live => engine::BackendChoice::Live(LivePort::open(&port.ifname, port.ifindex)?),
            Candidate::XskCopy => engine::BackendChoice::XskCopy,
            Candidate::Packet => engine::BackendChoice::Packet,
        };
        let port = OpenPort { backend, ..port.clone() };
        let (ifname, ifindex, program) = (port.ifname.clone(), port.ifindex, port.program.clone());
        let mut opened = TxPort::open(port, stop.clone())?;
        self_test(&mut opened, &ifname, ifindex, &program)?;
        opened.load(program)?;
        Ok(opened)
    }
}

/// Sends two frames from each worker and looks for them in the device's counter.
fn self_test(port: &mut TxPort, ifname: &str, ifindex: u32, program: &TxProgram) -> Result<()> {
    let Some(first) = program.streams.first().and_then(|stream| stream.templates.first()) else { return Ok(()) };
    let frames = 2 * port.bound().len() as u64;
    port.load(Arc::new(probe(&first.bytes)))?;
    let before = link::sent_frames(ifindex)?;
    let start = clock::now();
    port.start(TrialSpec { load_fps: None, duration_ns: SELF_TEST_NS, count: Some(frames), start })?;
    let report = port.finish()?;
    if let Some(error) = report.error() {
        return Err(error.clone());
    }
    let failed = || Error::environment("pass the start-up test on", ifname);
    let completed: u64 = report.counts.total().completed_frames;
    if completed < frames {
        return Err(failed().because(format!("{completed} of {frames} frames completed within 1 s")));
    }
    let deadline = start.plus_ns(SELF_TEST_NS);
    loop {
        let moved = link::sent_frames(ifindex)?.saturating_sub(before);
        if moved >= frames {
            return Ok(());
        }
        if clock::now() >= deadline {
            return Err(failed().because(format!("{frames} frames completed, but the device counted {moved} as sent")));
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// The same program with an EtherType that nobody answers: all the generator's work, none of the DUT's.
pub(super) fn harmless(program: &TxProgram) -> TxProgram {
    let mut program = program.clone();
    for template in program.streams.iter_mut().flat_map(|stream| &mut stream.templates) {
        template.bytes[12..14].copy_from_slice(&SELF_TEST_ETHERTYPE);
    }
    program
}

/// A program of one minimum-size frame with the MAC addresses of `frame` and an EtherType that nobody answers.
fn probe(frame: &[u8]) -> TxProgram {
    let mut bytes = vec![0; FrameLen::MIN.buf_len()];
    bytes[..12].copy_from_slice(&frame[..12]);
    bytes[12..14].copy_from_slice(&SELF_TEST_ETHERTYPE);
    let template = Template {
        bytes: bytes.into(),
        frame_len: FrameLen::MIN,
        writes: Vec::new(),
        signature: None,
        checksums: Vec::new(),
    };
    let schedule =
        Schedule { weight: 1, start_delay_ns: 0, mode: Mode::Continuous, next: None, self_start: true, loops: 0 };
    let stream = StreamProgram {
        id: StreamId(0),
        name: "start-up test".into(),
        templates: vec![template],
        pattern: vec![0],
        fields: Vec::new(),
        schedule,
        flows: 1,
    };
    TxProgram { port: PortId(0), run_tag: 0, streams: vec![stream] }
}
