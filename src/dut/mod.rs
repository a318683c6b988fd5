//! The DUT's side of the story: what its own counters, its hypervisor's, or a command's output say about a trial.
//!
//! An observer reads before and after each trial, outside the counted window, within a time limit; one that fails is a caveat, never an
//! abort. Reading is one shell round trip ([`script`]) through a [`channel`]; what moved ([`counters::Delta`]) is assigned to stages by
//! one data table ([`stages`]). Who is to blame is decided in `diagnose`, not here.

pub mod channel;
pub mod counters;
pub mod ethtool;
pub mod journal;
pub mod observer;
pub mod procfs;
pub mod script;
pub mod setting;
pub mod sink;
pub mod ssh;
pub mod stages;
pub mod story;
mod table;
pub mod template;
pub mod vm;
pub mod vsish;
