//! Capture files: pcap (µs and ns, little and big endian) and pcapng, parsed by `pcap-file`.
//!
//! Pure. A cut tail, frames cut by the snap length and clocks that run backwards are said, never hidden; a foreign link type,
//! an impossible length and a file without a frame are errors. No length in a file decides how much is allocated.

use pcap_file::{
    DataLink, PcapError, TsResolution,
    pcap::PcapParser,
    pcapng::{Block, PcapNgParser, blocks::interface_description::InterfaceDescriptionOption},
};

use crate::units::FrameLen;

/// Largest capture file, in bytes.
pub const MAX_CAPTURE_BYTES: usize = 256 << 20;
/// Most frames of a capture file: one template each.
pub const MAX_CAPTURE_FRAMES: usize = 65_535;
/// A record longer than this is a broken file (libpcap's own limit).
const MAX_RECORD_BYTES: u32 = 262_144;

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

/// Whether these bytes are a capture file of any kind.
pub fn is_capture(bytes: &[u8]) -> bool {
    is_pcapng(bytes) || PCAP_MAGICS.iter().any(|magic| bytes.starts_with(magic))
}

const PCAP_MAGICS: [[u8; 4]; 4] =
    [[0xD4, 0xC3, 0xB2, 0xA1], [0xA1, 0xB2, 0xC3, 0xD4], [0x4D, 0x3C, 0xB2, 0xA1], [0xA1, 0xB2, 0x3C, 0x4D]];

fn is_pcapng(bytes: &[u8]) -> bool {
    bytes.starts_with(&[0x0A, 0x0D, 0x0D, 0x0A])
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
