#!/bin/sh
# Compares our search with the live MLRsearch library: the recorded values are the library's, and ours agree with them.
# Needs python3 with venv, and a package index for one small package. Takes about two minutes; not part of CI.
set -eu
cd "$(dirname "$0")/../.."
venv=$(mktemp -d)
trap 'rm -rf "$venv"' EXIT
python3 -m venv "$venv"
"$venv/bin/pip" install --quiet --disable-pip-version-check MLRsearch==1.2.1
"$venv/bin/python" tests/oracle/mlrsearch.py check
cargo test --test search_oracle -- --nocapture
