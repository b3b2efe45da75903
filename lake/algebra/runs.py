"""A run-end encoded array as runs, and the few things done to runs that Arrow has no kernel for.

Nothing here is ever as long as the column: the longest array has one number for each run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lake.algebra.totals import Ints

Places = npt.NDArray[np.intp]


@dataclass(frozen=True, slots=True, eq=False)
class Runs:
    """Values and where the rows that have them end, exclusively; the last end is the length of the column."""

    ends: Ints
    values: pa.Array

    @classmethod
    def of(cls, array: pa.RunEndEncodedArray) -> Runs:
        """The runs of an array, or of a slice of one: no value is copied."""
        first, count = array.find_physical_offset(), array.find_physical_length()
        ends = array.run_ends.slice(first, count).to_numpy().astype(np.int64) - array.offset
        if count:
            ends[-1] = len(array)
        return cls(ends, array.values.slice(first, count))

    def __len__(self) -> int:
        return int(self.ends[-1]) if len(self.ends) else 0

    @property
    def rows(self) -> Ints:
        """Rows of each run."""
        return np.diff(self.ends, prepend=0)

    def array(self, run_ends: pa.DataType) -> pa.RunEndEncodedArray:
        """The column, neighbouring runs of one value joined; run ends of this type, or a wider one if they need it."""
        joined = self._joined()
        type_ = run_ends if len(self) < 2 ** (run_ends.bit_width - 1) else pa.int64()
        return pa.RunEndEncodedArray.from_arrays(pa.array(joined.ends).cast(type_), joined.values)

    def kept(self, mask: pa.Array) -> Runs:
        """The rows of those runs for which the mask is true."""
        chosen = np.asarray(pc.fill_null(mask, False))
        return Runs(np.cumsum(self.rows[chosen]), self.values.filter(pa.array(chosen)))

    def _joined(self) -> Runs:
        """The same column, without neighbours that have the same value."""
        if len(self.ends) < 2:
            return self
        last = ~_repeated(self.values)
        return self if last.all() else Runs(self.ends[last], self.values.filter(pa.array(last)))


def aligned(x: Runs, y: Runs) -> tuple[npt.NDArray[Any], pa.Array, pa.Array]:
    """Two columns of one length cut where either has an end: the ends, and the values of both.

    Raises:
        ValueError: they have different lengths.
    """
    if len(x) != len(y):
        raise ValueError(f"columns of {len(x):,} and {len(y):,} rows have no rows in common to combine")
    if np.array_equal(x.ends, y.ends):
        return x.ends, x.values, y.values
    keys = _keys(x.ends, y.ends)
    keys.sort()
    ends, of_y = keys >> 1, (keys & 1).astype(np.bool_)
    twice = np.append(False, ends[1:] == ends[:-1])  # an end of both: that of x, then that of y
    if twice.any():
        last = np.append(~twice[1:], True)
        ends, of_x, of_y = ends[last], ~of_y[last] | twice[last], of_y[last]
    else:
        of_x = ~of_y
    return ends, _spread(x.values, of_x), _spread(y.values, of_y)


def _keys(x: Ints, y: Ints) -> npt.NDArray[Any]:
    """All ends, shifted to make room for a bit that says whose they are; as narrow as they can be, for speed."""
    narrow = not len(x) or int(x[-1]) < 2**31
    keys: npt.NDArray[Any] = np.concatenate([x, y]).astype(np.uint32 if narrow else np.uint64)
    keys = np.left_shift(keys, 1)
    keys[len(x) :] += 1
    return keys


def _spread(values: pa.Array, ends: npt.NDArray[np.bool_]) -> pa.Array:
    """The values of runs for the pieces that they were cut into; `ends`: where a piece is the last of its run."""
    run = np.cumsum(ends.astype(np.int32)) - ends
    if not values.null_count and (pa.types.is_integer(values.type) or pa.types.is_floating(values.type)):
        return pa.array(values.to_numpy().take(run), values.type)  # several times as fast as Arrow
    return values.take(pa.array(run))


def _repeated(values: pa.Array) -> npt.NDArray[np.bool_]:
    """Which values are the same as their next: null and null, and floats bit for bit."""
    type_ = values.type
    if pa.types.is_floating(type_):
        values = values.view({16: pa.uint16(), 32: pa.uint32(), 64: pa.uint64()}[type_.bit_width])
    if pa.types.is_integer(values.type) and not values.null_count:
        numbers = values.to_numpy()
        return np.append(numbers[1:] == numbers[:-1], False)
    x, y = values.slice(0, len(values) - 1), values.slice(1)
    try:
        same = np.asarray(pc.fill_null(pc.equal(x, y), False), np.bool_)
    except pa.ArrowNotImplementedError:  # lists and structs: equal ones need not be joined
        return np.zeros(len(values), np.bool_)
    return np.append(same | np.asarray(pc.and_(x.is_null(), y.is_null()), np.bool_), False)
