//! The answers that a search can give: each case its own, so that no number is dressed as a result.
//!
//! Runs on any thread; pure values. Who is the limit (DUT, link, coupling) is the session's verdict, not decided here.

use super::{
    classify::{Class, Sums, classify, conditional_throughput_fps},
    goal::SearchGoal,
    history::{Bracket, History},
    ratio::Ratio,
    trial::Trial,
};
use crate::units::per_second;

/// A load that meets a goal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LowerBound {
    /// The load, in frames a second.
    pub load_fps: u64,
    /// What it really carries (RFC 9971 "Conditional Throughput"), in frames a second.
    pub throughput_fps: u64,
}

/// The answer to one goal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The border lies between two settled loads, no further apart than the goal's width (RFC 9971 "regular goal result").
    Bounds {
        /// The relevant lower bound.
        lower: LowerBound,
        /// The relevant upper bound: loss at the DUT makes this load fail.
        upper_fps: u64,
    },
    /// The highest load that the search may use meets the goal: the ceiling is there or above.
    AtLeastMax {
        /// The highest load.
        lower: LowerBound,
    },
    /// The lowest load that the search may use does not meet the goal.
    BelowMin {
        /// The lowest load.
        min_fps: u64,
        /// Loss at it, over all its trials.
        loss_ratio: Ratio,
    },
    /// The upper bound fails only because the generator did not send it, or there is none and trials failed for nothing else, for the
    /// time that settles a load: the DUT's ceiling is at the lower bound or above.
    GeneratorLimited {
        /// The highest settled load, if any.
        lower: Option<LowerBound>,
        /// The load that the generator could not send; without an upper bound, the one that most trials asked for in vain.
        intended_fps: u64,
        /// What it sent of that load, in frames a second, over all trials there.
        sent_fps: u64,
    },
    /// The search ended before the goal had its answer; what it knew by then.
    Undecided {
        /// The highest settled load below the upper bound, if any.
        lower: Option<LowerBound>,
        /// The lowest load that is settled not to meet the goal, if any.
        upper_fps: Option<u64>,
    },
}

impl Outcome {
    /// The load that the search vouches for, if there is one.
    pub fn lower(&self) -> Option<LowerBound> {
        match *self {
            Self::Bounds { lower, .. } | Self::AtLeastMax { lower } => Some(lower),
            Self::GeneratorLimited { lower, .. } | Self::Undecided { lower, .. } => lower,
            Self::BelowMin { .. } => None,
        }
    }

    pub(super) fn judge(goal: &SearchGoal, history: &History, min_fps: u64, max_fps: u64) -> Self {
        let Bracket { lower_fps, upper_fps } = history.bounds(goal);
        let lower = lower_fps.map(|load_fps| {
            let throughput_fps = conditional_throughput_fps(goal, load_fps, history.at(load_fps));
            LowerBound { load_fps, throughput_fps }
        });
        let is_narrow = Bracket { lower_fps, upper_fps }.is_within(goal.width);
        let by_generator = |intended_fps| {
            let (sent, time) = history.at(intended_fps).iter().fold((0, 0), |(sent, time), trial| {
                (sent + trial.output.completed_frames, time + trial.input.duration_ns)
            });
            Self::GeneratorLimited { lower, intended_fps, sent_fps: per_second(sent, time) }
        };
        match (lower, upper_fps) {
            (Some(lower), None) if lower.load_fps == max_fps => Self::AtLeastMax { lower },
            (_, Some(upper)) if (is_narrow || upper == min_fps) && !is_failed_by_dut(goal, history.at(upper)) => {
                by_generator(upper)
            }
            (_, Some(upper)) if upper == min_fps => {
                Self::BelowMin { min_fps, loss_ratio: overall_loss(history.at(min_fps)) }
            }
            (Some(lower), Some(upper_fps)) if is_narrow => Self::Bounds { lower, upper_fps },
            (lower, upper_fps) => match history.generators_load(goal, goal.exceed_ratio.of(goal.duration_sum_ns)) {
                Some(load) => by_generator(load),
                None => Self::Undecided { lower, upper_fps },
            },
        }
    }
}

/// Whether the load is an upper bound also when unsent frames are left out.
fn is_failed_by_dut(goal: &SearchGoal, trials: &[Trial]) -> bool {
    Sums::collect(goal, trials, |trial| trial.output.dut_loss_ratio()).class(goal) == Class::Upper
}

fn overall_loss(trials: &[Trial]) -> Ratio {
    let (failed, overall) = trials
        .iter()
        .map(|trial| trial.output.loss_ratio())
        .fold((0, 0), |(n, d), loss| (loss.numerator().saturating_add(n), loss.denominator().saturating_add(d)));
    Ratio::new(failed, overall.max(1))
}

/// A load that fails a goal below a load that meets it: loss does not grow with load, and one number cannot say it all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LossInversion {
    /// The lower load, settled not to meet the goal.
    pub failed_fps: u64,
    /// The higher load, settled to meet it.
    pub passed_fps: u64,
}

/// Every failing load that has a passing load above it, both settled, by ascending failing load; each with the highest passing one.
///
/// Takes any trials, in any order: those of a search, or of a loss-rate curve.
pub fn loss_inversions<'a>(goal: &SearchGoal, trials: impl IntoIterator<Item = &'a Trial>) -> Vec<LossInversion> {
    let mut history = History::default();
    trials.into_iter().for_each(|&trial| history.add(trial));
    let settled: Vec<(u64, Class)> = history.loads().map(|(load, trials)| (load, classify(goal, trials))).collect();
    let highest_passed = settled.iter().rev().find(|(_, class)| *class == Class::Lower).map(|&(load, _)| load);
    let failed = settled.iter().filter(|(_, class)| *class == Class::Upper).map(|&(load, _)| load);
    failed
        .filter_map(|failed_fps| {
            let passed_fps = highest_passed.filter(|&passed| passed > failed_fps)?;
            Some(LossInversion { failed_fps, passed_fps })
        })
        .collect()
}
