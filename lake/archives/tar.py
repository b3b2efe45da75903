"""Tar archives: their members, found in one pass over the headers, and read by position. Knows no compression."""

from __future__ import annotations

import tarfile
from collections.abc import Callable, Iterator, Sequence
from operator import add, gt
from typing import Any

from lake.archives import zst
from lake.archives.content import CHUNK, coalesce, cut, runs
from lake.archives.damage import DAMAGE, Limits, broken, clean, damage
from lake.archives.place import Bytes, Place
from lake.archives.table import Member, Table
from lake.errors import ArchiveError

_HEADER_BYTES = 1 << 20  # of one extended header: more is an attack on memory
_WINDOW = 64 << 10  # bytes that are read to see a header: most often, it sees some more
_GAP, _SPAN = 64 << 10, 8 << 20  # what one request fetches together
_NEAR = 4 << 10  # bytes between members that one system call reads together
_ODD = (ValueError, LookupError, ArithmeticError, TypeError, AttributeError, RecursionError)  # of `tarfile`


class TarContent:
    """The members of a tar whose bytes can be read by position."""

    def __init__(
        self, place: Place, table: Table, source: Bytes, limits: Limits, *, remote: bool, dear: bool
    ) -> None:
        self.place, self.table, self.source, self._dear = place, table, source, dear
        self.name = place.name
        self._limits, self._remote = limits, remote

    def member(self, number: int) -> Member:
        """What is known of a member."""
        size = self.table.size[number]
        return Member(self.table.names[number], size, size, "stored")

    def dear(self, number: int) -> bool:
        """Whether the tar is far away or compressed."""
        return self._dear

    def read(self, number: int) -> bytes:
        """The member's bytes. A tar has checksums of headers only."""
        size = self._admitted(number)
        try:
            return self.source.read_at(self.table.start[number], size) if size else b""
        except DAMAGE as error:
            raise broken(self.name, self.table.names[number], str(error)) from error

    def read_many(self, numbers: Sequence[int]) -> list[bytes]:
        """The same for several, in the order in which they lie; neighbours in a bucket share a request."""
        found = [b""] * len(numbers)
        spans = [(self.table.start[n], self.table.start[n] + self._admitted(n)) for n in numbers]
        for start, end, which in coalesce(spans, _GAP if self._remote else _NEAR, _SPAN):
            within = [(spans[i][0] - start, spans[i][1] - start) for i in which]
            try:
                parts = _read_spans(self.source, start, end, within)
            except DAMAGE as error:
                raise broken(self.name, self.table.names[numbers[which[0]]], str(error)) from error
            for i, data in zip(which, parts, strict=True):
                found[i] = data
        return found

    def forward(self) -> Iterator[bytes]:
        """All members, in one pass over the tar where they lie in order."""
        starts, sizes = self.table.start, self.table.size
        if sizes:
            self._admitted(sizes.index(max(sizes)))
        ends = list(map(add, starts, sizes))
        if any(map(gt, ends, starts[1:])):  # hard links
            for run in runs(self.table.size):
                yield from self.read_many(run)
            return
        with damage(self.name):
            yield from cut(self.source.stream(), zip(starts, ends, strict=True))

    def chunks(self, number: int) -> Iterator[bytes]:
        """The member's bytes in pieces."""
        start, size = self.table.start[number], self.table.size[number]
        with damage(self.name, self.table.names[number]):
            for at in range(start, start + size, CHUNK):
                yield self.source.read_at(at, min(CHUNK, start + size - at))

    def close(self) -> None:
        """Close the file."""
        close: Callable[[], object] | None = getattr(self.source, "close", None)
        if close is not None:
            close()

    def _admitted(self, number: int) -> int:
        size = self.table.size[number]
        if size > self._limits.member:
            self._limits.check_memory(size, f"{self.table.names[number]!r} in {self.name}")
        return size


def _read_spans(source: Bytes, start: int, end: int, within: list[tuple[int, int]]) -> list[bytes]:
    """The parts `within` (ascending) of the bytes from `start` to `end`."""
    if isinstance(source, zst.Framed):
        return source.read_spans([(start + a, start + b) for a, b in within])
    blob = source.read_at(start, end - start) if end > start else b""
    return [blob[a:b] for a, b in within] if len(within) > 1 else [blob]


def index(place: Place) -> Table:
    """The members of a plain tar."""
    with damage(place.name):
        return members(Forward(_Window(place), seekable=True), place.name, place.size)


def members(stream: Forward, archive: str, size: int | None = None) -> Table:
    """The members of a tar, a hard link being another name of its target.

    `size`: bytes of the whole, where known.

    Raises:
        ArchiveError: it is damaged or hostile.
    """
    table = Table()
    links: list[tuple[str, str]] = []
    for info in headers(stream, archive):
        name = clean(info.name, archive)
        if info.isdir() or not name:
            continue
        if info.issparse():
            raise ArchiveError(f"{name!r} in {archive} is stored sparse: pack it again without --sparse")
        if info.isreg():
            if info.size < 0 or (size is not None and info.offset_data + info.size > size):
                raise broken(archive, name, "the archive ends inside it")
            table.add(name, info.offset_data, info.size)
        elif info.islnk():
            links.append((name, clean(info.linkname, archive)))
        else:
            table.skipped["link" if info.issym() else "special file"] += 1
    places = {name: number for number, name in enumerate(table.names)} if links else {}
    for name, target in links:
        if target not in places:
            raise ArchiveError(f"{name!r} in {archive} links to {target!r}, which is not in it")
        table.add(name, table.start[places[target]], table.size[places[target]])
    return table


def headers(stream: Forward, archive: str) -> Iterator[tarfile.TarInfo]:
    """The archive's headers. `tarfile` takes a damaged or missing header for the end; here it is damage."""
    name = ""
    with damage(archive, None, *_ODD), tarfile.TarFile(fileobj=stream) as tar:  # type: ignore[arg-type]
        while (info := tar.next()) is not None:
            tar.members.clear()  # type: ignore[attr-defined]  # or it keeps all of them
            name = info.name
            yield info
    after = f" after {name!r}" if name else ""
    if stream.last.strip(b"\0"):
        raise ArchiveError(f"{archive} is damaged{after}, at byte {stream.tell():,}")
    if len(stream.last) < tarfile.BLOCKSIZE:
        raise ArchiveError(f"{archive} is cut short: it ends{after} without the zeros that end a tar")


class Forward:
    """A binary stream as a file that moves forward only, and knows what it last read."""

    def __init__(self, raw: Any, *, seekable: bool) -> None:
        self._raw, self._seekable = raw, seekable
        self._position = 0
        self.last = b""

    def tell(self) -> int:
        """Bytes from the start."""
        return self._position

    def read(self, size: int) -> bytes:
        """Up to `size` bytes, all of them unless the stream ends."""
        if not 0 <= size <= _HEADER_BYTES:
            raise tarfile.ReadError(f"a header of {size:,} bytes")
        data = self._raw.read(size)
        while 0 < len(data) < size and (more := self._raw.read(size - len(data))):
            data += more
        self.last = data
        self._position += len(data)
        return self.last

    def seek(self, position: int) -> None:
        """Move on to `position`."""
        if position < self._position:
            raise tarfile.ReadError("a member of less than no bytes")
        if self._seekable:
            self._raw.seek(position)
            self._position = position
        while self._position < position and self.read(min(CHUNK, position - self._position)):
            pass

    def drain(self) -> None:
        """Read to the end, where a checksum may be."""
        while self._raw.read(CHUNK):
            pass


class _Window:
    """A place as a file that reads a little ahead."""

    def __init__(self, place: Place) -> None:
        self._place, self._position = place, 0
        self._start, self._data = 0, b""

    def seek(self, position: int) -> None:
        self._position = position

    def read(self, size: int) -> bytes:
        at = self._position - self._start
        if not 0 <= at <= at + size <= len(self._data):
            left = max(0, self._place.size - self._position)
            self._start, at = self._position, 0
            self._data = self._place.read_at(self._start, min(max(size, _WINDOW), left)) if left else b""
        data = self._data[at : at + size]
        self._position += len(data)
        return data
