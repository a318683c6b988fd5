//! The receiver of a port: the counting program attached to every queue, and its counts read from shared memory.
//!
//! Control plane; no thread of its own, no system call to read the counts. Counters only grow; a trial is the difference of
//! two snapshots. Dropping a [`Receiver`] detaches the program; so does the end of the process, whatever ends it.

use std::{
    collections::BTreeMap,
    os::fd::{AsFd, BorrowedFd},
};

use libbpf_rs::{MapCore, ObjectBuilder};

use super::{
    attach::{Attachment, XdpMode, attach, refuse_foreign},
    latency::{BUCKETS, LatencyCounts},
    log,
    mapped::MappedArray,
    surroundings::Surroundings,
};
use crate::{
    caveat::{Caveat, Code},
    error::{Error, Result},
    host::{
        caps::{self, Need},
        link::Link,
        system,
    },
    ids::StreamId,
    program::{StreamProgram, TxProgram, lcm},
    wire::signature::{SignatureKind, SignatureSite},
};

/// The compiled BPF object, aligned for the ELF library.
static OBJECT: &Aligned<[u8]> = &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/rx.bpf.o")));

#[repr(C, align(8))]
struct Aligned<T: ?Sized>(T);

/// Most different signature sites of a run.
pub const MAX_SITES: usize = 16;
/// Most paths of a stream whose order is followed (`CLASSES` in the BPF source).
pub const MAX_ORDER_CLASSES: u64 = 1024;

// The BPF source's constants and structures; `the_maps_are_as_the_bpf_source_says` compares.
const TRIES: usize = 3 * MAX_SITES;
const QUEUES: usize = 64;
const OTHERS: usize = 24;
const CPU_BYTES: usize = 8 + 8 * QUEUES + 8 * OTHERS;
const CPU_RUN_TAG: usize = 0;
const CPU_QUEUES: usize = 8;
const CPU_OTHERS: usize = CPU_QUEUES + 8 * QUEUES;
const STREAM_BYTES: usize = 64;
const STREAM_FRAMES: usize = 0;
const STREAM_L2_BYTES: usize = 8;
const STREAM_DUPLICATES: usize = 16;
const STREAM_REORDERED: usize = 24;
const STREAM_SITES: usize = 32;
const STREAM_RECIPROCAL: usize = 40;
const STREAM_CLASSES_AND_WRAP: usize = 48;
const STREAM_WINDOW: usize = 52;
const STREAM_HISTOGRAM: usize = 56;
const WINDOW_BYTES: usize = 4 * (1024 + 1024);
const HISTOGRAM_BYTES: usize = 8 * BUCKETS;
/// Index of a window or histogram that no map has: the program finds none.
const NONE: u32 = u32::MAX;
/// Memory that the windows, and the histograms, of all CPUs may take; streams beyond it go without.
const MEMORY_BYTES: usize = 32 << 20;

/// Kinds of frames that are not ours, in the BPF source's order.
pub const OTHER_KINDS: [&str; OTHERS] = [
    "arp",
    "icmp_echo_request",
    "icmp_echo_reply",
    "icmp_net_unreachable",
    "icmp_host_unreachable",
    "icmp_port_unreachable",
    "icmp_unreachable",
    "icmp_time_exceeded",
    "icmp",
    "nd",
    "icmp6_port_unreachable",
    "icmp6_unreachable",
    "icmp6_time_exceeded",
    "icmp6",
    "ipv4_udp",
    "ipv4_tcp",
    "ipv4",
    "ipv6_udp",
    "ipv6_tcp",
    "ipv6",
    "lldp",
    "llc",
    "another_run",
    "unknown",
];

/// What to look for.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RxConfig {
    /// The run's tag.
    pub run_tag: u32,
    /// Every stream that may arrive here, sent by whichever port.
    pub streams: Vec<RxStream>,
}

/// A stream to be recognised.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RxStream {
    /// Its number in the signatures.
    pub id: StreamId,
    /// Where its templates carry which signature, most frequent first.
    pub sites: Vec<SignatureSite>,
    /// Frames whose sequences agree modulo this follow one path and keep their order (the least common multiple of the
    /// sender's workers and the stream's flows); 0 if that is not known, then order is not followed. At most
    /// [`MAX_ORDER_CLASSES`].
    pub order_classes: u16,
}

impl RxConfig {
    /// What the streams of these programs look like; beside each program, how many workers send it.
    pub fn of_programs<'a>(programs: impl IntoIterator<Item = (&'a TxProgram, u64)>) -> RxConfig {
        let mut config = RxConfig::default();
        for (program, workers) in programs {
            config.run_tag = program.run_tag;
            config.streams.extend(program.streams.iter().map(|stream| RxStream::of(stream, workers)));
        }
        config
    }
}

impl RxStream {
    fn of(stream: &StreamProgram, workers: u64) -> RxStream {
        let mut frames = BTreeMap::<(u16, bool), u64>::new();
        for &template in &stream.pattern {
            if let Some(site) = stream.templates[usize::from(template)].signature {
                *frames.entry((site.offset, site.kind == SignatureKind::Short)).or_default() += 1;
            }
        }
        let mut sites: Vec<_> = frames.into_iter().collect();
        sites.sort_by_key(|(site, frames)| (std::cmp::Reverse(*frames), *site));
        let kind = |is_short| if is_short { SignatureKind::Short } else { SignatureKind::Full };
        let sites = sites.into_iter().map(|((offset, is_short), _)| SignatureSite { offset, kind: kind(is_short) });
        RxStream { id: stream.id, sites: sites.collect(), order_classes: order_classes(stream, workers) }
    }
}

/// After how many frames the same worker sends the same flow again; 0 if that is more than can be followed.
///
/// Every field counts as part of the flow, also those that a DUT would not look at.
fn order_classes(stream: &StreamProgram, workers: u64) -> u16 {
    let flows = if stream.flows <= 1 {
        1
    } else {
        stream.fields.iter().fold(1, |all, field| lcm(all, u128::from(field.div) * u128::from(field.period)))
    };
    let classes = lcm(flows, workers.max(1).into());
    if classes <= MAX_ORDER_CLASSES.into() { classes as u16 } else { 0 }
}

/// A native or a generic program, or the faster that works.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum XdpChoice {
    /// Native, else generic.
    #[default]
    Auto,
    /// Native or an error.
    Native,
    /// Generic or an error.
    Generic,
}

/// Counts of a stream at a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamRx {
    /// The stream.
    pub id: StreamId,
    /// Frames that arrived, duplicates included.
    pub frames: u64,
    /// Their bytes (L2, FCS included).
    pub bytes: u64,
    /// Frames that had arrived before, as far as one CPU saw both; `None` if not followed.
    pub duplicates: Option<u64>,
    /// Frames that arrived after a later one of the same path (RFC 4737 §3); `None` if not followed.
    pub reordered: Option<u64>,
    /// Latencies of the frames with a fresh stamp; `None` if the stream shares its histogram.
    pub latency: Option<LatencyCounts>,
}

/// All counts at one moment, or between two.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RxSnapshot {
    /// Per stream, in the order of the configuration.
    pub streams: Vec<StreamRx>,
    /// Latencies of all streams.
    pub latency: LatencyCounts,
    /// Our frames per receive queue (queues from 64 on count with queue n mod 64).
    pub queues: Vec<u64>,
    /// Frames that are not ours, in the order of [`OTHER_KINDS`].
    pub others: Vec<u64>,
}

impl RxSnapshot {
    /// Our frames.
    pub fn frames(&self) -> u64 {
        self.streams.iter().map(|stream| stream.frames).sum()
    }

    /// Bytes of our frames (L2, FCS included).
    pub fn bytes(&self) -> u64 {
        self.streams.iter().map(|stream| stream.bytes).sum()
    }

    /// The kinds of foreign frames that arrived, with their numbers.
    pub fn others(&self) -> BTreeMap<String, u64> {
        let named = OTHER_KINDS.iter().zip(&self.others).filter(|(_, frames)| **frames > 0);
        named.map(|(kind, frames)| ((*kind).to_owned(), *frames)).collect()
    }

    /// What came between an earlier snapshot of the same receiver and this one.
    #[must_use]
    pub fn since(&self, earlier: &RxSnapshot) -> RxSnapshot {
        let deltas = |now: &[u64], then: &[u64]| now.iter().zip(then).map(|(now, then)| now - then).collect();
        let stream = |(now, then): (&StreamRx, &StreamRx)| StreamRx {
            id: now.id,
            frames: now.frames - then.frames,
            bytes: now.bytes - then.bytes,
            duplicates: now.duplicates.zip(then.duplicates).map(|(now, then)| now - then),
            reordered: now.reordered.zip(then.reordered).map(|(now, then)| now - then),
            latency: now.latency.as_ref().zip(then.latency.as_ref()).map(|(now, then)| now.since(then)),
        };
        RxSnapshot {
            streams: self.streams.iter().zip(&earlier.streams).map(stream).collect(),
            latency: self.latency.since(&earlier.latency),
            queues: deltas(&self.queues, &earlier.queues),
            others: deltas(&self.others, &earlier.others),
        }
    }

    /// A caveat if the queues in use got very unequal shares: one under a tenth of the mean although there are at least 8
    /// flows for each. Multi-queue receivers only.
    pub fn lopsided(&self, port: &str, queues: u64, flows: u64) -> Option<Caveat> {
        let used = &self.queues[..(queues as usize).clamp(1, QUEUES)];
        let total: u64 = used.iter().sum();
        let starved = used.iter().filter(|frames| **frames * 10 * queues < total).count();
        (queues > 1 && flows >= 8 * queues && starved > 0).then(|| {
            let list = used.iter().enumerate().map(|(queue, frames)| format!("{queue}: {frames}"));
            let list = list.collect::<Vec<_>>().join(", ");
            let text = format!("{starved} of {queues} receive queues of {port} got under a tenth of the mean ({list})");
            Caveat::new(Code::LopsidedQueues, text)
        })
    }
}

/// Frames and bytes of all streams: what a live line needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RxTotals {
    /// Our frames.
    pub frames: u64,
    /// Their bytes (L2, FCS included).
    pub bytes: u64,
}

/// The counting program on one interface.
#[derive(Debug)]
pub struct Receiver {
    // Dropped first: the program stops before its memory is unmapped.
    attachment: Attachment,
    maps: Maps,
    layout: Layout,
    caveats: Vec<Caveat>,
    index: u32,
    // Last: puts back what attaching turned off, once nothing is attached.
    _surroundings: Surroundings,
}

impl Receiver {
    /// Attaches the counting program to all queues of `link`: native, else generic, as `choice` allows.
    ///
    /// Waits up to 30 s for a link that attaching took down; says in [`Receiver::caveats`] what attaching changed, and why
    /// it is generic.
    ///
    /// # Errors
    /// Somebody else's program is there (errno EBUSY; it is left alone); no privilege; no mode works (with the kernel's
    /// reason); more than [`MAX_SITES`] signature sites; the link did not come back.
    pub fn attach(link: &Link, config: &RxConfig, choice: XdpChoice) -> Result<Receiver> {
        log::quiet();
        caps::require(Need::Xdp)?;
        refuse_foreign(link)?;
        let layout = Layout::new(config, link)?;
        let mut surroundings = Surroundings::of(link);
        let mut refusals = Vec::new();
        let tries =
            [(XdpMode::Native, Variant::Plain), (XdpMode::Native, Variant::Frags), (XdpMode::Generic, Variant::Plain)];
        let mut loaded: Option<(Variant, Loaded)> = None;
        for (mode, variant) in tries.into_iter().filter(|(mode, _)| choice.allows(*mode)) {
            if loaded.as_ref().is_none_or(|(kind, _)| *kind != variant) {
                match Loaded::new(&layout, variant, link) {
                    Ok(program) => loaded = Some((variant, program)),
                    Err(error) => {
                        refusals.push(error);
                        continue;
                    }
                }
            }
            let Some((_, program)) = &loaded else { continue };
            match attach(program.program(), link, mode) {
                Ok(attachment) => {
                    let maps = program.maps(&layout, config).map_err(|error| {
                        Error::environment("map the counters of the counting program on", &link.name).os(&error)
                    })?;
                    let mut caveats = surroundings.changes()?;
                    if mode == XdpMode::Generic && choice == XdpChoice::Auto {
                        caveats.push(fallback(&link.name, &refusals));
                    }
                    let index = link.index;
                    return Ok(Receiver { attachment, maps, layout, caveats, index, _surroundings: surroundings });
                }
                // Another mode does not help against these.
                Err(error)
                    if matches!(error.errno(), Some(libc::EBUSY | libc::EEXIST | libc::EPERM | libc::ENODEV)) =>
                {
                    return Err(error);
                }
                Err(error) => refusals.push(error),
            }
        }
        Err(refusals.into_iter().next().unwrap_or_else(|| Error::environment("count frames on", &link.name)))
    }

    /// How the program runs.
    pub fn mode(&self) -> XdpMode {
        self.attachment.mode
    }

    /// What attaching changed, and why it is not native.
    pub fn caveats(&self) -> &[Caveat] {
        &self.caveats
    }

    /// The interface.
    pub fn index(&self) -> u32 {
        self.index
    }

    /// Starts a trial with a tag of its own: late frames of the trial before then count as `another_run`. Call while no
    /// frame of ours is on its way; then take the snapshot that the trial is measured from.
    pub fn begin_trial(&self, run_tag: u32) {
        for cpu in 0..self.layout.cpus {
            self.maps.cpus.set32(cpu, CPU_RUN_TAG, run_tag);
        }
        // Sequences start again: what was seen before must not make them duplicates.
        for window in 0..self.layout.cpus * self.layout.windows {
            for word in (0..WINDOW_BYTES).step_by(8) {
                self.maps.windows.set(window, word, 0);
            }
        }
    }

    /// All counts, now. Reads some 100 KB for a few streams; for a line per second there is [`Receiver::totals`].
    pub fn snapshot(&self) -> RxSnapshot {
        let mut latencies = vec![LatencyCounts::empty(); self.layout.histograms];
        for (at, latency) in latencies.iter_mut().enumerate() {
            for cpu in 0..self.layout.cpus {
                for bucket in 0..BUCKETS {
                    let frames = self.maps.histograms.get(cpu * self.layout.histograms + at, 8 * bucket);
                    if frames > 0 {
                        latency.add(bucket, frames);
                    }
                }
            }
        }
        let mut latency = LatencyCounts::empty();
        latencies.iter().for_each(|one| latency.merge(one));
        let streams = self.layout.streams.iter().map(|stream| {
            let sum = |offset| self.sum_of_stream(stream.id, offset);
            let (histogram, is_shared) = self.layout.histogram_of(stream.position);
            StreamRx {
                id: stream.id,
                frames: sum(STREAM_FRAMES),
                bytes: sum(STREAM_L2_BYTES),
                duplicates: self.layout.has_window(stream.position).then(|| sum(STREAM_DUPLICATES)),
                reordered: (self.layout.has_window(stream.position) && stream.order_classes > 0)
                    .then(|| sum(STREAM_REORDERED)),
                latency: (!is_shared).then(|| latencies[histogram].clone()),
            }
        });
        let sum = |offset: usize| (0..self.layout.cpus).map(|cpu| self.maps.cpus.get(cpu, offset)).sum();
        RxSnapshot {
            streams: streams.collect(),
            latency,
            queues: (0..QUEUES).map(|queue| sum(CPU_QUEUES + 8 * queue)).collect(),
            others: (0..OTHERS).map(|kind| sum(CPU_OTHERS + 8 * kind)).collect(),
        }
    }

    /// Frames and bytes of all streams, now.
    pub fn totals(&self) -> RxTotals {
        let sum = |offset| self.layout.streams.iter().map(|stream| self.sum_of_stream(stream.id, offset)).sum();
        RxTotals { frames: sum(STREAM_FRAMES), bytes: sum(STREAM_L2_BYTES) }
    }

    fn sum_of_stream(&self, id: StreamId, offset: usize) -> u64 {
        let entries = (0..self.layout.cpus).map(|cpu| cpu * self.layout.stream_slots + id.index());
        entries.map(|entry| self.maps.streams.get(entry, offset)).sum()
    }
}

impl XdpChoice {
    pub(super) fn allows(self, mode: XdpMode) -> bool {
        match self {
            XdpChoice::Auto => true,
            XdpChoice::Native => mode == XdpMode::Native,
            XdpChoice::Generic => mode == XdpMode::Generic,
        }
    }
}

fn fallback(name: &str, refusals: &[Error]) -> Caveat {
    let reason = refusals.first().map_or_else(
        || "unknown reason".to_owned(),
        |error| error.cause().map_or_else(|| error.to_string(), str::to_owned),
    );
    Caveat::new(
        Code::XdpFallback,
        format!("frames on {name} are counted in generic XDP mode, which is slower: native mode: {reason}"),
    )
}

/// Sizes and places in the maps.
#[derive(Debug)]
struct Layout {
    cpus: usize,
    /// Highest stream number + 1.
    stream_slots: usize,
    /// Streams with a window, the first ones of the configuration.
    windows: usize,
    /// Histograms per CPU; the last is shared by all further streams.
    histograms: usize,
    sites: Vec<SignatureSite>,
    streams: Vec<Place>,
}

#[derive(Debug)]
struct Place {
    id: StreamId,
    position: usize,
    order_classes: u16,
    sites: u64,
}

impl Layout {
    fn new(config: &RxConfig, link: &Link) -> Result<Layout> {
        let cpus = system::online_cpus().into_iter().max().unwrap_or(0) + 1;
        let mut sites: Vec<SignatureSite> = Vec::new();
        for site in config.streams.iter().flat_map(|stream| &stream.sites) {
            if !sites.contains(site) {
                sites.push(*site);
            }
        }
        if sites.len() > MAX_SITES {
            return Err(Error::usage("recognise the frames that come back to", &link.name)
                .because(format!("{} different signature positions, at most {MAX_SITES} can be told", sites.len()))
                .remedy("use fewer different frame sizes and header stacks"));
        }
        let bits = |stream: &RxStream| {
            let bit = |site| sites.iter().position(|known| known == site).map_or(0, |at| 1 << at);
            stream.sites.iter().map(bit).fold(0u64, |all, bit| all | bit)
        };
        let streams: Vec<_> = (config.streams.iter().enumerate())
            .map(|(position, stream)| Place {
                id: stream.id,
                position,
                order_classes: stream.order_classes.min(MAX_ORDER_CLASSES as u16),
                sites: bits(stream),
            })
            .collect();
        Ok(Layout {
            cpus,
            stream_slots: streams.iter().map(|stream| stream.id.index() + 1).max().unwrap_or(1),
            windows: streams.len().min(MEMORY_BYTES / (WINDOW_BYTES * cpus)).max(1),
            histograms: streams.len().min(MEMORY_BYTES / (HISTOGRAM_BYTES * cpus)).max(1),
            sites,
            streams,
        })
    }

    fn has_window(&self, position: usize) -> bool {
        position < self.windows
    }

    /// Which histogram a stream has, and whether others have it too.
    fn histogram_of(&self, position: usize) -> (usize, bool) {
        let last = self.histograms - 1;
        (position.min(last), position >= last && self.streams.len() > self.histograms)
    }

    /// The offsets to try, likeliest first: as sent, then with one tag less, then with two.
    fn tries(&self) -> Vec<(u16, bool, u8)> {
        let tries = [0, 4, 8].into_iter().flat_map(|less| {
            let at = move |(base, site): (usize, &SignatureSite)| {
                Some((site.offset.checked_sub(less)?, site.kind == SignatureKind::Short, base as u8))
            };
            self.sites.iter().enumerate().filter_map(at)
        });
        tries.collect()
    }

    /// `struct rx_config` of the BPF source.
    fn rodata(&self) -> Vec<u8> {
        let tries = self.tries();
        let mut bytes = Vec::with_capacity(8 + 4 * TRIES);
        bytes.extend((self.stream_slots as u32).to_ne_bytes());
        bytes.extend((tries.len() as u32).to_ne_bytes());
        for (offset, is_short, base) in tries {
            bytes.extend(offset.to_ne_bytes());
            bytes.extend([u8::from(is_short), base]);
        }
        bytes.resize(8 + 4 * TRIES, 0);
        bytes
    }
}

/// 2^40 / classes + 1 and 2^16 mod classes: what the BPF program's `class_of` multiplies by.
fn divisors(classes: u16) -> (u64, u16) {
    if classes == 0 { (0, 0) } else { ((1 << 40) / u64::from(classes) + 1, ((1u32 << 16) % u32::from(classes)) as u16) }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Variant {
    /// Frames in one buffer.
    Plain,
    /// Frames in several (jumbo frames in native mode).
    Frags,
}

impl Variant {
    fn program(self) -> &'static str {
        match self {
            Variant::Plain => "plimsoll_rx",
            Variant::Frags => "plimsoll_rx_f",
        }
    }
}

/// The program in the kernel, not attached yet.
struct Loaded {
    object: libbpf_rs::Object,
    variant: Variant,
}

impl Loaded {
    fn new(layout: &Layout, variant: Variant, link: &Link) -> Result<Loaded> {
        log::forget();
        let load = || -> libbpf_rs::Result<libbpf_rs::Object> {
            let mut object = ObjectBuilder::default().open_memory(&OBJECT.0)?;
            for mut program in object.progs_mut() {
                let is_wanted = program.name() == variant.program();
                program.set_autoload(is_wanted);
            }
            for mut map in object.maps_mut() {
                let name = map.name().to_string_lossy().into_owned();
                let per_cpu = match name.as_str() {
                    "cpus" => 1,
                    "streams" => layout.stream_slots,
                    "windows" => layout.windows,
                    "histograms" => layout.histograms,
                    _ => {
                        if name.ends_with(".rodata") {
                            map.set_initial_value(&layout.rodata())?;
                        }
                        continue;
                    }
                };
                map.set_max_entries((per_cpu * layout.cpus) as u32)?;
            }
            object.load()
        };
        match load() {
            Ok(object) => Ok(Loaded { object, variant }),
            Err(cause) => {
                let said = log::last().unwrap_or_default();
                tracing::debug!(%cause, said, "the counting program was not loaded");
                let error = Error::environment("load the counting program for", &link.name);
                Err(match log::os_error(&cause) {
                    Some(os) if os.raw_os_error() == Some(libc::EPERM) => {
                        let hint = system::bpf_refusal_hint();
                        error
                            .os(os)
                            .remedy(hint.unwrap_or_else(|| "CAP_BPF and CAP_NET_ADMIN are needed: run as root".into()))
                    }
                    Some(os) => error.os(os),
                    None => error.because(&cause),
                })
                .map_err(|error: Error| system::kernel_too_old().map_or(error.clone(), |old| error.remedy(old)))
            }
        }
    }

    fn program(&self) -> BorrowedFd<'_> {
        let named = |program: &libbpf_rs::Program| program.name() == self.variant.program();
        let program = self.object.progs().find(named).expect("the object has the program it was loaded for");
        // SAFETY: the descriptor belongs to the object, which `self` borrows for as long as the result lives.
        unsafe { BorrowedFd::borrow_raw(std::os::fd::AsRawFd::as_raw_fd(&program.as_fd())) }
    }

    /// Maps the maps and writes what the program needs to know into them.
    fn maps(&self, layout: &Layout, config: &RxConfig) -> std::io::Result<Maps> {
        let mapped = |name: &str, value_bytes, per_cpu| {
            let map = self.object.maps().find(|map| map.name() == name).expect("the object has its maps");
            assert_eq!(map.value_size() as usize, value_bytes, "{name} as the BPF source has it");
            MappedArray::new(map.as_fd(), value_bytes, per_cpu * layout.cpus)
        };
        let maps = Maps {
            cpus: mapped("cpus", CPU_BYTES, 1)?,
            streams: mapped("streams", STREAM_BYTES, layout.stream_slots)?,
            windows: mapped("windows", WINDOW_BYTES, layout.windows)?,
            histograms: mapped("histograms", HISTOGRAM_BYTES, layout.histograms)?,
        };
        for cpu in 0..layout.cpus {
            for stream in &layout.streams {
                let entry = cpu * layout.stream_slots + stream.id.index();
                let (reciprocal, wrap) = divisors(stream.order_classes);
                let window = cpu * layout.windows + stream.position;
                let window = if layout.has_window(stream.position) { window as u32 } else { NONE };
                let (histogram, _) = layout.histogram_of(stream.position);
                // Two 16-bit fields, in memory order.
                let classes = stream.order_classes.to_ne_bytes();
                let wrap = wrap.to_ne_bytes();
                let both = u32::from_ne_bytes([classes[0], classes[1], wrap[0], wrap[1]]);
                maps.streams.set(entry, STREAM_RECIPROCAL, reciprocal);
                maps.streams.set32(entry, STREAM_CLASSES_AND_WRAP, both);
                maps.streams.set32(entry, STREAM_WINDOW, window);
                maps.streams.set32(entry, STREAM_HISTOGRAM, (cpu * layout.histograms + histogram) as u32);
                // Last: from here on the program counts the stream.
                maps.streams.set(entry, STREAM_SITES, stream.sites);
            }
            maps.cpus.set32(cpu, CPU_RUN_TAG, config.run_tag);
        }
        Ok(maps)
    }
}

#[derive(Debug)]
struct Maps {
    cpus: MappedArray,
    streams: MappedArray,
    windows: MappedArray,
    histograms: MappedArray,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn site(offset: u16, kind: SignatureKind) -> SignatureSite {
        SignatureSite { offset, kind }
    }

    /// The BPF program's `class_of`.
    fn class_of(sequence: u32, classes: u16) -> u64 {
        let (reciprocal, wrap) = divisors(classes);
        let folded = u64::from(sequence >> 16) * u64::from(wrap) + u64::from(sequence & 0xFFFF);
        folded - ((folded * reciprocal) >> 40) * u64::from(classes)
    }

    #[test]
    fn the_order_class_is_the_remainder_for_every_modulus() {
        for classes in 2..=MAX_ORDER_CLASSES as u16 {
            let edges = [0, 1, 0xFFFF, 0x1_0000, 0xFFFF_FFFF, 0xFFFF_0000, u32::from(classes) * 65_535];
            let spread = (0..200u32).map(|n| n.wrapping_mul(0x9E37_79B9));
            for sequence in edges.into_iter().chain(spread) {
                assert_eq!(
                    class_of(sequence, classes),
                    u64::from(sequence) % u64::from(classes),
                    "{sequence} {classes}"
                );
            }
        }
    }

    #[test]
    fn sites_are_tried_as_sent_then_with_fewer_tags() {
        let layout = Layout {
            cpus: 1,
            stream_slots: 1,
            windows: 1,
            histograms: 1,
            sites: vec![site(42, SignatureKind::Full), site(54, SignatureKind::Short)],
            streams: Vec::new(),
        };
        let offsets: Vec<_> = layout.tries().into_iter().map(|(offset, ..)| offset).collect();
        assert_eq!(offsets, [42, 54, 38, 50, 34, 46]);
        assert_eq!(layout.rodata().len(), 8 + 4 * TRIES);
    }

    #[test]
    fn lopsided_queues_are_a_caveat_only_with_enough_flows() {
        let snapshot = |queues: [u64; 4]| RxSnapshot {
            streams: Vec::new(),
            latency: LatencyCounts::empty(),
            queues: queues.into_iter().chain([0; QUEUES - 4]).collect(),
            others: vec![0; OTHERS],
        };
        assert!(snapshot([100, 100, 100, 1]).lopsided("g0", 4, 64).is_some());
        assert!(snapshot([100, 100, 100, 1]).lopsided("g0", 4, 8).is_none());
        assert!(snapshot([100, 80, 120, 60]).lopsided("g0", 4, 64).is_none());
        assert!(snapshot([100, 0, 0, 0]).lopsided("g0", 1, 64).is_none());
    }
}
