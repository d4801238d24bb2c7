"""Signs schemathesis' requests with AWS Signature Version 4, as every client does."""

import hashlib
import os

import schemathesis
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from requests.auth import AuthBase


class Signature(AuthBase):
    def __init__(self) -> None:
        key = Credentials(os.environ["AWS_ACCESS_KEY_ID"], os.environ["AWS_SECRET_ACCESS_KEY"])
        self.signer = SigV4Auth(key, "s3", "us-east-1")

    def __call__(self, request):
        body = request.body or b""
        body = body.encode() if isinstance(body, str) else body
        digest = hashlib.sha256(body).hexdigest()
        signed = AWSRequest(request.method, request.url, {"X-Amz-Content-Sha256": digest}, body)
        self.signer.add_auth(signed)
        request.headers.update(dict(signed.headers.items()))
        return request


schemathesis.auth.set_from_requests(Signature())
