//! Which charts a report has, as data: series of points and marks on named axes. `svg` draws them.

use serde_json::Value;

use super::search::{line_rate, points};
use crate::{
    human,
    report::{
        check::trials_behind,
        document::point,
        labels,
        result::{Ceiling, Latency, ResultFile, Trial},
    },
    search::{forwarding_rate_at_maximum_load, maximum_forwarding_rate},
};

/// A chart.
#[derive(Debug, Clone, PartialEq)]
pub struct Chart {
    /// What it shows, as a reader would ask for it.
    pub title: String,
    /// Horizontal axis.
    pub x: Axis,
    /// Vertical axis.
    pub y: Axis,
    /// What is drawn, the most important first.
    pub series: Vec<Series>,
    /// Loads worth a line.
    pub marks: Vec<Mark>,
}

/// An axis.
#[derive(Debug, Clone, PartialEq)]
pub struct Axis {
    /// Name with unit and layer.
    pub name: String,
    /// How values are spread.
    pub scale: Scale,
    /// How values are written.
    pub unit: Unit,
}

/// How an axis spreads values.
#[derive(Debug, Clone, PartialEq)]
pub enum Scale {
    /// Evenly, from 0.
    Zero,
    /// Evenly, around the values.
    Linear,
    /// By decades.
    Log,
    /// One place for each of these names; values are their indices.
    Names(Vec<String>),
}

/// How an axis writes values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// With a decimal prefix.
    Si,
    /// A ratio as a percentage.
    Percent,
    /// Nanoseconds.
    Ns,
    /// As it is.
    Plain,
}

impl Unit {
    /// A tick's label.
    pub fn label(self, value: f64) -> String {
        // Ticks are round: what follows their last digit that is not 0 says nothing.
        let short = |text: String| match text.split_once(' ') {
            Some((number, unit)) if number.contains('.') => {
                format!("{} {unit}", number.trim_end_matches('0').trim_end_matches('.'))
            }
            _ => text,
        };
        match self {
            Unit::Si => short(human::si(value, "")).replace(' ', ""),
            Unit::Percent => human::percent((value * 1e9).round() / 1e9).replace(' ', ""),
            Unit::Ns => short(human::ns(value.round().max(0.0) as u64)),
            Unit::Plain => format!("{}", (value * 1e6).round() / 1e6),
        }
    }
}

/// Points with a name.
#[derive(Debug, Clone, PartialEq)]
pub struct Series {
    /// What the legend says.
    pub name: String,
    /// Points in drawing order.
    pub points: Vec<(f64, f64)>,
    /// How they look.
    pub look: Look,
}

/// How a series looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Look {
    /// Dots joined by a line.
    Line,
    /// A dashed line: a limit or a claim, not a measurement.
    Dashed,
    /// Dots alone.
    Dots,
    /// Bars; only on an axis of names.
    Bars,
}

/// A vertical line at a load.
#[derive(Debug, Clone, PartialEq)]
pub struct Mark {
    /// Where.
    pub x: f64,
    /// What: NDR, PDR, MFR.
    pub name: String,
}

fn axis(name: &str, scale: Scale, unit: Unit) -> Axis {
    Axis { name: name.to_owned(), scale, unit }
}

fn series(name: impl Into<String>, look: Look, points: Vec<(f64, f64)>) -> Series {
    Series { name: name.into(), points, look }
}

/// A scale that shows small values beside large ones: by decades where they are further apart than a factor of 8.
fn fitting(series: &[Series]) -> Scale {
    let values = || series.iter().flat_map(|one| one.points.iter().map(|point| point.1));
    let (low, high) = (values().fold(f64::MAX, f64::min), values().fold(0.0, f64::max));
    if low > 0.0 && high / low > 8.0 { Scale::Log } else { Scale::Zero }
}

/// Keeps a chart that has something to show.
fn worth_drawing(chart: Chart) -> Option<Chart> {
    chart.series.iter().any(|one| one.points.len() > 1 || one.look == Look::Bars).then_some(chart)
}

/// Ceilings over frame sizes with the claim's line rate (RFC 2544 §26.1), and over each numeric axis of a sweep.
pub(super) fn ceiling_charts(file: &ResultFile) -> Vec<Chart> {
    let mut charts: Vec<Chart> = ceiling_over_size(file).into_iter().collect();
    let mut axes: Vec<&str> =
        file.ceilings.iter().flat_map(|ceiling| ceiling.axes.keys().map(String::as_str)).collect();
    axes.sort_unstable();
    axes.dedup();
    charts.extend(axes.into_iter().filter(|name| *name != "frame_size").filter_map(|name| ceiling_over(file, name)));
    charts
}

fn ceiling_over_size(file: &ResultFile) -> Option<Chart> {
    let mut sizes = Vec::new();
    for ceiling in &file.ceilings {
        if !sizes.contains(&ceiling.frame_size) {
            sizes.push(ceiling.frame_size.clone());
        }
    }
    if sizes.len() < 2 {
        return None;
    }
    // Sizes ascend; mixes stand after them.
    sizes.sort_by_key(|size| size.as_u64().unwrap_or(u64::MAX));
    let place = |ceiling: &Ceiling| sizes.iter().position(|size| *size == ceiling.frame_size).unwrap_or(0) as f64;
    // In a sweep one goal is enough for one picture.
    let first_goal = file.ceilings.first().map(|ceiling| ceiling.goal.name.clone());
    let mut all = grouped(file, |ceiling| {
        let axes = labels::axes(&ceiling.axes);
        let goal = &ceiling.goal.name;
        match axes.is_empty() {
            true => Some((goal.clone(), place(ceiling))),
            false => (first_goal.as_ref() == Some(goal)).then(|| (format!("{goal}, {axes}"), place(ceiling))),
        }
    });
    let line: Vec<(f64, f64)> = sizes
        .iter()
        .enumerate()
        .filter_map(|(index, size)| Some((index as f64, line_rate(file, size)? as f64)))
        .collect();
    if !line.is_empty() {
        all.push(series("line rate at the claim", Look::Dashed, line));
    }
    worth_drawing(Chart {
        title: "Ceiling over frame size".to_owned(),
        x: axis("frame size, bytes with FCS", Scale::Names(sizes.iter().map(labels::size).collect()), Unit::Plain),
        y: axis("frames/s per port", fitting(&all), Unit::Si),
        series: all,
        marks: Vec::new(),
    })
}

fn ceiling_over(file: &ResultFile, name: &str) -> Option<Chart> {
    let mut values: Vec<f64> =
        file.ceilings.iter().filter_map(|ceiling| ceiling.axes.get(name).and_then(Value::as_f64)).collect();
    values.sort_by(f64::total_cmp);
    values.dedup();
    let all = grouped(file, |ceiling| {
        let value = ceiling.axes.get(name)?.as_f64()?;
        let place = values.iter().position(|&known| known == value)?;
        let mut others = ceiling.axes.clone();
        others.remove(name);
        let axes = labels::axes(&others);
        let axes = if axes.is_empty() { axes } else { format!(", {axes}") };
        Some((format!("{} {}{axes}", labels::size(&ceiling.frame_size), ceiling.goal.name), place as f64))
    });
    worth_drawing(Chart {
        title: format!("Ceiling over {}", labels::axis(name)),
        // Rings and workers are varied by factors: even places show them best.
        x: axis(&labels::axis(name), Scale::Names(values.iter().map(f64::to_string).collect()), Unit::Plain),
        y: axis("frames/s per port", fitting(&all), Unit::Si),
        series: all,
        marks: Vec::new(),
    })
}

/// Lower bounds as lines: `place` names the line and the x of each ceiling. Lines that lie on each other are one.
fn grouped(file: &ResultFile, place: impl Fn(&Ceiling) -> Option<(String, f64)>) -> Vec<Series> {
    let mut all: Vec<Series> = Vec::new();
    for ceiling in &file.ceilings {
        let (Some((name, x)), Some(lower)) = (place(ceiling), ceiling.lower_fps) else { continue };
        match all.iter_mut().find(|one| one.name == name) {
            Some(one) => one.points.push((x, lower as f64)),
            None => all.push(series(name, Look::Line, vec![(x, lower as f64)])),
        }
    }
    for one in &mut all {
        one.points.sort_by(|a, b| a.0.total_cmp(&b.0));
    }
    all
}

/// Loss, forwarding rate and latency over the load, for one point of the sweep.
pub(super) fn load_charts(file: &ResultFile, ceiling: &Ceiling) -> Vec<Chart> {
    let trials: Vec<&Trial> = trials_behind(file, ceiling).collect();
    let marks = load_marks(file, ceiling, &trials);
    [loss_chart(&trials, &marks), forwarding_chart(&trials, &marks), latency_chart(&trials, &marks)]
        .into_iter()
        .flatten()
        .collect()
}

/// A heading for each point of the sweep with the charts over its loads.
pub(super) fn load_sections(file: &ResultFile) -> Vec<(String, Vec<Chart>)> {
    let title = |ceiling: &Ceiling| format!("Over the load: {}", point(&ceiling.frame_size, &ceiling.axes));
    points(file).into_iter().map(|ceiling| (title(ceiling), load_charts(file, ceiling))).collect()
}

/// NDR, PDR and the like at their lower bounds, MFR at its load.
fn load_marks(file: &ResultFile, at: &Ceiling, trials: &[&Trial]) -> Vec<Mark> {
    let same = file.ceilings.iter().filter(|other| other.frame_size == at.frame_size && other.axes == at.axes);
    let mut marks: Vec<Mark> =
        same.filter_map(|one| Some(Mark { x: one.lower_fps? as f64, name: one.goal.name.to_uppercase() })).collect();
    let counted: Vec<_> = trials.iter().filter_map(|trial| trial.as_searched()).collect();
    if let Some(highest) = maximum_forwarding_rate(&counted) {
        marks.push(Mark { x: highest.load_fps as f64, name: "MFR".to_owned() });
    }
    if let Some(overload) = forwarding_rate_at_maximum_load(&counted) {
        marks.push(Mark { x: overload.load_fps as f64, name: "FRMOL".to_owned() });
    }
    marks
}

/// Load per port and value of each trial, by ascending load.
fn over_load(trials: &[&Trial], value: impl Fn(&Trial) -> Option<f64>) -> Vec<(f64, f64)> {
    let mut points: Vec<(f64, f64)> =
        trials.iter().filter_map(|trial| Some((trial.load_fps? as f64, value(trial)?))).collect();
    points.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1)));
    points
}

const LOAD_AXIS: &str = "intended load, frames/s per port";

fn loss_chart(trials: &[&Trial], marks: &[Mark]) -> Option<Chart> {
    let points = over_load(trials, |trial| trial.loss_ratio);
    worth_drawing(Chart {
        title: "Loss".to_owned(),
        x: axis(LOAD_AXIS, Scale::Linear, Unit::Si),
        y: axis("lost / completed", Scale::Zero, Unit::Percent),
        series: vec![series("each trial", Look::Dots, points)],
        marks: marks.iter().filter(|mark| mark.name != "FRMOL").cloned().collect(),
    })
}

fn forwarding_chart(trials: &[&Trial], marks: &[Mark]) -> Option<Chart> {
    // Loads and rates per port: the counts are over all ports that send.
    let senders = |trial: &Trial| trial.ports.iter().filter(|port| port.intended_frames > 0).count().max(1) as f64;
    let points = over_load(trials, |trial| Some(trial.rx_fps? as f64 / senders(trial)));
    let sent = over_load(trials, |trial| Some(trial.tx_fps as f64 / senders(trial)));
    worth_drawing(Chart {
        title: "Forwarding rate".to_owned(),
        x: axis(LOAD_AXIS, Scale::Linear, Unit::Si),
        y: axis("frames/s per port", Scale::Linear, Unit::Si),
        series: vec![series("received", Look::Dots, points), series("sent", Look::Dashed, sent)],
        marks: marks.to_vec(),
    })
}

fn latency_chart(trials: &[&Trial], marks: &[Mark]) -> Option<Chart> {
    let line = |name: &str, percentile: fn(&Latency) -> u64| {
        let points = over_load(trials, |trial| trial.latency_ns.as_ref().map(|latency| percentile(latency) as f64));
        series(name, Look::Line, points)
    };
    let all = [
        line("p50", |latency| latency.p50),
        line("p90", |latency| latency.p90),
        line("p99", |latency| latency.p99),
        line("p99.9", |latency| latency.p999),
    ];
    worth_drawing(Chart {
        title: "Latency".to_owned(),
        x: axis(LOAD_AXIS, Scale::Linear, Unit::Si),
        y: axis("latency", Scale::Log, Unit::Ns),
        series: all.into(),
        marks: marks.iter().filter(|mark| !matches!(mark.name.as_str(), "FRMOL" | "MFR")).cloned().collect(),
    })
}

/// What each interface delivered beside its claim.
pub(super) fn claim_charts(file: &ResultFile) -> Vec<Chart> {
    let mut ports: Vec<&str> = file.claims.iter().map(|claim| claim.port.as_str()).collect();
    ports.dedup();
    let chart = |port: &str| {
        let claims: Vec<_> = file.claims.iter().filter(|claim| claim.port == port).collect();
        let at = |value: fn(&crate::report::result::Claim) -> Option<f64>| -> Vec<(f64, f64)> {
            claims.iter().enumerate().filter_map(|(index, claim)| Some((index as f64, value(claim)?))).collect()
        };
        let mut all = vec![series("measured", Look::Bars, at(|claim| Some(claim.bps_l1 as f64)))];
        let claimed = at(|claim| claim.claim_mbps.map(|mbps| mbps as f64 * 1e6));
        if !claimed.is_empty() {
            all.push(series("claimed link speed", Look::Dashed, claimed));
        }
        let sizes = claims.iter().map(|claim| labels::size(&claim.frame_size)).collect();
        worth_drawing(Chart {
            title: format!("Delivered by {port}"),
            x: axis("frame size, bytes with FCS", Scale::Names(sizes), Unit::Plain),
            y: axis("bit/s (L1)", Scale::Zero, Unit::Si),
            series: all,
            marks: Vec::new(),
        })
    };
    ports.into_iter().filter_map(chart).collect()
}

/// Rates of a trial, second by second.
pub(super) fn seconds_chart(trial: &Trial) -> Option<Chart> {
    let mut before_s = 0.0;
    let lengths: Vec<f64> = trial
        .seconds
        .iter()
        .map(|second| (second.at_s - std::mem::replace(&mut before_s, second.at_s)).max(1e-9))
        .collect();
    let rate = |count: fn(&crate::report::result::Second) -> Option<u64>| -> Vec<(f64, f64)> {
        let seconds = trial.seconds.iter().zip(&lengths);
        seconds.filter_map(|(second, length)| Some((second.at_s, count(second)? as f64 / length))).collect()
    };
    let mut all = vec![series("completed", Look::Line, rate(|second| Some(second.completed_frames)))];
    let received = rate(|second| second.received_frames);
    if !received.is_empty() {
        all.insert(0, series("received", Look::Line, received));
    }
    worth_drawing(Chart {
        title: "Second by second".to_owned(),
        x: axis("seconds since the start", Scale::Linear, Unit::Plain),
        y: axis("frames/s, all ports", Scale::Zero, Unit::Si),
        series: all,
        marks: Vec::new(),
    })
}
