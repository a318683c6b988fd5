//! What a profile says about a stream: headers, varying fields, sizes, rate, mode.
//!
//! Pure data; any thread. Values are as written; what is left out is filled in when the program is compiled.

use crate::{
    profile::{capture::CaptureConfig, node::At, size::SizeMix},
    units::Rate,
    wire::layer::{FieldSpec, LayerKind},
};

/// One stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamConfig {
    /// Where it stands in the file.
    pub at: At,
    /// Its name, unique.
    pub name: String,
    /// The sending port's position.
    pub port: usize,
    /// The receiving port's position, if frames come back to one.
    pub rx_port: Option<usize>,
    /// Headers as written, outermost first. Empty for a capture file.
    pub headers: Vec<Header>,
    /// The capture file it replays.
    pub capture: Option<CaptureConfig>,
    /// Frame sizes; of a capture file, those of its frames.
    pub size: SizeMix,
    /// Its own rate.
    pub rate: Option<Rate>,
    /// Its share of the port's load where streams have no rates of their own, in frames; not 0.
    pub share: u64,
    /// Nothing before this, in nanoseconds.
    pub start_delay_ns: u64,
    /// How its frames follow each other.
    pub mode: ModeConfig,
    /// The stream that starts when this one ends, by position.
    pub next: Option<usize>,
    /// How often the chain through `next` may come back to it; 0 = for ever.
    pub loops: u64,
    /// Whether it starts with the trial.
    pub self_start: bool,
    /// Whether its frames carry a signature, so that loss and latency can be measured.
    pub track: bool,
}

/// How a stream's frames follow each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ModeConfig {
    /// At its rate until the trial ends.
    Continuous,
    /// So many frames, then it ends.
    Burst {
        /// Frames in the burst; not 0.
        frames: u64,
    },
    /// Several bursts with a pause between them.
    MultiBurst {
        /// Frames in each; not 0.
        frames: u64,
        /// Pause, in nanoseconds.
        gap_ns: u64,
        /// How many; 0 = for ever.
        bursts: u64,
    },
}

/// One header of a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    /// Where it stands in the file.
    pub at: At,
    /// Which protocol.
    pub kind: LayerKind,
    /// The bytes of [`LayerKind::Raw`].
    pub raw: Vec<u8>,
    /// Fields that were given: position in [`LayerKind::fields`] and values.
    pub fields: Vec<(usize, Vary)>,
}

impl Header {
    /// A header with nothing given.
    pub fn new(kind: LayerKind, at: At) -> Header {
        Header { at, kind, raw: Vec::new(), fields: Vec::new() }
    }

    /// The values given for the field of this name.
    pub fn field(&self, name: &str) -> Option<&Vary> {
        let position = self.kind.field(name)?;
        self.fields.iter().find(|(field, _)| *field == position).map(|(_, vary)| vary)
    }

    /// Gives the field of this name these values, unless it has some.
    pub fn set_default(&mut self, name: &str, values: Values) {
        let Some(position) = self.kind.field(name) else { return };
        if self.fields.iter().all(|(field, _)| *field != position) {
            self.fields.push((position, Vary { at: self.at, values, every: Every::Frames(1) }));
        }
    }

    /// The table entry of a given field.
    pub fn spec(&self, position: usize) -> &'static FieldSpec {
        &self.kind.fields()[position]
    }
}

/// Values of a field over the frames of its stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Vary {
    /// Where it stands in the file.
    pub at: At,
    /// The values.
    pub values: Values,
    /// How often the next one is taken.
    pub every: Every,
}

/// A field's values in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Values {
    /// Always this one.
    Fixed(u128),
    /// `first + k · step`, `count` of them, then again.
    Step {
        /// The first.
        first: u128,
        /// Distance, negative for a decrement.
        step: i128,
        /// How many; at least 2.
        count: u64,
    },
    /// These; at least 2.
    List(Vec<u128>),
    /// Uniform between two bounds.
    Random {
        /// Smallest.
        low: u128,
        /// Largest.
        high: u128,
        /// After how many values they repeat; `None` = practically never.
        period: Option<u64>,
    },
}

impl Values {
    /// The smallest and the largest value.
    pub fn bounds(&self) -> (u128, u128) {
        match self {
            Values::Fixed(value) => (*value, *value),
            Values::Step { first, step, count } => {
                let last = first.wrapping_add_signed(step * i128::from(count - 1));
                (*first.min(&last), *first.max(&last))
            }
            Values::List(values) => {
                (values.iter().copied().min().unwrap_or(0), values.iter().copied().max().unwrap_or(0))
            }
            Values::Random { low, high, .. } => (*low, *high),
        }
    }
}

/// How often a field takes its next value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Every {
    /// Every so many frames; not 0.
    Frames(u64),
    /// When the field of this name starts again (`src_port`, `udp.src_port`).
    Wrap(String),
}
