//! Reads ports: interface, addresses, MACs, tags. Shared by profiles and TRex configurations.
//!
//! Pure.

use std::net::IpAddr;

use super::{
    PortConfig, VlanTag, keys,
    node::{Kind, Node, Section, Source, parse_integer},
};
use crate::{
    error::Result,
    units::Rate,
    wire::{layer::TPID_SERVICE, mac::Mac},
};

/// Reads one entry of `ports:`.
pub(super) fn port(source: &Source<'_>, node: &Node) -> Result<PortConfig> {
    let map = source.section(node, "port", keys::PORT)?;
    let interface = map.require("interface")?;
    let mut port = interface_port(source, interface)?;
    addresses(source, &map, &mut port)?;
    if let Some(node) = map.take("link_speed")? {
        port.link_bps = Some(link_bps(source, node)?);
    }
    Ok(port)
}

/// A port of this interface with nothing else known.
pub(super) fn interface_port(source: &Source<'_>, node: &Node) -> Result<PortConfig> {
    let text = source.text(node, "an interface name")?;
    if is_pci_address(text) {
        let cause =
            format!("`{text}` is a PCI address; the NIC stays under the kernel's control, by its interface name");
        let full = if text.matches(':').count() == 1 { format!("0000:{text}") } else { text.to_owned() };
        return Err(source
            .fail(node.at, cause)
            .remedy(format!("write what `ls /sys/bus/pci/devices/{full}/net` says")));
    }
    // `ip link` prints veth0@if5: the part after @ is not the name.
    let name = text.split('@').next().unwrap_or_default();
    if name.is_empty() || name.len() > 127 || name.contains(|c: char| c.is_whitespace() || c == '/' || c.is_control()) {
        return Err(source.fail(node.at, format!("`{text}` is not an interface name")));
    }
    Ok(PortConfig {
        at: node.at,
        interface: name.to_owned(),
        dummy: name == "dummy",
        src_ip: None,
        prefix_len: None,
        default_gw: None,
        dest_mac: None,
        src_mac: None,
        vlans: Vec::new(),
        link_bps: None,
    })
}

/// `03:00.0`, `0000:03:00.0`, also with TRex's `/1` behind.
fn is_pci_address(text: &str) -> bool {
    let text = text.split('/').next().unwrap_or_default();
    let Some((bus, function)) = text.rsplit_once('.') else { return false };
    let hex = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_hexdigit());
    function.len() == 1 && hex(function) && (1..=2).contains(&bus.matches(':').count()) && bus.split(':').all(hex)
}

/// The keys that profiles and TRex's `port_info` share.
pub(super) fn addresses(source: &Source<'_>, map: &Section<'_>, port: &mut PortConfig) -> Result<()> {
    if let Some(node) = map.take("src_ip")? {
        let text = source.text(node, "an IP address")?;
        let (ip, prefix) = match text.split_once('/') {
            Some((ip, prefix)) => (ip, Some(prefix)),
            None => (text, None),
        };
        let ip = address(source, node, ip)?;
        port.prefix_len = prefix.map(|prefix| prefix_len(source, node, prefix, ip)).transpose()?;
        port.src_ip = Some(ip);
    }
    if let Some(node) = map.take("mask")? {
        let Some(ip) = port.src_ip else { return Err(source.fail(node.at, "a mask without `src_ip`")) };
        if port.prefix_len.is_some() {
            return Err(source.fail(node.at, "`mask` and the /prefix of `src_ip` say the same thing twice"));
        }
        port.prefix_len = Some(prefix_len(source, node, source.text(node, "a network mask")?, ip)?);
    }
    if let Some(node) = map.take("default_gw")? {
        let gateway = address(source, node, source.text(node, "an IP address")?)?;
        if port.src_ip.is_some_and(|ip| ip.is_ipv4() != gateway.is_ipv4()) {
            return Err(source.fail(node.at, "`src_ip` and `default_gw` are of different families"));
        }
        if port.src_ip == Some(gateway) {
            return Err(source
                .fail(node.at, "`default_gw` is the port's own `src_ip`")
                .remedy("write the DUT's address"));
        }
        port.default_gw = Some(gateway);
    }
    if let Some(node) = map.take("dest_mac")? {
        port.dest_mac = Some(mac(source, node)?);
    }
    if let Some(node) = map.take("src_mac")? {
        let address = mac(source, node)?;
        if address[0] & 1 == 1 {
            return Err(source.fail(node.at, "a source MAC cannot be a group address (its first byte is odd)"));
        }
        port.src_mac = Some(address);
    }
    if let Some(node) = map.take("vlan")? {
        let items = source.items(node);
        if items.len() > 2 {
            return Err(source.fail(node.at, "at most two VLAN tags"));
        }
        for (index, item) in items.iter().enumerate() {
            port.vlans.push(vlan_tag(source, item, index + 1 < items.len())?);
        }
    }
    Ok(())
}

fn address(source: &Source<'_>, node: &Node, text: &str) -> Result<IpAddr> {
    let ip: IpAddr = text.trim().parse().map_err(|_| source.fail(node.at, format!("`{text}` is not an IP address")))?;
    if ip.is_unspecified() || ip.is_multicast() {
        return Err(source.fail(node.at, format!("`{text}` is not the address of a host")));
    }
    Ok(ip)
}

/// `24`, or for IPv4 also `255.255.255.0`.
fn prefix_len(source: &Source<'_>, node: &Node, text: &str, ip: IpAddr) -> Result<u8> {
    let bits = if ip.is_ipv4() { 32 } else { 128 };
    let text = text.trim().trim_start_matches('/');
    let from_mask = || {
        let mask = u32::from(text.parse::<std::net::Ipv4Addr>().ok()?);
        (ip.is_ipv4() && mask.leading_ones() + mask.trailing_zeros() == 32).then(|| u64::from(mask.leading_ones()))
    };
    match parse_integer(text).or_else(from_mask) {
        Some(prefix) if (1..=bits).contains(&prefix) => Ok(prefix as u8),
        _ => Err(source.fail(node.at, format!("`{text}` is not a network mask: write 24 or 255.255.255.0"))),
    }
}

/// `02:00:00:00:00:01`, or TRex's `[0x2, 0x0, 0x0, 0x0, 0x0, 0x1]`.
fn mac(source: &Source<'_>, node: &Node) -> Result<[u8; 6]> {
    let Kind::List(bytes) = &node.kind else {
        return source.parse_as::<Mac>(node, "a MAC address such as 02:00:00:00:00:01").map(|mac| mac.0);
    };
    let bytes = bytes
        .iter()
        .map(|byte| source.integer(byte, "a byte of a MAC address", 0, 255).map(|byte| byte as u8))
        .collect::<Result<Vec<_>>>()?;
    bytes.try_into().map_err(|_| source.fail(node.at, "a MAC address has six bytes"))
}

/// `100`, or `{id: 100, pcp: 3, tpid: 0x8100}`.
fn vlan_tag(source: &Source<'_>, node: &Node, is_outer: bool) -> Result<VlanTag> {
    let tpid = if is_outer { TPID_SERVICE } else { 0x8100 };
    let id = |node| source.integer(node, "a VLAN", 0, 4095).map(|id| id as u16);
    if !matches!(node.kind, Kind::Map(_)) {
        return Ok(VlanTag { tpid, id: id(node)?, pcp: 0 });
    }
    let map = source.section(node, "VLAN tag", keys::VLAN_TAG)?;
    let mut tag = VlanTag { tpid, id: id(map.require("id")?)?, pcp: 0 };
    if let Some(node) = map.take("pcp")? {
        tag.pcp = source.integer(node, "a priority", 0, 7)? as u8;
    }
    if let Some(node) = map.take("tpid")? {
        tag.tpid = source.integer(node, "a TPID", 0, 0xFFFF)? as u16;
    }
    Ok(tag)
}

/// `10gbps`, or a number of Mbit/s as ethtool prints it.
fn link_bps(source: &Source<'_>, node: &Node) -> Result<u64> {
    let text = source.text(node, "a link speed")?;
    if let Some(mbps) = parse_integer(text).filter(|&mbps| mbps > 0) {
        return Ok(mbps.saturating_mul(1_000_000));
    }
    match text.parse() {
        Ok(Rate::BpsL1(bps) | Rate::BpsL2(bps)) => Ok(bps),
        _ => Err(source.fail(node.at, format!("`{text}` is not a link speed: write 10gbps, or 10000 for Mbit/s"))),
    }
}
