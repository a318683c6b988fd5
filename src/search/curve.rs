//! Figures over a set of loads: RFC 2544's loss-rate curve, and what the DUT forwards beyond its ceiling (RFC 2285, RFC 2889).
//!
//! Runs on the caller's thread. Does not search and judges no goal; the trials it runs can be added to a search's for
//! [`loss_inversions`](super::loss_inversions).

use super::{
    ratio::Ratio,
    trial::{Measured, Measurer, Trial, TrialInput},
};

/// A loss-rate curve, complete or as far as it got.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LossRateCurve<E> {
    /// One counted trial a load, from the highest load down.
    pub trials: Vec<Trial>,
    /// Loads whose trial was discarded every time, with the last reason.
    pub discarded: Vec<(u64, String)>,
    /// Why it ends early, if it does.
    pub error: Option<E>,
}

/// Attempts at a load whose trials are discarded.
const ATTEMPTS: u64 = 3;

/// RFC 2544 §26.3: loss at 100 %, 90 %, 80 % … of `max_fps`, until two loads in a row lose nothing.
///
/// `step_percent` is the distance between loads; the RFC allows at most 10, so it is taken as 1 to 10. Each load is measured
/// once, for `duration_ns`; unsent frames count as in [`TrialOutput::loss_ratio`](super::TrialOutput::loss_ratio).
pub fn loss_rate_curve<M: Measurer>(
    measurer: &mut M,
    max_fps: u64,
    step_percent: u64,
    duration_ns: u64,
) -> LossRateCurve<M::Error> {
    let mut curve = LossRateCurve { trials: Vec::new(), discarded: Vec::new(), error: None };
    let mut lossless_in_a_row = 0;
    for percent in (1..=100).rev().step_by(step_percent.clamp(1, 10) as usize) {
        let load_fps = Ratio::new(percent, 100).of(max_fps);
        if load_fps == 0 {
            break;
        }
        match measure_or_reason(measurer, TrialInput { load_fps, duration_ns }) {
            Ok(Ok(trial)) => {
                let is_lossless = trial.output.loss_ratio() == Ratio::ZERO;
                lossless_in_a_row = if is_lossless { lossless_in_a_row + 1 } else { 0 };
                curve.trials.push(trial);
            }
            Ok(Err(reason)) => curve.discarded.push((load_fps, reason)),
            Err(error) => {
                curve.error = Some(error);
                break;
            }
        }
        if lossless_in_a_row == 2 {
            break;
        }
    }
    curve
}

fn measure_or_reason<M: Measurer>(measurer: &mut M, input: TrialInput) -> Result<Result<Trial, String>, M::Error> {
    let mut last_reason = String::new();
    for _ in 0..ATTEMPTS {
        match measurer.measure(input)? {
            Measured::Counted(output) => return Ok(Ok(Trial { input, output })),
            Measured::Discarded { reason, .. } => last_reason = reason,
        }
    }
    Ok(Err(last_reason))
}

/// A forwarding rate and the load that it was seen at, both in frames a second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForwardingRate {
    /// Frames a second that were forwarded.
    pub forwarding_fps: u64,
    /// Frames a second that the device really sent.
    pub sent_fps: u64,
    /// Intended load of that trial.
    pub load_fps: u64,
}

impl ForwardingRate {
    fn of(trial: &Trial) -> Self {
        Self { forwarding_fps: trial.forwarding_fps(), sent_fps: trial.sent_fps(), load_fps: trial.input.load_fps }
    }
}

/// Maximum forwarding rate: the highest over all trials (RFC 2285 §3.6.3), at the lowest load that reached it.
///
/// `None` without trials. A trial of every load of interest belongs in the set: a ceiling search and a loss-rate curve together.
pub fn maximum_forwarding_rate<'a>(trials: impl IntoIterator<Item = &'a Trial>) -> Option<ForwardingRate> {
    let rates = trials.into_iter().map(ForwardingRate::of);
    rates.max_by_key(|rate| (rate.forwarding_fps, std::cmp::Reverse(rate.sent_fps)))
}

/// Forwarding rate at maximum offered load (RFC 2285 §3.6.2): at the highest rate that was really sent; the lowest of several.
///
/// Below the maximum forwarding rate, the DUT forwards less the more it is offered. `None` without trials.
pub fn forwarding_rate_at_maximum_load<'a>(trials: impl IntoIterator<Item = &'a Trial>) -> Option<ForwardingRate> {
    let rates = trials.into_iter().map(ForwardingRate::of);
    rates.max_by_key(|rate| (rate.sent_fps, std::cmp::Reverse(rate.forwarding_fps)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{search::simulated::SimulatedDut, units::NS_PER_S};

    #[test]
    fn the_curve_goes_down_in_tenths_until_two_loads_lose_nothing() {
        let curve = loss_rate_curve(&mut SimulatedDut::new(650_000, 0), 1_000_000, 10, NS_PER_S);
        let points: Vec<(u64, Ratio)> =
            curve.trials.iter().map(|t| (t.input.load_fps, t.output.loss_ratio())).collect();
        let expected = [
            (1_000_000, Ratio::new(35, 100)),
            (900_000, Ratio::new(25, 90)),
            (800_000, Ratio::new(15, 80)),
            (700_000, Ratio::new(5, 70)),
            (600_000, Ratio::ZERO),
            (500_000, Ratio::ZERO),
        ];
        assert_eq!(points, expected);
    }

    #[test]
    fn a_dut_that_always_loses_is_measured_down_to_a_tenth_and_no_further() {
        let mut dut = SimulatedDut { fixed_loss: Ratio::new(1, 100), ..SimulatedDut::new(10_000_000, 0) };
        assert_eq!(loss_rate_curve(&mut dut, 1_000_000, 10, NS_PER_S).trials.len(), 10);
        assert_eq!(loss_rate_curve(&mut dut, 1_000_000, 50, NS_PER_S).trials.len(), 10);
    }

    #[test]
    fn a_load_that_is_discarded_every_time_is_named_and_skipped() {
        let mut dut = SimulatedDut { bad_start_every: 1, ..SimulatedDut::new(1_000, 0) };
        let curve = loss_rate_curve(&mut dut, 1_000_000, 10, NS_PER_S);
        assert_eq!((curve.trials.len(), curve.discarded.len(), dut.trials), (0, 10, 30));
        assert_eq!(curve.discarded[0], (1_000_000, "the link was down".to_owned()));
    }

    #[test]
    fn a_collapsing_dut_forwards_less_at_the_maximum_than_at_its_best() {
        let mut dut = SimulatedDut { collapse: Ratio::new(1, 2), ..SimulatedDut::new(600_000, 0) };
        let trials = loss_rate_curve(&mut dut, 1_000_000, 10, NS_PER_S).trials;
        let best = maximum_forwarding_rate(&trials).unwrap();
        let worst = forwarding_rate_at_maximum_load(&trials).unwrap();
        assert_eq!((best.forwarding_fps, best.load_fps), (600_000, 600_000));
        assert_eq!((worst.forwarding_fps, worst.load_fps), (400_000, 1_000_000));
    }

    #[test]
    fn what_the_generator_could_not_send_is_no_offered_load() {
        let mut dut = SimulatedDut { generator_fps: 750_000, ..SimulatedDut::new(700_000, 0) };
        let trials = loss_rate_curve(&mut dut, 1_000_000, 10, NS_PER_S).trials;
        let at_maximum = forwarding_rate_at_maximum_load(&trials).unwrap();
        assert_eq!((at_maximum.sent_fps, at_maximum.forwarding_fps), (750_000, 700_000));
        assert_eq!(maximum_forwarding_rate(&[]), None);
    }
}
