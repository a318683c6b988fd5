/* SPDX-License-Identifier: (GPL-2.0 OR Apache-2.0) */
/*
 * The signature that makes a frame ours, as src/wire/signature.rs defines it; a test compares the two.
 */
#ifndef PLIMSOLL_SIGNATURE_H
#define PLIMSOLL_SIGNATURE_H

#include <linux/types.h>

/* Upper half of every run tag. */
#define RUN_MAGIC 0x9C4B

struct signature_full {
	__be32 run_tag;
	__be16 stream;
	__be32 sequence;
	__be32 stamp;
} __attribute__((packed));

struct signature_short {
	__be16 run_tag;
	__u8 stream;
	__u8 sequence[3];
} __attribute__((packed));

#endif
