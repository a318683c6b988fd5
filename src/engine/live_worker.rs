//! The transmit loop over live frames: plan ahead → run the program in the kernel → count.
//!
//! Runs in one pinned thread. It asks the pacer for the frames of the next few milliseconds and writes them, with
//! their due times, into the program's ring; a call of a few milliseconds at most sends them when they are due. It fills no
//! frames. A frame counts as offered and completed when the program has made it, as refused if the driver did not take it.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering::Relaxed},
};

use crate::{
    backend::live::LiveQueue,
    clock::{self, Instant},
    engine::{
        counters::WorkerCounters,
        spawn::{Trial, TxWorker, WorkerEnd},
    },
    error::Result,
    pacer::{DEBT_NS, Pacer, Part},
    program::{StreamProgram, TxProgram, cursor::BURST},
    units::NS_PER_S,
};

use super::tx_worker::{OUTAGE_SLEEP, wait};

/// How far ahead of now frames are planned when paced; longer than a call, so that the ring never runs dry in one.
const AHEAD_NS: u64 = 5_000_000;
/// Frames whose times lie closer together than this are due together: it bounds the pacer's work, not the rate.
const GRAIN_NS: u64 = 1000;
/// Length of a call that is aimed at, when paced and when not. Each call makes a page pool; one that ends while the receiver
/// still holds pages is released by retries on this CPU, so that thousands of short calls a second cost milliseconds at a time.
const PACED_CALL_NS: u64 = 4_000_000;
const UNPACED_CALL_NS: u64 = 10_000_000;
/// What a slot is taken to cost before the first was measured (much, so that the first call is short on any device), and what
/// it costs at least, ns.
const FIRST_SLOT_NS: u64 = 5000;
const LEAST_SLOT_NS: u64 = 50;
/// Slots between two turns of the CPU's other work (and flushes to the driver): few where frames are far apart, so that a
/// frame does not wait long for its flush.
const BATCH: u32 = 128;
const SPARSE_BATCH: u32 = 16;
/// Up to this load of one worker, frames/s, the batches are small.
const SPARSE_FPS: u64 = 2_000_000;

/// A worker that drives one live queue.
#[derive(Debug)]
pub struct LiveWorker {
    queue: LiveQueue,
    part: Part,
    stop: [Arc<AtomicBool>; 2],
    counters: Arc<WorkerCounters>,
    pacer: Pacer,
    bytes: Vec<StreamBytes>,
    /// What a slot of the last call took, ns.
    slot_ns: u64,
}

impl LiveWorker {
    /// A worker for this part of the port's frames on a queue that was opened for it; it ends a trial when one of the flags
    /// is set.
    pub fn new(
        queue: LiveQueue,
        part: Part,
        program: &TxProgram,
        counters: Arc<WorkerCounters>,
        stop: [Arc<AtomicBool>; 2],
    ) -> LiveWorker {
        let (pacer, bytes) = of_program(program, part);
        LiveWorker { queue, part, stop, counters, pacer, bytes, slot_ns: FIRST_SLOT_NS }
    }

    fn is_stopped(&self) -> bool {
        self.stop.iter().any(|stop| stop.load(Relaxed))
    }

    /// Sends until the end, the schedule's end, a stop or a broken queue.
    fn send(&mut self, trial: &Trial) -> Result<()> {
        let is_paced = trial.load_fps.is_some();
        let per_worker = trial.load_fps.map_or(u64::MAX, |load| load / u64::from(self.part.workers));
        let batch = if per_worker <= SPARSE_FPS { SPARSE_BATCH } else { BATCH };
        // What was due before the end may leave as late as debt is repaid.
        let end = if is_paced { trial.end.plus_ns(DEBT_NS) } else { trial.end };
        self.queue.set_end(end);
        let mut planned = trial.start;
        let mut last = trial.start;
        let mut is_down = false;
        while !self.is_stopped() {
            let now = clock::now();
            let lag_ns = self.queue.lag_ns();
            if is_paced {
                self.plan(&mut planned, earlier(now, lag_ns), earlier(trial.end, lag_ns));
            } else if now < trial.end {
                self.plan_at_once(now);
            }
            let pending = self.queue.pending();
            if pending == 0 {
                if now >= trial.end || self.pacer.is_finished() {
                    break;
                }
                wait(now, self.pacer.next_due().plus_ns(lag_ns).min(trial.end));
                let waited = clock::now();
                self.counters.own().idle_ns.add(waited.since_ns(last));
                last = waited;
                continue;
            }
            let slots = if is_down { 1 } else { self.slots(pending, planned, earlier(now, lag_ns), is_paced) };
            is_down = self.run(slots, batch, &mut last)?;
            if clock::now() >= end {
                break;
            }
        }
        Ok(())
    }

    /// Slots for what is pending, as many as a call may take: one for each frame, and for the time until the last is due.
    fn slots(&self, pending: u64, planned: Instant, now: Instant, is_paced: bool) -> u32 {
        let (call_ns, waiting) = match is_paced {
            true => (PACED_CALL_NS, planned.since_ns(now) / self.slot_ns),
            false => (UNPACED_CALL_NS, 0),
        };
        (pending.max(waiting) + u64::from(SPARSE_BATCH)).min(call_ns / self.slot_ns).max(1) as u32
    }

    /// One call; returns whether the link seems down: frames were made, none was taken.
    fn run(&mut self, slots: u32, batch: u32, last: &mut Instant) -> Result<bool> {
        let (made, taken) = (self.queue.made(), self.queue.transmitted().sent_frames);
        self.queue.run(slots, batch)?;
        let made = self.queue.made() - made;
        let refused = made.saturating_sub(self.queue.transmitted().sent_frames - taken);
        let is_down = made > 0 && refused == made;
        self.count();
        if is_down {
            std::thread::sleep(OUTAGE_SLEEP);
        }
        let now = clock::now();
        let ns = now.since_ns(*last);
        *last = now;
        let own = self.counters.own();
        own.bursts.add(u64::from(made > 0));
        own.pushed_back.add(u64::from(refused > 0));
        own.refused_frames.add(refused);
        if is_down {
            own.link_down_ns.add(ns);
            return Ok(true);
        }
        // A slot costs about the same whether it sends or waits.
        let share = |frames: u64| (u128::from(ns) * u128::from(frames) / u128::from(slots.max(1))) as u64;
        let (blocked, busy) = (share(refused), share(made - refused));
        own.blocked_ns.add(blocked);
        own.busy_ns.add(busy);
        own.idle_ns.add(ns.saturating_sub(blocked + busy));
        self.slot_ns = (ns / u64::from(slots)).max(LEAST_SLOT_NS);
        Ok(false)
    }

    /// Writes the frames due from `planned` up to a little ahead of now into the ring, on the queue's release clock; what is late by the
    /// end is due just before it.
    fn plan(&mut self, planned: &mut Instant, now: Instant, end: Instant) {
        let last = Instant(end.0.saturating_sub(1));
        let (now, horizon) = (now.min(last), now.plus_ns(AHEAD_NS).min(last));
        loop {
            // Late frames are due now: the pacer repays or forgives.
            let grain = if *planned < last { planned.plus_ns(GRAIN_NS).min(last) } else { Instant(u64::MAX) };
            let mut due = self.pacer.next_due().max(grain).max(now);
            let room = self.queue.room();
            if due > horizon || room == 0 || self.pacer.is_finished() {
                return;
            }
            if self.poll(due, due, room) == 0 && due < horizon {
                // A time may be told 1 ns early; a whole grain later could be after the end.
                due = due.plus_ns(1);
                self.poll(due, due, room);
            }
            *planned = due;
        }
    }

    /// Writes frames for one call as fast as possible into the ring.
    fn plan_at_once(&mut self, now: Instant) {
        let wanted = (UNPACED_CALL_NS / self.slot_ns).max(1);
        if self.bytes.len() == 1 {
            // No interleaving to decide: the ring's entries are all alike and need not be written.
            let room = wanted.saturating_sub(self.queue.pending()) as usize;
            self.pacer.offer(room);
            let frames = self.pacer.poll(0, now, room);
            let left = frames as u64 - self.queue.schedule_at_once(frames as u64);
            debug_assert_eq!(left, 0, "a single stream's ring is never written");
            return;
        }
        while self.queue.pending() < wanted && !self.pacer.is_finished() {
            let room = self.queue.room().min(BURST);
            if room == 0 || self.poll(now, Instant(0), room) == 0 {
                return;
            }
        }
    }

    /// Schedules what the pacer has for `now`, with this due time; returns how many frames.
    fn poll(&mut self, now: Instant, due: Instant, room: usize) -> usize {
        self.pacer.offer(room);
        let mut left = room;
        for stream in 0..self.bytes.len() {
            let frames = self.pacer.poll(stream, now, left);
            (0..frames).for_each(|_| self.queue.schedule(stream as u16, due));
            left -= frames;
        }
        room - left
    }

    /// Sets the streams' counters to what the program has made.
    fn count(&self) {
        for (n, bytes) in self.bytes.iter().enumerate() {
            let (counters, frames) = (self.counters.stream(n), self.queue.made_of(n));
            let bytes = bytes.of(frames);
            counters.offered_frames.set(frames);
            counters.offered_bytes.set(bytes);
            counters.completed_frames.set(frames);
            counters.completed_bytes.set(bytes);
        }
    }
}

impl TxWorker for LiveWorker {
    fn load(&mut self, program: &TxProgram, counters: Arc<WorkerCounters>) -> Result<()> {
        self.queue.load(program)?;
        (self.pacer, self.bytes) = of_program(program, self.part);
        self.counters = counters;
        Ok(())
    }

    fn run(&mut self, trial: &Trial) -> WorkerEnd {
        let cpu = clock::thread_cpu_ns();
        self.queue.rewind();
        self.pacer.start(trial.start, trial.load_fps, trial.counts.as_deref());
        while !self.is_stopped() && clock::now() < trial.start {
            wait(clock::now(), trial.start);
        }
        let sent = self.send(trial);
        let stopped_at = clock::now().min(trial.end);
        let (mut forgiven_ns, mut forgiven_frames) = self.pacer.forgiven();
        if let Some(load_fps) = trial.load_fps {
            let by_queue = self.queue.forgiven_ns();
            forgiven_ns += by_queue;
            let per_second = u128::from(NS_PER_S) * u128::from(self.part.workers);
            forgiven_frames += (u128::from(by_queue) * u128::from(load_fps) / per_second) as u64;
        }
        let own = self.counters.own();
        own.forgiven_ns.set(forgiven_ns);
        own.forgiven_frames.set(forgiven_frames);
        own.cpu_ns.set(clock::thread_cpu_ns() - cpu);
        // The driver has every frame when a call returns: nothing is outstanding.
        WorkerEnd { sent_for_ns: stopped_at.since_ns(trial.start), outstanding_frames: 0, error: sent.err() }
    }
}

/// The time on a clock that is `lag_ns` behind.
fn earlier(time: Instant, lag_ns: u64) -> Instant {
    Instant(time.0.saturating_sub(lag_ns))
}

fn of_program(program: &TxProgram, part: Part) -> (Pacer, Vec<StreamBytes>) {
    let bytes = program.streams.iter().map(|stream| StreamBytes::new(stream, part)).collect();
    (Pacer::new(program, part), bytes)
}

/// Bytes of a worker's first n frames of a stream, FCS included, without adding frame by frame.
#[derive(Debug)]
struct StreamBytes {
    /// Sums over the first 0, 1, … frames of the pattern as this worker walks it; the last is that of a whole round.
    sums: Vec<u64>,
}

impl StreamBytes {
    fn new(stream: &StreamProgram, part: Part) -> StreamBytes {
        let len = stream.pattern.len();
        let (mut at, step) = (usize::from(part.worker) % len, usize::from(part.workers) % len);
        let (first, mut sums) = (at, vec![0]);
        loop {
            let template = &stream.templates[usize::from(stream.pattern[at])];
            sums.push(sums[sums.len() - 1] + template.frame_len.bytes());
            at = (at + step) % len;
            if at == first {
                return StreamBytes { sums };
            }
        }
    }

    fn of(&self, frames: u64) -> u64 {
        let round = self.sums.len() as u64 - 1;
        frames / round * self.sums[round as usize] + self.sums[(frames % round) as usize]
    }
}
