//! Finds the IP header and the L4 header of a frame that somebody else made (captured frames).
//!
//! Pure; never reads outside the frame. Looks through VLAN tags and MPLS labels at the outermost IP header only; IPv6
//! extension headers are walked.

use std::ops::Range;

/// Where things stand in a frame that carries IP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Parsed {
    /// IPv4, else IPv6.
    pub is_v4: bool,
    /// First byte of the IP header.
    pub start: usize,
    /// First byte after IP and its extension headers.
    pub l4: usize,
    /// First byte after the packet as IP states its length (Ethernet padding excluded).
    pub end: usize,
    /// The L4 protocol.
    pub protocol: u8,
    /// Whether it is a fragment: what follows is no whole L4 packet.
    pub is_fragment: bool,
}

/// Parses a frame without FCS; `None` if it carries no whole IP header, or one that contradicts the frame's length.
pub fn parse(frame: &[u8]) -> Option<Parsed> {
    let word = |at: usize| Some(u16::from_be_bytes([*frame.get(at)?, *frame.get(at + 1)?]));
    let mut at = 12;
    let mut ethertype = word(at)?;
    while matches!(ethertype, 0x8100 | 0x88A8 | 0x9100) {
        at += 4;
        ethertype = word(at)?;
    }
    let mut start = at + 2;
    if ethertype == 0x8847 {
        while frame.get(start + 2)? & 1 == 0 {
            start += 4;
        }
        start += 4;
        ethertype = if frame.get(start)? >> 4 == 4 { 0x0800 } else { 0x86DD };
    }
    match ethertype {
        0x0800 => {
            let first = *frame.get(start)?;
            let l4 = start + usize::from(first & 0x0F) * 4;
            let end = start + usize::from(word(start + 2)?);
            let is_fragment = word(start + 6)? & 0x3FFF != 0;
            let is_sound = first >> 4 == 4 && l4 >= start + 20 && l4 <= end && end <= frame.len();
            is_sound.then(|| Parsed { is_v4: true, start, l4, end, protocol: frame[start + 9], is_fragment })
        }
        0x86DD => {
            let end = start + 40 + usize::from(word(start + 4)?);
            if frame.get(start)? >> 4 != 6 || end > frame.len() {
                return None;
            }
            let (mut l4, mut protocol, mut is_fragment) = (start + 40, frame[start + 6], false);
            // Hop-by-hop, routing, fragment, destination options (RFC 8200 §4.1).
            while matches!(protocol, 0 | 43 | 44 | 60) {
                let next = *frame.get(l4)?;
                let len = if protocol == 44 { 8 } else { (usize::from(*frame.get(l4 + 1)?) + 1) * 8 };
                is_fragment |= protocol == 44;
                (l4, protocol) = (l4 + len, next);
            }
            (l4 <= end).then_some(Parsed { is_v4: false, start, l4, end, protocol, is_fragment })
        }
        _ => None,
    }
}

impl Parsed {
    /// The bytes of the source address.
    pub fn src(&self) -> Range<usize> {
        if self.is_v4 { self.start + 12..self.start + 16 } else { self.start + 8..self.start + 24 }
    }

    /// The bytes of the destination address.
    pub fn dst(&self) -> Range<usize> {
        if self.is_v4 { self.start + 16..self.start + 20 } else { self.start + 24..self.start + 40 }
    }

    /// The bytes of both addresses.
    pub fn addresses(&self) -> Range<usize> {
        self.src().start..self.dst().end
    }

    /// Where the L4 checksum stands, whether it is UDP's, whether it covers a pseudo-header; `None` if there is none to be
    /// computed.
    pub fn l4_checksum(&self, frame: &[u8]) -> Option<(usize, bool, bool)> {
        let (offset, min_len, is_udp, has_pseudo) = match (self.protocol, self.is_v4) {
            (17, _) => (6, 8, true, true),
            (6, _) => (16, 20, false, true),
            (1, true) => (2, 4, false, false),
            (58, false) => (2, 4, false, true),
            _ => return None,
        };
        let is_whole = !self.is_fragment && self.l4 + min_len <= self.end && self.end <= frame.len();
        is_whole.then_some((self.l4 + offset, is_udp, has_pseudo))
    }

    /// Where the payload of UDP or TCP starts.
    pub fn payload(&self, frame: &[u8]) -> Option<usize> {
        self.l4_checksum(frame)?;
        let start = match self.protocol {
            17 => self.l4 + 8,
            6 => self.l4 + usize::from(frame[self.l4 + 12] >> 4) * 4,
            _ => return None,
        };
        let min = if self.protocol == 17 { 8 } else { 20 };
        (start >= self.l4 + min && start <= self.end).then_some(start)
    }
}
