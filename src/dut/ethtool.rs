//! Parsers for the output of `ethtool`, from version 3.x (CentOS 7) to today's.
//!
//! Pure text → facts. Names repeat across the per-queue sections of `ethtool -S` (vmxnet3's `ring full` stands once per TX queue,
//! `pkts rx OOB` once per RX queue), so statistics are read section by section.

use super::counters::{InterfaceFacts, Snapshot, Source};

/// `ethtool -S IF`: `  name: value` lines under `NIC statistics:`; a line without a number opens a section.
///
/// vmxnet3 opens its sections with a line such as `Tx Queue#: 0` or `  Rx Queue#: 1`, which looks like a counter but is not one.
pub fn statistics(text: &str, interface: &str, into: &mut Snapshot) {
    let mut section = String::new();
    for line in text.lines() {
        let Some((name, value)) = line.rsplit_once(':') else { continue };
        let (name, value) = (name.trim(), value.trim());
        if let Some(queue) = name.strip_suffix('#') {
            section = format!("{queue}#{value}");
        } else if value.is_empty() {
            // `NIC statistics:` or another heading.
            section = if name == "NIC statistics" { String::new() } else { name.into() };
        } else if let Ok(value) = value.parse() {
            into.add(Source::Ethtool, interface, &section, name, value);
        }
    }
}

/// Keys and values of one block.
type Settings = Vec<(String, u64)>;

/// Reads the two blocks that `ethtool -g` and `-l` print: maximums, then current settings. Keys are lower case, such as `rx`.
fn maximum_and_current(text: &str) -> (Settings, Settings) {
    let (mut maximum, mut current) = (Vec::new(), Vec::new());
    let mut block = None;
    for line in text.lines() {
        let line = line.trim();
        if line.starts_with("Pre-set maximums") {
            block = Some(false);
        } else if line.starts_with("Current hardware settings") {
            block = Some(true);
        } else if let (Some(is_current), Some((key, value))) = (block, line.split_once(':'))
            && let Ok(value) = value.trim().parse()
        {
            let list = if is_current { &mut current } else { &mut maximum };
            list.push((key.trim().to_ascii_lowercase(), value));
        }
    }
    (maximum, current)
}

fn find(list: &[(String, u64)], key: &str) -> Option<u64> {
    list.iter().find(|(k, _)| k == key).map(|(_, v)| *v)
}

/// `ethtool -g IF`: ring sizes.
pub fn rings(text: &str, facts: &mut InterfaceFacts) {
    let (maximum, current) = maximum_and_current(text);
    facts.rx_ring = find(&current, "rx");
    facts.tx_ring = find(&current, "tx");
    facts.rx_ring_max = find(&maximum, "rx");
}

/// `ethtool -l IF`: queues. Receive queues are the combined ones plus the RX-only ones.
pub fn channels(text: &str, facts: &mut InterfaceFacts) {
    let (maximum, current) = maximum_and_current(text);
    let queues = |list: &[(String, u64)]| match (find(list, "combined"), find(list, "rx")) {
        (None, None) => None,
        (combined, rx) => Some(combined.unwrap_or(0) + rx.unwrap_or(0)),
    };
    facts.rx_queues = queues(&current);
    facts.rx_queues_max = queues(&maximum);
    facts.queues_combined = find(&maximum, "combined").unwrap_or(0) > 0;
}

/// `ethtool -k IF`: the features that are on.
pub fn features(text: &str, facts: &mut InterfaceFacts) {
    facts.features_on = text
        .lines()
        .filter_map(|line| line.split_once(':'))
        .filter(|(_, state)| state.split_whitespace().next() == Some("on"))
        .map(|(name, _)| name.trim().to_string())
        .collect();
}

/// `ethtool -i IF`: the driver's name.
pub fn driver(text: &str, facts: &mut InterfaceFacts) {
    let name = text.lines().find_map(|line| line.strip_prefix("driver:"));
    facts.driver = name.map(|name| name.trim().to_string()).filter(|name| !name.is_empty());
}

/// `ethtool IF`: the claimed speed in Mbit/s (`Speed: 10000Mb/s`, `Unknown!`) and the carrier.
pub fn settings(text: &str, facts: &mut InterfaceFacts) {
    for line in text.lines() {
        if let Some(speed) = line.trim().strip_prefix("Speed:") {
            facts.claim_mbps =
                speed.trim().strip_suffix("Mb/s").and_then(|number| number.parse().ok()).filter(|&n| n > 0);
        } else if let Some(link) = line.trim().strip_prefix("Link detected:") {
            facts.carrier = Some(link.trim().starts_with("yes"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VMXNET3: &str = "NIC statistics:
     Tx Queue#: 0
       TSO pkts tx: 0
       pkts tx discard: 0
       ring full: 77
     Tx Queue#: 1
       ring full: 5
     Rx Queue#: 0
       LRO pkts rx: 0
       ucast pkts rx: 5370
       pkts rx OOB: 9990
       pkts rx err: 0
     Rx Queue#: 1
       pkts rx OOB: 10
     tx timeout count: 0
";

    #[test]
    fn vmxnet3_statistics_are_read_by_queue() {
        let mut s = Snapshot::default();
        statistics(VMXNET3, "eth0", &mut s);
        let at = |section: &str, name: &str| {
            s.counters.iter().find(|(c, _)| c.section == section && c.name == name).map(|(_, v)| *v)
        };
        assert_eq!(at("Tx Queue#0", "ring full"), Some(77));
        assert_eq!(at("Tx Queue#1", "ring full"), Some(5));
        assert_eq!(at("Rx Queue#0", "pkts rx OOB"), Some(9990));
        assert_eq!(at("Rx Queue#1", "pkts rx OOB"), Some(10));
        assert!(s.counters.keys().all(|c| !c.name.contains("Queue#")));
    }

    #[test]
    fn flat_statistics_have_no_section() {
        let mut s = Snapshot::default();
        statistics("NIC statistics:\n     rx_drops: 4\n     rx_queue_0_drops: 4\n", "d0", &mut s);
        assert!(s.counters.keys().all(|c| c.section.is_empty()));
        assert_eq!(s.counters.len(), 2);
    }

    #[test]
    fn rings_of_centos_7_and_of_today_read_alike() {
        let old = "Ring parameters for eth0:\nPre-set maximums:\nRX:\t\t4096\nRX Mini:\t0\nRX Jumbo:\t0\nTX:\t\t4096\n\
                   Current hardware settings:\nRX:\t\t512\nRX Mini:\t0\nRX Jumbo:\t0\nTX:\t\t256\n\n";
        let new = "Ring parameters for eth0:\nPre-set maximums:\nRX:\t\t4096\nRX Mini:\tn/a\nRX Jumbo:\tn/a\nTX:\t\t4096\n\
                   TX push buff len:\tn/a\nCurrent hardware settings:\nRX:\t\t512\nRX Mini:\tn/a\nRX Jumbo:\tn/a\nTX:\t\t256\n\
                   RX Buf Len:\t\tn/a\nCQE Size:\t\tn/a\nTX Push:\toff\n";
        for text in [old, new] {
            let mut facts = InterfaceFacts::default();
            rings(text, &mut facts);
            assert_eq!((facts.rx_ring, facts.rx_ring_max, facts.tx_ring), (Some(512), Some(4096), Some(256)));
        }
        let mut facts = InterfaceFacts::default();
        rings("netlink error: Operation not supported\n", &mut facts);
        assert_eq!(facts, InterfaceFacts::default());
    }

    #[test]
    fn receive_queues_are_combined_plus_rx_only() {
        let mut facts = InterfaceFacts::default();
        channels(
            "Channel parameters for eth0:\nPre-set maximums:\nRX:\t\tn/a\nTX:\t\tn/a\nOther:\t\tn/a\nCombined:\t8\n\
             Current hardware settings:\nRX:\t\tn/a\nTX:\t\tn/a\nOther:\t\tn/a\nCombined:\t2\n",
            &mut facts,
        );
        assert_eq!((facts.rx_queues, facts.rx_queues_max, facts.queues_combined), (Some(2), Some(8), true));
        channels(
            "Pre-set maximums:\nRX: 4\nTX: 4\nCombined: n/a\nCurrent hardware settings:\nRX: 1\nTX: 1\n",
            &mut facts,
        );
        assert_eq!((facts.rx_queues, facts.rx_queues_max, facts.queues_combined), (Some(1), Some(4), false));
    }

    #[test]
    fn a_claim_is_a_number_or_unknown() {
        let mut facts = InterfaceFacts::default();
        settings("Settings for eth0:\n\tSpeed: 10000Mb/s\n\tDuplex: Full\n\tLink detected: yes\n", &mut facts);
        assert_eq!((facts.claim_mbps, facts.carrier), (Some(10_000), Some(true)));
        settings("Settings for eth0:\n\tSpeed: Unknown!\n\tLink detected: no\n", &mut facts);
        assert_eq!((facts.claim_mbps, facts.carrier), (None, Some(false)));
    }

    #[test]
    fn driver_and_features_are_read() {
        let mut facts = InterfaceFacts::default();
        driver("driver: vmxnet3\nversion: 1.4.17.0-k-NAPI\nfirmware-version: \n", &mut facts);
        assert_eq!(facts.driver.as_deref(), Some("vmxnet3"));
        features(
            "Features for eth0:\nrx-checksumming: on\nlarge-receive-offload: off [fixed]\n\ttx-checksum-ipv4: on [fixed]\n",
            &mut facts,
        );
        assert_eq!(facts.features_on, ["rx-checksumming", "tx-checksum-ipv4"]);
    }
}
