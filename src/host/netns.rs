//! Network namespaces by name, as `ip netns` keeps them.
//!
//! [`enter`] moves the calling thread; threads started later inherit its namespace, so call it before any is started.

use std::{
    fs::{self, File},
    io,
    os::{fd::AsFd, unix::fs::MetadataExt},
    path::Path,
    thread,
};

use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};

use crate::error::{Error, Result};

/// Where `ip netns` keeps its names.
pub const NAMES: &str = "/var/run/netns";

/// Moves the calling thread (and all that it starts from now on) into the namespace `name`.
///
/// # Errors
/// No such namespace; no CAP_SYS_ADMIN.
pub fn enter(name: &str) -> Result<()> {
    let fail = |error: &io::Error, remedy: String| {
        Err(Error::environment("enter network namespace", name).os(error).remedy(remedy))
    };
    if name.is_empty() || name.contains('/') || name.starts_with('.') {
        return Err(Error::usage("enter network namespace", format!("`{name}`")).because("that is not a name"));
    }
    let file = match File::open(Path::new(NAMES).join(name)) {
        Ok(file) => file,
        Err(error) => {
            let known = names().join(", ");
            let known = if known.is_empty() { "there are none".to_owned() } else { format!("there are: {known}") };
            return fail(&error, format!("`ip netns` lists the names; {known}"));
        }
    };
    match move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network)) {
        Ok(()) => Ok(()),
        Err(errno) => fail(&errno.into(), "run as root (CAP_SYS_ADMIN)".to_owned()),
    }
}

/// Runs `work` on a thread of its own in a new, nameless namespace, which goes when nothing refers to it any more.
///
/// # Errors
/// No CAP_SYS_ADMIN; those of `work`.
pub fn in_new<T: Send>(work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    thread::scope(|scope| {
        let made = scope.spawn(|| {
            // SAFETY: only the network namespace of this thread changes; no descriptor table or memory is unshared.
            unsafe { unshare_unsafe(UnshareFlags::NEWNET) }?;
            work()
        });
        made.join().unwrap_or_else(|_| Err(io::Error::other("the thread in the new namespace panicked")))
    })
}

/// The names there are, sorted.
pub fn names() -> Vec<String> {
    let Ok(entries) = fs::read_dir(NAMES) else { return Vec::new() };
    let mut names: Vec<_> = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    names
}

/// Name of the calling thread's namespace; `None` if it has none (such as the machine's initial one).
pub fn current_name() -> Option<String> {
    let own = fs::metadata("/proc/thread-self/ns/net").ok()?;
    names().into_iter().find(|name| {
        fs::metadata(Path::new(NAMES).join(name))
            .is_ok_and(|named| (named.dev(), named.ino()) == (own.dev(), own.ino()))
    })
}

/// How errors name the calling thread's namespace: "network namespace acg", "the initial network namespace".
pub fn described() -> String {
    if let Some(name) = current_name() {
        return format!("network namespace {name}");
    }
    let inode = |path: &str| fs::metadata(path).map(|namespace| namespace.ino()).ok();
    match (inode("/proc/thread-self/ns/net"), inode("/proc/1/ns/net")) {
        (Some(own), Some(first)) if own != first => format!("an unnamed network namespace (inode {own})"),
        _ => "the initial network namespace".to_owned(),
    }
}
