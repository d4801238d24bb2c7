#!/usr/bin/env bash
# What Keyway moves over a link, beside what perftest moves over it in the same machine and run:
# the key's cost per size, GET and PUT of 64 MiB objects from memory, one client process and eight.
#
#   bench.sh [--rxe stock|fixed]
#
# Figures are those of emulation: only their ratios mean something. BENCH_SECONDS (8) for each,
# RDMA_PROFILE (release) is the profile of cargo's that the programs are built in.
source "$(dirname "$0")/../scripts/lib.sh"
source integration-tests/scripts/server.sh

here=integration-tests/rdma
module=fixed
[ "${1:-}" != --rxe ] || module=$2
if why=$("$here/tools.sh"); then :; else die "no soft-RoCE machine: $why"; fi

staged=target/rdma/bench
rm -rf "$staged"
mkdir -p "$staged"
cargo build --ignore-rust-version --workspace --profile "${RDMA_PROFILE:-release}" --bins --bench links \
  --message-format=json >target/rdma/bench.json || die "the benchmark does not build"
while read -r name path; do
  strip --strip-debug -o "$staged/$name" "$path"
done < <(python3 -c '
import json, sys
for line in sys.stdin:
    message = json.loads(line)
    name = message.get("target", {}).get("name")
    if message.get("executable") and name in ("links", "keyway"):
        # Unit tests of the program carry its name, too.
        if name == "links" or not message["profile"]["test"]:
            print(name, message["executable"])' <target/rdma/bench.json)
"$here/machine.sh" --rxe "$module" --timeout 1800 -- \
  "$PWD/$here/guest-bench.py" "$PWD/$staged" "${BENCH_SECONDS:-8}"
