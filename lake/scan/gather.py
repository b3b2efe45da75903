"""Columns of plan batches, out of units that are loaded: one copy of each value, of several batches at once.

Values that lie in the order in which they are wanted are copied in runs. Others are *viewed*: Arrow copies
views (length, buffer, place) of wherever they lie into one array. Narrow ones, whose views would be as large
as they are, are laid end to end first and then picked.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Final, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from numpy.lib.stride_tricks import as_strided

from lake.parts import Chunk, Pool, Raw, Views, array_of, is_wide
from lake.plan.permutation import Ints

_SMALL: Final = 64 * 2**10  # bytes whose copying is no reason for other threads to take their turn

WIDE: Final = 128  # bytes of a value from which on it is viewed

Values: TypeAlias = "pa.Array | pa.ChunkedArray | Raw"  # a column; bytes are the receiver's own, to write to
Batch: TypeAlias = list[Values]  # the columns of a plan batch


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
_Run: TypeAlias = tuple[Column, int, int]  # the same of one column
_Run3: TypeAlias = npt.NDArray[np.uint8]  # [chunks, rows, bytes]


def loaded(columns: Sequence[Sequence[Chunk]], order: Ints | None, pool: Pool) -> Loaded:
    """Columns whose values come out in this order; None: as the chunks have them."""
    if order is None:
        return tuple(_Stored(chunks) for chunks in columns)
    return tuple(_permuted(chunks, order, pool) for chunks in columns)


def _permuted(chunks: Sequence[Chunk], order: Ints, pool: Pool) -> Column:
    fixed = _fixed(chunks)
    if fixed is None or fixed >= WIDE:
        views = Views.of(chunks)
        if views is not None:
            return _Viewed(views.take(order), chunks[0])
    return _PermutedArrays(chunks, order) if fixed is None else _PermutedBytes(chunks, order, pool)


def gather(units: Sequence[Rows], batches: int, pool: Pool, *, own: bool, loose: bool = False) -> list[Batch]:
    """The columns of these rows, one unit's after the other's, as so many batches of one length.

    `own`: fixed-width values are always copied; otherwise they stay where they are if they lie together. `loose`:
    strings and binaries are not copied: they are views, or several arrays, where they do not lie together.
    """
    size = sum(stop - start for _, start, stop in units) // batches
    found = []
    for number in range(len(units[0][0])):
        runs = [(columns[number], start, stop) for columns, start, stop in units]
        found.append(_column(runs, size, batches, pool, own=own, loose=loose))
    return [list(batch) for batch in zip(*found, strict=True)]


def _column(
    runs: Sequence[_Run], size: int, batches: int, pool: Pool, *, own: bool, loose: bool
) -> Sequence[Values]:
    """A column of all batches, each of `size` rows."""
    if all(isinstance(column, _Viewed) for column, _, _ in runs):
        return _cut(_viewed(runs, loose=loose), size, batches)
    if own and all(column.fixed is not None for column, _, _ in runs):
        return _cut(_filled(runs, size * batches, pool), size, batches)
    return [_one(run, size, pool, loose=loose) for run in _batches(runs, size)]


def _one(runs: Sequence[_Run], rows: int, pool: Pool, *, loose: bool) -> Values:
    """The column of one batch, copied only if it must be."""
    column, start, stop = runs[0]
    if len(runs) == 1 and column.together(start, stop):
        return column.arrays(start, stop)[0]
    if all(column.fixed is not None for column, _, _ in runs):
        return _filled(runs, rows, pool)
    arrays = [array for column, start, stop in runs for array in column.arrays(start, stop)]
    if len(arrays) == 1:
        return arrays[0]
    return pa.chunked_array(arrays) if loose and is_wide(arrays[0].type) else pa.concat_arrays(arrays)


def _filled(runs: Sequence[_Run], rows: int, pool: Pool) -> Raw:
    width = runs[0][0].fixed
    assert width is not None
    out, at = pool.take(rows, width), 0
    for column, start, stop in runs:
        column.fill(out[at : at + stop - start], start, stop)
        at += stop - start
    return out


def _viewed(runs: Sequence[_Run], *, loose: bool = False) -> Values:
    first = runs[0][0]
    assert isinstance(first, _Viewed)
    views = [column.views.slice(start, stop) for column, start, stop in runs if isinstance(column, _Viewed)]
    if loose and first.fixed is None:
        return Views.joined(views).array(first.type)
    array = Views.joined(views).copied(first.type)
    if first.fixed is None:
        return array
    return np.frombuffer(array.buffers()[2], np.uint8, len(array) * first.fixed).reshape(-1, first.fixed)


def _cut(values: Values, size: int, batches: int) -> Sequence[Values]:
    if batches == 1:
        return [values]
    return [values[start : start + size] for start in range(0, size * batches, size)]


def _batches(runs: Sequence[_Run], size: int) -> Iterator[list[_Run]]:
    """The runs of each batch of `size` rows."""
    batch: list[_Run] = []
    left = size
    for column, start, stop in runs:
        while start < stop:
            end = min(stop, start + left)
            batch.append((column, start, end))
            left -= end - start
            start = end
            if not left:
                yield batch
                batch, left = [], size


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
        if self.fixed is not None:
            self._runs = _spaced(chunks)
            self._run_ends = list(accumulate(run.shape[0] * run.shape[1] for run in self._runs))

    def together(self, start: int, stop: int) -> bool:
        return stop <= self._ends[bisect_right(self._ends, start)]

    def fill(self, out: Raw, start: int, stop: int) -> None:
        at, done = bisect_right(self._run_ends, start), 0
        while start < stop:
            run, end = self._runs[at], self._run_ends[at]
            first, last = end - run.shape[0] * run.shape[1], min(end, stop)
            _copy(run, start - first, out[done : done + last - start])
            done, start, at = done + last - start, last, at + 1

    def arrays(self, start: int, stop: int) -> list[pa.Array]:
        at = bisect_right(self._ends, start)
        arrays = []
        while start < stop:
            end = self._ends[at]
            first = end - self._chunks[at].rows
            arrays.append(self._chunks[at].array.slice(start - first, min(stop, end) - start))
            start, at = end, at + 1
        return arrays


def _spaced(chunks: Sequence[Chunk]) -> list[_Run3]:
    """The values of chunks, those together that are equally long and lie equally far apart: [chunks, rows, bytes].

    As record batches in a mapped file do, so that several are copied at once and no thread waits in between.
    """
    runs, first = [], 0
    for at in range(1, len(chunks) + 1):
        if at == len(chunks) or not _goes_on(chunks, first, at):
            one, count = chunks[first], at - first
            assert one.raw is not None
            step = chunks[first + 1].address - one.address if count > 1 else one.raw.size
            runs.append(
                as_strided(one.raw, (count, *one.raw.shape), (step, *one.raw.strides), writeable=False)
            )
            first = at
    return runs


def _goes_on(chunks: Sequence[Chunk], first: int, at: int) -> bool:
    """Whether chunk `at` lies after those from `first` on as they do."""
    one, before, here = chunks[first], chunks[at - 1], chunks[at]
    if here.rows != one.rows:
        return False
    step = here.address - before.address
    if at - first > 1:
        return step == chunks[first + 1].address - one.address
    return step >= one.rows * (one.fixed or 0)


def _copy(run: _Run3, start: int, out: Raw) -> None:
    """Copy the values from number `start` of a run on."""
    size, left = run.shape[1], len(out)
    if run.shape[0] == 1 and out.size <= _SMALL:  # through memoryviews, which keep the interpreter's lock
        out.reshape(-1).data[:] = run[0, start : start + left].reshape(-1).data
        return
    number, first = divmod(start, size)
    if first:
        few = min(size - first, left)
        out[:few] = run[number, first : first + few]
        out, left, number = out[few:], left - few, number + 1
    whole, rest = divmod(left, size)
    if whole:
        out[: whole * size].reshape(whole, *run.shape[1:])[...] = run[number : number + whole]
    if rest:
        out[left - rest :] = run[number + whole, :rest]


class _Viewed:
    """Values anywhere, in the order in which they come out."""

    def __init__(self, views: Views, like: Chunk) -> None:
        self.views, self.type, self.fixed = views, like.type, like.fixed
        self._dictionary = like.dictionary

    def together(self, start: int, stop: int) -> bool:
        return False

    def fill(self, out: Raw, start: int, stop: int) -> None:
        out[...] = _viewed([(self, start, stop)])

    def arrays(self, start: int, stop: int) -> list[pa.Array]:
        values = _viewed([(self, start, stop)])
        return [values if self.fixed is None else array_of(values, self.type, self._dictionary)]


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
