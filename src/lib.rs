//! Plimsoll finds how many frames per second a device under test (DUT) really ingests, and which stage loses the rest.
//!
//! The data takes one path: profile → program → engine → trial → search → verdict → report. Modules import only from
//! layers below their own (`tests/layers.rs` checks it); `ARCHITECTURE.md` shows the layers.

// L0
pub mod caveat;
pub mod clock;
pub mod error;
pub mod human;
pub mod ids;
pub mod units;
// L1: pure
pub mod diagnose;
pub mod meter;
pub mod pacer;
pub mod profile;
pub mod program;
pub mod search;
pub mod wire;
// L2: the kernel and the outside
pub mod backend;
pub mod dut;
pub mod host;
pub mod xdp;
// L3: threads and hot loops
pub mod engine;
// L4: sessions and the lab
pub mod lab;
pub mod session;
// L5: edges
pub mod cli;
pub mod report;
