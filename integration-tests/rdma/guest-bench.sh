#!/usr/bin/env bash
# In the guest, called by bench.sh: guest-bench.sh STAGED SECONDS
set -euo pipefail
staged=$1 seconds=$2
ulimit -l unlimited
cd /tmp

# Machines drift, emulated ones that share their host above all: the link is measured before each of
# ours, and after it.
link() { bandwidth write $((1 << 20)) 6; }

echo "== perftest, ib_write_bw, messages of 1 MiB"
before=$(link)
echo "$before MB/s"

echo "== the key's cost"
"$staged/links" --bench

export AWS_ACCESS_KEY_ID=benchmark AWS_SECRET_ACCESS_KEY=benchmark-secret-key
export KEYWAY_ROOT_ACCESS_KEY=$AWS_ACCESS_KEY_ID KEYWAY_ROOT_SECRET_KEY=$AWS_SECRET_ACCESS_KEY
# A server for each way of storing: all in its memory tier, where no processor touches the bytes of
# a GET; or in the memory store, from which they are copied and summed as from a drive.
# serve NAME PORT TIER-BYTES
servers=()
serve() {
  mkdir -p "$1"
  cat >"$1/keyway.toml" <<TOML
[node.store]
engine = "memory"
capacity_bytes = 1073741824
buffer_bytes = 67108864
[node.tier]
size_bytes = $3
[node.rdma]
mode = "require"
devices = ["rxe0"]
[s3]
default_etag_policy = "crc64nvme"
TOML
  "$staged/keyway" serve --config "$1/keyway.toml" --data-dir "$1/data" --listen "127.0.0.1:$2" \
    >"$1/ready" 2>"$1/log" &
  servers+=($!)
  for _ in $(seq 600); do [ -s "$1/ready" ] && break; sleep 0.1; done
  [ -s "$1/ready" ] || { cat "$1/log"; exit 1; }
}
stop() {
  kill "${servers[@]}" || return 0
  wait "${servers[@]}" || true
  servers=()
}
trap stop EXIT

export KEYWAY_RDMA_DEVICES=rxe1
# bench WHAT PORT OPERATION SIZE CONCURRENCY [OPTION...]: measures, and tells it beside the link.
bench() {
  local what=$1 port=$2 operation=$3 size=$4 concurrency=$5 before after
  shift 5
  before=$(link)
  "$staged/keyway" bench --endpoint "http://127.0.0.1:$port" --path verbs-host \
    --require-strength window --operations "$operation" --sizes "$size" \
    --concurrency "$concurrency" --seconds "$seconds" --warm-up-seconds 2 --json --threads 2 \
    "$@" >cell.json
  after=$(link)
  python3 - "$what" "$before" "$after" <<'PY'
import json, sys
what, link = sys.argv[1], sum(map(float, sys.argv[2:])) / 2
MB = (1 << 20) / 1e6
[cell] = [json.loads(line) for line in open("cell.json") if line.startswith("{")]
moved = cell["mib_per_second"] * MB
print(f"{what}: {moved:.1f} MB/s, {moved / link:.0%} of ib_write_bw ({' and '.join(sys.argv[2:])})")
phases = cell["transfer_phases_us"] or {}
print("  a request, ms:", ", ".join(f"{part} {us / 1e3:.1f}" for part, us in phases.items()))
shares = [share * MB for share in cell["process_mib_per_second"]]
if len(shares) > 1:
    one, mean = float(open("one").read()), sum(shares) / len(shares)
    print(f"  together {moved / one:.0%} of one process's; each:", " ".join(f"{share:.1f}" for share in shares))
    print(f"  fairness: {min(shares) / mean:.0%} to {max(shares) / mean:.0%} of the mean share")
else:
    open("one", "w").write(str(moved))
PY
}

echo "== objects of 64 MiB out of the memory tier"
serve tier 9000 671088640
bench "GET, one at a time, in parts of 8 MiB as by itself" 9000 get 64MiB 1 --part-size 8MiB
bench "GET, one at a time, one request" 9000 get 64MiB 1
bench "GET, four at a time" 9000 get 64MiB 4
echo "== objects of 4 MiB out of the tier, one client process, then eight that begin at once"
bench "one process" 9000 get 4MiB 1
bench "eight processes" 9000 get 4MiB 1 --processes 8
stop
echo "== objects of 64 MiB in the memory store"
serve store 9001 0
bench "GET, one at a time, one request" 9001 get 64MiB 1
bench "GET, four at a time" 9001 get 64MiB 4
bench "PUT, one at a time" 9001 put 64MiB 1
