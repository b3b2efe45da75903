"""Columns of plan batches, out of units that are loaded: one copy of each value, of fixed-width ones by NumPy."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
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

    def arrays(self, start: int, stop: int) -> list[pa.Array]:
        """The values [start, stop), as they lie together."""

    def together(self, start: int, stop: int) -> bool:
        """Whether that is one array, and not copied."""


Loaded: TypeAlias = tuple[Column, ...]  # the columns of a unit
Rows: TypeAlias = tuple[Loaded, int, int]  # rows [start, stop) of a unit


def loaded(
    columns: Sequence[Sequence[Chunk]], order: Ints | None, pool: Pool, *, copy: bool = False
) -> Loaded:
    """Columns whose values come out in this order; None: as the chunks have them.

    `copy`: nothing refers to where the chunks lie.
    """
    if order is None and not copy:
        return tuple(_Stored(chunks) for chunks in columns)
    if order is None:
        order = np.arange(sum(chunk.rows for chunk in columns[0]), dtype=np.int64)
    return tuple(_permuted(chunks, order, pool) for chunks in columns)


def _permuted(chunks: Sequence[Chunk], order: Ints, pool: Pool) -> Column:
    if _fixed(chunks) is None:
        return _PermutedArrays(chunks, order)
    return _PermutedBytes(chunks, order, pool)


def gather(units: Sequence[Rows], pool: Pool, *, own: bool) -> list[Values]:
    """The columns of these rows, one unit's after the other's.

    `own`: fixed-width values are always copied; otherwise they stay where they are if they lie together.
    """
    if len(units) == 1:
        [(columns, start, stop)] = units
        return [_one(column, start, stop, pool, own) for column in columns]
    rows = sum(stop - start for _, start, stop in units)
    return [_several(number, units, rows, pool) for number in range(len(units[0][0]))]


def _one(column: Column, start: int, stop: int, pool: Pool, own: bool) -> Values:
    if column.fixed is None or (not own and column.together(start, stop)):
        return _joined(column.arrays(start, stop))
    out = pool.take(stop - start, column.fixed)
    column.fill(out, start, stop)
    return out


def _several(number: int, units: Sequence[Rows], rows: int, pool: Pool) -> Values:
    if any(columns[number].fixed is None for columns, _, _ in units):
        return _joined(
            [array for columns, start, stop in units for array in columns[number].arrays(start, stop)]
        )
    width = units[0][0][number].fixed
    assert width is not None
    out, at = pool.take(rows, width), 0
    for columns, start, stop in units:
        columns[number].fill(out[at : at + stop - start], start, stop)
        at += stop - start
    return out


def _joined(arrays: list[pa.Array]) -> pa.Array:
    return arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays)


def _fixed(chunks: Sequence[Chunk]) -> int | None:
    """The bytes of a value, None if some chunk does not have them all together."""
    widths = {chunk.fixed for chunk in chunks}
    return widths.pop() if len(widths) == 1 else None


class _Stored:
    """Values in the order in which they are stored."""

    def __init__(self, chunks: Sequence[Chunk]) -> None:
        self.fixed = _fixed(chunks)
        self._chunks = chunks
        self._ends = list(accumulate(chunk.rows for chunk in chunks))

    def together(self, start: int, stop: int) -> bool:
        return stop <= self._ends[bisect_right(self._ends, start)]

    def fill(self, out: Raw, start: int, stop: int) -> None:
        views = [
            chunk.raw[first:last] for chunk, first, last in self._slices(start, stop) if chunk.raw is not None
        ]
        if len(views) == 1:
            out[...] = views[0]
        else:
            np.concatenate(views, out=out)

    def arrays(self, start: int, stop: int) -> list[pa.Array]:
        return [chunk.array.slice(first, last - first) for chunk, first, last in self._slices(start, stop)]

    def _slices(self, start: int, stop: int) -> list[tuple[Chunk, int, int]]:
        """The chunks that have values of [start, stop), and which of their own these are."""
        at = bisect_right(self._ends, start)
        slices = []
        while start < stop:
            end = self._ends[at]
            first = end - self._chunks[at].rows
            slices.append((self._chunks[at], start - first, min(stop, end) - first))
            start, at = end, at + 1
        return slices


class _PermutedBytes:
    """Values of fixed width, laid end to end, and the order in which they come out."""

    def __init__(self, chunks: Sequence[Chunk], order: Ints, pool: Pool) -> None:
        self.fixed = _fixed(chunks)
        assert self.fixed is not None
        self._order, self._type, self._dictionary = order, chunks[0].type, chunks[0].dictionary
        self._values, at = pool.take(sum(chunk.rows for chunk in chunks), self.fixed), 0
        for chunk in chunks:
            chunk.copy_to(self._values[at : at + chunk.rows])
            at += chunk.rows

    def together(self, start: int, stop: int) -> bool:
        return False

    def fill(self, out: Raw, start: int, stop: int) -> None:
        np.take(
            self._values, self._order[start:stop], axis=0, out=out, mode="clip"
        )  # "raise" would copy twice

    def arrays(self, start: int, stop: int) -> list[pa.Array]:
        values = self._values.take(self._order[start:stop], axis=0)
        return [array_of(values, self._type, self._dictionary)]


class _PermutedArrays:
    """Values of any type, laid end to end, and the order in which they come out."""

    def __init__(self, chunks: Sequence[Chunk], order: Ints) -> None:
        self.fixed: int | None = None
        self._order = order
        arrays = [chunk.array for chunk in chunks]
        self._values = pa.concat_arrays([*arrays, arrays[0][:0]])  # which copies even a single one

    def together(self, start: int, stop: int) -> bool:
        return False

    def fill(self, out: Raw, start: int, stop: int) -> None:
        raise NotImplementedError

    def arrays(self, start: int, stop: int) -> list[pa.Array]:
        return [self._values.take(pa.array(self._order[start:stop]))]
