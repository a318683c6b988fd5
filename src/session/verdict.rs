//! Who limited a trial: feeds what was measured into `diagnose`, and its answer into the result file.
//!
//! Control plane, after the trial. The reasoning is in `diagnose`; here is only where its inputs come from.

use super::{Session, totals, trial::Left};
use crate::{
    diagnose::{self, DutFacts, StageDelta, TrialCounts},
    dut::{stages, story::Story},
    meter::Counts,
    report::result::{DutDelta, Trial, Verdict},
    units::{self, NS_PER_S, line_rate_fps},
};

/// A sender that had no slot for this share of its time was held up by the device.
const BLOCKED_SHARE: f64 = 0.05;
/// Of the generator's own ceiling, what it must still offer while the DUT works; less means that they share something.
const COUPLED_SHARE: f64 = 0.9;

impl Session {
    /// A DUT that terminates: what it ingested, by its own count, is what was received.
    pub(super) fn take_ingested(&self, trial: &mut Trial, story: &Story, sent_for_ns: u64) {
        let Some(ingested) = story.ingested.as_ref().filter(|_| trial.received_frames.is_none()) else { return };
        if self.receives() {
            return;
        }
        let counts = Counts {
            intended_frames: trial.intended_frames,
            offered_frames: trial.offered_frames,
            completed_frames: trial.completed_frames,
            received_frames: Some(ingested.frames),
            tx_bytes: trial.tx_bytes,
            rx_bytes: None,
        };
        totals::count(trial, &counts, sent_for_ns);
    }

    /// Puts the verdict, and the DUT's counters that moved, into the trial.
    pub(super) fn judge(&mut self, trial: &mut Trial, left: &Left) {
        let (moved, facts) = match &left.story {
            // Nothing comes back to us: what the DUT ingested is what was received.
            Some(story) if !self.receives() => (story.moved_before_receipt(), story.facts.clone()),
            Some(story) => (story.moved.clone(), story.facts.clone()),
            None => (Vec::new(), DutFacts::default()),
        };
        let mut counts = self.counts(trial, left);
        // Below full speed, a host that took the CPU away looks like a DUT that did.
        if trial.load_fps.is_none() {
            self.slows_together = counts.coupled;
        }
        counts.coupled &= self.slows_together;
        trial.dut = moved.iter().map(dut_delta).collect();
        let mut moved = stages::with_generator(moved, &left.own);
        // Our own counting program takes its frames by dropping them: those are the received ones, no evidence of anything.
        moved.retain(|line| line.lost_frames > 0 || !line.counter.contains("xdp_drop"));
        let verdict = diagnose::diagnose(&counts, &moved, &facts, &trial.caveats);
        trial.verdict = verdict.map(|verdict| {
            let evidence = verdict.evidence.iter().map(|evidence| evidence.sentence.clone());
            Verdict {
                kind: verdict.kind,
                stage: verdict.stage,
                evidence: std::iter::once(verdict.summary.clone()).chain(evidence).collect(),
                advice: verdict.advice,
            }
        });
    }

    fn counts(&self, trial: &Trial, left: &Left) -> TrialCounts {
        let programs = &self.compiled().programs;
        let line_rate = || -> Option<u64> {
            let mut frames = 0;
            for program in programs {
                let port = self.ports.iter().find(|port| port.position == program.port.index())?;
                let fps = line_rate_fps(port.info.claim_mbps? * 1_000_000, program.mean_frame());
                frames += (u128::from(fps) * u128::from(left.sent_for_ns()) / u128::from(NS_PER_S)) as u64;
            }
            Some(frames)
        };
        let back_pressure = left
            .reports
            .iter()
            .flatten()
            .any(|report| report.counts.blocked_share() >= BLOCKED_SHARE || report.counts.own().refused_frames > 0);
        let sent_fps = units::per_second(trial.offered_frames, left.sent_for_ns()) / programs.len().max(1) as u64;
        TrialCounts {
            intended_frames: trial.intended_frames,
            completed_frames: trial.completed_frames,
            received_frames: trial.received_frames,
            line_rate_frames: line_rate(),
            back_pressure,
            // Less than what the generator sends when the DUT has nothing to do, although nothing held it up.
            coupled: !back_pressure && self.own_fps.is_some_and(|own| (sent_fps as f64) < own as f64 * COUPLED_SHARE),
        }
    }
}

fn dut_delta(moved: &StageDelta) -> DutDelta {
    DutDelta { stage: moved.stage, counter: moved.counter.clone(), delta: moved.delta as i64 }
}
