#!/usr/bin/env bash
# Long acceptance runs, not part of CI: what is held against a known truth, many times (RUNS, default 20), as one table.
# Wants an idle machine: the modelled DUT is exact to a frame, the generator's host is not.
set -euo pipefail
export PLIMSOLL_RUNS=${RUNS:-20} PLIMSOLL_MAY_SKIP=vm
log=target/accept.log

step() { printf '\n\033[1m%s\033[0m\n' "$*" >&2; }

step "The modelled DUT: NDR and PDR against the truth, $PLIMSOLL_RUNS runs each (log: $log)"
status=0
cargo test --locked --release --test kernel -- cases_search::a_modelled_dut --nocapture >"$log" 2>&1 || status=$?
awk '
	/found, [0-9]+ true/ {
		match($0, /(NDR|PDR): [0-9]+ frames\/s found, [0-9]+ true, [-+][0-9.]+/)
		split(substr($0, RSTART, RLENGTH), part, " ")
		key = part[1] " of " part[5]; off = part[7] + 0
		if (!(key in count) || off < low[key]) low[key] = off
		if (!(key in count) || off > high[key]) high[key] = off
		count[key]++; sum[key] += off
	}
	END {
		printf "%-18s %6s %10s %10s %10s\n", "truth, frames/s", "runs", "lowest", "mean", "highest"
		for (key in count) printf "%-18s %6d %9.2f%% %9.2f%% %9.2f%%\n", key, count[key], low[key], sum[key] / count[key], high[key]
	}' "$log"
if [ "$status" != 0 ]; then
	grep -E "panicked|FAILED|limit|not known" "$log" | head -20
fi

step "The rest of the searches, once"
cargo test --locked --release --test kernel -- cases_search --skip a_modelled_dut || status=$?
exit "$status"
