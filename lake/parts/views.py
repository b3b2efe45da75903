"""Values wherever they lie, as Arrow's binary views: of any order and any number of buffers, brought together
by one copy.

A view is 16 bytes: the length of a value and, where that is over 12, four bytes that only comparisons look at,
the number of its buffer and its place there; a shorter value is in the view itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lake.parts.chunk import Chunk, Ints

_Words: TypeAlias = npt.NDArray[np.int32]  # [rows, 4]: length, prefix, buffer, place

_LENGTH, _PREFIX, _BUFFER, _PLACE = range(4)
_INSIDE = 12  # bytes of a value that its view has itself, at most
_SHORT = 64  # bytes of a value, with its offset, that are copied sooner than looked at where they lie
_MOST = 2**31 - 1  # the last place in a buffer that a view can tell


class Views:
    """Values of one column: views into `buffers`. `valid`: which are not null; None: all."""

    __slots__ = ("buffers", "valid", "words")

    def __init__(self, words: _Words, buffers: list[pa.Buffer], valid: npt.NDArray[np.bool_] | None) -> None:
        self.words, self.buffers, self.valid = words, buffers, valid

    @classmethod
    def of(cls, chunks: Sequence[Chunk]) -> Views | None:
        """The values of these chunks, one's after the other's; None where views cannot tell of them."""
        if all(chunk.fixed for chunk in chunks):
            return _of_bytes(chunks)
        if not is_wide(chunks[0].type):
            return None
        found = _of_long(chunks)
        if found is not None:
            return found
        arrays = [chunk.array for chunk in chunks]
        return None if any(_ends(array) > _MOST for array in arrays) else _of_several(arrays)

    @classmethod
    def joined(cls, several: Sequence[Views]) -> Views:
        """One's values after the other's."""
        if len(several) == 1:
            return several[0]
        words = np.concatenate([views.words for views in several])
        buffers: list[pa.Buffer] = []
        at = 0
        for views in several:
            if buffers:
                part = words[at : at + len(views.words)]
                part[:, _BUFFER] += np.where(part[:, _LENGTH] > _INSIDE, np.int32(len(buffers)), np.int32(0))
            buffers += views.buffers
            at += len(views.words)
        valid = None
        if any(views.valid is not None for views in several):
            every = [(views.valid, len(views.words)) for views in several]
            valid = np.concatenate(
                [np.ones(count, np.bool_) if known is None else known for known, count in every]
            )
        return cls(words, buffers, valid)

    def take(self, order: Ints) -> Views:
        """These values, in this order."""
        valid = None if self.valid is None else self.valid[order]
        return Views(self.words.take(order, axis=0), self.buffers, valid)

    def slice(self, start: int, stop: int) -> Views:
        """The values [start, stop)."""
        valid = None if self.valid is None else self.valid[start:stop]
        return Views(self.words[start:stop], self.buffers, valid)

    def array(self, type_: pa.DataType) -> pa.Array:
        """The values where they lie, as an array of views: strings, or else binaries. Not to be compared."""
        valid = None if self.valid is None else pa.py_buffer(np.packbits(self.valid, bitorder="little"))
        return pa.Array.from_buffers(
            pa.string_view() if pa.types.is_large_string(type_) else pa.binary_view(),
            len(self.words),
            [valid, pa.py_buffer(self.words), *self.buffers],
        )

    def copied(self, type_: pa.DataType) -> pa.Array:
        """The values end to end: strings or binaries with 64-bit offsets, of any other type as binaries."""
        found = self.array(pa.binary()).cast(pa.large_binary())
        if not pa.types.is_large_string(type_):
            return found
        return pa.Array.from_buffers(type_, len(found), found.buffers(), found.null_count)


def _of_bytes(chunks: Sequence[Chunk]) -> Views | None:
    """Of values of one width."""
    width, buffers = chunks[0].fixed or 0, [chunk.buffer for chunk in chunks]
    if width <= _INSIDE or any(buffer.size > _MOST for buffer in buffers):
        return None
    counts = np.array([chunk.rows for chunk in chunks])
    ends = np.cumsum(counts)
    words = np.zeros((int(ends[-1]), 4), np.int32)
    words[:, _LENGTH] = width
    words[:, _BUFFER] = np.repeat(np.arange(len(chunks), dtype=np.int32), counts)
    places = np.arange(len(words)) - np.repeat(ends - counts, counts)
    for chunk, end in zip(chunks, ends.tolist(), strict=True):
        if (picked := chunk.picked) is not None:
            places[end - chunk.rows : end] = picked
    words[:, _PLACE] = places * width
    return Views(words, buffers, None)


def _of_long(chunks: Sequence[Chunk]) -> Views | None:
    """Of strings and binaries none of which is null or short; None if one is, or out of a view's reach."""
    lengths, places, buffers = [], [], []
    for chunk in chunks:
        array = chunk.source
        if not len(array) or array.null_count:
            return None
        offsets, data = chunk.spans
        if data is None or data.size > _MOST:
            return None
        starts, ends, picked = offsets[:-1], offsets[1:], chunk.picked
        if picked is not None:
            starts, ends = starts[picked], ends[picked]
        lengths.append(ends - starts)
        if len(lengths) == 1 and _has_short(lengths[0]):  # as where all are
            return None
        places.append(starts)
        buffers.append(data)
    words = np.zeros((sum(chunk.rows for chunk in chunks), 4), np.int32)
    np.concatenate(lengths, out=words[:, _LENGTH], casting="same_kind")
    if _has_short(words[:, _LENGTH]):
        return None
    np.concatenate(places, out=words[:, _PLACE], casting="same_kind")
    words[:, _BUFFER] = np.repeat(np.arange(len(chunks), dtype=np.int32), [chunk.rows for chunk in chunks])
    return Views(words, buffers, None)


def _has_short(lengths: npt.NDArray[Any]) -> bool:
    return bool(len(lengths)) and int(lengths.min()) <= _INSIDE


def _of_several(arrays: Sequence[pa.Array]) -> Views:
    """Of strings and binaries in several arrays; short ones are laid end to end first, which costs less."""
    if sum(array.nbytes for array in arrays) <= _SHORT * sum(map(len, arrays)):
        return _of_any(pa.concat_arrays(arrays))
    return Views.joined([_of_any(array) for array in arrays])


def _of_any(array: pa.Array) -> Views:
    """Of strings and binaries."""
    octets = pa.Array.from_buffers(
        pa.large_binary(), len(array), array.buffers(), array.null_count, array.offset
    )
    viewed = octets.cast(pa.binary_view())
    valid = np.asarray(viewed.is_valid()) if viewed.null_count else None
    _, words, *buffers = viewed.buffers()
    found = np.frombuffer(words, np.int32).reshape(-1, 4)[viewed.offset : viewed.offset + len(viewed)]
    return Views(found, buffers, valid)


def is_wide(type_: pa.DataType) -> bool:
    """Whether values are strings or binaries, with 64-bit offsets."""
    return bool(pa.types.is_large_binary(type_) or pa.types.is_large_string(type_))


def _ends(array: pa.Array) -> int:
    """Where the bytes of an array end in their buffer, at most."""
    data = array.buffers()[2]
    return 0 if data is None else int(data.size)
