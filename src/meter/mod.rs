//! What a trial counted: four counts that are never merged, rates derived from them, latency.
//!
//! Pure; any thread.

pub mod claim;

use crate::units::{WIRE_OVERHEAD_BYTES, per_second};

/// The four counts of a trial, a port or a stream, with the bytes (L2, FCS included) that belong to them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Asked for: load × duration, or the exact count. 0 when as fast as possible.
    pub intended_frames: u64,
    /// Accepted by the backend.
    pub offered_frames: u64,
    /// Really transmitted by the device.
    pub completed_frames: u64,
    /// Seen back at the receiver, or ingested by the DUT's own counters; `None` = not measured.
    pub received_frames: Option<u64>,
    /// Bytes of the completed frames.
    pub tx_bytes: u64,
    /// Bytes of the received frames.
    pub rx_bytes: Option<u64>,
}

impl Counts {
    /// Completed but not received; negative if the DUT duplicates. Unsent frames are never lost.
    pub fn lost_frames(&self) -> Option<i128> {
        self.received_frames.map(|received| i128::from(self.completed_frames) - i128::from(received))
    }

    /// Lost / completed; `None` if not measured or nothing was completed. Negative if the DUT duplicates.
    pub fn loss_ratio(&self) -> Option<f64> {
        (self.completed_frames > 0).then_some(())?;
        self.lost_frames().map(|lost| lost as f64 / self.completed_frames as f64)
    }

    /// Frames asked for that the device did not send.
    pub fn unsent_frames(&self) -> u64 {
        self.intended_frames.saturating_sub(self.completed_frames)
    }

    /// L2 bits per second transmitted (FCS in).
    pub fn tx_bps_l2(&self, duration_ns: u64) -> u64 {
        per_second(self.tx_bytes.saturating_mul(8), duration_ns)
    }

    /// L1 bits per second transmitted (preamble and gap in).
    pub fn tx_bps_l1(&self, duration_ns: u64) -> u64 {
        let bytes = self.tx_bytes.saturating_add(self.completed_frames.saturating_mul(WIRE_OVERHEAD_BYTES));
        per_second(bytes.saturating_mul(8), duration_ns)
    }

    /// Sums two counts (ports of a trial). A sum with an unmeasured part is unmeasured only if both are.
    #[must_use]
    pub fn plus(&self, other: &Counts) -> Counts {
        let sum = |a: Option<u64>, b: Option<u64>| match (a, b) {
            (None, None) => None,
            (a, b) => Some(a.unwrap_or(0) + b.unwrap_or(0)),
        };
        Counts {
            intended_frames: self.intended_frames + other.intended_frames,
            offered_frames: self.offered_frames + other.offered_frames,
            completed_frames: self.completed_frames + other.completed_frames,
            received_frames: sum(self.received_frames, other.received_frames),
            tx_bytes: self.tx_bytes + other.tx_bytes,
            rx_bytes: sum(self.rx_bytes, other.rx_bytes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dut_that_duplicates_has_negative_loss_never_clamped() {
        let counts = Counts { completed_frames: 100, received_frames: Some(150), ..Counts::default() };
        assert_eq!((counts.lost_frames(), counts.loss_ratio()), (Some(-50), Some(-0.5)));
    }

    #[test]
    fn unsent_is_not_lost() {
        let counts =
            Counts { intended_frames: 100, completed_frames: 60, received_frames: Some(60), ..Counts::default() };
        assert_eq!((counts.lost_frames(), counts.unsent_frames()), (Some(0), 40));
    }

    #[test]
    fn l1_counts_twenty_bytes_more_per_frame() {
        let counts = Counts { completed_frames: 1000, tx_bytes: 64_000, ..Counts::default() };
        assert_eq!((counts.tx_bps_l2(1_000_000_000), counts.tx_bps_l1(1_000_000_000)), (512_000, 672_000));
    }
}
