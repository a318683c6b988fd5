//! The transmit hot loop over a slot queue: reap → budget → fill → kick, by the burst.
//!
//! Runs in one pinned thread per queue. One clock read per burst; while sending it allocates, locks, logs and divides
//! nothing. Every wait is bounded and looks at the stop flag. It decides neither the backend nor the rate, and counts a
//! frame as offered when the queue accepts it, as completed when the queue gives its slot back.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use crate::{
    backend::{Kick, TxQueue},
    clock::{self, Instant},
    engine::{
        counters::WorkerCounters,
        spawn::{Trial, TxWorker, WorkerEnd},
    },
    error::Result,
    pacer::{Pacer, Part},
    program::{
        TxProgram,
        cursor::{BURST, Cursor, Tag},
    },
    wire::signature,
};

/// A pause worth sleeping for, and how long before its end to wake, in ns.
const SLEEP_NS: u64 = 400_000;
const WAKE_EARLY_NS: u64 = 200_000;
/// Longest sleep, so that the stop flag is seen in time.
const MAX_SLEEP_NS: u64 = 10_000_000;
/// Pause between attempts while the link is down.
pub(super) const OUTAGE_SLEEP: Duration = Duration::from_millis(5);
/// Frames handed to the kernel by one call when there is always more to send: the budget of a call in AF_XDP copy mode.
pub const KICK_BATCH: usize = 2 * BURST;
/// With no room for more frames and none completing for this long, the link counts as down.
const NO_PROGRESS_NS: u64 = 100_000_000;
/// Longest wait for completions after sending, without any progress; and when the user wants to stop.
const DRAIN_NS: u64 = 2_000_000_000;
const DRAIN_STOPPED_NS: u64 = 40_000_000;

/// What a slot holds and who waits for it.
#[derive(Debug, Clone, Copy)]
struct Held {
    tag: Tag,
    frame_len: u16,
    /// Trial in which it was submitted.
    epoch: u16,
}

/// What the time since the last round went into.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Spent {
    Busy,
    Blocked,
    Idle,
    LinkDown,
}

/// A worker that drives one slot queue.
#[derive(Debug)]
pub struct SlotWorker<Q> {
    queue: Q,
    part: Part,
    stop: [Arc<AtomicBool>; 2],
    counters: Arc<WorkerCounters>,
    cursors: Vec<Cursor>,
    pacer: Pacer,
    held: Box<[Held]>,
    epoch: u16,
    /// Stream that has the first choice of the next round's room.
    first: usize,
}

impl<Q: TxQueue> SlotWorker<Q> {
    /// A worker for this part of the port's frames; it ends a trial when one of the flags is set.
    pub fn new(
        queue: Q,
        part: Part,
        program: &TxProgram,
        counters: Arc<WorkerCounters>,
        stop: [Arc<AtomicBool>; 2],
    ) -> Self {
        let held = vec![Held { tag: Tag::EMPTY, frame_len: 0, epoch: 0 }; queue.slots()].into();
        let mut worker = SlotWorker {
            queue,
            part,
            stop,
            counters,
            cursors: vec![],
            pacer: Pacer::new(program, part),
            held,
            epoch: 0,
            first: 0,
        };
        worker.set_program(program);
        worker
    }

    fn set_program(&mut self, program: &TxProgram) {
        let part = self.part;
        self.cursors = program.streams.iter().map(|stream| Cursor::new(stream, part.worker, part.workers)).collect();
        self.pacer = Pacer::new(program, part);
        self.held.iter_mut().for_each(|held| held.tag = Tag::EMPTY);
    }

    fn is_stopped(&self) -> bool {
        self.stop.iter().any(|stop| stop.load(Relaxed))
    }

    /// Sends until `end`, the schedule's end, a stop or a broken queue.
    fn send(&mut self, start: Instant, end: Instant) -> Result<()> {
        let mut time = Ledger { last: start, progress: start };
        let mut kick = Kick::default();
        let mut spent = Spent::Idle;
        // Filled, and not yet shown to the kernel.
        let mut unseen = 0;
        while !self.is_stopped() {
            let now = clock::now();
            let completed = self.reap();
            time.spend(spent, now, &self.counters);
            if completed > 0 || self.queue.in_flight() == 0 {
                time.progress = now;
            }
            let is_last = now >= end;
            // The last round catches what was due before the end, not after it.
            let due_by = if is_last { Instant(end.0 - 1) } else { now };
            let free = self.queue.free();
            let is_stuck = (free == 0 || kick.pushed_back) && now.since_ns(time.progress) > NO_PROGRESS_NS;
            let is_down = kick.link_down || is_stuck;
            let room = free.min(if is_down { 1 } else { BURST });
            let sent = if room > 0 { self.fill(due_by, room) } else { 0 };
            unseen += sent;
            // A full burst is likely followed by another: they share a call. The last partial one leaves at once.
            let is_due = unseen >= KICK_BATCH || (unseen > 0 && sent < BURST) || is_last;
            kick = if is_due || kick.pushed_back || kick.link_down || room == 0 {
                unseen = 0;
                self.kick()?
            } else {
                Kick::default()
            };
            if is_last || (self.pacer.is_finished() && !kick.pushed_back) {
                break;
            }
            spent = if is_down || kick.link_down {
                std::thread::sleep(OUTAGE_SLEEP);
                Spent::LinkDown
            } else if room == 0 {
                self.counters.own().ring_full.add(1);
                Spent::Blocked
            } else if sent > 0 {
                self.counters.own().bursts.add(1);
                Spent::Busy
            } else {
                wait(now, self.pacer.next_due().min(end));
                Spent::Idle
            };
        }
        time.spend(spent, clock::now(), &self.counters);
        Ok(())
    }

    /// Fills up to `room` slots with what is due; returns how many.
    #[inline]
    fn fill(&mut self, now: Instant, room: usize) -> usize {
        self.pacer.offer(room);
        let stamp = signature::stamp(now.0);
        let (streams, mut left) = (self.cursors.len(), room);
        for turn in 0..streams {
            let n = if self.first + turn < streams { self.first + turn } else { self.first + turn - streams };
            let frames = self.pacer.poll(n, now, left);
            if frames == 0 {
                continue;
            }
            let cursor = &mut self.cursors[n];
            cursor.prepare(frames, stamp);
            let mut bytes = 0;
            for run in cursor.runs(n as u16) {
                let holds = Held { tag: run.tag, frame_len: run.frame_len, epoch: self.epoch };
                bytes += run.frames.len() as u64 * u64::from(run.frame_len);
                for nth in run.frames.clone() {
                    let Some(slot) = self.queue.take() else { unreachable!("room was counted from the free slots") };
                    let held = &mut self.held[slot.index()];
                    run.write(nth, self.queue.bytes(&slot), held.tag);
                    *held = holds;
                    self.queue.submit(slot, run.buf_len());
                }
            }
            let counters = self.counters.stream(n);
            counters.offered_frames.add(frames as u64);
            counters.offered_bytes.add(bytes);
            left -= frames;
            if left == 0 {
                break;
            }
        }
        self.first = if self.first + 1 < streams { self.first + 1 } else { 0 };
        room - left
    }

    /// Takes completed slots back and counts them; runs of one stream at a time.
    #[inline]
    fn reap(&mut self) -> usize {
        let (held, counters, epoch) = (&self.held, &self.counters, self.epoch);
        let (mut stream, mut frames, mut bytes, mut late) = (0, 0, 0, 0);
        let count = |stream: usize, frames, bytes| {
            let counters = counters.stream(stream);
            counters.completed_frames.add(frames);
            counters.completed_bytes.add(bytes);
        };
        let reaped = self.queue.reap(|slot| {
            let held = held[slot];
            if held.epoch != epoch {
                late += 1;
                return;
            }
            if held.tag.stream() != stream {
                if frames > 0 {
                    count(stream, frames, bytes);
                }
                (stream, frames, bytes) = (held.tag.stream(), 0, 0);
            }
            frames += 1;
            bytes += u64::from(held.frame_len);
        });
        if frames > 0 {
            count(stream, frames, bytes);
        }
        if late > 0 {
            counters.own().late_frames.add(late);
        }
        reaped
    }

    fn kick(&mut self) -> Result<Kick> {
        let kick = self.queue.kick()?;
        let own = self.counters.own();
        own.pushed_back.add(u64::from(kick.pushed_back));
        own.refused_frames.add(kick.refused_frames);
        Ok(kick)
    }

    /// Waits for what is in flight, as long as something completes; returns how many frames are still out.
    fn drain(&mut self) -> Result<usize> {
        let mut progress = clock::now();
        while self.queue.in_flight() > 0 {
            let now = clock::now();
            if self.reap() > 0 {
                progress = now;
                continue;
            }
            let patience = if self.is_stopped() { DRAIN_STOPPED_NS } else { DRAIN_NS };
            if now.since_ns(progress) > patience {
                break;
            }
            let kick = self.kick()?;
            if kick.link_down {
                std::thread::sleep(OUTAGE_SLEEP);
            } else if now.since_ns(progress) > SLEEP_NS {
                std::thread::yield_now();
            }
        }
        Ok(self.queue.in_flight())
    }
}

impl<Q: TxQueue> TxWorker for SlotWorker<Q> {
    fn load(&mut self, program: &TxProgram, counters: Arc<WorkerCounters>) -> Result<()> {
        self.set_program(program);
        self.counters = counters;
        Ok(())
    }

    fn run(&mut self, trial: &Trial) -> WorkerEnd {
        // What an earlier trial left in flight must not count in this one.
        self.reap();
        self.epoch = self.epoch.wrapping_add(1);
        let (cpu, invalid) = (clock::thread_cpu_ns(), self.queue.invalid_frames());
        self.pacer.start(trial.start, trial.load_fps, trial.counts.as_deref());
        self.cursors.iter_mut().for_each(|cursor| cursor.seek(u64::from(self.part.worker)));
        while !self.is_stopped() && clock::now() < trial.start {
            wait(clock::now(), trial.start);
        }
        let sent = self.send(trial.start, trial.end);
        let stopped_at = clock::now().min(trial.end);
        let (forgiven_ns, forgiven_frames) = self.pacer.forgiven();
        let own = self.counters.own();
        own.forgiven_ns.set(forgiven_ns);
        own.forgiven_frames.set(forgiven_frames);
        own.cpu_ns.set(clock::thread_cpu_ns() - cpu);
        let drained = sent.and_then(|()| self.drain());
        self.counters.own().refused_frames.add(self.queue.invalid_frames() - invalid);
        WorkerEnd {
            sent_for_ns: stopped_at.since_ns(trial.start),
            outstanding_frames: self.queue.in_flight() as u64,
            error: drained.err(),
        }
    }
}

/// Waits towards `until`: sleeps if that is far, else spins once.
pub(super) fn wait(now: Instant, until: Instant) {
    let left = until.since_ns(now);
    if left > SLEEP_NS {
        std::thread::sleep(Duration::from_nanos((left - WAKE_EARLY_NS).min(MAX_SLEEP_NS)));
    } else {
        std::hint::spin_loop();
    }
}

/// Where the worker's time goes.
struct Ledger {
    last: Instant,
    /// When something last completed, or nothing was in flight.
    progress: Instant,
}

impl Ledger {
    #[inline]
    fn spend(&mut self, spent: Spent, now: Instant, counters: &WorkerCounters) {
        let ns = now.since_ns(self.last);
        self.last = now;
        let own = counters.own();
        match spent {
            Spent::Busy => own.busy_ns.add(ns),
            Spent::Blocked => own.blocked_ns.add(ns),
            Spent::Idle => own.idle_ns.add(ns),
            Spent::LinkDown => own.link_down_ns.add(ns),
        }
    }
}
