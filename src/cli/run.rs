//! `plimsoll run`: send, count, report.

use clap::Args;

use super::{Exit, Global, load::Load};
use crate::{
    error::{Error, Result},
    report::{console::Console, json::Saver, result::ResultFile, text},
    session::{Event, Session, options::DEFAULT_DURATION_NS, trial::Want},
};

/// Send, count, report: stress a DUT
#[derive(Debug, Args)]
pub(super) struct Run {
    #[command(flatten)]
    load: Load,
    /// Exit with 1 if more than this percentage of the sent frames is lost
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
        let (profile, options) = self.load.read()?;
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
        self.exit(&file, stopped)
    }

    fn exit(&self, file: &ResultFile, stopped: bool) -> Result<Exit> {
        if stopped {
            return Ok(Exit::Interrupted);
        }
        let names = || file.ports.iter().map(|port| port.name.as_str()).collect::<Vec<_>>().join(", ");
        if file.trials.iter().any(|trial| trial.completed_frames == 0) {
            return Err(Error::environment("send on", names())
                .because("not one frame was sent")
                .remedy("see the caveats above; is the link up?"));
        }
        let Some(limit) = self.max_loss else { return Ok(Exit::Done) };
        let losses: Option<Vec<f64>> = file.trials.iter().map(|trial| trial.loss_ratio).collect();
        Ok(match losses {
            None => Exit::NoVerdict,
            Some(losses) if losses.iter().any(|&loss| loss > limit) => Exit::GoalNotMet,
            Some(_) => Exit::Done,
        })
    }
}
