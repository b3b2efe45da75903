"""Columns of plan batches, out of units that are loaded: one copy of each value, of fixed-width ones by NumPy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeAlias

import numpy as np
import pyarrow as pa

from lake.parts import Chunk, Raw, array_of
from lake.plan.permutation import Ints
from lake.scan.pool import Pool

Values: TypeAlias = "pa.Array | Raw"  # a column; bytes are the receiver's own, to write to if it likes


class Column(Protocol):
    """One column of a unit. `fixed`: its values are so many bytes each, which `fill` copies."""

    fixed: int | None

    def fill(self, out: Raw, start: int, stop: int) -> None:
        """Copy the values [start, stop) to `out`."""

    def array(self, start: int, stop: int) -> pa.Array:
        """The values [start, stop)."""

    def together(self, start: int, stop: int) -> bool:
        """Whether `array` copies nothing."""


Loaded: TypeAlias = tuple[Column, ...]  # the columns of a unit
Rows: TypeAlias = tuple[Loaded, int, int]  # rows [start, stop) of a unit


def loaded(columns: Sequence[Sequence[Chunk]], order: Ints | None, pool: Pool) -> Loaded:
    """Columns whose values come out in this order; None: as the chunks have them."""
    if order is None:
        return tuple(_Stored(chunks) for chunks in columns)
    return tuple(_permuted(chunks, order, pool) for chunks in columns)


def _permuted(chunks: Sequence[Chunk], order: Ints, pool: Pool) -> Column:
    if _fixed(chunks) is None:
        return _PermutedArrays(chunks, order)
    return _PermutedBytes(chunks, order, pool)


def gather(units: Sequence[Rows], pool: Pool, *, own: bool) -> list[Values]:
    """The columns of these rows, one unit's after the other's.

    `own`: fixed-width values are always copied; otherwise they stay where they are if they lie together.
    """
    columns = zip(*(unit for unit, _, _ in units), strict=True)
    spans = [(start, stop) for _, start, stop in units]
    return [_gathered(list(zip(column, spans, strict=True)), pool, own) for column in columns]


def _gathered(parts: list[tuple[Column, tuple[int, int]]], pool: Pool, own: bool) -> Values:
    first, span = parts[0]
    if all(column.fixed for column, _ in parts) and (own or len(parts) > 1 or not first.together(*span)):
        assert first.fixed is not None
        out = pool.take(sum(stop - start for _, (start, stop) in parts), first.fixed)
        at = 0
        for column, (start, stop) in parts:
            column.fill(out[at : at + stop - start], start, stop)
            at += stop - start
        return out
    arrays = [column.array(start, stop) for column, (start, stop) in parts]
    return arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays)


def _fixed(chunks: Sequence[Chunk]) -> int | None:
    """The bytes of a value, None if some chunk does not have them all together."""
    if any(chunk.raw is None for chunk in chunks):
        return None
    [*_, last] = chunks
    assert last.raw is not None
    return int(last.raw.shape[1])


class _Stored:
    """Values in the order in which they are stored."""

    def __init__(self, chunks: Sequence[Chunk]) -> None:
        self.fixed = _fixed(chunks)
        self._chunks = chunks
        self._ends = np.cumsum([len(chunk.array) for chunk in chunks])

    def together(self, start: int, stop: int) -> bool:
        return bool(
            np.searchsorted(self._ends, start, "right") == np.searchsorted(self._ends, stop - 1, "right")
        )

    def fill(self, out: Raw, start: int, stop: int) -> None:
        views = [chunk.raw for chunk in self._slices(start, stop) if chunk.raw is not None]
        if len(views) == 1:
            out[...] = views[0]
        else:
            np.concatenate(views, out=out)

    def array(self, start: int, stop: int) -> pa.Array:
        arrays = [chunk.array for chunk in self._slices(start, stop)]
        return arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays)

    def _slices(self, start: int, stop: int) -> list[Chunk]:
        at = int(np.searchsorted(self._ends, start, "right"))
        slices = []
        while start < stop:
            end = int(self._ends[at])
            first = end - len(self._chunks[at].array)
            slices.append(self._chunks[at].slice(start - first, min(stop, end) - first))
            start, at = end, at + 1
        return slices


class _PermutedBytes:
    """Values of fixed width, laid end to end, and the order in which they come out."""

    def __init__(self, chunks: Sequence[Chunk], order: Ints, pool: Pool) -> None:
        self.fixed = _fixed(chunks)
        assert self.fixed is not None
        self._order, self._type = order, chunks[0].array.type
        self._dictionary = chunks[0].array.dictionary if pa.types.is_dictionary(self._type) else None
        views = [chunk.raw for chunk in chunks if chunk.raw is not None]
        if len(views) == 1:
            self._values = views[0]
        else:
            self._values = pool.take(sum(map(len, views)), self.fixed)
            np.concatenate(views, out=self._values)

    def together(self, start: int, stop: int) -> bool:
        return False

    def fill(self, out: Raw, start: int, stop: int) -> None:
        np.take(
            self._values, self._order[start:stop], axis=0, out=out, mode="clip"
        )  # "raise" would copy twice

    def array(self, start: int, stop: int) -> pa.Array:
        values = np.take(self._values, self._order[start:stop], axis=0)
        return array_of(values, self._type, self._dictionary)


class _PermutedArrays:
    """Values of any type, laid end to end, and the order in which they come out."""

    def __init__(self, chunks: Sequence[Chunk], order: Ints) -> None:
        self.fixed: int | None = None
        self._order = order
        self._values = pa.concat_arrays([chunk.array for chunk in chunks])

    def together(self, start: int, stop: int) -> bool:
        return False

    def fill(self, out: Raw, start: int, stop: int) -> None:
        raise NotImplementedError

    def array(self, start: int, stop: int) -> pa.Array:
        return self._values.take(pa.array(self._order[start:stop]))
