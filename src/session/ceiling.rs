//! Finding ceilings: the session as a search's [`Measurer`], and a search's answers as the result file's ceilings.
//!
//! Control plane. The search decides what to measure, this decides what a trial proves: unsent frames count against the load,
//! frames that the DUT's own ring refused count as the DUT's loss, and a trial in a bad state is discarded by name.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{Event, Session, trial::Want};
use crate::{
    caveat::{Caveat, Code},
    clock,
    diagnose::{Stage, VerdictKind},
    error::{Error, ErrorKind, Result},
    human,
    report::result::{Ceiling, Goal, ResultFile, Trial, Verdict},
    search::{
        self, Ended, GoalResult, Measured, Measurer, Outcome, SearchConfig, SearchEvent, SearchGoal, TrialInput,
        TrialOutput,
    },
    units::{NS_PER_S, Rate, per_second},
};

/// Above this share of the generator's own ceiling, what it really sends through the DUT is measured before the search.
const NEAR_OWN_PERCENT: u64 = 80;
/// A generator that was not held up by the DUT is asked for this share of what it sent at full speed, so that noise in its
/// own speed does not look like a limit of the DUT.
const STEADY_PERCENT: u64 = 95;

/// What to search for.
#[derive(Debug, Clone)]
pub struct SearchOptions {
    /// The goals; trials' lengths and widths are in them.
    pub goals: Vec<SearchGoal>,
    /// Lowest load per port.
    pub min: Rate,
    /// Highest load per port; `None` = what the generator can send.
    pub max: Option<Rate>,
    /// Time for each search, ns.
    pub max_time_ns: u64,
    /// Pauses around trials.
    pub timing: Timing,
}

/// Pauses around a trial.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timing {
    /// Frames outside the count before each trial, so that the DUT has learned and resolved; ns.
    pub learning_ns: u64,
    /// Pause between a trial's drain and the next trial, ns.
    pub settle_ns: u64,
}

impl Timing {
    /// Short pauses: enough for a DUT on the same machine or switch.
    pub const SHORT: Timing = Timing { learning_ns: 100_000_000, settle_ns: 20_000_000 };
    /// RFC 2544 §23: 2 s of learning frames, 5 s to stabilise (the 2 s for residual frames are the drain's upper limit).
    pub const RFC2544: Timing = Timing { learning_ns: 2 * NS_PER_S, settle_ns: 5 * NS_PER_S };
}

/// Who follows a search.
pub trait Follow {
    /// A line on what is going on.
    fn note(&self, text: &str);
    /// An event of the search.
    fn search(&self, event: &SearchEvent<'_>);
    /// A trial or an answer was added: the file is to be saved.
    ///
    /// # Errors
    /// It cannot be saved; the search ends.
    fn grown(&self, file: &ResultFile) -> Result<()>;
}

impl Session {
    /// Searches the ceiling of what is loaded for all goals, and adds trials and answers to the result.
    ///
    /// # Errors
    /// A range that holds no load, nobody who counts what arrives, an engine that is unusable, the user's stop.
    pub fn ceiling(
        &mut self,
        options: &SearchOptions,
        axes: &BTreeMap<String, Value>,
        follow: &dyn Follow,
    ) -> Result<Vec<Ceiling>> {
        if !self.receives() && self.observer.is_none() {
            return Err(Error::usage("search", "a ceiling")
                .because("no port receives the streams, and nothing reads the DUT's counters")
                .remedy("name a second port, or say in the profile how the DUT is read (dut: observe: …)"));
        }
        // Trials have loads of their own: captures leave their recorded times.
        self.recipe.profile.rate.get_or_insert(Rate::Max);
        let own_fps = self.own_ceiling()?;
        let first_trial = self.file.trials.len();
        let min_fps = self.highest_load(options.min)?.unwrap_or(1);
        let asked = options.max.map(|rate| self.highest_load(rate)).transpose()?.flatten();
        let mut trials = Trials { session: self, options, axes, follow };
        let max_fps = match asked {
            Some(asked) if asked * 100 <= own_fps * NEAR_OWN_PERCENT => asked,
            asked => trials.flat_out()?.min(asked.unwrap_or(u64::MAX)),
        }
        .max(min_fps);
        let generator_is_less = asked.is_none_or(|asked| max_fps < asked);
        let config = SearchConfig {
            max_elapsed_ns: options.max_time_ns,
            ..SearchConfig::new(min_fps, max_fps, options.goals.clone())
        };
        let report = search::search(&config, &mut trials, &mut |event| follow.search(event))
            .map_err(|cause| Error::usage("search", "a ceiling").because(cause))?;
        let answers = Answers {
            trials: &self.file.trials[first_trial..],
            generator_is_less,
            ended: &report.ended,
            frame_size: self.size_label(),
            axes,
        };
        let ceilings: Vec<Ceiling> = report.results.iter().map(|result| answers.ceiling(result)).collect();
        self.file.ceilings.extend(ceilings.iter().cloned());
        follow.grown(&self.file)?;
        match report.ended {
            Ended::Measurer(error) => Err(error),
            _ => Ok(ceilings),
        }
    }

    /// This rate as frames/s of the port that gets most.
    fn highest_load(&self, rate: Rate) -> Result<Option<u64>> {
        Ok(self.loads(Some(rate))?.into_iter().flatten().max())
    }
}

/// The session while a search uses it.
struct Trials<'a> {
    session: &'a mut Session,
    options: &'a SearchOptions,
    axes: &'a BTreeMap<String, Value>,
    follow: &'a dyn Follow,
}

impl Trials<'_> {
    fn run(&mut self, load_fps: Option<u64>, duration_ns: u64) -> Result<Trial> {
        let ports = self.session.compiled().programs.len();
        let want = Want {
            load_fps: vec![load_fps; ports],
            duration_ns: Some(duration_ns),
            count: None,
            axes: self.axes.clone(),
            learning_ns: self.options.timing.learning_ns,
            ends_when_all_is_back: true,
        };
        let follow = self.follow;
        let trial = self.session.trial(&want, &mut |event| {
            if let Event::Note(text) = event {
                follow.note(&text);
            }
        })?;
        std::thread::sleep(std::time::Duration::from_nanos(self.options.timing.settle_ns));
        let trial = self.session.keep(trial).clone();
        self.follow.grown(&self.session.file)?;
        if self.session.is_stopped() {
            return Err(Error::new(ErrorKind::Interrupted, "go on with", "the search").because("it was stopped"));
        }
        if let Some(error) = self.session.lost_port() {
            return Err(error);
        }
        Ok(trial)
    }

    /// A trial at full speed: what the generator can offer through this DUT, frames/s per port.
    fn flat_out(&mut self) -> Result<u64> {
        let duration_ns = self.options.goals.iter().map(|goal| goal.initial_trial_ns).max().unwrap_or(NS_PER_S);
        let trial = self.run(None, duration_ns)?;
        let ports = self.session.compiled().programs.len().max(1) as u64;
        let sent = per_second(output(&trial, 0).completed_frames, (trial.duration_s * 1e9) as u64) / ports;
        let lossless = dut_loss(&trial).is_none();
        Ok(if lossless { sent * STEADY_PERCENT / 100 } else { sent }.max(1))
    }
}

impl Measurer for Trials<'_> {
    type Error = Error;

    fn measure(&mut self, input: TrialInput) -> Result<Measured> {
        let begun = clock::now();
        let trial = self.run(Some(input.load_fps), input.duration_ns)?;
        let elapsed_ns = clock::now().since_ns(begun);
        if trial.completed_frames > 0 && trial.received_frames == Some(0) && self.session.file.trials.len() == 1 {
            self.follow.note(
                "nothing came back at all: is the DUT forwarding to the other port, and are the addresses right?",
            );
        }
        let outage = trial.caveats.iter().find(|caveat| matches!(caveat.code, Code::LinkOutage));
        let Some(received) = trial.received_frames else {
            let reason = "nobody counted what arrived (the DUT's observer failed)".to_owned();
            return Ok(Measured::Discarded { reason, elapsed_ns });
        };
        if let Some(outage) = outage {
            return Ok(Measured::Discarded { reason: outage.text.clone(), elapsed_ns });
        }
        let mut output = output(&trial, elapsed_ns);
        output.received_frames = received;
        output.effective_duration_ns = input.duration_ns;
        Ok(Measured::Counted(output))
    }
}

/// A trial as the search sees it.
fn output(trial: &Trial, elapsed_ns: u64) -> TrialOutput {
    // Frames that a ring of the DUT refused left the generator: a virtual link has no wire to lose them on.
    let at_the_dut = matches!(dut_loss(trial), Some(Stage::VnicRing | Stage::Vswitch));
    let completed_frames =
        if at_the_dut { trial.offered_frames.max(trial.completed_frames) } else { trial.completed_frames };
    TrialOutput {
        intended_frames: trial.intended_frames,
        offered_frames: trial.offered_frames,
        completed_frames,
        received_frames: trial.received_frames.unwrap_or(0),
        effective_duration_ns: (trial.duration_s * 1e9) as u64,
        elapsed_ns,
    }
}

/// The stage at which the DUT lost frames of this trial, if its verdict says that it did.
fn dut_loss(trial: &Trial) -> Option<Stage> {
    let verdict = trial.verdict.as_ref().filter(|verdict| verdict.kind == VerdictKind::DutLimited)?;
    verdict.stage.or(Some(Stage::Driver))
}

/// What turns a search's answers into ceilings.
struct Answers<'a> {
    trials: &'a [Trial],
    /// The search's maximum is what the generator can send, not what the user asked for.
    generator_is_less: bool,
    ended: &'a Ended<Error>,
    frame_size: Value,
    axes: &'a BTreeMap<String, Value>,
}

impl Answers<'_> {
    fn ceiling(&self, result: &GoalResult) -> Ceiling {
        let (goal, lower) = (&result.goal, result.outcome.lower());
        let throughput_fps = lower.map(|lower| lower.throughput_fps);
        let (name, upper_fps) = match &result.outcome {
            Outcome::Bounds { upper_fps, .. } => ("bounds", Some(*upper_fps)),
            Outcome::AtLeastMax { .. } if self.generator_is_less => ("generator_limited", None),
            Outcome::AtLeastMax { .. } => ("at_least_max", None),
            Outcome::BelowMin { min_fps, .. } => ("below_min", Some(*min_fps)),
            Outcome::GeneratorLimited { .. } => ("generator_limited", None),
            Outcome::Undecided { upper_fps, .. } => ("undecided", *upper_fps),
        };
        let bits = |extra: u64| throughput_fps.map(|fps| self.bits(fps, extra));
        let mut caveats: Vec<Caveat> = result
            .inversions
            .iter()
            .map(|inversion| {
                let text = format!(
                    "{} failed while the higher {} passed: loss does not grow with load",
                    human::fps(inversion.failed_fps),
                    human::fps(inversion.passed_fps)
                );
                Caveat::new(Code::LossInversion, text)
            })
            .collect();
        if !matches!(self.ended, Ended::Done) {
            caveats.push(Caveat::new(Code::Note, ended(self.ended)));
        }
        Ceiling {
            frame_size: self.frame_size.clone(),
            axes: self.axes.clone(),
            goal: Goal {
                name: goal.name.clone(),
                loss_ratio: goal.loss_ratio.as_f64(),
                exceed_ratio: goal.exceed_ratio.as_f64(),
                final_trial_s: goal.final_trial_ns as f64 / 1e9,
                duration_sum_s: goal.duration_sum_ns as f64 / 1e9,
                width: goal.width.as_f64(),
            },
            outcome: name.to_owned(),
            lower_fps: lower.map(|lower| lower.load_fps),
            upper_fps,
            throughput_fps,
            bps_l1: bits(20),
            bps_l2: bits(0),
            verdict: self.verdict(result, name),
            caveats,
        }
    }

    /// Frames/s as bit/s, at the mean frame length that was really sent, with `extra` bytes a frame.
    fn bits(&self, fps: u64, extra: u64) -> u64 {
        let (bytes, frames) = self.trials.iter().fold((0_u128, 0_u128), |(bytes, frames), trial| {
            (bytes + u128::from(trial.tx_bytes), frames + u128::from(trial.completed_frames))
        });
        if frames == 0 {
            return 0;
        }
        ((bytes + u128::from(extra) * frames) * 8 * u128::from(fps) / frames) as u64
    }

    /// Who limited: the trials just above the answer know.
    fn verdict(&self, result: &GoalResult, outcome: &str) -> Verdict {
        let at = |load: u64| self.trials.iter().filter(move |trial| trial.load_fps == Some(load));
        let worst = |load: u64| {
            let judged = at(load).filter(|trial| trial.verdict.is_some());
            judged.max_by(|a, b| a.loss_ratio.partial_cmp(&b.loss_ratio).unwrap_or(std::cmp::Ordering::Equal))
        };
        let plain =
            |kind, evidence: String| Verdict { kind, stage: None, evidence: vec![evidence], advice: Vec::new() };
        match &result.outcome {
            Outcome::Bounds { upper_fps, .. } => match worst(*upper_fps).and_then(|trial| trial.verdict.clone()) {
                Some(verdict) => verdict,
                None => {
                    plain(VerdictKind::DutLimited, format!("{} lose more than the goal allows", human::fps(*upper_fps)))
                }
            },
            Outcome::BelowMin { min_fps, loss_ratio } => {
                let mut verdict = worst(*min_fps).and_then(|trial| trial.verdict.clone()).unwrap_or_else(|| {
                    plain(VerdictKind::DutLimited, "the lowest load already misses the goal".to_owned())
                });
                verdict
                    .evidence
                    .insert(0, format!("loss at {}: {}", human::fps(*min_fps), human::percent(loss_ratio.as_f64())));
                verdict
            }
            Outcome::AtLeastMax { lower } if outcome == "at_least_max" => plain(
                VerdictKind::Inconclusive,
                format!(
                    "the highest load asked for, {}, meets the goal: the DUT takes that or more",
                    human::fps(lower.load_fps)
                ),
            ),
            Outcome::AtLeastMax { lower } => {
                let sent = format!(
                    "the DUT takes all that the generator can send steadily, {}: its own ceiling is there or above",
                    human::fps(lower.load_fps)
                );
                self.of_generator(sent)
            }
            Outcome::GeneratorLimited { intended_fps, sent_fps, .. } => {
                let sent = format!("of {} asked for, {} were sent", human::fps(*intended_fps), human::fps(*sent_fps));
                self.of_generator(sent)
            }
            Outcome::Undecided { .. } => plain(VerdictKind::Inconclusive, ended(self.ended)),
        }
    }

    /// The generator did not send more: because it shares something with the DUT, because the link was full, or by itself.
    fn of_generator(&self, evidence: String) -> Verdict {
        let verdicts = || self.trials.iter().filter_map(|trial| trial.verdict.as_ref());
        let found = [VerdictKind::Coupled, VerdictKind::LinkLimited, VerdictKind::GeneratorLimited]
            .into_iter()
            .find_map(|kind| verdicts().find(|verdict| verdict.kind == kind).cloned());
        let mut verdict = found.unwrap_or(Verdict {
            kind: VerdictKind::GeneratorLimited,
            stage: Some(Stage::GenTx),
            evidence: Vec::new(),
            advice: vec![
                "give the generator more workers (--workers) and CPUs, or a faster backend (plimsoll probe)".into(),
            ],
        });
        verdict.evidence.insert(0, evidence);
        verdict
    }
}

/// What ended a search that did not find all answers.
fn ended(ended: &Ended<Error>) -> String {
    match ended {
        Ended::Done => "the search ended with its answers".to_owned(),
        Ended::Trials => "the search ended because it had run the most trials it may".to_owned(),
        Ended::Time => "the search ended because its time (--max-time) was used up".to_owned(),
        Ended::Discards(reason) => format!("the search ended because trials kept being discarded: {reason}"),
        Ended::Measurer(error) => format!("the search ended early: {error}"),
    }
}
