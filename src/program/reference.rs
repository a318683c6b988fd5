//! The plain definition of a frame's bytes: what every faster interpreter and the BPF lowering must equal.
//!
//! Pure; slow on purpose: no state from one frame to the next, no tricks.

use super::{StreamProgram, TermSource, fold};

/// Makes frame `index` of the stream, without FCS, in `out`; `stamp` goes where the signature has room for one.
pub fn frame(stream: &StreamProgram, index: u64, stamp: u32, out: &mut Vec<u8>) {
    let position = (index % stream.pattern.len() as u64) as usize;
    let template = &stream.templates[usize::from(stream.pattern[position])];
    out.clear();
    out.extend_from_slice(&template.bytes);
    let mut stored = Vec::with_capacity(template.writes.len());
    for write in &template.writes {
        let value = write.stored(stream.fields[usize::from(write.field)].value(index));
        or_into(&mut out[usize::from(write.offset)..][..usize::from(write.width)], value);
        stored.push(value);
    }
    let mut sequence = 0;
    if let Some(site) = template.signature {
        let (offset, width) = site.kind.sequence();
        let start = usize::from(site.offset);
        sequence = index & (u64::MAX >> (64 - 8 * width));
        or_into(&mut out[start + offset..][..width], sequence);
        if let Some(offset) = site.kind.stamp() {
            or_into(&mut out[start + offset..][..4], stamp.into());
        }
    }
    let mut results: Vec<u16> = Vec::with_capacity(template.checksums.len());
    for checksum in &template.checksums {
        let mut sum = u64::from(checksum.base);
        for term in &checksum.terms {
            let value = match term.source {
                TermSource::Write(write) => stored[usize::from(write)],
                TermSource::Sequence => sequence,
                TermSource::Stamp => stamp.into(),
                TermSource::Checksum(earlier) => results[usize::from(earlier)].into(),
            };
            let folded = fold(value) as u16;
            sum += u64::from(if term.swap { folded.swap_bytes() } else { folded });
        }
        let mut result = !(fold(sum) as u16);
        if result == 0 && checksum.zero_is_ffff {
            result = 0xFFFF;
        }
        or_into(&mut out[usize::from(checksum.offset)..][..2], result.into());
        results.push(result);
    }
}

/// Ors the low bytes of `value` into `bytes`, big-endian.
fn or_into(bytes: &mut [u8], value: u64) {
    for (i, byte) in bytes.iter_mut().rev().enumerate() {
        *byte |= (value >> (8 * i)) as u8;
    }
}
