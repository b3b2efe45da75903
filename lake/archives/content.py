"""What an opened archive can do with its members, by number, whatever its format: the seam between formats."""

from __future__ import annotations

import io
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol, TypeVar

from lake.archives.table import Member, Table

CHUNK = 1 << 20
_RUN, _RUN_BYTES = 256, 8 << 20  # members, and their bytes, that are read at once on the way forward

T = TypeVar("T")
Found = TypeVar("Found")


class Where(Protocol):
    """Where an archive lies."""

    name: str  # as the user called it
    size: int  # bytes


class Content(Protocol):
    """An archive of one format. Pickles; everything may be called from any thread."""

    table: Table

    @property
    def place(self) -> Where:
        """Where the archive lies."""

    def dear(self, number: int) -> bool:
        """Whether reading the member again costs much more than a copy, so that it is worth keeping."""

    def member(self, number: int) -> Member:
        """What is known of a member."""

    def read(self, number: int) -> bytes:
        """The member's bytes, checked as far as the format has checksums."""

    def read_many(self, numbers: Sequence[int]) -> list[bytes]:
        """The same for several, reading what lies close together at once."""

    def forward(self) -> Iterator[bytes]:
        """All members, one after the other."""

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


def runs(sizes: Sequence[int], most: int = _RUN, most_bytes: int = _RUN_BYTES) -> Iterator[range]:
    """All members in runs, small in number and in bytes.

    >>> [*runs([1 << 20, 9 << 20, 1, 1])]
    [range(0, 1), range(1, 2), range(2, 4)]
    """
    first, size = 0, 0
    for number, more in enumerate(sizes):
        if number > first and (number - first == most or size + more > most_bytes):
            yield range(first, number)
            first, size = number, 0
        size += more
    if first < len(sizes):
        yield range(first, len(sizes))


def ahead(call: Callable[[T], Found], items: Iterable[T], threads: int) -> Iterator[Found]:
    """What `call` makes of each item, in order; made up to `threads` items ahead by as many threads."""
    with ThreadPoolExecutor(threads, thread_name_prefix="lake-archive") as pool:
        coming: deque[Future[Found]] = deque()
        try:
            for item in items:
                coming.append(pool.submit(call, item))
                if len(coming) > threads:
                    yield coming.popleft().result()
            while coming:
                yield coming.popleft().result()
        finally:
            pool.shutdown(cancel_futures=True)


def cut(chunks: Iterator[bytes], spans: Iterable[tuple[int, int]]) -> Iterator[bytes]:
    """The spans, ascending, of what the chunks make together.

    >>> [*cut(iter([b"abc", b"def"]), [(1, 2), (2, 5), (5, 5)])]
    [b'b', b'cde', b'']
    """
    data, begin, end = b"", 0, 0
    for start, stop in spans:
        if begin <= start and stop <= end:
            yield data[start - begin : stop - begin]
            continue
        parts, at = [], start
        while at < stop:
            if at >= end:
                begin = end
                data = next(chunks, b"")
                end += len(data)
                if not data:
                    raise EOFError("it was longer when it was opened")
                continue
            parts.append(data[at - begin : stop - begin])
            at += len(parts[-1])
        yield b"".join(parts)
