//! `plimsoll ceiling`: find the load that a DUT takes, for each frame size and goal.

use std::collections::BTreeMap;

use clap::Args;

use super::{
    Exit, Global,
    load::Load,
    search::{Follower, Search},
};
use crate::{
    error::Result,
    report::{console::Console, labels},
    session::{Event, Session},
};

/// Find the ingest ceiling for one or more loss goals
#[derive(Debug, Args)]
#[command(mut_args(super::load::hide_run_flags))]
pub(super) struct Ceiling {
    #[command(flatten)]
    load: Load,
    #[command(flatten)]
    search: Search,
}

impl Ceiling {
    pub(super) fn run(&self, global: &Global, console: &Console) -> Result<Exit> {
        let (profile, options) = self.load.read_for_search(global, "--min and --max")?;
        let wanted = self.search.options()?;
        let mut follower = Follower::new(console, global.json.as_deref())?;
        let stop = super::stop_flag()?;
        let mut session = Session::open(profile, &options, stop, &mut |event| {
            if let Event::Note(text) = event {
                console.note(&text);
            }
        })?;
        let axes = BTreeMap::new();
        let mut search = || -> Result<()> {
            let sizes = session.sizes().len();
            for size in 0..sizes {
                session.load(size)?;
                follower.entitle(labels::frames(&session.size_label()));
                session.ceiling(&wanted, &axes, &follower)?;
            }
            Ok(())
        };
        let searched = search();
        let file = session.file.clone();
        drop(session);
        follower.finish(&file, searched, global)
    }
}
