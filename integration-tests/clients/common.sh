# What the clients that are programs share: where `GUARDED` is set, the bucket is there, and is kept
# by its policy and its locks.
# shellcheck shell=bash

# make_bucket COMMAND...: makes the bucket, unless it is there.
make_bucket() {
  [ -n "${GUARDED:-}" ] || "$@"
}

# delete_bucket COMMAND...: deletes the bucket, or fails to where it is guarded.
delete_bucket() {
  if [ -z "${GUARDED:-}" ]; then
    "$@"
  elif "$@"; then
    echo "a guarded bucket was deleted"
    exit 1
  fi
}
