//! Capture files as streams: pcap (µs and ns, little and big endian) and pcapng, parsed by `pcap-file`.
//!
//! Pure. A cut tail, frames cut by the snap length and clocks that run backwards are said, never hidden; a foreign link type,
//! an impossible length and a file without a frame are errors. Does not change frames: `program::compile_capture` does.

use std::{collections::BTreeMap, net::IpAddr, path::PathBuf};

use pcap_file::{
    DataLink, PcapError, TsResolution,
    pcap::PcapParser,
    pcapng::{Block, PcapNgParser, blocks::interface_description::InterfaceDescriptionOption},
};

use super::{
    ReadFile, beside,
    node::{Kind, Node, Source},
};
use crate::{error::Result, units::FrameLen, wire::mac::Mac};

/// Largest capture file, in bytes.
pub const MAX_CAPTURE_BYTES: usize = 256 << 20;
/// Most frames of a capture file: one template each.
pub const MAX_CAPTURE_FRAMES: usize = 65_535;
/// A record longer than this is a broken file (libpcap's own limit).
const MAX_RECORD_BYTES: u32 = 262_144;

/// A capture file to replay.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CaptureConfig {
    /// The file.
    pub file: PathBuf,
    /// Its frames, never empty.
    pub frames: Vec<CapturedFrame>,
    /// What is wrong with the file, one sentence each.
    pub faults: Vec<String>,
    /// Whether frames leave when they did in the capture; else at the stream's rate.
    pub recorded: bool,
    /// Passes over the file; 0 = until the trial ends.
    pub passes: u64,
    /// What is changed in the frames.
    pub rewrite: Rewrite,
}

/// One frame of a capture.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CapturedFrame {
    /// When, in nanoseconds from the first frame.
    pub due_ns: u64,
    /// The bytes that the file has, without FCS.
    pub bytes: Vec<u8>,
    /// How long the frame really was, without FCS; more than `bytes` if it was cut.
    pub len: usize,
}

/// What to do with a MAC address of a captured frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RewriteMac {
    /// Leave it.
    Keep,
    /// Source: the port's own; destination: the gateway's.
    Port,
    /// This one.
    To([u8; 6]),
}

/// What is changed in captured frames. Checksums are kept right.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rewrite {
    /// Source MAC.
    pub src_mac: RewriteMac,
    /// Destination MAC.
    pub dst_mac: RewriteMac,
    /// Source address of every frame of its family.
    pub src_ip: Option<IpAddr>,
    /// Destination address of every frame of its family.
    pub dst_ip: Option<IpAddr>,
    /// Addresses wherever they stand, source or destination.
    pub map: BTreeMap<IpAddr, IpAddr>,
    /// Whether IP, UDP, TCP and ICMP checksums are computed anew.
    pub checksums: bool,
}

/// Whether these bytes are a capture file of any kind.
pub fn is_capture(bytes: &[u8]) -> bool {
    is_pcapng(bytes) || PCAP_MAGICS.iter().any(|magic| bytes.starts_with(magic))
}

const PCAP_MAGICS: [[u8; 4]; 4] =
    [[0xD4, 0xC3, 0xB2, 0xA1], [0xA1, 0xB2, 0xC3, 0xD4], [0x4D, 0x3C, 0xB2, 0xA1], [0xA1, 0xB2, 0x3C, 0x4D]];

fn is_pcapng(bytes: &[u8]) -> bool {
    bytes.starts_with(&[0x0A, 0x0D, 0x0D, 0x0A])
}

/// Reads a stream's `pcap:` — a file name, or a mapping with `file`, `timing`, `passes`, `rewrite`.
pub(super) fn read(source: &Source<'_>, node: &Node, read: ReadFile<'_>) -> Result<CaptureConfig> {
    let (file, timing, passes, rewrite) = match &node.kind {
        Kind::Map(_) => {
            let mut map = source.section(node, "pcap")?;
            let keys = (
                map.require(&["file"])?,
                map.take(&["timing"])?,
                map.take(&["passes", "loop"])?,
                map.take(&["rewrite"])?,
            );
            map.finish()?;
            keys
        }
        _ => (node, None, None, None),
    };
    let path = beside(source.file, source.text(file, "the name of a capture file")?);
    let name = path.display().to_string();
    let bytes = read(&path).map_err(|error| source.fail(file.at, format!("cannot read {name}: {error}")))?;
    let parsed = parse(&bytes).map_err(|fault| {
        let failed = source.fail(file.at, format!("{name}: {}", fault.cause));
        match fault.remedy {
            Some(remedy) => failed.remedy(remedy.replace("FILE", &name)),
            None => failed,
        }
    })?;
    let recorded = match timing {
        None => true,
        Some(node) => match source.text(node, "a timing")? {
            "recorded" => true,
            "rate" => false,
            other => return Err(source.fail(node.at, format!("`{other}` is not a timing: write recorded or rate"))),
        },
    };
    Ok(CaptureConfig {
        file: path,
        frames: parsed.frames,
        faults: parsed.faults.iter().map(|fault| format!("{name}: {fault}")).collect(),
        recorded,
        passes: match passes {
            Some(node) => source.integer(node, "a number of passes", 0, 1 << 32)?,
            None => u64::from(recorded),
        },
        rewrite: read_rewrite(source, rewrite)?,
    })
}

fn read_rewrite(source: &Source<'_>, node: Option<&Node>) -> Result<Rewrite> {
    let mut rewrite = Rewrite {
        src_mac: RewriteMac::Port,
        dst_mac: RewriteMac::Port,
        src_ip: None,
        dst_ip: None,
        map: BTreeMap::new(),
        checksums: false,
    };
    let Some(node) = node else { return Ok(rewrite) };
    if matches!(&node.kind, Kind::Scalar(text) if text == "none") {
        (rewrite.src_mac, rewrite.dst_mac) = (RewriteMac::Keep, RewriteMac::Keep);
        return Ok(rewrite);
    }
    let mac = |node: &Node| match source.text(node, "keep, port or a MAC address")? {
        "keep" => Ok(RewriteMac::Keep),
        "port" | "gateway" => Ok(RewriteMac::Port),
        _ => source.parse_as::<Mac>(node, "keep, port or a MAC address").map(|mac| RewriteMac::To(mac.0)),
    };
    let ip = |node: &Node| source.parse_as::<IpAddr>(node, "an IP address");
    let mut map = source.section(node, "rewrite")?;
    if let Some(node) = map.take(&["src_mac"])? {
        rewrite.src_mac = mac(node)?;
    }
    if let Some(node) = map.take(&["dst_mac", "dest_mac"])? {
        rewrite.dst_mac = mac(node)?;
    }
    rewrite.src_ip = map.take(&["src_ip"])?.map(ip).transpose()?;
    rewrite.dst_ip = map.take(&["dst_ip"])?.map(ip).transpose()?;
    if let Some(node) = map.take(&["checksums"])? {
        rewrite.checksums = source.boolean(node, "checksums")?;
    }
    if let Some(node) = map.take(&["map"])? {
        let Kind::Map(entries) = &node.kind else {
            return Err(source.fail(node.at, "map is a mapping of old addresses to new ones"));
        };
        for (from, at, to) in entries {
            let to = ip(to)?;
            let from: IpAddr = from.parse().map_err(|_| source.fail(*at, format!("`{from}` is not an IP address")))?;
            if from.is_ipv4() != to.is_ipv4() {
                return Err(source.fail(*at, format!("{from} and {to} are of different families")));
            }
            rewrite.map.insert(from, to);
        }
    }
    map.finish()?;
    Ok(rewrite)
}

/// Why a file cannot be replayed; `FILE` in the remedy stands for its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// What is wrong.
    pub cause: String,
    /// What helps.
    pub remedy: Option<String>,
}

fn fault(cause: impl Into<String>) -> Fault {
    Fault { cause: cause.into(), remedy: None }
}

/// A capture file's frames, with the faults that do not prevent a replay.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Capture {
    /// The complete records.
    pub frames: Vec<CapturedFrame>,
    /// One sentence each.
    pub faults: Vec<String>,
}

/// Frames while they are collected.
#[derive(Default)]
struct Collector {
    capture: Capture,
    first_ns: u64,
    cut: u64,
    backwards: u64,
    overlong: u64,
}

impl Collector {
    fn add(&mut self, timestamp_ns: u64, len: u32, data: &[u8]) -> Result<(), Fault> {
        let frames = &mut self.capture.frames;
        let number = frames.len() + 1;
        if data.len() > MAX_RECORD_BYTES as usize || len > MAX_RECORD_BYTES {
            let bytes = (data.len() as u64).max(len.into());
            return Err(fault(format!("record {number} claims {bytes} bytes: the file is broken")));
        }
        if number > MAX_CAPTURE_FRAMES {
            let cause = format!("more than {MAX_CAPTURE_FRAMES} frames");
            return Err(Fault {
                cause,
                remedy: Some(format!("cut it: editcap -r FILE part.pcap 1-{MAX_CAPTURE_FRAMES}")),
            });
        }
        if data.len() > len as usize {
            self.overlong += 1;
        }
        let len = (len as usize).max(data.len());
        if len > FrameLen::MAX.buf_len() {
            let cause = format!("frame {number} has {len} bytes; at most {} can be sent", FrameLen::MAX.buf_len());
            return Err(Fault {
                cause,
                remedy: Some("captured with offloads (GRO, TSO)? capture again without".into()),
            });
        }
        if data.len() < 14 {
            return Err(fault(format!("frame {number} has {} bytes: no Ethernet header", data.len())));
        }
        self.cut += u64::from(data.len() < len);
        if frames.is_empty() {
            self.first_ns = timestamp_ns;
        }
        let mut due_ns = timestamp_ns.saturating_sub(self.first_ns);
        if let Some(before) = frames.last().map(|frame| frame.due_ns)
            && due_ns < before
        {
            self.backwards += 1;
            due_ns = before;
        }
        frames.push(CapturedFrame { due_ns, bytes: data.to_vec(), len });
        Ok(())
    }

    fn truncated(&mut self) {
        let frames = self.capture.frames.len();
        self.capture.faults.push(format!("the last record is cut off; the {frames} complete ones are sent"));
    }

    fn finish(mut self) -> Result<Capture, Fault> {
        let frames = self.capture.frames.len();
        if frames == 0 {
            return Err(fault("no complete frame in this capture file"));
        }
        let mut say = |count: u64, what: &str| {
            if count > 0 {
                self.capture.faults.push(format!("{count} of {frames} frames {what}"));
            }
        };
        say(self.cut, "were cut by the capture's snap length; they are sent at full length, filled with zeros");
        say(self.backwards, "have a time before the one of the frame before; they leave with it");
        say(self.overlong, "have more bytes than their record says; all are sent");
        Ok(self.capture)
    }
}

fn check_link(link: DataLink) -> Result<(), Fault> {
    // The upper half of the classic header's field may state an FCS length.
    let number = u32::from(link);
    match number & 0xFFFF {
        1 => Ok(()),
        _ => Err(Fault {
            cause: format!("link type {number} ({link:?}) is not Ethernet"),
            remedy: Some("capture on an Ethernet interface, or convert it".to_owned()),
        }),
    }
}

/// Parses a capture file.
///
/// # Errors
/// Not a capture, not Ethernet, an impossible length, too large, or no complete frame.
pub fn parse(bytes: &[u8]) -> Result<Capture, Fault> {
    if bytes.len() > MAX_CAPTURE_BYTES {
        return Err(fault(format!("{} bytes; at most {MAX_CAPTURE_BYTES} are replayed", bytes.len())));
    }
    if is_pcapng(bytes) {
        return parse_pcapng(bytes);
    }
    if !is_capture(bytes) {
        return Err(fault("not a capture file (neither pcap nor pcapng)"));
    }
    let (mut rest, parser) = PcapParser::new(bytes).map_err(|error| fault(format!("broken file header: {error}")))?;
    let header = parser.header();
    check_link(header.datalink)?;
    let unit_ns = if header.ts_resolution == TsResolution::MicroSecond { 1_000 } else { 1 };
    let mut collector = Collector::default();
    while !rest.is_empty() {
        // The length is looked at before the record: a broken one must not pass for a cut tail.
        if let Some(length) = rest.get(8..12) {
            let length = [length[0], length[1], length[2], length[3]];
            let length = match header.endianness {
                pcap_file::Endianness::Big => u32::from_be_bytes(length),
                pcap_file::Endianness::Little => u32::from_le_bytes(length),
            };
            if length > MAX_RECORD_BYTES {
                let number = collector.capture.frames.len() + 1;
                return Err(fault(format!("record {number} claims {length} bytes: the file is broken")));
            }
        }
        match parser.next_raw_packet(rest) {
            Ok((after, packet)) => {
                let time_ns = u64::from(packet.ts_sec) * 1_000_000_000 + u64::from(packet.ts_frac) * unit_ns;
                collector.add(time_ns, packet.orig_len, &packet.data)?;
                rest = after;
            }
            Err(_) => {
                collector.truncated();
                break;
            }
        }
    }
    collector.finish()
}

fn parse_pcapng(bytes: &[u8]) -> Result<Capture, Fault> {
    let (mut rest, mut parser) =
        PcapNgParser::new(bytes).map_err(|error| fault(format!("broken pcapng section header: {error}")))?;
    let mut collector = Collector::default();
    while !rest.is_empty() {
        match parser.next_block(rest) {
            Ok((after, block)) => {
                rest = after;
                match block {
                    Block::EnhancedPacket(packet) => {
                        let Some(interface) = parser.interfaces().get(packet.interface_id as usize) else {
                            return Err(fault(format!(
                                "a packet of interface {}, which is not described",
                                packet.interface_id
                            )));
                        };
                        check_link(interface.linktype)?;
                        let resolution = interface.options.iter().find_map(|option| match option {
                            InterfaceDescriptionOption::IfTsResol(resolution) => Some(*resolution),
                            _ => None,
                        });
                        // The library hands out the raw count of units as if they were nanoseconds.
                        let units = packet.timestamp.as_nanos() as u64;
                        collector.add(to_ns(units, resolution.unwrap_or(6)), packet.original_len, &packet.data)?;
                    }
                    Block::SimplePacket(packet) => {
                        let Some(interface) = parser.interfaces().first() else {
                            return Err(fault("a packet before any interface is described"));
                        };
                        check_link(interface.linktype)?;
                        let len = packet.original_len as usize;
                        let snap = if interface.snaplen == 0 { len } else { interface.snaplen as usize };
                        let data = &packet.data[..packet.data.len().min(len).min(snap)];
                        let before = collector.capture.frames.last().map_or(0, |frame| frame.due_ns);
                        let now_ns = collector.first_ns + before;
                        collector.add(now_ns, packet.original_len, data)?;
                    }
                    _ => {}
                }
            }
            Err(PcapError::IncompleteBuffer) => {
                collector.truncated();
                break;
            }
            Err(error) => {
                let number = collector.capture.frames.len();
                return Err(Fault {
                    cause: format!("broken pcapng block after frame {number}: {error}"),
                    remedy: Some("convert it: editcap -F pcap FILE out.pcap".to_owned()),
                });
            }
        }
    }
    collector.finish()
}

/// A pcapng time stamp in nanoseconds: `if_tsresol` is a power of ten, or of two with the top bit set.
fn to_ns(units: u64, resolution: u8) -> u64 {
    let exponent = u32::from(resolution & 0x7F);
    let per_second = match resolution & 0x80 {
        0 => 10u128.checked_pow(exponent),
        _ => 1u128.checked_shl(exponent),
    };
    match per_second {
        Some(per_second) if per_second > 0 => {
            u64::try_from(u128::from(units) * 1_000_000_000 / per_second).unwrap_or(u64::MAX)
        }
        _ => 0,
    }
}

impl CaptureConfig {
    /// How long one pass lasts, in nanoseconds: to the last frame, and one mean gap more.
    pub fn pass_ns(&self) -> u64 {
        let last = self.frames.last().map_or(0, |frame| frame.due_ns);
        let gaps = (self.frames.len() as u64).saturating_sub(1).max(1);
        last.saturating_add(last / gaps).max(1)
    }
}
