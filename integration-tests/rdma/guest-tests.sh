#!/bin/bash
# Inside the guest: runs each test executable of a folder as an ordinary user, then sees that the
# kernel has nothing left of them and nothing to complain about.
#
#   guest-tests.sh FOLDER SECONDS [LIBTEST-ARG ...]
#
# KEYWAY_RDMA_ELSEWHERE names those that run on the other module. FOLDER holds `deps/*`, the tests, and beside `deps` the programs that they start, as cargo lays
# them out. All of them together have SECONDS. The last line counts this script's own checks.
set -u
[ -e /run/keyway-vm/guest ] || {
  echo "guest-tests.sh: this is not the guest that machine.sh boots" >&2
  exit 2
}
folder=$1 seconds=$2
shift 2
passed=0 failed=0 broken=0

check() {
  local name=$1
  shift
  if "$@"; then
    echo "machine: $name ... ok"
    passed=$((passed + 1))
  else
    echo "machine: $name ... FAILED"
    failed=$((failed + 1))
  fi
}

# The folder may lie where only its owner gets: the tests see it at a path of the guest.
tests=/run/keyway-vm/tests
mkdir -p $tests
mount --bind "$folder" $tests
user=$(stat -c %u $tests)
[ "$user" != 0 ] || user=65534

# Pinned memory is limited for an ordinary user; what the tests pin, the guest has.
ulimit -l unlimited
unprivileged() {
  setpriv --reuid="$user" --regid="$user" --clear-groups -- "$@"
}

# What a test left running must not disturb the next, and should not be.
none_left() { ! pkill -KILL -u "$user"; }

# What the kernel said since the last call, and whether a bug of its is in there.
kernel_is_content() {
  local said
  said=$(dmesg --read-clear)
  echo "$said" >>"$KEYWAY_VM_OUT/dmesg"
  ! grep --after-context=25 -E 'WARNING:|BUG:|Oops|refcount_t|blocked for more than|soft lockup' \
    <<<"$said"
}

unload() {
  local device
  for device in /sys/class/infiniband/rxe?; do rdma link delete "${device##*/}" || return; done
  modprobe -r rdma_ucm && rmmod rdma_rxe
}

dmesg --read-clear >"$KEYWAY_VM_OUT/dmesg"
check "an ordinary user sends from rxe0 to rxe1" unprivileged ping-pong

export KEYWAY_BINARY=$tests/keyway RUST_TEST_THREADS=${RUST_TEST_THREADS:-1} RUST_BACKTRACE=1
cd /tmp || exit
for executable in "$tests"/deps/*; do
  [ -x "$executable" ] || continue
  name=$(basename "$executable")
  case " ${KEYWAY_RDMA_ELSEWHERE:-} " in *" $name "*) continue ;; esac
  echo "running $name on $KEYWAY_RXE rxe"
  left=$((seconds - SECONDS))
  unprivileged timeout --kill-after=5 $((left > 1 ? left : 1)) "$executable" "$@" || {
    echo "machine: $name: exit status $?"
    broken=1
  }
  check "$name: no process is left" none_left
  loss off
  check "$name: the kernel holds nothing more" resources idle
  check "$name: the kernel does not complain" kernel_is_content
done

# What leaked shows when the module goes.
check "the module can be unloaded" unload
check "the kernel does not complain of it" kernel_is_content
echo "machine: $passed passed, $failed failed"
[ $((failed + broken)) = 0 ]
