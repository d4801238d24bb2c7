"""What the Python clients share: where the server is, and what to store there."""

import hashlib
import os
import pathlib
import ssl
import urllib.error
import urllib.request

ENDPOINT = os.environ["ENDPOINT"]
CA_FILE = os.environ.get("CA_FILE", "")
WORK = pathlib.Path(os.environ["WORK"])
SMALL = pathlib.Path(os.environ["SMALL"])
LARGE = pathlib.Path(os.environ["LARGE"])


def digest(path):
    """SHA-256 of a file, without reading it into memory at once."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def same(first, second):
    """Fails when two files differ."""
    assert digest(first) == digest(second), f"{first} and {second} differ"


def http(method, url, body=None):
    """A plain HTTP request, as a browser with a presigned URL would send it."""
    context = ssl.create_default_context(cafile=CA_FILE) if CA_FILE else None
    kind = {"Content-Type": "application/octet-stream"} if body else {}
    request = urllib.request.Request(url, data=body, method=method, headers=kind)
    try:
        with urllib.request.urlopen(request, context=context, timeout=60) as response:
            return response.status, response.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def step(name):
    """Says what has been shown."""
    print(f"ok: {name}", flush=True)
