//! Whether live frames can be had: by this kernel, with these privileges, through this driver.
//!
//! Control plane. What it cannot know without sending (a veth whose peer does not take them, a link that is down) is left
//! to the self-test on the port.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
};

use super::{
    asm::{Asm, Insn},
    lower::{XDP_DROP, XDP_PASS},
    sys::{self, LOOPBACK, XdpMode},
};
use crate::{
    error::{Error, Result},
    host::netns,
};

/// `NETDEV_XDP_ACT_NDO_XMIT` (include/uapi/linux/netdev.h): the driver takes redirected frames now.
const NDO_XMIT: u64 = 1 << 2;

/// Tries a live run in a namespace of its own, then asks the driver, as opening the port would; leaves nothing.
///
/// # Errors
/// Why not, as a sentence for `why_not`.
pub fn probe(interface: &str, ifindex: u32) -> Result<()> {
    make_ready(interface, ifindex).map(drop)
}

/// Proves that the kernel has live frames and makes the driver take them: some (virtio_net, ena) set up the queues for that
/// only while an XDP program is attached. The program that was attached for it, if any, passes everything on; it goes with
/// the returned link.
pub(super) fn make_ready(interface: &str, ifindex: u32) -> Result<Option<OwnedFd>> {
    let cannot = |cause: String| Error::environment("send live frames through", interface).because(cause);
    try_kernel().map_err(|cause| match cause.raw_os_error() {
        Some(libc::EPERM) => {
            cannot("no permission".into()).remedy("run as root or with CAP_BPF, CAP_NET_ADMIN and CAP_SYS_ADMIN")
        }
        Some(libc::EINVAL) => cannot("the kernel has no live frames".into()).remedy("use Linux 5.18 or later"),
        _ => cannot(cause.to_string()),
    })?;
    let features = || sys::xdp_features(ifindex).map_err(|cause| cannot(cause.to_string()));
    let before = features()?;
    if before & NDO_XMIT != 0 {
        return Ok(None);
    }
    let attached = sys::load(&returns(XDP_PASS)).and_then(|pass| sys::attach(pass.as_fd(), ifindex, XdpMode::Native));
    // Linux before 6.3 cannot be asked and always answers 0: the self-test decides there.
    match attached {
        Ok(link) if features()? & NDO_XMIT != 0 || before == 0 => Ok(Some(link)),
        Err(cause) if before == 0 && matches!(cause.raw_os_error(), Some(libc::EBUSY | libc::EEXIST)) => Ok(None),
        Err(cause) if before == 0 => Err(cannot(format!("the driver has no native XDP ({cause})"))),
        _ => Err(cannot("the driver takes no redirected frames (no ndo_xdp_xmit now)".into())
            .remedy("on veth, give the peer an XDP program or GRO")),
    }
}

/// Runs one live frame of a program that drops it.
fn try_kernel() -> io::Result<()> {
    let program = sys::load(&returns(XDP_DROP))?;
    netns::in_new(|| sys::run_live(program.as_fd(), LOOPBACK, &[0; 60], 1, 1))
}

fn returns(verdict: i32) -> Vec<Insn> {
    let mut asm = Asm::default();
    asm.exit_with(verdict);
    asm.finish()
}
