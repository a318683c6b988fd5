//! A trial: one run at one load for one duration, judged only after what is under way has arrived.
//!
//! Control plane. Readings of counters stand outside the counted window: read, start, send, drain, read. A trial ends by the
//! clock; frames that did not leave by then are reported as unsent, never as lost.

use std::{
    collections::BTreeMap,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use serde_json::Value;

use super::{
    Event, Listener, Session, backends,
    totals::{self, PortTotals, Sent, StreamTotals},
};
use crate::{
    clock::{self, Instant},
    dut::{
        counters::{Counter, Delta, InterfaceFacts, Snapshot, Source},
        stages::Side,
        story::Story,
    },
    engine::{TrialSpec, TxPort, TxReport},
    error::Result,
    host::link::{self, Stats},
    program::Mode,
    report::result::{Second, Trial},
    units::{self, NS_PER_S},
    xdp::{
        latency::LatencyCounts,
        rx::{Receiver, RxSnapshot},
    },
};

/// Workers get this long to be ready before the common start.
const START_IN_NS: u64 = 3_000_000;
/// How often the control plane looks while a trial runs.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// After sending, receivers stay open until nothing has come for this long…
const QUIET_NS: u64 = 200_000_000;
/// …but at least this long, since a queue in the DUT may hold frames back…
const DRAIN_AT_LEAST_NS: u64 = 500_000_000;
/// …and at most this long (RFC 2544 §23: wait 2 s for residual frames).
const DRAIN_AT_MOST_NS: u64 = 2_000_000_000;

/// Where every frame is back, this long without another says that none was duplicated.
const ALL_BACK_QUIET_NS: u64 = 30_000_000;
/// Load of learning frames, frames/s per port, unless the trial's own is less.
const LEARNING_FPS: u64 = 1_000;
/// How long the generator's own ceiling is measured.
const CALIBRATION_NS: u64 = 500_000_000;

/// What a trial shall do.
#[derive(Debug, Clone, Default)]
pub struct Want {
    /// Frames/s of each sending port, in the order of the programs; `None` = as fast as possible.
    pub load_fps: Vec<Option<u64>>,
    /// How long to send; `None` = until the count is sent.
    pub duration_ns: Option<u64>,
    /// Exactly so many frames per port.
    pub count: Option<u64>,
    /// Where in a sweep's matrix.
    pub axes: BTreeMap<String, Value>,
    /// Frames outside the count first, for so long, so that the DUT has learned and resolved; 0 = none.
    pub learning_ns: u64,
    /// The receivers need not stay open once every frame is back.
    pub ends_when_all_is_back: bool,
}

/// What is read before and after, outside the counted window.
struct Reading {
    rx: Vec<Option<RxSnapshot>>,
    /// The generator's own interfaces.
    own: Snapshot,
    /// Frames of the control plane (ARP, ND, ping), by port.
    control_frames: Vec<u64>,
}

/// All that a trial left to be judged.
pub(super) struct Left {
    pub reports: Vec<Option<TxReport>>,
    /// What each port received.
    pub rx: Vec<Option<RxSnapshot>>,
    /// How the generator's own interfaces' counters moved.
    pub own: Delta,
    /// Frames that the control plane sent, by port.
    pub control_frames: Vec<u64>,
    pub seconds: Vec<Second>,
    pub story: Option<Story>,
    pub start: Instant,
}

impl Left {
    /// The time that sending really took: of the longest worker.
    pub fn sent_for_ns(&self) -> u64 {
        self.reports.iter().flatten().map(|report| report.sent_for_ns).max().unwrap_or(0)
    }

    /// The generator's own counters that moved.
    pub fn moved(&self) -> impl Iterator<Item = (&Counter, i64)> {
        self.own.moved.iter().map(|(counter, delta)| (counter, *delta as i64)).filter(|(_, delta)| *delta != 0)
    }
}

impl Session {
    /// Runs a trial of what is loaded.
    ///
    /// # Errors
    /// The engine is unusable. A trial that went badly is a trial with caveats.
    pub fn trial(&mut self, want: &Want, tell: Listener<'_>) -> Result<Trial> {
        if want.learning_ns > 0 {
            self.learn(want)?;
        }
        self.retag()?;
        let observed_before = self.observer.as_ref().map(|observer| observer.observe());
        let before = self.read();
        self.watch.take_events();
        let start = clock::now().plus_ns(START_IN_NS);
        let mut loads = want.load_fps.iter();
        for sender in self.ports.iter_mut().filter_map(|port| port.sender.as_mut()) {
            let load_fps = loads.next().copied().flatten();
            let duration_ns = want.duration_ns.unwrap_or(u64::MAX);
            sender.start(TrialSpec { load_fps, duration_ns, count: want.count, start })?;
        }
        let seconds = self.follow(want, start, &before, tell);
        let mut reports: Vec<Option<TxReport>> = Vec::new();
        for port in &mut self.ports {
            reports.push(port.sender.as_mut().map(TxPort::finish).transpose()?);
        }
        self.drain(&before, want.ends_when_all_is_back);
        let after = self.read();
        let observed_after = self.observer.as_ref().map(|observer| observer.observe());
        let story = match (observed_before, observed_after, &self.observer) {
            (Some(before), Some(after), Some(observer)) => {
                Some(Story::of(before, after, observer.interfaces(), Side::Dut))
            }
            _ => None,
        };
        let rx = after.rx.iter().zip(&before.rx).map(|(after, before)| Some(after.as_ref()?.since(before.as_ref()?)));
        let control = after.control_frames.iter().zip(&before.control_frames).map(|(after, before)| after - before);
        let left = Left {
            reports,
            rx: rx.collect(),
            own: Delta::between(&before.own, &after.own),
            control_frames: control.collect(),
            seconds,
            story,
            start,
        };
        Ok(self.conclude(want, &left))
    }

    fn read(&self) -> Reading {
        let mut own = Snapshot::default();
        for port in &self.ports {
            let (name, index) = (&port.link.name, port.link.index);
            let facts = InterfaceFacts { driver: port.device.driver.clone(), ..InterfaceFacts::default() };
            own.interfaces.insert(name.clone(), facts);
            for (counter, value) in link::stats(index).iter().flat_map(Stats::named) {
                own.add(Source::Link, name, "", counter, value);
            }
            for (counter, value) in link::device_counters(index) {
                own.add(Source::Ethtool, name, "", &counter, value);
            }
        }
        let control = |n: usize| self.control.as_ref().map_or(0, |control| control.sent(n).0);
        Reading {
            rx: self.ports.iter().map(|port| port.receiver.as_ref().map(Receiver::snapshot)).collect(),
            own,
            control_frames: (0..self.ports.len()).map(control).collect(),
        }
    }

    /// Waits for the end of sending, telling second by second.
    fn follow(&mut self, want: &Want, start: Instant, before: &Reading, tell: Listener<'_>) -> Vec<Second> {
        let end = want.duration_ns.map(|duration| start.plus_ns(duration));
        let mut seconds: Vec<Second> = Vec::new();
        let mut next = start.plus_ns(NS_PER_S);
        loop {
            let now = clock::now();
            let over =
                self.all_ended() || end.is_some_and(|end| now >= end) || self.stop.load(Relaxed) || self.all_removed();
            if now >= next || over {
                let total = self.so_far(before);
                let at_s = now.since_ns(start).min(want.duration_ns.unwrap_or(u64::MAX)) as f64 / 1e9;
                seconds.push(since(&seconds, at_s, &total));
                if now >= next {
                    tell(Event::Second(&seconds));
                    next = next.plus_ns(NS_PER_S);
                }
            }
            if over {
                return seconds;
            }
            std::thread::sleep(LOOK_EVERY.min(Duration::from_nanos(next.since_ns(now).max(1))));
        }
    }

    /// Whether nothing is left to send: a count or a last burst can be over before the trial's time is.
    fn all_ended(&mut self) -> bool {
        self.ports.iter_mut().filter_map(|port| port.sender.as_mut()).all(TxPort::has_ended)
    }

    fn all_removed(&self) -> bool {
        let mut senders = self.ports.iter().filter(|port| port.sender.is_some());
        senders.all(|port| self.watch.is_removed(port.link.index))
    }

    /// Totals since the start of the trial.
    fn so_far(&self, before: &Reading) -> Second {
        let mut total = Second::default();
        for (n, port) in self.ports.iter().enumerate() {
            if let Some(sender) = &port.sender {
                let counts = sender.counters();
                total.offered_frames += counts.total().offered_frames;
                total.completed_frames += counts.sent_frames();
            }
            if let (Some(receiver), Some(before)) = (&port.receiver, &before.rx[n]) {
                let now = receiver.totals();
                *total.received_frames.get_or_insert(0) += now.frames - before.frames();
                *total.rx_bytes.get_or_insert(0) += now.bytes - before.bytes();
            }
        }
        if !self.receives() {
            (total.received_frames, total.rx_bytes) = (None, None);
        }
        total
    }

    /// Some stream comes back to a port that counts.
    pub(super) fn receives(&self) -> bool {
        self.compiled()
            .rx_of_stream
            .iter()
            .flatten()
            .any(|port| self.ports.iter().any(|p| p.position == port.index() && p.receiver.is_some()))
    }

    /// Sends a little, outside the count: learning frames (RFC 2544 §23). They carry the last trial's tag.
    fn learn(&mut self, want: &Want) -> Result<()> {
        let start = clock::now().plus_ns(START_IN_NS);
        let mut loads = want.load_fps.iter();
        for sender in self.ports.iter_mut().filter_map(|port| port.sender.as_mut()) {
            let load_fps = Some(loads.next().copied().flatten().unwrap_or(LEARNING_FPS).min(LEARNING_FPS));
            sender.start(TrialSpec { load_fps, duration_ns: want.learning_ns, count: None, start })?;
        }
        for sender in self.ports.iter_mut().filter_map(|port| port.sender.as_mut()) {
            sender.finish()?;
        }
        Ok(())
    }

    /// The generator's own ceiling on these ports with these frames, in frames/s per port: they get an EtherType that the DUT
    /// drops at once, so that its work does not slow a generator that shares a CPU with it.
    ///
    /// # Errors
    /// The engine is unusable.
    pub fn own_ceiling(&mut self) -> Result<u64> {
        let mut offered = Vec::new();
        for program in &self.sizes[self.loaded].programs {
            let port = self.ports.iter_mut().find(|port| port.position == program.port.index());
            if let Some(sender) = port.and_then(|port| port.sender.as_mut()) {
                sender.load(Arc::new(backends::harmless(program)))?;
            }
        }
        let start = clock::now().plus_ns(START_IN_NS);
        let mut senders: Vec<&mut TxPort> = self.ports.iter_mut().filter_map(|port| port.sender.as_mut()).collect();
        for sender in &mut senders {
            sender.start(TrialSpec { load_fps: None, duration_ns: CALIBRATION_NS, count: None, start })?;
        }
        for sender in &mut senders {
            let report = sender.finish()?;
            offered.push(units::per_second(report.counts.total().offered_frames, report.sent_for_ns));
        }
        self.load_programs()?;
        self.own_fps = offered.iter().min().copied();
        self.slows_together = false;
        Ok(self.own_fps.unwrap_or(0))
    }

    /// Keeps receivers open for what is still under way.
    fn drain(&self, before: &Reading, ends_when_all_is_back: bool) {
        if !self.receives() {
            // A DUT that terminates has no frames to send back, but it too needs time for what stands in its queues.
            if self.observer.is_some() {
                std::thread::sleep(Duration::from_nanos(DRAIN_AT_LEAST_NS));
            }
            return;
        }
        let seen = || -> u64 {
            self.ports.iter().filter_map(|port| port.receiver.as_ref()).map(|receiver| receiver.totals().frames).sum()
        };
        let then: u64 = before.rx.iter().flatten().map(RxSnapshot::frames).sum();
        let sent: u64 =
            self.ports.iter().filter_map(|port| port.sender.as_ref()).map(|s| s.counters().sent_frames()).sum();
        let begun = clock::now();
        let (mut last, mut moved_at) = (seen(), begun);
        loop {
            let now = clock::now();
            let (waited, quiet) = (now.since_ns(begun), now.since_ns(moved_at));
            let all_back = ends_when_all_is_back && last - then >= sent && quiet >= ALL_BACK_QUIET_NS;
            let enough = waited >= DRAIN_AT_LEAST_NS && quiet >= QUIET_NS;
            if all_back || enough || waited >= DRAIN_AT_MOST_NS {
                return;
            }
            std::thread::sleep(LOOK_EVERY);
            let frames = seen();
            if frames != last {
                (last, moved_at) = (frames, clock::now());
            }
        }
    }

    /// Puts together what was asked, sent, seen and observed.
    fn conclude(&mut self, want: &Want, left: &Left) -> Trial {
        let streams = self.stream_totals(left);
        let ports = self.port_totals(left);
        let load_fps = want.load_fps.first().copied().flatten();
        let latency = left.rx.iter().flatten().map(|rx| &rx.latency).fold(None, |sum: Option<LatencyCounts>, one| {
            let Some(mut sum) = sum else { return Some(one.clone()) };
            sum.merge(one);
            Some(sum)
        });
        let mut trial = totals::trial(self.size_label(), load_fps, left.sent_for_ns(), &streams, ports, latency);
        let mut streams = self.compiled().programs.iter().flat_map(|program| &program.streams);
        trial.recorded =
            load_fps.is_none() && streams.all(|stream| matches!(stream.schedule.mode, Mode::Recorded { .. }));
        trial.intended_s = want.duration_ns.map(|ns| ns as f64 / 1e9);
        trial.seconds.clone_from(&left.seconds);
        trial.axes.clone_from(&want.axes);
        for (kind, frames) in left.rx.iter().flatten().flat_map(RxSnapshot::others) {
            *trial.other.entry(kind).or_default() += frames;
        }
        if let Some(story) = &left.story {
            self.take_ingested(&mut trial, story, left.sent_for_ns());
        }
        trial.caveats = self.doubts(&trial, left);
        self.judge(&mut trial, left);
        trial
    }

    fn stream_totals(&self, left: &Left) -> Vec<StreamTotals> {
        let compiled = self.compiled();
        let mut all = Vec::new();
        for (n, port) in self.ports.iter().enumerate() {
            let program = compiled.programs.iter().find(|program| program.port.index() == port.position);
            let (Some(program), Some(report)) = (program, &left.reports[n]) else { continue };
            let counts = report.counts.streams();
            let mut refused = report.counts.own().refused_frames;
            for (s, stream) in program.streams.iter().enumerate() {
                let rx_port = compiled.rx_of_stream[stream.id.index()]
                    .and_then(|rx| self.ports.iter().position(|port| port.position == rx.index()));
                let signed = stream.templates.iter().all(|template| template.signature.is_some());
                let received = rx_port.filter(|_| signed).and_then(|port| left.rx[port].as_ref());
                let received = received.and_then(|rx| rx.streams.iter().find(|seen| seen.id == stream.id).cloned());
                let intended = report.intended_frames[s];
                let count = counts[s];
                // The kernel says how many it refused, not which: they are taken from the streams in order.
                let not_sent = refused.min(count.completed_frames);
                refused -= not_sent;
                let mean = count.completed_bytes.checked_div(count.completed_frames).unwrap_or(0);
                let sent = Sent {
                    // As fast as possible: what could be offered is what was asked for.
                    intended_frames: if intended == 0 { count.offered_frames } else { intended },
                    offered_frames: count.offered_frames,
                    completed_frames: count.completed_frames - not_sent,
                    completed_bytes: count.completed_bytes - mean * not_sent,
                };
                all.push(StreamTotals { name: stream.name.clone(), port: n, rx_port, sent, received });
            }
        }
        all
    }

    fn port_totals(&self, left: &Left) -> Vec<PortTotals> {
        let of_port = |(n, port): (usize, &super::Port)| PortTotals {
            name: port.link.name.clone(),
            rx_queues: left.rx[n].as_ref().map(|rx| queues(rx, port.device.rx_queues(&port.link))).unwrap_or_default(),
            device: left
                .moved()
                .filter(|(counter, _)| counter.interface == port.link.name)
                .map(|(counter, delta)| (counter.name.clone(), delta))
                .collect(),
        };
        self.ports.iter().enumerate().map(of_port).collect()
    }
}

/// Received frames of the queues that the interface has.
fn queues(rx: &RxSnapshot, count: u64) -> Vec<u64> {
    rx.queues.iter().copied().take(count.max(1) as usize).collect()
}

/// What a second added to the ones before it.
fn since(seconds: &[Second], at_s: f64, total: &Second) -> Second {
    let sum = |field: fn(&Second) -> u64| seconds.iter().map(field).sum::<u64>();
    let received = seconds.iter().filter_map(|second| second.received_frames).sum::<u64>();
    let bytes = seconds.iter().filter_map(|second| second.rx_bytes).sum::<u64>();
    Second {
        at_s,
        offered_frames: total.offered_frames.saturating_sub(sum(|second| second.offered_frames)),
        completed_frames: total.completed_frames.saturating_sub(sum(|second| second.completed_frames)),
        received_frames: total.received_frames.map(|frames| frames.saturating_sub(received)),
        rx_bytes: total.rx_bytes.map(|total| total.saturating_sub(bytes)),
    }
}
