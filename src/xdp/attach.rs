//! Attaches an XDP program to an interface by bpf_link: it is gone when the file descriptor is, even after SIGKILL.
//!
//! Control plane. Never replaces a program of somebody else. The kernel gives a link's attachment only an error number; its
//! sentence is had by asking the same again over netlink, where it fails the same way but says why.

use std::{
    ffi::c_int,
    io,
    os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
};

use libbpf_rs::query::{ProgInfoIter, ProgInfoQueryOptions};

use super::log;
use crate::{
    error::{Error, Result},
    host::{link::Link, system},
};

/// Where in the receive path a program runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum XdpMode {
    /// In the driver, before the kernel makes a packet buffer of the frame.
    Native,
    /// In the stack: works on every interface, at a fraction of the speed.
    Generic,
}

impl XdpMode {
    /// As in the result file.
    pub fn name(self) -> &'static str {
        match self {
            XdpMode::Native => "native",
            XdpMode::Generic => "generic",
        }
    }

    fn flags(self) -> u32 {
        match self {
            XdpMode::Native => libbpf_sys::XDP_FLAGS_DRV_MODE,
            XdpMode::Generic => libbpf_sys::XDP_FLAGS_SKB_MODE,
        }
    }
}

/// A program attached to an interface; detached when dropped.
#[derive(Debug)]
pub struct Attachment {
    _link: OwnedFd,
    /// How it runs.
    pub mode: XdpMode,
}

/// Refuses if somebody else's program is on the interface, in whatever mode.
///
/// # Errors
/// Names the program, its id and mode; errno EBUSY.
pub fn refuse_foreign(link: &Link) -> Result<()> {
    let Some(attached) = link.xdp else { return Ok(()) };
    let name = program_name(attached.program_id).unwrap_or_else(|| "?".to_owned());
    let cause = format!("XDP program `{name}` (id {}, {}) is attached to it", attached.program_id, attached.mode);
    Err(Error::environment("attach the counting program to", &link.name)
        .os(&io::Error::from_raw_os_error(libc::EBUSY))
        .because(cause)
        .remedy(format!(
            "leave it and only send, or detach it with the tool that attached it (or `ip link set dev {} xdp off`)",
            link.name
        )))
}

/// Attaches `program` in this mode.
///
/// # Errors
/// A foreign program (EBUSY), a driver without native XDP, an MTU too large for it, no privilege: with the kernel's sentence
/// where it has one, and the errno.
pub fn attach(program: BorrowedFd<'_>, link: &Link, mode: XdpMode) -> Result<Attachment> {
    log::quiet();
    refuse_foreign(link)?;
    let options = libbpf_sys::bpf_link_create_opts {
        sz: size_of::<libbpf_sys::bpf_link_create_opts>() as libbpf_sys::size_t,
        flags: mode.flags(),
        ..Default::default()
    };
    // SAFETY: `program` is an open descriptor for the duration of the call; `options` is a properly sized, initialised
    // structure that libbpf only reads.
    let fd =
        unsafe { libbpf_sys::bpf_link_create(program.as_raw_fd(), link.index as c_int, libbpf_sys::BPF_XDP, &options) };
    if fd >= 0 {
        // SAFETY: bpf_link_create returned a new descriptor that nobody else owns.
        return Ok(Attachment { _link: unsafe { OwnedFd::from_raw_fd(fd) }, mode });
    }
    let error = io::Error::from_raw_os_error(-fd);
    // A program may have come between the look and the attempt.
    if let Ok(now) = Link::by_index(link.index) {
        refuse_foreign(&now)?;
    }
    let mut failed =
        Error::environment("attach the counting program to", format!("{} in {} mode", link.name, mode.name()))
            .os(&error);
    if let Some(sentence) = sentence(program, link, mode) {
        failed = failed.because(format!("{error}: {sentence}"));
    }
    Err(match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => {
            failed.remedy(system::bpf_refusal_hint().unwrap_or_else(|| "CAP_NET_ADMIN and CAP_BPF are needed".into()))
        }
        Some(libc::EINVAL) if system::kernel_too_old().is_some() => {
            failed.remedy(system::kernel_too_old().unwrap_or_default())
        }
        Some(libc::ENOMEM) => {
            let name = &link.name;
            failed.remedy(format!(
                "fewer queues may help: `ethtool -l {name}` shows them, `ethtool -L {name} combined N`"
            ))
        }
        _ => failed,
    })
}

/// Why the kernel refuses, in its own words.
fn sentence(program: BorrowedFd<'_>, link: &Link, mode: XdpMode) -> Option<String> {
    log::forget();
    let flags = mode.flags() | libbpf_sys::XDP_FLAGS_UPDATE_IF_NOEXIST;
    let index = link.index as c_int;
    // SAFETY: `program` is an open descriptor; a null options pointer means the defaults.
    if unsafe { libbpf_sys::bpf_xdp_attach(index, program.as_raw_fd(), flags, std::ptr::null()) } == 0 {
        // It works after all, but not in a way that ends with us.
        // SAFETY: as above.
        let detached = unsafe { libbpf_sys::bpf_xdp_detach(index, mode.flags(), std::ptr::null()) };
        tracing::debug!(detached, "netlink attachment worked where the link's did not");
        return None;
    }
    log::kernel_sentence()
}

/// What a driver announces about XDP (`NETDEV_XDP_ACT_*`, include/uapi/linux/netdev.h).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Features(u64);

impl Features {
    /// Native XDP programs.
    pub const BASIC: u64 = 1;
    /// Takes frames that others redirect to it.
    pub const NDO_XMIT: u64 = 1 << 2;
    /// AF_XDP zero-copy.
    pub const ZERO_COPY: u64 = 1 << 3;

    /// Whether it announces this.
    pub fn has(self, feature: u64) -> bool {
        self.0 & feature != 0
    }

    /// All it announces, by name.
    pub fn names(self) -> Vec<&'static str> {
        const NAMES: [&str; 7] =
            ["basic", "redirect", "ndo-xmit", "xsk-zerocopy", "hw-offload", "rx-sg", "ndo-xmit-sg"];
        NAMES.into_iter().enumerate().filter(|(bit, _)| self.has(1 << bit)).map(|(_, name)| name).collect()
    }
}

/// What the interface's driver announces now; `None` before Linux 6.3, which cannot be asked.
pub fn features(index: u32) -> Option<Features> {
    log::quiet();
    let mut options = libbpf_sys::bpf_xdp_query_opts {
        sz: size_of::<libbpf_sys::bpf_xdp_query_opts>() as libbpf_sys::size_t,
        ..Default::default()
    };
    // SAFETY: the options are a whole, initialised structure that outlives the call.
    let answer = unsafe { libbpf_sys::bpf_xdp_query(index as c_int, 0, &mut options) };
    let can_be_asked = system::kernel_version().is_some_and(|version| version >= (6, 3));
    (answer == 0 && can_be_asked).then_some(Features(options.feature_flags))
}

/// Name of a loaded program.
pub fn program_name(id: u32) -> Option<String> {
    ProgInfoIter::with_query_opts(ProgInfoQueryOptions::default())
        .find(|program| program.id == id)
        .map(|program| program.name.to_string_lossy().into_owned())
}
