//! AF_PACKET: one raw socket per worker, `sendmmsg` past the queueing discipline. Slower than AF_XDP, works everywhere.
//!
//! Its worker's thread drives it. The kernel copies a frame while it takes it, so what it took is completed at once; what
//! it did not take stays queued, in order, and is offered again. It receives nothing.

use std::{
    io,
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
};

use crate::{
    backend::{FreeSlots, Kick, Slot, TxQueue},
    error::{Error, Result},
    ids::QueueId,
};

/// Slots of a queue, and most messages of a system call.
const SLOTS: usize = 256;
/// Send buffer asked for, in bytes; refused without privilege beyond `net.core.wmem_max`, which is no error.
const SEND_BUFFER_BYTES: libc::c_int = 8 << 20;
const SOL_PACKET: libc::c_int = 263;
const PACKET_QDISC_BYPASS: libc::c_int = 20;

/// A raw socket with its slots.
pub struct PacketQueue {
    queue: QueueId,
    ifname: String,
    socket: OwnedFd,
    slot_bytes: usize,
    memory: Box<[u8]>,
    free: FreeSlots,
    /// Submitted slots with their lengths, in order. Those before `taken` are with the kernel.
    pending: Vec<(u32, u32)>,
    taken: usize,
    /// Scratch of `kick`, rewritten before each use: one message per slot, pointing into `vectors`.
    messages: Box<[libc::mmsghdr]>,
    vectors: Box<[libc::iovec]>,
}

// SAFETY: the raw pointers are those in `messages` and `vectors`; they are written and used within one call of `kick` and
// point into memory that the queue itself owns, so the queue may move to another thread.
unsafe impl Send for PacketQueue {}

impl PacketQueue {
    /// Opens a socket that sends on the interface, for frames of up to `max_len` bytes.
    ///
    /// # Errors
    /// No CAP_NET_RAW, or the interface is gone.
    pub fn open(ifname: &str, ifindex: u32, queue: QueueId, max_len: usize) -> Result<PacketQueue> {
        let failed = |operation: &str, cause: io::Error| {
            let error = Error::environment(operation, format!("an AF_PACKET socket on {ifname}")).os(&cause);
            match cause.raw_os_error() {
                Some(libc::EPERM | libc::EACCES) => error.remedy("run as root or with CAP_NET_RAW"),
                _ => error,
            }
        };
        // SAFETY: no pointers are passed.
        let fd = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
        if fd < 0 {
            return Err(failed("open", io::Error::last_os_error()));
        }
        // SAFETY: the descriptor was just made and nobody else owns it.
        let socket = unsafe { OwnedFd::from_raw_fd(fd) };
        // SAFETY: an all-zero `sockaddr_ll` is a valid value of that plain C struct.
        let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_ifindex = ifindex as i32;
        // SAFETY: the address is a live `sockaddr_ll` and the length is its size.
        let bound = unsafe {
            libc::bind(socket.as_raw_fd(), (&raw const address).cast(), size_of::<libc::sockaddr_ll>() as u32)
        };
        if bound < 0 {
            return Err(failed("bind", io::Error::last_os_error()));
        }
        set_option(&socket, SOL_PACKET, PACKET_QDISC_BYPASS, 1)
            .map_err(|cause| failed("bypass the qdisc with", cause))?;
        // A small send buffer only means that the kernel pushes back earlier.
        if set_option(&socket, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, SEND_BUFFER_BYTES).is_err() {
            let _ = set_option(&socket, libc::SOL_SOCKET, libc::SO_SNDBUF, SEND_BUFFER_BYTES);
        }
        let slot_bytes = max_len.next_multiple_of(64).max(2048);
        let vector = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
        // SAFETY: an all-zero `mmsghdr` is a valid value of that plain C struct.
        let message: libc::mmsghdr = unsafe { std::mem::zeroed() };
        Ok(PacketQueue {
            queue,
            ifname: ifname.to_owned(),
            socket,
            slot_bytes,
            memory: vec![0; SLOTS * slot_bytes].into(),
            free: FreeSlots::all(SLOTS),
            pending: Vec::with_capacity(SLOTS),
            taken: 0,
            messages: vec![message; SLOTS].into(),
            vectors: vec![vector; SLOTS].into(),
        })
    }
}

fn set_option(socket: &OwnedFd, level: libc::c_int, name: libc::c_int, value: libc::c_int) -> io::Result<()> {
    // SAFETY: the value is a live int and the length is its size.
    let result = unsafe {
        libc::setsockopt(socket.as_raw_fd(), level, name, (&raw const value).cast(), size_of::<libc::c_int>() as u32)
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

impl TxQueue for PacketQueue {
    fn slots(&self) -> usize {
        SLOTS
    }

    fn reap(&mut self, mut completed: impl FnMut(usize)) -> usize {
        let taken = std::mem::take(&mut self.taken);
        for (slot, _) in self.pending.drain(..taken) {
            completed(slot as usize);
            self.free.give(slot);
        }
        taken
    }

    fn free(&self) -> usize {
        self.free.len()
    }

    fn take(&mut self) -> Option<Slot> {
        self.free.take()
    }

    fn bytes(&mut self, slot: &Slot) -> &mut [u8] {
        let at = slot.index() * self.slot_bytes;
        &mut self.memory[at..at + self.slot_bytes]
    }

    fn submit(&mut self, slot: Slot, len: usize) {
        self.pending.push((slot.0, len as u32));
    }

    fn kick(&mut self) -> Result<Kick> {
        let mut kick = Kick::default();
        while self.taken < self.pending.len() {
            let waiting = &self.pending[self.taken..];
            for ((&(slot, len), vector), message) in waiting.iter().zip(&mut self.vectors).zip(&mut self.messages) {
                vector.iov_base = self.memory[slot as usize * self.slot_bytes..].as_mut_ptr().cast();
                vector.iov_len = len as usize;
                message.msg_hdr.msg_iov = vector;
                message.msg_hdr.msg_iovlen = 1;
            }
            // SAFETY: the first `waiting.len()` messages each point to one live vector, which points to `len` bytes of a slot
            // that is neither free nor with the kernel. Name and control pointers are null with length 0.
            let sent = unsafe {
                libc::sendmmsg(
                    self.socket.as_raw_fd(),
                    self.messages.as_mut_ptr(),
                    waiting.len() as u32,
                    libc::MSG_DONTWAIT as _,
                )
            };
            if sent >= 0 {
                self.taken += sent as usize;
                continue;
            }
            let cause = io::Error::last_os_error();
            match cause.raw_os_error() {
                Some(libc::EINTR) => {}
                // A full send buffer, or a device that is full or without carrier.
                Some(libc::EAGAIN | libc::ENOBUFS) => {
                    kick.pushed_back = true;
                    return Ok(kick);
                }
                Some(libc::ENETDOWN) => {
                    kick.link_down = true;
                    return Ok(kick);
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
        Ok(kick)
    }

    fn in_flight(&self) -> usize {
        self.pending.len()
    }

    fn queue(&self) -> QueueId {
        self.queue
    }
}

impl std::fmt::Debug for PacketQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PacketQueue").field("ifname", &self.ifname).field("queue", &self.queue).finish_non_exhaustive()
    }
}
