//! Finding ceilings: the session as a search's [`Measurer`], and a search's answers as the result file's ceilings.
//!
//! Control plane. The search decides what to measure, this decides what a trial proves: unsent frames count against the load,
//! frames that the DUT's own ring refused count as the DUT's loss, and a trial in a bad state is discarded by name.

use std::{collections::BTreeMap, time::Duration};

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
/// Up to this share of what the generator can send, a load that was rather not sent than lost was kept back by the host.
const EASY_PERCENT: u64 = 50;
/// So often in a row a trial is repeated for that; then it counts against the load, as RFC 9971 has it.
const DISTURBED_AT_MOST: u64 = 4;
/// Lowest load of a search when nobody says.
const LOWEST_FPS: u64 = 1_000;
/// How often a pause looks whether the user wants to stop.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// What to search for.
#[derive(Debug, Clone)]
pub struct SearchOptions {
    /// The goals; trials' lengths and widths are in them.
    pub goals: Vec<SearchGoal>,
    /// Lowest load per port; `None` = 1,000 frames/s, or less where the highest load is near it.
    pub min: Option<Rate>,
    /// Highest load per port; `None` = what the generator can send.
    pub max: Option<Rate>,
    /// Time for each search, ns.
    pub max_time_ns: u64,
    /// Pauses around trials.
    pub timing: Timing,
}

/// A first trial that brings nothing back is more often a wrong address than a slow DUT.
const NOTHING_CAME: &str =
    "nothing came back at all: is the DUT forwarding to the other port, and are the addresses right?";

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
    /// The search is about to start.
    fn begins(&self, config: &SearchConfig);
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
        let first_trial = self.file.trials.len();
        let asked_min = options.min.map(|rate| self.highest_load(rate)).transpose()?.flatten();
        let asked = options.max.map(|rate| self.highest_load(rate)).transpose()?.flatten();
        if let (Some(min), Some(max)) = (asked_min, asked)
            && min > max
        {
            return Err(Error::usage("search", format!("from {} to {}", human::fps(min), human::fps(max)))
                .because("the lowest load (--min) is above the highest (--max)")
                .remedy("lower --min or raise --max"));
        }
        let own_fps = self.own_ceiling()?;
        let mut trials = Trials { session: self, options, axes, follow, can_send_fps: own_fps, disturbed: 0 };
        let max_fps = match asked {
            Some(asked) if asked * 100 <= own_fps * NEAR_OWN_PERCENT => asked,
            asked => trials.flat_out()?.min(asked.unwrap_or(u64::MAX)),
        }
        .max(asked_min.unwrap_or(1));
        let min_fps = asked_min.unwrap_or_else(|| LOWEST_FPS.min(max_fps / 2).max(1));
        let generator_is_less = asked.is_none_or(|asked| max_fps < asked);
        let config = SearchConfig {
            max_elapsed_ns: options.max_time_ns,
            ..SearchConfig::new(min_fps, max_fps, options.goals.clone())
        };
        follow.begins(&config);
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
    /// What the generator can send, as far as known, frames/s per port.
    can_send_fps: u64,
    /// Disturbed trials in a row.
    disturbed: u64,
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
        let mut trial = self.session.trial(&want, &mut |event| {
            if let Event::Note(text) = event {
                follow.note(&text);
            }
        })?;
        trial.caveats.extend(self.disturbance(&trial));
        let trial = self.session.keep(trial).clone();
        self.follow.grown(&self.session.file)?;
        if self.session.is_stopped() {
            return Err(Error::new(ErrorKind::Interrupted, "go on with", "the search").because("it was stopped"));
        }
        if let Some(error) = self.session.lost_port() {
            return Err(error);
        }
        if self.session.file.trials.len() == 1 && trial.completed_frames > 0 && trial.received_frames == Some(0) {
            self.follow.note(NOTHING_CAME);
        }
        self.settle();
        Ok(trial)
    }

    /// The host took the CPU away from a generator that can send this load easily: that says nothing about the load.
    fn disturbance(&mut self, trial: &Trial) -> Option<Caveat> {
        let is_easy = trial.load_fps.is_some_and(|load| load <= self.can_send_fps / 100 * EASY_PERCENT);
        let unsent = trial.intended_frames.saturating_sub(trial.left_frames());
        let lost = trial.left_frames().saturating_sub(trial.received_frames.unwrap_or(0));
        if !(is_easy && unsent > lost) || self.disturbed >= DISTURBED_AT_MOST {
            self.disturbed = 0;
            return None;
        }
        self.disturbed += 1;
        let unsent = human::count(unsent);
        let text = format!(
            "the host kept the generator from sending {unsent} frames of a load that it can send; the trial is repeated"
        );
        Some(Caveat::new(Code::Disturbed, text))
    }

    /// The pause before the next trial; a user who stops need not wait for its end.
    fn settle(&self) {
        let mut left = Duration::from_nanos(self.options.timing.settle_ns);
        while !left.is_zero() && !self.session.is_stopped() {
            let part = left.min(LOOK_EVERY);
            std::thread::sleep(part);
            left -= part;
        }
    }

    /// A trial at full speed: what the generator can offer through this DUT, frames/s per port.
    fn flat_out(&mut self) -> Result<u64> {
        let duration_ns = self.options.goals.iter().map(|goal| goal.initial_trial_ns).max().unwrap_or(NS_PER_S);
        let trial = self.run(None, duration_ns)?;
        let ports = self.session.compiled().programs.len().max(1) as u64;
        let sent = per_second(trial.left_frames(), (trial.duration_s * NS_PER_S as f64).round() as u64) / ports;
        // A DUT that shares a CPU with the generator leaves it less than its own ceiling.
        self.can_send_fps = self.can_send_fps.min(sent);
        let lost = trial.received_frames.is_some_and(|received| received < trial.left_frames());
        Ok(if lost { sent } else { sent * STEADY_PERCENT / 100 }.max(1))
    }
}

impl Measurer for Trials<'_> {
    type Error = Error;

    fn measure(&mut self, input: TrialInput) -> Result<Measured> {
        let begun = clock::now();
        let trial = self.run(Some(input.load_fps), input.duration_ns)?;
        let elapsed_ns = clock::now().since_ns(begun);
        let Some(searched) = trial.as_searched() else {
            let cause = trial.caveats.iter().find(|caveat| matches!(caveat.code, Code::LinkOutage | Code::Disturbed));
            let reason = cause.map_or("nobody counted what arrived (the DUT's observer failed)", |caveat| &caveat.text);
            return Ok(Measured::Discarded { reason: reason.to_owned(), elapsed_ns });
        };
        Ok(Measured::Counted(TrialOutput { elapsed_ns, ..searched.output }))
    }
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
            Outcome::Bounds { upper_fps, .. } => {
                let lost = format!("{} lose more than the goal allows", human::fps(*upper_fps));
                let judged = worst(*upper_fps).and_then(|trial| located(trial, &lost));
                judged.unwrap_or_else(|| plain(VerdictKind::DutLimited, lost))
            }
            Outcome::BelowMin { min_fps, loss_ratio } => {
                let lost = format!("loss at {}: {}", human::fps(*min_fps), human::percent(loss_ratio.as_f64()));
                let judged = worst(*min_fps).and_then(|trial| located(trial, &lost));
                judged.unwrap_or_else(|| plain(VerdictKind::DutLimited, lost))
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

/// A trial's verdict as that of the search, which says more in one case: what no counter explains was lost beyond the generator all the
/// same, since its device sent the frames and its receiver dropped none; only a serious doubt leaves that open.
fn located(trial: &Trial, lost: &str) -> Option<Verdict> {
    let mut verdict = trial.verdict.clone()?;
    let in_doubt = trial.caveats.iter().any(|caveat| caveat.code.is_serious());
    if verdict.kind == VerdictKind::Inconclusive && verdict.stage.is_none() && !in_doubt {
        verdict.kind = VerdictKind::DutLimited;
        verdict.evidence.push("the generator's device sent these frames, and its receiver dropped none".to_owned());
    }
    verdict.evidence.insert(0, lost.to_owned());
    Some(verdict)
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
