//! XDP programs: what counts received frames, on a port and on a DUT, and the modelled DUT. The home of libbpf.

pub mod attach;
pub mod latency;
pub mod log;
mod mapped;
pub mod model;
pub mod rx;
mod surroundings;
pub mod tally;
