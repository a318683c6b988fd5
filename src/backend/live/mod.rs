//! XDP live frames: the kernel itself makes and sends the frames, from a BPF program generated for the profile.
//!
//! [`LivePort`] is opened by the control plane, [`LiveQueue`] by each worker's own pinned thread, which must be in the
//! port's network namespace. Where the driver has ndo_xdp_xmit but no zero-copy, this sends many times what AF_XDP copy
//! mode does. Nothing here decides when a frame is due; the program only obeys the times in its ring.

mod asm;
mod frame;
mod hold;
mod layout;
mod lower;
mod probe;
mod queue;
mod sys;
mod xmit;

pub use probe::probe;
pub use queue::{LivePort, LiveQueue, MAX_BUF_LEN};
pub use xmit::XmitCount;
