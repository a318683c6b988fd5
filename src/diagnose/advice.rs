//! Advice: what a person can do about a stage that loses frames, with the exact commands.
//!
//! Pure. It speaks from what is known of the DUT (ring in use and possible, queues, CPU time) and says nothing it does not know. Counters
//! decide within a stage: a closed port asks for another remedy than a full socket buffer.

use super::{Stage, StageDelta};

/// What is known of the DUT that advice depends on. `None` means unknown.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DutFacts {
    /// The interface that takes our frames, as the DUT names it.
    pub interface: Option<String>,
    /// Its driver.
    pub driver: Option<String>,
    /// Link-speed claim of that interface, Mbit/s.
    pub claim_mbps: Option<u64>,
    /// RX ring in use, in descriptors.
    pub rx_ring: Option<u64>,
    /// The largest RX ring that the driver accepts.
    pub rx_ring_max: Option<u64>,
    /// Receive queues in use.
    pub rx_queues: Option<u64>,
    /// The most receive queues that the driver accepts.
    pub rx_queues_max: Option<u64>,
    /// Whether queues are set as `combined`.
    pub queues_combined: bool,
    /// The DUT's CPUs.
    pub cpus: Option<u64>,
    /// CPUs that spent more than 90 % of the trial in soft interrupts.
    pub busy_cpus: Vec<u64>,
}

impl DutFacts {
    fn name(&self) -> &str {
        self.interface.as_deref().unwrap_or("IF")
    }
}

/// Advice for loss at this stage.
pub(super) fn advice(stage: Stage, moved: &[StageDelta], facts: &DutFacts) -> Vec<String> {
    let has = |part: &str| moved.iter().any(|line| line.stage == Some(stage) && line.counter.contains(part));
    let mut lines: Vec<String> = match stage {
        Stage::GenTx => vec![
            "give the generator more workers (--workers) and CPUs, or a faster backend (plimsoll probe says which and why not)".into(),
        ],
        Stage::Link => link(&has),
        Stage::Vswitch => vswitch(&has),
        Stage::VnicRing => ring(facts),
        Stage::Driver => driver(&has, facts),
        Stage::Softnet => vec![
            "let the DUT queue more per CPU: `sysctl -w net.core.netdev_max_backlog=10000`".into(),
            "and serve more per round: `sysctl -w net.core.netdev_budget=600 net.core.netdev_budget_usecs=8000`".into(),
        ],
        Stage::Ip => ip(&has),
        Stage::Socket => socket(&has),
        Stage::GenRx => vec![
            "the generator lost them after the DUT had sent them: give its receiving port more queues or CPUs; the DUT's ceiling is not below this load".into(),
        ],
    };
    if matches!(stage, Stage::VnicRing | Stage::Softnet | Stage::Driver) {
        lines.extend(cpu(facts));
    }
    lines
}

/// Advice where generator and DUT share a resource.
pub(super) fn coupled() -> Vec<String> {
    vec!["give the DUT CPUs of its own (another host, pinned vCPUs, or `plimsoll lab up --own-cpu`), then compare ring sizes at a load below the coupled maximum".into()]
}

/// Advice where no counter explains the loss.
pub(super) fn unexplained(facts: &DutFacts) -> Vec<String> {
    let mut lines = vec![
        "a guest cannot count what its hypervisor dropped: read the host's port statistics too (`observe: vsish:…` on ESXi, esxtop %DRPRX, `ip -s link` of the tap)".into(),
    ];
    if facts.interface.is_none() {
        lines.insert(
            0,
            "let Plimsoll read the DUT: add `dut: {observe: ssh:USER@HOST, interface: IF}` to the profile".into(),
        );
    }
    lines
}

fn link(has: &dyn Fn(&str) -> bool) -> Vec<String> {
    let mut lines = Vec::new();
    if has("otherhost") {
        lines.push("frames came with a MAC address that is not the DUT's: check dest_mac, or drop it and let default_gw be resolved".into());
    }
    if has("qdisc") {
        lines.push("a queueing discipline on the way back drops: see `tc -s qdisc show` on the DUT; `tc qdisc del dev IF root` removes it".into());
    }
    if has("carrier") {
        lines.push("the link went down: see the DUT's `dmesg`, and repeat the trial".into());
    }
    if has("crc") || has("frame_errors") {
        lines.push("frames arrive damaged: check cable, transceiver and duplex".into());
    }
    if has("drv dropped tx") || has("tx_dropped") || has("tx_errors") || has("pkts tx") {
        lines.push(
            "the DUT loses frames while sending them back: look at the egress interface's ring (`ethtool -g`) and link"
                .into(),
        );
    }
    lines
}

fn vswitch(has: &dyn Fn(&str) -> bool) -> Vec<String> {
    let mut lines = Vec::new();
    if has("allowance_exceeded") {
        lines.push("the cloud provider's allowance for this instance is used up: a larger instance type has a larger one; no setting in the guest helps".into());
    }
    if has("tx_dropped") {
        lines.push("the hypervisor did not take frames from the tap: give the VM's vNIC more buffers (`rx_queue_size=1024` on virtio), vhost, or more CPU".into());
    }
    if lines.is_empty() {
        lines.push(
            "look at the hypervisor's port: on ESXi esxtop %DRPRX, the VM's ethernetN.ctxPerDev, and the host's CPU"
                .into(),
        );
    }
    lines
}

fn ring(facts: &DutFacts) -> Vec<String> {
    let name = facts.name();
    let mut lines = Vec::new();
    match (facts.rx_ring, facts.rx_ring_max) {
        (Some(now), Some(max)) if now < max => {
            let next = (now * 2).min(max);
            lines.push(format!("try a larger ring: `ethtool -G {name} rx {next}` (now {now}, at most {max})"));
            lines.push("find the best size, at the same offered loads: `plimsoll sweep PROFILE --dut-rx-rings 256,512,1024,2048,4096`".into());
        }
        (Some(now), Some(max)) => {
            lines.push(format!("the ring is at its maximum ({now} of {max}): bursts are not the problem, the DUT is too slow to empty it"));
            lines.push("a smaller ring can be faster (it stays in the CPU's cache): `plimsoll sweep PROFILE --dut-rx-rings 256,512,1024,2048,4096` tells".into());
        }
        _ => lines.push(format!("see the ring with `ethtool -g {name}` on the DUT and try `ethtool -G {name} rx N`")),
    }
    if let (Some(now), Some(max)) = (facts.rx_queues, facts.rx_queues_max)
        && now < max
        && facts.cpus.is_none_or(|cpus| cpus > now)
    {
        let kind = if facts.queues_combined { "combined" } else { "rx" };
        let next = facts.cpus.map_or(max, |cpus| max.min(cpus));
        lines.push(format!(
            "spread the work: `ethtool -L {name} {kind} {next}` (now {now} of {max} queues), with traffic of many flows"
        ));
    }
    lines
}

fn driver(has: &dyn Fn(&str) -> bool, facts: &DutFacts) -> Vec<String> {
    if has("xdp") {
        return vec![format!("an XDP program on the DUT drops: `ip link show {}` names it", facts.name())];
    }
    if has("alloc") {
        return vec!["the DUT's kernel had no memory for receive buffers: raise `vm.min_free_kbytes`".into()];
    }
    vec![format!("the DUT's driver dropped frames: `ethtool -S {}` and `dmesg` there say more", facts.name())]
}

fn ip(has: &dyn Fn(&str) -> bool) -> Vec<String> {
    let table: [(&[&str], &str); 7] = [
        (&["NoRoutes"], "the DUT has no route for these destinations: `ip route get DESTINATION` there"),
        (
            &["InAddrErrors", "Ip6InAddrErrors"],
            "the DUT does not forward, or the destination is not its own: `sysctl net.ipv4.ip_forward`",
        ),
        (
            &["IPReversePathFilter"],
            "reverse-path filtering drops our sources: `sysctl -w net.ipv4.conf.all.rp_filter=0` and the same for the interface",
        ),
        (&["InCsumErrors"], "frames came with a wrong IP checksum"),
        (&["HdrErrors"], "frames had a bad header or a time to live that ended here: raise the profile's ttl"),
        (&["unresolved_discards"], "the DUT cannot resolve the next hop's MAC: `ip neigh` there"),
        (
            &["conntrack"],
            "connection tracking is full: raise `net.netfilter.nf_conntrack_max`, or exempt the traffic (`iptables -t raw -j NOTRACK`)",
        ),
    ];
    let found: Vec<String> =
        table.iter().filter(|(parts, _)| parts.iter().any(|part| has(part))).map(|(_, text)| (*text).into()).collect();
    if found.is_empty() { vec!["`nstat -az` on the DUT shows which IP counter moves".into()] } else { found }
}

fn socket(has: &dyn Fn(&str) -> bool) -> Vec<String> {
    let table: [(&[&str], &str); 5] = [
        (
            &["RcvbufErrors"],
            "the application reads too slowly or its buffer is too small: `sysctl -w net.core.rmem_max=26214400` and SO_RCVBUF in the application",
        ),
        (&["NoPorts"], "no program listens on the destination port: start one, or run `plimsoll sink` on the DUT"),
        (&["InCsumErrors"], "frames came with a wrong UDP or TCP checksum"),
        (&["MemErrors"], "UDP's memory limit was reached: raise `net.ipv4.udp_mem`"),
        (&["Listen"], "the listening socket's queue is full: raise `net.core.somaxconn` and the application's backlog"),
    ];
    table.iter().filter(|(parts, _)| parts.iter().any(|part| has(part))).map(|(_, text)| (*text).into()).collect()
}

/// A CPU at its end asks for more of them, or for spreading.
fn cpu(facts: &DutFacts) -> Vec<String> {
    let Some(first) = facts.busy_cpus.first() else { return Vec::new() };
    let busy = facts.busy_cpus.len() as u64;
    match facts.cpus {
        Some(cpus) if busy < cpus => vec![format!(
            "CPU {first} of the DUT was full of receive work while {} of {cpus} were not: more queues, or receive packet steering (`echo f > /sys/class/net/{}/queues/rx-0/rps_cpus`)",
            cpus - busy,
            facts.name()
        )],
        _ => vec!["every CPU of the DUT was full of receive work: it needs more or faster CPUs".into()],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moved(stage: Stage, counter: &str) -> Vec<StageDelta> {
        vec![StageDelta { stage: Some(stage), counter: counter.into(), delta: 1, lost_frames: 1, note: None }]
    }

    fn vmxnet3(ring: u64) -> DutFacts {
        DutFacts { interface: Some("eth0".into()), rx_ring: Some(ring), rx_ring_max: Some(4096), ..DutFacts::default() }
    }

    #[test]
    fn a_small_ring_is_doubled_by_an_exact_command() {
        let lines = advice(Stage::VnicRing, &[], &vmxnet3(512));
        assert!(lines[0].contains("`ethtool -G eth0 rx 1024` (now 512, at most 4096)"), "{lines:?}");
        assert!(lines[1].contains("--dut-rx-rings"));
    }

    #[test]
    fn a_ring_at_its_maximum_is_not_to_be_raised() {
        let lines = advice(Stage::VnicRing, &[], &vmxnet3(4096));
        assert!(
            lines[0].contains("at its maximum") && lines.iter().all(|line| !line.contains("larger ring")),
            "{lines:?}"
        );
    }

    #[test]
    fn more_queues_are_advised_only_where_there_are_cpus_for_them() {
        let facts = DutFacts {
            rx_queues: Some(1),
            rx_queues_max: Some(8),
            queues_combined: true,
            cpus: Some(4),
            ..vmxnet3(64)
        };
        assert!(advice(Stage::VnicRing, &[], &facts).iter().any(|line| line.contains("`ethtool -L eth0 combined 4`")));
        let one_cpu = DutFacts { cpus: Some(1), ..facts };
        assert!(advice(Stage::VnicRing, &[], &one_cpu).iter().all(|line| !line.contains("ethtool -L")));
    }

    #[test]
    fn within_a_stage_the_counter_decides() {
        let of = |stage, counter| advice(stage, &moved(stage, counter), &DutFacts::default()).join("\n");
        assert!(of(Stage::Socket, "mib Udp.NoPorts").contains("plimsoll sink"));
        assert!(of(Stage::Socket, "mib Udp.RcvbufErrors").contains("rmem_max"));
        assert!(of(Stage::Ip, "mib IpExt.InNoRoutes").contains("ip route get"));
        assert!(of(Stage::Link, "d0 link rx_otherhost_dropped").contains("MAC"));
        assert!(of(Stage::Vswitch, "eth0 ethtool pps_allowance_exceeded").contains("instance"));
        assert!(of(Stage::Ip, "mib Ip.InDiscards").contains("nstat"));
    }

    #[test]
    fn one_full_cpu_among_idle_ones_asks_for_spreading() {
        let facts = DutFacts { cpus: Some(4), busy_cpus: vec![2], ..vmxnet3(4096) };
        assert!(
            advice(Stage::Softnet, &[], &facts).iter().any(|line| line.contains("CPU 2") && line.contains("3 of 4"))
        );
        let all = DutFacts { cpus: Some(1), busy_cpus: vec![0], ..vmxnet3(4096) };
        assert!(advice(Stage::Softnet, &[], &all).iter().any(|line| line.contains("every CPU")));
    }

    #[test]
    fn without_an_observer_the_advice_is_to_have_one() {
        assert!(unexplained(&DutFacts::default())[0].contains("observe"));
        assert!(!unexplained(&vmxnet3(1))[0].contains("add `dut:"));
    }
}
