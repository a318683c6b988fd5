//! From what streams and ports counted to a trial of the result file. Pure arithmetic; the four counts are never merged.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::{
    meter::Counts,
    report::result::{PortTrial, StreamTrial, Trial},
    units::per_second,
    xdp::{latency::LatencyCounts, rx::StreamRx},
};

/// What the sending side of a stream counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Sent {
    pub intended_frames: u64,
    pub offered_frames: u64,
    pub completed_frames: u64,
    pub completed_bytes: u64,
}

/// A stream's trial.
#[derive(Debug, Clone)]
pub(super) struct StreamTotals {
    pub name: String,
    /// Index of its sending port.
    pub port: usize,
    /// Index of the port that receives it.
    pub rx_port: Option<usize>,
    pub sent: Sent,
    /// `None` = not measured.
    pub received: Option<StreamRx>,
}

impl StreamTotals {
    fn counts(&self) -> Counts {
        Counts {
            intended_frames: self.sent.intended_frames,
            offered_frames: self.sent.offered_frames,
            completed_frames: self.sent.completed_frames,
            received_frames: self.received.as_ref().map(|received| received.frames),
            tx_bytes: self.sent.completed_bytes,
            rx_bytes: self.received.as_ref().map(|received| received.bytes),
        }
    }
}

/// A port's part that does not come from streams.
#[derive(Debug, Clone, Default)]
pub(super) struct PortTotals {
    pub name: String,
    pub rx_queues: Vec<u64>,
    pub device: BTreeMap<String, i64>,
}

/// A trial, before its doubts and its verdict. `sent_for_ns` is the time that sending really took.
pub(super) fn trial(
    frame_size: Value,
    load_fps: Option<u64>,
    sent_for_ns: u64,
    streams: &[StreamTotals],
    ports: Vec<PortTotals>,
    latency: Option<LatencyCounts>,
) -> Trial {
    let mut total = sum(streams);
    if streams.iter().any(|stream| stream.received.is_none()) {
        // A total that leaves streams out would look like loss.
        (total.received_frames, total.rx_bytes) = (None, None);
    }
    let mut trial = Trial { frame_size, load_fps, duration_s: sent_for_ns as f64 / 1e9, ..Trial::default() };
    count(&mut trial, &total, sent_for_ns);
    trial.latency_ns = latency.and_then(|latency| latency.summary(total.received_frames.unwrap_or(0)));
    trial.streams = streams.iter().map(|stream| stream_trial(stream, &ports[stream.port].name)).collect();
    trial.ports = ports.into_iter().enumerate().map(|(n, port)| port_trial(n, port, streams)).collect();
    trial
}

/// Puts the trial's own counts, and what follows from them, into it.
pub(super) fn count(trial: &mut Trial, counts: &Counts, sent_for_ns: u64) {
    trial.intended_frames = counts.intended_frames;
    trial.offered_frames = counts.offered_frames;
    trial.completed_frames = counts.completed_frames;
    trial.received_frames = counts.received_frames;
    trial.lost_frames = counts.lost_frames().map(|lost| lost as i64);
    trial.loss_ratio = counts.loss_ratio();
    trial.tx_bytes = counts.tx_bytes;
    trial.rx_bytes = counts.rx_bytes;
    trial.tx_fps = per_second(counts.completed_frames, sent_for_ns);
    trial.rx_fps = counts.received_frames.map(|frames| per_second(frames, sent_for_ns));
    trial.tx_bps_l1 = counts.tx_bps_l1(sent_for_ns);
    trial.tx_bps_l2 = counts.tx_bps_l2(sent_for_ns);
}

fn sum<'a>(streams: impl IntoIterator<Item = &'a StreamTotals>) -> Counts {
    streams.into_iter().fold(Counts::default(), |sum, stream| sum.plus(&stream.counts()))
}

fn stream_trial(stream: &StreamTotals, port: &str) -> StreamTrial {
    let (counts, received) = (stream.counts(), stream.received.as_ref());
    StreamTrial {
        name: stream.name.clone(),
        port: port.to_owned(),
        intended_frames: counts.intended_frames,
        offered_frames: counts.offered_frames,
        completed_frames: counts.completed_frames,
        received_frames: counts.received_frames,
        lost_frames: counts.lost_frames().map(|lost| lost as i64),
        duplicate_frames: received.and_then(|received| received.duplicates),
        reordered_frames: received.and_then(|received| received.reordered),
        tx_bytes: counts.tx_bytes,
        rx_bytes: counts.rx_bytes,
        latency_ns: received.and_then(|received| received.latency.as_ref()?.summary(received.frames)),
    }
}

fn port_trial(n: usize, port: PortTotals, streams: &[StreamTotals]) -> PortTrial {
    let sent = sum(streams.iter().filter(|stream| stream.port == n));
    let seen = sum(streams.iter().filter(|stream| stream.rx_port == Some(n)));
    PortTrial {
        name: port.name,
        intended_frames: sent.intended_frames,
        offered_frames: sent.offered_frames,
        completed_frames: sent.completed_frames,
        received_frames: seen.received_frames,
        tx_bytes: sent.tx_bytes,
        rx_bytes: seen.rx_bytes,
        rx_queues: port.rx_queues,
        device: port.device,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::StreamId;

    fn stream(port: usize, rx_port: Option<usize>, completed: u64, received: Option<u64>) -> StreamTotals {
        let sent = Sent {
            intended_frames: completed,
            offered_frames: completed,
            completed_frames: completed,
            completed_bytes: completed * 64,
        };
        let received = received.map(|frames| StreamRx {
            id: StreamId(0),
            frames,
            bytes: frames * 64,
            duplicates: Some(0),
            reordered: None,
            latency: None,
        });
        StreamTotals { name: "s".into(), port, rx_port, sent, received }
    }

    fn ports() -> Vec<PortTotals> {
        ["g0", "g1"].map(|name| PortTotals { name: name.into(), ..PortTotals::default() }).into()
    }

    #[test]
    fn both_directions_add_up_and_stay_apart_by_port() {
        let streams = [stream(0, Some(1), 100, Some(90)), stream(1, Some(0), 50, Some(50))];
        let trial = trial(64.into(), Some(100), 1_000_000_000, &streams, ports(), None);
        assert_eq!((trial.completed_frames, trial.received_frames, trial.lost_frames), (150, Some(140), Some(10)));
        assert_eq!((trial.ports[0].completed_frames, trial.ports[0].received_frames), (100, Some(50)));
        assert_eq!((trial.ports[1].completed_frames, trial.ports[1].received_frames), (50, Some(90)));
    }

    #[test]
    fn a_stream_that_nobody_counts_leaves_the_total_unmeasured() {
        let streams = [stream(0, Some(1), 100, Some(100)), stream(0, None, 50, None)];
        let trial = trial(64.into(), Some(100), 1_000_000_000, &streams, ports(), None);
        assert_eq!((trial.received_frames, trial.lost_frames, trial.loss_ratio), (None, None, None));
        assert_eq!(trial.streams[0].received_frames, Some(100));
    }
}
