//! Sending ports: opens queues, keeps their workers, runs trials on them and reports what they counted.
//!
//! The control thread calls [`TxPort`]; each worker is a thread of its own ([`spawn`]) with the hot loop in [`tx_worker`].
//! A port is opened once and runs any number of trials. What is counted here is offered and completed; what was really
//! sent is for the device's counters to confirm, what arrived for the receiver.

pub mod control;
pub mod counters;
pub mod live_worker;
pub mod spawn;
pub mod tx_worker;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use crate::{
    backend::{
        TxQueue,
        live::{self, LivePort, LiveQueue},
        mem::{MemQueue, MemSink},
        packet::PacketQueue,
        xsk::{self, XskMode, XskQueue},
    },
    clock::{self, Instant},
    error::{Error, Result},
    ids::{QueueId, WorkerId},
    pacer::{Part, plan},
    program::TxProgram,
};
use counters::{TxSnapshot, WorkerCounters};
use live_worker::LiveWorker;
use spawn::{Trial, WorkerEnd, WorkerHandle};
use tx_worker::SlotWorker;

/// Opening may wait up to 2 s for a queue that was just closed.
const OPEN_WITHIN: Duration = Duration::from_secs(10);
const LOAD_WITHIN: Duration = Duration::from_secs(10);
/// What a trial may take beyond its end: draining is bounded by 2 s without progress.
const END_GRACE: Duration = Duration::from_secs(10);

/// How frames leave, as chosen by the session; nothing falls back by itself.
#[derive(Debug, Clone)]
pub enum BackendChoice {
    /// AF_XDP: zero-copy where the driver has it, else copy.
    XskAuto,
    /// AF_XDP in zero-copy mode.
    XskZeroCopy,
    /// AF_XDP in copy mode.
    XskCopy,
    /// XDP live frames.
    Live(Arc<LivePort>),
    /// AF_PACKET.
    Packet,
    /// Simulation.
    Mem(Arc<MemSink>),
}

/// What to open.
#[derive(Debug, Clone)]
pub struct OpenPort {
    /// Interface, in the calling thread's network namespace.
    pub ifname: String,
    /// Its index.
    pub ifindex: u32,
    /// Queues: one worker each.
    pub queues: Vec<QueueId>,
    /// CPUs of the workers, in turn; none = not pinned.
    pub cpus: Vec<usize>,
    /// Backend.
    pub backend: BackendChoice,
    /// What to send first.
    pub program: Arc<TxProgram>,
    /// The interface's MTU, in bytes: a later program's frames may be as long as that allows.
    pub mtu: u64,
}

/// What a worker really got.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bound {
    /// Its queue.
    pub queue: QueueId,
    /// Its CPU, if pinned.
    pub cpu: Option<usize>,
    /// How it sends.
    pub mode: BoundMode,
    /// Longest frame it can send, in bytes without FCS.
    pub max_buf_len: usize,
    /// Why it is not zero-copy, where that was tried.
    pub why_not_zero_copy: Option<String>,
}

/// How a worker sends, as the kernel confirmed it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BoundMode {
    /// AF_XDP, zero-copy.
    ZeroCopy,
    /// AF_XDP, copy.
    Copy,
    /// XDP live frames.
    Live,
    /// AF_PACKET.
    Packet,
    /// Simulation.
    Mem,
}

impl BoundMode {
    /// As the result file writes it.
    pub fn as_str(self) -> &'static str {
        match self {
            BoundMode::ZeroCopy => "zero-copy",
            BoundMode::Copy => "copy",
            BoundMode::Live => "live",
            BoundMode::Packet => "packet",
            BoundMode::Mem => "mem",
        }
    }

    /// The backend it belongs to, as the result file writes it.
    pub fn backend(self) -> &'static str {
        match self {
            BoundMode::ZeroCopy | BoundMode::Copy => "xsk",
            BoundMode::Live => "live",
            BoundMode::Packet => "packet",
            BoundMode::Mem => "mem",
        }
    }
}

/// One trial.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TrialSpec {
    /// Frames/s of the port; `None` = as fast as possible.
    pub load_fps: Option<u64>,
    /// The trial ends then, whatever is unsent; `u64::MAX` = when everything is sent.
    pub duration_ns: u64,
    /// Exactly this many frames, over all streams and workers.
    pub count: Option<u64>,
    /// When to start; all workers of all ports start then.
    pub start: Instant,
}

/// A trial's outcome on the sending side.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TxReport {
    /// The final counts.
    pub counts: TxSnapshot,
    /// Frames asked for, by stream: due within the time that the trial ran, or the exact count. 0 when as fast as possible.
    pub intended_frames: Vec<u64>,
    /// How each worker ended.
    pub workers: Vec<WorkerEnd>,
    /// From the start to the end of sending (the longest worker).
    pub sent_for_ns: u64,
    /// The user stopped it.
    pub interrupted: bool,
}

impl TxReport {
    /// The first error of a worker, if any broke.
    pub fn error(&self) -> Option<&Error> {
        self.workers.iter().find_map(|worker| worker.error.as_ref())
    }
}

/// An open port: its workers wait for trials.
#[derive(Debug)]
pub struct TxPort {
    ifname: String,
    program: Arc<TxProgram>,
    bound: Vec<Bound>,
    counters: Vec<Arc<WorkerCounters>>,
    trial: Option<TrialSpec>,
    stop: Arc<AtomicBool>,
    /// Set when the port is dropped during a trial.
    abandon: Arc<AtomicBool>,
    // Last, so that the flags above outlive the threads.
    workers: Vec<WorkerHandle>,
}

impl TxPort {
    /// Opens all queues, each in its worker's thread. `stop` ends a trial within 50 ms.
    ///
    /// # Errors
    /// A queue could not be opened in this mode (the error says which and why), or a CPU cannot be pinned to.
    pub fn open(port: OpenPort, stop: Arc<AtomicBool>) -> Result<TxPort> {
        let abandon = Arc::new(AtomicBool::new(false));
        let workers_total = port.queues.len() as u16;
        let mut opened = TxPort {
            ifname: port.ifname.clone(),
            program: port.program.clone(),
            bound: Vec::new(),
            counters: Vec::new(),
            trial: None,
            stop: stop.clone(),
            abandon: abandon.clone(),
            workers: Vec::new(),
        };
        for (n, &queue) in port.queues.iter().enumerate() {
            let counters = Arc::new(WorkerCounters::new(port.program.streams.len()));
            let seat = Seat {
                queue,
                cpu: (!port.cpus.is_empty()).then(|| port.cpus[n % port.cpus.len()]),
                part: Part { worker: n as u16, workers: workers_total },
                counters: counters.clone(),
                stop: [stop.clone(), abandon.clone()],
            };
            opened.counters.push(counters);
            opened.workers.push(open_worker(&port, seat)?);
        }
        for worker in &mut opened.workers {
            opened.bound.push(worker.opened(OPEN_WITHIN)?);
        }
        opened.check_fits(&port.program)?;
        Ok(opened)
    }

    /// What each worker really got.
    pub fn bound(&self) -> &[Bound] {
        &self.bound
    }

    /// The program in use.
    pub fn program(&self) -> &Arc<TxProgram> {
        &self.program
    }

    /// Gives the workers another program (another frame size, say), without opening anything again. Not during a trial.
    ///
    /// # Errors
    /// A frame is longer than the port can send.
    pub fn load(&mut self, program: Arc<TxProgram>) -> Result<()> {
        self.check_fits(&program)?;
        for (worker, slot) in self.workers.iter_mut().zip(&mut self.counters) {
            let counters = Arc::new(WorkerCounters::new(program.streams.len()));
            worker.load(program.clone(), counters.clone(), LOAD_WITHIN)?;
            *slot = counters;
        }
        self.program = program;
        Ok(())
    }

    fn check_fits(&self, program: &TxProgram) -> Result<()> {
        let longest = program.max_buf_len();
        match self.bound.iter().find(|bound| bound.max_buf_len < longest) {
            None => Ok(()),
            Some(bound) => Err(Error::usage("send", format!("frames of {} bytes on {}", longest + 4, self.ifname))
                .because(format!(
                    "{} mode sends frames of at most {} bytes",
                    bound.mode.as_str(),
                    bound.max_buf_len + 4
                ))
                .remedy("use a shorter frame size or --backend packet")),
        }
    }

    /// Starts a trial; [`TxPort::finish`] waits for its end. Counters start at 0.
    ///
    /// # Errors
    /// A worker's thread has ended.
    pub fn start(&mut self, spec: TrialSpec) -> Result<()> {
        let counts: Option<Arc<[u64]>> = spec.count.map(|count| plan::allot(&self.program, count).into());
        let trial =
            Trial { start: spec.start, end: spec.start.plus_ns(spec.duration_ns), load_fps: spec.load_fps, counts };
        self.counters.iter().for_each(|counters| counters.reset());
        for worker in &self.workers {
            worker.run(trial.clone())?;
        }
        self.trial = Some(spec);
        Ok(())
    }

    /// A reading of the counters, at any time.
    pub fn counters(&self) -> TxSnapshot {
        TxSnapshot { workers: self.counters.iter().map(|counters| counters.read()).collect() }
    }

    /// Whether every worker has stopped: at the trial's end, or before it when its count or its last burst has left.
    pub fn has_ended(&mut self) -> bool {
        self.workers.iter_mut().all(WorkerHandle::has_ended)
    }

    /// Waits until every worker has stopped sending and its frames have completed, or completions stayed away for 2 s.
    ///
    /// # Errors
    /// No trial runs, or a worker does not answer. A queue that broke is in the report, not an error.
    pub fn finish(&mut self) -> Result<TxReport> {
        let Some(spec) = self.trial.take() else {
            return Err(Error::environment("finish", format!("a trial on {}", self.ifname)).because("none was started"));
        };
        let end = spec.start.plus_ns(spec.duration_ns);
        let mut workers = Vec::new();
        for worker in &mut self.workers {
            let within = Duration::from_nanos(end.since_ns(clock::now())).saturating_add(END_GRACE);
            workers.push(worker.ended(within)?);
        }
        let sent_for_ns = workers.iter().map(|worker| worker.sent_for_ns).max().unwrap_or(0);
        let interrupted = self.stop.load(Relaxed);
        let counts = spec.count.map(|count| plan::allot(&self.program, count));
        let asked_ns = if interrupted { sent_for_ns.min(spec.duration_ns) } else { spec.duration_ns };
        let intended_frames = match (spec.load_fps, counts) {
            (Some(load), counts) => plan::intended(&self.program, load, asked_ns, counts.as_deref()),
            (None, Some(counts)) => counts,
            (None, None) => vec![0; self.program.streams.len()],
        };
        Ok(TxReport { counts: self.counters(), intended_frames, workers, sent_for_ns, interrupted })
    }
}

impl Drop for TxPort {
    fn drop(&mut self) {
        self.abandon.store(true, Relaxed);
    }
}

/// One worker's place in its port.
struct Seat {
    queue: QueueId,
    cpu: Option<usize>,
    part: Part,
    counters: Arc<WorkerCounters>,
    stop: [Arc<AtomicBool>; 2],
}

impl Seat {
    fn worker<Q: TxQueue>(
        self,
        queue: Q,
        mode: BoundMode,
        max_buf_len: usize,
        program: &TxProgram,
    ) -> (SlotWorker<Q>, Bound) {
        let bound = Bound { queue: self.queue, cpu: self.cpu, mode, max_buf_len, why_not_zero_copy: None };
        (SlotWorker::new(queue, self.part, program, self.counters, self.stop), bound)
    }
}

fn open_worker(port: &OpenPort, seat: Seat) -> Result<WorkerHandle> {
    let name = worker_name(port, seat.part);
    let program = port.program.clone();
    // Ethernet header and two VLAN tags on top of the MTU.
    let max_len = program.max_buf_len().max(port.mtu as usize + 22);
    let (ifname, ifindex, cpu) = (port.ifname.clone(), port.ifindex, seat.cpu);
    let xsk_mode = match &port.backend {
        BackendChoice::XskAuto => XskMode::Auto,
        BackendChoice::XskZeroCopy => XskMode::ZeroCopy,
        BackendChoice::XskCopy => XskMode::Copy,
        BackendChoice::Live(live) => {
            let live = live.clone();
            return WorkerHandle::spawn(name, cpu, move || {
                let queue = LiveQueue::open(&live, &program, WorkerId(seat.part.worker), seat.part.workers)?;
                let bound = Bound {
                    queue: seat.queue,
                    cpu: Some(queue.cpu()),
                    mode: BoundMode::Live,
                    max_buf_len: live::MAX_BUF_LEN,
                    why_not_zero_copy: None,
                };
                Ok((LiveWorker::new(queue, seat.part, &program, seat.counters, seat.stop), bound))
            });
        }
        BackendChoice::Packet => {
            return WorkerHandle::spawn(name, cpu, move || {
                let queue = PacketQueue::open(&ifname, ifindex, seat.queue, max_len)?;
                Ok(seat.worker(queue, BoundMode::Packet, max_len, &program))
            });
        }
        BackendChoice::Mem(sink) => {
            let sink = sink.clone();
            return WorkerHandle::spawn(name, cpu, move || {
                let queue = MemQueue::open(seat.queue, sink, max_len);
                Ok(seat.worker(queue, BoundMode::Mem, max_len, &program))
            });
        }
    };
    WorkerHandle::spawn(name, cpu, move || {
        // As long as the MTU allows, where that fits a chunk.
        let max_len = max_len.min(xsk::MAX_BUF_LEN).max(program.max_buf_len());
        let (queue, why_not) = XskQueue::open(&ifname, seat.queue, xsk_mode, max_len)?;
        let mode = if queue.is_zero_copy() { BoundMode::ZeroCopy } else { BoundMode::Copy };
        let max_buf_len = queue.max_buf_len();
        let (worker, bound) = seat.worker(queue, mode, max_buf_len, &program);
        Ok((worker, Bound { why_not_zero_copy: why_not, ..bound }))
    })
}

/// A thread's name, cut to what the kernel keeps.
fn worker_name(port: &OpenPort, part: Part) -> String {
    format!("tx{}-{}", part.worker, port.ifname).chars().take(15).collect()
}

#[cfg(test)]
mod tests {
    use std::{collections::HashMap, sync::Mutex};

    use proptest::prelude::*;

    use super::*;
    use crate::{
        backend::mem::MemSink,
        pacer::testing::{program, stream},
        program::{Field, Generator, Mode, Write},
        units::{FrameLen, NS_PER_S},
        wire::signature::{SignatureKind, SignatureSite},
    };

    fn open(program: TxProgram, queues: u32, sink: &Arc<MemSink>) -> (TxPort, Arc<AtomicBool>) {
        let stop = Arc::new(AtomicBool::new(false));
        let port = OpenPort {
            ifname: "mem".into(),
            ifindex: 0,
            queues: (0..queues).map(QueueId).collect(),
            cpus: vec![],
            backend: BackendChoice::Mem(sink.clone()),
            program: Arc::new(program),
            mtu: 1500,
        };
        (TxPort::open(port, stop.clone()).unwrap(), stop)
    }

    fn spec(load_fps: Option<u64>, duration_ns: u64, count: Option<u64>) -> TrialSpec {
        TrialSpec { load_fps, duration_ns, count, start: clock::now() }
    }

    /// Two sizes in turn, a field of period 7 and a sequence.
    fn varied() -> TxProgram {
        let mut stream = stream(2, Mode::Continuous);
        stream.fields =
            vec![Field { name: "f".into(), generator: Generator::Step { start: 5, step: 3 }, div: 1, period: 7 }];
        stream.templates[0].writes = vec![Write { field: 0, offset: 34, width: 2, shift: 0, mask: 0xFFFF }];
        stream.templates[0].signature = Some(SignatureSite { offset: 42, kind: SignatureKind::Full });
        let mut long = stream.templates[0].clone();
        (long.bytes, long.frame_len) = (vec![0; 124].into(), FrameLen::new(128).unwrap());
        stream.templates.push(long);
        stream.pattern = vec![0, 1, 0];
        let mut other = stream.clone();
        (other.schedule.weight, other.fields[0].period) = (1, 5);
        program([stream, other])
    }

    /// Frames with the stamp masked.
    fn multiset(captured: &Mutex<Vec<Vec<u8>>>) -> HashMap<Vec<u8>, usize> {
        let mut set = HashMap::new();
        for mut frame in captured.lock().unwrap().drain(..) {
            frame[52..56].fill(0);
            *set.entry(frame).or_insert(0) += 1;
        }
        set
    }

    #[test]
    fn the_multiset_of_frames_does_not_depend_on_the_number_of_workers() {
        let mut sets = Vec::new();
        for (workers, load) in [(1, None), (2, None), (3, Some(2_000_000)), (5, None)] {
            let sink = MemSink::capturing(usize::MAX);
            let (mut port, _) = open(varied(), workers, &sink);
            port.start(spec(load, u64::MAX, Some(5_000))).unwrap();
            let report = port.finish().unwrap();
            assert_eq!(report.counts.total().completed_frames, 5_000);
            let counts = report.counts.streams();
            assert_eq!([counts[0].offered_frames, counts[1].offered_frames], [3_334, 1_666]);
            assert_eq!(report.intended_frames, [3_334, 1_666]);
            sets.push(multiset(&sink.captured));
        }
        assert!(sets.windows(2).all(|pair| pair[0] == pair[1]));
    }

    #[test]
    fn a_trial_ends_at_its_time_and_keeps_its_rate() {
        let sink = MemSink::counting();
        let (mut port, _) = open(varied(), 2, &sink);
        for load in [1_000, 100_000] {
            let before = clock::now();
            port.start(spec(Some(load), NS_PER_S / 5, None)).unwrap();
            let report = port.finish().unwrap();
            let took = clock::now().since_ns(before);
            assert!((NS_PER_S / 5..NS_PER_S * 2).contains(&took), "{took} ns");
            let (total, own) = (report.counts.total(), report.counts.own());
            assert_eq!(report.intended_frames.iter().sum::<u64>(), load / 5);
            // What the machine's load makes the pacer forgive is not sent, and nothing else is missing.
            let missing = load / 5 - total.completed_frames;
            assert!(missing <= own.forgiven_frames + own.forgiven_ns / 1_000 + 4, "{missing} missing, {own:?}");
            assert_eq!(total.offered_frames, total.completed_frames);
        }
    }

    #[test]
    fn a_stop_ends_an_endless_trial_at_once() {
        let sink = MemSink::counting();
        let (mut port, stop) = open(varied(), 1, &sink);
        port.start(spec(Some(100), u64::MAX, None)).unwrap();
        while port.counters().total().offered_frames == 0 {
            std::thread::yield_now();
        }
        let asked = clock::now();
        stop.store(true, Relaxed);
        let report = port.finish().unwrap();
        assert!(report.interrupted);
        assert!(clock::now().since_ns(asked) < NS_PER_S, "stopped late");
        assert!(report.intended_frames.iter().sum::<u64>() >= report.counts.total().offered_frames);
    }

    #[test]
    fn an_outage_is_counted_and_survived() {
        let sink = MemSink::counting();
        let (mut port, stop) = open(varied(), 1, &sink);
        port.start(spec(Some(50_000), u64::MAX, None)).unwrap();
        let until = |done: &dyn Fn(&TxSnapshot) -> bool| {
            while !done(&port.counters()) {
                std::thread::yield_now();
            }
        };
        until(&|now| now.total().completed_frames > 100);
        sink.link_down.store(true, Relaxed);
        until(&|now| now.own().link_down_ns > 50_000_000);
        sink.link_down.store(false, Relaxed);
        let back = clock::now();
        let sent = port.counters().total().completed_frames;
        until(&|now| now.total().completed_frames > sent + 100);
        assert!(clock::now().since_ns(back) < 2 * NS_PER_S, "resumed late");
        stop.store(true, Relaxed);
        let report = port.finish().unwrap();
        assert_eq!(report.error(), None);
        assert_eq!(report.counts.total().completed_frames, report.counts.total().offered_frames);
    }

    #[test]
    fn a_removed_device_ends_the_trial_with_its_totals() {
        let sink = MemSink::counting();
        let (mut port, _) = open(varied(), 1, &sink);
        port.start(spec(None, u64::MAX, None)).unwrap();
        while port.counters().total().completed_frames < 1000 {
            std::thread::yield_now();
        }
        sink.removed.store(true, Relaxed);
        let report = port.finish().unwrap();
        assert!(report.error().is_some_and(|error| error.to_string().contains("removed")));
        assert!(report.counts.total().completed_frames >= 1000);
    }

    #[test]
    fn a_slow_device_blocks_the_worker_and_forgives_nothing_silently() {
        let sink = MemSink::with_rate(50_000);
        let (mut port, _) = open(varied(), 1, &sink);
        port.start(spec(Some(500_000), NS_PER_S / 4, None)).unwrap();
        let report = port.finish().unwrap();
        let own = report.counts.own();
        assert!(own.ring_full > 0 && own.blocked_ns > NS_PER_S / 10, "{own:?}");
        assert!(own.forgiven_frames > 90_000, "{own:?}");
        assert_eq!(report.workers[0].outstanding_frames, 0);
    }

    #[test]
    fn frames_stuck_in_one_trial_do_not_count_in_the_next() {
        let sink = MemSink::counting();
        let (mut port, stop) = open(varied(), 1, &sink);
        sink.link_down.store(true, Relaxed);
        port.start(spec(None, 30_000_000, None)).unwrap();
        stop.store(true, Relaxed);
        let stuck = port.finish().unwrap();
        sink.link_down.store(false, Relaxed);
        stop.store(false, Relaxed);
        port.start(spec(None, u64::MAX, Some(3_000))).unwrap();
        let report = port.finish().unwrap();
        assert_eq!(report.counts.total().completed_frames, 3_000);
        assert_eq!(report.counts.own().late_frames, stuck.workers[0].outstanding_frames);
    }

    #[test]
    fn another_program_runs_without_opening_again_and_a_longer_frame_is_refused() {
        let sink = MemSink::capturing(10);
        let (mut port, _) = open(program([stream(1, Mode::Continuous)]), 1, &sink);
        port.load(Arc::new(varied())).unwrap();
        port.start(spec(None, u64::MAX, Some(7))).unwrap();
        assert_eq!(port.finish().unwrap().counts.streams().len(), 2);
        let mut jumbo = stream(1, Mode::Continuous);
        jumbo.templates[0].bytes = vec![0; 9000].into();
        assert!(port.load(Arc::new(program([jumbo]))).unwrap_err().to_string().contains("9004 bytes"));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        #[test]
        fn for_any_total_sent_equals_requested(count in 0u64..10_000, workers in 1u32..4, rate in prop_oneof![Just(None), Just(Some(2_000_000))]) {
            let sink = Arc::new(MemSink { rate_fps: rate, ..MemSink::default() });
            let (mut port, _) = open(varied(), workers, &sink);
            for _ in 0..2 {
                port.start(spec(None, u64::MAX, Some(count))).unwrap();
                let total = port.finish().unwrap().counts.total();
                prop_assert_eq!((total.offered_frames, total.completed_frames), (count, count));
            }
            prop_assert_eq!(sink.frames.load(Relaxed), 2 * count);
        }
    }
}
