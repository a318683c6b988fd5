//! `plimsoll check PROFILE`.

use clap::Args;

use super::{Exit, Global, profile::ProfileArgs};
use crate::{
    error::Result,
    report::{console::Console, json, profile, text},
};

/// Parse and validate a profile; print ports, streams, flows, rates and the compiled program (-v: every byte)
#[derive(Debug, Args)]
pub(super) struct Check {
    #[command(flatten)]
    profile: ProfileArgs,
}

impl Check {
    /// Checks and prints; with `--json` also writes it as JSON.
    pub(super) fn run(&self, global: &Global, console: &Console) -> Result<Exit> {
        self.profile.refuse_overwriting(global.json.as_deref())?;
        let checked = self.profile.compile()?;
        if let Some(path) = &global.json {
            json::write(path, &json::pretty(&profile::json(&checked)))?;
            if path.as_os_str() == "-" {
                return Ok(Exit::Done);
            }
        }
        for (read, compiled) in checked {
            let document = profile::describe(&read, &compiled, console.verbosity() > 0);
            console.result(text::draw(&document, console.style()).trim_end());
        }
        Ok(Exit::Done)
    }
}
