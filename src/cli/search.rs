//! The flags of every command that searches, and who follows a search on the terminal and on disk.

use clap::{Args, ValueEnum};

use crate::{
    error::Result,
    report::{console::Console, json::Saver, result::ResultFile},
    search::{Ratio, SearchEvent, SearchGoal},
    session::ceiling::{Follow, SearchOptions, Timing},
    units::{NS_PER_S, Rate, parse_duration_ns},
};

/// Lowest load that a search looks at.
const MIN_FPS: u64 = 1_000;
/// Time for each search.
const MAX_TIME_NS: u64 = 900 * NS_PER_S;

/// What to search for.
#[derive(Debug, Args)]
#[command(next_help_heading = "Search")]
pub(super) struct Search {
    /// ndr, pdr (0.5 % loss), rfc2544, tst009, or one of your own such as my=0.1%; repeatable [default: ndr and pdr]
    #[arg(long, value_name = "GOAL")]
    goal: Vec<SearchGoal>,
    /// Lowest load per port [default: 1kpps]
    #[arg(long, value_name = "RATE")]
    min: Option<Rate>,
    /// Highest load per port [default: what the generator can send]
    #[arg(long, value_name = "RATE")]
    max: Option<Rate>,
    /// Length of the trials that decide [default: the goal's, 1s for ndr and pdr]
    #[arg(long, value_name = "DURATION", value_parser = parse_duration_ns)]
    trial: Option<u64>,
    /// How close the answer's bounds shall be [default: 0.5%]
    #[arg(long, value_name = "PCT")]
    width: Option<Ratio>,
    /// Timings by the book
    #[arg(long, value_enum)]
    standard: Option<Standard>,
    /// Time for each search [default: 15m]
    #[arg(long, value_name = "DURATION", value_parser = parse_duration_ns)]
    max_time: Option<u64>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Standard {
    /// RFC 2544: trials of 60 s, 2 s of learning frames, 5 s to stabilise
    Rfc2544,
}

impl Search {
    /// What the flags ask for.
    pub(super) fn options(&self) -> SearchOptions {
        let mut goals = match (&self.goal[..], self.standard) {
            ([], Some(Standard::Rfc2544)) => vec![SearchGoal::rfc2544()],
            ([], None) => vec![SearchGoal::ndr(), SearchGoal::pdr()],
            (goals, _) => goals.to_vec(),
        };
        if let Some(trial_ns) = self.trial {
            goals = goals.into_iter().map(|goal| goal.with_trial(trial_ns)).collect();
        }
        if let Some(width) = self.width {
            goals = goals.into_iter().map(|goal| goal.with_width(width)).collect();
        }
        SearchOptions {
            goals,
            min: self.min.unwrap_or(Rate::Fps(MIN_FPS)),
            max: self.max,
            max_time_ns: self.max_time.unwrap_or(MAX_TIME_NS),
            timing: self.standard.map_or(Timing::SHORT, |Standard::Rfc2544| Timing::RFC2544),
        }
    }
}

/// Notes on the terminal, the file on disk.
pub(super) struct Follower<'a> {
    pub(super) console: &'a Console,
    pub(super) saver: Option<&'a Saver>,
}

impl Follow for Follower<'_> {
    fn note(&self, text: &str) {
        self.console.note(text);
    }

    fn search(&self, event: &SearchEvent<'_>) {
        if let SearchEvent::Counted { trial, .. } = event
            && self.console.draws_progress()
        {
            let loss = trial.output.loss_ratio().as_f64();
            let (load, loss) = (crate::human::fps(trial.input.load_fps), crate::human::percent(loss));
            self.console.note(&format!("{load}: {loss} lost or unsent"));
        }
    }

    fn grown(&self, file: &ResultFile) -> Result<()> {
        self.saver.map_or(Ok(()), |saver| saver.save(file))
    }
}

/// A list of numbers as `--dut-rx-rings` takes it.
pub(super) fn numbers(text: &str) -> Result<Vec<u64>, String> {
    let parse = |part: &str| part.trim().parse::<u64>().ok().filter(|&number| number > 0);
    text.split(',').map(|part| parse(part).ok_or_else(|| format!("`{part}` is no size: write 256,512,1024"))).collect()
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
