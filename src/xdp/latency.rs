//! Latency as the XDP program counts it: log-linear buckets, turned into percentiles by hdrhistogram.
//!
//! Pure. 32 buckets of 1 ns, then 32 per octave: a bucket is at most 1/32 of its value wide, so a percentile is within 1.6 %.

use hdrhistogram::Histogram;

use crate::report::result::Latency;

const LINEAR_BITS: u32 = 5;
const LINEAR: usize = 1 << LINEAR_BITS;
/// Buckets of a histogram (`BUCKETS` in the BPF source): up to 2³² ns.
pub(super) const BUCKETS: usize = LINEAR + (32 - LINEAR_BITS as usize) * LINEAR;

/// How many frames took how long.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LatencyCounts {
    buckets: Box<[u64]>,
}

/// Smallest and largest latency of a bucket, in nanoseconds.
fn bounds(bucket: usize) -> (u64, u64) {
    if bucket < LINEAR {
        return (bucket as u64, bucket as u64);
    }
    let (octave, step) = ((bucket - LINEAR) / LINEAR, (bucket - LINEAR) % LINEAR);
    let low = ((LINEAR + step) as u64) << octave;
    (low, low + (1 << octave) - 1)
}

impl LatencyCounts {
    /// Nothing measured.
    pub(super) fn empty() -> LatencyCounts {
        LatencyCounts { buckets: vec![0; BUCKETS].into() }
    }

    /// Adds frames to a bucket.
    pub(super) fn add(&mut self, bucket: usize, frames: u64) {
        self.buckets[bucket] += frames;
    }

    /// Adds another's counts.
    pub fn merge(&mut self, other: &LatencyCounts) {
        for (sum, frames) in self.buckets.iter_mut().zip(&other.buckets) {
            *sum += frames;
        }
    }

    /// These counts minus earlier ones.
    #[must_use]
    pub fn since(&self, earlier: &LatencyCounts) -> LatencyCounts {
        let delta = self.buckets.iter().zip(&earlier.buckets).map(|(now, then)| now.wrapping_sub(*then));
        LatencyCounts { buckets: delta.collect() }
    }

    /// Frames measured.
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// The counts as a histogram of nanoseconds, each bucket at its middle.
    pub fn histogram(&self) -> Histogram<u64> {
        let mut histogram = Histogram::new_with_bounds(1, 1 << 33, 3).expect("the bounds are valid constants");
        for (bucket, &frames) in self.buckets.iter().enumerate().filter(|(_, frames)| **frames > 0) {
            let (low, high) = bounds(bucket);
            histogram.saturating_record_n(((low + high) / 2).max(1), frames);
        }
        histogram
    }

    /// Percentiles for the result file, `received` being the frames they are a share of; `None` if nothing was measured.
    pub fn summary(&self, received: u64) -> Option<Latency> {
        let count = self.count();
        let first = self.buckets.iter().position(|frames| *frames > 0)?;
        let last = self.buckets.iter().rposition(|frames| *frames > 0)?;
        let histogram = self.histogram();
        let (min, max) = (bounds(first).0, bounds(last).1);
        let at = |quantile| histogram.value_at_quantile(quantile).clamp(min, max);
        Some(Latency {
            min,
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            p999: at(0.999),
            max,
            count,
            share: if received == 0 { 0.0 } else { count as f64 / received as f64 },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The BPF program's `bucket_of`.
    fn bucket_of(ns: u32) -> usize {
        if (ns as usize) < LINEAR {
            return ns as usize;
        }
        let octave = 31 - ns.leading_zeros() - LINEAR_BITS;
        LINEAR + ((octave as usize) << LINEAR_BITS) + ((ns >> octave) as usize & (LINEAR - 1))
    }

    #[test]
    fn buckets_follow_each_other_without_gap_up_to_2_32() {
        assert_eq!(bounds(0), (0, 0));
        for bucket in 1..BUCKETS {
            assert_eq!(bounds(bucket).0, bounds(bucket - 1).1 + 1, "{bucket}");
        }
        assert_eq!(bounds(BUCKETS - 1).1, u64::from(u32::MAX));
    }

    #[test]
    fn a_latency_is_within_its_bucket() {
        for ns in [0, 1, 31, 32, 33, 63, 64, 1000, 123_456, 0x7FFF_FFFF, u32::MAX] {
            let (low, high) = bounds(bucket_of(ns));
            assert!((low..=high).contains(&u64::from(ns)), "{ns}: {low}..={high}");
        }
    }

    #[test]
    fn percentiles_are_within_two_percent() {
        let mut counts = LatencyCounts::empty();
        for ns in 1..=100_000u32 {
            counts.add(bucket_of(ns), 1);
        }
        let latency = counts.summary(200_000).unwrap();
        for (told, true_value) in [(latency.p50, 50_000.0), (latency.p99, 99_000.0), (latency.p999, 99_900.0)] {
            assert!((told as f64 / true_value - 1.0).abs() < 0.02, "{told} for {true_value}");
        }
        assert_eq!((latency.min, latency.count, latency.share), (1, 100_000, 0.5));
        assert!((100_000..103_200).contains(&latency.max), "{}", latency.max);
    }

    #[test]
    fn nothing_measured_has_no_percentiles() {
        assert_eq!(LatencyCounts::empty().summary(10), None);
    }
}
