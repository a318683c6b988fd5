//! The virtual machine lab: DUTs and generators with real NIC drivers, under QEMU's software emulation.
//!
//! Control thread. What may be concluded: modes (zero-copy or not), counters, conservation of frames, ratios on one machine. What may
//! not: any rate as the performance of any NIC. The kernel, QEMU and tools come from the distribution's packages ([`Packages`]) and are
//! unpacked into a cache, so nothing is installed, and nothing of the machine's is changed.

mod command;
mod fetch;
mod guest;
mod initramfs;
mod nic;
mod standing;

pub use fetch::Packages;
pub use guest::{Guest, GuestSpec, RunningGuest};
pub use nic::{Nic, NicModel, Plug, mac};
pub use standing::{Wiring, down, open, status, up};
