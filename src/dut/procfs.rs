//! Parsers for what Linux prints under `/proc` and `/sys`, from kernel 3.10 on.
//!
//! Pure text → counters. Every parser skips what it does not understand: formats have grown columns for decades and will go on.

use super::counters::{CpuTicks, Snapshot, Source};
use std::collections::BTreeMap;

/// `name value` lines, as our script prints `/sys/class/net/IF/statistics` and `/proc/net/snmp6` is written.
pub fn pairs(text: &str) -> impl Iterator<Item = (&str, u64)> {
    text.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        let name = words.next()?;
        let value = words.next()?.parse().ok()?;
        words.next().is_none().then_some((name, value))
    })
}

/// `/proc/net/snmp` and `/proc/net/netstat`: a line of names, then a line of values, each beginning with the group's name.
///
/// Counters are named `Group.Name`, such as `Udp.RcvbufErrors`. A gauge that is negative (Tcp.MaxConn) is skipped.
pub fn mib(text: &str, into: &mut Snapshot) {
    let mut lines = text.lines();
    while let (Some(names), Some(values)) = (lines.next(), lines.next()) {
        let (Some((group, names)), Some((group_again, values))) = (names.split_once(':'), values.split_once(':'))
        else {
            continue;
        };
        if group != group_again {
            continue;
        }
        for (name, value) in names.split_whitespace().zip(values.split_whitespace()) {
            if let Ok(value) = value.parse() {
                into.add(Source::Mib, "", "", &format!("{group}.{name}"), value);
            }
        }
    }
}

/// `/proc/net/softnet_stat`: a line of hexadecimal columns a CPU; the columns' meaning is fixed, their number has grown.
///
/// Source: `net/core/net-procfs.c` (`softnet_seq_show`): 0 processed, 1 dropped, 2 time_squeeze, 9 received_rps, 10 flow_limit_count.
/// The columns are 32 bits wide, so a sum over CPUs could hide one that wraps: each CPU is a section of its own.
pub fn softnet(text: &str, into: &mut Snapshot) {
    const COLUMNS: [(usize, &str); 4] =
        [(0, "processed"), (1, "dropped"), (2, "time_squeeze"), (10, "flow_limit_count")];
    for (row, line) in text.lines().enumerate() {
        let columns: Vec<u64> = line.split_whitespace().map_while(|word| u64::from_str_radix(word, 16).ok()).collect();
        // Since 5.10 column 12 names the CPU; before, offline CPUs were simply left out.
        let cpu = columns.get(12).copied().unwrap_or(row as u64);
        for (column, name) in COLUMNS {
            if let Some(&value) = columns.get(column) {
                into.add(Source::Softnet, "", &format!("cpu{cpu}"), name, value);
            }
        }
    }
}

/// `/proc/net/stat/arp_cache`, `ndisc_cache` and `nf_conntrack`: a header of names, then a line of hexadecimal values a CPU.
pub fn per_cpu_table(table: &str, text: &str, into: &mut Snapshot) {
    let mut lines = text.lines();
    let Some(header) = lines.next() else { return };
    for (cpu, line) in lines.enumerate() {
        for (name, value) in header.split_whitespace().zip(line.split_whitespace()) {
            if name == "entries" {
                continue; // a gauge of the whole table, repeated on every line
            }
            if let Ok(value) = u64::from_str_radix(value, 16) {
                into.add(Source::Neigh, "", &format!("cpu{cpu}"), &format!("{table}.{name}"), value);
            }
        }
    }
}

/// The `cpuN` lines of `/proc/stat`. Columns: user nice system idle iowait irq softirq steal (guest time is within user time).
pub fn cpu_ticks(text: &str) -> BTreeMap<u64, CpuTicks> {
    text.lines()
        .filter_map(|line| {
            let mut words = line.split_whitespace();
            let cpu = words.next()?.strip_prefix("cpu")?.parse().ok()?;
            let ticks: Vec<u64> = words.map_while(|word| word.parse().ok()).take(8).collect();
            let column = |n: usize| ticks.get(n).copied().unwrap_or(0);
            let total = ticks.iter().sum();
            let idle = column(3) + column(4);
            Some((cpu, CpuTicks { total, softirq: column(6), idle, steal: column(7) }))
        })
        .collect()
}

/// `/proc/net/dev`: the table of old. Used where `/sys` cannot be read.
pub fn net_dev(text: &str, into: &mut Snapshot) {
    const COLUMNS: [&str; 16] = [
        "rx_bytes",
        "rx_packets",
        "rx_errors",
        "rx_dropped",
        "rx_fifo_errors",
        "rx_frame_errors",
        "rx_compressed",
        "multicast",
        "tx_bytes",
        "tx_packets",
        "tx_errors",
        "tx_dropped",
        "tx_fifo_errors",
        "collisions",
        "tx_carrier_errors",
        "tx_compressed",
    ];
    for line in text.lines() {
        // Old kernels print `eth0:1234` without a space.
        let Some((interface, values)) = line.rsplit_once(':') else { continue };
        for (name, value) in COLUMNS.into_iter().zip(values.split_whitespace()) {
            if let Ok(value) = value.parse() {
                into.add(Source::Link, interface.trim(), "", name, value);
            }
        }
    }
}

/// `tc -s qdisc show`: the frames that a queueing discipline dropped, per interface. Section: `kind handle`.
pub fn qdiscs(text: &str, into: &mut Snapshot) {
    let mut current: Option<(String, String)> = None;
    for line in text.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.as_slice() {
            ["qdisc", kind, handle, "dev", interface, ..] => {
                current = Some(((*interface).into(), format!("{kind} {handle}")));
            }
            ["Sent", ..] => {
                let Some((interface, section)) = &current else { continue };
                let dropped = line.split_once("(dropped ").and_then(|(_, rest)| rest.split([',', ')']).next());
                if let Some(dropped) = dropped.and_then(|number| number.trim().parse().ok()) {
                    into.add(Source::Qdisc, interface, section, "dropped", dropped);
                }
            }
            _ => {}
        }
    }
}

/// The counters that only `ip -s -s -j link` shows: frames addressed to another MAC (kernel ≥ 5.19, iproute2 ≥ 5.19).
pub fn ip_link_json(text: &str, into: &mut Snapshot) {
    let Ok(serde_json::Value::Array(links)) = serde_json::from_str(text) else { return };
    for link in links {
        let Some(interface) = link["ifname"].as_str() else { continue };
        let rx = &link["stats64"]["rx"];
        if let Some(frames) = rx["otherhost"].as_u64() {
            into.add(Source::Link, interface, "", "rx_otherhost_dropped", frames);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(snapshot: &Snapshot, name: &str) -> Option<u64> {
        let mut found = snapshot.counters.iter().filter(|(c, _)| c.name == name).map(|(_, v)| *v);
        found.next().map(|first| first + found.sum::<u64>())
    }

    #[test]
    fn mib_pairs_names_with_values_and_skips_negative_gauges() {
        let text = "Ip: Forwarding DefaultTTL InReceives\nIp: 2 64 4366\nTcp: RtoMin MaxConn InSegs\nTcp: 200 -1 42\n\
                    Udp: InDatagrams NoPorts InErrors OutDatagrams RcvbufErrors SndbufErrors\nUdp: 83 0 7 84 7 0\n";
        let mut s = Snapshot::default();
        mib(text, &mut s);
        assert_eq!(value(&s, "Ip.InReceives"), Some(4366));
        assert_eq!(value(&s, "Tcp.InSegs"), Some(42));
        assert_eq!(value(&s, "Tcp.MaxConn"), None);
        assert_eq!(value(&s, "Udp.RcvbufErrors"), Some(7));
    }

    #[test]
    fn softnet_reads_ten_columns_of_kernel_3_10_and_fifteen_of_today() {
        let old =
            "0002a8c4 00000011 00000003 00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000\n";
        let mut s = Snapshot::default();
        softnet(old, &mut s);
        assert_eq!(value(&s, "dropped"), Some(0x11));
        assert_eq!(value(&s, "time_squeeze"), Some(3));

        let new = "00001100 00000001 00000002 0 0 0 0 0 0 0 00000005 00000000 00000003 00000000 00000000\n";
        let mut s = Snapshot::default();
        softnet(new, &mut s);
        assert_eq!(value(&s, "flow_limit_count"), Some(5));
        assert!(s.counters.keys().all(|c| c.section == "cpu3"));
    }

    #[test]
    fn cpu_ticks_skip_the_sum_line_and_the_interrupt_lines() {
        let ticks = cpu_ticks("cpu  1 2 3 4 5 6 7 8 9 0\ncpu0 10 0 20 300 5 1 40 2 0 0\nintr 5 6 7\n");
        assert_eq!(ticks.len(), 1);
        assert_eq!(ticks[&0], CpuTicks { total: 378, softirq: 40, idle: 305, steal: 2 });
    }

    #[test]
    fn net_dev_reads_values_that_touch_the_colon() {
        let text = "Inter-|   Receive                                                |  Transmit\n \
                    face |bytes    packets errs drop fifo frame compressed multicast|bytes\n\
                    eth0:1234567 89 1 2 3 4 0 5 999 77 0 6 0 0 0 0\n    lo: 10 1 0 0 0 0 0 0 10 1 0 0 0 0 0 0\n";
        let mut s = Snapshot::default();
        net_dev(text, &mut s);
        let eth0 =
            |name: &str| s.counters.iter().find(|(c, _)| c.interface == "eth0" && c.name == name).map(|(_, v)| *v);
        assert_eq!(eth0("rx_bytes"), Some(1_234_567));
        assert_eq!(eth0("rx_fifo_errors"), Some(3));
        assert_eq!(eth0("tx_dropped"), Some(6));
    }

    #[test]
    fn qdisc_drops_are_kept_per_interface_and_discipline() {
        let text = "qdisc tbf 8001: dev d1 root refcnt 2 rate 1Mbit burst 1600b lat 10ms \n \
                    Sent 900 bytes 10 pkt (dropped 35, overlimits 40 requeues 0) \n backlog 0b 0p requeues 0\n";
        let mut s = Snapshot::default();
        qdiscs(text, &mut s);
        let (counter, dropped) = s.counters.iter().next().unwrap();
        assert_eq!((counter.interface.as_str(), counter.section.as_str(), *dropped), ("d1", "tbf 8001:", 35));
    }

    #[test]
    fn frames_for_another_mac_come_from_ip_link() {
        let text = r#"[{"ifname":"d0","stats64":{"rx":{"packets":10,"otherhost":5}}},{"ifname":"d1","stats64":{"rx":{"packets":1}}}]"#;
        let mut s = Snapshot::default();
        ip_link_json(text, &mut s);
        assert_eq!((s.counters.len(), value(&s, "rx_otherhost_dropped")), (1, Some(5)));
        ip_link_json("Option \"-j\" is unknown", &mut s);
        assert_eq!(s.counters.len(), 1);
    }

    #[test]
    fn neighbour_tables_are_hexadecimal_per_cpu() {
        let text = "entries  allocs   destroys hash_grows lookups  hits     res_failed unresolved_discards\n\
                    00000004 0000000a 00000000 00000000   00000000 00000000 00000000   0000001f\n";
        let mut s = Snapshot::default();
        per_cpu_table("arp_cache", text, &mut s);
        assert_eq!(value(&s, "arp_cache.unresolved_discards"), Some(31));
        assert_eq!(value(&s, "arp_cache.entries"), None);
    }
}
