//! A port opened for live frames, and one worker's share of it.
//!
//! [`LiveQueue`] belongs to one pinned thread: fill the schedule ring, run the program for a bounded number of slots, read
//! the counters. A call never outlives its slots, so no signal is needed to stop it.

use std::{
    fs,
    os::{
        fd::{AsFd, OwnedFd},
        unix::fs::MetadataExt,
    },
    sync::{
        Arc,
        atomic::{AtomicU16, AtomicU64, Ordering::Relaxed},
    },
};

use super::{
    hold::Hold,
    layout::{Head, Layout, RING, RING_DUE, RING_STREAM, StreamLayout},
    lower::{MapFds, XDP_TX, lower},
    sys::{self, SharedMap},
    xmit::{MAX_CPUS, XmitCount, XmitCounter},
};
use crate::{
    clock::Instant,
    error::{Error, Result},
    ids::WorkerId,
    program::TxProgram,
};

/// A port opened for live frames: counts what its driver takes.
pub struct LivePort {
    name: String,
    ifindex: u32,
    xmit: XmitCounter,
}

impl LivePort {
    /// Opens interface `name` (number `ifindex`) of the calling thread's network namespace.
    ///
    /// # Errors
    /// Without privilege, or if the kernel cannot count live frames (see the message).
    pub fn open(name: &str, ifindex: u32) -> Result<Arc<LivePort>> {
        let netns = fs::metadata("/proc/thread-self/ns/net")
            .map_err(|cause| Error::environment("look at", "the network namespace").os(&cause))?;
        let xmit = XmitCounter::new(ifindex, netns.ino() as u32)?;
        Ok(Arc::new(LivePort { name: name.to_owned(), ifindex, xmit }))
    }
}

/// One worker's generated program and its state.
pub struct LiveQueue {
    port: Arc<LivePort>,
    program: OwnedFd,
    _hold: Hold,
    state: SharedMap,
    streams: Vec<u32>,
    first_index: u64,
    workers: u64,
    frame: Vec<u8>,
    cpu: usize,
    before: XmitCount,
    filled: u64,
    /// No ring entry has a due time or names another stream than the first.
    is_plain: bool,
}

impl LiveQueue {
    /// Lowers the program for worker `worker` of `workers` and loads it. The calling thread, in the port's network
    /// namespace, must already be pinned to `cpu`.
    ///
    /// # Errors
    /// What cannot be lowered, by name; a program that the kernel refuses.
    pub fn open(
        port: &Arc<LivePort>,
        program: &TxProgram,
        worker: WorkerId,
        workers: u16,
        cpu: usize,
    ) -> Result<LiveQueue> {
        let failed = |operation: &'static str, cause: &std::io::Error| {
            let remedy = match cause.raw_os_error() {
                Some(libc::EPERM) => "run as root or with CAP_BPF, CAP_NET_ADMIN and CAP_SYS_ADMIN",
                _ => "use --backend xsk",
            };
            Error::environment(operation, format!("the live program of {} {worker}", port.name))
                .os(cause)
                .remedy(remedy)
        };
        if cpu >= MAX_CPUS {
            return Err(Error::environment("count live frames on", format!("CPU {cpu}"))
                .because(format!("only CPUs below {MAX_CPUS} are counted"))
                .remedy("use --backend xsk"));
        }
        let layout = Layout::new(program, worker, workers)?;
        let constants = sys::constants_map(&layout.constants).map_err(|cause| failed("make maps for", &cause))?;
        let state = SharedMap::new(&layout.state).map_err(|cause| failed("make maps for", &cause))?;
        let maps = MapFds { state: state.as_raw_fd(), constants: std::os::fd::AsRawFd::as_raw_fd(&constants) };
        let loaded = sys::load(&lower(program, &layout, maps)).map_err(|cause| failed("load", &cause))?;
        let hold = Hold::new(&loaded).map_err(|cause| failed("hold", &cause))?;
        Ok(LiveQueue {
            before: port.xmit.on_cpu(cpu),
            port: port.clone(),
            program: loaded,
            _hold: hold,
            state,
            streams: layout.streams.iter().map(|stream| stream.state).collect(),
            first_index: u64::from(worker.0),
            workers: u64::from(workers),
            frame: vec![0; program.max_buf_len()],
            cpu,
            filled: 0,
            is_plain: true,
        })
    }

    fn head(&self) -> &Head {
        &self.state.slice::<Head>(0, 1)[0]
    }

    /// Free entries of the schedule ring.
    pub fn room(&self) -> usize {
        RING - self.pending() as usize
    }

    /// Scheduled frames that are not made yet.
    pub fn pending(&self) -> u64 {
        self.filled - self.made()
    }

    /// Schedules the stream's next frame (by the stream's position in the program) for `due`; `Instant(0)` is at once.
    /// Frames leave in the order in which they are scheduled. There must be room.
    #[inline]
    pub fn schedule(&mut self, stream: u16, due: Instant) {
        debug_assert!(self.room() > 0);
        let entry = self.filled as usize % RING;
        self.state.slice::<AtomicU16>(RING_STREAM, RING)[entry].store(stream, Relaxed);
        self.state.slice::<AtomicU64>(RING_DUE, RING)[entry].store(due.0, Relaxed);
        self.is_plain &= stream == 0 && due.0 == 0;
        self.filled += 1;
    }

    /// Schedules as many frames of the only stream as there is room for but at most `frames`, at once; returns how many.
    pub fn schedule_at_once(&mut self, frames: u64) -> u64 {
        let frames = frames.min(self.room() as u64);
        if self.is_plain {
            self.filled += frames; // every entry already says: first stream, at once
        } else {
            (0..frames).for_each(|_| self.schedule(0, Instant(0)));
        }
        frames
    }

    /// Sets the time from which on nothing leaves any more.
    pub fn set_end(&mut self, end: Instant) {
        self.head().end_ns.store(end.0, Relaxed);
    }

    /// Runs the program for `slots` slots, each of which sends one frame or, if none is due, waits about 0.1 µs.
    ///
    /// Frames leave in bulks of 16 and at the end of every `batch` slots (1…256), between which the CPU's other work runs.
    ///
    /// # Errors
    /// The kernel refuses to run it (the device is gone). A signal only shortens the call.
    pub fn run(&mut self, slots: u32, batch: u32) -> Result<()> {
        self.head().filled.store(self.filled, Relaxed);
        match sys::run_live(self.program.as_fd(), self.port.ifindex, &self.frame, slots, batch) {
            Err(cause) if cause.raw_os_error() != Some(libc::EINTR) => {
                Err(Error::environment("send live frames through", &self.port.name)
                    .os(&cause)
                    .remedy("see whether the interface still exists"))
            }
            _ => Ok(()),
        }
    }

    /// Makes the next scheduled frame on a copy of `page` and returns it instead of sending it; `None` if none is due.
    ///
    /// # Errors
    /// The kernel refuses to run the program.
    pub fn preview(&mut self, page: &[u8]) -> Result<Option<Vec<u8>>> {
        self.head().filled.store(self.filled, Relaxed);
        let (verdict, frame) = sys::run_once(self.program.as_fd(), page)
            .map_err(|cause| Error::environment("preview a live frame of", &self.port.name).os(&cause))?;
        Ok((verdict == XDP_TX as u32).then_some(frame))
    }

    /// Frames made and handed to the device's queue since opening: offered.
    pub fn made(&self) -> u64 {
        self.head().made.load(Relaxed)
    }

    /// Frames of one stream made so far, by its position in the program.
    pub fn made_of(&self, stream: usize) -> u64 {
        let at = self.streams[stream] as usize + StreamLayout::INDEX as usize;
        (self.state.slice::<AtomicU64>(at, 1)[0].load(Relaxed) - self.first_index) / self.workers
    }

    /// What the driver took (completed) and what it did not, since opening.
    pub fn transmitted(&self) -> XmitCount {
        let now = self.port.xmit.on_cpu(self.cpu);
        XmitCount {
            sent_frames: now.sent_frames - self.before.sent_frames,
            dropped_frames: now.dropped_frames - self.before.dropped_frames,
        }
    }
}
