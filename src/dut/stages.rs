//! Which counter belongs to which stage: one data table for all drivers, kernels and hypervisors.
//!
//! Pure. The same lost frame is often counted in several places (vsish `running out of buffers` and `# of times the 1st ring is full`;
//! `Udp.RcvbufErrors` within `Udp.InErrors`), so each rule says how its counter relates to the others:
//! - `Loss(group)`: frames lost. Counters of one group are views of the same frames: the largest view counts, once.
//! - `Rest(groups)`: a sum that contains those groups; only what exceeds them counts.
//! - `Sign`: pressure, or events that are no frames. Shown, never counted.
//!
//! What to do about it is advice, in `diagnose`.

use super::counters::{Counter, Delta, Source};
use super::table::Role::{Loss, Rest, Sign};
use super::table::{DUT_RULES, GENERATOR_RULES, HARMLESS, LOSSY, RULES, Rule};
use super::vsish::PORT_PREFIX;
use crate::diagnose::{Stage, StageDelta};
use std::collections::BTreeMap;

/// Whose counters are looked at. A veth's or tap's `tx_dropped` belongs to whatever stands at its other end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The generator's own ports.
    Generator,
    /// The device under test.
    Dut,
}

/// Whether `text` matches `glob`, in which `*` stands for any run of characters; letter case does not matter.
fn matches(glob: &str, text: &str) -> bool {
    let (glob, text) = (glob.as_bytes(), text.as_bytes());
    let (mut g, mut t, mut star) = (0, 0, None);
    while t < text.len() {
        if g < glob.len() && glob[g] == b'*' {
            star = Some((g, t));
            g += 1;
        } else if g < glob.len() && glob[g].eq_ignore_ascii_case(&text[t]) {
            g += 1;
            t += 1;
        } else if let Some((at, from)) = star {
            star = Some((at, from + 1));
            g = at + 1;
            t = from + 1;
        } else {
            return false;
        }
    }
    glob[g..].iter().all(|&b| b == b'*')
}

fn find(counter: &Counter, driver: &str, side: Side) -> Option<&'static Rule> {
    let own = match side {
        Side::Generator => GENERATOR_RULES,
        Side::Dut => DUT_RULES,
    };
    own.iter().chain(RULES).find(|rule| {
        rule.source == counter.source
            && (rule.drivers.is_empty() || rule.drivers.contains(&driver))
            && matches(rule.name, &counter.name)
    })
}

fn is_worth_showing(counter: &Counter) -> bool {
    let any = |globs: &[&str]| globs.iter().any(|glob| matches(glob, &counter.name));
    match counter.source {
        Source::Ethtool | Source::Vsish => any(LOSSY) || !any(HARMLESS),
        Source::Command => true,
        Source::Link | Source::Softnet | Source::Mib | Source::Neigh | Source::Qdisc => any(LOSSY),
    }
}

/// One view of a loss group: all the counters of one rule at one interface, added up.
struct View {
    group: &'static str,
    interface: String,
    total: u64,
    /// Positions in the result.
    members: Vec<usize>,
}

/// Assigns what moved to stages, in frame order, and counts every lost frame once.
///
/// Unknown counters come last, with no stage; counters that only say that traffic flowed are left out.
pub fn attribute(delta: &Delta, side: Side) -> Vec<StageDelta> {
    attribute_beside(delta, side, 0)
}

/// The DUT's counters with those of the generator's own ports behind them.
///
/// A veth says by `tx_dropped` what its peer could not take; if the DUT's backlog counted those frames, they are the same.
pub fn with_generator(dut: Vec<StageDelta>, own: &Delta) -> Vec<StageDelta> {
    let backlog = dut.iter().filter(|line| line.stage == Some(Stage::Softnet)).map(|line| line.lost_frames).sum();
    let mut own = attribute_beside(own, Side::Generator, backlog);
    own.retain(|line| dut.iter().all(|known| known.counter != line.counter));
    dut.into_iter().chain(own).collect()
}

fn attribute_beside(delta: &Delta, side: Side, backlog: u64) -> Vec<StageDelta> {
    let mut out = Vec::new();
    let mut views: BTreeMap<(*const Rule, String), View> = BTreeMap::new();
    let mut sums: Vec<(usize, &'static [&'static str], String)> = Vec::new();
    for (counter, &moved) in &delta.moved {
        if counter.source == Source::Command && counter.name == "received" {
            continue; // what arrived is no loss
        }
        if side == Side::Generator && matches!(counter.source, Source::Mib | Source::Neigh) {
            continue; // our frames end at the device; the stack above it works for others
        }
        let driver = delta.interfaces.get(&counter.interface).and_then(|facts| facts.driver.as_deref()).unwrap_or("");
        let mut line =
            StageDelta { stage: None, counter: counter.to_string(), delta: moved, lost_frames: 0, note: None };
        if counter.source == Source::Command {
            line.stage = Stage::from_name(&counter.section);
            line.lost_frames = if line.stage.is_some() { moved } else { 0 };
        } else if let Some(rule) = find(counter, driver, side) {
            line.stage = Some(owner(rule.stage, side));
            line.note = Some(rule.note.to_string()).filter(|note| !note.is_empty());
            match rule.role {
                Loss(group) => {
                    let key = (std::ptr::from_ref(rule), counter.interface.clone());
                    let view = views.entry(key).or_insert_with(|| View {
                        group,
                        interface: counter.interface.clone(),
                        total: 0,
                        members: Vec::new(),
                    });
                    view.total += moved;
                    view.members.push(out.len());
                }
                Rest(groups) => sums.push((out.len(), groups, counter.interface.clone())),
                Sign => {}
            }
        } else if !is_worth_showing(counter) {
            continue;
        }
        out.push(line);
    }
    count_once(&mut out, &views.into_values().collect::<Vec<_>>(), &sums, backlog);
    out.sort_by_key(|line| (line.stage.is_none(), line.stage, std::cmp::Reverse(line.lost_frames)));
    out
}

/// On the generator's own ports the receive path is one stage.
fn owner(stage: Stage, side: Side) -> Stage {
    match (side, stage) {
        (Side::Generator, Stage::Driver | Stage::Softnet | Stage::Ip | Stage::Socket) => Stage::GenRx,
        _ => stage,
    }
}

fn count_once(out: &mut [StageDelta], views: &[View], sums: &[(usize, &'static [&'static str], String)], backlog: u64) {
    // In each group the largest view of each interface counts; a view that has no interface (a hypervisor's port has another name)
    // competes with their sum.
    let mut counted: BTreeMap<(&str, &str), u64> = BTreeMap::new();
    counted.insert(("backlog", ""), backlog);
    let mut groups: BTreeMap<&str, BTreeMap<&str, &View>> = BTreeMap::new();
    for view in views {
        let best = groups.entry(view.group).or_default().entry(&view.interface).or_insert(view);
        if view.total > best.total {
            *best = view;
        }
    }
    for (group, by_interface) in &groups {
        let inside: u64 =
            by_interface.iter().filter(|(name, _)| !is_hypervisor_port(name)).map(|(_, view)| view.total).sum();
        let outside: u64 =
            by_interface.iter().filter(|(name, _)| is_hypervisor_port(name)).map(|(_, view)| view.total).sum();
        for (interface, view) in by_interface {
            if is_hypervisor_port(interface) == (outside > inside) {
                for &member in &view.members {
                    out[member].lost_frames = out[member].delta;
                }
                counted.insert((group, interface), view.total);
            }
        }
    }
    // Sums that contain groups: of the same interface, or of the whole host.
    for (position, groups, interface) in sums {
        let within: u64 = groups
            .iter()
            .flat_map(|group| counted.iter().filter(move |((g, _), _)| g == group))
            .filter(|((_, at), _)| at == interface || at.is_empty())
            .map(|(_, total)| total)
            .sum();
        out[*position].lost_frames = out[*position].delta.saturating_sub(within);
    }
}

fn is_hypervisor_port(interface: &str) -> bool {
    interface.starts_with(PORT_PREFIX)
}

#[cfg(test)]
mod tests {
    use super::super::counters::{InterfaceFacts, Snapshot};
    use super::*;

    /// A delta of an interface with this driver; `(source, interface, section, name, moved)`.
    fn delta(driver: &str, counters: &[(Source, &str, &str, &str, u64)]) -> Delta {
        let mut after = Snapshot::default();
        for (source, interface, section, name, value) in counters {
            after.add(*source, interface, section, name, *value);
        }
        for name in ["eth0", "d0", "d1", "tap0"] {
            after
                .interfaces
                .insert(name.into(), InterfaceFacts { driver: Some(driver.into()), ..InterfaceFacts::default() });
        }
        Delta::between(&Snapshot::default(), &after)
    }

    fn lost(lines: &[StageDelta], stage: Stage) -> u64 {
        lines.iter().filter(|line| line.stage == Some(stage)).map(|line| line.lost_frames).sum()
    }

    #[test]
    fn vsish_and_guest_views_of_one_full_ring_are_counted_once() {
        let lines = attribute(
            &delta(
                "vmxnet3",
                &[
                    (Source::Vsish, "vsish 0/1", "", "running out of buffers", 100),
                    (Source::Vsish, "vsish 0/1", "", "# of times the 1st ring is full", 100),
                    (Source::Ethtool, "eth0", "Rx Queue#0", "pkts rx OOB", 60),
                    (Source::Ethtool, "eth0", "Rx Queue#1", "pkts rx OOB", 40),
                ],
            ),
            Side::Dut,
        );
        assert_eq!(lost(&lines, Stage::VnicRing), 100);
        assert_eq!(lines.len(), 4, "every view is shown: {lines:?}");
    }

    #[test]
    fn queues_add_up_and_interfaces_add_up() {
        let lines = attribute(
            &delta(
                "vmxnet3",
                &[
                    (Source::Ethtool, "eth0", "Rx Queue#0", "pkts rx OOB", 60),
                    (Source::Ethtool, "eth0", "Rx Queue#1", "pkts rx OOB", 40),
                    (Source::Ethtool, "d0", "Rx Queue#0", "pkts rx OOB", 5),
                ],
            ),
            Side::Dut,
        );
        assert_eq!(lost(&lines, Stage::VnicRing), 105);
    }

    #[test]
    fn vmxnet3_ring_full_is_a_transmit_sign_and_never_a_loss() {
        let lines =
            attribute(&delta("vmxnet3", &[(Source::Ethtool, "eth0", "Tx Queue#0", "ring full", 77)]), Side::Dut);
        assert_eq!((lines[0].stage, lines[0].lost_frames), (Some(Stage::Link), 0));
    }

    #[test]
    fn sums_count_only_what_their_parts_do_not() {
        let lines = attribute(
            &delta(
                "virtio_net",
                &[
                    (Source::Mib, "", "", "Udp.InErrors", 30),
                    (Source::Mib, "", "", "Udp.RcvbufErrors", 20),
                    (Source::Mib, "", "", "Udp.InCsumErrors", 9),
                    (Source::Mib, "", "", "Ip.InHdrErrors", 8),
                    (Source::Mib, "", "", "IpExt.InCsumErrors", 8),
                ],
            ),
            Side::Dut,
        );
        assert_eq!((lost(&lines, Stage::Socket), lost(&lines, Stage::Ip)), (30, 8));
    }

    #[test]
    fn rx_dropped_does_not_repeat_what_driver_and_backlog_dropped() {
        let lines = attribute(
            &delta(
                "veth",
                &[
                    (Source::Link, "d0", "", "rx_dropped", 50),
                    (Source::Ethtool, "d0", "", "rx_queue_0_xdp_drops", 30),
                    (Source::Softnet, "", "cpu1", "dropped", 15),
                ],
            ),
            Side::Dut,
        );
        assert_eq!((lost(&lines, Stage::Driver), lost(&lines, Stage::Softnet)), (35, 15));
    }

    #[test]
    fn a_veths_tx_dropped_belongs_to_its_other_end() {
        let one = |side, driver| attribute(&delta(driver, &[(Source::Link, "d1", "", "tx_dropped", 4)]), side)[0].stage;
        assert_eq!(one(Side::Dut, "veth"), Some(Stage::GenRx));
        assert_eq!(one(Side::Generator, "veth"), Some(Stage::VnicRing));
        assert_eq!(one(Side::Generator, "tun"), Some(Stage::Vswitch));
        assert_eq!(one(Side::Dut, "tun"), Some(Stage::Vswitch));
        assert_eq!(one(Side::Generator, "ixgbe"), Some(Stage::GenTx));
    }

    #[test]
    fn what_a_veths_peer_dropped_from_its_backlog_is_not_also_lost_at_its_ring() {
        let dut = attribute(&delta("veth", &[(Source::Softnet, "", "cpu1", "dropped", 90)]), Side::Dut);
        let own =
            delta("veth", &[(Source::Link, "d0", "", "tx_dropped", 100), (Source::Softnet, "", "cpu1", "dropped", 90)]);
        let both = with_generator(dut, &own);
        assert_eq!((lost(&both, Stage::Softnet), lost(&both, Stage::VnicRing), both.len()), (90, 10, 2));
    }

    #[test]
    fn what_a_veths_peer_refused_of_live_frames_counts_once() {
        let own = delta(
            "veth",
            &[
                (Source::Link, "d0", "", "tx_dropped", 90),
                (Source::Ethtool, "d0", "", "tx_queue_0_xdp_xmit_errors", 90),
            ],
        );
        assert_eq!(lost(&with_generator(Vec::new(), &own), Stage::VnicRing), 90);
    }

    #[test]
    fn virtio_totals_and_queues_are_views_of_the_same_frames() {
        let lines = attribute(
            &delta(
                "virtio_net",
                &[(Source::Ethtool, "eth0", "", "rx_drops", 9), (Source::Ethtool, "eth0", "", "rx0_drops", 9)],
            ),
            Side::Dut,
        );
        assert_eq!(lost(&lines, Stage::Driver), 9);
    }

    #[test]
    fn unknown_counters_that_speak_of_loss_are_shown_and_traffic_is_not() {
        let lines = attribute(
            &delta(
                "newdrv",
                &[
                    (Source::Ethtool, "eth0", "", "weird_fifo_thing", 3),
                    (Source::Ethtool, "eth0", "", "rx_packets", 1000),
                    (Source::Mib, "", "", "Ip.InReceives", 1000),
                    (Source::Mib, "", "", "MPTcpExt.SomethingDropped", 2),
                ],
            ),
            Side::Dut,
        );
        let names: Vec<_> = lines.iter().map(|line| (line.stage, line.counter.as_str())).collect();
        assert_eq!(names, [(None, "eth0 ethtool weird_fifo_thing"), (None, "mib MPTcpExt.SomethingDropped")]);
    }

    #[test]
    fn a_command_may_name_the_stage_itself() {
        let lines = attribute(
            &delta("", &[(Source::Command, "", "vnic_ring", "no buffer", 5), (Source::Command, "", "", "x", 1)]),
            Side::Dut,
        );
        assert_eq!(lost(&lines, Stage::VnicRing), 5);
        assert_eq!(lines[1].stage, None);
    }

    #[test]
    fn lines_come_in_frame_order() {
        let lines = attribute(
            &delta(
                "vmxnet3",
                &[
                    (Source::Mib, "", "", "Udp.NoPorts", 1),
                    (Source::Ethtool, "eth0", "Rx Queue#0", "pkts rx OOB", 1),
                    (Source::Softnet, "", "cpu0", "dropped", 1),
                ],
            ),
            Side::Dut,
        );
        let stages: Vec<_> = lines.iter().filter_map(|line| line.stage).collect();
        assert_eq!(stages, [Stage::VnicRing, Stage::Softnet, Stage::Socket]);
    }

    #[test]
    fn globs_match_any_run_of_characters() {
        assert!(matches("# of times the * ring is full", "# of times the 2nd ring is full"));
        assert!(matches("*", "") && matches("a*c", "abc") && matches("a*c", "ac") && matches("*OOB", "pkts rx oob"));
        assert!(!matches("a*c", "abd") && !matches("", "x") && !matches("rx*drops", "rx_drop"));
    }
}
