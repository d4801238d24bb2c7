#!/usr/bin/env bash
# s5cmd, on the AWS SDK for Go.
set -euo pipefail
source "$(dirname "$0")/common.sh"
bucket=s5cmd-bucket
export AWS_REGION=us-east-1 S3_ENDPOINT_URL="$ENDPOINT"
[ -n "$CA_FILE" ] && export SSL_CERT_FILE="$CA_FILE"

make_bucket "$S5CMD" mb "s3://$bucket"
"$S5CMD" cp "$SMALL" "s3://$bucket/dir/small"
"$S5CMD" cat "s3://$bucket/dir/small" | cmp - "$SMALL"
echo "ok: put, get"

"$S5CMD" cp --part-size 16 "$LARGE" "s3://$bucket/large"
"$S5CMD" cp --part-size 16 "s3://$bucket/large" "$WORK/large"
cmp "$LARGE" "$WORK/large"
echo "ok: multipart"

listed=$("$S5CMD" ls "s3://$bucket/*" | awk '{print $NF}' | sort | paste -sd,)
[ "$listed" = dir/small,large ] || { echo "listed: $listed"; exit 1; }
echo "ok: list"

url=$("$S5CMD" presign "s3://$bucket/dir/small")
curl --silent --show-error --fail ${CA_FILE:+--cacert "$CA_FILE"} "$url" | cmp - "$SMALL"
echo "ok: presigned"

"$S5CMD" cp "s3://$bucket/dir/small" "s3://$bucket/copy"
"$S5CMD" rm "s3://$bucket/*"
[ -z "$("$S5CMD" ls "s3://$bucket/*" 2>/dev/null)" ]
delete_bucket "$S5CMD" rb "s3://$bucket"
echo "ok: copy, delete"
