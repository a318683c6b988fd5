//! Keeps a live program in the kernel's XDP dispatcher between calls.
//!
//! Control plane. Every live run of a program that is attached nowhere puts it into the dispatcher and takes it out again,
//! waiting ~24 ms for RCU. So it is attached, in generic mode, to `lo` of a network namespace made for it, where nothing
//! ever arrives. The namespace lives as long as the guard and dies with the process, also on SIGKILL.

use std::{
    fs::File,
    io,
    os::fd::{AsFd, OwnedFd},
};

use super::sys::{self, LOOPBACK, XdpMode};
use crate::host::netns;

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
        netns::in_new(|| {
            let netns = File::open("/proc/thread-self/ns/net")?;
            Ok(Hold { _link: sys::attach(program.as_fd(), LOOPBACK, XdpMode::Generic)?, _netns: netns })
        })
    }
}
