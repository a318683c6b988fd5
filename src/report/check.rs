//! Does a result file add up? Every derived number is computed again from the counts in the same file.
//!
//! Pure. A result that does not add up was edited, cut or written by a broken program; the report says so.

use std::collections::BTreeMap;

use super::{
    labels,
    result::{Ceiling, Claim, ResultFile, Trial},
};
use crate::{
    meter::{Counts, claim},
    search::{self, Class, Ratio, SearchGoal, classify, conditional_throughput_fps},
    units::{FrameLen, MeanFrame, NS_PER_S, line_rate_fps, per_second},
};

/// What does not add up, a sentence each; empty if everything does.
pub fn contradictions(file: &ResultFile) -> Vec<String> {
    let mut found = Vec::new();
    for (index, trial) in file.trials.iter().enumerate() {
        let mut check = Checker { place: format!("trial {}", index + 1), found: &mut found };
        trial_adds_up(trial, &mut check);
    }
    for ceiling in &file.ceilings {
        let place = format!("ceiling {} of {}", ceiling.goal.name, labels::frames(&ceiling.frame_size));
        ceiling_adds_up(file, ceiling, &mut Checker { place, found: &mut found });
    }
    for claim in &file.claims {
        let place = format!("claim of {} with {}", claim.port, labels::frames(&claim.frame_size));
        claim_adds_up(file, claim, &mut Checker { place, found: &mut found });
    }
    found
}

struct Checker<'a> {
    place: String,
    found: &'a mut Vec<String>,
}

impl Checker<'_> {
    fn equal<T: PartialEq + std::fmt::Debug>(&mut self, what: &str, said: T, counted: T) {
        if said != counted {
            self.differ(what, &said, &counted);
        }
    }

    fn differ(&mut self, what: &str, said: &dyn std::fmt::Debug, counted: &dyn std::fmt::Debug) {
        let plain = |value: &dyn std::fmt::Debug| {
            let text = format!("{value:?}");
            let inner = text.strip_prefix("Some(").and_then(|text| text.strip_suffix(')'));
            inner.map_or_else(|| text.replace("None", "unknown"), str::to_owned)
        };
        self.found.push(format!("{}: {what} is {}, but the counts give {}", self.place, plain(said), plain(counted)));
    }

    /// For what came through a duration in decimal seconds: a millionth, and one for rounding.
    fn close(&mut self, what: &str, said: u64, counted: u64) {
        if said.abs_diff(counted) > 1 + counted / 1_000_000 {
            self.found.push(format!("{}: {what} is {said}, but the counts give {counted}", self.place));
        }
    }

    fn close_ratio(&mut self, what: &str, said: Option<f64>, counted: Option<f64>) {
        let close = match (said, counted) {
            (Some(said), Some(counted)) => (said - counted).abs() <= 1e-9 * counted.abs().max(1.0),
            (said, counted) => said.is_none() && counted.is_none(),
        };
        if !close {
            self.differ(what, &said, &counted);
        }
    }
}

fn ns(seconds: f64) -> u64 {
    (seconds * NS_PER_S as f64).round() as u64
}

fn trial_adds_up(trial: &Trial, check: &mut Checker<'_>) {
    let counts = Counts {
        intended_frames: trial.intended_frames,
        offered_frames: trial.offered_frames,
        completed_frames: trial.completed_frames,
        received_frames: trial.received_frames,
        tx_bytes: trial.tx_bytes,
        rx_bytes: trial.rx_bytes,
    };
    let duration_ns = ns(trial.duration_s);
    check.equal("lost_frames", trial.lost_frames.map(i128::from), counts.lost_frames());
    check.close_ratio("loss_ratio", trial.loss_ratio, counts.loss_ratio());
    check.close("tx_fps", trial.tx_fps, per_second(counts.completed_frames, duration_ns));
    if let (Some(fps), Some(frames)) = (trial.rx_fps, trial.received_frames) {
        check.close("rx_fps", fps, per_second(frames, duration_ns));
    }
    check.equal("rx_fps is known", trial.rx_fps.is_some(), trial.received_frames.is_some());
    check.close("tx_bps_l1", trial.tx_bps_l1, counts.tx_bps_l1(duration_ns));
    check.close("tx_bps_l2", trial.tx_bps_l2, counts.tx_bps_l2(duration_ns));
    if let Some(bytes) = trial.frame_size.as_u64() {
        check.equal("tx_bytes", trial.tx_bytes, trial.completed_frames.saturating_mul(bytes));
    }
    if !trial.ports.is_empty() {
        let sum = |count: fn(&super::result::PortTrial) -> u64| trial.ports.iter().map(count).sum::<u64>();
        check.equal("intended_frames", trial.intended_frames, sum(|port| port.intended_frames));
        check.equal("offered_frames", trial.offered_frames, sum(|port| port.offered_frames));
        check.equal("completed_frames", trial.completed_frames, sum(|port| port.completed_frames));
        check.equal("tx_bytes", trial.tx_bytes, sum(|port| port.tx_bytes));
    }
    for stream in &trial.streams {
        let lost = stream.received_frames.map(|received| i128::from(stream.completed_frames) - i128::from(received));
        check.equal(&format!("lost_frames of {}", stream.name), stream.lost_frames.map(i128::from), lost);
    }
}

fn ceiling_adds_up(file: &ResultFile, ceiling: &Ceiling, check: &mut Checker<'_>) {
    let goal = search_goal(ceiling);
    let mut by_load: BTreeMap<u64, Vec<search::Trial>> = BTreeMap::new();
    for trial in trials_behind(file, ceiling) {
        if let Some(trial) = trial.as_searched() {
            by_load.entry(trial.input.load_fps).or_default().push(trial);
        }
    }
    let class = |trials: &[search::Trial]| classify(&goal, trials);
    let upper = by_load.iter().find(|(_, trials)| class(trials) == Class::Upper).map(|(&load, _)| load);
    let below = by_load.iter().rev().filter(|(load, _)| upper.is_none_or(|upper| **load < upper));
    let lower = below.into_iter().find(|(_, trials)| class(trials) == Class::Lower);
    // Where the generator was the limit, a load that failed only because it was not sent is no bound of the DUT's.
    if !(ceiling.outcome == "generator_limited" && ceiling.upper_fps.is_none()) {
        check.equal("upper_fps", ceiling.upper_fps, upper);
    }
    check.equal("lower_fps", ceiling.lower_fps, lower.map(|(&load, _)| load));
    let throughput = lower.map(|(&load, trials)| conditional_throughput_fps(&goal, load, trials));
    check.equal("throughput_fps", ceiling.throughput_fps, throughput);
    if let (Some(fps), Some(mean)) =
        (ceiling.throughput_fps, labels::mean_of(&ceiling.frame_size, trials_behind(file, ceiling)))
    {
        check.close("bps_l1", ceiling.bps_l1.unwrap_or(0), claim::bps_l1(fps, mean));
        check.close("bps_l2", ceiling.bps_l2.unwrap_or(0), claim::bps_l2(fps, mean));
    }
}

/// The trials that a ceiling rests on: those with its frame size at its place in the sweep, except those that only compare settings.
pub fn trials_behind<'a>(file: &'a ResultFile, ceiling: &'a Ceiling) -> impl Iterator<Item = &'a Trial> {
    let is_behind = |trial: &&Trial| trial.frame_size == ceiling.frame_size && trial.axes == ceiling.axes;
    file.trials.iter().filter(|trial| !trial.is_comparison).filter(is_behind)
}

fn search_goal(ceiling: &Ceiling) -> SearchGoal {
    const BILLION: u64 = 1_000_000_000;
    let ratio = |value: f64| Ratio::new((value * BILLION as f64).round() as u64, BILLION);
    SearchGoal {
        name: ceiling.goal.name.clone(),
        loss_ratio: ratio(ceiling.goal.loss_ratio),
        exceed_ratio: ratio(ceiling.goal.exceed_ratio),
        width: ratio(ceiling.goal.width),
        initial_trial_ns: ns(ceiling.goal.final_trial_s),
        final_trial_ns: ns(ceiling.goal.final_trial_s),
        duration_sum_ns: ns(ceiling.goal.duration_sum_s),
    }
}

fn claim_adds_up(file: &ResultFile, claim: &Claim, check: &mut Checker<'_>) {
    let mean = match claim.frame_size.as_u64() {
        Some(bytes) => FrameLen::new(bytes).map(MeanFrame::of),
        None => labels::mean_frame(file, &claim.frame_size),
    };
    let Some(mean) = mean else { return };
    let theoretical = claim.claim_mbps.filter(|&mbps| mbps > 0).map(|mbps| line_rate_fps(mbps * 1_000_000, mean));
    check.equal("theoretical_fps", claim.theoretical_fps, theoretical);
    check.close("bps_l1", claim.bps_l1, claim::bps_l1(claim.measured_fps, mean));
    check.close("bps_l2", claim.bps_l2, claim::bps_l2(claim.measured_fps, mean));
    let ratio = theoretical.filter(|&fps| fps > 0).map(|fps| claim.measured_fps as f64 / fps as f64);
    check.close_ratio("ratio", claim.ratio, ratio);
}
