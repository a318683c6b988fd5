//! The stages a frame passes on its way through a device under test, and counters assigned to them.
//!
//! Pure data. The order of [`Stage`] is the order in which a frame meets the stages; the verdict relies on it. Which kernel or
//! hypervisor counter belongs to which stage is not decided here but in the observers' table.

use serde::{Deserialize, Serialize};
use std::fmt;

/// A place where frames can be lost, in the order in which a frame meets them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// The generator's own transmit path.
    GenTx,
    /// The link, its addressing, and shapers on it (the way back included).
    Link,
    /// The hypervisor's virtual switch or the host end of a tap.
    Vswitch,
    /// The receive ring of the DUT's (virtual) network card.
    VnicRing,
    /// The DUT's network driver, XDP programs included.
    Driver,
    /// The DUT kernel's per-CPU backlog.
    Softnet,
    /// The DUT's IP layer: validation, routing, neighbours, filters.
    Ip,
    /// The DUT's transport layer and sockets.
    Socket,
    /// The generator's own receive path.
    GenRx,
}

impl Stage {
    /// Every stage, in frame order.
    pub const ALL: [Stage; 9] = [
        Stage::GenTx,
        Stage::Link,
        Stage::Vswitch,
        Stage::VnicRing,
        Stage::Driver,
        Stage::Softnet,
        Stage::Ip,
        Stage::Socket,
        Stage::GenRx,
    ];

    /// The name used in result files, such as `vnic_ring`.
    pub fn name(self) -> &'static str {
        match self {
            Stage::GenTx => "gen_tx",
            Stage::Link => "link",
            Stage::Vswitch => "vswitch",
            Stage::VnicRing => "vnic_ring",
            Stage::Driver => "driver",
            Stage::Softnet => "softnet",
            Stage::Ip => "ip",
            Stage::Socket => "socket",
            Stage::GenRx => "gen_rx",
        }
    }

    /// The stage as a person would call it, such as "the vNIC's receive ring".
    pub fn phrase(self) -> &'static str {
        match self {
            Stage::GenTx => "the generator's transmit path",
            Stage::Link => "the link",
            Stage::Vswitch => "the virtual switch",
            Stage::VnicRing => "the DUT's vNIC receive ring",
            Stage::Driver => "the DUT's network driver",
            Stage::Softnet => "the DUT kernel's per-CPU backlog (softnet)",
            Stage::Ip => "the DUT's IP layer",
            Stage::Socket => "the DUT's UDP/TCP layer and sockets",
            Stage::GenRx => "the generator's receive path",
        }
    }

    /// The stage of that name, if it is one.
    pub fn from_name(name: &str) -> Option<Stage> {
        Stage::ALL.into_iter().find(|stage| stage.name() == name)
    }

    /// Whether the stage belongs to the DUT (its virtual switch included) and not to the generator or the link.
    pub fn is_dut(self) -> bool {
        !matches!(self, Stage::GenTx | Stage::Link | Stage::GenRx)
    }
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// One counter that moved during a trial, with the stage it belongs to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StageDelta {
    /// The stage, or `None` if the counter is not one we know.
    pub stage: Option<Stage>,
    /// The counter's name with its source, such as ``eth0 ethtool `pkts rx OOB` ``.
    pub counter: String,
    /// How far the counter moved, in its own unit.
    pub delta: u64,
    /// Frames that this counter adds to the loss; 0 for a second view of frames counted elsewhere and for mere signs of pressure.
    pub lost_frames: u64,
    /// What the counter means, where the name does not say it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_stage_is_found_by_its_name_and_serialises_to_it() {
        for stage in Stage::ALL {
            assert_eq!(Stage::from_name(stage.name()), Some(stage));
            assert_eq!(serde_json::to_string(&stage).unwrap(), format!("\"{}\"", stage.name()));
        }
        assert_eq!(Stage::from_name("nowhere"), None);
    }

    #[test]
    fn stages_are_ordered_as_a_frame_meets_them() {
        assert!(Stage::ALL.is_sorted());
    }
}
