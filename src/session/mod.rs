//! A session owns the ports and the engine: it opens them, runs trials, and closes them so that nothing is left behind.
//!
//! One thread, the control plane; workers, control responder and link watch have their own. The order of opening matters and
//! stands in `open`; what a trial is stands in [`trial`]. Text for people leaves through [`Event`]s, never from here.

mod backends;
pub mod ceiling;
pub mod claim;
mod doubts;
mod open;
pub mod options;
mod recipe;
pub mod settings;
mod totals;
pub mod trial;
mod verdict;

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering::Relaxed},
};

use serde_json::Value;

use crate::{
    caveat::Caveat,
    dut::observer::Observer,
    engine::{TxPort, control::Control},
    error::{Error, Result},
    host::{
        lease::Lease,
        link::{Device, Link},
        watch::LinkWatch,
    },
    profile::Profile,
    program::{TxProgram, compile::Compiled},
    report::result::{self, ResultFile, Second, Trial},
    units::{FrameLen, MeanFrame, Rate},
    wire::signature,
    xdp::rx::Receiver,
};
use options::Options;
use recipe::Recipe;

/// What a session tells while it works.
#[derive(Debug)]
pub enum Event<'a> {
    /// A line on what is going on.
    Note(String),
    /// A second of a trial is over: all seconds so far.
    Second(&'a [Second]),
}

/// Who listens.
pub type Listener<'a> = &'a mut dyn FnMut(Event<'_>);

/// A port of the session.
struct Port {
    /// Its position in the profile.
    position: usize,
    link: Link,
    device: Device,
    sender: Option<TxPort>,
    receiver: Option<Receiver>,
    info: result::Port,
}

/// An open session.
pub struct Session {
    recipe: Recipe,
    /// The profile at each frame size asked for; all have the same streams.
    sizes: Vec<Compiled>,
    /// Which of them is loaded.
    loaded: usize,
    ports: Vec<Port>,
    /// The interfaces are ours as long as the session is open.
    _leases: Vec<Lease>,
    control: Option<Control>,
    watch: LinkWatch,
    observer: Option<Arc<Observer>>,
    /// What the generator itself can send per port, frames/s, once it was measured.
    own_fps: Option<u64>,
    /// Full speed through the DUT was well below that although nothing held the sender up: they share something.
    slows_together: bool,
    stop: Arc<AtomicBool>,
    /// What is known before any trial; trials, ceilings and claims are added as they come.
    pub file: ResultFile,
}

impl Session {
    /// Opens everything that `profile` and `options` ask for; `stop` ends whatever runs, soon.
    ///
    /// # Errors
    /// A wrong profile, an interface that cannot be used, a gateway that does not answer, no backend that works.
    pub fn open(profile: Profile, options: &Options, stop: Arc<AtomicBool>, tell: Listener<'_>) -> Result<Session> {
        open::open(profile, options, stop, tell)
    }

    /// The frame sizes that can be loaded, as labels.
    pub fn sizes(&self) -> impl ExactSizeIterator<Item = &str> {
        self.sizes.iter().map(|compiled| compiled.frame_size.as_str())
    }

    /// What is loaded.
    pub fn compiled(&self) -> &Compiled {
        &self.sizes[self.loaded]
    }

    /// Loads the n-th frame size.
    ///
    /// # Errors
    /// A frame is longer than the backend can send.
    pub fn load(&mut self, size: usize) -> Result<()> {
        self.loaded = size;
        self.load_programs()
    }

    fn load_programs(&mut self) -> Result<()> {
        for program in &self.sizes[self.loaded].programs {
            let port = self.ports.iter_mut().find(|port| port.position == program.port.index());
            if let Some(sender) = port.and_then(|port| port.sender.as_mut()) {
                sender.load(Arc::new(program.clone()))?;
            }
        }
        Ok(())
    }

    /// Gives the coming trial a tag of its own: what is late from the trial before cannot be counted in it.
    fn retag(&mut self) -> Result<()> {
        self.recipe.run_tag = signature::next_run_tag(self.recipe.run_tag);
        self.sizes[self.loaded] = self.recipe.compile(self.loaded)?;
        self.load_programs()?;
        for receiver in self.ports.iter().filter_map(|port| port.receiver.as_ref()) {
            receiver.begin_trial(self.recipe.run_tag);
        }
        Ok(())
    }

    /// Frames/s of each sending port at this rate, or at the profile's; `None` = as fast as possible.
    ///
    /// # Errors
    /// A share of a link speed that nobody knows.
    pub fn loads(&self, rate: Option<Rate>) -> Result<Vec<Option<u64>>> {
        let compiled = self.compiled();
        let Some(rate) = rate else { return Ok(compiled.load_fps.clone()) };
        let programs = compiled.programs.iter();
        programs
            .map(|program| {
                let port = self.ports.iter().find(|port| port.position == program.port.index());
                let name = port.map_or("?", |port| port.link.name.as_str());
                let known = self.recipe.profile.ports[program.port.index()].link_bps;
                let claim = port.and_then(|port| port.info.claim_mbps).map(|mbps| mbps * 1_000_000);
                rate.to_fps(program.mean_frame(), known.or(claim)).map_err(|cause| {
                    Error::usage("use", format!("the rate {rate} on {name}"))
                        .because(cause)
                        .remedy("give an absolute rate such as 1mpps or 3.5gbps, or `link_speed` in the profile")
                })
            })
            .collect()
    }

    /// Mean frame length of what is loaded, over all ports.
    pub fn mean_frame(&self) -> MeanFrame {
        let programs = &self.compiled().programs;
        programs.first().map_or(MeanFrame::of(FrameLen::MIN), TxProgram::mean_frame)
    }

    /// What is loaded, as the result file writes it: a number, or a mix's name.
    pub fn size_label(&self) -> Value {
        let label = &self.compiled().frame_size;
        label.parse::<u64>().map_or_else(|_| Value::from(label.as_str()), Value::from)
    }

    /// A port whose interface was removed: nothing more can be measured.
    pub fn lost_port(&self) -> Option<Error> {
        let lost = self.ports.iter().find(|port| self.watch.is_removed(port.link.index))?;
        Some(Error::environment("go on with", &lost.link.name).because("the interface was removed"))
    }

    /// The user asked to stop.
    pub fn is_stopped(&self) -> bool {
        self.stop.load(Relaxed)
    }

    /// Adds what follows to an earlier session's result of the same command.
    pub fn go_on_with(&mut self, before: ResultFile) {
        let now = std::mem::replace(&mut self.file, before);
        self.file.ports = now.ports;
        self.doubt(now.caveats);
    }

    /// Adds a trial to the result.
    pub fn keep(&mut self, trial: Trial) -> &Trial {
        self.file.trials.push(trial);
        self.file.trials.last().expect("just pushed")
    }

    /// Adds doubts about the whole, each once.
    pub fn doubt(&mut self, caveats: impl IntoIterator<Item = Caveat>) {
        for caveat in caveats {
            if !self.file.caveats.contains(&caveat) {
                self.file.caveats.push(caveat);
            }
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // Receivers first: nothing may redirect or count into what is closing.
        for port in &mut self.ports {
            port.sender = None;
            port.receiver = None;
        }
        self.control = None;
    }
}
