"""Values of one width as they lie compressed in the record batches of a part, each batch's in a zstd frame.

Arrow decodes a record batch into memory that it allocates, and takes the batch apart anew each time. Whoever
knows where the frames lie decompresses them one after the other straight to where the values are wanted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import zstandard

_PREFIX: Final = 8  # bytes before a frame that say its size; -1: it is no frame, but the values themselves
_SLACK: Final = 64  # bytes, less than which a buffer may have behind its values
_LOT: Final = 2**20  # bytes of memory that frames share

_idle = deque[zstandard.ZstdDecompressor](maxlen=8)  # to make one takes as long as a small frame

Octets = npt.NDArray[np.uint8]


class Frame(NamedTuple):
    """Where in a file a frame lies, what it decompresses to, and how much of that are values."""

    start: int
    length: int
    size: int
    values: int


def frame_of(data: Octets, start: int, length: int, values: int) -> Frame | None:
    """The frame in the buffer at `start`, with values of so many bytes; None if there is none with such."""
    size = int.from_bytes(data[start : start + _PREFIX].tobytes(), "little", signed=True)
    if length < _PREFIX or not values <= size < values + _SLACK:
        return None
    return Frame(start + _PREFIX, length - _PREFIX, size, values)


def inflate(data: Any, frames: Sequence[Frame], take: Callable[[int], Octets]) -> list[Octets]:
    """The values of each frame, in memory that `take` gives: so many bytes, of few different sizes.

    Raises:
        ValueError: these bytes are no such frames.
    """
    codec, found = _codec(), list[Octets]()
    for lot in _lots(frames):
        memory, at = take(_rounded(sum(frame.values for frame in lot) + _SLACK)), 0
        for frame in lot:
            piece = data[frame.start : frame.start + frame.length]
            try:
                size = codec.stream_reader(piece, read_size=frame.length).readinto(
                    memory[at : at + frame.size]
                )
            except zstandard.ZstdError as error:
                raise ValueError(str(error)) from error
            if size != frame.size:
                raise ValueError(f"{size:,} bytes of {frame.size:,} at {frame.start:,}")
            found.append(memory[at : at + frame.values])
            at += frame.values
    _idle.append(codec)
    return found


def _codec() -> zstandard.ZstdDecompressor:
    """One that no other thread has."""
    try:
        return _idle.pop()
    except IndexError:
        return zstandard.ZstdDecompressor()


def _lots(frames: Sequence[Frame]) -> Iterator[list[Frame]]:
    """Frames that share memory, in order: what lies behind one's values is overwritten by the next."""
    lot, taken = list[Frame](), _SLACK
    for frame in frames:
        if lot and taken + frame.values > _LOT:
            yield lot
            lot, taken = [], _SLACK
        lot.append(frame)
        taken += frame.values
    if lot:
        yield lot


def _rounded(size: int) -> int:
    """The next power of two, of memory that is no larger than a lot.

    >>> _rounded(1000), _rounded(1024), _rounded(3 * 2**20)
    (1024, 1024, 3145728)
    """
    return size if size > _LOT else 1 << (size - 1).bit_length()
