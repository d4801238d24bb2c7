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
# Whether the bucket is there, and kept by its policy and its locks: nobody can delete it.
GUARDED = bool(os.environ.get("GUARDED"))


def make_bucket(make):
    """Makes the bucket, unless it is there."""
    if not GUARDED:
        make()


def delete_bucket(delete):
    """Deletes the bucket, or fails to where it is guarded."""
    if not GUARDED:
        delete()
        return
    try:
        delete()
    except Exception as error:  # Each client has its own.
        print(f"refused, as it must be: {type(error).__name__}")
        return
    raise AssertionError("a guarded bucket was deleted")


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
