/* SPDX-License-Identifier: (GPL-2.0 OR Apache-2.0) */
/*
 * Counts our frames of any run and passes every frame on: `plimsoll sink` on a DUT that terminates.
 *
 * It knows no run, so it looks where signatures stand: at the start of the UDP, TCP or ICMP payload, or at the frame's end. A
 * full one is known by its magic. A short one has none: a payload with room for a short one only is counted from the second
 * frame on that has the same tag and stream and a sequence soon after the first's (which is counted then, too). Every CPU
 * counts and remembers for itself.
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/tcp.h>
#include <stdbool.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "ethernet.h"
#include "signature.h"

/* Tags and streams of short signatures remembered; each trial has a tag of its own. */
#define STREAMS 1024
/* The next sequence of the same stream on the same CPU is at most this far away: flows, workers and loss leave gaps. */
#define NEAR (1 << 16)
#define TRANSPORT_HEADER 8

struct sink_counts {
	__u64 full;
	__u64 brief;
};

struct sink_stream {
	__u32 sequence;
	__u16 is_waiting;
	__u16 is_known;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct sink_counts);
} counts SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_PERCPU_HASH);
	__uint(max_entries, STREAMS);
	__type(key, __u32);
	__type(value, struct sink_stream);
} streams SEC(".maps");

/* Where the payload starts and how many bytes the IP header says it has; NULL if that is not known. */
static __always_inline void *payload_of(void *data, void *end, __u32 *room)
{
	__u32 length, header;
	__u8 protocol;
	__u16 type;
	void *next = network_header(data, end, &type);

	if (!next)
		return NULL;
	if (type == ETH_P_IP) {
		struct iphdr *ip = next;

		if ((void *)(ip + 1) > end)
			return NULL;
		protocol = ip->protocol;
		header = ip->ihl * 4;
		length = bpf_ntohs(ip->tot_len) - header;
		if (protocol == IPPROTO_ICMPV6)
			return NULL;
	} else if (type == ETH_P_IPV6) {
		struct ipv6hdr *ip = next;

		if ((void *)(ip + 1) > end)
			return NULL;
		protocol = ip->nexthdr;
		header = sizeof(*ip);
		length = bpf_ntohs(ip->payload_len);
	} else {
		return NULL;
	}
	next += header;
	if (protocol == IPPROTO_TCP) {
		struct tcphdr *tcp = next;

		if ((void *)(tcp + 1) > end)
			return NULL;
		header = tcp->doff * 4;
	} else if (protocol == IPPROTO_UDP || protocol == IPPROTO_ICMP || protocol == IPPROTO_ICMPV6) {
		header = TRANSPORT_HEADER;
	} else {
		return NULL;
	}
	*room = length - header;
	return next + header;
}

static __always_inline void count_short(struct sink_counts *own, const struct signature_short *signature)
{
	__u32 sequence = signature->sequence[0] << 16 | signature->sequence[1] << 8 | signature->sequence[2];
	__u32 key = bpf_ntohs(signature->run_tag) << 8 | signature->stream;
	struct sink_stream first = { .sequence = sequence, .is_waiting = 1 }, *stream;

	/* No run's tag is 0, and payloads are full of zeros. */
	if (!signature->run_tag)
		return;
	stream = bpf_map_lookup_elem(&streams, &key);
	if (!stream) {
		bpf_map_update_elem(&streams, &key, &first, BPF_ANY);
		return;
	}
	if (!stream->is_known) {
		if (!stream->is_waiting || ((sequence - stream->sequence - 1) & 0xFFFFFF) >= NEAR) {
			stream->sequence = sequence;
			stream->is_waiting = 1;
			return;
		}
		stream->is_known = 1;
		own->brief++;
	}
	own->brief++;
}

static __always_inline int count(struct xdp_md *ctx, const bool frags)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	const __u32 size = sizeof(struct signature_full);
	__u64 length = frags ? bpf_xdp_get_buff_len(ctx) : end - data;
	struct sink_counts *own;
	__u32 zero = 0, room = 0;
	__be16 magic = 0;
	void *payload;

	own = bpf_map_lookup_elem(&counts, &zero);
	if (!own)
		return XDP_PASS;
	payload = payload_of(data, end, &room);
	if (payload && payload + sizeof(struct signature_short) <= end) {
		struct signature_short *signature = payload;

		if (signature->run_tag == bpf_htons(RUN_MAGIC) && payload + size <= end) {
			own->full++;
			return XDP_PASS;
		}
		if (room >= sizeof(*signature) && room < size) {
			count_short(own, signature);
			return XDP_PASS;
		}
	}
	if (length < size + sizeof(struct ethhdr))
		return XDP_PASS;
	if (frags && length > (__u64)(end - data)) {
		bpf_xdp_load_bytes(ctx, length - size, &magic, sizeof(magic));
	} else {
		void *tail = data + ((length - size) & 0x3FFF);

		if (tail + sizeof(magic) <= end)
			magic = *(__be16 *)tail;
	}
	if (magic == bpf_htons(RUN_MAGIC))
		own->full++;
	return XDP_PASS;
}

SEC("xdp")
int plimsoll_sink(struct xdp_md *ctx)
{
	return count(ctx, false);
}

SEC("xdp.frags")
int plimsoll_sink_f(struct xdp_md *ctx)
{
	return count(ctx, true);
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
