//! The answer in one sentence: what left, what was lost, who limited.
//!
//! Pure. What was never sent is never called lost; what was not counted is never called received.

use super::{
    document::Tone,
    labels,
    result::{ResultFile, Trial, Verdict, VerdictKind},
};
use crate::human;

/// The answer of a whole file, a sentence for each trial of a run or each answer of a search.
pub fn summary(file: &ResultFile) -> Vec<(Tone, String)> {
    let several = file.trials.len() > 1;
    let mut sentences = Vec::new();
    for trial in &file.trials {
        let (tone, text) = run(trial);
        let text = if several { format!("{}: {text}", labels::frames(&trial.frame_size)) } else { text };
        sentences.push((tone, text));
    }
    sentences
}

/// The verdict on one trial: `1,000,000 frames left; 32,000 of them (3.2 %) were lost; the DUT is the limit (vNIC ring).`
pub fn run(trial: &Trial) -> (Tone, String) {
    if trial.completed_frames == 0 {
        return (Tone::Bad, "no frame left the generator.".to_owned());
    }
    let sent = format!("{} frames left at {}", human::count(trial.completed_frames), human::fps(trial.tx_fps));
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
