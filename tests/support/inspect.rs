//! An independent reading of frames: `pnet_packet` parses and verifies lengths and checksums of every header.

use pnet_packet::{
    Packet,
    ethernet::EthernetPacket,
    icmp::{self, IcmpPacket},
    icmpv6::{self, Icmpv6Packet},
    ipv4::{self, Ipv4Packet},
    ipv6::Ipv6Packet,
    tcp::{self, TcpPacket},
    udp::{self, UdpPacket},
    vlan::VlanPacket,
};
use std::net::{Ipv4Addr, Ipv6Addr};

/// What a header says.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(dead_code, reason = "each test reads its own part")]
pub enum Layer {
    Ethernet { src: [u8; 6], dst: [u8; 6] },
    Vlan { tpid: u16, id: u16 },
    Mpls { label: u32 },
    Ipv4 { src: [u8; 4], dst: [u8; 4], ttl: u8, df: bool },
    Ipv6 { src: [u8; 16], dst: [u8; 16] },
    Udp { src: u16, dst: u16, checksum: u16 },
    Tcp { src: u16, dst: u16, flags: u8 },
    Icmp,
    Icmpv6,
    Gre { key: Option<u32> },
    Vxlan { vni: u32 },
    Payload { protocol: u16, bytes: usize },
}

/// The headers of a frame without FCS. Panics where a length or a checksum is wrong.
pub fn inspect(frame: &[u8]) -> Vec<Layer> {
    let mut layers = Vec::new();
    ethernet(frame, &mut layers);
    layers
}

fn ethernet(frame: &[u8], layers: &mut Vec<Layer>) {
    let packet = EthernetPacket::new(frame).expect("an Ethernet header");
    layers.push(Layer::Ethernet { src: packet.get_source().into(), dst: packet.get_destination().into() });
    ethertype(packet.get_ethertype().0, packet.payload(), layers);
}

fn ethertype(ethertype_: u16, payload: &[u8], layers: &mut Vec<Layer>) {
    match ethertype_ {
        0x8100 | 0x88A8 => {
            let tag = VlanPacket::new(payload).expect("a VLAN tag");
            layers.push(Layer::Vlan { tpid: ethertype_, id: tag.get_vlan_identifier() });
            ethertype(tag.get_ethertype().0, tag.payload(), layers);
        }
        0x8847 => {
            let word = u32::from_be_bytes(payload[..4].try_into().expect("an MPLS label"));
            layers.push(Layer::Mpls { label: word >> 12 });
            match (word >> 8 & 1, payload[4] >> 4) {
                (0, _) => ethertype(0x8847, &payload[4..], layers),
                (_, 4) => ipv4(&payload[4..], layers),
                (_, 6) => ipv6(&payload[4..], layers),
                other => panic!("MPLS carries {other:?}"),
            }
        }
        0x0800 => ipv4(payload, layers),
        0x86DD => ipv6(payload, layers),
        0x6558 => ethernet(payload, layers),
        other => layers.push(Layer::Payload { protocol: other, bytes: payload.len() }),
    }
}

fn ipv4(bytes: &[u8], layers: &mut Vec<Layer>) {
    let packet = Ipv4Packet::new(bytes).expect("an IPv4 header");
    // A captured packet may be shorter than the shortest frame: the rest is Ethernet's padding.
    let total_len = usize::from(packet.get_total_length());
    let bytes = if bytes.len() == 46 && total_len < 46 { &bytes[..total_len] } else { bytes };
    let packet = Ipv4Packet::new(bytes).expect("an IPv4 header");
    assert_eq!((packet.get_version(), packet.get_header_length()), (4, 5));
    assert_eq!(usize::from(packet.get_total_length()), bytes.len(), "IPv4 total length");
    assert_eq!(packet.get_checksum(), ipv4::checksum(&packet), "IPv4 header checksum");
    let (src, dst) = (packet.get_source(), packet.get_destination());
    layers.push(Layer::Ipv4 {
        src: src.octets(),
        dst: dst.octets(),
        ttl: packet.get_ttl(),
        df: packet.get_flags() & 2 != 0,
    });
    l4(packet.get_next_level_protocol().0, packet.payload(), Pseudo::V4(src, dst), layers);
}

fn ipv6(bytes: &[u8], layers: &mut Vec<Layer>) {
    let packet = Ipv6Packet::new(bytes).expect("an IPv6 header");
    assert_eq!(packet.get_version(), 6);
    assert_eq!(usize::from(packet.get_payload_length()) + 40, bytes.len(), "IPv6 payload length");
    let (src, dst) = (packet.get_source(), packet.get_destination());
    layers.push(Layer::Ipv6 { src: src.octets(), dst: dst.octets() });
    l4(packet.get_next_header().0, packet.payload(), Pseudo::V6(src, dst), layers);
}

#[derive(Clone, Copy)]
enum Pseudo {
    V4(Ipv4Addr, Ipv4Addr),
    V6(Ipv6Addr, Ipv6Addr),
}

fn l4(protocol: u8, bytes: &[u8], pseudo: Pseudo, layers: &mut Vec<Layer>) {
    match protocol {
        17 => {
            let packet = UdpPacket::new(bytes).expect("a UDP header");
            assert_eq!(usize::from(packet.get_length()), bytes.len(), "UDP length");
            let computed = match pseudo {
                Pseudo::V4(src, dst) => udp::ipv4_checksum(&packet, &src, &dst),
                Pseudo::V6(src, dst) => udp::ipv6_checksum(&packet, &src, &dst),
            };
            let checksum = packet.get_checksum();
            let is_vxlan = packet.get_destination() == 4789;
            layers.push(Layer::Udp { src: packet.get_source(), dst: packet.get_destination(), checksum });
            match pseudo {
                Pseudo::V4(..) if is_vxlan => assert_eq!(checksum, 0, "RFC 7348: zero over IPv4"),
                // 0 means "no checksum": a computed 0 is sent as its complement.
                _ => assert_eq!(checksum, if computed == 0 { 0xFFFF } else { computed }, "UDP checksum"),
            }
            if is_vxlan {
                let vxlan = packet.payload();
                assert_eq!(vxlan[0], 0x08);
                layers.push(Layer::Vxlan { vni: u32::from_be_bytes(vxlan[4..8].try_into().unwrap()) >> 8 });
                ethernet(&vxlan[8..], layers);
            }
        }
        6 => {
            let packet = TcpPacket::new(bytes).expect("a TCP header");
            let computed = match pseudo {
                Pseudo::V4(src, dst) => tcp::ipv4_checksum(&packet, &src, &dst),
                Pseudo::V6(src, dst) => tcp::ipv6_checksum(&packet, &src, &dst),
            };
            assert_eq!(packet.get_checksum(), computed, "TCP checksum");
            let (src, dst, flags) = (packet.get_source(), packet.get_destination(), packet.get_flags());
            layers.push(Layer::Tcp { src, dst, flags });
        }
        1 => {
            let packet = IcmpPacket::new(bytes).expect("an ICMP header");
            assert_eq!(packet.get_checksum(), icmp::checksum(&packet), "ICMP checksum");
            layers.push(Layer::Icmp);
        }
        58 => {
            let Pseudo::V6(src, dst) = pseudo else { panic!("ICMPv6 over IPv4") };
            let packet = Icmpv6Packet::new(bytes).expect("an ICMPv6 header");
            assert_eq!(packet.get_checksum(), icmpv6::checksum(&packet, &src, &dst), "ICMPv6 checksum");
            layers.push(Layer::Icmpv6);
        }
        47 => {
            let has_key = bytes[0] & 0x20 != 0;
            let key = has_key.then(|| u32::from_be_bytes(bytes[4..8].try_into().unwrap()));
            layers.push(Layer::Gre { key });
            let protocol = u16::from_be_bytes([bytes[2], bytes[3]]);
            ethertype(protocol, &bytes[if has_key { 8 } else { 4 }..], layers);
        }
        4 => ipv4(bytes, layers),
        41 => ipv6(bytes, layers),
        137 => ethertype(0x8847, bytes, layers),
        other => layers.push(Layer::Payload { protocol: other.into(), bytes: bytes.len() }),
    }
}
