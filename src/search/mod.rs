//! The search for a ceiling: which loads meet a goal, and where the border lies (RFC 9971 MLRsearch; RFC 2544 and TST009 as
//! goal sets of it).
//!
//! Pure: it sees the world through [`Measurer`] alone, reads no clock, starts no thread and prints nothing.
//! Judgement is exact: integer nanoseconds, exact fractions.

mod classify;
mod goal;
mod ratio;
mod trial;

pub use classify::{Class, classify, conditional_loss, conditional_throughput_fps};
pub use goal::{GoalError, SearchGoal};
pub use ratio::{ParseRatioError, Ratio};
pub use trial::{Measured, Measurer, Trial, TrialInput, TrialOutput};
