//! How frames leave. Slot backends (`xsk`, `packet`, `mem`) implement [`TxQueue`]; `live` sends from inside the kernel.
//!
//! A queue belongs to the one pinned worker thread that opened it. Nothing here paces or fills frames.

pub mod live;
pub mod mem;
pub mod packet;
pub mod xsk;

use crate::{error::Result, ids::QueueId};

/// A free frame slot: a move-only token. free → filled → submitted → reclaimed is checked by ownership.
#[derive(Debug)]
pub struct Slot(u32);

impl Slot {
    /// Only backends make slots, each index once.
    pub(in crate::backend) fn new(index: u32) -> Slot {
        Slot(index)
    }

    /// Its number, below [`TxQueue::slots`]; stable, so that a worker can remember what a slot holds.
    #[inline]
    pub fn index(&self) -> usize {
        self.0 as usize
    }
}

/// What a kick did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Kick {
    /// The kernel pushed back (EAGAIN, ENOBUFS, full ring): reap and kick again. Evidence of back-pressure, not an error.
    pub pushed_back: bool,
    /// Frames that the kernel took and says it did not send (link down, no buffer in the device); they complete all the same.
    pub refused_frames: u64,
    /// The link or the device is down (ENETDOWN, ENXIO): nothing leaves until it is back.
    pub link_down: bool,
}

/// A transmit queue with slots, driven by one worker: `reap → take/fill/submit → kick`, by the batch.
pub trait TxQueue {
    /// Number of slots.
    fn slots(&self) -> usize;

    /// Collects completed slots into the free list, calling `completed` with the number of each; returns how many.
    fn reap(&mut self, completed: impl FnMut(usize)) -> usize;

    /// Free slots.
    fn free(&self) -> usize;

    /// Takes a free slot, if any.
    fn take(&mut self) -> Option<Slot>;

    /// The slot's bytes, at least as long as the longest frame the queue was opened for. Contents persist between uses.
    fn bytes(&mut self, slot: &Slot) -> &mut [u8];

    /// Queues the slot's first `len` bytes. The frame is accepted: it counts as offered.
    fn submit(&mut self, slot: Slot, len: usize);

    /// Makes the kernel look at what was submitted (nothing to do where it looks by itself).
    ///
    /// # Errors
    /// The queue is unusable for ever (device removed, socket broken).
    fn kick(&mut self) -> Result<Kick>;

    /// Submitted, not yet completed.
    fn in_flight(&self) -> usize;

    /// The NIC queue.
    fn queue(&self) -> QueueId;

    /// Frames since opening that completed because the kernel found their descriptors invalid.
    fn invalid_frames(&self) -> u64 {
        0
    }
}

/// The free slots of a queue, last in first out: the slots in use stay few, and in the CPU's cache.
#[derive(Debug)]
pub(in crate::backend) struct FreeSlots(Vec<u32>);

impl FreeSlots {
    /// All of `slots` slots are free.
    pub fn all(slots: usize) -> FreeSlots {
        FreeSlots((0..slots as u32).rev().collect())
    }

    /// How many are free.
    #[inline]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Takes one.
    #[inline]
    pub fn take(&mut self) -> Option<Slot> {
        self.0.pop().map(Slot::new)
    }

    /// Gives one back that was taken before.
    #[inline]
    pub fn give(&mut self, index: u32) {
        debug_assert!(self.0.len() < self.0.capacity(), "a slot was given back twice");
        self.0.push(index);
    }
}
