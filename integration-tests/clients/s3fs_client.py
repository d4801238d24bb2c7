"""s3fs, the filesystem that dask and pandas use, on aiobotocore."""

import s3fs

from common import (
    CA_FILE,
    ENDPOINT,
    GUARDED,
    LARGE,
    SMALL,
    WORK,
    delete_bucket,
    http,
    make_bucket,
    same,
    step,
)

BUCKET = "s3fs-bucket"


def main():
    s3 = s3fs.S3FileSystem(
        endpoint_url=ENDPOINT,
        client_kwargs={"verify": CA_FILE or None},
        config_kwargs={"signature_version": "s3v4", "s3": {"addressing_style": "path"}},
    )
    make_bucket(lambda: s3.mkdir(BUCKET))

    body = SMALL.read_bytes()
    s3.pipe_file(f"{BUCKET}/dir/small", body)
    assert s3.cat_file(f"{BUCKET}/dir/small") == body
    assert s3.cat_file(f"{BUCKET}/dir/small", start=10, end=100) == body[10:100]
    step("put, get, range")

    s3.put_file(str(LARGE), f"{BUCKET}/large")
    s3.get_file(f"{BUCKET}/large", str(WORK / "large"))
    same(LARGE, WORK / "large")
    step("multipart")

    s3.invalidate_cache()
    assert sorted(s3.find(BUCKET)) == [f"{BUCKET}/dir/small", f"{BUCKET}/large"]
    assert s3.ls(f"{BUCKET}/dir") == [f"{BUCKET}/dir/small"]
    step("list")

    assert http("GET", s3.sign(f"{BUCKET}/dir/small")) == (200, body)
    step("presigned")

    s3.rm([f"{BUCKET}/dir/small", f"{BUCKET}/large"])
    delete_bucket(lambda: s3.rmdir(BUCKET))
    s3.invalidate_cache()
    assert s3.exists(BUCKET) == GUARDED
    step("delete")


main()
