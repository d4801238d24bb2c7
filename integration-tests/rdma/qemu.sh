# shellcheck shell=bash
# The QEMU that the guest runs in. Sourced after kernel.sh; caches in $cache:
#
#   qemu/      one of Debian's backports, unpacked, where the distribution's is too old
#   qemu.log   why there is none

# Since this version carry-less multiplication, which sums of all kinds are made of, is the host's
# own; before, QEMU emulates it bit by bit, and half a second is spent on the sums of 100 MB.
qemu_wanted=8.2

qemu_version() { "$@" --version 2>/dev/null | sed -n 's/^QEMU emulator version \([0-9]*\.[0-9]*\).*/\1/p'; }

is_wanted() {
  local found
  found=$(qemu_version "$@")
  [ -n "$found" ] && [ "$(printf '%s\n' "$qemu_wanted" "$found" | sort -V | head -n 1)" = "$qemu_wanted" ]
}

# Unpacks the newer one of the same release's backports into a folder. Apt has lists of its own for
# that: what the machine installs from stays as it is.
unpack_backport() {
  local into=$1 codename mirror keys=/usr/share/keyrings/debian-archive-keyring.gpg
  # shellcheck disable=SC1091 # The system's own.
  codename=$(. /etc/os-release && [ "$ID" = debian ] && echo "${VERSION_CODENAME:-}")
  [ -n "$codename" ] || { echo "this is not Debian" && return 1; }
  # shellcheck disable=SC2016 # Apt fills them in.
  mirror=$(apt-get indextargets --format '$(ORIGIN) $(CODENAME) $(REPO_URI)' 'Created-By: Packages' |
    awk -v codename="$codename" '$1 == "Debian" && $2 == codename { print $3; exit }')
  [ -n "$mirror" ] || { echo "apt has no mirror of Debian's" && return 1; }
  [ -r "$keys" ] || { echo "there is no $keys" && return 1; }
  mkdir -p "$into/lists/partial" "$into/cache/archives/partial"
  echo "deb [signed-by=$keys] $mirror $codename-backports main" >"$into/sources.list"
  local options=(-q -o Acquire::http::Timeout=20 -o "Dir::Etc::SourceList=$into/sources.list"
    -o Dir::Etc::SourceParts=/dev/null -o "Dir::State::Lists=$into/lists"
    -o "Dir::Cache=$into/cache")
  local packages=(qemu-system-x86 qemu-system-common qemu-system-data seabios) package
  apt-get "${options[@]}" update && (cd "$into" && apt-get "${options[@]}" download "${packages[@]}") ||
    return 1
  for package in "$into"/*.deb; do dpkg-deb -x "$package" "$into" || return 1; done
  rm -rf "$into"/{lists,cache,sources.list,*.deb}
}

# Sets `emulator` to the command, and `slow_instructions` to the instructions that the guest is better without.
prepare_qemu() {
  emulator=(qemu-system-x86_64)
  # What it emulates byte by byte: `rep movsb`, which the kernel and the C library take for long
  # copies.
  slow_instructions=-erms,-fsrm
  is_wanted "${emulator[@]}" && return
  # shellcheck disable=SC2154 # kernel.sh sets it.
  local backport=$cache/qemu
  if [ ! -d "$backport" ] && [ ! -s "$cache/qemu.log" ]; then
    local unpacked
    unpacked=$(mktemp -d "$cache/qemu.XXXXXX")
    say "downloading a newer QEMU than $(qemu_version "${emulator[@]}")"
    if unpack_backport "$unpacked" >"$cache/qemu.log" 2>&1 &&
      is_wanted "$unpacked/usr/bin/qemu-system-x86_64"; then
      mv "$unpacked" "$backport" && rm "$cache/qemu.log"
    else
      rm -rf "$unpacked"
      echo "it cannot be had, or does not start here" >>"$cache/qemu.log"
      say "there is none; more in $cache/qemu.log"
    fi
  fi
  if [ -d "$backport" ]; then
    local shared=$backport/usr/share
    emulator=("$backport/usr/bin/qemu-system-x86_64" -L "$shared/qemu" -L "$shared/seabios")
  else
    slow_instructions+=,-pclmulqdq
  fi
}
