"""boto3 with its defaults: CRC32 on every upload, as a trailer over TLS."""

import boto3
from boto3.s3.transfer import TransferConfig
from botocore.config import Config
from botocore.exceptions import ClientError

from common import (
    CA_FILE,
    ENDPOINT,
    LARGE,
    SMALL,
    WORK,
    delete_bucket,
    http,
    make_bucket,
    same,
    step,
)

BUCKET = "boto3-bucket"


def client(**config):
    style = {"addressing_style": "path"}
    return boto3.client(
        "s3", endpoint_url=ENDPOINT, verify=CA_FILE or None, config=Config(s3=style, **config)
    )


def main():
    s3 = client()
    make_bucket(lambda: s3.create_bucket(Bucket=BUCKET))
    s3.head_bucket(Bucket=BUCKET)

    body = SMALL.read_bytes()
    s3.put_object(Bucket=BUCKET, Key="small", Body=body, Metadata={"owner": "me"})
    answer = s3.get_object(Bucket=BUCKET, Key="small")
    assert answer["Body"].read() == body
    assert answer["Metadata"] == {"owner": "me"}
    step("put, get, metadata")

    for algorithm in ["CRC32", "CRC32C", "CRC64NVME", "SHA1", "SHA256"]:
        try:
            s3.put_object(Bucket=BUCKET, Key=algorithm, Body=body, ChecksumAlgorithm=algorithm)
        except ImportError as missing:
            print(f"skipped: {algorithm}: {missing}")
            continue
        except Exception as error:
            # CRC32C and CRC64NVME need botocore's optional native library.
            if type(error).__name__ != "MissingDependencyException":
                raise
            print(f"skipped: {algorithm}: {error}")
            continue
        head = s3.head_object(Bucket=BUCKET, Key=algorithm, ChecksumMode="ENABLED")
        assert head.get(f"Checksum{algorithm}"), head
        s3.delete_object(Bucket=BUCKET, Key=algorithm)
    step("checksums")

    with open(SMALL, "rb") as stream:
        s3.put_object(Bucket=BUCKET, Key="stream", Body=stream)
    ranged = s3.get_object(Bucket=BUCKET, Key="stream", Range="bytes=10-99")
    assert ranged["Body"].read() == body[10:100]
    step("stream, range")

    transfer = TransferConfig(multipart_threshold=8 << 20, multipart_chunksize=16 << 20)
    s3.upload_file(str(LARGE), BUCKET, "large", Config=transfer)
    s3.download_file(BUCKET, "large", str(WORK / "large"), Config=transfer)
    same(LARGE, WORK / "large")
    step("multipart")

    for number in range(7):
        s3.put_object(Bucket=BUCKET, Key=f"list/{number}/x", Body=b"")
    pages = s3.get_paginator("list_objects_v2").paginate(
        Bucket=BUCKET, Prefix="list/", Delimiter="/", PaginationConfig={"PageSize": 3}
    )
    groups = [group["Prefix"] for page in pages for group in page.get("CommonPrefixes", [])]
    assert groups == [f"list/{number}/" for number in range(7)], groups
    step("list")

    signer = client(signature_version="s3v4")
    url = signer.generate_presigned_url("get_object", {"Bucket": BUCKET, "Key": "small"})
    assert http("GET", url) == (200, body)
    url = signer.generate_presigned_url("put_object", {"Bucket": BUCKET, "Key": "presigned"})
    assert http("PUT", url, b"by url")[0] == 200
    assert s3.get_object(Bucket=BUCKET, Key="presigned")["Body"].read() == b"by url"
    old = client(signature_version="s3").generate_presigned_url(
        "get_object", {"Bucket": BUCKET, "Key": "small"}
    )
    status, answer = http("GET", old)
    assert status == 400 and b"AWS4-HMAC-SHA256" in answer, (status, answer[:200])
    step("presigned")

    try:
        s3.put_object(Bucket=BUCKET, Key="small", Body=b"x", IfNoneMatch="*")
        raise AssertionError("a conditional write overwrote")
    except ClientError as error:
        assert error.response["Error"]["Code"] == "PreconditionFailed"
    s3.copy_object(Bucket=BUCKET, Key="copy", CopySource={"Bucket": BUCKET, "Key": "small"})
    assert s3.get_object(Bucket=BUCKET, Key="copy")["Body"].read() == body
    step("conditional write, copy")

    keys = [entry["Key"] for entry in s3.list_objects(Bucket=BUCKET)["Contents"]]
    gone = s3.delete_objects(Bucket=BUCKET, Delete={"Objects": [{"Key": key} for key in keys]})
    assert "Errors" not in gone, gone
    assert s3.list_objects_v2(Bucket=BUCKET)["KeyCount"] == 0
    delete_bucket(lambda: s3.delete_bucket(Bucket=BUCKET))
    step("delete")


main()
