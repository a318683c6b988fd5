//! The one script that reads everything a Linux DUT tells, and the reader of its answer.
//!
//! One round trip a snapshot: the script prints sections behind marker lines. It needs nothing but `sh`, `cat` and `ethtool`; `ip` and
//! `tc` add to it where they are. Whatever it cannot read is a doubt in the snapshot, never a failure.

use super::counters::{InterfaceFacts, Snapshot, Source};
use super::{ethtool, procfs};
use std::fmt::Write as _;

const MARK: &str = "@@plimsoll ";

/// Composes the script for these interfaces (empty: all but `lo`).
///
/// `/sys` files are read with the shell's own `read`, so that the number of processes does not grow with the number of counters.
pub fn compose(interfaces: &[String]) -> String {
    let mut script = String::from(
        r#"LC_ALL=C PATH=$PATH:/usr/sbin:/sbin:/usr/local/sbin; export LC_ALL PATH
s() { echo "@@plimsoll $*"; }
v() { if read -r x <"$2"; then echo "$1 $x"; fi 2>/dev/null; }
s system; v boot_id /proc/sys/kernel/random/boot_id; v uptime /proc/uptime; v kernel /proc/sys/kernel/osrelease
s cpu; cat /proc/stat
for d in /sys/class/net/*; do
  i=${d##*/}; [ -e "$d/statistics/rx_packets" ] || continue
  s link "$i"
  for f in "$d"/statistics/*; do v "${f##*/}" "$f"; done
  for f in carrier_changes carrier_up_count carrier_down_count carrier speed; do v "$f" "$d/$f"; done
done
s net_dev; cat /proc/net/dev
"#,
    );
    let names: Vec<String> = interfaces.iter().map(|name| super::channel::quoted(name)).collect();
    let _ = writeln!(script, "set -- {}", names.join(" "));
    if names.is_empty() {
        script.push_str("for d in /sys/class/net/*; do i=${d##*/}; [ \"$i\" = lo ] || set -- \"$@\" \"$i\"; done\n");
    }
    script.push_str(
        r#"if command -v ethtool >/dev/null 2>&1; then
  for d in /sys/class/net/*; do i=${d##*/}; [ "$i" = lo ] || { s driver "$i"; ethtool -i "$i" 2>/dev/null; }; done
  for i in "$@"; do
    [ -e "/sys/class/net/$i" ] || { s missing "$i"; continue; }
    s statistics "$i"; ethtool -S "$i" 2>/dev/null
    s rings "$i"; ethtool -g "$i" 2>/dev/null
    s channels "$i"; ethtool -l "$i" 2>/dev/null
    s features "$i"; ethtool -k "$i" 2>/dev/null
    s settings "$i"; ethtool "$i" 2>/dev/null
  done
else s no_ethtool; fi
for i in "$@"; do
  s irqs "$i"
  for q in /sys/class/net/"$i"/device/msi_irqs/* /sys/class/net/"$i"/device/../msi_irqs/*; do
    [ -e "$q" ] && v irq "/proc/irq/${q##*/}/smp_affinity_list"
  done
done
for f in /run/plimsoll-sink."$(readlink /proc/self/ns/net 2>/dev/null)".*; do [ -e "$f" ] && { s sink "${f#*].}"; cat "$f"; }; done
s softnet; cat /proc/net/softnet_stat
s snmp; cat /proc/net/snmp
s netstat; cat /proc/net/netstat
s snmp6; cat /proc/net/snmp6 2>/dev/null
for t in arp_cache ndisc_cache nf_conntrack; do s table $t; cat /proc/net/stat/$t 2>/dev/null; done
command -v ip >/dev/null 2>&1 && { s ip_link; ip -s -s -j link 2>/dev/null; }
command -v tc >/dev/null 2>&1 && { s qdisc; tc -s qdisc show 2>/dev/null; }
s end
exit 0
"#,
    );
    script
}

/// Reads the script's answer.
pub fn read(text: &str) -> Snapshot {
    let mut snapshot = Snapshot::default();
    let mut complete = false;
    let mut net_dev = "";
    for (section, argument, body) in sections(text) {
        match section {
            "system" => system(body, &mut snapshot),
            "cpu" => snapshot.cpus = procfs::cpu_ticks(body),
            "link" => link(argument, body, &mut snapshot),
            "net_dev" => net_dev = body,
            "driver" => ethtool::driver(body, facts(&mut snapshot, argument)),
            "missing" => snapshot.doubts.push(format!("the DUT has no interface {argument}")),
            "no_ethtool" => {
                snapshot.doubts.push("the DUT has no ethtool: its rings and driver counters are unknown".into())
            }
            "statistics" => ethtool::statistics(body, argument, &mut snapshot),
            "rings" => ethtool::rings(body, facts(&mut snapshot, argument)),
            "channels" => ethtool::channels(body, facts(&mut snapshot, argument)),
            "features" => ethtool::features(body, facts(&mut snapshot, argument)),
            "settings" => ethtool::settings(body, facts(&mut snapshot, argument)),
            "irqs" => {
                let lists = body.lines().filter_map(|line| line.strip_prefix("irq ")).map(String::from).collect();
                facts(&mut snapshot, argument).irq_cpus = lists;
            }
            "sink" => {
                for (name, value) in procfs::pairs(body) {
                    snapshot.add(Source::Command, argument, "", name, value);
                }
            }
            "softnet" => procfs::softnet(body, &mut snapshot),
            "snmp" | "netstat" => procfs::mib(body, &mut snapshot),
            "snmp6" => {
                for (name, value) in procfs::pairs(body) {
                    snapshot.add(Source::Mib, "", "", name, value);
                }
            }
            "table" => procfs::per_cpu_table(argument, body, &mut snapshot),
            "ip_link" => procfs::ip_link_json(body, &mut snapshot),
            "qdisc" => procfs::qdiscs(body, &mut snapshot),
            "end" => complete = true,
            _ => {}
        }
    }
    if !snapshot.counters.keys().any(|counter| counter.source == Source::Link && counter.name == "rx_packets") {
        procfs::net_dev(net_dev, &mut snapshot);
    }
    if !complete {
        snapshot.doubts.push("the DUT's answer was cut off: some counters are missing".into());
    }
    snapshot
}

/// `(section, argument, body)` of every section.
fn sections(text: &str) -> impl Iterator<Item = (&str, &str, &str)> {
    text.split(MARK).skip(1).map(|part| {
        let (head, body) = part.split_once('\n').unwrap_or((part, ""));
        let (section, argument) = head.split_once(' ').unwrap_or((head, ""));
        (section, argument.trim(), body)
    })
}

fn facts<'a>(snapshot: &'a mut Snapshot, interface: &str) -> &'a mut InterfaceFacts {
    snapshot.interfaces.entry(interface.to_string()).or_default()
}

fn system(body: &str, snapshot: &mut Snapshot) {
    for line in body.lines() {
        match line.split_once(' ') {
            Some(("boot_id", id)) => snapshot.boot_id = Some(id.trim().into()),
            Some(("uptime", seconds)) => {
                snapshot.uptime_s = seconds.split('.').next().and_then(|whole| whole.parse().ok())
            }
            Some(("kernel", release)) => snapshot.kernel = Some(release.trim().into()),
            _ => {}
        }
    }
}

fn link(interface: &str, body: &str, snapshot: &mut Snapshot) {
    for line in body.lines() {
        match line.split_once(' ') {
            Some(("carrier", value)) => facts(snapshot, interface).carrier = Some(value.trim() == "1"),
            // −1 on a link that does not know.
            Some(("speed", value)) => {
                facts(snapshot, interface).claim_mbps = value.trim().parse().ok().filter(|&mbps| mbps > 0)
            }
            Some((name, value)) => {
                if let Ok(value) = value.trim().parse() {
                    snapshot.add(Source::Link, interface, "", name, value);
                }
            }
            None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::channel::{Channel, ProcessChannel};
    use super::*;
    use std::time::Duration;

    #[test]
    fn the_script_reads_this_host_in_one_round_trip() {
        let answer = ProcessChannel::local().run(&compose(&[]), Duration::from_secs(20), None).unwrap();
        assert_eq!(answer.status, 0, "{}", answer.stderr);
        let s = read(&answer.stdout);
        assert!(s.boot_id.is_some() && s.uptime_s.is_some() && s.kernel.is_some());
        assert!(!s.cpus.is_empty());
        let has = |source: Source, name: &str| s.counters.keys().any(|c| c.source == source && c.name == name);
        assert!(has(Source::Link, "rx_packets") && has(Source::Softnet, "dropped"));
        assert!(has(Source::Mib, "Udp.RcvbufErrors") && has(Source::Mib, "IpExt.InNoRoutes"));
        assert!(s.doubts.is_empty(), "{:?}", s.doubts);
    }

    #[test]
    fn an_interface_that_is_not_there_is_a_doubt() {
        let script = compose(&["no such'if".into()]);
        let s = read(&ProcessChannel::local().run(&script, Duration::from_secs(20), None).unwrap().stdout);
        assert!(s.doubts.contains(&"the DUT has no interface no such'if".to_string()), "{:?}", s.doubts);
    }

    #[test]
    fn an_answer_that_was_cut_off_is_a_doubt_and_keeps_what_came() {
        let s =
            read("login banner\n@@plimsoll link eth0\nrx_packets 5\ncarrier 1\nspeed -1\n@@plimsoll snmp\nUdp: NoPo");
        assert_eq!(s.counters.len(), 1);
        assert_eq!((s.interfaces["eth0"].carrier, s.interfaces["eth0"].claim_mbps), (Some(true), None));
        assert!(s.doubts[0].contains("cut off"));
    }

    #[test]
    fn without_sysfs_the_old_table_is_used() {
        let s = read(
            "@@plimsoll net_dev\n h\n eth0: 100 2 0 1 0 0 0 0 50 1 0 0 0 0 0 0\n@@plimsoll no_ethtool\n@@plimsoll end\n",
        );
        assert_eq!(s.counters.iter().find(|(c, _)| c.name == "rx_dropped").map(|(_, v)| *v), Some(1));
        assert!(s.doubts[0].contains("no ethtool"));
    }
}
