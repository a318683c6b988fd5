//! What `plimsoll check` says: a profile's ports and streams, their rates, and the compiled program.
//!
//! Pure. Says what would be sent; knows no NIC, so MAC addresses that only a NIC or ARP knows are shown as placeholders.

use serde_json::{Value, json};

use super::document::{Block, Document, Table, Tone, numbers, words};
use crate::{
    human,
    profile::{PortConfig, Profile},
    program::{Checksum, Compiled, Field, Generator, Mode, StreamProgram, Template, TxProgram, Write},
    units::{MeanFrame, WIRE_OVERHEAD_BYTES},
    wire::{mac::Mac, signature::SignatureKind},
};

/// Describes a compiled profile; `every_byte` adds each template's bytes.
pub fn describe(profile: &Profile, compiled: &Compiled, every_byte: bool) -> Document {
    let mut blocks = vec![Block::Heading("Ports".to_owned()), Block::Table(ports(profile, compiled))];
    blocks.push(Block::Heading("Streams".to_owned()));
    blocks.push(Block::Table(streams(profile, compiled)));
    for program in &compiled.programs {
        for stream in &program.streams {
            blocks.push(Block::Heading(format!("Stream {}", stream.name)));
            blocks.extend(stream_blocks(compiled, stream, every_byte));
        }
    }
    if !compiled.caveats.is_empty() {
        blocks.push(Block::Doubts(compiled.caveats.iter().map(|caveat| caveat.text.clone()).collect()));
    }
    let plural = |count: usize, what: &str| format!("{count} {what}{}", if count == 1 { "" } else { "s" });
    let sizes = match compiled.frame_size.as_str() {
        "pcap" => "frames as captured".to_owned(),
        sizes if sizes.bytes().all(|b| b.is_ascii_digit()) => format!("frames of {sizes} bytes (FCS included)"),
        mix => format!("frames of {mix} (sizes include the FCS)"),
    };
    let summary = format!(
        "{} is good: {}, {}, {sizes}, seed {}.",
        profile.file,
        plural(profile.real_ports().count(), "port"),
        plural(profile.streams.len(), "stream"),
        profile.seed
    );
    Document { title: profile.file.clone(), blocks, summary: vec![(Tone::Good, summary)] }
}

/// The same for programs: one entry for each frame size that was asked for. What is not known without a NIC is null.
pub fn json(checked: &[(Profile, Compiled)]) -> Value {
    let of_size = |(profile, compiled): &(Profile, Compiled)| {
        let program = |port: usize| compiled.programs.iter().position(|program| program.port.index() == port);
        let port = |index: usize| {
            let (config, position) = (&profile.ports[index], program(index));
            let load_fps = position.and_then(|position| compiled.load_fps[position]);
            json!({
                "name": config.interface,
                "src_ip": config.src_ip,
                "gateway": config.default_gw,
                "dest_mac": config.dest_mac.map(|mac| Mac(mac).to_string()),
                "sends": position.is_some(),
                "load_fps": load_fps,
            })
        };
        let stream = |stream: &StreamProgram| {
            let config = &profile.streams[stream.id.index()];
            let min = compiled.min_sizes[stream.id.index()];
            json!({
                "name": stream.name,
                "port": profile.ports[config.port].interface,
                "rx_port": config.rx_port.map(|port| &profile.ports[port].interface),
                "frame_bytes": stream.pattern.iter().map(|&t| stream.templates[usize::from(t)].frame_len.bytes()).collect::<Vec<_>>(),
                "min_frame_bytes": min.headers_bytes,
                "flows": stream.flows,
                "weight": stream.schedule.weight,
            })
        };
        json!({
            "frame_size": compiled.frame_size,
            "ports": profile.real_ports().map(port).collect::<Vec<_>>(),
            "streams": compiled.programs.iter().flat_map(|program| &program.streams).map(stream).collect::<Vec<_>>(),
            "caveats": compiled.caveats,
        })
    };
    let first = checked.first().map(|(profile, _)| profile);
    json!({
        "schema": "plimsoll-check/1",
        "version": env!("CARGO_PKG_VERSION"),
        "profile": first.map(|profile| &profile.file),
        "seed": first.map(|profile| profile.seed),
        "checked": checked.iter().map(of_size).collect::<Vec<_>>(),
    })
}

fn ports(profile: &Profile, compiled: &Compiled) -> Table {
    let columns = ["port", "interface", "address", "gateway", "destination MAC", "source MAC", "VLAN"].map(words);
    let columns = columns.into_iter().chain([numbers("load"), numbers("L1"), numbers("L2")]).collect();
    let mut table = Table::new("", columns);
    for (index, port) in profile.ports.iter().enumerate() {
        if port.dummy {
            continue;
        }
        let program = compiled.programs.iter().position(|program| program.port.index() == index);
        let [load, l1, l2] = match program {
            None => ["receives only".to_owned(), String::new(), String::new()],
            Some(position) => load(&compiled.programs[position], compiled.load_fps[position]),
        };
        let text = |value: Option<String>| value.unwrap_or_default();
        table.rows.push(vec![
            index.to_string(),
            port.interface.clone(),
            text(port.src_ip.map(|ip| match port.prefix_len {
                Some(prefix) => format!("{ip}/{prefix}"),
                None => ip.to_string(),
            })),
            text(port.default_gw.map(|gateway| gateway.to_string())),
            destination_mac(port),
            port.src_mac.map_or_else(|| "the NIC's own".to_owned(), |mac| Mac(mac).to_string()),
            port.vlans.iter().map(|tag| tag.id.to_string()).collect::<Vec<_>>().join("."),
            load,
            l1,
            l2,
        ]);
    }
    table.without_empty_columns()
}

fn destination_mac(port: &PortConfig) -> String {
    match (port.dest_mac, port.default_gw) {
        (Some(mac), _) => Mac(mac).to_string(),
        (None, Some(gateway)) if gateway.is_ipv4() => "by ARP".to_owned(),
        (None, Some(_)) => "by ND".to_owned(),
        (None, None) => "none".to_owned(),
    }
}

/// A program's load as frames/s and as L1 and L2 bit/s.
fn load(program: &TxProgram, load_fps: Option<u64>) -> [String; 3] {
    let is_recorded = |stream: &StreamProgram| matches!(stream.schedule.mode, Mode::Recorded { .. });
    if program.streams.iter().all(is_recorded) {
        return ["as recorded".to_owned(), String::new(), String::new()];
    }
    let Some(fps) = load_fps else {
        return ["as fast as possible".to_owned(), String::new(), String::new()];
    };
    // Bursts and chains never send all at once, and pause: the sum of their rates would be more than ever leaves.
    if program.streams.iter().any(|stream| !matches!(stream.schedule.mode, Mode::Continuous)) {
        let highest = highest_fps(program, fps);
        return [format!("at most {}", human::fps(highest)), String::new(), String::new()];
    }
    let mean = program.mean_frame();
    [human::fps(fps), human::bps(bits(fps, mean, WIRE_OVERHEAD_BYTES)), human::bps(bits(fps, mean, 0))]
}

/// The most that leaves at one time: of streams that follow each other, only the fastest counts.
fn highest_fps(program: &TxProgram, load_fps: u64) -> u64 {
    let weights: u64 = program.streams.iter().map(|stream| stream.schedule.weight).sum();
    let mut chain: Vec<usize> = (0..program.streams.len()).collect();
    for (from, stream) in program.streams.iter().enumerate() {
        if let Some(next) = stream.schedule.next {
            let (old, new) = (chain[usize::from(next)], chain[from]);
            chain.iter_mut().filter(|id| **id == old).for_each(|id| *id = new);
        }
    }
    let fastest = |id: usize| {
        let of_chain = program.streams.iter().zip(&chain).filter(|(_, other)| **other == id);
        of_chain.map(|(stream, _)| stream.schedule.weight).max().unwrap_or(0)
    };
    let weight: u64 = (0..program.streams.len()).map(fastest).sum();
    (u128::from(load_fps) * u128::from(weight) / u128::from(weights.max(1))) as u64
}

fn bits(fps: u64, mean: MeanFrame, overhead_bytes: u64) -> u64 {
    let bytes = u128::from(mean.bytes) + u128::from(overhead_bytes) * u128::from(mean.frames);
    u64::try_from(u128::from(fps) * bytes * 8 / u128::from(mean.frames)).unwrap_or(u64::MAX)
}

fn streams(profile: &Profile, compiled: &Compiled) -> Table {
    let columns = vec![
        words("stream"),
        words("from → to"),
        numbers("frame"),
        numbers("least"),
        numbers("mean"),
        numbers("flows"),
        numbers("rate"),
        words("mode"),
        words("carries"),
    ];
    let mut table = Table::new("", columns);
    for (program, load_fps) in compiled.programs.iter().zip(&compiled.load_fps) {
        let weights: u64 = program.streams.iter().map(|stream| stream.schedule.weight).sum();
        for stream in &program.streams {
            let config = &profile.streams[stream.id.index()];
            let from = &profile.ports[program.port.index()].interface;
            let to = match config.rx_port {
                Some(port) => profile.ports[port].interface.as_str(),
                None => "(the DUT)",
            };
            let mean = MeanFrame {
                bytes: stream.pattern.iter().map(|&t| stream.templates[usize::from(t)].frame_len.bytes()).sum(),
                frames: stream.pattern.len() as u64,
            };
            table.rows.push(vec![
                stream.name.clone(),
                format!("{from} → {to}"),
                if config.capture.is_some() { "pcap".to_owned() } else { config.size.label.clone() },
                compiled.min_sizes[stream.id.index()].headers_bytes.to_string(),
                format!("{:.2}", mean.bytes as f64 / mean.frames as f64),
                if stream.flows == u64::MAX { "many".to_owned() } else { human::count(stream.flows) },
                rate(stream, weights, *load_fps),
                mode(program, stream),
                carries(stream),
            ]);
        }
    }
    table
}

/// In frames/s, or its share of a load that is not known yet.
fn rate(stream: &StreamProgram, weights: u64, load_fps: Option<u64>) -> String {
    let weight = stream.schedule.weight;
    match load_fps {
        _ if matches!(stream.schedule.mode, Mode::Recorded { .. }) => String::new(),
        Some(load) => human::fps((u128::from(load) * u128::from(weight) / u128::from(weights)) as u64),
        None => format!("{weight} of {weights}"),
    }
}

fn mode(program: &TxProgram, stream: &StreamProgram) -> String {
    let schedule = &stream.schedule;
    let mut text = match &schedule.mode {
        Mode::Continuous => "continuous".to_owned(),
        Mode::Burst { frames } => format!("burst of {}", human::count(*frames)),
        Mode::MultiBurst { frames, gap_ns, count: 0 } => {
            format!("bursts of {}, {} apart", human::count(*frames), human::ns(*gap_ns))
        }
        Mode::MultiBurst { frames, gap_ns, count } => {
            format!("{count} bursts of {}, {} apart", human::count(*frames), human::ns(*gap_ns))
        }
        Mode::Recorded { pass_ns, count: 0, .. } => format!("as recorded ({} a pass), for ever", human::ns(*pass_ns)),
        Mode::Recorded { pass_ns, count, .. } => format!("as recorded ({} a pass), {count}×", human::ns(*pass_ns)),
    };
    if schedule.start_delay_ns > 0 {
        text += &format!(", after {}", human::ns(schedule.start_delay_ns));
    }
    if !schedule.self_start {
        text += ", when its turn comes";
    }
    if let Some(next) = schedule.next {
        text += &format!(", then {}", program.streams[usize::from(next)].name);
    }
    text
}

fn carries(stream: &StreamProgram) -> String {
    let mut kinds: Vec<&str> = stream.templates.iter().map(template_carries).collect();
    kinds.sort_unstable();
    kinds.dedup();
    kinds.join(" or ")
}

fn template_carries(template: &Template) -> &'static str {
    match template.signature.map(|site| site.kind) {
        Some(SignatureKind::Full) => "sequence, stamp",
        Some(SignatureKind::Short) => "sequence",
        None => "nothing",
    }
}

fn stream_blocks(compiled: &Compiled, stream: &StreamProgram, every_byte: bool) -> Vec<Block> {
    let min = compiled.min_sizes[stream.id.index()];
    let mut blocks = Vec::new();
    let headers = &compiled.headers[stream.id.index()];
    if !headers.is_empty() {
        let names: Vec<_> = headers.iter().map(|kind| kind.name()).collect();
        let needs = format!(
            "{}; at least {} bytes, with a sequence {}, with a time stamp too {} (FCS included)",
            names.join(" / "),
            min.headers_bytes,
            min.short_bytes,
            min.full_bytes
        );
        blocks.push(Block::Line(Tone::Plain, needs));
    }
    if stream.templates.len() > 1 && !headers.is_empty() {
        blocks.push(Block::Line(Tone::Plain, format!("sizes in this order, again and again: {}", order(stream))));
    }
    if !stream.fields.is_empty() {
        blocks.push(Block::Table(fields(stream)));
    }
    const SHOWN: usize = 16;
    blocks.push(Block::Table(templates(stream, SHOWN)));
    if stream.templates.len() > SHOWN {
        blocks.push(Block::Line(Tone::Dim, format!("and {} more templates", stream.templates.len() - SHOWN)));
    }
    if every_byte {
        for template in stream.templates.iter().take(SHOWN) {
            blocks.push(Block::Line(Tone::Plain, format!("{} bytes:", template.frame_len)));
            blocks.extend(hex(&template.bytes).map(|line| Block::Line(Tone::Dim, line)));
        }
    }
    blocks
}

/// The pattern of sizes, runs together: `64 ×7, 570 ×4, 1518`.
fn order(stream: &StreamProgram) -> String {
    const SHOWN: usize = 24;
    let runs: Vec<String> = stream
        .pattern
        .chunk_by(|a, b| a == b)
        .map(|run| {
            let bytes = stream.templates[usize::from(run[0])].frame_len;
            if run.len() > 1 { format!("{bytes} ×{}", run.len()) } else { bytes.to_string() }
        })
        .collect();
    let more = if runs.len() > SHOWN { ", …" } else { "" };
    format!("{}{more}", runs[..runs.len().min(SHOWN)].join(", "))
}

fn fields(stream: &StreamProgram) -> Table {
    let mut table =
        Table::new("", vec![words("varies"), words("values"), numbers("period"), numbers("every"), words("bytes")]);
    let first = &stream.templates[0];
    for (index, field) in stream.fields.iter().enumerate() {
        let write = first.writes.iter().find(|write| usize::from(write.field) == index);
        let period = if field.period >= 1 << 63 { "endless".to_owned() } else { human::count(field.period) };
        table.rows.push(vec![
            field.name.clone(),
            values(field, write),
            period,
            if field.div == 1 { "frame".to_owned() } else { format!("{} frames", human::count(field.div)) },
            write.map_or_else(String::new, |write| bytes_of(write.offset, u16::from(write.width))),
        ]);
    }
    table
}

/// Values as numbers, addresses in their own notation.
fn values(field: &Field, write: Option<&Write>) -> String {
    let show = |value: u64| value_text(field, write, value);
    match &field.generator {
        Generator::Step { start, step } => {
            let last = start.wrapping_add(step.wrapping_mul(field.period.saturating_sub(1)));
            let signed = *step as i64;
            match signed {
                1 => format!("{} … {}", show(*start), show(last)),
                _ => format!("{} … {} by {signed}", show(*start), show(last)),
            }
        }
        Generator::List(list) => {
            let mut texts: Vec<_> = list.iter().take(4).map(|&value| show(value)).collect();
            if list.len() > 4 {
                texts.push("…".to_owned());
            }
            texts.join(", ")
        }
        Generator::Random { low, span, .. } => {
            format!("random {} … {}", show(*low), show(low.saturating_add(span.saturating_sub(1))))
        }
    }
}

fn value_text(field: &Field, write: Option<&Write>, value: u64) -> String {
    let leaf = field.name.rsplit('.').next().unwrap_or_default();
    let is_address = matches!(leaf, "src" | "dst");
    match write.map(|write| write.width) {
        Some(4) if is_address => std::net::Ipv4Addr::from(value as u32).to_string(),
        Some(6) if is_address => {
            let [_, _, mac @ ..] = value.to_be_bytes();
            Mac(mac).to_string()
        }
        Some(8) if is_address => {
            format!("…:{:x}:{:x}:{:x}:{:x}", value >> 48, value >> 32 & 0xFFFF, value >> 16 & 0xFFFF, value & 0xFFFF)
        }
        _ => value.to_string(),
    }
}

fn templates(stream: &StreamProgram, shown: usize) -> Table {
    let columns = vec![numbers("template"), numbers("frame"), words("signature"), words("checksums")];
    let mut table = Table::new("", columns);
    for (index, template) in stream.templates.iter().take(shown).enumerate() {
        let signature = match template.signature {
            Some(site) => {
                format!("{} at {}", template_carries(template), bytes_of(site.offset, site.kind.len() as u16))
            }
            None => "none".to_owned(),
        };
        let checksums: Vec<_> = template.checksums.iter().map(|Checksum { offset, .. }| bytes_of(*offset, 2)).collect();
        table.rows.push(vec![index.to_string(), template.frame_len.to_string(), signature, checksums.join(", ")]);
    }
    table
}

fn bytes_of(offset: u16, width: u16) -> String {
    if width == 1 { offset.to_string() } else { format!("{offset}–{}", offset + width - 1) }
}

/// Sixteen bytes a line.
fn hex(bytes: &[u8]) -> impl Iterator<Item = String> {
    bytes.chunks(16).enumerate().map(|(line, chunk)| {
        let text: Vec<String> = chunk.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{:04}  {}", line * 16, text.join(" "))
    })
}
