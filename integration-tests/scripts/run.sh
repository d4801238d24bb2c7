#!/usr/bin/env bash
# A server in an empty directory, and a checkpoint through it: in, out, verified.
# On a terminal the server goes on until Ctrl-C. Arguments go to `keyway demo`: for instance
# `--checkpoint model.safetensors`.
source "$(dirname "$0")/lib.sh"
source integration-tests/scripts/server.sh

build_release
new_credentials
start_keyway demo
"$keyway" demo --endpoint "$url" --server-pid "$pid" "$@"

if [ -t 0 ] && [ -t 1 ]; then
  say ""
  say "The server goes on at $url until Ctrl-C. In another shell:"
  say "  export AWS_ACCESS_KEY_ID=$AWS_ACCESS_KEY_ID AWS_SECRET_ACCESS_KEY=$AWS_SECRET_ACCESS_KEY"
  say "  $keyway ls --endpoint $url"
  wait "$pid"
fi
