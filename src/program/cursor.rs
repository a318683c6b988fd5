//! Walks a stream's frames for one worker: index w, w + N, w + 2N, …, a burst at a time.
//!
//! Pure; runs in a TX worker's hot loop. A burst is prepared by columns (one tight loop per field, write and checksum), then
//! each frame is a few stores into a slot; a slot that already holds the right template keeps its constant bytes. After
//! construction it neither allocates nor divides. It equals the definition in [`crate::program`] for every index. It does
//! not know when frames are due, nor where slots come from.

use crate::{
    program::{Checksum, Field, Generator, StreamProgram, Template, TermSource, Write, random_value},
    wire::signature::SignatureKind,
};

/// Most frames prepared at a time; also how many frames share one reading of the clock.
pub const BURST: usize = 64;

/// One value per frame of the burst.
type Column = [u64; BURST];

/// A position in a stream, and the burst prepared from there.
#[derive(Debug)]
pub struct Cursor {
    /// Index of the burst's first frame; of the next frame after [`Cursor::advance`].
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
    /// Template of each frame of the burst.
    chosen: [u16; BURST],
    /// What [`Part`]s store: the writes', the signature's and the checksums' columns of the chosen templates.
    columns: Vec<Column>,
    prepared: usize,
}

impl Cursor {
    /// The cursor of worker `worker` of `workers`, at its first frame.
    pub fn new(stream: &StreamProgram, worker: u16, workers: u16) -> Cursor {
        let shapes: Vec<Shape> = stream.templates.iter().map(Shape::new).collect();
        let columns = shapes.iter().map(Shape::columns).max().unwrap_or(0);
        let mut cursor = Cursor {
            index: 0,
            step: u64::from(workers),
            fields: stream.fields.iter().map(|field| FieldPosition::new(field, workers)).collect(),
            values: vec![[0; BURST]; stream.fields.len()],
            pattern: stream.pattern.clone().into_boxed_slice(),
            pattern_at: 0,
            pattern_step: usize::from(workers) % stream.pattern.len(),
            shapes,
            chosen: [stream.pattern[0]; BURST],
            columns: vec![[0; BURST]; columns],
            prepared: 0,
        };
        cursor.seek(u64::from(worker));
        cursor
    }

    /// Goes to frame `index` (divides; not for the hot loop).
    pub fn seek(&mut self, index: u64) {
        self.index = index;
        self.pattern_at = (index % self.pattern.len() as u64) as usize;
        self.fields.iter_mut().for_each(|field| field.seek(index));
        self.prepared = 0;
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
        if self.shapes.len() == 1 {
            self.prepare_run(0, frames, stamp);
        } else {
            let mut run = 0;
            for frame in 0..frames {
                self.chosen[frame] = self.pattern[self.pattern_at];
                self.pattern_at += self.pattern_step;
                if self.pattern_at >= self.pattern.len() {
                    self.pattern_at -= self.pattern.len();
                }
                if self.chosen[frame] != self.chosen[run] {
                    self.prepare_run(run, frame, stamp);
                    run = frame;
                }
            }
            self.prepare_run(run, frames, stamp);
        }
        self.index = self.index.wrapping_add(self.step.wrapping_mul(frames as u64));
        self.prepared = frames;
    }

    /// Fills the columns for frames `from..to` of the burst, which share a template.
    fn prepare_run(&mut self, from: usize, to: usize, stamp: u32) {
        let shape = &self.shapes[usize::from(self.chosen[from])];
        for (write, column) in shape.writes.iter().zip(&mut self.columns) {
            let values = &self.values[usize::from(write.field)][from..to];
            for (stored, &value) in column[from..to].iter_mut().zip(values) {
                *stored = write.stored(value);
            }
        }
        let stamp = if from == 0 { stamp } else { 0 };
        let first = self.index.wrapping_add(self.step.wrapping_mul(from as u64));
        if let Some(signature) = &shape.signature {
            let mut sequence = first;
            for stored in &mut self.columns[shape.writes.len()][from..to] {
                *stored = (sequence & signature.sequence_mask) << signature.sequence_shift;
                sequence = sequence.wrapping_add(self.step);
            }
            if signature.has_stamp {
                self.columns[shape.writes.len()][from] |= u64::from(stamp);
            }
        }
        for (n, checksum) in shape.checksums.iter().enumerate() {
            let mut sums = [u64::from(checksum.base); BURST];
            let sums = &mut sums[from..to];
            for addend in &checksum.addends {
                match addend.source {
                    AddendSource::Column { column, wide } => {
                        let column = &self.columns[column][from..to];
                        if wide {
                            // 64-bit values as two 32-bit words, so that neither the shift nor the sum overflows.
                            for (sum, &v) in sums.iter_mut().zip(column) {
                                *sum += ((v & 0xFFFF_FFFF) + (v >> 32)) << addend.shift;
                            }
                        } else {
                            for (sum, &v) in sums.iter_mut().zip(column) {
                                *sum += v << addend.shift;
                            }
                        }
                    }
                    AddendSource::Sequence { mask } => {
                        let mut sequence = first;
                        for sum in sums.iter_mut() {
                            *sum += (sequence & mask) << addend.shift;
                            sequence = sequence.wrapping_add(self.step);
                        }
                    }
                    AddendSource::Stamp => sums[0] += u64::from(stamp) << addend.shift,
                }
            }
            let column = &mut self.columns[shape.first_checksum + n][from..to];
            for (stored, &sum) in column.iter_mut().zip(sums.iter()) {
                let value = fold_complement(sum);
                // All ones if the value is 0, without a comparison, which SSE2 has not for 64 bits.
                let is_zero = 0u64.wrapping_sub(value.wrapping_sub(1) >> 63);
                *stored = value | (is_zero & checksum.zero);
            }
        }
    }

    /// Writes frame `nth` of the prepared burst into a slot and returns its length. `holds` is the slot's tag: which
    /// template (of which stream, see [`Tag`]) its bytes hold now.
    #[inline]
    pub fn write(&self, nth: usize, bytes: &mut [u8], stream: u16, holds: &mut Tag) -> usize {
        debug_assert!(nth < self.prepared);
        let chosen = self.chosen[nth];
        let shape = &self.shapes[usize::from(chosen)];
        let frame = &mut bytes[..shape.bytes.len()];
        let tag = Tag::new(stream, chosen);
        if *holds != tag {
            frame.copy_from_slice(&shape.bytes);
            *holds = tag;
        }
        let nth = nth % BURST;
        for store in &shape.twos {
            let value = self.columns[store.column][nth] as u16;
            frame[store.offset..store.offset + 2].copy_from_slice(&value.to_be_bytes());
        }
        for store in &shape.fours {
            let value = self.columns[store.column][nth] as u32;
            frame[store.offset..store.offset + 4].copy_from_slice(&value.to_be_bytes());
        }
        for store in &shape.eights {
            let value = self.columns[store.column][nth];
            frame[store.offset..store.offset + 8].copy_from_slice(&value.to_be_bytes());
        }
        for part in &shape.parts {
            part.store(self.columns[part.column][nth], frame);
        }
        shape.bytes.len()
    }

    /// Length with FCS of frame `nth` of the prepared burst, in bytes.
    #[inline]
    pub fn frame_len(&self, nth: usize) -> u16 {
        self.shapes[usize::from(self.chosen[nth])].frame_len
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

/// Folds a sum of 32-bit words to 16 bits and complements it (RFC 1071).
#[inline]
fn fold_complement(sum: u64) -> u64 {
    let sum = (sum & 0xFFFF_FFFF) + (sum >> 32);
    let sum = (sum & 0xFFFF) + (sum >> 16);
    let sum = (sum & 0xFFFF) + (sum >> 16);
    let sum = (sum & 0xFFFF) + (sum >> 16);
    sum ^ 0xFFFF
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

/// `(k + step) mod period` for k, step < period or step = 1, without dividing (and without overflow near 2⁶⁴).
#[inline]
fn wrapped(k: u64, step: u64, period: u64) -> u64 {
    let room = period - k;
    if step >= room { step - room } else { k + step }
}

/// A template ready to be written: its constant bytes and the stores that complete it.
#[derive(Debug)]
struct Shape {
    bytes: Box<[u8]>,
    frame_len: u16,
    writes: Vec<Write>,
    signature: Option<SignatureColumn>,
    /// Column of the first checksum.
    first_checksum: usize,
    checksums: Vec<Sum>,
    /// Columns that are stored as they are, by width in bytes.
    twos: Vec<Store>,
    fours: Vec<Store>,
    eights: Vec<Store>,
    /// All other stores.
    parts: Vec<Part>,
}

/// How the signature's column is made: sequence above stamp, as they stand in the frame.
#[derive(Debug)]
struct SignatureColumn {
    sequence_mask: u64,
    sequence_shift: u32,
    has_stamp: bool,
}

/// A checksum's column.
#[derive(Debug)]
struct Sum {
    base: u16,
    /// What a result of 0 is sent as.
    zero: u64,
    addends: Vec<Addend>,
}

/// A term, in a form that needs no folding: in ones' complement, swapping the bytes of a 16-bit word multiplies it by 2⁸.
#[derive(Debug)]
struct Addend {
    source: AddendSource,
    shift: u32,
}

#[derive(Debug)]
enum AddendSource {
    Column { column: usize, wide: bool },
    Sequence { mask: u64 },
    Stamp,
}

impl Shape {
    fn new(template: &Template) -> Shape {
        let mut shape = Shape {
            bytes: template.bytes.clone(),
            frame_len: template.frame_len.bytes() as u16,
            writes: template.writes.clone(),
            signature: None,
            first_checksum: template.writes.len(),
            checksums: Vec::new(),
            twos: Vec::new(),
            fours: Vec::new(),
            eights: Vec::new(),
            parts: Vec::new(),
        };
        for (column, write) in template.writes.iter().enumerate() {
            let alone = template.writes.iter().enumerate().all(|(other, w)| {
                other == column
                    || w.offset + u16::from(w.width) <= write.offset
                    || write.offset + u16::from(write.width) <= w.offset
            });
            shape.push_parts(column, usize::from(write.offset), usize::from(write.width), write.mask, alone);
        }
        if let Some(site) = template.signature {
            let (offset, width) = site.kind.sequence();
            let stamp_bytes = if site.kind == SignatureKind::Full { 4 } else { 0 };
            shape.signature = Some(SignatureColumn {
                sequence_mask: (1 << (8 * width)) - 1,
                sequence_shift: 8 * stamp_bytes,
                has_stamp: stamp_bytes > 0,
            });
            let bytes = width + stamp_bytes as usize;
            shape.push_parts(shape.first_checksum, usize::from(site.offset) + offset, bytes, full_mask(bytes), true);
            shape.first_checksum += 1;
        }
        for (n, checksum) in template.checksums.iter().enumerate() {
            shape.checksums.push(shape.sum(checksum));
            shape.push_parts(shape.first_checksum + n, usize::from(checksum.offset), 2, 0xFFFF, true);
        }
        shape
    }

    fn columns(&self) -> usize {
        self.first_checksum + self.checksums.len()
    }

    fn sum(&self, checksum: &Checksum) -> Sum {
        let addends = checksum.terms.iter().map(|term| Addend {
            source: match term.source {
                TermSource::Write(n) => {
                    let mask = self.writes[usize::from(n)].mask;
                    AddendSource::Column { column: usize::from(n), wide: mask > 0xFFFF_FFFF }
                }
                TermSource::Sequence => AddendSource::Sequence {
                    mask: self.signature.as_ref().map_or(0, |signature| signature.sequence_mask),
                },
                TermSource::Stamp => AddendSource::Stamp,
                TermSource::Checksum(n) => {
                    AddendSource::Column { column: self.first_checksum + usize::from(n), wide: false }
                }
            },
            shift: if term.swap { 8 } else { 0 },
        });
        Sum { base: checksum.base, zero: if checksum.zero_is_ffff { 0xFFFF } else { 0 }, addends: addends.collect() }
    }

    /// Adds the store of a column: as it is where that is possible, else split into stores of 8, 4, 2 and 1 bytes. A store that shares bytes with no other takes the bits
    /// outside its mask from the template; others keep what is in the frame.
    fn push_parts(&mut self, column: usize, offset: usize, width: usize, mask: u64, alone: bool) {
        let is_whole = alone && mask == full_mask(width);
        match width {
            2 if is_whole => return self.twos.push(Store { column, offset }),
            4 if is_whole => return self.fours.push(Store { column, offset }),
            8 if is_whole => return self.eights.push(Store { column, offset }),
            _ => {}
        }
        let (mut offset, mut left) = (offset, width);
        while left > 0 {
            let bytes = 1 << left.ilog2();
            left -= bytes;
            let shift = 8 * left as u32;
            let mask = (mask >> shift) & full_mask(bytes);
            let constant =
                self.bytes[offset..offset + bytes].iter().fold(0, |value, &b| value << 8 | u64::from(b)) & !mask;
            let keep = if alone { 0 } else { !mask & full_mask(bytes) };
            let width = match bytes {
                8 => Width::Eight,
                4 => Width::Four,
                2 => Width::Two,
                _ => Width::One,
            };
            self.parts.push(Part {
                column,
                offset,
                shift,
                width,
                mask,
                constant: if alone { constant } else { 0 },
                keep,
            });
            offset += bytes;
        }
    }
}

/// All ones in `bytes` bytes.
fn full_mask(bytes: usize) -> u64 {
    u64::MAX >> (64 - 8 * bytes)
}

/// A column stored as it is.
#[derive(Debug)]
struct Store {
    column: usize,
    offset: usize,
}

#[derive(Debug, Clone, Copy)]
enum Width {
    One,
    Two,
    Four,
    Eight,
}

/// A store of 1, 2, 4 or 8 bytes.
#[derive(Debug)]
struct Part {
    column: usize,
    offset: usize,
    shift: u32,
    width: Width,
    mask: u64,
    /// Bits of the template under the store.
    constant: u64,
    /// Bits to keep as they are in the frame; 0 = nothing is read.
    keep: u64,
}

impl Part {
    #[inline]
    fn store(&self, value: u64, frame: &mut [u8]) {
        let mut value = (value >> self.shift) & self.mask | self.constant;
        if self.keep != 0 {
            value |= self.load(frame) & self.keep;
        }
        let at = self.offset;
        match self.width {
            Width::One => frame[at] = value as u8,
            Width::Two => frame[at..at + 2].copy_from_slice(&(value as u16).to_be_bytes()),
            Width::Four => frame[at..at + 4].copy_from_slice(&(value as u32).to_be_bytes()),
            Width::Eight => frame[at..at + 8].copy_from_slice(&value.to_be_bytes()),
        }
    }

    fn load(&self, frame: &[u8]) -> u64 {
        let bytes = 1 << self.width as usize;
        frame[self.offset..self.offset + bytes].iter().fold(0, |value, &b| value << 8 | u64::from(b))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{
        ids::StreamId,
        program::{Mode, Schedule, Term, reference},
        units::FrameLen,
        wire::signature::SignatureSite,
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
                    for nth in 0..frames {
                        let (bytes, tag) = &mut ring[at];
                        let len = cursor.write(nth, bytes, 3, tag);
                        reference::frame(&stream, index, if nth == 0 { stamp } else { 0 }, &mut expected);
                        prop_assert_eq!(&bytes[..len], &expected[..], "frame {}", index);
                        index += u64::from(workers);
                        at = (at + 1) % slots;
                    }
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
        cursor.write(0, &mut bytes, 0, &mut Tag::EMPTY.clone());
        assert_eq!(bytes[40..42], [0xFF, 0xFF]);
    }
}
