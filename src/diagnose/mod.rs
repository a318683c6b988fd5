//! Who limited a trial, where, and what to do about it: a pure function of the trial's counts and the counters that moved.
//!
//! No I/O, no clock, no threads. The verdict names the first stage (in the order in which a frame meets them) whose counters explain most
//! of the loss. Loss that no counter explains is said to be unexplained, and a trial that lost nothing is blamed on nobody.

mod advice;
pub mod settings;
mod stage;

pub use advice::DutFacts;
pub use stage::{Stage, StageDelta};

use crate::caveat::{Caveat, Code};
use crate::human::{count, percent};
use serde::{Deserialize, Serialize};

/// A stage explains the loss from this share on.
const EXPLAINS: f64 = 0.5;
/// Below this share of the loss a stage's drops, or an unexplained rest, are not worth a sentence.
const WORTH_SAYING: f64 = 0.01;
/// Counters may exceed the loss by this much (frames of others, readings outside the counted window) and still be about our frames.
const BELIEVABLE: f64 = 1.5;
/// Completed below this share of intended: the generator did not offer the load.
const OFFERED: f64 = 0.99;
/// Completed at or above this share of line rate: the link was full.
const LINE_RATE: f64 = 0.99;

/// Who limited a trial.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum VerdictKind {
    /// The DUT lost frames that the generator sent.
    DutLimited,
    /// The generator could not offer the load, or could not count what came back.
    GeneratorLimited,
    /// The link was full, and nothing was lost.
    LinkLimited,
    /// Offered falls as the DUT works more: they share a resource.
    Coupled,
    /// Not to be told; the evidence says why.
    Inconclusive,
}

/// What the trial itself says: the four counts, and how it went.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TrialCounts {
    /// Frames asked for.
    pub intended_frames: u64,
    /// Frames that the device really sent.
    pub completed_frames: u64,
    /// Frames seen back or ingested; `None` if nobody counted them.
    pub received_frames: Option<u64>,
    /// Frames that fit on the link in the trial's time at the claimed speed, if a speed is claimed.
    pub line_rate_frames: Option<u64>,
    /// The backend was held up by a full ring or a busy device, not by the pacer.
    pub back_pressure: bool,
    /// The session saw the offered load fall while the DUT had more to do.
    pub coupled: bool,
}

impl TrialCounts {
    /// Completed − received, at least 0; `None` if nobody counted.
    fn lost_frames(&self) -> Option<u64> {
        self.received_frames.map(|received| self.completed_frames.saturating_sub(received))
    }
}

/// A counter and how much of the loss it explains.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Evidence {
    /// The stage.
    pub stage: Option<Stage>,
    /// The counter, with its source.
    pub counter: String,
    /// How far it moved.
    pub delta: u64,
    /// Lost frames it stands for, as a share of all lost frames; `None` for a sign of pressure or a second view of the same frames.
    pub share: Option<f64>,
    /// The same as a sentence.
    pub sentence: String,
}

/// Who limited, where, why we think so, and what to do.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// Who.
    pub kind: VerdictKind,
    /// Where frames were lost, if that could be told.
    pub stage: Option<Stage>,
    /// The verdict in one sentence.
    pub summary: String,
    /// Counters that moved, those that explain most first.
    pub evidence: Vec<Evidence>,
    /// What a person can do, with the exact commands.
    pub advice: Vec<String>,
    /// The share of the loss that no counter explains; `None` if nothing was lost.
    pub unexplained: Option<f64>,
}

/// Judges one trial; `None` if there is nothing to blame anybody for (all that was asked for was sent and came back).
///
/// `moved` are the counters of the DUT and of the generator's own ports, assigned to stages; `caveats` the trial's: a serious one, together
/// with loss, makes the verdict inconclusive unless the counters explain it.
pub fn diagnose(counts: &TrialCounts, moved: &[StageDelta], facts: &DutFacts, caveats: &[Caveat]) -> Option<Verdict> {
    let lost = counts.lost_frames();
    if let Some(verdict) = refused(counts, moved, facts) {
        return Some(verdict);
    }
    match lost {
        Some(lost) if lost > 0 => Some(blame_loss(lost, counts, moved, facts, caveats)),
        _ => no_loss(counts, lost.is_some(), moved, facts, caveats),
    }
}

/// On a virtual link the sender's device counts what the DUT refused (a full ring, a full backlog) as not sent: unsent, and yet the DUT's
/// doing. So it is if counters of the DUT explain most of what is missing.
fn refused(counts: &TrialCounts, moved: &[StageDelta], facts: &DutFacts) -> Option<Verdict> {
    let (intended, completed) = (counts.intended_frames, counts.completed_frames);
    let lost = counts.lost_frames().unwrap_or(0);
    let at_dut: u64 = Stage::ALL.into_iter().filter(|stage| stage.is_dut()).map(|stage| lost_at(moved, stage)).sum();
    // Where nearly all was sent, only what is more than the loss can have been refused.
    if completed >= intended || (reaches(completed, intended, OFFERED) && at_dut as f64 <= lost as f64 * BELIEVABLE) {
        return None;
    }
    let missing = intended.saturating_sub(counts.received_frames.unwrap_or(completed));
    let believable = |frames: u64| (EXPLAINS..=BELIEVABLE).contains(&share(frames, missing));
    let stage = Stage::ALL.into_iter().find(|stage| stage.is_dut() && believable(lost_at(moved, *stage)))?;
    let mut evidence: Vec<Evidence> = moved.iter().map(|line| evidence_of(line, missing)).collect();
    evidence.sort_by(|a, b| b.share.unwrap_or(-1.0).total_cmp(&a.share.unwrap_or(-1.0)));
    let frames = lost_at(moved, stage);
    let summary = format!(
        "{} of {} intended frames were sent and {} are missing; {} were refused or lost by {}",
        count(completed),
        count(intended),
        count(missing),
        count(frames),
        stage.phrase()
    );
    let advice = advice::advice(stage, moved, facts);
    let unexplained = Some((1.0 - share(frames, missing)).max(0.0));
    Some(Verdict { kind: VerdictKind::DutLimited, stage: Some(stage), summary, evidence, advice, unexplained })
}

/// Nothing was lost (or nobody counted): only what was not sent can be explained.
fn no_loss(
    counts: &TrialCounts,
    counted: bool,
    moved: &[StageDelta],
    facts: &DutFacts,
    caveats: &[Caveat],
) -> Option<Verdict> {
    let (intended, completed) = (counts.intended_frames, counts.completed_frames);
    if reaches(completed, intended, OFFERED) {
        return None;
    }
    let unsent = intended.saturating_sub(completed);
    let verdict = |kind, stage: Option<Stage>, summary: String, advice: Vec<String>| {
        let of_stage = moved.iter().filter(|line| line.stage.is_some() && line.stage == stage);
        let evidence = of_stage.map(|line| evidence_of(line, unsent)).collect();
        Some(Verdict { kind, stage, summary, evidence, advice, unexplained: None })
    };
    let sent = format!("{} of {} intended frames were sent", count(completed), count(intended));
    let tail = if counted { "; of what was sent nothing was lost" } else { "" };
    let ended = |code| matches!(code, Code::LinkOutage | Code::InterfaceRemoved | Code::SendFailed);
    if let Some(cause) = caveats.iter().find(|caveat| ended(caveat.code)) {
        let summary = format!("no limit was met: {sent}, for {}", cause.text);
        return verdict(VerdictKind::Inconclusive, None, summary, Vec::new());
    }
    let full_link = counts.line_rate_frames.is_some_and(|line| reaches(completed, line, LINE_RATE));
    if full_link && counts.back_pressure && counted {
        let summary =
            format!("the link was full: {sent}, all that it carries at its claimed speed, and nothing was lost");
        return verdict(VerdictKind::LinkLimited, Some(Stage::Link), summary, Vec::new());
    }
    if counts.coupled {
        let summary =
            format!("generator and DUT share a resource: {sent}, and sending slows down as the DUT works more");
        return verdict(VerdictKind::Coupled, None, summary, advice::coupled());
    }
    let summary = format!("the generator is the limit: {sent}{tail}");
    verdict(VerdictKind::GeneratorLimited, Some(Stage::GenTx), summary, advice::advice(Stage::GenTx, moved, facts))
}

/// Frames that the counters of a stage say were lost there.
fn lost_at(moved: &[StageDelta], stage: Stage) -> u64 {
    moved.iter().filter(|line| line.stage == Some(stage)).map(|line| line.lost_frames).fold(0, u64::saturating_add)
}

fn blame_loss(lost: u64, counts: &TrialCounts, moved: &[StageDelta], facts: &DutFacts, caveats: &[Caveat]) -> Verdict {
    let totals: Vec<(Stage, u64)> =
        Stage::ALL.into_iter().map(|stage| (stage, lost_at(moved, stage))).filter(|(_, n)| *n > 0).collect();
    let believable: Vec<(Stage, u64)> = totals.iter().copied().filter(|(_, n)| share(*n, lost) <= BELIEVABLE).collect();
    // A counter that moved far more than was lost counts other traffic too. It is a suspect only if no better one is there.
    let suspects = if believable.iter().any(|(_, n)| share(*n, lost) >= EXPLAINS) { &believable } else { &totals };
    let explained = suspects.iter().map(|(_, n)| *n).fold(0, u64::saturating_add);
    let culprit = suspects
        .iter()
        .find(|(_, n)| share(*n, lost) >= EXPLAINS)
        .or_else(|| {
            suspects
                .iter()
                .max_by_key(|(stage, n)| (*n, std::cmp::Reverse(*stage)))
                .filter(|_| share(explained, lost) >= EXPLAINS)
        })
        .copied();

    let mut evidence: Vec<Evidence> = moved.iter().map(|line| evidence_of(line, lost)).collect();
    evidence.sort_by(|a, b| b.share.unwrap_or(-1.0).total_cmp(&a.share.unwrap_or(-1.0)));
    let rest = 1.0 - share(explained, lost);
    let unexplained = Some(rest.max(0.0));
    let of_sent = format!(
        "{} of {} sent frames were lost ({})",
        count(lost),
        count(counts.completed_frames),
        percent(share(lost, counts.completed_frames))
    );
    // Whatever was counted elsewhere (no route, no carrier) then follows from it.
    let link_event = link_went_down(moved);

    let Some((stage, frames)) = culprit.filter(|_| !link_event) else {
        let (kind, stage, why) = if link_event {
            (VerdictKind::Inconclusive, Some(Stage::Link), "the link went down during the trial".to_string())
        } else if let Some(serious) = caveats.iter().find(|caveat| caveat.code.is_serious()) {
            (VerdictKind::Inconclusive, None, format!("the trial is in doubt: {}", serious.text))
        } else if explained == 0 {
            (VerdictKind::Inconclusive, None, "no counter of the DUT explains it".to_string())
        } else {
            (
                VerdictKind::Inconclusive,
                None,
                format!("counters explain only {} of it", percent(share(explained, lost))),
            )
        };
        let advice = match stage {
            Some(stage) => advice::advice(stage, moved, facts),
            None => advice::unexplained(facts),
        };
        return Verdict {
            kind,
            stage,
            summary: format!("{of_sent}, unexplained: {why}"),
            evidence,
            advice,
            unexplained,
        };
    };

    let kind = match stage {
        Stage::GenTx | Stage::GenRx => VerdictKind::GeneratorLimited,
        // A shaper on the way, a wrong address: neither DUT nor generator, and the link was not simply full.
        Stage::Link => VerdictKind::Inconclusive,
        _ => VerdictKind::DutLimited,
    };
    let mut summary = format!("{of_sent}, {} of them at {}", percent(share(frames, lost)), stage.phrase());
    for (other, n) in suspects.iter().filter(|(other, n)| *other != stage && share(*n, lost) >= WORTH_SAYING) {
        summary += &format!(", {} at {}", percent(share(*n, lost)), other.phrase());
    }
    if rest >= WORTH_SAYING {
        summary += &format!("; {} unexplained", percent(rest));
    }
    if share(frames, lost) > BELIEVABLE {
        summary += " (that counter also counts frames that are not ours)";
    }
    Verdict { kind, stage: Some(stage), summary, evidence, advice: advice::advice(stage, moved, facts), unexplained }
}

fn link_went_down(moved: &[StageDelta]) -> bool {
    moved.iter().any(|line| line.counter.ends_with("carrier_changes") || line.counter.ends_with("carrier_down_count"))
}

fn evidence_of(line: &StageDelta, lost: u64) -> Evidence {
    let share = (line.lost_frames > 0 && lost > 0).then(|| share(line.lost_frames, lost));
    let mut sentence = format!("{} +{}", line.counter, count(line.delta));
    if let Some(share) = share {
        sentence += &format!(", {} of the loss", percent(share));
    }
    if let Some(note) = &line.note {
        sentence += &format!(" ({note})");
    }
    Evidence { stage: line.stage, counter: line.counter.clone(), delta: line.delta, share, sentence }
}

fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

fn reaches(part: u64, whole: u64, least: f64) -> bool {
    whole == 0 || share(part, whole) >= least
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drop_at(stage: Stage, counter: &str, frames: u64) -> StageDelta {
        StageDelta { stage: Some(stage), counter: counter.into(), delta: frames, lost_frames: frames, note: None }
    }

    fn sign(stage: Stage, counter: &str) -> StageDelta {
        StageDelta { lost_frames: 0, ..drop_at(stage, counter, 2) }
    }

    fn sent_and_received(sent: u64, received: u64) -> TrialCounts {
        TrialCounts {
            intended_frames: sent,
            completed_frames: sent,
            received_frames: Some(received),
            ..TrialCounts::default()
        }
    }

    fn judge(counts: TrialCounts, moved: &[StageDelta]) -> Option<Verdict> {
        diagnose(&counts, moved, &DutFacts::default(), &[])
    }

    #[test]
    fn a_healthy_trial_is_blamed_on_nobody_whatever_moved() {
        let noise = [drop_at(Stage::Softnet, "softnet dropped", 5), sign(Stage::Softnet, "softnet time_squeeze")];
        assert_eq!(judge(sent_and_received(1000, 1000), &noise), None);
        assert_eq!(judge(sent_and_received(1000, 1010), &[]), None);
        assert_eq!(judge(TrialCounts::default(), &[]), None);
    }

    #[test]
    fn what_a_dead_link_or_a_failed_sender_left_unsent_is_nobodys_limit() {
        let counts = TrialCounts { intended_frames: 1000, ..sent_and_received(400, 400) };
        for code in [Code::LinkOutage, Code::InterfaceRemoved, Code::SendFailed] {
            let caveats = [Caveat::new(Code::Note, "other"), Caveat::new(code, "eth1: it happened")];
            let verdict = diagnose(&counts, &[], &DutFacts::default(), &caveats).unwrap();
            assert_eq!((verdict.kind, verdict.stage), (VerdictKind::Inconclusive, None));
            assert!(verdict.summary.contains("400 of 1,000") && verdict.summary.contains("it happened"), "{verdict:?}");
            assert!(verdict.advice.is_empty());
        }
        assert_eq!(judge(counts, &[]).unwrap().kind, VerdictKind::GeneratorLimited);
    }

    #[test]
    fn a_few_refused_frames_are_not_more_than_all_of_the_loss() {
        let counts = TrialCounts {
            intended_frames: 500_000,
            completed_frames: 499_362,
            received_frames: Some(499_348),
            ..TrialCounts::default()
        };
        let verdict = judge(counts, &[drop_at(Stage::VnicRing, "g0 ethtool tx_queue_0_xdp_xmit_errors", 638)]).unwrap();
        assert_eq!((verdict.kind, verdict.stage), (VerdictKind::DutLimited, Some(Stage::VnicRing)));
        assert!(verdict.evidence[0].share.unwrap() <= 1.0, "{verdict:?}");
        assert!(verdict.summary.contains("652 are missing; 638 were refused"), "{}", verdict.summary);
    }

    #[test]
    fn a_few_refused_frames_are_the_duts_loss_where_nothing_else_was_lost() {
        let counts = TrialCounts {
            intended_frames: 500_000,
            completed_frames: 499_951,
            received_frames: Some(499_951),
            ..TrialCounts::default()
        };
        let verdict = judge(counts, &[drop_at(Stage::VnicRing, "g0 ethtool tx_queue_0_xdp_xmit_errors", 49)]).unwrap();
        assert_eq!((verdict.kind, verdict.stage), (VerdictKind::DutLimited, Some(Stage::VnicRing)));
        assert!(verdict.summary.contains("49 are missing; 49 were refused"), "{}", verdict.summary);
        // Drops that are far more than what is missing are of other traffic.
        assert_eq!(judge(counts, &[drop_at(Stage::VnicRing, "d0 ethtool rx_dropped", 900)]), None);
    }

    #[test]
    fn a_full_ring_explains_the_loss() {
        let verdict = judge(
            sent_and_received(15_360, 5_370),
            &[drop_at(Stage::VnicRing, "eth0 ethtool [Rx Queue#0] pkts rx OOB", 9_990)],
        )
        .unwrap();
        assert_eq!((verdict.kind, verdict.stage), (VerdictKind::DutLimited, Some(Stage::VnicRing)));
        assert_eq!(verdict.evidence[0].share, Some(1.0));
        assert_eq!(verdict.unexplained, Some(0.0));
        assert!(
            verdict
                .summary
                .contains("9,990 of 15,360 sent frames were lost (65 %), 100 % of them at the DUT's vNIC receive ring"),
            "{}",
            verdict.summary
        );
    }

    #[test]
    fn the_first_stage_that_explains_most_is_named_and_the_others_are_said() {
        let moved = [drop_at(Stage::VnicRing, "ring", 600), drop_at(Stage::Socket, "Udp.RcvbufErrors", 400)];
        let verdict = judge(sent_and_received(10_000, 9_000), &moved).unwrap();
        assert_eq!(verdict.stage, Some(Stage::VnicRing));
        assert!(verdict.summary.contains("40 % at the DUT's UDP/TCP layer"), "{}", verdict.summary);
        let tie =
            judge(sent_and_received(10_000, 9_000), &[drop_at(Stage::Ip, "a", 500), drop_at(Stage::Socket, "b", 500)])
                .unwrap();
        assert_eq!(tie.stage, Some(Stage::Ip));
        let many = [drop_at(Stage::Driver, "a", 300), drop_at(Stage::Ip, "b", 400), drop_at(Stage::Socket, "c", 300)];
        assert_eq!(judge(sent_and_received(10_000, 9_000), &many).unwrap().stage, Some(Stage::Ip));
    }

    #[test]
    fn loss_that_nothing_explains_is_unexplained() {
        let verdict = judge(sent_and_received(10_000, 9_000), &[sign(Stage::Softnet, "softnet time_squeeze")]).unwrap();
        assert_eq!((verdict.kind, verdict.stage, verdict.unexplained), (VerdictKind::Inconclusive, None, Some(1.0)));
        assert!(verdict.summary.contains("no counter of the DUT explains it"), "{}", verdict.summary);
        let little = judge(sent_and_received(10_000, 9_000), &[drop_at(Stage::Ip, "x", 100)]).unwrap();
        assert_eq!((little.kind, little.stage), (VerdictKind::Inconclusive, None));
        assert!(little.summary.contains("explain only 10 %"), "{}", little.summary);
    }

    #[test]
    fn a_part_that_stays_unexplained_is_said() {
        let verdict = judge(sent_and_received(10_000, 9_000), &[drop_at(Stage::Ip, "x", 800)]).unwrap();
        assert_eq!(verdict.stage, Some(Stage::Ip));
        assert!(verdict.summary.ends_with("; 20 % unexplained"), "{}", verdict.summary);
    }

    #[test]
    fn a_counter_of_other_traffic_gives_way_to_a_better_one() {
        let moved =
            [drop_at(Stage::Softnet, "softnet dropped", 1_000_000), drop_at(Stage::Socket, "Udp.RcvbufErrors", 1000)];
        assert_eq!(judge(sent_and_received(10_000, 9_000), &moved).unwrap().stage, Some(Stage::Socket));
        let alone = judge(sent_and_received(10_000, 9_000), &moved[..1]).unwrap();
        assert_eq!(alone.stage, Some(Stage::Softnet));
        assert!(alone.summary.contains("frames that are not ours"), "{}", alone.summary);
    }

    #[test]
    fn loss_at_the_generators_own_receiver_is_the_generators() {
        let verdict = judge(sent_and_received(1000, 900), &[drop_at(Stage::GenRx, "d1 link tx_dropped", 100)]).unwrap();
        assert_eq!((verdict.kind, verdict.stage), (VerdictKind::GeneratorLimited, Some(Stage::GenRx)));
    }

    #[test]
    fn what_follows_from_a_link_that_went_down_is_not_the_reason() {
        let moved = [sign(Stage::Link, "d1 link carrier_down_count"), drop_at(Stage::Ip, "mib IpExt.InNoRoutes", 100)];
        let verdict = judge(sent_and_received(1000, 900), &moved).unwrap();
        assert_eq!((verdict.kind, verdict.stage), (VerdictKind::Inconclusive, Some(Stage::Link)));
    }

    #[test]
    fn a_link_that_went_down_is_named_without_frames_to_count() {
        let verdict = judge(sent_and_received(1000, 900), &[sign(Stage::Link, "d0 link carrier_changes")]).unwrap();
        assert_eq!((verdict.kind, verdict.stage), (VerdictKind::Inconclusive, Some(Stage::Link)));
    }

    #[test]
    fn unsent_frames_are_the_generators_and_never_a_loss() {
        let counts = TrialCounts { intended_frames: 2000, ..sent_and_received(1000, 1000) };
        let verdict = judge(counts, &[]).unwrap();
        assert_eq!(
            (verdict.kind, verdict.stage, verdict.unexplained),
            (VerdictKind::GeneratorLimited, Some(Stage::GenTx), None)
        );
        assert!(
            verdict.summary.contains("1,000 of 2,000 intended frames were sent; of what was sent nothing was lost"),
            "{}",
            verdict.summary
        );
        let coupled = judge(TrialCounts { coupled: true, ..counts }, &[]).unwrap();
        assert_eq!(coupled.kind, VerdictKind::Coupled);
    }

    #[test]
    fn frames_that_the_other_end_of_a_virtual_link_refused_are_the_duts() {
        let counts = TrialCounts { intended_frames: 2000, ..sent_and_received(1000, 1000) };
        let verdict =
            judge(counts, &[drop_at(Stage::VnicRing, "g0 ethtool tx_queue_0_xdp_xmit_errors", 1000)]).unwrap();
        assert_eq!((verdict.kind, verdict.stage), (VerdictKind::DutLimited, Some(Stage::VnicRing)));
        assert!(
            verdict.summary.contains("1,000 were refused or lost by the DUT's vNIC receive ring"),
            "{}",
            verdict.summary
        );
    }

    #[test]
    fn unsent_frames_are_the_duts_only_if_its_counters_explain_most_of_what_is_missing() {
        let counts = TrialCounts { intended_frames: 3000, ..sent_and_received(1000, 900) };
        let few = judge(counts, &[drop_at(Stage::Softnet, "softnet dropped", 100)]).unwrap();
        assert_eq!((few.kind, few.stage), (VerdictKind::DutLimited, Some(Stage::Softnet)));
        assert!(few.summary.starts_with("100 of 1,000 sent frames were lost"), "{}", few.summary);
        let most = judge(counts, &[drop_at(Stage::Softnet, "softnet dropped", 2050)]).unwrap();
        assert!(most.summary.contains("2,100 are missing; 2,050 were refused or lost"), "{}", most.summary);
    }

    #[test]
    fn a_link_is_the_limit_only_if_it_was_full_under_back_pressure_and_lost_nothing() {
        let full = TrialCounts {
            intended_frames: 2000,
            line_rate_frames: Some(1005),
            back_pressure: true,
            ..sent_and_received(1000, 1000)
        };
        assert_eq!(judge(full, &[]).unwrap().kind, VerdictKind::LinkLimited);
        for other in [
            TrialCounts { line_rate_frames: Some(1100), ..full },
            TrialCounts { back_pressure: false, ..full },
            TrialCounts { received_frames: None, ..full },
        ] {
            assert_eq!(judge(other, &[]).unwrap().kind, VerdictKind::GeneratorLimited);
        }
        assert_ne!(
            judge(TrialCounts { received_frames: Some(500), ..full }, &[]).unwrap().kind,
            VerdictKind::LinkLimited
        );
    }

    #[test]
    fn a_serious_caveat_is_the_reason_given_where_no_counter_speaks() {
        let caveats = [Caveat::new(Code::CountersDisagree, "the device sent fewer frames than completed")];
        let verdict = diagnose(&sent_and_received(1000, 900), &[], &DutFacts::default(), &caveats).unwrap();
        assert!(verdict.summary.contains("in doubt: the device sent fewer"), "{}", verdict.summary);
    }

    #[test]
    fn a_second_view_of_the_same_frames_has_no_share() {
        let alias = StageDelta { lost_frames: 0, ..drop_at(Stage::VnicRing, "vsish 1st ring is full", 100) };
        let verdict =
            judge(sent_and_received(1000, 900), &[alias, drop_at(Stage::VnicRing, "pkts rx OOB", 100)]).unwrap();
        assert_eq!(verdict.evidence.iter().map(|e| e.share).collect::<Vec<_>>(), [Some(1.0), None]);
        assert_eq!(verdict.unexplained, Some(0.0));
    }
}
