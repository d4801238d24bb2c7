#!/usr/bin/env bash
# Runs a pack of GPU tests: the folder that this script lies in, made by `make test-gpu-pack`.
# It needs no compiler and no checkout: bash, coreutils, awk, the driver; and for Python's tests
# an interpreter from 3.11 on with torch. What cannot run here says `skipped: why` and is no
# failure.
#
# PYTHON (python3) names the interpreter, SUITE_SECONDS (900) bounds each suite, LOGS (logs in the
# pack) is where their output goes. Arguments choose suites by name; none means all.
set -uo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
logs=${LOGS:-$here/logs}
python=${PYTHON:-python3}
seconds=${SUITE_SECONDS:-900}
all_passed=0 all_failed=0 all_skipped=0
chosen=" $* "
mkdir -p "$logs"
# What the machine says of other services is not meant here.
unset AWS_ENDPOINT_URL AWS_CA_BUNDLE AWS_SESSION_TOKEN AWS_PROFILE
export KEYWAY_BINARY="$here/keyway"
# One test at a time: tests of one process share the GPU's context, where freeing memory waits for
# all streams, those included that another test holds up.
export RUST_TEST_THREADS=1

row() { printf '%-24s %7s %7s %8s  %s\n' "$@"; }

# report NAME PASSED FAILED SKIPPED WHY
report() {
  row "$@"
  all_passed=$((all_passed + $2)) all_failed=$((all_failed + $3)) all_skipped=$((all_skipped + $4))
}

is_chosen() { [ "$chosen" = "  " ] || [[ $chosen == *" $1 "* ]]; }

# The first reason of a log's `skipped: test: why` lines.
first_reason() { sed -n 's/^skipped: [^ ]*: //p' "$1" | head -n 1; }

# rust NAME: a test program, which counts by itself.
rust() {
  local name=$1 log="$logs/$1.log" status=0 passed failed skipped why
  is_chosen "$name" || return 0
  timeout "$seconds" "$here/tests/$name" >"$log" 2>&1 || status=$?
  read -r passed failed < <(awk '
    /^test result: / {
      for (i = 1; i < NF; i++) {
        if ($(i + 1) ~ /^passed/) passed += $i
        if ($(i + 1) ~ /^failed/) failed += $i
      }
    }
    END { print passed + 0, failed + 0 }' "$log")
  # A test that could not run passes and says so.
  skipped=$(grep -c '^skipped: ' "$log" || true)
  why=$(first_reason "$log")
  if [ "$status" -ne 0 ] && [ "$failed" -eq 0 ]; then
    failed=1 why="ended with $status: see $log"
  fi
  [ "$failed" -eq 0 ] || why="see $log"
  report "$name" $((passed - skipped)) "$failed" "$skipped" "$why"
}

# python NAME: a file of Python's tests, by pytest.
python() {
  local name=$1 log="$logs/$1.log" status=0 passed failed skipped why
  is_chosen "$name" || return 0
  if why=$(lacks_python); then
    report "$name" 0 0 1 "$why"
    return
  fi
  PYTHONPATH="$here/python:$here/python/vendor" PYTHONDONTWRITEBYTECODE=1 \
    timeout "$seconds" "$python" -m pytest -q -rs -p no:cacheprovider \
    --rootdir "$here/python" "$here/python/tests/$name.py" >"$log" 2>&1 || status=$?
  count() { grep -Eo "[0-9]+ $1" "$log" | tail -n 1 | cut -d ' ' -f 1; }
  passed=$(count passed) failed=$(count failed) skipped=$(count skipped)
  why=$(sed -n 's/^SKIPPED \[[0-9]*\] [^ ]* //p' "$log" | head -n 1)
  # 5: every test was skipped as a whole.
  if [ "$status" -ne 0 ] && [ "$status" -ne 5 ]; then
    failed=${failed:-1} why="see $log"
  fi
  report "$name" "${passed:-0}" "${failed:-0}" "${skipped:-0}" "$why"
}

# Says what the interpreter lacks, or fails where it lacks nothing.
lacks_python() {
  local path="$here/python/vendor"
  command -v "$python" >/dev/null 2>&1 || { echo "$python is not installed" && return; }
  "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    { echo "$python is older than 3.11" && return; }
  [ -e "$here/python/keyway/_keyway.abi3.so" ] || { echo "the package was not built" && return; }
  PYTHONPATH=$path "$python" -c 'import pytest' 2>/dev/null ||
    { echo "pytest is not installed" && return; }
  return 1
}

nvidia-smi -L 2>/dev/null || echo "no GPU that nvidia-smi knows"
row suite passed failed skipped why
for program in "$here"/tests/*; do
  rust "$(basename "$program")"
done
for file in "$here"/python/tests/test_*.py; do
  [ ! -e "$file" ] || python "$(basename "$file" .py)"
done
echo "$all_passed passed, $all_failed failed, $all_skipped skipped"
[ "$all_failed" -eq 0 ]
