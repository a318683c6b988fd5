//! `plimsoll sweep`: ceilings over a matrix of frame sizes, workers, backends and the DUT's settings, in one result file.

use std::collections::BTreeMap;

use clap::Args;
use serde_json::Value;

use super::{
    Exit, Global,
    claim::RFC2544_SIZES,
    load::{Backend, Load},
    search::{Follower, Search, numbers},
};
use crate::{
    dut::setting::Kind,
    error::Result,
    profile,
    report::{console::Console, labels, result::ResultFile},
    session::{
        Event, Session,
        ceiling::{Follow, SearchOptions},
        options::Options,
        settings::{self, SettingAxis},
    },
};

/// Find ceilings over a matrix: frame sizes (of RFC 2544 by default) × workers × backends × the DUT's RX rings or queues
///
/// Every ring size is measured at the same offered loads; the DUT's own setting is put back at the end, whatever happens.
#[derive(Debug, Args)]
#[command(mut_args(super::load::hide_run_flags))]
#[command(mut_arg("profile", |profile| profile.required(false).required_unless_present("restore")))]
pub(super) struct Sweep {
    #[command(flatten)]
    load: Load,
    /// Numbers of workers to compare: 1,2,4
    #[arg(long, value_name = "LIST", value_delimiter = ',', conflicts_with = "workers",
          value_parser = clap::value_parser!(u16).range(1..=profile::MAX_WORKERS as i64))]
    sweep_workers: Vec<u16>,
    /// Backends to compare: live,xsk-copy,packet
    #[arg(long, value_name = "LIST", value_delimiter = ',', conflicts_with = "backend", value_enum)]
    sweep_backends: Vec<Backend>,
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

/// Where in the matrix: what is varied, and the options that say so.
type Place = (BTreeMap<String, Value>, Options);

impl Sweep {
    pub(super) fn run(&self, global: &Global, console: &Console) -> Result<Exit> {
        if self.restore {
            return restore(console);
        }
        let (axis, search) = (self.axis()?, self.search.options()?);
        let (profile, mut options) = self.load.read_for_search(global, "--min and --max")?;
        // Each value of a setting takes a search of its own: with those, the sizes are the user's choice.
        if options.sizes.is_empty() && axis.is_none() {
            options.sizes = profile::parse_size_list(RFC2544_SIZES).expect("the sizes are constant");
        }
        let mut follower = Follower::new(console, global.json.as_deref())?;
        let stop = super::stop_flag()?;
        let mut file: Option<ResultFile> = None;
        let mut searched = Ok(());
        let places = self.places(&options);
        // A place that cannot be is told before hours are spent on the others.
        for (_, options) in places.iter().filter(|_| places.len() > 1) {
            Session::open(profile.clone(), options, stop.clone(), &mut |_| {})?;
        }
        for (axes, options) in places {
            let opened = Session::open(profile.clone(), &options, stop.clone(), &mut |event| {
                if let Event::Note(text) = event {
                    console.note(&text);
                }
            });
            searched = opened.and_then(|mut session| {
                if let Some(before) = file.take() {
                    session.go_on_with(before);
                }
                let measured = measure(&mut session, &search, &axes, axis.as_ref(), &mut follower);
                file = Some(session.file.clone());
                measured
            });
            if searched.is_err() {
                break;
            }
        }
        match file {
            Some(file) => follower.finish(&file, searched, global),
            None => searched.map(|()| Exit::Done),
        }
    }

    /// Every combination of what is varied on our side.
    fn places(&self, options: &Options) -> Vec<Place> {
        let mut places: Vec<Place> = vec![(BTreeMap::new(), options.clone())];
        if !self.sweep_workers.is_empty() {
            places = vary(&places, &self.sweep_workers, |(axes, options), &workers| {
                axes.insert("workers".into(), workers.into());
                options.workers = Some(workers);
            });
        }
        if !self.sweep_backends.is_empty() {
            places = vary(&places, &self.sweep_backends, |(axes, options), &backend| {
                options.backend = backend.choice();
                axes.insert("backend".into(), options.backend.name().into());
            });
        }
        places
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

/// Every frame size at one place, with every value of the DUT's setting.
fn measure(
    session: &mut Session,
    search: &SearchOptions,
    axes: &BTreeMap<String, Value>,
    axis: Option<&SettingAxis>,
    follower: &mut Follower<'_>,
) -> Result<()> {
    // Held outside the loop: put back once, at the end, by `restore` or by being dropped.
    let held = axis.map(|axis| session.hold(axis.kind)).transpose()?;
    let mut ended = Ok(());
    let sizes = session.sizes().len();
    for size in 0..sizes {
        session.load(size)?;
        let place = if axes.is_empty() { String::new() } else { format!(", {}", labels::axes(axes)) };
        follower.entitle(format!("{}{place}", labels::frames(&session.size_label())));
        ended = match (&held, axis) {
            (Some(held), Some(axis)) => session.sweep_setting(held, axis, search, axes, follower),
            _ => session.ceiling(search, axes, follower).map(drop),
        };
        if ended.is_err() {
            break;
        }
    }
    if let Some(held) = held {
        let sentence = format!("the DUT's {} is {} again", held.kind(), held.original());
        held.restore()?;
        follower.note(&sentence);
    }
    ended
}

fn restore(console: &Console) -> Result<Exit> {
    let (done, mut failed) = settings::restore_left_over();
    done.iter().for_each(|sentence| console.result(sentence));
    match failed.pop() {
        None if done.is_empty() => console.result("nothing was left changed by this user's runs"),
        None => {}
        Some(last) => {
            failed.iter().for_each(|error| console.error(error));
            return Err(last);
        }
    }
    Ok(Exit::Done)
}

/// Each place with each value.
fn vary<T>(places: &[Place], values: &[T], set: impl Fn(&mut Place, &T)) -> Vec<Place> {
    let with = |(place, value): (&Place, &T)| {
        let mut place = place.clone();
        set(&mut place, value);
        place
    };
    places.iter().flat_map(|place| values.iter().map(move |value| (place, value))).map(with).collect()
}
