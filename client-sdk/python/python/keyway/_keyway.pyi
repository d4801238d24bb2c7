from collections.abc import Generator, Mapping, Sequence
from typing import Any, Generic, TypeVar, final

_T = TypeVar("_T", covariant=True)

@final
class Operation(Generic[_T]):
    def start(self) -> Operation[_T]: ...
    def wait(self) -> _T: ...
    def __await__(self) -> Generator[Any, None, _T]: ...

@final
class Result:
    """A finished transfer."""

    @property
    def bytes(self) -> int:
        """Bytes moved."""
    @property
    def path(self) -> str:
        """How they travelled: ``http``, ``ipc-gpu``, ``verbs-host``, …"""
    @property
    def strength(self) -> str:
        """What protected the memory; the weakest where parts differ."""
    @property
    def verified(self) -> bool:
        """Whether the bytes were checked against a checksum of the whole object."""
    @property
    def checksum(self) -> str | None:
        """That checksum, as ``kind:base64``."""
    @property
    def unverified(self) -> str | None:
        """Why they were not checked."""
    @property
    def retries(self) -> int:
        """Requests that had to be made again."""
    @property
    def fallbacks(self) -> dict[str, int]:
        """Requests that took a slower path than allowed, by reason."""
    @property
    def etag(self) -> str | None: ...
    @property
    def version(self) -> str | None: ...
    @property
    def object_bytes(self) -> int:
        """The object's size, whatever range was moved."""
    @property
    def durability(self) -> str:
        """What a write survives by now: ``disk``, or ``memory``. Of a read it says nothing."""

@final
class ObjectInfo:
    """An object as the service describes it."""

    @property
    def size(self) -> int: ...
    @property
    def etag(self) -> str | None: ...
    @property
    def version(self) -> str | None: ...
    @property
    def modified(self) -> float | None:
        """Seconds since 1970."""
    @property
    def content_type(self) -> str | None: ...
    @property
    def metadata(self) -> dict[str, str]: ...
    @property
    def checksums(self) -> dict[str, str]: ...

@final
class ListedObject:
    """An entry of a listing."""

    @property
    def key(self) -> str: ...
    @property
    def size(self) -> int | None: ...
    @property
    def etag(self) -> str | None: ...
    @property
    def modified(self) -> float | None: ...
    @property
    def is_prefix(self) -> bool: ...

@final
class Buffer:
    """Bytes of host or GPU memory, for the buffer protocol, DLPack and CUDA's array interface.

    ``Buffer(source)`` wraps memory of another's, so that transfers find it again, registrations
    with adapters and all; `Client.get` makes one of its own. ``buffer[a:b]`` is the same memory.
    """

    def __init__(self, source: object) -> None: ...
    @staticmethod
    def allocate(bytes: int, gpu: int | None = None) -> Buffer:
        """New memory: zeros on the host, and what was there on a GPU."""
    @property
    def result(self) -> Result | None:
        """How the bytes came, where a read made the buffer."""
    @property
    def device(self) -> str:
        """``cpu`` or ``cuda:N``."""
    @property
    def nbytes(self) -> int: ...
    @property
    def readonly(self) -> bool: ...
    def __len__(self) -> int: ...
    def __getitem__(self, index: slice, /) -> Buffer: ...
    def __bytes__(self) -> bytes: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...
    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> object: ...
    @property
    def __cuda_array_interface__(self) -> dict[str, Any]: ...

@final
class Entries:
    def page(self) -> Operation[list[ListedObject]]: ...

@final
class Client:
    def __init__(self, options: Mapping[str, object], /) -> None: ...
    @property
    def endpoint(self) -> str: ...
    def place(self, url: str) -> tuple[str, str]: ...
    def get_into(
        self,
        url: str,
        buffer: object,
        spans: Sequence[tuple[int, int]] | None,
        version: str | None,
        stream: int | None,
        options: Mapping[str, object],
    ) -> Operation[Result]: ...
    def get_ranges(
        self,
        url: str,
        wanted: Sequence[tuple[int, object]],
        stream: int | None,
        options: Mapping[str, object],
    ) -> Operation[list[Result]]: ...
    def get(
        self,
        url: str,
        span: tuple[int, int] | None,
        version: str | None,
        gpu: int | None,
        options: Mapping[str, object],
    ) -> Operation[Buffer]: ...
    def put(
        self,
        url: str,
        data: object,
        stream: int | None,
        kept: Mapping[str, object],
        options: Mapping[str, object],
    ) -> Operation[Result]: ...
    def flush(self, url: str, timeout: float | None) -> Operation[tuple[int, int]]: ...
    def head(self, url: str) -> Operation[ObjectInfo]: ...
    def delete(self, url: str) -> Operation[None]: ...
    def delete_many(
        self, bucket: str, keys: Sequence[str]
    ) -> Operation[list[tuple[str, str, str]]]: ...
    def copy(self, source: str, target: str) -> Operation[None]: ...
    def create_bucket(self, bucket: str) -> Operation[None]: ...
    def delete_bucket(self, bucket: str) -> Operation[None]: ...
    def buckets(self) -> Operation[list[str]]: ...
    def list(
        self,
        url: str,
        delimiter: str | None,
        start_after: str | None,
        page_keys: int | None,
    ) -> Entries: ...
