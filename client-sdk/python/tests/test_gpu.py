"""Goal: GPU memory is read into and written from as host memory is, by every interface, and no
other GPU is touched. Method: torch makes and judges the memory; CuPy and Numba where they are."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import keyway
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
if not torch.cuda.is_available():
    pytest.skip("no GPU", allow_module_level=True)

SIZES = [1, 511, 4096, 1_000_003, (40 << 20) + 5, 300 << 20]


def noise(size, seed=3):
    generator = torch.Generator(device="cuda").manual_seed(seed)
    return torch.randint(0, 256, (size,), dtype=torch.uint8, device="cuda", generator=generator)


@pytest.mark.parametrize("size", SIZES)
def test_around(client, prefix, size):
    data = noise(size)
    put = client.put(prefix + "k", data)
    assert put.bytes == size and put.verified
    target = torch.zeros(size + 64, dtype=torch.uint8, device="cuda")
    got = client.get_into(prefix + "k", target)
    print(got)
    assert got.bytes == size and got.verified and got.checksum == put.checksum
    assert torch.equal(target[:size], data) and not target[size:].any()
    host = client.get(prefix + "k")
    assert torch.equal(torch.from_dlpack(host), data.cpu())
    odd = torch.zeros(size + 3, dtype=torch.uint8, device="cuda")
    client.get_into(prefix + "k", odd[3:])
    assert torch.equal(odd[3:], data)


def test_memory_of_our_own(client, prefix):
    data = noise(5_000_001)
    client.put(prefix + "k", data)
    got = client.get(prefix + "k", device="cuda:0")
    assert (got.device, len(got)) == ("cuda:0", len(data)) and got.result.verified
    tensor = torch.from_dlpack(got)
    assert tensor.device == data.device and torch.equal(tensor, data)
    shown = got.__cuda_array_interface__
    assert shown["data"][0] == tensor.data_ptr()
    client.put(prefix + "again", got[1000:2000])
    del got
    assert torch.equal(tensor, data), "the tensor keeps the memory"
    part = client.get(prefix + "again", device=torch.device("cuda:0"))
    assert torch.equal(torch.from_dlpack(part), data[1000:2000])
    with pytest.raises(BufferError):
        memoryview(part)


def test_ranges_and_kinds(client, prefix):
    data = noise(4 << 20)
    client.put(prefix + "k", data)
    parts = [
        (offset, torch.empty(97, dtype=torch.uint8, device="cuda"))
        for offset in range(0, 4 << 20, 40_000)
    ]
    mixed = torch.empty(1000, dtype=torch.uint8)
    client.get_ranges(prefix + "k", [*parts, (55, mixed)])
    assert all(torch.equal(part, data[at : at + 97]) for at, part in parts)
    assert torch.equal(mixed, data[55:1055].cpu())
    for kind in (torch.bfloat16, torch.float8_e4m3fn, torch.int64, torch.complex64, torch.bool):
        if kind == torch.bool:
            source = torch.rand(333, device="cuda") > 0.5
        else:
            source = torch.randn(333, device="cuda").to(kind)
        client.put(prefix + "t", source.view(torch.uint8))
        target = torch.zeros_like(source)
        client.get_into(prefix + "t", target.view(torch.uint8))
        assert torch.equal(target.view(torch.uint8), source.view(torch.uint8))
    with pytest.raises(BufferError, match="contiguous"):
        client.get_into(prefix + "k", torch.zeros(64, 64, device="cuda").t()[3:])


def test_other_libraries(client, prefix):
    cupy = pytest.importorskip("cupy")
    data = cupy.arange(1 << 20, dtype=cupy.uint8)
    client.put(prefix + "k", data)
    target = cupy.zeros_like(data)
    client.get_into(prefix + "k", target)
    assert (target == data).all()

    class Old:
        """What has the array interface alone."""

        def __init__(self, array):
            self.array = array
            self.__cuda_array_interface__ = array.__cuda_array_interface__

    target[:] = 0
    client.get_into(prefix + "k", Old(target))
    assert (target == data).all()
    stream = cupy.cuda.Stream(non_blocking=True)
    target[:] = 0
    client.get_into(prefix + "k", target, stream=stream)
    assert (target == data).all()


def test_streams(client, prefix):
    data = noise(64 << 20)
    client.put(prefix + "k", data)
    for _ in range(5):
        stream = torch.cuda.Stream()
        target = torch.zeros(64 << 20, dtype=torch.uint8, device="cuda")
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            # Long work that writes to the target: the read comes after it, not into it.
            torch.cuda._sleep(200_000_000)
            target.fill_(7)
            client.get_into(prefix + "k", target, stream=stream)
            copy = target.clone()
        stream.synchronize()
        assert torch.equal(copy, data)
    # Without a stream the current one counts, for DLPack says so.
    torch.cuda._sleep(200_000_000)
    target.fill_(9)
    client.get_into(prefix + "k", target)
    assert torch.equal(target, data)
    # What is sent is what the stream made of it.
    with torch.cuda.stream(stream):
        torch.cuda._sleep(200_000_000)
        target.fill_(11)
        client.put(prefix + "filled", target, stream=stream)
    assert set(bytes(client.get(prefix + "filled"))) == {11}


def test_staged_reads_of_one_stream(server, client, prefix):
    """By way of the host's memory, with bounce buffers for two of six reads: those whose turns
    come later keep none from those whose turns come first."""
    size, reads = 64 << 20, 6
    data = noise(size)
    client.put(prefix + "k", data)
    staged = server.client(path="ipc-host", get_part_bytes=size)
    stream = torch.cuda.Stream()
    targets = [torch.zeros(size, dtype=torch.uint8, device="cuda") for _ in range(reads)]
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        # Long enough that all of them take their turns before the first one's begins.
        torch.cuda._sleep(1_000_000_000)

    def read(target):
        return staged.get_into(prefix + "k", target, stream=stream, timeout=60)

    with ThreadPoolExecutor(reads) as threads:
        results = list(threads.map(read, targets))
    stream.synchronize()
    assert all(got.path == "ipc-host" and got.verified for got in results)
    assert all(torch.equal(target, data) for target in targets)


def test_refusals(client, prefix):
    client.put(prefix + "k", bytes(4096))
    with pytest.raises(keyway.NoGpu):
        client.get(prefix + "k", device=f"cuda:{torch.cuda.device_count()}")
    with pytest.raises(keyway.BufferTooSmall):
        client.get_into(prefix + "k", torch.zeros(4095, dtype=torch.uint8, device="cuda"))
    cupy = pytest.importorskip("cupy")
    managed = cupy.cuda.malloc_managed(4096)
    array = cupy.ndarray((4096,), dtype=cupy.uint8, memptr=managed)
    with pytest.raises((keyway.GpuError, ValueError)):
        client.get_into(prefix + "k", array)


def test_safetensors(client, prefix):
    from keyway import safetensors

    made = {
        "w": torch.randn(1000, 333, device="cuda"),
        "b": torch.randn(77, device="cuda").bfloat16(),
        "s": torch.tensor(5, device="cuda"),
    }
    safetensors.save_file(made, prefix + "f", client=client)
    found = safetensors.load_file(prefix + "f", "cuda:0", client=client)
    assert all(torch.equal(found[name], made[name]) for name in made)
    assert len({tensor.untyped_storage().data_ptr() for tensor in found.values()}) == 1
    some = safetensors.load_file(prefix + "f", "cuda:0", names=["b"], client=client)
    assert torch.equal(some["b"], made["b"])
    own = safetensors.load(client.get(prefix + "f", device="cuda:0"))
    assert torch.equal(own["w"], made["w"]) and own["w"].is_cuda


def test_checkpoint(client, prefix):
    import torch.distributed.checkpoint as dcp
    from keyway.torch import StorageReader, StorageWriter

    state = {f"layer{n}": torch.randn(300, 400 + n, device="cuda") for n in range(20)}
    state["large"] = torch.randn(20 << 20, device="cuda")
    dcp.save(
        state,
        storage_writer=StorageWriter(prefix + "c", client=client, object_bytes=4 << 20),
        no_dist=True,
    )
    target = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
    places = {name: tensor.data_ptr() for name, tensor in target.items()}
    dcp.load(target, storage_reader=StorageReader(prefix + "c", client=client), no_dist=True)
    assert all(torch.equal(target[name], state[name]) for name in state)
    assert places == {name: tensor.data_ptr() for name, tensor in target.items()}
    host = {name: torch.zeros_like(tensor, device="cpu") for name, tensor in state.items()}
    dcp.load(host, storage_reader=StorageReader(prefix + "c", client=client), no_dist=True)
    assert all(torch.equal(host[name], state[name].cpu()) for name in state)


def test_a_forked_child_is_told(client, prefix):
    client.put(prefix + "k", noise(1000))
    child = os.fork()
    if child == 0:
        code = 1
        try:
            client.get(prefix + "k")
            client.get(prefix + "k", device="cuda:0")
        except keyway.NoGpu as error:
            code = 0 if "fork" in str(error) else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


ALONE = """
import sys, torch, keyway
client = keyway.Client(sys.argv[1], access_key=sys.argv[2], secret_key=sys.argv[3])
client.put(sys.argv[4], b"x" * 1000)
assert not torch.cuda.is_initialized()
device = torch.cuda.device_count() - 1
got = client.get(sys.argv[4], device=f"cuda:{device}")
import subprocess, os
used = subprocess.run(
    ["nvidia-smi", "--query-compute-apps=pid,gpu_uuid", "--format=csv,noheader"],
    capture_output=True, text=True).stdout
rows = [line.split(",") for line in used.splitlines()]
mine = {uuid for pid, uuid in rows if pid.strip() == str(os.getpid())}
print(len(mine))
assert len(mine) <= 1, mine
"""


def test_no_other_gpu_is_touched(server, client, prefix):
    ran = subprocess.run(
        [sys.executable, "-c", ALONE, server.url, *server.keys.values(), prefix + "k"],
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
