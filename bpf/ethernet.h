/* SPDX-License-Identifier: (GPL-2.0 OR Apache-2.0) */
/*
 * What follows a frame's Ethernet header.
 */
#ifndef PLIMSOLL_ETHERNET_H
#define PLIMSOLL_ETHERNET_H

#include <linux/if_ether.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

/* Where the network header stands, after up to two VLAN tags, and its EtherType; NULL if the frame ends before it. */
static __always_inline void *network_header(void *data, void *end, __u16 *type)
{
	struct ethhdr *eth = data;
	void *next = eth + 1;

	if (next > end)
		return NULL;
	*type = bpf_ntohs(eth->h_proto);
	for (int tags = 0; tags < 2; tags++) {
		__be16 *tag = next;

		if (*type != ETH_P_8021Q && *type != ETH_P_8021AD)
			break;
		next += 4;
		if (next > end)
			return NULL;
		*type = bpf_ntohs(tag[1]);
	}
	return next;
}

#endif
