#!/usr/bin/env bash
# Run a pytest command five times; the first failure ends it: tools/stress.sh python -m pytest …
#
# Twice as it is, twice beside a busy loop per core, once in random order.
set -euo pipefail

busy=()
quiet() {
    if [[ ${#busy[@]} -gt 0 ]]; then
        kill "${busy[@]}"
        wait "${busy[@]}" 2>/dev/null || true
        busy=()
    fi
}
trap quiet EXIT

run() {
    local what="$1"
    shift
    echo "== $what"
    rm -rf .gallery  # so that the recorded runs are made beside the busy loops, too
    SECONDS=0
    "$@"
    echo "== $what: passed in $SECONDS s"
}

for turn in 1 2; do
    run "plain, $turn of 2" "$@"
done
for turn in 1 2; do
    for ((core = 0; core < $(nproc); core++)); do
        while :; do :; done &
        busy+=($!)
    done
    run "beside a busy loop per core, $turn of 2" "$@"
    quiet
done
run "in random order" "$@" --random-order --random-order-seed="$RANDOM"
