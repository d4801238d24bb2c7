#!/bin/bash
# In the two guests of `machine.sh --two-hosts`: host a serves, host b puts and gets by RDMA, under
# windows, what must come back as it was; two clients at a time, and one that is killed amid it.
#
#   guest-two-hosts.sh KEYWAY
set -eu
keyway=$1
export KEYWAY_ROOT_ACCESS_KEY=two-hosts KEYWAY_ROOT_SECRET_KEY=a-secret-of-two-hosts
export AWS_ACCESS_KEY_ID=$KEYWAY_ROOT_ACCESS_KEY AWS_SECRET_ACCESS_KEY=$KEYWAY_ROOT_SECRET_KEY
out=$KEYWAY_VM_OUT
cd /tmp

# Waits for a file of the other host's, no longer than it has to do before it.
await() {
  local deadline=$((SECONDS + 300))
  until [ -e "$1" ]; do
    [ $SECONDS -lt $deadline ] || { echo "no ${1##*/} within 300 s" >&2; exit 1; }
    read -rt 0.1 <> <(:) || :
  done
}

serve() {
  "$keyway" serve --data-dir data --listen 10.77.1.1:9000 --set 'node.rdma.mode="require"' \
    >ready 2>log &
  local server=$!
  trap 'kill -KILL $server 2>/dev/null || :; tail -n 30 log >&2' EXIT
  until [ -s ready ]; do
    kill -0 $server
    read -rt 0.1 <> <(:) || :
  done
  cp data/tls/authority.pem "$out/authority.pem.new"
  mv "$out/authority.pem.new" "$out/authority.pem"
  await "$out/done"
  kill $server
  wait $server
  trap - EXIT
  resources idle
}

use() {
  local -a by=(--endpoint https://10.77.1.1:9000 --ca-file "$out/authority.pem"
    --path verbs-host --require-strength window)
  # b's failure ends a's waiting.
  trap 'touch "$out/done"' EXIT
  await "$out/authority.pem"
  local bytes
  for bytes in 1 65537 $((17 << 20)); do head -c "$bytes" /dev/urandom >"of-$bytes"; done
  "$keyway" mb "${by[@]:0:4}" s3://hosts
  for bytes in 1 65537 $((17 << 20)); do
    "$keyway" put "${by[@]}" "of-$bytes" "s3://hosts/of-$bytes"
    "$keyway" get "${by[@]}" "s3://hosts/of-$bytes" back
    cmp "of-$bytes" back
  done
  local large=s3://hosts/of-$((17 << 20))
  "$keyway" get "${by[@]}" "$large" first &
  local first=$!
  "$keyway" get "${by[@]}" "$large" victim &
  local victim=$!
  sleep 1
  kill -KILL $victim || :
  wait $victim || :
  wait $first
  cmp "of-$((17 << 20))" first
  resources idle
}

case $KEYWAY_VM_HOST in
  a) serve ;;
  b) use ;;
esac
