//! `plimsoll sweep`: ceilings over a matrix of frame sizes and the DUT's settings.

use std::collections::BTreeMap;

use clap::Args;

use super::{
    Exit, Global,
    load::Load,
    search::{Follower, Search, numbers},
};
use crate::{
    dut::setting::Kind,
    error::{ErrorKind, Result},
    report::{console::Console, json::Saver, result::ResultFile, text},
    session::{
        Event, Session,
        settings::{self, SettingAxis},
    },
};

/// Find ceilings over a matrix: frame sizes × the DUT's RX rings or queues
///
/// Every ring size is measured at the same offered loads; the DUT's own setting is put back at the end, whatever happens.
#[derive(Debug, Args)]
#[command(mut_arg("profile", |profile| profile.required(false).required_unless_present("restore")))]
pub(super) struct Sweep {
    #[command(flatten)]
    load: Load,
    #[command(flatten)]
    search: Search,
    /// Sizes of the DUT's RX ring to try: 64,256,512,1024,2048,4096
    #[arg(long, value_name = "LIST", conflicts_with = "dut_queues")]
    dut_rx_rings: Option<String>,
    /// Numbers of receive queues of the DUT to try: 1,2,4
    #[arg(long, value_name = "LIST")]
    dut_queues: Option<String>,
    /// Only put back what killed sweeps left changed on any DUT
    #[arg(long, conflicts_with_all = ["dut_rx_rings", "dut_queues"])]
    restore: bool,
}

impl Sweep {
    pub(super) fn run(&self, global: &Global, console: &Console) -> Result<Exit> {
        if self.restore {
            return restore(console);
        }
        let axis = self.axis()?;
        let (profile, options) = self.load.read()?;
        let saver = global.json.as_deref().map(Saver::new);
        let stop = super::stop_flag()?;
        let mut session = Session::open(profile, &options, stop, &mut |event| {
            if let Event::Note(text) = event {
                console.note(&text);
            }
        })?;
        let follower = Follower { console, saver: saver.as_ref() };
        let search = self.search.options();
        // Held outside the loop: put back once, at the end, by `restore` or by being dropped.
        let held = axis.as_ref().map(|axis| session.hold(axis.kind)).transpose()?;
        let mut ended = Ok(());
        let sizes = session.sizes().len();
        for size in 0..sizes {
            session.load(size)?;
            ended = match (&held, &axis) {
                (Some(held), Some(axis)) => session.sweep_setting(held, axis, &search, &BTreeMap::new(), &follower),
                _ => session.ceiling(&search, &BTreeMap::new(), &follower).map(drop),
            };
            if ended.is_err() {
                break;
            }
        }
        let restored = held.map_or(Ok(()), |held| {
            let sentence = format!("the DUT's {} is {} again", held.kind(), held.original());
            held.restore().map(|()| console.note(&sentence))
        });
        let file = session.file.clone();
        drop(session);
        let report = text::render(&file, console.style(), global.verbose > 0);
        match &saver {
            Some(Saver::Stdout) => console.note(&report),
            _ => console.result(&report),
        }
        if let Some(saver) = &saver {
            saver.finish(&file)?;
        }
        restored?;
        match ended {
            Err(error) if error.kind() == ErrorKind::Interrupted => Ok(Exit::Interrupted),
            Err(error) => Err(error),
            Ok(()) => Ok(exit(&file)),
        }
    }

    fn axis(&self) -> Result<Option<SettingAxis>> {
        let axis = |kind, list: &str, flag: &str| {
            let values = numbers(list)
                .map_err(|cause| crate::error::Error::usage("use", format!("{flag} {list}")).because(cause))?;
            Ok(Some(SettingAxis { kind, values }))
        };
        match (&self.dut_rx_rings, &self.dut_queues) {
            (Some(list), _) => axis(Kind::RxRing, list, "--dut-rx-rings"),
            (None, Some(list)) => axis(Kind::Queues, list, "--dut-queues"),
            (None, None) => Ok(None),
        }
    }
}

fn restore(console: &Console) -> Result<Exit> {
    let (done, mut failed) = settings::restore_left_over();
    done.iter().for_each(|sentence| console.result(sentence));
    match failed.pop() {
        None if done.is_empty() => console.result("nothing was left changed"),
        None => {}
        Some(last) => {
            failed.iter().for_each(|error| console.error(error));
            return Err(last);
        }
    }
    Ok(Exit::Done)
}

/// The worst of the answers decides.
fn exit(file: &ResultFile) -> Exit {
    let has = |outcomes: &[&str]| file.ceilings.iter().any(|ceiling| outcomes.contains(&ceiling.outcome.as_str()));
    if has(&["generator_limited", "undecided"]) || file.comparisons.iter().any(|comparison| comparison.best.is_none()) {
        Exit::NoVerdict
    } else if has(&["below_min"]) {
        Exit::GoalNotMet
    } else {
        Exit::Done
    }
}
