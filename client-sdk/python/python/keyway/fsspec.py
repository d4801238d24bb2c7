"""An fsspec filesystem: ``fsspec.open("keyway://bucket/key", endpoint=…)``.

Options of the filesystem are those of `keyway.Client`. Ranges of one file asked for together
(``cat_ranges``) travel together. A file that is written is kept in memory, and on disk when it
is large, until it is closed; then it becomes visible whole.
"""

from __future__ import annotations

import datetime
import mmap
import tempfile
from collections.abc import Sequence
from typing import Any, ClassVar

from fsspec.spec import AbstractBufferedFile, AbstractFileSystem

from keyway.client import Client
from keyway.errors import NotFound, ServiceError

#: A written file of more bytes waits on disk.
_SPOOL_BYTES = 64 << 20
#: Bytes that a copy from or to a file system keeps in memory.
_COPY_BYTES = 64 << 20


class KeywayFileSystem(AbstractFileSystem):
    """Objects as files, prefixes as folders, buckets as the folders at the top."""

    protocol: ClassVar[tuple[str, ...]] = ("keyway",)
    root_marker = ""

    def __init__(self, client: Client | None = None, **options: Any) -> None:
        ours = {name: options.pop(name) for name in _CLIENT_OPTIONS & options.keys()}
        super().__init__(**options)
        self._client = client or Client(**ours)

    @classmethod
    def _strip_protocol(cls, path: str | list[str]) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(one) for one in path]
        for scheme in ("keyway://", "s3://"):
            path = path.removeprefix(scheme)
        return path.strip("/")

    def _url(self, path: str) -> str:
        return f"s3://{self._strip_protocol(path)}"

    def _split(self, path: str) -> tuple[str, str]:
        bucket, _, key = self._strip_protocol(path).partition("/")
        return bucket, key

    # What is there

    def ls(self, path: str, detail: bool = True, **kwargs: Any) -> list[Any]:
        path = self._strip_protocol(path)
        if not path:
            found = [_folder(name) for name in self._client.buckets()]
        else:
            found = self._children(path)
            if not found:
                bucket, key = self._split(path)
                if key:
                    found = [self._object(path)]
                else:
                    # An empty bucket, or none: the listing has told.
                    del bucket
        return found if detail else sorted(entry["name"] for entry in found)

    def _children(self, path: str) -> list[dict[str, Any]]:
        bucket, key = self._split(path)
        prefix = f"{key}/" if key else ""
        entries = self._client.list(f"s3://{bucket}/{prefix}", delimiter="/")
        return [
            _folder(f"{bucket}/{entry.key.rstrip('/')}")
            if entry.is_prefix
            else _file(f"{bucket}/{entry.key}", entry.size, entry.etag, entry.modified)
            for entry in entries
            if entry.key != prefix
        ]

    def _object(self, path: str) -> dict[str, Any]:
        info = self._client.head(self._url(path))
        return _file(path, info.size, info.etag, info.modified)

    def info(self, path: str, **kwargs: Any) -> dict[str, Any]:
        path = self._strip_protocol(path)
        bucket, key = self._split(path)
        if key:
            try:
                return self._object(path)
            except NotFound:
                pass
        elif not bucket:
            return _folder("")
        below = self._client.list(f"s3://{bucket}/{key}/" if key else f"s3://{bucket}/")
        if key and next(below, None) is None:
            raise FileNotFoundError(path)
        if not key:
            next(below, None)
        return _folder(path)

    def created(self, path: str) -> datetime.datetime:
        return self.modified(path)

    def modified(self, path: str) -> datetime.datetime:
        at = self.info(path).get("mtime")
        if at is None:
            raise FileNotFoundError(f"{path} has no time")
        return datetime.datetime.fromtimestamp(at, datetime.UTC)

    def checksum(self, path: str) -> int:
        return hash(self.info(path).get("etag"))

    # Bytes

    def cat_file(
        self, path: str, start: int | None = None, end: int | None = None, **kwargs: Any
    ) -> bytes:
        span = self._span(path, start, end)
        if span is not None and span[1] == 0:
            return b""
        return bytes(self._client.get(self._url(path), range=span))

    def _span(self, path: str, start: int | None, end: int | None) -> tuple[int, int] | None:
        if not start and end is None:
            return None
        size = self.info(path)["size"]
        first, last, _ = slice(start, end).indices(size)
        return first, max(0, last - first)

    def cat_ranges(
        self,
        paths: Sequence[str],
        starts: Any,
        ends: Any,
        max_gap: int | None = None,
        on_error: str = "return",
        **kwargs: Any,
    ) -> list[Any]:
        count = len(paths)
        starts = list(starts) if isinstance(starts, (list, tuple)) else [starts] * count
        ends = list(ends) if isinstance(ends, (list, tuple)) else [ends] * count
        results: list[Any] = [b""] * count
        per_path: dict[str, list[int]] = {}
        for index, path in enumerate(paths):
            per_path.setdefault(self._url(path), []).append(index)
        for url, indices in per_path.items():
            try:
                size = self._client.head(url).size
                wanted = []
                for index in indices:
                    first, last, _ = slice(starts[index], ends[index]).indices(size)
                    results[index] = bytearray(max(0, last - first))
                    if results[index]:
                        wanted.append((first, results[index]))
                if wanted:
                    self._client.get_ranges(url, wanted)
                for index in indices:
                    results[index] = bytes(results[index])
            except Exception as error:
                if on_error == "raise":
                    raise
                for index in indices:
                    results[index] = error
        return results

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **kwargs: Any) -> None:
        self._client.put(self._url(path), value, if_absent=mode == "create")

    def get_file(self, rpath: str, lpath: Any, callback: Any = None, **kwargs: Any) -> None:
        if hasattr(lpath, "write"):
            lpath.write(memoryview(self._client.get(self._url(rpath))))
            return
        if self.isdir(rpath):
            import os

            os.makedirs(lpath, exist_ok=True)
            return
        size = self._client.head(self._url(rpath)).size
        with open(lpath, "wb+") as file:
            if size:
                file.truncate(size)
                with mmap.mmap(file.fileno(), size) as memory:
                    self._client.get_into(self._url(rpath), memory)

    def put_file(
        self, lpath: str, rpath: str, callback: Any = None, mode: str = "overwrite", **kwargs: Any
    ) -> None:
        import os

        if os.path.isdir(lpath):
            return
        with open(lpath, "rb") as file:
            if os.fstat(file.fileno()).st_size <= _COPY_BYTES:
                data: Any = file.read()
                self._client.put(self._url(rpath), data, if_absent=mode == "create")
                return
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as memory:
                self._client.put(self._url(rpath), memory, if_absent=mode == "create")

    def _open(
        self,
        path: str,
        mode: str = "rb",
        block_size: int | str | None = None,
        autocommit: bool = True,
        cache_options: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> Any:
        if mode == "rb":
            return _Read(
                self, path, mode, block_size or "default", cache_options=cache_options, **kwargs
            )
        if mode in ("wb", "xb"):
            return _Write(self._client, self._url(path), if_absent=mode == "xb")
        raise ValueError(f"objects are read (rb) or written whole (wb, xb), not {mode}")

    # Changes

    def _rm(self, path: str) -> None:
        self._client.delete(self._url(path))

    rm_file = _rm

    def rm(
        self, path: str | list[str], recursive: bool = False, maxdepth: int | None = None
    ) -> None:
        per_bucket: dict[str, list[str]] = {}
        for one in self.expand_path(path, recursive=recursive, maxdepth=maxdepth):
            bucket, key = self._split(one)
            if key:
                per_bucket.setdefault(bucket, []).append(key)
        for bucket, keys in per_bucket.items():
            stayed = self._client.delete_many(bucket, keys)
            if stayed:
                key, code, message = stayed[0]
                raise ServiceError(f"{len(stayed)} objects stayed, such as {key}: {code} {message}")

    def cp_file(self, path1: str, path2: str, **kwargs: Any) -> None:
        if self._split(path1)[1] and not self.isdir(path1):
            self._client.copy(self._url(path1), self._url(path2))

    def mkdir(self, path: str, create_parents: bool = True, **kwargs: Any) -> None:
        bucket, key = self._split(path)
        if not key and bucket not in self._client.buckets():
            self._client.create_bucket(bucket)

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        if self._split(path)[0] not in self._client.buckets():
            self.mkdir(self._split(path)[0])

    def rmdir(self, path: str) -> None:
        bucket, key = self._split(path)
        if not key:
            self._client.delete_bucket(bucket)


class _Read(AbstractBufferedFile):
    """A file that is read by ranges, all of the version that was there when it was opened."""

    def _fetch_range(self, start: int, end: int) -> bytes:
        if end <= start:
            return b""
        client: Client = self.fs._client
        url = self.fs._url(self.path)
        span = (start, end - start)
        return bytes(client.get(url, range=span, if_match=self.details.get("etag")))


class _Write(tempfile.SpooledTemporaryFile[bytes]):
    """A file that becomes an object when it is closed, unless an exception closes it."""

    def __init__(self, client: Client, url: str, *, if_absent: bool) -> None:
        super().__init__(max_size=_SPOOL_BYTES)
        self._client, self._url, self._if_absent = client, url, if_absent

    def __exit__(self, kind: Any, value: Any, trace: Any) -> None:
        if kind is None:
            self.close()
        else:
            super().close()

    def close(self) -> None:
        if self.closed:
            return
        try:
            self.seek(0, 2)
            if self.tell() <= _SPOOL_BYTES:
                self.seek(0)
                self._client.put(self._url, self.read(), if_absent=self._if_absent)
            else:
                self.flush()
                with mmap.mmap(self.fileno(), 0, access=mmap.ACCESS_READ) as memory:
                    self._client.put(self._url, memory, if_absent=self._if_absent)
        finally:
            super().close()


_CLIENT_OPTIONS = set(Client.__init__.__annotations__) - {"return"}


def _folder(name: str) -> dict[str, Any]:
    return {"name": name, "size": 0, "type": "directory"}


def _file(name: str, size: int | None, etag: str | None, modified: float | None) -> dict[str, Any]:
    return {"name": name, "size": size, "type": "file", "etag": etag, "mtime": modified}
