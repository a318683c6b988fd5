//! The headers that a frame can be built of: their fields by bit position, their lengths, what they say about what follows.
//!
//! Pure tables; any thread. Sources: IEEE 802.3/802.1Q/802.1ad, RFC 3032 (MPLS), RFC 791, RFC 8200, RFC 768, RFC 9293 (TCP),
//! RFC 792, RFC 4443, RFC 2784 and 2890 (GRE), RFC 7348 (VXLAN). Does not build frames: `program::compile` does.

/// A kind of header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the names are the protocols'")]
pub enum LayerKind {
    Ethernet,
    Vlan,
    Mpls,
    Ipv4,
    Ipv6,
    Udp,
    Tcp,
    Icmp,
    Icmpv6,
    Gre,
    Vxlan,
    /// Bytes as given.
    Raw,
}

/// How a field's value is written in a profile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ValueKind {
    /// A whole number.
    Integer,
    /// A MAC address.
    Mac,
    /// An IPv4 address.
    Ipv4,
    /// An IPv6 address.
    Ipv6,
    /// TCP flag names: `syn+ack`.
    TcpFlags,
}

/// A field of a header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FieldSpec {
    /// Its key in a profile; the others are synonyms.
    pub names: &'static [&'static str],
    /// First bit, from the header's first byte's most significant bit. Negative: in the header before (a VLAN tag's TPID
    /// stands where that header's EtherType would).
    pub bit: i32,
    /// Width in bits.
    pub bits: u32,
    /// How it is written.
    pub kind: ValueKind,
    /// What it is if nobody says; fields that depend on what follows are computed.
    pub default: u64,
}

const fn field(names: &'static [&'static str], bit: i32, bits: u32, kind: ValueKind, default: u64) -> FieldSpec {
    FieldSpec { names, bit, bits, kind, default }
}

use ValueKind::{Integer, Ipv4, Ipv6, Mac, TcpFlags};

const ETHERNET: &[FieldSpec] = &[
    field(&["dst", "dst_mac", "dest_mac"], 0, 48, Mac, 0),
    field(&["src", "src_mac"], 48, 48, Mac, 0),
    field(&["type", "ethertype", "ether_type"], 96, 16, Integer, 0),
];
const VLAN: &[FieldSpec] = &[
    field(&["id", "vid", "vlan"], 4, 12, Integer, 0),
    field(&["pcp", "priority"], 0, 3, Integer, 0),
    field(&["dei", "cfi"], 3, 1, Integer, 0),
    field(&["tpid"], -16, 16, Integer, 0),
    field(&["type", "ethertype"], 16, 16, Integer, 0),
];
const MPLS: &[FieldSpec] = &[
    field(&["label"], 0, 20, Integer, 16),
    field(&["tc", "exp"], 20, 3, Integer, 0),
    field(&["bottom", "s"], 23, 1, Integer, 0),
    field(&["ttl"], 24, 8, Integer, 64),
];
const IPV4: &[FieldSpec] = &[
    field(&["src", "src_ip"], 96, 32, Ipv4, 0),
    field(&["dst", "dst_ip"], 128, 32, Ipv4, 0),
    field(&["dscp"], 8, 6, Integer, 0),
    field(&["ecn"], 14, 2, Integer, 0),
    field(&["id", "identification"], 32, 16, Integer, 0),
    field(&["df", "dont_fragment"], 49, 1, Integer, 1),
    field(&["mf", "more_fragments"], 50, 1, Integer, 0),
    field(&["fragment_offset"], 51, 13, Integer, 0),
    field(&["ttl"], 64, 8, Integer, 64),
    field(&["protocol", "proto"], 72, 8, Integer, 0),
];
const IPV6: &[FieldSpec] = &[
    field(&["src", "src_ip"], 64, 128, Ipv6, 0),
    field(&["dst", "dst_ip"], 192, 128, Ipv6, 0),
    field(&["dscp"], 4, 6, Integer, 0),
    field(&["ecn"], 10, 2, Integer, 0),
    field(&["flow_label"], 12, 20, Integer, 0),
    field(&["next_header", "protocol"], 48, 8, Integer, 0),
    field(&["hop_limit", "ttl"], 56, 8, Integer, 64),
];
const UDP: &[FieldSpec] =
    &[field(&["src_port", "src"], 0, 16, Integer, 1024), field(&["dst_port", "dst"], 16, 16, Integer, 9)];
const TCP: &[FieldSpec] = &[
    field(&["src_port", "src"], 0, 16, Integer, 1024),
    field(&["dst_port", "dst"], 16, 16, Integer, 9),
    field(&["seq", "sequence"], 32, 32, Integer, 0),
    field(&["ack", "acknowledgement"], 64, 32, Integer, 0),
    field(&["flags"], 104, 8, TcpFlags, 0x10),
    field(&["window"], 112, 16, Integer, 65_535),
    field(&["urgent"], 144, 16, Integer, 0),
];
const ICMP: &[FieldSpec] = &[
    field(&["type"], 0, 8, Integer, 8),
    field(&["code"], 8, 8, Integer, 0),
    field(&["id", "identifier"], 32, 16, Integer, 0),
    field(&["seq", "sequence"], 48, 16, Integer, 0),
];
const ICMPV6: &[FieldSpec] = &[
    field(&["type"], 0, 8, Integer, 128),
    field(&["code"], 8, 8, Integer, 0),
    field(&["id", "identifier"], 32, 16, Integer, 0),
    field(&["seq", "sequence"], 48, 16, Integer, 0),
];
const GRE: &[FieldSpec] = &[field(&["protocol", "proto"], 16, 16, Integer, 0), field(&["key"], 32, 32, Integer, 0)];
const VXLAN: &[FieldSpec] = &[field(&["vni"], 32, 24, Integer, 0), field(&["flags"], 0, 8, Integer, 0x08)];

/// Position of GRE's key in [`LayerKind::fields`]: the only field whose presence makes its header longer.
pub const GRE_KEY: usize = 1;

impl LayerKind {
    /// Every kind, in the order that `check` lists them.
    pub const ALL: [LayerKind; 12] = [
        LayerKind::Ethernet,
        LayerKind::Vlan,
        LayerKind::Mpls,
        LayerKind::Ipv4,
        LayerKind::Ipv6,
        LayerKind::Udp,
        LayerKind::Tcp,
        LayerKind::Icmp,
        LayerKind::Icmpv6,
        LayerKind::Gre,
        LayerKind::Vxlan,
        LayerKind::Raw,
    ];

    /// Its key in a profile.
    pub const fn name(self) -> &'static str {
        match self {
            LayerKind::Ethernet => "ethernet",
            LayerKind::Vlan => "vlan",
            LayerKind::Mpls => "mpls",
            LayerKind::Ipv4 => "ipv4",
            LayerKind::Ipv6 => "ipv6",
            LayerKind::Udp => "udp",
            LayerKind::Tcp => "tcp",
            LayerKind::Icmp => "icmp",
            LayerKind::Icmpv6 => "icmpv6",
            LayerKind::Gre => "gre",
            LayerKind::Vxlan => "vxlan",
            LayerKind::Raw => "raw",
        }
    }

    /// Its fields.
    pub const fn fields(self) -> &'static [FieldSpec] {
        match self {
            LayerKind::Ethernet => ETHERNET,
            LayerKind::Vlan => VLAN,
            LayerKind::Mpls => MPLS,
            LayerKind::Ipv4 => IPV4,
            LayerKind::Ipv6 => IPV6,
            LayerKind::Udp => UDP,
            LayerKind::Tcp => TCP,
            LayerKind::Icmp => ICMP,
            LayerKind::Icmpv6 => ICMPV6,
            LayerKind::Gre => GRE,
            LayerKind::Vxlan => VXLAN,
            LayerKind::Raw => &[],
        }
    }

    /// Its field of this name or synonym, by position.
    pub fn field(self, name: &str) -> Option<usize> {
        self.fields().iter().position(|spec| spec.names.contains(&name))
    }

    /// Its length in bytes (GRE without key; raw bytes: 0).
    pub const fn header_bytes(self) -> usize {
        match self {
            LayerKind::Ethernet => 14,
            LayerKind::Vlan | LayerKind::Mpls | LayerKind::Gre => 4,
            LayerKind::Ipv4 | LayerKind::Tcp => 20,
            LayerKind::Ipv6 => 40,
            LayerKind::Udp | LayerKind::Icmp | LayerKind::Icmpv6 | LayerKind::Vxlan => 8,
            LayerKind::Raw => 0,
        }
    }

    /// Whether it is an IP header.
    pub const fn is_ip(self) -> bool {
        matches!(self, LayerKind::Ipv4 | LayerKind::Ipv6)
    }

    /// Whether it stands directly on an IP header.
    pub const fn is_l4(self) -> bool {
        matches!(self, LayerKind::Udp | LayerKind::Tcp | LayerKind::Icmp | LayerKind::Icmpv6)
    }

    /// The EtherType by which Ethernet, a VLAN tag or GRE announces it; `None` if it cannot follow one.
    pub const fn ethertype(self) -> Option<u16> {
        match self {
            LayerKind::Ethernet => Some(0x6558),
            LayerKind::Vlan => Some(0x8100),
            LayerKind::Mpls => Some(0x8847),
            LayerKind::Ipv4 => Some(0x0800),
            LayerKind::Ipv6 => Some(0x86DD),
            // Local experimental EtherType 1 (IEEE 802).
            LayerKind::Raw => Some(0x88B5),
            _ => None,
        }
    }

    /// The protocol number by which IP announces it; `None` if it cannot follow IP.
    pub const fn protocol(self) -> Option<u8> {
        match self {
            LayerKind::Icmp => Some(1),
            LayerKind::Ipv4 => Some(4),
            LayerKind::Tcp => Some(6),
            LayerKind::Udp => Some(17),
            LayerKind::Ipv6 => Some(41),
            LayerKind::Gre => Some(47),
            LayerKind::Icmpv6 => Some(58),
            LayerKind::Mpls => Some(137),
            // Experimental (RFC 3692).
            LayerKind::Raw => Some(253),
            _ => None,
        }
    }
}

/// The TPID of a service tag (802.1ad), the outer one of two.
pub const TPID_SERVICE: u16 = 0x88A8;
/// VXLAN's UDP port (RFC 7348).
pub const VXLAN_PORT: u16 = 4789;

/// TCP flags by name, lowest bit first.
pub const TCP_FLAGS: [&str; 8] = ["fin", "syn", "rst", "psh", "ack", "urg", "ece", "cwr"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_stand_inside_their_header() {
        for kind in LayerKind::ALL {
            for spec in kind.fields() {
                let len = if kind == LayerKind::Gre { 8 } else { kind.header_bytes() };
                assert!(spec.bit + spec.bits as i32 <= len as i32 * 8, "{} {}", kind.name(), spec.names[0]);
                assert!(spec.bits <= 64 || spec.bits == 128);
                let first_byte = spec.bit.div_euclid(8);
                let last_byte = (spec.bit + spec.bits as i32 - 1).div_euclid(8);
                assert!(spec.bits == 128 || last_byte - first_byte < 8);
            }
        }
        assert_eq!(GRE[GRE_KEY].names[0], "key");
    }

    #[test]
    fn no_name_means_two_fields_of_a_header() {
        for kind in LayerKind::ALL {
            let mut names: Vec<_> = kind.fields().iter().flat_map(|spec| spec.names).collect();
            let count = names.len();
            names.sort_unstable();
            names.dedup();
            assert_eq!(names.len(), count, "{}", kind.name());
        }
    }
}
