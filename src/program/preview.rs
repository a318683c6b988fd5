//! The first frames of a compiled profile in the order and at the times they are due: what `plimsoll pcap` writes.
//!
//! Pure: it steps the workers' own pacer from one due time to the next, without a clock.

use super::{Compiled, reference};
use crate::{
    clock::Instant,
    ids::{PortId, StreamId},
    pacer::{Pacer, Part},
    wire::signature::stamp,
};

/// Load of a port whose profile gives none, in frames/s: only the times of a preview depend on it.
pub const NOMINAL_FPS: u64 = 1_000_000;

/// A frame as it would leave.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PreviewFrame {
    /// When, in nanoseconds from the trial's start.
    pub due_ns: u64,
    /// From which port.
    pub port: PortId,
    /// Of which stream.
    pub stream: StreamId,
    /// Its number in the stream.
    pub index: u64,
    /// Its bytes, without FCS.
    pub bytes: Vec<u8>,
}

/// The first `count` frames of all ports together, in order of time.
pub fn preview(compiled: &Compiled, count: u64) -> Vec<PreviewFrame> {
    let mut frames = Vec::new();
    for (program, load_fps) in compiled.programs.iter().zip(&compiled.load_fps) {
        let mut pacer = Pacer::new(program, Part { worker: 0, workers: 1 });
        pacer.start(Instant(0), Some(load_fps.unwrap_or(NOMINAL_FPS)), None);
        let mut indices = vec![0u64; program.streams.len()];
        let (mut now, mut of_port, mut idle) = (Instant(0), 0, 0);
        // A due time is a hint: a step or two without a frame is possible, many in a row mean that none is left.
        while of_port < count && !pacer.is_finished() && idle < 1000 {
            now = Instant(pacer.next_due().0.max(now.0 + u64::from(idle > 0)));
            if now.0 == u64::MAX {
                break;
            }
            idle += 1;
            for (position, stream) in program.streams.iter().enumerate() {
                pacer.offer(1);
                for _ in 0..pacer.poll(position, now, 1) {
                    let index = indices[position];
                    indices[position] += 1;
                    let mut bytes = Vec::new();
                    reference::frame(stream, index, stamp(now.0), &mut bytes);
                    frames.push(PreviewFrame { due_ns: now.0, port: program.port, stream: stream.id, index, bytes });
                    (of_port, idle) = (of_port + 1, 0);
                }
            }
        }
    }
    frames.sort_by_key(|frame| (frame.due_ns, frame.port, frame.stream, frame.index));
    frames.truncate(usize::try_from(count).unwrap_or(usize::MAX));
    frames
}
