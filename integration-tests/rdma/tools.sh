#!/usr/bin/env bash
# Installs what the soft-RoCE machine needs where it is missing. Where it cannot be had, says why
# in one line on standard output and fails.
source "$(dirname "$0")/../scripts/lib.sh"
PATH=$PATH:/usr/sbin:/sbin

cannot() {
  echo "$1"
  exit 1
}

[ "$(uname -sm)" = "Linux x86_64" ] || cannot "it is for Linux on x86-64"
if ! have apt-get || ! have dpkg-deb; then cannot "its kernel comes by apt, which is not here"; fi
apt_install qemu-system-x86_64=qemu-system-x86 busybox=busybox-static cpio=cpio \
  modprobe=kmod xz=xz-utils mkfs.ext4=e2fsprogs setpriv=util-linux tc=iproute2 rdma=iproute2 \
  ss=iproute2 pkill=procps python3=python3 strip=binutils ibv_rc_pingpong=ibverbs-utils \
  ib_write_bw=perftest rping=rdmacm-utils || cannot "apt cannot install it, see target/apt.log"

[ ! -s target/rdma/release ] || exit 0
kernel_known() { apt-cache show linux-image-amd64 >/dev/null 2>&1; }
kernel_known || apt_update || cannot "apt cannot be updated, see target/apt.log"
kernel_known || cannot "apt knows no kernel of Debian (linux-image-amd64)"
