//! When frames are due: per (worker, stream), in exact integers, from absolute shares of the port's load.
//!
//! Pure: takes `now`. Runs in a TX worker's hot loop, so polling neither allocates nor divides (a burst's start divides once).
//! A rate is kept by the schedule, not by gaps: a late frame does not delay the next. Debt up to [`DEBT_NS`] is repaid at
//! ≤ 1.1 × the rate, more is forgiven and counted. It knows neither frames nor queues, and never sleeps.

pub mod plan;
pub mod rate;

use crate::{
    clock::Instant,
    program::{Mode, StreamProgram, TxProgram, cursor::BURST},
};
use rate::Pace;

/// Debt that is repaid; more is forgiven.
pub const DEBT_NS: u64 = 1_000_000;

/// Which part of the port's frames a worker has: the indices ≡ `worker` (mod `workers`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    /// 0…workers − 1.
    pub worker: u16,
    /// Number of workers; not 0.
    pub workers: u16,
}

impl Part {
    /// How many of the indices `from..to` belong to this worker.
    pub fn frames_in(self, from: u64, to: u64) -> u64 {
        // Number of i < n with i ≡ worker (mod workers).
        let below = |n: u64| (n + u64::from(self.workers) - 1 - u64::from(self.worker)) / u64::from(self.workers);
        below(to) - below(from).min(below(to))
    }
}

/// The pacing of all streams of a port on one worker, for one trial.
///
/// A stream goes through these phases:
/// ```text
/// dormant ──started, or as another's `next`──► waiting ──its time──► playing ──► waiting (next burst or pass)
///    ▲                                                                  └──────► ended ──► its `next` waits
///    └── (again, as some stream's `next`, while loops are left) ◄──────────────────┘
/// ```
#[derive(Debug)]
pub struct Pacer {
    part: Part,
    streams: Vec<StreamPacer>,
    /// Frames of the port handed out so far, counted as if every stream used its share: the clock of unpaced trials.
    turns: u64,
    /// `turns` before the current round.
    round: u64,
    paced: bool,
    /// Streams that wait or play.
    active: usize,
    forgiven_ns: u64,
    forgiven_frames: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Dormant,
    Waiting,
    Playing,
}

#[derive(Debug)]
struct StreamPacer {
    mode: Mode,
    start_delay_ns: u64,
    next: Option<usize>,
    self_start: bool,
    entries_allowed: u64,
    weight: u64,
    pattern_len: u64,
    phase: Phase,
    /// How far into its period a continuous stream starts.
    phase_ns: u64,
    pace: Pace,
    /// Period of the stream over all workers, for where this worker's frames stand in a play.
    port_pace: Pace,
    /// When the current play (burst, pass, or all of a continuous stream) starts or started, in ns of the trial's clock.
    play_at: u64,
    /// Index of the play's first frame, over all workers.
    play_base: u64,
    /// This worker's frames left in the play.
    play_left: u64,
    plays: u64,
    entries: u64,
    /// This worker's frames left in the trial.
    left: u64,
    /// Index of this worker's next frame.
    index: u64,
    /// When the worker's first frame of the play is due, in units of the clock in use.
    origin: u64,
    /// Frames sent in the play.
    sent: u64,
    /// Release clock: units since `origin`; follows time at ≤ 1.1 × when behind.
    released: u64,
    /// Units of [`BURST`] frames.
    burst: u64,
    /// When it was last polled.
    polled: u64,
}

impl Pacer {
    /// A pacer for this part of the program's frames; call [`Pacer::start`] before polling.
    pub fn new(program: &TxProgram, part: Part) -> Pacer {
        let streams = program.streams.iter().map(StreamPacer::new).collect();
        Pacer { part, streams, turns: 0, round: 0, paced: false, active: 0, forgiven_ns: 0, forgiven_frames: 0 }
    }

    /// Starts a trial at `start`. `load_fps` is the port's load over all workers, `None` as fast as possible; `counts` gives
    /// each stream's frames over all workers ([`plan::allot`]), `None` = no limit. Allocates nothing.
    pub fn start(&mut self, start: Instant, load_fps: Option<u64>, counts: Option<&[u64]>) {
        let weights: u64 = self.streams.iter().map(|s| s.weight).sum();
        (self.turns, self.round, self.paced, self.active) = (0, 0, load_fps.is_some(), 0);
        (self.forgiven_ns, self.forgiven_frames) = (0, 0);
        let mut before = 0;
        for (n, stream) in self.streams.iter_mut().enumerate() {
            let count = counts.map_or(u64::MAX, |counts| self.part.frames_in(0, counts[n]));
            stream.reset(self.part, load_fps, weights, count);
            stream.phase_ns = plan::phase_ns(stream.port_pace, before, weights);
            before += stream.weight;
        }
        for n in 0..self.streams.len() {
            if self.streams[n].self_start {
                self.enter(n, start.0);
            }
        }
    }

    /// Number of streams.
    pub fn streams(&self) -> usize {
        self.streams.len()
    }

    /// No stream has or will have anything more to send.
    #[inline]
    pub fn is_finished(&self) -> bool {
        self.active == 0
    }

    /// Nanoseconds of debt forgiven so far, and the frames they would have carried.
    pub fn forgiven(&self) -> (u64, u64) {
        (self.forgiven_ns, self.forgiven_frames)
    }

    /// Says that up to `frames` frames can be sent in this round (unpaced trials share them out by weight).
    #[inline]
    pub fn offer(&mut self, frames: usize) {
        self.round = self.turns;
        self.turns += frames as u64;
    }

    /// How many frames of stream `n` are due, at most `room`. They must be sent: they count as sent from here.
    #[inline]
    pub fn poll(&mut self, n: usize, now: Instant, room: usize) -> usize {
        let paced = self.paced;
        let stream = &mut self.streams[n];
        match stream.phase {
            Phase::Dormant => return 0,
            Phase::Waiting if now.0 < stream.play_at => return 0,
            Phase::Waiting => stream.play(self.part, paced, self.round, now),
            Phase::Playing => {}
        }
        let stream = &mut self.streams[n];
        let frames = match &stream.mode {
            Mode::Recorded { .. } => stream.recorded(self.part.workers, now, room),
            _ if paced => {
                let (frames, forgiven) = stream.paced(now);
                if forgiven > 0 {
                    self.forgiven_ns += forgiven;
                    self.forgiven_frames += stream.pace.due(forgiven) - 1;
                }
                frames
            }
            _ => stream.pace.due((self.turns - stream.origin).saturating_sub(1)).saturating_sub(stream.sent),
        };
        let frames = frames.min(stream.play_left).min(room as u64);
        stream.sent += frames;
        stream.play_left -= frames;
        stream.left -= frames;
        stream.index += frames * u64::from(self.part.workers);
        if stream.play_left == 0 {
            self.end_play(n, now);
        }
        frames as usize
    }

    /// When the next frame of any stream is due, as far as that is known: a time to sleep towards, not past.
    pub fn next_due(&self) -> Instant {
        let due = self.streams.iter().filter_map(|stream| match stream.phase {
            Phase::Dormant => None,
            Phase::Waiting => Some(stream.play_at),
            Phase::Playing => Some(match &stream.mode {
                Mode::Recorded { due_ns, .. } => stream.play_at + due_ns[(stream.index - stream.play_base) as usize],
                _ if self.paced => stream.origin.saturating_add(stream.pace.at(stream.sent)),
                _ => 0,
            }),
        });
        Instant(due.min().unwrap_or(u64::MAX))
    }

    /// Frames of stream `n` that were due before `end` and not sent (after the last poll).
    pub fn owed(&self, n: usize, end: Instant) -> u64 {
        let stream = &self.streams[n];
        if stream.phase != Phase::Playing || !self.paced || matches!(stream.mode, Mode::Recorded { .. }) {
            return 0;
        }
        match end.0.checked_sub(stream.origin + 1) {
            Some(units) => stream.pace.due(units).saturating_sub(stream.sent).min(stream.play_left),
            None => 0,
        }
    }

    /// Starts stream `n` at `at` plus its delay, as one more entry, unless it runs or may not come back.
    fn enter(&mut self, n: usize, at: u64) {
        let mut n = n;
        // A stream without frames left passes on to its `next`; no chain is longer than the number of streams.
        for _ in 0..=self.streams.len() {
            let stream = &mut self.streams[n];
            if stream.phase != Phase::Dormant || stream.entries >= stream.entries_allowed {
                return;
            }
            stream.entries += 1;
            if stream.left > 0 {
                stream.phase = Phase::Waiting;
                stream.plays = 0;
                stream.play_at = at.saturating_add(stream.start_delay_ns);
                self.active += 1;
                return;
            }
            match stream.next {
                Some(next) => n = next,
                None => return,
            }
        }
    }

    /// The worker's frames of this play are sent: goes on to the next play, or to the `next` stream.
    fn end_play(&mut self, n: usize, now: Instant) {
        let paced = self.paced;
        let stream = &mut self.streams[n];
        stream.plays += 1;
        let (frames, gap_ns, count) = match &stream.mode {
            Mode::Continuous => (0, 0, 1),
            Mode::Burst { frames } => (*frames, 0, 1),
            Mode::MultiBurst { frames, gap_ns, count } => (*frames, *gap_ns, *count),
            Mode::Recorded { count, .. } => (stream.pattern_len, 0, *count),
        };
        let end = match &stream.mode {
            Mode::Recorded { pass_ns, .. } => stream.play_at + pass_ns,
            Mode::Continuous => now.0,
            _ if paced => stream.play_at + stream.port_pace.at(frames),
            _ => now.0,
        };
        stream.play_base += frames;
        if stream.left > 0 && (count == 0 || stream.plays < count) {
            stream.phase = Phase::Waiting;
            stream.play_at = end + gap_ns;
            return;
        }
        stream.phase = Phase::Dormant;
        self.active -= 1;
        if let Some(next) = stream.next {
            self.enter(next, end);
        }
    }
}

impl StreamPacer {
    fn new(stream: &StreamProgram) -> StreamPacer {
        let schedule = &stream.schedule;
        let pace = Pace::share(1, 1);
        StreamPacer {
            mode: schedule.mode.clone(),
            start_delay_ns: schedule.start_delay_ns,
            next: schedule.next.map(usize::from),
            self_start: schedule.self_start,
            entries_allowed: if schedule.loops == 0 { u64::MAX } else { schedule.loops + 1 },
            weight: schedule.weight,
            pattern_len: stream.pattern.len() as u64,
            phase: Phase::Dormant,
            phase_ns: 0,
            pace,
            port_pace: pace,
            play_at: 0,
            play_base: 0,
            play_left: 0,
            plays: 0,
            entries: 0,
            left: 0,
            index: 0,
            origin: 0,
            sent: 0,
            released: 0,
            burst: 0,
            polled: 0,
        }
    }

    fn reset(&mut self, part: Part, load_fps: Option<u64>, weights: u64, count: u64) {
        (self.pace, self.port_pace) = match load_fps {
            Some(load) => {
                (Pace::paced(load, self.weight, weights, part.workers), Pace::paced(load, self.weight, weights, 1))
            }
            None => (Pace::share(self.weight, weights), Pace::share(self.weight, weights)),
        };
        self.burst = self.pace.at(BURST as u64);
        self.phase = Phase::Dormant;
        (self.play_base, self.plays, self.entries, self.polled) = (0, 0, 0, 0);
        self.left = count;
        self.index = u64::from(part.worker);
    }

    /// The play begins.
    fn play(&mut self, part: Part, paced: bool, round: u64, now: Instant) {
        self.phase = Phase::Playing;
        let frames = match &self.mode {
            Mode::Continuous => u64::MAX,
            Mode::Burst { frames } | Mode::MultiBurst { frames, .. } => {
                part.frames_in(self.play_base, self.play_base + frames)
            }
            Mode::Recorded { .. } => part.frames_in(self.play_base, self.play_base + self.pattern_len),
        };
        self.play_left = frames.min(self.left);
        self.sent = 0;
        self.released = 0;
        self.polled = self.polled.max(self.play_at).min(now.0);
        // The worker's first frame of the play stands `index − base` frames into it.
        self.origin = match &self.mode {
            _ if !paced => round,
            Mode::Continuous => self.play_at + self.phase_ns + self.port_pace.at(self.index),
            _ => self.play_at + self.port_pace.at(self.index - self.play_base.min(self.index)),
        };
    }

    /// Frames due now, and the nanoseconds forgiven.
    #[inline]
    fn paced(&mut self, now: Instant) -> (u64, u64) {
        if now.0 < self.origin {
            self.polled = now.0;
            return (0, 0);
        }
        let mut elapsed = now.0 - self.origin;
        let step = now.0 - self.polled.max(self.origin).min(now.0);
        self.polled = now.0;
        let next = self.pace.at(self.sent);
        let mut forgiven = 0;
        if elapsed > next.saturating_add(DEBT_NS) {
            forgiven = elapsed - next - DEBT_NS;
            self.origin += forgiven;
            self.play_at += forgiven;
            elapsed -= forgiven;
        }
        // 1 + 1/16 + 1/32 of the time that passed, never more than a burst ahead of what was sent.
        let caught_up = self.released.saturating_add(step + (step >> 4) + (step >> 5));
        self.released = caught_up.min(elapsed).min(next.saturating_add(self.burst));
        (self.pace.due(self.released).saturating_sub(self.sent), forgiven)
    }

    /// Frames of the recording that are due now.
    fn recorded(&mut self, workers: u16, now: Instant, room: usize) -> u64 {
        let Mode::Recorded { due_ns, .. } = &self.mode else { return 0 };
        let elapsed = now.0 - self.play_at.min(now.0);
        let (mut at, mut frames) = ((self.index - self.play_base) as usize, 0);
        while frames < room as u64 && at < due_ns.len() && due_ns[at] <= elapsed {
            frames += 1;
            at += usize::from(workers);
        }
        frames
    }
}

#[cfg(test)]
pub(crate) mod testing {
    use crate::{
        ids::{PortId, StreamId},
        program::{Mode, Schedule, StreamProgram, Template, TxProgram},
        units::FrameLen,
    };

    /// A stream of 64-byte frames without fields.
    pub fn stream(weight: u64, mode: Mode) -> StreamProgram {
        let pattern = if let Mode::Recorded { due_ns, .. } = &mode { vec![0; due_ns.len()] } else { vec![0] };
        StreamProgram {
            id: StreamId(0),
            name: "s".into(),
            templates: vec![Template {
                bytes: vec![0; 60].into(),
                frame_len: FrameLen::MIN,
                writes: vec![],
                signature: None,
                checksums: vec![],
            }],
            pattern,
            fields: vec![],
            schedule: Schedule { weight, start_delay_ns: 0, mode, next: None, self_start: true, loops: 0 },
            flows: 1,
        }
    }

    pub fn program(streams: impl IntoIterator<Item = StreamProgram>) -> TxProgram {
        TxProgram { port: PortId(0), run_tag: 1, streams: streams.into_iter().collect() }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{testing::*, *};
    use crate::units::NS_PER_S;

    const START: u64 = 5_000_000_000;

    /// Workers that poll every `tick_ns`; returns when each frame was sent (ns since the start), by stream.
    fn simulate(
        program: &TxProgram,
        workers: u16,
        load: Option<u64>,
        counts: Option<&[u64]>,
        duration_ns: u64,
        tick_ns: u64,
        stalls: &[(u64, u64)],
    ) -> (Vec<Vec<u64>>, Vec<Pacer>) {
        let mut sent = vec![Vec::new(); program.streams.len()];
        let mut pacers = Vec::new();
        for worker in 0..workers {
            let mut pacer = Pacer::new(program, Part { worker, workers });
            pacer.start(Instant(START), load, counts);
            let mut ns = 0;
            while ns < duration_ns && !pacer.is_finished() {
                if let Some(&(_, to)) = stalls.iter().find(|(from, to)| (*from..*to).contains(&ns)) {
                    ns = to;
                    continue;
                }
                let mut room = BURST;
                pacer.offer(room);
                for (n, times) in sent.iter_mut().enumerate() {
                    let frames = pacer.poll(n, Instant(START + ns), room);
                    room -= frames;
                    times.extend(std::iter::repeat_n(ns, frames));
                }
                ns += tick_ns;
            }
            pacers.push(pacer);
        }
        sent.iter_mut().for_each(|times| times.sort_unstable());
        (sent, pacers)
    }

    #[test]
    fn every_whole_second_carries_the_rate() {
        for (load, workers, tick) in [(1_000, 1, 977), (1_001, 3, 977), (333_333, 2, 1_009), (3_000_000, 2, 5_003)] {
            let program = program([stream(1, Mode::Continuous)]);
            let (sent, _) = simulate(&program, workers, Some(load), None, 2 * NS_PER_S, tick, &[]);
            for from in [0, 1, 123_456_789, 999_999_999] {
                let count = sent[0].iter().filter(|&&ns| (from..from + NS_PER_S).contains(&ns)).count() as u64;
                let tolerance = (load / 1000).max(2);
                assert!(count.abs_diff(load) <= tolerance, "{count} of {load} from {from} ns");
            }
        }
    }

    #[test]
    fn a_stall_within_a_millisecond_is_repaid_at_most_a_tenth_faster() {
        let program = program([stream(1, Mode::Continuous)]);
        let stall = (10_000_000, 10_900_000);
        let (sent, pacers) = simulate(&program, 1, Some(1_000_000), None, 100_000_000, 1_000, &[stall]);
        assert_eq!((sent[0].len(), pacers[0].forgiven()), (100_000, (0, 0)));
        for from in (0..90_000_000).step_by(500_000) {
            let count = sent[0].iter().filter(|&&ns| (from..from + 1_000_000).contains(&ns)).count();
            assert!(count <= 1_100 + BURST + 1, "{count} frames in the millisecond from {from}");
        }
    }

    #[test]
    fn more_debt_than_a_millisecond_is_forgiven_and_counted() {
        let program = program([stream(1, Mode::Continuous)]);
        let (sent, pacers) =
            simulate(&program, 1, Some(1_000_000), None, 100_000_000, 1_000, &[(10_000_000, 15_000_000)]);
        let (ns, frames) = pacers[0].forgiven();
        assert!((3_990_000..=4_010_000).contains(&ns), "{ns}");
        assert!((sent[0].len() as u64 + frames).abs_diff(100_000) <= 2, "{} sent, {frames} forgiven", sent[0].len());
    }

    #[test]
    fn no_ten_milliseconds_carry_twice_their_share() {
        for load in [1_000, 20_000, 100_000] {
            let program = program([stream(1, Mode::Continuous)]);
            let stalls: Vec<_> = (1..20).map(|n| (n * 20_000_000, n * 20_000_000 + n * 400_000)).collect();
            let (sent, _) = simulate(&program, 1, Some(load), None, 500_000_000, 5_000, &stalls);
            for from in (0..490_000_000).step_by(1_000_000) {
                let count = sent[0].iter().filter(|&&ns| (from..from + 10_000_000).contains(&ns)).count() as u64;
                assert!(count <= 2 * load / 100, "{count} frames of {load} in 10 ms from {from}");
            }
        }
    }

    #[test]
    fn as_fast_as_possible_keeps_the_weights() {
        let program = program([stream(1, Mode::Continuous), stream(3, Mode::Continuous)]);
        let (sent, _) = simulate(&program, 1, None, None, 1_000_000, 1_000, &[]);
        assert_eq!(sent[0].len() + sent[1].len(), 64_000);
        assert!(sent[0].len().abs_diff(16_000) <= 2, "{}", sent[0].len());
    }

    #[test]
    fn an_unpaced_stream_beside_one_that_has_ended_goes_on() {
        let program = program([stream(1000, Mode::Burst { frames: 10 }), stream(1, Mode::Continuous)]);
        let (sent, _) = simulate(&program, 1, None, Some(&[10, 500]), 1_000_000_000, 1_000, &[]);
        assert_eq!((sent[0].len(), sent[1].len()), (10, 500));
    }

    #[test]
    fn bursts_come_at_their_times_and_chain_to_the_next() {
        let mut a = stream(1, Mode::MultiBurst { frames: 4, gap_ns: 100_000, count: 2 });
        a.schedule.next = Some(1);
        let mut b = stream(1, Mode::Burst { frames: 3 });
        (b.schedule.self_start, b.schedule.start_delay_ns) = (false, 50_000);
        let program = program([a, b]);
        for workers in [1, 2, 3, 5] {
            // Each stream has 100 kpps: 10 µs a frame. 4 frames, 100 µs, 4 frames, 50 µs, 3 frames.
            let (sent, pacers) = simulate(&program, workers, Some(200_000), None, 10_000_000, 10_000, &[]);
            assert_eq!(sent[0], [0, 10, 20, 30, 140, 150, 160, 170].map(|us| us * 1000), "{workers} workers");
            assert_eq!(sent[1], [230, 240, 250].map(|us| us * 1000));
            assert!(pacers.iter().all(Pacer::is_finished));
        }
    }

    #[test]
    fn a_recording_is_replayed_at_its_own_times() {
        let due_ns = [0, 1_000, 50_000].into();
        let program = program([stream(1, Mode::Recorded { due_ns, pass_ns: 100_000, count: 2 })]);
        for (workers, load) in [(1, None), (2, Some(5)), (4, Some(1_000_000))] {
            let (sent, _) = simulate(&program, workers, load, None, 1_000_000, 1_000, &[]);
            assert_eq!(sent[0], [0, 1, 50, 100, 101, 150].map(|us| us * 1000));
        }
    }

    #[test]
    fn a_loop_comes_back_as_often_as_asked() {
        let mut a = stream(1, Mode::Burst { frames: 2 });
        (a.schedule.next, a.schedule.loops) = (Some(1), 3);
        let mut b = stream(1, Mode::Burst { frames: 1 });
        (b.schedule.self_start, b.schedule.next) = (false, Some(0));
        let (sent, _) = simulate(&program([a, b]), 2, Some(1_000_000), None, 1_000_000, 500, &[]);
        assert_eq!((sent[0].len(), sent[1].len()), (8, 4));
    }

    proptest! {
        #[test]
        fn what_is_sent_is_what_the_plan_intends(
            weights in prop::collection::vec(1u64..5, 1..4), load in 1_000u64..2_000_000, workers in 1u16..5,
            count in prop_oneof![Just(None), (0u64..3000).prop_map(Some)], burst in 1u64..50, gap_us in 0u64..50,
        ) {
            let mut streams: Vec<_> = weights.iter().map(|&w| stream(w, Mode::Continuous)).collect();
            streams.push(stream(1, Mode::MultiBurst { frames: burst, gap_ns: gap_us * 1000, count: 3 }));
            streams.push(stream(1, Mode::Burst { frames: burst }));
            let program = program(streams);
            let counts = count.map(|count| plan::allot(&program, count));
            let duration = 3_000_000;
            // The last look at each worker is at the very end, as the engine does it.
            let (sent, _) = simulate(&program, workers, Some(load), counts.as_deref(), duration, 1_999, &[]);
            let intended = plan::intended(&program, load, duration, counts.as_deref());
            for (n, times) in sent.iter().enumerate() {
                let last_tick = 2 + 2 * load * 2_000 / NS_PER_S;
                let sent = times.len() as u64;
                prop_assert!(sent <= intended[n] && intended[n] - sent <= last_tick + u64::from(workers),
                    "stream {n}: {sent} sent, {} intended", intended[n]);
            }
        }

        #[test]
        fn an_exact_count_is_sent_exactly_by_any_number_of_workers(
            count in 0u64..5000, workers in 1u16..7, load in prop_oneof![Just(None), Just(Some(20_000_000))],
            weights in prop::collection::vec(1u64..1000, 1..5),
        ) {
            let program = program(weights.iter().map(|&w| stream(w, Mode::Continuous)));
            let counts = plan::allot(&program, count);
            prop_assert_eq!(counts.iter().sum::<u64>(), count);
            let (sent, pacers) = simulate(&program, workers, load, Some(&counts), NS_PER_S, 1_000, &[]);
            for (times, count) in sent.iter().zip(counts) {
                prop_assert_eq!(times.len() as u64, count);
            }
            prop_assert!(pacers.iter().all(Pacer::is_finished));
        }
    }
}
