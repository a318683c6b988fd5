//! The emulated NICs of a guest: model, options, and what they are plugged into.
//!
//! Pure. Invariant: every model here was seen to work under QEMU 10. Deliberately has no option that no test or user needs.

use std::fmt;
use std::str::FromStr;

use crate::error::{Error, Result};

/// An emulated NIC model; the guest drives it with the real Linux driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum NicModel {
    /// VMware's; counts ring-full drops (`pkts rx OOB`), claims 1000 Mb/s under QEMU.
    Vmxnet3,
    /// Intel 82540EM.
    E1000,
    /// Intel 82574L.
    E1000e,
    /// Intel 82576; AF_XDP zero-copy from Linux 6.16 (earlier ones were not all tried).
    Igb,
    /// virtio-net. Reports no speed unless given one.
    Virtio {
        /// The speed in Mb/s that the device claims, if any.
        speed_mbps: Option<u32>,
        /// DMA through the platform's API, which zero-copy needs.
        iommu: bool,
    },
}

impl NicModel {
    /// virtio-net with QEMU's defaults.
    pub const VIRTIO: NicModel = NicModel::Virtio { speed_mbps: None, iommu: false };
    /// virtio-net as AF_XDP zero-copy needs it.
    pub const VIRTIO_IOMMU: NicModel = NicModel::Virtio { speed_mbps: None, iommu: true };

    /// QEMU's name of the device.
    fn device(self) -> &'static str {
        match self {
            NicModel::Vmxnet3 => "vmxnet3",
            NicModel::E1000 => "e1000",
            NicModel::E1000e => "e1000e",
            NicModel::Igb => "igb",
            NicModel::Virtio { .. } => "virtio-net-pci",
        }
    }

    /// QEMU's options of the device, each with a leading comma.
    fn options(self) -> String {
        let NicModel::Virtio { speed_mbps, iommu } = self else { return String::new() };
        let speed = speed_mbps.map(|mbps| format!(",speed={mbps},duplex=full")).unwrap_or_default();
        // The legacy interface cannot negotiate VIRTIO_F_ACCESS_PLATFORM.
        format!("{speed}{}", if iommu { ",iommu_platform=on,disable-legacy=on" } else { "" })
    }
}

impl fmt::Display for NicModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NicModel::Virtio { speed_mbps, iommu } => {
                f.write_str("virtio")?;
                if let Some(mbps) = speed_mbps {
                    write!(f, ":speed={mbps}")?;
                }
                if *iommu { f.write_str(":iommu") } else { Ok(()) }
            }
            other => f.write_str(other.device()),
        }
    }
}

impl FromStr for NicModel {
    type Err = Error;

    /// `vmxnet3`, `e1000`, `e1000e`, `igb`, `virtio`, with `:speed=MBPS` and `:iommu` after virtio.
    fn from_str(text: &str) -> Result<NicModel> {
        let unknown = || {
            Error::usage("use", format!("NIC model '{text}'"))
                .remedy("one of vmxnet3, e1000, e1000e, igb, virtio, virtio:speed=MBPS, virtio:iommu")
        };
        let mut parts = text.split(':');
        let mut model = match parts.next().unwrap_or_default() {
            "vmxnet3" => NicModel::Vmxnet3,
            "e1000" => NicModel::E1000,
            "e1000e" => NicModel::E1000e,
            "igb" => NicModel::Igb,
            "virtio" => NicModel::VIRTIO,
            _ => return Err(unknown()),
        };
        for part in parts {
            let NicModel::Virtio { speed_mbps, iommu } = &mut model else { return Err(unknown()) };
            match part.split_once('=') {
                Some(("speed", mbps)) => *speed_mbps = Some(mbps.parse().map_err(|_| unknown())?),
                None if part == "iommu" => *iommu = true,
                _ => return Err(unknown()),
            }
        }
        Ok(model)
    }
}

/// What a NIC is plugged into.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Plug {
    /// A tap of this name on the host, in the guest's namespace; made by the guest and removed with it.
    Tap(String),
    /// A hub inside the same QEMU, by number: two NICs on one hub are back to back.
    Hub(u8),
}

/// One NIC of a guest. The guest calls it `nicN` by its place in the list and gives it 10.(N+1).0.1/24.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Nic {
    /// Its model.
    pub model: NicModel,
    /// Its other end.
    pub plug: Plug,
}

impl Nic {
    /// A NIC on a tap.
    pub fn tap(model: NicModel, tap: impl Into<String>) -> Nic {
        Nic { model, plug: Plug::Tap(tap.into()) }
    }

    /// A NIC on a hub.
    pub fn hub(model: NicModel, hub: u8) -> Nic {
        Nic { model, plug: Plug::Hub(hub) }
    }

    /// QEMU's arguments for the NIC at `index`.
    pub(super) fn arguments(&self, index: usize, guest_id: u8) -> Vec<String> {
        let backend = match &self.plug {
            Plug::Tap(tap) => format!("tap,id=net{index},ifname={tap},script=no,downscript=no"),
            Plug::Hub(hub) => format!("hubport,id=net{index},hubid={hub}"),
        };
        let mut arguments = vec!["-netdev".to_owned(), backend];
        let mut bus = String::new();
        if self.model == NicModel::Igb {
            // Its virtual functions take the next slots, so that two of them on one bus collide: each has a bus of its own.
            arguments.extend([
                "-device".to_owned(),
                format!("pcie-root-port,id=port{index},chassis={0},slot={0}", index + 1),
            ]);
            bus = format!(",bus=port{index}");
        }
        // No boot ROM: nothing boots from the network, and the file is in a package of its own.
        let device = format!(
            "{},id=nic{index},netdev=net{index},mac={},romfile={bus}{}",
            self.model.device(),
            mac(guest_id, index),
            self.model.options()
        );
        arguments.extend(["-device".to_owned(), device]);
        arguments
    }
}

/// The MAC address of a guest's NIC; the guest takes its number from the last byte.
pub fn mac(guest_id: u8, index: usize) -> String {
    format!("52:54:00:77:{guest_id:02x}:{index:02x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_model_is_read_back_as_it_is_shown() {
        for text in ["vmxnet3", "e1000", "e1000e", "igb", "virtio", "virtio:speed=10000", "virtio:speed=25000:iommu"] {
            assert_eq!(text.parse::<NicModel>().unwrap().to_string(), text);
        }
        for text in ["", "ne2000", "igb:iommu", "virtio:speed", "virtio:speed=fast"] {
            assert!(text.parse::<NicModel>().is_err(), "{text}");
        }
    }

    #[test]
    fn each_igb_has_a_bus_of_its_own() {
        let arguments = Nic::hub(NicModel::Igb, 0).arguments(1, 7).join(" ");
        assert!(arguments.contains("pcie-root-port,id=port1,chassis=2,slot=2"), "{arguments}");
        assert!(arguments.contains("igb,id=nic1,netdev=net1,mac=52:54:00:77:07:01,romfile=,bus=port1"), "{arguments}");
    }

    #[test]
    fn zero_copy_virtio_asks_for_the_platforms_dma() {
        let arguments = Nic::tap(NicModel::VIRTIO_IOMMU, "t0").arguments(0, 0).join(" ");
        assert!(arguments.ends_with("iommu_platform=on,disable-legacy=on"), "{arguments}");
        assert!(arguments.contains("tap,id=net0,ifname=t0,script=no,downscript=no"), "{arguments}");
    }
}
