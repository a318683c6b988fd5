/* SPDX-License-Identifier: (GPL-2.0 OR Apache-2.0) */
/*
 * Counts received frames: ours per stream, with duplicates, order and latency, and ends them; all others by kind, and
 * passes them on to the kernel.
 *
 * No header of our frames is parsed: the few offsets at which this run's signatures stand are tried (and those 4 and 8
 * bytes earlier, for VLAN tags that were taken off), the likeliest first. Every CPU counts in slots of its own, so nothing
 * here is atomic; user space reads the maps through mmap and takes differences.
 *
 * Costs that decide the design: no division, no clock unless the frame carries a stamp, and two or three array lookups,
 * which the kernel inlines.
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <stdbool.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "ethernet.h"
#include "signature.h"

/* 16 sites as they are sent, and each of them with one and two tags less. */
#define SITES 48
/* Duplicates are told within this many sequence numbers of a stream. */
#define WINDOW 1024
/* Paths of one stream that each keep their order. */
#define CLASSES 1024
#define QUEUES 64
/* Log-linear: 32 linear buckets, then 32 per octave up to 2^32 ns. */
#define LINEAR_BITS 5
#define LINEAR (1 << LINEAR_BITS)
#define BUCKETS (LINEAR + (32 - LINEAR_BITS) * LINEAR)

#define FCS 4
#define ETH_P_LLDP_FRAME 0x88CC

/* linux/icmp.h and linux/icmpv6.h draw in headers of the C library. */
struct icmp_header {
	__u8 type;
	__u8 code;
	__u16 checksum;
};

enum icmp_type { ICMP_ECHOREPLY = 0, ICMP_DEST_UNREACH = 3, ICMP_ECHO = 8, ICMP_TIME_EXCEEDED = 11 };
enum icmp_code { ICMP_NET_UNREACH = 0, ICMP_HOST_UNREACH = 1, ICMP_PORT_UNREACH = 3 };
enum icmp6_type { ICMP6_DEST_UNREACH = 1, ICMP6_TIME_EXCEED = 3, ND_FIRST = 133, ND_LAST = 137 };
enum icmp6_code { ICMP6_PORT_UNREACH = 4 };

enum other {
	OTHER_ARP,
	OTHER_ICMP_ECHO_REQUEST,
	OTHER_ICMP_ECHO_REPLY,
	OTHER_ICMP_NET_UNREACHABLE,
	OTHER_ICMP_HOST_UNREACHABLE,
	OTHER_ICMP_PORT_UNREACHABLE,
	OTHER_ICMP_UNREACHABLE,
	OTHER_ICMP_TIME_EXCEEDED,
	OTHER_ICMP,
	OTHER_ND,
	OTHER_ICMP6_PORT_UNREACHABLE,
	OTHER_ICMP6_UNREACHABLE,
	OTHER_ICMP6_TIME_EXCEEDED,
	OTHER_ICMP6,
	OTHER_IPV4_UDP,
	OTHER_IPV4_TCP,
	OTHER_IPV4,
	OTHER_IPV6_UDP,
	OTHER_IPV6_TCP,
	OTHER_IPV6,
	OTHER_LLDP,
	OTHER_LLC,
	OTHER_ANOTHER_RUN,
	OTHER_UNKNOWN,
	OTHERS,
};

struct rx_site {
	__u16 offset;
	/* 1: short signature. */
	__u8 is_short;
	/* Which of the sites as sent this is a variant of; the bit in rx_stream.sites. */
	__u8 base;
};

struct rx_config {
	/* Streams, and tries in sites[]. */
	__u32 streams;
	__u32 tries;
	struct rx_site sites[SITES];
};

const volatile struct rx_config config = {};

struct rx_cpu {
	/* Set by user space. */
	__u32 run_tag;
	__u32 unused;
	__u64 queues[QUEUES];
	__u64 others[OTHERS];
};

/* One cache line per CPU and stream. */
struct rx_stream {
	__u64 frames;
	__u64 bytes;
	__u64 duplicates;
	__u64 reordered;
	/* Set by user space, from here on: which sites the stream's templates use. */
	__u64 sites;
	/* 2^40 / classes + 1, for a remainder without division. */
	__u64 reciprocal;
	/* Sequences that agree modulo this keep their order; 0: order is not known. At most CLASSES. */
	__u16 classes;
	/* 2^16 mod classes. */
	__u16 wrap;
	/* Index into windows and into histograms; an index past their end: none. */
	__u32 window;
	__u32 histogram;
	__u32 unused;
};

struct rx_window {
	/* Sequence + 1 of the frame that was last seen in each place; 0: none. */
	__u32 seen[WINDOW];
	/* Highest sequence + 1 of each class; 0: none. */
	__u32 highest[CLASSES];
};

struct rx_histogram {
	__u64 buckets[BUCKETS];
};

/* User space sets max_entries of all four before loading. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct rx_cpu);
} cpus SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct rx_stream);
} streams SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct rx_window);
} windows SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct rx_histogram);
} histograms SEC(".maps");

static __always_inline __u32 bucket_of(__u32 ns)
{
	__u32 value = ns, octave = 0;

	if (ns < LINEAR)
		return ns;
	/* octave = floor(log2(ns)) - LINEAR_BITS */
	value >>= LINEAR_BITS;
	if (value >> 16) {
		value >>= 16;
		octave += 16;
	}
	if (value >> 8) {
		value >>= 8;
		octave += 8;
	}
	if (value >> 4) {
		value >>= 4;
		octave += 4;
	}
	if (value >> 2) {
		value >>= 2;
		octave += 2;
	}
	octave += value >> 1;
	return LINEAR + (octave << LINEAR_BITS) + ((ns >> octave) & (LINEAR - 1));
}

/* seq mod classes, exact for classes <= 4095: fold the upper half in, then multiply by the reciprocal. */
static __always_inline __u32 class_of(const struct rx_stream *stream, __u32 sequence)
{
	__u64 folded = (__u64)(sequence >> 16) * stream->wrap + (sequence & 0xFFFF);

	return (folded - ((folded * stream->reciprocal) >> 40) * stream->classes) & (CLASSES - 1);
}

static __always_inline void count_order(struct rx_stream *stream, __u32 sequence, __u32 shift)
{
	struct rx_window *window = bpf_map_lookup_elem(&windows, &stream->window);
	__u32 next = sequence + 1, *seen, *highest;

	if (!window)
		return;
	seen = &window->seen[sequence & (WINDOW - 1)];
	if (*seen == next) {
		stream->duplicates++;
		return;
	}
	*seen = next;
	if (!stream->classes)
		return;
	highest = &window->highest[stream->classes == 1 ? 0 : class_of(stream, sequence)];
	/* Serial number arithmetic: the shift puts a 24-bit sequence into the upper bits. */
	if (!*highest || (__s32)((next - *highest) << shift) > 0)
		*highest = next;
	else
		stream->reordered++;
}

static __always_inline enum other kind_of(void *data, void *end)
{
	__u8 protocol;
	__u16 type;
	void *next = network_header(data, end, &type);

	if (!next)
		return OTHER_UNKNOWN;
	switch (type) {
	case ETH_P_ARP:
		return OTHER_ARP;
	case ETH_P_LLDP_FRAME:
		return OTHER_LLDP;
	case ETH_P_IP: {
		struct iphdr *ip = next;
		struct icmp_header *icmp;

		if ((void *)(ip + 1) > end)
			return OTHER_IPV4;
		if (ip->protocol == IPPROTO_UDP)
			return OTHER_IPV4_UDP;
		if (ip->protocol == IPPROTO_TCP)
			return OTHER_IPV4_TCP;
		if (ip->protocol != IPPROTO_ICMP)
			return OTHER_IPV4;
		icmp = next + ip->ihl * 4;
		if ((void *)(icmp + 1) > end)
			return OTHER_ICMP;
		switch (icmp->type) {
		case ICMP_ECHO:
			return OTHER_ICMP_ECHO_REQUEST;
		case ICMP_ECHOREPLY:
			return OTHER_ICMP_ECHO_REPLY;
		case ICMP_TIME_EXCEEDED:
			return OTHER_ICMP_TIME_EXCEEDED;
		case ICMP_DEST_UNREACH:
			switch (icmp->code) {
			case ICMP_NET_UNREACH:
				return OTHER_ICMP_NET_UNREACHABLE;
			case ICMP_HOST_UNREACH:
				return OTHER_ICMP_HOST_UNREACHABLE;
			case ICMP_PORT_UNREACH:
				return OTHER_ICMP_PORT_UNREACHABLE;
			}
			return OTHER_ICMP_UNREACHABLE;
		}
		return OTHER_ICMP;
	}
	case ETH_P_IPV6: {
		struct ipv6hdr *ip = next;
		struct icmp_header *icmp = (void *)(ip + 1);
		__u8 *option = (void *)(ip + 1);

		if ((void *)(ip + 1) > end)
			return OTHER_IPV6;
		protocol = ip->nexthdr;
		if (protocol == IPPROTO_HOPOPTS) {
			if ((void *)(option + 8) > end)
				return OTHER_IPV6;
			/* Multicast listener reports carry the router alert here. */
			return option[0] == IPPROTO_ICMPV6 ? OTHER_ICMP6 : OTHER_IPV6;
		}
		if (protocol == IPPROTO_UDP)
			return OTHER_IPV6_UDP;
		if (protocol == IPPROTO_TCP)
			return OTHER_IPV6_TCP;
		if (protocol != IPPROTO_ICMPV6)
			return OTHER_IPV6;
		if ((void *)(icmp + 1) > end)
			return OTHER_ICMP6;
		if (icmp->type >= ND_FIRST && icmp->type <= ND_LAST)
			return OTHER_ND;
		if (icmp->type == ICMP6_DEST_UNREACH)
			return icmp->code == ICMP6_PORT_UNREACH ? OTHER_ICMP6_PORT_UNREACHABLE :
									  OTHER_ICMP6_UNREACHABLE;
		if (icmp->type == ICMP6_TIME_EXCEED)
			return OTHER_ICMP6_TIME_EXCEEDED;
		return OTHER_ICMP6;
	}
	}
	return type < ETH_P_802_3_MIN ? OTHER_LLC : OTHER_UNKNOWN;
}

static __always_inline int count(struct xdp_md *ctx, const bool frags)
{
	__u64 length = frags ? bpf_xdp_get_buff_len(ctx) : ctx->data_end - ctx->data;
	__u32 cpu = bpf_get_smp_processor_id();
	__u32 sequence, stamp, shift;
	struct signature_short copy;
	struct rx_stream *stream;
	bool is_foreign = false;
	struct rx_cpu *own;
	int i;

	own = bpf_map_lookup_elem(&cpus, &cpu);
	if (!own)
		return XDP_PASS;
	for (i = 0; i < SITES && i < config.tries; i++) {
		__u32 offset = config.sites[i].offset & 0x3FFF, id;
		/* Read anew, so that the verifier forgets what it learnt of the frame's length in the try before: it would follow
		 * every combination.
		 */
		void *at = (void *)(long)*(volatile __u32 *)&ctx->data + offset;
		void *end = (void *)(long)*(volatile __u32 *)&ctx->data_end;

		stamp = 0;
		shift = 0;
		if (config.sites[i].is_short) {
			struct signature_short *signature = at;

			if ((void *)(signature + 1) > end) {
				/* The helper knows the frame's end: comparing here would fork the verifier's knowledge of it. */
				if (!frags || bpf_xdp_load_bytes(ctx, offset, &copy, sizeof(*signature)))
					continue;
				signature = &copy;
			}
			if (signature->run_tag != bpf_htons((__u16)own->run_tag))
				continue;
			id = signature->stream;
			sequence = signature->sequence[0] << 16 | signature->sequence[1] << 8 | signature->sequence[2];
			shift = 8;
		} else {
			const __u32 half = sizeof(struct signature_full) - sizeof(__u64);
			/* Tag, stream and half the sequence; sequence and stamp. */
			__be64 head, tail;
			__u32 tag;

			if (at + sizeof(struct signature_full) > end) {
				if (!frags || bpf_xdp_load_bytes(ctx, offset, &head, sizeof(head)) ||
				    bpf_xdp_load_bytes(ctx, offset + half, &tail, sizeof(tail)))
					continue;
			} else {
				/* Whole words, aligned or not: packed members would be read byte by byte. */
				head = *(__be64 *)at;
				tail = *(__be64 *)(at + half);
			}
			head = bpf_be64_to_cpu(head);
			tail = bpf_be64_to_cpu(tail);
			tag = head >> 32;
			if (tag != own->run_tag) {
				is_foreign |= !((tag ^ own->run_tag) >> 16);
				continue;
			}
			id = head >> 16 & 0xFFFF;
			sequence = tail >> 32;
			stamp = tail;
		}
		if (id >= config.streams)
			continue;
		id += cpu * config.streams;
		stream = bpf_map_lookup_elem(&streams, &id);
		if (!stream || !(stream->sites >> config.sites[i].base & 1))
			continue;
		goto found;
	}
	own->others[is_foreign ? OTHER_ANOTHER_RUN : kind_of((void *)(long)ctx->data, (void *)(long)ctx->data_end)]++;
	return XDP_PASS;

found: /* Outside the loop, so that the verifier follows it once, not once a try. */
	stream->frames++;
	stream->bytes += length + FCS;
	own->queues[ctx->rx_queue_index & (QUEUES - 1)]++;
	count_order(stream, sequence, shift);
	if (stamp) {
		struct rx_histogram *histogram = bpf_map_lookup_elem(&histograms, &stream->histogram);

		if (histogram) {
			__u64 bucket = bucket_of((__u32)bpf_ktime_get_ns() - stamp);

			/* Keeps the compiler from reasoning the bound away that the verifier wants to see. */
			asm volatile("" : "+r"(bucket));
			if (bucket < BUCKETS)
				histogram->buckets[bucket]++;
		}
	}
	return XDP_DROP;
}

SEC("xdp")
int plimsoll_rx(struct xdp_md *ctx)
{
	return count(ctx, false);
}

SEC("xdp.frags")
int plimsoll_rx_f(struct xdp_md *ctx)
{
	return count(ctx, true);
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
