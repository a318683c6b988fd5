//! The control channel into a guest of the VM lab: run a script, get its outputs and its status, like ssh without a network.
//!
//! The caller's thread; clients of one port wait for one another. Every wait is bounded, and an answer is matched to its request by a
//! tag, so that one left over by a client that gave up is skipped. No standard input, no terminal.

use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use base64::prelude::{BASE64_STANDARD, Engine};

use super::channel::{Channel, Output};
use crate::clock;
use crate::error::{Error, Result};

/// One folder per guest of the lab.
pub const GUESTS: &str = "/run/plimsoll-vm";
/// The control port that is left to other programs than the one which owns the guest.
pub const PORT_OTHERS: usize = 2;
/// What the agent adds to a script's own limit before the client gives up on it.
const GRACE: Duration = Duration::from_secs(20);

/// One control port of a guest (a Unix socket that QEMU serves).
#[derive(Debug, Clone)]
pub struct VmChannel {
    guest: String,
    socket: PathBuf,
}

impl VmChannel {
    /// The channel of `guest` on `socket`; connects only when something is run.
    pub fn new(guest: impl Into<String>, socket: impl Into<PathBuf>) -> VmChannel {
        VmChannel { guest: guest.into(), socket: socket.into() }
    }

    /// The channel of the guest `name` that `plimsoll lab up --vm` started; an absolute path is the folder of another guest.
    pub fn of_lab(name: &str) -> VmChannel {
        VmChannel::new(name, Path::new(GUESTS).join(name).join(format!("control{PORT_OTHERS}")))
    }

    /// The socket's path.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Runs `script` (busybox sh) in the guest; it is killed after `limit` (whole seconds, at least one), its status is then 124.
    ///
    /// # Errors
    /// Environment: the guest is gone, or does not answer within `limit` and a grace.
    pub fn run(&self, script: &str, limit: Duration) -> Result<Output> {
        self.run_within(script, limit, limit + GRACE)
    }

    /// [`VmChannel::run`] with the client's own bound given: the guest may still be booting.
    pub fn run_within(&self, script: &str, limit: Duration, bound: Duration) -> Result<Output> {
        let gone = |cause: &dyn std::fmt::Display| {
            Error::environment("run a command in", format!("guest {}", self.guest))
                .because(cause)
                .remedy("see `plimsoll lab status`; the guest's console is beside its control socket")
        };
        let mut stream = UnixStream::connect(&self.socket).map_err(|e| gone(&e))?;
        let tag = next_tag();
        let request = format!("{tag} {} {}\n", limit.as_secs().max(1), BASE64_STANDARD.encode(script));
        stream.set_write_timeout(Some(bound)).map_err(|e| gone(&e))?;
        stream.write_all(request.as_bytes()).map_err(|e| gone(&e))?;
        let mut reader = Answer { stream, deadline: Deadline::after(bound), buffer: Vec::new() };
        reader.output(&tag).map_err(|e| match e.kind() {
            ErrorKind::TimedOut | ErrorKind::WouldBlock => gone(&format!("no answer within {} s", bound.as_secs())),
            ErrorKind::UnexpectedEof => gone(&"the virtual machine has ended"),
            _ => gone(&e),
        })
    }
}

/// The end of a bounded wait.
#[derive(Debug, Clone, Copy)]
pub struct Deadline(clock::Instant);

impl Deadline {
    /// `time` from now.
    pub fn after(time: Duration) -> Deadline {
        Deadline(clock::now().plus_ns(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)))
    }

    /// What is left of it; zero when it has passed.
    pub fn left(self) -> Duration {
        Duration::from_nanos(self.0.since_ns(clock::now()))
    }
}

impl Channel for VmChannel {
    fn run(&self, script: &str, limit: Duration, _hold: Option<&File>) -> Result<Output> {
        VmChannel::run(self, script, limit)
    }

    fn label(&self) -> String {
        format!("guest {}", self.guest)
    }
}

struct Answer {
    stream: UnixStream,
    deadline: Deadline,
    buffer: Vec<u8>,
}

impl Answer {
    fn output(&mut self, tag: &str) -> std::io::Result<Output> {
        let marker = format!("\n@{tag} ");
        let start = loop {
            if let Some(at) = find(&self.buffer, marker.as_bytes()) {
                break at + marker.len();
            }
            self.more()?;
        };
        let end = loop {
            if let Some(at) = find(&self.buffer[start..], b"\n") {
                break start + at;
            }
            self.more()?;
        };
        let header = String::from_utf8_lossy(&self.buffer[start..end]).into_owned();
        let mut numbers = header.split_whitespace().map(str::parse::<usize>);
        let (Some(Ok(status)), Some(Ok(out)), Some(Ok(err))) = (numbers.next(), numbers.next(), numbers.next()) else {
            return Err(std::io::Error::other(format!("broken answer {header:?}")));
        };
        let body = end + 1;
        while self.buffer.len() < body + out + err {
            self.more()?;
        }
        let text = |from: usize, len: usize| String::from_utf8_lossy(&self.buffer[from..from + len]).into_owned();
        Ok(Output {
            status: i32::try_from(status).unwrap_or(i32::MAX),
            stdout: text(body, out),
            stderr: text(body + out, err).trim().to_owned(),
        })
    }

    fn more(&mut self) -> std::io::Result<()> {
        let left = self.deadline.left();
        if left.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        self.stream.set_read_timeout(Some(left))?;
        let mut chunk = [0; 16384];
        match self.stream.read(&mut chunk) {
            Ok(0) => Err(ErrorKind::UnexpectedEof.into()),
            Ok(count) => {
                self.buffer.extend_from_slice(&chunk[..count]);
                Ok(())
            }
            // Ctrl-C must not cut off what puts a DUT's ring back; the caller looks at the deadline and reads on.
            Err(error) if error.kind() == ErrorKind::Interrupted => Ok(()),
            Err(error) => Err(error),
        }
    }
}

fn find(haystack: &[u8], needle: &[u8]) -> Option<usize> {
    haystack.windows(needle.len()).position(|window| window == needle)
}

/// Unique on this machine: process and count.
fn next_tag() -> String {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    format!("{:08x}{:08x}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    /// A guest that answers each request with `answer(tag)`.
    fn guest(answer: impl Fn(&str) -> String + Send + 'static) -> (tempfile::TempDir, VmChannel) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("c");
        let listener = UnixListener::bind(&path).unwrap();
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut line = Vec::new();
            let mut byte = [0];
            while stream.read(&mut byte).unwrap() == 1 && byte[0] != b'\n' {
                line.push(byte[0]);
            }
            let tag = String::from_utf8(line).unwrap().split(' ').next().unwrap().to_owned();
            stream.write_all(answer(&tag).as_bytes()).unwrap();
            // Hold the line until the client closes it.
            let _ = stream.read(&mut byte);
        });
        (dir, VmChannel::new("test", path))
    }

    #[test]
    fn an_answer_left_over_by_another_client_is_skipped() {
        let (_dir, channel) = guest(|tag| format!("\n@other 0 4 0\nabc\n\n@{tag} 7 3 2\nyesno"));
        let output = channel.run("x", Duration::from_secs(5)).unwrap();
        assert_eq!(output, Output { status: 7, stdout: "yes".into(), stderr: "no".into() });
    }

    #[test]
    fn a_silent_guest_is_given_up_in_time() {
        let (_dir, channel) = guest(|_| String::new());
        let error = channel.run_within("x", Duration::from_secs(1), Duration::from_millis(50)).unwrap_err();
        assert!(error.to_string().contains("no answer"), "{error}");
    }

    #[test]
    fn a_guest_that_is_gone_is_an_environment_error() {
        let error = VmChannel::new("gone", "/nonexistent/socket").run("x", Duration::from_secs(1)).unwrap_err();
        assert_eq!(error.kind(), crate::error::ErrorKind::Environment);
    }
}
