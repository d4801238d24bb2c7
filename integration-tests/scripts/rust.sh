#!/usr/bin/env bash
# Sees to a C toolchain and a Rust that is new enough.
source "$(dirname "$0")/lib.sh"

wanted=1.95.0

apt_install cc=build-essential pkg-config=pkg-config || die "a C compiler is needed: install gcc or clang"

# For this checkout alone.
install_rust() {
  rustup toolchain install "$wanted" --profile minimal --component clippy --component rustfmt &&
    rustup override set "$wanted"
}

if ! have cargo; then
  # Debian 13, Ubuntu 24.04 and later have it, with a cargo and a rustc that go through it.
  { apt_install rustup=rustup && install_rust; } ||
    die "Rust $wanted or newer is needed: install rustup, from https://rustup.rs, and open a new shell"
fi
found=$(rustc --version | awk '{print $2}')
if [ "$(printf '%s\n%s\n' "$wanted" "${found%%-*}" | sort -V | head -n 1)" != "$wanted" ]; then
  have rustup || die "Rust $wanted or newer is needed, this is $found"
  say "Rust $found is too old: installing $wanted"
  install_rust
fi
