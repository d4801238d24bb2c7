"""boto3 with temporary credentials: GetCallerIdentity, GetSessionToken, AssumeRole, and S3 in a role."""

import json
import ssl
import urllib.request

import boto3
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.config import Config
from botocore.credentials import Credentials
from botocore.exceptions import ClientError

from common import CA_FILE, ENDPOINT, SMALL, http, step

BUCKET = "sts-bucket"


def client(service, answer=None):
    """A client of the environment's credentials, or of those in an answer."""
    given = {}
    if answer:
        given = {
            "aws_access_key_id": answer["Credentials"]["AccessKeyId"],
            "aws_secret_access_key": answer["Credentials"]["SecretAccessKey"],
            "aws_session_token": answer["Credentials"]["SessionToken"],
        }
    style = Config(s3={"addressing_style": "path"}, signature_version="s3v4")
    config = style if service == "s3" else None
    return boto3.client(
        service, endpoint_url=ENDPOINT, verify=CA_FILE or None, config=config, **given
    )


def administer(path, document):
    """Makes a thing be as the document says."""
    keys = boto3.Session().get_credentials().get_frozen_credentials()
    request = AWSRequest("PUT", f"{ENDPOINT}/_keyway/v1/admin/{path}", data=json.dumps(document))
    S3SigV4Auth(Credentials(keys.access_key, keys.secret_key), "s3", "us-east-1").add_auth(request)
    context = ssl.create_default_context(cafile=CA_FILE) if CA_FILE else None
    sent = urllib.request.Request(
        request.url, request.data.encode(), dict(request.headers.items()), method="PUT"
    )
    with urllib.request.urlopen(sent, context=context, timeout=60) as response:
        return json.loads(response.read())


def refused(call, code):
    """Fails unless the call is refused with this code."""
    try:
        call()
    except ClientError as error:
        assert error.response["Error"]["Code"] == code, error.response
        return
    raise AssertionError(f"not refused with {code}")


def policy(action, resource):
    statement = {"Effect": "Allow", "Action": action, "Resource": resource}
    return json.dumps({"Version": "2012-10-17", "Statement": [statement]})


def main():
    body = SMALL.read_bytes()
    s3, sts = client("s3"), client("sts")
    s3.create_bucket(Bucket=BUCKET)
    s3.put_object(Bucket=BUCKET, Key="open/a", Body=body)
    s3.put_object(Bucket=BUCKET, Key="shut/a", Body=body)
    who = sts.get_caller_identity()
    assert who["Account"] == "000000000000" and who["Arn"].endswith(":root"), who
    step("caller identity")

    session = sts.get_session_token(DurationSeconds=900)
    own = client("s3", session)
    assert own.get_object(Bucket=BUCKET, Key="open/a")["Body"].read() == body
    url = own.generate_presigned_url("get_object", {"Bucket": BUCKET, "Key": "open/a"})
    assert http("GET", url) == (200, body)
    step("session token, presigned")

    administer("tenants/self/policies/read", {"document": policy("s3:GetObject", "*")})
    administer("tenants/self/users/anna", {})
    key = administer("tenants/self/keys/KEYOFANNA", {"user": "anna"})
    trust = {
        "Version": "2012-10-17",
        "Statement": {
            "Effect": "Allow",
            "Principal": {"AWS": "arn:aws:iam::000000000000:user/anna"},
            "Action": "sts:AssumeRole",
            "Condition": {"StringEquals": {"sts:ExternalId": "project-7"}},
        },
    }
    role = administer("tenants/self/roles/reader", {"trust": json.dumps(trust), "policies": ["read"]})
    anna = boto3.client(
        "sts",
        endpoint_url=ENDPOINT,
        verify=CA_FILE or None,
        aws_access_key_id=key["id"],
        aws_secret_access_key=key["secret"],
    )
    asked = {"RoleArn": role["arn"], "RoleSessionName": "job", "ExternalId": "project-7"}
    reader = client("s3", anna.assume_role(**asked))
    assert reader.get_object(Bucket=BUCKET, Key="shut/a")["Body"].read() == body
    refused(lambda: reader.put_object(Bucket=BUCKET, Key="b", Body=b"x"), "AccessDenied")
    narrow = policy("s3:GetObject", f"arn:aws:s3:::{BUCKET}/open/*")
    answer = anna.assume_role(Policy=narrow, DurationSeconds=1800, **asked)
    assert answer["AssumedRoleUser"]["Arn"].endswith(":assumed-role/reader/job"), answer
    narrowed = client("s3", answer)
    assert narrowed.get_object(Bucket=BUCKET, Key="open/a")["Body"].read() == body
    refused(lambda: narrowed.get_object(Bucket=BUCKET, Key="shut/a"), "AccessDenied")
    arn = client("sts", answer).get_caller_identity()["Arn"]
    assert arn == answer["AssumedRoleUser"]["Arn"], arn
    step("role, session policy")

    other = dict(asked, ExternalId="project-8")
    refused(lambda: anna.assume_role(**other), "AccessDenied")
    refused(lambda: sts.assume_role(**asked), "AccessDenied")
    refused(lambda: anna.assume_role(DurationSeconds=7200, **asked), "ValidationError")
    mixed = {"Credentials": dict(session["Credentials"], SessionToken="AAAA")}
    refused(lambda: client("s3", mixed).list_buckets(), "InvalidToken")
    step("refusals")


main()
