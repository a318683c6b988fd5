//! A network interface as the kernel describes it now: [`Link`] from rtnetlink, [`Device`] from ethtool.
//!
//! Snapshots, taken on the control plane. `index` is the key; names may change while we run, and one interface may have many
//! (altnames). Facts that a driver does not tell are `None`, never a guess.

use std::{collections::BTreeMap, io};

use futures::TryStreamExt;
use rtnetlink::packet_core::DefaultNla;
use rtnetlink::packet_route::link::{
    InfoKind, LinkAttribute, LinkFlags, LinkInfo, LinkMessage, LinkXdp, Prop, Stats64, XdpAttached,
};

use super::{ethtool, netlink, netns};
use crate::{
    error::{Error, Result},
    wire::mac::Mac,
};

/// `IFLA_ALT_IFNAME`; a top-level attribute in requests, which the netlink crate does not name.
const IFLA_ALT_IFNAME: u16 = 53;
/// Longest name that `IFLA_IFNAME` carries.
const IFNAME_MAX: usize = 15;

/// What rtnetlink tells about an interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Link {
    /// The key: stays the same when the interface is renamed.
    pub index: u32,
    /// Its name now.
    pub name: String,
    /// Its other names.
    pub altnames: Vec<String>,
    /// Its own MAC address.
    pub mac: Mac,
    /// Largest payload of an Ethernet frame, in bytes: header (14) and VLAN tags come on top.
    pub mtu: u64,
    /// Set up by the administrator.
    pub is_up: bool,
    /// Up and with carrier: frames can leave.
    pub has_carrier: bool,
    /// How often the carrier came or went since the interface exists.
    pub carrier_changes: u64,
    /// Promiscuous mode: how many ask for it.
    pub promiscuity: u64,
    /// Kind of virtual device ("veth", "vlan", …); `None` for hardware and for paravirtual NICs.
    pub kind: Option<String>,
    /// Index of the device it stands on (VLAN, macvlan) or of its peer (veth, then perhaps in another namespace).
    pub lower_index: Option<u32>,
    /// Index of the bond, team, bridge or VRF (or netvsc master) that it belongs to.
    pub controller_index: Option<u32>,
    /// Receive queues that the device was made with (an upper bound; [`Device::channels`] has those in use).
    pub max_rx_queues: u64,
    /// Transmit queues that the device was made with.
    pub max_tx_queues: u64,
    /// The XDP program that is attached, if any.
    pub xdp: Option<AttachedXdp>,
    /// The kernel's counters.
    pub stats: Stats,
}

/// An XDP program that is attached to an interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AttachedXdp {
    /// The program's id (`bpftool prog show id N`); 0 if programs are attached in several modes at once.
    pub program_id: u32,
    /// "native", "generic", "hardware" or "several".
    pub mode: &'static str,
}

macro_rules! stats {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// 64-bit interface counters (`IFLA_STATS64`); take differences, never set them.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
        pub struct Stats { $($(#[$doc])* pub $name: u64,)* }

        impl Stats {
            /// All counters by name, in the kernel's order.
            pub fn named(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name)),*]
            }

            /// This snapshot minus an earlier one. A counter that went back (the device was re-made) counts from 0.
            #[must_use]
            pub fn since(&self, earlier: &Stats) -> Stats {
                let delta = |now: u64, then: u64| now.checked_sub(then).unwrap_or(now);
                Stats { $($name: delta(self.$name, earlier.$name),)* }
            }
        }

        impl From<&Stats64> for Stats {
            fn from(stats: &Stats64) -> Stats {
                Stats { $($name: stats.$name,)* }
            }
        }
    };
}

stats! {
    /// Frames received.
    rx_packets,
    /// Frames transmitted.
    tx_packets,
    /// Bytes received. What counts differs between drivers and with XDP: compare packets.
    rx_bytes,
    /// Bytes transmitted; same remark.
    tx_bytes,
    /// Bad frames received.
    rx_errors,
    /// Transmit problems.
    tx_errors,
    /// Received frames dropped for want of memory or by the driver.
    rx_dropped,
    /// Frames dropped on transmit.
    tx_dropped,
    /// Ring overruns.
    rx_over_errors,
    /// FIFO overruns.
    rx_fifo_errors,
    /// Frames the receiver missed: no buffer.
    rx_missed_errors,
    /// Transmit FIFO errors.
    tx_fifo_errors,
    /// Carrier lost while transmitting.
    tx_carrier_errors,
    /// Received frames nobody handled.
    rx_nohandler,
}

impl Link {
    /// The interface with this name, altname or `name@peer` (as `ip link` prints it).
    ///
    /// # Errors
    /// No such interface (names the namespace and what is there); it is not Ethernet.
    pub fn find(name: &str) -> Result<Link> {
        let bare = name.split_once('@').map_or(name, |(bare, _)| bare).trim();
        if bare.is_empty() {
            return Err(Error::usage("find interface", format!("`{name}`")).because("that is not a name"));
        }
        query(Key::Name(bare)).map_err(|error| not_found(bare, &error)).and_then(Link::from_message)
    }

    /// The interface with this index, as it is now.
    ///
    /// # Errors
    /// It is gone (errno ENODEV); it is not Ethernet.
    pub fn by_index(index: u32) -> Result<Link> {
        query(Key::Index(index)).map_err(|error| gone(index, &error)).and_then(Link::from_message)
    }

    /// All Ethernet interfaces of this namespace.
    ///
    /// # Errors
    /// Netlink failed.
    pub fn all() -> Result<Vec<Link>> {
        let messages = netlink::route(async |handle| {
            handle.link().get().execute().try_collect::<Vec<_>>().await.map_err(netlink::io_error)
        })
        .map_err(|error| Error::environment("list interfaces of", netns::described()).os(&error))?;
        Ok(messages.into_iter().filter_map(|message| Link::from_message(message).ok()).collect())
    }

    /// Why XDP in native mode, zero-copy and counting of what really leaves had better use another device: this one stands
    /// on top of others. Says which to use.
    pub fn upper_device_hint(&self) -> Option<String> {
        let lower = || {
            let name = self.lower_index.and_then(|index| Link::by_index(index).ok()).map(|link| link.name);
            name.unwrap_or_else(|| "the device below".to_owned())
        };
        match self.kind.as_deref()? {
            "vlan" => {
                Some(format!("{} is a VLAN device: use {} and a `vlan` header in the profile", self.name, lower()))
            }
            kind @ ("macvlan" | "macvtap" | "ipvlan") => {
                Some(format!("{} is a {kind} device: {} itself is faster", self.name, lower()))
            }
            kind @ ("bond" | "team") => Some(format!("{} is a {kind}: use one of its ports", self.name)),
            "bridge" => Some(format!("{} is a bridge: use one of its ports", self.name)),
            kind @ ("vxlan" | "geneve" | "gretap" | "ip6gretap") => {
                Some(format!("{} is a {kind} tunnel: use the device below and a header in the profile", self.name))
            }
            _ => None,
        }
    }

    fn from_message(message: LinkMessage) -> Result<Link> {
        let flags = message.header.flags;
        let mut link = Link {
            index: message.header.index,
            name: String::new(),
            altnames: Vec::new(),
            mac: Mac([0; 6]),
            mtu: 0,
            is_up: flags.contains(LinkFlags::Up),
            has_carrier: flags.contains(LinkFlags::Up | LinkFlags::LowerUp),
            carrier_changes: 0,
            promiscuity: 0,
            kind: None,
            lower_index: None,
            controller_index: None,
            max_rx_queues: 1,
            max_tx_queues: 1,
            xdp: None,
            stats: Stats::default(),
        };
        let mut mac = None;
        for attribute in message.attributes {
            match attribute {
                LinkAttribute::IfName(name) => link.name = name,
                LinkAttribute::PropList(props) => {
                    let name = |prop| if let Prop::AltIfName(name) = prop { Some(name) } else { None };
                    link.altnames = props.into_iter().filter_map(name).collect();
                }
                LinkAttribute::Address(bytes) => mac = <[u8; 6]>::try_from(bytes).ok().map(Mac),
                LinkAttribute::Mtu(mtu) => link.mtu = mtu.into(),
                LinkAttribute::CarrierChanges(changes) => link.carrier_changes = changes.into(),
                LinkAttribute::Promiscuity(count) => link.promiscuity = count.into(),
                LinkAttribute::Link(index) => link.lower_index = (index != 0).then_some(index),
                LinkAttribute::Controller(index) => link.controller_index = (index != 0).then_some(index),
                LinkAttribute::NumRxQueues(queues) => link.max_rx_queues = queues.into(),
                LinkAttribute::NumTxQueues(queues) => link.max_tx_queues = queues.into(),
                LinkAttribute::Stats64(stats) => link.stats = Stats::from(&stats),
                LinkAttribute::LinkInfo(infos) => {
                    let kind = |info| match info {
                        LinkInfo::Kind(InfoKind::Other(kind)) => Some(kind),
                        LinkInfo::Kind(kind) => Some(kind.to_string()),
                        _ => None,
                    };
                    link.kind = infos.into_iter().find_map(kind);
                }
                LinkAttribute::Xdp(attributes) => link.xdp = attached_xdp(&attributes),
                _ => {}
            }
        }
        let Some(mac) = mac else {
            return Err(Error::environment("use interface", &link.name).because("it is not an Ethernet interface"));
        };
        link.mac = mac;
        Ok(link)
    }
}

/// What is attached, from `IFLA_XDP`.
fn attached_xdp(attributes: &[LinkXdp]) -> Option<AttachedXdp> {
    let mode = attributes.iter().find_map(|attribute| match attribute {
        LinkXdp::Attached(XdpAttached::None) => None,
        LinkXdp::Attached(XdpAttached::Driver) => Some("native"),
        LinkXdp::Attached(XdpAttached::SocketBuffer) => Some("generic"),
        LinkXdp::Attached(XdpAttached::Hardware) => Some("hardware"),
        LinkXdp::Attached(_) => Some("several"),
        _ => None,
    })?;
    let program_id =
        attributes.iter().find_map(|attribute| if let LinkXdp::ProgId(id) = attribute { Some(*id) } else { None });
    Some(AttachedXdp { program_id: program_id.unwrap_or(0), mode })
}

enum Key<'a> {
    Name(&'a str),
    Index(u32),
}

fn query(key: Key) -> io::Result<LinkMessage> {
    netlink::route(async |handle| {
        let request = match key {
            Key::Index(index) => handle.link().get().match_index(index),
            Key::Name(name) if name.len() <= IFNAME_MAX => handle.link().get().match_name(name),
            Key::Name(name) => {
                // Only a by-index or by-name request asks for one link, so make it that and then swap the attribute.
                let mut request = handle.link().get().match_name(String::new());
                let mut bytes = name.as_bytes().to_vec();
                bytes.push(0);
                request.message_mut().attributes = vec![LinkAttribute::Other(DefaultNla::new(IFLA_ALT_IFNAME, bytes))];
                request
            }
        };
        let mut replies = Box::pin(request.execute());
        replies.try_next().await.map_err(netlink::io_error)?.ok_or_else(|| io::Error::from_raw_os_error(libc::ENODEV))
    })
}

fn not_found(name: &str, error: &io::Error) -> Error {
    let mut known: Vec<_> = Link::all().unwrap_or_default().into_iter().map(|link| link.name).collect();
    known.retain(|name| name != "lo");
    let known = if known.is_empty() { "none besides lo".to_owned() } else { known.join(", ") };
    let subject = format!("interface {name} in {}", netns::described());
    Error::environment("find", subject)
        .os(error)
        .remedy(format!("interfaces there: {known}; `--netns NAME` uses another namespace"))
}

fn gone(index: u32, error: &io::Error) -> Error {
    Error::environment("read", format!("interface with index {index} in {}", netns::described()))
        .os(error)
        .remedy("it was removed or moved to another namespace")
}

/// The driver's side of an interface, as ethtool tells it. A driver without an operation leaves `None`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Device {
    /// Driver name ("vmxnet3", "virtio_net", "veth").
    pub driver: Option<String>,
    /// Driver version, often the kernel's.
    pub driver_version: Option<String>,
    /// Firmware version.
    pub firmware: Option<String>,
    /// Where it is on its bus ("0000:03:00.0").
    pub bus_info: Option<String>,
    /// The link speed it claims, in Mbit/s; `None` if it claims none (−1, 0 or an error).
    pub claim_mbps: Option<u64>,
    /// Queues.
    pub channels: Option<Channels>,
    /// Descriptor rings.
    pub rings: Option<Rings>,
    /// Offloads by ethtool name.
    pub features: BTreeMap<String, Feature>,
    /// NUMA node of its slot.
    pub numa_node: Option<u64>,
}

/// An offload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Feature {
    /// On now.
    pub is_on: bool,
    /// `[fixed]`: cannot be switched from here.
    pub is_fixed: bool,
}

/// Queue counts (`ethtool -l`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Channels {
    /// Receive-only queues.
    pub rx: u64,
    /// Transmit-only queues.
    pub tx: u64,
    /// Queues that do both.
    pub combined: u64,
    /// Most receive-only queues.
    pub max_rx: u64,
    /// Most transmit-only queues.
    pub max_tx: u64,
    /// Most combined queues.
    pub max_combined: u64,
}

/// Ring sizes in descriptors (`ethtool -g`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Rings {
    /// Receive ring.
    pub rx: u64,
    /// Second receive ring, for the rest of large frames (vmxnet3's ring 2).
    pub rx_jumbo: u64,
    /// Mini receive ring (vmxnet3's data ring).
    pub rx_mini: u64,
    /// Transmit ring.
    pub tx: u64,
    /// Largest receive ring.
    pub max_rx: u64,
    /// Largest transmit ring.
    pub max_tx: u64,
}

impl Device {
    /// Asks the driver. Never fails: what it does not tell is `None`.
    pub fn of(link: &Link) -> Device {
        ethtool::device(link.index, &link.name)
    }

    /// Receive queues in use.
    pub fn rx_queues(&self, link: &Link) -> u64 {
        self.channels.map_or_else(|| untold_queues(link, link.max_rx_queues), |c| (c.rx + c.combined).max(1))
    }

    /// Transmit queues in use.
    pub fn tx_queues(&self, link: &Link) -> u64 {
        self.channels.map_or_else(|| untold_queues(link, link.max_tx_queues), |c| (c.tx + c.combined).max(1))
    }

    /// Whether an offload is on; `false` if the driver does not know it.
    pub fn has_feature(&self, name: &str) -> bool {
        self.features.get(name).is_some_and(|feature| feature.is_on)
    }
}

/// Queues of a driver that does not tell: what the device was made with, except for tun, which makes room for 256 and uses
/// one per open file.
fn untold_queues(link: &Link, made_with: u64) -> u64 {
    if link.kind.as_deref() == Some("tun") { 1 } else { made_with.max(1) }
}

/// The device's own counters (`ethtool -S`), in the driver's order; a name that stands several times (vmxnet3 repeats them
/// per queue) gets `#2`, `#3`, … Empty if the driver has none.
pub fn device_counters(index: u32) -> Vec<(String, u64)> {
    ethtool::counters(index)
}

/// Turns these offloads on again (names as `ethtool -k` has them); those that the device does not know are left out.
///
/// # Errors
/// The kernel refuses, or the device is gone.
pub fn turn_on(name: &str, features: &[String]) -> std::io::Result<()> {
    ethtool::turn_on(name, features)
}

/// Frames the device has sent: `tx_packets`, and what its driver counts apart from it.
///
/// # Errors
/// It is gone (errno ENODEV).
pub fn sent_frames(index: u32) -> Result<u64> {
    let packets = stats(index)?.tx_packets;
    let apart = device_counters(index);
    let apart = apart.iter().map(|(name, value)| sent_apart(name, *value as i64)).sum::<i64>();
    Ok(packets.saturating_add_signed(apart))
}

/// What `value` of a driver's counter adds to `tx_packets`: virtio_net keeps there no frame that XDP or AF_XDP zero-copy sends
/// (drivers/net/virtio_net.c, `virtnet_xsk_xmit`, `virtnet_xdp_xmit`), but in `tx_xdp_tx`, one a queue on older kernels.
pub fn sent_apart(name: &str, value: i64) -> i64 {
    let is_virtio = name.starts_with("tx_queue_") || name.starts_with("tx_xdp_tx");
    match name {
        _ if is_virtio && name.ends_with("_xdp_tx") => value,
        _ if is_virtio && name.ends_with("_xdp_tx_drops") => -value,
        _ => 0,
    }
}

/// The kernel's counters of an interface, now.
///
/// # Errors
/// It is gone (errno ENODEV).
pub fn stats(index: u32) -> Result<Stats> {
    Link::by_index(index).map(|link| link.stats)
}

/// Waits until the interface is up with carrier, looking every 50 ms. Returns how long that took, in nanoseconds.
///
/// # Errors
/// It is administratively down, gone, or without carrier for `timeout_ns`.
pub fn wait_for_carrier(index: u32, timeout_ns: u64) -> Result<u64> {
    let start = crate::clock::now();
    loop {
        let link = Link::by_index(index)?;
        let error = Error::environment("use interface", &link.name);
        if !link.is_up {
            return Err(error.because("it is down").remedy(format!("ip link set {} up", link.name)));
        }
        let waited_ns = crate::clock::now().since_ns(start);
        if link.has_carrier {
            return Ok(waited_ns);
        }
        if waited_ns >= timeout_ns {
            return Err(error
                .because(format!("it has no carrier for {} s", timeout_ns / 1_000_000_000))
                .remedy("check the cable, or that the virtual NIC is connected and the other end is up"));
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn virtio_counts_xdp_frames_apart_and_nobody_else_does() {
        let sum = |counters: &[(&str, i64)]| counters.iter().map(|(name, value)| sent_apart(name, *value)).sum::<i64>();
        assert_eq!(sum(&[("tx_xdp_tx", 2000), ("tx0_xdp_tx", 2000), ("tx_xdp_tx_drops", 3), ("tx_kicks", 9)]), 1997);
        assert_eq!(sum(&[("tx_queue_0_xdp_tx", 5), ("tx_queue_1_xdp_tx", 6), ("tx_queue_1_xdp_tx_drops", 1)]), 10);
        // veth and igb.
        assert_eq!(sum(&[("rx_queue_0_xdp_tx", 7), ("tx_queue_0_xdp_xmit", 7), ("tx_queue_0_packets", 7)]), 0);
    }
}
