"""What statistics prove of a comparison, shard by shard, in SQL's three values. Pure, and over all shards at once.

Each answer says what *may* be among a shard's rows: true, false, null. So an answer may claim too much and
never too little, and an absent statistic claims everything. NaN is the greatest float, as in SQL.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Mask = npt.NDArray[np.bool_]
NONE, SOME, ALL = 0, 1, 2  # of a shard's rows meet a condition


@dataclass(frozen=True, slots=True, eq=False)
class Verdict:
    """Per shard: whether the condition may be true, false, null for some of its rows."""

    true: Mask
    false: Mask
    null: Mask

    def __and__(self, other: Verdict) -> Verdict:
        return Verdict(self.true & other.true, self.false | other.false, self.null | other.null)

    def __or__(self, other: Verdict) -> Verdict:
        return Verdict(self.true | other.true, self.false & other.false, self.null | other.null)

    def __invert__(self) -> Verdict:
        return Verdict(self.false, self.true, self.null)

    def summary(self) -> npt.NDArray[np.int8]:
        """NONE, SOME or ALL for each shard."""
        every = ~self.false & ~self.null
        return np.where(~self.true, NONE, np.where(every, ALL, SOME)).astype(np.int8)


def unknown(shards: int) -> Verdict:
    """Anything may be."""
    return Verdict(*(np.ones(shards, np.bool_) for _ in range(3)))


def certain(value: bool, shards: int) -> Verdict:
    """The same for every row."""
    return Verdict(np.full(shards, value), np.full(shards, not value), np.zeros(shards, np.bool_))


@dataclass(frozen=True, slots=True, eq=False)
class Bounds:
    """A column's statistics over all shards."""

    type: pa.DataType  # of its values
    low: pa.Array  # null = unknown
    high: pa.Array
    some_null: Mask  # may have nulls
    some_value: Mask  # may have values that are not null
    some_nan: Mask  # may have NaN

    @classmethod
    def of(cls, stats: Any, type_: pa.DataType, rows: npt.NDArray[np.int64]) -> Bounds:
        """From a struct array of min, max, nulls and nans, for shards of so many rows."""
        if isinstance(stats, pa.ChunkedArray):
            stats = stats.combine_chunks()
        value_type = type_.value_type if pa.types.is_dictionary(type_) else type_
        nulls, nans = (
            pc.fill_null(pc.struct_field(stats, name), -1).to_numpy() for name in ("nulls", "nans")
        )
        is_float = bool(pa.types.is_floating(value_type))
        return cls(
            type=value_type,
            low=pc.struct_field(stats, "min"),
            high=pc.struct_field(stats, "max"),
            some_null=nulls != 0,
            some_value=nulls != rows,
            some_nan=(nans != 0) if is_float else np.zeros(len(rows), np.bool_),
        )

    @property
    def complete(self) -> Mask:
        """Shards that have certainly neither null nor NaN."""
        return ~self.some_null & ~self.some_nan

    def take(self, shards: npt.NDArray[np.int64]) -> Bounds:
        """The statistics of these shards."""
        masks = (mask[shards] for mask in (self.some_null, self.some_value, self.some_nan))
        chosen = pa.array(shards)
        return Bounds(self.type, self.low.take(chosen), self.high.take(chosen), *masks)

    def joined(self, size: int) -> Bounds:
        """The statistics of runs of so many shards, each run taken as one."""
        starts = np.arange(0, len(self.low), size)
        run = pa.array(np.arange(len(self.low)) // size)
        ends = pa.table({"run": run, "low": self.low, "high": self.high})
        try:
            found = ends.group_by("run", use_threads=False).aggregate(
                [("low", "min"), ("high", "max"), ("low", "count"), ("high", "count")]
            )
        except pa.ArrowNotImplementedError:  # no order of these values: nothing is known of them together
            low = high = pa.nulls(len(starts), self.low.type)
        else:
            whole = pa.array(np.diff(np.append(starts, len(self.low))))  # a bound of all, or none
            low, high = (
                pc.if_else(
                    pc.equal(found[f"{name}_count"], whole), found[f"{name}_{which}"], None
                ).combine_chunks()
                for name, which in (("low", "min"), ("high", "max"))
            )
        masks = (
            np.logical_or.reduceat(mask, starts) for mask in (self.some_null, self.some_value, self.some_nan)
        )
        return Bounds(self.type, low, high, *masks)

    def exact(self, shard: int) -> tuple[pa.Scalar, pa.Scalar] | None:
        """Lower and upper bound of all values that are not null, where both are known and there is no NaN."""
        low, high = self.low[shard], self.high[shard]
        return (low, high) if low.is_valid and high.is_valid and not self.some_nan[shard] else None


def is_null(column: Bounds) -> Verdict:
    """Whether rows of a column are null."""
    return Verdict(column.some_null, column.some_value, np.zeros_like(column.some_null))


def compare(operator: str, column: Bounds, literal: Any) -> Verdict:
    """What `column operator literal` may be; a literal is True or SQL's (kind, text)."""
    between = _between(literal, column.type)
    if between is None:
        return unknown(len(column.some_null))
    least, most = between  # what the literal means in the column's type lies between them
    below = _holds(pc.less, column.low, most)  # some value may be less than the literal
    above = _holds(pc.greater, column.high, least) | column.some_nan
    reaches = _holds(pc.less_equal, column.low, most) & _holds(pc.greater_equal, column.high, least)
    down = _holds(pc.less_equal, column.low, most)
    up = _holds(pc.greater_equal, column.high, least) | column.some_nan
    true, false = {
        "=": (reaches, below | above),
        "<>": (below | above, reaches),
        "<": (below, up),
        "<=": (down, above),
        ">": (above, down),
        ">=": (up, below),
    }[operator]
    return Verdict(true & column.some_value, false & column.some_value, column.some_null)


def _holds(relation: Any, bounds: pa.Array, limit: pa.Scalar) -> Mask:
    """Where the relation holds, or the bound is unknown."""
    return np.asarray(pc.fill_null(relation(bounds, limit), True))


def _between(literal: Any, type_: pa.DataType) -> tuple[pa.Scalar, pa.Scalar] | None:
    """Scalars of the column's type below and above what the literal is compared as; None if that is not certain."""
    if literal is True:
        return (pa.scalar(True), pa.scalar(True)) if pa.types.is_boolean(type_) else None
    kind, text = literal
    try:
        if kind in ("INTEGER", "NUMERIC") and text is not None:
            return _number(Decimal(text), type_)
        if kind == "STRING" and text is not None:
            return _string(text, type_)
        if kind == "BOOLEAN" and pa.types.is_boolean(type_):
            return (pa.scalar(text == "true"),) * 2
    except (pa.ArrowException, InvalidOperation, OverflowError, ValueError, TypeError):
        return None
    return None


def _number(value: Decimal, type_: pa.DataType) -> tuple[pa.Scalar, pa.Scalar] | None:
    if pa.types.is_integer(type_):
        return pa.scalar(math.floor(value), type_), pa.scalar(math.ceil(value), type_)
    if pa.types.is_floating(type_) and not pa.types.is_float16(type_):
        near = (np.float32 if pa.types.is_float32(type_) else np.float64)(float(value))
        if math.isfinite(near) and Decimal(float(near)) == value:  # the same however it is converted
            return pa.scalar(near, type_), pa.scalar(near, type_)
        return pa.scalar(np.nextafter(near, -math.inf), type_), pa.scalar(np.nextafter(near, math.inf), type_)
    if pa.types.is_decimal(type_):
        exact = pa.scalar(value, type_)
        return exact, exact
    return None


def _string(text: str, type_: pa.DataType) -> tuple[pa.Scalar, pa.Scalar] | None:
    if pa.types.is_large_string(type_) or pa.types.is_string(type_):
        return pa.scalar(text, type_), pa.scalar(text, type_)
    if pa.types.is_date(type_) or (pa.types.is_timestamp(type_) and type_.tz is None):
        moment = pa.scalar(text).cast(
            pa.timestamp(type_.unit) if pa.types.is_timestamp(type_) else pa.date32()
        )
        moment = moment.cast(type_)
        return moment, moment
    return None
