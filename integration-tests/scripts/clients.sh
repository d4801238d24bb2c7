#!/usr/bin/env bash
# Installs the S3 clients, and the broker of events, that the tests run, where they are missing. One that cannot be
# installed is no failure here: its test says that it was skipped.
source "$(dirname "$0")/lib.sh"

clients=integration-tests/clients

# A virtual environment, again when its requirements have changed.
python_environment() {
  local dir=$1 requirements=$2
  cmp -s "$requirements" "$dir/requirements.txt" && return 0
  say "installing $requirements"
  python3 -m venv "$dir" && "$dir/bin/pip" install --quiet --disable-pip-version-check \
    --requirement "$requirements" && cp "$requirements" "$dir/requirements.txt"
}

s5cmd() {
  [ -x "$tools/bin/s5cmd" ] && return 0
  apt_install go=golang-go || return 1
  say "building s5cmd"
  (cd "$clients/s5cmd" && GOFLAGS=-mod=readonly go build -o "$tools/bin/s5cmd" github.com/peak/s5cmd/v2)
}

apt_install curl=curl rclone=rclone s3cmd=s3cmd || say "rclone and s3cmd: not installed"
apt_install nats-server=nats-server || say "nats-server: not installed"
# The venv module is there only with its bundled pip.
python3 -c 'import ensurepip' 2>/dev/null || apt_install no-venv=python3-venv || true
python_environment target/venv "$clients/requirements.txt" || say "boto3, awscli, pyarrow: not installed"
python_environment target/venv-s3fs "$clients/requirements-s3fs.txt" || say "s3fs: not installed"
python_environment target/venv-schema "$clients/requirements-schema.txt" || say "schemathesis: not installed"
python_environment target/venv-keyway client-sdk/python/tests/requirements.txt ||
  say "pytest, for the Python package: not installed"
s5cmd || say "s5cmd: not installed"
