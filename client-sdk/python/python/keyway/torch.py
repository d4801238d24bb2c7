"""Checkpoints of ``torch.distributed.checkpoint`` as objects.

::

    import torch.distributed.checkpoint as dcp
    from keyway.torch import StorageReader, StorageWriter

    dcp.save(state, storage_writer=StorageWriter("s3://runs/step-100"))
    dcp.load(state, storage_reader=StorageReader("s3://runs/step-100"))

Each rank gathers its tensors into a few buffers where they are, on the GPU or on the host, and
writes each as one object of raw bytes; large tensors go out from their own memory. Reads are by
range, straight into the target tensors, so another number of ranks reads just what it needs.
The checkpoint is there when its ``.metadata`` is, which is written last.

``.metadata`` is a pickle, as torch's own is: load checkpoints of people that you trust.
"""

from __future__ import annotations

import io
import os
import pickle
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from math import prod
from typing import Any

import torch
from torch.distributed.checkpoint import StorageReader as _Reader
from torch.distributed.checkpoint import StorageWriter as _Writer
from torch.distributed.checkpoint.metadata import (
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import (
    LoadItemType,
    LoadPlan,
    LoadPlanner,
    ReadItem,
    SavePlan,
    SavePlanner,
    WriteItem,
    WriteItemType,
)
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from keyway._keyway import Operation, Result
from keyway.client import Client
from keyway.errors import NotFound

_METADATA = ".metadata"
#: Tensors begin here within an object: what GPUs' widest loads want.
_ALIGNMENT = 256
#: A slice of a tensor in more pieces than this is read with what lies between.
_PIECES_MAX = 4096


@dataclass(frozen=True)
class _Place:
    """Where an item's bytes are."""

    name: str
    offset: int
    length: int


@dataclass(frozen=True)
class _Prefix:
    """How a rank's objects begin."""

    prefix: str


class StorageWriter(_Writer):
    """Writes checkpoints to ``s3://bucket/prefix``; works with ``dcp.async_save`` too.

    Objects have about ``object_bytes`` bytes, and ``in_flight`` of them are on their way while
    the next is gathered: that bounds the memory that a save needs beside the tensors.

    With ``durability="memory"`` a Keyway service that has room for it is done when the bytes are
    in its memory, and brings them to its device behind. A crash in between takes back objects of
    the checkpoint: loading it fails then. So keep the checkpoint before it until `flush` has
    waited for the device.
    """

    def __init__(
        self,
        checkpoint_id: str | os.PathLike[str] | None = None,
        *,
        client: Client | None = None,
        object_bytes: int = 512 << 20,
        in_flight: int = 3,
        durability: str = "disk",
    ) -> None:
        self._client = client or Client()
        self._object_bytes = object_bytes
        self._in_flight = max(1, in_flight)
        self._durability = durability
        #: Addresses and ETags of what this process has written.
        self._written: list[tuple[str, str | None]] = []
        self._rank: int | None = None
        self._collective = True
        self.reset(checkpoint_id)

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        if checkpoint_id is not None:
            self._base = _base(checkpoint_id)
        self._save_id = str(uuid.uuid4())
        self._written = []

    def flush(self, timeout: float | None = None) -> None:
        """Waits until what this process has written since the last `reset` is durable.

        ``timeout`` is for each object, in seconds. Raises `NotFound` where one was lost.
        """
        for url, etag in self._written:
            self._client.flush(url, timeout)
            if self._client.head(url).etag != etag:
                raise NotFound(f"{url} was lost before it was durable, or was written again")

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        self._rank = kwargs.get("rank")
        self._collective = kwargs.get("use_collectives", True)

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        if self._rank is not None and not self._collective:
            return replace(plan, storage_data=_Prefix(f"__{self._rank}_"))
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        return [
            plan if plan.storage_data else replace(plan, storage_data=_Prefix(f"__{rank}_"))
            for rank, plan in enumerate(plans)
        ]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        results: list[WriteResult] = []
        flying: list[tuple[str, Operation[Result]]] = []
        for number, bucket in enumerate(_buckets(plan.items, self._object_bytes)):
            name = f"{plan.storage_data.prefix}{number}.bin"
            if len(flying) == self._in_flight:
                self._landed(*flying.pop(0))
            body, places = _gather(bucket, planner, name)
            if len(body):
                url = self._base + name
                put = self._client.begin_put(url, body, durability=self._durability)
                flying.append((url, put))
            results.extend(
                WriteResult(item.index, place.length, place)
                for item, place in zip(bucket, places, strict=True)
            )
        for url, put in flying:
            self._landed(url, put)
        done: Future[list[WriteResult]] = Future()
        done.set_result(results)
        return done

    def _landed(self, url: str, put: Operation[Result]) -> None:
        self._written.append((url, put.wait().etag))

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        metadata = replace(
            metadata,
            storage_data={one.index: one.storage_data for ranks in results for one in ranks},
            storage_meta=self.storage_meta(),
        )
        rank = None if self._collective else self._rank
        self._client.put(self._base + _metadata_name(rank), pickle.dumps(metadata))

    def storage_meta(self) -> StorageMeta | None:
        return StorageMeta(checkpoint_id=self._base, save_id=self._save_id)

    @property
    def checkpoint_id(self) -> str:
        """Where the checkpoint is written to."""
        return self._base

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return _is_ours(checkpoint_id)


class StorageReader(_Reader):
    """Reads checkpoints of `StorageWriter`, each range straight into its tensor."""

    def __init__(
        self,
        checkpoint_id: str | os.PathLike[str] | None = None,
        *,
        client: Client | None = None,
    ) -> None:
        self._client = client or Client()
        self._metadata: Metadata | None = None
        self.reset(checkpoint_id)

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        if checkpoint_id is not None:
            self._base = _base(checkpoint_id)
        self._metadata = None
        self._load_id = str(uuid.uuid4())

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        name = _metadata_name(kwargs.get("rank"))
        metadata: Metadata = pickle.loads(bytes(self._client.get(self._base + name)))
        if metadata.storage_meta is None:
            metadata.storage_meta = StorageMeta()
        metadata.storage_meta.load_id = self._load_id
        return metadata

    def set_up_storage_reader(
        self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any
    ) -> None:
        self._metadata = metadata

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        assert self._metadata is not None, "set_up_storage_reader comes first"
        wanted: dict[str, list[tuple[int, Any]]] = {}
        landed: list[_Landing] = []
        texts: list[tuple[ReadItem, bytearray]] = []
        for item in plan.items:
            place: _Place = self._metadata.storage_data[item.storage_index]
            if item.type == LoadItemType.BYTE_IO:
                text = bytearray(place.length)
                texts.append((item, text))
                pieces: list[tuple[int, Any]] = [(0, text)] if text else []
            else:
                shape = _chunk_shape(self._metadata, item.storage_index)
                landing = _Landing(item, planner.resolve_tensor(item).detach(), shape)
                landed.append(landing)
                pieces = list(landing.pieces())
            ranges = wanted.setdefault(place.name, [])
            ranges.extend((place.offset + offset, memory) for offset, memory in pieces)
        reads = [
            self._client.begin_ranges(self._base + name, sorted(ranges, key=lambda r: r[0]))
            for name, ranges in wanted.items()
            if ranges
        ]
        for read in reads:
            read.wait()
        for landing in landed:
            planner.commit_tensor(landing.item, landing.settle())
        for item, text in texts:
            planner.load_bytes(item, io.BytesIO(text))
        done: Future[None] = Future()
        done.set_result(None)
        return done

    @property
    def checkpoint_id(self) -> str:
        """Where the checkpoint is read from."""
        return self._base

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return _is_ours(checkpoint_id)


class _Landing:
    """A tensor's part, on its way to its place.

    The stored chunk is dense; the part is a box in it. What of the box is dense in the chunk,
    and lands in dense memory, is read where it belongs. Else the bytes land beside it first.
    """

    def __init__(self, item: ReadItem, target: torch.Tensor, shape: torch.Size) -> None:
        self.item = item
        self._target = target
        self._shape, self._offsets = shape, item.storage_offsets
        self._lengths = item.lengths
        if target.size() != item.lengths:
            raise ValueError(f"{item.storage_index}: {target.size()} is not {item.lengths}")
        # Dimensions from here on are whole in the chunk: they and the one before are one run.
        inner = len(shape)
        while inner > 0 and self._lengths[inner - 1] == shape[inner - 1]:
            inner -= 1
        self._outer = max(inner - 1, 0)
        self._bounding = prod(self._lengths[: self._outer]) > _PIECES_MAX
        if self._bounding:
            # Rows with all that lies between them.
            rows = torch.Size([self._lengths[0], *shape[1:]])
            self._memory = torch.empty(rows, dtype=target.dtype, device=target.device)
        elif target.is_contiguous():
            self._memory = target
        else:
            self._memory = torch.empty_like(target, memory_format=torch.contiguous_format)

    def pieces(self) -> Iterator[tuple[int, Any]]:
        """Offsets within the chunk's bytes, and the memory for what begins there."""
        memory = _bytes(self._memory)
        if not len(memory):
            return
        item = self._target.element_size()
        if self._bounding:
            yield self._offsets[0] * prod(self._shape[1:]) * item, memory
            return
        strides = [prod(self._shape[d + 1 :]) for d in range(len(self._shape))]
        run = prod(self._lengths[self._outer :]) * item
        base = sum(o * s for o, s in zip(self._offsets, strides, strict=True)) * item
        at = 0
        for index in product(*(range(n) for n in self._lengths[: self._outer])):
            step = sum(i * s for i, s in zip(index, strides, strict=False)) * item
            yield base + step, memory[at : at + run]
            at += run

    def settle(self) -> torch.Tensor:
        """The target, filled."""
        source = self._memory
        if self._bounding:
            for dim in range(1, len(self._shape)):
                source = source.narrow(dim, self._offsets[dim], self._lengths[dim])
        if source is not self._target:
            self._target.copy_(source)
        return self._target


def _gather(bucket: list[WriteItem], planner: SavePlanner, name: str) -> tuple[Any, list[_Place]]:
    """One body with the data of all items, and where each is in it."""
    bodies, places, end = [], [], 0
    for item in bucket:
        data = planner.resolve_data(item)
        if isinstance(data, torch.Tensor):
            body = _bytes(data.detach().contiguous())
        else:
            body = torch.frombuffer(bytearray(data.getvalue()) or bytearray(1), dtype=torch.uint8)
            body = body[: len(data.getbuffer())]
        end += -end % _ALIGNMENT
        places.append(_Place(name, end, len(body)))
        bodies.append(body)
        end += len(body)
    if len(bodies) == 1:
        return bodies[0], places
    devices = {body.device for body in bodies if len(body)}
    device = devices.pop() if len(devices) == 1 else torch.device("cpu")
    # Zeros, for what lies between tensors is stored too.
    whole = torch.zeros(end, dtype=torch.uint8, device=device)
    for body, place in zip(bodies, places, strict=True):
        whole[place.offset : place.offset + place.length].copy_(body, non_blocking=True)
    if device.type == "cpu" and any(body.is_cuda for body in bodies):
        torch.cuda.synchronize()
    return whole, places


def _buckets(items: list[WriteItem], bytes_max: int) -> Iterator[list[WriteItem]]:
    """Items in groups of about so many bytes; larger ones stand alone."""
    small: list[WriteItem] = []
    filled = 0
    for item in sorted(items, key=lambda item: item.type == WriteItemType.BYTE_IO):
        size = _item_bytes(item)
        if size * 2 >= bytes_max:
            yield [item]
            continue
        if small and filled + size > bytes_max:
            yield small
            small, filled = [], 0
        small.append(item)
        filled += size
    if small:
        yield small


def _item_bytes(item: WriteItem) -> int:
    data = item.tensor_data
    if data is None:
        return 0
    item = torch.empty((), dtype=data.properties.dtype).element_size()
    return int(prod(data.chunk.sizes) * item)


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a dense tensor, in place."""
    return tensor.view(-1).view(torch.uint8)


def _chunk_shape(metadata: Metadata, index: MetadataIndex) -> torch.Size:
    stored = metadata.state_dict_metadata[index.fqn]
    assert isinstance(stored, TensorStorageMetadata), f"{index.fqn} is no tensor"
    if index.offset is None:
        return stored.size
    if index.index is not None and index.index < len(stored.chunks):
        chunk = stored.chunks[index.index]
        if chunk.offsets == index.offset:
            return chunk.sizes
    for chunk in stored.chunks:
        if chunk.offsets == index.offset:
            return chunk.sizes
    raise KeyError(f"{index} is not in the checkpoint")


def _metadata_name(rank: int | None) -> str:
    return _METADATA if rank is None else f"__{rank}{_METADATA}"


def _base(checkpoint_id: str | os.PathLike[str]) -> str:
    text = os.fspath(checkpoint_id)
    return text if text.endswith("/") else text + "/"


def _is_ours(checkpoint_id: str | os.PathLike[str]) -> bool:
    return str(checkpoint_id).startswith(("s3://", "keyway://"))
