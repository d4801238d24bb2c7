"""Goal: every operation works with every kind of memory, says what it did, and refuses clearly.

Method: a real server; bytes are compared with what was written by other means.
"""

import array
import ctypes
import pickle
import signal
import socket
import threading
import time

import keyway
import numpy
import pytest

SIZES = [0, 1, 4096, 1_000_003, (40 << 20) + 3]


def noise(size, seed=1):
    return numpy.random.default_rng(seed).integers(0, 256, size, dtype=numpy.uint8)


@pytest.mark.parametrize("size", SIZES)
def test_around(client, prefix, size):
    data = noise(size)
    put = client.put(prefix + "k", data)
    assert (put.bytes, put.path, put.strength, put.retries) == (size, "http", "http", 0)
    assert put.verified and put.checksum.startswith("CRC64NVME:"), put
    target = numpy.zeros(size + 5, dtype=numpy.uint8)
    got = client.get_into(prefix + "k", target)
    assert (target[:size] == data).all() and not target[size:].any()
    assert got.bytes == got.object_bytes == size and got.etag == put.etag
    assert got.verified and got.checksum == put.checksum and got.unverified is None
    assert isinstance(got.fallbacks, dict) and "by http" in repr(got)
    own = client.get(prefix + "k")
    assert len(own) == size and bytes(own) == data.tobytes() and own.result.verified


@pytest.mark.parametrize(
    "make",
    [
        lambda n: bytearray(n),
        lambda n: memoryview(bytearray(n)),
        lambda n: array.array("b", bytes(n)),
        lambda n: (ctypes.c_char * n)(),
        lambda n: numpy.zeros(n // 4, dtype=numpy.float32),
        lambda n: numpy.zeros((n // 8, 2), dtype=numpy.int32),
        keyway.Buffer.allocate,
        lambda n: keyway.Buffer(bytearray(n)),
    ],
)
def test_memory_of_all_kinds(client, prefix, make):
    data = noise(4096).tobytes()
    client.put(prefix + "k", data)
    target = make(4096)
    assert client.get_into(prefix + "k", target).bytes == 4096
    assert bytes(memoryview(target).cast("B")) == data


def test_ranges(client, prefix):
    data = noise(3 << 20)
    client.put(prefix + "k", data)
    target = numpy.zeros(300, dtype=numpy.uint8)
    one = client.get_into(prefix + "k", target, range=(1000, 100))
    assert (target[:100] == data[1000:1100]).all()
    assert (one.bytes, one.object_bytes, one.verified) == (100, len(data), False)
    assert "range" in one.unverified
    several = client.get_into(prefix + "k", target, ranges=[(5, 100), (2_000_000, 150), (0, 50)])
    expected = numpy.concatenate([data[5:105], data[2_000_000:2_000_150], data[:50]])
    assert (target == expected).all() and several.bytes == 300
    parts = [(offset, bytearray(7)) for offset in range(0, 7000, 70)]
    results = client.get_ranges(prefix + "k", parts)
    assert len(results) == 100
    assert all(bytes(part) == data[at : at + 7].tobytes() for at, part in parts)
    assert bytes(client.get(prefix + "k", range=(17, 3))) == data[17:20].tobytes()
    with pytest.raises(keyway.InvalidArgument, match="two ways"):
        client.get_into(prefix + "k", target, ranges=[(0, 1)], range=(0, 1))
    with pytest.raises(keyway.BufferTooSmall):
        client.get_into(prefix + "k", target, ranges=[(0, 200), (300, 200)])
    with pytest.raises(keyway.OutOfRange):
        client.get_into(prefix + "k", target, range=(len(data) + 5, 10))


def test_a_buffer_shows_its_bytes_without_a_copy(client, prefix):
    data = noise(1 << 20)
    client.put(prefix + "k", data)
    got = client.get(prefix + "k")
    assert (got.device, got.nbytes, got.readonly) == ("cpu", 1 << 20, False)
    view = numpy.frombuffer(got, dtype=numpy.uint8)
    tensor = numpy.from_dlpack(got)
    assert view.ctypes.data == tensor.ctypes.data
    assert (tensor == data).all()
    part = got[100:200]
    assert numpy.frombuffer(part, numpy.uint8).ctypes.data == view.ctypes.data + 100
    assert not hasattr(got, "__cuda_array_interface__")
    client.put(prefix + "part", got[64:128])
    del got, part, view
    assert (tensor == data).all(), "the tensor keeps the memory"
    assert bytes(client.get(prefix + "part")) == data[64:128].tobytes()
    with pytest.raises(IndexError):
        keyway.Buffer.allocate(4)[::2]


def test_memory_that_does_not_do_is_refused(client, prefix):
    client.put(prefix + "k", b"12345678")
    with pytest.raises(BufferError, match="read-only"):
        client.get_into(prefix + "k", bytes(8))
    with pytest.raises(BufferError, match="read-only"):
        client.get_into(prefix + "k", keyway.Buffer(b"87654321"))
    frozen = numpy.zeros(8, dtype=numpy.uint8)
    frozen.flags.writeable = False
    with pytest.raises(BufferError, match="read-only"):
        client.get_into(prefix + "k", frozen)
    client.put(prefix + "frozen", frozen)
    with pytest.raises(BufferError, match="contiguous"):
        client.get_into(prefix + "k", numpy.zeros(16, dtype=numpy.uint8)[::2])
    with pytest.raises(TypeError, match="int shows no memory"):
        client.get_into(prefix + "k", 5)
    with pytest.raises(keyway.BufferTooSmall, match="8 bytes; the target holds 7"):
        client.get_into(prefix + "k", bytearray(7))
    with pytest.raises(keyway.NoGpu):
        client.get(prefix + "k", device="cuda:63")
    with pytest.raises(keyway.InvalidArgument, match="no device"):
        client.get(prefix + "k", device="tpu:0")
    buffer = keyway.Buffer.allocate(8)
    with pytest.raises(keyway.BufferBusy):
        client.get_ranges(prefix + "k", [(0, buffer), (0, buffer)])
    client.get_into(prefix + "k", buffer)


def test_objects(client, prefix):
    put = client.put(
        prefix + "a/1", b"one", content_type="text/plain", metadata={"who": "me"}, if_absent=True
    )
    info = client.head(prefix + "a/1")
    assert (info.size, info.etag, info.content_type) == (3, put.etag, "text/plain")
    assert info.metadata == {"who": "me"} and abs(info.modified - time.time()) < 3600
    assert put.checksum.split(":")[1] in info.checksums.values()
    with pytest.raises(keyway.PreconditionFailed):
        client.put(prefix + "a/1", b"two", if_absent=True)
    client.put(prefix + "a/1", b"two", if_match=put.etag)
    with pytest.raises(keyway.PreconditionFailed):
        client.get(prefix + "a/1", if_match=put.etag)
    client.copy(prefix + "a/1", prefix + "a/2")
    client.put(prefix + "b", b"")
    listed = list(client.list(prefix, page_keys=1))
    assert [e.key.removeprefix(prefix.split("/", 3)[3]) for e in listed] == ["a/1", "a/2", "b"]
    assert [e.size for e in listed] == [3, 3, 0] and not any(e.is_prefix for e in listed)
    top = list(client.list(prefix, delimiter="/"))
    assert [(e.key.rsplit("/", 2)[-1], e.is_prefix) for e in top] == [("b", False), ("", True)]
    assert client.exists(prefix + "b") and not client.exists(prefix + "c")
    client.delete(prefix + "b")
    bucket, _ = client.split(prefix)
    assert client.delete_many(bucket, [e.key for e in listed]) == []
    assert not list(client.list(prefix))
    assert "python" in client.buckets()


def test_failures_have_their_type(server, client, prefix):
    with pytest.raises(keyway.NotFound) as missing:
        client.get(prefix + "missing")
    assert isinstance(missing.value, FileNotFoundError) and isinstance(
        missing.value, keyway.ServiceError
    )
    assert (missing.value.code, missing.value.status) == ("NoSuchKey", 404)
    assert missing.value.request_id and "NoSuchKey" in str(missing.value)
    with pytest.raises(keyway.NotFound, match="NoSuchBucket"):
        client.get("s3://no-such-bucket/k")
    with pytest.raises(keyway.AccessDenied) as denied:
        server.client(secret_key="wrong").get(prefix + "k")
    assert isinstance(denied.value, PermissionError) and denied.value.status == 403
    assert "wrong" not in str(denied.value)
    with pytest.raises(keyway.ConnectionFailed):
        keyway.Client("http://127.0.0.1:9", anonymous=True, attempts_max=1).get("s3://b/k")
    with pytest.raises(keyway.InvalidArgument, match="endpoint"):
        keyway.Client("ftp://host", anonymous=True)
    with pytest.raises(keyway.InvalidArgument, match="verbs-host"):
        server.client(path="pigeon")
    with pytest.raises(keyway.InvalidArgument, match="window-local"):
        server.client(require_strength="much")
    with pytest.raises(keyway.InvalidArgument, match="names no bucket"):
        client.get("key")
    assert issubclass(keyway.NoGpu, keyway.KeywayError)


def test_a_required_path_does_not_fall_back(server, client, prefix):
    client.put(prefix + "k", bytes(1 << 20))
    assert server.client(path="http").get(prefix + "k").result.path == "http"
    wanting = server.client(path="verbs-host")
    try:
        result = wanting.get_into(prefix + "k", bytearray(1 << 20))
    except keyway.PathUnavailable as error:
        assert "verbs-host" in str(error)
    else:
        assert result.path == "verbs-host"


def test_a_client_with_a_bucket_takes_keys(server, client):
    own = server.client(bucket="python")
    own.put("by-key", b"x")
    assert bytes(client.get("s3://python/by-key")) == b"x"
    assert bytes(own.get("keyway://python/by-key")) == b"x"
    again = pickle.loads(pickle.dumps(own))
    assert bytes(again.get("by-key")) == b"x"


def silent_server():
    """Takes connections and says nothing."""
    listener = socket.create_server(("127.0.0.1", 0))
    return listener, f"http://127.0.0.1:{listener.getsockname()[1]}"


def test_waiting_releases_the_interpreter_and_can_be_interrupted():
    listener, url = silent_server()
    client = keyway.Client(url, anonymous=True)
    ticks = []
    stop = threading.Event()

    def tick():
        while not stop.wait(0.002):
            ticks.append(1)

    thread = threading.Thread(target=tick)
    thread.start()
    begun = time.monotonic()
    signal.signal(signal.SIGALRM, lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    signal.setitimer(signal.ITIMER_REAL, 0.5)
    target = keyway.Buffer.allocate(100)
    with pytest.raises(KeyboardInterrupt):
        client.get_into("s3://b/k", target)
    assert time.monotonic() - begun < 5
    stop.set()
    thread.join()
    assert len(ticks) > 20
    with pytest.raises(keyway.DeadlineExceeded) as late:
        client.get_into("s3://b/k", target, timeout=0.05)
    assert isinstance(late.value, TimeoutError)
    listener.close()


def test_threads_share_a_client(client, prefix):
    data = noise(1 << 20)
    client.put(prefix + "k", data)
    wrong = []

    def work():
        target = numpy.empty(1 << 20, dtype=numpy.uint8)
        for _ in range(5):
            client.get_into(prefix + "k", target)
            if not (target == data).all():
                wrong.append(1)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
