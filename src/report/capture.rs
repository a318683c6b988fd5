//! Frames as a capture file: what `plimsoll pcap` writes.
//!
//! Pure. Nanosecond pcap, little-endian, Ethernet, no FCS: the same bytes on every machine.

use std::time::Duration;

use pcap_file::{
    DataLink, Endianness, TsResolution,
    pcap::{PcapHeader, PcapPacket, PcapWriter},
};

use crate::{
    error::{Error, Result},
    program::preview::PreviewFrame,
};

/// The capture file of these frames.
///
/// # Errors
/// A frame due more than 136 years after the first.
pub fn to_pcap(frames: &[PreviewFrame]) -> Result<Vec<u8>> {
    let header = PcapHeader {
        version_major: 2,
        version_minor: 4,
        ts_correction: 0,
        ts_accuracy: 0,
        snaplen: 262_144,
        datalink: DataLink::ETHERNET,
        ts_resolution: TsResolution::NanoSecond,
        endianness: Endianness::Little,
    };
    let failed = |error: pcap_file::PcapError| Error::usage("write", "a capture file").because(error);
    let mut writer = PcapWriter::with_header(Vec::new(), header).map_err(failed)?;
    for frame in frames {
        let packet = PcapPacket::new(Duration::from_nanos(frame.due_ns), frame.bytes.len() as u32, &frame.bytes);
        writer.write_packet(&packet).map_err(failed)?;
    }
    Ok(writer.into_writer())
}
