#!/usr/bin/env bash
# What is in deploy/, tried as far as this machine can: the image is built from the release binary
# and serves an object; the compose file, the chart and the dashboard are read by their own tools.
source "$(dirname "$0")/lib.sh"
source integration-tests/scripts/server.sh

passed=0 failed=0 skipped=0

step() {
  local name=$1
  shift
  say "deploy: $name"
  if "$@"; then
    passed=$((passed + 1))
  else
    say "deploy: $name failed"
    failed=$((failed + 1))
  fi
}

skip() {
  echo "skipped: $1: $2"
  skipped=$((skipped + 1))
}

tool=${CONTAINER:-docker}
image=keyway:test
container=

remove_container() {
  [ -z "$container" ] || "$tool" rm --force "$container" >/dev/null
}
trap 'remove_container; stop_servers' EXIT

# An object goes into a server of the image and comes back; its stop is a clean one.
serves() {
  local file="$scratch/object" port authority="$scratch/authority.pem"
  container=$("$tool" run --detach --read-only --cap-drop ALL --publish 127.0.0.1::9000 \
    --env KEYWAY_ROOT_ACCESS_KEY="$AWS_ACCESS_KEY_ID" \
    --env KEYWAY_ROOT_SECRET_KEY="$AWS_SECRET_ACCESS_KEY" "$image") || return 1
  local _
  for _ in $(seq 100); do
    "$tool" logs "$container" 2>/dev/null | grep -q '^keyway ready: ' && break
    sleep 0.1
  done
  port=$("$tool" port "$container" 9000/tcp | head -n 1)
  "$tool" cp "$container:/data/tls/authority.pem" "$authority" || return 1
  head -c 3000000 /dev/urandom >"$file"
  export KEYWAY_ENDPOINT="https://localhost:${port##*:}" KEYWAY_CA_FILE="$authority"
  "$keyway" mb s3://image && "$keyway" put "$file" s3://image/object &&
    "$keyway" get s3://image/object "$file.back" && cmp "$file" "$file.back" || return 1
  unset KEYWAY_ENDPOINT KEYWAY_CA_FILE
  "$tool" stop --time 40 "$container" >/dev/null
  [ "$("$tool" inspect --format '{{.State.ExitCode}}' "$container")" = 0 ]
}

if "$tool" info >/dev/null 2>&1; then
  build_release
  new_credentials
  step "the image builds" deploy/image/build.sh "$image"
  step "the image serves an object" serves
else
  skip "the image" "no $tool daemon answers"
fi

if "$tool" compose version >/dev/null 2>&1; then
  step "the compose file" "$tool" compose --file deploy/compose/compose.yaml \
    --profile observe config --quiet
else
  skip "the compose file" "$tool has no compose"
fi

if have helm; then
  step "the chart" helm lint --strict deploy/helm/keyway
  step "the chart, all of it" bash -c 'helm template try deploy/helm/keyway \
    --set credentialsSecret=root,tlsSecret=tls,storage.className=fast >/dev/null'
else
  skip "the chart" "helm is not installed"
fi

# That its questions are for metrics that exist is a unit test of telemetry.
step "the dashboard" python3 -m json.tool deploy/grafana/keyway.json /dev/null

record_suite deploy "$passed" "$failed" "$skipped"
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
