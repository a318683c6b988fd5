//! Compiles a profile into one immutable [`TxProgram`] per sending port.
//!
//! Pure; control plane. What the profile leaves to the machine (MAC addresses, MTU, link speed) comes in as [`PortFacts`], so
//! that `check` and `pcap` compile with placeholders and need neither NIC nor privilege.

use std::net::IpAddr;

use super::{
    Mode, Schedule, StreamProgram, Template, TxProgram,
    compile_capture::{self, Replay},
    compile_frame::{self, MinSizes, Stack},
    compile_stack,
    on_link::OnLink,
    random_value,
};
use crate::{
    caveat::{Caveat, Code},
    error::{Error, Result},
    ids::{PortId, StreamId},
    profile::{Header, ModeConfig, PortConfig, Profile, SizeItem, StreamConfig},
    units::{FrameLen, MeanFrame, Rate},
    wire::{capture::MAX_CAPTURE_BYTES, layer::LayerKind},
};

/// Most bytes of all templates together; beyond it no cache and no BPF map would hold them anyway.
const MAX_TEMPLATE_BYTES: usize = 2 * MAX_CAPTURE_BYTES;

/// Highest rate, in frames/s: beyond every link, and far from where sums of rates overflow.
const MAX_FPS: u64 = 1_000_000_000_000;

/// What only the machine knows about a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PortFacts {
    /// The NIC's own MAC address.
    pub mac: [u8; 6],
    /// The gateway's MAC address as resolved. Not needed where the profile gives `dest_mac`.
    pub dest_mac: Option<[u8; 6]>,
    /// MTU in bytes, if known.
    pub mtu: Option<u64>,
    /// Link speed in bit/s, if known.
    pub link_bps: Option<u64>,
}

impl PortFacts {
    /// Placeholders to compile without a machine: locally administered MAC addresses by the port's position.
    pub fn placeholder(port: usize) -> PortFacts {
        let [high, low] = (port as u16).to_be_bytes();
        PortFacts {
            mac: [0x02, 0x50, 0x4C, 0x01, high, low],
            dest_mac: Some([0x02, 0x50, 0x4C, 0x02, high, low]),
            mtu: None,
            link_bps: None,
        }
    }

    /// Where this port's frames go: the MAC address that the profile gives, or that of its gateway.
    pub(super) fn dest_mac_of(&self, port: &PortConfig) -> Option<[u8; 6]> {
        port.dest_mac.or(self.dest_mac.filter(|_| port.default_gw.is_some()))
    }
}

/// A compiled profile.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Compiled {
    /// One per port that sends, in port order.
    pub programs: Vec<TxProgram>,
    /// The profile's load of each program in frames/s; `None` = as fast as possible.
    pub load_fps: Vec<Option<u64>>,
    /// The port that receives each stream, by stream number.
    pub rx_of_stream: Vec<Option<PortId>>,
    /// What each port answers ARP and ND for, by port number.
    pub on_link: Vec<OnLink>,
    /// Headers of each stream, outermost first, by stream number; empty for a capture file.
    pub headers: Vec<Vec<LayerKind>>,
    /// Sizes that each stream needs, by stream number.
    pub min_sizes: Vec<MinSizes>,
    /// The frame size or the mix, as written: `64`, `imix`, `64,1518` where streams differ.
    pub frame_size: String,
    /// Doubts that travel with every result of this profile.
    pub caveats: Vec<Caveat>,
}

/// A usage error about this stream.
pub(super) fn stream_error(profile: &Profile, stream: &StreamConfig) -> Error {
    let place = match stream.at.line {
        0 => profile.file.clone(),
        line => format!("{}:{line}:{}", profile.file, stream.at.column),
    };
    Error::usage("compile", format!("stream {} ({place})", stream.name))
}

/// Compiles the profile. `facts` has one entry per port; `run_tag` marks this run's frames; `seed` replaces the profile's.
///
/// # Errors
/// Frames too short for their headers or longer than the MTU, headers that do not fit together, addresses or MACs that nobody
/// gave, a share of an unknown link speed.
pub fn compile(profile: &Profile, facts: &[PortFacts], run_tag: u32, seed: u64) -> Result<Compiled> {
    let mut compiled = Compiled {
        programs: Vec::new(),
        load_fps: Vec::new(),
        rx_of_stream: profile.streams.iter().map(|s| s.rx_port.map(|port| PortId(port as u16))).collect(),
        on_link: profile.ports.iter().map(OnLink::of).collect(),
        headers: Vec::new(),
        min_sizes: Vec::new(),
        frame_size: frame_size_label(profile),
        caveats: Vec::new(),
    };
    let placeholder = |port| facts.get(port).copied().unwrap_or(PortFacts::placeholder(port));
    let mut streams = Vec::with_capacity(profile.streams.len());
    let mut template_bytes = 0;
    for (index, stream) in profile.streams.iter().enumerate() {
        let facts = placeholder(stream.port);
        let compiled_stream = compile_stream(profile, stream, StreamId(index as u16), &facts, run_tag, seed)?;
        compiled.on_link[stream.port].add(&profile.ports[stream.port], &compiled_stream.stack, "src");
        if let Some(rx_port) = stream.rx_port {
            compiled.on_link[rx_port].add(&profile.ports[rx_port], &compiled_stream.stack, "dst");
        }
        compiled.headers.push(compiled_stream.stack.iter().map(|header| header.kind).collect());
        compiled.min_sizes.push(compiled_stream.min_sizes);
        compiled.caveats.extend(compiled_stream.caveats);
        template_bytes += compiled_stream.program.templates.iter().map(|template| template.bytes.len()).sum::<usize>();
        if template_bytes > MAX_TEMPLATE_BYTES {
            return Err(stream_error(profile, stream)
                .because(format!("the profile's frames take more than {} MiB", MAX_TEMPLATE_BYTES >> 20))
                .remedy("use fewer streams, sizes or captured frames"));
        }
        streams.push(compiled_stream.program);
    }
    for port in 0..profile.ports.len() {
        let of_port: Vec<usize> = (0..streams.len()).filter(|&s| profile.streams[s].port == port).collect();
        if of_port.is_empty() {
            continue;
        }
        check_gateway(&profile.ports[port])?;
        let facts = placeholder(port);
        let link_bps = profile.ports[port].link_bps.or(facts.link_bps);
        let mut program = TxProgram { port: PortId(port as u16), run_tag, streams: Vec::with_capacity(of_port.len()) };
        let weights = weights(profile, &of_port, &streams, link_bps)?;
        for (position, &index) in of_port.iter().enumerate() {
            let mut stream = streams[index].clone();
            stream.schedule.weight = weights.shares[position];
            stream.schedule.next = profile.streams[index]
                .next
                .and_then(|next| of_port.iter().position(|&other| other == next))
                .map(|next| next as u16);
            program.streams.push(stream);
        }
        let load = match profile.rate {
            Some(rate) => load_of(rate, &program, link_bps)?,
            None => weights.total_fps,
        };
        check_mtu(profile, port, &program, &facts)?;
        compiled.load_fps.push(load);
        compiled.programs.push(program);
    }
    compiled.on_link.iter_mut().for_each(OnLink::tidy);
    port_caveats(profile, &placeholder, &mut compiled);
    Ok(compiled)
}

/// A stream before its port's streams are put together.
struct CompiledStream {
    program: StreamProgram,
    stack: Vec<Header>,
    min_sizes: MinSizes,
    caveats: Vec<Caveat>,
}

fn compile_stream(
    profile: &Profile,
    stream: &StreamConfig,
    id: StreamId,
    facts: &PortFacts,
    run_tag: u32,
    seed: u64,
) -> Result<CompiledStream> {
    let signature = stream.track.then_some((run_tag, id.0));
    if let Some(capture) = &stream.capture {
        let replay = Replay { profile, stream, capture, facts, signature };
        let (program, min_sizes, caveats) = compile_capture::compile(&replay, id)?;
        return Ok(CompiledStream { program, stack: Vec::new(), min_sizes, caveats });
    }
    let headers = compile_stack::complete(profile, stream, facts)?;
    let stream_seed = random_value(seed, id.0.into(), u64::MAX);
    let stack = Stack::new(&headers, stream_seed).map_err(|cause| stream_error(profile, stream).because(cause))?;
    let min_sizes = stack.min_sizes(id.0);
    let mut templates: Vec<Template> = Vec::new();
    let mut pattern = Vec::with_capacity(stream.size.pattern.len());
    for item in &stream.size.pattern {
        let frame_len = match item {
            SizeItem::Fixed(len) => *len,
            SizeItem::Mtu => mtu_frame(facts, &headers),
        };
        let known = templates.iter().position(|template| template.frame_len == frame_len);
        let index = match known {
            Some(index) => index,
            None => {
                let template = stack.template(frame_len, signature).ok_or_else(|| {
                    stream_error(profile, stream)
                        .because(format!("a frame of {frame_len} bytes is too short for its headers"))
                        .remedy(format!(
                            "use at least {} bytes (FCS included); {} also carry sequence and time stamp",
                            min_sizes.headers_bytes, min_sizes.full_bytes
                        ))
                })?;
                templates.push(template);
                templates.len() - 1
            }
        };
        pattern.push(index as u16);
    }
    let mut caveats = Vec::new();
    let bare = templates.iter().filter(|template| template.signature.is_none()).map(|t| t.frame_len.bytes()).max();
    if let (Some(bytes), true) = (bare, stream.track) {
        let text = format!(
            "stream {}: frames of {bytes} bytes have no room for a signature and are not recognised when they come back; {} \
             bytes carry a sequence, {} also a time stamp",
            stream.name, min_sizes.short_bytes, min_sizes.full_bytes
        );
        caveats.push(Caveat::new(Code::NoSignature, text));
    }
    let program = StreamProgram {
        id,
        name: stream.name.clone(),
        templates,
        pattern,
        flows: compile_frame::flows(&headers),
        fields: stack.fields,
        schedule: schedule(stream),
    };
    Ok(CompiledStream { program, stack: headers, min_sizes, caveats })
}

/// The stream's schedule; weight and next are its port's business.
pub(super) fn schedule(stream: &StreamConfig) -> Schedule {
    Schedule {
        weight: stream.share,
        start_delay_ns: stream.start_delay_ns,
        mode: match stream.mode {
            ModeConfig::Continuous => Mode::Continuous,
            ModeConfig::Burst { frames } => Mode::Burst { frames },
            ModeConfig::MultiBurst { frames, gap_ns, bursts } => Mode::MultiBurst { frames, gap_ns, count: bursts },
        },
        next: None,
        self_start: stream.self_start,
        loops: stream.loops,
    }
}

fn mtu_frame(facts: &PortFacts, headers: &[Header]) -> FrameLen {
    let tags = headers.iter().skip(1).take_while(|header| header.kind == LayerKind::Vlan).count() as u64;
    let bytes = facts.mtu.unwrap_or(1500) + 18 + 4 * tags.min(1);
    FrameLen::new(bytes).unwrap_or(if bytes < 64 { FrameLen::MIN } else { FrameLen::MAX })
}

struct Weights {
    shares: Vec<u64>,
    total_fps: Option<u64>,
}

/// Shares of a port's streams in frames: their rates in frames/s, or their shares as given.
fn weights(profile: &Profile, of_port: &[usize], compiled: &[StreamProgram], link_bps: Option<u64>) -> Result<Weights> {
    let configs = || of_port.iter().map(|&index| &profile.streams[index]);
    if configs().all(|stream| stream.rate.is_none()) {
        return Ok(Weights { shares: reduced(configs().map(|stream| stream.share).collect()), total_fps: None });
    }
    let mut shares = Vec::with_capacity(of_port.len());
    for &index in of_port {
        let stream = &profile.streams[index];
        let Some(rate) = stream.rate else {
            return Err(stream_error(profile, stream)
                .because("other streams of its port have rates, this one has none")
                .remedy("give each stream of a port a rate, or each a share"));
        };
        let fps = rate.to_fps(mean(&compiled[index]), link_bps).map_err(|error| {
            stream_error(profile, stream).because(error).remedy("write an absolute rate, or link_speed: in the port")
        })?;
        match fps {
            Some(fps) if fps > MAX_FPS => {
                return Err(stream_error(profile, stream).because(format!("no link carries {rate}")));
            }
            Some(fps) => shares.push(fps),
            None if of_port.len() == 1 => return Ok(Weights { shares: vec![1], total_fps: None }),
            None => {
                return Err(stream_error(profile, stream)
                    .because("rate max is no rate to share a port by")
                    .remedy("give the streams shares, and the profile rate: max"));
            }
        }
    }
    let total_fps = Some(shares.iter().fold(0u64, |sum, &fps| sum.saturating_add(fps)));
    Ok(Weights { shares: reduced(shares), total_fps })
}

/// Divided by their greatest common divisor.
fn reduced(shares: Vec<u64>) -> Vec<u64> {
    let gcd = |mut a: u64, mut b: u64| {
        while b != 0 {
            (a, b) = (b, a % b);
        }
        a
    };
    let common = shares.iter().copied().fold(0, gcd).max(1);
    shares.into_iter().map(|share| share / common).collect()
}

fn mean(stream: &StreamProgram) -> MeanFrame {
    let length = |&template: &u16| stream.templates[usize::from(template)].frame_len.bytes();
    MeanFrame { bytes: stream.pattern.iter().map(length).sum(), frames: stream.pattern.len() as u64 }
}

/// Refuses a gateway that nobody could ask for its MAC address.
fn check_gateway(port: &PortConfig) -> Result<()> {
    match (port.dest_mac, port.src_ip, port.default_gw) {
        (None, None, Some(gateway)) => Err(Error::usage("resolve", format!("{gateway} on {}", port.interface))
            .because("the port has no address to ask from")
            .remedy("give the port src_ip, or the gateway's MAC address as dest_mac")),
        _ => Ok(()),
    }
}

/// Refuses what the kernel would drop without a word: frames above MTU + Ethernet header (+ one tag).
fn check_mtu(profile: &Profile, port: usize, program: &TxProgram, facts: &PortFacts) -> Result<()> {
    let Some(mtu) = facts.mtu else { return Ok(()) };
    for stream in &program.streams {
        for template in &stream.templates {
            let is_tagged = matches!(template.bytes.get(12..14), Some([0x81, 0x00] | [0x88, 0xA8]));
            let limit = mtu + 14 + if is_tagged { 4 } else { 0 };
            if template.bytes.len() as u64 > limit {
                let tag = if is_tagged { " + 4 (VLAN)" } else { "" };
                let bytes = template.frame_len;
                let cause =
                    format!("a frame of {bytes} bytes is longer than MTU {mtu} + 14{tag} + 4 (FCS) = {}", limit + 4);
                let interface = &profile.ports[port].interface;
                return Err(Error::usage("send", format!("stream {} on {interface}", stream.name))
                    .because(cause)
                    .remedy(format!("use shorter frames, or raise the MTU of {interface} and of the DUT")));
            }
        }
    }
    Ok(())
}

fn frame_size_label(profile: &Profile) -> String {
    let mut labels: Vec<&str> = Vec::new();
    for stream in &profile.streams {
        let label = if stream.capture.is_some() { "pcap" } else { &stream.size.label };
        if !labels.contains(&label) {
            labels.push(label);
        }
    }
    labels.join(",")
}

/// A caveat if the port's gateway is not in its subnet: ARP works all the same where the DUT answers.
fn off_subnet_caveat(port: &PortConfig) -> Option<Caveat> {
    let (source, gateway) = (port.src_ip?, port.default_gw?);
    let prefix = port.prefix_len_or_usual()?;
    // A link-local gateway is on every IPv6 link.
    let is_link_local = matches!(gateway, IpAddr::V6(address) if address.is_unicast_link_local());
    (!port.is_on_link(gateway) && !is_link_local).then(|| {
        let text = format!("gateway {gateway} of {} is outside its subnet {source}/{prefix}", port.interface);
        Caveat::new(Code::GatewayOffSubnet, text)
    })
}

fn port_caveats(profile: &Profile, facts: &dyn Fn(usize) -> PortFacts, compiled: &mut Compiled) {
    compiled.caveats.extend(profile.ports.iter().filter_map(off_subnet_caveat));
    for program in &compiled.programs {
        let config = &profile.ports[program.port.index()];
        let name = &config.interface;
        let own = facts(program.port.index()).mac;
        let forged = program.streams.iter().flat_map(|stream| &stream.templates).any(|t| t.bytes[6..12] != own);
        if forged {
            let text = format!(
                "{name}: frames leave with a source MAC that is not the NIC's own; a virtual switch may drop them silently \
                 (forged transmits, MAC spoofing)"
            );
            compiled.caveats.push(Caveat::new(Code::ForgedSourceMac, text));
        }
        let flows = program.streams.iter().fold(0u64, |sum, stream| sum.saturating_add(stream.flows));
        if flows <= 1 {
            let text = format!("{name}: all frames are one flow: this measures one queue and one core of the DUT");
            compiled.caveats.push(Caveat::new(Code::SingleFlow, text));
        }
    }
}

/// The load of a rate for one program of a compiled profile, in frames/s; `None` = as fast as possible.
///
/// # Errors
/// A share of an unknown link speed, or more than any link carries.
pub fn load_of(rate: Rate, program: &TxProgram, link_bps: Option<u64>) -> Result<Option<u64>> {
    let failed = || Error::usage("use", format!("rate {rate}"));
    match rate.to_fps(program.mean_frame(), link_bps) {
        Ok(Some(fps)) if fps > MAX_FPS => Err(failed().because("no link carries so much")),
        Ok(fps) => Ok(fps),
        Err(error) => {
            Err(failed().because(error).remedy("write an absolute rate such as 1mpps, or link_speed: in the port"))
        }
    }
}
