"""What there is to read, as arrays: shards, record batches and bytes, and which of the rows are wanted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from lake.plan.permutation import Ints


class Selection(Protocol):
    """The rows that a condition keeps."""

    @property
    def counts(self) -> Ints:
        """How many rows of each shard are wanted."""

    def rows(self, shard: int) -> Ints:
        """The wanted rows of a shard, ascending, from its first; asked only where some are unwanted."""


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """The shards of a version, as the columns asked for have them: one number a shard in each array.

    `batch_rows` is the length of all record batches but the last, in the part that leads: the one whose
    batches are dealt. `stored_bytes` is what the columns take in the store, `raw_bytes` as decoded.
    """

    rows: Ints
    batch_rows: Ints
    stored_bytes: Ints
    raw_bytes: Ints

    @classmethod
    def of(cls, rows: Any, batch_rows: Any, stored_bytes: Any = None, raw_bytes: Any = None) -> Layout:
        """A checked layout of anything NumPy makes arrays of; bytes that are not given are none.

        Raises:
            ValueError: lengths differ, a count is negative, or a shard with rows has batches of none.
        """
        numbers = [np.asarray(rows, dtype=np.int64)]
        for given in (batch_rows, stored_bytes, raw_bytes):
            numbers.append(np.zeros_like(numbers[0]) if given is None else np.asarray(given, dtype=np.int64))
        if any(array.shape != numbers[0].shape or array.ndim != 1 for array in numbers):
            raise ValueError(f"a layout has one number a shard, not {[array.shape for array in numbers]}")
        if any((array < 0).any() for array in numbers) or (numbers[1][numbers[0] > 0] < 1).any():
            raise ValueError("a layout has no negative numbers, and no record batches without rows")
        return cls(*numbers)


@dataclass(frozen=True, slots=True, eq=False)
class Wanted:
    """A layout seen through a selection: what is asked of a shard counts wanted rows only."""

    layout: Layout
    selection: Selection | None
    counts: Ints
    visible: Ints  # the shards that have wanted rows, ascending

    @classmethod
    def of(cls, layout: Layout, selection: Selection | None) -> Wanted:
        """Raises ValueError where the selection is not one of this layout."""
        counts = layout.rows
        if selection is not None:
            counts = np.asarray(selection.counts, dtype=np.int64)
            if counts.shape != layout.rows.shape or ((counts < 0) | (counts > layout.rows)).any():
                raise ValueError("a selection has, for each shard, between none and all of its rows")
        return cls(layout, selection, counts, np.flatnonzero(counts))

    def rows(self, shard: int) -> Ints | None:
        """The wanted rows of a shard, ascending, counted from its first; None: all.

        Raises:
            ValueError: the selection gives another number of rows than it counted.
        """
        if self.selection is None or self.counts[shard] == self.layout.rows[shard]:
            return None
        rows = np.asarray(self.selection.rows(shard), dtype=np.int64)
        if len(rows) != self.counts[shard]:
            raise ValueError(f"a selection gave {len(rows)} rows of shard {shard}, not {self.counts[shard]}")
        return rows

    def batches(self, shard: int, rows: Ints | None) -> tuple[Ints, Ints]:
        """The record batches with some of the wanted `rows` (None: all), ascending, and how many each has."""
        size = self.layout.batch_rows[shard]
        if rows is None:
            firsts = np.arange(0, self.layout.rows[shard], size, dtype=np.int64)
            return np.arange(len(firsts)), np.minimum(self.layout.rows[shard] - firsts, size)
        counts = np.bincount(rows // size)
        batches = np.flatnonzero(counts)
        return batches, counts[batches].astype(np.int64, copy=False)


def ramps(starts: Ints, lengths: Ints) -> Ints:
    """`start, start + 1, ...` for each of `starts`, as long as its length, end to end.

    >>> ramps(np.array([10, 40]), np.array([2, 3])).tolist()
    [10, 11, 40, 41, 42]
    """
    before = np.cumsum(lengths) - lengths
    return np.repeat(starts - before, lengths) + np.arange(lengths.sum(), dtype=np.int64)
