//! `plimsoll sink`: count our frames on a DUT that terminates them.

use std::time::Duration;

use clap::{Args, ValueEnum};

use super::{Exit, Global};
use crate::{
    clock,
    dut::sink::{SinkFile, WRITE_EVERY_NS},
    error::{Error, Result},
    host::{
        link::{self, Link},
        tally::Tally,
    },
    human,
    report::{
        console::Console,
        json::{self, Saver},
    },
    units::{NS_PER_S, parse_duration_ns},
    xdp::{
        rx::XdpChoice,
        tally::{Counted, XdpTally},
    },
};

/// Receive only: run on a DUT that terminates; counts our frames and tells the generator's observer
#[derive(Debug, Args)]
pub(super) struct Sink {
    /// The interface that the frames come in by
    interface: String,
    /// How long to count [default: until SIGINT or SIGTERM]
    #[arg(long, value_name = "DURATION", value_parser = parse_duration_ns)]
    duration: Option<u64>,
    /// How to count: xdp costs least and knows short signatures; packet works on every kernel; auto: native xdp, else packet
    #[arg(long, value_enum, default_value = "auto")]
    mode: Mode,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Mode {
    Auto,
    /// Native, else generic
    Xdp,
    /// A packet socket's filter
    Packet,
}

/// What counts.
enum Counter {
    Xdp(Box<XdpTally>),
    Packet(Tally, String),
}

impl Counter {
    fn open(link: &Link, mode: Mode, console: &Console) -> Result<Counter> {
        let xdp = match mode {
            // Generic XDP costs the DUT more than the packet socket does.
            Mode::Auto => Some(XdpTally::attach(link, XdpChoice::Native)),
            Mode::Xdp => Some(XdpTally::attach(link, XdpChoice::Auto)),
            Mode::Packet => None,
        };
        match xdp {
            Some(Ok(tally)) => {
                tally.caveats().iter().for_each(|caveat| console.note(&caveat.text));
                console.note(&format!("{}: counting by {} XDP", link.name, tally.mode().name()));
                return Ok(Counter::Xdp(Box::new(tally)));
            }
            Some(Err(error)) if mode == Mode::Xdp => return Err(error),
            Some(Err(error)) => console.note(&format!("no XDP here, so a packet socket counts: {error}")),
            None => {}
        }
        let failed = |cause: &std::io::Error| failed(&link.name, cause).remedy("CAP_NET_RAW is needed: run as root");
        let tally = Tally::open(link.index).map_err(|cause| failed(&cause))?;
        console.note(&format!("{}: counting; frames with a short signature are not recognised", link.name));
        Ok(Counter::Packet(tally, link.name.clone()))
    }

    fn counted(&mut self) -> Result<Counted> {
        match self {
            Counter::Xdp(tally) => tally.counted(),
            Counter::Packet(tally, name) => {
                let frames = tally.frames().map_err(|cause| failed(name, &cause))?;
                Ok(Counted { frames, short_frames: 0 })
            }
        }
    }

    /// The last line.
    fn total(&self, counted: Counted) -> String {
        let frames = counted.frames;
        match self {
            Counter::Xdp(tally) => format!(
                "received: {frames} ({} of them with a short signature; counted by {} XDP)",
                counted.short_frames,
                tally.mode().name()
            ),
            Counter::Packet(..) => format!("received: {frames} (counted by a packet socket)"),
        }
    }
}

fn failed(name: &str, cause: &std::io::Error) -> Error {
    Error::environment("count frames on", name).os(cause)
}

impl Sink {
    pub(super) fn run(&self, global: &Global, console: &Console) -> Result<Exit> {
        global.json.as_deref().map_or(Ok(()), |path| Saver::new(path).prove())?;
        let stop = super::stop_flag()?;
        let link = Link::find(&self.interface)?;
        let mut counter = Counter::open(&link, self.mode, console)?;
        // Without the file an observer counts what the kernel's own counters say; the sink still tells people.
        let mut file = match SinkFile::create(&link.name) {
            Ok(file) => Some(file),
            Err(error) => {
                console.note(&format!("observers will not see this sink: {error}"));
                None
            }
        };
        let begun = clock::now();
        let mut second = Second { frames: 0, bytes: arrived_bytes(&link)?, at: begun };
        let mut counted = Counted::default();
        while !stop.load(std::sync::atomic::Ordering::Relaxed) {
            let now = clock::now();
            if self.duration.is_some_and(|duration| now.since_ns(begun) >= duration) {
                break;
            }
            counted = counter.counted()?;
            if let Some(file) = &mut file {
                file.write(counted.frames)?;
            }
            if now.since_ns(second.at) >= NS_PER_S {
                second = second.tell(console, &link, counted.frames, now)?;
            }
            std::thread::sleep(Duration::from_nanos(WRITE_EVERY_NS));
        }
        // What came between the last look and the end.
        counted = counter.counted().unwrap_or(counted);
        if let Some(path) = &global.json {
            let document = serde_json::json!({
                "schema": "plimsoll-sink/1",
                "version": env!("CARGO_PKG_VERSION"),
                "interface": link.name,
                "received_frames": counted.frames,
                "duration_s": clock::now().since_ns(begun) as f64 / 1e9,
            });
            json::write(path, &json::pretty(&document))?;
            if path.as_os_str() == "-" {
                return Ok(Exit::Done);
            }
        }
        console.result(&counter.total(counted));
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
