"""What an opened archive can do with its members, by number, whatever its format: the seam between formats."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from lake.archives.table import Member, Table

CHUNK = 1 << 20


class Content(Protocol):
    """An archive of one format. Pickles; everything may be called from any thread."""

    table: Table
    costly: bool  # whether a read costs more than a copy, so that members are worth keeping

    def member(self, number: int) -> Member:
        """What is known of a member."""

    def read(self, number: int) -> bytes:
        """The member's bytes, checked as far as the format has checksums."""

    def read_many(self, numbers: Sequence[int]) -> list[bytes]:
        """The same for several, reading what lies close together at once."""

    def chunks(self, number: int) -> Iterator[bytes]:
        """The member's bytes in pieces of at most 1 MiB; the checks are done when it ends."""

    def close(self) -> None:
        """Let go of what is open."""


class Chunks(io.RawIOBase):
    """A file, forward only, of what an iterator gives."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        super().__init__()
        self._chunks, self._rest = chunks, memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        while not self._rest:
            chunk = next(self._chunks, None)
            if chunk is None:
                return 0
            self._rest = memoryview(chunk)
        count = min(len(view), len(self._rest))
        view[:count], self._rest = self._rest[:count], self._rest[count:]
        return count


def coalesce(spans: Sequence[tuple[int, int]], gap: int, most: int) -> Iterator[tuple[int, int, list[int]]]:
    """Spans as (start, end, which) of the reads that cover them: neighbours up to `gap` bytes apart together.

    >>> list(coalesce([(90, 95), (0, 10), (12, 20)], gap=5, most=100))
    [(0, 20, [1, 2]), (90, 95, [0])]
    """
    start = end = -1
    which: list[int] = []
    for number in sorted(range(len(spans)), key=spans.__getitem__):
        a, b = spans[number]
        if which and a <= end + gap and max(b, end) - start <= most:
            end = max(b, end)
            which.append(number)
            continue
        if which:
            yield start, end, which
        start, end, which = a, b, [number]
    if which:
        yield start, end, which
