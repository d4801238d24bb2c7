#!/usr/bin/env bash
# The AWS command line with its defaults.
set -euo pipefail
source "$(dirname "$0")/common.sh"
bucket=awscli-bucket
export AWS_DEFAULT_REGION=us-east-1 AWS_EC2_METADATA_DISABLED=true AWS_PAGER=""
export AWS_CONFIG_FILE="$WORK/aws-config" AWS_SHARED_CREDENTIALS_FILE="$WORK/none"
printf '[default]\ns3 =\n  signature_version = s3v4\n  addressing_style = path\n' >"$AWS_CONFIG_FILE"
[ -n "$CA_FILE" ] && export AWS_CA_BUNDLE="$CA_FILE"
aws=("$AWS" --endpoint-url "$ENDPOINT")

make_bucket "${aws[@]}" s3 mb "s3://$bucket"
"${aws[@]}" s3 cp --quiet "$SMALL" "s3://$bucket/dir/small"
"${aws[@]}" s3 cp --quiet "s3://$bucket/dir/small" "$WORK/small"
cmp "$SMALL" "$WORK/small"
echo "ok: put, get"

"${aws[@]}" s3 cp --quiet "$LARGE" "s3://$bucket/large"
"${aws[@]}" s3 cp --quiet "s3://$bucket/large" "$WORK/large"
cmp "$LARGE" "$WORK/large"
echo "ok: multipart"

"${aws[@]}" s3 cp --quiet - "s3://$bucket/from-pipe" <"$SMALL"
"${aws[@]}" s3 cp --quiet "s3://$bucket/from-pipe" - | cmp - "$SMALL"
echo "ok: pipe"

listed=$("${aws[@]}" s3 ls --recursive "s3://$bucket" | awk '{print $4}' | paste -sd,)
[ "$listed" = dir/small,from-pipe,large ] || { echo "listed: $listed"; exit 1; }
echo "ok: list"

url=$("${aws[@]}" s3 presign "s3://$bucket/dir/small")
curl --silent --show-error --fail ${CA_FILE:+--cacert "$CA_FILE"} "$url" | cmp - "$SMALL"
echo "ok: presigned"

"${aws[@]}" s3 sync --quiet "s3://$bucket/dir" "$WORK/synced"
cmp "$SMALL" "$WORK/synced/small"
"${aws[@]}" s3 rm --quiet --recursive "s3://$bucket"
delete_bucket "${aws[@]}" s3 rb "s3://$bucket"
echo "ok: sync, delete"
