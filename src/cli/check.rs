//! `plimsoll check PROFILE`.

use clap::Args;

use super::{Exit, profile::ProfileArgs};
use crate::{
    dut::observer::Target,
    error::Result,
    report::{console::Console, profile::describe, text},
};

/// Parse and validate a profile; print ports, streams, flows, rates and the compiled program (-v: every byte)
#[derive(Debug, Args)]
pub(super) struct Check {
    #[command(flatten)]
    profile: ProfileArgs,
}

impl Check {
    /// Checks and prints.
    pub(super) fn run(&self, console: &Console) -> Result<Exit> {
        for (profile, compiled) in self.profile.compile()? {
            if let Some(dut) = &profile.dut {
                for text in std::iter::once(&dut.observe).chain(&dut.also_observe) {
                    Target::parse(text)?;
                }
            }
            let document = describe(&profile, &compiled, console.verbosity() > 0);
            console.result(text::draw(&document, console.style()).trim_end());
        }
        Ok(Exit::Done)
    }
}
