//! `plimsoll sink`: count our frames on a DUT that terminates them.

use std::time::Duration;

use clap::Args;

use super::Exit;
use crate::{
    clock,
    dut::sink::{SinkFile, WRITE_EVERY_NS},
    error::{Error, Result},
    host::{
        link::{self, Link},
        tally::Tally,
    },
    human,
    report::console::Console,
    units::{NS_PER_S, parse_duration_ns},
};

/// Receive only: run on a DUT that terminates; counts our frames and tells the generator's observer
#[derive(Debug, Args)]
pub(super) struct Sink {
    /// The interface that the frames come in by
    interface: String,
    /// How long to count [default: until SIGINT or SIGTERM]
    #[arg(long, value_name = "DURATION", value_parser = parse_duration_ns)]
    duration: Option<u64>,
}

impl Sink {
    pub(super) fn run(&self, console: &Console) -> Result<Exit> {
        let stop = super::stop_flag()?;
        let link = Link::find(&self.interface)?;
        let failed = |cause: &std::io::Error| Error::environment("count frames on", &link.name).os(cause);
        let mut tally =
            Tally::open(link.index).map_err(|cause| failed(&cause).remedy("CAP_NET_RAW is needed: run as root"))?;
        // Without the file an observer counts what the kernel's own counters say; the sink still tells people.
        let mut file = match SinkFile::create(&link.name) {
            Ok(file) => Some(file),
            Err(error) => {
                console.note(&format!("observers will not see this sink: {error}"));
                None
            }
        };
        console.note(&format!("{}: counting; frames with a short signature are not recognised", link.name));
        let begun = clock::now();
        let mut second = Second { frames: 0, bytes: arrived_bytes(&link)?, at: begun };
        let mut frames = 0;
        while !stop.load(std::sync::atomic::Ordering::Relaxed) {
            let now = clock::now();
            if self.duration.is_some_and(|duration| now.since_ns(begun) >= duration) {
                break;
            }
            frames = tally.frames().map_err(|cause| failed(&cause))?;
            if let Some(file) = &mut file {
                file.write(frames)?;
            }
            if now.since_ns(second.at) >= NS_PER_S {
                second = second.tell(console, &link, frames, now)?;
            }
            std::thread::sleep(Duration::from_nanos(WRITE_EVERY_NS));
        }
        // What came between the last look and the end.
        frames = tally.frames().unwrap_or(frames);
        console.result(&format!("received: {frames}"));
        Ok(Exit::Done)
    }
}

/// The last line's counts.
struct Second {
    frames: u64,
    bytes: u64,
    at: clock::Instant,
}

impl Second {
    /// Tells what came since, as `iftop` would: frames of ours, and bits of all that arrived (L2, without FCS).
    fn tell(&self, console: &Console, link: &Link, frames: u64, now: clock::Instant) -> Result<Second> {
        let bytes = arrived_bytes(link)?;
        let per_second =
            |count: u64| (u128::from(count) * u128::from(NS_PER_S) / u128::from(now.since_ns(self.at).max(1))) as u64;
        console.note(&format!(
            "{}: {} of ours, {} on the interface; {} so far",
            link.name,
            human::fps(per_second(frames - self.frames)),
            human::bps(per_second(bytes.saturating_sub(self.bytes)) * 8),
            human::count(frames)
        ));
        Ok(Second { frames, bytes, at: now })
    }
}

fn arrived_bytes(link: &Link) -> Result<u64> {
    Ok(link::stats(link.index)?.rx_bytes)
}
