//! A result as CSV: a row a trial, names as in the result file, empty where nothing was measured.
//!
//! Pure.

use std::collections::BTreeSet;

use serde::Serialize;
use serde_json::Value;

use super::{
    labels::plain,
    result::{ResultFile, StreamTrial, Trial},
};
use crate::human;

/// Columns before the axes that the result varies.
const FIXED: [&str; 32] = [
    "trial",
    "frame_size",
    "load_fps",
    "intended_s",
    "duration_s",
    "intended_frames",
    "offered_frames",
    "completed_frames",
    "received_frames",
    "lost_frames",
    "loss_ratio",
    "duplicate_frames",
    "reordered_frames",
    "tx_bytes",
    "rx_bytes",
    "tx_fps",
    "rx_fps",
    "tx_bps_l1",
    "tx_bps_l2",
    "latency_min_ns",
    "latency_p50_ns",
    "latency_p90_ns",
    "latency_p99_ns",
    "latency_p999_ns",
    "latency_max_ns",
    "latency_frames",
    "latency_share",
    "verdict",
    "stage",
    "dut",
    "other",
    "caveats",
];

/// The trials of a result, with a header.
pub fn render(file: &ResultFile) -> Vec<u8> {
    let axes: BTreeSet<&str> = file.trials.iter().flat_map(|trial| trial.axes.keys().map(String::as_str)).collect();
    let mut writer = csv::Writer::from_writer(Vec::new());
    let header = FIXED.iter().map(|name| (*name).to_owned()).chain(axes.iter().map(|name| format!("axis_{name}")));
    let rows = file.trials.iter().enumerate().map(|(index, trial)| {
        let mut row = fixed_cells(index + 1, trial);
        row.extend(axes.iter().map(|name| trial.axes.get(*name).map(plain).unwrap_or_default()));
        row
    });
    for row in std::iter::once(header.collect()).chain(rows) {
        writer
            .write_record(row.iter().map(|cell| human::printable(cell).into_owned()))
            .expect("rows of one length, written to memory");
    }
    writer.into_inner().expect("memory takes all")
}

fn fixed_cells(number: usize, trial: &Trial) -> Vec<String> {
    let latency = trial.latency_ns.as_ref();
    let verdict = trial.verdict.as_ref();
    let streams = |count: fn(&StreamTrial) -> Option<u64>| {
        let counts: Vec<u64> = trial.streams.iter().filter_map(count).collect();
        (!counts.is_empty()).then(|| counts.iter().sum::<u64>())
    };
    let dut: Vec<String> = trial.dut.iter().map(|delta| format!("{}={}", delta.counter, delta.delta)).collect();
    let other: Vec<String> = trial.other.iter().map(|(kind, frames)| format!("{kind}={frames}")).collect();
    let caveats: Vec<String> = trial.caveats.iter().map(|caveat| name(caveat.code)).collect();
    let cells: [String; FIXED.len()] = [
        number.to_string(),
        plain(&trial.frame_size),
        cell(trial.load_fps),
        cell(trial.intended_s),
        trial.duration_s.to_string(),
        trial.intended_frames.to_string(),
        trial.offered_frames.to_string(),
        trial.completed_frames.to_string(),
        cell(trial.received_frames),
        cell(trial.lost_frames),
        cell(trial.loss_ratio),
        cell(streams(|stream| stream.duplicate_frames)),
        cell(streams(|stream| stream.reordered_frames)),
        trial.tx_bytes.to_string(),
        cell(trial.rx_bytes),
        trial.tx_fps.to_string(),
        cell(trial.rx_fps),
        trial.tx_bps_l1.to_string(),
        trial.tx_bps_l2.to_string(),
        cell(latency.map(|latency| latency.min)),
        cell(latency.map(|latency| latency.p50)),
        cell(latency.map(|latency| latency.p90)),
        cell(latency.map(|latency| latency.p99)),
        cell(latency.map(|latency| latency.p999)),
        cell(latency.map(|latency| latency.max)),
        cell(latency.map(|latency| latency.count)),
        cell(latency.map(|latency| latency.share)),
        verdict.map(|verdict| name(verdict.kind)).unwrap_or_default(),
        verdict.and_then(|verdict| verdict.stage).map(name).unwrap_or_default(),
        dut.join("; "),
        other.join("; "),
        caveats.join("; "),
    ];
    cells.into()
}

fn cell<T: ToString>(value: Option<T>) -> String {
    value.map(|value| value.to_string()).unwrap_or_default()
}

/// The name that the result file uses.
fn name<T: Serialize>(value: T) -> String {
    serde_json::to_value(value).as_ref().map(plain).unwrap_or_else(|_| plain(&Value::Null))
}
