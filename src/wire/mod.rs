//! Bytes on the wire: what a frame looks like, and nothing about how it is sent.

pub mod capture;
pub mod layer;
pub mod mac;
pub mod neighbour;
pub mod parse;
pub mod signature;
