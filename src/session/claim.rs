//! What interfaces carry beside what they claim: one trial at the highest load, seen from every interface that takes part.
//!
//! Control plane. A claim is a label and never a cap; the sentences about it are made in `meter::claim`.

use super::{Event, Listener, Session, trial::Want};
use crate::{
    error::Result,
    meter::claim::FULL_LINK_RATIO,
    units::{NS_PER_S, Rate, per_second},
};

/// What one interface claims and carried.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Carried {
    /// The generator's port, or `DUT` and its interface.
    pub interface: String,
    /// The link speed that it claims, Mbit/s.
    pub claim_mbps: Option<u64>,
    /// Frames/s in its busier direction.
    pub fps: u64,
    /// That is the load that was asked for: there may be more.
    pub at_max: bool,
}

impl Session {
    /// Sends what is loaded at this load (`None` = as fast as possible), keeps the trial, and says what every interface carried.
    ///
    /// # Errors
    /// A share of a link speed that nobody knows; the engine is unusable.
    pub fn carry(&mut self, load: Option<Rate>, duration_ns: u64, tell: Listener<'_>) -> Result<Vec<Carried>> {
        let want = Want {
            load_fps: self.loads(Some(load.unwrap_or(Rate::Max)))?,
            duration_ns: Some(duration_ns),
            ..Want::default()
        };
        let trial = self.trial(&want, &mut |event| {
            if let Event::Note(_) = event {
                tell(event);
            }
        })?;
        let sent_for_ns = (trial.duration_s * NS_PER_S as f64).round() as u64;
        let fps = |frames: u64| per_second(frames, sent_for_ns);
        let asked_fps = want.load_fps.iter().flatten().copied().max();
        let at_max = |fps: u64| asked_fps.is_some_and(|asked| fps as f64 >= asked as f64 * FULL_LINK_RATIO);
        let of_port = |(port, counted): (&super::Port, &crate::report::result::PortTrial)| Carried {
            interface: port.link.name.clone(),
            claim_mbps: port.info.claim_mbps,
            fps: fps(counted.completed_frames.max(counted.received_frames.unwrap_or(0))),
            at_max: false,
        };
        let takes_part = |carried: &Carried| carried.fps > 0;
        let mut all: Vec<Carried> = self.ports.iter().zip(&trial.ports).map(of_port).filter(takes_part).collect();
        if let (Some(received), Some(observer)) = (trial.received_frames, &self.observer) {
            // An observer that fails has left its doubt in the trial.
            let seen = observer.observe().map(|snapshot| snapshot.interfaces).unwrap_or_default();
            all.extend(observer.interfaces().iter().filter_map(|name| {
                let claim_mbps = seen.get(name)?.claim_mbps;
                Some(Carried { interface: format!("DUT {name}"), claim_mbps, fps: fps(received), at_max: false })
            }));
        }
        all.iter_mut().for_each(|carried| carried.at_max = at_max(carried.fps));
        self.keep(trial);
        Ok(all)
    }
}
