"""Safetensors files as objects: tensors are views of one buffer, filled in place.

`load_file` reads an object into one buffer, on the host or on a GPU, and cuts tensors out of it
without a copy; a whole file is verified against its checksum on the way. With ``names`` only
those tensors are read: neighbours in one range, all of one version.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from keyway.client import Client, Range

#: Bytes that most headers fit into: one request for length and header.
_HEADER_GUESS = 256 << 10
#: No header is longer; the format says so.
_HEADER_MAX = 100_000_000
#: Where a buffer's data begins: what GPUs' widest loads want.
_ALIGNMENT = 256
#: Tensors nearer than this are read together, gap and all.
_GAP_MAX = 64 << 10

_ITEM_BYTES = {
    "BOOL": 1,
    "U8": 1,
    "I8": 1,
    "F8_E4M3": 1,
    "F8_E5M2": 1,
    "U16": 2,
    "I16": 2,
    "F16": 2,
    "BF16": 2,
    "U32": 4,
    "I32": 4,
    "F32": 4,
    "U64": 8,
    "I64": 8,
    "F64": 8,
    "C64": 8,
}


@dataclass(frozen=True)
class Entry:
    """A tensor as the header describes it; ``start`` and ``stop`` count from the data's begin."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int


@dataclass(frozen=True)
class Header:
    """What a file says of itself."""

    entries: dict[str, Entry]
    metadata: dict[str, str]
    #: Where the data begins in the file.
    data_start: int
    #: Bytes of the file.
    size: int
    #: The version that was read.
    etag: str | None = None


def parse_header(front: bytes | memoryview, size: int, etag: str | None = None) -> Header:
    """Reads the header from the first bytes of a file of ``size`` bytes.

    Raises `ValueError` where it does not hold: tensors that overlap, leave the file, or have
    other bytes than their shape says.
    """
    if len(front) < 8:
        raise ValueError("no safetensors file: shorter than its header's length")
    length = int.from_bytes(front[:8], "little")
    if length > min(_HEADER_MAX, size - 8):
        raise ValueError(f"no safetensors file: a header of {length} bytes")
    text = json.loads(bytes(front[8 : 8 + length]))
    metadata = text.pop("__metadata__", {})
    data_start = 8 + length
    entries = {}
    for name, said in text.items():
        start, stop = said["data_offsets"]
        entry = Entry(said["dtype"], tuple(said["shape"]), start, stop)
        items = 1
        for side in entry.shape:
            items *= side
        item = _ITEM_BYTES.get(entry.dtype)
        if item is None:
            raise ValueError(f"{name}: {entry.dtype} is not known here")
        if not 0 <= start <= stop <= size - data_start or stop - start != items * item:
            raise ValueError(f"{name}: its bytes are not where its shape says")
        entries[name] = entry
    end = 0
    for name, entry in sorted(entries.items(), key=lambda item: (item[1].start, item[1].stop)):
        if entry.start != end:
            raise ValueError(f"{name}: a gap or an overlap before it")
        end = entry.stop
    if data_start + end != size:
        raise ValueError("no safetensors file: its length is not what the header says")
    return Header(entries, metadata, data_start, size, etag)


def read_header(url: str, *, client: Client | None = None) -> Header:
    """Reads a file's header: names, shapes, types and places, without the tensors."""
    client = client or Client()
    info = client.head(url)
    want = min(info.size, _HEADER_GUESS)
    front = memoryview(client.get(url, range=(0, want), if_match=info.etag))
    length = 8 + int.from_bytes(front[:8], "little")
    if want < length <= min(info.size, _HEADER_MAX):
        front = memoryview(client.get(url, range=(0, length), if_match=info.etag))
    return parse_header(front, info.size, info.etag)


def load_file(
    url: str,
    device: object = "cpu",
    *,
    names: Iterable[str] | None = None,
    framework: str = "torch",
    client: Client | None = None,
) -> dict[str, Any]:
    """Loads an object's tensors onto ``device``; ``names`` alone, where they are given.

    ``framework`` is ``torch`` or ``numpy``. The tensors are views of one buffer, which lives as
    long as any of them.
    """
    client = client or Client()
    header = read_header(url, client=client)
    kit = _kit(framework, device)
    if names is None:
        entries, runs = header.entries, [(0, header.data_start, header.size - header.data_start)]
    else:
        entries = {name: header.entries[name] for name in names}
        runs = _runs(header, entries.values())
    if names is None:
        # All of it, header too: then the checksum of the whole is checked.
        pad = -header.data_start % _ALIGNMENT
        buffer = kit.empty(pad + header.size)
        client.get_into(url, buffer[pad:], if_match=header.etag)
        base = pad + header.data_start
        return {name: kit.cut(buffer, base + e.start, e) for name, e in entries.items()}
    buffer = kit.empty(max((at + length for at, _, length in runs), default=0))
    wanted = [(offset, buffer[at : at + length]) for at, offset, length in runs if length]
    if wanted:
        client.get_ranges(url, wanted, if_match=header.etag)
    return {name: kit.cut(buffer, _place(header, runs, e), e) for name, e in entries.items()}


def load(data: object, *, framework: str = "torch") -> dict[str, Any]:
    """Cuts tensors out of a file in memory, a `keyway.Buffer` on a GPU too, without a copy."""
    device = getattr(data, "device", "cpu")
    kit = _kit(framework, device if isinstance(device, str) else "cpu")
    buffer = kit.view(data)
    header = parse_header(kit.front(buffer), len(buffer))
    base = header.data_start
    return {name: kit.cut(buffer, base + e.start, e) for name, e in header.entries.items()}


def save_file(
    tensors: Mapping[str, Any],
    url: str,
    metadata: Mapping[str, str] | None = None,
    *,
    client: Client | None = None,
    durability: str = "disk",
) -> Any:
    """Saves tensors of torch or NumPy as one object; gives the `keyway.Result`.

    They are gathered into one buffer where they are, on the GPU if all of them are there, and
    go out from it. ``durability`` is that of `Client.put`.
    """
    client = client or Client()
    data = save(tensors, metadata)
    content_type = "application/octet-stream"
    return client.put(url, data, content_type=content_type, durability=durability)


def save(tensors: Mapping[str, Any], metadata: Mapping[str, str] | None = None) -> Any:
    """The file's bytes, as an array of the tensors' framework and device."""
    devices = {str(getattr(tensor, "device", "cpu")) for tensor in tensors.values()}
    is_torch = any(type(tensor).__module__.startswith("torch") for tensor in tensors.values())
    kit = _kit("torch" if is_torch else "numpy", devices.pop() if len(devices) == 1 else "cpu")
    # The widest items first, so that all are aligned.
    order = sorted(tensors, key=lambda name: (-_ITEM_BYTES[kit.name(tensors[name])], name))
    text: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    end = 0
    for name in order:
        length = kit.nbytes(tensors[name])
        text[name] = {
            "dtype": kit.name(tensors[name]),
            "shape": list(tensors[name].shape),
            "data_offsets": [end, end + length],
        }
        end += length
    front = json.dumps(text, separators=(",", ":")).encode()
    front += b" " * (-len(front) % 8)
    front = len(front).to_bytes(8, "little") + front
    buffer = kit.empty(len(front) + end)
    kit.fill(buffer, 0, front)
    for name in order:
        kit.store(buffer, len(front) + text[name]["data_offsets"][0], tensors[name])
    return buffer


def _runs(header: Header, entries: Iterable[Entry]) -> list[tuple[int, int, int]]:
    """Ranges that hold the entries: place in the buffer, offset in the file, length."""
    spans: list[Range] = []
    for entry in sorted(entries, key=lambda entry: entry.start):
        if spans and entry.start - spans[-1][1] <= _GAP_MAX:
            spans[-1] = (spans[-1][0], max(spans[-1][1], entry.stop))
        else:
            spans.append((entry.start, entry.stop))
    runs, at = [], 0
    for start, stop in spans:
        # As aligned as in the file.
        at += -at % _ALIGNMENT + start % _ALIGNMENT
        runs.append((at, header.data_start + start, stop - start))
        at += stop - start
    return runs


def _place(header: Header, runs: list[tuple[int, int, int]], entry: Entry) -> int:
    offset = header.data_start + entry.start
    for at, begin, length in runs:
        if begin <= offset and offset + entry.stop - entry.start <= begin + length:
            return at + offset - begin
    raise AssertionError("every entry lies in a run")


def _kit(framework: str, device: object) -> Any:
    if framework == "torch":
        return _Torch(device)
    if framework == "numpy":
        if str(device) != "cpu":
            raise ValueError(f"NumPy has no memory on {device}")
        return _NumPy()
    raise ValueError(f"{framework!r} is neither torch nor numpy")


class _Torch:
    def __init__(self, device: object) -> None:
        import torch

        self._torch = torch
        self._device = torch.device(device)
        names = {
            "BOOL": "bool",
            "U8": "uint8",
            "I8": "int8",
            "F8_E4M3": "float8_e4m3fn",
            "F8_E5M2": "float8_e5m2",
            "U16": "uint16",
            "I16": "int16",
            "F16": "float16",
            "BF16": "bfloat16",
            "U32": "uint32",
            "I32": "int32",
            "F32": "float32",
            "U64": "uint64",
            "I64": "int64",
            "F64": "float64",
            "C64": "complex64",
        }
        self._types = {ours: getattr(torch, theirs, None) for ours, theirs in names.items()}
        self._names = {theirs: ours for ours, theirs in self._types.items() if theirs}

    def empty(self, length: int) -> Any:
        return self._torch.empty(length, dtype=self._torch.uint8, device=self._device)

    def view(self, data: object) -> Any:
        if hasattr(data, "__dlpack__"):
            return self._torch.from_dlpack(data).view(self._torch.uint8).view(-1)
        return self._torch.frombuffer(data, dtype=self._torch.uint8)

    def front(self, buffer: Any) -> bytes:
        length = int.from_bytes(bytes(buffer[:8].cpu().numpy()), "little")
        return bytes(buffer[: 8 + min(length, _HEADER_MAX)].cpu().numpy())

    def cut(self, buffer: Any, at: int, entry: Entry) -> Any:
        kind = self._types[entry.dtype]
        if kind is None:
            raise ValueError(f"this torch has no {entry.dtype}")
        piece = buffer[at : at + entry.stop - entry.start]
        if piece.storage_offset() % _ITEM_BYTES[entry.dtype]:
            # A writer that did not align: torch cannot view these bytes where they are.
            piece = piece.clone()
        return piece.view(kind).view(entry.shape)

    def name(self, tensor: Any) -> str:
        return self._names[tensor.dtype]

    def nbytes(self, tensor: Any) -> int:
        return int(tensor.numel() * tensor.element_size())

    def fill(self, buffer: Any, at: int, data: bytes) -> None:
        source = self._torch.frombuffer(bytearray(data), dtype=self._torch.uint8)
        buffer[at : at + len(data)].copy_(source)

    def store(self, buffer: Any, at: int, tensor: Any) -> None:
        length = self.nbytes(tensor)
        if length:
            flat = tensor.detach().contiguous().view(-1).view(self._torch.uint8)
            buffer[at : at + length].copy_(flat, non_blocking=buffer.is_cuda)


class _NumPy:
    def __init__(self) -> None:
        import numpy

        self._numpy = numpy
        names = {
            "BOOL": "bool",
            "U8": "uint8",
            "I8": "int8",
            "U16": "uint16",
            "I16": "int16",
            "F16": "float16",
            "U32": "uint32",
            "I32": "int32",
            "F32": "float32",
            "U64": "uint64",
            "I64": "int64",
            "F64": "float64",
            "C64": "complex64",
        }
        self._types = {ours: numpy.dtype(theirs) for ours, theirs in names.items()}
        self._names = {theirs: ours for ours, theirs in self._types.items()}

    def empty(self, length: int) -> Any:
        return self._numpy.empty(length, dtype=self._numpy.uint8)

    def view(self, data: object) -> Any:
        return self._numpy.frombuffer(data, dtype=self._numpy.uint8)

    def front(self, buffer: Any) -> memoryview:
        return memoryview(buffer)

    def cut(self, buffer: Any, at: int, entry: Entry) -> Any:
        kind = self._types.get(entry.dtype)
        if kind is None:
            raise ValueError(f"NumPy has no {entry.dtype}")
        return buffer[at : at + entry.stop - entry.start].view(kind).reshape(entry.shape)

    def name(self, tensor: Any) -> str:
        return self._names[tensor.dtype]

    def nbytes(self, tensor: Any) -> int:
        return int(tensor.nbytes)

    def fill(self, buffer: Any, at: int, data: bytes) -> None:
        buffer[at : at + len(data)] = self._numpy.frombuffer(data, dtype=self._numpy.uint8)

    def store(self, buffer: Any, at: int, tensor: Any) -> None:
        if tensor.nbytes:
            flat = self._numpy.ascontiguousarray(tensor).reshape(-1).view(self._numpy.uint8)
            buffer[at : at + tensor.nbytes] = flat
