"""pyarrow's own S3 filesystem, on the AWS SDK for C++."""

import os

from pyarrow import fs

from common import CA_FILE, ENDPOINT, LARGE, SMALL, WORK, delete_bucket, make_bucket, same, step

BUCKET = "pyarrow-bucket"


def main():
    scheme, authority = ENDPOINT.split("://")
    options = {"tls_ca_file_path": CA_FILE} if CA_FILE else {}
    s3 = fs.S3FileSystem(
        access_key=os.environ["AWS_ACCESS_KEY_ID"],
        secret_key=os.environ["AWS_SECRET_ACCESS_KEY"],
        region="us-east-1",
        scheme=scheme,
        endpoint_override=authority,
        allow_bucket_creation=True,
        allow_bucket_deletion=True,
        **options,
    )
    make_bucket(lambda: s3.create_dir(BUCKET))

    body = SMALL.read_bytes()
    with s3.open_output_stream(f"{BUCKET}/dir/small") as stream:
        stream.write(body)
    with s3.open_input_file(f"{BUCKET}/dir/small") as file:
        assert file.read() == body
        assert file.read_at(90, 10) == body[10:100]
    step("put, get, range")

    with open(LARGE, "rb") as source, s3.open_output_stream(f"{BUCKET}/large") as target:
        while piece := source.read(8 << 20):
            target.write(piece)
    with s3.open_input_stream(f"{BUCKET}/large") as source, open(WORK / "large", "wb") as target:
        while piece := source.read(8 << 20):
            target.write(piece)
    same(LARGE, WORK / "large")
    step("multipart")

    infos = s3.get_file_info(fs.FileSelector(BUCKET, recursive=True))
    found = {info.path: info.size for info in infos if info.is_file}
    assert found == {
        f"{BUCKET}/dir/small": len(body),
        f"{BUCKET}/large": LARGE.stat().st_size,
    }, found
    step("list")

    s3.copy_file(f"{BUCKET}/dir/small", f"{BUCKET}/copy")
    s3.delete_file(f"{BUCKET}/large")
    assert s3.get_file_info(f"{BUCKET}/large").type == fs.FileType.NotFound
    delete_bucket(lambda: s3.delete_dir(BUCKET))
    step("copy, delete")


main()
