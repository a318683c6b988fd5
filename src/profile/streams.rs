//! Reads streams: headers and their fields, sizes, rates, modes, and which stream follows which.
//!
//! Pure. Ports are known already; a stream names its own by position or interface.

use super::{
    At, MAX_STREAMS, Profile, ReadFile, SizeMix, capture, keys,
    node::{Kind, Node, Section, Source, parse_integer, suggest},
    size::{MAX_PATTERN_FRAMES, SizeItem},
    stream::{Header, ModeConfig, StreamConfig},
    values,
};
use crate::{
    error::{Error, Result},
    units::{Rate, parse_duration_ns},
    wire::{capture::MAX_CAPTURE_BYTES, layer::LayerKind},
};

/// Reads `streams:` into the profile, whose ports are known; `size` is for streams that give none.
pub(super) fn read(
    source: &Source<'_>,
    node: &Node,
    profile: &mut Profile,
    size: &SizeMix,
    read: ReadFile<'_>,
) -> Result<()> {
    let items = source.items(node);
    if items.is_empty() || items.len() > MAX_STREAMS {
        return Err(source.fail(node.at, format!("{} streams; 1…{MAX_STREAMS} are possible", items.len())));
    }
    let mut nexts: Vec<Option<&Node>> = Vec::with_capacity(items.len());
    let mut captured_bytes = 0;
    for (index, item) in items.iter().enumerate() {
        let (stream, next) = stream(source, item, index, profile, size, read)?;
        if let Some(twin) = profile.streams.iter().find(|other| other.name == stream.name) {
            let cause = format!("stream `{}` has the name of the one in line {}", stream.name, twin.at.line);
            return Err(source.fail(stream.at, cause));
        }
        captured_bytes += stream.capture.iter().flat_map(|c| &c.frames).map(|frame| frame.len).sum::<usize>();
        if captured_bytes > MAX_CAPTURE_BYTES {
            let cause = format!("the capture files together have more than {} MiB", MAX_CAPTURE_BYTES >> 20);
            return Err(source.fail(stream.at, cause));
        }
        profile.streams.push(stream);
        nexts.push(next);
    }
    link(source, profile, items, &nexts)
}

/// Resolves every `next` to a stream, and decides which streams start by themselves.
fn link(source: &Source<'_>, profile: &mut Profile, items: &[Node], nexts: &[Option<&Node>]) -> Result<()> {
    let mut self_start: Vec<bool> = profile.streams.iter().map(|stream| stream.self_start).collect();
    for (index, next) in nexts.iter().enumerate() {
        let Some(node) = next else { continue };
        let name = source.text(node, "a stream's name")?;
        let names: Vec<&str> = profile.streams.iter().map(|stream| stream.name.as_str()).collect();
        let Some(target) = names.iter().position(|other| *other == name) else {
            return Err(source.fail(node.at, format!("there is no stream `{name}`")).remedy(suggest(name, &names)));
        };
        let stream = &profile.streams[index];
        if profile.streams[target].port != stream.port {
            return Err(source.fail(node.at, format!("`{name}` is a stream of another port")));
        }
        if stream.mode == ModeConfig::Continuous && stream.capture.is_none() {
            return Err(source
                .fail(node.at, "a continuous stream never ends, so nothing is next")
                .remedy("give it mode: burst and frames"));
        }
        self_start[target] &= target <= index && profile.streams[target].next.is_some();
        profile.streams[index].next = Some(target);
    }
    // A stream that is some stream's next waits for it, unless it says otherwise or begins a ring.
    for (index, (stream, item)) in profile.streams.iter_mut().zip(items).enumerate() {
        let says = matches!(&item.kind, Kind::Map(entries) if entries.iter().any(|(key, ..)| key == "self_start"));
        if !says {
            stream.self_start = self_start[index];
        }
    }
    for port in 0..profile.ports.len() {
        let mut of_port = profile.streams.iter().filter(|stream| stream.port == port).peekable();
        if let Some(first) = of_port.peek().map(|stream| stream.at)
            && !of_port.any(|stream| stream.self_start)
        {
            let cause = format!("no stream of {} starts: all wait for another", profile.ports[port].interface);
            return Err(source.fail(first, cause).remedy("give one self_start: true"));
        }
    }
    Ok(())
}

fn stream<'n>(
    source: &Source<'n>,
    node: &'n Node,
    index: usize,
    profile: &Profile,
    size: &SizeMix,
    read: ReadFile<'_>,
) -> Result<(StreamConfig, Option<&'n Node>)> {
    let map = source.section(node, "stream", keys::STREAM)?;
    let name = match map.take("name")? {
        Some(node) => {
            let name = source.text(node, "a name")?;
            if name.chars().any(char::is_control) {
                return Err(source
                    .fail(node.at, "a stream's name has control characters")
                    .remedy("give it printable ones"));
            }
            name.to_owned()
        }
        None => format!("stream{index}"),
    };
    let port = match map.take("port")? {
        Some(node) => port_position(source, node, profile)?,
        None => profile.real_ports().next().unwrap_or(0),
    };
    let rx_port = match map.take("rx_port")? {
        Some(node) if matches!(&node.kind, Kind::Scalar(text) if text == "none") => None,
        Some(node) => Some(port_position(source, node, profile)?),
        None => profile.partner(port),
    };
    let capture = match map.take("pcap")? {
        Some(node) => Some(capture::read(source, node, read)?),
        None => None,
    };
    let headers = match map.take("headers")? {
        Some(node) if capture.is_some() => {
            return Err(source.fail(node.at, "a stream is either headers or a capture file"));
        }
        Some(node) => headers(source, node)?,
        None if capture.is_some() => Vec::new(),
        None => vec![Header::new(LayerKind::Udp, node.at)],
    };
    let own_size = map.take("size")?;
    if let (Some(node), true) = (own_size, capture.is_some()) {
        return Err(source.fail(node.at, "the frames of a capture file have their own sizes"));
    }
    let own_rate = map.take("rate")?.map(|node| rate(source, node)).transpose()?;
    let share = match map.take("share")? {
        Some(node) if own_rate.is_some() => {
            return Err(source.fail(node.at, "a stream has a rate of its own or a share of the port's, not both"));
        }
        Some(node) => source.integer(node, "a share", 1, 1 << 32)?,
        None => 1,
    };
    let mode = mode(source, &map)?;
    let next = map.take("next")?;
    let stream = StreamConfig {
        at: node.at,
        name,
        port,
        rx_port,
        headers,
        track: match map.take("track")? {
            Some(node) => source.boolean(node, "track")?,
            None => capture.is_none(),
        },
        capture,
        size: own_size.map(|node| size_mix(source, node)).transpose()?.unwrap_or_else(|| size.clone()),
        rate: own_rate,
        share,
        start_delay_ns: map.take("start_delay")?.map_or(Ok(0), |node| duration_ns(source, node))?,
        mode,
        next: None,
        loops: match map.take("loops")? {
            Some(node) => source.integer(node, "a number of loops", 0, 1 << 32)?,
            None => 0,
        },
        self_start: match map.take("self_start")? {
            Some(node) => source.boolean(node, "self_start")?,
            None => true,
        },
    };
    Ok((stream, next))
}

fn mode(source: &Source<'_>, map: &Section<'_>) -> Result<ModeConfig> {
    const MODES: [&str; 3] = ["continuous", "burst", "multi_burst"];
    let mode_node = map.take("mode")?;
    let frames = map.take("frames")?;
    let gap = map.take("gap")?;
    let bursts = map.take("bursts")?;
    let text = match mode_node {
        Some(node) => source.text(node, "a mode")?,
        None if bursts.is_some() || gap.is_some() => "multi_burst",
        None if frames.is_some() => "burst",
        None => "continuous",
    };
    let needs_frames = || match frames {
        Some(node) => source.integer(node, "a number of frames", 1, 1 << 62),
        None => Err(source.fail(mode_node.map_or(map.at, |node| node.at), format!("mode {text} needs `frames`"))),
    };
    let refuse = |node: Option<&Node>, key| match node {
        Some(node) => Err(source.fail(node.at, format!("`{key}` has no meaning in mode {text}"))),
        None => Ok(()),
    };
    match text {
        "continuous" => {
            refuse(frames, "frames").and(refuse(gap, "gap")).and(refuse(bursts, "bursts"))?;
            Ok(ModeConfig::Continuous)
        }
        "burst" => {
            refuse(gap, "gap").and(refuse(bursts, "bursts"))?;
            Ok(ModeConfig::Burst { frames: needs_frames()? })
        }
        "multi_burst" => Ok(ModeConfig::MultiBurst {
            frames: needs_frames()?,
            gap_ns: gap.map_or(Ok(0), |node| duration_ns(source, node))?,
            bursts: bursts.map_or(Ok(0), |node| source.integer(node, "a number of bursts", 0, 1 << 62))?,
        }),
        other => {
            let at = mode_node.map_or(map.at, |node| node.at);
            Err(source.fail(at, format!("`{other}` is not a mode")).remedy(suggest(other, &MODES)))
        }
    }
}

/// A port by position or interface name.
fn port_position(source: &Source<'_>, node: &Node, profile: &Profile) -> Result<usize> {
    let text = source.text(node, "a port: its number or interface")?;
    let by_name = profile.ports.iter().position(|port| port.interface == text);
    let position = by_name.or_else(|| parse_integer(text).and_then(|n| usize::try_from(n).ok()));
    match position {
        Some(position) if profile.ports.get(position).is_some_and(|port| !port.dummy) => Ok(position),
        _ => {
            let names: Vec<_> = profile.ports.iter().map(|port| port.interface.as_str()).collect();
            let cause = format!("`{text}` is no port of this profile");
            Err(source.fail(node.at, cause).remedy(format!(
                "write 0…{} or one of {}",
                names.len() - 1,
                names.join(", ")
            )))
        }
    }
}

/// `[ethernet, {ipv4: {…}}, …]` or `{ipv4: {…}, udp: {…}}`.
fn headers(source: &Source<'_>, node: &Node) -> Result<Vec<Header>> {
    const MAX_HEADERS: usize = 32;
    let mut found = Vec::new();
    let mut add = |name: &str, at, body: Option<&Node>| {
        let kind = LayerKind::ALL.into_iter().find(|kind| kind.name() == name).ok_or_else(|| {
            let names = LayerKind::ALL.map(LayerKind::name);
            source.fail(at, format!("unknown header `{name}`")).remedy(suggest(name, &names))
        })?;
        found.push(header(source, kind, at, body)?);
        Ok::<_, Error>(())
    };
    for item in if matches!(node.kind, Kind::Map(_)) { std::slice::from_ref(node) } else { source.items(node) } {
        match &item.kind {
            Kind::Scalar(name) => add(name, item.at, None)?,
            Kind::Map(entries) => {
                for (name, at, body) in entries {
                    add(name, *at, Some(body))?;
                }
            }
            other => {
                return Err(source.fail(item.at, format!("a header is a name with its fields, not {}", other.label())));
            }
        }
    }
    if found.is_empty() || found.len() > MAX_HEADERS {
        return Err(source.fail(node.at, format!("{} headers; 1…{MAX_HEADERS} are possible", found.len())));
    }
    Ok(found)
}

fn header(source: &Source<'_>, kind: LayerKind, at: At, body: Option<&Node>) -> Result<Header> {
    let mut header = Header::new(kind, at);
    let Some(body) = body else {
        if kind == LayerKind::Raw {
            return Err(source.fail(at, "raw needs its bytes: raw: 0011ff"));
        }
        return Ok(header);
    };
    if kind == LayerKind::Raw {
        header.raw = hex(source, body)?;
        return Ok(header);
    }
    // `vlan: 100` and `mpls: 16` mean their first field.
    if let (Kind::Scalar(_), LayerKind::Vlan | LayerKind::Mpls) = (&body.kind, kind) {
        header.fields.push((0, values::vary(source, body, &kind.fields()[0], kind.name())?));
        return Ok(header);
    }
    let keys: Vec<_> = kind.fields().iter().map(|spec| spec.names).collect();
    let map = source.section(body, kind.name(), &keys)?;
    for (position, spec) in kind.fields().iter().enumerate() {
        if let Some(node) = map.take(spec.names[0])? {
            let what = format!("{}.{}", kind.name(), spec.names[0]);
            header.fields.push((position, values::vary(source, node, spec, &what)?));
        }
    }
    Ok(header)
}

/// Bytes in hexadecimal; blanks, colons and a leading 0x may be in between.
fn hex(source: &Source<'_>, node: &Node) -> Result<Vec<u8>> {
    const MAX_RAW: usize = 9216;
    let text = source.text(node, "bytes in hexadecimal")?;
    let digits: String =
        text.trim().trim_start_matches("0x").chars().filter(|c| !c.is_whitespace() && *c != ':').collect();
    if digits.len() % 2 == 1 || digits.is_empty() || digits.len() / 2 > MAX_RAW {
        return Err(
            source.fail(node.at, format!("raw: {} hexadecimal digits are no whole bytes (1…{MAX_RAW})", digits.len()))
        );
    }
    let nibble = |c: char| {
        let digit =
            c.to_digit(16).ok_or_else(|| source.fail(node.at, format!("raw: `{c}` is not a hexadecimal digit")))?;
        Ok::<_, Error>(digit as u8)
    };
    let nibbles = digits.chars().map(nibble).collect::<Result<Vec<u8>>>()?;
    Ok(nibbles.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect())
}

pub(super) fn rate(source: &Source<'_>, node: &Node) -> Result<Rate> {
    let text = source.text(node, "a rate")?;
    text.parse().map_err(|error| source.fail(node.at, error))
}

pub(super) fn duration_ns(source: &Source<'_>, node: &Node) -> Result<u64> {
    let text = source.text(node, "a duration")?;
    if text.trim() == "0" {
        return Ok(0);
    }
    parse_duration_ns(text).map_err(|error| source.fail(node.at, error))
}

/// `64`, `imix`, a genome, or a list of sizes (each once, or `{size: 64, share: 7}`) sent in turn.
pub(super) fn size_mix(source: &Source<'_>, node: &Node) -> Result<SizeMix> {
    let one = |node: &Node| {
        let text = source.text(node, "a frame size")?;
        SizeMix::parse(text).map_err(|error| source.fail(node.at, error))
    };
    let Kind::List(items) = &node.kind else {
        let text = source.text(node, "a frame size")?;
        return match text.contains(',') {
            true => merge(source, node, text.split(',').map(|part| SizeMix::parse(part).map(|mix| (mix, 1)))),
            false => one(node),
        };
    };
    let mut parts = Vec::new();
    for item in items {
        let Kind::Map(_) = &item.kind else {
            parts.push(Ok((one(item)?, 1)));
            continue;
        };
        let map = source.section(item, "size", keys::SIZE)?;
        let mix = one(map.require("size")?)?;
        let share = map.take("share")?;
        let share = share.map_or(Ok(1), |node| source.integer(node, "a share", 1, MAX_PATTERN_FRAMES as u64))?;
        parts.push(Ok((mix, share as usize)));
    }
    merge(source, node, parts.into_iter())
}

fn merge(
    source: &Source<'_>,
    node: &Node,
    parts: impl Iterator<Item = Result<(SizeMix, usize), String>>,
) -> Result<SizeMix> {
    let mut labels: Vec<String> = Vec::new();
    let mut pattern: Vec<SizeItem> = Vec::new();
    for part in parts {
        let (mix, share) = part.map_err(|error| source.fail(node.at, error))?;
        if pattern.len() + mix.pattern.len() * share > MAX_PATTERN_FRAMES {
            return Err(source.fail(node.at, format!("a mix of more than {MAX_PATTERN_FRAMES} frames")));
        }
        labels.push(if share == 1 { mix.label } else { format!("{}*{share}", mix.label) });
        pattern.extend(std::iter::repeat_n(mix.pattern, share).flatten());
    }
    if pattern.is_empty() {
        return Err(source.fail(node.at, "no frame size"));
    }
    Ok(SizeMix { label: labels.join(","), pattern })
}
