//! Several results in one table, and which differences exceed the spread.
//!
//! Pure. The first result is the reference. The spread of a ceiling is its bracket, widened by how far trials at the same
//! load differ; that of a run is the range of its trials, or of its seconds where there is one trial. Where no spread is
//! known, a difference is shown and not judged.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{
    check::trials_behind,
    document::{
        Block, Document, Table, Tone,
        chart::{Axis, Chart, Look, Scale, Series, Unit},
        numbers, words,
    },
    labels,
    result::{Ceiling, ResultFile, Trial},
};
use crate::{human, units::per_second};

/// A result with the name it is compared under.
#[derive(Debug, Clone, Copy)]
pub struct Named<'a> {
    /// Short, unique name: the file's.
    pub name: &'a str,
    /// The result.
    pub file: &'a ResultFile,
}

/// One quantity in every result.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    /// Frame size or mix.
    pub frame_size: Value,
    /// Where in the sweep.
    pub axes: BTreeMap<String, Value>,
    /// What is compared: a goal's name, or `received at …`, `delivered by …`.
    pub quantity: String,
    /// Per result; `None` where it has no such value.
    pub values: Vec<Option<Measure>>,
}

/// A value in frames/s with the range that it cannot be told from.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Measure {
    /// Frames/s; 0 where no load met the goal.
    pub fps: u64,
    /// Lowest and highest value it may be; `None` = the spread is not known.
    pub spread: Option<(f64, f64)>,
}

/// How a value differs from the reference's.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Difference {
    /// (value − reference) / reference; infinite where no load met the goal in the reference.
    pub ratio: f64,
    /// The ranges do not touch; `None` = not to be told.
    pub exceeds_spread: Option<bool>,
}

impl Row {
    /// The difference of result `index` from the first.
    pub fn difference(&self, index: usize) -> Option<Difference> {
        let (reference, value) = (self.values[0]?, self.values[index]?);
        let ratio = match (reference.fps, value.fps) {
            (0, 0) => 0.0,
            (0, _) => f64::INFINITY,
            (reference, value) => (value as f64 - reference as f64) / reference as f64,
        };
        let ranges = reference.spread.zip(value.spread);
        let exceeds_spread = ranges.map(|(a, b)| a.1 < b.0 || b.1 < a.0);
        Some(Difference { ratio, exceeds_spread })
    }
}

/// Everything that any of the results has.
pub fn rows(results: &[Named<'_>]) -> Vec<Row> {
    let mut rows: Vec<Row> = Vec::new();
    for (index, result) in results.iter().enumerate() {
        for (frame_size, axes, quantity, measure) in quantities(result.file) {
            let same = |row: &&mut Row| row.frame_size == frame_size && row.axes == axes && row.quantity == quantity;
            match rows.iter_mut().find(same) {
                Some(row) => row.values[index] = Some(measure),
                None => {
                    let mut values = vec![None; results.len()];
                    values[index] = Some(measure);
                    rows.push(Row { frame_size, axes, quantity, values });
                }
            }
        }
    }
    rows
}

type Quantity = (Value, BTreeMap<String, Value>, String, Measure);

fn quantities(file: &ResultFile) -> Vec<Quantity> {
    let ceilings = file.ceilings.iter().filter_map(|ceiling| {
        let measure = match (ceiling.outcome.as_str(), ceiling.upper_fps) {
            // No load from the lowest on meets the goal: whatever the ceiling is, it lies below.
            ("below_min", Some(lowest)) => Measure { fps: 0, spread: Some((0.0, lowest as f64)) },
            _ => Measure { fps: ceiling.lower_fps?, spread: Some(ceiling_spread(file, ceiling)?) },
        };
        Some((ceiling.frame_size.clone(), ceiling.axes.clone(), ceiling.goal.name.clone(), measure))
    });
    let claims = file.claims.iter().map(|claim| {
        let measure = Measure { fps: claim.measured_fps, spread: None };
        (claim.frame_size.clone(), BTreeMap::new(), format!("delivered by {}", claim.port), measure)
    });
    let mut all: Vec<Quantity> = ceilings.chain(claims).collect();
    if file.ceilings.is_empty() && file.claims.is_empty() {
        all.extend(runs(file));
    }
    all
}

/// The bracket, widened by the relative range of what came back at its two loads.
fn ceiling_spread(file: &ResultFile, ceiling: &Ceiling) -> Option<(f64, f64)> {
    let ends = [ceiling.lower_fps, ceiling.upper_fps];
    let noise = ends.into_iter().flatten().map(|load| {
        let at_load = trials_behind(file, ceiling).filter(|trial| trial.load_fps == Some(load));
        let (low, high) = at_load
            .filter_map(|trial| trial.rx_fps)
            .fold((u64::MAX, 0), |(low, high), fps| (low.min(fps), high.max(fps)));
        if high == 0 { 0.0 } else { (high - low) as f64 / high as f64 }
    });
    let noise = noise.fold(0.0, f64::max);
    let lower = ceiling.lower_fps? as f64 * (1.0 - noise);
    // Without an upper bound the ceiling may be anywhere above.
    let upper = match ceiling.outcome.as_str() {
        "bounds" => ceiling.upper_fps.map_or(f64::INFINITY, |upper| upper as f64 * (1.0 + noise)),
        _ => f64::INFINITY,
    };
    Some((lower, upper))
}

/// Runs: trials of one load, size and place are repetitions of each other.
fn runs(file: &ResultFile) -> Vec<Quantity> {
    let mut groups: Vec<Vec<&Trial>> = Vec::new();
    for trial in &file.trials {
        let same = |group: &&mut Vec<&Trial>| {
            let known = group[0];
            known.frame_size == trial.frame_size && known.axes == trial.axes && known.load_fps == trial.load_fps
        };
        match groups.iter_mut().find(same) {
            Some(group) => group.push(trial),
            None => groups.push(vec![trial]),
        }
    }
    let quantity = |group: Vec<&Trial>| {
        let first = group[0];
        let received = group.iter().all(|trial| trial.rx_fps.is_some());
        let rates: Vec<u64> = group.iter().map(|trial| trial.rx_fps.unwrap_or(trial.tx_fps)).collect();
        let fps = (rates.iter().map(|&fps| u128::from(fps)).sum::<u128>() / rates.len() as u128) as u64;
        let range = if group.len() > 1 { range(&rates) } else { range(&second_rates(first, received)) };
        // The mean lies in the range, also where the drain brought what no second saw.
        let spread = range.map(|(low, high)| (low.min(fps as f64), high.max(fps as f64)));
        let load = first.load_fps.map_or_else(|| "full speed".to_owned(), human::fps);
        let what = if received { "received" } else { "sent" };
        (first.frame_size.clone(), first.axes.clone(), format!("{what} at {load}"), Measure { fps, spread })
    };
    groups.into_iter().map(quantity).collect()
}

/// Lowest and highest of at least two rates.
fn range(rates: &[u64]) -> Option<(f64, f64)> {
    let low = rates.iter().min()?;
    (rates.len() > 1).then(|| (*low as f64, rates.iter().max().map_or(*low, |high| *high) as f64))
}

/// Rates of the whole seconds.
fn second_rates(trial: &Trial, received: bool) -> Vec<u64> {
    let mut before_s = 0.0;
    let mut rates = Vec::new();
    for second in &trial.seconds {
        let length_ns = ((second.at_s - std::mem::replace(&mut before_s, second.at_s)) * 1e9).round() as u64;
        let frames = if received { second.received_frames } else { Some(second.completed_frames) };
        if let Some(frames) = frames.filter(|_| length_ns > 900_000_000) {
            rates.push(per_second(frames, length_ns));
        }
    }
    rates
}

/// The comparison as a report.
pub fn document(results: &[Named<'_>]) -> Document {
    let rows = rows(results);
    let names: Vec<&str> = results.iter().map(|result| result.name).collect();
    let mut blocks = vec![Block::Table(results_table(results)), Block::Heading("Comparison".to_owned())];
    blocks.push(Block::Table(comparison_table(&names, &rows)));
    blocks.push(Block::Line(Tone::Dim, EXPLANATION.to_owned()));
    blocks.extend(chart(results).map(Block::Chart));
    Document { title: format!("plimsoll report · {}", names.join(" · ")), summary: summary(&names, &rows), blocks }
}

const EXPLANATION: &str = "values are frames/s: per sending port for ceilings, over all ports else (none: no load from the \
    lowest on meets the goal); a difference exceeds the spread when the ranges of both values do not touch: for a ceiling \
    from its lower to its upper bound, widened by how far trials at these loads differ; for a run the range of its repeated \
    trials, or of its seconds";

fn results_table(results: &[Named<'_>]) -> Table {
    let columns = vec![
        words("result"),
        words("started"),
        words("drivers"),
        words("sends with").rank(1),
        words("kernel").rank(2),
        words("command").rank(3),
    ];
    let mut table = Table::new("", columns);
    for result in results {
        let file = result.file;
        let list = |texts: Vec<String>| {
            let mut texts = texts;
            texts.dedup();
            texts.join(", ")
        };
        let senders = file.ports.iter().filter(|port| port.backend != "none");
        table.rows.push(vec![
            result.name.to_owned(),
            file.started_at.clone(),
            list(file.ports.iter().map(|port| port.driver.clone()).collect()),
            list(senders.map(labels::backend).collect()),
            file.host.kernel.clone(),
            file.command.join(" "),
        ]);
    }
    table
}

fn comparison_table(names: &[&str], rows: &[Row]) -> Table {
    let mut columns = vec![words("frames"), words("quantity"), numbers(names[0])];
    for name in &names[1..] {
        columns.extend([numbers(*name), numbers("difference"), words("exceeds the spread")]);
    }
    let mut table = Table::new("", columns);
    for row in rows {
        let value = |index: usize| match row.values[index] {
            None => "–".to_owned(),
            Some(Measure { fps: 0, .. }) => "none".to_owned(),
            Some(Measure { fps, spread: Some((_, f64::INFINITY)) }) => format!("≥ {}", human::count(fps)),
            Some(value) => human::count(value.fps),
        };
        let mut cells = vec![place(row), row.quantity.clone(), value(0)];
        for index in 1..names.len() {
            cells.push(value(index));
            let difference = row.difference(index);
            cells.push(difference.map_or_else(|| "–".to_owned(), |difference| signed_percent(difference.ratio)));
            let exceeds = match difference.map(|difference| difference.exceeds_spread) {
                Some(Some(true)) => "yes",
                Some(Some(false)) => "no",
                Some(None) => "spread not known",
                None => "–",
            };
            cells.push(exceeds.to_owned());
        }
        table.rows.push(cells);
    }
    table
}

fn place(row: &Row) -> String {
    let axes = labels::axes(&row.axes);
    let axes = if axes.is_empty() { axes } else { format!(", {axes}") };
    format!("{}{axes}", labels::size(&row.frame_size))
}

fn signed_percent(ratio: f64) -> String {
    if ratio.is_infinite() {
        return "–".to_owned();
    }
    let rounded = (ratio * 1_000.0).round() / 1_000.0;
    if rounded > 0.0 { format!("+{}", human::percent(rounded)) } else { human::percent(rounded) }
}

fn summary(names: &[&str], rows: &[Row]) -> Vec<(Tone, String)> {
    if rows.iter().all(|row| row.values.iter().flatten().count() < 2) {
        return vec![(Tone::Warn, "these results have no frame size, load and goal in common.".to_owned())];
    }
    let mut sentences = Vec::new();
    let mut judged = 0;
    for row in rows {
        for (index, name) in names.iter().enumerate().skip(1) {
            let Some(Difference { ratio, exceeds_spread: Some(exceeds) }) = row.difference(index) else { continue };
            judged += 1;
            if exceeds {
                let text = format!("{}, {}: {}.", place(row), row.quantity, difference_in_words(ratio, name, names[0]));
                sentences.push((if ratio > 0.0 { Tone::Good } else { Tone::Bad }, text));
            }
        }
    }
    let text = match (judged, sentences.len()) {
        (0, _) => "no spread is known, so no difference can be judged.".to_owned(),
        (judged, 0) => format!("none of the {judged} differences exceeds the spread."),
        (judged, exceeding) => format!("{exceeding} of {judged} differences exceed the spread:"),
    };
    sentences.insert(0, (Tone::Plain, text));
    sentences
}

fn difference_in_words(ratio: f64, name: &str, reference: &str) -> String {
    if ratio <= -1.0 {
        return format!("no load meets the goal in {name}, one does in {reference}");
    }
    if ratio.is_infinite() {
        return format!("a load meets the goal in {name}, none does in {reference}");
    }
    let direction = if ratio > 0.0 { "higher" } else { "lower" };
    let by = human::percent((ratio.abs() * 1_000.0).round() / 1_000.0);
    format!("{name} is {by} {direction} than {reference}, more than the spread")
}

/// Lower bounds of the first goal over frame sizes, a line a result; nothing for sweeps and runs.
fn chart(results: &[Named<'_>]) -> Option<Chart> {
    let goal = &results.iter().find_map(|result| result.file.ceilings.first())?.goal.name;
    let simple = |ceiling: &&Ceiling| ceiling.axes.is_empty() && ceiling.goal.name == *goal;
    let of_goal = |file: &'_ ResultFile| -> Vec<(Value, f64)> {
        let ceilings = file.ceilings.iter().filter(simple);
        ceilings.filter_map(|one| Some((one.frame_size.clone(), one.lower_fps? as f64))).collect()
    };
    let mut sizes: Vec<Value> =
        results.iter().flat_map(|result| of_goal(result.file)).map(|(frame_size, _)| frame_size).collect();
    sizes.sort_by_key(|size| (size.as_u64().unwrap_or(u64::MAX), labels::size(size)));
    sizes.dedup();
    let line = |result: &Named<'_>| {
        let mut points: Vec<(f64, f64)> = of_goal(result.file)
            .into_iter()
            .filter_map(|(frame_size, fps)| Some((sizes.iter().position(|size| *size == frame_size)? as f64, fps)))
            .collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        Series { name: result.name.to_owned(), points, look: Look::Line }
    };
    let series: Vec<Series> = results.iter().map(line).collect();
    (sizes.len() > 1).then(|| Chart {
        title: format!("Ceiling ({goal}) over frame size"),
        x: Axis {
            name: "frame size, bytes with FCS".to_owned(),
            scale: Scale::Names(sizes.iter().map(labels::size).collect()),
            unit: Unit::Plain,
        },
        y: Axis { name: "frames/s per port".to_owned(), scale: Scale::Zero, unit: Unit::Si },
        series,
        marks: Vec::new(),
    })
}

/// The comparison as CSV: a row a quantity, per result the value, and from the second on the difference.
pub fn csv(results: &[Named<'_>]) -> Vec<u8> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    let mut header = vec!["frame_size".to_owned(), "axes".to_owned(), "quantity".to_owned()];
    for (index, result) in results.iter().enumerate() {
        header.push(format!("{}_fps", result.name));
        if index > 0 {
            header.push(format!("{}_difference", result.name));
            header.push(format!("{}_exceeds_spread", result.name));
        }
    }
    let mut lines = vec![header];
    for row in rows(results) {
        let mut cells = vec![labels::size(&row.frame_size), labels::axes(&row.axes), row.quantity.clone()];
        for (index, value) in row.values.iter().enumerate() {
            cells.push(value.map(|value| value.fps.to_string()).unwrap_or_default());
            if index > 0 {
                let difference = row.difference(index);
                let ratio = difference.map(|difference| difference.ratio).filter(|ratio| ratio.is_finite());
                cells.push(ratio.map(|ratio| ratio.to_string()).unwrap_or_default());
                let exceeds = difference.and_then(|difference| difference.exceeds_spread);
                cells.push(exceeds.map(|exceeds| exceeds.to_string()).unwrap_or_default());
            }
        }
        lines.push(cells);
    }
    for line in lines {
        writer.write_record(&line).expect("rows of one length, written to memory");
    }
    writer.into_inner().expect("memory takes all")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(values: Vec<Option<Measure>>) -> Row {
        Row { frame_size: Value::from(64), axes: BTreeMap::new(), quantity: "ndr".to_owned(), values }
    }

    fn measure(fps: u64, spread: Option<(f64, f64)>) -> Option<Measure> {
        Some(Measure { fps, spread })
    }

    #[test]
    fn a_difference_counts_only_where_the_ranges_do_not_touch() {
        let reference = measure(1_000, Some((1_000.0, 1_005.0)));
        for (value, ratio, exceeds) in [
            (measure(1_004, Some((1_004.0, 1_010.0))), 0.004, Some(false)),
            (measure(1_100, Some((1_090.0, 1_110.0))), 0.1, Some(true)),
            (measure(900, Some((890.0, 999.0))), -0.1, Some(true)),
            (measure(500, Some((500.0, f64::INFINITY))), -0.5, Some(false)),
            (measure(1_100, None), 0.1, None),
        ] {
            let difference = row(vec![reference, value]).difference(1).unwrap();
            assert_eq!(difference.exceeds_spread, exceeds);
            assert!((difference.ratio - ratio).abs() < 1e-12);
        }
        assert_eq!(row(vec![reference, None]).difference(1), None);
        let from_none = row(vec![measure(0, Some((0.0, 100.0))), reference]).difference(1);
        assert_eq!(from_none, Some(Difference { ratio: f64::INFINITY, exceeds_spread: Some(true) }));
    }
}
