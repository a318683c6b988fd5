//! A test main on libtest-mimic: one test at a time, skips that are counted and must be expected.

use std::{
    panic::{self, AssertUnwindSafe},
    process::ExitCode,
};

use libtest_mimic::{Arguments, Completion, Failed, Trial};

/// Thrown by [`skip`]; the harness turns it into an ignored test or, if nobody expected it, into a failure.
struct Skip {
    need: &'static str,
    reason: String,
}

/// Ends the running test as skipped because `need` (one word: "root", "qemu", "two-cpus") is not met.
///
/// `make test` lists in `PLIMSOLL_MAY_SKIP` the needs that may be missing; any other skip is a failure there. Without that
/// variable (a bare `cargo test`) every skip is allowed, and still counted.
pub fn skip(need: &'static str, reason: impl Into<String>) -> ! {
    panic::panic_any(Skip { need, reason: reason.into() })
}

/// Skips unless the effective user is root.
pub fn needs_root() {
    if !rustix::process::geteuid().is_root() {
        skip("root", "needs root for network namespaces");
    }
}

/// Skips on an overloaded machine: a generator that gets no CPU offers no load: what is measured at a pace needs a machine that does little else.
pub fn needs_an_idle_machine() {
    let load: f64 = std::fs::read_to_string("/proc/loadavg")
        .ok()
        .and_then(|text| text.split_whitespace().next()?.parse().ok())
        .unwrap_or(0.0);
    let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    if load > 2.0 * cpus as f64 {
        skip("idle", format!("the load average is {load} on {cpus} CPUs"));
    }
}

fn may_skip(need: &str) -> bool {
    std::env::var("PLIMSOLL_MAY_SKIP").map_or(true, |list| list.split(',').any(|entry| entry.trim() == need))
}

/// A named test function.
pub type Test = (&'static str, fn());

/// `tests![a, b]` names the functions of a module.
#[macro_export]
macro_rules! tests {
    ($($name:ident),* $(,)?) => { vec![$((concat!(module_path!(), "::", stringify!($name)), $name as fn())),*] };
}

/// Runs the tests as asked by the command line, one at a time unless told otherwise.
pub fn main(tests: Vec<Test>) -> ExitCode {
    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert(1);
    let report = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        if !info.payload().is::<Skip>() {
            report(info);
        }
    }));
    let trials = tests
        .into_iter()
        .map(|(name, test)| {
            let name = name.split_once("::").map_or(name, |(_, rest)| rest);
            Trial::ignorable_test(name, move || outcome(panic::catch_unwind(AssertUnwindSafe(test))))
        })
        .collect();
    libtest_mimic::run(&arguments, trials).exit_code()
}

fn outcome(result: std::thread::Result<()>) -> Result<Completion, Failed> {
    let Err(payload) = result else { return Ok(Completion::Completed) };
    match payload.downcast::<Skip>() {
        Ok(skip) if may_skip(skip.need) => Ok(Completion::ignored_with(format!("{}: {}", skip.need, skip.reason))),
        Ok(skip) => Err(format!("unexpected skip: {}: {}", skip.need, skip.reason).into()),
        Err(payload) => {
            let text = payload
                .downcast_ref::<String>()
                .cloned()
                .or_else(|| payload.downcast_ref::<&str>().map(|text| (*text).to_owned()));
            Err(text.unwrap_or_else(|| "panicked".to_owned()).into())
        }
    }
}
