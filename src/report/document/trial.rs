//! One trial in full: the four counts, the rates beside the claim, latency, stages, other frames, doubts.

use super::{Block, Table, Tone, chart, doubts, numbers, or_dash, point, words};
use crate::{
    human,
    meter::Counts,
    report::{
        labels,
        result::{Latency, Port, PortTrial, ResultFile, StreamTrial, Trial, Verdict},
    },
    units::{MeanFrame, NS_PER_S, line_rate_fps, per_second},
};

/// Sections of one trial.
pub(super) fn blocks(file: &ResultFile, trial: &Trial) -> Vec<Block> {
    let mut blocks = vec![Block::Heading(heading(trial)), Block::Table(frames_table(file, trial))];
    blocks.push(Block::Table(rates_table(file, trial)));
    match latency_table(trial) {
        Some(table) => blocks.push(Block::Table(table)),
        None => blocks.push(Block::Line(Tone::Dim, "latency: not measured".to_owned())),
    }
    blocks.extend(stage_table(trial).map(Block::Table));
    blocks.extend(chart::seconds_chart(trial).map(Block::Chart));
    if !trial.other.is_empty() {
        let kinds: Vec<String> =
            trial.other.iter().map(|(kind, frames)| format!("{} {kind}", human::count(*frames))).collect();
        let text = format!("other frames, never counted as received: {}", kinds.join(", "));
        blocks.push(Block::Line(Tone::Plain, text));
    }
    blocks.extend(trial.verdict.iter().flat_map(verdict_lines));
    blocks.extend(doubts(trial.caveats.iter().map(|caveat| caveat.text.clone()).collect()));
    blocks
}

fn heading(trial: &Trial) -> String {
    let load = match trial.load_fps {
        _ if trial.recorded => "as recorded".to_owned(),
        None => "as fast as possible".to_owned(),
        Some(load) => format!("{} per port", human::fps(load)),
    };
    format!(
        "{} (4-byte FCS included) · {load} · {}",
        point(&trial.frame_size, &trial.axes),
        human::seconds(trial.duration_s)
    )
}

/// Evidence and advice of a verdict.
pub(super) fn verdict_lines(verdict: &Verdict) -> Vec<Block> {
    let evidence = verdict.evidence.iter().map(|text| Block::Line(Tone::Plain, format!("evidence: {text}")));
    let advice = verdict.advice.iter().map(|text| Block::Line(Tone::Plain, format!("advice: {text}")));
    evidence.chain(advice).collect()
}

/// The four counts, never merged: the total, each port, each stream.
fn frames_table(file: &ResultFile, trial: &Trial) -> Table {
    let columns = vec![
        words("frames"),
        numbers("intended"),
        numbers("offered"),
        numbers("completed"),
        numbers("received"),
        numbers("lost"),
        numbers("loss"),
        numbers("seen twice").rank(1),
        numbers("reordered").rank(1),
    ];
    let mut table = Table::new("", columns);
    let open = trial.load_fps.is_none();
    table.rows.push(count_row("total", total_counts(trial), open, (None, None)));
    for part in &trial.ports {
        let mut row = count_row(&format!("port {}", part.name), port_counts(part), open, (None, None));
        if !sends(file, &part.name) {
            row[1..4].fill("–".to_owned());
        }
        // A frame is sent by one port and received by another: only totals and streams can lose.
        row[5..7].fill(String::new());
        table.rows.push(row);
    }
    for stream in &trial.streams {
        let name = format!("stream {}", stream.name);
        let order = (stream.duplicate_frames, stream.reordered_frames);
        table.rows.push(count_row(&name, stream_counts(stream), open, order));
    }
    table.without_empty_columns()
}

/// Does this port send? A port the file does not list may.
fn sends(file: &ResultFile, name: &str) -> bool {
    port(file, name).is_none_or(|port| port.backend != "none")
}

fn port<'a>(file: &'a ResultFile, name: &str) -> Option<&'a Port> {
    file.ports.iter().find(|port| port.name == name)
}

fn count_row(name: &str, counts: Counts, open: bool, order: (Option<u64>, Option<u64>)) -> Vec<String> {
    let seen = |frames: Option<u64>| frames.filter(|&frames| frames > 0).map(human::count).unwrap_or_default();
    let lost = counts.lost_frames().map(|lost| lost as i64);
    vec![
        name.to_owned(),
        if open && counts.intended_frames == 0 { "max".to_owned() } else { human::count(counts.intended_frames) },
        human::count(counts.offered_frames),
        human::count(counts.completed_frames),
        or_dash(counts.received_frames, human::count),
        or_dash(lost, human::signed),
        or_dash(counts.loss_ratio(), human::percent),
        seen(order.0),
        seen(order.1),
    ]
}

fn total_counts(trial: &Trial) -> Counts {
    Counts {
        intended_frames: trial.intended_frames,
        offered_frames: trial.offered_frames,
        completed_frames: trial.completed_frames,
        received_frames: trial.received_frames,
        tx_bytes: trial.tx_bytes,
        rx_bytes: trial.rx_bytes,
    }
}

fn port_counts(part: &PortTrial) -> Counts {
    Counts {
        intended_frames: part.intended_frames,
        offered_frames: part.offered_frames,
        completed_frames: part.completed_frames,
        received_frames: part.received_frames,
        tx_bytes: part.tx_bytes,
        rx_bytes: part.rx_bytes,
    }
}

fn stream_counts(stream: &StreamTrial) -> Counts {
    Counts {
        intended_frames: stream.intended_frames,
        offered_frames: stream.offered_frames,
        completed_frames: stream.completed_frames,
        received_frames: stream.received_frames,
        tx_bytes: stream.tx_bytes,
        rx_bytes: stream.rx_bytes,
    }
}

/// Frames/s, L1 and L2 bit/s of each port and direction, beside the link speed that the port claims.
fn rates_table(file: &ResultFile, trial: &Trial) -> Table {
    let columns = vec![
        words("rates"),
        numbers("frames/s"),
        numbers("L1 bit/s"),
        numbers("L2 bit/s"),
        words("of the claim").rank(1),
    ];
    let mut table = Table::new("", columns);
    let duration_ns = (trial.duration_s * NS_PER_S as f64).round() as u64;
    let senders = trial.ports.iter().filter(|part| part.completed_frames > 0).count();
    if senders > 1 || trial.ports.is_empty() {
        let counts = total_counts(trial);
        table.rows.push(rate_row("sent, total", counts.completed_frames, counts.tx_bytes, duration_ns, None));
        if let (Some(frames), Some(bytes)) = (counts.received_frames, counts.rx_bytes) {
            table.rows.push(rate_row("received, total", frames, bytes, duration_ns, None));
        }
    }
    for part in &trial.ports {
        let claim = port(file, &part.name).map(speed);
        if sends(file, &part.name) {
            let name = format!("sent by {}", part.name);
            table.rows.push(rate_row(&name, part.completed_frames, part.tx_bytes, duration_ns, claim));
        }
    }
    for part in &trial.ports {
        let claim = port(file, &part.name).map(speed);
        // A port that sends and got nothing back is in the counts above; here it would only be noise.
        let silent = part.received_frames == Some(0) && sends(file, &part.name);
        if let (Some(frames), Some(bytes), false) = (part.received_frames, part.rx_bytes, silent) {
            let name = format!("received by {}", part.name);
            table.rows.push(rate_row(&name, frames, bytes, duration_ns, claim));
        }
    }
    table.without_empty_columns()
}

/// The link speed that a port is measured by: the profile's, else the NIC's claim.
struct Speed {
    mbps: Option<u64>,
    is_given: bool,
}

fn speed(port: &Port) -> Speed {
    Speed { mbps: port.link_mbps.or(port.claim_mbps), is_given: port.link_mbps.is_some() }
}

fn rate_row(name: &str, frames: u64, bytes: u64, duration_ns: u64, claim: Option<Speed>) -> Vec<String> {
    let counts = Counts { completed_frames: frames, tx_bytes: bytes, ..Counts::default() };
    // One frame has no rate, nor have a few within no time.
    if !human::has_rate(frames, duration_ns) {
        return vec![name.to_owned(), "–".to_owned(), "–".to_owned(), "–".to_owned(), String::new()];
    }
    let fps = per_second(frames, duration_ns);
    let claim = match claim {
        None => String::new(),
        Some(Speed { mbps: None, .. }) => "no speed claimed".to_owned(),
        Some(Speed { mbps: Some(mbps), is_given }) => {
            let mean = MeanFrame { bytes, frames };
            let at_claim = if frames == 0 { 0 } else { line_rate_fps(mbps.saturating_mul(1_000_000), mean) };
            let share = if at_claim == 0 { 0.0 } else { fps as f64 / at_claim as f64 };
            let whose = if is_given { " (the profile's link_speed)" } else { "" };
            format!("{} of {}{whose}", human::share(share), human::link_speed(mbps))
        }
    };
    vec![
        name.to_owned(),
        human::count(fps),
        human::bps(counts.tx_bps_l1(duration_ns)),
        human::bps(counts.tx_bps_l2(duration_ns)),
        claim,
    ]
}

fn latency_table(trial: &Trial) -> Option<Table> {
    let columns = vec![
        words("latency"),
        numbers("min"),
        numbers("p50"),
        numbers("p90").rank(2),
        numbers("p99"),
        numbers("p99.9").rank(1),
        numbers("max"),
        numbers("of the received").rank(1),
    ];
    let mut table = Table::new("", columns);
    let streams = trial.streams.iter().filter_map(|stream| {
        stream.latency_ns.as_ref().map(|latency| latency_row(format!("stream {}", stream.name), latency))
    });
    table.rows.extend(trial.latency_ns.as_ref().map(|latency| match trial.received_frames {
        Some(_) => latency_row("all".to_owned(), latency),
        // Frames without a signature were sent too: those with one have a latency, of an unknown share.
        None => {
            let mut row = latency_row("those recognised".to_owned(), latency);
            row.pop();
            row.push("–".to_owned());
            row
        }
    }));
    table.rows.extend(streams);
    (!table.rows.is_empty()).then_some(table)
}

fn latency_row(name: String, latency: &Latency) -> Vec<String> {
    let values = [latency.min, latency.p50, latency.p90, latency.p99, latency.p999, latency.max];
    let mut row = vec![name];
    row.extend(values.map(human::ns));
    row.push(human::percent(latency.share));
    row
}

/// Characters of a full bar.
const BAR_CHARS: u64 = 12;

/// The DUT's counters that moved, stage by stage on the frame's way, each as a share of what was sent.
fn stage_table(trial: &Trial) -> Option<Table> {
    if trial.dut.is_empty() {
        return None;
    }
    let columns = vec![words("stage"), words("counter"), numbers("change"), numbers("of the sent"), words("").rank(1)];
    let mut table = Table::new("", columns);
    let mut deltas: Vec<_> = trial.dut.iter().collect();
    // Stages in the order a frame meets them; what belongs to none comes last.
    deltas.sort_by_key(|delta| (delta.stage.is_none(), delta.stage));
    let limit = trial.verdict.as_ref().and_then(|verdict| verdict.stage);
    for delta in deltas {
        let frames = delta.delta.unsigned_abs();
        let share = (trial.completed_frames > 0).then(|| frames as f64 / trial.completed_frames as f64);
        let mark = if delta.stage.is_some() && delta.stage == limit { "► " } else { "" };
        table.rows.push(vec![
            format!("{mark}{}", delta.stage.map_or("–", labels::stage)),
            delta.counter.clone(),
            human::delta(delta.delta),
            or_dash(share, human::percent),
            if delta.stage.is_some() { bar(frames, trial.completed_frames) } else { String::new() },
        ]);
    }
    Some(table.without_empty_columns())
}

/// A bar of up to [`BAR_CHARS`] blocks; at least one eighth where there is anything.
fn bar(part: u64, whole: u64) -> String {
    const EIGHTHS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
    if part == 0 || whole == 0 {
        return String::new();
    }
    let eighths = u128::from(BAR_CHARS * 8) * u128::from(part.min(whole)) / u128::from(whole);
    let eighths = (eighths as usize).max(1);
    "█".repeat(eighths / 8) + EIGHTHS[eighths % 8]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_stand_beside_the_profiles_link_speed_where_it_gives_one() {
        let port = |link_mbps| Port { claim_mbps: Some(10_000), link_mbps, ..Port::default() };
        let cell =
            |link_mbps| rate_row("sent", 1_488_095, 1_488_095 * 64, NS_PER_S, Some(speed(&port(link_mbps)))).remove(4);
        assert_eq!(cell(None), "10 % of 10 Gb/s");
        assert_eq!(cell(Some(1_000)), "100 % of 1 Gb/s (the profile's link_speed)");
    }

    #[test]
    fn latency_of_some_frames_is_not_called_that_of_all() {
        let row = |received_frames| {
            let trial = Trial { received_frames, latency_ns: Some(Latency::default()), ..Trial::default() };
            latency_table(&trial).unwrap().rows.remove(0)
        };
        assert_eq!(row(Some(1))[0], "all");
        assert_eq!((row(None)[0].as_str(), row(None)[7].as_str()), ("those recognised", "–"));
    }

    #[test]
    fn a_recorded_trial_is_not_as_fast_as_possible() {
        let trial = |recorded| Trial { recorded, ..Trial::default() };
        assert!(
            heading(&trial(true)).contains("as recorded") && heading(&trial(false)).contains("as fast as possible")
        );
    }
}
