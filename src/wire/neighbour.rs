//! ARP (RFC 826, 5227), Neighbour Discovery (RFC 4861) and echo (RFC 792, 4443): what the control plane hears and says.
//!
//! Pure; any input may be hostile. Frames have their VLAN tags in place, no FCS, and are padded to 60 bytes when made.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use pnet_packet::{
    MutablePacket,
    arp::{ArpHardwareTypes, ArpOperation, ArpOperations, ArpPacket, MutableArpPacket},
    ethernet::{EtherType, EtherTypes},
    icmp::{self, IcmpPacket, IcmpTypes, MutableIcmpPacket},
    icmpv6::{self, Icmpv6Packet, Icmpv6Types, MutableIcmpv6Packet},
    ip::IpNextHeaderProtocols,
    ipv4::{self, Ipv4Flags, Ipv4Packet, MutableIpv4Packet},
    ipv6::{Ipv6Packet, MutableIpv6Packet},
};

use super::mac::Mac;

/// A VLAN tag as it stands in a frame: TPID and TCI.
pub type Tag = [u8; 4];

const MIN_FRAME: usize = 60;
/// Neighbour Discovery is for the link only: anything a router forwarded is forged (RFC 4861 §7.1).
const ND_HOP_LIMIT: u8 = 255;
const SOURCE_LINK_ADDRESS: u8 = 1;
const TARGET_LINK_ADDRESS: u8 = 2;
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xFF02, 0, 0, 0, 0, 0, 0, 1);

/// The VLAN numbers of some tags.
pub fn vlan_ids(tags: &[Tag]) -> impl Iterator<Item = u16> + '_ {
    tags.iter().map(|tag| u16::from_be_bytes([tag[2], tag[3]]) & 0x0FFF)
}

/// What a frame says, if it concerns us.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Heard<'a> {
    /// Its VLAN tags, outermost first.
    pub tags: Vec<Tag>,
    /// The Ethernet source.
    pub from: Mac,
    /// What it says.
    pub message: Message<'a>,
}

/// A message of the control plane.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Message<'a> {
    /// "Who has `target`?": an ARP request or a Neighbour Solicitation. A gratuitous ARP asks for its own address.
    Ask {
        /// Who asks; unspecified while it checks whether the address is free.
        sender: IpAddr,
        /// The asker's MAC, as stated inside.
        mac: Mac,
        /// Whose MAC is wanted.
        target: IpAddr,
    },
    /// "`target` is at `mac`": an ARP reply or a Neighbour Advertisement, whose target (not source) counts.
    Tell {
        /// The address told about.
        target: IpAddr,
        /// Where it is.
        mac: Mac,
    },
    /// An echo request.
    Echo {
        /// Who asks.
        sender: IpAddr,
        /// Whom.
        target: IpAddr,
        /// Identifier, sequence and data, to be sent back.
        body: &'a [u8],
    },
}

/// Reads a frame; `None` if it is nothing for us, or broken.
pub fn hear(frame: &[u8]) -> Option<Heard<'_>> {
    let from = Mac(frame.get(6..12)?.try_into().ok()?);
    let mut tags = Vec::new();
    let mut at = 12;
    let kind = loop {
        let kind = u16::from_be_bytes(frame.get(at..at + 2)?.try_into().ok()?);
        if !matches!(kind, 0x8100 | 0x88A8 | 0x9100) || tags.len() == 4 {
            break EtherType(kind);
        }
        tags.push(frame.get(at..at + 4)?.try_into().ok()?);
        at += 4;
    };
    let payload = frame.get(at + 2..)?;
    let message = match kind {
        EtherTypes::Arp => arp(payload),
        EtherTypes::Ipv4 => echo_v4(payload),
        EtherTypes::Ipv6 => icmp_v6(payload, from),
        _ => None,
    }?;
    Some(Heard { tags, from, message })
}

fn arp(payload: &[u8]) -> Option<Message<'_>> {
    let arp = ArpPacket::new(payload)?;
    if (arp.get_hardware_type(), arp.get_protocol_type()) != (ArpHardwareTypes::Ethernet, EtherTypes::Ipv4) {
        return None;
    }
    let (sender, mac) = (arp.get_sender_proto_addr(), Mac(arp.get_sender_hw_addr().octets()));
    match arp.get_operation() {
        _ if mac.is_multicast() => None,
        ArpOperations::Request => {
            Some(Message::Ask { sender: sender.into(), mac, target: arp.get_target_proto_addr().into() })
        }
        ArpOperations::Reply => Some(Message::Tell { target: sender.into(), mac }),
        _ => None,
    }
}

fn echo_v4(payload: &[u8]) -> Option<Message<'_>> {
    let ip = Ipv4Packet::new(payload)?;
    let (start, end) = (usize::from(ip.get_header_length()) * 4, usize::from(ip.get_total_length()));
    let is_fragment = ip.get_fragment_offset() != 0 || ip.get_flags() & Ipv4Flags::MoreFragments != 0;
    if ip.get_version() != 4 || start < 20 || is_fragment || ip.get_next_level_protocol() != IpNextHeaderProtocols::Icmp
    {
        return None;
    }
    let icmp = payload.get(start..end)?;
    let kind = IcmpPacket::new(icmp)?.get_icmp_type();
    let body = icmp.get(4..).filter(|body| body.len() >= 4)?;
    (kind == IcmpTypes::EchoRequest).then(|| Message::Echo {
        sender: ip.get_source().into(),
        target: ip.get_destination().into(),
        body,
    })
}

fn icmp_v6(payload: &[u8], from: Mac) -> Option<Message<'_>> {
    let ip = Ipv6Packet::new(payload)?;
    if ip.get_version() != 6 || ip.get_next_header() != IpNextHeaderProtocols::Icmpv6 {
        return None;
    }
    let icmp = payload.get(40..40 + usize::from(ip.get_payload_length()))?;
    let kind = Icmpv6Packet::new(icmp)?.get_icmpv6_type();
    let body = icmp.get(4..).filter(|body| body.len() >= 4)?;
    if kind == Icmpv6Types::EchoRequest {
        return Some(Message::Echo { sender: ip.get_source().into(), target: ip.get_destination().into(), body });
    }
    // Both have four bytes of flags, the target, then options.
    let target: [u8; 16] = body.get(4..20).and_then(|bytes| bytes.try_into().ok())?;
    let target = IpAddr::from(target);
    let link_address = |kind| option(&body[20..], kind).filter(|mac| !mac.is_multicast()).unwrap_or(from);
    if ip.get_hop_limit() != ND_HOP_LIMIT {
        return None;
    }
    match kind {
        Icmpv6Types::NeighborSolicit => {
            Some(Message::Ask { sender: ip.get_source().into(), mac: link_address(SOURCE_LINK_ADDRESS), target })
        }
        Icmpv6Types::NeighborAdvert => Some(Message::Tell { target, mac: link_address(TARGET_LINK_ADDRESS) }),
        _ => None,
    }
}

/// The link address in a chain of ND options.
fn option(mut options: &[u8], wanted: u8) -> Option<Mac> {
    while let [kind, eights, ..] = *options {
        let length = usize::from(eights) * 8;
        if length == 0 || length > options.len() {
            return None;
        }
        if kind == wanted {
            return Some(Mac(options[2..8].try_into().ok()?));
        }
        options = &options[length..];
    }
    None
}

/// Who we are in a message: address, MAC and the tags of the link.
#[derive(Debug, Clone, Copy)]
pub struct Speaker<'a> {
    /// Our MAC.
    pub mac: Mac,
    /// Our tags, outermost first.
    pub tags: &'a [Tag],
}

impl Speaker<'_> {
    /// Asks for `target`'s MAC; `None` if the two are not of one family.
    pub fn ask(self, source: IpAddr, target: IpAddr) -> Option<Vec<u8>> {
        match (source, target) {
            (IpAddr::V4(source), IpAddr::V4(target)) => {
                Some(self.arp(ArpOperations::Request, Mac::BROADCAST, source, (Mac([0; 6]), target)))
            }
            (IpAddr::V6(source), IpAddr::V6(target)) => {
                let group = solicited_node(target);
                let mut body = vec![0; 4];
                body.extend(target.octets());
                self.push_option(&mut body, SOURCE_LINK_ADDRESS);
                Some(self.icmp_v6(multicast_mac(group), source, group, Icmpv6Types::NeighborSolicit.0, &body))
            }
            _ => None,
        }
    }

    /// Tells the asker that `own` is here.
    pub fn tell(self, own: IpAddr, asker: IpAddr, asker_mac: Mac) -> Option<Vec<u8>> {
        match (own, asker) {
            (IpAddr::V4(own), IpAddr::V4(asker)) => {
                Some(self.arp(ArpOperations::Reply, asker_mac, own, (asker_mac, asker)))
            }
            (IpAddr::V6(own), IpAddr::V6(asker)) => Some(self.advertise(own, Some((asker, asker_mac)))),
            _ => None,
        }
    }

    /// Announces `own` to everybody: a gratuitous ARP (RFC 5227 §3) or an unsolicited advertisement.
    pub fn announce(self, own: IpAddr) -> Vec<u8> {
        match own {
            IpAddr::V4(own) => self.arp(ArpOperations::Request, Mac::BROADCAST, own, (Mac([0; 6]), own)),
            IpAddr::V6(own) => self.advertise(own, None),
        }
    }

    /// Answers an echo request; `None` if the two are not of one family.
    pub fn echo(self, own: IpAddr, asker: IpAddr, asker_mac: Mac, body: &[u8]) -> Option<Vec<u8>> {
        match (own, asker) {
            (IpAddr::V4(own), IpAddr::V4(asker)) => Some(self.echo_v4(asker_mac, own, asker, body)),
            (IpAddr::V6(own), IpAddr::V6(asker)) => {
                Some(self.icmp_v6(asker_mac, own, asker, Icmpv6Types::EchoReply.0, body))
            }
            _ => None,
        }
    }

    fn advertise(self, own: Ipv6Addr, asker: Option<(Ipv6Addr, Mac)>) -> Vec<u8> {
        // An asker without address checks whether ours is free: everybody has to know (RFC 4861 §7.2.4).
        let asker = asker.filter(|(asker, _)| !asker.is_unspecified());
        const SOLICITED: u8 = 0x40;
        const OVERRIDE: u8 = 0x20;
        let mut body = vec![OVERRIDE | if asker.is_some() { SOLICITED } else { 0 }, 0, 0, 0];
        body.extend(own.octets());
        self.push_option(&mut body, TARGET_LINK_ADDRESS);
        let (to, to_mac) = asker.unwrap_or((ALL_NODES, multicast_mac(ALL_NODES)));
        self.icmp_v6(to_mac, own, to, Icmpv6Types::NeighborAdvert.0, &body)
    }

    fn push_option(self, body: &mut Vec<u8>, kind: u8) {
        body.extend([kind, 1]);
        body.extend(self.mac.0);
    }

    /// A frame with room for `payload` bytes, and where they start.
    fn frame(self, to: Mac, kind: EtherType, payload: usize) -> (Vec<u8>, usize) {
        let mut frame = Vec::with_capacity(MIN_FRAME.max(22 + payload));
        frame.extend(to.0);
        frame.extend(self.mac.0);
        frame.extend(self.tags.concat());
        frame.extend(kind.0.to_be_bytes());
        let start = frame.len();
        frame.resize(MIN_FRAME.max(start + payload), 0);
        (frame, start)
    }

    fn arp(self, operation: ArpOperation, to: Mac, own: Ipv4Addr, target: (Mac, Ipv4Addr)) -> Vec<u8> {
        let (mut frame, start) = self.frame(to, EtherTypes::Arp, ArpPacket::minimum_packet_size());
        let mut arp = MutableArpPacket::new(&mut frame[start..]).expect("the frame has room");
        arp.set_hardware_type(ArpHardwareTypes::Ethernet);
        arp.set_protocol_type(EtherTypes::Ipv4);
        arp.set_hw_addr_len(6);
        arp.set_proto_addr_len(4);
        arp.set_operation(operation);
        arp.set_sender_hw_addr(self.mac.0.into());
        arp.set_sender_proto_addr(own);
        arp.set_target_hw_addr(target.0.0.into());
        arp.set_target_proto_addr(target.1);
        frame
    }

    fn echo_v4(self, to: Mac, own: Ipv4Addr, asker: Ipv4Addr, body: &[u8]) -> Vec<u8> {
        let total = 20 + 4 + body.len();
        let (mut frame, start) = self.frame(to, EtherTypes::Ipv4, total);
        let mut ip = MutableIpv4Packet::new(&mut frame[start..start + total]).expect("the frame has room");
        ip.set_version(4);
        ip.set_header_length(5);
        ip.set_total_length(total as u16);
        ip.set_flags(Ipv4Flags::DontFragment);
        ip.set_ttl(64);
        ip.set_next_level_protocol(IpNextHeaderProtocols::Icmp);
        ip.set_source(own);
        ip.set_destination(asker);
        let sum = ipv4::checksum(&ip.to_immutable());
        ip.set_checksum(sum);
        let mut icmp = MutableIcmpPacket::new(ip.payload_mut()).expect("the frame has room");
        icmp.set_icmp_type(IcmpTypes::EchoReply);
        icmp.payload_mut().copy_from_slice(body);
        let sum = icmp::checksum(&icmp.to_immutable());
        icmp.set_checksum(sum);
        frame
    }

    fn icmp_v6(self, to_mac: Mac, own: Ipv6Addr, to: Ipv6Addr, kind: u8, body: &[u8]) -> Vec<u8> {
        let length = 4 + body.len();
        let (mut frame, start) = self.frame(to_mac, EtherTypes::Ipv6, 40 + length);
        let mut ip = MutableIpv6Packet::new(&mut frame[start..start + 40 + length]).expect("the frame has room");
        ip.set_version(6);
        ip.set_payload_length(length as u16);
        ip.set_next_header(IpNextHeaderProtocols::Icmpv6);
        ip.set_hop_limit(ND_HOP_LIMIT);
        ip.set_source(own);
        ip.set_destination(to);
        let mut icmp = MutableIcmpv6Packet::new(ip.payload_mut()).expect("the frame has room");
        icmp.set_icmpv6_type(icmpv6::Icmpv6Type(kind));
        icmp.payload_mut().copy_from_slice(body);
        let sum = icmpv6::checksum(&icmp.to_immutable(), &own, &to);
        icmp.set_checksum(sum);
        frame
    }
}

/// The group that is asked for an address (RFC 4291 §2.7.1).
pub fn solicited_node(address: Ipv6Addr) -> Ipv6Addr {
    let [.., a, b, c] = address.octets();
    Ipv6Addr::new(0xFF02, 0, 0, 0, 0, 1, 0xFF00 | u16::from(a), u16::from_be_bytes([b, c]))
}

/// The MAC of an IPv6 group (RFC 2464 §7).
pub fn multicast_mac(group: Ipv6Addr) -> Mac {
    let [.., a, b, c, d] = group.octets();
    Mac([0x33, 0x33, a, b, c, d])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const OWN: Mac = Mac([2, 0, 0, 0, 0, 1]);
    const PEER: Mac = Mac([2, 0, 0, 0, 0, 2]);
    const VLAN_100: Tag = [0x81, 0, 0x60, 100];

    fn speaker(tags: &[Tag]) -> Speaker<'_> {
        Speaker { mac: OWN, tags }
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn an_arp_request_is_a_broadcast_of_60_bytes_that_is_heard_as_asked() {
        let frame = speaker(&[]).ask(ip("10.1.0.2"), ip("10.1.0.1")).unwrap();
        assert_eq!((frame.len(), &frame[..14]), (60, &b"\xFF\xFF\xFF\xFF\xFF\xFF\x02\0\0\0\0\x01\x08\x06"[..]));
        let heard = hear(&frame).unwrap();
        assert_eq!(heard.message, Message::Ask { sender: ip("10.1.0.2"), mac: OWN, target: ip("10.1.0.1") });
    }

    #[test]
    fn tags_stand_between_the_addresses_and_the_type() {
        let frame = speaker(&[[0x88, 0xA8, 0, 7], VLAN_100]).announce(ip("10.1.0.2"));
        assert_eq!(frame[12..22], [0x88, 0xA8, 0, 7, 0x81, 0, 0x60, 100, 0x08, 0x06]);
        let heard = hear(&frame).unwrap();
        assert_eq!(vlan_ids(&heard.tags).collect::<Vec<_>>(), [7, 100]);
    }

    #[test]
    fn an_advertisement_is_matched_on_its_target_not_its_source() {
        let (own, asker) = (ip("fd00:1::77"), ip("fd00:1::1"));
        let frame = speaker(&[VLAN_100]).tell(own, asker, PEER).unwrap();
        assert_eq!(hear(&frame).unwrap().message, Message::Tell { target: own, mac: OWN });
        // A virtual router advertises an address that is not the packet's source.
        let mut forwarded = frame.clone();
        forwarded[18 + 8 + 15] = 0x99;
        assert_eq!(hear(&forwarded).unwrap().message, Message::Tell { target: own, mac: OWN });
    }

    #[test]
    fn a_solicitation_goes_to_the_solicited_node_group() {
        let frame = speaker(&[]).ask(ip("fd00:1::2"), ip("fd00:1::aabb:ccdd")).unwrap();
        assert_eq!(frame[..6], [0x33, 0x33, 0xFF, 0xBB, 0xCC, 0xDD]);
        assert_eq!(frame[38..54], [0xFF, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xFF, 0xBB, 0xCC, 0xDD]);
        assert_eq!(frame[21], 255, "hop limit");
    }

    #[test]
    fn whoever_checks_an_address_is_answered_to_all_nodes() {
        let frame = speaker(&[]).tell(ip("fd00:1::2"), ip("::"), PEER).unwrap();
        assert_eq!((&frame[..6], frame[58]), (&[0x33, 0x33, 0, 0, 0, 1][..], 0x20));
    }

    #[test]
    fn a_forwarded_solicitation_is_not_heard() {
        let mut frame = speaker(&[]).ask(ip("fd00:1::2"), ip("fd00:1::1")).unwrap();
        frame[21] = 254;
        assert_eq!(hear(&frame), None);
    }

    #[test]
    fn an_echo_reply_carries_the_body_and_good_checksums() {
        for (own, asker) in [("10.1.0.2", "10.1.0.1"), ("fd00:1::2", "fd00:1::1")] {
            let body = b"\x12\x34\0\x01some odd data";
            let frame = speaker(&[]).echo(ip(own), ip(asker), PEER, body).unwrap();
            let is_v4 = own.contains('.');
            let icmp = if is_v4 { 34 } else { 54 };
            assert_eq!(&frame[icmp + 4..icmp + 4 + body.len()], body);
            let sum = |bytes: &[u8], start: u32| {
                let words = bytes.chunks(2).map(|w| u32::from(w[0]) << 8 | u32::from(*w.get(1).unwrap_or(&0)));
                let sum = words.fold(start, |sum, word| sum + word);
                (sum & 0xFFFF) + (sum >> 16)
            };
            let covered = &frame[icmp..icmp + 4 + body.len()];
            if is_v4 {
                assert_eq!((sum(&frame[14..34], 0), sum(covered, 0)), (0xFFFF, 0xFFFF));
            } else {
                let pseudo = sum(&frame[22..54], 58 + covered.len() as u32);
                assert_eq!(sum(covered, pseudo), 0xFFFF);
            }
        }
    }

    #[test]
    fn an_echo_request_is_heard_with_its_body_and_without_padding() {
        let mut request = speaker(&[]).echo(ip("10.1.0.2"), ip("10.1.0.1"), PEER, b"\0\x01\0\x02").unwrap();
        request[34] = 8;
        let expected = Message::Echo { sender: ip("10.1.0.2"), target: ip("10.1.0.1"), body: b"\0\x01\0\x02" };
        assert_eq!(hear(&request).unwrap().message, expected);
        request[20] |= 0x20;
        assert_eq!(hear(&request), None, "a fragment");
    }

    proptest! {
        #[test]
        fn no_frame_makes_hearing_panic(
            kind in prop_oneof![Just(0x0806u16), Just(0x0800), Just(0x86DD), Just(0x8100), any::<u16>()],
            rest in proptest::collection::vec(any::<u8>(), 0..120),
            spots in proptest::collection::vec((0usize..60, any::<u8>()), 0..6),
        ) {
            let mut frame = vec![0; 12];
            frame.extend(kind.to_be_bytes());
            frame.extend(rest);
            let _ = hear(&frame);
            for valid in [speaker(&[]).ask(ip("fd00::1"), ip("fd00::2")).unwrap(), speaker(&[]).announce(ip("10.0.0.1"))] {
                let mut broken = valid;
                for (at, byte) in &spots {
                    broken[*at] = *byte;
                }
                let _ = hear(&broken);
                let _ = hear(&broken[..spots.len() * 9]);
            }
        }
    }
}
