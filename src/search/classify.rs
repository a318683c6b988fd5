//! Exact judgement of one load against one goal: lower bound, upper bound, or not decided yet (RFC 9971, appendix code).
//!
//! Runs on any thread. Invariant: integer nanoseconds and exact fractions only, so the order of trials cannot matter.
//! Does not choose loads and does not compare loads with each other.

use super::{
    goal::SearchGoal,
    ratio::{Ratio, saturate},
    trial::Trial,
};

/// What the trials at one load say about one goal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// The load meets the goal, whatever further trials would say.
    Lower,
    /// The load does not meet the goal, whatever further trials would say.
    Upper,
    /// Further trials decide.
    Undecided,
}

/// Sums of effective durations at one load, in nanoseconds, split as the goal splits trials.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Sums {
    full_low: u128,
    full_high: u128,
    short_low: u128,
    short_high: u128,
}

impl Sums {
    pub(super) fn collect(goal: &SearchGoal, trials: &[Trial], loss_of: impl Fn(&Trial) -> Ratio) -> Self {
        let mut sums = Self::default();
        for trial in trials {
            let is_full = trial.input.duration_ns >= goal.final_trial_ns;
            let sum = match (is_full, goal.is_met_by(loss_of(trial))) {
                (true, true) => &mut sums.full_low,
                (true, false) => &mut sums.full_high,
                (false, true) => &mut sums.short_low,
                (false, false) => &mut sums.short_high,
            };
            *sum += u128::from(trial.output.effective_duration_ns);
        }
        sums
    }

    /// With exceed ratio `e = n/d`, every sum is multiplied by `d − n`, which makes short bad trials beyond what short good
    /// ones forgive, `short_high − short_low × e/(1 − e)`, an integer.
    pub(super) fn class(&self, goal: &SearchGoal) -> Class {
        let allowed = u128::from(goal.exceed_ratio.numerator());
        let out_of = u128::from(goal.exceed_ratio.denominator());
        let scale = out_of - allowed;
        let good = self.full_low * scale;
        let bad = self.full_high * scale + (self.short_high * scale).saturating_sub(self.short_low * allowed);
        let whole = (good + bad).max(u128::from(goal.duration_sum_ns) * scale);
        let is_optimistic = bad * out_of <= whole * allowed;
        let is_pessimistic = (whole - good) * out_of <= whole * allowed;
        match (is_optimistic, is_pessimistic) {
            (true, true) => Class::Lower,
            (false, false) => Class::Upper,
            _ => Class::Undecided,
        }
    }

    /// How far the trials so far lean: positive to good, negative to bad; 0 is still within the exceed ratio.
    pub(super) fn lean(&self, goal: &SearchGoal) -> i128 {
        let allowed = i128::from(goal.exceed_ratio.numerator());
        let out_of = i128::from(goal.exceed_ratio.denominator());
        let good = (self.full_low + self.short_low) as i128;
        let bad = (self.full_high + self.short_high) as i128;
        good * allowed - bad * (out_of - allowed)
    }
}

/// Time of full trials, in nanoseconds, that would settle a load if all of them turned out good, or all bad.
pub(super) fn time_to_settle_ns(goal: &SearchGoal, trials: &[Trial], will_be_good: bool) -> u64 {
    let sums = Sums::collect(goal, trials, |trial| trial.output.loss_ratio());
    let needed_for_bad = goal.exceed_ratio.of(goal.duration_sum_ns);
    let (needed, have) = match will_be_good {
        true => (goal.duration_sum_ns - needed_for_bad, sums.full_low),
        false => (needed_for_bad, sums.full_high + sums.short_high),
    };
    match sums.class(goal) {
        Class::Undecided => u128::from(needed).saturating_sub(have) as u64,
        Class::Lower | Class::Upper => 0,
    }
}

/// Classifies one load by all trials measured at it (RFC 9971 "Load Classification").
///
/// Trials of at least the goal's final length count in full; a short good trial only forgives short bad ones.
pub fn classify(goal: &SearchGoal, trials: &[Trial]) -> Class {
    Sums::collect(goal, trials, |trial| trial.output.loss_ratio()).class(goal)
}

/// The loss ratio that conditional throughput rests on: over full trials, the quantile that the exceed ratio names, with
/// missing time counted as lost entirely (RFC 9971 "Conditional Throughput").
pub fn conditional_loss(goal: &SearchGoal, trials: &[Trial]) -> Ratio {
    let mut full: Vec<(Ratio, u128)> = trials
        .iter()
        .filter(|trial| trial.input.duration_ns >= goal.final_trial_ns)
        .map(|trial| (trial.output.loss_ratio(), u128::from(trial.output.effective_duration_ns)))
        .collect();
    full.sort_by_key(|&(loss, _)| loss);
    let measured: u128 = full.iter().map(|&(_, duration)| duration).sum();
    let out_of = u128::from(goal.exceed_ratio.denominator());
    let mut remaining =
        measured.max(u128::from(goal.duration_sum_ns)) * (out_of - u128::from(goal.exceed_ratio.numerator()));
    for (loss, duration) in full {
        remaining = remaining.saturating_sub(duration * out_of);
        if remaining == 0 {
            return loss;
        }
    }
    Ratio::ONE
}

/// Frames a second that a load really carries under a goal: the load less its [`conditional_loss`], rounded down.
///
/// Meaningful at a lower bound only.
pub fn conditional_throughput_fps(goal: &SearchGoal, load_fps: u64, trials: &[Trial]) -> u64 {
    let loss = conditional_loss(goal, trials).min(Ratio::ONE);
    let passed = u128::from(loss.denominator() - loss.numerator());
    saturate(u128::from(load_fps) * passed / u128::from(loss.denominator()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        search::{TrialInput, TrialOutput},
        units::NS_PER_S,
    };

    fn trial(duration_s: u64, received: u64) -> Trial {
        Trial {
            input: TrialInput { load_fps: 1000, duration_ns: duration_s * NS_PER_S },
            output: TrialOutput {
                intended_frames: 1000,
                offered_frames: 1000,
                completed_frames: 1000,
                received_frames: received,
                effective_duration_ns: duration_s * NS_PER_S,
                elapsed_ns: duration_s * NS_PER_S,
            },
        }
    }

    #[test]
    fn rfc2544_needs_one_full_good_trial_and_one_bad_trial_of_any_length() {
        let goal = SearchGoal::rfc2544();
        assert_eq!(classify(&goal, &[]), Class::Undecided);
        assert_eq!(classify(&goal, &[trial(1, 1000)]), Class::Undecided);
        assert_eq!(classify(&goal, &[trial(60, 1000)]), Class::Lower);
        assert_eq!(classify(&goal, &[trial(60, 1000), trial(1, 999)]), Class::Upper);
    }

    #[test]
    fn tst009_forgives_one_bad_full_trial_in_two() {
        let goal = SearchGoal::tst009();
        assert_eq!(classify(&goal, &[trial(60, 999)]), Class::Undecided);
        assert_eq!(classify(&goal, &[trial(60, 999), trial(60, 1000)]), Class::Lower);
        assert_eq!(classify(&goal, &[trial(60, 999), trial(60, 999)]), Class::Upper);
        assert_eq!(classify(&goal, &[trial(60, 999), trial(1, 999)]), Class::Upper);
    }

    #[test]
    fn ndr_is_settled_as_soon_as_the_missing_trials_cannot_change_it() {
        let goal = SearchGoal::ndr();
        let good = [trial(1, 1000); 11];
        let bad = [trial(1, 999); 11];
        assert_eq!(classify(&goal, &good[..10]), Class::Undecided);
        assert_eq!(classify(&goal, &good), Class::Lower);
        assert_eq!(classify(&goal, &bad[..10]), Class::Undecided);
        assert_eq!(classify(&goal, &bad), Class::Upper);
        assert_eq!(classify(&goal, &[&good[..10], &bad[..10]].concat()), Class::Undecided);
    }

    #[test]
    fn conditional_throughput_is_that_of_the_worst_good_trial_that_counts() {
        let goal = SearchGoal::pdr();
        let trials: Vec<Trial> = (0..11).map(|lost| trial(1, 1000 - lost % 5)).collect();
        assert_eq!(classify(&goal, &trials), Class::Lower);
        assert_eq!(conditional_loss(&goal, &trials), Ratio::new(4, 1000));
        assert_eq!(conditional_throughput_fps(&goal, 1_000_000, &trials), 996_000);
        assert_eq!(conditional_loss(&goal, &trials[..5]), Ratio::ONE);
    }
}
