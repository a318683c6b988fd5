//! The only place that reads a clock. Everything else takes `now`.
//!
//! Any thread. CLOCK_MONOTONIC, because `bpf_ktime_get_ns` reads the same clock: a stamp written by a worker and one read
//! by the XDP program differ by the latency alone.

use std::time::{Duration, SystemTime};

/// Nanoseconds of CLOCK_MONOTONIC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(pub u64);

impl Instant {
    /// Nanoseconds from `earlier` to `self`; 0 if `earlier` is later.
    pub fn since_ns(self, earlier: Instant) -> u64 {
        self.0.saturating_sub(earlier.0)
    }

    /// This instant plus `ns`.
    #[must_use]
    pub fn plus_ns(self, ns: u64) -> Instant {
        Instant(self.0.saturating_add(ns))
    }
}

/// Reads the clock.
#[inline]
pub fn now() -> Instant {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    Instant(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

/// CPU time of the calling thread, in nanoseconds.
pub fn thread_cpu_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Seconds since 1970, for file headers and reports.
pub fn wall_clock() -> Duration {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}
