#!/usr/bin/env bash
# A server in an empty directory, and a checkpoint through it: in, out, verified.
# On a terminal the server goes on until Ctrl-C.
source "$(dirname "$0")/lib.sh"

cargo build --ignore-rust-version --release --package keyway-gateway --bin keyway
keyway="${CARGO_TARGET_DIR:-target}/release/keyway"

dir=$(mktemp -d)
server=
stop() {
  if [ -n "$server" ]; then
    kill -TERM "$server" 2>/dev/null || true
    wait "$server" || true
    say "stopped"
  fi
  rm -rf "$dir"
}
trap stop EXIT
# Ctrl-C reaches the server as well; this shell only waits for it.
trap 'exit 130' INT TERM

secret() { od -An -N20 -tx1 /dev/urandom | tr -d ' \n'; }
KEYWAY_ROOT_ACCESS_KEY=KEYWAYDEMO$(secret | head -c 10 | tr a-f A-F)
KEYWAY_ROOT_SECRET_KEY=$(secret)
export KEYWAY_ROOT_ACCESS_KEY KEYWAY_ROOT_SECRET_KEY
export KEYWAY_LISTEN__ADMIN_ADDRESS=127.0.0.1:0

"$keyway" serve --data-dir "$dir/data" --listen 127.0.0.1:0 >"$dir/ready" 2>"$dir/log" &
server=$!
for _ in $(seq 300); do
  grep -q '^keyway ready: ' "$dir/ready" && break
  kill -0 "$server" 2>/dev/null || {
    cat "$dir/log" >&2
    die "the server ended before it was ready"
  }
  sleep 0.1
done
url=$(awk '/^keyway ready: /{print $3}' "$dir/ready")
[ -n "$url" ] || die "the server did not become ready; its log is $dir/log"

export AWS_ACCESS_KEY_ID=$KEYWAY_ROOT_ACCESS_KEY AWS_SECRET_ACCESS_KEY=$KEYWAY_ROOT_SECRET_KEY
"$keyway" demo --endpoint "$url" "$@"

if [ -t 0 ] && [ -t 1 ]; then
  say ""
  say "The server goes on at $url until Ctrl-C."
  say "  AWS_ACCESS_KEY_ID=$AWS_ACCESS_KEY_ID"
  say "  AWS_SECRET_ACCESS_KEY=$AWS_SECRET_ACCESS_KEY"
  wait "$server"
fi
