//! `plimsoll pcap PROFILE -o FILE`.

use std::path::PathBuf;

use clap::Args;

use super::{Exit, profile::ProfileArgs};
use crate::{
    error::Result,
    human,
    program::preview::preview,
    report::{capture::to_pcap, console::Console, json},
};

/// Write the first frames of a profile as a capture file; touches no NIC
///
/// Frames have no FCS, so they are 4 bytes shorter than their frame size. Times are those of the profile's rate (1 Mpps
/// where it gives none), in nanoseconds from 0. MAC addresses that only a NIC or ARP knows are placeholders.
#[derive(Debug, Args)]
pub(super) struct Pcap {
    #[command(flatten)]
    profile: ProfileArgs,
    /// The file to write; `-` for standard output
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// How many frames, of all ports together (and for each of several frame sizes)
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    count: u64,
}

impl Pcap {
    /// Compiles the profile and writes the file.
    pub(super) fn run(&self, console: &Console) -> Result<Exit> {
        self.profile.refuse_overwriting(Some(&self.output))?;
        let mut frames = Vec::new();
        for (_, compiled) in self.profile.compile()? {
            frames.extend(preview(&compiled, self.count));
            for caveat in &compiled.caveats {
                console.note(&caveat.text);
            }
        }
        json::write(&self.output, &to_pcap(&frames)?)?;
        if self.output.as_os_str() != "-" {
            let frames = human::count(frames.len() as u64);
            console.note(&format!("{frames} frames written to {}", self.output.display()));
        }
        Ok(Exit::Done)
    }
}
