"""boto3 on what buckets can be told: versions, tags, locks, CORS, lifecycle rules; and forms.

A day of lifecycle rules is a second here.
"""

import datetime
import ssl
import time
import urllib.error
import urllib.request

import boto3
from botocore.config import Config
from botocore.exceptions import ClientError

from common import CA_FILE, ENDPOINT, step

BUCKET = "breadth-bucket"
LOCKED = "breadth-locked"


def client(**config):
    style = {"addressing_style": "path"}
    return boto3.client(
        "s3", endpoint_url=ENDPOINT, verify=CA_FILE or None, config=Config(s3=style, **config)
    )


def refused(code, call, **arguments):
    """Fails unless the call is refused with this code."""
    try:
        call(**arguments)
    except ClientError as error:
        found = error.response["Error"]["Code"]
        assert found == code, (found, code)
        return error.response
    raise AssertionError(f"not refused with {code}: {arguments}")


def keep(s3, status):
    s3.put_bucket_versioning(Bucket=BUCKET, VersioningConfiguration={"Status": status})


def put(s3, body, key="k"):
    return s3.put_object(Bucket=BUCKET, Key=key, Body=body).get("VersionId")


def read(s3, key="k", **version):
    return s3.get_object(Bucket=BUCKET, Key=key, **version)["Body"].read()


def versions(s3):
    assert put(s3, b"null") is None
    assert "Status" not in s3.get_bucket_versioning(Bucket=BUCKET)
    keep(s3, "Enabled")
    first, second = put(s3, b"first"), put(s3, b"second")
    assert [read(s3, VersionId=v) for v in ("null", first, second)] == [
        b"null",
        b"first",
        b"second",
    ]
    marker = s3.delete_object(Bucket=BUCKET, Key="k")
    assert marker["DeleteMarker"] is True
    refused("NoSuchKey", s3.get_object, Bucket=BUCKET, Key="k")
    refused("405", s3.head_object, Bucket=BUCKET, Key="k", VersionId=marker["VersionId"])
    refused("NoSuchVersion", s3.get_object, Bucket=BUCKET, Key="k", VersionId="0" * 32)
    source = {"Bucket": BUCKET, "Key": "k", "VersionId": first}
    copied = s3.copy_object(Bucket=BUCKET, Key="k", CopySource=source)
    assert copied["CopySourceVersionId"] == first
    assert read(s3) == b"first"
    keep(s3, "Suspended")
    assert put(s3, b"replaces null") == "null"
    assert read(s3, VersionId="null") == b"replaces null"
    keep(s3, "Enabled")
    refused("PreconditionFailed", s3.delete_object, Bucket=BUCKET, Key="k", IfMatch='"x"')
    step("versions")

    for number in range(5):
        put(s3, b"x", f"dir/{number}")
        put(s3, b"y", f"dir/{number}")
    pages = s3.get_paginator("list_object_versions").paginate(
        Bucket=BUCKET, PaginationConfig={"PageSize": 3}
    )
    found = [
        (entry["Key"], entry["VersionId"], entry["IsLatest"])
        for page in pages
        for entry in page.get("Versions", []) + page.get("DeleteMarkers", [])
    ]
    assert len(found) == len(set(found)) == 15, found
    assert sum(latest for _, _, latest in found) == 6, found
    groups = s3.list_object_versions(Bucket=BUCKET, Delimiter="/")["CommonPrefixes"]
    assert [group["Prefix"] for group in groups] == ["dir/"]
    refused("BucketNotEmpty", s3.delete_bucket, Bucket=BUCKET)
    step("list versions")


def tags(s3):
    s3.put_object(Bucket=BUCKET, Key="tagged", Body=b"x", Tagging="a=1&b=2")
    found = s3.get_object_tagging(Bucket=BUCKET, Key="tagged")["TagSet"]
    assert found == [{"Key": "a", "Value": "1"}, {"Key": "b", "Value": "2"}], found
    assert s3.get_object(Bucket=BUCKET, Key="tagged")["TagCount"] == 2
    replaced = {"TagSet": [{"Key": "c", "Value": "é"}]}
    s3.put_object_tagging(Bucket=BUCKET, Key="tagged", Tagging=replaced)
    assert s3.get_object_tagging(Bucket=BUCKET, Key="tagged")["TagSet"] == replaced["TagSet"]
    s3.delete_object_tagging(Bucket=BUCKET, Key="tagged")
    assert s3.get_object_tagging(Bucket=BUCKET, Key="tagged")["TagSet"] == []
    refused("NoSuchTagSet", s3.get_bucket_tagging, Bucket=BUCKET)
    s3.put_bucket_tagging(Bucket=BUCKET, Tagging=replaced)
    assert s3.get_bucket_tagging(Bucket=BUCKET)["TagSet"] == replaced["TagSet"]
    s3.delete_bucket_tagging(Bucket=BUCKET)
    told = s3.get_object_attributes(
        Bucket=BUCKET, Key="tagged", ObjectAttributes=["ETag", "ObjectSize", "Checksum"]
    )
    assert told["ObjectSize"] == 1 and told["Checksum"], told
    step("tags, attributes")


def cors(s3):
    refused("NoSuchCORSConfiguration", s3.get_bucket_cors, Bucket=BUCKET)
    rule = {
        "AllowedOrigins": ["https://*.example"],
        "AllowedMethods": ["GET", "PUT"],
        "AllowedHeaders": ["*"],
        "ExposeHeaders": ["ETag"],
        "MaxAgeSeconds": 30,
    }
    s3.put_bucket_cors(Bucket=BUCKET, CORSConfiguration={"CORSRules": [rule]})
    assert s3.get_bucket_cors(Bucket=BUCKET)["CORSRules"] == [rule]
    signer = client(signature_version="s3v4")
    url = signer.generate_presigned_url("get_object", {"Bucket": BUCKET, "Key": "tagged"})
    asked = {"Origin": "https://a.example", "Access-Control-Request-Method": "GET"}
    request = urllib.request.Request(url, method="OPTIONS", headers=asked)
    context = ssl.create_default_context(cafile=CA_FILE) if CA_FILE else None
    with urllib.request.urlopen(request, context=context, timeout=60) as response:
        assert response.headers["Access-Control-Allow-Origin"] == "https://a.example"
    s3.delete_bucket_cors(Bucket=BUCKET)
    step("CORS")


def locks(s3):
    s3.create_bucket(Bucket=LOCKED, ObjectLockEnabledForBucket=True)
    until = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(hours=1)
    version = s3.put_object(
        Bucket=LOCKED,
        Key="k",
        Body=b"x",
        ObjectLockMode="GOVERNANCE",
        ObjectLockRetainUntilDate=until,
    )["VersionId"]
    one = {"Bucket": LOCKED, "Key": "k", "VersionId": version}
    assert s3.get_object_retention(**one)["Retention"]["Mode"] == "GOVERNANCE"
    refused("AccessDenied", s3.delete_object, **one)
    s3.put_object_legal_hold(**one, LegalHold={"Status": "ON"})
    refused("AccessDenied", s3.delete_object, **one, BypassGovernanceRetention=True)
    s3.put_object_legal_hold(**one, LegalHold={"Status": "OFF"})
    s3.delete_object(**one, BypassGovernanceRetention=True)
    default = {"DefaultRetention": {"Mode": "GOVERNANCE", "Days": 1}}
    s3.put_object_lock_configuration(
        Bucket=LOCKED,
        ObjectLockConfiguration={"ObjectLockEnabled": "Enabled", "Rule": default},
    )
    told = s3.get_object_lock_configuration(Bucket=LOCKED)["ObjectLockConfiguration"]
    assert told["Rule"] == default, told
    version = s3.put_object(Bucket=LOCKED, Key="d", Body=b"x")["VersionId"]
    head = s3.head_object(Bucket=LOCKED, Key="d")
    assert head["ObjectLockMode"] == "GOVERNANCE", head
    s3.delete_object(Bucket=LOCKED, Key="d", VersionId=version, BypassGovernanceRetention=True)
    s3.delete_bucket(Bucket=LOCKED)
    step("object lock")


def lifecycle(s3):
    rules = [
        {
            "ID": "old",
            "Status": "Enabled",
            "Filter": {"And": {"Prefix": "dir/", "ObjectSizeLessThan": 2}},
            "Expiration": {"Days": 1},
            "NoncurrentVersionExpiration": {"NoncurrentDays": 1},
        },
        {
            "ID": "uploads",
            "Status": "Enabled",
            "Filter": {"Prefix": ""},
            "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": 1},
            "Expiration": {"ExpiredObjectDeleteMarker": True},
        },
    ]
    s3.create_multipart_upload(Bucket=BUCKET, Key="never")
    s3.put_bucket_lifecycle_configuration(Bucket=BUCKET, LifecycleConfiguration={"Rules": rules})
    told = s3.get_bucket_lifecycle_configuration(Bucket=BUCKET)["Rules"]
    assert told == rules, told
    # Two days at most until objects go, two more until what their markers hide, then the markers.
    deadline = time.monotonic() + 60
    while True:
        page = s3.list_object_versions(Bucket=BUCKET, Prefix="dir/")
        uploads = s3.list_multipart_uploads(Bucket=BUCKET).get("Uploads", [])
        left = page.get("Versions", []) + page.get("DeleteMarkers", []) + uploads
        if not left:
            break
        assert time.monotonic() < deadline, left
        time.sleep(0.2)
    assert read(s3, "tagged") == b"x"
    s3.delete_bucket_lifecycle(Bucket=BUCKET)
    refused("NoSuchLifecycleConfiguration", s3.get_bucket_lifecycle_configuration, Bucket=BUCKET)
    step("lifecycle")


def forms(s3):
    """Signed forms, sent as a browser would send them."""
    conditions = [["content-length-range", 1, 1000], {"x-amz-meta-who": "anna"}]
    conditions.append(["starts-with", "$Content-Type", "text/"])
    fields = {"x-amz-meta-who": "anna", "success_action_status": "201"}
    post = client(signature_version="s3v4").generate_presigned_post(
        BUCKET,
        "forms/${filename}",
        Fields=fields,
        Conditions=[*conditions, {"success_action_status": "201"}],
    )

    def sent(file, **more):
        boundary = "----form-of-a-browser"
        body = b""
        for name, value in {**post["fields"], "Content-Type": "text/plain", **more}.items():
            head = f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n'
            body += f"{head}{value}\r\n".encode()
        head = 'Content-Disposition: form-data; name="file"; filename="a.txt"'
        body += f"--{boundary}\r\n{head}\r\n\r\n".encode() + file + b"\r\n"
        body += f"--{boundary}--\r\n".encode()
        kind = {"Content-Type": f"multipart/form-data; boundary={boundary}"}
        request = urllib.request.Request(post["url"], data=body, method="POST", headers=kind)
        context = ssl.create_default_context(cafile=CA_FILE) if CA_FILE else None
        try:
            with urllib.request.urlopen(request, context=context, timeout=60) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    status, said = sent(b"uploaded")
    assert status == 201 and "<Key>forms/a.txt</Key>" in said, (status, said)
    found = s3.get_object(Bucket=BUCKET, Key="forms/a.txt")
    assert found["Body"].read() == b"uploaded"
    assert found["Metadata"] == {"who": "anna"} and found["ContentType"] == "text/plain"
    for code, (status, said) in {
        "EntityTooLarge": sent(b"x" * 1001),
        "EntityTooSmall": sent(b""),
        "AccessDenied": sent(b"x", acl="private"),
        "SignatureDoesNotMatch": sent(b"x", **{"x-amz-signature": "0" * 64}),
    }.items():
        assert status >= 400 and f"<Code>{code}</Code>" in said, (code, status, said)
    status, said = sent(b"x", **{"Content-Type": "image/png"})
    assert status == 403 and "Invalid according to Policy" in said, (status, said)
    step("forms")


def nothing_configured(s3):
    refused(
        "ServerSideEncryptionConfigurationNotFoundError", s3.get_bucket_encryption, Bucket=BUCKET
    )
    refused("ReplicationConfigurationNotFoundError", s3.get_bucket_replication, Bucket=BUCKET)
    refused("NoSuchWebsiteConfiguration", s3.get_bucket_website, Bucket=BUCKET)
    assert s3.get_bucket_request_payment(Bucket=BUCKET)["Payer"] == "BucketOwner"
    assert "Status" not in s3.get_bucket_accelerate_configuration(Bucket=BUCKET)
    assert "LoggingEnabled" not in s3.get_bucket_logging(Bucket=BUCKET)
    assert "TopicConfigurations" not in s3.get_bucket_notification_configuration(Bucket=BUCKET)
    step("what is not configured")


def main():
    s3 = client()
    s3.create_bucket(Bucket=BUCKET)
    versions(s3)
    tags(s3)
    cors(s3)
    locks(s3)
    lifecycle(s3)
    forms(s3)
    nothing_configured(s3)
    page = s3.list_object_versions(Bucket=BUCKET)
    left = [
        {"Key": entry["Key"], "VersionId": entry["VersionId"]}
        for entry in page.get("Versions", []) + page.get("DeleteMarkers", [])
    ]
    gone = s3.delete_objects(Bucket=BUCKET, Delete={"Objects": left})
    assert "Errors" not in gone, gone
    s3.delete_bucket(Bucket=BUCKET)
    step("delete versions")


main()
