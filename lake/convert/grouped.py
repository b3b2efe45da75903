"""Notice data that is sorted by class. Pure: sees batches, keeps counts, never rows.

A shuffle mixes record batches, not rows, so classes that fill whole batches stay apart. Order is judged by
runs: in random order a column changes its value about as often as its frequencies predict; sorted by class it
changes it a handful of times.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lake.format.arrays import decoded

_MIN_ROWS = 100
_FEWER = 10  # times fewer runs than random order has
_MAX_CLASSES = 4096
_MAX_LENGTH = 64  # mean bytes of a string that may be a label
_NAMED = re.compile(r"(^|_)(labels?|class(es)?|cls|targets?|categor(y|ies)|species|y)(_|$)", re.IGNORECASE)
_NOT = frozenset({"key", "split"})


@dataclass(slots=True)
class _Runs:
    """How often each value of one column occurred, and in how many runs."""

    counts: dict[Any, int] = field(default_factory=dict)
    runs: int = 0
    last: Any = None

    def add(self, values: list[Any], lengths: list[int]) -> None:
        for value, length in zip(values, lengths, strict=True):
            if not self.runs or value != self.last:
                self.runs += 1
            self.last = value
            self.counts[value] = self.counts.get(value, 0) + length

    @property
    def rows(self) -> int:
        return sum(self.counts.values())

    def expected(self) -> float:
        """How many runs these counts give in random order."""
        rows = self.rows
        return 1 + rows - sum(count * count for count in self.counts.values()) / rows


class SortedByClass:
    """Show it every batch in order, then ask for `warning()`."""

    def __init__(self, key: str | None = None) -> None:
        self._not = _NOT if key is None else _NOT | {key}
        self._columns: dict[str, _Runs] | None = None

    def see(self, batch: pa.RecordBatch) -> None:
        """Take the next batch into account."""
        if not batch.num_rows:
            return
        if self._columns is None:
            self._columns = {
                f.name: _Runs() for f in batch.schema if f.name not in self._not and _may_be(f.type)
            }
        for name, runs in list(self._columns.items()):
            if not _count(batch.column(name), runs):
                del self._columns[name]

    def warning(self) -> str | None:
        """What to tell the user, or None where no column of few values is sorted."""
        for name, runs in (self._columns or {}).items():
            if _is_sorted(name, runs):
                return (
                    f"the rows are sorted by {name!r}: {len(runs.counts):,} values in {runs.runs:,} runs of "
                    f"{runs.rows // runs.runs:,} rows on average. A shuffle mixes batches of rows, so whole "
                    'batches would hold one value: commit with order="shuffled"'
                )
        return None


def _may_be(kind: pa.DataType) -> bool:
    t = pa.types
    if t.is_dictionary(kind):
        kind = kind.value_type
    return bool(
        t.is_integer(kind)
        or t.is_boolean(kind)
        or t.is_string(kind)
        or t.is_large_string(kind)
        or t.is_string_view(kind)
    )


def _count(column: pa.Array, runs: _Runs) -> bool:
    """Count a batch's runs; False if the column is no label, so that it need not be looked at again."""
    if pa.types.is_dictionary(column.type):
        column = decoded(column) if len(column.dictionary) <= _MAX_CLASSES else None
    elif not (pa.types.is_integer(column.type) or pa.types.is_boolean(column.type)):
        column = column if column.nbytes <= _MAX_LENGTH * len(column) + 64 else None
    if column is None:
        return False
    if pa.types.is_string_view(column.type):
        column = column.cast(pa.large_string())
    encoded = pc.run_end_encode(column, run_end_type=pa.int64())
    if len(encoded.values) > len(column) // 4 + _FEWER:
        return False
    lengths = np.diff(encoded.run_ends.to_numpy(), prepend=0)
    runs.add(encoded.values.to_pylist(), lengths.tolist())
    return len(runs.counts) <= _MAX_CLASSES


def _is_sorted(name: str, runs: _Runs) -> bool:
    values = set(runs.counts) - {None}
    if len(values) < 2 or runs.rows < _MIN_ROWS or runs.runs * _FEWER > runs.expected():
        return False
    codes = all(isinstance(value, int) and not isinstance(value, bool) for value in values)
    return not codes or min(values) == 0 or _NAMED.search(name) is not None
