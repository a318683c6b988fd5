//! Shell lines, here or inside a network namespace, with errors that say which line failed and why.

use std::process::{Command, Stdio};

use crate::error::{Error, Result};

/// Where a line runs.
#[derive(Debug, Clone, Copy)]
pub struct Shell {
    netns: Option<&'static str>,
}

impl Shell {
    /// Where this process runs.
    pub fn here() -> Shell {
        Shell { netns: None }
    }

    /// Inside a named network namespace (with its own `/sys`).
    pub fn inside(netns: &'static str) -> Shell {
        Shell { netns: Some(netns) }
    }

    /// Runs a line; returns its trimmed standard output.
    ///
    /// # Errors
    /// If it cannot be started or fails: the line's first words and its standard error.
    pub fn run(&self, line: &str) -> Result<String> {
        let mut command = match self.netns {
            None => Command::new("sh"),
            Some(netns) => {
                let mut command = Command::new("ip");
                command.args(["netns", "exec", netns, "sh"]);
                command
            }
        };
        let error = || Error::environment("run", format!("`{line}`"));
        let output = command
            .args(["-c", line])
            .stdin(Stdio::null())
            .output()
            .map_err(|cause| error().os(&cause).remedy("install iproute2"))?;
        if !output.status.success() {
            return Err(error().because(String::from_utf8_lossy(&output.stderr).trim()));
        }
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    }
}

/// CPUs this process may run on.
pub fn cpu_count() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}
