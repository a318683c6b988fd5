//! The signature that makes a frame ours: written by every backend, recognised by the XDP counting program.
//!
//! It stands at an offset that the compiled program fixes per template (the start of the innermost payload where that is
//! known, else the frame's last bytes). The receiver therefore needs no header parsing: it knows the few offsets of this
//! run, and those minus 4 and 8 (VLAN tags stripped), and compares the run tag there. `bpf/signature.h` states the same
//! layout for BPF; a test compares the two.
//!
//! Big-endian. Full (14 bytes): run tag u32, stream u16, sequence u32, stamp u32. Short (6 bytes, for frames with less
//! room, such as TCP in 64 bytes): low 16 bits of the run tag, stream u8, sequence u24.
//!
//! Every run tag begins with [`RUN_MAGIC`], so that frames of another run are told from strays; use [`run_tag`].
//!
//! The sequence is the stream's frame index (low bits). The stamp is the low 32 bits of CLOCK_MONOTONIC in nanoseconds
//! (good for latencies under 4.29 s), with 0 moved to 1; stamp 0 means "this frame carries no fresh stamp".

use serde::{Deserialize, Serialize};

/// Which signature a template carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SignatureKind {
    /// 14 bytes: run, stream, sequence, stamp.
    Full,
    /// 6 bytes: run (16 bits), stream (8 bits), sequence (24 bits).
    Short,
}

#[allow(clippy::len_without_is_empty, reason = "no signature is empty")]
impl SignatureKind {
    /// Bytes it takes.
    pub const fn len(self) -> usize {
        match self {
            SignatureKind::Full => 14,
            SignatureKind::Short => 6,
        }
    }

    /// Offset of the sequence within it, and its width in bytes.
    pub const fn sequence(self) -> (usize, usize) {
        match self {
            SignatureKind::Full => (6, 4),
            SignatureKind::Short => (3, 3),
        }
    }

    /// Offset of the 4-byte stamp within it.
    pub const fn stamp(self) -> Option<usize> {
        match self {
            SignatureKind::Full => Some(10),
            SignatureKind::Short => None,
        }
    }

    /// Highest stream number it can carry.
    pub const fn max_stream(self) -> u16 {
        match self {
            SignatureKind::Full => u16::MAX,
            SignatureKind::Short => u8::MAX as u16,
        }
    }

    /// The constant part (run tag and stream; sequence and stamp 0), `len()` bytes.
    pub fn constant(self, run_tag: u32, stream: u16) -> Vec<u8> {
        let mut bytes = vec![0; self.len()];
        match self {
            SignatureKind::Full => {
                bytes[0..4].copy_from_slice(&run_tag.to_be_bytes());
                bytes[4..6].copy_from_slice(&stream.to_be_bytes());
            }
            SignatureKind::Short => {
                bytes[0..2].copy_from_slice(&(run_tag as u16).to_be_bytes());
                bytes[2] = stream as u8;
            }
        }
        bytes
    }
}

/// Upper half of every run tag: a frame that has it, but another lower half, belongs to another run (or another trial).
pub const RUN_MAGIC: u16 = 0x9C4B;

/// A run tag from 16 bits that tell this run (and trial) from others: [`RUN_MAGIC`], then those bits, 0 moved to 1 because
/// the short signature carries only them, and payloads are full of zeros.
pub fn run_tag(distinct: u16) -> u32 {
    u32::from(RUN_MAGIC) << 16 | u32::from(distinct.max(1))
}

/// The tag of the next trial: another one, so that what is late from this trial is told from the next one's frames.
pub fn next_run_tag(tag: u32) -> u32 {
    run_tag((tag as u16).wrapping_add(1))
}

/// The stamp for this time: its low 32 bits, never 0.
#[inline]
pub fn stamp(now_ns: u64) -> u32 {
    let low = now_ns as u32;
    low + u32::from(low == 0)
}

/// Where and which signature a template carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SignatureSite {
    /// Byte offset in the frame; even.
    pub offset: u16,
    /// Which one.
    pub kind: SignatureKind,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_constant_part_leaves_sequence_and_stamp_zero() {
        assert_eq!(SignatureKind::Full.constant(0x0102_0304, 5), [1, 2, 3, 4, 0, 5, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(SignatureKind::Short.constant(0x0102_0304, 5), [3, 4, 5, 0, 0, 0]);
    }

    #[test]
    fn a_run_tag_has_the_magic_and_no_zero_half() {
        assert_eq!((run_tag(0), run_tag(0xABCD)), (0x9C4B_0001, 0x9C4B_ABCD));
    }

    #[test]
    fn a_stamp_is_never_zero() {
        assert_eq!((stamp(0), stamp(1 << 32), stamp(7)), (1, 1, 7));
    }

    /// Offset and width of each field of a packed structure in `bpf/signature.h`.
    fn fields(structure: &str) -> Vec<(String, usize, usize)> {
        let header = include_str!("../../bpf/signature.h");
        let (_, body) = header.split_once(&format!("struct {structure} {{")).expect("the structure is there");
        let (body, after) = body.split_once('}').expect("it ends");
        assert!(after.starts_with(" __attribute__((packed));"), "{structure} is packed");
        let mut end = 0;
        let field = |line: &str| {
            let (kind, name) = line.trim().trim_end_matches(';').split_once(' ').expect("a type and a name");
            let bytes = match kind {
                "__u8" => 1,
                "__be16" => 2,
                "__be32" => 4,
                other => panic!("a type that this test does not know: {other}"),
            };
            let (name, count) = match name.split_once('[') {
                Some((name, count)) => (name, count.trim_end_matches(']').parse().expect("a number")),
                None => (name, 1),
            };
            end += bytes * count;
            (name.to_owned(), end - bytes * count, bytes * count)
        };
        body.lines().filter(|line| !line.trim().is_empty()).map(field).collect()
    }

    #[test]
    fn the_bpf_header_says_the_same() {
        for (kind, structure) in [(SignatureKind::Full, "signature_full"), (SignatureKind::Short, "signature_short")] {
            let fields = fields(structure);
            let of =
                |name: &str| fields.iter().find(|(field, ..)| field == name).map(|&(_, offset, bytes)| (offset, bytes));
            assert_eq!(fields.iter().map(|(.., bytes)| bytes).sum::<usize>(), kind.len(), "{structure}");
            assert_eq!(of("sequence"), Some(kind.sequence()), "{structure}");
            assert_eq!(of("stamp"), kind.stamp().map(|offset| (offset, 4)), "{structure}");
            // The tag alone, and the stream alone, fill just their fields.
            for (name, constant) in
                [("run_tag", kind.constant(u32::MAX, 0)), ("stream", kind.constant(0, kind.max_stream()))]
            {
                let (offset, bytes) = of(name).expect("it is there");
                let expected: Vec<u8> =
                    (0..kind.len()).map(|at| if (offset..offset + bytes).contains(&at) { 0xFF } else { 0 }).collect();
                assert_eq!(constant, expected, "{name} of {structure}");
            }
        }
        let define = format!("#define RUN_MAGIC {RUN_MAGIC:#06X}\n").replace("0X", "0x");
        assert!(include_str!("../../bpf/signature.h").contains(&define), "{define}");
    }
}
