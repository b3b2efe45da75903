"""Recently read members, kept in memory that a process shares with the workers it starts.

A ring of bytes: a member is written behind the one before, over the oldest; a table says where each member was
last written. One budget holds for all the processes together, and what one of them read the others find, also
the next epoch's. The memory has no name, so nothing is left of it when the last process ends. Writers take a lock
that the kernel keeps: one that is killed loses it, and at most the bytes it was writing. Readers take none: they
copy, and look afterwards whether what they copied was still whole.
"""

from __future__ import annotations

import mmap
import multiprocessing.context
import os
import struct
import tempfile
import weakref
from dataclasses import dataclass
from typing import Any

from lake.archives.locks import Lock

try:
    import fcntl
except ImportError:  # Windows: the ring is not shared there
    fcntl = None  # type: ignore[assignment]

_HEAD = struct.Struct("<2q")  # bytes ever written, processes ever seen
_COUNT = struct.Struct("<2q")  # hits and misses of a process
_SLOTS = 64  # of counts; a later process goes on with the counts of an earlier one
_PLACE = struct.Struct("<q")  # of a member: 1 + bytes written before it; 0: never written
_PLACES = _HEAD.size + _SLOTS * _COUNT.size


@dataclass(frozen=True, slots=True)
class Counters:
    """What was asked of the kept members, by all processes together."""

    hits: int
    misses: int


class Ring:
    """The last members read, within `budget` bytes."""

    def __init__(self, budget: int, sizes: Any) -> None:
        self._prepare(budget, sizes, None)

    def _prepare(self, budget: int, sizes: Any, fd: int | None) -> None:
        self._budget, self._sizes = budget, sizes
        self._data = _PLACES + _PLACE.size * len(sizes)
        self._fd = _memory(self._data + budget) if fd is None else fd
        self._close = weakref.finalize(self, os.close, self._fd)
        self._map = mmap.mmap(self._fd, self._data + budget)
        self._lock, self._fence = Lock(), Lock()
        self._slot, self._pid = 0, 0

    def __reduce__(self) -> tuple[Any, ...]:
        if multiprocessing.context.get_spawning_popen() is None or fcntl is None:
            return Ring, (self._budget, self._sizes)
        from multiprocessing.reduction import DupFd

        return _attached, (self._budget, self._sizes, DupFd(self._fd))

    def get(self, number: int) -> bytes | None:
        """A member's bytes, if they have not been written over."""
        if self._pid != os.getpid():
            self._enter()
        place = _PLACE.unpack_from(self._map, _PLACES + _PLACE.size * number)[0] - 1
        data = None
        if place >= 0:
            at = self._data + place % self._budget
            data = self._map[at : at + self._sizes[number]]
            with self._fence:  # copied before we look whether a writer has begun to write over it
                written = _HEAD.unpack_from(self._map)[0]
            if written - place > self._budget:
                data = None
        with self._lock:
            hits, misses = _COUNT.unpack_from(self._map, self._slot)
            _COUNT.pack_into(self._map, self._slot, hits + (data is not None), misses + (data is None))
        return data

    def put(self, number: int, data: bytes) -> None:
        """Keep a member's bytes, in place of the oldest."""
        if not 0 < len(data) <= self._budget:
            return
        with self._lock:
            if fcntl is not None:
                fcntl.lockf(self._fd, fcntl.LOCK_EX, 1)
            try:
                written, seen = _HEAD.unpack_from(self._map)
                at = written % self._budget
                if at + len(data) > self._budget:  # in one piece: the rest of this round stays empty
                    written, at = written + self._budget - at, 0
                _HEAD.pack_into(self._map, 0, written + len(data), seen)
                with self._fence:  # all see that the old bytes are void before they change
                    self._map[self._data + at : self._data + at + len(data)] = data
                _PLACE.pack_into(self._map, _PLACES + _PLACE.size * number, written + 1)
            finally:
                if fcntl is not None:
                    fcntl.lockf(self._fd, fcntl.LOCK_UN, 1)

    @property
    def counters(self) -> Counters:
        """Hits and misses so far."""
        counts = [_COUNT.unpack_from(self._map, _HEAD.size + i * _COUNT.size) for i in range(_SLOTS)]
        return Counters(sum(hits for hits, _ in counts), sum(misses for _, misses in counts))

    def _enter(self) -> None:
        """Find this process a place to count."""
        with self._lock:
            if fcntl is not None:
                fcntl.lockf(self._fd, fcntl.LOCK_EX, 1)
            written, seen = _HEAD.unpack_from(self._map)
            _HEAD.pack_into(self._map, 0, written, seen + 1)
            if fcntl is not None:
                fcntl.lockf(self._fd, fcntl.LOCK_UN, 1)
            self._slot = _HEAD.size + seen % _SLOTS * _COUNT.size
            self._pid = os.getpid()


def _attached(budget: int, sizes: Any, handle: Any) -> Ring:
    found = Ring.__new__(Ring)
    found._prepare(budget, sizes, handle.detach())
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
