//! A link-speed claim beside what was really delivered: theoretical frames/s, ratio, and a sentence.
//!
//! Pure; any thread. The claim is a label, never a cap: a virtual NIC that claims 10 Gb/s may carry 22. Whether frames
//! or bits are the limit is only said where another frame size on the same interface shows it.

use crate::{
    human,
    units::{MeanFrame, WIRE_OVERHEAD_BYTES, line_rate_fps},
};

/// From this share of the claim on, the link counts as full: pacing and counting are exact to about 1 %.
pub const FULL_LINK_RATIO: f64 = 0.99;
/// Up to this ratio a measurement agrees with the claim; above, the claim is plainly no limit.
const ABOVE_CLAIM_RATIO: f64 = 1.01;

/// What one interface delivered with one frame size at its highest load.
#[derive(Debug, Clone, PartialEq)]
pub struct Delivered {
    /// The frame size or mix in words: `64-byte frames`, `imix frames`.
    pub frames: String,
    /// Mean frame length.
    pub mean: MeanFrame,
    /// What the interface claims, Mbit/s; `None` = it claims nothing.
    pub claim_mbps: Option<u64>,
    /// Frames per second that were delivered.
    pub measured_fps: u64,
    /// It delivered all that was asked for: the load that was asked for (--max) was the limit.
    pub at_max: bool,
}

/// The comparison.
#[derive(Debug, Clone, PartialEq)]
pub struct Compared {
    /// Frames/s at the claim.
    pub theoretical_fps: Option<u64>,
    /// L1 bit/s delivered.
    pub bps_l1: u64,
    /// L2 bit/s delivered, FCS in.
    pub bps_l2: u64,
    /// Measured / theoretical.
    pub ratio: Option<f64>,
    /// A plain sentence.
    pub sentence: String,
}

/// L1 bit/s of `fps` frames with this mean: preamble, SFD and gap in.
pub fn bps_l1(fps: u64, mean: MeanFrame) -> u64 {
    bits(fps, mean.bytes + WIRE_OVERHEAD_BYTES * mean.frames, mean.frames)
}

/// L2 bit/s of `fps` frames with this mean: FCS in, preamble and gap not.
pub fn bps_l2(fps: u64, mean: MeanFrame) -> u64 {
    bits(fps, mean.bytes, mean.frames)
}

fn bits(fps: u64, bytes: u64, frames: u64) -> u64 {
    let bits = u128::from(fps) * u128::from(bytes) * 8 / u128::from(frames.max(1));
    u64::try_from(bits).unwrap_or(u64::MAX)
}

/// Compares what one interface delivered with its claim, for every frame size that was measured on it.
///
/// The sizes are judged together: that frames and not bits are the limit is shown by another size that carried more bits.
pub fn compare(delivered: &[Delivered]) -> Vec<Compared> {
    let most_bits = delivered.iter().max_by_key(|one| bps_l1(one.measured_fps, one.mean));
    delivered.iter().map(|one| compare_one(one, most_bits)).collect()
}

fn compare_one(one: &Delivered, most_bits: Option<&Delivered>) -> Compared {
    let l1 = bps_l1(one.measured_fps, one.mean);
    let claim_bps = one.claim_mbps.filter(|&mbps| mbps > 0).map(|mbps| mbps.saturating_mul(1_000_000));
    let theoretical_fps = claim_bps.map(|bps| line_rate_fps(bps, one.mean));
    let ratio = theoretical_fps.filter(|&fps| fps > 0).map(|fps| one.measured_fps as f64 / fps as f64);
    Compared {
        theoretical_fps,
        bps_l1: l1,
        bps_l2: bps_l2(one.measured_fps, one.mean),
        ratio,
        sentence: sentence(one, l1, ratio, most_bits),
    }
}

fn sentence(one: &Delivered, l1: u64, ratio: Option<f64>, most_bits: Option<&Delivered>) -> String {
    let frames = &one.frames;
    let delivered = human::bps(l1);
    if one.measured_fps == 0 {
        return format!("nothing was delivered with {frames}, so the claim cannot be judged");
    }
    let (at_least, because) = if one.at_max { ("at least ", ": --max was the limit") } else { ("", "") };
    let (Some(ratio), Some(claim)) = (ratio, one.claim_mbps.map(human::link_speed)) else {
        return format!("no link speed is claimed; {frames} carried {at_least}{delivered} (L1){because}");
    };
    if ratio > ABOVE_CLAIM_RATIO {
        let times = human::times(ratio);
        return format!(
            "the claim is not the limit: {at_least}{delivered} (L1) through a NIC that claims {claim} ({times}){because}"
        );
    }
    if ratio >= FULL_LINK_RATIO {
        return format!("the claim is reached: {delivered} (L1) of {claim}; the link may be the limit");
    }
    let share = human::share(ratio);
    if one.at_max {
        let fps = human::fps(one.measured_fps);
        return format!(
            "at least {fps} with {frames}, {share} of the {claim} claimed{because}, not the claim or the DUT"
        );
    }
    let more = most_bits.filter(|most| bps_l1(most.measured_fps, most.mean) > l1 + l1 / 20);
    match more {
        Some(most) => {
            let bits = human::bps(bps_l1(most.measured_fps, most.mean));
            format!(
                "limited by frames per second, not by bits: {frames} use {share} of the claim ({} carried {bits} L1)",
                most.frames
            )
        }
        None => format!("the claim is not the limit: {frames} use {share} of the {claim} claimed"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::FrameLen;

    fn delivered(bytes: u64, claim_mbps: Option<u64>, measured_fps: u64) -> Delivered {
        let mean = MeanFrame::of(FrameLen::new(bytes).unwrap());
        Delivered { frames: format!("{bytes}-byte frames"), mean, claim_mbps, measured_fps, at_max: false }
    }

    #[test]
    fn more_than_the_claim_says_that_the_claim_is_no_limit() {
        let compared = &compare(&[delivered(1518, Some(10_000), 1_788_000)])[0];
        assert_eq!((compared.theoretical_fps, compared.bps_l1), (Some(812_743), 21_999_552_000));
        assert_eq!(
            compared.sentence,
            "the claim is not the limit: 22.0 Gb/s (L1) through a NIC that claims 10 Gb/s (2.2×)"
        );
    }

    #[test]
    fn frames_are_the_limit_where_longer_frames_carried_more_bits() {
        let compared = compare(&[delivered(64, Some(10_000), 1_190_476), delivered(1518, Some(10_000), 700_000)]);
        assert_eq!(
            compared[0].sentence,
            "limited by frames per second, not by bits: 64-byte frames use 8 % of the claim \
             (1518-byte frames carried 8.61 Gb/s L1)"
        );
        assert_eq!(
            compared[1].sentence,
            "the claim is not the limit: 1518-byte frames use 86.1 % of the 10 Gb/s claimed"
        );
    }

    #[test]
    fn one_size_alone_does_not_show_that_frames_are_the_limit() {
        let compared = &compare(&[delivered(64, Some(10_000), 1_190_476)])[0];
        assert_eq!(compared.sentence, "the claim is not the limit: 64-byte frames use 8 % of the 10 Gb/s claimed");
    }

    #[test]
    fn where_max_was_the_limit_nothing_else_is_blamed() {
        let at_max = |bytes, claim, fps| Delivered { at_max: true, ..delivered(bytes, claim, fps) };
        let compared = compare(&[at_max(64, Some(10_000), 1_000), at_max(1518, Some(10_000), 1_000)]);
        assert_eq!(
            compared[0].sentence,
            "at least 1,000 frames/s with 64-byte frames, 0.00672 % of the 10 Gb/s claimed: --max was the limit, \
             not the claim or the DUT"
        );
        let said = |claim, fps| compare(&[at_max(1518, claim, fps)])[0].sentence.clone();
        assert!(said(Some(10), 4_000).ends_with("claims 10 Mb/s (4.9×): --max was the limit"));
        assert!(said(None, 4_000).ends_with("carried at least 49.2 Mb/s (L1): --max was the limit"));
    }

    #[test]
    fn a_full_link_is_said_to_be_full() {
        let compared = &compare(&[delivered(64, Some(10), 14_880)])[0];
        assert_eq!(compared.ratio, Some(1.0));
        assert_eq!(compared.sentence, "the claim is reached: 10.0 Mb/s (L1) of 10 Mb/s; the link may be the limit");
    }

    #[test]
    fn an_unknown_claim_has_no_ratio() {
        for claim in [None, Some(0)] {
            let compared = &compare(&[delivered(64, claim, 1_000_000)])[0];
            assert_eq!((compared.theoretical_fps, compared.ratio), (None, None));
            assert_eq!(compared.sentence, "no link speed is claimed; 64-byte frames carried 672 Mb/s (L1)");
        }
    }

    #[test]
    fn nothing_delivered_is_not_a_limit() {
        let compared = &compare(&[delivered(64, Some(10_000), 0)])[0];
        assert_eq!(compared.sentence, "nothing was delivered with 64-byte frames, so the claim cannot be judged");
        assert_eq!((compared.ratio, compared.bps_l2), (Some(0.0), 0));
    }

    #[test]
    fn bits_of_a_mix_are_exact() {
        let mean = MeanFrame { bytes: 7 * 64 + 4 * 570 + 1518, frames: 12 };
        assert_eq!((bps_l2(12, mean), bps_l1(12, mean)), (33_968, 35_888));
    }
}
