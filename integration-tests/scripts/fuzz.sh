#!/usr/bin/env bash
# Fuzzes every target for FUZZ_SECONDS each, as many at a time as there are cores.
# FUZZ_GATEWAY=0 leaves out those that need the whole gateway, which takes minutes to build with
# instrumentation; they are counted as skipped.
#
# The targets are libFuzzer's, laid out for cargo-fuzz, but need neither it nor a nightly
# compiler: LLVM's coverage pass is reached through stable flags. A memory checker is left
# out; the code fuzzed is safe Rust, and panics and hangs are what is looked for.
source "$(dirname "$0")/lib.sh"

seconds=${FUZZ_SECONDS:-30}
fuzz=integration-tests/fuzz
triple=$(rustc -vV | awk '/^host:/{print $2}')
export CARGO_TARGET_DIR="$PWD/target/fuzz"

# The names of all targets, one to a line; with `gateway`, of those that need that feature.
targets_in() {
  awk -F '"' -v wanted="${1-}" '
    /^\[\[bin\]\]/ { in_bin = 1 }
    in_bin && /^name/ { name = $2; if (wanted == "") print name }
    in_bin && /^required-features/ { if (wanted == $2) print name }' "$fuzz/Cargo.toml"
}

features=() left_out=()
mapfile -t targets < <(targets_in)
if [ $# -gt 0 ]; then
  targets=("$@")
elif [ "${FUZZ_GATEWAY:-1}" = 0 ]; then
  mapfile -t left_out < <(targets_in gateway)
  mapfile -t targets < <(targets_in | grep -vxF -f <(targets_in gateway))
  features=(--no-default-features)
fi

coverage="-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4
  -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table
  -Cllvm-args=-sanitizer-coverage-trace-compares"
# A target triple keeps the flags away from build scripts, which would not link.
if ! RUSTFLAGS="$coverage --cfg fuzzing" cargo build --ignore-rust-version --release \
  --manifest-path "$fuzz/Cargo.toml" --target "$triple" --bins "${features[@]}"; then
  record_suite fuzz 0 1 0
  die "the fuzz targets do not build"
fi
bins="$CARGO_TARGET_DIR/$triple/release"

one() {
  local target=$1 corpus="$fuzz/corpus/$1" artifacts="$fuzz/artifacts/$1/" log="target/fuzz-$1.log"
  mkdir -p "$corpus" "$artifacts"
  if "$bins/$target" "$corpus" "$fuzz/seeds/$target" -max_total_time="$seconds" -timeout=10 \
    -rss_limit_mb=4096 -max_len=4096 -artifact_prefix="$artifacts" -print_final_stats=1 \
    >"$log" 2>&1; then
    echo "ok: $target: $(awk '/stat::number_of_executed_units/{print $2}' "$log") inputs"
  else
    echo "FAILED: $target: replay with $bins/$target <input>"
    tail -n 25 "$log"
    return 1
  fi
}
export -f one
export fuzz bins seconds

say "fuzzing ${#targets[@]} targets, $seconds s each"
results=target/fuzz-results.txt
printf '%s\n' "${targets[@]}" | xargs -P "$(nproc)" -I{} bash -c 'one {}' | tee "$results" || true
passed=$(grep -c '^ok: ' "$results" || true)
failed=$((${#targets[@]} - passed))
for target in "${left_out[@]}"; do
  echo "skipped: $target: it needs the whole gateway: make fuzz without FUZZ_GATEWAY=0"
done
record_suite fuzz "$passed" "$failed" "${#left_out[@]}"
echo "$passed passed, $failed failed, ${#left_out[@]} skipped"
[ "$failed" -eq 0 ]
