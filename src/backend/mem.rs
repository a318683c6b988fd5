//! A queue in memory, for tests, benchmarks and simulation: frames are counted or captured, at a simulated device's rate.
//!
//! Its worker's thread drives it; the [`MemSink`] behind it is shared and read by anyone. Frames leave in order. With a
//! rate it reads the clock, as a device would; it never sends anything anywhere.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
};

use crate::{
    backend::{FreeSlots, Kick, Slot, TxQueue},
    clock::{self, Instant},
    error::{Error, Result},
    ids::QueueId,
};

/// Slots of a queue.
const SLOTS: usize = 1024;
/// Least bytes between slots: as in a umem, so that what is measured here has the real cache footprint.
const MIN_SLOT_BYTES: usize = 4096;

/// What happens to the frames of all queues of a simulated port.
#[derive(Debug, Default)]
pub struct MemSink {
    /// Frames that the simulated device sent.
    pub frames: AtomicU64,
    /// Keep at most this many frames.
    pub capture_limit: usize,
    /// The frames kept, without FCS, in the order of each queue.
    pub captured: Mutex<Vec<Vec<u8>>>,
    /// The device is down while this is set: nothing leaves.
    pub link_down: AtomicBool,
    /// The device is gone once this is set.
    pub removed: AtomicBool,
    /// Frames/s that each queue sends; `None` = at once.
    pub rate_fps: Option<u64>,
}

impl MemSink {
    /// Counts frames and keeps none.
    pub fn counting() -> Arc<MemSink> {
        Arc::default()
    }

    /// Keeps the first `limit` frames.
    pub fn capturing(limit: usize) -> Arc<MemSink> {
        Arc::new(MemSink { capture_limit: limit, ..MemSink::default() })
    }

    /// Sends `rate_fps` frames/s per queue.
    pub fn with_rate(rate_fps: u64) -> Arc<MemSink> {
        Arc::new(MemSink { rate_fps: Some(rate_fps), ..MemSink::default() })
    }
}

/// A simulated queue.
#[derive(Debug)]
pub struct MemQueue {
    queue: QueueId,
    sink: Arc<MemSink>,
    slot_bytes: usize,
    memory: Box<[u8]>,
    free: FreeSlots,
    /// Submitted slots with their lengths, in order: a ring of as many entries as slots.
    ring: Box<[(u32, u32)]>,
    /// Counts of entries submitted, seen by the device (kicked) and completed; they only grow.
    submitted: u64,
    kicked: u64,
    completed: u64,
    /// When the device sends the frame `completed`, with a rate.
    sends_at: Instant,
}

impl MemQueue {
    /// Opens a queue for frames of up to `max_len` bytes.
    pub fn open(queue: QueueId, sink: Arc<MemSink>, max_len: usize) -> MemQueue {
        let slot_bytes = max_len.next_multiple_of(64).max(MIN_SLOT_BYTES);
        MemQueue {
            queue,
            sink,
            slot_bytes,
            memory: vec![0; SLOTS * slot_bytes].into(),
            free: FreeSlots::all(SLOTS),
            ring: vec![(0, 0); SLOTS].into(),
            submitted: 0,
            kicked: 0,
            completed: 0,
            sends_at: Instant(0),
        }
    }

    /// How many of the kicked frames the device has sent by now, beyond those completed.
    fn sent_by_now(&mut self) -> u64 {
        let waiting = self.kicked - self.completed;
        let Some(rate_fps) = self.sink.rate_fps else { return waiting };
        let period_ns = 1_000_000_000 / rate_fps;
        let now = clock::now();
        let mut sent = 0;
        while sent < waiting && self.sends_at <= now {
            self.sends_at = self.sends_at.plus_ns(period_ns);
            sent += 1;
        }
        sent
    }

    /// Keeps the next `sent` frames, as far as the sink has room for them.
    fn capture(&self, sent: u64) {
        let mut captured = self.sink.captured.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        for n in self.completed..self.completed + sent {
            if captured.len() < self.sink.capture_limit {
                let (slot, len) = self.ring[(n % SLOTS as u64) as usize];
                let at = slot as usize * self.slot_bytes;
                captured.push(self.memory[at..at + len as usize].to_vec());
            }
        }
    }
}

impl TxQueue for MemQueue {
    fn slots(&self) -> usize {
        SLOTS
    }

    #[inline]
    fn reap(&mut self, mut completed: impl FnMut(usize)) -> usize {
        if self.kicked == self.completed || self.sink.link_down.load(Relaxed) {
            return 0;
        }
        let sent = self.sent_by_now();
        if self.sink.capture_limit > 0 {
            self.capture(sent);
        }
        for n in self.completed..self.completed + sent {
            let (slot, _) = self.ring[(n % SLOTS as u64) as usize];
            completed(slot as usize);
            self.free.give(slot);
        }
        self.completed += sent;
        self.sink.frames.fetch_add(sent, Relaxed);
        sent as usize
    }

    fn free(&self) -> usize {
        self.free.len()
    }

    #[inline]
    fn take(&mut self) -> Option<Slot> {
        self.free.take()
    }

    #[inline]
    fn bytes(&mut self, slot: &Slot) -> &mut [u8] {
        let at = slot.index() * self.slot_bytes;
        &mut self.memory[at..at + self.slot_bytes]
    }

    #[inline]
    fn submit(&mut self, slot: Slot, len: usize) {
        self.ring[(self.submitted % SLOTS as u64) as usize] = (slot.0, len as u32);
        self.submitted += 1;
    }

    fn kick(&mut self) -> Result<Kick> {
        if self.sink.removed.load(Relaxed) {
            return Err(Error::environment("send on", self.queue.to_string()).because("the device was removed"));
        }
        if self.sink.link_down.load(Relaxed) {
            return Ok(Kick { link_down: true, ..Kick::default() });
        }
        if self.kicked == self.completed && self.sink.rate_fps.is_some() {
            self.sends_at = self.sends_at.max(clock::now());
        }
        self.kicked = self.submitted;
        Ok(Kick::default())
    }

    fn in_flight(&self) -> usize {
        (self.submitted - self.completed) as usize
    }

    fn queue(&self) -> QueueId {
        self.queue
    }
}
