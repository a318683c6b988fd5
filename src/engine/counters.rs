//! What a worker counts while it sends, and readings of it.
//!
//! One writer (the worker, relaxed, no read-modify-write), any number of readers. A worker's counters share no cache line
//! with another's. They start at 0 with each trial and only grow; a reading in between is a little old, never torn.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crossbeam_utils::CachePadded;

/// A counter with one writer.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds. Only the one writer may call it.
    #[inline]
    pub fn add(&self, n: u64) {
        self.0.store(self.0.load(Relaxed).wrapping_add(n), Relaxed);
    }

    /// Sets. Only the one writer may call it.
    #[inline]
    pub fn set(&self, n: u64) {
        self.0.store(n, Relaxed);
    }

    /// Reads.
    #[inline]
    pub fn value(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

macro_rules! counters {
    ($(#[$doc:meta])* $live:ident, $(#[$read_doc:meta])* $read:ident { $($(#[$field_doc:meta])* $field:ident,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Default)]
        pub struct $live {
            $($(#[$field_doc])* pub $field: Counter,)*
        }

        $(#[$read_doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
        pub struct $read {
            $($(#[$field_doc])* pub $field: u64,)*
        }

        impl $live {
            /// A reading.
            pub fn read(&self) -> $read {
                $read { $($field: self.$field.value(),)* }
            }

            fn reset(&self) {
                $(self.$field.set(0);)*
            }
        }

        impl std::ops::AddAssign for $read {
            fn add_assign(&mut self, other: $read) {
                $(self.$field += other.$field;)*
            }
        }
    };
}

counters! {
    /// A stream's counters on one worker.
    StreamCounters,
    /// A stream's counts. Bytes are L2, FCS included.
    StreamCount {
        /// Frames the backend accepted.
        offered_frames,
        /// Their bytes.
        offered_bytes,
        /// Frames the backend gave back as done; refused ones are among them.
        completed_frames,
        /// Their bytes.
        completed_bytes,
    }
}

counters! {
    /// A worker's own counters.
    OwnCounters,
    /// How a worker fared: the evidence for who limited.
    WorkerCount {
        /// Frames that completed though the kernel said it did not send them; subtract them from the completed.
        refused_frames,
        /// Kicks after which the kernel asked to come again (full device or socket buffer).
        pushed_back,
        /// Rounds that had frames due and no free slot.
        ring_full,
        /// Rounds of the loop that sent something.
        bursts,
        /// Debt that the pacer forgave, in ns.
        forgiven_ns,
        /// Frames that debt would have carried.
        forgiven_frames,
        /// Time with the link or device down, or with nothing completing, in ns.
        link_down_ns,
        /// Time spent on filling, handing over and reaping frames, in ns.
        busy_ns,
        /// Time with frames due and no slot for them, in ns.
        blocked_ns,
        /// Time with nothing due, in ns.
        idle_ns,
        /// CPU time of the thread, in ns (at the end of the trial).
        cpu_ns,
        /// Frames of an earlier trial that completed only in this one; not counted as completed.
        late_frames,
    }
}

/// All counters of one worker.
#[derive(Debug)]
pub struct WorkerCounters {
    streams: Box<[CachePadded<StreamCounters>]>,
    own: CachePadded<OwnCounters>,
}

impl WorkerCounters {
    /// Counters for this many streams.
    pub fn new(streams: usize) -> WorkerCounters {
        WorkerCounters { streams: (0..streams).map(|_| CachePadded::default()).collect(), own: CachePadded::default() }
    }

    /// The counters of the n-th stream of the port's program.
    #[inline]
    pub fn stream(&self, n: usize) -> &StreamCounters {
        &self.streams[n]
    }

    /// The worker's own.
    #[inline]
    pub fn own(&self) -> &OwnCounters {
        &self.own
    }

    /// Sets all to 0; only while the worker is idle.
    pub fn reset(&self) {
        self.streams.iter().for_each(|stream| stream.reset());
        self.own.reset();
    }

    /// A reading.
    pub fn read(&self) -> WorkerSnapshot {
        WorkerSnapshot { streams: self.streams.iter().map(|stream| stream.read()).collect(), own: self.own.read() }
    }
}

/// A reading of one worker's counters.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct WorkerSnapshot {
    /// By stream of the port's program.
    pub streams: Vec<StreamCount>,
    /// The worker's own.
    pub own: WorkerCount,
}

/// A reading of a port's counters.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TxSnapshot {
    /// By worker.
    pub workers: Vec<WorkerSnapshot>,
}

impl TxSnapshot {
    /// Sums over the workers, by stream.
    pub fn streams(&self) -> Vec<StreamCount> {
        let mut sums = vec![StreamCount::default(); self.workers.first().map_or(0, |worker| worker.streams.len())];
        for worker in &self.workers {
            for (sum, &count) in sums.iter_mut().zip(&worker.streams) {
                *sum += count;
            }
        }
        sums
    }

    /// Sum over workers and streams.
    pub fn total(&self) -> StreamCount {
        let mut sum = StreamCount::default();
        self.workers.iter().flat_map(|worker| &worker.streams).for_each(|&count| sum += count);
        sum
    }

    /// Sum of the workers' own counters.
    pub fn own(&self) -> WorkerCount {
        let mut sum = WorkerCount::default();
        self.workers.iter().for_each(|worker| sum += worker.own);
        sum
    }

    /// Frames that left as far as the backend knows: completed and not refused. The device's own counters may say less.
    pub fn sent_frames(&self) -> u64 {
        self.total().completed_frames.saturating_sub(self.own().refused_frames)
    }

    /// The share of the workers' time in which frames were due and could not be handed over, 0…1.
    pub fn blocked_share(&self) -> f64 {
        let own = self.own();
        let all = own.busy_ns + own.blocked_ns + own.idle_ns + own.link_down_ns;
        if all == 0 { 0.0 } else { own.blocked_ns as f64 / all as f64 }
    }

    /// The share of the workers' time that went into sending, 0…1; near 1 the CPU is the limit.
    pub fn busy_share(&self) -> f64 {
        let own = self.own();
        let all = own.busy_ns + own.blocked_ns + own.idle_ns + own.link_down_ns;
        if all == 0 { 0.0 } else { own.busy_ns as f64 / all as f64 }
    }
}
