#!/usr/bin/env bash
# The demo: a Linux router as DUT between two virtual links, Plimsoll on both sides of it. Leaves nothing behind.
set -euo pipefail
plimsoll=$1
step() { printf '\n\033[1m%s\033[0m\n' "$*" >&2; }
trap '"$plimsoll" lab down >/dev/null' EXIT

step "1/3  The lab: a generator (g0, g1) and a router (d0, d1) in network namespaces of their own"
"$plimsoll" lab up

step "2/3  100,000 frames/s of 64 bytes through the router, for 5 seconds"
"$plimsoll" --netns plimsoll-gen run profiles/udp-64.yaml --rate 100kpps --duration 5s

step "3/3  As fast as it goes, for 5 seconds"
"$plimsoll" --netns plimsoll-gen run profiles/udp-64.yaml --rate max --duration 5s
