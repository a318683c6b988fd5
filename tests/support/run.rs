//! Running the binary: arguments in, exit code, text and result file out, within a time limit.

use std::{
    fs,
    path::PathBuf,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use serde_json::Value;
use tempfile::TempDir;

use super::{
    netns::{Netns, Running},
    schema,
};

/// What a run left.
pub struct Outcome {
    /// Exit code; `None` if a signal ended it.
    pub code: Option<i32>,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
    /// The result file, if one was written.
    pub json: Value,
    /// Wall-clock time.
    pub wall: Duration,
}

impl Outcome {
    /// Both outputs.
    pub fn text(&self) -> String {
        format!("{}\n{}", self.stdout, self.stderr)
    }

    /// Panics with everything it printed unless it exited with `code`, without a backtrace or raw library text, and left
    /// either no result file or one that keeps the schema and adds up.
    #[track_caller]
    pub fn expect_code(self, code: i32) -> Outcome {
        assert_eq!(self.code, Some(code), "stdout:\n{}\nstderr:\n{}", self.stdout, self.stderr);
        for noise in ["panicked at", "libbpf:", "libxdp:"] {
            assert!(!self.text().contains(noise), "{noise} in\n{}", self.text());
        }
        let wrong = if self.json.is_null() { Vec::new() } else { schema::errors(&self.json) };
        assert!(wrong.is_empty(), "the result file: {}\n{}", wrong.join("\n"), self.text());
        self
    }

    /// Whether the report says that the host took the CPU from the generator in some trial.
    pub fn was_disturbed(&self) -> bool {
        let trials = self.json["trials"].as_array().cloned().unwrap_or_default();
        let codes = |trial: &Value| trial["caveats"].as_array().cloned().unwrap_or_default();
        trials.iter().flat_map(codes).any(|caveat| caveat["code"] == "disturbed" || caveat["code"] == "pacing_forgiven")
    }

    /// Skips the test as one for an idle machine if the search found no verdict (exit code 4) and says that the host
    /// disturbed its trials; any other end is for the test to judge.
    #[track_caller]
    pub fn unless_disturbed(self) -> Outcome {
        if self.code == Some(4) && self.was_disturbed() {
            super::harness::skip("idle", "the host took the CPU from the generator, and the search says so");
        }
        self
    }

    /// The n-th trial of the result file.
    #[track_caller]
    pub fn trial(&self, n: usize) -> &Value {
        assert!(self.json["trials"][n].is_object(), "no trial {n} in {}\n{}", self.json, self.text());
        &self.json["trials"][n]
    }

    /// An integer of the first trial.
    #[track_caller]
    pub fn count(&self, name: &str) -> u64 {
        self.trial(0)[name].as_u64().unwrap_or_else(|| panic!("no integer {name} in {}", self.trial(0)))
    }

    /// Codes of the first trial's caveats.
    pub fn caveats(&self) -> Vec<String> {
        let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
        [list(&self.json["caveats"]), list(&self.json["trials"][0]["caveats"])]
            .concat()
            .iter()
            .map(|caveat| caveat["code"].as_str().unwrap_or_default().to_owned())
            .collect()
    }
}

/// A scratch folder with a profile, and the binary to be run on it.
pub struct Plimsoll {
    /// The folder.
    pub dir: TempDir,
}

impl Plimsoll {
    /// Writes the profile.
    pub fn with_profile(text: &str) -> Plimsoll {
        let dir = TempDir::new().expect("a scratch folder can be made");
        fs::write(dir.path().join("profile.yaml"), text).expect("the profile can be written");
        Plimsoll { dir }
    }

    /// Where the profile is.
    pub fn profile(&self) -> PathBuf {
        self.dir.path().join("profile.yaml")
    }

    /// Where the result file goes.
    pub fn result(&self) -> PathBuf {
        self.dir.path().join("result.json")
    }

    /// The path of the binary.
    pub fn binary() -> &'static str {
        env!("CARGO_BIN_EXE_plimsoll")
    }

    /// The shell line that runs it with these arguments; `PROFILE` stands for the profile.
    pub fn line(&self, arguments: &str) -> String {
        let profile = self.profile();
        let arguments = arguments.replace("PROFILE", &profile.display().to_string());
        format!("{} --json {} {arguments}", Self::binary(), self.result().display())
    }

    /// Starts it inside a namespace.
    pub fn spawn(&self, netns: &Netns, arguments: &str) -> Running {
        netns.spawn(&self.line(arguments))
    }

    /// Runs it inside a namespace, at most `limit`.
    pub fn run(&self, netns: &Netns, arguments: &str, limit: Duration) -> Outcome {
        let started = Instant::now();
        self.outcome(self.spawn(netns, arguments), started, limit)
    }

    /// Waits for a started run.
    pub fn outcome(&self, running: Running, started: Instant, limit: Duration) -> Outcome {
        let output = running.finish(limit);
        Outcome {
            code: output.status.code(),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
            json: fs::read(self.result())
                .ok()
                .and_then(|bytes| serde_json::from_slice(&bytes).ok())
                .unwrap_or(Value::Null),
            wall: started.elapsed(),
        }
    }

    /// Runs it where the tests run (for commands that touch no interface).
    pub fn run_here(arguments: &[&str]) -> Outcome {
        let started = Instant::now();
        let output =
            Command::new(Self::binary()).args(arguments).stdin(Stdio::null()).output().expect("the binary runs");
        Outcome {
            code: output.status.code(),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
            json: Value::Null,
            wall: started.elapsed(),
        }
    }
}

/// The two ports of the forwarding topology as a profile.
pub const FORWARD: &str = "ports:
  - {interface: g0, src_ip: 10.1.0.2, default_gw: 10.1.0.1}
  - {interface: g1, src_ip: 10.2.0.2, default_gw: 10.2.0.1}
";

/// The one port of the sink topology as a profile.
pub const SINK: &str = "ports:
  - {interface: g0, src_ip: 10.1.0.2, default_gw: 10.1.0.1}
";

/// Polls a condition of the world outside this process, for at most 5 s.
#[track_caller]
pub fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(5);
    while !holds() {
        assert!(Instant::now() < deadline, "after 5 s still not: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The kernel's log lines at warning and above, but for those that only say that an interface came or went.
pub fn kernel_log() -> String {
    let output = Command::new("dmesg").args(["--level", "warn,err,crit,alert,emerg"]).output();
    output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default()
}
