"""Compressed tars: opened by one pass over all of them, after which they have random access.

Where a zstd file has small frames, a read decodes those that it touches. Elsewhere the decoded bytes land in
the lake's cache, in pieces, as one more pass streams by; what does not fit there can be read forward only.
Memory is bounded in either case.
"""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, cast

from lake import _os, config
from lake.archives import tar, zst
from lake.archives.content import CHUNK
from lake.archives.damage import Limits, broken, damage
from lake.archives.locks import Lock
from lake.archives.place import Place
from lake.archives.tar import Forward, TarContent
from lake.cache import Cache
from lake.cache.lease import Lease
from lake.cache.sink import Sink
from lake.config import format_bytes
from lake.errors import BudgetError

PIECE = 4 << 20  # bytes of one file in the cache
_STEP = (
    256 << 10
)  # decoded at once on the way forward: the processor's cache still has it when it is handed out
_SMALL = 2 << 20  # decoded bytes of frames that are decoded for one member
_LARGE = 64 << 20  # and of those that are where nothing better is to be had

_CODECS: dict[str, Callable[[Place], Any]] = {
    "": zst.Pull,
    "gz": lambda place: gzip.GzipFile(fileobj=cast("Any", zst.Pull(place))),
    "zst": zst.Decoder,
}


def decoded(place: Place, codec: str) -> Any:
    """The tar in a compressed file, as a stream from its start."""
    return _CODECS[codec](place)


def open_tar(place: Place, codec: str, limits: Limits, cache: Cache | None) -> TarContent:
    """The members of a tar, compressed or not (`codec` is then empty).

    Raises:
        ArchiveError: it is damaged or hostile.
    """
    if not codec:
        table = tar.index(place)
        return TarContent(place, table, place, limits, remote=place.remote, dear=place.remote)
    decoder = decoded(place, codec)
    counted = _Counted(decoder, place, limits)
    with damage(place.name):
        forward = Forward(counted, seekable=False)
        table = tar.members(forward, place.name)
        forward.drain()  # to the checksum at the end
    for name, start, size in zip(table.names, table.start, table.size, strict=True):
        if start + size > counted.done:
            raise broken(place.name, name, "the archive ends inside it")
    frames = decoder.frames if codec == "zst" else None
    if frames is not None and frames.largest <= _SMALL:
        source: Any = zst.Framed(place, frames)
    else:
        slow = zst.Framed(place, frames) if frames is not None and frames.largest <= _LARGE else None
        source = Streamed(place, codec, counted.done, min(table.start, default=0), cache, slow)
    return TarContent(place, table, source, limits, remote=False, dear=True)


class _Counted:
    """A stream that must not grow out of proportion."""

    def __init__(self, raw: Any, place: Place, limits: Limits) -> None:
        self._raw, self._place, self._limits = raw, place, limits
        self.done = 0

    def read(self, size: int) -> bytes:
        data: bytes = self._raw.read(size)
        self.done += len(data)
        self._limits.check(self.done, self._place.size, self._place.name)
        return data


class Streamed:
    """The decoded bytes of a compressed file by position, through the lake's cache.

    `slow`: another way to get them, for where the cache has no room. Without one they can then only be read
    in order, which may begin again at `first`.
    """

    def __init__(
        self, place: Place, codec: str, size: int, first: int, cache: Cache | None, slow: zst.Framed | None
    ) -> None:
        self._place, self._codec, self._size, self._first = place, codec, size, first
        self._cache, self._slow = cache, slow
        self._stream: Any = None
        self._position = 0
        self._lock = Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return Streamed, (self._place, self._codec, self._size, self._first, self._cache, self._slow)

    def read_at(self, start: int, length: int) -> bytes:
        """These bytes of the decoded file."""
        cache = self._opened()
        if cache.budget is not None and cache.budget < self._size:
            return (
                self._slow.read_at(start, length)
                if self._slow
                else self._forward(start, length, cache.budget)
            )
        found, end = [], start + length
        while start < end:
            number, at = divmod(start, PIECE)
            with self._piece(cache, number) as lease:
                found.append(_read(lease, at, min(PIECE - at, end - start)))
            start += len(found[-1])
        return found[0] if len(found) == 1 else b"".join(found)

    def stream(self) -> Iterator[bytes]:
        """All of them: from the cache if they are there, else as they are decoded; nothing lands for this."""
        lease = self._opened().peek(self._name(0))
        if lease is None:
            return zst.pieces(decoded(self._place, self._codec), _STEP)
        lease.close()
        return (self.read_at(at, min(PIECE, self._size - at)) for at in range(0, self._size, PIECE))

    def close(self) -> None:
        """Close the file."""
        self._stream = None
        self._place.close()

    def _opened(self) -> Cache:
        with self._lock:
            if self._cache is None:
                settings = config.resolve()
                self._cache = Cache(settings.cache_dir, settings.cache_budget)
            return self._cache

    # --- through the cache --------------------------------------------------------------------

    def _piece(self, cache: Cache, number: int) -> Lease:
        """A lease on a piece. If it is gone, one process lets them all land; others wait for it."""
        while True:
            lease = cache.peek(self._name(number))
            if lease is not None:
                return lease
            landed: list[Lease] = []

            def land(sink: Sink, landed: list[Lease] = landed) -> None:
                again = cache.peek(self._name(number))  # another may have let it land while we waited
                landed.append(again or self._land(cache, number))
                sink.write(b"\0")

            cache.block(f"landing {self._name(0)}", 1, land).close()
            if landed:
                return landed[0]

    def _land(self, cache: Cache, wanted: int) -> Lease:
        """Let all pieces that are not there land; the lease on one of them."""
        kept: Lease | None = None
        with damage(self._place.name):
            stream = decoded(self._place, self._codec)
            for number in range(-(-self._size // PIECE)):
                data = _exactly(stream, min(PIECE, self._size - number * PIECE))
                lease = cache.open_file(self._name(number), len(data), partial(_write, data))
                if number == wanted:
                    kept = lease
                else:
                    lease.close()
        assert kept is not None
        return kept

    def _name(self, number: int) -> str:
        text = f"{self._place.identity}|{self._codec}|{PIECE}|{number}"
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()

    # --- where there is no room ---------------------------------------------------------------

    def _forward(self, start: int, length: int, budget: int) -> bytes:
        with self._lock, damage(self._place.name):
            if self._stream is None or start <= self._first < self._position:
                self._stream, self._position = decoded(self._place, self._codec), 0
            if start < self._position:
                raise BudgetError(
                    f"reading {self._place.name} out of order keeps its {format_bytes(self._size)} in the cache, "
                    f"whose budget is {format_bytes(budget)}: `lake archive recompress {self._place.name} TO` "
                    "makes one that needs no cache; or raise cache_budget",
                    needed=self._size,
                    budget=budget,
                )
            while self._position < start:
                self._position += len(_exactly(self._stream, min(CHUNK, start - self._position)))
            data = _exactly(self._stream, length)
            self._position += length
            return data


def _exactly(stream: Any, length: int) -> bytes:
    data = stream.read(length)
    if len(data) == length:
        return bytes(data)
    parts, left = [data], length - len(data)
    while left:
        parts.append(stream.read(left))
        if not parts[-1]:
            raise EOFError("it was longer when it was opened")
        left -= len(parts[-1])
    return b"".join(parts)


def _write(data: bytes, sink: Sink) -> None:
    sink.write(data)


def _read(lease: Lease, start: int, length: int) -> bytes:
    data = _os.read_at(lease.fd, length, start)
    while len(data) < length:
        more = _os.read_at(lease.fd, length - len(data), start + len(data))
        if not more:
            raise EOFError("a cached piece was cut short")
        data += more
    return data
