//! Opening a session, in the one order that works:
//! interfaces → compile (layout, limits) → receivers (may retrain links) → control responder → gateways → compile (MACs) → senders.
//!
//! Control plane. Nothing is sent before everything that could refuse has been asked; whatever fails drops what is open.

use std::{
    collections::BTreeMap,
    net::IpAddr,
    sync::{Arc, atomic::AtomicBool},
};

use super::{Event, Listener, Port, Session, backends, options::Options, recipe::Recipe, settings};
use crate::{
    caveat::{Caveat, Code},
    clock,
    dut::observer::{Observer, Target},
    engine::{
        self, OpenPort,
        control::{AddressRange, Control, ControlPort, Identity, RESOLVE_WITHIN_NS},
    },
    error::{Error, Result},
    host::{
        lease::Lease,
        link::{self, Device, Link},
        netns, routes, system,
        watch::LinkWatch,
    },
    ids::QueueId,
    profile::Profile,
    program::{
        OnLink, TxProgram,
        compile::{Compiled, PortFacts},
    },
    report::result::{self, ResultFile},
    wire::{mac::Mac, signature},
    xdp::rx::{Receiver, RxConfig, XdpChoice},
};

pub(super) fn open(profile: Profile, options: &Options, stop: Arc<AtomicBool>, tell: Listener<'_>) -> Result<Session> {
    // The tag tells this run's frames from those of others: it must differ from run to run, the frames' fields must not.
    let run_tag = signature::run_tag((clock::now().0 >> 10) as u16 ^ std::process::id() as u16);
    let mut links = find_links(&profile, options.force)?;
    let leases = links.values().map(|(link, _)| Lease::take(link)).collect::<Result<_>>()?;
    let facts = facts_of(&profile, &links);
    let mut recipe = Recipe::new(profile, options, facts, run_tag);
    let layout = recipe.compile_all()?;
    let mut caveats: Vec<Caveat> = Vec::new();
    let seats = seats(&recipe.profile, options, &links, &layout[0], &mut caveats)?;
    let receivers = attach_receivers(&mut links, &layout, &seats, &mut caveats, tell);
    let watch = LinkWatch::start(&links.values().map(|(link, _)| link.index).collect::<Vec<_>>())?;
    let control = Control::start(control_ports(&recipe.profile, &links, &layout[0]), stop.clone())?;
    resolve_gateways(&mut recipe, &links, &layout[0], &control, tell)?;
    let sizes = recipe.compile_all()?;
    caveats.extend(sizes.iter().flat_map(|compiled| compiled.caveats.iter().cloned()));
    let observer = open_observer(&recipe.profile, &mut caveats, tell);
    let mut session = Session {
        file: result_file(options, recipe.seed),
        ports: ports(&recipe, links, receivers),
        _leases: leases,
        recipe,
        sizes,
        loaded: 0,
        control: Some(control),
        watch,
        observer,
        own_fps: None,
        slows_together: false,
        stop,
    };
    session.open_senders(options, &seats, tell)?;
    // A size that the backend cannot send is told before the first trial; the first size stays loaded.
    for size in (0..session.sizes.len()).rev() {
        session.load(size)?;
    }
    session.file.ports = session.ports.iter().map(|port| port.info.clone()).collect();
    session.doubt(caveats);
    Ok(session)
}

/// Links by position in the profile.
type Links = BTreeMap<usize, (Link, Device)>;

/// An interface that was just set up may need this long for its carrier.
const CARRIER_WITHIN_NS: u64 = 5_000_000_000;

/// Finds the interfaces; refuses one that is named twice, is down, has no carrier, or carries the default route.
fn find_links(profile: &Profile, force: bool) -> Result<Links> {
    let mut links: Links = BTreeMap::new();
    for position in profile.real_ports() {
        let config = &profile.ports[position];
        let link = Link::find(&config.interface)?;
        if links.values().any(|(other, _)| other.index == link.index) {
            return Err(Error::usage("use", format!("{} twice", link.name)).because(format!(
                "{}:{}:{} names it again as `{}`",
                profile.file, config.at.line, config.at.column, config.interface
            )));
        }
        let families = routes::default_routes_via(link.index)?;
        if !families.is_empty() && !force {
            return Err(Error::environment("use", &link.name)
                .because(format!(
                    "it carries the {} default route of this namespace: test traffic may cut you off",
                    families.join(" and ")
                ))
                .remedy("use another interface, or --force"));
        }
        link::wait_for_carrier(link.index, CARRIER_WITHIN_NS)?;
        // As it is now: whoever attaches to it waits for the link again only if there was one.
        let link = Link::by_index(link.index)?;
        let device = Device::of(&link);
        links.insert(position, (link, device));
    }
    Ok(links)
}

/// What compiling needs to know; the gateways' MAC addresses come later.
fn facts_of(profile: &Profile, links: &Links) -> Vec<PortFacts> {
    (0..profile.ports.len())
        .map(|position| match links.get(&position) {
            None => PortFacts::placeholder(position),
            Some((link, device)) => PortFacts {
                mac: link.mac.0,
                dest_mac: PortFacts::placeholder(position).dest_mac,
                mtu: Some(link.mtu),
                link_bps: device.claim_mbps.map(|mbps| mbps * 1_000_000),
            },
        })
        .collect()
}

/// CPUs of each sending port's workers, by position: one worker a queue.
type Seats = BTreeMap<usize, Vec<usize>>;

fn seats(
    profile: &Profile,
    options: &Options,
    links: &Links,
    layout: &Compiled,
    caveats: &mut Vec<Caveat>,
) -> Result<Seats> {
    let cpus = system::allowed_cpus();
    let asked = options.workers.map(u64::from).or(profile.workers);
    // By default a worker for each queue, as long as each has a CPU and one is left for the control plane and the DUT.
    let share = (cpus.len().saturating_sub(1) / layout.programs.len().max(1)).max(1) as u64;
    let (mut seats, mut taken) = (Seats::new(), 0);
    for position in layout.programs.iter().map(|program| program.port.index()) {
        let Some((link, device)) = links.get(&position) else { continue };
        let queues = device.tx_queues(link).max(1);
        let workers = asked.unwrap_or(queues.min(share));
        if workers > queues {
            return Err(Error::usage("start", format!("{workers} workers on {}", link.name))
                .because(format!("{} has {queues} TX queue(s), and a worker needs one of its own", link.name))
                .remedy(format!("at most {queues} can work on it; raise its queues with ethtool -L")));
        }
        seats.insert(position, (0..workers as usize).map(|n| cpus[(taken + n) % cpus.len()]).collect());
        taken += workers as usize;
    }
    if taken > cpus.len() {
        caveats.push(Caveat::new(Code::SharedCpu, format!("{taken} workers share {} CPUs", cpus.len())));
    }
    Ok(seats)
}

/// Attaches the counting program to every port; one that cannot have it is a caveat: sending still works.
fn attach_receivers(
    links: &mut Links,
    layout: &[Compiled],
    seats: &Seats,
    caveats: &mut Vec<Caveat>,
    tell: Listener<'_>,
) -> BTreeMap<usize, Receiver> {
    let config = rx_config(layout, seats);
    let mut receivers = BTreeMap::new();
    for (&position, (link, device)) in links.iter_mut() {
        match Receiver::attach(link, &config, XdpChoice::Auto) {
            Ok(receiver) => {
                caveats.extend(receiver.caveats().iter().cloned());
                receivers.insert(position, receiver);
                // Attaching may have changed queues (virtio) or the MTU's limits.
                if let Ok(now) = Link::by_index(link.index) {
                    (*device, *link) = (Device::of(&now), now);
                }
            }
            Err(error) => {
                let text = format!("{}: received frames are not counted: {error}", link.name);
                tell(Event::Note(text.clone()));
                caveats.push(Caveat::new(Code::ReceiveNotCounted, text));
            }
        }
    }
    receivers
}

/// What receivers must recognise: the streams at every size.
fn rx_config(layout: &[Compiled], seats: &Seats) -> RxConfig {
    let of_size = |compiled: &Compiled| {
        let workers = |program: &TxProgram| seats.get(&program.port.index()).map_or(1, Vec::len) as u64;
        RxConfig::of_programs(compiled.programs.iter().map(|program| (program, workers(program))))
    };
    let mut config = of_size(&layout[0]);
    for other in &layout[1..] {
        for (stream, other) in config.streams.iter_mut().zip(of_size(other).streams) {
            for site in other.sites {
                if !stream.sites.contains(&site) {
                    stream.sites.push(site);
                }
            }
        }
    }
    config
}

/// What each port answers for, in the order of the links.
fn control_ports(profile: &Profile, links: &Links, compiled: &Compiled) -> Vec<ControlPort> {
    links
        .iter()
        .map(|(&position, (link, _))| {
            let config = &profile.ports[position];
            // Frames to a MAC that was given, not resolved, may come back to any MAC.
            let is_promiscuous = profile
                .streams
                .iter()
                .any(|stream| stream.rx_port == Some(position) && profile.ports[stream.port].dest_mac.is_some());
            let identity = Identity {
                mac: config.src_mac.map_or(link.mac, Mac),
                vlans: config.vlans.clone(),
                addresses: answered(&compiled.on_link[position]),
            };
            ControlPort {
                index: link.index,
                name: link.name.clone(),
                nic_mac: link.mac,
                is_promiscuous,
                identities: vec![identity],
            }
        })
        .collect()
}

/// The addresses a port answers for: all ranges, without the DUT's own address.
fn answered(on_link: &OnLink) -> Vec<AddressRange> {
    let ranges = on_link.ranges.iter().map(|&(first, last)| AddressRange { first, last });
    let Some(except) = on_link.except else { return ranges.collect() };
    ranges
        .flat_map(|range| {
            if !range.contains(except) {
                return vec![range];
            }
            let below = neighbour_of(except, false).map(|last| AddressRange { first: range.first, last });
            let above = neighbour_of(except, true).map(|first| AddressRange { first, last: range.last });
            let is_left = |part: &AddressRange| part.first <= part.last;
            [below, above].into_iter().flatten().filter(is_left).collect()
        })
        .collect()
}

/// The address after (or before) this one.
fn neighbour_of(address: IpAddr, after: bool) -> Option<IpAddr> {
    match address {
        IpAddr::V4(v4) => {
            let bits = u32::from(v4);
            let next = if after { bits.checked_add(1) } else { bits.checked_sub(1) };
            next.map(|bits| IpAddr::V4(bits.into()))
        }
        IpAddr::V6(v6) => {
            let bits = u128::from(v6);
            let next = if after { bits.checked_add(1) } else { bits.checked_sub(1) };
            next.map(|bits| IpAddr::V6(bits.into()))
        }
    }
}

/// Resolves every gateway that a sending port needs.
fn resolve_gateways(
    recipe: &mut Recipe,
    links: &Links,
    compiled: &Compiled,
    control: &Control,
    tell: Listener<'_>,
) -> Result<()> {
    for program in &compiled.programs {
        let position = program.port.index();
        let config = &recipe.profile.ports[position];
        let Some(order) = links.keys().position(|&other| other == position) else { continue };
        recipe.facts[position].dest_mac = match (config.dest_mac, config.src_ip, config.default_gw) {
            (None, Some(source), Some(gateway)) => {
                let mac = control.resolve(order, 0, source, gateway, RESOLVE_WITHIN_NS)?;
                tell(Event::Note(format!("{}: {gateway} is at {mac}", config.interface)));
                Some(mac.0)
            }
            (given, _, _) => given,
        };
    }
    Ok(())
}

/// Who reads the DUT; that nobody can is told before anything is sent.
fn open_observer(profile: &Profile, caveats: &mut Vec<Caveat>, tell: Listener<'_>) -> Option<Arc<Observer>> {
    let dut = profile.dut.as_ref()?;
    let (done, failed) = settings::restore_left_over();
    caveats.extend(done.into_iter().map(|sentence| Caveat::new(Code::CleanedUp, sentence)));
    let failed = failed.iter().map(|error| format!("a killed run left a DUT changed, and it is so still: {error}"));
    caveats.extend(failed.map(|text| Caveat::new(Code::ObserverFailed, text)));
    let open = |text: &str| {
        let target = Target::parse(text).map(|target| match (target, netns::current_name()) {
            // What runs there needs that namespace's /sys too.
            (Target::Local, Some(netns)) => Target::Netns(netns),
            (target, _) => target,
        });
        target.and_then(|target| Observer::open(&target, dut.interface.iter().cloned().collect()))
    };
    let mut failed = |error: Error, what: &str| {
        let text = format!("the DUT is not observed{what}: {error}");
        tell(Event::Note(text.clone()));
        caveats.push(Caveat::new(Code::ObserverFailed, text));
    };
    let mut observer = open(&dut.observe).map_err(|error| failed(error, "")).ok()?;
    for text in &dut.also_observe {
        match open(text) {
            Ok(other) => observer = observer.and(other),
            Err(error) => failed(error, " in full"),
        }
    }
    tell(Event::Note(match observer.answers() {
        Ok(()) => format!("the DUT is read by {}", observer.label()),
        Err(error) => format!("the DUT does not answer its observer; nothing will be known of it: {error}"),
    }));
    Some(Arc::new(observer))
}

fn result_file(options: &Options, seed: u64) -> ResultFile {
    ResultFile {
        schema: result::SCHEMA.into(),
        version: env!("CARGO_PKG_VERSION").into(),
        command: options.command.clone(),
        started_at: clock::rfc3339(clock::wall_clock()),
        seed,
        host: system::host(),
        ports: Vec::new(),
        trials: Vec::new(),
        ceilings: Vec::new(),
        claims: Vec::new(),
        comparisons: Vec::new(),
        caveats: Vec::new(),
    }
}

fn ports(recipe: &Recipe, links: Links, mut receivers: BTreeMap<usize, Receiver>) -> Vec<Port> {
    links
        .into_iter()
        .map(|(position, (link, device))| {
            let config = &recipe.profile.ports[position];
            let receiver = receivers.remove(&position);
            let info = result::Port {
                name: link.name.clone(),
                driver: device.driver.clone().unwrap_or_else(|| "unknown".into()),
                claim_mbps: device.claim_mbps,
                link_mbps: config.link_bps.map(|bps| bps / 1_000_000),
                backend: "none".into(),
                mode: "none".into(),
                xdp: receiver.as_ref().map_or("none", |receiver| receiver.mode().name()).into(),
                mac: link.mac.to_string(),
                src_ip: config.src_ip.map(|ip| ip.to_string()),
                gateway: config.default_gw.map(|ip| ip.to_string()),
                dest_mac: recipe.facts[position].dest_mac.map(|mac| Mac(mac).to_string()),
                mtu: link.mtu,
                ..result::Port::default()
            };
            Port { position, link, device, sender: None, receiver, info }
        })
        .collect()
}

impl Session {
    /// Opens the sending ports: queues and CPUs by number, the backend by [`backends`].
    fn open_senders(&mut self, options: &Options, seats: &Seats, tell: Listener<'_>) -> Result<()> {
        for program in &self.sizes[self.loaded].programs {
            let position = program.port.index();
            let port = self.ports.iter_mut().find(|port| port.position == position);
            let (Some(port), Some(cpus)) = (port, seats.get(&position)) else { continue };
            let open = OpenPort {
                ifname: port.link.name.clone(),
                ifindex: port.link.index,
                queues: (0..cpus.len() as u32).map(QueueId).collect(),
                cpus: cpus.clone(),
                backend: engine::BackendChoice::Packet,
                program: Arc::new(program.clone()),
                mtu: port.link.mtu,
            };
            let chosen = backends::open(&open, options.backend, &self.stop)?;
            let mode = chosen.port.bound()[0].mode;
            port.info.backend = mode.backend().into();
            port.info.mode = mode.as_str().into();
            port.info.queues = cpus.len() as u64;
            port.info.worker_cpus = cpus.iter().map(|&cpu| cpu as u64).collect();
            port.info.why_not = chosen.why_not;
            tell(Event::Note(format!("{}: {} ({})", port.link.name, port.info.backend, port.info.mode)));
            port.sender = Some(chosen.port);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_duts_own_address_is_never_answered_for() {
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        let range = |first: &str, last: &str| AddressRange { first: ip(first), last: ip(last) };
        let on_link = |ranges: &[(&str, &str)]| OnLink {
            ranges: ranges.iter().map(|(first, last)| (ip(first), ip(last))).collect(),
            except: Some(ip("10.0.0.1")),
        };
        assert_eq!(
            answered(&on_link(&[("10.0.0.0", "10.0.0.9"), ("10.1.0.0", "10.1.0.0")])),
            [range("10.0.0.0", "10.0.0.0"), range("10.0.0.2", "10.0.0.9"), range("10.1.0.0", "10.1.0.0")]
        );
        assert_eq!(answered(&on_link(&[("10.0.0.1", "10.0.0.1")])), []);
    }
}
