//! Whether live frames can be had: by this kernel, with these privileges, through this driver.
//!
//! Control plane. What it cannot know without sending (a veth whose peer does not take them, a link that is down) is left
//! to the self-test on the port.

use std::{io, os::fd::AsFd};

use super::{
    asm::Asm,
    hold::in_new_netns,
    lower::XDP_DROP,
    sys::{self, LOOPBACK},
};
use crate::error::{Error, Result};

/// `NETDEV_XDP_ACT_NDO_XMIT` (include/uapi/linux/netdev.h): the driver takes redirected frames.
const NDO_XMIT: u64 = 1 << 2;

/// Tries a live run in a namespace of its own, then asks the driver.
///
/// # Errors
/// Why not, as a sentence for `why_not`.
pub fn probe(interface: &str, ifindex: u32) -> Result<()> {
    let cannot = |cause: String| Error::environment("send live frames through", interface).because(cause);
    try_kernel().map_err(|cause| match cause.raw_os_error() {
        Some(libc::EPERM) => {
            cannot("no permission".into()).remedy("run as root or with CAP_BPF, CAP_NET_ADMIN and CAP_SYS_ADMIN")
        }
        Some(libc::EINVAL) => cannot("the kernel has no live frames".into()).remedy("use Linux 5.18 or later"),
        _ => cannot(cause.to_string()),
    })?;
    // Linux before 6.3 cannot be asked and answers 0; the self-test decides there.
    let features = sys::xdp_features(ifindex).map_err(|cause| cannot(cause.to_string()))?;
    if features != 0 && features & NDO_XMIT == 0 {
        return Err(cannot("the driver takes no redirected frames (no ndo_xdp_xmit now)".into())
            .remedy("on veth, give the peer an XDP program or GRO"));
    }
    Ok(())
}

/// Runs one live frame of a program that drops it.
fn try_kernel() -> io::Result<()> {
    let mut asm = Asm::default();
    asm.exit_with(XDP_DROP);
    let program = sys::load(&asm.finish())?;
    in_new_netns(|| sys::run_live(program.as_fd(), LOOPBACK, &[0; 60], 1, 1))
}
