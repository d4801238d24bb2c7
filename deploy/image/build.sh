#!/usr/bin/env bash
# Builds the image from the release binary: deploy/image/build.sh [TAG]. Of the host it takes the
# C library, the authorities that it trusts, and RDMA's libraries where they are installed (the
# binary looks for them when it starts). CONTAINER names the tool: docker or podman.
set -euo pipefail
cd "$(dirname "$0")/../.."

tag=${1:-keyway:dev}
tool=${CONTAINER:-docker}
binary=${KEYWAY_BINARY:-target/release/keyway}
[ -x "$binary" ] || {
  echo "error: $binary is missing: cargo build --release --package keyway-gateway" >&2
  exit 1
}

context=$(mktemp -d)
trap 'rm -rf "$context"' EXIT
root="$context/rootfs"

# Copies a file to where it is here, links resolved.
take() { install -D -m "$(stat -Lc %a "$1")" "$1" "$root$1"; }

# The libraries that a file needs, as the loader finds them.
needed() { ldd "$1" | awk '$2 == "=>" && $3 ~ /^\// { print $3; next } $1 ~ /^\// { print $1 }'; }

install -D -m 0755 "$binary" "$root/usr/bin/keyway"
# Line tables are most of the file; the names of functions stay for backtraces.
! command -v strip >/dev/null || strip --strip-debug "$root/usr/bin/keyway"
mapfile -t libraries < <(needed "$binary")
shopt -s nullglob
for rdma in /usr/lib/*/libibverbs.so.1 /usr/lib/*/librdmacm.so.1 /usr/lib/*/libibverbs/*.so; do
  mapfile -t -O "${#libraries[@]}" libraries < <(echo "$rdma" && needed "$rdma")
done
while read -r library; do take "$library"; done < <(printf '%s\n' "${libraries[@]}" | sort -u)
for driver in /etc/libibverbs.d/*.driver; do take "$driver"; done
[ ! -e /etc/ssl/certs/ca-certificates.crt ] || take /etc/ssl/certs/ca-certificates.crt
install -d "$root/etc"
echo 'keyway:x:65532:65532::/data:/nonexistent' >"$root/etc/passwd"
install -d -m 0700 "$context/data"
install -d -m 1777 "$root/tmp"

"$tool" build --quiet --tag "$tag" --file deploy/image/Containerfile "$context"
