//! Sweeping a setting of the DUT (RX ring, queues): set, settle, measure, compare at equal loads, put back.
//!
//! Control plane. Two passes over the values. The first sends at full speed with each, which tells the highest load that every value can
//! be offered. The second runs trials at the same loads with each, and the search. Only the equal loads decide which value is best.

use std::{collections::BTreeMap, time::Duration};

use serde_json::Value;

use super::{
    Event, Session,
    ceiling::{Follow, SearchOptions},
    trial::Want,
};
use crate::{
    diagnose::{
        Stage, VerdictKind,
        settings::{self, Reading},
    },
    dut::{
        journal::{Held, Journal},
        observer::{Observer, Target},
        setting::{Kind, Setting},
    },
    error::{Error, ErrorKind, Result},
    host::link,
    report::result::{Comparison, Trial},
    units::{NS_PER_S, per_second},
};

/// Shares of the highest common load that every value is offered, in percent.
const LOADS_PERCENT: [u64; 4] = [100, 75, 50, 25];
/// Trials at the highest of them, which decides: values whose trials overlap there are equally good.
const DECIDING_TRIALS: usize = 3;
/// Of what was sent at full speed, what can be sent steadily.
const STEADY_PERCENT: u64 = 97;
/// How long the generator's links may take to come back after a change on the DUT.
const SETTLE_NS: u64 = 15_000_000_000;
/// How long a gateway may take to answer after it.
const RESOLVE_WITHIN_NS: u64 = 5_000_000_000;

/// A setting of the DUT and the values to be tried.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SettingAxis {
    /// What is varied.
    pub kind: Kind,
    /// The values, as asked for; what the driver makes of them is read back.
    pub values: Vec<u64>,
}

/// The axis's name in result files.
pub fn axis(kind: Kind) -> &'static str {
    match kind {
        Kind::RxRing => "dut_rx_ring",
        Kind::Queues => "dut_queues",
    }
}

/// Puts back what killed runs left changed on any DUT. Returns what was done and what could not be.
pub fn restore_left_over() -> (Vec<String>, Vec<Error>) {
    Journal::of_this_user()
        .restore_left_over(&|observe, interface| Observer::open(&Target::parse(observe)?, vec![interface.to_owned()]))
}

impl Session {
    /// Takes a setting of the DUT: it is put back when the value is dropped, and after a SIGKILL by the next run.
    ///
    /// # Errors
    /// Usage: the profile does not say how the DUT is read, or its interface. Environment: as [`Journal::take`].
    pub fn hold(&self, kind: Kind) -> Result<Held> {
        let missing = |what: &str| {
            Error::usage("change", format!("the {kind} of the DUT"))
                .because(format!("the profile has no {what}"))
                .remedy("add `dut: {observe: ssh:USER@HOST, interface: IF}` to it")
        };
        let dut = self.recipe.profile.dut.as_ref().ok_or_else(|| missing("dut: entry"))?;
        let interface = dut.interface.clone().ok_or_else(|| missing("dut: interface"))?;
        let observer = self.observer.clone().ok_or_else(|| {
            Error::environment("change", format!("the {kind} of the DUT")).because("the DUT cannot be reached")
        })?;
        // set_ring: changes rings, nothing else.
        let command = dut.set_ring.clone().filter(|_| kind == Kind::RxRing);
        let setting = Setting { kind, interface, command };
        // A journal is read by other runs, which may be elsewhere.
        let observe = match (dut.observe.as_str(), &self.file.host.netns) {
            ("local", Some(netns)) => format!("netns:{netns}"),
            (other, _) => other.to_owned(),
        };
        let mut held = Journal::of_this_user().take(&observe, observer, setting)?;
        if !dut.restore {
            held.keep()?;
        }
        Ok(held)
    }

    /// Asks every gateway for its MAC address again: a change on the DUT may have cost it its neighbours, or us ours.
    fn resolve_again(&mut self) -> Result<()> {
        let Some(control) = &self.control else { return Ok(()) };
        for (order, port) in self.ports.iter().enumerate() {
            let config = &self.recipe.profile.ports[port.position];
            let (None, Some(source), Some(gateway)) = (config.dest_mac, config.src_ip, config.default_gw) else {
                continue;
            };
            if port.sender.is_none() {
                continue;
            }
            let mac = control.resolve(order, 0, source, gateway, RESOLVE_WITHIN_NS)?.0;
            if self.recipe.facts[port.position].dest_mac != Some(mac) {
                return Err(Error::environment("go on with", "the sweep")
                    .because(format!("{gateway} has another MAC address since the DUT was changed")));
            }
        }
        Ok(())
    }

    /// Sets a value, waits until the links are up again, and asks the gateways anew. Returns the value in use.
    ///
    /// # Errors
    /// The DUT refused or does not answer; a link stays down; a gateway does not answer any more.
    pub fn set_on_dut(&mut self, held: &Held, value: u64, follow: &dyn Follow) -> Result<u64> {
        let now = held.set(value)?;
        for port in &self.ports {
            link::wait_for_carrier(port.link.index, SETTLE_NS)?;
        }
        self.resolve_again()?;
        follow.note(&match now == value {
            true => format!("DUT: {} is {now}", held.kind()),
            false => format!("DUT: {} is {now} (asked for {value}; the driver rounds)", held.kind()),
        });
        Ok(now)
    }

    /// Measures what is loaded with every value, and says which is best. Trials, ceilings and the comparison go into the result.
    ///
    /// # Errors
    /// As [`Session::set_on_dut`] and [`Session::ceiling`]; no load that every value could be offered.
    pub fn sweep_setting(
        &mut self,
        held: &Held,
        sweep: &SettingAxis,
        options: &SearchOptions,
        axes: &BTreeMap<String, Value>,
        follow: &dyn Follow,
    ) -> Result<()> {
        let mut readings = Vec::new();
        let trial_ns = options.goals.iter().map(|goal| goal.final_trial_ns).max().unwrap_or(NS_PER_S);
        for &value in &sweep.values {
            let value = self.set_on_dut(held, value, follow)?;
            let trial = self.trial_on_axis(None, trial_ns, sweep.kind, value, axes, options, follow)?;
            readings.push(self.reading(&trial, value));
        }
        let common = self.common_load(&readings, options)?;
        for &value in &sweep.values {
            let value = self.set_on_dut(held, value, follow)?;
            for percent in LOADS_PERCENT {
                let load = (common * percent / 100).max(1);
                for _ in 0..if percent == 100 { DECIDING_TRIALS } else { 1 } {
                    let trial = self.trial_on_axis(Some(load), trial_ns, sweep.kind, value, axes, options, follow)?;
                    readings.push(self.reading(&trial, value));
                }
            }
            let mut axes = axes.clone();
            axes.insert(axis(sweep.kind).into(), value.into());
            self.ceiling(options, &axes, follow)?;
        }
        let what = sweep.kind.to_string();
        let comparison = match settings::compare(&what, held.original(), &readings) {
            Ok(found) => Comparison {
                axis: axis(sweep.kind).into(),
                frame_size: self.size_label(),
                axes: axes.clone(),
                original: held.original(),
                best: Some(found.best),
                load_fps: Some(found.load_fps),
                received_fps: found.received_fps.iter().map(|(value, fps)| (value.to_string(), *fps)).collect(),
                misled_to: found.misled_to,
                sentences: found.sentences,
            },
            Err(sentence) => Comparison {
                axis: axis(sweep.kind).into(),
                frame_size: self.size_label(),
                axes: axes.clone(),
                original: held.original(),
                sentences: vec![sentence],
                ..Comparison::default()
            },
        };
        comparison.sentences.iter().for_each(|sentence| follow.note(sentence));
        self.file.comparisons.push(comparison);
        follow.grown(&self.file)
    }

    /// The highest load per port that was sent with every value, and no more than what was asked for.
    fn common_load(&self, readings: &[Reading], options: &SearchOptions) -> Result<u64> {
        let ports = self.compiled().programs.len().max(1) as u64;
        let sent = readings.iter().map(|reading| reading.sent_fps / ports).min().unwrap_or(0) * STEADY_PERCENT / 100;
        let asked = options.max.map(|rate| self.loads(Some(rate))).transpose()?;
        let asked = asked.and_then(|loads| loads.into_iter().flatten().max()).unwrap_or(u64::MAX);
        Ok(sent.min(asked).max(1))
    }

    #[expect(clippy::too_many_arguments, reason = "a trial's place in the matrix is that wide")]
    fn trial_on_axis(
        &mut self,
        load_fps: Option<u64>,
        duration_ns: u64,
        kind: Kind,
        value: u64,
        axes: &BTreeMap<String, Value>,
        options: &SearchOptions,
        follow: &dyn Follow,
    ) -> Result<Trial> {
        let mut axes = axes.clone();
        axes.insert(axis(kind).into(), value.into());
        let want = Want {
            load_fps: vec![load_fps; self.compiled().programs.len()],
            duration_ns: Some(duration_ns),
            count: None,
            axes,
            learning_ns: options.timing.learning_ns,
            ends_when_all_is_back: true,
        };
        let mut trial = self.trial(&want, &mut |event| {
            if let Event::Note(text) = event {
                follow.note(&text);
            }
        })?;
        trial.is_comparison = true;
        std::thread::sleep(Duration::from_nanos(options.timing.settle_ns));
        let trial = self.keep(trial).clone();
        follow.grown(&self.file)?;
        if self.is_stopped() {
            return Err(Error::new(ErrorKind::Interrupted, "go on with", "the sweep").because("it was stopped"));
        }
        self.lost_port().map_or(Ok(trial), Err)
    }

    /// What a trial says for the comparison. Frames that the DUT's ring refused were offered to it.
    fn reading(&self, trial: &Trial, value: u64) -> Reading {
        let ns = (trial.duration_s * 1e9) as u64;
        let refused = trial.verdict.as_ref().is_some_and(|verdict| {
            verdict.kind == VerdictKind::DutLimited && verdict.stage.is_some_and(|stage| stage <= Stage::Softnet)
        });
        let sent = if refused { trial.offered_frames.max(trial.completed_frames) } else { trial.completed_frames };
        let ports = self.compiled().programs.len() as u64;
        Reading {
            value,
            load_fps: trial.load_fps.map(|load| load * ports),
            sent_fps: per_second(sent, ns),
            received_fps: per_second(trial.received_frames.unwrap_or(0), ns),
        }
    }
}
