#!/usr/bin/env bash
# rclone: compares a single-part ETag with the MD5 of the bytes.
set -euo pipefail
source "$(dirname "$0")/common.sh"
bucket=rclone-bucket
export RCLONE_CONFIG=/dev/null
export RCLONE_CONFIG_K_TYPE=s3 RCLONE_CONFIG_K_PROVIDER=Other RCLONE_CONFIG_K_REGION=us-east-1
export RCLONE_CONFIG_K_ENDPOINT="$ENDPOINT" RCLONE_CONFIG_K_ENV_AUTH=true
export RCLONE_S3_CHUNK_SIZE=16M RCLONE_S3_UPLOAD_CUTOFF=32M RCLONE_RETRIES=1
[ -n "$CA_FILE" ] && export RCLONE_CA_CERT="$CA_FILE"

make_bucket "$RCLONE" mkdir "k:$bucket"
"$RCLONE" copyto "$SMALL" "k:$bucket/dir/small"
"$RCLONE" cat "k:$bucket/dir/small" | cmp - "$SMALL"
echo "ok: put, get"

"$RCLONE" copyto "$LARGE" "k:$bucket/large"
"$RCLONE" copyto "k:$bucket/large" "$WORK/large"
cmp "$LARGE" "$WORK/large"
echo "ok: multipart"

listed=$("$RCLONE" lsf --recursive --files-only "k:$bucket" | sort | paste -sd,)
[ "$listed" = dir/small,large ] || { echo "listed: $listed"; exit 1; }
sum=$("$RCLONE" md5sum "k:$bucket/dir/small" | awk '{print $1}')
[ "$sum" = "$(md5sum <"$SMALL" | awk '{print $1}')" ]
echo "ok: list, md5"

url=$("$RCLONE" link --expire 60s "k:$bucket/dir/small")
curl --silent --show-error --fail ${CA_FILE:+--cacert "$CA_FILE"} "$url" | cmp - "$SMALL"
echo "ok: presigned"

"$RCLONE" copyto "k:$bucket/dir/small" "k:$bucket/copy"
"$RCLONE" delete "k:$bucket"
[ -z "$("$RCLONE" lsf --recursive --files-only "k:$bucket")" ]
delete_bucket "$RCLONE" rmdir "k:$bucket"
echo "ok: copy, delete"
