//! Keeps a live program in the kernel's XDP dispatcher between calls.
//!
//! Control plane. Every live run of a program that is attached nowhere puts it into the dispatcher and takes it out again,
//! waiting ~24 ms for RCU. So it is attached, in generic mode, to `lo` of a network namespace made for it, where nothing
//! ever arrives. The namespace lives as long as the guard and dies with the process, also on SIGKILL.

use std::{
    fs::File,
    io,
    os::fd::{AsFd, OwnedFd},
    thread,
};

use rustix::thread::{UnshareFlags, unshare_unsafe};

use super::sys::{self, LOOPBACK, XdpMode};

/// The attachment and the namespace that carries it.
#[derive(Debug)]
pub(super) struct Hold {
    _link: OwnedFd,
    _netns: File,
}

impl Hold {
    /// Attaches the program.
    ///
    /// # Errors
    /// Without CAP_SYS_ADMIN, or if the kernel refuses the attachment.
    pub(super) fn new(program: &OwnedFd) -> io::Result<Hold> {
        in_new_netns(|| {
            let netns = File::open("/proc/thread-self/ns/net")?;
            Ok(Hold { _link: sys::attach(program.as_fd(), LOOPBACK, XdpMode::Generic)?, _netns: netns })
        })
    }
}

/// Runs `work` on a thread of its own in a new network namespace: a thread enters it, and ours must stay where they are.
pub(super) fn in_new_netns<T: Send>(work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    thread::scope(|scope| {
        let made = scope.spawn(|| {
            // SAFETY: only the network namespace of this thread changes; no descriptor table or memory is unshared.
            unsafe { unshare_unsafe(UnshareFlags::NEWNET) }?;
            work()
        });
        made.join().unwrap_or_else(|_| Err(io::Error::other("the thread in the new namespace panicked")))
    })
}
