//! What this process may do: capabilities and limits, and which one is missing for what was asked.
//!
//! Control plane. Each mode names the capabilities that *it* needs: sending through AF_XDP in copy mode needs far fewer than
//! receiving with an XDP program.

use rustix::{
    process::{Resource, getrlimit},
    thread::{CapabilitySet, capabilities},
};

use crate::error::{Error, Result};

/// What a part of Plimsoll wants to do with the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Need {
    /// An AF_PACKET or AF_XDP socket: any sending, ARP, ND.
    RawSocket,
    /// Loading and attaching an XDP program: counting received frames, the live backend, zero-copy on most drivers.
    Xdp,
    /// Entering a network namespace by name.
    EnterNetns,
    /// Making network namespaces: the lab.
    Lab,
}

impl Need {
    /// Sets of alternatives: one of each set is needed.
    fn alternatives(self) -> &'static [&'static [(CapabilitySet, &'static str)]] {
        const RAW: (CapabilitySet, &str) = (CapabilitySet::NET_RAW, "CAP_NET_RAW");
        const NET_ADMIN: (CapabilitySet, &str) = (CapabilitySet::NET_ADMIN, "CAP_NET_ADMIN");
        const ADMIN: (CapabilitySet, &str) = (CapabilitySet::SYS_ADMIN, "CAP_SYS_ADMIN");
        const BPF: (CapabilitySet, &str) = (CapabilitySet::BPF, "CAP_BPF");
        match self {
            Need::RawSocket => &[&[RAW]],
            Need::Xdp => &[&[NET_ADMIN], &[BPF, ADMIN]],
            Need::EnterNetns => &[&[ADMIN]],
            Need::Lab => &[&[ADMIN], &[NET_ADMIN]],
        }
    }

    fn purpose(self) -> &'static str {
        match self {
            Need::RawSocket => "open raw sockets (any sending, ARP)",
            Need::Xdp => "load and attach an XDP program (counting received frames, backend live)",
            Need::EnterNetns => "enter a network namespace",
            Need::Lab => "make network namespaces",
        }
    }
}

/// The capabilities that `need` lacks, by name, one per unmet requirement ("CAP_BPF or CAP_SYS_ADMIN"). Empty: go ahead.
/// The kernel has the last word (user namespaces, seccomp, lockdown).
pub fn missing(need: Need) -> Vec<String> {
    let effective = capabilities(None).map_or(CapabilitySet::empty(), |sets| sets.effective);
    missing_from(need, effective)
}

fn missing_from(need: Need, effective: CapabilitySet) -> Vec<String> {
    let lacking = |set: &&&[(CapabilitySet, &str)]| set.iter().all(|(capability, _)| !effective.contains(*capability));
    let named = |set: &&[(CapabilitySet, &str)]| set.iter().map(|(_, name)| *name).collect::<Vec<_>>().join(" or ");
    need.alternatives().iter().filter(lacking).map(named).collect()
}

/// Refuses if `need` lacks a capability.
///
/// # Errors
/// Names what is missing and what it is needed for.
pub fn require(need: Need) -> Result<()> {
    let missing = missing(need);
    if missing.is_empty() {
        return Ok(());
    }
    let missing = missing.join(" and ");
    Err(Error::environment(need.purpose(), "as this user")
        .because(format!("missing {missing}"))
        .remedy(format!("run as root, or give {missing} (setcap, docker --cap-add)")))
}

/// Bytes of memory that may be locked without CAP_IPC_LOCK; `None` = no limit. AF_XDP's packet memory counts against it
/// (ENOBUFS when registering it), BPF maps do not since Linux 5.11.
pub fn memlock_limit_bytes() -> Option<u64> {
    let exempt = capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::IPC_LOCK));
    if exempt { None } else { getrlimit(Resource::Memlock).current }
}

/// The error for packet memory of `bytes` that the kernel refused with ENOBUFS.
pub fn memlock_error(bytes: u64) -> Error {
    let limit = memlock_limit_bytes().map_or("unlimited".to_owned(), |limit| format!("{} KiB", limit / 1024));
    let need = bytes.div_ceil(1024);
    Error::environment("lock memory for", "AF_XDP packet buffers")
        .because(format!("{need} KiB are needed, the locked-memory limit is {limit}"))
        .remedy(format!("`ulimit -l {need}` (or unlimited), docker --ulimit memlock=-1, or CAP_IPC_LOCK"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_missing_capability_is_that_of_the_asked_mode() {
        let all = CapabilitySet::all();
        assert!(missing_from(Need::Xdp, all).is_empty());
        assert_eq!(missing_from(Need::RawSocket, all - CapabilitySet::NET_RAW), ["CAP_NET_RAW"]);
        assert!(missing_from(Need::RawSocket, CapabilitySet::NET_RAW).is_empty());
        assert!(missing_from(Need::Xdp, all - CapabilitySet::BPF).is_empty(), "CAP_SYS_ADMIN includes it");
        assert_eq!(missing_from(Need::Xdp, CapabilitySet::empty()), ["CAP_NET_ADMIN", "CAP_BPF or CAP_SYS_ADMIN"]);
    }
}
