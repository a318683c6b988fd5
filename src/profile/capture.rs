//! Reads a stream's `pcap:`: which capture file, at whose timing, with what rewritten.
//!
//! Pure: the file's bytes come through the caller's closure. Does not change frames: `program::compile_capture` does.

use std::{collections::BTreeMap, net::IpAddr, path::PathBuf};

use super::{
    ReadFile, beside, keys,
    node::{Kind, Node, Source},
};
use crate::{
    error::Result,
    wire::{
        capture::{CapturedFrame, parse},
        mac::Mac,
    },
};

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

/// Reads a stream's `pcap:` — a file name, or a mapping with `file`, `timing`, `passes`, `rewrite`.
pub(super) fn read(source: &Source<'_>, node: &Node, read: ReadFile<'_>) -> Result<CaptureConfig> {
    let (file, timing, passes, rewrite) = match &node.kind {
        Kind::Map(_) => {
            let map = source.section(node, "pcap", keys::PCAP)?;
            (map.require("file")?, map.take("timing")?, map.take("passes")?, map.take("rewrite")?)
        }
        _ => (node, None, None, None),
    };
    let rewrite = read_rewrite(source, rewrite)?;
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
        rewrite,
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
    let map = source.section(node, "rewrite", keys::REWRITE)?;
    if let Some(node) = map.take("src_mac")? {
        rewrite.src_mac = mac(node)?;
    }
    if let Some(node) = map.take("dst_mac")? {
        rewrite.dst_mac = mac(node)?;
    }
    rewrite.src_ip = map.take("src_ip")?.map(ip).transpose()?;
    rewrite.dst_ip = map.take("dst_ip")?.map(ip).transpose()?;
    if let Some(node) = map.take("checksums")? {
        rewrite.checksums = source.boolean(node, "checksums")?;
    }
    if let Some(node) = map.take("map")? {
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
    Ok(rewrite)
}

impl CaptureConfig {
    /// How long one pass lasts, in nanoseconds: to the last frame, and one mean gap more.
    pub fn pass_ns(&self) -> u64 {
        let last = self.frames.last().map_or(0, |frame| frame.due_ns);
        let gaps = (self.frames.len() as u64).saturating_sub(1).max(1);
        last.saturating_add(last / gaps).max(1)
    }
}
