//! Compiles a capture file: one template per frame, as captured but for what the profile rewrites.
//!
//! Pure; control plane. Checksums are touched only where something under them changed, or where the profile asks.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::{
    Checksum, Mode, StreamProgram, Template, Term, TermSource,
    compile::{PortFacts, schedule, stream_error},
    compile_frame::MinSizes,
    fold,
};
use crate::{
    caveat::{Caveat, Code},
    error::Result,
    ids::StreamId,
    profile::{
        Profile, StreamConfig,
        capture::{CaptureConfig, RewriteMac},
    },
    units::FrameLen,
    wire::{
        capture::CapturedFrame,
        parse::{Parsed, parse},
        signature::{SignatureKind, SignatureSite},
    },
};

/// What is compiled.
pub(super) struct Replay<'a> {
    pub profile: &'a Profile,
    pub stream: &'a StreamConfig,
    pub capture: &'a CaptureConfig,
    pub facts: &'a PortFacts,
    pub signature: Option<(u32, u16)>,
}

/// Compiles the capture of a stream.
///
/// # Errors
/// A MAC address is to be rewritten that nobody knows.
pub(super) fn compile(replay: &Replay<'_>, id: StreamId) -> Result<(StreamProgram, MinSizes, Vec<Caveat>)> {
    let Replay { profile, stream, capture, .. } = replay;
    let mut templates: Vec<Template> = Vec::with_capacity(capture.frames.len());
    for frame in &capture.frames {
        templates.push(replay.template(frame)?);
    }
    let mut caveats: Vec<Caveat> =
        capture.faults.iter().map(|fault| Caveat::new(Code::CaptureIncomplete, fault)).collect();
    let bare = templates.iter().filter(|template| template.signature.is_none()).count();
    if bare > 0 {
        let why = match stream.track {
            true => "have no room for a signature",
            false => "are sent as they are (track: true puts a signature into their payload)",
        };
        let text = format!(
            "stream {}: {bare} of {} frames {why}: they are not recognised when they come back",
            stream.name,
            templates.len()
        );
        caveats.push(Caveat::new(Code::NoSignature, text));
    }
    let shortest = templates.iter().map(|template| template.frame_len.bytes()).min().unwrap_or(64);
    let mut tuples: Vec<_> = templates.iter().map(|template| tuple(&template.bytes)).collect();
    tuples.sort_unstable();
    tuples.dedup();
    let mut schedule = schedule(stream);
    let frames = templates.len() as u64;
    // A rate over all (from the command line, or a search's load) replaces the recorded times.
    if capture.recorded && stream.rate.is_none() && profile.rate.is_none() {
        schedule.mode = Mode::Recorded {
            due_ns: capture.frames.iter().map(|frame| frame.due_ns).collect(),
            pass_ns: capture.pass_ns(),
            count: capture.passes,
        };
    } else if schedule.mode == Mode::Continuous && !capture.recorded && capture.passes > 0 {
        schedule.mode = Mode::Burst { frames: frames.saturating_mul(capture.passes) };
    }
    let program = StreamProgram {
        id,
        name: stream.name.clone(),
        pattern: (0..templates.len()).map(|index| index as u16).collect(),
        templates,
        fields: Vec::new(),
        flows: tuples.len() as u64,
        schedule,
    };
    let min_sizes = MinSizes { headers_bytes: shortest, short_bytes: shortest, full_bytes: shortest };
    Ok((program, min_sizes, caveats))
}

/// Addresses, protocol and L4 ports, as bytes.
fn tuple(bytes: &[u8]) -> Vec<u8> {
    let Some(ip) = parse(bytes) else { return bytes.get(..14).unwrap_or(bytes).to_vec() };
    let mut tuple = bytes[ip.addresses()].to_vec();
    tuple.push(ip.protocol);
    tuple.extend_from_slice(bytes.get(ip.l4..ip.l4 + 4).unwrap_or_default());
    tuple
}

impl Replay<'_> {
    fn template(&self, frame: &CapturedFrame) -> Result<Template> {
        let rewrite = &self.capture.rewrite;
        let mut bytes = frame.bytes.clone();
        // Cut frames get their length back; frames shorter than Ethernet's minimum are padded as every NIC does.
        bytes.resize(frame.len.max(FrameLen::MIN.buf_len()), 0);
        let own = self.profile.ports[self.stream.port].src_mac.unwrap_or(self.facts.mac);
        match rewrite.src_mac {
            RewriteMac::Keep => {}
            RewriteMac::Port => bytes[6..12].copy_from_slice(&own),
            RewriteMac::To(mac) => bytes[6..12].copy_from_slice(&mac),
        }
        let is_group = bytes[0] & 1 == 1;
        match rewrite.dst_mac {
            RewriteMac::Keep => {}
            // Broadcast and multicast frames stay what they are.
            RewriteMac::Port if is_group => {}
            RewriteMac::Port => {
                let port = &self.profile.ports[self.stream.port];
                let mac = self.facts.dest_mac_of(port).ok_or_else(|| {
                    stream_error(self.profile, self.stream)
                        .because(format!("port {} has neither default_gw nor dest_mac", port.interface))
                        .remedy("give it one, or write rewrite: none")
                })?;
                bytes[0..6].copy_from_slice(&mac);
            }
            RewriteMac::To(mac) => bytes[0..6].copy_from_slice(&mac),
        }
        let mut template = Template {
            frame_len: FrameLen::from_buf_len(bytes.len()).unwrap_or(FrameLen::MAX),
            bytes: Box::default(),
            writes: Vec::new(),
            signature: None,
            checksums: Vec::new(),
        };
        if let Some(ip) = parse(&bytes) {
            let moved = self.rewrite_addresses(&ip, &mut bytes);
            let is_cut = frame.bytes.len() < frame.len;
            template.signature = self.signature_site(&ip, &bytes);
            if let (Some(site), Some((run_tag, stream))) = (template.signature, self.signature) {
                let constant = site.kind.constant(run_tag, stream);
                bytes[usize::from(site.offset)..][..constant.len()].copy_from_slice(&constant);
            }
            if moved || is_cut || rewrite.checksums || template.signature.is_some() {
                finish_checksums(&ip, &mut bytes, &mut template);
            }
        }
        template.bytes = bytes.into_boxed_slice();
        Ok(template)
    }

    /// Puts in new addresses; whether any changed.
    fn rewrite_addresses(&self, ip: &Parsed, bytes: &mut [u8]) -> bool {
        let rewrite = &self.capture.rewrite;
        let mut moved = false;
        for (range, to_all) in [(ip.src(), rewrite.src_ip), (ip.dst(), rewrite.dst_ip)] {
            let old = match ip.is_v4 {
                true => <[u8; 4]>::try_from(&bytes[range.clone()]).ok().map(|b| IpAddr::V4(Ipv4Addr::from(b))),
                false => <[u8; 16]>::try_from(&bytes[range.clone()]).ok().map(|b| IpAddr::V6(Ipv6Addr::from(b))),
            };
            let Some(old) = old else { continue };
            let new = rewrite.map.get(&old).copied().or(to_all.filter(|new| new.is_ipv4() == ip.is_v4));
            match new {
                Some(IpAddr::V4(new)) => bytes[range].copy_from_slice(&new.octets()),
                Some(IpAddr::V6(new)) => bytes[range].copy_from_slice(&new.octets()),
                None => continue,
            }
            moved |= new != Some(old);
        }
        moved
    }

    /// The signature goes to the start of a UDP or TCP payload, if the frame is whole and is no fragment.
    fn signature_site(&self, ip: &Parsed, bytes: &[u8]) -> Option<SignatureSite> {
        let (_, stream) = self.signature?;
        let start = ip.payload(bytes)?.next_multiple_of(2);
        let fits = |kind: &SignatureKind| start + kind.len() <= ip.end && stream <= kind.max_stream();
        let kind = [SignatureKind::Full, SignatureKind::Short].into_iter().find(fits)?;
        Some(SignatureSite { offset: start as u16, kind })
    }
}

/// Computes the IPv4 header checksum and the L4 checksum; with a signature, the latter per frame.
fn finish_checksums(ip: &Parsed, bytes: &mut [u8], template: &mut Template) {
    if ip.is_v4 {
        bytes[ip.start + 10..ip.start + 12].fill(0);
        let sum = !(fold(sum(&bytes[ip.start..ip.l4])) as u16);
        bytes[ip.start + 10..ip.start + 12].copy_from_slice(&sum.to_be_bytes());
    }
    let Some((at, is_udp, has_pseudo)) = ip.l4_checksum(bytes) else { return };
    if is_udp && ip.is_v4 && bytes[at..at + 2] == [0, 0] {
        return;
    }
    if let Some(site) = template.signature {
        let (offset, width) = site.kind.sequence();
        let start = usize::from(site.offset);
        bytes[start + offset..start + offset + width].fill(0);
        if let Some(offset) = site.kind.stamp() {
            bytes[start + offset..start + offset + 4].fill(0);
        }
    }
    bytes[at..at + 2].fill(0);
    let mut total = sum(&bytes[ip.l4..ip.end]);
    if has_pseudo {
        total += sum(&bytes[ip.addresses()]) + u64::from(ip.protocol) + (ip.end - ip.l4) as u64;
    }
    let base = fold(total) as u16;
    let Some(site) = template.signature else {
        let result = if base == 0xFFFF && is_udp { 0xFFFF } else { !base };
        bytes[at..at + 2].copy_from_slice(&result.to_be_bytes());
        return;
    };
    let mut terms = Vec::new();
    let mut add = |source, end: usize| terms.push(Term { source, swap: (end - ip.l4) % 2 == 1 });
    let (offset, width) = site.kind.sequence();
    add(TermSource::Sequence, usize::from(site.offset) + offset + width);
    if let Some(offset) = site.kind.stamp() {
        add(TermSource::Stamp, usize::from(site.offset) + offset + 4);
    }
    template.checksums.push(Checksum { offset: at as u16, base, zero_is_ffff: is_udp, terms });
}

/// The sum of the bytes as big-endian 16-bit words.
fn sum(bytes: &[u8]) -> u64 {
    bytes.chunks(2).map(|pair| u64::from(pair[0]) << 8 | u64::from(pair.get(1).copied().unwrap_or(0))).sum()
}
