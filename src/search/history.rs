//! Every trial of a search, by load, and the bracket that they put around a goal's border.
//!
//! Runs on the thread that calls the search. Invariant: the upper end of a bracket is the lowest load that fails, the lower
//! end is below it, so a good trial above a failing load never raises an answer (RFC 9971 "Relevant Upper Bound").

use std::collections::BTreeMap;

use super::{
    classify::{Class, Sums, classify},
    goal::SearchGoal,
    ratio::{Ratio, saturate},
    trial::Trial,
};

/// A border between loads that meet a goal and loads that do not; a missing end is not known yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bracket {
    /// Highest load below `upper_fps` that meets the goal.
    pub lower_fps: Option<u64>,
    /// Lowest load that does not meet the goal.
    pub upper_fps: Option<u64>,
}

impl Bracket {
    /// Whether both ends are known and no further apart than `width` of the upper end (or adjacent integers).
    pub fn is_within(&self, width: Ratio) -> bool {
        let (Some(lower), Some(upper)) = (self.lower_fps, self.upper_fps) else { return false };
        upper - lower <= 1 || Ratio::new(upper - lower, upper) <= width
    }
}

/// Of the time that failed, one part in so many may have failed by the DUT: a frame that is lost now and then makes it no limit.
const STRAY_PARTS: u128 = 10;

#[derive(Debug, Default)]
pub(super) struct History {
    by_load: BTreeMap<u64, Vec<Trial>>,
}

impl History {
    pub(super) fn add(&mut self, trial: Trial) {
        self.by_load.entry(trial.input.load_fps).or_default().push(trial);
    }

    pub(super) fn at(&self, load_fps: u64) -> &[Trial] {
        self.by_load.get(&load_fps).map_or(&[], Vec::as_slice)
    }

    pub(super) fn loads(&self) -> impl DoubleEndedIterator<Item = (u64, &[Trial])> {
        self.by_load.iter().map(|(&load, trials)| (load, trials.as_slice()))
    }

    /// The bracket by settled loads only: RFC 9971's relevant bounds.
    pub(super) fn bounds(&self, goal: &SearchGoal) -> Bracket {
        self.bracket(|trials| match classify(goal, trials) {
            Class::Lower => Some(true),
            Class::Upper => Some(false),
            Class::Undecided => None,
        })
    }

    /// The bracket by what the trials so far make likely, a single trial included.
    pub(super) fn leaning(&self, goal: &SearchGoal) -> Bracket {
        self.bracket(|trials| Some(leans_good(goal, trials)))
    }

    fn bracket(&self, meets_goal: impl Fn(&[Trial]) -> Option<bool>) -> Bracket {
        let mut bracket = Bracket::default();
        for (load, trials) in self.loads() {
            match meets_goal(trials) {
                Some(true) => bracket.lower_fps = Some(load),
                Some(false) => {
                    bracket.upper_fps = Some(load);
                    break;
                }
                None => {}
            }
        }
        bracket
    }

    /// The load that most often failed only for frames that never left, if that is what failed nearly all trials, and traffic of at
    /// least this time. A generator whose pace changes has no border to be found, and the DUT's is above what it sent.
    pub(super) fn generators_load(&self, goal: &SearchGoal, least_ns: u64) -> Option<u64> {
        let failed_ns = |trials: &[Trial], by_dut: bool| -> u128 {
            let failed = trials.iter().map(|trial| trial.output).filter(|output| {
                !goal.is_met_by(output.loss_ratio()) && goal.is_met_by(output.dut_loss_ratio()) != by_dut
            });
            failed.map(|output| u128::from(output.effective_duration_ns)).sum()
        };
        let sum_ns = |by_dut| self.loads().map(|(_, trials)| failed_ns(trials, by_dut)).sum::<u128>();
        let (by_dut, by_generator) = (sum_ns(true), sum_ns(false));
        let is_shown = by_generator >= u128::from(least_ns).max(1) && by_dut * STRAY_PARTS <= by_generator;
        let most_failed = self.loads().max_by_key(|(_, trials)| failed_ns(trials, false));
        most_failed.filter(|_| is_shown).map(|(load, _)| load)
    }

    /// The load at which a DUT that passes on what it passed at `load_fps` would lose just what the goal allows; `None` if
    /// nothing passed.
    pub(super) fn border_seen_from(&self, load_fps: u64, goal: &SearchGoal) -> Option<u64> {
        let (mut passed, mut overall) = (0_u128, 0_u128);
        for trial in self.at(load_fps) {
            let loss = trial.output.loss_ratio().min(Ratio::ONE);
            passed += u128::from(loss.denominator() - loss.numerator());
            overall += u128::from(loss.denominator());
        }
        let passed_fps = saturate(u128::from(load_fps) * passed / overall.max(1));
        (passed > 0).then(|| goal.loss_ratio.complement().divide(passed_fps))
    }
}

/// A settled class where there is one, otherwise whether bad trials are within the exceed ratio so far.
pub(super) fn leans_good(goal: &SearchGoal, trials: &[Trial]) -> bool {
    let sums = Sums::collect(goal, trials, |trial| trial.output.loss_ratio());
    match sums.class(goal) {
        Class::Lower => true,
        Class::Upper => false,
        Class::Undecided => sums.lean(goal) >= 0,
    }
}
