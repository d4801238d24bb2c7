#!/bin/bash
# Inside the guest, as any user: lets the guest's links lose packets: both ways between two devices,
# what this host sends where it is one of two.
#
#   loss on [PERCENT [INTERFACE...]]   1 % where nothing is said, on all of them; 100 cuts a link
#   loss off
set -eu
tc=/run/keyway-vm/bin/tc

interfaces=("${@:3}")
[ ${#interfaces[@]} -gt 0 ] || interfaces=(/sys/class/net/kw?)
for interface in "${interfaces[@]}"; do
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
      echo "loss on [PERCENT [INTERFACE...]] | off" >&2
      exit 2
      ;;
  esac
done
