#!/bin/bash
# Inside the guest, as any user: lets the guest's link lose packets: both ways between rxe0 and
# rxe1, what this host sends where it is one of two.
#
#   loss on [PERCENT]   1 % where nothing is said
#   loss off
set -eu
tc=/run/keyway-vm/bin/tc

for interface in /sys/class/net/kw?; do
  interface=${interface##*/}
  case ${1:-} in
    on) $tc qdisc replace dev "$interface" root netem loss "${2:-1}%" limit 10000 ;;
    off)
      # There is nothing to delete where nothing was lost.
      case $($tc qdisc show dev "$interface") in
        *netem*) $tc qdisc del dev "$interface" root ;;
      esac
      ;;
    *)
      echo "loss on [PERCENT] | off" >&2
      exit 2
      ;;
  esac
done
