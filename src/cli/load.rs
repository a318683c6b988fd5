//! The flags of every command that sends, and the profile they refer to.

use clap::{Arg, Args, ValueEnum};

use super::{Global, profile::ProfileArgs};
use crate::{
    error::{Error, Result},
    profile::{MAX_WORKERS, Profile},
    session::options::{BackendChoice, Options},
    units::parse_duration_ns,
};

/// What to send, and how much.
#[derive(Debug, Args)]
pub(super) struct Load {
    #[command(flatten)]
    what: ProfileArgs,
    /// How long to send [default: the profile's, else 10s]
    #[arg(long, value_name = "DURATION", value_parser = parse_duration_ns)]
    duration: Option<u64>,
    /// Send exactly this many frames per port, or what of them --duration leaves time for
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// Workers (threads and queues) per port [default: one for each queue, as CPUs allow]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=MAX_WORKERS as i64))]
    workers: Option<u16>,
    /// How frames leave; anything but auto never falls back
    #[arg(long, value_enum, default_value = "auto")]
    backend: Backend,
    /// Use an interface even if it carries the default route
    #[arg(long)]
    force: bool,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(super) enum Backend {
    /// The fastest that works on this NIC
    Auto,
    /// AF_XDP, zero-copy if the driver has it
    Xsk,
    /// AF_XDP zero-copy
    XskZc,
    /// AF_XDP copy mode
    XskCopy,
    /// XDP live frames
    Live,
    /// AF_PACKET
    Packet,
}

impl Backend {
    /// As a session takes it.
    pub(super) fn choice(self) -> BackendChoice {
        match self {
            Backend::Auto => BackendChoice::Auto,
            Backend::Xsk => BackendChoice::Xsk,
            Backend::XskZc => BackendChoice::XskZeroCopy,
            Backend::XskCopy => BackendChoice::XskCopy,
            Backend::Live => BackendChoice::Live,
            Backend::Packet => BackendChoice::Packet,
        }
    }
}

/// Hides from a search's help what only a run has; who types it all the same is told what to use instead.
pub(super) fn hide_run_flags(flag: Arg) -> Arg {
    let is_of_run = matches!(flag.get_id().as_str(), "rate" | "duration" | "count");
    flag.hide(is_of_run)
}

impl Load {
    /// The same for a command whose trials have lengths, and loads within `bounds`, of their own.
    ///
    /// # Errors
    /// Flags that only a run has.
    pub(super) fn read_for_search(&self, global: &Global, bounds: &'static str) -> Result<(Profile, Options)> {
        let given = [
            (self.what.rate().is_some(), "--rate", bounds),
            (self.duration.is_some(), "--duration", "--trial"),
            (self.count.is_some(), "--count", "--trial"),
        ];
        match given.iter().find(|(is_given, ..)| *is_given) {
            Some((_, flag, instead)) => Err(Error::usage("use", format!("{flag} with a search"))
                .because("a search chooses the load and the length of its trials")
                .remedy(format!("use {instead}"))),
            None => self.read(global),
        }
    }

    /// Reads the profile and everything the flags say.
    pub(super) fn read(&self, global: &Global) -> Result<(Profile, Options)> {
        self.what.refuse_overwriting(global.json.as_deref())?;
        let (profile, sizes) = self.what.read()?;
        let options = Options {
            command: std::env::args().collect(),
            duration_ns: self.duration,
            count: self.count,
            sizes,
            workers: self.workers,
            backend: self.backend.choice(),
            force: self.force,
        };
        Ok((profile, options))
    }
}
