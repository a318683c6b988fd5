//! Walks a stream's frames for one worker: index w, w + N, w + 2N, …, a burst at a time.
//!
//! Pure; runs in a TX worker's hot loop. A burst is prepared by columns (one tight loop per field, checksum and varying word,
//! see `program/shape.rs`), then each frame is a few stores into a slot; a slot that already holds the right template keeps its
//! constant bytes. After construction it neither allocates nor divides. It equals the definition in [`crate::program`] for
//! every index. It does not know when frames are due, nor where slots come from.

use std::ops::Range;

use super::{
    Field, Generator, StreamProgram, random_value,
    shape::{self, Burst, Shape},
};

/// Most frames prepared at a time; also how many frames share one reading of the clock.
pub const BURST: usize = 64;

/// One value per frame of the burst.
pub(super) type Column = [u64; BURST];

/// A position in a stream, and the burst prepared from there.
#[derive(Debug)]
pub struct Cursor {
    /// Index of the next frame.
    index: u64,
    /// Number of workers.
    step: u64,
    fields: Vec<FieldPosition>,
    /// Values of the fields.
    values: Vec<Column>,
    pattern: Box<[u16]>,
    pattern_at: usize,
    pattern_step: usize,
    shapes: Vec<Shape>,
    /// The prepared burst: what the frames are made of, the words to store, and which frames share a template.
    columns: Vec<Column>,
    words: Vec<Column>,
    runs: Vec<(u16, Range<usize>)>,
}

impl Cursor {
    /// The cursor of worker `worker` of `workers`, at its first frame.
    pub fn new(stream: &StreamProgram, worker: u16, workers: u16) -> Cursor {
        let shapes: Vec<Shape> = stream.templates.iter().map(Shape::new).collect();
        let most = |count: fn(&Shape) -> usize| vec![[0; BURST]; shapes.iter().map(count).max().unwrap_or(0)];
        let (columns, words) = (most(Shape::columns), most(Shape::words));
        let mut cursor = Cursor {
            index: 0,
            step: u64::from(workers),
            fields: stream.fields.iter().map(|field| FieldPosition::new(field, workers)).collect(),
            values: vec![[0; BURST]; stream.fields.len()],
            pattern: stream.pattern.clone().into_boxed_slice(),
            pattern_at: 0,
            pattern_step: usize::from(workers) % stream.pattern.len(),
            shapes,
            columns,
            words,
            runs: Vec::with_capacity(BURST),
        };
        cursor.seek(u64::from(worker));
        cursor
    }

    /// Goes to frame `index` (divides; not for the hot loop).
    pub fn seek(&mut self, index: u64) {
        self.index = index;
        self.pattern_at = (index % self.pattern.len() as u64) as usize;
        self.fields.iter_mut().for_each(|field| field.seek(index));
        self.runs.clear();
    }

    /// Index of the next frame.
    pub fn index(&self) -> u64 {
        self.index
    }

    /// Prepares the next `frames` (1…[`BURST`]) frames and goes past them; only the first carries `stamp`, the others 0.
    ///
    /// Call it only for frames that will be accepted: the sequence advances here.
    pub fn prepare(&mut self, frames: usize, stamp: u32) {
        assert!((1..=BURST).contains(&frames), "a burst has 1 to {BURST} frames");
        for (field, column) in self.fields.iter_mut().zip(&mut self.values) {
            field.fill(&mut column[..frames]);
        }
        self.runs.clear();
        if self.shapes.len() == 1 {
            self.runs.push((0, 0..frames));
        } else {
            self.choose(frames);
        }
        for (template, frames) in &self.runs {
            let first = self.index.wrapping_add(self.step.wrapping_mul(frames.start as u64));
            let stamp = if frames.start == 0 { stamp } else { 0 };
            let burst = Burst { values: &self.values, frames: frames.clone(), first, step: self.step, stamp };
            shape::fill(&self.shapes[usize::from(*template)], &burst, &mut self.columns, &mut self.words);
        }
        self.index = self.index.wrapping_add(self.step.wrapping_mul(frames as u64));
    }

    /// Follows the pattern over the burst.
    fn choose(&mut self, frames: usize) {
        for frame in 0..frames {
            let chosen = self.pattern[self.pattern_at];
            self.pattern_at += self.pattern_step;
            if self.pattern_at >= self.pattern.len() {
                self.pattern_at -= self.pattern.len();
            }
            match self.runs.last_mut() {
                Some((template, run)) if *template == chosen => run.end = frame + 1,
                _ => self.runs.push((chosen, frame..frame + 1)),
            }
        }
    }

    /// The prepared burst, as stream number `stream` of its program: its frames in order, by those that share a template.
    #[inline]
    pub fn runs(&self, stream: u16) -> impl Iterator<Item = Run<'_>> {
        self.runs.iter().map(move |(template, frames)| {
            let shape = &self.shapes[usize::from(*template)];
            Run {
                frames: frames.clone(),
                tag: Tag::new(stream, *template),
                frame_len: shape.frame_len,
                shape,
                words: &self.words,
            }
        })
    }
}

/// Consecutive frames of a burst that share a template.
#[derive(Debug)]
pub struct Run<'a> {
    /// Their numbers in the burst.
    pub frames: Range<usize>,
    /// What a slot holds once one of them was written.
    pub tag: Tag,
    /// Their length with FCS, in bytes.
    pub frame_len: u16,
    shape: &'a Shape,
    words: &'a [Column],
}

impl Run<'_> {
    /// Their length in a slot, without FCS, in bytes.
    #[inline]
    pub fn buf_len(&self) -> usize {
        self.shape.bytes.len()
    }

    /// Writes frame `nth` of the burst into a slot, whose bytes are as `holds` says.
    #[inline]
    pub fn write(&self, nth: usize, slot: &mut [u8], holds: Tag) {
        debug_assert!(self.frames.contains(&nth));
        self.shape.write(nth, slot, self.words, holds != self.tag);
    }
}

/// Which template a slot's bytes hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tag(u32);

impl Tag {
    /// Nothing known: the next frame copies its whole template.
    pub const EMPTY: Tag = Tag(u32::MAX);

    #[inline]
    fn new(stream: u16, template: u16) -> Tag {
        Tag(u32::from(stream) << 16 | u32::from(template))
    }

    /// The stream's index in its program.
    #[inline]
    pub fn stream(self) -> usize {
        (self.0 >> 16) as usize
    }
}

/// A field's values from a running position.
#[derive(Debug)]
struct FieldPosition {
    generator: Generator,
    steps: Steps,
}

/// A running `k = (index / div) mod period`, advanced by the number of workers without dividing.
#[derive(Debug)]
struct Steps {
    div: u64,
    period: u64,
    /// index mod div.
    remainder: u64,
    k: u64,
    /// workers mod div.
    remainder_step: u64,
    /// (workers / div) mod period.
    k_step: u64,
}

impl FieldPosition {
    fn new(field: &Field, workers: u16) -> FieldPosition {
        let (step, div, period) = (u64::from(workers), field.div, field.period);
        let steps =
            Steps { div, period, remainder: 0, k: 0, remainder_step: step % div, k_step: (step / div) % period };
        FieldPosition { generator: field.generator.clone(), steps }
    }

    fn seek(&mut self, index: u64) {
        self.steps.remainder = index % self.steps.div;
        self.steps.k = (index / self.steps.div) % self.steps.period;
    }

    /// Stores the values of the next frames and goes past them.
    fn fill(&mut self, column: &mut [u64]) {
        match &self.generator {
            Generator::Step { start, step } => self.steps.walk(column, |k| start.wrapping_add(k.wrapping_mul(*step))),
            Generator::List(values) => self.steps.walk(column, |k| values[k as usize]),
            Generator::Random { seed, low, span } => {
                self.steps.walk(column, |k| low.wrapping_add(random_value(*seed, k, *span)));
            }
        }
    }
}

impl Steps {
    #[inline]
    fn walk(&mut self, column: &mut [u64], value: impl Fn(u64) -> u64) {
        if self.period == 1 {
            return column.fill(value(0));
        }
        let (mut k, mut remainder) = (self.k, self.remainder);
        for cell in column {
            *cell = value(k);
            k = wrapped(k, self.k_step, self.period);
            if self.div > 1 {
                remainder += self.remainder_step;
                let carry = u64::from(remainder >= self.div);
                remainder -= self.div * carry;
                k = wrapped(k, carry, self.period);
            }
        }
        (self.k, self.remainder) = (k, remainder);
    }
}

/// `(k + step) mod period` for k, step < period, without dividing (and without overflow near 2⁶⁴).
#[inline]
fn wrapped(k: u64, step: u64, period: u64) -> u64 {
    // Adding step − period overflows exactly if k + step reaches the period: one addition and one choice from k to k.
    let (past, wraps) = k.overflowing_add(step.wrapping_sub(period));
    if wraps { past } else { k.wrapping_add(step) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{super::shape::full_mask, *};
    use crate::{
        ids::StreamId,
        program::{Checksum, Mode, Schedule, Template, Term, TermSource, Write, reference},
        units::FrameLen,
        wire::signature::{SignatureKind, SignatureSite},
    };

    fn schedule() -> Schedule {
        Schedule { weight: 1, start_delay_ns: 0, mode: Mode::Continuous, next: None, self_start: true, loops: 0 }
    }

    fn field() -> impl Strategy<Value = Field> {
        let generator = prop_oneof![
            (any::<u64>(), any::<u64>()).prop_map(|(start, step)| (Generator::Step { start, step }, None)),
            prop::collection::vec(any::<u64>(), 1..5).prop_map(|list| {
                let period = list.len() as u64;
                (Generator::List(list.into()), Some(period))
            }),
            (any::<u64>(), any::<u64>(), 1..u64::MAX)
                .prop_map(|(seed, low, span)| (Generator::Random { seed, low, span }, None)),
        ];
        let period = prop_oneof![1u64..9, Just(64), Just(1 << 63), Just(u64::MAX)];
        (generator, prop_oneof![1u64..7, Just(1000)], period).prop_map(|((generator, fixed), div, period)| Field {
            name: "f".into(),
            generator,
            div,
            period: fixed.unwrap_or(period),
        })
    }

    /// A template of 64…128 bytes: signature, up to 4 writes (they may share bytes), checksums over all of it.
    fn template(fields: usize) -> impl Strategy<Value = Template> {
        let write = (0..fields as u16, 0u16..24, 1u8..=8, 0u8..8, any::<u64>());
        let kind = prop_oneof![Just(None), Just(Some(SignatureKind::Full)), Just(Some(SignatureKind::Short))];
        let checksum = (any::<u16>(), any::<bool>(), prop::collection::vec((0u8..4, any::<bool>()), 0..5));
        (prop::collection::vec(write, 0..4), kind, 60usize..130, prop::collection::vec(checksum, 0..3)).prop_map(
            |(writes, kind, len, checksums)| {
                // Writes may share bytes, not bits.
                let mut taken = [0u8; 32];
                let writes: Vec<Write> = writes
                    .into_iter()
                    .map(|(field, offset, width, shift, mask)| {
                        let at = usize::from(offset)..usize::from(offset) + usize::from(width);
                        let others = taken[at.clone()].iter().fold(0, |value, &b| value << 8 | u64::from(b));
                        let mask = mask & full_mask(usize::from(width)) & !others;
                        for (byte, mask) in taken[at].iter_mut().rev().zip(mask.to_le_bytes()) {
                            *byte |= mask;
                        }
                        Write { field, offset, width, shift, mask }
                    })
                    .collect();
                let checksums = checksums
                    .into_iter()
                    .enumerate()
                    .map(|(n, (base, zero_is_ffff, terms))| Checksum {
                        offset: 32 + 2 * n as u16,
                        base,
                        zero_is_ffff,
                        terms: terms
                            .into_iter()
                            .filter_map(|(source, swap)| {
                                let source = match source {
                                    0 if !writes.is_empty() => TermSource::Write(writes.len() as u16 - 1),
                                    1 if kind.is_some() => TermSource::Sequence,
                                    2 if kind == Some(SignatureKind::Full) => TermSource::Stamp,
                                    3 if n > 0 => TermSource::Checksum(n as u16 - 1),
                                    _ => return None,
                                };
                                Some(Term { source, swap })
                            })
                            .collect(),
                    })
                    .collect();
                let mut bytes: Vec<u8> = (0..len).map(|n| if (32..54).contains(&n) { 0 } else { n as u8 }).collect();
                for write in &writes {
                    for n in 0..usize::from(write.width) {
                        let mask = write.mask >> (8 * (usize::from(write.width) - 1 - n));
                        bytes[usize::from(write.offset) + n] &= !(mask as u8);
                    }
                }
                Template {
                    frame_len: FrameLen::from_buf_len(len).unwrap(),
                    bytes: bytes.into(),
                    writes,
                    signature: kind.map(|kind| SignatureSite { offset: 40, kind }),
                    checksums,
                }
            },
        )
    }

    fn stream() -> impl Strategy<Value = StreamProgram> {
        prop::collection::vec(field(), 1..4).prop_flat_map(|fields| {
            let templates = prop::collection::vec(template(fields.len()), 1..4);
            (Just(fields), templates, prop::collection::vec(any::<prop::sample::Index>(), 1..9)).prop_map(
                |(fields, templates, pattern)| StreamProgram {
                    id: StreamId(3),
                    name: "s".into(),
                    pattern: pattern.iter().map(|at| at.index(templates.len()) as u16).collect(),
                    templates,
                    fields,
                    schedule: schedule(),
                    flows: 1,
                },
            )
        })
    }

    proptest! {
        #[test]
        fn every_frame_of_every_worker_equals_its_definition(
            stream in stream(), workers in 1u16..6, start in prop_oneof![Just(0u64), any::<u32>().prop_map(u64::from)],
            bursts in prop::collection::vec(1..=BURST, 1..6), slots in 1usize..5,
        ) {
            for worker in 0..workers {
                let mut cursor = Cursor::new(&stream, worker, workers);
                let mut index = start * u64::from(workers) + u64::from(worker);
                cursor.seek(index);
                let mut ring = vec![(vec![0xEE; 200], Tag::EMPTY); slots];
                let (mut at, mut expected) = (0, Vec::new());
                for (n, &frames) in bursts.iter().enumerate() {
                    let stamp = 0xABCD_0000 + n as u32;
                    cursor.prepare(frames, stamp);
                    for run in cursor.runs(3) {
                        for nth in run.frames.clone() {
                            let (bytes, holds) = &mut ring[at];
                            run.write(nth, bytes, *holds);
                            *holds = run.tag;
                            reference::frame(&stream, index, if nth == 0 { stamp } else { 0 }, &mut expected);
                            prop_assert_eq!(&bytes[..run.buf_len()], &expected[..], "frame {}", index);
                            index += u64::from(workers);
                            at = (at + 1) % slots;
                        }
                    }
                    prop_assert_eq!(index, cursor.index());
                }
            }
        }
    }

    #[test]
    fn a_udp_checksum_of_zero_is_sent_as_ffff() {
        let template = Template {
            bytes: vec![0; 60].into(),
            frame_len: FrameLen::MIN,
            writes: vec![],
            signature: None,
            checksums: vec![Checksum { offset: 40, base: 0xFFFF, zero_is_ffff: true, terms: vec![] }],
        };
        let stream = StreamProgram {
            id: StreamId(0),
            name: "s".into(),
            templates: vec![template],
            pattern: vec![0],
            fields: vec![],
            schedule: schedule(),
            flows: 1,
        };
        let mut cursor = Cursor::new(&stream, 0, 1);
        cursor.prepare(1, 1);
        let mut bytes = [0; 60];
        cursor.runs(0).next().expect("a burst of one").write(0, &mut bytes, Tag::EMPTY);
        assert_eq!(bytes[40..42], [0xFF, 0xFF]);
    }
}
