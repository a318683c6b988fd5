//! Bytes on the wire: what a frame looks like, and nothing about how it is sent.

pub mod mac;
pub mod signature;
