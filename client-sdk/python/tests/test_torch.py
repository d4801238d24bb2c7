"""Goal: torch.distributed.checkpoint saves to and loads from objects: whole, resharded to other
numbers of ranks, asynchronously, and bit for bit."""

import os

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import torch.distributed as dist  # noqa: E402
import torch.distributed.checkpoint as dcp  # noqa: E402
import torch.multiprocessing as mp  # noqa: E402
from keyway.torch import StorageReader, StorageWriter  # noqa: E402
from torch.distributed.checkpoint.api import CheckpointException  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.tensor import Replicate, Shard, distribute_tensor  # noqa: E402


def whole(seed):
    generator = torch.Generator().manual_seed(seed)
    random = lambda *shape: torch.randn(*shape, generator=generator)  # noqa: E731
    return {
        "rows": random(129, 64),
        "columns": random(64, 130).bfloat16(),
        "cube": random(6, 50, 7),
        "scalar": random(()),
        "empty": torch.zeros(0, 3),
        "large": random(1_000_000),
    }


def equal(found, expected):
    for name, tensor in expected.items():
        local = found[name]
        local = local.full_tensor() if hasattr(local, "full_tensor") else local
        assert torch.equal(local.cpu(), tensor), name


def test_one_process(client, prefix):
    state = {"model": whole(1), "step": 17, "nested": {"list": [torch.arange(5), "text"]}}
    writer = StorageWriter(prefix + "c", client=client, object_bytes=1 << 20)
    dcp.save(state, storage_writer=writer, no_dist=True)
    target = {
        "model": {name: torch.zeros_like(tensor) for name, tensor in state["model"].items()},
        "step": 0,
        "nested": {"list": [torch.zeros(5, dtype=torch.int64), ""]},
    }
    places = {name: tensor.data_ptr() for name, tensor in target["model"].items()}
    dcp.load(target, storage_reader=StorageReader(prefix + "c", client=client), no_dist=True)
    equal(target["model"], state["model"])
    assert target["step"] == 17 and target["nested"]["list"][1] == "text"
    assert torch.equal(target["nested"]["list"][0], torch.arange(5))
    assert places == {name: tensor.data_ptr() for name, tensor in target["model"].items()}
    views = {"model": {"rows": torch.zeros(64, 129).t()}}
    dcp.load(views, storage_reader=StorageReader(prefix + "c", client=client), no_dist=True)
    assert torch.equal(views["model"]["rows"], state["model"]["rows"])
    missing = StorageReader(prefix + "none", client=client)
    with pytest.raises(CheckpointException):
        dcp.load(target, storage_reader=missing, no_dist=True)


def join(rank, world, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=world)


def sharded(world, tensors):
    mesh = init_device_mesh("cpu", (world,))
    how = {"rows": Shard(0), "columns": Shard(1), "cube": Shard(1), "large": Shard(0)}
    return {
        name: distribute_tensor(tensor.clone(), mesh, [how.get(name, Replicate())])
        for name, tensor in tensors.items()
    }


def save_rank(rank, world, port, client, url, how):
    join(rank, world, port)
    state = sharded(world, whole(2))
    writer = StorageWriter(url, client=client, object_bytes=1 << 20)
    if how == "async":
        dcp.async_save(state, storage_writer=writer).result()
    else:
        dcp.save(state, storage_writer=writer)
    dist.destroy_process_group()


def load_rank(rank, world, port, client, url):
    join(rank, world, port)
    state = sharded(world, {name: torch.zeros_like(t) for name, t in whole(2).items()})
    dcp.load(state, storage_reader=StorageReader(url, client=client))
    equal(state, whole(2))
    dist.destroy_process_group()


def free_port():
    import socket

    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


@pytest.mark.parametrize("how", ["sync", "async"])
def test_resharded(client, prefix, how):
    url = prefix + "c"
    mp.spawn(save_rank, (2, free_port(), client, url, how), nprocs=2)
    for world in (1, 3):
        mp.spawn(load_rank, (world, free_port(), client, url), nprocs=world)


class Samples(torch.utils.data.Dataset):
    """Samples that workers read by range."""

    def __init__(self, client, url):
        self.client, self.url = client, url

    def __len__(self):
        return 32

    def __getitem__(self, index):
        sample = torch.empty(100, dtype=torch.float32)
        self.client.get_into(self.url, sample, range=(index * 400, 400))
        return sample


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_data_loader(client, prefix, method):
    data = torch.randn(32, 100)
    client.put(prefix + "k", data)
    loader = torch.utils.data.DataLoader(
        Samples(client, prefix + "k"), batch_size=4, num_workers=2, multiprocessing_context=method
    )
    assert torch.equal(torch.cat(list(loader)), data)
