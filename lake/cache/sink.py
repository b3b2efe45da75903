"""A file of known size while it is written: hashed on the way, by several threads if they like, never longer.

A full disk is not yet an error: the cache is asked to make room, and the write is repeated.
"""

from __future__ import annotations

import errno
import hashlib
import io
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Protocol

import xxhash

from lake import _os
from lake.config import format_bytes
from lake.errors import IntegrityError, StoreError

_FULL: Final = {errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC)}
_CHUNK: Final = 1 << 20  # bytes read back at once where they were not written in order

_pwrite = os.pwrite  # a test puts a quota here


class Pieces(Protocol):
    """Where the pieces of a file of known size are put, from any thread, and read again."""

    def write_at(self, start: int, data: Any) -> None:
        """Put `data` at `start`."""

    def read_at(self, start: int, length: int) -> bytes:
        """What was put there."""


class Memory:
    """Pieces in memory."""

    def __init__(self, size: int) -> None:
        self.data = bytearray(size)

    def write_at(self, start: int, data: Any) -> None:
        self.data[start : start + len(data)] = data

    def read_at(self, start: int, length: int) -> bytes:
        return bytes(self.data[start : start + length])


class Sink(io.RawIOBase):
    """Where a fetch puts a file's bytes: `write` appends, `write_at` puts a piece anywhere, from any thread.

    Write every byte once. `make_room(n)` frees disk and says whether it could.
    """

    def __init__(self, path: str, size: int, *, named: bool, make_room: Callable[[int], bool]) -> None:
        super().__init__()
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | _os.OPEN_FLAGS, 0o600)
        self.size = size
        self._path, self._make_room, self._end = path, make_room, 0
        self._hash: Any = hashlib.sha256() if named else xxhash.xxh3_128()
        self._hashed = 0
        self._pieces: dict[int, int] = {}  # start -> end of what is written but not hashed
        self._hashing = False
        self._lock = threading.Lock()

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._end

    def write(self, data: Any, /) -> int:
        """Append `data`."""
        start, length = self._end, memoryview(data).nbytes
        self.write_at(start, data)
        self._end = start + length
        return length

    def write_at(self, start: int, data: Any) -> None:
        """Put `data` at `start`.

        Raises:
            IntegrityError: it reaches beyond the file's size.
            StoreError: the disk is full of other things.
        """
        view = memoryview(data).cast("B")
        end = start + len(view)
        if not 0 <= start <= end <= self.size:
            raise IntegrityError(
                f"{Path(self._path).name}: bytes {start}-{end} of a file of {self.size} bytes"
            )
        if start == end:
            return
        self._put(view, start)
        with self._lock:
            if start == self._hashed and not self._hashing:
                mine, self._hashing = True, True
            else:
                mine = False
                self._pieces[start] = end
        if mine:  # the usual case: in order, and still at hand
            self._hash.update(view)
            self._catch_up(end)

    def read_at(self, start: int, length: int) -> bytes:
        """What was written there, until the file is released."""
        return _os.read_at(self._fd, length, start)

    def checksum(self) -> tuple[int, str]:
        """Bytes written in one run from the start, and their hash."""
        with self._lock:
            self._hashing = True
        self._catch_up(self._hashed)
        return self._hashed, self._hash.hexdigest()

    def stat(self) -> os.stat_result:
        """What the file looks like."""
        return os.fstat(self._fd)

    def release(self) -> None:
        """Close the file. `close` does not: libraries that write here call it before the cache is done."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _put(self, view: memoryview, start: int) -> None:
        while view:
            try:
                written = _pwrite(self._fd, view, start)
            except OSError as error:
                if error.errno not in _FULL:
                    raise StoreError(f"writing {self._path}: {error}") from error
                if not self._make_room(len(view)):
                    left = format_bytes(_os.available_disk(self._path))
                    raise StoreError(
                        f"the disk of {self._path} is full ({left} left), and nothing in the cache may go: "
                        "free some space, or give the cache another directory"
                    ) from error
                continue
            view, start = view[written:], start + written

    def _catch_up(self, hashed: int) -> None:
        """Hash what follows `hashed` without a gap; one thread at a time."""
        while True:
            with self._lock:
                self._hashed = hashed
                end = self._pieces.pop(hashed, hashed)
                if end == hashed:
                    self._hashing = False
                    return
            while hashed < end:
                data = _os.read_at(self._fd, min(end - hashed, _CHUNK), hashed)
                self._hash.update(data)
                hashed += len(data)
