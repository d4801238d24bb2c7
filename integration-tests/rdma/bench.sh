#!/usr/bin/env bash
# What Keyway moves over a link, beside what perftest moves over it in the same machine and run:
# the key's cost per size, GET and PUT of 64 MiB objects from memory, one client process and eight.
#
#   bench.sh [--rxe stock|fixed]
#
# Figures are those of emulation: only their ratios mean something. BENCH_SECONDS (8) for each.
source "$(dirname "$0")/../scripts/lib.sh"

here=integration-tests/rdma
module=fixed
[ "${1:-}" != --rxe ] || module=$2
if why=$("$here/tools.sh"); then :; else die "no soft-RoCE machine: $why"; fi

cargo bench --ignore-rust-version --workspace --bench links --no-run --message-format=json \
  >target/rdma/bench.json || die "the benchmark does not build"
build_release
staged=target/rdma/bench
rm -rf "$staged"
mkdir -p "$staged"
links=$(python3 -c '
import json, sys
for line in sys.stdin:
    message = json.loads(line)
    if message.get("executable") and message["target"]["name"] == "links":
        print(message["executable"])' <target/rdma/bench.json)
strip --strip-debug -o "$staged/links" "$links"
strip --strip-debug -o "$staged/keyway" target/release/keyway
"$here/machine.sh" --rxe "$module" --timeout 900 -- \
  "$PWD/$here/guest-bench.sh" "$PWD/$staged" "${BENCH_SECONDS:-8}"
