# shellcheck shell=bash
# What the scripts share. Sourced, not run; the working directory becomes the repository's root.

set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

# Where tools are installed that no distribution carries.
export tools="$PWD/target/tools"
# A line for every suite that ran: name, passed, failed, skipped. `.ci/run` sums them.
suites="$PWD/target/suites.txt"
mkdir -p target

say() { printf '%s\n' "$*" >&2; }

die() {
  say "error: $*"
  exit 1
}

have() { command -v "$1" >/dev/null 2>&1; }

# Runs a command as root, or fails where that is not possible.
as_root() {
  if [ "$(id -u)" = 0 ]; then
    "$@"
  else
    sudo -n "$@"
  fi
}

# Fetches the lists of packages, once for a checkout.
apt_update() {
  [ ! -e target/.apt-updated ] || return 0
  as_root apt-get update -qq >target/apt.log 2>&1 || return 1
  touch target/.apt-updated
}

# Installs the Debian packages of those programs that are missing: `program=package` each.
apt_install() {
  local missing=() pair
  for pair in "$@"; do
    have "${pair%%=*}" || missing+=("${pair#*=}")
  done
  [ ${#missing[@]} -gt 0 ] || return 0
  have apt-get || {
    say "missing, and there is no apt-get to install them: ${missing[*]}"
    return 1
  }
  say "installing ${missing[*]}"
  apt_update || return 1
  as_root env DEBIAN_FRONTEND=noninteractive \
    apt-get install -y -qq --no-install-recommends "${missing[@]}" >>target/apt.log 2>&1
}

# Counts the tests in a log of `cargo test`: sets passed, failed, skipped.
# shellcheck disable=SC2034 # The caller reads them.
tally() {
  local ignored said
  read -r passed failed ignored < <(awk '
    /^test result: / {
      for (i = 1; i < NF; i++) {
        if ($(i + 1) ~ /^passed/) passed += $i
        if ($(i + 1) ~ /^failed/) failed += $i
        if ($(i + 1) ~ /^ignored/) ignored += $i
      }
    }
    END { print passed + 0, failed + 0, ignored + 0 }' "$1")
  # A test that could not run here passes and says `skipped: why`.
  said=$(grep -c '^skipped: ' "$1" || true)
  passed=$((passed - said))
  skipped=$((ignored + said))
}

record_suite() { echo "$1 $2 $3 $4" >>"$suites"; }
