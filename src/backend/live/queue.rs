//! A port opened for live frames, and one worker's share of it.
//!
//! [`LiveQueue`] belongs to one pinned thread: fill the schedule ring, run the program for a bounded number of slots, read
//! the counters. A call never outlives its slots, so no signal is needed to stop it.

use std::{
    collections::BTreeSet,
    fs, io,
    os::{
        fd::{AsFd, AsRawFd, OwnedFd},
        unix::fs::MetadataExt,
    },
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU16, AtomicU64, Ordering::Relaxed},
    },
};

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use super::{
    hold::Hold,
    layout::{Head, Layout, RING, RING_DUE, RING_STREAM, StreamLayout},
    lower::{MapFds, XDP_TX, lower},
    probe::make_ready,
    sys::{self, SharedMap},
    xmit::{MAX_CPUS, XmitCount, XmitCounter},
};
use crate::{
    clock::Instant,
    error::{Error, Result},
    ids::WorkerId,
    program::TxProgram,
};

/// Longest frame that fits a page beside what the kernel keeps there, in bytes without FCS (x86-64, 4 KiB pages).
pub const MAX_BUF_LEN: usize = 3392;

/// A port opened for live frames: counts what its driver takes.
#[derive(Debug)]
pub struct LivePort {
    name: String,
    ifindex: u32,
    xmit: XmitCounter,
    /// CPUs that have a worker.
    cpus: Mutex<BTreeSet<usize>>,
    /// Makes some drivers take redirected frames.
    _pass: Option<OwnedFd>,
}

impl LivePort {
    /// Opens interface `name` (number `ifindex`) of the calling thread's network namespace, if [`super::probe`] would find nothing against it.
    ///
    /// # Errors
    /// Why live frames cannot be had here: kernel, privilege, driver.
    pub fn open(name: &str, ifindex: u32) -> Result<Arc<LivePort>> {
        let pass = make_ready(name, ifindex)?;
        let netns = fs::metadata("/proc/thread-self/ns/net")
            .map_err(|cause| Error::environment("look at", "the network namespace").os(&cause))?;
        let xmit = XmitCounter::new(ifindex, netns.ino() as u32)?;
        Ok(Arc::new(LivePort { name: name.to_owned(), ifindex, xmit, cpus: Mutex::default(), _pass: pass }))
    }

    /// Takes a CPU for the calling thread, of those it may run on, and pins it there: live frames are counted by CPU, so each
    /// worker must have one of its own.
    fn claim_cpu(&self) -> Result<usize> {
        let pin = || -> rustix::io::Result<Option<usize>> {
            let may = sched_getaffinity(None)?;
            let mut taken = self.cpus.lock().unwrap_or_else(PoisonError::into_inner);
            let Some(cpu) = (0..MAX_CPUS).find(|&cpu| may.is_set(cpu) && !taken.contains(&cpu)) else {
                return Ok(None);
            };
            let mut own = CpuSet::new();
            own.set(cpu);
            sched_setaffinity(None, &own)?;
            taken.insert(cpu);
            Ok(Some(cpu))
        };
        let refused = Error::environment("send live frames through", &self.name)
            .remedy("use fewer workers, more CPUs or --backend xsk");
        match pin() {
            Ok(Some(cpu)) => Ok(cpu),
            Ok(None) => {
                Err(refused.because("each worker needs a CPU of its own, and those it may use have one already"))
            }
            Err(cause) => Err(refused.os(&cause.into())),
        }
    }
}

/// One worker's generated program and its state.
#[derive(Debug)]
pub struct LiveQueue {
    port: Arc<LivePort>,
    cpu: usize,
    worker: WorkerId,
    workers: u16,
    loaded: Loaded,
    before: XmitCount,
    filled: u64,
    /// No ring entry has a due time or names another stream than the first.
    is_plain: bool,
}

/// A program in the kernel with its maps.
#[derive(Debug)]
struct Loaded {
    program: OwnedFd,
    _hold: Hold,
    state: SharedMap,
    /// The state as it is before the first frame.
    at_start: Box<[u8]>,
    /// Where each stream's counters stand in the state.
    streams: Box<[u32]>,
    /// What the pages start as; never sent as it is.
    frame: Box<[u8]>,
}

impl Loaded {
    fn new(port: &str, program: &TxProgram, worker: WorkerId, workers: u16) -> Result<Loaded> {
        let failed = |operation: &'static str| {
            move |cause: io::Error| {
                let remedy = match cause.raw_os_error() {
                    Some(libc::EPERM) => "run as root or with CAP_BPF, CAP_NET_ADMIN and CAP_SYS_ADMIN",
                    _ => "use --backend xsk",
                };
                Error::environment(operation, format!("the live program of {port} {worker}")).os(&cause).remedy(remedy)
            }
        };
        let layout = Layout::new(program, worker, workers)?;
        let constants = sys::constants_map(&layout.constants).map_err(failed("make maps for"))?;
        let state = SharedMap::new(&layout.state).map_err(failed("make maps for"))?;
        let maps = MapFds { state: state.as_raw_fd(), constants: constants.as_raw_fd() };
        let loaded = sys::load(&lower(program, &layout, maps)).map_err(failed("load"))?;
        Ok(Loaded {
            _hold: Hold::new(&loaded).map_err(failed("hold"))?,
            program: loaded,
            state,
            at_start: layout.state.into(),
            streams: layout.streams.iter().map(|stream| stream.state).collect(),
            frame: vec![0; program.max_buf_len()].into(),
        })
    }

    fn head(&self) -> &Head {
        &self.state.slice::<Head>(0, 1)[0]
    }
}

impl LiveQueue {
    /// Lowers the program for worker `worker` of `workers` and loads it. The calling thread must be in the port's network
    /// namespace; it is pinned to one of the CPUs it may run on.
    ///
    /// # Errors
    /// What cannot be lowered, by name; a program that the kernel refuses; a CPU that has a worker already.
    pub fn open(port: &Arc<LivePort>, program: &TxProgram, worker: WorkerId, workers: u16) -> Result<LiveQueue> {
        let loaded = Loaded::new(&port.name, program, worker, workers)?;
        let cpu = port.claim_cpu()?;
        let before = port.xmit.on_cpu(cpu);
        Ok(LiveQueue { port: port.clone(), cpu, worker, workers, loaded, before, filled: 0, is_plain: true })
    }

    /// Replaces the program, as if opened with this one.
    ///
    /// # Errors
    /// As [`LiveQueue::open`]; the former program stays.
    pub fn load(&mut self, program: &TxProgram) -> Result<()> {
        self.loaded = Loaded::new(&self.port.name, program, self.worker, self.workers)?;
        self.rewind();
        Ok(())
    }

    /// The CPU that it is pinned to.
    pub fn cpu(&self) -> usize {
        self.cpu
    }

    /// Forgets what is scheduled and starts over with the worker's first frame; counts start at 0.
    pub fn rewind(&mut self) {
        self.loaded.state.fill(&self.loaded.at_start);
        (self.filled, self.is_plain) = (0, true);
        self.before = self.port.xmit.on_cpu(self.cpu);
    }

    /// Free entries of the schedule ring.
    #[inline]
    pub fn room(&self) -> usize {
        RING.saturating_sub(self.pending() as usize)
    }

    /// Scheduled frames that are not made yet.
    pub fn pending(&self) -> u64 {
        self.filled - self.made()
    }

    /// Schedules the stream's next frame (by the stream's position in the program) for `due` plus [`LiveQueue::lag_ns`];
    /// `Instant(0)` is at once. Frames leave in the order in which they are scheduled. There must be room.
    #[inline]
    pub fn schedule(&mut self, stream: u16, due: Instant) {
        debug_assert!(self.room() > 0);
        let entry = self.filled as usize % RING;
        self.loaded.state.slice::<AtomicU16>(RING_STREAM, RING)[entry].store(stream, Relaxed);
        self.loaded.state.slice::<AtomicU64>(RING_DUE, RING)[entry].store(due.0, Relaxed);
        self.is_plain &= stream == 0 && due.0 == 0;
        self.filled += 1;
    }

    /// Schedules `frames` frames of the program's first stream, at once; returns how many it could take: all of them as long
    /// as nothing else was ever scheduled, because then every ring entry says just that.
    pub fn schedule_at_once(&mut self, frames: u64) -> u64 {
        if self.is_plain {
            self.filled += frames;
            return frames;
        }
        let frames = frames.min(self.room() as u64);
        (0..frames).for_each(|_| self.schedule(0, Instant(0)));
        frames
    }

    /// Sets the time from which on nothing leaves any more.
    pub fn set_end(&mut self, end: Instant) {
        self.loaded.head().end_ns.store(end.0, Relaxed);
    }

    /// Shows the program what is scheduled.
    fn publish(&self) {
        let head = self.loaded.head();
        if head.filled.load(Relaxed) == head.made.load(Relaxed) {
            // Nothing was waiting: the time since the last look is nobody's debt.
            head.looked_ns.store(0, Relaxed);
        }
        head.ring_mask.store(if self.is_plain { 0 } else { RING as u64 - 1 }, Relaxed);
        head.filled.store(self.filled, Relaxed);
    }

    /// How far behind the clock scheduled frames leave: the CPU was taken away while they waited.
    pub fn lag_ns(&self) -> u64 {
        self.loaded.head().lag_ns.load(Relaxed)
    }

    /// Of that lag, what was more than is repaid, since opening or rewinding.
    pub fn forgiven_ns(&self) -> u64 {
        self.loaded.head().forgiven_ns.load(Relaxed)
    }

    /// Runs the program for `slots` slots, each of which sends one frame or, if none is due, waits about 0.1 µs.
    ///
    /// Frames leave in bulks of 16 and at the end of every `batch` slots (1…256), between which the CPU's other work runs.
    ///
    /// # Errors
    /// The kernel refuses to run it (the device is gone). A signal only shortens the call.
    pub fn run(&mut self, slots: u32, batch: u32) -> Result<()> {
        self.publish();
        match sys::run_live(self.loaded.program.as_fd(), self.port.ifindex, &self.loaded.frame, slots, batch) {
            Err(cause) if cause.raw_os_error() != Some(libc::EINTR) => {
                let failed = Error::environment("send live frames through", &self.port.name).os(&cause);
                Err(match cause.raw_os_error() {
                    Some(libc::ENODEV) => failed.remedy("the interface was removed; its counts up to there stand"),
                    _ => failed,
                })
            }
            _ => Ok(()),
        }
    }

    /// Makes the next scheduled frame on a copy of `page` and returns it instead of sending it; `None` if none is due.
    ///
    /// # Errors
    /// The kernel refuses to run the program.
    pub fn preview(&mut self, page: &[u8]) -> Result<Option<Vec<u8>>> {
        self.publish();
        let (verdict, frame) = sys::run_once(self.loaded.program.as_fd(), page)
            .map_err(|cause| Error::environment("preview a live frame of", &self.port.name).os(&cause))?;
        Ok((verdict == XDP_TX as u32).then_some(frame))
    }

    /// Frames made and handed to the device's queue since opening or rewinding: offered.
    pub fn made(&self) -> u64 {
        self.loaded.head().made.load(Relaxed)
    }

    /// Frames of one stream made so far, by its position in the program.
    pub fn made_of(&self, stream: usize) -> u64 {
        let at = self.loaded.streams[stream] as usize + StreamLayout::INDEX as usize;
        (self.loaded.state.slice::<AtomicU64>(at, 1)[0].load(Relaxed) - u64::from(self.worker.0))
            / u64::from(self.workers)
    }

    /// What the driver took (completed) and what it did not, since opening or rewinding.
    pub fn transmitted(&self) -> XmitCount {
        let now = self.port.xmit.on_cpu(self.cpu);
        XmitCount {
            sent_frames: now.sent_frames - self.before.sent_frames,
            dropped_frames: now.dropped_frames - self.before.dropped_frames,
        }
    }
}

impl Drop for LiveQueue {
    fn drop(&mut self) {
        self.port.cpus.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.cpu);
    }
}
