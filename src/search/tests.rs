//! Whole searches against simulated DUTs, healthy and not: each gets the right outcome in bounded trials.

use proptest::prelude::*;

use super::{simulated::SimulatedDut, *};
use crate::units::NS_PER_S;

const MIN_FPS: u64 = 1_000;
const MAX_FPS: u64 = 14_880_952;

fn run(dut: &mut SimulatedDut, goals: Vec<SearchGoal>) -> SearchReport<std::convert::Infallible> {
    let config = SearchConfig::new(MIN_FPS, MAX_FPS, goals);
    search(&config, dut, &mut |_| {}).expect("a valid config")
}

fn outcome(dut: &mut SimulatedDut, goal: SearchGoal) -> Outcome {
    let report = run(dut, vec![goal]);
    assert_eq!(report.ended, Ended::Done);
    report.results[0].outcome.clone()
}

/// Asserts that the bounds hold the truth and are as narrow as the goal asks.
fn assert_bounds_hold(result: &GoalResult, truth_fps: u64) {
    let Outcome::Bounds { lower, upper_fps } = result.outcome else { panic!("{truth_fps}: {:?}", result.outcome) };
    let bracket = Bracket { lower_fps: Some(lower.load_fps), upper_fps: Some(upper_fps) };
    assert!(bracket.is_within(result.goal.width), "{bracket:?} is wider than {}", result.goal.width);
    assert!(lower.load_fps <= truth_fps && truth_fps <= upper_fps, "{bracket:?} misses {truth_fps}");
    assert!(lower.throughput_fps <= lower.load_fps);
}

#[test]
fn ndr_and_pdr_of_a_modelled_dut_are_found_together_in_35_trials() {
    for capacity_fps in [20_000, 50_000, 200_000, 800_000] {
        let mut dut = SimulatedDut::new(capacity_fps, 512);
        let report = run(&mut dut, vec![SearchGoal::ndr(), SearchGoal::pdr()]);
        for result in &report.results {
            assert_bounds_hold(result, dut.truth_fps(result.goal.loss_ratio, NS_PER_S));
            assert_eq!(result.inversions, []);
        }
        assert!(report.trials.len() <= 35, "{} trials", report.trials.len());
    }
}

#[test]
fn the_search_starts_at_the_maximum() {
    let report = run(&mut SimulatedDut::new(20_000, 64), vec![SearchGoal::ndr()]);
    assert_eq!(report.trials[0].input.load_fps, MAX_FPS);
}

#[test]
fn a_dut_that_takes_the_maximum_is_at_least_the_maximum() {
    let mut dut = SimulatedDut::new(2 * MAX_FPS, 64);
    let lower = LowerBound { load_fps: MAX_FPS, throughput_fps: MAX_FPS };
    assert_eq!(outcome(&mut dut, SearchGoal::ndr()), Outcome::AtLeastMax { lower });
    assert_eq!(dut.trials, 11);
    assert_eq!(outcome(&mut dut, SearchGoal::rfc2544()), Outcome::AtLeastMax { lower });
}

#[test]
fn loss_at_every_load_is_no_load_meets_the_goal_with_the_loss_there() {
    let mut dut = SimulatedDut { fixed_loss: Ratio::new(1, 100), ..SimulatedDut::new(3_000_000, 64) };
    for goal in [SearchGoal::ndr(), SearchGoal::pdr(), SearchGoal::rfc2544(), SearchGoal::tst009()] {
        let found = outcome(&mut dut, goal);
        assert_eq!(found, Outcome::BelowMin { min_fps: MIN_FPS, loss_ratio: Ratio::new(1, 100) });
    }
    assert!(dut.trials < 150, "{} trials", dut.trials);
}

#[test]
fn a_lossy_link_still_has_a_ceiling_for_a_goal_that_allows_the_loss() {
    let mut dut = SimulatedDut { fixed_loss: Ratio::new(1, 1000), ..SimulatedDut::new(3_000_000, 64) };
    assert!(matches!(outcome(&mut dut, SearchGoal::pdr()), Outcome::Bounds { .. }));
}

#[test]
fn lost_first_frames_fail_ndr_at_every_load_and_pdr_only_where_they_weigh() {
    let lossy = |min_fps| {
        let mut dut = SimulatedDut { first_frames_lost: 20, ..SimulatedDut::new(800_000, 0) };
        let config = SearchConfig::new(min_fps, MAX_FPS, vec![SearchGoal::ndr(), SearchGoal::pdr()]);
        let report = search(&config, &mut dut, &mut |_| {}).unwrap();
        assert!(report.trials.len() < 60, "{} trials", report.trials.len());
        report.results
    };
    let results = lossy(10_000);
    assert_eq!(results[0].outcome, Outcome::BelowMin { min_fps: 10_000, loss_ratio: Ratio::new(20, 10_000) });
    assert_bounds_hold(&results[1], 804_000);
    assert_eq!(results[1].inversions, []);

    let results = lossy(1_000);
    assert_eq!(results[0].outcome, Outcome::BelowMin { min_fps: 1_000, loss_ratio: Ratio::new(20, 1_000) });
    assert_eq!(results[1].outcome, Outcome::BelowMin { min_fps: 1_000, loss_ratio: Ratio::new(20, 1_000) });
    let [LossInversion { failed_fps: 1_000, passed_fps }] = results[1].inversions[..] else {
        panic!("20 of 1000 frames fail pdr, 20 of 800,000 do not: {:?}", results[1].inversions)
    };
    assert!(passed_fps > 790_000);
}

#[test]
fn a_dut_that_dies_over_a_load_has_its_ceiling_there() {
    let mut dut = SimulatedDut { dies_above_fps: 1_234_567, ..SimulatedDut::new(3_000_000, 64) };
    let report = run(&mut dut, vec![SearchGoal::ndr(), SearchGoal::pdr()]);
    report.results.iter().for_each(|result| assert_bounds_hold(result, 1_234_567));
    assert!(report.trials.len() <= 50, "{} trials", report.trials.len());
}

#[test]
fn a_dut_that_collapses_under_overload_is_found_at_its_best() {
    for (numerator, denominator) in [(1, 10), (1, 3), (1, 1), (3, 1)] {
        let mut dut = SimulatedDut { collapse: Ratio::new(numerator, denominator), ..SimulatedDut::new(3_000_000, 64) };
        let report = run(&mut dut, vec![SearchGoal::ndr()]);
        assert_bounds_hold(&report.results[0], 3_000_064);
        assert!(report.trials.len() <= 60, "{} trials", report.trials.len());
    }
}

#[test]
fn loss_inversion_gives_the_lower_border_once_it_is_seen_and_is_reported() {
    let mut dut = SimulatedDut { lossy_fps: 1_000_000..1_200_000, ..SimulatedDut::new(3_000_000, 64) };
    let report = run(&mut dut, vec![SearchGoal::ndr()]);
    assert_bounds_hold(&report.results[0], 3_000_064);
    let lossy = dut.trial(TrialInput { load_fps: 1_100_000, duration_ns: 11 * NS_PER_S });
    let input = TrialInput { load_fps: 1_100_000, duration_ns: 11 * NS_PER_S };
    let trials: Vec<Trial> = report.trials.iter().copied().chain([Trial { input, output: lossy }]).collect();
    let Outcome::Bounds { lower, .. } = report.results[0].outcome else { panic!("bounds") };
    let expected = LossInversion { failed_fps: 1_100_000, passed_fps: lower.load_fps };
    assert_eq!(loss_inversions(&SearchGoal::ndr(), &trials), [expected]);
    assert_eq!(loss_inversions(&SearchGoal::ndr(), &report.trials), []);
}

#[test]
fn a_lossy_window_just_below_the_ceiling_is_the_ceiling() {
    let mut dut = SimulatedDut { lossy_fps: 2_000_000..3_100_000, ..SimulatedDut::new(3_000_000, 64) };
    assert_bounds_hold(&run(&mut dut, vec![SearchGoal::ndr()]).results[0], 1_999_999);
}

#[test]
fn a_generator_that_falls_short_is_never_called_the_dut() {
    let mut dut = SimulatedDut { generator_fps: 5_000_000, ..SimulatedDut::new(MAX_FPS, 64) };
    let report = run(&mut dut, vec![SearchGoal::ndr(), SearchGoal::pdr(), SearchGoal::rfc2544()]);
    for result in &report.results {
        let Outcome::GeneratorLimited { lower: Some(lower), intended_fps, sent_fps } = result.outcome else {
            panic!("{:?}", result.outcome)
        };
        assert_eq!(sent_fps, 5_000_000);
        assert!(lower.load_fps > 4_950_000 && lower.load_fps <= 5_025_126 && intended_fps > 5_000_000);
    }
}

/// As one that shares its CPU with the DUT, or with other guests of its host.
#[test]
fn a_generator_whose_pace_changes_is_the_limit_after_some_trials_and_hides_no_ceiling() {
    let goals = || vec![SearchGoal::ndr(), SearchGoal::pdr()];
    for every in 1..=100 {
        let wavering = |capacity_fps| SimulatedDut {
            generator_fps: 1_100_000,
            generator_wavers_every: every,
            ..SimulatedDut::new(capacity_fps, 64)
        };
        let report = run(&mut wavering(MAX_FPS), goals());
        assert_eq!(report.ended, Ended::Done, "pace changes every {every} trials");
        assert!(report.trials.len() <= 150, "{every}: {} trials", report.trials.len());
        for result in &report.results {
            let Outcome::GeneratorLimited { intended_fps, sent_fps, .. } = result.outcome else {
                panic!("{every}: {:?}", result.outcome)
            };
            assert!(sent_fps < intended_fps, "{every}: {:?}", result.outcome);
        }
        let report = run(&mut wavering(500_000), goals());
        report.results.iter().for_each(|r| assert_bounds_hold(r, r.goal.loss_ratio.complement().divide(500_064)));
        for result in run(&mut wavering(800_000), goals()).results {
            let truth_fps = result.goal.loss_ratio.complement().divide(800_064);
            match result.outcome {
                Outcome::GeneratorLimited { lower, .. } => {
                    assert!(lower.is_none_or(|lower| lower.load_fps <= truth_fps), "{every}: {lower:?}");
                }
                _ => assert_bounds_hold(&result, truth_fps),
            }
        }
    }
}

#[test]
fn a_generator_that_cannot_reach_the_minimum_is_not_a_dut_below_it() {
    let mut dut = SimulatedDut { generator_fps: 500, ..SimulatedDut::new(MAX_FPS, 64) };
    let expected = Outcome::GeneratorLimited { lower: None, intended_fps: MIN_FPS, sent_fps: 500 };
    assert_eq!(outcome(&mut dut, SearchGoal::ndr()), expected);
}

#[test]
fn a_dut_slower_than_the_short_generator_is_still_the_limit() {
    let mut dut = SimulatedDut { generator_fps: 5_000_000, ..SimulatedDut::new(3_000_000, 64) };
    assert_bounds_hold(&run(&mut dut, vec![SearchGoal::ndr()]).results[0], 3_000_064);
}

#[test]
fn a_deep_buffer_does_not_lend_a_minute_what_it_gives_a_second() {
    let mut dut = SimulatedDut::new(100_000, 100_000);
    let report = run(&mut dut, vec![SearchGoal::rfc2544(), SearchGoal::tst009()]);
    report.results.iter().for_each(|result| assert_bounds_hold(result, 100_000 + 100_000 / 60));
}

#[test]
fn a_range_of_one_load_gives_an_answer() {
    let config = |fps| SearchConfig::new(fps, fps, vec![SearchGoal::ndr()]);
    let mut dut = SimulatedDut::new(1_000, 0);
    let low = search(&config(1_000), &mut dut, &mut |_| {}).unwrap();
    assert!(matches!(low.results[0].outcome, Outcome::AtLeastMax { .. }));
    let high = search(&config(1_001), &mut dut, &mut |_| {}).unwrap();
    assert_eq!(high.results[0].outcome, Outcome::BelowMin { min_fps: 1_001, loss_ratio: Ratio::new(1, 1_001) });
}

#[test]
fn out_of_trials_or_time_is_undecided_and_keeps_what_is_known() {
    let mut config = SearchConfig::new(MIN_FPS, MAX_FPS, vec![SearchGoal::ndr()]);
    config.max_trials = 20;
    let report = search(&config, &mut SimulatedDut::new(3_000_000, 64), &mut |_| {}).unwrap();
    assert_eq!((report.ended, report.trials.len()), (Ended::Trials, 20));
    assert!(matches!(report.results[0].outcome, Outcome::Undecided { .. }));

    config.max_trials = 40;
    let mut dut =
        SimulatedDut { generator_fps: 1_100_000, generator_wavers_every: 7, ..SimulatedDut::new(MAX_FPS, 64) };
    let report = search(&config, &mut dut, &mut |_| {}).unwrap();
    assert_eq!(report.ended, Ended::Trials);
    assert!(matches!(report.results[0].outcome, Outcome::GeneratorLimited { .. }), "{:?}", report.results[0].outcome);

    config.max_trials = 1000;
    config.max_elapsed_ns = 15 * NS_PER_S / 2;
    let report = search(&config, &mut SimulatedDut::new(3_000_000, 64), &mut |_| {}).unwrap();
    assert_eq!((report.ended, report.trials.len(), report.elapsed_ns), (Ended::Time, 7, 7 * NS_PER_S));
}

#[test]
fn discarded_trials_are_named_repeated_and_cost_time_but_never_count() {
    let mut dut = SimulatedDut { bad_start_every: 3, ..SimulatedDut::new(3_000_000, 64) };
    let report = run(&mut dut, vec![SearchGoal::ndr()]);
    assert_bounds_hold(&report.results[0], 3_000_064);
    assert_eq!(report.trials.len(), 23);
    assert_eq!(report.discarded.len() as u64, dut.trials / 3);
    assert_eq!(report.elapsed_ns, dut.trials * NS_PER_S);
    assert_eq!(report.discarded[0].1, "the link was down");
}

#[test]
fn only_bad_starts_end_the_search() {
    let mut dut = SimulatedDut { bad_start_every: 1, ..SimulatedDut::new(3_000_000, 64) };
    let report = run(&mut dut, vec![SearchGoal::ndr()]);
    assert_eq!((report.ended, dut.trials), (Ended::Discards("the link was down".to_owned()), 5));
    assert_eq!(report.results[0].outcome, Outcome::Undecided { lower: None, upper_fps: None });
}

/// Gives up after some trials, as an interrupted session does.
struct Interrupted(SimulatedDut);

impl Measurer for Interrupted {
    type Error = &'static str;

    fn measure(&mut self, input: TrialInput) -> Result<Measured, Self::Error> {
        match self.0.trials {
            14 => Err("interrupted"),
            _ => Ok(Measured::Counted(self.0.trial(input))),
        }
    }
}

#[test]
fn an_interrupted_search_reports_what_it_had() {
    let config = SearchConfig::new(MIN_FPS, MAX_FPS, vec![SearchGoal::rfc2544(), SearchGoal::ndr()]);
    let report = search(&config, &mut Interrupted(SimulatedDut::new(3_000_000, 64)), &mut |_| {}).unwrap();
    assert_eq!((report.ended, report.trials.len()), (Ended::Measurer("interrupted"), 14));
    assert!(matches!(report.results[0].outcome, Outcome::Bounds { .. }), "{:?}", report.results[0].outcome);
    assert!(matches!(report.results[1].outcome, Outcome::Undecided { lower: Some(_), .. }));
}

#[test]
fn the_observer_sees_the_bounds_close_in() {
    let config = SearchConfig::new(MIN_FPS, MAX_FPS, vec![SearchGoal::ndr(), SearchGoal::pdr()]);
    let (mut started, mut counted, mut last, mut guesses_s) = (0, 0, vec![], vec![]);
    let mut observe = |event: &SearchEvent<'_>| match event {
        SearchEvent::Starting { .. } => started += 1,
        SearchEvent::Counted { progress, .. } => {
            counted += 1;
            guesses_s.push(progress[0].remaining_ns / NS_PER_S);
            last = progress.to_vec();
        }
        SearchEvent::Discarded { .. } => panic!("nothing is discarded here"),
    };
    let report = search(&config, &mut SimulatedDut::new(3_000_000, 64), &mut observe).unwrap();
    assert_eq!((started, counted), (report.trials.len(), report.trials.len()));
    assert!(last.iter().all(|goal| goal.is_done && goal.settled == goal.likely && goal.remaining_ns == 0), "{last:?}");
    assert!(
        (20..40).contains(&guesses_s[0]) && guesses_s.is_sorted_by(|earlier, later| earlier >= later),
        "{guesses_s:?}"
    );
}

#[test]
fn a_search_that_makes_no_sense_is_refused() {
    let refused = |config: SearchConfig| config.validate().unwrap_err().to_string();
    let goals = || vec![SearchGoal::ndr()];
    assert!(refused(SearchConfig::new(0, 1, goals())).contains("from 0 to 1"));
    assert!(refused(SearchConfig::new(2, 1, goals())).contains("from 2 to 1"));
    assert!(refused(SearchConfig::new(1, 2, vec![])).contains("at least one"));
    assert!(refused(SearchConfig::new(1, 2, [goals(), goals()].concat())).contains("'ndr'"));
    assert!(refused(SearchConfig::new(1, 2, vec![SearchGoal::ndr().with_width(Ratio::ZERO)])).contains("width"));
}

prop_compose! {
    fn any_goal()(kind in 0..4, loss in 0_u64..50, width in 2_u64..100, trial_ms in 100_u64..3_000) -> SearchGoal {
        let goal = match kind {
            0 => SearchGoal::ndr(),
            1 => SearchGoal::custom("own", Ratio::new(loss, 1000)),
            2 => SearchGoal::rfc2544(),
            _ => SearchGoal::tst009(),
        };
        goal.with_trial(trial_ms * 1_000_000).with_width(Ratio::new(width, 1000))
    }
}

prop_compose! {
    fn any_dut()(
        capacity_fps in 1_u64..20_000_000, ring_frames in 0_u64..5_000, noise_ppm in 0_u64..50_000,
        hiccups_permille in 0_u64..600, seed: u64, generator_fps in prop_oneof![Just(u64::MAX), 1_u64..20_000_000],
        first_frames_lost in prop_oneof![Just(0), 1_u64..1_000], fixed in prop_oneof![Just(0), 1_u64..100],
        dies_above_fps in prop_oneof![Just(u64::MAX), 1_u64..20_000_000],
        lossy_from in 1_u64..15_000_000, lossy_width in prop_oneof![Just(0), 1_u64..2_000_000],
        collapse in 0_u64..30, bad_start_every in prop_oneof![Just(0), 2_u64..20],
    ) -> SimulatedDut {
        SimulatedDut {
            noise_ppm, hiccups_permille, seed, generator_fps, first_frames_lost, dies_above_fps, bad_start_every,
            fixed_loss: Ratio::new(fixed, 1000),
            lossy_fps: lossy_from..lossy_from + lossy_width,
            collapse: Ratio::new(collapse, 10),
            ..SimulatedDut::new(capacity_fps, ring_frames)
        }
    }
}

proptest! {
    /// Whatever the DUT does, the search ends by itself, within the range, and every answer follows from its trials.
    #[test]
    fn any_dut_gets_an_answer_that_its_trials_support(mut dut in any_dut(), goal in any_goal()) {
        let report = run(&mut dut, vec![goal.clone()]);
        prop_assert_eq!(&report.ended, &Ended::Done, "{} trials", report.trials.len());
        prop_assert!(report.trials.iter().all(|t| (MIN_FPS..=MAX_FPS).contains(&t.input.load_fps)));
        let at = |load_fps| -> Vec<Trial> {
            report.trials.iter().filter(|t| t.input.load_fps == load_fps).copied().collect()
        };
        let outcome = &report.results[0].outcome;
        if let Some(lower) = outcome.lower() {
            prop_assert_eq!(classify(&goal, &at(lower.load_fps)), Class::Lower);
        }
        match *outcome {
            Outcome::Bounds { lower, upper_fps } => {
                prop_assert_eq!(classify(&goal, &at(upper_fps)), Class::Upper);
                let bracket = Bracket { lower_fps: Some(lower.load_fps), upper_fps: Some(upper_fps) };
                prop_assert!(bracket.is_within(goal.width));
                prop_assert!(at(upper_fps).iter().any(|t| t.output.dut_loss_ratio() > goal.loss_ratio));
            }
            Outcome::AtLeastMax { lower } => prop_assert_eq!(lower.load_fps, MAX_FPS),
            Outcome::BelowMin { loss_ratio, .. } => {
                prop_assert_eq!(classify(&goal, &at(MIN_FPS)), Class::Upper);
                prop_assert!(loss_ratio > goal.loss_ratio || goal.exceed_ratio > Ratio::ZERO);
            }
            Outcome::GeneratorLimited { intended_fps, sent_fps, .. } => prop_assert!(sent_fps < intended_fps),
            Outcome::Undecided { .. } => prop_assert!(false, "a search that ends by itself has decided"),
        }
    }

    /// A monotone DUT without noise: the bounds hold the truth, with few trials.
    #[test]
    fn a_well_behaved_dut_is_found_quickly(capacity_fps in 2_000_u64..14_000_000, ring_frames in 0_u64..5_000) {
        let mut dut = SimulatedDut::new(capacity_fps, ring_frames);
        let report = run(&mut dut, vec![SearchGoal::ndr(), SearchGoal::pdr()]);
        let is_below_max = dut.truth_fps(SearchGoal::pdr().loss_ratio, NS_PER_S) < MAX_FPS;
        prop_assume!(is_below_max);
        report.results.iter().for_each(|r| assert_bounds_hold(r, dut.truth_fps(r.goal.loss_ratio, NS_PER_S)));
        prop_assert!(report.trials.len() <= 36, "{} trials", report.trials.len());
    }
}
