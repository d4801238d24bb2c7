#!/usr/bin/env bash
# Runs a command on real verbs: boots Debian's kernel in QEMU (no KVM needed) over this host's
# file system, with soft-RoCE devices, and ends with the command's exit status.
#
#   machine.sh [--rxe stock|fixed] [--timeout SECONDS] [--two-hosts] -- COMMAND [ARG ...]
#   machine.sh [--rxe stock|fixed] --shell
#
# The guest sees the host's root read-only under a memory overlay; what it writes is gone, but
# for $KEYWAY_VM_OUT, which is the host's folder target/rdma/run.*/out while it runs. A guest
# that panics, hangs or never writes its exit status is a failure (70); the end of the console's
# log says why. README.md beside this file tells what a command finds in there.
#
# With --two-hosts two guests, a and b, run the command at once, joined by a link.
caller=$PWD
source "$(dirname "$0")/../scripts/lib.sh"
source integration-tests/rdma/kernel.sh
source integration-tests/rdma/qemu.sh

PATH=$PATH:/usr/sbin:/sbin
here=integration-tests/rdma
rxe=stock timeout_s=300 shell='' hosts=('')
while [ $# -gt 0 ]; do
  case $1 in
    --rxe) rxe=$2; shift 2 ;;
    --timeout) timeout_s=$2; shift 2 ;;
    --two-hosts) hosts=(a b); shift ;;
    --shell) shell=1 timeout_s=0; shift ;;
    --) shift; break ;;
    *) die "unknown option $1" ;;
  esac
done
case $rxe in stock | fixed) ;; *) die "--rxe is stock or fixed, not $rxe" ;; esac
[ $# -gt 0 ] || [ -n "$shell" ] || die "no command"
[ ${#hosts[@]} = 1 ] || [ -z "$shell" ] || die "a shell has one host"

# The first user space: just enough to mount the host's root and switch to it. What the guest
# is to find under /run/keyway-vm travels along.
build_initramfs() {
  local tree name module target order=10
  tree=$(mktemp -d "$work/initramfs.XXXXXX")
  mkdir -p "$tree"/{bin,dev,proc,sys,mods,host,overlay,new,keyway-vm/bin}
  cp "$(command -v busybox)" "$tree/bin/busybox"
  for name in virtio_pci 9pnet_virtio 9p overlay; do
    while read -r module; do
      target=$(basename "$module" .xz)
      [ -z "$(find "$tree/mods" -name "*-$target")" ] || continue
      order=$((order + 1))
      case $module in
        *.xz) xz -dc "$module" >"$tree/mods/$order-$target" ;;
        *) cp "$module" "$tree/mods/$order-$target" ;;
      esac
    done < <(modprobe -d "$cache/root" -S "$release" --show-depends "$name" |
      awk '$1 == "insmod" { print $2 }')
  done
  install -m 0755 "$here/init" "$tree/init"
  install -m 0755 "$here/setup.sh" "$tree/keyway-vm/setup"
  for name in loss resources bandwidth ping-pong; do
    install -m 0755 "$here/$name.sh" "$tree/keyway-vm/bin/$name"
  done
  [ "$rxe" = stock ] || cp "$fixed_rxe" "$tree/keyway-vm/rdma_rxe.ko"
  echo "$PWD" >"$tree/keyway-vm/repository"
  echo "/lib/modules/$release" >"$tree/modules-path"
  (cd "$tree" && find . -print0 | cpio --null -o --quiet -H newc) | gzip -1 >"$work/initramfs.gz"
  rm -rf "$tree"
}

# The guest runs this file; arguments arrive exactly as given.
write_command() {
  echo '#!/bin/bash'
  printf 'cd %q\n' "$caller"
  printf 'export PATH=%q\n' "/run/keyway-vm/bin:$PATH"
  # What steers tests here steers them there: seeds, cycles, threads, log levels.
  local name
  while read -r name; do printf 'export %s=%q\n' "$name" "${!name}"; done < <(
    compgen -e | grep -E '^(KEYWAY|RUST)_' | grep -vE '^(KEYWAY_VM_|KEYWAY_BINARY|RUSTUP)')
  printf 'export %q\n' KEYWAY_VM_OUT=/run/keyway-vm/out "KEYWAY_RXE=$rxe" HOME=/tmp LANG=C.UTF-8 \
    "TERM=${TERM:-dumb}"
  if [ -n "$shell" ]; then
    printf 'stty -F /dev/ttyS0 sane rows %q columns %q\n' "$(tput lines)" "$(tput cols)"
    printf 'export PS1=%q\n' "rxe-$rxe:\\w# "
    # shellcheck disable=SC2016
    printf '%s\n' 'exec >/dev/ttyS0 2>&1 </dev/ttyS0' \
      'echo "rxe0 10.77.0.1, rxe1 10.77.0.2; loss, resources, bandwidth; exit ends it, ^A x kills it"' \
      'exec setsid -c bash --noprofile --norc -i'
  else
    printf 'exec'
    printf ' %q' "$@"
    echo
  fi
}

exec 9>"$cache/lock"
flock 9
prepare_kernel
prepare_qemu
tsc_khz=$(counter_khz)
[ "$rxe" = stock ] || prepare_fixed_rxe
exec 9>&-

# Becomes one guest. Its status is QEMU's, which is 0 after a panic too.
boot() {
  local host=$1 link=() serial=file:console$1
  [ -z "$shell" ] || serial=mon:stdio
  if [ -n "$host" ]; then
    local peer=a number=2
    [ "$host" = b ] || peer=b number=1
    link=(-netdev "dgram,id=link,local.type=unix,local.path=$host.sock,remote.type=unix,remote.path=$peer.sock"
      -device "virtio-net-pci,netdev=link,mac=52:54:00:77:01:0$number,host_mtu=4500,romfile=")
  fi
  # The guest's /tmp: a disk, since a test's objects may be larger than the guest's memory.
  truncate -s 16G "$work/disk$host"
  mkfs.ext4 -q -F "$work/disk$host"
  # Paths of sockets may not be long.
  cd "$work"
  exec timeout --foreground "$timeout_s" "${emulator[@]}" \
    -nodefaults -display none -no-reboot -M q35 -accel "${KEYWAY_VM_ACCEL:-tcg,thread=multi}" \
    -cpu "${KEYWAY_VM_CPU:-max,$slow_instructions}" -smp 2 -m "${KEYWAY_VM_MEMORY:-4G}" \
    -kernel "$cache/vmlinux" -initrd initramfs.gz \
    -append "console=ttyS0 quiet no_timer_check panic=-1 oops=panic mitigations=off tsc=reliable tsc_early_khz=$tsc_khz KEYWAY_VM_HOST=$host" \
    -fsdev local,id=root,path=/,readonly=on,multidevs=remap,security_model=none \
    -device virtio-9p-pci,fsdev=root,mount_tag=root \
    -fsdev local,id=out,path=out,security_model=none \
    -device virtio-9p-pci,fsdev=out,mount_tag=out \
    -fsdev local,id=modules,path="$cache/root/lib/modules/$release",readonly=on,security_model=none \
    -device virtio-9p-pci,fsdev=modules,mount_tag=modules \
    -drive "file=disk$host,format=raw,if=none,id=disk,cache=unsafe" \
    -device virtio-blk-pci,drive=disk "${link[@]}" -serial "$serial"
}

# Prints what a guest's command wrote, and fails with its exit status.
conclude() {
  local host=$1 qemu=$2
  [ -z "$host" ] || echo "== host $host"
  [ ! -f "$work/out/stdout$host" ] || cat "$work/out/stdout$host"
  if [ ! -s "$work/out/status$host" ]; then
    if [ -f "$work/console$host" ]; then
      tail -n 60 "$work/console$host" >&2
      cp "$work/console$host" "$cache/console-$rxe$host.log"
    fi
    case $qemu in
      0) say "the guest ended by itself, without an exit status: a panic; see $cache/console-$rxe$host.log" ;;
      124) say "the guest did not end within $timeout_s s" ;;
      *) say "QEMU failed with status $qemu" ;;
    esac
    return 70
  fi
  return "$(cat "$work/out/status$host")"
}

work=$(mktemp -d "$cache/run.XXXXXX")
guests=()
# shellcheck disable=SC2317 # The trap calls it.
finish() {
  # Those of an interrupted run; the shell does not pass the signal on.
  kill "${guests[@]}" 2>/dev/null || true
  rm -rf "$work"
}
trap finish EXIT
mkdir -m 1777 "$work/out"
build_initramfs
write_command "$@" >"$work/out/command"
chmod 0755 "$work/out/command"

status=0
if [ -n "$shell" ]; then
  qemu=0
  (boot '') || qemu=$?
  conclude '' "$qemu" || status=$?
else
  for host in "${hosts[@]}"; do
    (boot "$host") &
    guests+=($!)
  done
  for at in "${!hosts[@]}"; do
    qemu=0
    wait "${guests[at]}" || qemu=$?
    conclude "${hosts[at]}" "$qemu" || status=$?
  done
  guests=()
fi
exit "$status"
