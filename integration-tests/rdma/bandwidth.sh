#!/bin/bash
# Inside the guest, as any user: what perftest moves over the link, in MB/s (10^6 bytes), to
# compare with in the same run. Emulation sets the figure: it says nothing about hardware.
#
#   bandwidth [write|read] [BYTES] [SECONDS]    RDMA WRITE of 1 MiB messages for 3 s
set -eu
operation=${1:-write} bytes=${2:-1048576} seconds=${3:-3}
port=$((20000 + RANDOM % 10000))
options=(--gid-index 1 --size "$bytes" --duration "$seconds" --port "$port"
  --output bandwidth -F)

"ib_${operation}_bw" --ib-dev rxe1 "${options[@]}" >/dev/null 2>&1 &
server=$!
trap 'kill $server 2>/dev/null || :' EXIT
until ss -ltn "sport = $port" | grep -q LISTEN; do
  kill -0 $server 2>/dev/null || {
    echo "ib_${operation}_bw did not start" >&2
    exit 1
  }
  read -rt 0.05 <> <(:) || :
done
# perftest's MB are MiB.
"ib_${operation}_bw" --ib-dev rxe0 "${options[@]}" 10.77.0.2 2>/dev/null |
  awk '$1 ~ /^[0-9.]+$/ { mib = $1 } END { if (mib == "") exit 1; printf "%.1f\n", mib * 1.048576 }'
