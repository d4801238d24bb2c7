#!/usr/bin/env bash
# Runs a command on real verbs: boots Debian's kernel in QEMU (no KVM needed) over this host's
# file system, with soft-RoCE devices, and ends with the command's exit status.
#
#   machine.sh [--timeout SECONDS] [--shell] -- COMMAND [ARG ...]
#
# The guest sees the host's root read-only under a memory overlay; what it writes is gone, but
# for $KEYWAY_VM_OUT, which is the host's folder $work/out. A guest that panics, hangs or never
# writes its exit status is a failure; the console's log says why.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
repo=$(cd "$here/../.." && pwd)
cache=${KEYWAY_VM_CACHE:-$repo/target/rdma}
timeout_s=300
shell=

while [ $# -gt 0 ]; do
    case $1 in
        --timeout) timeout_s=$2; shift 2 ;;
        --shell) shell=1; shift ;;
        --) shift; break ;;
        *) echo "machine.sh: unknown option $1" >&2; exit 2 ;;
    esac
done
[ $# -gt 0 ] || [ -n "$shell" ] || { echo "machine.sh: no command" >&2; exit 2; }

# The kernel, downloaded and unpacked but never installed. Its number moves with Debian's
# updates, so it is resolved each time the cache is empty.
prepare_kernel() {
    [ -s "$cache/release" ] && return
    local package scratch
    package=$(apt-cache depends linux-image-amd64 | awk '$1 == "Depends:" {print $2; exit}')
    [ -n "$package" ] || { echo "machine.sh: apt knows no linux-image-amd64" >&2; exit 1; }
    scratch=$(mktemp -d "$cache/unpack.XXXXXX")
    (cd "$scratch" && apt-get download -q "$package" >apt.log 2>&1) || { cat "$scratch/apt.log" >&2; exit 1; }
    rm -rf "$cache/root"
    dpkg-deb -x "$scratch"/linux-image-*.deb "$cache/root"
    rm -rf "$scratch"
    local release=${package#linux-image-}
    depmod -b "$cache/root" "$release"
    extract_vmlinux "$cache/root/boot/vmlinuz-$release" "$cache/vmlinux"
    echo "$release" >"$cache/release"
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

# The first user space: just enough to mount the host's root and switch to it.
build_initramfs() {
    local release=$1 out=$2 tree modules
    tree=$(mktemp -d "$cache/initramfs.XXXXXX")
    modules=/lib/modules/$release
    mkdir -p "$tree"/{bin,dev,proc,sys,mods,host,overlay,new}
    cp /bin/busybox "$tree/bin/busybox"
    local order=0 path name
    for name in virtio_pci 9pnet_virtio 9p overlay; do
        while read -r path; do
            local file=${path##*/}
            ls "$tree"/mods/*-"${file%.xz}" >/dev/null 2>&1 && continue
            order=$((order + 1))
            local target
            target=$(printf '%s/mods/%02d-%s' "$tree" "$order" "${file%.xz}")
            case $path in
                *.xz) xz -dc "$path" >"$target" ;;
                *) cp "$path" "$target" ;;
            esac
        done < <(modprobe -d "$cache/root" -S "$release" --show-depends "$name" | awk '$1 == "insmod" {print $2}')
    done
    install -m 0755 "$here/init" "$tree/init"
    install -m 0755 "$here/setup.sh" "$tree/setup.sh"
    echo "$modules" >"$tree/modules-path"
    (cd "$tree" && find . -print0 | cpio --null -o --quiet -H newc) | gzip -1 >"$out"
    rm -rf "$tree"
}

mkdir -p "$cache"
prepare_kernel
release=$(cat "$cache/release")
work=$(mktemp -d "$cache/run.XXXXXX")
trap 'rm -rf "$work"' EXIT
mkdir "$work/out"
build_initramfs "$release" "$work/initramfs.gz"

# The guest runs this file; arguments arrive exactly as given.
{
    echo '#!/bin/bash'
    printf 'cd %q\n' "$PWD"
    printf 'export KEYWAY_VM_OUT=/run/keyway-vm/out PATH=%q\n' "$PATH"
    if [ -n "$shell" ]; then echo 'exec setsid -c bash -i </dev/ttyS0 >/dev/ttyS0 2>&1'; else printf 'exec'; printf ' %q' "$@"; echo; fi
} >"$work/out/command"
chmod 0755 "$work/out/command"

if [ -n "$shell" ]; then serial=(-serial mon:stdio); else serial=(-serial "file:$work/console"); fi
status=0
timeout --foreground "$timeout_s" qemu-system-x86_64 \
    -nodefaults -display none -no-reboot -M q35 -accel tcg,thread=multi -cpu max -smp 2 -m "${KEYWAY_VM_MEMORY:-2G}" \
    -kernel "$cache/vmlinux" -initrd "$work/initramfs.gz" \
    -append 'console=ttyS0 quiet panic=-1 mitigations=off tsc=reliable' \
    -fsdev local,id=root,path=/,readonly=on,multidevs=remap,security_model=none \
    -device virtio-9p-pci,fsdev=root,mount_tag=root \
    -fsdev local,id=out,path="$work/out",security_model=none \
    -device virtio-9p-pci,fsdev=out,mount_tag=out \
    -fsdev local,id=modules,path="$cache/root/lib/modules/$release",readonly=on,security_model=none \
    -device virtio-9p-pci,fsdev=modules,mount_tag=modules \
    "${serial[@]}" || status=$?

[ -f "$work/out/stdout" ] && cat "$work/out/stdout"
if [ ! -s "$work/out/status" ]; then
    echo "machine.sh: the guest ended without an exit status (QEMU: $status): panic, hang or time-out" >&2
    [ -f "$work/console" ] && tail -n 60 "$work/console" >&2
    exit 70
fi
exit "$(cat "$work/out/status")"
