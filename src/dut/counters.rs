//! What an observer read from the DUT at one moment, and what moved between two moments.
//!
//! Pure: no I/O. Counters are `u64` and are never clamped; one that went backwards is either a 32-bit wrap (seen on old drivers) or
//! a reset, and a reset makes a doubt, never a number. Which stage a counter belongs to is decided elsewhere (`stages`).

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// Where a counter was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// `/sys/class/net/IF/statistics`, `/proc/net/dev`, `carrier_changes`, `ip -s -s link`.
    Link,
    /// `ethtool -S`.
    Ethtool,
    /// `/proc/net/softnet_stat`, all CPUs together. Host-global, not per interface or namespace.
    Softnet,
    /// `/proc/net/snmp`, `snmp6` and `netstat`.
    Mib,
    /// `/proc/net/stat/*`: neighbour tables and conntrack.
    Neigh,
    /// `tc -s qdisc`.
    Qdisc,
    /// An ESXi host's `vsish` port statistics.
    Vsish,
    /// A command template or another program's report.
    Command,
}

impl Source {
    /// The word used when the counter is shown.
    pub fn name(self) -> &'static str {
        match self {
            Source::Link => "link",
            Source::Ethtool => "ethtool",
            Source::Softnet => "softnet",
            Source::Mib => "mib",
            Source::Neigh => "neigh",
            Source::Qdisc => "qdisc",
            Source::Vsish => "vsish",
            Source::Command => "command",
        }
    }
}

/// The identity of a counter. Two counters of one name in different sections are two counters.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Counter {
    /// Where it was read.
    pub source: Source,
    /// The interface, or empty for what belongs to the whole host.
    pub interface: String,
    /// The section it stood in, such as `Rx Queue#0`; empty if there are none.
    pub section: String,
    /// Its name as printed by the source.
    pub name: String,
}

impl fmt::Display for Counter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.interface.is_empty() {
            write!(f, "{} ", self.interface)?;
        }
        write!(f, "{} ", self.source.name())?;
        if !self.section.is_empty() {
            write!(f, "[{}] ", self.section)?;
        }
        f.write_str(&self.name)
    }
}

/// What is known of one DUT interface besides its counters. `None` means that the DUT did not say.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct InterfaceFacts {
    /// Driver name as `ethtool -i` prints it.
    pub driver: Option<String>,
    /// Link-speed claim in Mbit/s.
    pub claim_mbps: Option<u64>,
    /// Whether the carrier is up.
    pub carrier: Option<bool>,
    /// RX ring in use and its maximum, in descriptors.
    pub rx_ring: Option<u64>,
    /// The largest RX ring that the driver accepts.
    pub rx_ring_max: Option<u64>,
    /// TX ring in use.
    pub tx_ring: Option<u64>,
    /// Queues in use that receive: combined + RX-only.
    pub rx_queues: Option<u64>,
    /// The most receive queues that the driver accepts.
    pub rx_queues_max: Option<u64>,
    /// Whether the queue count is a `combined` one (as `ethtool -L` needs to know).
    pub queues_combined: bool,
    /// Offload features that are on, such as `generic-receive-offload`.
    pub features_on: Vec<String>,
    /// The CPUs that its interrupts may run on, one list an interrupt, such as `0-3`.
    pub irq_cpus: Vec<String>,
}

/// Time that one CPU spent, in clock ticks since boot (`/proc/stat`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CpuTicks {
    /// All time.
    pub total: u64,
    /// Time in soft interrupts.
    pub softirq: u64,
    /// Idle and I/O-wait time.
    pub idle: u64,
    /// Time stolen by the hypervisor.
    pub steal: u64,
}

/// Everything an observer read at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// Counters by identity.
    pub counters: BTreeMap<Counter, u64>,
    /// Interfaces by name.
    pub interfaces: BTreeMap<String, InterfaceFacts>,
    /// Per-CPU times, by CPU number.
    pub cpus: BTreeMap<u64, CpuTicks>,
    /// Changes when the DUT reboots.
    pub boot_id: Option<String>,
    /// Seconds since the DUT booted.
    pub uptime_s: Option<u64>,
    /// The DUT's kernel release.
    pub kernel: Option<String>,
    /// What could not be read, in sentences. Travels with the result as a caveat.
    pub doubts: Vec<String>,
    /// Sources of which this reading knows nothing: their counters say nothing about the trial.
    pub silent: Vec<Source>,
}

impl Snapshot {
    /// Takes what another observer of the same DUT read at the same time. Where both know something, this one's stands.
    pub fn join(&mut self, other: Snapshot) {
        for (counter, value) in other.counters {
            self.counters.entry(counter).or_insert(value);
        }
        for (name, facts) in other.interfaces {
            self.interfaces.entry(name).or_insert(facts);
        }
        self.doubts.extend(other.doubts);
        self.silent.extend(other.silent);
    }

    /// Puts a counter in; two of the same identity are added up (a name that a driver prints twice in one section).
    pub fn add(&mut self, source: Source, interface: &str, section: &str, name: &str, value: u64) {
        let counter = Counter { source, interface: interface.into(), section: section.into(), name: name.into() };
        let slot = self.counters.entry(counter).or_insert(0);
        *slot = slot.wrapping_add(value);
    }
}

/// What share of its time one CPU spent between two snapshots, in per mille.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CpuShare {
    /// CPU number.
    pub cpu: u64,
    /// Soft interrupts.
    pub softirq_permille: u64,
    /// Idle.
    pub idle_permille: u64,
    /// Stolen by the hypervisor.
    pub steal_permille: u64,
}

/// What moved between two snapshots.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Delta {
    /// Counters that moved forward, with the distance.
    pub moved: BTreeMap<Counter, u64>,
    /// The interfaces as they were afterwards.
    pub interfaces: BTreeMap<String, InterfaceFacts>,
    /// CPU time shares.
    pub cpus: Vec<CpuShare>,
    /// Whether the DUT restarted in between: then nothing in `moved` would be true, and it is empty.
    pub rebooted: bool,
    /// Doubts of both snapshots and of the comparison.
    pub doubts: Vec<String>,
}

impl Delta {
    /// What moved from `before` to `after`.
    pub fn between(before: &Snapshot, after: &Snapshot) -> Delta {
        let mut delta = Delta { interfaces: after.interfaces.clone(), ..Delta::default() };
        for doubt in before.doubts.iter().chain(&after.doubts) {
            if !delta.doubts.contains(doubt) {
                delta.doubts.push(doubt.clone());
            }
        }
        if has_rebooted(before, after) {
            delta.rebooted = true;
            delta.doubts.push("the DUT restarted during the trial: its counters say nothing about it".into());
            return delta;
        }
        let mut reset = Vec::new();
        for (counter, &now) in &after.counters {
            if before.silent.contains(&counter.source) {
                continue;
            }
            // A counter that was not there before has come with a new queue or section; it began at zero.
            let then = before.counters.get(counter).copied().unwrap_or(0);
            match forward(then, now) {
                Some(0) => {}
                Some(distance) => {
                    delta.moved.insert(counter.clone(), distance);
                }
                None => reset.push(counter.to_string()),
            }
        }
        if let Some(first) = reset.first() {
            delta.doubts.push(format!(
                "{} counter(s) of the DUT went backwards ({first}, …): a driver or interface was reset during the trial",
                reset.len()
            ));
        }
        let gone = before.counters.keys().filter(|counter| !after.counters.contains_key(*counter)).count();
        if gone > 0 && after.doubts.is_empty() {
            delta.doubts.push(format!("{gone} counter(s) of the DUT vanished during the trial"));
        }
        delta.cpus = cpu_shares(before, after);
        delta
    }

    /// How far a counter moved, added up over all interfaces and sections.
    pub fn total(&self, source: Source, name: &str) -> u64 {
        self.moved.iter().filter(|(c, _)| c.source == source && c.name == name).map(|(_, v)| v).sum()
    }

    /// How far a counter of one interface moved, added up over its sections.
    pub fn of_interface(&self, interface: &str, source: Source, name: &str) -> u64 {
        let wanted = |c: &Counter| c.source == source && c.interface == interface && c.name == name;
        self.moved.iter().filter(|(c, _)| wanted(c)).map(|(_, v)| v).sum()
    }
}

/// The distance a counter went, or `None` if it was reset.
///
/// A value that shrinks is taken for a 32-bit wrap only if it was in the upper half of 32 bits and moved by less than half of them:
/// a counter of 64 bits never wraps in practice, and one that fell from a small value was reset.
fn forward(then: u64, now: u64) -> Option<u64> {
    const WRAP: u64 = 1 << 32;
    if now >= then {
        return Some(now - then);
    }
    let distance = (now + WRAP).checked_sub(then)?;
    ((WRAP / 2..WRAP).contains(&then) && distance < WRAP / 2).then_some(distance)
}

fn has_rebooted(before: &Snapshot, after: &Snapshot) -> bool {
    let other_boot = matches!((&before.boot_id, &after.boot_id), (Some(a), Some(b)) if a != b);
    let younger = matches!((before.uptime_s, after.uptime_s), (Some(a), Some(b)) if b < a);
    other_boot || younger
}

fn cpu_shares(before: &Snapshot, after: &Snapshot) -> Vec<CpuShare> {
    let share = |part: u64, whole: u64| part.saturating_mul(1000) / whole;
    after
        .cpus
        .iter()
        .filter_map(|(&cpu, now)| {
            let then = before.cpus.get(&cpu)?;
            let whole = now.total.checked_sub(then.total).filter(|&w| w > 0)?;
            Some(CpuShare {
                cpu,
                softirq_permille: share(now.softirq.saturating_sub(then.softirq), whole),
                idle_permille: share(now.idle.saturating_sub(then.idle), whole),
                steal_permille: share(now.steal.saturating_sub(then.steal), whole),
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot(values: &[(&str, u64)]) -> Snapshot {
        let mut snapshot = Snapshot::default();
        for (name, value) in values {
            snapshot.add(Source::Link, "eth0", "", name, *value);
        }
        snapshot
    }

    #[test]
    fn counters_that_stood_still_are_not_in_the_delta() {
        let delta = Delta::between(
            &snapshot(&[("rx_packets", 5), ("rx_errors", 1)]),
            &snapshot(&[("rx_packets", 9), ("rx_errors", 1)]),
        );
        assert_eq!(delta.moved.len(), 1);
        assert_eq!(delta.of_interface("eth0", Source::Link, "rx_packets"), 4);
        assert!(delta.doubts.is_empty());
    }

    #[test]
    fn a_32_bit_counter_may_wrap() {
        assert_eq!(forward(u64::from(u32::MAX) - 9, 10), Some(20));
        assert_eq!(forward(u64::from(u32::MAX), 0), Some(1));
    }

    #[test]
    fn a_counter_that_falls_from_a_small_or_a_64_bit_value_was_reset() {
        assert_eq!(forward(1000, 10), None);
        assert_eq!(forward(1 << 40, 10), None);
        assert_eq!(forward((1 << 32) - 1, (1 << 31) + 5), None);
        let delta = Delta::between(&snapshot(&[("rx_packets", 1000)]), &snapshot(&[("rx_packets", 10)]));
        assert!(delta.moved.is_empty());
        assert!(delta.doubts[0].contains("went backwards"), "{:?}", delta.doubts);
    }

    #[test]
    fn a_reboot_is_a_doubt_and_yields_no_numbers() {
        let mut before = snapshot(&[("rx_packets", 10)]);
        let mut after = snapshot(&[("rx_packets", 1000)]);
        before.boot_id = Some("a".into());
        after.boot_id = Some("b".into());
        let delta = Delta::between(&before, &after);
        assert!(delta.rebooted && delta.moved.is_empty());
        assert!(delta.doubts[0].contains("restarted"));

        before.boot_id = None;
        (before.uptime_s, after.uptime_s) = (Some(500), Some(20));
        assert!(Delta::between(&before, &after).rebooted);
    }

    #[test]
    fn a_name_printed_in_two_sections_is_two_counters_and_one_total() {
        let mut after = Snapshot::default();
        after.add(Source::Ethtool, "eth0", "Rx Queue#0", "pkts rx OOB", 3);
        after.add(Source::Ethtool, "eth0", "Rx Queue#1", "pkts rx OOB", 4);
        let delta = Delta::between(&Snapshot::default(), &after);
        assert_eq!(delta.moved.len(), 2);
        assert_eq!(delta.total(Source::Ethtool, "pkts rx OOB"), 7);
    }

    #[test]
    fn cpu_shares_are_per_mille_of_the_time_between() {
        let mut before = Snapshot::default();
        let mut after = Snapshot::default();
        before.cpus.insert(0, CpuTicks { total: 100, softirq: 10, idle: 50, steal: 0 });
        after.cpus.insert(0, CpuTicks { total: 300, softirq: 205, idle: 54, steal: 1 });
        let share = Delta::between(&before, &after).cpus[0];
        assert_eq!((share.softirq_permille, share.idle_permille, share.steal_permille), (975, 20, 5));
    }
}
