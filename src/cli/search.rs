//! The flags of every command that searches for ceilings, and what follows the search on the terminal and on disk.

use std::{cell::RefCell, path::Path};

use clap::{Args, ValueEnum};

use super::{Exit, Global};
use crate::{
    error::{Error, ErrorKind, Result},
    report::{console::Console, json::Saver, progress::View, result::ResultFile, text},
    search::{Ratio, SearchConfig, SearchEvent, SearchGoal},
    session::ceiling::{Follow, SearchOptions, Timing},
    units::{Rate, parse_duration_ns},
};

/// What to search for
#[derive(Debug, Args)]
#[command(next_help_heading = "Search")]
pub(super) struct Search {
    /// Goal: ndr, pdr (0.5 %), rfc2544, tst009, or one of your own such as my=0.1%; repeatable
    /// [default: ndr and pdr; rfc2544 with --standard rfc2544]
    #[arg(long, value_name = "GOAL")]
    goal: Vec<SearchGoal>,
    /// Lowest load per port [default: 1kpps]
    #[arg(long, value_name = "RATE")]
    min: Option<Rate>,
    /// Highest load per port to search; half a second at full speed, of frames that nobody answers, comes before it all the same
    /// [default: what the generator can send]
    #[arg(long, value_name = "RATE")]
    max: Option<Rate>,
    /// Length of the trials that decide [default: 1s; the goal's 60s for rfc2544 and tst009]
    #[arg(long, value_name = "DURATION", value_parser = parse_duration_ns)]
    trial: Option<u64>,
    /// Trials that settle a load [default: 21 as FD.io CSIT; 1 for rfc2544, 2 for tst009]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1000))]
    repeat: Option<u64>,
    /// How close the bounds must come, of the upper one
    #[arg(long, value_name = "PCT", default_value = "0.5%")]
    width: Ratio,
    /// Timings by the book: 2 s of learning frames before and 5 s of rest after each trial
    #[arg(long, value_enum)]
    standard: Option<Standard>,
    /// Longest time for each search
    #[arg(long, value_name = "DURATION", default_value = "1h", value_parser = parse_duration_ns)]
    max_time: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Standard {
    /// RFC 2544 §23
    Rfc2544,
}

impl Search {
    /// What the flags ask for.
    ///
    /// # Errors
    /// A width that is none, two goals of one name.
    pub(super) fn options(&self) -> Result<SearchOptions> {
        let goals = match (self.goal.is_empty(), self.standard) {
            (true, Some(Standard::Rfc2544)) => vec![SearchGoal::rfc2544()],
            (true, None) => vec![SearchGoal::ndr(), SearchGoal::pdr()],
            (false, _) => self.goal.clone(),
        };
        let goal = |goal: SearchGoal| {
            let mut goal = goal.with_width(self.width);
            if let Some(trial_ns) = self.trial {
                goal = goal.with_trial(trial_ns);
            }
            if let Some(repeat) = self.repeat {
                goal.duration_sum_ns = goal.final_trial_ns.saturating_mul(repeat);
            }
            goal
        };
        let goals: Vec<SearchGoal> = goals.into_iter().map(goal).collect();
        // The loads come later; what is wrong with the goals is told before anything is opened.
        SearchConfig::new(1, 1, goals.clone())
            .validate()
            .map_err(|cause| Error::usage("search", "for these goals").because(cause))?;
        Ok(SearchOptions {
            goals,
            min: self.min,
            max: self.max,
            max_time_ns: self.max_time,
            timing: if self.standard.is_some() { Timing::RFC2544 } else { Timing::SHORT },
        })
    }
}

/// A list of numbers as `--dut-rx-rings` takes it.
pub(super) fn numbers(text: &str) -> Result<Vec<u64>, String> {
    let parse = |part: &str| part.trim().parse::<u64>().ok().filter(|&number| number > 0);
    text.split(',').map(|part| parse(part).ok_or_else(|| format!("`{part}` is no size: write 256,512,1024"))).collect()
}

/// Shows searches on the terminal, and saves the result after every trial.
pub(super) struct Follower<'a> {
    console: &'a Console,
    saver: Option<Saver>,
    title: String,
    view: RefCell<Option<View>>,
}

impl<'a> Follower<'a> {
    /// # Errors
    /// The result could not be written: told before anything is sent.
    pub(super) fn new(console: &'a Console, json: Option<&Path>) -> Result<Follower<'a>> {
        let saver = json.map(Saver::new);
        saver.iter().try_for_each(Saver::prove)?;
        Ok(Follower { console, saver, title: String::new(), view: RefCell::new(None) })
    }

    /// The next search's name, such as `64-byte frames`.
    pub(super) fn entitle(&mut self, title: String) {
        self.title = title;
    }

    /// Prints the report and saves the final result; the search's error, if it had one, comes after both.
    pub(super) fn finish(self, file: &ResultFile, searched: Result<()>, global: &Global) -> Result<Exit> {
        if let Some(view) = self.view.into_inner() {
            view.finish();
        }
        if file.trials.is_empty() {
            // Nothing was measured: the error is all there is to say.
            searched?;
            self.console.note("no verdict: the time was over before the first trial; allow more with --max-time");
            return Ok(Exit::NoVerdict);
        }
        let report = text::render(file, self.console.style(), global.verbose > 0);
        match &self.saver {
            // Standard output belongs to the JSON document.
            Some(Saver::Stdout) => self.console.note(&report),
            _ => self.console.result(&report),
        }
        if let Some(saver) = &self.saver {
            saver.finish(file)?;
        }
        match searched {
            Ok(()) => sent_something(file).map(|()| exit(file)),
            Err(error) if error.kind() == ErrorKind::Interrupted => Ok(Exit::Interrupted),
            Err(error) => Err(error),
        }
    }
}

impl Follow for Follower<'_> {
    fn begins(&self, config: &SearchConfig) {
        let before = self.view.replace(Some(View::new(&self.title, config, self.console.draws_progress())));
        if let Some(view) = before {
            view.finish();
        }
    }

    fn note(&self, text: &str) {
        self.console.note(text);
    }

    fn search(&self, event: &SearchEvent<'_>) {
        if let SearchEvent::Discarded { reason, .. } = event
            && self.console.verbosity() > 0
        {
            self.console.note(&format!("a trial is discarded and repeated: {reason}"));
        }
        if let Some(view) = self.view.borrow_mut().as_mut() {
            view.observe(event);
        }
    }

    fn grown(&self, file: &ResultFile) -> Result<()> {
        self.saver.as_ref().map_or(Ok(()), |saver| saver.save(file))
    }
}

fn sent_something(file: &ResultFile) -> Result<()> {
    if file.trials.iter().any(|trial| trial.completed_frames > 0) {
        return Ok(());
    }
    let names: Vec<&str> = file.ports.iter().map(|port| port.name.as_str()).collect();
    Err(Error::environment("send on", names.join(", "))
        .because("not one frame was sent")
        .remedy("see the caveats above; is the link up?"))
}

/// 4 if some ceiling cannot be defended, else 1 if some goal is met by no load, else 0 ("at least --max" included).
fn exit(file: &ResultFile) -> Exit {
    use crate::report::result::VerdictKind::{DutLimited, LinkLimited};
    let exits = file.ceilings.iter().map(|ceiling| match (ceiling.outcome.as_str(), ceiling.verdict.kind) {
        ("at_least_max", _) | ("bounds", DutLimited | LinkLimited) => Exit::Done,
        ("below_min", DutLimited | LinkLimited) => Exit::GoalNotMet,
        _ => Exit::NoVerdict,
    });
    let compared = file.comparisons.iter().filter(|comparison| comparison.best.is_none()).map(|_| Exit::NoVerdict);
    exits.chain(compared).max_by_key(|exit| exit.code()).unwrap_or(Exit::Done)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_sizes_are_positive_numbers() {
        assert_eq!(numbers("64, 256,4096"), Ok(vec![64, 256, 4096]));
        for wrong in ["", "64,", "0", "64;256", "-1"] {
            assert!(numbers(wrong).unwrap_err().contains("write 256,512,1024"), "{wrong}");
        }
    }
}
