//! Units as types: frame sizes with and without FCS and wire overhead, loads, link rates, durations.
//!
//! Any thread; pure. Integers only; what a rate means in bits is exact (see [`Rate::to_fps`]).

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

/// Bytes of the frame check sequence.
pub const FCS_BYTES: u64 = 4;
/// Preamble, start-of-frame delimiter and inter-frame gap: what a frame occupies on the wire beside itself.
pub const WIRE_OVERHEAD_BYTES: u64 = 20;
/// Nanoseconds in a second.
pub const NS_PER_S: u64 = 1_000_000_000;

/// A frame's length with its 4-byte FCS: 64…9216, as RFC 2544 counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct FrameLen(u16);

impl FrameLen {
    /// The shortest Ethernet frame.
    pub const MIN: FrameLen = FrameLen(64);
    /// The longest frame Plimsoll sends.
    pub const MAX: FrameLen = FrameLen(9216);

    /// A length of 64…9216 bytes, else `None`.
    pub fn new(bytes: u64) -> Option<FrameLen> {
        (64..=9216).contains(&bytes).then_some(FrameLen(bytes as u16))
    }

    /// Bytes with FCS.
    pub fn bytes(self) -> u64 {
        u64::from(self.0)
    }

    /// Bytes without FCS: what the kernel sees.
    pub fn buf_len(self) -> usize {
        usize::from(self.0) - FCS_BYTES as usize
    }

    /// Bytes with preamble, SFD and gap: what the frame occupies on the wire.
    pub fn wire_bytes(self) -> u64 {
        self.bytes() + WIRE_OVERHEAD_BYTES
    }

    /// The frame whose buffer (no FCS) has `bytes`; shorter buffers count as the 60 bytes they are padded to on a wire.
    pub fn from_buf_len(bytes: usize) -> Option<FrameLen> {
        FrameLen::new((bytes as u64 + FCS_BYTES).max(64))
    }
}

impl fmt::Display for FrameLen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// The mean frame length of a traffic mix as an exact ratio.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MeanFrame {
    /// Sum of the frame lengths (FCS included) of `frames` frames, in bytes.
    pub bytes: u64,
    /// How many frames that sum covers; not 0.
    pub frames: u64,
}

impl MeanFrame {
    /// The mean of one length.
    pub fn of(len: FrameLen) -> MeanFrame {
        MeanFrame { bytes: len.bytes(), frames: 1 }
    }
}

/// Frames per second that a link of `bits_per_s` carries at most, rounded down (RFC 2544 App. B).
pub fn line_rate_fps(bits_per_s: u64, mean: MeanFrame) -> u64 {
    let wire_bits = u128::from(mean.bytes + WIRE_OVERHEAD_BYTES * mean.frames) * 8;
    (u128::from(bits_per_s) * u128::from(mean.frames) / wire_bits) as u64
}

/// An asked rate, as TRex writes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rate {
    /// As fast as possible.
    Max,
    /// Frames per second.
    Fps(u64),
    /// Bits per second of frames with FCS (L2).
    BpsL2(u64),
    /// Bits per second on the wire, preamble and gap included (L1).
    BpsL1(u64),
    /// Parts per million of a known link speed (L1).
    PpmOfLink(u64),
}

impl Rate {
    /// Frames per second for a mix with this mean, rounded down but at least 1; `None` for [`Rate::Max`].
    ///
    /// # Errors
    /// A share of an unknown link speed (`link_bps` is `None`): the caller asks for an absolute rate.
    pub fn to_fps(self, mean: MeanFrame, link_bps: Option<u64>) -> Result<Option<u64>, UnknownLinkSpeed> {
        let fps = match self {
            Rate::Max => return Ok(None),
            Rate::Fps(fps) => fps,
            Rate::BpsL2(bps) => (u128::from(bps) * u128::from(mean.frames) / (u128::from(mean.bytes) * 8)) as u64,
            Rate::BpsL1(bps) => line_rate_fps(bps, mean),
            Rate::PpmOfLink(ppm) => {
                let link = link_bps.ok_or(UnknownLinkSpeed)?;
                line_rate_fps((u128::from(link) * u128::from(ppm) / 1_000_000) as u64, mean)
            }
        };
        Ok(Some(fps.max(1)))
    }
}

/// A rate was given as a share of a link whose speed nobody knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the link speed is unknown, so a percentage of it means nothing")]
pub struct UnknownLinkSpeed;

/// A text that is not a rate, a duration or a size; says what one looks like.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not {expected}")]
pub struct ParseUnitError {
    text: String,
    expected: &'static str,
}

const RATE_FORMS: &str = "a rate: write 1mpps, 500kpps, 20000pps, 3.5gbps (L2), 3.5gbpsl1, 50% or max";
const DURATION_FORMS: &str = "a duration: write 500ms, 10s, 2m or 1h";

/// Parses a decimal number times `scale` exactly: digits beyond the scale's precision are an error.
fn parse_scaled(text: &str, scale: u64) -> Option<u64> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let digits = |s: &str| s.bytes().all(|b| b.is_ascii_digit());
    if (whole.is_empty() && fraction.is_empty()) || !digits(whole) || !digits(fraction) || fraction.len() > 18 {
        return None;
    }
    let mut value = if whole.is_empty() { 0 } else { whole.parse::<u128>().ok()? };
    value = value.checked_mul(u128::from(scale))?;
    if !fraction.is_empty() {
        let denominator = 10u128.pow(fraction.len() as u32);
        let numerator = fraction.parse::<u128>().ok()?.checked_mul(u128::from(scale))?;
        value = value.checked_add(numerator / denominator)?;
    }
    u64::try_from(value).ok()
}

/// Splits `12.5kpps` into the number and the lower-case unit.
fn split_unit(text: &str) -> (&str, String) {
    let text = text.trim();
    let end = text.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(text.len());
    (&text[..end], text[end..].trim().to_ascii_lowercase())
}

impl FromStr for Rate {
    type Err = ParseUnitError;

    fn from_str(text: &str) -> Result<Rate, ParseUnitError> {
        let (number, unit) = split_unit(text);
        let error = || ParseUnitError { text: text.to_owned(), expected: RATE_FORMS };
        if number.is_empty() && unit == "max" {
            return Ok(Rate::Max);
        }
        let scaled = |scale| parse_scaled(number, scale).filter(|&value| value > 0).ok_or_else(error);
        match unit.as_str() {
            "pps" | "fps" => Ok(Rate::Fps(scaled(1)?)),
            "kpps" | "kfps" => Ok(Rate::Fps(scaled(1_000)?)),
            "mpps" | "mfps" => Ok(Rate::Fps(scaled(1_000_000)?)),
            "gpps" => Ok(Rate::Fps(scaled(1_000_000_000)?)),
            "bps" => Ok(Rate::BpsL2(scaled(1)?)),
            "kbps" => Ok(Rate::BpsL2(scaled(1_000)?)),
            "mbps" => Ok(Rate::BpsL2(scaled(1_000_000)?)),
            "gbps" => Ok(Rate::BpsL2(scaled(1_000_000_000)?)),
            "bpsl1" => Ok(Rate::BpsL1(scaled(1)?)),
            "kbpsl1" => Ok(Rate::BpsL1(scaled(1_000)?)),
            "mbpsl1" => Ok(Rate::BpsL1(scaled(1_000_000)?)),
            "gbpsl1" => Ok(Rate::BpsL1(scaled(1_000_000_000)?)),
            "%" => Ok(Rate::PpmOfLink(scaled(10_000)?)),
            _ => Err(error()),
        }
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Rate::Max => write!(f, "max"),
            Rate::Fps(fps) => write!(f, "{fps}pps"),
            Rate::BpsL2(bps) => write!(f, "{bps}bps"),
            Rate::BpsL1(bps) => write!(f, "{bps}bpsl1"),
            Rate::PpmOfLink(ppm) => write!(f, "{}%", ppm as f64 / 10_000.0),
        }
    }
}

/// Parses `500ms`, `10s`, `2m`, `1h`, `250us` into nanoseconds.
///
/// # Errors
/// Anything else, a zero or a value over 2⁶³ ns.
pub fn parse_duration_ns(text: &str) -> Result<u64, ParseUnitError> {
    let (number, unit) = split_unit(text);
    let scale = match unit.as_str() {
        "ns" => 1,
        "us" | "µs" => 1_000,
        "ms" => 1_000_000,
        "s" | "sec" => NS_PER_S,
        "m" | "min" => 60 * NS_PER_S,
        "h" => 3_600 * NS_PER_S,
        _ => 0,
    };
    parse_scaled(number, scale)
        .filter(|&ns| ns > 0 && ns < 1 << 63)
        .ok_or_else(|| ParseUnitError { text: text.to_owned(), expected: DURATION_FORMS })
}

/// `amount` events in `duration_ns` as a rate per second, rounded to the nearest; 0 for no time.
pub fn per_second(amount: u64, duration_ns: u64) -> u64 {
    if duration_ns == 0 {
        return 0;
    }
    let numerator = u128::from(amount) * u128::from(NS_PER_S) + u128::from(duration_ns) / 2;
    (numerator / u128::from(duration_ns)) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_rates_are_those_of_rfc_2544() {
        for (bytes, fps) in [(64, 14_880_952), (512, 2_349_624), (1518, 812_743), (9000, 138_580)] {
            let len = FrameLen::new(bytes).unwrap();
            assert_eq!(line_rate_fps(10_000_000_000, MeanFrame::of(len)), fps, "{bytes}");
        }
        assert_eq!(line_rate_fps(10_000_000_000, MeanFrame { bytes: 7 * 64 + 4 * 570 + 1518, frames: 12 }), 3_343_736);
    }

    #[test]
    fn ten_megabits_are_19531_frames_by_l2_and_14880_by_l1() {
        let mean = MeanFrame::of(FrameLen::MIN);
        assert_eq!("10mbps".parse::<Rate>().unwrap().to_fps(mean, None), Ok(Some(19_531)));
        assert_eq!("10mbpsl1".parse::<Rate>().unwrap().to_fps(mean, None), Ok(Some(14_880)));
    }

    #[test]
    fn rates_are_read_as_trex_writes_them() {
        for (text, rate) in [
            ("1mpps", Rate::Fps(1_000_000)),
            ("1.5 Mpps", Rate::Fps(1_500_000)),
            ("20000pps", Rate::Fps(20_000)),
            ("3.5gbps", Rate::BpsL2(3_500_000_000)),
            ("3.5gbpsl1", Rate::BpsL1(3_500_000_000)),
            ("50%", Rate::PpmOfLink(500_000)),
            ("max", Rate::Max),
        ] {
            assert_eq!(text.parse(), Ok(rate), "{text}");
        }
        for text in ["", "5", "-1pps", "0pps", "1e6pps", "1.2.3kpps", "pps", "99999999999999999999gbps", "5 parsecs"] {
            assert!(text.parse::<Rate>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_percentage_needs_a_known_link_speed() {
        let mean = MeanFrame::of(FrameLen::MIN);
        assert_eq!(Rate::PpmOfLink(500_000).to_fps(mean, None), Err(UnknownLinkSpeed));
        assert_eq!(Rate::PpmOfLink(500_000).to_fps(mean, Some(1_000_000_000)), Ok(Some(744_047)));
    }

    #[test]
    fn durations_have_a_unit() {
        assert_eq!(parse_duration_ns("500ms"), Ok(500_000_000));
        assert_eq!(parse_duration_ns("1.5s"), Ok(1_500_000_000));
        assert_eq!(parse_duration_ns("2m"), Ok(120_000_000_000));
        for text in ["10", "s", "0s", "-1s", "1y", "99999999999h"] {
            assert!(parse_duration_ns(text).is_err(), "{text}");
        }
    }

    #[test]
    fn frame_lengths_count_the_fcs() {
        let len = FrameLen::new(64).unwrap();
        assert_eq!((len.buf_len(), len.wire_bytes()), (60, 84));
        assert!(FrameLen::new(63).is_none() && FrameLen::new(9217).is_none());
    }
}
