//! `plimsoll lab up|down|status|exec`.

use std::{io::Read, time::Duration};

use clap::{Args, Subcommand, ValueEnum};

use super::Exit;
use crate::{
    error::{Error, Result},
    lab::{
        self, DutCpu, DutKind, GENERATOR, Options, Status,
        vm::{self, NicModel, Wiring},
    },
    report::console::Console,
    units::{Rate, parse_duration_ns},
    xdp::model::{ModelConfig, Stage},
};

/// A generator and a DUT in network namespaces of their own
#[derive(Debug, Args)]
pub(super) struct Lab {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Build it (nothing changes if it is up with the same options; one with others is replaced unless something runs in it)
    Up(Up),
    /// Take it down; leaves nothing
    Down,
    /// Say what is there
    Status,
    /// Run a command (or the script on standard input) in the virtual machine: its outputs, its exit code
    Exec(Exec),
    /// Print the modelled DUT's ring and counters, as `name: value`; change its ring
    Model(Model),
}

#[derive(Debug, Args)]
struct Model {
    /// Change the first ring to this many slots (its rate follows --curve)
    #[arg(long, value_name = "SLOTS", value_parser = clap::value_parser!(u64).range(1..))]
    rx_ring: Option<u64>,
}

#[derive(Debug, Args)]
struct Exec {
    /// Which machine (`dut`, or `gen` for one built with --loop); default the one there is
    #[arg(long, value_name = "NAME")]
    guest: Option<String>,
    /// Kill the command after this time (status 124)
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = parse_duration_ns)]
    limit: u64,
    /// The command and its arguments, for busybox sh
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<String>,
}

#[derive(Debug, Args)]
struct Up {
    /// The DUT is a virtual machine (QEMU without KVM): real NIC drivers, rates that mean nothing
    #[arg(long, conflicts_with_all = ["dut", "coupled", "own_cpu", "queues", "mtu"])]
    vm: bool,
    /// Its two NICs: vmxnet3, e1000, e1000e, igb, virtio, virtio:speed=MBPS, virtio:iommu
    #[arg(long, value_name = "MODEL", requires = "vm", default_value = "vmxnet3")]
    nic: NicModel,
    /// The machine is the generator instead: its two NICs face each other
    #[arg(long = "loop", requires = "vm")]
    is_loop: bool,
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
    #[command(flatten)]
    model: Behaviour,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Dut {
    /// A real Linux router
    Router,
    /// A modelled DUT, whose ceiling is known exactly
    Model,
}

/// Slots of a ring unless told otherwise.
const RING: u64 = 256;

/// How the modelled DUT behaves (only with --dut model)
#[derive(Debug, Args)]
#[command(next_help_heading = "Modelled DUT")]
struct Behaviour {
    /// What its ring serves, such as 20kpps (none: whatever arrives)
    #[arg(long, value_name = "RATE", value_parser = frames_per_second)]
    serve: Option<u64>,
    /// Slots of its ring
    #[arg(long, value_name = "SLOTS", default_value_t = RING, value_parser = clap::value_parser!(u64).range(1..=1 << 24))]
    ring: u64,
    /// What a second stage behind the ring serves
    #[arg(long, value_name = "RATE", value_parser = frames_per_second)]
    second: Option<u64>,
    /// Slots of the second stage
    #[arg(long, value_name = "SLOTS", default_value_t = RING, value_parser = clap::value_parser!(u64).range(1..=1 << 24))]
    second_ring: u64,
    /// What the ring serves at other sizes: SLOTS=RATE, repeatable, at most 8
    #[arg(long, value_name = "SLOTS=RATE", value_parser = point)]
    curve: Vec<Stage>,
    /// Percentage of frames lost whatever the load
    #[arg(long, value_name = "PERCENT", default_value = "0", value_parser = super::run::percentage)]
    loss: f64,
    /// Latency beside that of waiting in the rings
    #[arg(long, value_name = "DURATION", value_parser = parse_duration_ns)]
    latency: Option<u64>,
    /// Load above which it dies for 3 s
    #[arg(long, value_name = "RATE", value_parser = frames_per_second)]
    dies_above: Option<u64>,
    /// Loads from A to below B lose one frame in 64, higher ones none: A..B
    #[arg(long, value_name = "A..B", value_parser = band)]
    lossy: Option<(u64, u64)>,
    /// Frames lost after each second without traffic
    #[arg(long, value_name = "N", default_value_t = 0)]
    loses_first: u64,
}

impl Behaviour {
    /// For every other DUT.
    ///
    /// # Errors
    /// One of these flags was given.
    fn only_modelled(&self) -> Result<()> {
        let flags = [
            (self.serve.is_some(), "--serve"),
            (self.ring != RING, "--ring"),
            (self.second.is_some(), "--second"),
            (self.second_ring != RING, "--second-ring"),
            (!self.curve.is_empty(), "--curve"),
            (self.loss != 0.0, "--loss"),
            (self.latency.is_some(), "--latency"),
            (self.dies_above.is_some(), "--dies-above"),
            (self.lossy.is_some(), "--lossy"),
            (self.loses_first > 0, "--loses-first"),
        ];
        match flags.into_iter().find(|(is_given, _)| *is_given) {
            None => Ok(()),
            Some((_, flag)) => Err(Error::usage("use", format!("{flag} with this DUT"))
                .because("it says how the modelled DUT behaves")
                .remedy("add --dut model")),
        }
    }

    fn config(&self) -> ModelConfig {
        ModelConfig {
            ring: self.serve.map(|rate_fps| Stage { rate_fps, slots: self.ring }),
            second: self.second.map(|rate_fps| Stage { rate_fps, slots: self.second_ring }),
            loss_ppb: (self.loss * 1e9).round() as u64,
            latency_ns: self.latency.unwrap_or(0),
            death_fps: self.dies_above.unwrap_or(0),
            dead_ns: 3_000_000_000,
            lossy_fps: self.lossy,
            first_frames: self.loses_first,
            idle_ns: 1_000_000_000,
            curve: self.curve.clone(),
            ..ModelConfig::default()
        }
    }
}

fn frames_per_second(text: &str) -> Result<u64, String> {
    match text.parse::<Rate>() {
        Ok(Rate::Fps(fps)) => Ok(fps),
        Ok(_) => Err("write frames per second, such as 20kpps".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

fn point(text: &str) -> Result<Stage, String> {
    let (slots, rate) = text.split_once('=').ok_or("write SLOTS=RATE, such as 512=30kpps")?;
    let slots = slots.parse().map_err(|error| format!("`{slots}`: {error}"))?;
    Ok(Stage { slots, rate_fps: frames_per_second(rate)? })
}

fn band(text: &str) -> Result<(u64, u64), String> {
    let (from, to) = text.split_once("..").ok_or("write A..B, such as 10kpps..20kpps")?;
    let (from, to) = (frames_per_second(from)?, frames_per_second(to)?);
    if from < to { Ok((from, to)) } else { Err("A must be less than B, such as 10kpps..20kpps".to_owned()) }
}

impl Lab {
    pub(super) fn run(&self, console: &Console) -> Result<Exit> {
        match &self.action {
            Action::Up(up) if up.vm => {
                up.model.only_modelled()?;
                let wiring = if up.is_loop { Wiring::Loop } else { Wiring::Taps };
                report(console, &lab::up_vm(up.nic, wiring)?);
            }
            Action::Exec(exec) => return exec.run(console),
            Action::Up(up) => {
                let dut = match up.dut {
                    Dut::Router => {
                        up.model.only_modelled()?;
                        DutKind::Router
                    }
                    Dut::Model => DutKind::Model(Box::new(up.model.config())),
                };
                let own = !up.coupled && (up.own_cpu || lab::cpu_count() > 1);
                let cpu = if own { DutCpu::Own } else { DutCpu::Coupled };
                report(console, &lab::up(&Options { dut, cpu, queues: up.queues, mtu: up.mtu })?);
            }
            Action::Down => {
                lab::down()?;
                report(console, &Status::Down);
            }
            Action::Status => report(console, &lab::status()?),
            Action::Model(model) => {
                if let Some(slots) = model.rx_ring {
                    lab::model::set_ring(slots)?;
                }
                let (config, counters) = lab::model::read()?;
                if let Some(ring) = config.ring {
                    console.result(&format!("rx_ring: {}\nserves_fps: {}", ring.slots, ring.rate_fps));
                }
                for (name, value) in counters.named() {
                    // With the stage before its name a `command:` observer knows where frames were lost.
                    let stage = match name {
                        "arrived" | "forwarded" => "",
                        "ring_full" => "vnic_ring/",
                        "second_full" => "softnet/",
                        _ => "driver/",
                    };
                    console.result(&format!("{stage}{name}: {value}"));
                }
            }
        }
        Ok(Exit::Done)
    }
}

impl Exec {
    fn run(&self, console: &Console) -> Result<Exit> {
        let name = match (&self.guest, vm::status().first()) {
            (Some(name), _) => name.clone(),
            (None, Some(guest)) => guest.name.clone(),
            (None, None) => "dut".to_owned(),
        };
        let guest = vm::open(&name)?;
        let mut script = self.command.join(" ");
        if self.command.is_empty() {
            let read = std::io::stdin().read_to_string(&mut script);
            read.map_err(|error| Error::usage("read", "a script from standard input").os(&error))?;
        }
        let output = guest.channel().run(&script, Duration::from_nanos(self.limit))?;
        console.relay(&output.stdout, &output.stderr);
        Ok(Exit::Remote(u8::try_from(output.status).unwrap_or(1)))
    }
}

fn report(console: &Console, status: &Status) {
    match status {
        Status::Down => console.result("the lab is down"),
        Status::Partial => console.result("a part of the lab is there: `plimsoll lab down` removes it"),
        Status::Up(options) => {
            console.result(&format!("{options}: up"));
            if options.contains("vm gen") {
                return console.result("try: plimsoll lab exec plimsoll probe nic0 nic1");
            }
            console.result(&format!("try: plimsoll --netns {GENERATOR} run profiles/udp-64.yaml"));
        }
    }
}
