"""Where an archive's bytes lie: a local file or an object in a bucket, read by position. Knows no format.

Nothing is shared between reads but the place itself, so any number of threads and forked processes may read at
once. A place pickles to its name, and notices when the file behind that name is no longer the same one.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

from lake import config
from lake.archives.content import CHUNK, ahead
from lake.errors import ArchiveError, NotFoundError
from lake.stores import Store, open_store

_FLAGS = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
_REQUEST = 4 << 20  # bytes of one request of many
_MOST_AT_ONCE = 1 << 30  # Linux reads at most 2 GiB a call, macOS fails above


class Bytes(Protocol):
    """Bytes that are read by position, from any thread, or all of them from the start."""

    def read_at(self, start: int, length: int) -> bytes:
        """Exactly these bytes, or an ArchiveError."""

    def stream(self) -> Iterator[bytes]:
        """All of them, in pieces."""


class Place(Bytes, Protocol):
    """A file of known size."""

    name: str  # as the user called it
    size: int
    remote: bool  # whether each read is a request
    identity: str  # another file, or another state of it, has another

    def close(self) -> None:
        """Let go of it; a later read raises `ValueError`."""


def open_place(path: str | os.PathLike[str], **access: Any) -> Place:
    """The file at a path, or what is at an `s3://`, `http://` or `https://` URL.

    Raises:
        NotFoundError: there is none.
    """
    text = os.fspath(path)
    scheme, found, rest = text.partition("://")
    if not found or scheme == "file":
        return LocalFile(text if not found else "/" + rest.partition("/")[2])
    if scheme in ("http", "https"):
        from lake.archives.web import WebFile

        return WebFile(text)
    bucket, _, key = rest.partition("/")
    if scheme != "s3" or not key:
        raise ValueError(f"no archive: {text!r} (a path, s3://bucket/key or https://...)")
    settings = config.resolve(**access)
    store = open_store(
        f"s3://{bucket}",
        endpoint_url=settings.endpoint_url,
        region=settings.region,
        anonymous=settings.anonymous,
    )
    return StoredObject(store, key)


class LocalFile:
    """A file, held open: it stays readable when its name is given to another."""

    remote = False

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.name = os.fspath(path)
        self._path = str(Path(path).absolute())
        try:
            self._fd = os.open(self._path, _FLAGS)
        except FileNotFoundError:
            raise NotFoundError(f"no archive {self.name!r} (in {Path.cwd()})") from None
        self._close = weakref.finalize(self, os.close, self._fd)
        found = os.fstat(self._fd)
        self.size = found.st_size
        self.identity = f"{self._path}|{found.st_ino}|{found.st_size}|{found.st_mtime_ns}"
        self._lock = None if hasattr(os, "pread") else threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen, (self.name, self._path, self.identity)

    def read_at(self, start: int, length: int) -> bytes:
        """Exactly these bytes, in one system call for anything below 1 GiB."""
        data = self._read(start, length if length < _MOST_AT_ONCE else _MOST_AT_ONCE)
        return data if len(data) == length else self._rest(start, length, data)

    def stream(self) -> Iterator[bytes]:
        """The file, in pieces."""
        return (self.read_at(at, min(CHUNK, self.size - at)) for at in range(0, self.size, CHUNK))

    def close(self) -> None:
        """Let go of the file."""
        self._fd = -1
        self._close()

    def _rest(self, start: int, length: int, data: bytes) -> bytes:
        pieces = [data]
        while pieces[-1] and (left := length - sum(map(len, pieces))):
            pieces.append(self._read(start + length - left, min(left, _MOST_AT_ONCE)))
        if not pieces[-1]:
            raise _short(self.name, start, length)
        return b"".join(pieces)

    def _read(self, start: int, length: int) -> bytes:
        if self._fd < 0:
            raise ValueError(f"{self.name} is closed")
        if self._lock is None:
            return os.pread(self._fd, length, start)
        with self._lock:  # Windows
            os.lseek(self._fd, start, os.SEEK_SET)
            return os.read(self._fd, length)


def _reopen(name: str, path: str, identity: str) -> LocalFile:
    found = LocalFile(path)
    if found.identity != identity:
        found.close()
        raise ArchiveError(f"{name} is not the file that was opened: somebody replaced it; open it again")
    found.name = name
    return found


class StoredObject:
    """An object in a bucket, read by ranges."""

    remote = True

    def __init__(self, store: Store, key: str) -> None:
        self._store, self._key = store, key
        self.name = f"{store.url}/{key}"
        found = store.head(key)
        if found is None:
            raise NotFoundError(
                f"no archive {self.name!r} (bucket exists: {'yes' if store.exists() else 'no'})"
            )
        self.size = found.size
        self.identity = f"{self.name}|{found.size}|{found.modified}"

    def read_at(self, start: int, length: int) -> bytes:
        """Exactly these bytes, in one request."""
        data = self._store.get_range(self._key, start, length)
        if len(data) != length:
            raise _short(self.name, start, length)
        return data

    def stream(self) -> Iterator[bytes]:
        """The object, by several requests at once."""
        starts = range(0, self.size, _REQUEST)
        return ahead(lambda at: self.read_at(at, min(_REQUEST, self.size - at)), starts, 4)

    def close(self) -> None:
        """Nothing is held."""


def _short(name: str, start: int, length: int) -> ArchiveError:
    return ArchiveError(
        f"{name} ends before byte {start + length:,}: it was cut short, or its directory lies"
    )
