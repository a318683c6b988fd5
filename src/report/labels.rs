//! Words for the result file's values: frame sizes, stages, verdicts, outcomes, sweep axes.
//!
//! Pure. The file keeps machine names; people read these.

use std::collections::BTreeMap;

use serde_json::Value;

use super::result::{Port, ResultFile, Stage, Trial, VerdictKind};
use crate::{
    caveat::Code,
    units::{FrameLen, MeanFrame},
};

/// `64-byte frames`, `imix frames`.
pub fn frames(frame_size: &Value) -> String {
    match frame_size.as_u64() {
        Some(bytes) => format!("{bytes}-byte frames"),
        None => format!("{} frames", size(frame_size)),
    }
}

/// `64`, `imix`.
pub fn size(frame_size: &Value) -> String {
    plain(frame_size)
}

/// A JSON value without quotes.
pub fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// `dut_rx_ring 256, workers 2`; empty where nothing was varied.
pub fn axes(axes: &BTreeMap<String, Value>) -> String {
    let parts: Vec<String> = axes.iter().map(|(name, value)| format!("{} {}", axis(name), plain(value))).collect();
    parts.join(", ")
}

/// An axis in words: `dut_rx_ring` → `DUT RX ring`.
pub fn axis(name: &str) -> String {
    match name {
        "dut_rx_ring" => "DUT RX ring".to_owned(),
        "dut_queues" => "DUT queues".to_owned(),
        other => other.replace('_', " "),
    }
}

/// A stage in words.
pub fn stage(stage: Stage) -> &'static str {
    match stage {
        Stage::GenTx => "generator TX",
        Stage::Link => "link",
        Stage::Vswitch => "virtual switch",
        Stage::VnicRing => "vNIC ring",
        Stage::Driver => "driver",
        Stage::Softnet => "softnet (CPU)",
        Stage::Ip => "IP stack",
        Stage::Socket => "socket / forwarding",
        Stage::GenRx => "generator RX",
    }
}

/// Who limited, as a sentence's subject.
pub fn verdict(kind: VerdictKind) -> &'static str {
    match kind {
        VerdictKind::DutLimited => "the DUT is the limit",
        VerdictKind::GeneratorLimited => "the generator is the limit",
        VerdictKind::LinkLimited => "the link is the limit",
        VerdictKind::Coupled => "the generator and the DUT slow each other",
        VerdictKind::Inconclusive => "inconclusive",
    }
}

/// Who limited, in a table cell.
pub fn limit(kind: VerdictKind) -> &'static str {
    match kind {
        VerdictKind::DutLimited => "DUT",
        VerdictKind::GeneratorLimited => "generator",
        VerdictKind::LinkLimited => "link",
        VerdictKind::Coupled => "coupled",
        VerdictKind::Inconclusive => "inconclusive",
    }
}

/// A search's outcome in a table cell.
pub fn outcome(outcome: &str) -> &str {
    match outcome {
        "bounds" => "regular",
        "at_least_max" => "highest load passed",
        "below_min" => "lowest load failed",
        "generator_limited" => "not sent by generator",
        other => other,
    }
}

/// A caveat's code in words: `rate not reached`.
pub fn code(code: Code) -> String {
    serde_json::to_value(code).map(|value| plain(&value).replace('_', " ")).unwrap_or_default()
}

/// A backend with its mode: `AF_XDP zero-copy`, `live frames`, `AF_PACKET`, `receives only`.
pub fn backend(port: &Port) -> String {
    match port.backend.as_str() {
        "xsk" => format!("AF_XDP {}", port.mode),
        "live" => "XDP live frames".to_owned(),
        "packet" => "AF_PACKET".to_owned(),
        "none" => "receives only".to_owned(),
        other => other.to_owned(),
    }
}

/// The mean frame length of this size, exact for one length, else taken from what was sent.
pub fn mean_frame(file: &ResultFile, frame_size: &Value) -> Option<MeanFrame> {
    mean_of(frame_size, file.trials.iter().filter(|trial| trial.frame_size == *frame_size))
}

/// The same from these trials.
pub fn mean_of<'a>(frame_size: &Value, trials: impl Iterator<Item = &'a Trial>) -> Option<MeanFrame> {
    if let Some(bytes) = frame_size.as_u64() {
        return FrameLen::new(bytes).map(MeanFrame::of);
    }
    let (bytes, frames) = trials.fold((0, 0), |(bytes, frames), trial| {
        (trial.tx_bytes.saturating_add(bytes), trial.completed_frames.saturating_add(frames))
    });
    (frames > 0).then_some(MeanFrame { bytes, frames })
}
