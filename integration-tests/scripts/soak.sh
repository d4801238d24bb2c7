#!/usr/bin/env bash
# Whether the server's memory stays flat: mixed load for SOAK_MINUTES (60), the resident memory
# after each round. Fails when the last third of the rounds holds a tenth more than the second
# third; the first fills caches and pools.
source "$(dirname "$0")/lib.sh"
source integration-tests/scripts/server.sh

minutes=${SOAK_MINUTES:-60}
# Per core: the load leaves the rest of the machine alone.
concurrency=${SOAK_CONCURRENCY:-1,16}
log=target/soak.txt

resident_mib() { awk '/^VmRSS/{printf "%d\n", $2 / 1024}' "/proc/$pid/status"; }

build_release
new_credentials
start_keyway soak
: >"$log"
end=$((SECONDS + minutes * 60))
while [ "$SECONDS" -lt "$end" ]; do
  "$keyway" bench --endpoint "$url" --operations get,put,list --sizes 4KiB,1MiB,64MiB \
    --concurrency "$concurrency" --seconds 2 --warm-up-seconds 0 --list-keys 10000 --json \
    >"$scratch/bench.json"
  operations=$(grep -o '"ops":[0-9]*' "$scratch/bench.json" | awk -F: '{ n += $2 } END { print n }')
  echo "$SECONDS $(resident_mib) $operations" | tee -a "$log" >&2
done

awk '{ held[NR] = $2; operations += $3 }
  END {
    third = int(NR / 3)
    if (third < 1) { print "too few rounds"; exit 1 }
    for (at = third + 1; at <= 2 * third; at++) before += held[at] / third
    for (at = NR - third + 1; at <= NR; at++) after += held[at] / third
    printf "%d rounds, %d operations: %d MiB at first, %d in the middle, %d at the end\n",
      NR, operations, held[1], before, after
    exit after > before * 1.1
  }' "$log"
