//! Which trial a goal wants next: first find the place with single trials, then settle the two loads around it.
//!
//! Runs on the thread that calls the search. The rule has two parts, and no others:
//! ```text
//!                    bracket wider than the goal's width, or an end missing
//! leaning bracket ──┬────────────────────────────────────────────────────────► locate: one new load inside, short trial
//!                   └─► as narrow as the goal asks ─► confirm: repeat the end that is least sure, full trials,
//!                                                     until both are settled; an end that turns moves the bracket;
//!                                                     then the same for a pass far above the answer, if there was one
//! ```
//! A trial at an overload says what the DUT passes, and so where the border must be if it behaves; locating aims a half width to
//! either side of that. Every miss in the same direction doubles the next step, and a step past the middle becomes a bisection,
//! so a DUT that does not behave (collapse, fixed loss, death) costs a logarithm of the range, not more. A generator that does not
//! behave ends the search for the goal instead: frames that never left have no border (`History::generators_load`).

use super::{
    classify::{Class, Sums, time_to_settle_ns},
    goal::SearchGoal,
    history::{Bracket, History, leans_good},
    trial::{Trial, TrialInput},
};

/// A pass this many widths above a failing load may still be chance and is not looked into.
const WIDTHS_OF_NOISE: u64 = 4;

/// Duration sums of traffic that failed for unsent frames alone, after which a goal is the generator's: otherwise enough to settle both
/// ends of a bracket, and more than a generator of one pace ever takes.
const SUMS_OF_SHORTFALL: u64 = 2;

/// Why a trial is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// To find where the border is.
    Locate,
    /// To settle a load next to the border.
    Confirm,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Wish {
    pub(super) input: TrialInput,
    pub(super) purpose: Purpose,
    /// How sure the load's present lean is; what is least sure is worth measuring first.
    sureness: u128,
}

impl Wish {
    /// Locating before confirming; then trials that serve other goals as well: long ones, low ones; then what is least sure.
    pub(super) fn rank(&self) -> impl Ord + use<> {
        let is_confirm = self.purpose == Purpose::Confirm;
        (is_confirm, std::cmp::Reverse(self.input.duration_ns), self.sureness, self.input.load_fps)
    }
}

/// Follows one goal through a search.
#[derive(Debug)]
pub(super) struct Chooser {
    pub(super) goal: SearchGoal,
    min_fps: u64,
    max_fps: u64,
    /// Locating trials in a row that were good (positive) or bad (negative).
    run: i32,
}

impl Chooser {
    pub(super) fn new(goal: SearchGoal, min_fps: u64, max_fps: u64) -> Self {
        Self { goal, min_fps, max_fps, run: 0 }
    }

    /// The next trial for this goal, or `None` if the goal has its answer.
    pub(super) fn wish(&self, history: &History) -> Option<Wish> {
        if self.is_generators(history) {
            return None;
        }
        let bracket = history.leaning(&self.goal);
        match (bracket.lower_fps, bracket.upper_fps) {
            (None, None) => Some(self.locate(self.max_fps)),
            (Some(lower), None) if lower < self.max_fps => Some(self.locate(self.max_fps)),
            (Some(lower), None) => self.confirm(history, lower),
            (None, Some(upper)) if upper <= self.min_fps => {
                self.confirm(history, upper).or_else(|| self.doubt(history, upper))
            }
            (Some(lower), Some(upper)) if bracket.is_within(self.goal.width) => {
                let ends = [self.confirm(history, lower), self.confirm(history, upper)];
                ends.into_iter().flatten().min_by_key(|wish| wish.sureness).or_else(|| self.doubt(history, upper))
            }
            (lower, Some(upper)) => Some(self.locate(self.place(history, lower, upper))),
        }
    }

    /// Time of traffic that this goal still takes if further trials keep to what they lean to now, in nanoseconds: a guess for a
    /// progress view. Goals share trials, so several take less than their sum.
    pub(super) fn remaining_ns(&self, history: &History) -> u64 {
        if self.is_generators(history) {
            return 0;
        }
        let settle = |load: Option<u64>, will_be_good| {
            let trials = load.map_or(&[][..], |load| history.at(load));
            time_to_settle_ns(&self.goal, trials, will_be_good)
        };
        let bracket = history.leaning(&self.goal);
        match (bracket.lower_fps, bracket.upper_fps) {
            (lower, None) => settle(lower, true),
            (None, Some(upper)) if upper <= self.min_fps => settle(Some(upper), false),
            (lower, Some(upper)) if bracket.is_within(self.goal.width) => {
                settle(lower, true) + settle(Some(upper), false)
            }
            (lower, Some(upper)) => {
                let widths = (upper - lower.unwrap_or(self.min_fps)) / self.goal.width.of(upper).max(1);
                let bisections = u64::from(u64::BITS - widths.leading_zeros());
                bisections * self.goal.initial_trial_ns + settle(None, true) + settle(None, false)
            }
        }
    }

    /// Takes note of what a locating trial at a new load, inside `before`, turned out to be.
    pub(super) fn learn(&mut self, before: Bracket, load_fps: u64, history: &History) {
        let is_inside = before.lower_fps.is_none_or(|l| l < load_fps) && before.upper_fps.is_some_and(|u| load_fps < u);
        if is_inside {
            self.run = match leans_good(&self.goal, history.at(load_fps)) {
                true => self.run.max(0) + 1,
                false => self.run.min(0) - 1,
            };
        }
    }

    /// Whether the generator fails so much that looking on is in vain.
    fn is_generators(&self, history: &History) -> bool {
        history.generators_load(&self.goal, self.goal.duration_sum_ns.saturating_mul(SUMS_OF_SHORTFALL)).is_some()
    }

    fn locate(&self, load_fps: u64) -> Wish {
        let input = TrialInput { load_fps, duration_ns: self.goal.initial_trial_ns };
        Wish { input, purpose: Purpose::Locate, sureness: 0 }
    }

    fn confirm(&self, history: &History, load_fps: u64) -> Option<Wish> {
        let sums = Sums::collect(&self.goal, history.at(load_fps), |trial| trial.output.loss_ratio());
        let duration_ns = match sums.lean(&self.goal) < 0 {
            true => self.goal.final_trial_ns,
            false => self.next_duration_ns(history.at(load_fps)),
        };
        let input = TrialInput { load_fps, duration_ns };
        let sureness = sums.lean(&self.goal).unsigned_abs() / u128::from(self.goal.exceed_ratio.denominator());
        (sums.class(&self.goal) == Class::Undecided).then_some(Wish { input, purpose: Purpose::Confirm, sureness })
    }

    /// The highest load well above the answer that passed a full trial, until it is settled: either the pass was an accident, or
    /// loss does not grow with load, and the report says so.
    fn doubt(&self, history: &History, upper: u64) -> Option<Wish> {
        let is_full_pass = |trial: &Trial| {
            trial.input.duration_ns >= self.goal.final_trial_ns && self.goal.is_met_by(trial.output.loss_ratio())
        };
        let well_above = self.up(upper, WIDTHS_OF_NOISE);
        let mut passing = history.loads().filter(|&(load, trials)| {
            load > well_above && trials.iter().any(is_full_pass) && leans_good(&self.goal, trials)
        });
        passing.next_back().and_then(|(load, _)| self.confirm(history, load))
    }

    /// Eight times as long as any trial so far, up to the final length: a load that only short trials could pass (the DUT's
    /// buffers hold the excess of a second, not of a minute) is found out for an eighth of the price.
    fn next_duration_ns(&self, trials: &[Trial]) -> u64 {
        let longest_ns = trials.iter().map(|trial| trial.input.duration_ns).max().unwrap_or(0);
        longest_ns.saturating_mul(8).clamp(self.goal.initial_trial_ns, self.goal.final_trial_ns)
    }

    /// A new load strictly between `lower` (or at least the minimum) and `upper`.
    fn place(&self, history: &History, lower: Option<u64>, upper: u64) -> u64 {
        let floor = lower.unwrap_or(self.min_fps);
        let middle = (u128::from(floor) * u128::from(upper)).isqrt() as u64;
        // A border below a load that passes is wrong, but by how much shows only after a step: twice in a row, and it is no guide.
        let is_guide = |&border: &u64| border > floor || self.run <= 1;
        let border = history.border_seen_from(upper, &self.goal).filter(is_guide);
        let aimed = border.map(|border| self.down(border, 1, 2));
        let step = 1 << (self.run.unsigned_abs().saturating_sub(1)).min(20);
        let wanted = match (aimed, lower) {
            (None, _) => middle,
            (Some(aimed), Some(lower)) if aimed <= self.up(lower, 1) => {
                let stepped = self.up(lower, if self.run > 0 { step } else { 1 });
                if stepped > middle && step > 1 { middle } else { stepped }
            }
            (Some(aimed), _) => {
                let stepped = self.down(upper, if self.run < 0 { step } else { 1 }, 1);
                if stepped < middle && step > 1 { aimed.min(middle) } else { aimed.min(stepped) }
            }
        };
        match lower {
            None if wanted <= self.up(self.min_fps, 1) => self.min_fps,
            None => wanted.min(upper - 1),
            Some(lower) if self.up(self.up(lower, 1), 1) >= upper => middle.clamp(lower + 1, upper - 1),
            Some(lower) => wanted.clamp(self.up(lower, 1).max(lower + 1), self.down(upper, 1, 1).min(upper - 1)),
        }
    }

    /// The highest load from which `load_fps` is one width below, or about `widths` widths.
    fn up(&self, load_fps: u64, widths: u64) -> u64 {
        let one = self.goal.width.complement().divide(load_fps);
        load_fps.saturating_add((one - load_fps).saturating_mul(widths))
    }

    /// The lowest load that is `widths / parts` widths below `load_fps`.
    fn down(&self, load_fps: u64, widths: u64, parts: u64) -> u64 {
        load_fps.saturating_sub(self.goal.width.of(load_fps).saturating_mul(widths) / parts)
    }
}
