//! What a search found: ceilings beside the line rate, forwarding rates, goals, claims, and the trials behind them.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::{Block, Table, Tone, chart, doubts, numbers, or_dash, point, words};
use crate::{
    caveat::Code,
    human,
    report::{
        check::trials_behind,
        labels,
        result::{Ceiling, ResultFile, Trial},
        sentence,
    },
    search::{forwarding_rate_at_maximum_load, maximum_forwarding_rate},
    units::line_rate_fps,
};

/// What a search's numbers mean (RFC 9971 asks for these statements).
const STATEMENT: &str = "loads are frames/s per sending port; lower is the highest load settled to meet the goal, upper the \
    lowest settled not to, width = (upper − lower) / upper; throughput is RFC 9971's conditional throughput; a trial's \
    duration is the time of sending, its loss is judged after the drain, and frames that were never sent count against the \
    load, never as the DUT's loss; such tests belong on an isolated network (RFC 6815)";

/// Sections on ceilings; nothing where no search ran.
pub(super) fn ceiling_blocks(file: &ResultFile) -> Vec<Block> {
    if file.ceilings.is_empty() {
        return Vec::new();
    }
    let mut blocks = vec![Block::Heading("Ceilings".to_owned()), Block::Table(ceiling_table(file))];
    blocks.extend(chart::ceiling_charts(file).into_iter().map(Block::Chart));
    blocks.extend(limit_lines(file));
    blocks.push(Block::Table(forwarding_table(file)));
    blocks.push(Block::Table(goal_table(file)));
    blocks.push(Block::Line(Tone::Dim, STATEMENT.to_owned()));
    let senders = file.ports.iter().filter(|port| port.backend != "none").count();
    if senders > 1 {
        blocks.push(Block::Line(Tone::Dim, format!("{senders} ports send: the aggregate is {senders} times the load")));
    }
    let texts = file.ceilings.iter().flat_map(|ceiling| {
        let place = format!("{}, {}", point(&ceiling.frame_size, &ceiling.axes), ceiling.goal.name);
        ceiling.caveats.iter().map(move |caveat| format!("{place}: {}", caveat.text))
    });
    blocks.extend(doubts(texts.collect()));
    blocks
}

/// Names of everything varied, in order.
fn axis_names<'a>(all: impl Iterator<Item = &'a BTreeMap<String, Value>>) -> BTreeSet<&'a str> {
    all.flat_map(|axes| axes.keys().map(String::as_str)).filter(|name| *name != "frame_size").collect()
}

fn ceiling_table(file: &ResultFile) -> Table {
    let axes = axis_names(file.ceilings.iter().map(|ceiling| &ceiling.axes));
    let mut columns = vec![numbers("frame")];
    columns.extend(axes.iter().map(|name| numbers(labels::axis(name))));
    columns.extend([
        words("goal"),
        numbers("lower, frames/s"),
        numbers("upper"),
        numbers("throughput").rank(4),
        numbers("width").rank(5),
        numbers("line rate").rank(6),
        numbers("of line").rank(2),
        numbers("L1 bit/s").rank(1),
        numbers("L2 bit/s").rank(3),
        words("result").rank(1),
        words("limit"),
        numbers("trials").rank(7),
        numbers("traffic").rank(8),
    ]);
    let mut table = Table::new("", columns);
    for ceiling in &file.ceilings {
        let mut row = vec![labels::size(&ceiling.frame_size)];
        row.extend(axes.iter().map(|name| ceiling.axes.get(*name).map(labels::plain).unwrap_or_default()));
        row.extend(ceiling_cells(file, ceiling));
        table.rows.push(row);
    }
    table
}

fn ceiling_cells(file: &ResultFile, ceiling: &Ceiling) -> Vec<String> {
    let at_least = matches!(ceiling.outcome.as_str(), "at_least_max" | "generator_limited");
    let prefix = if at_least { "≥ " } else { "" };
    let line = line_rate(file, &ceiling.frame_size);
    let share = line.zip(ceiling.lower_fps).map(|(line, lower)| lower as f64 / line.max(1) as f64);
    let width = ceiling.upper_fps.filter(|&upper| upper > 0).zip(ceiling.lower_fps);
    let width = width.map(|(upper, lower)| upper.saturating_sub(lower) as f64 / upper as f64);
    let trials: Vec<&Trial> = trials_behind(file, ceiling).collect();
    vec![
        ceiling.goal.name.clone(),
        or_dash(ceiling.lower_fps, |fps| format!("{prefix}{}", human::count(fps))),
        or_dash(ceiling.upper_fps, human::count),
        or_dash(ceiling.throughput_fps, human::count),
        or_dash(width, human::percent),
        or_dash(line, human::count),
        or_dash(share, human::share),
        or_dash(ceiling.bps_l1, human::bps),
        or_dash(ceiling.bps_l2, human::bps),
        labels::outcome(&ceiling.outcome).to_owned(),
        labels::limit(ceiling.verdict.kind).to_owned(),
        trials.len().to_string(),
        human::seconds(trials.iter().map(|trial| trial.duration_s).sum()),
    ]
}

/// Frames/s per port at the lowest link speed that a sending port claims.
pub(super) fn line_rate(file: &ResultFile, frame_size: &Value) -> Option<u64> {
    let claims = file.ports.iter().filter(|port| port.backend != "none").filter_map(|port| port.claim_mbps);
    let mbps = claims.filter(|&mbps| mbps > 0).min()?;
    Some(line_rate_fps(mbps.saturating_mul(1_000_000), labels::mean_frame(file, frame_size)?))
}

/// Evidence and advice, once for all ceilings that share them.
fn limit_lines(file: &ResultFile) -> Vec<Block> {
    let mut groups: Vec<(String, Vec<String>)> = Vec::new();
    for ceiling in &file.ceilings {
        let verdict = &ceiling.verdict;
        let mut text = sentence::limit(verdict);
        for (word, sentences) in [("", &verdict.evidence), ("advice: ", &verdict.advice)] {
            for sentence in sentences {
                text.push_str(&format!("; {word}{sentence}"));
            }
        }
        let axes = labels::axes(&ceiling.axes);
        let axes = if axes.is_empty() { axes } else { format!(" ({axes})") };
        let place = format!("{} {}{axes}", labels::size(&ceiling.frame_size), ceiling.goal.name);
        match groups.iter_mut().find(|(known, _)| *known == text) {
            Some((_, places)) => places.push(place),
            None => groups.push((text, vec![place])),
        }
    }
    let line = |(text, places): (String, Vec<String>)| {
        let everywhere = places.len() == file.ceilings.len() && places.len() > 1;
        let places = if everywhere { "everywhere".to_owned() } else { places.join(", ") };
        Block::Line(Tone::Plain, format!("{places}: {text}"))
    };
    groups.into_iter().map(line).collect()
}

/// Points of the sweep in the order they were measured.
pub(super) fn points(file: &ResultFile) -> Vec<&Ceiling> {
    let mut points: Vec<&Ceiling> = Vec::new();
    for ceiling in &file.ceilings {
        if !points.iter().any(|known| known.frame_size == ceiling.frame_size && known.axes == ceiling.axes) {
            points.push(ceiling);
        }
    }
    points
}

fn forwarding_table(file: &ResultFile) -> Table {
    let columns = vec![
        words("forwarding rate (RFC 2285)"),
        numbers("highest (MFR), frames/s"),
        numbers("at load").rank(1),
        numbers("at the highest load (FRMOL)"),
        numbers("load").rank(1),
    ];
    let mut table = Table::new("", columns);
    for ceiling in points(file) {
        let trials: Vec<_> = trials_behind(file, ceiling).filter_map(Trial::as_searched).collect();
        let (Some(highest), Some(overload)) =
            (maximum_forwarding_rate(&trials), forwarding_rate_at_maximum_load(&trials))
        else {
            continue;
        };
        table.rows.push(vec![
            point(&ceiling.frame_size, &ceiling.axes),
            human::count(highest.forwarding_fps),
            human::count(highest.load_fps),
            human::count(overload.forwarding_fps),
            human::count(overload.load_fps),
        ]);
    }
    table
}

fn goal_table(file: &ResultFile) -> Table {
    let columns = vec![
        words("goal"),
        numbers("loss up to"),
        numbers("bad trials up to"),
        numbers("trial"),
        numbers("trials in all").rank(1),
        numbers("width"),
    ];
    let mut table = Table::new("", columns);
    let mut seen = BTreeSet::new();
    for goal in file.ceilings.iter().map(|ceiling| &ceiling.goal).filter(|goal| seen.insert(goal.name.clone())) {
        table.rows.push(vec![
            goal.name.clone(),
            human::percent(goal.loss_ratio),
            human::percent(goal.exceed_ratio),
            human::seconds(goal.final_trial_s),
            human::seconds(goal.duration_sum_s),
            human::percent(goal.width),
        ]);
    }
    table
}

/// Sections on link-speed claims; nothing where none was compared.
pub(super) fn claim_blocks(file: &ResultFile) -> Vec<Block> {
    if file.claims.is_empty() {
        return Vec::new();
    }
    let columns = vec![
        words("interface"),
        numbers("frame"),
        numbers("claims"),
        numbers("at the claim, frames/s").rank(2),
        numbers("measured, frames/s"),
        numbers("L1 bit/s"),
        numbers("L2 bit/s").rank(1),
        numbers("of the claim"),
    ];
    let mut table = Table::new("", columns);
    for claim in &file.claims {
        table.rows.push(vec![
            claim.port.clone(),
            labels::size(&claim.frame_size),
            claim.claim_mbps.map_or_else(|| "no speed".to_owned(), human::link_speed),
            or_dash(claim.theoretical_fps, human::count),
            human::count(claim.measured_fps),
            human::bps(claim.bps_l1),
            human::bps(claim.bps_l2),
            or_dash(claim.ratio, human::share),
        ]);
    }
    vec![Block::Heading("Claimed link speed and what was delivered".to_owned()), Block::Table(table)]
}

/// Up to this many trials, their table stands open at first.
const OPEN_TRIALS: usize = 30;

/// Every trial, a row each.
pub(super) fn trial_blocks(file: &ResultFile) -> Vec<Block> {
    if file.trials.is_empty() {
        return Vec::new();
    }
    let axes = axis_names(file.trials.iter().map(|trial| &trial.axes));
    let mut columns = vec![numbers("#"), numbers("frame")];
    columns.extend(axes.iter().map(|name| numbers(labels::axis(name))));
    columns.extend([
        numbers("load, frames/s"),
        numbers("sent for").rank(4),
        numbers("intended").rank(2),
        numbers("offered"),
        numbers("completed").rank(1),
        numbers("received"),
        numbers("loss"),
        numbers("p99").rank(3),
        words("doubts").rank(5),
    ]);
    let mut table = Table::new("", columns);
    for (index, trial) in file.trials.iter().enumerate() {
        let mut row = vec![(index + 1).to_string(), labels::size(&trial.frame_size)];
        row.extend(axes.iter().map(|name| trial.axes.get(*name).map(labels::plain).unwrap_or_default()));
        let codes: Vec<String> = trial.caveats.iter().map(|caveat| labels::code(caveat.code)).collect();
        row.extend([
            trial.load_fps.map_or_else(|| "max".to_owned(), human::count),
            human::seconds(trial.duration_s),
            human::count(trial.intended_frames),
            human::count(trial.offered_frames),
            human::count(trial.completed_frames),
            or_dash(trial.received_frames, human::count),
            or_dash(trial.loss_ratio, human::percent),
            trial.latency_ns.as_ref().map(|latency| human::ns(latency.p99)).unwrap_or_default(),
            codes.join(", "),
        ]);
        table.rows.push(row);
    }
    let title = format!("Trials ({})", file.trials.len());
    let open = file.trials.len() <= OPEN_TRIALS;
    let mut blocks = vec![Block::Table(table.without_empty_columns())];
    blocks.extend(doubts(trial_doubts(file)));
    vec![Block::Fold { title, open, blocks }]
}

/// The doubts about trials, one sentence a kind: with the numbers of all its trials, and the words of the first.
fn trial_doubts(file: &ResultFile) -> Vec<String> {
    let mut kinds: BTreeMap<Code, (&str, Vec<String>)> = BTreeMap::new();
    for (index, trial) in file.trials.iter().enumerate() {
        for caveat in &trial.caveats {
            let (_, trials) = kinds.entry(caveat.code).or_insert((&caveat.text, Vec::new()));
            trials.push((index + 1).to_string());
        }
    }
    let sentence = |(text, trials): (&str, Vec<String>)| match trials.as_slice() {
        [only] => format!("trial {only}: {text}"),
        [first, ..] => format!("{} trials ({}), the first: {text}", trials.len(), short_list(&trials, first)),
        [] => text.to_owned(),
    };
    kinds.into_values().map(sentence).collect()
}

/// Up to ten of these, or how they begin.
fn short_list(all: &[String], first: &str) -> String {
    if all.len() <= 10 { all.join(", ") } else { format!("from {first} on") }
}
