//! The channel to a DUT (or an ESXi host) over the OpenSSH client: keys only, one connection for all round trips.
//!
//! The caller's thread waits, within limits. The first script opens a master connection that later ones share; a DUT that rebooted gets a
//! new one. Nothing stays behind: the master is told to end when the channel is dropped, and ends by itself a minute after the last use
//! if this process was killed. The DUT needs only `sh`; where it has `timeout`, a hanging script is ended there too.

use super::channel::{Channel, Output, first_line, run_process};
use crate::error::{Error, Result};
use std::fs::{self, DirBuilder, File};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// How long opening the connection may take.
const CONNECT_LIMIT: Duration = Duration::from_secs(15);
/// What the client may take over the script's own limit.
const GRACE: Duration = Duration::from_secs(2);
const FOLDER: &str = "plimsoll-ssh-";

/// Where to connect to: `USER@HOST`, `HOST`, with `:PORT` behind it if it is not 22. `~/.ssh/config` applies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Destination {
    /// `USER@HOST`, `HOST` or an alias of `~/.ssh/config`.
    pub host: String,
    /// TCP port, where given.
    pub port: Option<u16>,
}

impl Destination {
    /// Reads `[USER@]HOST[:PORT]`; an IPv6 address that is followed by a port stands in brackets.
    ///
    /// # Errors
    /// Usage: it is empty, begins with `-`, or the port is no number.
    pub fn parse(text: &str) -> Result<Destination> {
        let wrong = |cause: &str| {
            Error::usage("use", format!("`{text}` as an ssh destination"))
                .because(cause)
                .remedy("write USER@HOST or USER@HOST:PORT")
        };
        let (host, port) = match text.rsplit_once(':') {
            Some((host, port)) if !host.contains(':') || host.ends_with(']') => {
                (host, Some(port.parse().map_err(|_| wrong("its port is no number"))?))
            }
            _ => (text, None),
        };
        let host = host.replace(['[', ']'], "");
        if host.is_empty() || host.ends_with('@') {
            return Err(wrong("it names no host"));
        }
        if host.starts_with('-') || host.contains(char::is_whitespace) {
            return Err(wrong("it is no host name"));
        }
        Ok(Destination { host, port })
    }
}

/// A channel over ssh.
#[derive(Debug)]
pub struct Ssh {
    destination: Destination,
    config: Option<PathBuf>,
    folder: PathBuf,
}

impl Ssh {
    /// Connects; `config` replaces `~/.ssh/config`.
    ///
    /// # Errors
    /// Environment: no ssh client, no route, a host key that is unknown or has changed, a key that is refused.
    pub fn open(destination: Destination, config: Option<&Path>) -> Result<Ssh> {
        remove_folders_of_the_dead();
        let folder = private_folder()
            .map_err(|error| Error::environment("make", "a folder for the ssh connection").os(&error))?;
        let ssh = Ssh { destination, config: config.map(Path::to_path_buf), folder };
        // An own step, so that what fails here is known to be the connection and not a script.
        ssh.run("exit 0", CONNECT_LIMIT, None)?;
        Ok(ssh)
    }

    fn argv(&self) -> Vec<String> {
        let mut argv: Vec<String> = ["ssh", "-T", "-x", "-a"].map(String::from).to_vec();
        if let Some(config) = &self.config {
            argv.extend(["-F".into(), config.display().to_string()]);
        }
        if let Some(port) = self.destination.port {
            argv.extend(["-p".into(), port.to_string()]);
        }
        let control = format!("ControlPath={}/s", self.folder.display());
        for option in [
            "BatchMode=yes",
            "PasswordAuthentication=no",
            "KbdInteractiveAuthentication=no",
            "ConnectTimeout=8",
            // A DUT that reboots in mid-trial sends no FIN: six seconds of silence end the connection.
            "ServerAliveInterval=2",
            "ServerAliveCountMax=3",
            "LogLevel=ERROR",
            "ControlMaster=auto",
            "ControlPersist=60",
            &control,
        ] {
            argv.extend(["-o".into(), option.into()]);
        }
        argv
    }

    /// Ends the shared connection, whatever its state.
    fn disconnect(&self) {
        let mut argv = self.argv();
        argv.extend(["-O".into(), "exit".into(), self.destination.host.clone()]);
        let _ = run_process(&argv, "", GRACE, None, &self.label());
    }
}

impl Channel for Ssh {
    fn run(&self, script: &str, limit: Duration, hold: Option<&File>) -> Result<Output> {
        let mut argv = self.argv();
        argv.push(self.destination.host.clone());
        // Any login shell can read this; `timeout` differs between coreutils and old busybox, so it is tried first.
        let seconds = limit.as_secs().max(1);
        argv.push(format!(
            "exec sh -c 'if timeout 5 true 2>/dev/null; then exec timeout {seconds} sh -s; else exec sh -s; fi'"
        ));
        let output =
            run_process(&argv, script, limit + GRACE, hold, &self.label()).inspect_err(|_| self.disconnect())?;
        match output.status {
            255 => Err(explain(&output.stderr, &self.label(), &self.destination.host)),
            124 => Err(Error::environment("get an answer from", self.label())
                .because(format!("nothing came within {} s", limit.as_secs_f64()))
                .remedy("see whether a command hangs there")),
            _ => Ok(output),
        }
    }

    fn label(&self) -> String {
        format!("ssh {}", self.destination.host)
    }
}

impl Drop for Ssh {
    fn drop(&mut self) {
        self.disconnect();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// What the client's message means and what to do.
fn explain(message: &str, label: &str, host: &str) -> Error {
    let error = Error::environment("connect to the DUT by", label);
    let has = |part: &str| message.contains(part);
    if has("IDENTIFICATION HAS CHANGED") {
        return error.because("its host key is not the one that is known").remedy(format!(
            "if the DUT was installed anew: ssh-keygen -R {}; otherwise somebody else answers",
            host.rsplit('@').next().unwrap_or(host)
        ));
    }
    if has("Host key verification failed") {
        return error
            .because("its host key is unknown")
            .remedy(format!("connect once by hand and check the key: ssh {host}"));
    }
    if has("Permission denied") {
        return error
            .because("it refused our key (only keys are used)")
            .remedy(format!("ssh-copy-id {host}, and load the key into the agent"));
    }
    error.because(first_line(message)).remedy(format!("see whether it is up: ssh {host} true"))
}

/// A new folder that only we may enter; the path is short enough for a socket in it (108 bytes).
fn private_folder() -> std::io::Result<PathBuf> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    loop {
        let name = format!("{FOLDER}{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        match DirBuilder::new().mode(0o700).create(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
            other => return other.map(|()| path),
        }
    }
}

/// Removes what killed processes left; their masters have ended or will.
fn remove_folders_of_the_dead() {
    let Ok(entries) = fs::read_dir(std::env::temp_dir()) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let owner = name.to_str().and_then(|name| name.strip_prefix(FOLDER)).and_then(|rest| rest.split('-').next());
        let Some(pid) = owner.and_then(|pid| pid.parse::<i32>().ok()).and_then(rustix::process::Pid::from_raw) else {
            continue;
        };
        let is_dead = rustix::process::test_kill_process(pid) == Err(rustix::io::Errno::SRCH);
        let has_master = entry.path().join("s").exists();
        if is_dead && !has_master {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn destinations_have_users_ports_and_addresses() {
        let parse = |text| Destination::parse(text).map(|d| (d.host, d.port)).ok();
        assert_eq!(parse("root@dut"), Some(("root@dut".into(), None)));
        assert_eq!(parse("root@10.0.0.1:2222"), Some(("root@10.0.0.1".into(), Some(2222))));
        assert_eq!(parse("root@[fd00::1]:22"), Some(("root@fd00::1".into(), Some(22))));
        assert_eq!(parse("fd00::1"), Some(("fd00::1".into(), None)));
        for wrong in ["", "root@", "-oProxyCommand=x", "a b", "host:port"] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn messages_of_the_client_become_remedies() {
        let text = |message| explain(message, "ssh root@dut", "root@dut").to_string();
        assert!(
            text("@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @\nHost key verification failed.")
                .contains("ssh-keygen -R dut")
        );
        assert!(text("Host key verification failed.").contains("its host key is unknown"));
        assert!(text("root@dut: Permission denied (publickey).").contains("ssh-copy-id root@dut"));
        assert!(text("\nssh: connect to host dut port 22: Connection refused").contains("Connection refused"));
    }
}
