//! How a shell script gets to the DUT and its output back: on this host, in a network namespace, over ssh.
//!
//! The caller's thread waits, a helper thread reads, and no wait is without a limit. Children run in a process group of their own: the
//! terminal's Ctrl-C does not reach them (putting a ring back must not be interrupted), and a hanging one is killed with its children.
//! Standard error goes to a file, because an ssh master that stays in the background would keep a pipe open.

use crate::error::{Error, Result};
use std::fs::File;
use std::io::{Read, Seek, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

/// The most output that is taken from a script.
const OUTPUT_LIMIT_BYTES: u64 = 8 << 20;
/// How long a killed child may take to be gone.
const REAP_LIMIT: Duration = Duration::from_secs(2);

/// What a script answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Output {
    /// Standard output; bytes that are no UTF-8 are replaced.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
    /// Exit status; 128 + n if signal n ended it.
    pub status: i32,
}

/// A way to run shell scripts where the DUT is.
pub trait Channel: Send + Sync {
    /// Runs `script` with `sh` and waits for at most `limit`.
    ///
    /// `hold` is a file that stays open in the child until it ends, even if this process is killed: an `flock` on it then says that
    /// the script may still be at work. Channels without a child process ignore it.
    ///
    /// # Errors
    /// The channel broke, or the limit passed. A script that merely fails is no error: see [`Output::status`].
    fn run(&self, script: &str, limit: Duration, hold: Option<&File>) -> Result<Output>;

    /// What it leads to, such as `netns d` or `ssh root@dut`; for messages.
    fn label(&self) -> String;
}

/// A channel that is a child process which reads the script from standard input.
#[derive(Debug, Clone)]
pub struct ProcessChannel {
    argv: Vec<String>,
    label: String,
}

impl ProcessChannel {
    /// This host, in the namespace that this process is in.
    pub fn local() -> ProcessChannel {
        ProcessChannel { argv: vec!["sh".into(), "-s".into()], label: "this host".into() }
    }

    /// A named network namespace of this host, entered by `ip netns exec` (which also shows that namespace's `/sys`).
    pub fn netns(name: &str) -> ProcessChannel {
        let argv = ["ip", "netns", "exec", name, "sh", "-s"].map(String::from).to_vec();
        ProcessChannel { argv, label: format!("netns {name}") }
    }
}

impl Channel for ProcessChannel {
    fn run(&self, script: &str, limit: Duration, hold: Option<&File>) -> Result<Output> {
        run_process(&self.argv, script, limit, hold, &self.label)
    }

    fn label(&self) -> String {
        self.label.clone()
    }
}

/// Runs `argv` with `script` on its standard input.
pub(super) fn run_process(
    argv: &[String],
    script: &str,
    limit: Duration,
    hold: Option<&File>,
    label: &str,
) -> Result<Output> {
    let failed = |what: &str, error: &std::io::Error| Error::environment(what, label).os(error);
    let mut messages = match hold {
        Some(file) => file.try_clone(),
        None => anonymous_file(),
    }
    .map_err(|error| failed("make a file for messages from", &error))?;
    messages
        .set_len(0)
        .and_then(|()| messages.rewind())
        .map_err(|error| failed("empty the file for messages from", &error))?;
    let stderr = messages.try_clone().map_err(|error| failed("share the file for messages from", &error))?;
    let mut child = Command::new(&argv[0])
        .args(&argv[1..])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(stderr)
        .process_group(0)
        .spawn()
        .map_err(|error| failed("start the shell for", &error).remedy(format!("install {}", argv[0])))?;
    let group = rustix::process::Pid::from_child(&child);
    if let Some(mut stdin) = child.stdin.take() {
        // A child that ended before it read everything says why by its status and messages.
        let _ = stdin.write_all(script.as_bytes());
    }
    let (sender, receiver) = mpsc::channel();
    thread::Builder::new()
        .name("dut-channel".into())
        .spawn(move || {
            let _ = sender.send(collect(child));
        })
        .map_err(|error| failed("start a thread for", &error))?;
    let collected = receiver.recv_timeout(limit);
    if collected.is_err() {
        let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        let _ = receiver.recv_timeout(REAP_LIMIT);
        return Err(Error::environment("get an answer from", label)
            .because(format!("nothing came within {} s", limit.as_secs_f64()))
            .remedy("see whether a command hangs there"));
    }
    let (stdout, status) =
        collected.unwrap_or_else(|_| unreachable!("handled above")).map_err(|error| failed("read from", &error))?;
    let mut stderr = Vec::new();
    let _ = messages.rewind().and_then(|()| messages.take(64 << 10).read_to_end(&mut stderr));
    Ok(Output { stdout, stderr: String::from_utf8_lossy(&stderr).trim().to_string(), status })
}

fn collect(mut child: Child) -> std::io::Result<(String, i32)> {
    use std::os::unix::process::ExitStatusExt;
    let mut bytes = Vec::new();
    if let Some(stdout) = child.stdout.take() {
        stdout.take(OUTPUT_LIMIT_BYTES).read_to_end(&mut bytes)?;
    }
    let status = child.wait()?;
    let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
    Ok((String::from_utf8_lossy(&bytes).into_owned(), code))
}

/// A file that has no name and is gone when it is closed.
fn anonymous_file() -> std::io::Result<File> {
    let flags = rustix::fs::MemfdFlags::CLOEXEC;
    Ok(File::from(rustix::fs::memfd_create("plimsoll-messages", flags)?))
}

/// The first line that says something, for use as an error's cause.
pub(super) fn first_line(text: &str) -> &str {
    text.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or("no message")
}

/// `text` as one word for a POSIX shell.
pub(super) fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    const LIMIT: Duration = Duration::from_secs(20);

    #[test]
    fn output_messages_and_status_come_back() {
        let output = ProcessChannel::local().run("echo out; echo bad >&2; exit 3", LIMIT, None).unwrap();
        assert_eq!((output.stdout.as_str(), output.stderr.as_str(), output.status), ("out\n", "bad", 3));
    }

    #[test]
    fn a_hanging_script_is_killed_with_its_children_when_the_limit_passes() {
        let begun = Instant::now();
        let error = ProcessChannel::local()
            .run("echo $$; sleep 1000 & sleep 1000", Duration::from_millis(300), None)
            .unwrap_err();
        assert!(error.to_string().contains("get an answer from this host: nothing came within 0.3 s"), "{error}");
        assert!(begun.elapsed() < Duration::from_secs(3), "{:?}", begun.elapsed());
    }

    #[test]
    fn a_child_that_escapes_and_keeps_the_output_open_does_not_hold_us() {
        let begun = Instant::now();
        let script = "setsid sleep 30 & echo escaped";
        assert!(ProcessChannel::local().run(script, Duration::from_millis(300), None).is_err());
        assert!(begun.elapsed() < Duration::from_secs(5));
    }

    #[test]
    fn output_without_end_is_cut_off() {
        let output = ProcessChannel::local().run("yes", LIMIT, None).unwrap();
        assert_eq!(output.stdout.len() as u64, OUTPUT_LIMIT_BYTES);
    }

    #[test]
    fn a_missing_namespace_is_a_status_with_a_message() {
        let output = ProcessChannel::netns("plimsoll-no-such-ns").run("echo hi", LIMIT, None).unwrap();
        assert!(output.status != 0 && output.stderr.contains("plimsoll-no-such-ns"), "{output:?}");
    }

    #[test]
    fn quoting_survives_quotes() {
        let output =
            ProcessChannel::local().run(&format!("printf %s {}", quoted("a'b $HOME \"c")), LIMIT, None).unwrap();
        assert_eq!(output.stdout, "a'b $HOME \"c");
    }
}
