//! Runs a program of the machine with a time limit and turns a failure into an error that says why.
//!
//! Control thread. Invariant: nothing runs without a limit (coreutils' `timeout` holds it). Deliberately does not stream output.

use std::ffi::OsStr;
use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::error::{Error, Result};

/// A program to run with a limit in seconds.
pub(super) struct Tool {
    name: String,
    command: Command,
}

impl Tool {
    pub(super) fn new(program: &str, limit_s: u64) -> Tool {
        let mut command = Command::new("timeout");
        command.args(["-k", "5", &limit_s.to_string(), program]).stdin(Stdio::null());
        Tool { name: program.to_owned(), command }
    }

    pub(super) fn arg(mut self, arg: impl AsRef<OsStr>) -> Tool {
        self.command.arg(arg);
        self
    }

    pub(super) fn args<S: AsRef<OsStr>>(mut self, args: impl IntoIterator<Item = S>) -> Tool {
        self.command.args(args);
        self
    }

    pub(super) fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Tool {
        self.command.env(name, value);
        self
    }

    pub(super) fn current_dir(mut self, dir: &Path) -> Tool {
        self.command.current_dir(dir);
        self
    }

    /// Standard output as text; `operation` and `subject` name what failed ("unpack", the file).
    pub(super) fn run(self, operation: &str, subject: &dyn Display) -> Result<String> {
        self.bytes(operation, subject).map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Standard output as bytes.
    pub(super) fn bytes(mut self, operation: &str, subject: &dyn Display) -> Result<Vec<u8>> {
        let fail = |cause: String| Error::environment(operation, subject.to_string()).because(cause);
        let output = self.command.output().map_err(|e| fail(format!("{}: {e}", self.name)))?;
        if output.status.success() {
            return Ok(output.stdout);
        }
        let stderr = String::from_utf8_lossy(&output.stderr);
        let reason = match output.status.code() {
            Some(124) => "took too long".to_owned(),
            Some(127) => "is not installed".to_owned(),
            _ => reason(&stderr).to_owned(),
        };
        Err(fail(format!("{}: {reason}", self.name)))
    }
}

/// The line of an error output that says why: apt's first error (its last only sums up), else the last line.
fn reason(stderr: &str) -> &str {
    let lines = || stderr.lines().map(str::trim).filter(|line| !line.is_empty());
    lines().find_map(|line| line.strip_prefix("E: ")).or_else(|| lines().next_back()).unwrap_or("failed")
}

/// Where `program` is on PATH (and in the system's own folders, which a user's PATH may lack).
pub(super) fn on_path(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin", "/sbin"].map(PathBuf::from))
        .map(|dir| dir.join(program))
        .find(|file| file.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn apts_first_error_is_the_reason() {
        let stderr = "W: slow\nE: Failed to fetch a  Temporary failure\nE: Some index files failed to download.\n";
        assert_eq!(reason(stderr), "Failed to fetch a  Temporary failure");
        assert_eq!(reason("strip: a.out\nstrip: file format not recognized\n\n"), "strip: file format not recognized");
    }

    #[test]
    fn a_program_that_hangs_is_ended() {
        let error = Tool::new("sleep", 1).arg("60").run("wait for", &"nothing").unwrap_err();
        assert_eq!(error.to_string(), "cannot wait for nothing: sleep: took too long");
    }
}
