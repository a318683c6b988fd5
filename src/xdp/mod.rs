//! XDP programs: what counts received frames, and the modelled DUT. The home of libbpf.

pub mod model;
