#!/usr/bin/env bash
# In the guest, called by bench.sh: guest-bench.sh STAGED SECONDS
set -euo pipefail
staged=$1 seconds=$2
ulimit -l unlimited
cd /tmp

echo "== perftest, ib_write_bw, messages of 1 MiB"
link=$(bandwidth write $((1 << 20)) "$seconds")
echo "$link MB/s"

echo "== the key's cost"
"$staged/links" --bench

export AWS_ACCESS_KEY_ID=benchmark AWS_SECRET_ACCESS_KEY=benchmark-secret-key
export KEYWAY_ROOT_ACCESS_KEY=$AWS_ACCESS_KEY_ID KEYWAY_ROOT_SECRET_KEY=$AWS_SECRET_ACCESS_KEY
cat >keyway.toml <<'TOML'
[node.store]
engine = "memory"
capacity_bytes = 1610612736
buffer_bytes = 134217728
[node.rdma]
mode = "require"
devices = ["rxe0"]
[s3]
default_etag_policy = "crc64nvme"
TOML
"$staged/keyway" serve --config keyway.toml --data-dir data --listen 127.0.0.1:9000 >ready 2>serve.log &
server=$!
trap 'kill "$server"; wait "$server" || true' EXIT
for _ in $(seq 600); do [ -s ready ] && break; sleep 0.1; done
[ -s ready ] || { cat serve.log; exit 1; }

export KEYWAY_RDMA_DEVICES=rxe1
# bench NAME OPERATIONS SIZE CONCURRENCY: one client process; JSON lines into NAME.json.
bench() {
  "$staged/keyway" bench --endpoint http://127.0.0.1:9000 --path verbs-host --require-strength window \
    --operations "$2" --sizes "$3" --concurrency "$4" --seconds "$seconds" --warm-up-seconds 1 \
    --json --threads 2 >"$1.json"
}

echo "== one client process, objects of 64 MiB in memory, one and four at a time"
bench one get 64MiB 1,4
bench put put 64MiB 1
# Small enough that each process ends many of them.
echo "== objects of 4 MiB, one client process, then eight at once"
bench small get 4MiB 1
pids=()
for at in $(seq 8); do
  bench "eight-$at" get 4MiB 1 &
  pids+=($!)
done
for pid in "${pids[@]}"; do wait "$pid"; done

python3 - "$link" <<'PY'
import json, sys
link = float(sys.argv[1])
def rates(name):
    return [json.loads(line) for line in open(name + ".json") if line.startswith("{")]
def rate(cell):
    return cell["bytes"] / cell["seconds"] / 1e6
for cell in rates("one") + rates("put"):
    moved = rate(cell)
    print(f"{cell['operation']}, {cell['concurrency']} at a time: {moved:.1f} MB/s, {moved / link:.0%} of ib_write_bw")
[one] = [rate(cell) for cell in rates("small")]
eight = [rate(cell) for at in range(1, 9) for cell in rates(f"eight-{at}")]
total, mean = sum(eight), sum(eight) / len(eight)
print(f"eight: {total:.1f} MB/s in all, {total / one:.0%} of one process's {one:.1f}")
print(f"fairness: {min(eight) / mean:.0%} to {max(eight) / mean:.0%} of the mean share")
PY
