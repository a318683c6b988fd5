//! The command line: parse, hand over, turn the answer into an exit code. One file per command.

mod ceiling;
mod check;
mod claim;
mod lab;
mod load;
mod pcap;
mod probe;
mod profile;
mod report;
mod run;
mod search;
mod sink;
mod sweep;

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use clap::{Args, Parser, Subcommand};

use crate::{
    error::{Error, Result},
    host::netns,
    report::console::Console,
};

/// Finds how many frames per second a device under test really ingests, and which stage loses the rest.
#[derive(Debug, Parser)]
#[command(name = "plimsoll", version, propagate_version = true, max_term_width = 110)]
struct Cli {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    command: Command,
}

/// What every command takes.
#[derive(Debug, Args)]
pub(crate) struct Global {
    /// Do everything inside this network namespace (as `ip netns` names it)
    #[arg(long, global = true, value_name = "NAME")]
    netns: Option<String>,
    /// Only results and errors
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    quiet: bool,
    /// More detail; twice for library messages
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    verbose: u8,
    /// Plain text, also on a terminal (NO_COLOR does the same)
    #[arg(long, global = true)]
    no_color: bool,
    /// Write the result file here; `-` for standard output
    #[arg(long, global = true, value_name = "FILE")]
    json: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
enum Command {
    Probe(probe::Probe),
    Check(check::Check),
    Pcap(pcap::Pcap),
    Run(run::Run),
    Ceiling(ceiling::Ceiling),
    Sweep(sweep::Sweep),
    Claim(claim::Claim),
    Sink(sink::Sink),
    Lab(lab::Lab),
    Report(report::Report),
}

/// How a command that did its work ended (CONTRACT: exit codes).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    /// Done, and the goal, if any, is met.
    Done,
    /// Done, the goal is not met.
    GoalNotMet,
    /// No verdict: generator-limited, coupled or inconclusive.
    NoVerdict,
    /// The user stopped it; partial totals were printed.
    Interrupted,
    /// A command run elsewhere ended with this status.
    Remote(u8),
}

impl Exit {
    fn code(self) -> u8 {
        match self {
            Exit::Done => 0,
            Exit::GoalNotMet => 1,
            Exit::NoVerdict => 4,
            Exit::Interrupted => 130,
            Exit::Remote(status) => status,
        }
    }
}

/// Parses the process's arguments and runs the command.
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    let console = Console::new(cli.global.quiet, cli.global.verbose, cli.global.no_color);
    let done = dispatch(&cli, &console);
    match done.and_then(|exit| console.failure().map_or(Ok(exit), Err)) {
        Ok(exit) => ExitCode::from(exit.code()),
        Err(error) => {
            console.error(&error);
            ExitCode::from(error.kind().exit_code())
        }
    }
}

fn dispatch(cli: &Cli, console: &Console) -> Result<Exit, Error> {
    if let Some(name) = &cli.global.netns {
        netns::enter(name)?;
    }
    if let (Some(_), Command::Pcap(_) | Command::Lab(_)) = (&cli.global.json, &cli.command) {
        return Err(Error::usage("use", "--json with pcap or lab")
            .because("they have no result to write")
            .remedy("leave it out"));
    }
    match &cli.command {
        Command::Probe(probe) => probe.run(console, &cli.global),
        Command::Check(check) => check.run(&cli.global, console),
        Command::Pcap(pcap) => pcap.run(console),
        Command::Run(run) => run.run(&cli.global, console),
        Command::Ceiling(ceiling) => ceiling.run(&cli.global, console),
        Command::Sweep(sweep) => sweep.run(&cli.global, console),
        Command::Claim(claim) => claim.run(&cli.global, console),
        Command::Sink(sink) => sink.run(&cli.global, console),
        Command::Lab(lab) => lab.run(console),
        Command::Report(report) => report.run(console, &cli.global),
    }
}

/// Makes sure that what is written replaces none of the files that are read.
///
/// # Errors
/// `output` is one of them, by whatever name.
fn refuse_overwriting(output: Option<&Path>, read: &[PathBuf], cause: &'static str) -> Result<()> {
    let real = |path: &Path| path.canonicalize().ok();
    match output.and_then(real) {
        Some(file) if read.iter().any(|path| real(path).as_ref() == Some(&file)) => {
            Err(Error::usage("write", file.display().to_string()).because(cause).remedy("name another file"))
        }
        _ => Ok(()),
    }
}

/// A flag that SIGINT and SIGTERM set; whatever runs ends soon after. A second signal ends the process at once.
fn stop_flag() -> Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    let flag = stop.clone();
    let handler = move || {
        if flag.swap(true, Ordering::Relaxed) {
            std::process::exit(i32::from(Exit::Interrupted.code()));
        }
    };
    ctrlc::set_handler(handler)
        .map_err(|cause| Error::environment("catch", "SIGINT and SIGTERM").because(cause))
        .map(|()| stop)
}
