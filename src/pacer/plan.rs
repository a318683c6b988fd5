//! What a trial means to send, worked out before it starts: each stream's part of an exact count, and the frames due.
//!
//! Pure; control plane only (it allocates and divides). The workers' [`super::Pacer`]s carry out the same schedule.

use std::collections::VecDeque;

use super::rate::Pace;
use crate::program::{Mode, StreamProgram, TxProgram};

/// Entries into one stream beyond which a chain counts as endless.
const MANY_ENTRIES: u64 = 1 << 16;
/// Entries looked at for [`intended`].
const MAX_ENTRIES: u64 = 1 << 24;

/// Divides `count` frames of a port among its streams by weight. A stream that ends earlier gives what it cannot use to the
/// others, so the sum is `count` unless every stream ends. Independent of the number of workers.
pub fn allot(program: &TxProgram, count: u64) -> Vec<u64> {
    let lengths = lengths(program);
    let mut given = vec![0u64; lengths.len()];
    let mut left = count;
    // Each round fills at least one stream or gives everything away.
    loop {
        let open: Vec<usize> = (0..lengths.len()).filter(|&n| given[n] < lengths[n]).collect();
        let weights: u128 = open.iter().map(|&n| u128::from(program.streams[n].schedule.weight)).sum();
        if left == 0 || open.is_empty() {
            return given;
        }
        // Cumulative rounding, upwards: the shares sum to exactly `left`, and what does not divide goes to the first streams, whose
        // frames are due first.
        let (mut before, mut handed) = (0u128, 0);
        let mut filled = false;
        let asked: Vec<u64> = open
            .iter()
            .map(|&n| {
                let after = before + u128::from(program.streams[n].schedule.weight);
                let up_to = |sum: u128| (u128::from(left) * sum).div_ceil(weights);
                let share = up_to(after) - up_to(before);
                before = after;
                share as u64
            })
            .collect();
        for (&n, asked) in open.iter().zip(asked) {
            let fits = asked.min(lengths[n] - given[n]);
            filled |= fits < asked;
            given[n] += fits;
            handed += fits;
        }
        left -= handed;
        if !filled {
            return given;
        }
    }
}

/// Frames each stream sends at most, over the whole schedule; `u64::MAX` = endless.
fn lengths(program: &TxProgram) -> Vec<u64> {
    let mut lengths = vec![0u64; program.streams.len()];
    let mut entries = vec![0u64; program.streams.len()];
    let mut queue: VecDeque<usize> = starts(program);
    while let Some(n) = queue.pop_front() {
        let stream = &program.streams[n];
        if entries[n] >= entries_allowed(stream) || lengths[n] == u64::MAX {
            continue;
        }
        entries[n] += 1;
        let (frames, plays) = plays(stream);
        let length = if plays == 0 || entries[n] > MANY_ENTRIES { u64::MAX } else { frames.saturating_mul(plays) };
        lengths[n] = lengths[n].saturating_add(length);
        if plays != 0 {
            queue.extend(stream.schedule.next.map(usize::from));
        }
    }
    lengths
}

fn starts(program: &TxProgram) -> VecDeque<usize> {
    (0..program.streams.len()).filter(|&n| program.streams[n].schedule.self_start).collect()
}

/// How often a stream may start: once, and `loops` times again.
fn entries_allowed(stream: &StreamProgram) -> u64 {
    if stream.schedule.loops == 0 { u64::MAX } else { stream.schedule.loops.saturating_add(1) }
}

/// Frames of a play and the number of plays, 0 = for ever.
fn plays(stream: &StreamProgram) -> (u64, u64) {
    match &stream.schedule.mode {
        Mode::Continuous => (u64::MAX, 0),
        Mode::Burst { frames } => (*frames, 1),
        Mode::MultiBurst { frames, count, .. } => (*frames, *count),
        Mode::Recorded { due_ns, count, .. } => (due_ns.len() as u64, *count),
    }
}

/// How far into its period a continuous stream starts: as far as the weights before its own reach into their sum. So the
/// streams of a port interleave, and their counts sum to the port's (nearly so if the weights differ) instead of each
/// rounding up.
pub(super) fn phase_ns(port_pace: Pace, weights_before: u64, weights: u64) -> u64 {
    let period_ns = u128::from(port_pace.at(1));
    (period_ns * u128::from(weights_before)).div_ceil(u128::from(weights.max(1))) as u64
}

/// Frames of each stream that are due within `duration_ns` at this load, over all workers.
///
/// A whole second at a whole rate gives exactly the rate: the frame due at the very end belongs to the next trial.
pub fn intended(program: &TxProgram, load_fps: u64, duration_ns: u64, counts: Option<&[u64]>) -> Vec<u64> {
    let weights: u64 = program.streams.iter().map(|s| s.schedule.weight).sum();
    let mut due = vec![0u64; program.streams.len()];
    let mut entries = due.clone();
    // Until when each stream is busy: a start meanwhile is ignored.
    let mut busy = due.clone();
    let mut queue: VecDeque<(usize, u64)> = starts(program).into_iter().map(|n| (n, 0)).collect();
    while let Some((n, at)) = queue.pop_front() {
        let stream = &program.streams[n];
        let limit = counts.map_or(u64::MAX, |counts| counts[n]);
        if at >= duration_ns || entries[n] >= entries_allowed(stream) || at < busy[n] {
            continue;
        }
        entries[n] += 1;
        let pace = Pace::paced(load_fps, stream.schedule.weight, weights, 1);
        let before: u64 = program.streams[..n].iter().map(|s| s.schedule.weight).sum();
        let (frames, plays) = plays(stream);
        let gap_ns = match &stream.schedule.mode {
            Mode::MultiBurst { gap_ns, .. } => *gap_ns,
            _ => 0,
        };
        let length_ns = match &stream.schedule.mode {
            Mode::Recorded { pass_ns, .. } => *pass_ns,
            _ => pace.at(frames),
        };
        let mut at = at.saturating_add(if due[n] < limit { stream.schedule.start_delay_ns } else { 0 });
        // Whole plays at once, then what is left of one.
        let cycle = length_ns.saturating_add(gap_ns);
        let plays = if plays == 0 { u64::MAX } else { plays };
        let whole = (duration_ns.saturating_sub(at) / cycle.max(1)).min(plays);
        due[n] = due[n].saturating_add(whole.saturating_mul(frames)).min(limit);
        at = at.saturating_add(whole.saturating_mul(cycle));
        if whole < plays && at < duration_ns {
            let rest = duration_ns - at - 1;
            let begun = match &stream.schedule.mode {
                Mode::Recorded { due_ns, .. } => due_ns.partition_point(|&ns| ns <= rest) as u64,
                Mode::Continuous => rest.checked_sub(phase_ns(pace, before, weights)).map_or(0, |ns| pace.due(ns)),
                _ => pace.due(rest).min(frames),
            };
            due[n] = due[n].saturating_add(begun).min(limit);
            at = at.saturating_add(cycle);
        }
        if due[n] < limit && whole < plays {
            continue;
        }
        // The last play has no gap after it.
        busy[n] = at.saturating_sub(gap_ns);
        if let Some(next) = stream.schedule.next {
            // Bounds chains that take no time.
            if entries.iter().sum::<u64>() < MAX_ENTRIES {
                queue.push_back((usize::from(next), busy[n]));
            }
        }
    }
    due
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pacer::testing::{program, stream};

    #[test]
    fn a_count_is_divided_by_weight_and_sums_exactly() {
        let program = program([stream(1, Mode::Continuous), stream(2, Mode::Continuous), stream(4, Mode::Continuous)]);
        assert_eq!(allot(&program, 100), [15, 28, 57]);
        assert_eq!(allot(&program, 1), [1, 0, 0]);
    }

    #[test]
    fn what_does_not_divide_goes_to_the_streams_that_are_due_first() {
        let program = program([stream(1, Mode::Continuous), stream(1, Mode::Continuous)]);
        assert_eq!((allot(&program, 1), allot(&program, 37)), (vec![1, 0], vec![19, 18]));
    }

    #[test]
    fn a_short_stream_gives_its_rest_to_the_others() {
        let program = program([stream(1, Mode::Burst { frames: 10 }), stream(1, Mode::Continuous)]);
        assert_eq!(allot(&program, 1000), [10, 990]);
    }

    #[test]
    fn a_count_beyond_the_schedule_is_cut_to_it() {
        let mut a = stream(1, Mode::Burst { frames: 10 });
        a.schedule.next = Some(1);
        a.schedule.loops = 2;
        let mut b = stream(1, Mode::MultiBurst { frames: 3, gap_ns: 5, count: 2 });
        (b.schedule.self_start, b.schedule.next, b.schedule.loops) = (false, Some(0), 2);
        assert_eq!(allot(&program([a, b]), 1000), [30, 18]);
    }

    #[test]
    fn a_second_at_a_whole_rate_intends_exactly_the_rate() {
        let program = program([stream(1, Mode::Continuous), stream(3, Mode::Continuous)]);
        assert_eq!(intended(&program, 1_000_000, 1_000_000_000, None), [250_000, 750_000]);
        assert_eq!(intended(&program, 1_000_000, 1_000_000_000, Some(&[7, 8])), [7, 8]);
    }

    #[test]
    fn equal_streams_do_not_each_round_up() {
        let program = program((0..10).map(|_| stream(1, Mode::Continuous)));
        for load in [1_001, 1_005, 1_009] {
            assert_eq!(intended(&program, load, 1_000_000_000, None).iter().sum::<u64>(), load);
        }
    }

    #[test]
    fn bursts_intend_what_their_schedule_holds() {
        let mut late = stream(1, Mode::Burst { frames: 10 });
        late.schedule.start_delay_ns = 500;
        // 1 frame per 2 µs each; bursts of 5 take 10 µs and 90 µs of gap.
        let program = program([stream(1, Mode::MultiBurst { frames: 5, gap_ns: 90_000, count: 0 }), late]);
        assert_eq!(intended(&program, 1_000_000, 1_000_000, None), [50, 10]);
        assert_eq!(intended(&program, 1_000_000, 4_001, None), [3, 2]);
    }
}
