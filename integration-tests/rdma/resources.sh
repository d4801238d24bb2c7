#!/bin/bash
# Inside the guest, as any user: what the kernel holds for each RDMA device, and for whom.
#
#   resources               a line per device: PDs, CQs, QPs, connection ids, MRs, contexts
#   resources counters      the devices' packet counters, by name
#   resources idle [SEC [resolver]]
#                           succeeds once the first equals what it was when the guest started,
#                           within SEC (10); else says what is left, by process, and fails. A
#                           resolver of paths may have a context: librdmacm keeps one open
#
# The kernel does not count memory windows. It frees a process's windows with its context, and
# unloading the module complains about any that is left: guest-tests.sh does that last.
set -eu
idle=/run/keyway-vm/idle

kept=
[ "${3:-}" != resolver ] || kept='s/ ctx 1 / ctx 0 /'
counts() { rdma resource show | sed "s/^[0-9]*: //; $kept"; }

case ${1:-} in
  '') counts ;;
  counters) rdma statistic show ;;
  idle)
    deadline=$((SECONDS + ${2:-10}))
    until [ "$(counts)" = "$(cat $idle)" ]; do
      if [ $SECONDS -ge $deadline ]; then
        echo "still held, beyond what was when the guest started:" >&2
        diff $idle <(counts) >&2
        rdma resource show qp >&2
        rdma resource show mr >&2
        exit 1
      fi
      # An update comes within tens of milliseconds; there is no event to wait for.
      read -rt 0.05 <> <(:) || :
    done
    ;;
  *)
    echo "resources [counters | idle [SECONDS]]" >&2
    exit 2
    ;;
esac
