//! The story of a trial: what a DUT's two readings, before and after it, say.
//!
//! Pure. A reading that failed makes a caveat instead of counters.

use super::counters::{Delta, InterfaceFacts, Snapshot, Source};
use super::stages::{Side, attribute};
use super::vsish::PortStory;
use crate::caveat::{Caveat, Code};
use crate::diagnose::{DutFacts, Stage, StageDelta};
use crate::error::Result;
use std::collections::BTreeSet;

/// A CPU is full of receive work from this share of its time on.
const BUSY_PERMILLE: u64 = 900;

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
    use crate::error::Error;

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
    fn what_a_guest_took_goes_before_what_its_port_handed_over() {
        let mut after = Snapshot::default();
        after.add(Source::Vsish, "vsish 0/1", "", "pkts rx ok", 100);
        after.add(Source::Mib, "", "", "Udp.InDatagrams", 80);
        let told = Story::of(Ok(Snapshot::default()), Ok(after), &[], Side::Dut).ingested.unwrap();
        assert_eq!((told.frames, told.at), (80, Stage::Socket));
    }
}
