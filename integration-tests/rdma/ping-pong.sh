#!/bin/bash
# Inside the guest: sends a hundred messages there and back, from rxe0 to rxe1, or between two
# hosts. What was said is printed where it fails.
set -u
options=(--gid-idx=1 --iters=100)

served() {
  ibv_rc_pingpong --ib-dev="$1" "${options[@]}" >"$scratch/pong" 2>&1 &
  server=$!
  until ss -ltn 'sport = 18515' | grep -q LISTEN; do
    kill -0 $server 2>/dev/null || return
    read -rt 0.05 <> <(:) || :
  done
}

asked() { ibv_rc_pingpong --ib-dev=rxe0 "${options[@]}" "$1" >"$scratch/ping" 2>&1; }

scratch=$(mktemp -d)
case ${KEYWAY_VM_HOST:-} in
  '') served rxe1 && asked 10.77.0.2 && wait $server ;;
  a) served rxe0 && touch "$KEYWAY_VM_OUT/served" && wait $server ;;
  b)
    until [ -e "$KEYWAY_VM_OUT/served" ]; do read -rt 0.05 <> <(:) || :; done
    asked 10.77.1.1
    ;;
esac
status=$?
[ $status = 0 ] || cat "$scratch"/p?ng
rm -r "$scratch"
exit $status
