//! AF_XDP: frames in a memory area shared with the kernel, handed over by descriptors; zero-copy where the driver has it.
//!
//! Opened and driven by its worker's thread; one memory area, one socket and four rings per queue. Every slot is free, filled,
//! submitted or with the kernel, and comes back through the completion ring alone. Sending needs no XDP program, so none
//! is loaded: in copy mode CAP_NET_RAW is enough. Receiving is not done here.

mod open;

pub use open::XskMode;

use std::{io, os::fd::AsRawFd};

use xsk_rs::{CompQueue, FillQueue, FrameDesc, RxQueue, TxQueue as TxRing, Umem};

use crate::{
    backend::{FreeSlots, Kick, Slot, TxQueue},
    error::{Error, Result},
    ids::QueueId,
};

/// What XDP keeps of each chunk of the memory area for its headroom.
const HEADROOM_BYTES: usize = 256;
/// Longest frame, without FCS, in bytes: the largest chunk is a page.
pub const MAX_BUF_LEN: usize = 4096 - HEADROOM_BYTES;
/// Completions taken at a time.
const REAP: usize = 64;
/// System calls of one kick that may be cut short by the kernel's budget (32 frames a call before Linux 6.17).
const MAX_BUDGET_CALLS: usize = 4;

/// A transmit queue on an AF_XDP socket.
#[derive(Debug)]
pub struct XskQueue {
    queue: QueueId,
    ifname: String,
    is_zero_copy: bool,
    /// Bytes of a chunk, as a power of 2.
    chunk_shift: u32,
    tx: TxRing,
    completions: CompQueue,
    /// Descriptor of each slot: its place, and the length it was last sent with (completions come back without one).
    descs: Box<[FrameDesc]>,
    /// Start of each slot's bytes.
    starts: Box<[*mut u8]>,
    free: FreeSlots,
    /// Submitted, not yet in the ring.
    batch: Vec<FrameDesc>,
    done: Box<[FrameDesc; REAP]>,
    in_flight: usize,
    umem: Umem,
    /// Kept open: the socket lives as long as its rings.
    _fill: FillQueue,
    _rx: RxQueue,
}

impl XskQueue {
    /// Whether zero-copy was really bound, as XDP_OPTIONS says.
    pub fn is_zero_copy(&self) -> bool {
        self.is_zero_copy
    }

    /// Longest frame that fits a slot, in bytes without FCS.
    pub fn max_buf_len(&self) -> usize {
        (1 << self.chunk_shift) - HEADROOM_BYTES
    }

    /// Wakes the kernel; in copy mode it sends within this call.
    fn wake(&self) -> io::Result<()> {
        // SAFETY: the descriptor is the open socket's; no buffer is passed.
        let sent = unsafe {
            libc::sendto(self.tx.fd().as_raw_fd(), std::ptr::null(), 0, libc::MSG_DONTWAIT, std::ptr::null(), 0)
        };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

impl TxQueue for XskQueue {
    fn slots(&self) -> usize {
        self.descs.len()
    }

    #[inline]
    fn reap(&mut self, mut completed: impl FnMut(usize)) -> usize {
        let mut reaped = 0;
        loop {
            // SAFETY: the completion ring and the scratch descriptors' memory area are one socket's; it only writes to them.
            let count = unsafe { self.completions.consume(&mut self.done[..]) };
            for desc in &self.done[..count] {
                let slot = desc.addr() >> self.chunk_shift;
                completed(slot);
                self.free.give(slot as u32);
            }
            reaped += count;
            if count < REAP {
                break;
            }
        }
        self.in_flight -= reaped;
        reaped
    }

    fn free(&self) -> usize {
        self.free.len()
    }

    #[inline]
    fn take(&mut self) -> Option<Slot> {
        self.free.take()
    }

    #[inline]
    fn bytes(&mut self, slot: &Slot) -> &mut [u8] {
        // SAFETY: the pointer is the start of `max_buf_len()` bytes of this slot's chunk, in a mapping that `umem` keeps alive.
        // The caller holds the slot's only token, so the kernel has no claim on it, and the result borrows the queue mutably.
        unsafe { std::slice::from_raw_parts_mut(self.starts[slot.index()], self.max_buf_len()) }
    }

    #[inline]
    fn submit(&mut self, slot: Slot, len: usize) {
        let desc = &mut self.descs[slot.index()];
        if desc.lengths().data() != len {
            // SAFETY: the descriptor is of this memory area, and the slot's token says that nobody else uses its chunk.
            unsafe { self.umem.data_mut(desc) }.cursor().set_pos(len);
        }
        self.batch.push(*desc);
        self.in_flight += 1;
    }

    fn kick(&mut self) -> Result<Kick> {
        let mut kick = Kick::default();
        let submitted = self.batch.len();
        if submitted > 0 {
            // SAFETY: the descriptors are of this socket's memory area; each stands for a submitted slot, whose token is gone
            // until the completion ring returns it.
            let produced = unsafe { self.tx.produce(&self.batch) };
            // The ring has an entry for every slot, so there is always room.
            if produced < submitted {
                return Ok(Kick { pushed_back: true, ..kick });
            }
            self.batch.clear();
        }
        if !self.tx.needs_wakeup() {
            return Ok(kick);
        }
        let mut calls = 0;
        while let Err(cause) = self.wake() {
            match cause.raw_os_error() {
                Some(libc::EINTR) => {}
                Some(libc::EAGAIN | libc::ENOBUFS) => {
                    calls += 1;
                    if calls == MAX_BUDGET_CALLS {
                        kick.pushed_back = true;
                        break;
                    }
                }
                // One frame was taken, not sent and completed (no carrier); the rest waits for the next call.
                Some(libc::EBUSY) => {
                    kick.refused_frames += 1;
                    if kick.refused_frames >= self.descs.len() as u64 {
                        break;
                    }
                }
                Some(libc::ENETDOWN) => {
                    kick.link_down = true;
                    break;
                }
                _ => {
                    let error = Error::environment("send on", format!("{} {}", self.ifname, self.queue)).os(&cause);
                    return Err(match cause.raw_os_error() {
                        Some(libc::ENXIO | libc::ENODEV) => error.remedy("the interface was removed"),
                        _ => error,
                    });
                }
            }
        }
        kick.link_down |= kick.refused_frames > 0 && kick.refused_frames >= submitted as u64;
        Ok(kick)
    }

    fn in_flight(&self) -> usize {
        self.in_flight
    }

    fn queue(&self) -> QueueId {
        self.queue
    }

    fn invalid_frames(&self) -> u64 {
        self.tx.fd().xdp_statistics().map_or(0, |statistics| statistics.tx_invalid_descs())
    }
}
