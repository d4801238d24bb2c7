#!/usr/bin/env bash
# Formatting, lints, licences, layering, tidiness: what a review should not have to say.
source "$(dirname "$0")/lib.sh"

deny_version=0.20.2
passed=0 failed=0 skipped=0

step() {
  local name=$1
  shift
  say "check: $name"
  if "$@"; then
    passed=$((passed + 1))
  else
    say "check: $name failed"
    failed=$((failed + 1))
  fi
}

skip() {
  echo "skipped: $1: $2"
  skipped=$((skipped + 1))
}

cargo_deny() {
  PATH="$tools/bin:$PATH" cargo deny --log-level error "$@"
}

# mypy looks for its configuration, and for the package, where it is run.
python_types() {
  (cd client-sdk/python && "$1" --cache-dir "$2")
}

step format cargo fmt --all --check
step clippy cargo clippy --ignore-rust-version --workspace --all-targets -- -D warnings
# --workspace: cargo unifies features over what is selected, and `make test` selects all.
step "layering and tidiness" cargo test --quiet --ignore-rust-version --workspace \
  --test layering --test tidy

if ! have cargo-deny && [ ! -x "$tools/bin/cargo-deny" ]; then
  say "installing cargo-deny $deny_version"
  # Without optimisation: it looks at one lock file, and is built in half of the time.
  CARGO_PROFILE_DEV_DEBUG=0 cargo install --quiet --locked --debug --root "$tools" \
    "cargo-deny@$deny_version" || true
fi
if have cargo-deny || [ -x "$tools/bin/cargo-deny" ]; then
  step "licences, bans, sources" cargo_deny check licenses bans sources
  # The database of advisories is a git repository of its own.
  if timeout 60 bash -c "$(declare -f cargo_deny); tools=$tools cargo_deny fetch db" \
    >target/advisories.log 2>&1; then
    step advisories cargo_deny check --disable-fetch advisories
  else
    skip advisories "the advisory database cannot be reached"
  fi
else
  skip "licences, bans, sources" "cargo-deny cannot be installed"
fi

venv=target/venv-keyway
if [ -x $venv/bin/ruff ] && [ -x $venv/bin/mypy ]; then
  step "Python form" $venv/bin/ruff format --check client-sdk/python integration-tests
  step "Python lints" $venv/bin/ruff check client-sdk/python integration-tests
  step "Python types" python_types "$PWD/$venv/bin/mypy" "$PWD/target/mypy"
else
  skip "Python lints and types" "ruff and mypy are not installed"
fi

apt_install shellcheck=shellcheck || true
if have shellcheck; then
  step "shell scripts" shellcheck --external-sources --source-path=SCRIPTDIR \
    .ci/run integration-tests/scripts/*.sh integration-tests/clients/*.sh \
    integration-tests/rdma/*.sh integration-tests/rdma/init deploy/image/build.sh
else
  skip "shell scripts" "shellcheck cannot be installed"
fi

record_suite check "$passed" "$failed" "$skipped"
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
