#!/usr/bin/env bash
# What the server does on this machine: GET and PUT of 4 KiB, 1 MiB and 64 MiB at 1, 8 and 64 in
# flight; listings of 1,000 keys out of 10,000 and out of 1,000,000; both ETag policies; what the
# memory tier holds; a file system in memory; TLS.
# MinIO is measured beside it when `minio` is on the path.
#
# BENCH_SECONDS (3) for each cell, BENCH_LIST_KEYS (10000,1000000), BENCH_DIR for the reports.
source "$(dirname "$0")/lib.sh"
source integration-tests/scripts/server.sh

seconds=${BENCH_SECONDS:-3}
list_keys=${BENCH_LIST_KEYS:-10000,1000000}
reports=${BENCH_DIR:-target/bench}
mkdir -p "$reports"

# start_minio DIR PORT: sets `peer`, empty where there is none.
start_minio() {
  local dir=$1 address=127.0.0.1:$2
  peer=()
  have minio || return 0
  mkdir -p "$dir"
  MINIO_ROOT_USER=$AWS_ACCESS_KEY_ID MINIO_ROOT_PASSWORD=$AWS_SECRET_ACCESS_KEY \
    minio server --quiet --address "$address" "$dir" >"$dir.log" 2>&1 &
  peer=(--peer "minio=http://$address" --peer-pid "minio=$!")
  servers+=("$!")
  local _
  for _ in $(seq 100); do
    curl --silent --fail --output /dev/null "http://$address/minio/health/ready" && return
    sleep 0.1
  done
  die "minio did not become ready"
}

build_release

# Loopback traffic of a network namespace of its own, where no pacing algorithm sets timers: the
# same for every server that is measured. As an ordinary user the system's default stays.
if [ -z "${KEYWAY_BENCH_NAMESPACE:-}" ] && [ "$(id -u)" = 0 ] && unshare --net true 2>/dev/null; then
  KEYWAY_BENCH_NAMESPACE=1 exec unshare --net bash "$0" "$@"
fi
if [ -n "${KEYWAY_BENCH_NAMESPACE:-}" ]; then
  ip link set lo up
  for route in 127.0.0.0/8 127.0.0.1; do
    ip route replace local "$route" dev lo table local proto kernel scope host src 127.0.0.1 \
      congctl cubic
  done
fi
new_credentials
have minio || say "skipped: minio: it is not on the path"
start_minio "$scratch/minio" 19000

say "== plaintext, MD5 ETags"
start_keyway plain
"$keyway" bench --endpoint "$url" --server-pid "$pid" --seconds "$seconds" "${peer[@]}" \
  --report "$reports/plain.json"

say "== listings"
"$keyway" bench --endpoint "$url" --server-pid "$pid" --seconds "$seconds" --operations list \
  --concurrency 1 --list-keys "$list_keys" --report "$reports/list.json"

say "== plaintext, ETags derived from the checksum"
start_keyway checksum '[s3]' 'default_etag_policy = "crc64nvme"'
"$keyway" bench --endpoint "$url" --server-pid "$pid" --seconds "$seconds" --operations put \
  --sizes 64MiB --report "$reports/checksum.json"

say "== out of the memory tier, as peers read out of the kernel's cache"
start_keyway tier '[node.tier]' 'size_bytes = 2147483648'
"$keyway" bench --endpoint "$url" --server-pid "$pid" --seconds "$seconds" "${peer[@]}" \
  --operations get --sizes 64MiB --report "$reports/tier.json"

# Where the servers do all the work and no device any.
if [ "$(stat -f -c %T /dev/shm 2>/dev/null)" = tmpfs ] &&
  [ "$(df --output=avail -m /dev/shm | tail -n 1)" -gt 6000 ]; then
  say "== on a file system in memory"
  in_memory=$(mktemp -d /dev/shm/keyway-bench.XXXXXX)
  trap 'stop_servers; rm -rf "$in_memory"' EXIT
  on_disk=$scratch scratch=$in_memory
  start_keyway memory
  scratch=$on_disk
  start_minio "$in_memory/minio" 19001
  "$keyway" bench --endpoint "$url" --server-pid "$pid" --seconds "$seconds" "${peer[@]}" \
    --sizes 4KiB,64MiB --concurrency 8 --report "$reports/memory.json"
else
  say "skipped: a file system in memory: /dev/shm is none, or has no 6,000 MiB"
fi

say "== TLS"
start_keyway tls 'listen.tls = { mode = "generated" }'
authority=$(find "$scratch/tls/data" -name authority.pem | head -n 1)
"$keyway" bench --endpoint "$url" --ca-file "$authority" --server-pid "$pid" \
  --seconds "$seconds" --concurrency 8 --report "$reports/tls.json"
say "reports: $reports"
