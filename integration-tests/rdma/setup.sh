#!/bin/bash
# Inside the guest: a disk at /tmp, and two soft-RoCE devices, rxe0 and rxe1, at the ends of a
# veth pair that packets really cross (so that `tc netem` can lose them): 10.77.0.1 on kwa,
# 10.77.0.2 on kwb; beside them a second rail, rxe2 and rxe3: 10.77.2.1 on kwc, 10.77.2.2 on kwd.
# A guest that is one of two has rxe0 on kwl, the link to the other: 10.77.1.1 is host a, 10.77.1.2
# host b.
set -eu
vm=/run/keyway-vm

# It rewrites the routing of the whole machine, which is right in the guest alone. Its init
# leaves this file.
[ -e $vm/guest ] || {
  echo "setup.sh: this is not the guest that machine.sh boots" >&2
  exit 2
}

export PATH=$PATH:/usr/sbin:/sbin
modprobe -a virtio_blk ext4 veth sch_netem sch_ingress cls_u32 act_gact ib_uverbs rdma_ucm
if [ -e $vm/rdma_rxe.ko ]; then
  modprobe -a udp_tunnel ip6_udp_tunnel
  insmod $vm/rdma_rxe.ko
else
  modprobe rdma_rxe
fi

# The disk hides what the host has at /tmp, where a checkout may lie: it stays in sight.
repository=$(cat $vm/repository)
case $repository in
  /tmp/*)
    mkdir $vm/checkout
    mount --bind "$repository" $vm/checkout
    ;;
esac
mount /dev/vda /tmp
rmdir /tmp/lost+found
chmod 1777 /tmp
if [ -d $vm/checkout ]; then
  mkdir -p "$repository"
  mount --bind $vm/checkout "$repository"
fi

# pair A B SUBNET TABLE RXE-A RXE-B: two interfaces that send to each other, with an adapter each.
pair() {
  local a=$1 b=$2 subnet=$3 table=$4
  ip link add "$a" mtu 4500 type veth peer name "$b" mtu 4500
  ip addr add "$subnet.1/24" dev "$a"
  ip addr add "$subnet.2/24" dev "$b"
  ip link set "$a" up
  ip link set "$b" up
  # Each has one queue, which one processor serves. By itself the pair hands a packet to whichever
  # processor sent it, and a queue pair's packets overtake each other: no link of a fabric does so,
  # and with every gap that a responder sees it has the requester begin anew.
  echo 1 >"/sys/class/net/$a/queues/rx-0/rps_cpus"
  echo 2 >"/sys/class/net/$b/queues/rx-0/rps_cpus"
  local interface
  for interface in all "$a" "$b"; do
    echo 1 >/proc/sys/net/ipv4/conf/"$interface"/accept_local
    echo 0 >/proc/sys/net/ipv4/conf/"$interface"/rp_filter
  done

  # Both addresses are this host's own, so the table `local` would short-circuit them. Packets
  # made here (iif lo) are sent to the other end first; arriving ones still find `local`.
  ip rule add pref $((table - 90)) iif lo to "$subnet.2" lookup "$table"
  ip rule add pref $((table - 89)) iif lo to "$subnet.1" lookup $((table + 1))
  ip route add "$subnet.2/32" dev "$a" src "$subnet.1" table "$table"
  ip route add "$subnet.1/32" dev "$b" src "$subnet.2" table $((table + 1))

  rdma link add "$5" type rxe netdev "$a"
  rdma link add "$6" type rxe netdev "$b"
  devices="${devices:-} $5 $6"
}

pairs() {
  ip rule add pref 1000 lookup local
  ip rule del pref 0
  pair kwa kwb 10.77.0 100 rxe0 rxe1
  pair kwc kwd 10.77.2 102 rxe2 rxe3
}

link() {
  modprobe virtio_net
  local nic
  nic=$(basename /sys/bus/virtio/drivers/virtio_net/virtio*/net/*)
  ip link set "$nic" name kwl mtu 4500
  ip addr add "10.77.1.$1/24" dev kwl
  ip link set kwl up
  rdma link add rxe0 type rxe netdev kwl
  devices=rxe0
}

ip link set lo up
case ${KEYWAY_VM_HOST:-} in
  '') pairs ;;
  a) link 1 ;;
  b) link 2 ;;
esac

# The IPv4-mapped GID appears a moment after the device.
mapped='0000:0000:0000:0000:0000:ffff:0a4d'
for device in $devices; do
  for _ in $(seq 100); do
    case $(cat "/sys/class/infiniband/$device/ports/1/gids/1" 2>/dev/null) in
      "$mapped"*) continue 2 ;;
    esac
    read -rt 0.1 <> <(:) || :
  done
  echo "$device has no IPv4-mapped GID" >&2
  exit 1
done

# Tests run as an ordinary user and lose packets on purpose: this copy may, for whoever runs it.
install -m 4755 "$(command -v tc)" $vm/bin/tc
$vm/bin/resources >$vm/idle
