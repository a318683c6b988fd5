//! A live view of a search: bounds closing in, trials, time left.
//!
//! The control plane's thread. [`Progress`] is pure: search events in, lines out. [`View`] draws them with `indicatif` on
//! standard error, and draws nothing in a pipe. Neither reads a clock: time is what trials say they took.

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::{
    human,
    search::{GoalProgress, Purpose, SearchConfig, SearchEvent, SearchGoal, TrialInput},
};

/// What is known of a running search.
#[derive(Debug, Clone)]
pub struct Progress {
    config: SearchConfig,
    goals: Vec<Option<GoalProgress>>,
    current: Option<(TrialInput, Purpose)>,
    trials: u64,
    discarded: u64,
    elapsed_ns: u64,
    traffic_ns: u64,
}

impl Progress {
    /// A search that is about to start.
    pub fn new(config: &SearchConfig) -> Progress {
        Progress {
            config: config.clone(),
            goals: vec![None; config.goals.len()],
            current: None,
            trials: 0,
            discarded: 0,
            elapsed_ns: 0,
            traffic_ns: 0,
        }
    }

    /// Takes in what happened.
    pub fn learn(&mut self, event: &SearchEvent<'_>) {
        match event {
            SearchEvent::Starting { input, purpose } => self.current = Some((*input, *purpose)),
            SearchEvent::Counted { trial, progress } => {
                self.trials += 1;
                self.elapsed_ns = self.elapsed_ns.saturating_add(trial.output.elapsed_ns);
                self.traffic_ns = self.traffic_ns.saturating_add(trial.input.duration_ns);
                self.goals = progress.iter().copied().map(Some).collect();
            }
            SearchEvent::Discarded { .. } => self.discarded += 1,
        }
    }

    /// The line about the whole: `trial 12, about 35 s left: 1.000 s at 801,648 frames/s to confirm`.
    pub fn line(&self) -> String {
        let mut text = format!("trial {}", self.trials + self.discarded + 1);
        if self.discarded > 0 {
            text.push_str(&format!(" ({} discarded)", self.discarded));
        }
        if let Some(left_ns) = self.left_ns() {
            let left_s = seconds(left_ns);
            let left = if left_s < 119.5 { format!("{left_s:.0} s") } else { human::seconds(left_s) };
            text.push_str(&format!(", about {left} left"));
        }
        if let Some((input, purpose)) = self.current {
            let why = match purpose {
                Purpose::Locate => "to find the place",
                Purpose::Confirm => "to confirm",
            };
            let length = human::seconds(seconds(input.duration_ns));
            text.push_str(&format!(": {length} at {} {why}", human::fps(input.load_fps)));
        }
        text
    }

    /// The line about one goal: `797,640 … 801,648 frames/s, 0.5 % apart`.
    pub fn goal_line(&self, index: usize) -> String {
        let Some(progress) = self.goals[index] else { return "no trial yet".to_owned() };
        let bracket = if progress.is_done { progress.settled } else { progress.likely };
        let end = |fps: Option<u64>| fps.map_or_else(|| "?".to_owned(), human::count);
        let mut text = format!("{} … {} frames/s", end(bracket.lower_fps), end(bracket.upper_fps));
        if progress.is_done {
            text.push_str(", done");
        } else if let (Some(lower), Some(upper)) = (bracket.lower_fps, bracket.upper_fps) {
            let width = (upper - lower) as f64 / upper.max(1) as f64;
            text.push_str(&format!(", {} apart", human::percent((width * 1e4).round() / 1e4)));
        }
        text
    }

    /// How far a goal has come, 0…1: traffic so far over that and what it still takes.
    pub fn share_done(&self, index: usize) -> f64 {
        match self.goals[index] {
            None => 0.0,
            Some(progress) if progress.is_done => 1.0,
            // A goal that is not done may need more than it seems.
            Some(progress) => {
                let all_ns = self.traffic_ns.saturating_add(progress.remaining_ns).max(1);
                (self.traffic_ns as f64 / all_ns as f64).min(0.99)
            }
        }
    }

    /// An estimate of the time left; `None` before the first trial. Never more than the search may take.
    fn left_ns(&self) -> Option<u64> {
        let goals = self.goals.iter().copied().collect::<Option<Vec<GoalProgress>>>()?;
        let remaining = || goals.iter().filter(|goal| !goal.is_done).map(|goal| goal.remaining_ns);
        // Goals share trials: together they take at least as long as the longest and at most as long as all.
        let traffic_ns = remaining().max().unwrap_or(0).midpoint(remaining().sum());
        // Learning, drain and settle time come on top, as they did so far.
        let overhead = self.elapsed_ns as f64 / self.traffic_ns.max(1) as f64;
        let left_ns = (traffic_ns as f64 * overhead) as u64;
        Some(left_ns.min(self.config.max_elapsed_ns.saturating_sub(self.elapsed_ns)))
    }
}

fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

/// Draws a search's progress.
#[derive(Debug)]
pub struct View {
    progress: Progress,
    drawn: Option<Drawn>,
}

#[derive(Debug)]
struct Drawn {
    whole: MultiProgress,
    head: ProgressBar,
    goals: Vec<ProgressBar>,
    title: String,
}

/// Steps of a drawn bar.
const BAR_STEPS: u64 = 100;

impl View {
    /// A view of a search named `title` (`64-byte frames`); with `draws` false nothing is ever drawn.
    pub fn new(title: &str, config: &SearchConfig, draws: bool) -> View {
        let drawn = draws.then(|| {
            let whole = MultiProgress::with_draw_target(ProgressDrawTarget::stderr());
            let style = |template: &str| ProgressStyle::with_template(template).expect("the template is constant");
            let head = whole.add(ProgressBar::new(0).with_style(style("{prefix}  {wide_msg}")));
            let bars = style("  {prefix:8} {bar:24} {wide_msg}").progress_chars("█▉▊▋▌▍▎▏ ");
            let bar = |goal: &SearchGoal| {
                whole.add(ProgressBar::new(BAR_STEPS).with_style(bars.clone()).with_prefix(goal.name.clone()))
            };
            let goals = config.goals.iter().map(bar).collect();
            Drawn { whole, head, goals, title: title.to_owned() }
        });
        View { progress: Progress::new(config), drawn }
    }

    /// Takes in what happened and draws.
    pub fn observe(&mut self, event: &SearchEvent<'_>) {
        self.progress.learn(event);
        let Some(drawn) = &self.drawn else { return };
        drawn.head.set_prefix(drawn.title.clone());
        drawn.head.set_message(self.progress.line());
        for (index, bar) in drawn.goals.iter().enumerate() {
            bar.set_position((self.progress.share_done(index) * BAR_STEPS as f64) as u64);
            bar.set_message(self.progress.goal_line(index));
        }
    }

    /// Takes the view off the screen.
    pub fn finish(self) {
        if let Some(drawn) = self.drawn {
            // The terminal may be gone; then there is nothing to clear.
            let _ = drawn.whole.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::search::{Ended, search, simulated::SimulatedDut};

    /// The progress after each event of a search.
    fn watch(dut: &mut SimulatedDut, config: &SearchConfig) -> Vec<Progress> {
        let mut progress = Progress::new(config);
        let mut seen = Vec::new();
        let report = search(config, dut, &mut |event| {
            progress.learn(event);
            seen.push(progress.clone());
        });
        assert_eq!(report.unwrap().ended, Ended::Done);
        seen
    }

    fn config() -> SearchConfig {
        SearchConfig::new(10_000, 2_000_000, vec![SearchGoal::ndr(), SearchGoal::pdr()])
    }

    #[test]
    fn a_search_ends_with_all_goals_done_and_no_time_left() {
        let seen = watch(&mut SimulatedDut::new(800_000, 512), &config());
        let last = seen.last().unwrap();
        assert_eq!((last.share_done(0), last.share_done(1), last.left_ns()), (1.0, 1.0, Some(0)));
        assert!(last.goal_line(0).ends_with("frames/s, done"), "{}", last.goal_line(0));
    }

    #[test]
    fn the_estimate_is_of_the_right_size_from_early_on() {
        let seen = watch(&mut SimulatedDut::new(800_000, 512), &config());
        let total_ns = seen.last().unwrap().elapsed_ns;
        for progress in seen.iter().skip(8) {
            let truth = seconds(total_ns - progress.elapsed_ns);
            let left = seconds(progress.left_ns().unwrap());
            assert!(left < truth * 3.0 + 10.0 && left > truth / 4.0 - 10.0, "{left} s said, {truth} s true");
        }
    }

    #[test]
    fn lines_say_what_runs_and_how_close_it_is() {
        let seen = watch(&mut SimulatedDut::new(800_000, 512), &config());
        assert_eq!(seen[0].line(), "trial 1: 1.000 s at 2,000,000 frames/s to find the place");
        assert_eq!(seen[0].goal_line(0), "no trial yet");
        let middle = &seen[seen.len() / 2];
        assert!(middle.line().contains("left"), "{}", middle.line());
        assert!(middle.goal_line(0).contains(" … "), "{}", middle.goal_line(0));
    }

    #[test]
    fn discarded_trials_are_counted_by_name() {
        let mut dut = SimulatedDut { bad_start_every: 5, ..SimulatedDut::new(800_000, 512) };
        let seen = watch(&mut dut, &config());
        assert!(seen.last().unwrap().line().contains("discarded"));
    }

    #[test]
    fn a_pipe_sees_nothing() {
        let mut view = View::new("64-byte frames", &config(), false);
        let input = TrialInput { load_fps: 1, duration_ns: 1 };
        view.observe(&SearchEvent::Starting { input, purpose: Purpose::Locate });
        assert!(view.drawn.is_none());
        assert_eq!(view.progress.current, Some((input, Purpose::Locate)));
        view.finish();
    }
}
