#!/bin/sh
# One fuzz target for KEDGE_FUZZ_SECONDS (default 5) on a copy of its kept corpus.
# usage: run.sh PROGRAM CORPUS-FOLDER; prints TAP. A finding is left in the current folder.
set -u
program=$(realpath "$1")
kept=$2
seconds=${KEDGE_FUZZ_SECONDS:-5}
work=$(mktemp -d "${TMPDIR:-/tmp}/kedge-fuzz.XXXXXX")
trap 'rm -rf "$work"' EXIT
if [ -d "$kept" ]; then
    cp -r "$kept/." "$work/"
fi
echo 1..1
if "$program" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 \
    "$work" >"$work.log" 2>&1; then
    runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$work.log")
    echo "ok 1 - $(basename "$program") ran ${runs:-?} inputs in $seconds s"
    rm -f "$work.log"
else
    sed 's/^/# /' "$work.log"
    echo "not ok 1 - $(basename "$program")"
    rm -f "$work.log"
    exit 1
fi
