"""boto3 with temporary credentials: GetCallerIdentity, GetSessionToken, AssumeRole, S3 in a role,
and roles for web identities."""

import json
import os
import pathlib
import shutil
import ssl
import tempfile
import urllib.request

import boto3
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.config import Config
from botocore.credentials import Credentials
from botocore.exceptions import ClientError

from common import CA_FILE, ENDPOINT, SMALL, http, step
from issuer import Issuer

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
    role = administer(
        "tenants/self/roles/reader", {"trust": json.dumps(trust), "policies": ["read"]}
    )
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

    if shutil.which("openssl"):
        web_identity(body)
        step("web identity")


def web_identity(body):
    """A role by the word of an issuer: with the call, and as SDKs do it by themselves."""
    issuer = Issuer()
    settings = {"issuer": issuer.url, "audiences": ["keyway"]}
    provider = administer("tenants/self/providers/hub", settings)
    trust = {
        "Version": "2012-10-17",
        "Statement": {
            "Effect": "Allow",
            "Principal": {"Federated": provider["arn"]},
            "Action": "sts:AssumeRoleWithWebIdentity",
            "Condition": {"StringLike": {f"{issuer.name}:sub": "project:*"}},
        },
    }
    role = administer("tenants/self/roles/web", {"trust": json.dumps(trust), "policies": ["read"]})
    nobody = boto3.client(
        "sts",
        endpoint_url=ENDPOINT,
        verify=CA_FILE or None,
        aws_access_key_id="",
        aws_secret_access_key="",
    )

    def ask(token):
        return nobody.assume_role_with_web_identity(
            RoleArn=role["arn"], RoleSessionName="job", WebIdentityToken=token
        )

    answer = ask(issuer.token("project:train"))
    assert answer["SubjectFromWebIdentityToken"] == "project:train", answer
    assert answer["Audience"] == "keyway" and answer["Provider"] == issuer.url, answer
    reader = client("s3", answer)
    assert reader.get_object(Bucket=BUCKET, Key="open/a")["Body"].read() == body
    refused(lambda: reader.put_object(Bucket=BUCKET, Key="b", Body=b"x"), "AccessDenied")
    refused(lambda: ask(issuer.token("other:train")), "AccessDenied")
    refused(lambda: ask(issuer.token("project:train", audience="other")), "InvalidIdentityToken")
    refused(lambda: ask(issuer.token("project:train", lives=-120)), "ExpiredTokenException")

    # With a file and three variables, and no call of the program's own.
    with tempfile.TemporaryDirectory() as folder:
        token = pathlib.Path(folder) / "token"
        token.write_text(issuer.token("project:train"), encoding="ascii")
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
            os.environ.pop(name, None)
        os.environ["AWS_WEB_IDENTITY_TOKEN_FILE"] = str(token)
        os.environ["AWS_ROLE_ARN"] = role["arn"]
        os.environ["AWS_ENDPOINT_URL_STS"] = ENDPOINT
        if CA_FILE:
            os.environ["AWS_CA_BUNDLE"] = CA_FILE
        boto3.setup_default_session()
        reader = client("s3")
        assert reader.get_object(Bucket=BUCKET, Key="open/a")["Body"].read() == body
        method = boto3.Session().get_credentials().method
        assert method == "assume-role-with-web-identity", method


main()
