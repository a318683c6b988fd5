//! What the command line (or a server) asks of a session, over what the profile says.

use crate::profile::SizeMix;

/// Which backend sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum BackendChoice {
    /// The fastest that this NIC really supports; the report says why the others did not run.
    #[default]
    Auto,
    /// AF_XDP, zero-copy if the driver has it, else copy.
    Xsk,
    /// AF_XDP zero-copy or nothing.
    XskZeroCopy,
    /// AF_XDP copy mode.
    XskCopy,
    /// XDP live frames.
    Live,
    /// AF_PACKET.
    Packet,
}

impl BackendChoice {
    /// As the command line writes it.
    pub fn name(self) -> &'static str {
        match self {
            BackendChoice::Auto => "auto",
            BackendChoice::Xsk => "xsk",
            BackendChoice::XskZeroCopy => "xsk-zc",
            BackendChoice::XskCopy => "xsk-copy",
            BackendChoice::Live => "live",
            BackendChoice::Packet => "packet",
        }
    }
}

/// Options of a session. `None` = as the profile says, else the default.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// The command line, for the result file.
    pub command: Vec<String>,
    /// Duration of a `run`'s trial, ns.
    pub duration_ns: Option<u64>,
    /// Exactly this many frames per port.
    pub count: Option<u64>,
    /// Frame sizes, one trial or search each; empty = the profile's.
    pub sizes: Vec<SizeMix>,
    /// Workers per port.
    pub workers: Option<u16>,
    /// Backend.
    pub backend: BackendChoice,
    /// Also use an interface that carries the default route.
    pub force: bool,
}

/// Duration of a trial when nobody says: 10 s.
pub const DEFAULT_DURATION_NS: u64 = 10_000_000_000;
