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
capacity_bytes = 1073741824
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
# bench NAME OPERATIONS: one client process; JSON lines into NAME.json.
bench() {
  "$staged/keyway" bench --endpoint http://127.0.0.1:9000 --path verbs-host --require-strength window \
    --sizes 64MiB --concurrency 1 --seconds "$seconds" --warm-up-seconds 1 --operations "$2" \
    --json --threads 2 >"$1.json"
}

echo "== one client process, 64 MiB objects in memory"
bench one get,put
echo "== eight client processes at once"
pids=()
for at in $(seq 8); do
  bench "eight-$at" get &
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
one = {cell["operation"]: rate(cell) for cell in rates("one")}
for operation, moved in one.items():
    print(f"{operation}: {moved:.1f} MB/s, {moved / link:.0%} of ib_write_bw")
eight = [rate(cell) for at in range(1, 9) for cell in rates(f"eight-{at}")]
total, mean = sum(eight), sum(eight) / len(eight)
print(f"eight: {total:.1f} MB/s in all, {total / one['get']:.0%} of one process")
print(f"fairness: {min(eight) / mean:.0%} to {max(eight) / mean:.0%} of the mean share")
PY
