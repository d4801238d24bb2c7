# shellcheck shell=bash
# The guest's kernel and the module under test, downloaded from Debian and unpacked, never
# installed. Sourced after scripts/lib.sh. Caches in $cache:
#
#   release, version   which kernel that is; its number moves with Debian's updates
#   root/, vmlinux     its modules, and the kernel itself
#   rdma_rxe-*.ko      the soft-RoCE module with rxe-window.patch, for that kernel
#   tsc-khz            tells the rate of the processors' time-stamp counter

cache=${KEYWAY_VM_CACHE:-$PWD/target/rdma}
mkdir -p "$cache"
# What runs that were killed have left.
find "$cache" -mindepth 1 -maxdepth 1 -name '*.??????' -type d -mmin +180 -exec rm -rf {} +

# Downloads packages, `name` or `name=version`, and unpacks them into a folder.
unpack_packages() {
  local into=$1 debs package
  shift
  debs=$(mktemp -d "$cache/debs.XXXXXX")
  if ! (cd "$debs" && apt-get download -q "$@" >apt.log 2>&1); then
    cat "$debs/apt.log" >&2
    rm -rf "$debs"
    die "these packages cannot be downloaded: $*"
  fi
  for package in "$debs"/*.deb; do dpkg-deb -x "$package" "$into"; done
  rm -rf "$debs"
}

prepare_kernel() {
  if [ ! -s "$cache/release" ]; then
    local package version
    package=$(apt-cache depends linux-image-amd64 | awk '$1 == "Depends:" { print $2; exit }')
    [ -n "$package" ] || die "apt knows no linux-image-amd64"
    version=$(apt-cache policy "$package" | awk '$1 == "Candidate:" { print $2 }')
    say "downloading $package $version"
    rm -rf "$cache/root"
    unpack_packages "$cache/root" "$package=$version"
    release=${package#linux-image-}
    depmod -b "$cache/root" "$release"
    extract_vmlinux "$cache/root/boot/vmlinuz-$release" "$cache/vmlinux"
    echo "$version" >"$cache/version"
    echo "$release" >"$cache/release"
  fi
  release=$(cat "$cache/release")
}

# An uncompressed kernel boots through PVH without the decompressor, which emulation makes slow.
extract_vmlinux() {
  python3 - "$1" "$2" <<'PY'
import lzma, re, subprocess, sys, zlib
image = open(sys.argv[1], "rb").read()
def attempts():
    for magic, unpack in (
        (b"\xfd7zXZ\x00", lambda b: lzma.LZMADecompressor().decompress(b)),
        (b"\x1f\x8b\x08", lambda b: zlib.decompressobj(31).decompress(b)),
        (b"\x28\xb5\x2f\xfd", lambda b: subprocess.run(
            ["zstd", "-dcq"], input=b, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout),
    ):
        for match in re.finditer(re.escape(magic), image):
            try:
                yield unpack(image[match.start():])
            except (lzma.LZMAError, zlib.error):
                continue
for kernel in attempts():
    if kernel.startswith(b"\x7fELF"):
        open(sys.argv[2], "wb").write(kernel)
        break
else:
    sys.exit("no ELF kernel inside " + sys.argv[1])
PY
}

# Prints the rate of the processors' time-stamp counter in kHz. QEMU hands it on, and a guest that
# boots beside other work measures it wrong: its clock has run almost four times too fast.
counter_khz() {
  local source=integration-tests/rdma/tsc-khz.c
  [ "$cache/tsc-khz" -nt "$source" ] || cc -O1 -Wall -Wextra -o "$cache/tsc-khz" "$source" ||
    die "$source does not compile"
  "$cache/tsc-khz"
}

# Builds the patched module where it is missing, and sets $fixed_rxe to its path.
prepare_fixed_rxe() {
  local patch=integration-tests/rdma/rxe-window.patch version hash
  version=$(cat "$cache/version")
  hash=$(sha256sum "$patch")
  fixed_rxe=$cache/rdma_rxe-$release-$version-${hash:0:16}.ko
  [ ! -s "$fixed_rxe" ] || return 0

  apt_install make=make cc=build-essential patch=patch || die "the module needs make, cc and patch"
  say "building rdma_rxe with $patch for $release"
  local tree series built
  tree=$(mktemp -d "$cache/build.XXXXXX")
  series=$(cut -d . -f 1,2 <<<"$release")
  # The headers of one kernel are spread over three packages, named by the first one's.
  local headers=("linux-headers-$release=$version") name
  while read -r name; do headers+=("$name=$version"); done < <(
    apt-cache depends "linux-headers-$release=$version" |
      awk '$1 == "Depends:" && $2 ~ /^linux-(headers-.*-common|kbuild-)/ { print $2 }')
  unpack_packages "$tree" "${headers[@]}" "linux-source-$series=$version"
  sed -i "s|/usr/src/|$tree/usr/src/|" "$tree/usr/src/linux-headers-$release/Makefile"

  built=linux-source-$series/drivers/infiniband/sw/rxe
  tar -C "$tree" -xf "$tree/usr/src/linux-source-$series.tar.xz" "$built"
  built=$tree/$built
  if ! {
    patch -d "$built" -p1 --fuzz=0 <"$patch" &&
      make -j "$(nproc)" -C "$tree/usr/src/linux-headers-$release" M="$built" CC=cc modules &&
      strip --strip-debug "$built/rdma_rxe.ko"
  } >"$cache/rxe.log" 2>&1; then
    rm -rf "$tree"
    tail -n 20 "$cache/rxe.log" >&2
    die "the soft-RoCE module cannot be built; more in $cache/rxe.log"
  fi
  rm -f "$cache"/rdma_rxe-*.ko
  mv "$built/rdma_rxe.ko" "$fixed_rxe"
  rm -rf "$tree"
}
