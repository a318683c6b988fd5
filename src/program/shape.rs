//! A template made ready for the hot loop: its constant bytes, and the words of 8 bytes in which something varies.
//!
//! Pure. What varies is made by columns, a loop over the burst for each write, the signature and each checksum; then each
//! word is put together from the columns it holds and the template's constant bytes. So a frame costs one store per word,
//! however its fields lie, and no byte of it is read. A checksum over nothing that varies becomes a constant.

use multiversion::multiversion;

use super::{
    Checksum, Template, TermSource, Write,
    cursor::{BURST, Column},
};
use crate::wire::signature::SignatureKind;

/// A word's bytes.
const WORD: usize = 8;

/// A template, ready.
#[derive(Debug)]
pub(super) struct Shape {
    /// The frame without FCS; what varies is zero.
    pub bytes: Box<[u8]>,
    /// Its length with FCS.
    pub frame_len: u16,
    writes: Vec<Write>,
    signature: Option<Signature>,
    sums: Vec<Sum>,
    words: Vec<Word>,
}

/// Frames of a burst that share a template, before their columns are made.
#[derive(Debug)]
pub(super) struct Burst<'a> {
    /// Values of the stream's fields.
    pub values: &'a [Column],
    /// Which cells of the columns.
    pub frames: std::ops::Range<usize>,
    /// Index of the first frame in its stream, and from frame to frame.
    pub first: u64,
    pub step: u64,
    /// Stamp of the first frame; the others have 0.
    pub stamp: u32,
}

impl Burst<'_> {
    /// The frames' sequences, as far as `mask` keeps them.
    #[inline]
    fn sequences(&self, mask: u64) -> impl Iterator<Item = u64> {
        let (mut index, step) = (self.first, self.step);
        std::iter::repeat_with(move || {
            let sequence = index & mask;
            index = index.wrapping_add(step);
            sequence
        })
    }
}

/// How the signature's column is made: sequence above stamp, as they stand in the frame.
#[derive(Debug)]
struct Signature {
    sequence_mask: u64,
    sequence_shift: u32,
    has_stamp: bool,
}

/// A checksum's column.
#[derive(Debug)]
struct Sum {
    base: u64,
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

/// Eight bytes of the frame in which something varies.
#[derive(Debug)]
struct Word {
    offset: usize,
    /// Its constant bits, big-endian.
    constant: u64,
    pieces: Vec<Piece>,
}

/// A column's share of a word: shifted left, or right if the shift is negative.
#[derive(Debug)]
struct Piece {
    column: usize,
    shift: i32,
}

/// Where a column stands in the frame.
struct Site {
    column: usize,
    offset: usize,
    width: usize,
    mask: u64,
}

impl Shape {
    pub fn new(template: &Template) -> Shape {
        let mut shape = Shape {
            bytes: template.bytes.clone(),
            frame_len: template.frame_len.bytes() as u16,
            writes: template.writes.clone(),
            signature: None,
            sums: Vec::new(),
            words: Vec::new(),
        };
        let mut sites = Vec::new();
        for (column, write) in template.writes.iter().enumerate() {
            let (offset, width) = (usize::from(write.offset), usize::from(write.width));
            sites.push(Site { column, offset, width, mask: write.mask });
        }
        if let Some(site) = template.signature {
            let (offset, width) = site.kind.sequence();
            let stamp_bytes = if site.kind == SignatureKind::Full { 4 } else { 0 };
            shape.signature = Some(Signature {
                sequence_mask: full_mask(width),
                sequence_shift: 8 * stamp_bytes,
                has_stamp: stamp_bytes > 0,
            });
            let width = width + stamp_bytes as usize;
            let offset = usize::from(site.offset) + offset;
            sites.push(Site { column: sites.len(), offset, width, mask: full_mask(width) });
        }
        let mut results = Vec::new();
        for checksum in &template.checksums {
            let sum = shape.sum(checksum, &results);
            let offset = usize::from(checksum.offset);
            if sum.addends.is_empty() {
                let value = sum.result(sum.base);
                shape.bytes[offset..offset + 2].copy_from_slice(&(value as u16).to_be_bytes());
                results.push(Checked::Constant(value));
            } else {
                let column = sites.len();
                sites.push(Site { column, offset, width: 2, mask: full_mask(2) });
                shape.sums.push(sum);
                results.push(Checked::Column(column));
            }
        }
        shape.words = words(&shape.bytes, &sites);
        shape
    }

    fn sum(&self, checksum: &Checksum, earlier: &[Checked]) -> Sum {
        let mut sum = Sum {
            base: checksum.base.into(),
            zero: if checksum.zero_is_ffff { 0xFFFF } else { 0 },
            addends: Vec::new(),
        };
        for term in &checksum.terms {
            let shift = if term.swap { 8 } else { 0 };
            let source = match term.source {
                TermSource::Write(n) => {
                    let mask = self.writes[usize::from(n)].mask;
                    AddendSource::Column { column: usize::from(n), wide: mask > 0xFFFF_FFFF }
                }
                TermSource::Sequence => AddendSource::Sequence {
                    mask: self.signature.as_ref().map_or(0, |signature| signature.sequence_mask),
                },
                TermSource::Stamp => AddendSource::Stamp,
                TermSource::Checksum(n) => match earlier[usize::from(n)] {
                    Checked::Constant(value) => {
                        sum.base += value << shift;
                        continue;
                    }
                    Checked::Column(column) => AddendSource::Column { column, wide: false },
                },
            };
            sum.addends.push(Addend { source, shift });
        }
        sum
    }

    /// How many columns it makes for its words.
    pub fn columns(&self) -> usize {
        self.writes.len() + usize::from(self.signature.is_some()) + self.sums.len()
    }

    /// How many words vary.
    pub fn words(&self) -> usize {
        self.words.len()
    }

    /// Writes frame `nth` of a burst into a slot that holds this template's bytes already, unless it `is_foreign`.
    #[inline]
    pub fn write(&self, nth: usize, slot: &mut [u8], words: &[Column], is_foreign: bool) {
        let frame = &mut slot[..self.bytes.len()];
        if is_foreign {
            frame.copy_from_slice(&self.bytes);
        }
        for (word, cells) in self.words.iter().zip(words) {
            frame[word.offset..word.offset + WORD].copy_from_slice(&cells[nth % BURST].to_be_bytes());
        }
    }
}

/// Makes the columns of these frames, and from them their words. Compiled for what the CPU has: the loops are as fast as its
/// vectors are wide.
#[multiversion(targets("x86_64+avx512f+avx512vl+avx512bw+avx512dq", "x86_64+avx2"))]
pub(super) fn fill(shape: &Shape, burst: &Burst, columns: &mut [Column], words: &mut [Column]) {
    let frames = burst.frames.clone();
    for (write, column) in shape.writes.iter().zip(&mut *columns) {
        let values = &burst.values[usize::from(write.field)][frames.clone()];
        for (stored, &value) in column[frames.clone()].iter_mut().zip(values) {
            *stored = write.stored(value);
        }
    }
    let mut made = shape.writes.len();
    if let Some(signature) = &shape.signature {
        let column = &mut columns[made][frames.clone()];
        for (stored, sequence) in column.iter_mut().zip(burst.sequences(signature.sequence_mask)) {
            *stored = sequence << signature.sequence_shift;
        }
        if signature.has_stamp {
            column[0] |= u64::from(burst.stamp);
        }
        made += 1;
    }
    for sum in &shape.sums {
        let (earlier, column) = columns.split_at_mut(made);
        sum.fill(burst, earlier, &mut column[0][frames.clone()]);
        made += 1;
    }
    for (word, cells) in shape.words.iter().zip(words) {
        word.fill(&mut cells[frames.clone()], |column| &columns[column][frames.clone()]);
    }
}

/// What became of a checksum.
enum Checked {
    Constant(u64),
    Column(usize),
}

impl Sum {
    #[inline(always)]
    fn fill(&self, burst: &Burst, columns: &[Column], results: &mut [u64]) {
        results.fill(self.base);
        for addend in &self.addends {
            let shift = addend.shift;
            match addend.source {
                AddendSource::Column { column, wide } => {
                    let column = &columns[column][burst.frames.clone()];
                    if wide {
                        // 64-bit values as two 32-bit words, so that neither the shift nor the sum overflows.
                        for (sum, &v) in results.iter_mut().zip(column) {
                            *sum += ((v & 0xFFFF_FFFF) + (v >> 32)) << shift;
                        }
                    } else {
                        for (sum, &v) in results.iter_mut().zip(column) {
                            *sum += v << shift;
                        }
                    }
                }
                AddendSource::Sequence { mask } => {
                    for (sum, sequence) in results.iter_mut().zip(burst.sequences(mask)) {
                        *sum += sequence << shift;
                    }
                }
                AddendSource::Stamp => results[0] += u64::from(burst.stamp) << shift,
            }
        }
        for result in results {
            *result = self.result(*result);
        }
    }

    /// Folds a sum of 32-bit words to 16 bits and complements it (RFC 1071).
    #[inline]
    fn result(&self, sum: u64) -> u64 {
        let sum = (sum & 0xFFFF_FFFF) + (sum >> 32);
        let sum = (sum & 0xFFFF) + (sum >> 16);
        let sum = (sum & 0xFFFF) + (sum >> 16);
        let sum = (sum & 0xFFFF) + (sum >> 16);
        let value = sum ^ 0xFFFF;
        // All ones if the value is 0, without a comparison, which SSE2 has not for 64 bits.
        let is_zero = 0u64.wrapping_sub(value.wrapping_sub(1) >> 63);
        value | (is_zero & self.zero)
    }
}

impl Word {
    #[inline(always)]
    fn fill<'a>(&self, cells: &mut [u64], column: impl Fn(usize) -> &'a [u64]) {
        cells.fill(self.constant);
        for piece in &self.pieces {
            // One of the shifts is 0: two of them cost a vector less than a branch.
            let (left, right) = (piece.shift.max(0) as u32, piece.shift.min(0).unsigned_abs());
            for (cell, &value) in cells.iter_mut().zip(column(piece.column)) {
                *cell |= value << left >> right;
            }
        }
    }
}

/// The fewest words that cover every byte in which something varies.
fn words(bytes: &[u8], sites: &[Site]) -> Vec<Word> {
    let mut varies = vec![false; bytes.len()];
    for site in sites {
        for n in 0..site.width {
            varies[site.offset + n] |= site.mask >> (8 * (site.width - 1 - n)) & 0xFF != 0;
        }
    }
    let mut words = Vec::new();
    let mut from = 0;
    while let Some(at) = varies[from..].iter().position(|&varies| varies) {
        let offset = (from + at).min(bytes.len() - WORD);
        let constant = bytes[offset..offset + WORD].iter().fold(0, |word, &byte| word << 8 | u64::from(byte));
        // By how much a column's lowest byte stands left of the word's.
        let shift = |site: &Site| 8 * ((offset + WORD) as i32 - (site.offset + site.width) as i32);
        let pieces = sites.iter().map(|site| Piece { column: site.column, shift: shift(site) });
        words.push(Word { offset, constant, pieces: pieces.filter(|piece| piece.shift.abs() < 64).collect() });
        from = offset + WORD;
    }
    words
}

/// All ones in `bytes` bytes.
pub(super) fn full_mask(bytes: usize) -> u64 {
    u64::MAX >> (64 - 8 * bytes)
}
