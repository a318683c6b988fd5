//! ethtool: netlink for what netlink has, four small ioctls (driver info, names, counters, features on) for what it has not.
//!
//! Control plane. Answers are best effort: a driver without an operation is not an error.

use std::{collections::HashMap, fs, io, os::fd::AsRawFd};

use ethtool::{
    EthtoolAttr, EthtoolChannelAttr, EthtoolFeatureAttr, EthtoolHandle, EthtoolLinkModeAttr, EthtoolMessage,
    EthtoolRingAttr,
};
use futures::TryStreamExt;
use rustix::net::{AddressFamily, SocketType, socket};

use super::{
    link::{Channels, Device, Feature, Rings},
    netlink,
};

const SIOCETHTOOL: libc::c_ulong = 0x8946;
const ETHTOOL_GDRVINFO: u32 = 0x03;
const ETHTOOL_GSTRINGS: u32 = 0x1b;
const ETHTOOL_GSTATS: u32 = 0x1d;
const ETHTOOL_GSSET_INFO: u32 = 0x37;
const ETHTOOL_SFEATURES: u32 = 0x3b;
const ETH_SS_STATS: u32 = 1;
const ETH_SS_FEATURES: u32 = 4;
const ETH_GSTRING_LEN: usize = 32;
/// No driver has as many. The kernel writes as many as the driver has at that moment, whatever we said, so the buffers are
/// made for this many (untouched pages cost nothing).
const MAX_COUNTERS: usize = 65_536;

/// All that the driver tells about itself.
pub(super) fn device(index: u32, name: &str) -> Device {
    let mut device = Device::default();
    if let Some(info) = driver_info(name) {
        let [driver, version, firmware, bus] = info;
        device.driver = driver;
        device.driver_version = version;
        device.firmware = firmware;
        device.bus_info = bus;
    }
    device.numa_node = device.bus_info.as_deref().and_then(numa_node);
    let mut attributes = Vec::new();
    // One conversation per question: a refusal of one leaves the others answered.
    for ask in [Ask::LinkModes, Ask::Channels, Ask::Rings, Ask::Features] {
        match netlink::ethtool(|handle| question(handle, name, ask)) {
            Ok(answer) => attributes.extend(answer),
            Err(error) => tracing::debug!(index, name, ?ask, %error, "the driver does not tell"),
        }
    }
    for attribute in attributes {
        match attribute {
            EthtoolAttr::LinkMode(EthtoolLinkModeAttr::Speed(mbps)) => {
                device.claim_mbps = (mbps != 0 && mbps != u32::MAX).then_some(mbps.into());
            }
            EthtoolAttr::Channel(attribute) => channel(device.channels.get_or_insert_default(), &attribute),
            EthtoolAttr::Ring(attribute) => ring(device.rings.get_or_insert_default(), &attribute),
            EthtoolAttr::Feature(attribute) => features(&mut device, attribute),
            _ => {}
        }
    }
    device
}

#[derive(Debug, Clone, Copy)]
enum Ask {
    LinkModes,
    Channels,
    Rings,
    Features,
}

async fn question(mut handle: EthtoolHandle, name: &str, ask: Ask) -> io::Result<Vec<EthtoolAttr>> {
    macro_rules! answer {
        ($request:expr) => {
            Box::pin($request.execute().await.map_err(netlink::ethtool_error)?)
                .try_next()
                .await
                .map_err(netlink::ethtool_error)?
        };
    }
    let answer = match ask {
        Ask::LinkModes => answer!(handle.link_mode().get(Some(name))),
        Ask::Channels => answer!(handle.channel().get(Some(name))),
        Ask::Rings => answer!(handle.ring().get(Some(name))),
        Ask::Features => answer!(handle.feature().get(Some(name))),
    };
    let Some(message) = answer else { return Ok(Vec::new()) };
    let EthtoolMessage { nlas, .. } = message.payload;
    Ok(nlas)
}

fn channel(channels: &mut Channels, attribute: &EthtoolChannelAttr) {
    match *attribute {
        EthtoolChannelAttr::RxMax(n) => channels.max_rx = n.into(),
        EthtoolChannelAttr::TxMax(n) => channels.max_tx = n.into(),
        EthtoolChannelAttr::CombinedMax(n) => channels.max_combined = n.into(),
        EthtoolChannelAttr::RxCount(n) => channels.rx = n.into(),
        EthtoolChannelAttr::TxCount(n) => channels.tx = n.into(),
        EthtoolChannelAttr::CombinedCount(n) => channels.combined = n.into(),
        _ => {}
    }
}

fn ring(rings: &mut Rings, attribute: &EthtoolRingAttr) {
    match *attribute {
        EthtoolRingAttr::RxMax(n) => rings.max_rx = n.into(),
        EthtoolRingAttr::TxMax(n) => rings.max_tx = n.into(),
        EthtoolRingAttr::Rx(n) => rings.rx = n.into(),
        EthtoolRingAttr::RxMini(n) => rings.rx_mini = n.into(),
        EthtoolRingAttr::RxJumbo(n) => rings.rx_jumbo = n.into(),
        EthtoolRingAttr::Tx(n) => rings.tx = n.into(),
        _ => {}
    }
}

/// `Hw` lists what can be switched at all, `Active` what is on, `NoChange` what never changes.
fn features(device: &mut Device, attribute: EthtoolFeatureAttr) {
    let fixed = |bits: Vec<ethtool::EthtoolFeatureBit>, device: &mut Device, is_fixed: bool| {
        for bit in bits {
            device.features.entry(bit.name).or_insert(Feature { is_on: false, is_fixed: true }).is_fixed = is_fixed;
        }
    };
    match attribute {
        EthtoolFeatureAttr::Hw(bits) => fixed(bits, device, false),
        EthtoolFeatureAttr::NoChange(bits) => fixed(bits, device, true),
        EthtoolFeatureAttr::Active(bits) => {
            for bit in bits {
                device.features.entry(bit.name).or_insert(Feature { is_on: false, is_fixed: true }).is_on = true;
            }
        }
        _ => {}
    }
}

/// NUMA node of a PCI address. `/sys/bus` is the machine's, whatever the network namespace.
fn numa_node(bus_info: &str) -> Option<u64> {
    let path = format!("/sys/bus/pci/devices/{bus_info}/numa_node");
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// Driver, version, firmware version, bus address.
fn driver_info(name: &str) -> Option<[Option<String>; 4]> {
    // struct ethtool_drvinfo: cmd, five 32-byte texts (driver, version, fw_version, bus_info, erom_version), 12 bytes
    // reserved, five u32.
    let mut buffer = [0u32; 49];
    buffer[0] = ETHTOOL_GDRVINFO;
    request(name, &mut buffer).ok()?;
    let text = |n: usize| Some(text_at(&buffer, 4 + n * 32)).filter(|text| !text.is_empty() && text != "N/A");
    Some([text(0), text(1), text(2), text(3)])
}

/// The counters, names made unique.
pub(super) fn counters(index: u32) -> Vec<(String, u64)> {
    let Ok(name) = socket_any().and_then(|s| Ok(rustix::net::netdevice::index_to_name(&s, index)?)) else {
        return Vec::new();
    };
    read_counters(&name).unwrap_or_default()
}

fn read_counters(name: &str) -> io::Result<Vec<(String, u64)>> {
    let names = string_set(name, ETH_SS_STATS)?;
    if names.is_empty() {
        return Ok(Vec::new());
    }
    // struct ethtool_stats: cmd, n_stats, u64 data[].
    let mut values = vec![0u32; 2 + 2 * MAX_COUNTERS];
    values[..2].copy_from_slice(&[ETHTOOL_GSTATS, names.len() as u32]);
    request(name, &mut values)?;
    let told = names.len().min(values[1] as usize);
    let mut seen = HashMap::<String, u64>::new();
    let counters = names.into_iter().take(told).enumerate().map(|(n, name)| {
        let value = u64::from(values[2 + 2 * n]) | u64::from(values[3 + 2 * n]) << 32;
        let times = seen.entry(name.clone()).or_default();
        *times += 1;
        (if *times == 1 { name } else { format!("{name}#{times}") }, value)
    });
    Ok(counters.filter(|(name, _)| !name.is_empty()).collect())
}

/// The names of a set (`ETH_SS_*`), in the driver's order; empty if it has none.
fn string_set(name: &str, set: u32) -> io::Result<Vec<String>> {
    // struct ethtool_sset_info: cmd, reserved, u64 sset_mask, u32 data[].
    let mut info = [0u32; 6];
    info[0] = ETHTOOL_GSSET_INFO;
    info[2] = 1 << set;
    request(name, &mut info)?;
    let count = if info[2] == 0 { 0 } else { info[4] as usize };
    if count == 0 || count > MAX_COUNTERS / 2 {
        return Ok(Vec::new());
    }
    // struct ethtool_gstrings: cmd, string_set, len, u8 data[].
    let mut strings = vec![0u32; 3 + MAX_COUNTERS * ETH_GSTRING_LEN / 4];
    strings[..3].copy_from_slice(&[ETHTOOL_GSTRINGS, set, count as u32]);
    request(name, &mut strings)?;
    let told = (strings[2] as usize).min(count);
    Ok((0..told).map(|n| text_at(&strings, 12 + n * ETH_GSTRING_LEN).trim().to_owned()).collect())
}

/// Turns features on by ioctl: over netlink the kernel does nothing for one that is wanted already, and a driver that turned it off
/// itself leaves it wanted (net/ethtool/features.c; drivers/net/vmxnet3, `vmxnet3_xdp_set`).
pub(super) fn turn_on(name: &str, features: &[String]) -> io::Result<()> {
    let known = string_set(name, ETH_SS_FEATURES)?;
    let blocks = known.len().div_ceil(32);
    // struct ethtool_sfeatures: cmd, size, {u32 valid, u32 requested}[].
    let mut buffer = vec![0u32; 2 + 2 * blocks];
    buffer[..2].copy_from_slice(&[ETHTOOL_SFEATURES, blocks as u32]);
    for (bit, _) in known.iter().enumerate().filter(|(_, name)| features.contains(name)) {
        buffer[2 + 2 * (bit / 32)] |= 1 << (bit % 32);
        buffer[3 + 2 * (bit / 32)] |= 1 << (bit % 32);
    }
    request(name, &mut buffer)
}

/// The text in the 32 bytes at `offset` of a buffer of native words.
fn text_at(words: &[u32], offset: usize) -> String {
    let bytes = words.iter().flat_map(|word| word.to_ne_bytes()).skip(offset).take(ETH_GSTRING_LEN);
    let bytes: Vec<u8> = bytes.take_while(|&byte| byte != 0).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

fn socket_any() -> io::Result<std::os::fd::OwnedFd> {
    Ok(socket(AddressFamily::INET, SocketType::DGRAM, None)?)
}

/// One SIOCETHTOOL call on `buffer`, whose first word is the command.
fn request(name: &str, buffer: &mut [u32]) -> io::Result<()> {
    let socket = socket_any()?;
    // SAFETY: `ifreq` is plain data; all zeros is a valid value.
    let mut ifreq: libc::ifreq = unsafe { std::mem::zeroed() };
    if name.len() >= ifreq.ifr_name.len() {
        return Err(io::Error::from_raw_os_error(libc::ENODEV));
    }
    for (to, from) in ifreq.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    ifreq.ifr_ifru.ifru_data = buffer.as_mut_ptr().cast();
    // SAFETY: the socket is open; `ifreq` lives through the call and names a NUL-terminated interface. The kernel reads and
    // writes through `ifru_data` as the command in its first word says: each caller sized the buffer for that command
    // (uapi/linux/ethtool.h), and it lives through the call too.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), SIOCETHTOOL as _, &raw mut ifreq) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
