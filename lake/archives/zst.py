"""The frames of a zstd file, told apart as it streams by: where each begins, in the file and decoded.

A frame is decoded without what comes before it, so a file of many has random access. The borders are in the
block headers, which are cheap to follow; python-zstandard does not tell where it stopped.
"""

from __future__ import annotations

import threading
from array import array
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import zstandard

from lake.archives.content import CHUNK, ahead, runs
from lake.archives.locks import Lock
from lake.archives.place import Place
from lake.errors import ArchiveError

WINDOW = 1 << 27  # bytes: what `zstd -d` takes without being asked, and the memory that decoding needs
_MAGIC = 0xFD2FB528
_SKIPPABLE = 0x184D2A50  # and the next 15
_KEPT_BYTES = 64 << 20  # of decoded frames
_RUN = 4  # frames that are read and decoded at once: few, so that the processor's cache holds them
_RUN_BYTES = 2 << 20  # of frames that are read at once
_KEPT = 4  # decoded frames
_thread = threading.local()


@dataclass(slots=True)
class Frames:
    """Where the frames of a file begin and end, in it and decoded."""

    starts: array[int] = field(default_factory=lambda: array("q"))
    ends: array[int] = field(default_factory=lambda: array("q"))
    decoded: array[int] = field(default_factory=lambda: array("q"))  # starts, and where the last one ends

    @property
    def largest(self) -> int:
        """Decoded bytes of the largest frame."""
        return max((b - a for a, b in zip(self.decoded, self.decoded[1:], strict=False)), default=0)


class Pull:
    """A place as a stream of bytes, read ahead in large pieces."""

    def __init__(self, place: Place, start: int = 0, ahead: int = CHUNK) -> None:
        self._place, self._next, self._ahead = place, start, ahead
        self._data, self._at = b"", 0

    @property
    def position(self) -> int:
        """Of the next byte, in the file."""
        return self._next - len(self._data) + self._at

    def fill(self, count: int) -> bool:
        """Have `count` bytes at hand; False if the file ends before."""
        if len(self._data) - self._at < count:
            length = min(max(self._ahead, count), self._place.size - self._next)
            more = self._place.read_at(self._next, length) if length > 0 else b""
            self._data, self._at = self._data[self._at :] + more, 0
            self._next += len(more)
        return len(self._data) - self._at >= count

    def peek(self, count: int, behind: int = 0) -> int:
        """The number in the next `count` bytes, which are at hand."""
        at = self._at + behind
        return int.from_bytes(self._data[at : at + count], "little")

    def take(self, count: int) -> bytes:
        """Up to `count` bytes; none at the end."""
        if self._at >= len(self._data):
            self.fill(1)
        data = self._data[self._at : self._at + count]
        self._at += len(data)
        return data

    def read(self, count: int = -1) -> bytes:
        """As a file does it."""
        return self.take(count if count >= 0 else CHUNK)


class _Frame:
    """Exactly the bytes of the frame that begins where `pull` is."""

    def __init__(self, pull: Pull) -> None:
        self._pull = pull
        self._left = _header_bytes(pull)  # bytes until the next block header
        self._checksum = 4 if pull.peek(1, 4) & 4 else 0
        self._last = False

    def read(self, count: int) -> bytes:
        """Up to `count` bytes, of one block at most; none at the end of the frame."""
        if not self._left and not self._next_block():
            return b""
        data = self._pull.take(min(self._left, count))
        if not data:
            raise EOFError("the last zstd frame has no end")
        self._left -= len(data)
        return data

    def _next_block(self) -> bool:
        if self._last:
            return False
        if not self._pull.fill(3):
            raise EOFError("the last zstd frame has no end")
        header = self._pull.peek(3)
        self._last = bool(header & 1)
        self._left = 3 + (1 if header >> 1 & 3 == 1 else header >> 3) + (self._checksum if self._last else 0)
        return True


def _header_bytes(pull: Pull) -> int:
    if not pull.fill(5):
        raise EOFError("the last zstd frame has no header")
    flags = pull.peek(1, 4)
    single = flags >> 5 & 1
    size = (single, 2, 4, 8)[flags >> 6]
    return 5 + (1 - single) + (0, 1, 2, 4)[flags & 3] + size


class Decoder:
    """The decoded bytes of a whole zstd file as a stream, whose frames are known as far as it was read."""

    def __init__(self, place: Place) -> None:
        self.frames = Frames()
        self._pull = Pull(place, ahead=4 * CHUNK if place.remote else CHUNK)
        self._reader: Any = None
        self._done = 0
        self._context = zstandard.ZstdDecompressor(max_window_size=WINDOW)

    def read(self, size: int = CHUNK) -> bytes:
        """Up to `size` bytes; none at the end."""
        while True:
            if self._reader is None and not self._next_frame():
                return b""
            data: bytes = self._reader.read(size)
            if data:
                self._done += len(data)
                return data
            self._reader = None
            self.frames.ends.append(self._pull.position)

    def _next_frame(self) -> bool:
        pull = self._pull
        while pull.fill(8) and 0 <= pull.peek(4) - _SKIPPABLE < 16:
            left = 8 + pull.peek(4, 4)
            while left:
                data = pull.take(min(left, CHUNK))
                if not data:
                    raise EOFError("the last zstd frame has no end")
                left -= len(data)
        if not pull.fill(1):
            self.frames.decoded.append(self._done)
            return False
        self.frames.starts.append(pull.position)
        self.frames.decoded.append(self._done)
        if not pull.fill(4) or pull.peek(4) != _MAGIC:
            raise zstandard.ZstdError("no zstd frame where one should begin")
        frame: Any = _Frame(pull)
        self._reader = self._context.stream_reader(frame, read_size=1 << 17)
        return True


class Framed:
    """The decoded bytes of a zstd file, by position: a read decodes the frames that it touches."""

    def __init__(self, place: Place, frames: Frames) -> None:
        self._place, self._frames = place, frames
        self._kept: OrderedDict[int, bytes] = OrderedDict()
        self._lock = Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return Framed, (self._place, self._frames)

    def read_at(self, start: int, length: int) -> bytes:
        """These bytes of what is in the frames."""
        decoded, end = self._frames.decoded, start + length
        pieces = []
        number = bisect_right(decoded, start) - 1
        while start < end:
            data = self._frame(number)
            at = start - decoded[number]
            pieces.append(data[at : at + end - start])
            start += len(pieces[-1])
            number += 1
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def read_spans(self, spans: Sequence[tuple[int, int]]) -> list[bytes]:
        """Several spans, ascending: every frame is decoded once, whatever is kept."""
        decoded = self._frames.decoded
        found: list[bytes] = []
        number, data, begin, end = -1, b"", 0, 0
        for start, stop in spans:
            if begin <= start and stop <= end:
                found.append(data[start - begin : stop - begin])
                continue
            parts, at = [], start
            while at < stop:
                if not begin <= at < end:
                    number = bisect_right(decoded, at) - 1
                    data, begin = self._frame(number), decoded[number]
                    end = begin + len(data)
                parts.append(data[at - begin : stop - begin])
                at += len(parts[-1])
            found.append(b"".join(parts))
        return found

    def stream(self) -> Iterator[bytes]:
        """All frames, decoded by two threads, several at a time."""
        starts = self._frames.starts
        sizes = array("q", (end - start for start, end in zip(starts, self._frames.ends, strict=True)))
        return chain.from_iterable(ahead(self._decode_run, runs(sizes, _RUN, _RUN_BYTES), 2))

    def close(self) -> None:
        """Close the file."""
        self._kept.clear()
        self._place.close()

    def _frame(self, number: int) -> bytes:
        if not 0 <= number < len(self._frames.starts):
            raise ArchiveError(f"{self._place.name} ends inside its tar")
        with self._lock:
            found = self._kept.get(number)
            if found is not None:
                self._kept.move_to_end(number)
                return found
        data = self._decode(number)
        with self._lock:
            self._kept[number] = data
            while len(self._kept) > _KEPT or (
                len(self._kept) > 1 and sum(map(len, self._kept.values())) > _KEPT_BYTES
            ):
                self._kept.popitem(last=False)
        return data

    def _decode_run(self, run: range) -> list[bytes]:
        """Neighbouring frames, read at once; without those that are empty."""
        starts, ends = self._frames.starts, self._frames.ends
        begin, end = starts[run[0]], ends[run[-1]]
        if end - begin > 2 * _RUN_BYTES:  # one large frame, or frames far apart
            return [data for number in run if (data := self._decode(number))]
        stored = memoryview(self._place.read_at(begin, end - begin))
        found = (self._decoded(n, stored[starts[n] - begin : ends[n] - begin]) for n in run)
        return [data for data in found if data]

    def _decode(self, number: int) -> bytes:
        start, end = self._frames.starts[number], self._frames.ends[number]
        return self._decoded(number, self._place.read_at(start, end - start))

    def _decoded(self, number: int, stored: bytes | memoryview) -> bytes:
        frames = self._frames
        size = frames.decoded[number + 1] - frames.decoded[number]
        reader = getattr(_thread, "decoder", None)
        if reader is None:
            reader = _thread.decoder = zstandard.ZstdDecompressor(max_window_size=WINDOW)
        if size and zstandard.frame_content_size(stored) == size:
            return bytes(reader.decompress(stored))
        data: bytes = reader.stream_reader(stored).read(size)
        if len(data) != size:
            raise zstandard.ZstdError("a frame is not what it was")
        return data


def pieces(stream: Any, size: int = CHUNK) -> Iterator[bytes]:
    """What a stream gives, until it ends."""
    return iter(lambda: stream.read(size), b"")
