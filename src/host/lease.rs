//! One generator per interface: who sends on it holds its lease, and a second one is told who that is.
//!
//! Control plane. A lease is a listening socket with an abstract name: names belong to the network namespace, as interface
//! numbers do, and the kernel drops them with the process, whatever ends it. Nobody ever connects to talk.

use std::{
    io,
    os::{
        fd::AsRawFd,
        linux::net::SocketAddrExt,
        unix::net::{SocketAddr, UnixListener, UnixStream},
    },
};

use super::link::Link;
use crate::error::{Error, Result};

/// The right to send on an interface; given back when dropped.
#[derive(Debug)]
pub struct Lease {
    _name: UnixListener,
}

impl Lease {
    /// Takes the interface.
    ///
    /// # Errors
    /// Environment: another generator has it, named by its process id where that can be seen.
    pub fn take(link: &Link) -> Result<Lease> {
        let failed = || Error::environment("use", &link.name);
        let name =
            SocketAddr::from_abstract_name(format!("plimsoll/{}", link.index)).map_err(|cause| failed().os(&cause))?;
        match UnixListener::bind_addr(&name) {
            Ok(listener) => Ok(Lease { _name: listener }),
            Err(cause) if cause.kind() == io::ErrorKind::AddrInUse => {
                let pid = UnixStream::connect_addr(&name).ok().and_then(|stream| peer_pid(&stream));
                let pid = pid.map(|pid| format!(" (process {pid})")).unwrap_or_default();
                Err(failed()
                    .because(format!("another plimsoll{pid} is using it"))
                    .remedy("wait for its end, or use another interface"))
            }
            Err(cause) => Err(failed().os(&cause)),
        }
    }
}

/// The process that listens at the other end; `None` if it is in a process namespace that this one cannot see into.
fn peer_pid(stream: &UnixStream) -> Option<i32> {
    let mut credentials = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the descriptor is open for the duration of the call; `credentials` and `len` are valid for writes, and `len`
    // holds the size of `credentials`.
    let result = unsafe {
        libc::getsockopt(
            stream.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut credentials).cast(),
            &raw mut len,
        )
    };
    (result == 0 && credentials.pid > 0).then_some(credentials.pid)
}
