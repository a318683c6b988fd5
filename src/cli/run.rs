//! `plimsoll run`: send, count, report.

use clap::Args;

use super::{Exit, Global, load::Load};
use crate::{
    caveat::{Caveat, Code},
    error::{Error, Result},
    human,
    report::{
        console::Console,
        json::Saver,
        result::{ResultFile, Trial, VerdictKind},
        text,
    },
    session::{Event, Session, options::DEFAULT_DURATION_NS, trial::Want},
};

/// Send, count, report: stress a DUT
#[derive(Debug, Args)]
pub(super) struct Run {
    #[command(flatten)]
    load: Load,
    /// Exit with 1 if more than this percentage of the sent frames is lost, with 4 if under 99 % of the intended were sent
    #[arg(long, value_name = "PCT", value_parser = percentage)]
    max_loss: Option<f64>,
}

pub(super) fn percentage(text: &str) -> Result<f64, String> {
    let number = text.trim().trim_end_matches('%').trim();
    match number.parse::<f64>() {
        Ok(percent) if (0.0..=100.0).contains(&percent) => Ok(percent / 100.0),
        _ => Err("write a percentage from 0 to 100".to_owned()),
    }
}

impl Run {
    pub(super) fn run(&self, global: &Global, console: &Console) -> Result<Exit> {
        let (profile, options) = self.load.read(global)?;
        let saver = global.json.as_deref().map(Saver::new);
        saver.iter().try_for_each(Saver::prove)?;
        let duration_ns = options.duration_ns.or(profile.duration_ns);
        let count = options.count.or(profile.count);
        let stop = super::stop_flag()?;
        let mut session = Session::open(profile, &options, stop, &mut |event| {
            if let Event::Note(text) = event {
                console.note(&text);
            }
        })?;
        let sizes = session.sizes().len();
        for size in 0..sizes {
            session.load(size)?;
            let want = Want {
                load_fps: session.loads(None)?,
                // A count ends by itself; without one, somebody has to say how long.
                duration_ns: duration_ns.or(count.is_none().then_some(DEFAULT_DURATION_NS)),
                count,
                ..Want::default()
            };
            let mean = session.mean_frame();
            let trial = session.trial(&want, &mut |event| match event {
                Event::Note(text) => console.note(&text),
                Event::Second(seconds) => console.note(&text::live_line(seconds, mean, console.style())),
            })?;
            session.keep(trial);
            if let Some(saver) = &saver {
                saver.save(&session.file)?;
            }
            if session.is_stopped() || session.lost_port().is_some() {
                break;
            }
        }
        let (file, stopped, lost) = (session.file.clone(), session.is_stopped(), session.lost_port());
        drop(session);
        let report = text::render(&file, console.style(), global.verbose > 0);
        match &saver {
            // Standard output belongs to the JSON document.
            Some(Saver::Stdout) => console.note(&report),
            _ => console.result(&report),
        }
        if let Some(saver) = &saver {
            saver.finish(&file)?;
        }
        if let Some(error) = lost {
            return Err(error);
        }
        self.exit(&file, stopped, console)
    }

    fn exit(&self, file: &ResultFile, stopped: bool, console: &Console) -> Result<Exit> {
        if stopped {
            return Ok(Exit::Interrupted);
        }
        let names = || file.ports.iter().map(|port| port.name.as_str()).collect::<Vec<_>>().join(", ");
        if file.trials.iter().any(|trial| trial.completed_frames == 0) {
            return Err(Error::environment("send on", names())
                .because("not one frame was sent")
                .remedy("see the caveats above; is the link up?"));
        }
        let failed = |caveat: &&Caveat| caveat.code == Code::SendFailed;
        if let Some(failed) = file.trials.iter().flat_map(|trial| &trial.caveats).find(failed) {
            return Err(Error::environment("send to the end on", names()).because(&failed.text));
        }
        let Some(limit) = self.max_loss else { return Ok(Exit::Done) };
        let (exit, why) = judge(&file.trials, limit);
        why.iter().for_each(|why| console.note(&format!("no verdict on --max-loss: {why}")));
        Ok(exit)
    }
}

/// Of the intended frames, the share that must have left for a loss to be one at the intended load: pacing is exact to about 1 %.
const SENT_PERCENT: u64 = 99;

/// Whether every trial lost at most `limit`, and why that cannot be told.
fn judge(trials: &[Trial], limit: f64) -> (Exit, Option<String>) {
    // What was lost at less than the intended load is lost at that load too.
    if trials.iter().any(|trial| trial.loss_ratio.is_some_and(|loss| loss > limit)) {
        return (Exit::GoalNotMet, None);
    }
    if trials.iter().any(|trial| trial.loss_ratio.is_none()) {
        return (Exit::NoVerdict, Some("what arrived was not counted".to_owned()));
    }
    let is_short = |trial: &&Trial| {
        let (sent, intended) = (u128::from(trial.completed_frames), u128::from(trial.intended_frames));
        // At full speed a device may refuse what it cannot carry; what the DUT refused, or was left of a count, was to be sent.
        let refused = trial.verdict.as_ref().is_some_and(|verdict| verdict.kind == VerdictKind::DutLimited);
        let was_asked = trial.load_fps.is_some() || trial.offered_frames < trial.intended_frames || refused;
        was_asked && sent * 100 < intended * u128::from(SENT_PERCENT)
    };
    match trials.iter().find(is_short) {
        None => (Exit::Done, None),
        Some(short) => {
            let (sent, intended) = (human::count(short.completed_frames), human::count(short.intended_frames));
            (
                Exit::NoVerdict,
                Some(format!("only {sent} of {intended} intended frames were sent; ask for a lower --rate")),
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::result::Verdict;

    #[test]
    fn a_loss_is_judged_only_at_the_load_that_was_intended() {
        let trial = |load_fps, completed_frames, loss_ratio| Trial {
            load_fps,
            intended_frames: 1000,
            offered_frames: 1000,
            completed_frames,
            loss_ratio,
            ..Trial::default()
        };
        let of_dut = Verdict { kind: VerdictKind::DutLimited, stage: None, evidence: vec![], advice: vec![] };
        for (trial, exit) in [
            (trial(Some(1000), 1000, Some(0.0)), Exit::Done),
            (trial(Some(1000), 990, Some(0.001)), Exit::Done),
            (trial(Some(1000), 989, Some(0.0)), Exit::NoVerdict),
            (trial(Some(1000), 500, Some(0.5)), Exit::GoalNotMet),
            (trial(Some(1000), 1000, None), Exit::NoVerdict),
            (trial(None, 500, Some(0.0)), Exit::Done),
            (Trial { offered_frames: 500, ..trial(None, 500, Some(0.0)) }, Exit::NoVerdict),
            (Trial { verdict: Some(of_dut.clone()), ..trial(None, 500, Some(0.0)) }, Exit::NoVerdict),
        ] {
            let (judged, why) = judge(std::slice::from_ref(&trial), 0.001);
            assert_eq!((judged, why.is_some()), (exit, exit == Exit::NoVerdict), "{trial:?}");
        }
    }
}
