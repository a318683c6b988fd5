//! The compiled, immutable form of a profile: what each worker sends, frame by frame.
//!
//! Pure; built in the control plane, read by every worker. Everything in a frame is a function of (seed, stream, frame
//! index): worker w of N takes the indices ≡ w (mod N), so flows, counts and the multiset of frames depend neither on the
//! number of workers nor on the backend. Slot backends interpret it, `live` lowers it into BPF.
//!
//! How frame `i` of a stream is made:
//! 1. template = `templates[pattern[i mod pattern.len()]]`;
//! 2. each [`Write`] of the template stores its field's value for `i`;
//! 3. the signature's sequence is `i` (low bits), its stamp the sender's clock;
//! 4. each [`Checksum`], in order, is computed from its base and terms.

pub mod compile;
mod compile_capture;
mod compile_frame;
mod compile_stack;
pub mod cursor;
mod on_link;
pub mod preview;
pub mod reference;
mod shape;

pub use compile::{Compiled, PortFacts, compile, load_of};
pub use compile_frame::MinSizes;
pub use on_link::OnLink;

use crate::{
    ids::{PortId, StreamId},
    units::{FrameLen, MeanFrame},
    wire::signature::SignatureSite,
};

/// All that one port sends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TxProgram {
    /// The port.
    pub port: PortId,
    /// Tag of this run, in every signature.
    pub run_tag: u32,
    /// The port's streams; their weights share the port's load.
    pub streams: Vec<StreamProgram>,
}

impl TxProgram {
    /// Longest buffer (no FCS) of any template, in bytes; 0 without streams.
    pub fn max_buf_len(&self) -> usize {
        self.streams.iter().flat_map(|stream| &stream.templates).map(|t| t.bytes.len()).max().unwrap_or(0)
    }

    /// Mean frame length over all streams by weight (exact; FCS included).
    pub fn mean_frame(&self) -> MeanFrame {
        let (mut bytes, mut frames) = (0u128, 0u128);
        // Σ w_s · (sum_s / len_s) over Σ w_s, on the common denominator of the pattern lengths.
        let common = self.streams.iter().fold(1u128, |acc, s| lcm(acc, s.pattern.len() as u128));
        for stream in &self.streams {
            let sum: u128 =
                stream.pattern.iter().map(|&t| u128::from(stream.templates[usize::from(t)].frame_len.bytes())).sum();
            let weight = u128::from(stream.schedule.weight);
            bytes += weight * sum * (common / stream.pattern.len() as u128);
            frames += weight * common;
        }
        while bytes > u128::from(u64::MAX) {
            (bytes, frames) = (bytes >> 1, frames >> 1);
        }
        MeanFrame { bytes: bytes.max(1) as u64, frames: frames.max(1) as u64 }
    }
}

/// Least common multiple, at most 2⁴⁰.
pub(crate) fn lcm(a: u128, b: u128) -> u128 {
    let (mut x, mut y) = (a, b);
    while y != 0 {
        (x, y) = (y, x % y);
    }
    // Bounded: beyond this a mean is only approximate, which no sane profile reaches.
    a.checked_div(x).map_or(1, |quotient| quotient.saturating_mul(b).min(1 << 40))
}

/// One stream, compiled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamProgram {
    /// Its number, unique over all ports.
    pub id: StreamId,
    /// Its name in the profile.
    pub name: String,
    /// One per distinct size, or per frame of a capture file. Never empty.
    pub templates: Vec<Template>,
    /// Frame index mod its length → template. Never empty.
    pub pattern: Vec<u16>,
    /// What varies.
    pub fields: Vec<Field>,
    /// When frames are due.
    pub schedule: Schedule,
    /// Distinct flows (5-tuples) it emits, as far as known; 1 = a single flow.
    pub flows: u64,
}

/// One frame with its variable bytes zeroed, and how to complete it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template {
    /// The frame without FCS. Bytes under a write's mask, sequence, stamp and checksums are zero.
    pub bytes: Box<[u8]>,
    /// Its length with FCS.
    pub frame_len: FrameLen,
    /// Fields to store.
    pub writes: Vec<Write>,
    /// Where its signature is, if it has room for one.
    pub signature: Option<SignatureSite>,
    /// Checksums, inner before outer (a term may be an earlier checksum).
    pub checksums: Vec<Checksum>,
}

/// A value that varies with the frame index: `generator((index / div) mod period)`.
///
/// `div` > 1 makes dependent tuples: a field with `div` = the inner field's period advances when the inner one wraps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Field {
    /// `stream.header.field`, for `check` and errors.
    pub name: String,
    /// The values.
    pub generator: Generator,
    /// Frames per step; not 0.
    pub div: u64,
    /// Steps until it repeats; not 0. A random field has the period 2⁶³ unless the profile limits it.
    pub period: u64,
}

/// Values by step number k.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Generator {
    /// `start + k · step` (wrapping; a decrement has the step −1 as two's complement).
    Step {
        /// Value at k = 0.
        start: u64,
        /// Added per step.
        step: u64,
    },
    /// `values[k]`; the field's period is its length.
    List(Box<[u64]>),
    /// `low + (mix(seed ⊕ k·φ) mod span)`, see [`random_value`].
    Random {
        /// Derived from the profile's seed, the stream and the field.
        seed: u64,
        /// Smallest value.
        low: u64,
        /// Number of values; not 0.
        span: u64,
    },
}

impl Field {
    /// The field's value in frame `index`. The reference definition; workers and BPF compute the same incrementally.
    pub fn value(&self, index: u64) -> u64 {
        let k = (index / self.div) % self.period;
        match &self.generator {
            Generator::Step { start, step } => start.wrapping_add(k.wrapping_mul(*step)),
            Generator::List(values) => values[k as usize],
            Generator::Random { seed, low, span } => low.wrapping_add(random_value(*seed, k, *span)),
        }
    }
}

/// The k-th random number below `span`: SplitMix64's finaliser over `seed + (k + 1)·φ`, reduced by multiply-high of its
/// upper 32 bits when the span fits 32 bits, else by remainder.
///
/// Stateless, so that any worker and BPF reach frame k directly.
#[inline]
pub fn random_value(seed: u64, k: u64, span: u64) -> u64 {
    let mut z = seed.wrapping_add(k.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^= z >> 31;
    if span <= 1 << 32 { ((z >> 32) * span) >> 32 } else { z % span }
}

/// Stores a field into the frame: `bytes[offset..offset + width]` (big-endian) under `mask`, shifted left by `shift`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Write {
    /// Index into the stream's fields.
    pub field: u16,
    /// First byte.
    pub offset: u16,
    /// Bytes, 1…8.
    pub width: u8,
    /// Left shift of the value.
    pub shift: u8,
    /// Which bits of the `width`-byte big-endian integer the value owns.
    pub mask: u64,
}

impl Write {
    /// The value as it stands in the frame: shifted and masked.
    #[inline]
    pub fn stored(&self, value: u64) -> u64 {
        (value << self.shift) & self.mask
    }
}

/// An Internet checksum (RFC 1071) in the frame: the complement of the folded sum of `base` and the terms.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checksum {
    /// Where its two bytes stand; zero in the template.
    pub offset: u16,
    /// Folded sum of everything constant that it covers (pseudo-header included).
    pub base: u16,
    /// A result of 0 is sent as 0xFFFF (UDP: RFC 768, RFC 8200 §8.1).
    pub zero_is_ffff: bool,
    /// What varies under it.
    pub terms: Vec<Term>,
}

/// A variable contribution to a checksum: fold the value to 16 bits (as 16-bit words of a big-endian integer), swap its
/// bytes if `swap`, add.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Term {
    /// What contributes.
    pub source: TermSource,
    /// The value ends an odd number of bytes after the start of the sum (RFC 1071 §2(B)).
    pub swap: bool,
}

/// What contributes to a checksum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TermSource {
    /// The stored value of the template's n-th write.
    Write(u16),
    /// The signature's sequence as stored (low 32 or 24 bits).
    Sequence,
    /// The signature's stamp.
    Stamp,
    /// The template's n-th checksum, an earlier one.
    Checksum(u16),
}

/// Folds a value to the 16-bit ones' complement sum of its big-endian 16-bit words.
#[inline]
pub fn fold(value: u64) -> u32 {
    let halves = (value & 0xFFFF_FFFF) + (value >> 32);
    let words = (halves & 0xFFFF) + ((halves >> 16) & 0xFFFF) + (halves >> 32);
    ((words & 0xFFFF) + (words >> 16)) as u32
}

/// When a stream's frames are due.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Schedule {
    /// Its share of the port's load: weight / Σ weights of the port's streams. Not 0.
    pub weight: u64,
    /// Nothing before this, counted from the trial's start (or from the end of the stream whose `next` it is).
    pub start_delay_ns: u64,
    /// How it goes on.
    pub mode: Mode,
    /// Index (in the port's program) of the stream that starts when this one ends.
    pub next: Option<u16>,
    /// Whether it starts with the trial, or only as some stream's `next`.
    pub self_start: bool,
    /// How many times the chain through `next` may come back to this stream; 0 = for ever.
    pub loops: u64,
}

/// How a stream's frames follow each other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Mode {
    /// At its rate until the trial ends.
    Continuous,
    /// `frames` at its rate, then it ends.
    Burst {
        /// Frames in the burst.
        frames: u64,
    },
    /// `count` bursts of `frames`, `gap_ns` between the end of one and the start of the next.
    MultiBurst {
        /// Frames in each burst.
        frames: u64,
        /// Pause between bursts.
        gap_ns: u64,
        /// Number of bursts; 0 = for ever.
        count: u64,
    },
    /// Frame i of each pass over the capture is due at `due_ns[i]` from the pass's start; a pass lasts `pass_ns`.
    Recorded {
        /// Offsets within a pass, ascending, as many as `pattern`.
        due_ns: Box<[u64]>,
        /// Length of a pass.
        pass_ns: u64,
        /// Passes; 0 = for ever.
        count: u64,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dependent_field_advances_when_the_inner_one_wraps() {
        let inner = Field { name: "a".into(), generator: Generator::Step { start: 10, step: 1 }, div: 1, period: 3 };
        let outer = Field { name: "b".into(), generator: Generator::List([7, 9].into()), div: 3, period: 2 };
        let pairs: Vec<_> = (0..7).map(|i| (inner.value(i), outer.value(i))).collect();
        assert_eq!(pairs, [(10, 7), (11, 7), (12, 7), (10, 9), (11, 9), (12, 9), (10, 7)]);
    }

    #[test]
    fn folding_agrees_with_summing_words() {
        for value in [0u64, 1, 0xFFFF, 0x1_0000, 0xFFFF_FFFF_FFFF_FFFF, 0x0123_4567_89AB_CDEF] {
            let mut sum: u64 = (0..4).map(|w| (value >> (16 * w)) & 0xFFFF).sum();
            while sum > 0xFFFF {
                sum = (sum & 0xFFFF) + (sum >> 16);
            }
            assert_eq!(u64::from(fold(value)), sum, "{value:#x}");
        }
    }

    #[test]
    fn random_values_stay_below_their_span() {
        for span in [1, 2, 3, 64, 65_535, 1 << 32, (1 << 32) + 1, u64::MAX] {
            assert!((0..1000).all(|k| random_value(42, k, span) < span), "{span}");
        }
    }
}
