//! `plimsoll claim`: the link speed that each side claims beside what is really delivered, per frame size.

use clap::Args;
use serde_json::Value;

use super::{Exit, Global, load::Load, search::Follower};
use crate::{
    caveat::{Caveat, Code},
    error::Result,
    meter::claim::Delivered,
    profile,
    report::{console::Console, labels, result::Claim as Line},
    session::{Event, Session, ceiling::Follow},
    units::{Rate, parse_duration_ns},
};

/// The sizes of RFC 2544 §9.1, for Ethernet.
pub(super) const RFC2544_SIZES: &str = "64,128,256,512,1024,1280,1518";

/// The link speed that each side claims beside what is really delivered [default: the RFC 2544 frame sizes]
#[derive(Debug, Args)]
#[command(mut_args(super::load::hide_run_flags))]
pub(super) struct Claim {
    #[command(flatten)]
    load: Load,
    /// Highest load per port [default: as fast as the generator sends]
    #[arg(long, value_name = "RATE")]
    max: Option<Rate>,
    /// Length of the trial of each size
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = parse_duration_ns)]
    trial: u64,
}

impl Claim {
    pub(super) fn run(&self, global: &Global, console: &Console) -> Result<Exit> {
        let (profile, mut options) = self.load.read_for_search(global, "--max")?;
        if options.sizes.is_empty() {
            options.sizes = profile::parse_size_list(RFC2544_SIZES).expect("the sizes are constant");
        }
        let follower = Follower::new(console, global.json.as_deref())?;
        let stop = super::stop_flag()?;
        let mut tell = |event: Event<'_>| {
            if let Event::Note(text) = event {
                console.note(&text);
            }
        };
        let mut session = Session::open(profile, &options, stop, &mut tell)?;
        // By interface, in the order in which they appear.
        let mut delivered: Vec<(String, Vec<(Value, Delivered)>)> = Vec::new();
        let sizes = session.sizes().len();
        for size in 0..sizes {
            session.load(size)?;
            let frame_size = session.size_label();
            let carried = session.carry(self.max, self.trial, &mut tell)?;
            if session.is_stopped() {
                // A trial that was cut says nothing about what an interface carries.
                let text = format!("stopped before its end: only {size} of {sizes} frame sizes were measured");
                session.doubt([Caveat::new(Code::Interrupted, text)]);
                break;
            }
            for carried in carried {
                let one = Delivered {
                    frames: labels::frames(&frame_size),
                    mean: session.mean_frame(),
                    claim_mbps: carried.claim_mbps,
                    measured_fps: carried.fps,
                    at_max: carried.at_max,
                };
                match delivered.iter_mut().find(|(interface, _)| *interface == carried.interface) {
                    Some((_, sizes)) => sizes.push((frame_size.clone(), one)),
                    None => delivered.push((carried.interface, vec![(frame_size.clone(), one)])),
                }
            }
            session.file.claims = delivered.iter().flat_map(|(interface, sizes)| Line::of(interface, sizes)).collect();
            follower.grown(&session.file)?;
            if session.lost_port().is_some() {
                break;
            }
        }
        let (file, stopped, lost) = (session.file.clone(), session.is_stopped(), session.lost_port());
        drop(session);
        let exit = follower.finish(&file, lost.map_or(Ok(()), Err), global)?;
        Ok(if stopped { Exit::Interrupted } else { exit })
    }
}
