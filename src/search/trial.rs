//! What a search asks of the world (one trial) and what it gets back (four counts and two times).
//!
//! Runs on the thread that calls the search. Invariant: intended, offered, completed and received stay four numbers; the
//! search merges them only inside a loss ratio. Does not send anything: the session implements [`Measurer`].

use super::ratio::Ratio;
use crate::units::per_second;

/// One trial as the search wants it (RFC 9971 "Trial Input").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TrialInput {
    /// Intended load per port, in frames a second.
    pub load_fps: u64,
    /// Intended time of traffic, in nanoseconds; drain and settle time come on top.
    pub duration_ns: u64,
}

/// One trial as it went (RFC 9971 "Trial Output"), judged after the drain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TrialOutput {
    /// Frames that load × duration asked for.
    pub intended_frames: u64,
    /// Frames that the backend accepted.
    pub offered_frames: u64,
    /// Frames that the device really sent; equal to `offered_frames` where nothing better is known.
    pub completed_frames: u64,
    /// Frames seen back at the receiver, or ingested by the DUT's own count.
    pub received_frames: u64,
    /// Time that this trial adds to a goal's duration sum, in nanoseconds (RFC 9971 "Trial Effective Duration"). Report at least
    /// the asked duration for a trial that ran in full: a goal of one 60 s trial is not met by 59.999 s.
    pub effective_duration_ns: u64,
    /// Time that this trial took out of the search's budget, in nanoseconds: with learning, drain and settle time.
    pub elapsed_ns: u64,
}

impl TrialOutput {
    /// Intended frames that never left, which count against the load but are not the DUT's loss.
    pub fn unsent_frames(&self) -> u64 {
        self.intended_frames.saturating_sub(self.completed_frames)
    }

    /// Share of the load that failed, lost or unsent: what classification compares with the goal.
    ///
    /// `(|completed − received| + |intended − completed|) / max(intended, completed)`, as in RFC 9971's reference library,
    /// so more frames out than in is no pass either. A trial that intended nothing proves nothing, and fails.
    pub fn loss_ratio(&self) -> Ratio {
        let overall = self.intended_frames.max(self.completed_frames);
        if overall == 0 {
            return Ratio::ONE;
        }
        let failed = self.completed_frames.abs_diff(self.received_frames);
        Ratio::new(failed.saturating_add(self.intended_frames.abs_diff(self.completed_frames)), overall)
    }

    /// Share of the really sent frames that the DUT lost (or, beyond what was sent, made up).
    pub fn dut_loss_ratio(&self) -> Ratio {
        match self.completed_frames {
            0 => Ratio::ZERO,
            sent => Ratio::new(sent.abs_diff(self.received_frames), sent),
        }
    }
}

/// A trial together with the input that asked for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trial {
    /// What was asked for.
    pub input: TrialInput,
    /// What came of it.
    pub output: TrialOutput,
}

impl Trial {
    /// Frames a second that were forwarded during the trial (RFC 2285 §3.6.1).
    pub fn forwarding_fps(&self) -> u64 {
        per_second(self.output.received_frames, self.input.duration_ns)
    }

    /// Frames a second that the device really sent (RFC 2285 §3.5.2, offered load).
    pub fn sent_fps(&self) -> u64 {
        per_second(self.output.completed_frames, self.input.duration_ns)
    }
}

/// What became of one request for a trial.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Measured {
    /// The trial ran and counts.
    Counted(TrialOutput),
    /// The trial started or ended in a state that proves nothing (link down, DUT still busy): it is asked for again.
    Discarded {
        /// The bad state, in words.
        reason: String,
        /// Time it took out of the search's budget, in nanoseconds.
        elapsed_ns: u64,
    },
}

/// Runs one trial; the only way in which a search reaches the world (RFC 9971 "Measurer").
pub trait Measurer {
    /// Why no trial can be run any more. It ends the search, which still reports what it had.
    type Error;

    /// Runs one trial at this load and for this long, and reports after the drain.
    ///
    /// # Errors
    /// When trials have become impossible (interrupted, link gone); a single bad trial is [`Measured::Discarded`] instead.
    fn measure(&mut self, input: TrialInput) -> Result<Measured, Self::Error>;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::NS_PER_S;

    fn output(intended: u64, completed: u64, received: u64) -> TrialOutput {
        TrialOutput {
            intended_frames: intended,
            offered_frames: completed,
            completed_frames: completed,
            received_frames: received,
            effective_duration_ns: NS_PER_S,
            elapsed_ns: NS_PER_S,
        }
    }

    #[test]
    fn unsent_frames_count_against_the_load_and_not_against_the_dut() {
        let short = output(1000, 900, 900);
        assert_eq!(short.unsent_frames(), 100);
        assert_eq!(short.loss_ratio(), Ratio::new(1, 10));
        assert_eq!(short.dut_loss_ratio(), Ratio::ZERO);
    }

    #[test]
    fn duplicated_frames_are_no_pass() {
        assert_eq!(output(1000, 1000, 1010).loss_ratio(), Ratio::new(1, 100));
    }

    #[test]
    fn a_trial_that_intended_nothing_fails() {
        assert_eq!(output(0, 0, 0).loss_ratio(), Ratio::ONE);
    }

    #[test]
    fn rates_are_per_second_of_traffic() {
        let input = TrialInput { load_fps: 1000, duration_ns: NS_PER_S / 2 };
        let trial = Trial { input, output: output(500, 400, 300) };
        assert_eq!((trial.sent_fps(), trial.forwarding_fps()), (800, 600));
    }
}
