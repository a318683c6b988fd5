//! Which value of a DUT's setting (a ring size, a number of queues) takes most: a comparison that is fair.
//!
//! Pure. A larger ring can slow the sender down (on virtual links they share a CPU), so that at full speed every value was tried under
//! another load. Only readings at the same offered load are compared: the highest load that was really offered with every value. What a
//! comparison at full speed would have said is told beside it where it differs.

use crate::human::{count, fps, percent};
use std::collections::{BTreeMap, BTreeSet};

/// A load counts as offered if what was sent is no further from it than this.
const SAME_LOAD: f64 = 0.02;
/// Two values are as good as each other within this share, or where repeated trials with them overlap.
const TIE: f64 = 0.005;

/// One trial with one value of the setting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reading {
    /// The value that was in use, as read back.
    pub value: u64,
    /// The load that was asked for, in frames/s; `None` = full speed.
    pub load_fps: Option<u64>,
    /// Frames/s that were really sent to the DUT (those included that its ring refused).
    pub sent_fps: u64,
    /// Frames/s that it took.
    pub received_fps: u64,
}

/// The answer.
#[derive(Debug, Clone, PartialEq)]
pub struct Comparison {
    /// The best value: on a tie the one that was set before, else the smallest.
    pub best: u64,
    /// The load at which all were compared, frames/s.
    pub load_fps: u64,
    /// Frames/s that the DUT took at that load, by value.
    pub received_fps: BTreeMap<u64, u64>,
    /// The value that a comparison at full speed would have preferred, where it is another one.
    pub misled_to: Option<u64>,
    /// The answer in sentences.
    pub sentences: Vec<String>,
}

/// Compares all values that were read. `original` is the one that was set before the sweep; `what` is "RX ring", say.
///
/// # Errors
/// A sentence, if there is no load that was really offered with every value.
pub fn compare(what: &str, original: u64, readings: &[Reading]) -> Result<Comparison, String> {
    let values: BTreeSet<u64> = readings.iter().map(|reading| reading.value).collect();
    let loads: BTreeSet<u64> = readings.iter().filter_map(|reading| reading.load_fps).collect();
    let at = |load: u64| -> Option<BTreeMap<u64, Received>> {
        values.iter().map(|&value| received(readings, value, load).map(|took| (value, took))).collect()
    };
    let Some((load_fps, took)) = loads.into_iter().rev().find_map(|load| at(load).map(|found| (load, found))) else {
        return Err(format!(
            "no load was really offered with every {what}: there is nothing to compare fairly; lower --max"
        ));
    };
    let most = took.values().copied().max_by_key(|took| took.mean).unwrap_or_default();
    let is_good = |took: &Received| close(took.mean, most.mean, TIE) || took.highest >= most.lowest;
    let good: Vec<u64> = took.iter().filter(|(_, took)| is_good(took)).map(|(value, _)| *value).collect();
    let received_fps: BTreeMap<u64, u64> = took.into_iter().map(|(value, took)| (value, took.mean)).collect();
    let best = if good.contains(&original) { original } else { good.first().copied().unwrap_or(original) };
    let mut sentences = vec![answer(what, original, best, load_fps, &received_fps, &good)];
    let misled_to = at_full_speed(readings).filter(|(value, _)| !good.contains(value)).map(|(value, sentence)| {
        sentences.push(sentence);
        value
    });
    Ok(Comparison { best, load_fps, received_fps, misled_to, sentences })
}

/// Frames/s that the DUT took with one value at one load, over all trials there.
#[derive(Debug, Clone, Copy, Default)]
struct Received {
    mean: u64,
    lowest: u64,
    highest: u64,
}

/// What the DUT took with this value at this load, if that load was really offered.
fn received(readings: &[Reading], value: u64, load: u64) -> Option<Received> {
    let fair =
        readings.iter().filter(|r| r.value == value && r.load_fps == Some(load) && close(r.sent_fps, load, SAME_LOAD));
    let rates: Vec<u64> = fair.map(|reading| reading.received_fps).collect();
    let (lowest, highest) = (*rates.iter().min()?, *rates.iter().max()?);
    Some(Received { mean: rates.iter().sum::<u64>() / rates.len() as u64, lowest, highest })
}

fn answer(what: &str, original: u64, best: u64, load: u64, received: &BTreeMap<u64, u64>, good: &[u64]) -> String {
    let (most, least) = (received[&best], received.values().copied().min().unwrap_or(0));
    if good.len() == received.len() {
        let highest = received.values().copied().max().unwrap_or(0);
        let within = if close(least, highest, TIE) { percent(TIE) } else { "what repeated trials differ by".into() };
        return format!("no {what} is better than another: at {} each took {}, within {within}", fps(load), fps(most));
    }
    let gain = |from: u64| percent((most as f64 - from as f64) / from.max(1) as f64);
    let against = match received.get(&original) {
        Some(_) if best == original => format!("; the worst took {}", fps(least)),
        Some(&before) => format!(", {} more than the {} that was set ({})", gain(before), count(original), fps(before)),
        None => format!(", {} more than the worst ({})", gain(least), fps(least)),
    };
    let keep = if best == original { "keep it" } else { "set it" };
    format!(
        "best {what}: {} ({keep}): at {} offered with every value it took {}{against}",
        count(best),
        fps(load),
        fps(most)
    )
}

/// The value that took most at full speed, and why that is no fair comparison; `None` if all were offered the same.
fn at_full_speed(readings: &[Reading]) -> Option<(u64, String)> {
    let flat_out: Vec<&Reading> = readings.iter().filter(|reading| reading.load_fps.is_none()).collect();
    let (most, least) = (flat_out.iter().map(|r| r.sent_fps).max()?, flat_out.iter().map(|r| r.sent_fps).min()?);
    if close(least, most, SAME_LOAD) {
        return None;
    }
    let share = |reading: &Reading| reading.received_fps as f64 / reading.sent_fps.max(1) as f64;
    // People compare either what came through or the share that was lost; the share flatters whoever was offered least.
    let best = flat_out.iter().max_by(|a, b| share(a).total_cmp(&share(b)))?;
    let sentence = format!(
        "a comparison at full speed would have misled: {} lost least there ({} of {}), but only because less was offered with it; offered \
         loads went from {} to {}",
        count(best.value),
        percent(1.0 - share(best)),
        fps(best.sent_fps),
        fps(least),
        fps(most)
    );
    Some((best.value, sentence))
}

fn close(a: u64, b: u64, within: f64) -> bool {
    a.abs_diff(b) as f64 <= b as f64 * within
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(value: u64, load: Option<u64>, sent: u64, received: u64) -> Reading {
        Reading { value, load_fps: load, sent_fps: sent, received_fps: received }
    }

    #[test]
    fn the_best_ring_is_found_at_the_highest_load_that_all_were_offered() {
        let readings = [
            reading(256, Some(50_000), 50_000, 40_000),
            reading(512, Some(50_000), 50_000, 49_000),
            reading(4096, Some(50_000), 50_000, 30_000),
            // Only two of three were really offered this.
            reading(256, Some(90_000), 90_000, 41_000),
            reading(512, Some(90_000), 90_000, 50_000),
            reading(4096, Some(90_000), 60_000, 59_000),
        ];
        let found = compare("RX ring", 4096, &readings).unwrap();
        assert_eq!((found.best, found.load_fps), (512, 50_000));
        assert!(
            found.sentences[0].starts_with(
                "best RX ring: 512 (set it): at 50,000 frames/s offered with every value it took 49,000 frames/s"
            ),
            "{found:?}"
        );
        assert!(found.sentences[0].contains("63.3 % more than the 4,096 that was set (30,000 frames/s)"), "{found:?}");
    }

    #[test]
    fn what_full_speed_would_have_said_is_told_where_it_differs() {
        // With 4096 the sender slows down to what the DUT takes: no loss, and yet it takes less than 512 does.
        let readings = [
            reading(512, None, 90_000, 50_000),
            reading(4096, None, 36_000, 35_500),
            reading(512, Some(36_000), 36_000, 36_000),
            reading(4096, Some(36_000), 36_000, 33_000),
        ];
        let found = compare("RX ring", 512, &readings).unwrap();
        assert_eq!((found.best, found.misled_to), (512, Some(4096)));
        assert!(
            found.sentences[0].contains("(keep it)") && found.sentences[1].contains("would have misled: 4,096"),
            "{found:?}"
        );
    }

    #[test]
    fn full_speed_is_not_blamed_where_it_agrees_or_all_were_offered_the_same() {
        let agrees = [
            reading(512, None, 50_000, 49_000),
            reading(64, None, 90_000, 20_000),
            reading(512, Some(40_000), 40_000, 40_000),
            reading(64, Some(40_000), 40_000, 20_000),
        ];
        assert_eq!(compare("RX ring", 64, &agrees).unwrap().misled_to, None);
        let same = [
            reading(1, None, 90_000, 50_000),
            reading(2, None, 90_100, 60_000),
            reading(1, Some(5), 5, 5),
            reading(2, Some(5), 5, 4),
        ];
        assert_eq!(compare("RX ring", 1, &same).unwrap().misled_to, None);
    }

    #[test]
    fn on_a_tie_nothing_is_to_be_changed() {
        let readings = [
            reading(256, Some(1000), 1000, 1000),
            reading(512, Some(1000), 1000, 998),
            reading(1024, Some(1000), 1000, 1000),
        ];
        let found = compare("RX ring", 512, &readings).unwrap();
        assert_eq!(found.best, 512);
        assert!(found.sentences[0].starts_with("no RX ring is better than another"), "{found:?}");
        assert_eq!(compare("RX ring", 4096, &readings).unwrap().best, 256);
    }

    #[test]
    fn what_repeated_trials_differ_by_is_no_difference_between_values() {
        let readings = |of_64: [u64; 2], of_1024: [u64; 2]| -> Vec<Reading> {
            let one = |value, took: [u64; 2]| took.map(|took| reading(value, Some(8000), 8000, took));
            [one(64, of_64), one(1024, of_1024)].concat()
        };
        let overlap = compare("RX ring", 1024, &readings([7900, 7300], [7350, 7000])).unwrap();
        assert_eq!(overlap.best, 1024);
        assert!(overlap.sentences[0].ends_with("within what repeated trials differ by"), "{overlap:?}");
        let apart = compare("RX ring", 1024, &readings([7900, 7400], [7350, 7000])).unwrap();
        assert!(apart.best == 64 && apart.sentences[0].contains("(set it)"), "{apart:?}");
    }

    #[test]
    fn without_a_common_load_there_is_no_answer() {
        let readings = [reading(256, Some(1000), 1000, 900), reading(512, Some(1000), 500, 500)];
        assert!(compare("RX ring", 256, &readings).unwrap_err().contains("nothing to compare fairly"));
        assert!(compare("RX ring", 256, &[]).is_err());
    }
}
