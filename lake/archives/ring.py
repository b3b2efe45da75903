"""Recently read members, kept in memory that a process shares with the workers it starts.

A ring of bytes: a member is written behind the one before, over the oldest; a table says where each member was
last written. One budget holds for all the processes together, and what one of them read the others find, also
the next epoch's. The memory has no name, so nothing is left of it when the last process ends. Writers take a lock
that the kernel keeps: one that is killed loses it, and at most the bytes it was writing. Readers take none: they
copy, and look afterwards whether what they copied was still whole. So a number that they look at must never be
half written: it is an item of a view, which is written in one piece (`struct` zeroes the bytes first).
"""

from __future__ import annotations

import mmap
import multiprocessing.context
import os
import tempfile
import weakref
from dataclasses import dataclass
from typing import Any

from lake.archives.locks import Lock

try:
    import fcntl
except ImportError:  # Windows: the ring is not shared there
    fcntl = None  # type: ignore[assignment]

_WRITTEN, _SEEN = range(2)  # numbers at the start: bytes ever written, processes ever seen
_COUNTS = 2  # where the hits and misses of each process follow
_SLOTS = 64  # of counts; a later process goes on with the counts of an earlier one
_PLACES = (
    _COUNTS + 2 * _SLOTS
)  # where it follows of each member: 1 + bytes written before it; 0: never written
_NUMBER = 8  # bytes of a number


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
        self._data = _NUMBER * (_PLACES + len(sizes))
        self._fd = _memory(self._data + budget) if fd is None else fd
        self._close = weakref.finalize(self, os.close, self._fd)
        self._map = mmap.mmap(self._fd, self._data + budget)
        self._numbers = memoryview(self._map)[: self._data].cast("q")
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
        place = self._numbers[_PLACES + number] - 1
        data = None
        if place >= 0:
            at = self._data + place % self._budget
            data = self._map[at : at + self._sizes[number]]
            with self._fence:  # copied before we look whether a writer has begun to write over it
                written = self._numbers[_WRITTEN]
            if written - place > self._budget:
                data = None
        with self._lock:
            self._numbers[self._slot + (data is None)] += 1
        return data

    def put(self, number: int, data: bytes) -> None:
        """Keep a member's bytes, in place of the oldest."""
        if not 0 < len(data) <= self._budget:
            return
        with self._lock:
            if fcntl is not None:
                fcntl.lockf(self._fd, fcntl.LOCK_EX, 1)
            try:
                written = self._numbers[_WRITTEN]
                at = written % self._budget
                if at + len(data) > self._budget:  # in one piece: the rest of this round stays empty
                    written, at = written + self._budget - at, 0
                self._numbers[_WRITTEN] = written + len(data)
                with self._fence:  # all see that the old bytes are void before they change
                    self._map[self._data + at : self._data + at + len(data)] = data
                self._numbers[_PLACES + number] = written + 1
            finally:
                if fcntl is not None:
                    fcntl.lockf(self._fd, fcntl.LOCK_UN, 1)

    @property
    def counters(self) -> Counters:
        """Hits and misses so far."""
        counts = self._numbers[_COUNTS:_PLACES].tolist()
        return Counters(sum(counts[::2]), sum(counts[1::2]))

    def _enter(self) -> None:
        """Find this process a place to count."""
        with self._lock:
            if fcntl is not None:
                fcntl.lockf(self._fd, fcntl.LOCK_EX, 1)
            seen = self._numbers[_SEEN]
            self._numbers[_SEEN] = seen + 1
            if fcntl is not None:
                fcntl.lockf(self._fd, fcntl.LOCK_UN, 1)
            self._slot = _COUNTS + 2 * (seen % _SLOTS)
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
