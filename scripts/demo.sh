#!/usr/bin/env bash
# The demo: a Linux router as DUT between two virtual links, Plimsoll on both sides of it. Leaves nothing behind.
set -euo pipefail
plimsoll=$1
step() { printf '\n\033[1m%s\033[0m\n' "$*" >&2; }
trap '"$plimsoll" lab down >/dev/null' EXIT

step "1/4  The lab: a generator (g0, g1) and a router (d0, d1) in network namespaces of their own"
"$plimsoll" lab up

step "2/4  100,000 frames/s of 64 bytes through the router, for 5 seconds"
"$plimsoll" --netns plimsoll-gen run profiles/udp-64.yaml --rate 100kpps --duration 5s

step "3/4  As fast as it goes, for 5 seconds"
"$plimsoll" --netns plimsoll-gen run profiles/udp-64.yaml --rate max --duration 5s

step "4/4  The router's ceiling for three frame sizes (short trials: a quick answer, not a benchmark)"
mkdir -p target/demo
# 4 = no verdict for some size: the DUT took all that this machine can send. The report says so.
status=0
"$plimsoll" --netns plimsoll-gen --json target/demo/result.json ceiling profiles/udp-64.yaml \
	--frame-size 64,512,1518 --trial 200ms --repeat 5 --width 2% --max-time 40s || status=$?
[ "$status" = 0 ] || [ "$status" = 4 ] || exit "$status"
"$plimsoll" report target/demo/result.json -o target/demo/report.html
step "The report with charts: $PWD/target/demo/report.html"
