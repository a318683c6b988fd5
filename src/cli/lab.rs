//! `plimsoll lab up|down|status`.

use clap::{Args, Subcommand, ValueEnum};

use super::Exit;
use crate::{
    error::Result,
    lab::{self, DutCpu, GENERATOR, Options, Status},
    report::console::Console,
};

/// A generator and a DUT in network namespaces of their own
#[derive(Debug, Args)]
pub(super) struct Lab {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Build it (nothing changes if it is up with the same options)
    Up(Up),
    /// Take it down; leaves nothing
    Down,
    /// Say what is there
    Status,
}

#[derive(Debug, Args)]
struct Up {
    /// What the DUT is
    #[arg(long, value_enum, default_value = "router")]
    dut: Dut,
    /// The DUT works on the sender's CPU: they slow each other (default on one CPU)
    #[arg(long, conflicts_with = "own_cpu")]
    coupled: bool,
    /// The DUT has the last CPU to itself (default)
    #[arg(long)]
    own_cpu: bool,
    /// Queues per link end
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    queues: u32,
    /// MTU of the links in bytes
    #[arg(long, default_value_t = 1500, value_parser = clap::value_parser!(u32).range(1280..=9216))]
    mtu: u32,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Dut {
    /// A real Linux router
    Router,
}

impl Lab {
    pub(super) fn run(&self, console: &Console) -> Result<Exit> {
        match &self.action {
            Action::Up(up) => {
                let Dut::Router = up.dut;
                let own = !up.coupled && (up.own_cpu || lab::cpu_count() > 1);
                let cpu = if own { DutCpu::Own } else { DutCpu::Coupled };
                report(console, &lab::up(Options { cpu, queues: up.queues, mtu: up.mtu })?);
            }
            Action::Down => {
                lab::down()?;
                report(console, &Status::Down);
            }
            Action::Status => report(console, &lab::status()?),
        }
        Ok(Exit::Done)
    }
}

fn report(console: &Console, status: &Status) {
    match status {
        Status::Down => console.result("the lab is down"),
        Status::Partial => console.result("a part of the lab is there: `plimsoll lab down` removes it"),
        Status::Up(options) => {
            console.result(&format!("{options}: up"));
            console.result(&format!("try: plimsoll --netns {GENERATOR} run profiles/udp-64.yaml"));
        }
    }
}
