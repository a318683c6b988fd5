/* SPDX-License-Identifier: (GPL-2.0 OR Apache-2.0) */
/*
 * The modelled DUT: an XDP program whose ceiling is known exactly, the ground truth for searches and attributions.
 *
 * A stage is a ring of N slots served at a fixed rate, as a fluid: the backlog decays at that rate, an arrival that finds
 * N frames waiting is dropped and counted. So a trial of T seconds that starts idle loses nothing up to rate + N/T.
 * Times are CLOCK_MONOTONIC in 1/256 ns, so that a service time is exact to 0.4 % of a nanosecond.
 *
 * What survives goes out of another interface with new MAC addresses; everything that is not IPv4 or IPv6 UDP passes to
 * the kernel, which answers ARP and ND. One lock: several queues still share one ring.
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define FRACTION 8
/* Ethernet, IPv4, UDP, and the stamp within a full signature (src/wire/signature.rs). */
#define STAMP_AT (14 + 20 + 8 + 10)
#define WINDOW_NS 10000000ULL

struct model_config {
	/* Service time of a frame in 1/256 ns (0: infinitely fast), and slots, of each stage. */
	__u64 service[2];
	__u64 slots[2];
	/* Frames lost whatever the load, per 2^32. */
	__u64 loss;
	/* Added to the age of a stamped frame, ns; the queueing delay of the stages is added by itself. */
	__u64 latency_ns;
	/* Above this many frames per 10 ms the DUT dies (0: never), for dead_ns. */
	__u64 death_frames;
	__u64 dead_ns;
	/* With this many frames per 10 ms, or more, but less than band_end, one frame in 64 is lost (0: no band). */
	__u64 band_start;
	__u64 band_end;
	/* After idle_ns without traffic the first frames are lost, as by a DUT that resolves or learns first. */
	__u64 first_frames;
	__u64 idle_ns;
	/* For the one who changes the ring, not for this program: slots and service time of the first stage, up to 8. */
	__u64 curve[8][2];
	__u32 out_ifindex;
	__u8 source[6];
	__u8 destination[6];
};

struct model_state {
	struct bpf_spin_lock lock;
	/* When the stage will have served all that it holds. */
	__u64 busy_until[2];
	__u64 loss;
	__u64 last_ns;
	__u64 first_left;
	__u64 window_start_ns;
	__u64 window_frames;
	__u64 window_last;
	__u64 dead_until_ns;
	/* Counters, in the order of enum model_counter. */
	__u64 counters[8];
};

enum model_counter { ARRIVED, FORWARDED, RING_FULL, SECOND_FULL, RANDOM, DEAD, BAND, FIRST };

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct model_config);
} model_config SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct model_state);
} model_state SEC(".maps");

/* Decides over one frame; returns the counter that names its fate. The lock is held. */
static __always_inline enum model_counter judge(struct model_config *config, struct model_state *state, __u64 now_ns,
						__u64 *delay)
{
	__u64 now = now_ns << FRACTION;
	__u64 gap = now_ns - state->window_start_ns;
	int i;

	if (gap >= WINDOW_NS) {
		state->window_last = gap < 2 * WINDOW_NS ? state->window_frames : 0;
		state->window_start_ns = now_ns;
		state->window_frames = 0;
	}
	state->window_frames++;
	if (config->first_frames && now_ns - state->last_ns > config->idle_ns)
		state->first_left = config->first_frames;
	state->last_ns = now_ns;

	if (config->death_frames && state->window_frames > config->death_frames)
		state->dead_until_ns = now_ns + config->dead_ns;
	if (now_ns < state->dead_until_ns)
		return DEAD;
	if (state->first_left) {
		state->first_left--;
		return FIRST;
	}
	if (config->band_start && state->window_last >= config->band_start && state->window_last < config->band_end &&
	    !(state->window_frames & 63))
		return BAND;
	state->loss += config->loss;
	if (state->loss >> 32) {
		state->loss &= 0xffffffff;
		return RANDOM;
	}
	for (i = 0; i < 2; i++) {
		__u64 service = config->service[i];
		__u64 start = state->busy_until[i];

		if (!service)
			continue;
		if (start < now)
			start = now;
		/* `slots` frames wait or are in service: the ring is full. */
		if (start - now + service > config->slots[i] * service)
			return i ? SECOND_FULL : RING_FULL;
		state->busy_until[i] = start + service;
		*delay += start + service - now;
	}
	return FORWARDED;
}

SEC("xdp.frags") int model(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct model_config *config;
	struct model_state *state;
	enum model_counter fate;
	struct ethhdr *eth = data;
	__u64 delay = 0, now;
	__u32 zero = 0;
	__u8 *protocol;

	if ((void *)(eth + 1) > end)
		return XDP_PASS;
	if (eth->h_proto == bpf_htons(ETH_P_IP))
		protocol = (__u8 *)(eth + 1) + 9;
	else if (eth->h_proto == bpf_htons(ETH_P_IPV6))
		protocol = (__u8 *)(eth + 1) + 6;
	else
		return XDP_PASS;
	if ((void *)(protocol + 1) > end || *protocol != 17)
		return XDP_PASS;
	config = bpf_map_lookup_elem(&model_config, &zero);
	state = bpf_map_lookup_elem(&model_state, &zero);
	if (!config || !state)
		return XDP_ABORTED;
	now = bpf_ktime_get_ns();
	bpf_spin_lock(&state->lock);
	fate = judge(config, state, now, &delay);
	state->counters[ARRIVED]++;
	state->counters[fate & 7]++;
	bpf_spin_unlock(&state->lock);
	if (fate != FORWARDED)
		return XDP_DROP;

	__builtin_memcpy(eth->h_source, config->source, ETH_ALEN);
	__builtin_memcpy(eth->h_dest, config->destination, ETH_ALEN);
	delay = (delay >> FRACTION) + config->latency_ns;
	/* XDP cannot hold a frame back; it can make a stamped frame look as old as it would be. UDP over IPv4 only. */
	if (eth->h_proto == bpf_htons(ETH_P_IP)) {
		__be32 *stamp = data + STAMP_AT;

		if ((void *)(stamp + 1) <= end && *stamp)
			*stamp = bpf_htonl(bpf_ntohl(*stamp) - (__u32)delay);
	}
	return bpf_redirect(config->out_ifindex, 0);
}

char _license[] SEC("license") = "Dual BSD/GPL";
