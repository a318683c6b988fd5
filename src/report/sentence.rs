//! The answer in one sentence: what left, what was lost, who limited.
//!
//! Pure. What was never sent is never called lost; what was not counted is never called received.

use super::{
    check::trials_behind,
    document::Tone,
    labels,
    result::{Ceiling, ResultFile, Trial, Verdict, VerdictKind},
};
use crate::human;

/// The answer of a whole file, a sentence for each trial of a run or each answer of a search.
pub fn summary(file: &ResultFile) -> Vec<(Tone, String)> {
    if file.ceilings.is_empty() && file.claims.is_empty() && file.comparisons.is_empty() {
        let several = file.trials.len() > 1;
        return file.trials.iter().map(|trial| run_of_several(trial, several)).collect();
    }
    let mut sentences: Vec<_> = if file.ceilings.len() <= MANY_CEILINGS {
        file.ceilings.iter().map(|one| ceiling(file, one)).collect()
    } else {
        ranges(file)
    };
    let compared = file.comparisons.iter().flat_map(|comparison| &comparison.sentences);
    sentences.extend(compared.map(|sentence| (Tone::Plain, format!("{sentence}."))));
    sentences.extend(file.claims.iter().map(|claim| (Tone::Plain, format!("{}: {}.", claim.port, claim.sentence))));
    sentences
}

/// From this many answers on, a summary gives their range instead of each.
const MANY_CEILINGS: usize = 10;

fn run_of_several(trial: &Trial, several: bool) -> (Tone, String) {
    let (tone, text) = run(trial);
    (tone, if several { format!("{}: {text}", labels::frames(&trial.frame_size)) } else { text })
}

/// A search's answer: `64-byte frames, ndr (no loss): 797,640 frames/s per port meet the goal, 801,648 do not; …`
pub fn ceiling(file: &ResultFile, ceiling: &Ceiling) -> (Tone, String) {
    let axes = labels::axes(&ceiling.axes);
    let axes = if axes.is_empty() { axes } else { format!(", {axes}") };
    let goal = match ceiling.goal.loss_ratio {
        0.0 => format!("{} (no loss)", ceiling.goal.name),
        loss => format!("{} (loss up to {})", ceiling.goal.name, human::percent(loss)),
    };
    let place = format!("{}{axes}, {goal}", labels::frames(&ceiling.frame_size));
    let load = |fps: Option<u64>| fps.map_or_else(|| "?".to_owned(), human::fps);
    let (tone, answer) = match (ceiling.outcome.as_str(), ceiling.lower_fps, ceiling.upper_fps) {
        ("bounds", Some(lower), Some(upper)) => {
            let limit = limit(&ceiling.verdict);
            let text = format!("{} per port meet the goal, {} do not; {limit}", human::fps(lower), human::count(upper));
            (Tone::Good, text)
        }
        ("at_least_max", lower, _) => {
            (Tone::Good, format!("at least {} per port: the highest load that was tried meets the goal", load(lower)))
        }
        ("below_min", _, upper) => {
            let loss = upper.and_then(|upper| loss_at(file, ceiling, upper));
            let loss = loss.map(|loss| format!(" (loss there: {})", human::percent(loss))).unwrap_or_default();
            (Tone::Bad, format!("no load from {} per port on meets the goal{loss}", load(upper)))
        }
        ("generator_limited", Some(lower), _) => {
            let text = format!(
                "at least {} per port; of higher loads the generator did not send every frame",
                human::fps(lower)
            );
            (Tone::Warn, format!("{text}, so the DUT's ceiling is not known"))
        }
        ("generator_limited", None, _) => {
            let taken = taken_fps(file, ceiling).map_or_else(
                || "the DUT's ceiling is not known".to_owned(),
                |fps| format!("the DUT took what was sent, up to {} in all", human::fps(fps)),
            );
            (Tone::Warn, format!("the generator sent no load in full, or not often enough; {taken}"))
        }
        (_, lower, upper) => {
            let known = |fps: Option<u64>| fps.map_or_else(|| "not settled".to_owned(), human::fps);
            (Tone::Warn, format!("not decided: lower bound {}, upper bound {}", known(lower), known(upper)))
        }
    };
    (tone, format!("{place}: {answer}."))
}

/// Loss over all trials of a ceiling at this load.
fn loss_at(file: &ResultFile, ceiling: &Ceiling, load_fps: u64) -> Option<f64> {
    let trials = trials_behind(file, ceiling).filter(|trial| trial.load_fps == Some(load_fps));
    let (lost, sent) = trials
        .fold((0, 0), |(lost, sent), trial| (lost + trial.lost_frames.unwrap_or(0), sent + trial.completed_frames));
    (sent > 0).then(|| lost as f64 / sent as f64)
}

/// The most that came back in a trial that lost no more than the goal allows of what was sent.
fn taken_fps(file: &ResultFile, ceiling: &Ceiling) -> Option<u64> {
    let is_taken = |trial: &&Trial| trial.loss_ratio.is_some_and(|loss| loss <= ceiling.goal.loss_ratio);
    trials_behind(file, ceiling).filter(is_taken).filter_map(|trial| trial.rx_fps).max().filter(|fps| *fps > 0)
}

/// Per goal the lowest and the highest ceiling.
fn ranges(file: &ResultFile) -> Vec<(Tone, String)> {
    let mut goals: Vec<&str> = Vec::new();
    for ceiling in &file.ceilings {
        if !goals.contains(&ceiling.goal.name.as_str()) {
            goals.push(&ceiling.goal.name);
        }
    }
    let place = |ceiling: &Ceiling| {
        let axes = labels::axes(&ceiling.axes);
        let axes = if axes.is_empty() { axes } else { format!(", {axes}") };
        format!("{}{axes}", labels::frames(&ceiling.frame_size))
    };
    let range = |goal: &str| {
        let of_goal = || file.ceilings.iter().filter(|ceiling| ceiling.goal.name == goal);
        let settled = || of_goal().filter_map(|ceiling| ceiling.lower_fps.map(|lower| (lower, ceiling)));
        let without = of_goal().count() - settled().count();
        let lowest = settled().min_by_key(|(lower, _)| *lower);
        let highest = settled().max_by_key(|(lower, _)| *lower);
        let mut text = match (lowest, highest) {
            (Some((low, at_low)), Some((high, at_high))) => format!(
                "{goal}: from {} per port ({}) to {} ({})",
                human::fps(low),
                place(at_low),
                human::fps(high),
                place(at_high)
            ),
            _ => format!("{goal}: no load meets the goal anywhere"),
        };
        if without > 0 && lowest.is_some() {
            text.push_str(&format!("; {without} of {} have no lower bound", of_goal().count()));
        }
        (Tone::Plain, format!("{text}."))
    };
    goals.into_iter().map(range).collect()
}

/// The verdict on one trial: `1,000,000 frames left; 32,000 of them (3.2 %) were lost; the DUT is the limit (vNIC ring).`
pub fn run(trial: &Trial) -> (Tone, String) {
    if trial.completed_frames == 0 {
        return (Tone::Bad, "no frame left the generator.".to_owned());
    }
    let mut sent = format!("{} left", human::frames(trial.completed_frames));
    if human::has_rate(trial.completed_frames, (trial.duration_s * 1e9) as u64) {
        sent.push_str(&format!(" at {}", human::fps(trial.tx_fps)));
    }
    let lost = trial.lost_frames.map(|lost| (lost, human::count(lost.unsigned_abs())));
    let (tone, fate) = match lost {
        None => (Tone::Warn, "what became of them was not counted".to_owned()),
        Some((0, _)) => (Tone::Good, "none was lost".to_owned()),
        Some((i64::MIN..0, more)) => {
            (Tone::Warn, format!("{more} more came back than had left: the DUT duplicates frames"))
        }
        Some((_, lost)) => {
            let share = human::percent(trial.loss_ratio.unwrap_or_default());
            let verb = if lost == "1" { "was" } else { "were" };
            (Tone::Bad, format!("{lost} of them ({share}) {verb} lost"))
        }
    };
    let mut text = format!("{sent}; {fate}");
    let unsent = trial.intended_frames.saturating_sub(trial.completed_frames);
    if unsent > 0 {
        let share = human::percent(unsent as f64 / trial.intended_frames as f64);
        text.push_str(&format!("; {} intended frames ({share}) were never sent", human::count(unsent)));
    }
    if let Some(verdict) = &trial.verdict {
        text.push_str(&format!("; {}", limit(verdict)));
    }
    text.push('.');
    (tone, text)
}

/// Who limited, and where: `the DUT is the limit (vNIC ring)`.
pub fn limit(verdict: &Verdict) -> String {
    let who = labels::verdict(verdict.kind);
    match (verdict.kind, verdict.stage) {
        (VerdictKind::DutLimited, Some(stage)) => format!("{who} ({})", labels::stage(stage)),
        (VerdictKind::Inconclusive, _) => "who is the limit cannot be told".to_owned(),
        _ => who.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::result::Stage;

    fn trial(intended: u64, completed: u64, received: Option<u64>) -> Trial {
        let lost = received.map(|received| completed as i64 - received as i64);
        Trial {
            intended_frames: intended,
            completed_frames: completed,
            received_frames: received,
            lost_frames: lost,
            loss_ratio: lost.map(|lost| lost as f64 / completed as f64),
            tx_fps: completed,
            duration_s: 1.0,
            ..Trial::default()
        }
    }

    #[test]
    fn a_run_says_what_left_and_what_became_of_it() {
        for (trial, tone, sentence) in [
            (trial(1000, 1000, Some(1000)), Tone::Good, "1,000 frames left at 1,000 frames/s; none was lost."),
            (
                trial(1000, 1000, Some(968)),
                Tone::Bad,
                "1,000 frames left at 1,000 frames/s; 32 of them (3.2 %) were lost.",
            ),
            (
                trial(1000, 1000, Some(999)),
                Tone::Bad,
                "1,000 frames left at 1,000 frames/s; 1 of them (0.1 %) was lost.",
            ),
            (
                trial(1000, 1000, None),
                Tone::Warn,
                "1,000 frames left at 1,000 frames/s; what became of them was not counted.",
            ),
            (
                trial(1000, 1000, Some(1500)),
                Tone::Warn,
                "1,000 frames left at 1,000 frames/s; 500 more came back than had left: the DUT duplicates frames.",
            ),
            (trial(1000, 0, Some(0)), Tone::Bad, "no frame left the generator."),
        ] {
            assert_eq!(run(&trial), (tone, sentence.to_owned()));
        }
    }

    #[test]
    fn unsent_frames_are_said_and_never_called_lost() {
        let (tone, text) = run(&trial(2000, 1000, Some(1000)));
        assert_eq!(tone, Tone::Good);
        assert!(text.ends_with("none was lost; 1,000 intended frames (50 %) were never sent."), "{text}");
    }

    #[test]
    fn a_generator_that_sent_no_load_in_full_still_says_what_the_dut_took() {
        let mut file: ResultFile =
            serde_json::from_str(include_str!("../../tests/golden/report/ceiling.json")).expect("a result file");
        let limited = file.ceilings.iter().find(|ceiling| ceiling.outcome == "generator_limited").expect("one");
        let answer = Ceiling { lower_fps: None, throughput_fps: None, ..limited.clone() };
        let (tone, text) = ceiling(&file, &answer);
        assert_eq!(tone, Tone::Warn);
        assert!(
            text.ends_with("not often enough; the DUT took what was sent, up to 640,000 frames/s in all."),
            "{text}"
        );
        file.trials.clear();
        assert!(ceiling(&file, &answer).1.ends_with("; the DUT's ceiling is not known."));
    }

    #[test]
    fn the_limit_names_the_stage_where_one_is_known() {
        let verdict = |kind, stage| Verdict { kind, stage, evidence: Vec::new(), advice: Vec::new() };
        assert_eq!(limit(&verdict(VerdictKind::DutLimited, Some(Stage::VnicRing))), "the DUT is the limit (vNIC ring)");
        assert_eq!(limit(&verdict(VerdictKind::DutLimited, None)), "the DUT is the limit");
        assert_eq!(limit(&verdict(VerdictKind::Inconclusive, None)), "who is the limit cannot be told");
    }
}
