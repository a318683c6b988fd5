//! The table behind `stages`: counters of drivers, kernels and hypervisors, and the stage each belongs to.
//!
//! Data only. Sources: the drivers' `ethtool` files in the Linux tree, `net/core`, `net/ipv4/proc.c`, `net/ipv6/proc.c`, and VMware's and
//! Amazon's documentation of their counters. `*` in a name stands for any run of characters. The first rule that matches decides.

use super::counters::Source as S;
use crate::diagnose::Stage;

/// How a counter relates to others that count the same frames.
#[derive(Debug, Clone, Copy)]
pub(super) enum Role {
    /// Frames lost; counters of one group are views of the same frames.
    Loss(&'static str),
    /// A sum that contains these groups; what exceeds them is lost frames too.
    Rest(&'static [&'static str]),
    /// Pressure, or events that are no frames.
    Sign,
}
use Role::{Loss, Rest, Sign};

/// One line of the table.
pub(super) struct Rule {
    pub(super) source: S,
    /// Driver names, or empty for any.
    pub(super) drivers: &'static [&'static str],
    /// Glob over the name.
    pub(super) name: &'static str,
    pub(super) stage: Stage,
    pub(super) role: Role,
    pub(super) note: &'static str,
}

const fn rule(
    source: S,
    drivers: &'static [&'static str],
    name: &'static str,
    stage: Stage,
    role: Role,
    note: &'static str,
) -> Rule {
    Rule { source, drivers, name, stage, role, note }
}

const fn any(source: S, name: &'static str, stage: Stage, role: Role) -> Rule {
    rule(source, &[], name, stage, role, "")
}

const INTEL: &[&str] = &["e1000", "e1000e", "igb", "igc", "ixgbe", "ixgbevf", "i40e", "iavf", "ice"];
const VMXNET3: &[&str] = &["vmxnet3"];
const ENA: &[&str] = &["ena"];
const MLX5: &[&str] = &["mlx5_core"];
const VIRTIO: &[&str] = &["virtio_net"];
const VETH: &[&str] = &["veth"];
const TAP: &[&str] = &["tun", "tap"];

/// The first rule that matches decides. What is true of both sides; what differs is in [`DUT_RULES`] and [`GENERATOR_RULES`].
#[rustfmt::skip]
pub(super) const RULES: &[Rule] = &[
    // The virtual switch and what the hypervisor or cloud does on the way.
    rule(S::Ethtool, ENA, "bw_in_allowance_exceeded", Stage::Vswitch, Loss("allowance_bw_in"), "the instance's inbound bandwidth allowance"),
    rule(S::Ethtool, ENA, "bw_out_allowance_exceeded", Stage::Vswitch, Loss("allowance_bw_out"), "the instance's outbound bandwidth allowance"),
    rule(S::Ethtool, ENA, "pps_allowance_exceeded", Stage::Vswitch, Loss("allowance_pps"), "the instance's packet rate allowance"),
    rule(S::Ethtool, ENA, "conntrack_allowance_exceeded", Stage::Vswitch, Loss("allowance_conntrack"), "the instance's tracked connections"),
    rule(S::Ethtool, ENA, "linklocal_allowance_exceeded", Stage::Vswitch, Loss("allowance_linklocal"), ""),
    rule(S::Ethtool, ENA, "conntrack_allowance_available", Stage::Vswitch, Sign, "a gauge"),
    rule(S::Ethtool, VIRTIO, "*hw_drop_ratelimits", Stage::Vswitch, Loss("ratelimit"), "rate limit of the virtio device"),
    any(S::Vsish, "*PktAgingList*", Stage::Vswitch, Loss("vsish_aging")),
    any(S::Vsish, "*dropped by burst queue*", Stage::Vswitch, Loss("vsish_burst")),
    any(S::Vsish, "*dropped by packet steering*", Stage::Vswitch, Loss("vsish_steering")),
    any(S::Vsish, "*dropped due to*", Stage::Vswitch, Loss("vsish_limits")),
    any(S::Vsish, "fail* to map a rx buffer", Stage::Vswitch, Sign),
    any(S::Vsish, "failed when copying into the guest buffer", Stage::Vswitch, Loss("vsish_copy")),
    any(S::Vsish, "pkts receive error", Stage::Vswitch, Loss("vsish_error")),
    any(S::Vsish, "# of times rx queue is stopped", Stage::Vswitch, Sign),
    // The vNIC's receive ring. One group: hypervisor and guest see the same frames.
    any(S::Vsish, "running out of buffers", Stage::VnicRing, Loss("ring")),
    any(S::Vsish, "# of times the * ring is full", Stage::VnicRing, Loss("ring")),
    any(S::Vsish, "droppedRx", Stage::VnicRing, Loss("ring")),
    rule(S::Ethtool, VMXNET3, "pkts rx OOB", Stage::VnicRing, Loss("ring"), "no receive buffer was free"),
    rule(S::Ethtool, INTEL, "rx_missed_errors", Stage::VnicRing, Loss("ring"), "the receive FIFO overflowed because no descriptor was free"),
    rule(S::Ethtool, INTEL, "rx_no_dma_resources", Stage::VnicRing, Loss("ring"), ""),
    rule(S::Ethtool, INTEL, "port.rx_discards", Stage::VnicRing, Loss("ring"), ""),
    rule(S::Ethtool, INTEL, "rx_dropped*", Stage::VnicRing, Loss("ring"), ""),
    rule(S::Ethtool, INTEL, "*rx_no_buffer_count", Stage::VnicRing, Sign, "the ring was empty; the frame may still have been taken"),
    rule(S::Ethtool, INTEL, "rx_queue_*_drops", Stage::VnicRing, Loss("ring"), ""),
    rule(S::Ethtool, INTEL, "rx_fifo_errors", Stage::VnicRing, Loss("ring"), ""),
    rule(S::Ethtool, INTEL, "rx_over_errors", Stage::VnicRing, Loss("ring"), ""),
    rule(S::Ethtool, MLX5, "rx_out_of_buffer", Stage::VnicRing, Loss("ring"), "no receive descriptor was posted"),
    rule(S::Ethtool, MLX5, "rx_discards_phy", Stage::VnicRing, Loss("phy_buffer"), "the port's own buffer overflowed"),
    rule(S::Ethtool, MLX5, "rx_prio*_discards", Stage::VnicRing, Loss("phy_buffer"), ""),
    rule(S::Ethtool, MLX5, "rx_prio*_buf_discard", Stage::VnicRing, Loss("phy_buffer"), ""),
    rule(S::Ethtool, ENA, "rx_drops", Stage::VnicRing, Loss("ring"), "no receive descriptor was free"),
    rule(S::Ethtool, ENA, "rx_overruns", Stage::VnicRing, Loss("overrun"), ""),
    rule(S::Ethtool, VIRTIO, "*hw_drop_overruns", Stage::VnicRing, Loss("ring"), "no receive buffer was free"),
    rule(S::Ethtool, VIRTIO, "*hw_drops", Stage::VnicRing, Loss("ring"), ""),
    any(S::Link, "rx_missed_errors", Stage::VnicRing, Loss("ring")),
    any(S::Link, "rx_over_errors", Stage::VnicRing, Loss("ring")),
    any(S::Link, "rx_fifo_errors", Stage::VnicRing, Loss("ring")),
    // The driver.
    rule(S::Ethtool, VMXNET3, "drv dropped rx total", Stage::Driver, Loss("driver_rx"), ""),
    rule(S::Ethtool, VMXNET3, "rx buf alloc fail", Stage::Driver, Sign, "the DUT had no memory for receive buffers"),
    rule(S::Ethtool, VMXNET3, "xdp drops", Stage::Driver, Loss("xdp"), "an XDP program on the DUT"),
    rule(S::Ethtool, VMXNET3, "xdp aborted", Stage::Driver, Loss("xdp_aborted"), "an XDP program on the DUT failed"),
    rule(S::Ethtool, VMXNET3, "pkts rx err", Stage::Driver, Loss("driver_rx_err"), ""),
    // In the Tx Queue section: the DUT could not send, its receive side is not concerned.
    rule(S::Ethtool, VMXNET3, "ring full", Stage::Link, Sign, "transmit ring: the DUT waited to send"),
    rule(S::Ethtool, VMXNET3, "drv dropped tx total", Stage::Link, Loss("dut_tx"), "dropped by the DUT while sending"),
    rule(S::Ethtool, VMXNET3, "pkts tx *", Stage::Link, Loss("dut_tx_err"), "dropped by the DUT while sending"),
    rule(S::Ethtool, ENA, "queue_*_rx_bad_csum", Stage::Driver, Sign, ""),
    rule(S::Ethtool, ENA, "queue_*_rx_xdp_drop", Stage::Driver, Loss("xdp"), "an XDP program on the DUT"),
    rule(S::Ethtool, ENA, "queue_*_rx_*alloc_fail", Stage::Driver, Sign, "the DUT had no memory for receive buffers"),
    rule(S::Ethtool, ENA, "queue_*_rx_empty_rx_ring", Stage::VnicRing, Sign, "the receive ring stayed empty"),
    rule(S::Ethtool, MLX5, "rx_xdp_drop", Stage::Driver, Loss("xdp"), "an XDP program on the DUT"),
    rule(S::Ethtool, MLX5, "rx_steer_missed_packets", Stage::Link, Loss("steering"), "no flow rule of the NIC took them"),
    rule(S::Ethtool, MLX5, "rx_buff_alloc_err", Stage::Driver, Sign, ""),
    rule(S::Ethtool, MLX5, "rx_wqe_err", Stage::Driver, Loss("driver_rx"), ""),
    rule(S::Ethtool, MLX5, "rx*_xdp_drop", Stage::Driver, Loss("xdp"), ""),
    rule(S::Ethtool, VIRTIO, "rx*xdp_drops", Stage::Driver, Loss("xdp"), "an XDP program on the DUT"),
    rule(S::Ethtool, VIRTIO, "rx_drops", Stage::Driver, Loss("driver_rx"), "bad length, no memory, or an XDP verdict"),
    rule(S::Ethtool, VIRTIO, "rx*_drops", Stage::Driver, Loss("driver_rx"), ""),
    rule(S::Ethtool, VETH, "rx_queue_*_xdp_drops", Stage::Driver, Loss("xdp"), "an XDP program on the DUT"),
    rule(S::Ethtool, VETH, "rx_queue_*_xdp_tx_errors", Stage::Driver, Loss("xdp_tx"), ""),
    rule(S::Ethtool, VETH, "rx_queue_*_drops", Stage::Driver, Loss("driver_rx"), ""),
    rule(S::Ethtool, INTEL, "alloc_rx_*_failed", Stage::Driver, Sign, "the DUT had no memory for receive buffers"),
    rule(S::Ethtool, INTEL, "rx_queue_*_alloc_failed", Stage::Driver, Sign, "the DUT had no memory for receive buffers"),
    rule(S::Ethtool, INTEL, "rx_queue_*_csum_err", Stage::Driver, Sign, "a bad checksum, passed on to IP"),
    rule(S::Ethtool, INTEL, "rx_csum_offload_errors", Stage::Driver, Sign, "a bad checksum, passed on to IP"),
    any(S::Ethtool, "*xdp_drop*", Stage::Driver, Loss("xdp")),
    any(S::Ethtool, "*xdp_aborted*", Stage::Driver, Loss("xdp_aborted")),
    any(S::Link, "rx_length_errors", Stage::Driver, Loss("length")),
    any(S::Link, "rx_nohandler", Stage::Driver, Loss("nohandler")),
    // The link.
    any(S::Link, "rx_otherhost_dropped", Stage::Link, Loss("otherhost")),
    any(S::Link, "rx_crc_errors", Stage::Link, Loss("crc")),
    any(S::Link, "rx_frame_errors", Stage::Link, Loss("frame")),
    any(S::Link, "carrier_changes", Stage::Link, Sign),
    any(S::Link, "carrier_down_count", Stage::Link, Sign),
    any(S::Link, "carrier_up_count", Stage::Link, Sign),
    any(S::Link, "rx_errors", Stage::Driver, Rest(&["ring", "length", "crc", "frame", "driver_rx_err"])),
    any(S::Qdisc, "dropped", Stage::Link, Loss("qdisc")),
    // softnet.
    any(S::Softnet, "dropped", Stage::Softnet, Loss("backlog")),
    any(S::Softnet, "time_squeeze", Stage::Softnet, Sign),
    any(S::Softnet, "flow_limit_count", Stage::Softnet, Sign),
    // The per-interface sum of what driver and backlog dropped.
    any(S::Link, "rx_dropped", Stage::Driver, Rest(&["ring", "driver_rx", "xdp", "xdp_aborted", "backlog", "length", "nohandler", "otherhost"])),
    // IP.
    any(S::Mib, "IpExt.InCsumErrors", Stage::Ip, Loss("ip_csum")),
    any(S::Mib, "Ip.InHdrErrors", Stage::Ip, Rest(&["ip_csum"])),
    any(S::Mib, "IpExt.InNoRoutes", Stage::Ip, Loss("no_route")),
    any(S::Mib, "Ip.OutNoRoutes", Stage::Ip, Loss("no_route_out")),
    any(S::Mib, "Ip.InAddrErrors", Stage::Ip, Loss("address")),
    any(S::Mib, "Ip.InUnknownProtos", Stage::Ip, Loss("unknown_proto")),
    any(S::Mib, "IpExt.InTruncatedPkts", Stage::Ip, Loss("truncated")),
    any(S::Mib, "Ip.OutDiscards", Stage::Ip, Loss("ip_out")),
    any(S::Mib, "Ip.ReasmFails", Stage::Ip, Loss("reassembly")),
    any(S::Mib, "Ip.FragFails", Stage::Ip, Loss("too_big")),
    any(S::Mib, "TcpExt.IPReversePathFilter", Stage::Ip, Loss("rp_filter")),
    any(S::Mib, "Ip.InDiscards", Stage::Ip, Loss("ip_in")),
    any(S::Mib, "Ip6InHdrErrors", Stage::Ip, Loss("ip6_hdr")),
    any(S::Mib, "Ip6InNoRoutes", Stage::Ip, Loss("no_route6")),
    any(S::Mib, "Ip6OutNoRoutes", Stage::Ip, Loss("no_route6_out")),
    any(S::Mib, "Ip6InAddrErrors", Stage::Ip, Loss("address6")),
    any(S::Mib, "Ip6InUnknownProtos", Stage::Ip, Loss("unknown_proto6")),
    any(S::Mib, "Ip6InTooBigErrors", Stage::Ip, Loss("too_big6")),
    any(S::Mib, "Ip6InTruncatedPkts", Stage::Ip, Loss("truncated6")),
    any(S::Mib, "Ip6InDiscards", Stage::Ip, Loss("ip6_in")),
    any(S::Mib, "Ip6OutDiscards", Stage::Ip, Loss("ip6_out")),
    any(S::Neigh, "arp_cache.unresolved_discards", Stage::Ip, Loss("arp")),
    any(S::Neigh, "ndisc_cache.unresolved_discards", Stage::Ip, Loss("nd")),
    any(S::Neigh, "nf_conntrack.drop", Stage::Ip, Loss("conntrack")),
    any(S::Neigh, "nf_conntrack.early_drop", Stage::Ip, Sign),
    any(S::Neigh, "nf_conntrack.insert_failed", Stage::Ip, Loss("conntrack_insert")),
    // Transport and sockets.
    any(S::Mib, "Udp.RcvbufErrors", Stage::Socket, Loss("rcvbuf")),
    any(S::Mib, "Udp.InCsumErrors", Stage::Socket, Loss("udp_csum")),
    any(S::Mib, "Udp.MemErrors", Stage::Socket, Loss("udp_mem")),
    any(S::Mib, "Udp.NoPorts", Stage::Socket, Loss("no_port")),
    any(S::Mib, "Udp.InErrors", Stage::Socket, Rest(&["rcvbuf", "udp_csum", "udp_mem"])),
    any(S::Mib, "Udp6RcvbufErrors", Stage::Socket, Loss("rcvbuf6")),
    any(S::Mib, "Udp6InCsumErrors", Stage::Socket, Loss("udp_csum6")),
    any(S::Mib, "Udp6MemErrors", Stage::Socket, Loss("udp_mem6")),
    any(S::Mib, "Udp6NoPorts", Stage::Socket, Loss("no_port6")),
    any(S::Mib, "Udp6InErrors", Stage::Socket, Rest(&["rcvbuf6", "udp_csum6", "udp_mem6"])),
    any(S::Mib, "Tcp.InCsumErrors", Stage::Socket, Loss("tcp_csum")),
    any(S::Mib, "Tcp.InErrs", Stage::Socket, Rest(&["tcp_csum"])),
    any(S::Mib, "TcpExt.ListenDrops", Stage::Socket, Loss("listen")),
    any(S::Mib, "TcpExt.ListenOverflows", Stage::Socket, Sign),
    any(S::Mib, "TcpExt.TCPBacklogDrop", Stage::Socket, Loss("tcp_backlog")),
    any(S::Mib, "TcpExt.TCPRcvQDrop", Stage::Socket, Loss("tcp_rcvq")),
];

/// On the DUT, what it cannot send back is lost on the way to us.
#[rustfmt::skip]
pub(super) const DUT_RULES: &[Rule] = &[
    rule(S::Link, TAP, "tx_dropped", Stage::Vswitch, Loss("tap"), "frames that the program behind the tap did not take"),
    rule(S::Link, VETH, "tx_dropped", Stage::GenRx, Loss("peer_ring"), "a veth counts here what its peer, our receiving port, could not take"),
    rule(S::Ethtool, VETH, "tx_queue_*_xdp_xmit_errors", Stage::GenRx, Loss("peer_ring"), "what our receiving port's ring could not take"),
    any(S::Link, "tx_dropped", Stage::Link, Loss("dut_tx")),
    any(S::Link, "tx_carrier_errors", Stage::Link, Loss("dut_carrier")),
    any(S::Link, "tx_errors", Stage::Link, Rest(&["dut_carrier"])),
];

/// On the generator, what arrives and is dropped is our own fault, and what a veth's peer cannot take is the DUT's ring.
#[rustfmt::skip]
pub(super) const GENERATOR_RULES: &[Rule] = &[
    rule(S::Link, TAP, "tx_dropped", Stage::Vswitch, Loss("tap"), "frames that the program behind the tap did not take"),
    any(S::Link, "rx_otherhost_dropped", Stage::GenRx, Sign), // frames that came back need not carry our address
    any(S::Ethtool, "*xdp_drop*", Stage::GenRx, Sign), // our own counting program takes its frames that way
    rule(S::Link, VETH, "tx_dropped", Stage::VnicRing, Rest(&["backlog", "ring"]), "a veth counts here what its peer, the DUT's port, could not take"),
    rule(S::Ethtool, VETH, "tx_queue_*_xdp_xmit_errors", Stage::VnicRing, Loss("ring"), "what the ring of the DUT's port could not take"),
    any(S::Link, "tx_dropped", Stage::GenTx, Loss("gen_tx")),
    any(S::Link, "tx_carrier_errors", Stage::GenTx, Loss("gen_carrier")),
    any(S::Link, "tx_errors", Stage::GenTx, Rest(&["gen_carrier"])),
    any(S::Qdisc, "dropped", Stage::GenTx, Loss("gen_qdisc")),
];

/// Counters whose movement is traffic or housekeeping, not loss: they are not shown as unknown.
#[rustfmt::skip]
pub(super) const HARMLESS: &[&str] = &[
    "*packets*",
    "*pkts*ok*",
    "*bytes*",
    "*octets*",
    "*_kicks",
    "*multicast*",
    "*broadcast*",
    "*unicast*",
    "*cast pkts*",
    "*cast bytes*",
    "*pkts rx*",
    "*xdp_redirect*",
    "*xdp_tx",
    "*xdp_xmit",
    "*xdp_pass*",
    "*napi*",
    "*poll*",
    "*doorbell*",
    "*csum_good*",
    "*csum_ok*",
    "*csum_complete*",
    "*csum_unnecessary*",
    "*csum_none*",
    "*csum_partial*",
    "*size_*",
    "*_to_*_bytes*",
    "processed",
    "*LRO*",
    "*TSO*",
    "*lro*",
    "*gro*",
    "*tso*",
    "*wake*",
    "*stopped*",
    "*ring size*",
    "*interrupt*",
    "*irq*",
    "*arm*",
    "*eqe*",
    "*cqe*",
    "*cache_*",
    "*page*",
    "*recycle*",
    "*linear*",
    "*keep_alive*",
    "*timestamp*",
    "*xmit_more*",
    "*data ring*",
    "*peer_ifindex*",
    "*prio*_pause*",
    "*_cnt",
    "*completions*",
    "hdr *",
    "*burst queu*",
    "*delivered*",
];
/// In tables as large as the MIBs only names that speak of loss are worth showing.
pub(super) const LOSSY: &[&str] =
    &["*drop*", "*discard*", "*err*", "*fail*", "*overflow*", "*full*", "*miss*", "*exceed*", "*bad*"];
