"""Values and how many rows have each: all that a reduction needs to know of a column, however it is encoded.

Reductions take the column in pieces and keep nothing of a piece but what it comes to.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Context, Decimal
from fractions import Fraction
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lake.algebra.runs import Runs
from lake.algebra.totals import Ints, total

_DIGITS = Context(prec=200)  # more than a sum of decimals can have


@dataclass(frozen=True, slots=True, eq=False)
class Weighted:
    """`values`, of which `rows[i]` rows, at least one, have the i-th; a value may come more than once, null too."""

    values: pa.Array
    rows: Ints

    @classmethod
    def of(cls, array: pa.RunEndEncodedArray | pa.DictionaryArray) -> Weighted:
        """What an encoded array holds."""
        if isinstance(array, pa.RunEndEncodedArray):
            runs = Runs.of(array)
            return cls(runs.values, runs.rows)
        used, rows, nulls = occurrences(array)
        values = array.dictionary.take(pa.array(used))
        if nulls:
            values, rows = pa.concat_arrays([values, pa.nulls(1, values.type)]), np.append(rows, nulls)
        return cls(values, rows)

    @property
    def valid(self) -> Weighted:
        """Without the nulls."""
        if not self.values.null_count:
            return self
        valid = self.values.is_valid()
        return Weighted(self.values.filter(valid), self.rows[np.asarray(valid)])


def occurrences(array: pa.DictionaryArray) -> tuple[Ints, Ints, int]:
    """Codes that occur, ascending, how many rows have each, and how many have none."""
    indices = array.indices.drop_null() if array.indices.null_count else array.indices
    rows = np.bincount(indices.to_numpy(), minlength=len(array.dictionary)).astype(np.int64)
    used = np.flatnonzero(rows)
    return used, rows[used], len(array) - len(indices)


# --- reductions ---------------------------------------------------------------------------------


def counted(parts: Iterable[Weighted]) -> pa.Scalar:
    """Rows that are not null."""
    return pa.scalar(sum(int(part.valid.rows.sum()) for part in parts), pa.int64())


def summed(parts: Iterable[Weighted], type_: pa.DataType) -> pa.Scalar:
    """The sum of values of this type: exact, or a double rounded once; null without values."""
    wide = _sum_type(type_)
    found, rows = _total(parts)
    if not rows:
        return pa.scalar(None, wide)
    return pa.scalar(_rounded(found), wide) if pa.types.is_floating(wide) else _whole(found, wide, rows)


def averaged(parts: Iterable[Weighted], type_: pa.DataType) -> pa.Scalar:
    """The mean of values of this type, a double rounded once; null without values."""
    _sum_type(type_)
    found, rows = _total(parts)
    return pa.scalar(_rounded(found / rows) if rows else None, pa.float64())


def extreme(parts: Iterable[Weighted], type_: pa.DataType, which: Literal["min", "max"]) -> pa.Scalar:
    """The least or greatest value that is neither null nor, unless there is nothing else, NaN."""
    wide = pa.float32() if pa.types.is_float16(type_) else type_  # Arrow does not compare halves
    try:
        found = [pc.min_max(part.values.cast(wide))[which] for part in parts]
        return pc.min_max(pa.array([one.as_py() for one in found], wide))[which].cast(type_)
    except pa.ArrowNotImplementedError as error:
        raise TypeError(f"{which}: values of type {type_} have no order") from error


def grouped(parts: Iterable[Weighted], type_: pa.DataType) -> pa.Table:
    """Each value once, in order of first appearance, with its rows."""
    found = pa.table({"value": pa.array([], type_), "count": pa.array([], pa.int64())})
    for part in parts:
        more = pa.table({"value": part.values, "count": pa.array(part.rows, pa.int64())})
        together = pa.concat_tables([found, more]).group_by("value", use_threads=False)
        try:
            found = together.aggregate([("count", "sum")]).rename_columns({"count_sum": "count"})
        except pa.ArrowNotImplementedError as error:
            raise TypeError(f"group_count: values of type {type_} cannot be grouped") from error
    return found


def _total(parts: Iterable[Weighted]) -> tuple[Fraction | float, int]:
    """The exact sum, or a float where it is no number, and the rows that are not null."""
    exact, special, rows = Fraction(), 0.0, 0
    for part in parts:
        held = part.valid
        found = total(held.values, held.rows)
        if isinstance(found, Fraction):
            exact += found
        else:
            special += found
        rows += int(held.rows.sum())
    return special or exact, rows


def _sum_type(type_: pa.DataType) -> pa.DataType:
    """The type that Arrow gives a sum."""
    if pa.types.is_float16(type_):
        return pa.float64()
    try:
        return pc.sum(pa.array([], type_)).type
    except pa.ArrowNotImplementedError as error:
        raise TypeError(f"values of type {type_} cannot be added up") from error


def _rounded(exact: Fraction | float) -> float:
    try:
        return float(exact)
    except OverflowError:
        assert isinstance(exact, Fraction)
        digits = math.log10(abs(exact.numerator)) - math.log10(exact.denominator)
        raise OverflowError(f"the result is about 1e{digits:.0f}, and a double ends at 1.8e308") from None


def _whole(exact: Fraction | float, type_: pa.DataType, rows: int) -> pa.Scalar:
    number: int | Decimal
    if pa.types.is_decimal(type_):
        number = Decimal(int(exact * 10**type_.scale)).scaleb(-type_.scale, _DIGITS)
    else:
        number = int(exact)
    try:
        return pa.scalar(number, type_)
    except (pa.ArrowInvalid, OverflowError):
        raise OverflowError(
            f"the sum of {rows:,} rows is {number}, which {type_} cannot hold: map the values to float64 first, "
            "or take the mean"
        ) from None
