//! The L3 control plane: resolves gateways, and answers ARP, Neighbour Discovery and ping for our addresses.
//!
//! One thread for all ports, from [`Control::start`] to the drop of [`Control`], so that a DUT's neighbour entries for us
//! never age out during a run. No address is configured on any interface; memberships end with the sockets. Every wait is
//! bounded. It does not send or count test traffic; what it sends is counted, for those who read the device's counters.

use std::{
    collections::BTreeSet,
    io,
    net::{IpAddr, Ipv6Addr},
    sync::{
        Arc, Condvar, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    thread::JoinHandle,
    time::Duration,
};

use crate::{
    caveat::{Caveat, Code},
    clock::{self, Instant},
    error::{Error, ErrorKind, Result},
    host::{
        packet::{PacketSocket, wait},
        scheduling,
    },
    profile::VlanTag,
    wire::{
        mac::Mac,
        neighbour::{Heard, Message, Speaker, Tag, hear, multicast_mac, solicited_node, vlan_ids},
    },
};

/// How long a gateway may take to answer, if nobody says otherwise.
pub const RESOLVE_WITHIN_NS: u64 = 5_000_000_000;

/// Pauses after the first, second, … request; the last one repeats.
const RETRY_NS: [u64; 3] = [250_000_000, 250_000_000, 1_000_000_000];
/// A resolved gateway is asked again this often: it may have moved, and it keeps its entry for us.
const REFRESH_NS: u64 = 10_000_000_000;
/// How long the thread and [`Control::resolve`] sleep at most before they look at their flags.
const NAP: Duration = Duration::from_millis(50);
/// Frames read from one socket before the others get their turn.
const BATCH: usize = 64;
/// Groups that a socket joins one by one; with more addresses it takes all multicast (promiscuously).
const MAX_GROUPS: usize = 32;
/// Addresses that are announced at start, per identity.
const MAX_ANNOUNCED: usize = 64;
const MAX_EVENTS: usize = 100;

/// Addresses from `first` to `last`, both included and of one family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AddressRange {
    /// Lowest.
    pub first: IpAddr,
    /// Highest.
    pub last: IpAddr,
}

impl AddressRange {
    /// A single address.
    pub fn one(address: IpAddr) -> AddressRange {
        AddressRange { first: address, last: address }
    }

    /// Whether `address` is among them.
    pub fn contains(&self, address: IpAddr) -> bool {
        self.first.is_ipv4() == address.is_ipv4() && (self.first..=self.last).contains(&address)
    }
}

/// A station that we are on a link: a MAC that answers for addresses in one VLAN.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// Its MAC.
    pub mac: Mac,
    /// Its tags, outermost first.
    pub vlans: Vec<VlanTag>,
    /// Its addresses: the port's own and the stream destinations that are on-link behind the port.
    pub addresses: Vec<AddressRange>,
}

/// An interface with the stations on it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ControlPort {
    /// Interface index.
    pub index: u32,
    /// Interface name, for errors.
    pub name: String,
    /// The NIC's own MAC; another identity's MAC needs promiscuous mode.
    pub nic_mac: Mac,
    /// Frames to yet other MACs may arrive and are to be counted: promiscuous mode.
    pub is_promiscuous: bool,
    /// Who we are there.
    pub identities: Vec<Identity>,
}

/// Something a user should hear of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ControlEvent {
    /// When.
    pub at: Instant,
    /// Position of the port.
    pub port: usize,
    /// What.
    pub change: ControlChange,
}

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ControlChange {
    /// A resolved address answers from another MAC; what is sent still goes to `from`.
    Moved {
        /// The gateway.
        address: IpAddr,
        /// MAC in use.
        from: Mac,
        /// Its new one.
        to: Mac,
    },
    /// Another station claims one of our addresses.
    Conflict {
        /// Our address.
        address: IpAddr,
        /// The other station.
        mac: Mac,
    },
}

impl ControlEvent {
    /// As a caveat about the run.
    pub fn caveat(&self, port_name: &str) -> Caveat {
        let text = match self.change {
            ControlChange::Moved { address, from, to } => {
                format!(
                    "{address} on {port_name} moved from {from} to {to} during the run; frames still went to {from}"
                )
            }
            ControlChange::Conflict { address, mac } => {
                format!("another station ({mac}) on {port_name} also has our address {address}")
            }
        };
        Caveat::new(Code::Note, text)
    }
}

/// The running control plane.
#[derive(Debug)]
pub struct Control {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    ports: Vec<Open>,
    state: Mutex<State>,
    /// Signalled when an ask is answered.
    answered: Condvar,
    /// The user's; ends waits, not the answering.
    interrupt: Arc<AtomicBool>,
    stop: AtomicBool,
}

#[derive(Debug)]
struct Open {
    config: ControlPort,
    socket: PacketSocket,
    tags: Vec<Vec<Tag>>,
    sent_frames: AtomicU64,
    sent_bytes: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    asks: Vec<Ask>,
    events: Vec<ControlEvent>,
    conflicts: BTreeSet<IpAddr>,
}

/// An address whose MAC is wanted, now or for the rest of the run.
#[derive(Debug)]
struct Ask {
    port: usize,
    identity: usize,
    source: IpAddr,
    target: IpAddr,
    mac: Option<Mac>,
    requests: usize,
    next: Instant,
    refusal: Option<io::Error>,
}

impl Control {
    /// Opens a socket per port, announces the addresses (gratuitous ARP, unsolicited advertisement), starts to answer.
    /// `interrupt` ends a [`Control::resolve`] early.
    ///
    /// # Errors
    /// No CAP_NET_RAW; an interface is gone.
    pub fn start(ports: Vec<ControlPort>, interrupt: Arc<AtomicBool>) -> Result<Control> {
        let ports = ports.into_iter().map(Open::new).collect::<Result<_>>()?;
        let shared = Arc::new(Shared {
            ports,
            state: Mutex::default(),
            answered: Condvar::new(),
            interrupt,
            stop: AtomicBool::new(false),
        });
        shared.ports.iter().for_each(Open::announce);
        let thread = std::thread::Builder::new()
            .name("control".into())
            .spawn({
                let shared = Arc::clone(&shared);
                move || shared.run()
            })
            .map_err(|error| Error::environment("start", "the control plane's thread").os(&error))?;
        Ok(Control { shared, thread: Some(thread) })
    }

    /// The MAC of `target`, asked by ARP or ND from `source`, by the identity `identity` of port `port` (positions). Keeps
    /// watching it afterwards.
    ///
    /// # Errors
    /// No reply within `timeout_ns`; nothing could be sent (another error than no reply); different families; interrupted.
    pub fn resolve(
        &self,
        port: usize,
        identity: usize,
        source: IpAddr,
        target: IpAddr,
        timeout_ns: u64,
    ) -> Result<Mac> {
        let open = &self.shared.ports[port];
        let name = &open.config.name;
        let protocol = if target.is_ipv4() { "ARP" } else { "Neighbour Discovery" };
        let subject = format!("{target} on {name} by {protocol}");
        if source.is_ipv4() != target.is_ipv4() {
            return Err(
                Error::usage("resolve", subject).because(format!("the source address {source} is of the other family"))
            );
        }
        let deadline = clock::now().plus_ns(timeout_ns);
        let mut state = self.shared.lock();
        let at = state.ask(Ask {
            port,
            identity,
            source,
            target,
            mac: None,
            requests: 0,
            next: clock::now(),
            refusal: None,
        });
        // The first request goes out from here, so that an interface that cannot send is told at once below.
        self.shared.send_due(&mut state);
        loop {
            let ask = &state.asks[at];
            if let Some(mac) = ask.mac {
                return Ok(mac);
            }
            if self.shared.interrupt.load(Relaxed) {
                return Err(Error::new(ErrorKind::Interrupted, "resolve", subject).because("interrupted"));
            }
            if clock::now() >= deadline {
                let error = Error::environment("resolve", subject);
                return Err(match &ask.refusal {
                    Some(refusal) => error
                        .os(refusal)
                        .because(format!("the request could not be sent: {refusal}"))
                        .remedy(format!("check that {name} is up and has carrier")),
                    None => error
                        .because(format!(
                            "no reply within {:.1} s to {} requests from {source}",
                            timeout_ns as f64 / 1e9,
                            ask.requests
                        ))
                        .remedy("check the gateway's address, the VLAN and the link, or set dest_mac"),
                });
            }
            state = self.shared.answered.wait_timeout(state, NAP).expect("nobody panics with it held").0;
        }
    }

    /// What happened since the last call.
    pub fn take_events(&self) -> Vec<ControlEvent> {
        std::mem::take(&mut self.shared.lock().events)
    }

    /// Frames and bytes (without FCS) that it sent on a port (position) so far: part of the device's counters.
    pub fn sent(&self, port: usize) -> (u64, u64) {
        let open = &self.shared.ports[port];
        (open.sent_frames.load(Relaxed), open.sent_bytes.load(Relaxed))
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        self.shared.stop.store(true, Relaxed);
        if let Some(thread) = self.thread.take() {
            // It panics only on a bug, which its own message has told.
            let _ = thread.join();
        }
    }
}

impl Open {
    fn new(config: ControlPort) -> Result<Open> {
        let failed = |error: io::Error| {
            let failed = Error::environment("open a raw socket on", &config.name).os(&error);
            if error.raw_os_error() == Some(libc::EPERM) {
                failed.remedy("run as root, or give CAP_NET_RAW")
            } else {
                failed
            }
        };
        let socket = PacketSocket::open(config.index).map_err(failed)?;
        let (groups, has_more) = groups(&config);
        if config.is_promiscuous || has_more || config.identities.iter().any(|identity| identity.mac != config.nic_mac)
        {
            socket.join_promiscuous().map_err(failed)?;
        }
        for group in groups {
            socket.join_multicast(group).map_err(failed)?;
        }
        let tags = config.identities.iter().map(|identity| identity.vlans.iter().map(tag).collect()).collect();
        Ok(Open { config, socket, tags, sent_frames: AtomicU64::new(0), sent_bytes: AtomicU64::new(0) })
    }

    fn speaker(&self, identity: usize) -> Speaker<'_> {
        Speaker { mac: self.config.identities[identity].mac, tags: &self.tags[identity] }
    }

    fn announce(&self) {
        for (at, identity) in self.config.identities.iter().enumerate() {
            for range in identity.addresses.iter().take(MAX_ANNOUNCED) {
                // A link that is down hears nothing; it is found out when something is resolved or sent.
                if let Err(error) = self.send(&self.speaker(at).announce(range.first)) {
                    tracing::debug!(port = self.config.name, address = %range.first, %error, "not announced");
                }
            }
        }
    }

    fn send(&self, frame: &[u8]) -> io::Result<()> {
        self.socket.send(frame)?;
        self.sent_frames.fetch_add(1, Relaxed);
        self.sent_bytes.fetch_add(frame.len() as u64, Relaxed);
        Ok(())
    }

    /// The identity in the frame's VLAN that has this address.
    fn owner(&self, tags: &[Tag], address: IpAddr) -> Option<usize> {
        self.config.identities.iter().enumerate().position(|(at, identity)| {
            self.is_vlan_of(at, tags) && identity.addresses.iter().any(|range| range.contains(address))
        })
    }

    /// Whether a frame with these tags is in the identity's VLAN. VLAN 0 only carries a priority.
    fn is_vlan_of(&self, identity: usize, tags: &[Tag]) -> bool {
        vlan_ids(tags).filter(|id| *id != 0).eq(vlan_ids(&self.tags[identity]).filter(|id| *id != 0))
    }
}

/// The multicast MACs by which our IPv6 addresses are asked for, and whether there are too many of them to be joined.
fn groups(config: &ControlPort) -> (BTreeSet<Mac>, bool) {
    let mut groups = BTreeSet::new();
    for range in config.identities.iter().flat_map(|identity| &identity.addresses) {
        let (IpAddr::V6(first), IpAddr::V6(last)) = (range.first, range.last) else { continue };
        groups.insert(multicast_mac(Ipv6Addr::new(0xFF02, 0, 0, 0, 0, 0, 0, 1)));
        for address in (u128::from(first)..=u128::from(last)).take(MAX_GROUPS + 1) {
            groups.insert(multicast_mac(solicited_node(address.into())));
        }
        if groups.len() > MAX_GROUPS + 1 {
            return (BTreeSet::new(), true);
        }
    }
    (groups, false)
}

fn tag(vlan: &VlanTag) -> Tag {
    let [a, b] = vlan.tpid.to_be_bytes();
    let [c, d] = (u16::from(vlan.pcp) << 13 | (vlan.id & 0x0FFF)).to_be_bytes();
    [a, b, c, d]
}

impl State {
    /// Adds an ask, or finds the same one of before; returns its place.
    fn ask(&mut self, ask: Ask) -> usize {
        let same = |known: &Ask| {
            (known.port, known.identity, known.source, known.target) == (ask.port, ask.identity, ask.source, ask.target)
        };
        if let Some(at) = self.asks.iter().position(same) {
            self.asks[at] = ask;
            return at;
        }
        self.asks.push(ask);
        self.asks.len() - 1
    }

    fn push(&mut self, port: usize, change: ControlChange) {
        if self.events.len() < MAX_EVENTS {
            self.events.push(ControlEvent { at: clock::now(), port, change });
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nobody panics with it held")
    }

    fn run(&self) {
        // Workers are favoured and may fill every CPU; an answer that is late by a few slices of theirs costs the DUT's queue.
        if let Err(error) = scheduling::favour_this_thread() {
            tracing::debug!(%error, "the control plane runs at ordinary priority");
        }
        let sockets: Vec<_> = self.ports.iter().map(|open| &open.socket).collect();
        let mut frame = Vec::new();
        while !self.stop.load(Relaxed) {
            let ready = match wait(&sockets, NAP) {
                Ok(ready) => ready,
                Err(error) => {
                    tracing::warn!(%error, "the control plane cannot wait for frames");
                    return;
                }
            };
            for (port, _) in ready.iter().enumerate().filter(|(_, is_ready)| **is_ready) {
                for _ in 0..BATCH {
                    match self.ports[port].socket.receive(&mut frame) {
                        Ok(Some(())) => self.handle(port, &frame),
                        Ok(None) => break,
                        Err(error) => {
                            tracing::debug!(port = self.ports[port].config.name, %error, "nothing received");
                            break;
                        }
                    }
                }
            }
            self.send_due(&mut self.lock());
        }
    }

    /// Sends the requests whose time has come.
    fn send_due(&self, state: &mut State) {
        let now = clock::now();
        for ask in state.asks.iter_mut().filter(|ask| ask.next <= now) {
            let open = &self.ports[ask.port];
            let Some(frame) = open.speaker(ask.identity).ask(ask.source, ask.target) else { continue };
            match open.send(&frame) {
                Ok(()) => ask.refusal = None,
                Err(error) => ask.refusal = Some(error),
            }
            let pause = if ask.mac.is_some() { REFRESH_NS } else { RETRY_NS[ask.requests.min(RETRY_NS.len() - 1)] };
            ask.requests += 1;
            ask.next = now.plus_ns(pause);
        }
    }

    fn handle(&self, port: usize, frame: &[u8]) {
        let Some(heard) = hear(frame) else { return };
        let open = &self.ports[port];
        if open.config.identities.iter().any(|identity| identity.mac == heard.from) {
            return;
        }
        match heard.message {
            Message::Ask { sender, mac, target } => {
                self.learn(port, &heard, sender, mac);
                if sender != target
                    && let Some(owner) = open.owner(&heard.tags, target)
                {
                    self.reply(open, open.speaker(owner).tell(target, sender, mac));
                }
            }
            Message::Tell { target, mac } => self.learn(port, &heard, target, mac),
            Message::Echo { sender, target, body } => {
                if let Some(owner) = open.owner(&heard.tags, target) {
                    self.reply(open, open.speaker(owner).echo(target, sender, heard.from, body));
                }
            }
        }
    }

    fn reply(&self, open: &Open, frame: Option<Vec<u8>>) {
        if let Some(frame) = frame
            && let Err(error) = open.send(&frame)
        {
            tracing::debug!(port = open.config.name, %error, "could not answer");
        }
    }

    /// `address` is at `mac`, as somebody on the port says.
    fn learn(&self, port: usize, heard: &Heard<'_>, address: IpAddr, mac: Mac) {
        let open = &self.ports[port];
        let mut state = self.lock();
        let mut moved = None;
        let asks = state.asks.iter_mut().filter(|ask| ask.port == port && ask.target == address);
        for ask in asks.filter(|ask| open.is_vlan_of(ask.identity, &heard.tags)) {
            match ask.mac.replace(mac) {
                None => ask.next = clock::now().plus_ns(REFRESH_NS),
                Some(from) if from != mac => moved = Some(from),
                Some(_) => {}
            }
            self.answered.notify_all();
        }
        if let Some(from) = moved {
            state.push(port, ControlChange::Moved { address, from, to: mac });
        }
        if open.owner(&heard.tags, address).is_some() && state.conflicts.insert(address) {
            state.push(port, ControlChange::Conflict { address, mac });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(first: &str, last: &str) -> AddressRange {
        AddressRange { first: first.parse().unwrap(), last: last.parse().unwrap() }
    }

    fn port(addresses: Vec<AddressRange>) -> ControlPort {
        let mac = Mac([2, 0, 0, 0, 0, 1]);
        let identity = Identity { mac, vlans: Vec::new(), addresses };
        ControlPort { index: 1, name: "g0".into(), nic_mac: mac, is_promiscuous: false, identities: vec![identity] }
    }

    #[test]
    fn a_range_contains_its_ends_and_nothing_of_the_other_family() {
        let addresses = range("10.1.0.2", "10.1.0.9");
        for (address, is_inside) in
            [("10.1.0.2", true), ("10.1.0.9", true), ("10.1.0.10", false), ("::ffff:10.1.0.5", false)]
        {
            assert_eq!(addresses.contains(address.parse().unwrap()), is_inside, "{address}");
        }
    }

    #[test]
    fn few_ipv6_addresses_join_their_groups_and_many_take_all() {
        let (few, has_more) = groups(&port(vec![range("fd00::aa:1", "fd00::aa:2"), range("10.0.0.1", "10.0.0.9")]));
        let expected = ["33:33:00:00:00:01", "33:33:ff:aa:00:01", "33:33:ff:aa:00:02"].map(|mac| mac.parse().unwrap());
        assert_eq!((few, has_more), (BTreeSet::from(expected), false));
        assert_eq!(groups(&port(vec![range("fd00::", "fd00:0:ffff::")])), (BTreeSet::new(), true));
    }

    #[test]
    fn a_tag_keeps_its_priority() {
        assert_eq!(tag(&VlanTag { tpid: 0x88A8, id: 0x123, pcp: 5 }), [0x88, 0xA8, 0xA1, 0x23]);
    }
}
