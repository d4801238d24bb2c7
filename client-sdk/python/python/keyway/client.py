"""The client: every operation as a method and, with an ``a`` before its name, as a coroutine.

Neither makes a thread per call. A method runs the transfer with the interpreter released and can
be interrupted; a coroutine is woken by its event loop. While a call runs, nobody else may write
to the memory given to it, nor read what is being filled.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from keyway._keyway import Buffer, ListedObject, ObjectInfo, Operation, Result
from keyway._keyway import Client as _Native
from keyway.errors import InvalidArgument, NotFound

#: Offset and length, in bytes.
Range: TypeAlias = tuple[int, int]
# Apart, for `Client.list` hides the type in the class.
Results: TypeAlias = list[Result]
_Names: TypeAlias = list[str]
#: Key, code and message of each object that was to be deleted and stayed.
Stayed: TypeAlias = list[tuple[str, str, str]]


class Client:
    """A client of one S3 endpoint. It may be shared by threads, and used after a fork.

    Addresses are ``s3://bucket/key``, or keys alone where the client has a ``bucket``. Without
    ``endpoint`` the environment's ``KEYWAY_ENDPOINT`` or ``AWS_ENDPOINT_URL`` is meant; without
    keys, ``KEYWAY_ACCESS_KEY`` and ``KEYWAY_SECRET_KEY`` or AWS's, if they are set.

    ``path`` is ``auto``, or the one path that transfers may take: then they fail with
    `PathUnavailable` instead of falling back. ``require_strength`` refuses weaker keys to the
    memory. Times are in seconds.
    """

    def __init__(
        self,
        endpoint: str | None = None,
        *,
        bucket: str | None = None,
        access_key: str | None = None,
        secret_key: str | None = None,
        session_token: str | None = None,
        anonymous: bool = False,
        region: str | None = None,
        ca_file: str | None = None,
        virtual_host: bool = False,
        path: str = "auto",
        require_strength: str | None = None,
        devices: Sequence[str] | None = None,
        get_part_bytes: int | None = None,
        put_part_bytes: int | None = None,
        concurrency: int | None = None,
        connections_max: int | None = None,
        attempts_max: int | None = None,
        connect_timeout: float | None = None,
        stall_timeout: float | None = None,
    ) -> None:
        self._options: dict[str, Any] = {
            "endpoint": endpoint,
            "bucket": bucket,
            "access_key": access_key,
            "secret_key": secret_key,
            "session_token": session_token,
            "anonymous": anonymous,
            "region": region,
            "ca_file": ca_file,
            "virtual_host": virtual_host,
            "path": path,
            "require_strength": require_strength,
            "devices": list(devices) if devices is not None else None,
            "get_part_bytes": get_part_bytes,
            "put_part_bytes": put_part_bytes,
            "concurrency": concurrency,
            "connections_max": connections_max,
            "attempts_max": attempts_max,
            "connect_timeout": connect_timeout,
            "stall_timeout": stall_timeout,
        }
        self._native = _Native(self._options)

    def __reduce__(self) -> tuple[Any, ...]:
        # A worker process gets a client of its own. Keys given to the constructor travel along;
        # those of the environment are looked up again.
        return _reopened, (self._options,)

    def __repr__(self) -> str:
        return f"<keyway.Client of {self.endpoint}>"

    @property
    def endpoint(self) -> str:
        """The endpoint's address."""
        return self._native.endpoint

    def split(self, url: str) -> tuple[str, str]:
        """Bucket and key that an address names; the key may be empty."""
        return self._native.place(url)

    # Reads

    def get_into(
        self,
        url: str,
        buffer: object,
        ranges: Sequence[Range] | None = None,
        stream: object | None = None,
        *,
        range: Range | None = None,
        version: str | None = None,
        if_match: str | None = None,
        part_bytes: int | None = None,
        concurrency: int | None = None,
        timeout: float | None = None,
    ) -> Result:
        """Reads an object into memory of yours.

        ``buffer`` shows contiguous, writable memory of at least as many bytes. ``range`` reads
        that part of the object, ``ranges`` several of one version, laid end to end. With a CUDA
        ``stream`` (a number, or an object of torch's, CuPy's or Numba's) the read begins after
        the work that is on the stream, and work put there later sees the bytes.
        """
        options = _transfer(if_match, part_bytes, concurrency, timeout)
        return self._native.get_into(
            url, buffer, _spans(range, ranges), version, _stream(stream), options
        ).wait()

    async def aget_into(
        self,
        url: str,
        buffer: object,
        ranges: Sequence[Range] | None = None,
        stream: object | None = None,
        *,
        range: Range | None = None,
        version: str | None = None,
        if_match: str | None = None,
        part_bytes: int | None = None,
        concurrency: int | None = None,
        timeout: float | None = None,
    ) -> Result:
        """As `get_into`."""
        options = _transfer(if_match, part_bytes, concurrency, timeout)
        return await self._native.get_into(
            url, buffer, _spans(range, ranges), version, _stream(stream), options
        )

    def get_ranges(
        self,
        url: str,
        wanted: Sequence[tuple[int, object]],
        stream: object | None = None,
        *,
        if_match: str | None = None,
        concurrency: int | None = None,
        timeout: float | None = None,
    ) -> Results:
        """Reads parts of one version of an object: for each offset, as many bytes as the buffer
        that comes with it has. Many small parts cost one call."""
        return self.begin_ranges(
            url, wanted, stream, if_match=if_match, concurrency=concurrency, timeout=timeout
        ).wait()

    async def aget_ranges(
        self,
        url: str,
        wanted: Sequence[tuple[int, object]],
        stream: object | None = None,
        *,
        if_match: str | None = None,
        concurrency: int | None = None,
        timeout: float | None = None,
    ) -> Results:
        """As `get_ranges`."""
        options = _transfer(if_match, None, concurrency, timeout)
        return await self._native.get_ranges(url, list(wanted), _stream(stream), options)

    def begin_ranges(
        self,
        url: str,
        wanted: Sequence[tuple[int, object]],
        stream: object | None = None,
        *,
        if_match: str | None = None,
        concurrency: int | None = None,
        timeout: float | None = None,
    ) -> Operation[Results]:
        """Begins what `get_ranges` does, and gives what can be waited for with ``wait()``."""
        options = _transfer(if_match, None, concurrency, timeout)
        return self._native.get_ranges(url, list(wanted), _stream(stream), options).start()

    def get(
        self,
        url: str,
        device: object | None = None,
        *,
        range: Range | None = None,
        version: str | None = None,
        if_match: str | None = None,
        part_bytes: int | None = None,
        concurrency: int | None = None,
        timeout: float | None = None,
    ) -> Buffer:
        """Reads an object into memory of its own: of the host, or of a GPU such as ``cuda:0``.

        What comes back shows its bytes without a copy: ``memoryview(b)``, ``numpy.asarray(b)``,
        ``torch.from_dlpack(b)``. Its ``result`` says how they came.
        """
        options = _transfer(if_match, part_bytes, concurrency, timeout)
        return self._native.get(url, range, version, _gpu(device), options).wait()

    async def aget(
        self,
        url: str,
        device: object | None = None,
        *,
        range: Range | None = None,
        version: str | None = None,
        if_match: str | None = None,
        part_bytes: int | None = None,
        concurrency: int | None = None,
        timeout: float | None = None,
    ) -> Buffer:
        """As `get`."""
        options = _transfer(if_match, part_bytes, concurrency, timeout)
        return await self._native.get(url, range, version, _gpu(device), options)

    # Writes

    def put(
        self,
        url: str,
        data: object,
        stream: object | None = None,
        *,
        content_type: str | None = None,
        metadata: Mapping[str, str] | None = None,
        if_absent: bool = False,
        if_match: str | None = None,
        durability: str = "disk",
        part_bytes: int | None = None,
        concurrency: int | None = None,
        timeout: float | None = None,
    ) -> Result:
        """Writes memory as an object, which becomes visible whole or not at all.

        With ``durability="memory"`` a Keyway service that has room for it answers when the bytes
        are in its memory, and brings them to its device behind; a crash in between takes the
        object back, and what it replaced returns. The result says which it is, and `flush`
        waits for the device.
        """
        return self.begin_put(
            url,
            data,
            stream,
            content_type=content_type,
            metadata=metadata,
            if_absent=if_absent,
            if_match=if_match,
            durability=durability,
            part_bytes=part_bytes,
            concurrency=concurrency,
            timeout=timeout,
            _start=False,
        ).wait()

    async def aput(
        self,
        url: str,
        data: object,
        stream: object | None = None,
        *,
        content_type: str | None = None,
        metadata: Mapping[str, str] | None = None,
        if_absent: bool = False,
        if_match: str | None = None,
        durability: str = "disk",
        part_bytes: int | None = None,
        concurrency: int | None = None,
        timeout: float | None = None,
    ) -> Result:
        """As `put`."""
        return await self.begin_put(
            url,
            data,
            stream,
            content_type=content_type,
            metadata=metadata,
            if_absent=if_absent,
            if_match=if_match,
            durability=durability,
            part_bytes=part_bytes,
            concurrency=concurrency,
            timeout=timeout,
            _start=False,
        )

    def begin_put(
        self,
        url: str,
        data: object,
        stream: object | None = None,
        *,
        content_type: str | None = None,
        metadata: Mapping[str, str] | None = None,
        if_absent: bool = False,
        if_match: str | None = None,
        durability: str = "disk",
        part_bytes: int | None = None,
        concurrency: int | None = None,
        timeout: float | None = None,
        _start: bool = True,
    ) -> Operation[Result]:
        """Begins what `put` does, and gives what can be waited for with ``wait()``."""
        options = _transfer(if_match, part_bytes, concurrency, timeout)
        kept = {
            "content_type": content_type,
            "metadata": metadata,
            "if_absent": if_absent,
            "durability": durability,
        }
        put = self._native.put(url, data, _stream(stream), kept, options)
        return put.start() if _start else put

    def flush(self, url: str, timeout: float | None = None) -> tuple[int, int]:
        """Waits until what was written to the service's memory is durable.

        That is one object, or all of a bucket (``s3://bucket``). Gives how many objects became
        durable with the call, and how many were lost before they could.
        """
        return self._native.flush(url, timeout).wait()

    async def aflush(self, url: str, timeout: float | None = None) -> tuple[int, int]:
        """As `flush`."""
        return await self._native.flush(url, timeout)

    # Objects

    def head(self, url: str) -> ObjectInfo:
        """Asks what an object is."""
        return self._native.head(url).wait()

    async def ahead(self, url: str) -> ObjectInfo:
        """As `head`."""
        return await self._native.head(url)

    def exists(self, url: str) -> bool:
        """Whether there is such an object."""
        try:
            self.head(url)
        except NotFound:
            return False
        return True

    async def aexists(self, url: str) -> bool:
        """As `exists`."""
        try:
            await self.ahead(url)
        except NotFound:
            return False
        return True

    def delete(self, url: str) -> None:
        """Deletes an object. Deleting what is not there succeeds."""
        self._native.delete(url).wait()

    async def adelete(self, url: str) -> None:
        """As `delete`."""
        await self._native.delete(url)

    def delete_many(self, bucket: str, keys: Iterable[str]) -> Stayed:
        """Deletes objects, 1,000 in a request; gives those that stayed: key, code, message."""
        return self._native.delete_many(bucket, list(keys)).wait()

    async def adelete_many(self, bucket: str, keys: Iterable[str]) -> Stayed:
        """As `delete_many`."""
        return await self._native.delete_many(bucket, list(keys))

    def copy(self, source: str, target: str) -> None:
        """Copies an object within the service."""
        self._native.copy(source, target).wait()

    async def acopy(self, source: str, target: str) -> None:
        """As `copy`."""
        await self._native.copy(source, target)

    def list(
        self,
        url: str,
        *,
        delimiter: str | None = None,
        start_after: str | None = None,
        page_keys: int | None = None,
    ) -> Iterator[ListedObject]:
        """Lists the objects whose addresses begin so, in the order of their keys, page by page
        as they are taken. A ``delimiter`` rolls up what lies deeper."""
        entries = self._native.list(url, delimiter, start_after, page_keys)
        while page := entries.page().wait():
            yield from page

    async def alist(
        self,
        url: str,
        *,
        delimiter: str | None = None,
        start_after: str | None = None,
        page_keys: int | None = None,
    ) -> AsyncIterator[ListedObject]:
        """As `list`."""
        entries = self._native.list(url, delimiter, start_after, page_keys)
        while page := await entries.page():
            for entry in page:
                yield entry

    # Buckets

    def buckets(self) -> _Names:
        """The names of all buckets."""
        return self._native.buckets().wait()

    def create_bucket(self, bucket: str) -> None:
        """Creates a bucket."""
        self._native.create_bucket(bucket).wait()

    def delete_bucket(self, bucket: str) -> None:
        """Deletes an empty bucket."""
        self._native.delete_bucket(bucket).wait()


def _reopened(options: dict[str, Any]) -> Client:
    return Client(**options)


def _transfer(
    if_match: str | None, part_bytes: int | None, concurrency: int | None, timeout: float | None
) -> dict[str, object]:
    return {
        "if_match": if_match,
        "part_bytes": part_bytes,
        "concurrency": concurrency,
        "timeout": timeout,
    }


def _spans(one: Range | None, several: Sequence[Range] | None) -> Sequence[Range] | None:
    if one is not None and several is not None:
        raise InvalidArgument("range and ranges are two ways to say it: give one")
    return [one] if one is not None else several


def _stream(stream: object | None) -> int | None:
    """The handle of a CUDA stream: a number, or what torch, CuPy and Numba call it."""
    if stream is None:
        return None
    if isinstance(stream, int):
        # 0 and 1 are CUDA's legacy default stream; only 1 says so everywhere.
        return stream or 1
    for name in ("cuda_stream", "ptr", "handle"):
        handle = getattr(stream, name, None)
        handle = getattr(handle, "value", handle)
        if isinstance(handle, int):
            return handle or 1
    raise InvalidArgument(f"{stream!r} is no CUDA stream")


def _gpu(device: object | None) -> int | None:
    """The ordinal of a GPU; ``None`` for the host."""
    if device is None or isinstance(device, int):
        return device
    text = str(device)
    if text == "cpu":
        return None
    found = re.fullmatch(r"cuda(?::(\d+))?", text)
    if not found:
        raise InvalidArgument(f"{text!r} is no device: cpu, cuda or cuda:N")
    # A number is needed, for no other GPU is ever touched.
    return int(found[1] or 0)
