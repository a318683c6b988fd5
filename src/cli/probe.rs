//! `plimsoll probe [IF…]`.

use clap::Args;

use super::{Exit, Global};
use crate::{
    error::Result,
    host::probe::probe,
    report::{console::Console, json, probe::describe, text},
};

/// What this host and its NICs can do: facts, which backends work and why the others do not, hints
#[derive(Debug, Args)]
pub(super) struct Probe {
    /// Interfaces [default: all but lo]
    #[arg(value_name = "IF")]
    interfaces: Vec<String>,
}

impl Probe {
    /// Probes and prints; with `--json` also writes it as JSON.
    pub(super) fn run(&self, console: &Console, global: &Global) -> Result<Exit> {
        let probe = probe(&self.interfaces)?;
        if let Some(path) = &global.json {
            json::write(path, &json::pretty(&probe))?;
            if path.as_os_str() == "-" {
                return Ok(Exit::Done);
            }
        }
        console.result(text::draw(&describe(&probe), console.style()).trim_end());
        Ok(Exit::Done)
    }
}
