# shellcheck shell=bash
# Release builds of the server for `make run` and `make bench`. Sourced after lib.sh.

keyway="${CARGO_TARGET_DIR:-target}/release/keyway"
scratch=$(mktemp -d)
# Processes that this script started, for `stop_servers`.
servers=()

build_release() {
  cargo build --ignore-rust-version --release --package keyway-gateway --bin keyway
}

random_hex() { od -An -N20 -tx1 /dev/urandom | tr -d ' \n'; }

# Credentials for this run, for servers and clients alike.
new_credentials() {
  AWS_ACCESS_KEY_ID=KEYWAY$(random_hex | head -c 14 | tr a-f A-F)
  AWS_SECRET_ACCESS_KEY=$(random_hex)
  export AWS_ACCESS_KEY_ID AWS_SECRET_ACCESS_KEY
  # What the machine says of other endpoints and authorities is not meant here.
  unset AWS_ENDPOINT_URL AWS_CA_BUNDLE AWS_SESSION_TOKEN AWS_PROFILE
}

# start_keyway NAME [CONFIG LINE...]: sets `url` and `pid`.
start_keyway() {
  local dir="$scratch/$1"
  shift
  mkdir -p "$dir"
  {
    echo 'listen.admin_address = "127.0.0.1:0"'
    [ $# -eq 0 ] || printf '%s\n' "$@"
  } >"$dir/keyway.toml"
  KEYWAY_ROOT_ACCESS_KEY=$AWS_ACCESS_KEY_ID KEYWAY_ROOT_SECRET_KEY=$AWS_SECRET_ACCESS_KEY \
    "$keyway" serve --config "$dir/keyway.toml" --data-dir "$dir/data" --listen 127.0.0.1:0 \
    >"$dir/ready" 2>"$dir/log" &
  pid=$!
  servers+=("$pid")
  local _
  for _ in $(seq 300); do
    grep -q '^keyway ready: ' "$dir/ready" && break
    kill -0 "$pid" 2>/dev/null || {
      cat "$dir/log" >&2
      die "the server ended before it was ready"
    }
    sleep 0.1
  done
  url=$(awk '/^keyway ready: /{print $3; exit}' "$dir/ready")
  [ -n "$url" ] || die "the server did not become ready"
}

# Ends what was started, by its process id, and removes its data.
stop_servers() {
  local one
  # All before any is waited for: after Ctrl-C a server takes this for the same wish for a second.
  for one in "${servers[@]}"; do
    kill -TERM "$one" 2>/dev/null || true
  done
  for one in "${servers[@]}"; do
    wait "$one" || true
  done
  rm -rf "$scratch"
}
trap stop_servers EXIT
# Ctrl-C reaches the servers as well; what ends this shell alone does not.
trap 'exit 130' INT TERM
