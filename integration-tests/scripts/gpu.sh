#!/usr/bin/env bash
# The tests that need a GPU, as a pack that runs where no compiler is. `gpu.sh run` packs and runs
# it here; `gpu.sh pack [FOLDER]` packs stripped programs (target/gpu-pack), and FOLDER.tar.gz.
source "$(dirname "$0")/lib.sh"

mode=${1:-run}
pack=${2:-target/gpu-pack}
profile="${CARGO_TARGET_DIR:-target}/debug"
venv=target/venv-keyway
# Tests of the whole program that use a GPU where there is one.
integration=(client_gpu ipc_client ipc_crash ipc_ranges memory_first)
# Packages that pytest needs and that are Python alone.
vendored=(_pytest pytest pluggy iniconfig packaging pygments)

# test_program NAME FOLDER: the program of the test NAME of the crate in FOLDER.
test_program() {
  grep -F "/$2/tests/$1.rs\"" <<<"$built" |
    sed -n 's/.*"executable":"\([^"]*\)".*/\1/p' | tail -n 1
}

# take SOURCE TARGET: a program into the pack.
take() {
  [ -e "$1" ] || die "$1 was not built"
  cp "$1" "$pack/$2"
  [ "$mode" = run ] || strip "$pack/$2"
}

case $mode in
  run | pack) ;;
  *) die "usage: gpu.sh run | gpu.sh pack [FOLDER]" ;;
esac
# The whole workspace, as `make test` builds it: the same features, nothing twice.
cargo build --ignore-rust-version --workspace --lib --bins --tests
built=$(cargo test --ignore-rust-version --workspace --no-run --message-format=json \
  --test gpu "${integration[@]/#/--test=}")

rm -rf "$pack"
mkdir -p "$pack/tests" "$pack/python/tests"
cp integration-tests/scripts/gpu-suite.sh "$pack/run.sh"
take "$profile/keyway" keyway
take "$(test_program gpu dataplane/fabric)" tests/fabric
take "$(test_program gpu client-sdk)" tests/client
for name in "${integration[@]}"; do
  take "$(test_program "$name" integration-tests)" "tests/$name"
done
cp -r client-sdk/python/python/keyway "$pack/python/keyway"
take "$profile/lib_keyway.so" python/keyway/_keyway.abi3.so
cp client-sdk/python/tests/{conftest,test_gpu,test_torch,test_training}.py "$pack/python/tests"
cp client-sdk/python/pyproject.toml "$pack/python"
if [ -x "$venv/bin/python" ]; then
  site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
  mkdir "$pack/python/vendor"
  for package in "${vendored[@]}"; do
    [ ! -e "$site/$package" ] || cp -r "$site/$package" "$pack/python/vendor"
  done
fi
find "$pack" -name __pycache__ -prune -exec rm -r {} +

if [ "$mode" = pack ]; then
  tar -czf "$pack.tar.gz" -C "$(dirname "$pack")" "$(basename "$pack")"
  du -sh "$pack" "$pack.tar.gz"
  say "run $(basename "$pack")/run.sh on the other machine"
  exit
fi
python=python3
[ ! -x "$venv/bin/python" ] || python="$PWD/$venv/bin/python"
PYTHON=${PYTHON:-$python} LOGS="$PWD/target/gpu-logs" "$pack/run.sh"
