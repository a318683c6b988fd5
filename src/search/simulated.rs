//! A DUT in integers, with a ceiling that is known exactly: what the search is tested against, healthy and not.
//!
//! Runs on any thread, in no time. Invariant: a trial's result depends on the fields, the input and the trial's number only.
//! It is a fluid model: a ring of N frames served at μ frames a second, so T seconds pass at most μT + N frames.

use super::{
    ratio::Ratio,
    trial::{Measured, Measurer, TrialInput, TrialOutput},
};
use crate::units::NS_PER_S;

/// A simulated DUT behind a simulated generator. All faults are off by [`SimulatedDut::new`].
#[derive(Clone, Debug)]
pub struct SimulatedDut {
    /// Service rate μ, in frames a second.
    pub capacity_fps: u64,
    /// Ring size N, in frames.
    pub ring_frames: u64,
    /// Standard deviation of what a trial can pass, in millionths.
    pub noise_ppm: u64,
    /// How many trials in a thousand lose one frame in a hundred for no reason.
    pub hiccups_permille: u64,
    /// What varies the noise.
    pub seed: u64,
    /// The most that the generator sends, in frames a second.
    pub generator_fps: u64,
    /// The generator sends half of that in every second run of this many trials; 0 for never.
    pub generator_wavers_every: u64,
    /// Frames that are lost at the start of every trial.
    pub first_frames_lost: u64,
    /// Share of all frames that is lost at any load.
    pub fixed_loss: Ratio,
    /// Loads strictly above this pass nothing.
    pub dies_above_fps: u64,
    /// Loads within these bounds lose one frame in ten.
    pub lossy_fps: std::ops::Range<u64>,
    /// Share of the overload by which the service rate sinks.
    pub collapse: Ratio,
    /// Every n-th trial starts in a bad state; 0 for never.
    pub bad_start_every: u64,
    /// Trials so far.
    pub trials: u64,
    /// Time of traffic so far, in nanoseconds.
    pub traffic_ns: u64,
}

impl SimulatedDut {
    /// A DUT that only has a ceiling.
    pub fn new(capacity_fps: u64, ring_frames: u64) -> Self {
        Self {
            capacity_fps,
            ring_frames,
            noise_ppm: 0,
            hiccups_permille: 0,
            seed: 0,
            generator_fps: u64::MAX,
            generator_wavers_every: 0,
            first_frames_lost: 0,
            fixed_loss: Ratio::ZERO,
            dies_above_fps: u64::MAX,
            lossy_fps: 0..0,
            collapse: Ratio::ZERO,
            bad_start_every: 0,
            trials: 0,
            traffic_ns: 0,
        }
    }

    /// The highest load that loses no more than `loss_ratio` in trials of this length: `(μ + N/T) / (1 − loss)`.
    pub fn truth_fps(&self, loss_ratio: Ratio, trial_ns: u64) -> u64 {
        loss_ratio.complement().divide(self.capacity_fps + crate::units::per_second(self.ring_frames, trial_ns))
    }

    /// One trial, as counts.
    pub fn trial(&mut self, input: TrialInput) -> TrialOutput {
        let random = mix(self.seed ^ mix(self.trials));
        let is_slow = self.trials.checked_div(self.generator_wavers_every).is_some_and(|run| run % 2 == 1);
        let generator_fps = if is_slow { self.generator_fps / 2 } else { self.generator_fps };
        self.trials += 1;
        self.traffic_ns += input.duration_ns;
        let intended = frames(input.load_fps, input.duration_ns);
        let sent = intended.min(frames(generator_fps, input.duration_ns));
        let overload_fps = input.load_fps.min(generator_fps).saturating_sub(self.capacity_fps);
        let capacity_fps = self.capacity_fps.saturating_sub(self.collapse.of(overload_fps));
        let capacity = frames(capacity_fps, input.duration_ns) + self.ring_frames;
        let mut passed = sent.min(self.with_noise(capacity, random)).saturating_sub(self.first_frames_lost);
        passed -= self.fixed_loss.of(passed).min(passed);
        if input.load_fps > self.dies_above_fps {
            passed = 0;
        }
        if self.lossy_fps.contains(&input.load_fps) {
            passed -= passed / 10;
        }
        if (random >> 32) % 1000 < self.hiccups_permille {
            passed -= passed / 100;
        }
        TrialOutput {
            intended_frames: intended,
            offered_frames: sent,
            completed_frames: sent,
            received_frames: passed,
            effective_duration_ns: input.duration_ns,
            elapsed_ns: input.duration_ns,
        }
    }

    /// The sum of four 16-bit uniforms has a standard deviation of 37,837 around 131,070.
    fn with_noise(&self, capacity: u64, random: u64) -> u64 {
        let sum: u64 = (0..4).map(|part| random >> (16 * part) & 0xffff).sum();
        let millionths = 1_000_000 + self.noise_ppm * sum / 37_837 - self.noise_ppm * 131_070 / 37_837;
        (u128::from(capacity) * u128::from(millionths) / 1_000_000) as u64
    }
}

impl Measurer for SimulatedDut {
    type Error = std::convert::Infallible;

    fn measure(&mut self, input: TrialInput) -> Result<Measured, Self::Error> {
        let output = self.trial(input);
        if self.bad_start_every > 0 && self.trials.is_multiple_of(self.bad_start_every) {
            let reason = "the link was down".to_owned();
            return Ok(Measured::Discarded { reason, elapsed_ns: output.elapsed_ns });
        }
        Ok(Measured::Counted(output))
    }
}

fn frames(load_fps: u64, duration_ns: u64) -> u64 {
    u64::try_from(u128::from(load_fps) * u128::from(duration_ns) / u128::from(NS_PER_S)).unwrap_or(u64::MAX)
}

/// SplitMix64's output function (Steele, Lea, Flood 2014).
fn mix(state: u64) -> u64 {
    let z = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
