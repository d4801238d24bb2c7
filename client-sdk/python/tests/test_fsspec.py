"""Goal: objects are files for fsspec and what is built on it."""

import os

import pytest

fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed")


@pytest.fixture
def files(server, client):
    from keyway.fsspec import KeywayFileSystem

    return KeywayFileSystem(endpoint=server.url, **server.keys, skip_instance_cache=True)


def test_a_tree(files, prefix, tmp_path):
    base = prefix.removeprefix("s3://") + "t"
    files.pipe({f"{base}/a/1": b"one", f"{base}/a/b/2": b"two", f"{base}/3": b"three" * 1000})
    assert files.ls(base, detail=False) == [f"{base}/3", f"{base}/a"]
    assert files.find(base) == [f"{base}/3", f"{base}/a/1", f"{base}/a/b/2"]
    assert files.glob(base + "/**/2") == [f"{base}/a/b/2"]
    assert files.isdir(base) and files.isdir(base + "/a") and files.isfile(base + "/3")
    assert files.info(base + "/3")["size"] == 5000 and not files.exists(base + "/4")
    assert (
        files.cat_file(base + "/3", 5, 10) == b"three"
        and files.cat_file(base + "/a/1", -2) == b"ne"
    )
    with pytest.raises(FileNotFoundError):
        files.cat_file(base + "/4")
    with pytest.raises(FileNotFoundError):
        files.ls(base + "/4")
    parts = files.cat_ranges([base + "/3", base + "/a/1", base + "/no"], [0, 1, 0], [5, 3, 1])
    assert parts[:2] == [b"three", b"ne"] and isinstance(parts[2], FileNotFoundError)
    files.get(base, str(tmp_path), recursive=True)
    found = [os.path.join(where, name) for where, _, names in os.walk(tmp_path) for name in names]
    assert len(found) == 3
    files.put(str(tmp_path), base + "-copy/", recursive=True)
    assert len(files.find(base + "-copy")) == 3
    files.cp(base + "/a", base + "-a", recursive=True)
    assert len(files.find(base + "-a")) == 2
    files.rm(base, recursive=True)
    assert not files.exists(base) and files.modified(base + "-a/1").year > 2000


def test_files(files, prefix):
    path = prefix.removeprefix("s3://")
    data = os.urandom(9 << 20)
    with files.open(path + "k", "wb") as file:
        for at in range(0, len(data), 1 << 20):
            file.write(data[at : at + (1 << 20)])
        assert not files.exists(path + "k")
    with files.open(path + "k", "rb", block_size=1 << 20) as file:
        assert file.read(10) == data[:10]
        file.seek(5_000_000)
        assert file.read(3 << 20) == data[5_000_000 : 5_000_000 + (3 << 20)]
        file.seek(0)
        assert file.read() == data
    with pytest.raises(RuntimeError), files.open(path + "broken", "wb") as file:
        file.write(b"half")
        raise RuntimeError
    assert not files.exists(path + "broken")
    with files.open(path + "text", "w") as file:
        file.write("line\n" * 3)
    with files.open(path + "text") as file:
        assert len(file.readlines()) == 3


def test_the_protocol_is_registered(server, client, prefix):
    from importlib.metadata import entry_points

    if not any(one.name == "keyway" for one in entry_points(group="fsspec.specs")):
        fsspec.register_implementation("keyway", "keyway.fsspec.KeywayFileSystem")
    client.put(prefix + "k", b"hello")
    url = prefix.replace("s3://", "keyway://") + "k"
    with fsspec.open(url, endpoint=server.url, **server.keys) as file:
        assert file.read() == b"hello"
