//! Our search beside the MLRsearch library, RFC 9971's reference: the same judgement, and no more trial time.
//!
//! The library's side is recorded in `tests/oracle/`; `tests/oracle/run.sh` computes it again with the live library. Run with
//! `--nocapture` to see the table of trial times.

use std::collections::BTreeMap;

use plimsoll::search::{
    Bracket, Class, Outcome, Ratio, SearchConfig, SearchGoal, Trial, TrialInput, TrialOutput, classify,
    conditional_loss, conditional_throughput_fps, search, simulated::SimulatedDut,
};

const CLASSES: &[u8] = include_bytes!("oracle/classes.bin");
const SEARCHES: &str = include_str!("oracle/searches.csv");

/// 105/512 s.
const UNIT_NS: u64 = 205_078_125;
const LOAD_FPS: u64 = 1 << 20;
const PARTS: u64 = 8192;

/// SplitMix64's output function.
fn mix(state: u64) -> u64 {
    let z = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Numbers below a bound, one after the other, for one trial set.
struct Draw(u64);

impl Draw {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 += 1;
        mix(self.0) % bound
    }
}

/// The random goal and trials number `index`, drawn as `mlrsearch.py` draws them.
fn trial_set(index: u64) -> (SearchGoal, Vec<Trial>) {
    let exceed = [(0, 1), (1, 16), (1, 8), (1, 4), (3, 8), (1, 2), (1, 2), (1, 2), (5, 8), (3, 4), (7, 8)];
    let mut draw = Draw(index << 12);
    let (numerator, denominator) = exceed[draw.below(exceed.len() as u64) as usize];
    let loss_512ths = [0, 0, 1, 4, 32][draw.below(5) as usize];
    let final_units = 1 + draw.below(4);
    let goal = SearchGoal {
        exceed_ratio: Ratio::new(numerator, denominator),
        initial_trial_ns: UNIT_NS,
        final_trial_ns: final_units * UNIT_NS,
        duration_sum_ns: final_units * (1 + draw.below(24)) * UNIT_NS,
        ..SearchGoal::custom("random", Ratio::new(loss_512ths, 512))
    };
    let bad_in_8 = draw.below(9);
    let count = draw.below(33);
    (goal, (0..count).map(|_| random_trial(&mut draw, loss_512ths, bad_in_8)).collect())
}

fn random_trial(draw: &mut Draw, loss_512ths: u64, bad_in_8: u64) -> Trial {
    let intended_units = 1 + draw.below(5);
    let overhead_units = if draw.below(4) == 0 { draw.below(3) } else { 0 };
    let intended_frames = 1024 << draw.below(4);
    let edge = intended_frames * loss_512ths / 512;
    let failed = if draw.below(8) < bad_in_8 { edge + 1 + draw.below(64) } else { draw.below(edge + 1) };
    let unsent = if draw.below(4) == 0 { draw.below(failed + 1) } else { 0 };
    let is_duplicated = draw.below(16) == 0;
    let completed_frames = intended_frames - unsent;
    let received = if is_duplicated { completed_frames + failed - unsent } else { completed_frames + unsent - failed };
    let effective_duration_ns = (intended_units + overhead_units) * UNIT_NS;
    Trial {
        input: TrialInput { load_fps: LOAD_FPS, duration_ns: intended_units * UNIT_NS },
        output: TrialOutput {
            intended_frames,
            offered_frames: completed_frames,
            completed_frames,
            received_frames: if draw.below(64) == 0 { 0 } else { received },
            effective_duration_ns,
            elapsed_ns: effective_duration_ns,
        },
    }
}

#[test]
fn sixty_thousand_random_trial_sets_are_judged_as_the_reference_judges_them() {
    let (mut classes, mut sets) = (BTreeMap::new(), 0);
    for (index, recorded) in CLASSES.chunks_exact(2).enumerate() {
        let recorded = u64::from(u16::from_le_bytes([recorded[0], recorded[1]]));
        let (expected, lost_parts) = (recorded >> 14, recorded & 0x3fff);
        let (goal, trials) = trial_set(index as u64);
        let class = match classify(&goal, &trials) {
            Class::Undecided => 0,
            Class::Lower => 1,
            Class::Upper => 2,
        };
        assert_eq!(class, expected, "class of set {index}: {goal:?} {trials:?}");
        assert_eq!(conditional_loss(&goal, &trials), Ratio::new(lost_parts, PARTS), "loss of set {index}: {goal:?}");
        let throughput_fps = LOAD_FPS - lost_parts * (LOAD_FPS / PARTS);
        assert_eq!(conditional_throughput_fps(&goal, LOAD_FPS, &trials), throughput_fps, "set {index}");
        *classes.entry(class).or_insert(0) += 1;
        sets += 1;
    }
    assert_eq!(sets, 60_000);
    assert!(classes.len() == 3 && classes.values().all(|&count| count > 10_000), "one-sided sets: {classes:?}");
}

/// The DUT that `mlrsearch.py` builds for this name and seed.
fn simulated_dut(name: &str, seed: u64) -> SimulatedDut {
    let random = mix(1_000_000 + seed);
    let capacity_fps = (10_000 + random % 10_000) << ((random >> 32) % 9);
    let mut dut = SimulatedDut { seed, ..SimulatedDut::new(capacity_fps, 64 << ((random >> 40) % 5)) };
    match name {
        "ideal" => {}
        "noise-0.1%" => dut.noise_ppm = 1_000,
        "noise-0.5%" => dut.noise_ppm = 5_000,
        "noise-2%" => dut.noise_ppm = 20_000,
        "hiccups" => dut.hiccups_permille = 100,
        "collapse" => dut.collapse = Ratio::new(1, 3),
        "collapse-noise-0.5%" => (dut.collapse, dut.noise_ppm) = (Ratio::new(1, 3), 5_000),
        _ => panic!("unknown DUT {name}"),
    }
    dut
}

/// Twice the median, so that an even number of values needs no fraction.
fn twice_the_median(values: impl Iterator<Item = u64>) -> u64 {
    let mut sorted: Vec<u64> = values.collect();
    sorted.sort_unstable();
    sorted[sorted.len() / 2] + sorted[(sorted.len() - 1) / 2]
}

/// Traffic time of one whole search in milliseconds. Its bounds are within the goals' widths, and hold the truth of a DUT that has one.
fn traffic_ms(goals: &[SearchGoal], name: &str, seed: u64) -> u64 {
    let mut dut = simulated_dut(name, seed);
    let config = SearchConfig::new(1_000, 14_880_952, goals.to_vec());
    let report = search(&config, &mut dut, &mut |_| {}).expect("a valid config");
    for result in &report.results {
        let Outcome::Bounds { lower, upper_fps } = result.outcome else { panic!("{name} {seed}: {result:?}") };
        let bracket = Bracket { lower_fps: Some(lower.load_fps), upper_fps: Some(upper_fps) };
        assert!(bracket.is_within(result.goal.width), "{name} {seed}: {result:?}");
        let truth_fps = dut.truth_fps(result.goal.loss_ratio, result.goal.final_trial_ns);
        // A longer trial of another goal is judged too, and passes less of a ring than a short one.
        if name == "ideal" && goals.iter().all(|goal| goal.final_trial_ns == result.goal.final_trial_ns) {
            assert!((lower.load_fps..=upper_fps).contains(&truth_fps), "{seed}: {truth_fps} {result:?}");
        }
    }
    dut.traffic_ns / 1_000_000
}

#[test]
fn the_median_search_takes_no_more_trial_time_than_the_reference() {
    let mut slower = Vec::new();
    println!(
        "{:<24} {:<20} {:>9} {:>9}  seconds of traffic, median of 200 seeds",
        "goals", "dut", "plimsoll", "MLRsearch"
    );
    for line in SEARCHES.lines() {
        let fields: Vec<&str> = line.split(',').collect();
        let (goal_names, dut) = (fields[0], fields[1]);
        let goals: Vec<SearchGoal> = goal_names.split('+').map(|name| name.parse().unwrap()).collect();
        let recorded: Vec<u64> = fields[2..].iter().map(|field| field.parse().unwrap()).collect();
        assert_eq!(recorded.len(), 200);
        let ours = twice_the_median((0..200).map(|seed| traffic_ms(&goals, dut, seed)));
        let reference = twice_the_median(recorded.iter().copied());
        println!("{goal_names:<24} {dut:<20} {:>9.1} {:>9.1}", ours as f64 / 2e3, reference as f64 / 2e3);
        if ours > reference {
            slower.push(format!("{goal_names} {dut}: {ours} > {reference}"));
        }
    }
    assert_eq!(SEARCHES.lines().count(), 42);
    assert!(slower.is_empty(), "twice the median, in ms: {slower:#?}");
}
