//! What casts doubt on a trial: counters that disagree, rates not reached, links that went down, frames that are not ours.
//!
//! Control plane, after the trial. Every doubt is a [`Caveat`] with numbers; none changes a count.

use std::sync::atomic::Ordering::Relaxed;

use super::{Port, Session, trial::Left};
use crate::{
    caveat::{Caveat, Code},
    dut::counters::Source,
    engine::{TxReport, control::Control},
    host::{link, watch::LinkChange},
    human,
    report::result::Trial,
};

/// With fewer frames than this, unequal queues mean nothing.
const ENOUGH_FRAMES: u64 = 1000;

impl Session {
    pub(super) fn doubts(&self, trial: &Trial, left: &Left) -> Vec<Caveat> {
        let mut caveats = of_counts(trial);
        let flows = self.compiled().programs.iter().flat_map(|program| &program.streams).map(|s| s.flows).sum();
        for (n, port) in self.ports.iter().enumerate() {
            if let Some(report) = &left.reports[n] {
                caveats.extend(self.of_sender(n, port, report, left));
            }
            if let Some(rx) = left.rx[n].as_ref().filter(|rx| rx.frames() >= ENOUGH_FRAMES) {
                caveats.extend(rx.lopsided(&port.link.name, port.device.rx_queues(&port.link), flows));
            }
        }
        caveats.extend(self.of_links(left));
        for event in self.control.iter().flat_map(Control::take_events) {
            caveats.push(event.caveat(&self.ports[event.port].link.name));
        }
        caveats.extend(of_strangers(trial));
        if let Some(story) = &left.story {
            caveats.extend(story.caveats.iter().cloned());
        }
        if self.stop.load(Relaxed) {
            caveats
                .push(Caveat::new(Code::Interrupted, "the run was stopped before its end: these are partial totals"));
        }
        caveats
    }

    /// What a sender said against what its device counted, and how its pacing went.
    fn of_sender(&self, n: usize, port: &Port, report: &TxReport, left: &Left) -> Vec<Caveat> {
        let (name, mut caveats) = (&port.link.name, Vec::new());
        if let Some(error) = report.error() {
            let removed = self.watch.is_removed(port.link.index);
            let code = if removed { Code::InterfaceRemoved } else { Code::SendFailed };
            caveats.push(Caveat::new(code, format!("sending on {name} stopped early: {error}")));
        }
        let own = report.counts.own();
        if own.refused_frames > 0 {
            caveats.push(Caveat::new(
                Code::CompletedNotSent,
                format!(
                    "{name}: the device refused {} (no carrier, or its peer's ring was full); they do not count as completed",
                    human::frames(own.refused_frames)
                ),
            ));
        }
        let sent = report.counts.sent_frames();
        let device: i64 = left
            .moved()
            .filter(|(counter, _)| counter.interface == *name)
            .map(|(counter, delta)| match counter.source {
                Source::Link if counter.name == "tx_packets" => delta,
                Source::Ethtool => link::sent_apart(&counter.name, delta),
                _ => 0,
            })
            .sum();
        let device = (device.max(0) as u64).saturating_sub(left.control_frames[n]);
        // A device that is gone, or was re-made, counts nothing; that has its own caveat.
        if device.abs_diff(sent) * 1000 > sent.max(device) && report.error().is_none() {
            caveats.push(Caveat::new(
                Code::CountersDisagree,
                format!(
                    "{name}: {} frames were sent by our count, {} by the device's counters",
                    human::count(sent),
                    human::count(device)
                ),
            ));
        }
        if own.forgiven_frames * 1000 > report.counts.total().offered_frames {
            caveats.push(Caveat::new(
                Code::PacingForgiven,
                format!(
                    "{name}: sending fell behind by more than 1 ms; {} of debt were forgiven, not made up for in a burst",
                    human::ns(own.forgiven_ns)
                ),
            ));
        }
        caveats
    }

    /// Outages, removals and renames during the trial.
    fn of_links(&self, left: &Left) -> Vec<Caveat> {
        let (mut caveats, mut down_at) = (Vec::new(), std::collections::BTreeMap::new());
        let name = |index: u32| {
            let port = self.ports.iter().find(|port| port.link.index == index);
            port.map_or_else(|| format!("interface {index}"), |port| port.link.name.clone())
        };
        let at = |at: crate::clock::Instant| human::seconds(at.since_ns(left.start) as f64 / 1e9);
        for event in self.watch.take_events() {
            let name = name(event.index);
            match event.change {
                LinkChange::Down => {
                    down_at.entry(event.index).or_insert(event.at);
                }
                LinkChange::Up => {
                    if let Some(down) = down_at.remove(&event.index) {
                        let lasted = human::seconds(event.at.since_ns(down) as f64 / 1e9);
                        let text = format!("{name}: the link was down for {lasted}, from {} on", at(down));
                        caveats.push(Caveat::new(Code::LinkOutage, text));
                    }
                }
                LinkChange::Renamed(new) => {
                    caveats.push(Caveat::new(Code::Note, format!("{name} was renamed to {new} at {}", at(event.at))));
                }
                LinkChange::Removed => {
                    down_at.remove(&event.index);
                    let text = format!("{name} was removed at {}", at(event.at));
                    caveats.push(Caveat::new(Code::InterfaceRemoved, text));
                }
            }
        }
        for (index, down) in down_at {
            let text = format!("{}: the link went down at {} and stayed down", name(index), at(down));
            caveats.push(Caveat::new(Code::LinkOutage, text));
        }
        caveats
    }
}

/// Frames that arrived and are not ours.
fn of_strangers(trial: &Trial) -> Vec<Caveat> {
    let mut caveats = Vec::new();
    let closed: u64 = trial.other.iter().filter(|(kind, _)| kind.contains("port_unreachable")).map(|(_, n)| n).sum();
    if closed > 0 {
        caveats.push(Caveat::new(
            Code::PortClosed,
            format!(
                "the DUT answered {} with ICMP port unreachable: nothing listens there; these answers are not received frames",
                human::frames(closed)
            ),
        ));
    }
    let strangers: u64 = trial.other.values().sum();
    if strangers > closed && strangers * 100 > trial.completed_frames {
        let list: Vec<String> = trial
            .other
            .iter()
            .map(|(kind, frames)| format!("{} {}", human::count(*frames), kind.replace('_', " ")))
            .collect();
        caveats.push(Caveat::new(Code::OtherFrames, format!("frames that are not ours arrived: {}", list.join(", "))));
    }
    caveats
}

/// Doubts that the counts alone raise.
fn of_counts(trial: &Trial) -> Vec<Caveat> {
    let mut caveats = Vec::new();
    if let Some(received) = trial.received_frames.filter(|&received| received > trial.completed_frames) {
        caveats.push(Caveat::new(
            Code::ReceivedMoreThanCompleted,
            format!(
                "{} frames were received of {} sent: the DUT duplicates frames, or a counter is wrong",
                human::count(received),
                human::count(trial.completed_frames)
            ),
        ));
    }
    if trial.load_fps.is_some() && trial.offered_frames * 1000 < trial.intended_frames * 999 {
        caveats.push(Caveat::new(
            Code::RateNotReached,
            format!(
                "the asked rate was not reached: {} of {} frames were offered, {}; what was not sent is not loss",
                human::count(trial.offered_frames),
                human::count(trial.intended_frames),
                human::fps(trial.tx_fps)
            ),
        ));
    }
    let unsent = trial.offered_frames.saturating_sub(trial.completed_frames);
    if unsent * 1000 > trial.offered_frames {
        caveats
            .push(Caveat::new(Code::Unsent, format!("offered but not sent by the device: {}", human::frames(unsent))));
    }
    let twice: u64 = trial.streams.iter().filter_map(|stream| stream.duplicate_frames).sum();
    let late: u64 = trial.streams.iter().filter_map(|stream| stream.reordered_frames).sum();
    if twice + late > 0 {
        caveats.push(Caveat::new(
            Code::Reordered,
            format!("{} came twice, {} out of order", human::frames(twice), human::count(late)),
        ));
    }
    caveats
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_received_than_sent_is_a_doubt() {
        let trial = Trial { completed_frames: 100, received_frames: Some(150), ..Trial::default() };
        assert_eq!(of_counts(&trial)[0].code, Code::ReceivedMoreThanCompleted);
    }

    #[test]
    fn a_rate_that_was_not_reached_is_said_and_unsent_is_not_loss() {
        let trial = Trial {
            load_fps: Some(1000),
            intended_frames: 1000,
            offered_frames: 900,
            completed_frames: 900,
            ..Trial::default()
        };
        let caveats = of_counts(&trial);
        assert_eq!((caveats.len(), caveats[0].code), (1, Code::RateNotReached));
        assert!(caveats[0].text.contains("not loss"));
    }

    #[test]
    fn a_closed_port_is_told_from_other_strangers() {
        let other = [("icmp_port_unreachable".to_owned(), 500), ("arp".to_owned(), 1)].into();
        let trial = Trial { completed_frames: 1000, other, ..Trial::default() };
        let codes: Vec<Code> = of_strangers(&trial).iter().map(|caveat| caveat.code).collect();
        assert_eq!(codes, [Code::PortClosed, Code::OtherFrames]);
    }
}
