"""boto3 as tools of declared infrastructure use it: what is wanted is put, read back and compared,
again and again, and nothing changes the second time."""

import json

import boto3
from botocore.config import Config
from botocore.exceptions import ClientError

from common import CA_FILE, ENDPOINT, step

BUCKET = "declared"
POLICY = {
    "Version": "2012-10-17",
    "Statement": [
        {
            "Sid": "OverTlsAlone",
            "Effect": "Deny",
            "Principal": "*",
            "Action": "s3:DeleteObject",
            "Resource": [f"arn:aws:s3:::{BUCKET}/*"],
            "Condition": {"Bool": {"aws:SecureTransport": "false"}},
        }
    ],
}
RULES = [
    {
        "ID": "logs",
        "Status": "Enabled",
        "Filter": {"Prefix": "logs/"},
        "Expiration": {"Days": 400},
        "NoncurrentVersionExpiration": {"NoncurrentDays": 400},
        "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": 400},
    }
]
BLOCK = {
    "BlockPublicAcls": True,
    "IgnorePublicAcls": True,
    "BlockPublicPolicy": True,
    "RestrictPublicBuckets": True,
}
LOCK = {
    "ObjectLockEnabled": "Enabled",
    "Rule": {"DefaultRetention": {"Mode": "GOVERNANCE", "Days": 1}},
}
CORS = [{"AllowedMethods": ["GET"], "AllowedOrigins": ["https://app.example"]}]
TAGS = [{"Key": "owner", "Value": "vision"}]


def client():
    config = Config(s3={"addressing_style": "path"})
    return boto3.client("s3", endpoint_url=ENDPOINT, verify=CA_FILE or None, config=config)


def apply(s3):
    """Makes the bucket be as declared."""
    try:
        s3.create_bucket(Bucket=BUCKET, ObjectLockEnabledForBucket=True)
    except ClientError as error:
        assert error.response["Error"]["Code"] == "BucketAlreadyOwnedByYou", error
    s3.put_bucket_versioning(Bucket=BUCKET, VersioningConfiguration={"Status": "Enabled"})
    s3.put_object_lock_configuration(Bucket=BUCKET, ObjectLockConfiguration=LOCK)
    s3.put_public_access_block(Bucket=BUCKET, PublicAccessBlockConfiguration=BLOCK)
    s3.put_bucket_ownership_controls(
        Bucket=BUCKET,
        OwnershipControls={"Rules": [{"ObjectOwnership": "BucketOwnerEnforced"}]},
    )
    s3.put_bucket_policy(Bucket=BUCKET, Policy=json.dumps(POLICY))
    s3.put_bucket_lifecycle_configuration(Bucket=BUCKET, LifecycleConfiguration={"Rules": RULES})
    s3.put_bucket_cors(Bucket=BUCKET, CORSConfiguration={"CORSRules": CORS})
    s3.put_bucket_tagging(Bucket=BUCKET, Tagging={"TagSet": TAGS})
    s3.put_bucket_notification_configuration(Bucket=BUCKET, NotificationConfiguration={})


def absent(call, code):
    """Nothing of the kind is there, and that is said by this code."""
    try:
        call(Bucket=BUCKET)
    except ClientError as error:
        assert error.response["Error"]["Code"] == code, error
        return
    raise AssertionError(f"not {code}")


def plan(s3):
    """What differs from what is declared: nothing."""
    assert s3.get_bucket_versioning(Bucket=BUCKET)["Status"] == "Enabled"
    lock = s3.get_object_lock_configuration(Bucket=BUCKET)["ObjectLockConfiguration"]
    assert lock == LOCK, lock
    block = s3.get_public_access_block(Bucket=BUCKET)["PublicAccessBlockConfiguration"]
    assert block == BLOCK, block
    owner = s3.get_bucket_ownership_controls(Bucket=BUCKET)["OwnershipControls"]["Rules"]
    assert owner == [{"ObjectOwnership": "BucketOwnerEnforced"}], owner
    policy = json.loads(s3.get_bucket_policy(Bucket=BUCKET)["Policy"])
    assert policy == POLICY, policy
    assert s3.get_bucket_policy_status(Bucket=BUCKET)["PolicyStatus"]["IsPublic"] is False
    rules = s3.get_bucket_lifecycle_configuration(Bucket=BUCKET)["Rules"]
    assert rules == RULES, rules
    cors = s3.get_bucket_cors(Bucket=BUCKET)["CORSRules"]
    assert cors == CORS, cors
    tags = s3.get_bucket_tagging(Bucket=BUCKET)["TagSet"]
    assert tags == TAGS, tags
    told = s3.get_bucket_notification_configuration(Bucket=BUCKET)
    assert not any(name.endswith("Configurations") for name in told), told
    # What such tools ask for of every bucket, wanted or not.
    s3.get_bucket_acl(Bucket=BUCKET)
    s3.get_bucket_location(Bucket=BUCKET)
    assert s3.get_bucket_request_payment(Bucket=BUCKET)["Payer"] == "BucketOwner"
    assert "LoggingEnabled" not in s3.get_bucket_logging(Bucket=BUCKET)
    assert s3.get_bucket_accelerate_configuration(Bucket=BUCKET).get("Status") is None
    absent(s3.get_bucket_website, "NoSuchWebsiteConfiguration")
    absent(s3.get_bucket_replication, "ReplicationConfigurationNotFoundError")


def destroy(s3):
    """Takes away what is in the bucket, by who may, and the bucket."""
    s3.delete_bucket_policy(Bucket=BUCKET)
    pages = s3.get_paginator("list_object_versions").paginate(Bucket=BUCKET)
    for page in pages:
        for entry in page.get("Versions", []) + page.get("DeleteMarkers", []):
            s3.delete_object(
                Bucket=BUCKET,
                Key=entry["Key"],
                VersionId=entry["VersionId"],
                BypassGovernanceRetention=True,
            )
    s3.delete_bucket(Bucket=BUCKET)


def main():
    s3 = client()
    apply(s3)
    plan(s3)
    step("apply, plan")

    put = s3.put_object(Bucket=BUCKET, Key="kept", Body=b"first")
    s3.put_object(Bucket=BUCKET, Key="kept", Body=b"second")
    try:
        s3.delete_object(Bucket=BUCKET, Key="kept", VersionId=put["VersionId"])
        raise AssertionError("a locked version was deleted")
    except ClientError as error:
        assert error.response["Error"]["Code"] == "AccessDenied", error
    step("locked")

    for _ in range(2):
        apply(s3)
        plan(s3)
    first = s3.get_object(Bucket=BUCKET, Key="kept", VersionId=put["VersionId"])
    assert first["Body"].read() == b"first"
    step("apply again: nothing changed")

    destroy(s3)
    apply(s3)
    plan(s3)
    destroy(s3)
    step("destroy, apply, destroy")


main()
