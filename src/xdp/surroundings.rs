//! The NIC around a program: what attaching it changed, said as caveats, and what of that is put back afterwards.
//!
//! Control plane. The kernel and drivers turn offloads off for XDP (LRO, GRO in hardware) and leave them off when the program goes:
//! net/core/dev.c `dev_disable_lro`, drivers/net/vmxnet3 `vmxnet3_xdp_set`. Those come back when the value is dropped, which must be
//! after the attachment. A SIGKILL leaves them off. Rings and queues that changed are only told.

use crate::{
    caveat::{Caveat, Code},
    error::Result,
    host::link::{self, Device, Link},
};

/// How long a link that went down when the program was attached may take to come back (ixgbe needs about 10 s).
const RETRAIN_NS: u64 = 30_000_000_000;

/// The interface as it was before.
#[derive(Debug)]
pub(super) struct Surroundings {
    link: Link,
    device: Device,
    turned_off: Vec<String>,
}

impl Surroundings {
    /// As it is now.
    pub(super) fn of(link: &Link) -> Surroundings {
        Surroundings { link: link.clone(), device: Device::of(link), turned_off: Vec::new() }
    }

    /// Waits for the link to settle, then compares.
    ///
    /// # Errors
    /// The link did not come back, or the interface is gone.
    pub(super) fn changes(&mut self) -> Result<Vec<Caveat>> {
        let mut caveats = Vec::new();
        let name = &self.link.name;
        let settled = if self.link.has_carrier { link::wait_for_carrier(self.link.index, RETRAIN_NS) } else { Ok(0) };
        let now = Device::of(&self.link);
        let mut changed = Vec::new();
        if self.device.rings != now.rings {
            changed.push(format!("rings from {:?} to {:?}", self.device.rings, now.rings));
        }
        if self.device.channels != now.channels {
            changed.push(format!("channels from {:?} to {:?}", self.device.channels, now.channels));
        }
        for (feature, before) in &self.device.features {
            let after = now.features.get(feature).copied().unwrap_or_default();
            if before.is_on != after.is_on {
                changed.push(format!("{feature} {}", if after.is_on { "on" } else { "off" }));
            }
            if before.is_on && !after.is_on && !before.is_fixed {
                self.turned_off.push(feature.clone());
            }
        }
        let waited_ns = settled?;
        if self.link.has_carrier {
            let flaps = Link::by_index(self.link.index)?.carrier_changes - self.link.carrier_changes;
            if flaps > 0 {
                let waited_s = waited_ns as f64 / 1e9;
                let text = format!("attaching the counting program made the link of {name} retrain ({waited_s:.1} s)");
                caveats.push(Caveat::new(Code::LinkRetrained, text));
            }
        }
        if !changed.is_empty() {
            let text = format!("attaching the counting program changed {name}: {}", changed.join(", "));
            caveats.push(Caveat::new(Code::NicChanged, text));
        }
        Ok(caveats)
    }
}

impl Drop for Surroundings {
    fn drop(&mut self) {
        if self.turned_off.is_empty() {
            return;
        }
        let Surroundings { link, turned_off, .. } = self;
        // The number may be another interface's by now, or this thread in another namespace.
        let is_same = Link::by_index(link.index).is_ok_and(|now| now.name == link.name && now.mac == link.mac);
        if !is_same {
            tracing::warn!(name = link.name, ?turned_off, "offloads stay off: the interface is not here any more");
        } else if let Err(error) = link::turn_on(&link.name, turned_off) {
            tracing::warn!(name = link.name, ?turned_off, %error, "offloads that attaching turned off stay off");
        }
    }
}
