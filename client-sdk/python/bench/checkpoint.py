"""Checkpoints into and out of a GPU: Keyway beside safetensors, torch and, where they are
installed, InstantTensor and fastsafetensors, in one run.

The limits are what pinned memory and the GPU exchange and, with `--disk`, what a folder on the
server's drive takes by direct writes that are synced; the peers read and write tmpfs, so that no
disk is in their way. Every load is compared with what was saved.

    python client-sdk/python/bench/checkpoint.py --gib 16 --bucket bench --disk DATA_DIR
"""

import argparse
import mmap
import os
import shutil
import tempfile
import time
import warnings
from concurrent.futures import ThreadPoolExecutor

import keyway
import keyway.safetensors
import safetensors.torch
import torch
import torch.distributed.checkpoint as dcp
from keyway.torch import StorageReader, StorageWriter

try:
    import instanttensor
except ImportError:
    instanttensor = None
try:
    import fastsafetensors
except ImportError:
    fastsafetensors = None

GIB = 1 << 30
# What the disk alone is written with: files side by side, in blocks, past the page cache.
DISK_WRITERS = 8
DISK_BLOCK_BYTES = 4 << 20


def state(gib: int, tensor_bytes: int) -> dict[str, torch.Tensor]:
    count = gib * GIB // tensor_bytes
    make = torch.Generator(device="cuda").manual_seed(1)
    return {
        f"layer.{at:04}": torch.randint(
            0, 1 << 15, (tensor_bytes // 2,), dtype=torch.int16, device="cuda", generator=make
        )
        for at in range(count)
    }


def timed(name: str, size: int, rounds: int, work, before=lambda: None) -> object:
    """The fastest round; `before` is not in it."""
    best, result = None, None
    for _ in range(rounds):
        before()
        torch.cuda.synchronize()
        begun = time.perf_counter()
        result = work()
        torch.cuda.synchronize()
        took = time.perf_counter() - begun
        best = took if best is None else min(best, took)
    print(f"{name:<44} {size / best / 1e9:7.2f} GB/s  {best:7.3f} s", flush=True)
    return result


def same(found: dict, expected: dict) -> None:
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor), f"{name} came back changed"


def instant(file: str) -> dict[str, torch.Tensor]:
    with instanttensor.safe_open(file, framework="pt", device=0) as opened:
        return dict(opened.tensors())


def fast(file: str) -> dict[str, torch.Tensor]:
    opened = fastsafetensors.fastsafe_open([file], nogds=True, device="cuda:0")
    with opened as loaded:
        return {name: loaded.get_tensor(name) for name in loaded.keys()}  # noqa: SIM118


def write_directly(file: str, size: int) -> None:
    """A file of this size, room first, then blocks past the page cache, and a sync."""
    block = mmap.mmap(-1, DISK_BLOCK_BYTES)
    block.write(os.urandom(DISK_BLOCK_BYTES))
    opened = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_DIRECT, 0o600)
    try:
        os.posix_fallocate(opened, 0, size)
        for at in range(0, size, DISK_BLOCK_BYTES):
            os.pwrite(opened, block, at)
        os.fsync(opened)
    finally:
        os.close(opened)


def disk(folder: str, size: int, rounds: int) -> None:
    share = size // DISK_WRITERS // DISK_BLOCK_BYTES * DISK_BLOCK_BYTES
    scratch = tempfile.mkdtemp(dir=folder)
    files = [f"{scratch}/{number}" for number in range(DISK_WRITERS)]

    def write() -> None:
        with ThreadPoolExecutor(DISK_WRITERS) as threads:
            list(threads.map(lambda file: write_directly(file, share), files))

    def emptied() -> None:
        for file in os.listdir(scratch):
            os.remove(f"{scratch}/{file}")

    try:
        timed(
            "limit: direct writes to the disk, synced", share * DISK_WRITERS, rounds, write, emptied
        )
    finally:
        shutil.rmtree(scratch)


def remove(client: keyway.Client, bucket: str, prefix: str) -> None:
    client.flush(f"s3://{bucket}")
    client.delete_many(bucket, [found.key for found in client.list(f"s3://{bucket}/{prefix}")])


def limits() -> None:
    pinned = torch.empty(GIB, dtype=torch.uint8, pin_memory=True)
    target = torch.empty(GIB, dtype=torch.uint8, device="cuda")
    timed("limit: pinned memory to GPU", GIB, 5, lambda: target.copy_(pinned))
    timed("limit: GPU to pinned memory", GIB, 5, lambda: pinned.copy_(target))


def main() -> None:
    parse = argparse.ArgumentParser(description=__doc__)
    parse.add_argument("--gib", type=int, default=8)
    parse.add_argument("--tensor-mib", type=int, default=64)
    parse.add_argument("--rounds", type=int, default=2)
    parse.add_argument("--bucket", default="bench")
    parse.add_argument("--path", default="auto")
    parse.add_argument("--tmpfs", default="/dev/shm")
    parse.add_argument("--disk", help="a folder on the drive that the server stores on")
    given = parse.parse_args()
    warnings.simplefilter("ignore")

    size, rounds = given.gib * GIB, given.rounds
    tensors = state(given.gib, given.tensor_mib << 20)
    client = keyway.Client(path=given.path)
    if given.bucket not in client.buckets():
        client.create_bucket(given.bucket)
    at = f"s3://{given.bucket}/checkpoint"

    def flushed() -> None:
        """What was saved to memory first is on its way to the disk for some seconds."""
        client.flush(f"s3://{given.bucket}")

    limits()
    if given.disk:
        disk(given.disk, size, rounds)
    save = keyway.safetensors.save_file
    for durability in ["disk", "memory"]:
        timed(
            f"save: keyway.safetensors, durability {durability}",
            size,
            rounds,
            lambda chosen=durability: save(tensors, f"{at}.st", client=client, durability=chosen),
            lambda: remove(client, given.bucket, "checkpoint.st"),
        )
    load = keyway.safetensors.load_file
    got = None
    for when, before in [("beside the flush", lambda: None), ("flushed", flushed)]:
        got = None
        got = timed(
            f"load: keyway.safetensors, {when}",
            size,
            rounds + 1,
            lambda: load(f"{at}.st", device="cuda:0", client=client),
            before,
        )
        same(got, tensors)
    got = None
    remove(client, given.bucket, "checkpoint.st")

    for durability in ["disk", "memory"]:
        writer = StorageWriter(f"{at}.dcp", client=client, durability=durability)
        timed(
            f"save: torch DCP to keyway.torch, durability {durability}",
            size,
            rounds,
            lambda chosen=writer: dcp.save(tensors, storage_writer=chosen),
            lambda: remove(client, given.bucket, "checkpoint.dcp"),
        )
    empty = {name: torch.empty_like(tensor) for name, tensor in tensors.items()}
    for when, before in [("beside the flush", lambda: None), ("flushed", flushed)]:
        timed(
            f"load: torch DCP from keyway.torch, {when}",
            size,
            rounds + 1,
            lambda: dcp.load(empty, storage_reader=StorageReader(f"{at}.dcp", client=client)),
            before,
        )
        same(empty, tensors)
    empty.clear()
    remove(client, given.bucket, "checkpoint.dcp")

    folder = tempfile.mkdtemp(dir=given.tmpfs)
    try:
        file = f"{folder}/model.safetensors"
        timed("save: safetensors", size, 1, lambda: safetensors.torch.save_file(tensors, file))
        peer = safetensors.torch.load_file
        got = timed("load: safetensors", size, rounds, lambda: peer(file, device="cuda:0"))
        same(got, tensors)
        if instanttensor is not None:
            got = None
            got = timed("load: InstantTensor", size, rounds + 1, lambda: instant(file))
            same(got, tensors)
        if fastsafetensors is not None:
            got = None
            got = timed("load: fastsafetensors", size, rounds + 1, lambda: fast(file))
            same(got, tensors)
        got = None
        os.remove(file)
        timed("save: torch DCP", size, 1, lambda: dcp.save(tensors, checkpoint_id=folder))
        empty = {name: torch.empty_like(tensor) for name, tensor in tensors.items()}
        timed("load: torch DCP", size, rounds, lambda: dcp.load(empty, checkpoint_id=folder))
        same(empty, tensors)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
