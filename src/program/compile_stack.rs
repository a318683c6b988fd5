//! Completes a stream's headers: what the user left out is put in, from the port, the gateway and the protocols' own rules.
//!
//! Pure; control plane. After this every header stands on one that can carry it and has the addresses it needs.

use std::net::IpAddr;

use super::compile::{PortFacts, stream_error};
use crate::{
    error::Result,
    profile::{Header, PortConfig, Profile, StreamConfig, Values},
    wire::layer::{LayerKind, VXLAN_PORT},
};

/// Inner MAC addresses of a tunnel whose profile names none: locally administered.
const INNER_MACS: [u64; 2] = [0x0250_4C00_0001, 0x0250_4C00_0002];
/// First dynamic port, where VXLAN's source port starts (RFC 7348 §5).
const DYNAMIC_PORT: u64 = 49_152;

/// The stream's headers, complete, outermost first.
///
/// # Errors
/// No destination MAC or address, a header that cannot follow another, a VLAN tag without a number.
pub(super) fn complete(profile: &Profile, stream: &StreamConfig, facts: &PortFacts) -> Result<Vec<Header>> {
    let port = &profile.ports[stream.port];
    let mut stack = stream.headers.clone();
    insert_missing(&mut stack, port, stream);
    check_order(profile, stream, &stack)?;
    for index in 0..stack.len() {
        let is_inner = stack[..index].iter().any(|below| below.kind.is_ip());
        let carries_vxlan = stack.get(index + 1).is_some_and(|above| above.kind == LayerKind::Vxlan);
        let header = &mut stack[index];
        match header.kind {
            LayerKind::Ethernet if index == 0 => {
                header.set_default("src", mac_value(port.src_mac.unwrap_or(facts.mac)));
                if header.field("dst").is_none() {
                    let mac = facts.dest_mac_of(port).ok_or_else(|| no_destination_mac(profile, stream, port))?;
                    header.set_default("dst", mac_value(mac));
                }
            }
            LayerKind::Ethernet => {
                header.set_default("src", Values::Fixed(INNER_MACS[0].into()));
                header.set_default("dst", Values::Fixed(INNER_MACS[1].into()));
            }
            LayerKind::Vlan if header.field("id").is_none() => {
                return Err(stream_error(profile, stream).because("a vlan header has no id").remedy("write vlan: 100"));
            }
            LayerKind::Ipv4 | LayerKind::Ipv6 => {
                let addresses = match is_inner {
                    true => [benchmark_address(header.kind, 0), benchmark_address(header.kind, 1)].map(Ok),
                    false => outer_addresses(profile, stream, header.kind),
                };
                let [src, dst] = addresses;
                if header.field("src").is_none() {
                    header.set_default("src", ip_value(src?));
                }
                if header.field("dst").is_none() {
                    header.set_default("dst", ip_value(dst?));
                }
            }
            LayerKind::Udp if carries_vxlan => {
                header.set_default("dst", Values::Fixed(VXLAN_PORT.into()));
                header.set_default("src", l4_ports(DYNAMIC_PORT, profile.flows.min(0xFFFF - DYNAMIC_PORT)));
            }
            LayerKind::Udp | LayerKind::Tcp => header.set_default("src", l4_ports(1024, profile.flows)),
            _ => {}
        }
    }
    Ok(stack)
}

fn l4_ports(first: u64, count: u64) -> Values {
    match count {
        1 => Values::Fixed(first.into()),
        count => Values::Step { first: first.into(), step: 1, count },
    }
}

/// Puts in Ethernet, the port's tags, IP under L4, UDP under VXLAN, Ethernet inside VXLAN, UDP where nothing is carried.
fn insert_missing(stack: &mut Vec<Header>, port: &PortConfig, stream: &StreamConfig) {
    let at = stream.at;
    if stack.first().is_none_or(|first| first.kind != LayerKind::Ethernet) {
        stack.insert(0, Header::new(LayerKind::Ethernet, at));
    }
    if stack.get(1).is_none_or(|second| second.kind != LayerKind::Vlan) {
        for (index, tag) in port.vlans.iter().enumerate() {
            let mut header = Header::new(LayerKind::Vlan, port.at);
            header.set_default("id", Values::Fixed(tag.id.into()));
            header.set_default("pcp", Values::Fixed(tag.pcp.into()));
            header.set_default("tpid", Values::Fixed(tag.tpid.into()));
            stack.insert(1 + index, header);
        }
    }
    // What the last header carries, if it does not say itself.
    if let Some(last) = stack.last() {
        let says = ["type", "protocol"].iter().any(|name| last.field(name).is_some());
        let carries = !last.kind.is_l4() && last.kind != LayerKind::Raw;
        if carries && !says {
            stack.push(Header::new(LayerKind::Udp, at));
        }
    }
    let mut index = 1;
    while index < stack.len() {
        let (below, kind) = (stack[index - 1].kind, stack[index].kind);
        let is_inner = stack[..index].iter().any(|below| below.kind.is_ip());
        let missing = match kind {
            LayerKind::Vxlan if below != LayerKind::Udp => Some(LayerKind::Udp),
            _ if (kind.is_l4() || kind == LayerKind::Gre) && carries_ip(below) => Some(match (kind, port.src_ip) {
                (LayerKind::Icmpv6, _) => LayerKind::Ipv6,
                (LayerKind::Icmp, _) => LayerKind::Ipv4,
                (_, Some(IpAddr::V6(_))) if !is_inner => LayerKind::Ipv6,
                _ => LayerKind::Ipv4,
            }),
            _ if below == LayerKind::Vxlan && kind != LayerKind::Ethernet => Some(LayerKind::Ethernet),
            _ => None,
        };
        match missing {
            // The new header may itself need one below it: it is looked at next.
            Some(kind) => stack.insert(index, Header::new(kind, at)),
            None => index += 1,
        }
    }
}

fn carries_ip(kind: LayerKind) -> bool {
    matches!(kind, LayerKind::Ethernet | LayerKind::Vlan | LayerKind::Mpls | LayerKind::Gre)
}

fn check_order(profile: &Profile, stream: &StreamConfig, stack: &[Header]) -> Result<()> {
    use LayerKind::{Ethernet, Gre, Icmp, Icmpv6, Ipv4, Ipv6, Mpls, Raw, Tcp, Udp, Vlan, Vxlan};
    for pair in stack.windows(2) {
        let (below, above) = (pair[0].kind, pair[1].kind);
        let fits = match below {
            Ethernet | Vlan => matches!(above, Vlan | Mpls | Ipv4 | Ipv6 | Raw),
            Mpls => matches!(above, Mpls | Ipv4 | Ipv6 | Ethernet | Raw),
            Ipv4 => matches!(above, Udp | Tcp | Icmp | Gre | Ipv4 | Ipv6 | Mpls | Raw),
            Ipv6 => matches!(above, Udp | Tcp | Icmpv6 | Gre | Ipv4 | Ipv6 | Mpls | Raw),
            Gre => matches!(above, Ethernet | Mpls | Ipv4 | Ipv6 | Raw),
            Udp => matches!(above, Vxlan | Raw),
            Vxlan => above == Ethernet,
            Tcp | Icmp | Icmpv6 => above == Raw,
            Raw => above == Raw,
        };
        if !fits {
            return Err(stream_error(profile, stream)
                .because(format!("{} cannot follow {}", above.name(), below.name()))
                .remedy("list headers from the outermost to the innermost"));
        }
    }
    Ok(())
}

/// Source and destination of the outermost IP header.
fn outer_addresses(profile: &Profile, stream: &StreamConfig, kind: LayerKind) -> [Result<IpAddr>; 2] {
    let fits = |ip: &IpAddr| ip.is_ipv4() == (kind == LayerKind::Ipv4);
    let port = &profile.ports[stream.port];
    let peer = stream.rx_port.map(|rx| &profile.ports[rx]);
    // Ports given by MAC only (as TRex allows) have no addresses: those of RFC 2544 and RFC 5180 stand in.
    let by_mac_only = port.src_ip.is_none() && peer.is_none_or(|peer| peer.src_ip.is_none());
    let stand_in = |position: usize| by_mac_only.then(|| benchmark_address(kind, position as u16));
    let src = port.src_ip.filter(fits).or_else(|| stand_in(stream.port));
    let dst = match peer {
        Some(peer) => peer.src_ip.filter(fits).or_else(|| stand_in(stream.rx_port.unwrap_or(stream.port + 1))),
        None => None,
    };
    let dst = dst.or_else(|| port.default_gw.filter(fits)).or_else(|| stand_in(stream.port + 1));
    let missing = |which| {
        stream_error(profile, stream)
            .because(format!("no {which} {} address", if kind == LayerKind::Ipv4 { "IPv4" } else { "IPv6" }))
            .remedy(format!("give it in the stream's {} header, or give the ports addresses", kind.name()))
    };
    [src.ok_or_else(|| missing("source")), dst.ok_or_else(|| missing("destination"))]
}

/// An address of the benchmarking ranges: 198.18.N.2 (RFC 2544), 2001:2:0:N::2 (RFC 5180).
fn benchmark_address(kind: LayerKind, network: u16) -> IpAddr {
    match kind {
        LayerKind::Ipv6 => IpAddr::from([0x2001, 2, 0, network, 0, 0, 0, 2]),
        _ => IpAddr::from([198, 18 + (network >> 8) as u8 % 2, network as u8, 2]),
    }
}

fn no_destination_mac(profile: &Profile, stream: &StreamConfig, port: &PortConfig) -> crate::error::Error {
    let cause = match port.default_gw {
        Some(gateway) => format!("the MAC address of {gateway} on {} is not known", port.interface),
        None => format!("port {} has neither default_gw nor dest_mac", port.interface),
    };
    stream_error(profile, stream).because(cause).remedy("give the port default_gw or dest_mac")
}

fn mac_value(mac: [u8; 6]) -> Values {
    Values::Fixed(mac.iter().fold(0, |acc, &byte| acc << 8 | u128::from(byte)))
}

fn ip_value(ip: IpAddr) -> Values {
    Values::Fixed(match ip {
        IpAddr::V4(ip) => u32::from(ip).into(),
        IpAddr::V6(ip) => ip.into(),
    })
}
