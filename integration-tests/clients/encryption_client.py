"""boto3 on encrypted objects: under keys of the server's, and over TLS under its own.

The same key must open what it has closed, however that was written; no other key may.
"""

import base64
import hashlib
import os
import ssl
import urllib.request

import boto3
from boto3.s3.transfer import TransferConfig
from botocore.config import Config
from botocore.exceptions import ClientError

from common import CA_FILE, ENDPOINT, LARGE, SMALL, WORK, same, step

BUCKET = "encryption-bucket"
TRANSFER = TransferConfig(multipart_threshold=8 << 20, multipart_chunksize=16 << 20)


def customer(key):
    return {"SSECustomerAlgorithm": "AES256", "SSECustomerKey": key}


def source(key):
    return {"CopySourceSSECustomerAlgorithm": "AES256", "CopySourceSSECustomerKey": key}


def encoded(arguments):
    """As botocore sends a key: it does so itself for most calls, and not for all."""
    key = arguments["SSECustomerKey"]
    digest = base64.b64encode(hashlib.md5(key).digest()).decode()
    text = base64.b64encode(key).decode()
    return {**arguments, "SSECustomerKey": text, "SSECustomerKeyMD5": digest}


OWN, OTHER = customer(os.urandom(32)), customer(os.urandom(32))
OF_OWN = source(OWN["SSECustomerKey"])


def refused(code, call, **arguments):
    """Fails unless the call is refused with this code."""
    try:
        call(Bucket=BUCKET, **arguments)
    except ClientError as error:
        found = error.response["Error"]["Code"]
        assert found == code, (found, code)
        return
    raise AssertionError(f"not refused with {code}")


def service(s3, body):
    answer = s3.put_object(Bucket=BUCKET, Key="k", Body=body, ServerSideEncryption="AES256")
    assert answer["ServerSideEncryption"] == "AES256", answer
    answer = s3.get_object(Bucket=BUCKET, Key="k", Range="bytes=65000-70000")
    assert answer["ServerSideEncryption"] == "AES256", answer
    assert answer["Body"].read() == body[65000:70001]
    kms = {"ServerSideEncryption": "aws:kms", "SSEKMSKeyId": "a-key"}
    refused("NotImplemented", s3.put_object, Key="kms", Body=body, **kms)
    rule = {"ApplyServerSideEncryptionByDefault": {"SSEAlgorithm": "AES256"}}
    s3.put_bucket_encryption(Bucket=BUCKET, ServerSideEncryptionConfiguration={"Rules": [rule]})
    told = s3.get_bucket_encryption(Bucket=BUCKET)["ServerSideEncryptionConfiguration"]
    assert told["Rules"][0]["ApplyServerSideEncryptionByDefault"]["SSEAlgorithm"] == "AES256"
    s3.upload_file(str(LARGE), BUCKET, "large", Config=TRANSFER)
    assert s3.head_object(Bucket=BUCKET, Key="large")["ServerSideEncryption"] == "AES256"
    s3.download_file(BUCKET, "large", str(WORK / "large"), Config=TRANSFER)
    same(LARGE, WORK / "large")
    s3.delete_bucket_encryption(Bucket=BUCKET)
    assert "ServerSideEncryption" not in s3.put_object(Bucket=BUCKET, Key="plain", Body=body)
    step("keys of the server's")


def form(s3, body):
    fields = {"x-amz-server-side-encryption": "AES256"}
    signer = client(signature_version="s3v4")
    made = signer.generate_presigned_post(BUCKET, "form", Fields=fields, Conditions=[fields])
    mark = "a-boundary-that-is-nowhere-else"
    parts = [
        f'--{mark}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'
        for name, value in made["fields"].items()
    ]
    head = f'--{mark}\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n\r\n'
    data = "".join(parts).encode() + head.encode() + body + f"\r\n--{mark}--\r\n".encode()
    kind = {"Content-Type": f"multipart/form-data; boundary={mark}"}
    request = urllib.request.Request(made["url"], data=data, method="POST", headers=kind)
    context = ssl.create_default_context(cafile=CA_FILE) if CA_FILE else None
    with urllib.request.urlopen(request, context=context, timeout=60) as response:
        assert response.status == 204, response.status
    answer = s3.get_object(Bucket=BUCKET, Key="form")
    assert answer["ServerSideEncryption"] == "AES256" and answer["Body"].read() == body
    step("a form")


def own(s3, body):
    answer = s3.put_object(Bucket=BUCKET, Key="own", Body=body, Metadata={"a": "b"}, **OWN)
    assert answer["SSECustomerAlgorithm"] == "AES256" and answer["SSECustomerKeyMD5"], answer
    answer = s3.get_object(Bucket=BUCKET, Key="own", **OWN)
    assert answer["Body"].read() == body and answer["Metadata"] == {"a": "b"}
    answer = s3.get_object(Bucket=BUCKET, Key="own", Range="bytes=65519-65521", **OWN)
    assert answer["Body"].read() == body[65519:65522]
    assert s3.head_object(Bucket=BUCKET, Key="own", **OWN)["ContentLength"] == len(body)
    attributes = s3.get_object_attributes(
        Bucket=BUCKET, Key="own", ObjectAttributes=["ObjectSize"], **encoded(OWN)
    )
    assert attributes["ObjectSize"] == len(body)
    refused("InvalidRequest", s3.get_object, Key="own")
    refused("AccessDenied", s3.get_object, Key="own", **OTHER)
    refused("InvalidRequest", s3.get_object, Key="plain", **OWN)
    step("a key of one's own")

    s3.upload_file(str(LARGE), BUCKET, "own-large", Config=TRANSFER, ExtraArgs=OWN)
    s3.download_file(BUCKET, "own-large", str(WORK / "own"), Config=TRANSFER, ExtraArgs=OWN)
    same(LARGE, WORK / "own")
    upload = s3.create_multipart_upload(Bucket=BUCKET, Key="parts", **OWN)["UploadId"]
    part = {"Key": "parts", "UploadId": upload, "PartNumber": 1, "Body": body}
    refused("InvalidRequest", s3.upload_part, **part)
    refused("InvalidRequest", s3.upload_part, **part, **OTHER)
    s3.abort_multipart_upload(Bucket=BUCKET, Key="parts", UploadId=upload)
    step("parts")

    place = {"Bucket": BUCKET, "Key": "own"}
    s3.copy_object(Bucket=BUCKET, Key="copy", CopySource=place, **OF_OWN, **OTHER)
    assert s3.get_object(Bucket=BUCKET, Key="copy", **OTHER)["Body"].read() == body
    s3.copy_object(Bucket=BUCKET, Key="copy", CopySource=place, **OF_OWN)
    answer = s3.get_object(Bucket=BUCKET, Key="copy")
    assert answer["ServerSideEncryption"] == "AES256" and answer["Body"].read() == body
    refused("InvalidRequest", s3.copy_object, Key="copy", CopySource=place)
    place = {"Bucket": BUCKET, "Key": "own-large"}
    s3.copy(place, BUCKET, "copy-large", ExtraArgs={**OF_OWN, **OTHER}, Config=TRANSFER)
    s3.download_file(BUCKET, "copy-large", str(WORK / "copy"), Config=TRANSFER, ExtraArgs=OTHER)
    same(LARGE, WORK / "copy")
    step("copies")


def client(**config):
    style = {"addressing_style": "path"}
    return boto3.client(
        "s3", endpoint_url=ENDPOINT, verify=CA_FILE or None, config=Config(s3=style, **config)
    )


def main():
    s3, body = client(), SMALL.read_bytes()
    s3.create_bucket(Bucket=BUCKET)
    service(s3, body)
    form(s3, body)
    if CA_FILE:
        own(s3, body)
    else:
        refused("InvalidRequest", s3.put_object, Key="own", Body=body, **OWN)
        refused("InvalidRequest", s3.get_object, Key="plain", **OWN)
        step("no key of one's own over plaintext")


main()
