//! Code that makes one frame of one template: constant bytes, fields, signature, checksums.
//!
//! Control plane, pure. On entry R6 is the frame's index, R9 its stamp, and every field's value stands in its stack slot
//! (see `lower`). Every byte is written absolutely; checksums come from constant bases, never from the page.

use super::{
    asm::{Alu, Asm, FP, Helper, If, Label, R0, R1, R2, R3, R4, R6, R7, R9, Reg, Width},
    layout::MAX_IMMEDIATE_BYTES,
    lower::{CONTEXT_SLOT, MapFds, XDP_DROP, XDP_TX, field_slot},
};
use crate::{
    program::{Checksum, Field, Generator, StreamProgram, Template, TermSource, Write},
    wire::signature::{SignatureKind, SignatureSite},
};

/// Offsets in `struct xdp_md`.
const DATA: i16 = 0;
const DATA_END: i16 = 4;

/// Emits the code; it ends the program.
pub(super) fn emit(
    asm: &mut Asm,
    stream: &StreamProgram,
    template: &Template,
    bytes_at: u32,
    maps: MapFds,
    max_len: usize,
) {
    let drop = asm.label();
    let len = template.bytes.len();
    if len < max_len {
        asm.load(Width::Double, R1, FP, CONTEXT_SLOT);
        asm.constant(R2, (len as u64).wrapping_sub(max_len as u64));
        asm.call(Helper::XdpAdjustTail);
        asm.jump_if(R0, If::Ne, 0, drop);
    }
    if len > MAX_IMMEDIATE_BYTES {
        asm.load(Width::Double, R1, FP, CONTEXT_SLOT);
        asm.alu(Alu::Mov, R2, 0);
        asm.map_value(R3, maps.constants, bytes_at);
        asm.alu(Alu::Mov, R4, len as i32);
        asm.call(Helper::XdpStoreBytes);
    }
    packet(asm, len, drop);
    if len <= MAX_IMMEDIATE_BYTES {
        constant_bytes(asm, &template.bytes);
    }
    for number in 0..template.writes.len() {
        write(asm, stream, template, number);
    }
    if let Some(site) = template.signature {
        signature(asm, site);
    }
    for number in 0..template.checksums.len() {
        checksum(asm, stream, template, &template.checksums[number]);
    }
    asm.exit_with(XDP_TX);
    asm.bind(drop);
    asm.exit_with(XDP_DROP);
}

/// R7 = the packet, with the bounds check that the verifier asks for.
fn packet(asm: &mut Asm, len: usize, drop: Label) {
    asm.load(Width::Double, R1, FP, CONTEXT_SLOT);
    asm.load(Width::Word, R7, R1, DATA);
    asm.load(Width::Word, R2, R1, DATA_END);
    asm.mov(R3, R7);
    asm.alu(Alu::Add, R3, len as i32);
    asm.jump_if(R3, If::Gt, R2, drop);
}

fn constant_bytes(asm: &mut Asm, bytes: &[u8]) {
    let mut at = 0;
    while at < bytes.len() {
        let (width, step) = Width::at_most(bytes.len() - at);
        let mut word = [0; 8];
        word[..step].copy_from_slice(&bytes[at..at + step]);
        asm.store_const(width, R7, at as i16, u64::from_le_bytes(word), R1);
        at += step;
    }
}

/// R2 = the write's field as it stands in the frame; returns the largest value it can have.
fn stored(asm: &mut Asm, stream: &StreamProgram, write: &Write) -> u64 {
    let field = usize::from(write.field);
    asm.load(Width::Double, R2, FP, field_slot(field));
    if write.shift > 0 {
        asm.alu(Alu::Lsh, R2, i32::from(write.shift));
    }
    let (largest, mask) = (largest_value(&stream.fields[field]), write.mask >> write.shift);
    if mask & mask.wrapping_add(1) == 0 && largest <= mask {
        return largest << write.shift; // the mask's bits have no gap and the value stays below them
    }
    and(asm, R2, write.mask);
    write.mask
}

fn and(asm: &mut Asm, reg: Reg, mask: u64) {
    match mask {
        u64::MAX => {}
        0xFFFF_FFFF => asm.low32(reg, reg),
        _ => asm.alu_const(Alu::And, reg, mask, R3),
    }
}

/// An upper bound of the field's values.
fn largest_value(field: &Field) -> u64 {
    match &field.generator {
        Generator::Step { start, step } => {
            let last = (field.period - 1).checked_mul(*step).and_then(|way| way.checked_add(*start));
            last.unwrap_or(u64::MAX)
        }
        Generator::List(values) => values.iter().copied().max().unwrap_or(0),
        Generator::Random { low, span, .. } => low.checked_add(span - 1).unwrap_or(u64::MAX),
    }
}

/// Stores a field. Where other fields share its bytes it is OR-ed into what has been written; the template's bits are zero
/// under every mask.
fn write(asm: &mut Asm, stream: &StreamProgram, template: &Template, number: usize) {
    let write = &template.writes[number];
    let (offset, width) = (usize::from(write.offset), usize::from(write.width));
    stored(asm, stream, write);
    let shares_bytes = template.writes.iter().enumerate().any(|(other, w)| {
        let start = usize::from(w.offset);
        other != number && start < offset + width && offset < start + usize::from(w.width)
    });
    let constant = big_endian(&template.bytes[offset..offset + width]);
    if shares_bytes {
        store_or(asm, offset, width);
    } else {
        if constant != 0 {
            asm.alu_const(Alu::Or, R2, constant, R3);
        }
        store(asm, offset, width);
    }
}

fn big_endian(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |value, byte| value << 8 | u64::from(*byte))
}

/// Stores the low `width` bytes of R2 big-endian; R2 is lost.
fn store(asm: &mut Asm, offset: usize, width: usize) {
    match width {
        1 => asm.store(Width::Byte, R7, offset as i16, R2),
        2 | 4 | 8 => {
            asm.swap_to_be(R2, width);
            asm.store(Width::at_most(width).0, R7, offset as i16, R2);
        }
        _ => pieces(asm, offset, width, |asm, piece, at| asm.store(piece, R7, at, R2)),
    }
}

/// ORs the low `width` bytes of R2 into the frame, big-endian; R2 is lost.
fn store_or(asm: &mut Asm, offset: usize, width: usize) {
    pieces(asm, offset, width, |asm, piece, at| {
        asm.load(piece, R3, R7, at);
        asm.alu(Alu::Or, R3, R2);
        asm.store(piece, R7, at, R3);
    });
}

/// Puts the low `width` bytes of R2 into memory order and hands them over from R2's low end, piece by piece.
fn pieces(asm: &mut Asm, offset: usize, width: usize, mut each: impl FnMut(&mut Asm, Width, i16)) {
    if width < 8 {
        asm.alu(Alu::Lsh, R2, 64 - 8 * width as i32);
    }
    asm.swap_to_be(R2, 8);
    let mut done = 0;
    while done < width {
        let (piece, step) = Width::at_most(width - done);
        each(asm, piece, (offset + done) as i16);
        done += step;
        if done < width {
            asm.alu(Alu::Rsh, R2, 8 * step as i32);
        }
    }
}

/// R2 = the signature's sequence; returns its largest value.
fn sequence(asm: &mut Asm, kind: SignatureKind) -> u64 {
    let (_, width) = kind.sequence();
    let mask = u64::MAX >> (64 - 8 * width);
    asm.mov(R2, R6);
    and(asm, R2, mask);
    mask
}

fn signature(asm: &mut Asm, site: SignatureSite) {
    let (offset, width) = site.kind.sequence();
    sequence(asm, site.kind);
    store(asm, usize::from(site.offset) + offset, width);
    if let Some(offset) = site.kind.stamp() {
        asm.mov(R2, R9);
        store(asm, usize::from(site.offset) + offset, 4);
    }
}

/// Computes one checksum from its base and terms (RFC 1071), folding as often as the largest possible sum needs.
fn checksum(asm: &mut Asm, stream: &StreamProgram, template: &Template, checksum: &Checksum) {
    asm.constant(R1, u64::from(checksum.base));
    let mut largest = u64::from(checksum.base);
    for term in &checksum.terms {
        let mut bound = match term.source {
            TermSource::Write(number) => stored(asm, stream, &template.writes[usize::from(number)]),
            TermSource::Sequence => match template.signature {
                Some(site) => sequence(asm, site.kind),
                None => continue,
            },
            TermSource::Stamp => {
                asm.mov(R2, R9);
                u64::from(u32::MAX)
            }
            TermSource::Checksum(number) => {
                asm.load(Width::Half, R2, R7, template.checksums[usize::from(number)].offset as i16);
                asm.swap_to_be(R2, 2);
                0xFFFF
            }
        };
        if bound > u64::from(u32::MAX) {
            // 2^32 ≡ 1 (mod 2^16 − 1): the upper half may be added to the lower.
            asm.mov(R3, R2);
            asm.alu(Alu::Rsh, R3, 32);
            asm.low32(R2, R2);
            asm.alu(Alu::Add, R2, R3);
            bound = 2 * u64::from(u32::MAX);
        }
        if term.swap {
            // Swapping the bytes of the folded sum is multiplying by 2^8 (mod 2^16 − 1).
            asm.alu(Alu::Lsh, R2, 8);
            bound <<= 8;
        }
        asm.alu(Alu::Add, R1, R2);
        largest += bound;
    }
    while largest > 0xFFFF {
        asm.mov(R2, R1);
        asm.alu(Alu::Rsh, R2, 16);
        asm.alu(Alu::And, R1, 0xFFFF);
        asm.alu(Alu::Add, R1, R2);
        largest = largest_fold(largest);
    }
    asm.alu(Alu::Xor, R1, 0xFFFF);
    if checksum.zero_is_ffff {
        let non_zero = asm.label();
        asm.jump_if(R1, If::Ne, 0, non_zero);
        asm.alu(Alu::Mov, R1, 0xFFFF);
        asm.bind(non_zero);
    }
    asm.swap_to_be(R1, 2);
    asm.store(Width::Half, R7, checksum.offset as i16, R1);
}

/// Largest `(s >> 16) + (s & 0xFFFF)` over all s ≤ `largest`.
fn largest_fold(largest: u64) -> u64 {
    let (high, low) = (largest >> 16, largest & 0xFFFF);
    (high + low).max((high + 0xFFFF).saturating_sub(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bound_of_a_fold_is_the_exact_maximum() {
        for largest in [0u64, 1, 0xFFFF, 0x1_0000, 0x1_0001, 0x1_FFFE, 0x1_FFFF, 0x2_0000, 0x3_4567] {
            let exact = (0..=largest).map(|s| (s >> 16) + (s & 0xFFFF)).max().unwrap();
            let bound = largest_fold(largest);
            assert!(
                bound == exact || (largest <= 0xFFFF && bound >= exact),
                "{largest:#x}: {bound:#x}, exact {exact:#x}"
            );
        }
    }
}
