//! Search goals: what "the DUT takes this load" means, as sets of RFC 9971 parameters with names users know.
//!
//! Runs on any thread. Does not know the load range; that belongs to the search.

use std::str::FromStr;

use super::ratio::Ratio;
use crate::units::NS_PER_S;

/// One definition of an acceptable load (RFC 9971 "Search Goal").
///
/// Start from a named set and change what differs:
/// ```
/// use plimsoll::search::{Ratio, SearchGoal};
/// let goal = SearchGoal::pdr().with_trial(500_000_000).with_width(Ratio::new(1, 100));
/// assert_eq!(goal.duration_sum_ns, 10_500_000_000);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SearchGoal {
    /// Name in reports, unique within a search.
    pub name: String,
    /// Largest loss ratio of a good trial.
    pub loss_ratio: Ratio,
    /// Largest share of the duration sum that may be bad trials at a lower bound; below 1.
    pub exceed_ratio: Ratio,
    /// Largest `(upper − lower) / upper` of a final answer; above 0 and below 1.
    pub width: Ratio,
    /// Length of the trials that look for the place, in nanoseconds.
    pub initial_trial_ns: u64,
    /// Length of the trials that decide, in nanoseconds; a shorter good trial never proves a lower bound.
    pub final_trial_ns: u64,
    /// Time of deciding trials that settles a load, in nanoseconds.
    pub duration_sum_ns: u64,
}

impl SearchGoal {
    /// Non-drop rate as FD.io CSIT defines it: no loss, trials of 1 s, 21 s a load, half of them may be bad.
    pub fn ndr() -> Self {
        Self::custom("ndr", Ratio::ZERO)
    }

    /// Partial-drop rate as FD.io CSIT defines it: like [`ndr`](Self::ndr), with 0.5 % loss allowed.
    pub fn pdr() -> Self {
        Self::custom("pdr", Ratio::new(5, 1000))
    }

    /// A goal of the user's own: like [`ndr`](Self::ndr), with this name and this loss ratio.
    pub fn custom(name: &str, loss_ratio: Ratio) -> Self {
        Self {
            name: name.to_owned(),
            loss_ratio,
            exceed_ratio: Ratio::new(1, 2),
            width: Ratio::new(5, 1000),
            initial_trial_ns: NS_PER_S,
            final_trial_ns: NS_PER_S,
            duration_sum_ns: 21 * NS_PER_S,
        }
    }

    /// RFC 2544 §26.1 throughput, with §24's 60 s: one full trial without loss, found with short trials.
    pub fn rfc2544() -> Self {
        Self {
            exceed_ratio: Ratio::ZERO,
            final_trial_ns: 60 * NS_PER_S,
            duration_sum_ns: 60 * NS_PER_S,
            ..Self::custom("rfc2544", Ratio::ZERO)
        }
    }

    /// ETSI TST009 binary search with loss verification, max(r) = 2 (RFC 9971's goal of that name): a bad full trial gets a
    /// second chance.
    pub fn tst009() -> Self {
        Self { final_trial_ns: 60 * NS_PER_S, duration_sum_ns: 120 * NS_PER_S, ..Self::custom("tst009", Ratio::ZERO) }
    }

    /// The same goal decided by trials of this length: the duration sum keeps its number of trials, and trials that only
    /// look for the place are a 60th as long, but not under 1 s unless the deciding ones are.
    pub fn with_trial(mut self, final_trial_ns: u64) -> Self {
        let trials_per_load = self.duration_sum_ns.div_ceil(self.final_trial_ns.max(1));
        self.initial_trial_ns = match self.initial_trial_ns == self.final_trial_ns {
            true => final_trial_ns,
            false => (final_trial_ns / 60).max(NS_PER_S).min(final_trial_ns),
        };
        self.final_trial_ns = final_trial_ns;
        self.duration_sum_ns = final_trial_ns.saturating_mul(trials_per_load);
        self
    }

    /// The same goal with another final width.
    pub fn with_width(mut self, width: Ratio) -> Self {
        self.width = width;
        self
    }

    /// Whether a trial with this loss ratio is good.
    pub fn is_met_by(&self, loss_ratio: Ratio) -> bool {
        loss_ratio <= self.loss_ratio
    }

    pub(super) fn validate(&self) -> Result<(), GoalError> {
        let wrong = |what| Err(GoalError::Invalid { name: self.name.clone(), what });
        match self {
            g if g.name.is_empty() => wrong("its name is empty"),
            g if g.loss_ratio >= Ratio::ONE => wrong("its loss ratio is 100 % or more: choose a smaller one"),
            g if g.exceed_ratio >= Ratio::ONE => wrong("its exceed ratio is 1 or more: choose a smaller one"),
            g if g.width == Ratio::ZERO || g.width >= Ratio::ONE => wrong("its width is not between 0 and 100 %"),
            g if g.initial_trial_ns == 0 => wrong("its trials have no length"),
            g if g.initial_trial_ns > g.final_trial_ns => wrong("its first trials are longer than its deciding ones"),
            g if g.final_trial_ns > g.duration_sum_ns => wrong("its duration sum is shorter than one trial"),
            _ => Ok(()),
        }
    }
}

/// What is wrong with a goal.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GoalError {
    /// The text names no goal.
    #[error("unknown goal '{0}': use ndr, pdr, rfc2544, tst009, or define one by its loss, such as my=0.1%")]
    Unknown(String),
    /// The loss of an own goal is no percentage.
    #[error("goal '{name}': {source}")]
    Loss {
        /// The goal's name.
        name: String,
        /// What is wrong with the percentage.
        source: super::ratio::ParseRatioError,
    },
    /// The parameters contradict each other.
    #[error("goal '{name}' cannot be searched for: {what}")]
    Invalid {
        /// The goal's name.
        name: String,
        /// The contradiction and its remedy.
        what: &'static str,
    },
}

/// Reads `ndr`, `pdr`, `rfc2544`, `tst009` or an own goal such as `my=0.1%`.
impl FromStr for SearchGoal {
    type Err = GoalError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let goal = match text.split_once('=') {
            Some((name, loss)) => {
                let loss = loss.parse().map_err(|source| GoalError::Loss { name: name.to_owned(), source })?;
                Self::custom(name.trim(), loss)
            }
            None => match text {
                "ndr" => Self::ndr(),
                "pdr" => Self::pdr(),
                "rfc2544" => Self::rfc2544(),
                "tst009" => Self::tst009(),
                _ => return Err(GoalError::Unknown(text.to_owned())),
            },
        };
        goal.validate().map(|()| goal)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn named_and_own_goals_are_read() {
        for name in ["ndr", "pdr", "rfc2544", "tst009"] {
            assert_eq!(name.parse::<SearchGoal>().unwrap().name, name);
        }
        let own: SearchGoal = "my=0.1%".parse().unwrap();
        assert_eq!((own.name.as_str(), own.loss_ratio), ("my", Ratio::new(1, 1000)));
    }

    #[test]
    fn a_goal_that_cannot_be_is_refused_with_its_name() {
        for text in ["mdr", "my=0.1", "my=100%", "=1%"] {
            let error = text.parse::<SearchGoal>().unwrap_err();
            assert!(error.to_string().contains(text.split('=').next().unwrap()), "{error}");
        }
        let backwards = SearchGoal { initial_trial_ns: 2 * NS_PER_S, ..SearchGoal::ndr() };
        assert!(backwards.validate().unwrap_err().to_string().contains("longer than"));
    }

    #[test]
    fn another_trial_length_keeps_the_number_of_trials_a_load() {
        let half = SearchGoal::ndr().with_trial(NS_PER_S / 2);
        assert_eq!((half.initial_trial_ns, half.duration_sum_ns), (NS_PER_S / 2, 21 * NS_PER_S / 2));
        let quick = SearchGoal::tst009().with_trial(5 * NS_PER_S);
        assert_eq!((quick.initial_trial_ns, quick.duration_sum_ns), (NS_PER_S, 10 * NS_PER_S));
        assert_eq!(SearchGoal::rfc2544().with_trial(60 * NS_PER_S), SearchGoal::rfc2544());
    }
}
