//! Runs one asynchronous netlink conversation to its end on a private runtime.
//!
//! The crates that speak netlink are asynchronous; nothing else here is. Every call opens its own socket, so that it speaks
//! to the namespace of the calling thread, and ends within [`TIMEOUT`].

use std::{future::Future, io, time::Duration};

/// The kernel answers within microseconds; this bounds a broken conversation.
const TIMEOUT: Duration = Duration::from_secs(5);

/// A runtime for one conversation (or one watching thread).
pub(super) fn runtime() -> io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()
}

fn block_on<T>(conversation: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    runtime()?.block_on(async {
        tokio::time::timeout(TIMEOUT, conversation)
            .await
            .unwrap_or_else(|_| Err(io::Error::new(io::ErrorKind::TimedOut, "no answer from the kernel over netlink")))
    })
}

/// Talks rtnetlink.
pub(super) fn route<T, F>(talk: impl FnOnce(rtnetlink::Handle) -> F) -> io::Result<T>
where
    F: Future<Output = io::Result<T>>,
{
    block_on(async {
        let (connection, handle, _) = rtnetlink::new_connection()?;
        tokio::spawn(connection);
        talk(handle).await
    })
}

/// Talks ethtool netlink.
pub(super) fn ethtool<T, F>(talk: impl FnOnce(ethtool::EthtoolHandle) -> F) -> io::Result<T>
where
    F: Future<Output = io::Result<T>>,
{
    block_on(async {
        let (connection, handle, _) = ethtool::new_connection()?;
        tokio::spawn(connection);
        talk(handle).await
    })
}

/// The operating system error behind a netlink error.
pub(super) fn io_error(error: rtnetlink::Error) -> io::Error {
    match error {
        rtnetlink::Error::NetlinkError(message) => message.to_io(),
        other => io::Error::other(other.to_string()),
    }
}

/// The operating system error behind an ethtool error.
pub(super) fn ethtool_error(error: ethtool::EthtoolError) -> io::Error {
    match error {
        ethtool::EthtoolError::NetlinkError(message) => message.to_io(),
        other => io::Error::other(other.to_string()),
    }
}
