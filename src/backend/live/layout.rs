//! Where things stand in a live worker's two BPF maps: the state (shared with user space by mmap) and the constants.
//!
//! Control plane, pure. The state is written by one worker thread and by its program, which runs on that thread only
//! inside its own system calls: never at the same time.

use std::{mem::offset_of, sync::atomic::AtomicU64};

use super::sys::Atomics;
use crate::{
    error::{Error, Result},
    ids::WorkerId,
    program::{Field, Generator, StreamProgram, TxProgram},
};

/// Entries of the schedule ring; a power of two. 4096 is 0.3 ms of 14.88 Mpps.
pub(super) const RING: usize = 4096;

/// Head of the state map. The schedule ring and the streams' counters follow.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub(super) struct Head {
    /// Ring entries consumed: frames that the program has made and handed to the device's queue.
    pub(super) made: AtomicU64,
    /// Ring entries filled by user space. `made == filled`: nothing to send.
    pub(super) filled: AtomicU64,
    /// The release clock at the program's last look: CLOCK_MONOTONIC less [`Head::lag_ns`]. What is due by it may leave.
    pub(super) released_ns: AtomicU64,
    /// Nothing is sent from here on, ns (looked at whenever the clock is read, at least once per 64 frames).
    pub(super) end_ns: AtomicU64,
    /// Mask of ring positions: all of the ring, or 0 while every entry says the same (first stream, at once), so that sending
    /// as fast as possible does not walk 32 KiB through the cache (measured: 2 % of the rate).
    pub(super) ring_mask: AtomicU64,
    /// CLOCK_MONOTONIC at the last look, ns; 0 after a pause in which nothing was scheduled.
    pub(super) looked_ns: AtomicU64,
    /// How far the release clock is behind: debt and all that was forgiven, ns.
    pub(super) lag_ns: AtomicU64,
    /// Of the lag, what is still repaid, ns.
    pub(super) debt_ns: AtomicU64,
    /// Of the lag, what never will be, ns.
    pub(super) forgiven_ns: AtomicU64,
    _pad: [AtomicU64; 7],
}

// SAFETY: nothing but atomics.
unsafe impl Atomics for Head {}

/// Offsets of the fields of [`Head`] for the generated code.
pub(super) const MADE: i16 = offset_of!(Head, made) as i16;
pub(super) const FILLED: i16 = offset_of!(Head, filled) as i16;
pub(super) const RELEASED_NS: i16 = offset_of!(Head, released_ns) as i16;
pub(super) const LOOKED_NS: i16 = offset_of!(Head, looked_ns) as i16;
pub(super) const LAG_NS: i16 = offset_of!(Head, lag_ns) as i16;
pub(super) const DEBT_NS: i16 = offset_of!(Head, debt_ns) as i16;
pub(super) const FORGIVEN_NS: i16 = offset_of!(Head, forgiven_ns) as i16;
pub(super) const RING_MASK: i16 = offset_of!(Head, ring_mask) as i16;
pub(super) const END_NS: i16 = offset_of!(Head, end_ns) as i16;
/// Ring, part one: stream of each entry (u16).
pub(super) const RING_STREAM: usize = size_of::<Head>();
/// Ring, part two: when each entry is due (CLOCK_MONOTONIC ns; 0 = at once).
pub(super) const RING_DUE: usize = RING_STREAM + 2 * RING;
/// First stream's counters.
const STREAMS: usize = RING_DUE + 8 * RING;

/// Most fields of one stream: their values stand on the BPF stack (512 bytes) while a frame is made.
pub(super) const MAX_FIELDS: usize = 60;
/// Most templates of one stream. The kernel's time to load them grows with the square: 1.3 s for 1000, 4 s for 2000.
pub(super) const MAX_TEMPLATES: usize = 2048;
/// Frames up to this length are written by immediate stores, longer ones copied from the constants by a helper.
pub(super) const MAX_IMMEDIATE_BYTES: usize = 128;
/// From here on a period or divisor never comes round: a frame index stays far below.
const NEVER: u64 = 1 << 62;

/// How a counter that advances by the number of workers is kept without dividing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Counter {
    /// Divisor, if it is not 1: a remainder is kept too.
    pub(super) div: Option<u64>,
    /// Added to the remainder per frame.
    pub(super) div_step: u64,
    /// Modulus, if it can come round.
    pub(super) period: Option<u64>,
    /// Added to the count per frame (before the remainder's carry); less than the period.
    pub(super) step: u64,
    /// Remainder and count at the worker's first frame.
    pub(super) start: [u64; 2],
}

impl Counter {
    /// The counter of `(index / div) mod period` for indices `first, first + by, …`.
    pub(super) fn new(div: u64, period: u64, first: u64, by: u64) -> Counter {
        let (div, period) = (div.max(1), period.max(1));
        Counter {
            div: (div > 1 && div < NEVER && period > 1).then_some(div),
            div_step: by % div,
            period: (period < NEVER).then_some(period),
            step: (by / div) % period,
            start: [first % div, (first / div) % period],
        }
    }

    /// Whether it never moves from its start.
    pub(super) fn is_constant(&self) -> bool {
        self.div.is_none() && self.step == 0
    }
}

/// Offsets of one stream in the maps.
#[derive(Debug)]
pub(super) struct StreamLayout {
    /// Of its counters in the state: index, pattern position, then remainder and count per field.
    pub(super) state: u32,
    /// Added to the index per frame: the number of workers.
    pub(super) index_step: u16,
    /// Position in the pattern.
    pub(super) pattern: Counter,
    /// Of the pattern (u16 each) in the constants.
    pub(super) pattern_at: u32,
    /// One counter per field.
    pub(super) fields: Vec<Counter>,
    /// Of each field's list (u64 each) in the constants; 0 for other fields.
    pub(super) lists_at: Vec<u32>,
    /// Of each template's bytes in the constants; 0 for those written by immediate stores.
    pub(super) templates_at: Vec<u32>,
}

impl StreamLayout {
    /// Offset of the frame index from the stream's state.
    pub(super) const INDEX: i16 = 0;
    /// Offset of the pattern position.
    pub(super) const PATTERN: i16 = 8;

    /// Offset of the field's remainder; its count is 8 further.
    pub(super) fn field(field: usize) -> i16 {
        16 + 16 * field as i16
    }

    fn state_bytes(fields: usize) -> usize {
        (16 + 16 * fields).next_multiple_of(64)
    }
}

/// The whole layout of one worker, with the maps' first contents.
#[derive(Debug)]
pub(super) struct Layout {
    /// Per stream.
    pub(super) streams: Vec<StreamLayout>,
    /// First contents of the state map.
    pub(super) state: Vec<u8>,
    /// Contents of the constants map; never empty.
    pub(super) constants: Vec<u8>,
}

impl Layout {
    /// Lays out worker `worker` of `workers`.
    ///
    /// # Errors
    /// What cannot be lowered, by name.
    pub(super) fn new(program: &TxProgram, worker: WorkerId, workers: u16) -> Result<Layout> {
        let (first, by) = (u64::from(worker.0), u64::from(workers));
        let mut layout = Layout { streams: Vec::new(), state: vec![0; STREAMS], constants: Vec::new() };
        for stream in &program.streams {
            check_limits(stream)?;
            let state = layout.state.len() as u32;
            let pattern = Counter::new(1, stream.pattern.len() as u64, first, by);
            let fields: Vec<_> = stream.fields.iter().map(|f| Counter::new(f.div, f.period, first, by)).collect();
            layout.state.extend(first.to_ne_bytes());
            layout.state.extend(pattern.start[1].to_ne_bytes());
            layout.state.extend(fields.iter().flat_map(|counter| counter.start).flat_map(u64::to_ne_bytes));
            layout.state.resize(state as usize + StreamLayout::state_bytes(fields.len()), 0);
            let pattern_at = match stream.templates.len() {
                1 => 0,
                _ => layout.constant(stream.pattern.iter().flat_map(|t| t.to_ne_bytes())),
            };
            let lists_at = stream.fields.iter().map(|field| layout.list(field)).collect();
            let templates_at = (stream.templates.iter())
                .map(|template| match template.bytes.len() {
                    0..=MAX_IMMEDIATE_BYTES => 0,
                    _ => layout.constant(template.bytes.iter().copied()),
                })
                .collect();
            layout.streams.push(StreamLayout {
                state,
                index_step: workers,
                pattern,
                pattern_at,
                fields,
                lists_at,
                templates_at,
            });
        }
        layout.constant([0]);
        Ok(layout)
    }

    fn list(&mut self, field: &Field) -> u32 {
        match &field.generator {
            Generator::List(values) => self.constant(values.iter().flat_map(|value| value.to_ne_bytes())),
            _ => 0,
        }
    }

    /// Appends constants and returns their offset, a multiple of 8.
    fn constant(&mut self, bytes: impl IntoIterator<Item = u8>) -> u32 {
        let at = self.constants.len();
        self.constants.extend(bytes);
        self.constants.resize(self.constants.len().next_multiple_of(8), 0);
        at as u32
    }
}

fn check_limits(stream: &StreamProgram) -> Result<()> {
    let refuse = |cause: String| {
        Err(Error::usage("lower into BPF", format!("stream {}", stream.name))
            .because(cause)
            .remedy("use --backend xsk, which has no such limit"))
    };
    if stream.fields.len() > MAX_FIELDS {
        return refuse(format!("it varies {} fields; live frames can vary {MAX_FIELDS}", stream.fields.len()));
    }
    if stream.templates.len() > MAX_TEMPLATES {
        return refuse(format!("it has {} different frames; live can send {MAX_TEMPLATES}", stream.templates.len()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the generated code does per frame.
    fn advance(counter: &Counter, state: &mut [u64; 2]) {
        state[1] += counter.step;
        if let Some(div) = counter.div {
            state[0] += counter.div_step;
            if state[0] >= div {
                state[0] -= div;
                state[1] += 1;
            }
        }
        if let Some(period) = counter.period
            && state[1] >= period
        {
            state[1] -= period;
        }
    }

    #[test]
    fn counters_follow_division_and_remainder_for_every_worker() {
        for (div, period) in [(1, 1), (1, 64), (3, 2), (7, 1), (2, 5), (5, 1 << 62), (1 << 62, 9), (u64::MAX, 3)] {
            for workers in [1u64, 2, 3, 64] {
                for worker in 0..workers {
                    let counter = Counter::new(div, period, worker, workers);
                    let mut state = counter.start;
                    for n in 0..200 {
                        let index = worker + n * workers;
                        assert_eq!(state[1], (index / div) % period, "{index} / {div} % {period}");
                        assert!(!counter.is_constant() || state == counter.start);
                        advance(&counter, &mut state);
                    }
                }
            }
        }
    }
}
