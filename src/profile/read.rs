//! Reads a profile from its YAML tree: ports, the DUT, the run's defaults; streams are read in `streams`.
//!
//! Pure. Which keys a mapping may have is in `keys`.

use super::{
    DutConfig, MAX_PORTS, MAX_WORKERS, PortConfig, Profile, ReadFile, SizeMix, VlanTag, beside, keys,
    node::{Kind, Node, Section, Source, suggest},
    ports,
    stream::{Header, ModeConfig, StreamConfig, Values},
    streams::{self, duration_ns, rate},
    text_of, trex,
};
use crate::{
    error::Result,
    units::FrameLen,
    wire::layer::{LayerKind, TPID_SERVICE},
};

/// Parses the text of a profile or of a TRex configuration.
pub(super) fn profile(text: &str, file: &str, read: ReadFile<'_>) -> Result<Profile> {
    let source = Source { file };
    let root = source.parse(text)?;
    let mut profile = Profile {
        file: file.to_owned(),
        ports: Vec::new(),
        streams: Vec::new(),
        dut: None,
        seed: 1,
        rate: None,
        duration_ns: None,
        count: None,
        workers: None,
        bidirectional: false,
        flows: 64,
    };
    if let Some(node) = trex::configuration(&root) {
        profile.ports = trex::trex_ports(&source, node)?;
        check_ports(&source, &profile.ports)?;
        profile.streams.push(default_stream(&source, &profile, SizeMix::one(FrameLen::MIN))?);
        return Ok(profile);
    }
    if !matches!(root.kind, Kind::Map(_)) {
        let cause = match trex::foreign_list(&root) {
            Some(foreign) => format!("this is {foreign}"),
            None => format!("a profile is a mapping with `ports:`, not {}", root.kind.label()),
        };
        return Err(source.fail(root.at, cause).remedy("see profiles/udp-64.yaml for a small one"));
    }
    let map = source.section(&root, "profile", keys::PROFILE)?;
    let both = run_defaults(&source, &map, &mut profile)?;
    let size = match map.take("size")? {
        Some(node) => streams::size_mix(&source, node)?,
        None => SizeMix::one(FrameLen::MIN),
    };
    if let Some(node) = map.take("dut")? {
        profile.dut = Some(dut(&source, node)?);
    }
    let streams = map.take("streams")?;
    match map.take("ports")? {
        Some(node) => profile.ports = read_ports(&source, node, read)?,
        None => {
            let cause = if streams.is_some() {
                "this says what flows, but not between which ports"
            } else {
                "this names no ports"
            };
            return Err(source.fail(root.at, cause).remedy("add ports: [{interface, src_ip, default_gw}]"));
        }
    }
    check_ports(&source, &profile.ports)?;
    match streams {
        Some(node) => {
            streams::read(&source, node, &mut profile, &size, read)?;
            tag_ports(&mut profile);
        }
        None => profile.streams.push(default_stream(&source, &profile, size)?),
    }
    if both {
        profile.set_bidirectional()?;
    }
    Ok(profile)
}

/// The keys that flags override. Returns whether the profile asks for both directions.
fn run_defaults(source: &Source<'_>, map: &Section<'_>, profile: &mut Profile) -> Result<bool> {
    if let Some(node) = map.take("seed")? {
        profile.seed = source.integer(node, "a seed", 0, u64::MAX)?;
    }
    if let Some(node) = map.take("rate")? {
        profile.rate = Some(rate(source, node)?);
    }
    if let Some(node) = map.take("duration")? {
        profile.duration_ns = Some(duration_ns(source, node)?);
    }
    if let Some(node) = map.take("count")? {
        profile.count = Some(source.integer(node, "a number of frames", 1, 1 << 62)?);
    }
    if let Some(node) = map.take("workers")? {
        profile.workers = Some(source.integer(node, "a number of workers", 1, MAX_WORKERS.into())?);
    }
    if let Some(node) = map.take("flows")? {
        profile.flows = source.integer(node, "a number of flows", 1, 60_000)?;
    }
    match map.take("bidirectional")? {
        Some(node) => source.boolean(node, "bidirectional"),
        None => Ok(false),
    }
}

/// `ports:` is a list of ports, or the name of a TRex configuration.
fn read_ports(source: &Source<'_>, node: &Node, read: ReadFile<'_>) -> Result<Vec<PortConfig>> {
    let Kind::Scalar(name) = &node.kind else {
        return source.items(node).iter().map(|item| ports::port(source, item)).collect();
    };
    let path = beside(source.file, name);
    let file = path.display().to_string();
    let bytes = read(&path).map_err(|error| {
        source.fail(node.at, format!("cannot read {file}: {error}")).remedy("write a list of ports")
    })?;
    let other = Source { file: &file };
    let root = other.parse(text_of(&file, &bytes)?)?;
    match trex::configuration(&root) {
        Some(configuration) => trex::trex_ports(&other, configuration),
        None => Err(other.fail(root.at, "this is not a TRex configuration (it has no `interfaces`)")),
    }
}

fn check_ports(source: &Source<'_>, ports: &[PortConfig]) -> Result<()> {
    if ports.iter().all(|port| port.dummy) {
        return Err(source.fail(Default::default(), "no port with an interface"));
    }
    if ports.len() > MAX_PORTS {
        return Err(source.fail(ports[MAX_PORTS].at, format!("more than {MAX_PORTS} ports")));
    }
    for (index, port) in ports.iter().enumerate().filter(|(_, port)| !port.dummy) {
        if let Some(first) = ports[..index].iter().find(|other| other.interface == port.interface) {
            let cause = format!("interface {} is already the port of line {}", port.interface, first.at.line);
            return Err(source.fail(port.at, cause).remedy("each port needs an interface of its own"));
        }
        let twin = ports[..index].iter().find(|other| port.src_ip.is_some() && other.src_ip == port.src_ip);
        if let Some(twin) = twin {
            let cause = format!("ports {} and {} have the same src_ip", twin.interface, port.interface);
            return Err(source.fail(port.at, cause));
        }
    }
    Ok(())
}

/// From the first port to the second port's address, or to the gateway of the only one: UDP to port 9, flows by source port.
fn default_stream(source: &Source<'_>, profile: &Profile, size: SizeMix) -> Result<StreamConfig> {
    let port =
        profile.real_ports().next().ok_or_else(|| source.fail(Default::default(), "no port with an interface"))?;
    let at = profile.ports[port].at;
    Ok(StreamConfig {
        at,
        name: "default".to_owned(),
        port,
        rx_port: profile.partner(port),
        headers: vec![Header::new(LayerKind::Udp, at)],
        capture: None,
        size,
        rate: None,
        share: 1,
        start_delay_ns: 0,
        mode: ModeConfig::Continuous,
        next: None,
        loops: 0,
        self_start: true,
        track: true,
    })
}

/// A port without tags whose streams all carry the same ones is tagged like them, so that its ARP and ND are too.
pub(super) fn tag_ports(profile: &mut Profile) {
    for port in 0..profile.ports.len() {
        let mut tags = profile.streams.iter().filter(|stream| stream.port == port).map(stream_tags);
        let Some(Some(first)) = tags.next() else { continue };
        if profile.ports[port].vlans.is_empty() && tags.all(|other| other.as_ref() == Some(&first)) {
            profile.ports[port].vlans = first;
        }
    }
}

/// The outer tags of a stream's headers, if they never vary.
fn stream_tags(stream: &StreamConfig) -> Option<Vec<VlanTag>> {
    let outer = stream.headers.iter().skip_while(|header| header.kind == LayerKind::Ethernet);
    let tags: Vec<&Header> = outer.take_while(|header| header.kind == LayerKind::Vlan).collect();
    let fixed = |header: &Header, name, default: u16| match header.field(name).map(|vary| &vary.values) {
        None => Some(default),
        Some(Values::Fixed(value)) => Some(*value as u16),
        Some(_) => None,
    };
    let tag = |(index, header): (usize, &&Header)| {
        let tpid = if index + 1 < tags.len() { TPID_SERVICE } else { 0x8100 };
        let id = fixed(header, "id", 0)?;
        Some(VlanTag { tpid: fixed(header, "tpid", tpid)?, id, pcp: fixed(header, "pcp", 0)? as u8 })
    };
    tags.iter().enumerate().map(tag).collect()
}

fn dut(source: &Source<'_>, node: &Node) -> Result<DutConfig> {
    let map = source.section(node, "dut", keys::DUT)?;
    let observe = map.require("observe")?;
    let mut texts =
        source.items(observe).iter().map(|item| way_to_observe(source, item)).collect::<Result<Vec<_>>>()?;
    // A Linux DUT is read, and set, first; what is read beside it comes after.
    let is_beside = |text: &String| text.starts_with("vsish:") || text.starts_with("command:");
    texts.sort_by_key(is_beside);
    let of_kind = |kind: &str| texts.iter().filter(|text| text.starts_with(kind)).count();
    if texts.iter().filter(|text| !is_beside(text)).count() > 1 || of_kind("vsish:") > 1 || of_kind("command:") > 1 {
        return Err(source
            .fail(observe.at, "two observers of one kind cannot be told apart")
            .remedy("one of local, netns, vm and ssh, one vsish and one command may stand in the list"));
    }
    if texts.is_empty() {
        return Err(source.fail(observe.at, "the list is empty"));
    }
    let text = texts.remove(0);
    let text_of = |node: Option<&Node>, what| node.map(|node| source.text(node, what).map(str::to_owned)).transpose();
    let config = DutConfig {
        at: node.at,
        observe: text,
        also_observe: texts,
        interface: text_of(map.take("interface")?, "the DUT's interface")?,
        restore: match map.take("restore")? {
            Some(node) => source.boolean(node, "restore")?,
            None => true,
        },
        set_ring: text_of(map.take("set_ring")?, "a command")?,
    };
    Ok(config)
}

/// One of the forms in which the DUT can be read, as written.
fn way_to_observe(source: &Source<'_>, node: &Node) -> Result<String> {
    const FORMS: [&str; 6] = ["local", "netns:NAME", "vm:NAME", "ssh:USER@HOST", "command:…", "vsish:…"];
    let text = source.text(node, "where to read the DUT")?.trim();
    let kind = text.split(':').next().unwrap_or_default();
    let known = FORMS.iter().any(|form| form.split(':').next() == Some(kind));
    if !known || (kind != "local" && text.len() <= kind.len() + 1) {
        return Err(source.fail(node.at, format!("`{text}` is no way to observe a DUT")).remedy(suggest(text, &FORMS)));
    }
    Ok(text.to_owned())
}
