#!/usr/bin/env bash
# Builds once and runs every test; the last line says how many passed, failed and were skipped.
source "$(dirname "$0")/lib.sh"

log=target/test.log

if ! cargo build --ignore-rust-version --workspace --lib --bins --tests; then
  record_suite build 0 1 0
  say "0 passed, 1 failed, 0 skipped"
  exit 1
fi

status=0
cargo test --ignore-rust-version --workspace --no-fail-fast 2>&1 | tee "$log" || status=$?

tally "$log"
if [ "$status" -ne 0 ] && [ "$failed" -eq 0 ]; then
  # Something did not even get to its result line.
  failed=1
fi

grep '^skipped: ' "$log" || true
touch "$suites"
before=$(wc -l <"$suites")
record_suite test "$passed" "$failed" "$skipped"

# Those that need an RDMA adapter were skipped above, unless this machine has one.
integration-tests/rdma/test.sh || status=1

awk -v before="$before" 'NR > before { passed += $2; failed += $3; skipped += $4 }
  END { printf "%d passed, %d failed, %d skipped\n", passed, failed, skipped }' "$suites"
exit "$status"
