//! An observer: where a DUT is read and how.
//!
//! Control plane, one at a time. Each reading is one round trip within a limit. An observer never aborts a trial: the
//! [story](super::story) of a trial whose reading failed has a caveat instead of counters.

use super::channel::{Channel, ProcessChannel, first_line, quoted};
use super::counters::{Snapshot, Source};
use super::ssh::{Destination, Ssh};
use super::vm::VmChannel;
use super::vsish;
use super::{script, template};
use crate::error::{Error, Result};
use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// How long one reading may take.
pub const READ_LIMIT: Duration = Duration::from_secs(10);

/// Where the DUT is read: the profile's `dut: observe:`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// `local`: this host, in the namespace the run is in.
    Local,
    /// `netns:NAME`.
    Netns(String),
    /// `ssh:USER@HOST[:PORT]`: a Linux DUT.
    Ssh(Destination),
    /// `command:…`: a command on this host that prints JSON or `name: value` lines; `{interface}` is replaced.
    Command(String),
    /// `vsish:USER@HOST/PORTSET/PORT`: an ESXi host's port.
    Vsish(Destination, String),
    /// `vsish:file:BEFORE,AFTER`: two saved texts.
    VsishFiles(PathBuf, PathBuf),
    /// `vm:NAME`: a guest of the VM lab (or `vm:/FOLDER`, where its control sockets are).
    Vm(String),
}

impl Target {
    /// Reads the profile's text.
    ///
    /// # Errors
    /// Usage: none of the forms, or one with a part missing.
    pub fn parse(text: &str) -> Result<Target> {
        let wrong = |cause: &str| {
            Error::usage("observe the DUT by", format!("`{text}`"))
                .because(cause)
                .remedy("use local, netns:NAME, ssh:USER@HOST, command:…, vsish:USER@HOST/PORTSET/PORT, vsish:file:BEFORE,AFTER or vm:NAME")
        };
        let (kind, rest) = text.split_once(':').map_or((text, ""), |(kind, rest)| (kind.trim(), rest.trim()));
        if kind != "local" && rest.is_empty() {
            return Err(wrong(if text.contains(':') {
                "nothing stands behind the colon"
            } else {
                "it is not one of the known forms"
            }));
        }
        match kind {
            "local" if rest.is_empty() => Ok(Target::Local),
            "netns" => Ok(Target::Netns(rest.into())),
            "vm" => Ok(Target::Vm(rest.into())),
            "ssh" => Ok(Target::Ssh(Destination::parse(rest)?)),
            "command" => Ok(Target::Command(rest.into())),
            "vsish" => match rest.strip_prefix("file:") {
                Some(files) => {
                    let (before, after) = files
                        .split_once(',')
                        .ok_or_else(|| wrong("two files are needed, with a comma between them"))?;
                    Ok(Target::VsishFiles(before.trim().into(), after.trim().into()))
                }
                None => {
                    let (host, port) = rest.split_once('/').ok_or_else(|| wrong("the port is missing"))?;
                    if port.split('/').count() != 2 || port.split('/').any(str::is_empty) {
                        return Err(wrong("the port is not PORTSET/PORT, as `net-stats -l` on the host lists them"));
                    }
                    Ok(Target::Vsish(Destination::parse(host)?, port.into()))
                }
            },
            _ => Err(wrong("it is not one of the known forms")),
        }
    }
}

enum Reader {
    Linux,
    Command(String),
    Vsish(String),
    Files([PathBuf; 2], AtomicUsize),
}

/// A way to read the DUT, ready to be used.
pub struct Observer {
    reader: Reader,
    channel: Box<dyn Channel>,
    interfaces: Vec<String>,
    limit: Duration,
    also: Vec<Observer>,
}

impl Observer {
    /// Opens the way to a target. `interfaces` are the DUT's, the one that takes our frames first; empty means all.
    ///
    /// # Errors
    /// Environment: the DUT cannot be reached, or not within the limit.
    pub fn open(target: &Target, interfaces: Vec<String>) -> Result<Observer> {
        let local = || -> Box<dyn Channel> { Box::new(ProcessChannel::local()) };
        let (reader, channel): (Reader, Box<dyn Channel>) = match target {
            Target::Local => (Reader::Linux, local()),
            Target::Netns(name) => (Reader::Linux, Box::new(ProcessChannel::netns(name))),
            Target::Ssh(destination) => (Reader::Linux, Box::new(Ssh::open(destination.clone(), None)?)),
            Target::Command(command) => (Reader::Command(command.clone()), local()),
            Target::Vsish(destination, port) => {
                (Reader::Vsish(port.clone()), Box::new(Ssh::open(destination.clone(), None)?))
            }
            Target::VsishFiles(before, after) => {
                (Reader::Files([before.clone(), after.clone()], AtomicUsize::new(0)), local())
            }
            Target::Vm(name) => (Reader::Linux, Box::new(VmChannel::of_lab(name))),
        };
        Ok(Observer { reader, channel, interfaces, limit: READ_LIMIT, also: Vec::new() })
    }

    /// A Linux DUT over a channel that is already open.
    pub fn over(channel: Box<dyn Channel>, interfaces: Vec<String>) -> Observer {
        Observer { reader: Reader::Linux, channel, interfaces, limit: READ_LIMIT, also: Vec::new() }
    }

    /// The same with another limit for each reading.
    #[must_use]
    pub fn with_limit(self, limit: Duration) -> Observer {
        Observer { limit, ..self }
    }

    /// The same, and what another observer reads of the same DUT beside it: a hypervisor's port, a command. Settings are this one's.
    #[must_use]
    pub fn and(mut self, other: Observer) -> Observer {
        self.also.push(other);
        self
    }

    /// What it reads, for messages.
    pub fn label(&self) -> String {
        match &self.reader {
            Reader::Linux => self.channel.label(),
            Reader::Command(command) => format!("`{command}`"),
            Reader::Vsish(port) => format!("vsish port {port} by {}", self.channel.label()),
            Reader::Files(files, _) => format!("{} and {}", files[0].display(), files[1].display()),
        }
    }

    /// The channel, for changing what is set on the DUT; `None` if the DUT is only read through something else.
    pub fn channel(&self) -> Option<&dyn Channel> {
        matches!(self.reader, Reader::Linux).then_some(self.channel.as_ref())
    }

    /// The DUT's interfaces as named in the profile.
    pub fn interfaces(&self) -> &[String] {
        &self.interfaces
    }

    /// Reads the DUT once. What an observer beside this one cannot read is a doubt.
    ///
    /// # Errors
    /// Environment: no answer within the limit, or one that holds no counter.
    pub fn observe(&self) -> Result<Snapshot> {
        let mut snapshot = self.read()?;
        for other in &self.also {
            match other.observe() {
                Ok(more) => snapshot.join(more),
                Err(error) => {
                    snapshot.doubts.push(format!("the DUT was not observed in full: {error}"));
                    snapshot.silent.push(other.source());
                }
            }
        }
        Ok(snapshot)
    }

    /// Whether the DUT can be read, without using up one of two saved readings.
    ///
    /// # Errors
    /// As [`Observer::observe`].
    pub fn answers(&self) -> Result<()> {
        match self.reader {
            Reader::Files(..) => Ok(()),
            _ => self.read().map(drop),
        }
    }

    /// Where an observer's counters come from that stands beside another; never a Linux DUT.
    fn source(&self) -> Source {
        match self.reader {
            Reader::Command(_) => Source::Command,
            _ => Source::Vsish,
        }
    }

    fn read(&self) -> Result<Snapshot> {
        let failed = |cause: String| Error::environment("read the DUT by", self.label()).because(cause);
        match &self.reader {
            Reader::Linux => {
                let output = self.channel.run(&script::compose(&self.interfaces), self.limit, None)?;
                if output.stdout.is_empty() {
                    return Err(failed(first_line(&output.stderr).into()));
                }
                Ok(script::read(&output.stdout))
            }
            Reader::Command(command) => {
                let interface = self.interfaces.first().map_or("", String::as_str);
                let output = self.channel.run(&command.replace("{interface}", &quoted(interface)), self.limit, None)?;
                if output.status != 0 {
                    return Err(failed(format!(
                        "it ended with status {}: {}",
                        output.status,
                        first_line(&output.stderr)
                    )));
                }
                let mut snapshot = Snapshot::default();
                template::counters(&output.stdout, interface, &mut snapshot).map_err(failed)?;
                Ok(snapshot)
            }
            Reader::Vsish(port) => {
                let output = self.channel.run(&vsish::compose(port), self.limit, None)?;
                vsish::read(&output.stdout, port).map_err(|cause| {
                    failed(cause).remedy("see `net-stats -l` on the host for the port's portset and number")
                })
            }
            Reader::Files(files, next) => {
                let path = files.get(next.fetch_add(1, Ordering::Relaxed)).ok_or_else(|| {
                    failed("both texts were used by an earlier trial".into())
                        .remedy("two saved texts serve one trial; use --duration and one load")
                })?;
                let text = fs::read_to_string(path)
                    .map_err(|error| Error::environment("read", path.display().to_string()).os(&error))?;
                vsish::read(&text, "file").map_err(failed)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{stages::Side, story::Story};
    use super::*;
    use std::io::Write;

    #[test]
    fn every_form_of_a_target_is_read_and_others_are_refused_with_the_list() {
        let ssh = |host: &str| Destination { host: host.into(), port: None };
        for (text, expected) in [
            ("local", Target::Local),
            ("netns:d", Target::Netns("d".into())),
            ("ssh:root@dut", Target::Ssh(ssh("root@dut"))),
            ("command: show interfaces {interface}", Target::Command("show interfaces {interface}".into())),
            ("vsish:root@esx/vSwitch0/50331663", Target::Vsish(ssh("root@esx"), "vSwitch0/50331663".into())),
            ("vsish:file:a.txt, b.txt", Target::VsishFiles("a.txt".into(), "b.txt".into())),
            ("vm:dut", Target::Vm("dut".into())),
        ] {
            assert_eq!(Target::parse(text).unwrap(), expected, "{text}");
        }
        for wrong in ["", "netns:", "netns", "telnet:x", "vsish:host", "vsish:host/port", "vsish:file:a", "ssh:"] {
            let error = Target::parse(wrong).unwrap_err().to_string();
            assert!(error.contains("vsish:file:BEFORE,AFTER") || error.contains("USER@HOST"), "{wrong}: {error}");
        }
    }

    #[test]
    fn two_saved_vsish_texts_tell_one_trial() {
        let file = |text: &str| {
            let mut file = tempfile::NamedTempFile::new().unwrap();
            file.write_all(text.as_bytes()).unwrap();
            file
        };
        let before = file("pkts rx ok:0 bytes rx ok:0 running out of buffers:0 # of times the 1st ring is full:0");
        let after = file(
            "pkts rx ok:75409132 bytes rx ok:26921060124 running out of buffers:25183929 1st ring size:1024 2nd ring size:256 \
             # of times the 1st ring is full:25183929",
        );
        let target = Target::VsishFiles(before.path().into(), after.path().into());
        let observer = Observer::open(&target, Vec::new()).unwrap();
        let told = Story::of(observer.observe(), observer.observe(), &[], Side::Dut);
        assert_eq!(
            told.sentence.as_deref(),
            Some(
                "25,183,929 frames, 25.0 % of those offered to the port, were lost at the vNIC's first ring (1024 descriptors), mean frame 357 B"
            )
        );
        assert_eq!(told.moved.iter().map(|line| line.lost_frames).sum::<u64>(), 25_183_929);
        assert_eq!(told.ingested.map(|i| i.frames), Some(75_409_132));
        assert_eq!(told.facts.rx_ring, Some(1024));
        assert!(observer.observe().unwrap_err().to_string().contains("one trial"));
    }

    #[test]
    fn two_observers_tell_one_story_and_one_of_them_may_fail() {
        let command =
            |text: &str| Observer::open(&Target::Command(format!("echo '{text}'")), vec!["ge0".into()]).unwrap();
        let files = |before: &str, after: &str| {
            let file = |text: &str| {
                let mut file = tempfile::NamedTempFile::new().unwrap();
                file.write_all(text.as_bytes()).unwrap();
                file
            };
            let kept = (file(before), file(after));
            (Observer::open(&Target::VsishFiles(kept.0.path().into(), kept.1.path().into()), Vec::new()).unwrap(), kept)
        };
        let text = |ok: u64, full: u64| format!("pkts rx ok:{ok} running out of buffers:{full}");
        let (vsish, _kept) = files(&text(1000, 5), &text(1900, 105));
        let both = command("driver/missed: 7").and(vsish);
        let told = Story::of(both.observe(), both.observe(), both.interfaces(), Side::Dut);
        assert!(told.caveats.is_empty(), "{:?}", told.caveats);
        assert_eq!(told.moved.iter().map(|line| line.lost_frames).sum::<u64>(), 100);
        assert_eq!(told.ingested.map(|i| (i.frames, i.counter)), Some((900, "pkts rx ok")));

        // The first reading of the port fails: its absolute counts are not taken for what moved.
        let (vsish, kept) = files(&text(1000, 5), &text(1900, 105));
        let both = command("driver/missed: 7").and(vsish);
        let gone = kept.0.into_temp_path();
        gone.close().unwrap();
        let told = Story::of(both.observe(), both.observe(), both.interfaces(), Side::Dut);
        assert!(told.moved.is_empty() && told.ingested.is_none(), "{:?}", told.moved);
        assert!(told.caveats.iter().any(|caveat| caveat.text.contains("not observed in full")), "{:?}", told.caveats);
    }

    #[test]
    fn a_command_is_read_and_its_failure_explained() {
        let read =
            |command: &str| Observer::open(&Target::Command(command.into()), vec!["ge0".into()]).unwrap().observe();
        let s = read("echo \"drops on {interface}\": 7; echo vnic_ring/no buffer: 3").unwrap();
        assert_eq!(s.counters.len(), 2);
        let error = read("echo no such command >&2; exit 3").unwrap_err().to_string();
        assert!(error.contains("status 3: no such command"), "{error}");
        assert!(read("echo nothing").unwrap_err().to_string().contains("no `name: value`"));
    }
}
