//! Frame sizes: one, several, or a mix in a repeating order (RFC 6985 IMIX genomes).
//!
//! Pure; any thread. All sizes count the 4-byte FCS.

use crate::{
    profile::node::parse_integer,
    units::{FrameLen, MeanFrame},
};

/// One frame of a mix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SizeItem {
    /// This length.
    Fixed(FrameLen),
    /// As long as the port's MTU allows (RFC 6985's `z`).
    Mtu,
}

/// Frame sizes in the order they are sent, over and over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SizeMix {
    /// How it was written: `64`, `imix`, `imix:aaafg`.
    pub label: String,
    /// One period. Never empty.
    pub pattern: Vec<SizeItem>,
}

/// RFC 6985 §4.1: the sizes of `a`…`j`.
const GENOME: [(char, u64); 10] = [
    ('a', 64),
    ('b', 128),
    ('c', 256),
    ('d', 512),
    ('e', 1024),
    ('f', 1280),
    ('g', 1518),
    ('h', 2112),
    ('i', 9000),
    ('j', 16_000),
];

/// Longest period of a mix, in frames.
pub const MAX_PATTERN_FRAMES: usize = 4096;

const SIZE_FORMS: &str = "a frame size: write 64 (FCS included), imix, or a genome such as imix:aaaaaaabbbbg";

impl SizeMix {
    /// One size.
    pub fn one(len: FrameLen) -> SizeMix {
        SizeMix { label: len.to_string(), pattern: vec![SizeItem::Fixed(len)] }
    }

    /// The simple IMIX, 7:4:1 of 64, 570 and 1518 bytes: CUSTOM IMIX `AAAAAAABBBBC` in RFC 6985's words, sent in this order.
    pub fn imix() -> SizeMix {
        let of = |count, bytes| std::iter::repeat_n(bytes, count);
        let lengths = of(7, 64).chain(of(4, 570)).chain(of(1, 1518));
        let pattern = lengths.filter_map(FrameLen::new).map(SizeItem::Fixed).collect();
        SizeMix { label: "imix".to_owned(), pattern }
    }

    /// Reads one of `64`, `imix`, `imix:GENOME`.
    ///
    /// # Errors
    /// A sentence that names the limit or the forms.
    pub fn parse(text: &str) -> Result<SizeMix, String> {
        let text = text.trim();
        let lower = text.to_ascii_lowercase();
        if let Some(genome) = lower.strip_prefix("imix:") {
            return SizeMix::genome(text, genome);
        }
        if lower == "imix" {
            return Ok(SizeMix::imix());
        }
        let bytes = parse_integer(text).ok_or_else(|| format!("`{text}` is not {SIZE_FORMS}"))?;
        frame_len(bytes).map(SizeMix::one)
    }

    fn genome(text: &str, genome: &str) -> Result<SizeMix, String> {
        let item = |letter: char| match letter {
            'z' => Ok(SizeItem::Mtu),
            _ => {
                let entry = GENOME.iter().find(|entry| entry.0 == letter);
                let (_, bytes) =
                    entry.ok_or_else(|| format!("`{letter}` in `{text}` is no size of RFC 6985: a…i or z"))?;
                frame_len(*bytes).map(SizeItem::Fixed)
            }
        };
        let pattern = genome.chars().map(item).collect::<Result<Vec<_>, _>>()?;
        match pattern.len() {
            0 => Err(format!("`{text}` names no size: write imix:aaafg")),
            n if n > MAX_PATTERN_FRAMES => {
                Err(format!("{n} frames are too long for a genome: at most {MAX_PATTERN_FRAMES}"))
            }
            _ => Ok(SizeMix { label: text.to_ascii_lowercase(), pattern }),
        }
    }

    /// Mean length, with this length for frames as long as the MTU.
    pub fn mean(&self, mtu_frame: FrameLen) -> MeanFrame {
        let length = |item: &SizeItem| match item {
            SizeItem::Fixed(len) => len.bytes(),
            SizeItem::Mtu => mtu_frame.bytes(),
        };
        MeanFrame { bytes: self.pattern.iter().map(length).sum(), frames: self.pattern.len() as u64 }
    }
}

fn frame_len(bytes: u64) -> Result<FrameLen, String> {
    FrameLen::new(bytes).ok_or_else(|| {
        let (min, max) = (FrameLen::MIN, FrameLen::MAX);
        format!("a frame of {bytes} bytes is out of range: {min}…{max}, the 4-byte FCS included")
    })
}

/// Reads `--frame-size`: sizes or mixes separated by commas, each measured by itself.
///
/// # Errors
/// A sentence that names the wrong part.
pub fn parse_size_list(text: &str) -> Result<Vec<SizeMix>, String> {
    text.split(',').map(SizeMix::parse).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn imix_is_7_4_1_with_a_mean_of_353_83_bytes() {
        assert_eq!(SizeMix::imix().mean(FrameLen::MIN), MeanFrame { bytes: 4246, frames: 12 });
    }

    #[test]
    fn a_genome_is_sent_in_its_order() {
        let mix = SizeMix::parse("IMIX:aagz").unwrap();
        let len = |bytes| SizeItem::Fixed(FrameLen::new(bytes).unwrap());
        assert_eq!(mix.pattern, [len(64), len(64), len(1518), SizeItem::Mtu]);
    }

    #[test]
    fn a_wrong_size_names_the_limit() {
        for (text, part) in
            [("40", "64…9216"), ("9217", "64…9216"), ("imix:k", "`k`"), ("imix:j", "16000"), ("x", "imix:"), ("", "``")]
        {
            let error = SizeMix::parse(text).unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
        assert_eq!(parse_size_list("64, 128,imix").unwrap().len(), 3);
        assert!(parse_size_list("64,,128").is_err());
    }
}
