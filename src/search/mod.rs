//! The search for a ceiling: which loads meet a goal, and where the border lies (RFC 9971 MLRsearch; RFC 2544 and TST009 as
//! goal sets of it).
//!
//! Pure: it sees the world through [`Measurer`] alone, reads no clock, starts no thread and prints nothing, so a whole search
//! runs against a [`simulated`] DUT in microseconds. Judgement is exact: integer nanoseconds, exact fractions.

mod choose;
mod classify;
mod curve;
mod goal;
mod history;
mod outcome;
mod ratio;
mod run;
pub mod simulated;
#[cfg(test)]
mod tests;
mod trial;

pub use choose::Purpose;
pub use classify::{Class, classify, conditional_loss, conditional_throughput_fps};
pub use curve::{
    ForwardingRate, LossRateCurve, forwarding_rate_at_maximum_load, loss_rate_curve, maximum_forwarding_rate,
};
pub use goal::{GoalError, SearchGoal};
pub use history::Bracket;
pub use outcome::{LossInversion, LowerBound, Outcome, loss_inversions};
pub use ratio::{ParseRatioError, Ratio};
pub use run::{Ended, GoalProgress, GoalResult, SearchConfig, SearchConfigError, SearchEvent, SearchReport, search};
pub use trial::{Measured, Measurer, Trial, TrialInput, TrialOutput};
