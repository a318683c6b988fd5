//! An observer: where a DUT is read and how, and what a trial's two readings say.
//!
//! Control plane, one at a time. Each reading is one round trip within a limit. An observer never aborts a trial: the [`Story`] of a trial
//! whose reading failed has a caveat instead of counters.

use super::channel::{Channel, ProcessChannel, first_line, quoted};
use super::counters::{Delta, InterfaceFacts, Snapshot, Source};
use super::ssh::{Destination, Ssh};
use super::stages::{Side, attribute};
use super::vm::VmChannel;
use super::vsish::{self, PortStory};
use super::{script, template};
use crate::caveat::{Caveat, Code};
use crate::diagnose::{DutFacts, Stage, StageDelta};
use crate::error::{Error, Result};
use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// How long one reading may take.
pub const READ_LIMIT: Duration = Duration::from_secs(10);
/// A CPU is full of receive work from this share of its time on.
const BUSY_PERMILLE: u64 = 900;

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

/// What two readings say about a trial.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Story {
    /// Counters that moved, by stage.
    pub moved: Vec<StageDelta>,
    /// What advice depends on.
    pub facts: DutFacts,
    /// Frames that the DUT ingested by its own count, if it can be told.
    pub ingested: Option<Ingested>,
    /// A hypervisor port's story in a sentence.
    pub sentence: Option<String>,
    /// Doubts.
    pub caveats: Vec<Caveat>,
    /// The machine that was read, by its boot.
    boot_id: Option<String>,
}

/// Frames that a terminating DUT took, by its own count.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ingested {
    /// Frames.
    pub frames: u64,
    /// The last stage that they passed.
    pub at: Stage,
    /// Which counter says so.
    pub counter: &'static str,
}

impl Story {
    /// The story of a trial from the readings before and after it.
    pub fn of(before: Result<Snapshot>, after: Result<Snapshot>, interfaces: &[String], side: Side) -> Story {
        let (before, after) = match (before, after) {
            (Ok(before), Ok(after)) => (before, after),
            (before, after) => {
                let mut caveats: Vec<Caveat> = Vec::new();
                for error in [before.err(), after.err()].into_iter().flatten() {
                    let caveat = Caveat::new(Code::ObserverFailed, format!("the DUT was not observed: {error}"));
                    if !caveats.contains(&caveat) {
                        caveats.push(caveat);
                    }
                }
                return Story { caveats, ..Story::default() };
            }
        };
        let mut delta = Delta::between(&before, &after);
        forget_links_of_others(&mut delta);
        let mut caveats: Vec<Caveat> =
            delta.doubts.iter().map(|doubt| Caveat::new(Code::ObserverFailed, doubt.clone())).collect();
        let ingested = ingested(&delta, interfaces);
        if delta.total(Source::Mib, "Udp.NoPorts") > 0 && ingested.as_ref().is_some_and(|i| i.at == Stage::Ip) {
            caveats.push(Caveat::new(
                Code::PortClosed,
                "no program listens on the destination port of the DUT: frames are counted as ingested when its IP layer delivers them",
            ));
        }
        let is_vsish = after.counters.keys().any(|counter| counter.source == Source::Vsish);
        Story {
            moved: attribute(&delta, side),
            facts: facts(&delta, interfaces),
            ingested,
            sentence: is_vsish.then(|| PortStory::between(&before, &after).sentence()),
            caveats,
            boot_id: after.boot_id,
        }
    }

    /// The counters that moved, where `ingested` is taken for what was received: what happened to a frame after that is no loss of it.
    pub fn moved_before_receipt(&self) -> Vec<StageDelta> {
        let received_at = self.ingested.as_ref().map(|ingested| ingested.at);
        let mut moved = self.moved.clone();
        for line in &mut moved {
            if line.stage.is_some_and(|stage| stage.is_dut() && received_at.is_some_and(|at| stage > at)) {
                line.lost_frames = 0;
            }
        }
        moved
    }

    /// Puts another observer's story to this one: counters of both, the facts and counts of the first that has them.
    #[must_use]
    pub fn and(mut self, other: Story) -> Story {
        // Two namespaces of one machine share its per-CPU backlogs.
        let is_same_machine = self.boot_id.is_some() && self.boot_id == other.boot_id;
        let is_shared = |line: &StageDelta| is_same_machine && line.counter.starts_with(Source::Softnet.name());
        self.moved.extend(other.moved.into_iter().filter(|line| !is_shared(line)));
        self.caveats.extend(other.caveats);
        if self.facts == DutFacts::default() {
            self.facts = other.facts;
        }
        self.ingested = self.ingested.or(other.ingested);
        self.sentence = self.sentence.or(other.sentence);
        self
    }
}

/// Drops carrier changes of interfaces that hardly carried anything: a container that starts on the DUT is no outage of our link.
fn forget_links_of_others(delta: &mut Delta) {
    let traffic = |delta: &Delta, name: &str| {
        delta.of_interface(name, Source::Link, "rx_packets").saturating_add(delta.of_interface(
            name,
            Source::Link,
            "tx_packets",
        ))
    };
    let names: Vec<String> = delta.moved.keys().map(|counter| counter.interface.clone()).collect();
    let busiest = names.iter().map(|name| traffic(delta, name)).max().unwrap_or(0);
    let others: BTreeSet<String> = names.into_iter().filter(|name| traffic(delta, name) < busiest / 10).collect();
    delta.moved.retain(|counter, _| !(counter.name.starts_with("carrier_") && others.contains(&counter.interface)));
}

/// What the DUT says it took: its own word (`received` of a command), datagrams that reached a program, what IP delivered where no program
/// listens, or what a hypervisor's port handed over.
fn ingested(delta: &Delta, interfaces: &[String]) -> Option<Ingested> {
    if delta.rebooted {
        return None;
    }
    let mib = |name: &str| delta.total(Source::Mib, name);
    let of = |frames: u64, at: Stage, counter: &'static str| Some(Ingested { frames, at, counter });
    let own = delta.total(Source::Command, "received");
    if own > 0 {
        return of(own, Stage::Socket, "received");
    }
    let datagrams = mib("Udp.InDatagrams") + mib("Udp6InDatagrams");
    let refused = mib("Udp.NoPorts") + mib("Udp6NoPorts");
    let at_a_socket = datagrams
        + mib("Udp.RcvbufErrors")
        + mib("Udp6RcvbufErrors")
        + mib("Udp.InCsumErrors")
        + mib("Udp6InCsumErrors");
    if at_a_socket > refused {
        return of(datagrams, Stage::Socket, "Udp.InDatagrams");
    }
    let delivered = mib("Ip.InDelivers") + mib("Ip6InDelivers");
    if delivered > 0 {
        return of(delivered, Stage::Ip, "Ip.InDelivers");
    }
    let handed_over = delta.total(Source::Vsish, "pkts rx ok");
    if handed_over > 0 {
        return of(handed_over, Stage::VnicRing, "pkts rx ok");
    }
    let arrived = interfaces.first().map_or(0, |name| delta.of_interface(name, Source::Link, "rx_packets"));
    (arrived > 0).then_some(Ingested { frames: arrived, at: Stage::Driver, counter: "rx_packets" })
}

fn facts(delta: &Delta, interfaces: &[String]) -> DutFacts {
    let named = interfaces.first().and_then(|name| delta.interfaces.get_key_value(name));
    // Without a name: the interface that took most.
    let busiest =
        || delta.interfaces.iter().max_by_key(|(name, _)| delta.of_interface(name, Source::Link, "rx_packets"));
    let Some((name, found)) = named.or_else(busiest) else { return DutFacts::default() };
    let InterfaceFacts { driver, claim_mbps, rx_ring, rx_ring_max, rx_queues, rx_queues_max, queues_combined, .. } =
        found.clone();
    DutFacts {
        interface: Some(name.clone()),
        driver,
        claim_mbps,
        rx_ring,
        rx_ring_max,
        rx_queues,
        rx_queues_max,
        queues_combined,
        cpus: (!delta.cpus.is_empty()).then_some(delta.cpus.len() as u64),
        busy_cpus: delta
            .cpus
            .iter()
            .filter(|share| share.softirq_permille >= BUSY_PERMILLE)
            .map(|share| share.cpu)
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::counters::CpuTicks;
    use super::*;
    use std::io::Write;

    fn mib(values: &[(&str, u64)]) -> Snapshot {
        let mut s = Snapshot::default();
        for (name, value) in values {
            s.add(Source::Mib, "", "", name, *value);
        }
        s
    }

    fn story(after: Snapshot) -> Story {
        Story::of(Ok(Snapshot::default()), Ok(after), &["eth0".into()], Side::Dut)
    }

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
    fn a_failed_reading_is_a_caveat_and_no_counters() {
        let failed = || Err(Error::environment("get an answer from", "ssh dut"));
        let told = Story::of(failed(), failed(), &[], Side::Dut);
        assert_eq!((told.moved.len(), told.caveats.len()), (0, 1));
        assert_eq!(told.caveats[0].code, Code::ObserverFailed);
        assert!(told.caveats[0].text.contains("get an answer from ssh dut"));
    }

    #[test]
    fn datagrams_count_as_ingested_where_a_program_listens_and_what_ip_delivers_where_none_does() {
        let slow =
            story(mib(&[("Udp.InDatagrams", 10), ("Udp.RcvbufErrors", 90), ("Ip.InDelivers", 100)])).ingested.unwrap();
        assert_eq!((slow.frames, slow.at), (10, Stage::Socket));
        let closed = story(mib(&[("Udp.NoPorts", 100), ("Ip.InDelivers", 100), ("Udp.InDatagrams", 2)]));
        assert_eq!(closed.ingested.as_ref().map(|i| (i.frames, i.at)), Some((100, Stage::Ip)));
        assert!(closed.caveats.iter().any(|c| c.code == Code::PortClosed));
        let lost = |lines: &[StageDelta]| lines.iter().map(|line| line.lost_frames).sum::<u64>();
        assert_eq!(
            (lost(&closed.moved), lost(&closed.moved_before_receipt())),
            (100, 0),
            "delivered by IP, then refused"
        );
        assert_eq!(story(Snapshot::default()).ingested, None);
    }

    #[test]
    fn a_link_change_of_an_idle_interface_is_not_ours() {
        let mut after = Snapshot::default();
        for (interface, packets) in [("eth0", 1000), ("veth7", 2)] {
            after.add(Source::Link, interface, "", "rx_packets", packets);
            after.add(Source::Link, interface, "", "carrier_changes", 2);
        }
        let moved = story(after).moved;
        assert_eq!(moved.iter().map(|line| line.counter.as_str()).collect::<Vec<_>>(), ["eth0 link carrier_changes"]);
    }

    #[test]
    fn facts_are_those_of_the_named_interface_and_of_the_busy_cpus() {
        let mut after = Snapshot::default();
        after.interfaces.insert("eth0".into(), InterfaceFacts { rx_ring: Some(512), ..InterfaceFacts::default() });
        after.interfaces.insert("eth1".into(), InterfaceFacts { rx_ring: Some(64), ..InterfaceFacts::default() });
        let mut before = after.clone();
        for (cpu, softirq) in [(0, 950), (1, 10)] {
            before.cpus.insert(cpu, CpuTicks::default());
            after.cpus.insert(cpu, CpuTicks { total: 1000, softirq, ..CpuTicks::default() });
        }
        let told = Story::of(Ok(before), Ok(after), &["eth0".into()], Side::Dut).facts;
        assert_eq!((told.rx_ring, told.cpus, told.busy_cpus), (Some(512), Some(2), vec![0]));
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
    fn what_a_guest_took_goes_before_what_its_port_handed_over() {
        let mut after = Snapshot::default();
        after.add(Source::Vsish, "vsish 0/1", "", "pkts rx ok", 100);
        after.add(Source::Mib, "", "", "Udp.InDatagrams", 80);
        let told = Story::of(Ok(Snapshot::default()), Ok(after), &[], Side::Dut).ingested.unwrap();
        assert_eq!((told.frames, told.at), (80, Stage::Socket));
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
