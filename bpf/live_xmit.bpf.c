// SPDX-License-Identifier: (GPL-2.0 OR Apache-2.0)
/*
 * Counts what a port's ndo_xdp_xmit really took of the live frames, per CPU.
 *
 * Runs at the tracepoint xdp_devmap_xmit, once per bulk of up to 16 frames, on the CPU of the worker that sent them. The
 * tracepoint is system-wide and an ifindex repeats across network namespaces, so both are compared. Live frames returned
 * with XDP_TX have the port as source and destination; anything else is not ours.
 */
#include <linux/bpf.h>
#include <linux/types.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

struct ns_common {
	unsigned int inum;
} __attribute__((preserve_access_index));

struct net {
	struct ns_common ns;
} __attribute__((preserve_access_index));

typedef struct {
	struct net *net;
} __attribute__((preserve_access_index)) possible_net_t;

struct net_device {
	int ifindex;
	possible_net_t nd_net;
} __attribute__((preserve_access_index));

#define MAX_CPUS 1024

struct xmit_count {
	__u64 sent_frames;
	__u64 dropped_frames;
	__u64 pad[6]; /* a cache line for each CPU */
};

/* Set before loading. */
const volatile struct {
	int ifindex;
	unsigned int netns;
} port;

/* Written by its own CPU only (the flush runs with bottom halves off), read by user space. */
struct xmit_count xmit_counts[MAX_CPUS];

SEC("tp_btf/xdp_devmap_xmit")
int BPF_PROG(live_xmit, const struct net_device *from, const struct net_device *to, int sent, int drops, int err)
{
	__u32 cpu = bpf_get_smp_processor_id();

	if (from != to || to->ifindex != port.ifindex || to->nd_net.net->ns.inum != port.netns || cpu >= MAX_CPUS)
		return 0;
	xmit_counts[cpu].sent_frames += sent;
	xmit_counts[cpu].dropped_frames += drops;
	return 0;
}

char _license[] SEC("license") = "GPL";
