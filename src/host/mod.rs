//! Facts about this machine and its network interfaces, and the few things it lets us do to them.
//!
//! Everything is asked over netlink and ethtool, never read from `/sys/class/net`: that shows the namespace in which /sys
//! was mounted, which after `setns` is not ours. Interfaces are keyed by index; a name is only for people. Called from the
//! control plane; blocking, each call bounded in time. Nothing here sends test traffic.

pub mod caps;
mod ethtool;
pub mod lease;
pub mod link;
mod netlink;
pub mod netns;
pub mod packet;
pub mod probe;
pub mod routes;
pub mod scheduling;
pub mod system;
pub mod tally;
pub mod watch;
