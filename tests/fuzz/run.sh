#!/bin/sh
# SPDX-License-Identifier: MIT
#
# Runs one fuzz target: first every file of its corpus (tests/fuzz/corpus/NAME, NAME without fuzz_),
# then CISTERN_FUZZ_SECONDS of new inputs, which are kept beside the program.
set -eu
target=$1
name=${target##*/fuzz_}
corpus=$(dirname "$0")/corpus/$name
found=$target.found
mkdir -p "$found"
[ -d "$corpus" ] || {
    echo "$name: no corpus in $corpus" >&2
    exit 1
}
"$target" -runs=0 "$corpus" 2>"$target.corpus.log" || {
    tail -n 40 "$target.corpus.log"
    exit 1
}
"$target" -max_total_time="${CISTERN_FUZZ_SECONDS:-15}" -timeout=10 -rss_limit_mb=2048 \
    -artifact_prefix="$found/" -print_final_stats=1 "$found" "$corpus" 2>"$target.log" || {
    tail -n 40 "$target.log"
    exit 1
}
echo "$name: $(grep number_of_executed_units "$target.log")"
