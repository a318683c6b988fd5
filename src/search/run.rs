//! The search itself: asks every goal for its wish, runs the best one, lets all goals learn, until all have their answer.
//!
//! Runs on the caller's thread and returns when done; time passes only inside the [`Measurer`]. Invariants: starts at the
//! maximum; never measures outside the range; bounded by trials, by time and by discarded trials in a row; what was found is
//! reported whatever ended the search.

use super::{
    choose::{Chooser, Purpose},
    goal::{GoalError, SearchGoal},
    history::{Bracket, History},
    outcome::{LossInversion, Outcome, loss_inversions},
    trial::{Measured, Measurer, Trial, TrialInput},
};

/// What to search for, where, and for how long at most.
#[derive(Clone, Debug)]
pub struct SearchConfig {
    /// Lowest load per port, in frames a second.
    pub min_fps: u64,
    /// Highest load per port, in frames a second: where the search starts.
    pub max_fps: u64,
    /// The goals, searched for together: every trial counts for all of them.
    pub goals: Vec<SearchGoal>,
    /// Most trials, discarded ones included.
    pub max_trials: u64,
    /// Most time, as the sum of what trials report as elapsed, in nanoseconds. No trial starts that would exceed it.
    pub max_elapsed_ns: u64,
    /// Discarded trials in a row that end the search.
    pub max_discards: u64,
}

impl SearchConfig {
    /// These goals in this range, with room for 1000 trials, no limit in time, and 5 discarded trials in a row.
    pub fn new(min_fps: u64, max_fps: u64, goals: Vec<SearchGoal>) -> Self {
        Self { min_fps, max_fps, goals, max_trials: 1000, max_elapsed_ns: u64::MAX, max_discards: 5 }
    }

    /// Checks what [`search`] relies on.
    ///
    /// # Errors
    /// Names what contradicts what.
    pub fn validate(&self) -> Result<(), SearchConfigError> {
        let Self { min_fps, max_fps, .. } = *self;
        if min_fps == 0 || min_fps > max_fps {
            return Err(SearchConfigError::Range { min_fps, max_fps });
        }
        if self.goals.is_empty() {
            return Err(SearchConfigError::NoGoal);
        }
        for (index, goal) in self.goals.iter().enumerate() {
            goal.validate()?;
            if self.goals[..index].iter().any(|other| other.name == goal.name) {
                return Err(SearchConfigError::SameName(goal.name.clone()));
            }
        }
        Ok(())
    }
}

/// Why a search cannot start.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SearchConfigError {
    /// The range holds no load.
    #[error(
        "cannot search from {min_fps} to {max_fps} frames/s: the minimum must be above 0 and not above the maximum"
    )]
    Range {
        /// Lowest load.
        min_fps: u64,
        /// Highest load.
        max_fps: u64,
    },
    /// Nothing to search for.
    #[error("cannot search without a goal: give at least one")]
    NoGoal,
    /// Two goals could not be told apart in a report.
    #[error("two goals are named '{0}': rename one")]
    SameName(String),
    /// A goal contradicts itself.
    #[error(transparent)]
    Goal(#[from] GoalError),
}

/// What happens during a search, for a progress view.
#[derive(Debug)]
pub enum SearchEvent<'a> {
    /// A trial is about to start.
    Starting {
        /// What is asked for.
        input: TrialInput,
        /// Why.
        purpose: Purpose,
    },
    /// A trial counted.
    Counted {
        /// Input and output.
        trial: &'a Trial,
        /// Per goal, in the order of the config: what is known by now.
        progress: &'a [GoalProgress],
    },
    /// A trial was discarded and will be asked for again.
    Discarded {
        /// What was asked for.
        input: TrialInput,
        /// The bad state.
        reason: &'a str,
    },
}

/// How close one goal is to its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GoalProgress {
    /// Where the border seems to be, single trials included.
    pub likely: Bracket,
    /// Where it is for sure.
    pub settled: Bracket,
    /// Whether the goal has its answer.
    pub is_done: bool,
    /// Time of traffic still to go, in nanoseconds: a guess that takes further trials to be like those so far.
    pub remaining_ns: u64,
}

/// What ended a search.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended<E> {
    /// Every goal has its answer.
    Done,
    /// The most trials were run.
    Trials,
    /// The time was used up.
    Time,
    /// Too many trials in a row were discarded, the last one for this reason.
    Discards(String),
    /// The measurer could not go on.
    Measurer(E),
}

/// The answer to one goal, with its doubts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GoalResult {
    /// The goal.
    pub goal: SearchGoal,
    /// Its answer.
    pub outcome: Outcome,
    /// Where loss did not grow with load.
    pub inversions: Vec<LossInversion>,
}

/// Everything that a search found.
#[derive(Clone, Debug)]
pub struct SearchReport<E> {
    /// Per goal, in the order of the config.
    pub results: Vec<GoalResult>,
    /// All counted trials, in the order they ran.
    pub trials: Vec<Trial>,
    /// The input and reason of every discarded trial.
    pub discarded: Vec<(TrialInput, String)>,
    /// Time used, as the sum of what trials reported as elapsed, in nanoseconds.
    pub elapsed_ns: u64,
    /// What ended it.
    pub ended: Ended<E>,
}

/// Searches for all goals at once (RFC 9971 "MLRsearch Architecture": this is the controller).
///
/// `observe` is called on this thread before and after every trial.
///
/// # Errors
/// Only if the config contradicts itself; whatever goes wrong later is in the report.
pub fn search<M: Measurer>(
    config: &SearchConfig,
    measurer: &mut M,
    observe: &mut dyn FnMut(&SearchEvent<'_>),
) -> Result<SearchReport<M::Error>, SearchConfigError> {
    config.validate()?;
    let mut history = History::default();
    let new_chooser = |goal: &SearchGoal| Chooser::new(goal.clone(), config.min_fps, config.max_fps);
    let mut choosers: Vec<Chooser> = config.goals.iter().map(new_chooser).collect();
    let (mut trials, mut discarded) = (Vec::new(), Vec::new());
    let (mut elapsed_ns, mut discards_in_a_row) = (0_u64, 0);

    let ended = loop {
        let wishes = choosers.iter().filter_map(|chooser| chooser.wish(&history));
        let Some(wish) = wishes.min_by_key(|wish| wish.rank()) else { break Ended::Done };
        let input = wish.input;
        if (trials.len() + discarded.len()) as u64 >= config.max_trials {
            break Ended::Trials;
        }
        if elapsed_ns.saturating_add(input.duration_ns) > config.max_elapsed_ns {
            break Ended::Time;
        }
        observe(&SearchEvent::Starting { input, purpose: wish.purpose });
        let output = match measurer.measure(input) {
            Ok(Measured::Counted(output)) => output,
            Ok(Measured::Discarded { reason, elapsed_ns: lost_ns }) => {
                elapsed_ns = elapsed_ns.saturating_add(lost_ns);
                discards_in_a_row += 1;
                observe(&SearchEvent::Discarded { input, reason: &reason });
                discarded.push((input, reason.clone()));
                if discards_in_a_row >= config.max_discards {
                    break Ended::Discards(reason);
                }
                continue;
            }
            Err(error) => break Ended::Measurer(error),
        };
        discards_in_a_row = 0;
        elapsed_ns = elapsed_ns.saturating_add(output.elapsed_ns);
        let trial = Trial { input, output };
        let before: Vec<Bracket> = choosers.iter().map(|chooser| history.leaning(&chooser.goal)).collect();
        history.add(trial);
        trials.push(trial);
        let mut progress = Vec::with_capacity(choosers.len());
        for (chooser, before) in choosers.iter_mut().zip(before) {
            chooser.learn(before, input.load_fps, &history);
            progress.push(GoalProgress {
                likely: history.leaning(&chooser.goal),
                settled: history.bounds(&chooser.goal),
                is_done: chooser.wish(&history).is_none(),
                remaining_ns: chooser.remaining_ns(&history),
            });
        }
        observe(&SearchEvent::Counted { trial: &trial, progress: &progress });
    };

    let results = config
        .goals
        .iter()
        .map(|goal| GoalResult {
            goal: goal.clone(),
            outcome: Outcome::judge(goal, &history, config.min_fps, config.max_fps),
            inversions: loss_inversions(goal, &trials),
        })
        .collect();
    Ok(SearchReport { results, trials, discarded, elapsed_ns, ended })
}
