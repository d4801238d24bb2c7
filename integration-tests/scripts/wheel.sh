#!/usr/bin/env bash
# Builds the Python package's wheel: one for all versions of Python from 3.11 on.
source "$(dirname "$0")/lib.sh"

venv=target/venv-maturin
[ -x "$venv/bin/maturin" ] || {
  python3 -m venv "$venv"
  "$venv/bin/pip" install --quiet --disable-pip-version-check 'maturin>=1.9,<2'
}
"$venv/bin/maturin" build --manifest-path client-sdk/python/Cargo.toml --out target/wheels \
  --compatibility linux --ignore-rust-version "${@:---release}"
ls -l target/wheels/keyway-*.whl
