//! Exact rates without division: a rate is a 2⁻⁶³ fixed-point number of frames per nanosecond.
//!
//! Pure; any thread. Built with divisions once per trial, read with one widening multiplication per burst. Rounded up to
//! 2⁻⁶³ frames/ns, a count runs ahead of the true rate by less than one frame in 290 years.
//!
//! Worked example: 1 Mpps shared by two workers: each has period 2 µs; worker 0's frames are due at 0, 2, 4 µs, …,
//! worker 1's at 1, 3, 5 µs, …: together one frame a microsecond.

use crate::units::NS_PER_S;

/// Frames per unit of a clock, and its inverse. The unit is a nanosecond, or (as fast as possible) a frame of the port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pace {
    /// Frames per unit × 2⁶³, rounded up, so that a frame whose time is a whole unit is due then and not one later.
    frames_q63: u64,
    /// Whole units per frame.
    period: u64,
    /// Fraction of the period × 2⁶⁴, rounded down.
    period_q64: u64,
}

impl Pace {
    /// `frames` per `units`, both not 0, at most one frame a unit.
    fn new(frames: u128, units: u128) -> Pace {
        let (frames, units) = shrink(frames, units.max(frames));
        let period = (units / frames).min(u128::from(u64::MAX));
        Pace {
            frames_q63: (frames << 63).div_ceil(units) as u64,
            period: period as u64,
            period_q64: (((units % frames) << 64) / frames) as u64,
        }
    }

    /// Share `weight` / `weights` of `load_fps`, per nanosecond, for one of `workers` workers.
    pub fn paced(load_fps: u64, weight: u64, weights: u64, workers: u16) -> Pace {
        let frames = u128::from(load_fps.max(1)) * u128::from(weight);
        Pace::new(frames, u128::from(weights) * u128::from(NS_PER_S) * u128::from(workers))
    }

    /// Share `weight` / `weights` of every frame the port sends, for sending as fast as possible.
    pub fn share(weight: u64, weights: u64) -> Pace {
        Pace::new(u128::from(weight), u128::from(weights))
    }

    /// Frames due once `units` have passed: frame 0 is due at 0.
    #[inline]
    pub fn due(&self, units: u64) -> u64 {
        (((u128::from(units) * u128::from(self.frames_q63)) >> 63) as u64).saturating_add(1)
    }

    /// When frame `n` is due, in units; at most one unit early.
    #[inline]
    pub fn at(&self, n: u64) -> u64 {
        let fraction = ((u128::from(n) * u128::from(self.period_q64)) >> 64) as u64;
        n.saturating_mul(self.period).saturating_add(fraction)
    }
}

/// The same ratio with terms under 2⁶⁴, exact unless the terms have no common factor and exceed that.
fn shrink(a: u128, b: u128) -> (u128, u128) {
    let (mut x, mut y) = (a, b);
    while y != 0 {
        (x, y) = (y, x % y);
    }
    let (mut a, mut b) = (a / x, b / x);
    while (a | b) >> 64 != 0 {
        (a, b) = ((a >> 1).max(1), b >> 1);
    }
    (a, b)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn two_workers_at_one_mpps_alternate() {
        let pace = Pace::paced(1_000_000, 1, 1, 2);
        assert_eq!([pace.at(0), pace.at(1), pace.at(2)], [0, 2000, 4000]);
        assert_eq!([pace.due(0), pace.due(1999), pace.due(2000), pace.due(1_000_000_000)], [1, 1, 2, 500_001]);
    }

    #[test]
    fn the_sole_stream_gets_every_frame() {
        let pace = Pace::share(7, 7);
        assert_eq!([pace.due(0), pace.due(63), pace.due(1 << 40)], [1, 64, (1 << 40) + 1]);
    }

    proptest! {
        #[test]
        fn a_count_is_exact_to_one_frame_after_days(
            load in 1u64..1_000_000_000, weight in 1u64..1000, rest in 0u64..1000, workers in 1u16..64, ns in 0u64..1 << 49,
        ) {
            let pace = Pace::paced(load, weight, weight + rest, workers);
            let exact = u128::from(ns) * u128::from(load) * u128::from(weight)
                / (u128::from(weight + rest) * u128::from(NS_PER_S) * u128::from(workers)) + 1;
            let due = u128::from(pace.due(ns));
            prop_assert!(due == exact || due == exact + 1, "{due} {exact}");
        }

        #[test]
        fn a_frame_is_due_at_its_time(load in 1u64..1_000_000_000, workers in 1u16..64, n in 0u64..1 << 32) {
            let pace = Pace::paced(load, 1, 1, workers);
            let at = pace.at(n);
            prop_assume!(at < 1 << 62);
            // The rate is rounded up by less than 2⁻⁶³ frames/ns: over all this time, so many ns of a period early.
            let early = 2 + ((u128::from(at) * u128::from(pace.period + 1)) >> 63) as u64 + 1;
            prop_assert!(pace.due(at + 2) > n);
            prop_assert!(at < early || pace.due(at - early) <= n);
        }
    }
}
