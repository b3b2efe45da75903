"""Recently read members, kept in memory that a process shares with the workers it starts.

A ring of bytes: a member is written behind the one before, over the oldest; a table says where each member was
last written. One budget holds for all the processes together, and what one of them read the others find, also
the next epoch's. The memory has no name, so nothing is left of it when the last process ends. A lock that the
kernel keeps guards it: a process that is killed loses its lock, and at most the bytes it was writing.
"""

from __future__ import annotations

import mmap
import multiprocessing.context
import os
import struct
import tempfile
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from lake.archives.locks import Lock

try:
    import fcntl
except ImportError:  # Windows: the ring is not shared there
    fcntl = None  # type: ignore[assignment]

_HEAD = struct.Struct("<3q")  # bytes ever written, hits, misses
_PLACE = struct.Struct("<q")  # of a member: 1 + bytes written before it; 0: never written


@dataclass(frozen=True, slots=True)
class Counters:
    """What was asked of the kept members, by all processes together."""

    hits: int
    misses: int


class Ring:
    """The last members read, within `budget` bytes."""

    def __init__(self, budget: int, sizes: Any) -> None:
        self._budget, self._sizes = budget, sizes
        self._data = _HEAD.size + _PLACE.size * len(sizes)
        self._attach(_memory(self._data + budget))

    def _attach(self, fd: int) -> None:
        self._fd = fd
        self._close = weakref.finalize(self, os.close, fd)
        self._map = mmap.mmap(fd, self._data + self._budget)
        self._lock = Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        if multiprocessing.context.get_spawning_popen() is None or fcntl is None:
            return Ring, (self._budget, self._sizes)
        from multiprocessing.reduction import DupFd

        return _attached, (self._budget, self._sizes, DupFd(self._fd))

    def get(self, number: int) -> bytes | None:
        """A member's bytes, if they have not been written over."""
        size = self._sizes[number]
        if size > self._budget:
            return None
        with self._alone():
            written, hits, misses = _HEAD.unpack_from(self._map)
            (place,) = _PLACE.unpack_from(self._map, _HEAD.size + _PLACE.size * number)
            found = place and written - (place - 1) <= self._budget
            data = self._copy(place - 1, size) if found else None
            _HEAD.pack_into(self._map, 0, written, hits + bool(found), misses + (not found))
        return data

    def put(self, number: int, data: bytes) -> None:
        """Keep a member's bytes, in place of the oldest."""
        if not 0 < len(data) <= self._budget:
            return
        with self._alone():
            written, hits, misses = _HEAD.unpack_from(self._map)
            at = written % self._budget
            if at + len(data) > self._budget:  # in one piece: the rest of this round stays empty
                written, at = written + self._budget - at, 0
            _HEAD.pack_into(self._map, 0, written + len(data), hits, misses)
            self._map[self._data + at : self._data + at + len(data)] = data
            _PLACE.pack_into(self._map, _HEAD.size + _PLACE.size * number, written + 1)

    @property
    def counters(self) -> Counters:
        """Hits and misses so far."""
        with self._alone():
            _, hits, misses = _HEAD.unpack_from(self._map)
        return Counters(hits, misses)

    def _copy(self, place: int, size: int) -> bytes:
        at = self._data + place % self._budget
        return self._map[at : at + size]

    @contextmanager
    def _alone(self) -> Iterator[None]:
        with self._lock:
            if fcntl is not None:
                fcntl.lockf(self._fd, fcntl.LOCK_EX, 1)
            try:
                yield
            finally:
                if fcntl is not None:
                    fcntl.lockf(self._fd, fcntl.LOCK_UN, 1)


def _attached(budget: int, sizes: Any, handle: Any) -> Ring:
    found = Ring.__new__(Ring)
    found._budget, found._sizes = budget, sizes
    found._data = _HEAD.size + _PLACE.size * len(sizes)
    found._attach(handle.detach())
    return found


def _memory(size: int) -> int:
    """An open file of zeros that no name leads to and that takes room only where it is written."""
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("lake-archive")
    else:
        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
    os.ftruncate(fd, size)
    return fd
