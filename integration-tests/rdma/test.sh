#!/usr/bin/env bash
# Runs the tests that need an RDMA adapter in the soft-RoCE machine, on Debian's rxe module and, in a
# machine beside it, on the one with rxe-window.patch; the last lines say how many passed, for each.
# Then it boots two of these machines: a server on one, clients on the other.
#
#   test.sh [--rxe stock|fixed] [TARGET-GLOB ...] [-- LIBTEST-ARG ...]
#
# Targets are integration tests, `rdma_*` where none is named: what is the same on both modules runs
# on one of them then. RDMA_SECONDS (800) is the time that
# all of them have on one module, RDMA_PROFILE (dev) the profile of cargo's that they are built in.
source "$(dirname "$0")/../scripts/lib.sh"

here=integration-tests/rdma
modules=(stock fixed) globs=()
while [ $# -gt 0 ]; do
  case $1 in
    --rxe) modules=("$2"); shift 2 ;;
    --) shift; break ;;
    *) globs+=("$1"); shift ;;
  esac
done
named=${#globs[@]}
declare -A elsewhere=()
if [ "$named" = 0 ]; then
  globs=('rdma_*')
  [ ${#modules[@]} = 1 ] || elsewhere=([stock]='rdma_client rdma_slab' [fixed]='rdma_rails rdma_routes')
fi
seconds=${RDMA_SECONDS:-800}

if why=$("$here/tools.sh"); then :; else
  echo "skipped: soft-RoCE machine: $why"
  for suite in "${modules[@]}" two-hosts; do record_suite "rdma-$suite" 0 0 1; done
  exit 0
fi

# The names of the test targets that a glob matches.
targets() {
  cargo metadata --no-deps --format-version 1 | python3 -c '
import fnmatch, json, sys
for package in json.load(sys.stdin)["packages"]:
    for target in package["targets"]:
        name = target["name"]
        if "test" in target["kind"] and any(fnmatch.fnmatch(name, g) for g in sys.argv[1:]):
            print(name)' "$@"
}

# Of the messages of a build: `name path` of each program, `deps/name path` of each test.
executables() {
  python3 -c '
import json, sys
for line in sys.stdin:
    message = json.loads(line)
    if message.get("executable"):
        folder = "deps/" if message["profile"]["test"] else ""
        print(folder + message["target"]["name"], message["executable"])'
}

# Without debug information, which is most of them, they load ten times faster over 9p.
staged=target/rdma/tests
rm -rf "$staged"
mkdir -p "$staged/deps"
found=$(targets "${globs[@]}")
mapfile -t names < <(printf '%s' "${found:+$found$'\n'}")
[ "$named" = 0 ] || [ ${#names[@]} -gt 0 ] || die "no test is named ${globs[*]}"
if [ ${#names[@]} -gt 0 ]; then
  cargo build --ignore-rust-version --workspace --profile "${RDMA_PROFILE:-dev}" \
    --message-format=json --bins "${names[@]/#/--test=}" >target/rdma/build.json || {
    for module in "${modules[@]}"; do record_suite "rdma-$module" 0 1 0; done
    die "the tests do not build"
  }
  while read -r name path; do
    # Unit tests of the programs are no tests of adapters.
    case " ${names[*]/#/deps/} keyway " in *" $name "*) strip --strip-debug -o "$staged/$name" "$path" ;; esac
  done < <(executables <target/rdma/build.json)
  for name in "${names[@]}"; do [ -x "$staged/deps/$name" ] || die "cargo built no test $name"; done
fi

# Side by side they keep two cores busy, where one alone often waits for time to pass.
status=0 results=() machines=()
trap 'kill "${machines[@]}" 2>/dev/null || true' EXIT
for module in "${modules[@]}"; do
  log=target/rdma/test-$module.log
  say "booting the soft-RoCE machine with the $module module; the log is $log"
  KEYWAY_RDMA_ELSEWHERE=${elsewhere[$module]:-} \
    "$here/machine.sh" --rxe "$module" --timeout $((seconds + 60)) -- \
    "$PWD/$here/guest-tests.sh" "$PWD/$staged" "$seconds" "$@" >"$log" 2>&1 &
  machines+=($!)
done
for at in "${!modules[@]}"; do
  module=${modules[at]} failing=0
  log=target/rdma/test-$module.log
  wait "${machines[at]}" || failing=1
  cat "$log"
  tally "$log"
  read -r own_passed own_failed < <(awk '
    /^machine: [0-9]+ passed/ { passed = $2; failed = $4 } END { print passed + 0, failed + 0 }' "$log")
  passed=$((passed + own_passed)) failed=$((failed + own_failed))
  # A panic, a hang, or a test that did not get to its result line.
  [ "$failing" = 0 ] || [ "$failed" -gt 0 ] || failed=1
  [ "$failed" = 0 ] || status=1
  record_suite "rdma-$module" "$passed" "$failed" "$skipped"
  results+=("rdma on $module rxe: $passed passed, $failed failed, $skipped skipped")
done

if "$here/machine.sh" --rxe "${modules[-1]}" --timeout 400 --two-hosts -- \
  "$PWD/$here/guest-two-hosts.sh" "$PWD/$staged/keyway" >target/rdma/test-two-hosts.log 2>&1; then
  record_suite rdma-two-hosts 1 0 0
  results+=("rdma between two hosts: 1 passed, 0 failed, 0 skipped")
else
  status=1
  cat target/rdma/test-two-hosts.log
  record_suite rdma-two-hosts 0 1 0
  results+=("rdma between two hosts: 0 passed, 1 failed, 0 skipped")
fi
printf '%s\n' "${results[@]}"
exit "$status"
