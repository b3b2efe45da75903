"""Statistics of columns: bounds that are always true, and counts of nulls and NaN, to skip what cannot match.

`min` and `max` bound every value that is neither null nor NaN, under Arrow's comparison; they need not be
values themselves. They are Python values of the column's type, but dates, times and timestamps are the
integer that Arrow holds, so that no precision or range is lost. None means unknown, for bounds and for
counts; of a column with nothing but nulls and NaN there are no bounds.

Bounded are booleans, integers, floats, decimals to 38 digits, dates, times, timestamps, strings and binaries,
at the top level. Strings are cut to 64 bytes at a character; a cut maximum is raised by incrementing the last
character that can be, over surrogates. Binaries likewise by bytes. Where none can be, the bound is None. A
zero is bounded by -0.0 from below and 0.0 from above. Of every other column only nulls are counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lake.format import arrays
from lake.format.values import ColumnStats

STAT_COLUMNS = 256  # the first so many, and the key
STAT_BYTES = 64  # of strings and binaries
STAT_DIGITS = 38  # of decimals

_DAY = 86_400_000  # milliseconds


def stats_columns(schema: pa.Schema, key: str | None = None) -> list[str]:
    """The columns that have statistics: the first 256 and the key."""
    names: list[str] = schema.names[:STAT_COLUMNS]
    return names if key is None or key in names else [*names, key]


def stats_type(schema: pa.Schema, key: str | None = None) -> pa.DataType:
    """The type of a segment's `stats`: for each column a struct of `min`, `max`, `nulls` and `nans`.

    Bounds have the column's type, or the null type where there are none.
    """
    return pa.struct(
        [pa.field(name, _column_type(schema.field(name))) for name in stats_columns(schema, key)]
    )


def _column_type(field: pa.Field) -> pa.DataType:
    type_ = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
    bound = type_ if is_bounded(type_) else pa.null()
    return pa.struct([("min", bound), ("max", bound), ("nulls", pa.int64()), ("nans", pa.int64())])


def is_bounded(type_: pa.DataType) -> bool:
    """Whether columns of this stored type have bounds."""
    if pa.types.is_decimal(type_):
        return bool(type_.precision <= STAT_DIGITS and 0 <= type_.scale <= type_.precision)  # as in Parquet
    return bool(
        pa.types.is_boolean(type_)
        or pa.types.is_integer(type_)
        or pa.types.is_floating(type_)
        or _is_moment(type_)
        or arrays.is_text(type_)
        or arrays.is_octets(type_)
        or pa.types.is_fixed_size_binary(type_)
    )


def _is_moment(type_: pa.DataType) -> bool:
    return bool(pa.types.is_date(type_) or pa.types.is_time(type_) or pa.types.is_timestamp(type_))


def shard_stats(
    batches: Sequence[pa.RecordBatch], schema: pa.Schema, key: str | None = None
) -> dict[str, ColumnStats]:
    """The statistics of a shard, given as batches in stored form, for each column that has some."""
    return {
        name: column_stats([batch.column(name) for batch in batches], schema.field(name).type)
        for name in stats_columns(schema, key)
    }


def column_stats(chunks: Sequence[pa.Array], type_: pa.DataType) -> ColumnStats:
    """The statistics of a column of this stored type, given as chunks."""
    nulls = sum(chunk.null_count for chunk in chunks)
    if not is_bounded(type_):
        return ColumnStats(nulls=nulls)
    if pa.types.is_floating(type_):
        return _float_stats(chunks, nulls)
    found = [pc.min_max(_comparable(chunk)) for chunk in chunks if chunk.null_count < len(chunk)]
    return ColumnStats(*_bounds(found, type_), nulls=nulls, nans=0)


def _float_stats(chunks: Sequence[pa.Array], nulls: int) -> ColumnStats:
    lows, highs, nans = [], [], 0
    for chunk in chunks:
        values = arrays.plain(chunk).drop_null().to_numpy()
        if len(values) and np.isnan(values.min()):
            numbers = values[~np.isnan(values)]
            nans += len(values) - len(numbers)
            values = numbers
        if len(values):
            lows.append(float(values.min()))
            highs.append(float(values.max()))
    if not lows:
        return ColumnStats(nulls=nulls, nans=nans)
    return ColumnStats(min(lows) or -0.0, max(highs) or 0.0, nulls, nans)


def _comparable(array: pa.Array) -> pa.Array:
    """The values as a type that has their order, whose `min_max` Arrow computes and Python holds exactly."""
    array = arrays.plain(array)
    type_ = array.type
    if _is_moment(type_):
        return array.view(pa.int32() if type_.bit_width == 32 else pa.int64())
    if pa.types.is_decimal(type_) and type_.bit_width < 128:
        return array.cast(pa.decimal128(type_.precision, type_.scale))
    if arrays.is_text(type_):
        return array.cast(pa.binary() if pa.types.is_string(type_) else pa.large_binary())
    return array


def _bounds(found: Sequence[pa.Scalar], type_: pa.DataType) -> tuple[Any, Any]:
    if not found:
        return None, None
    low, high = min(bound["min"].as_py() for bound in found), max(bound["max"].as_py() for bound in found)
    if arrays.is_text(type_):
        return _text_bounds(low, high)
    if _is_moment(type_):
        return _moment_bounds(low, high, type_)
    if isinstance(low, bytes):
        return _binary_bounds(low, high, type_)
    return low, high


def _moment_bounds(low: int, high: int, type_: pa.DataType) -> tuple[int | None, int | None]:
    """Bounds that survive Parquet, which holds 64-bit dates as days and seconds as milliseconds."""
    if pa.types.is_date64(type_):
        low, high = low - low % _DAY, high + -high % _DAY
        limit = 2**31 * _DAY
    else:
        limit = 2**63 // 1000 if str(type_).startswith("timestamp[s") else 2**63
    return (low if -limit <= low < limit else None), (high if -limit <= high < limit else None)


def _text_bounds(low: bytes, high: bytes) -> tuple[str | None, str | None]:
    try:
        lowest, highest = low.decode(), high.decode()
    except UnicodeDecodeError:  # not the UTF-8 that Arrow promises: nothing is known
        return None, None
    if len(low) > STAT_BYTES:
        lowest = low[:STAT_BYTES].decode(errors="ignore")
    return lowest, highest if len(high) <= STAT_BYTES else _raised(high[:STAT_BYTES].decode(errors="ignore"))


def _raised(text: str) -> str | None:
    """A text of at most 64 bytes above all that begin with `text`; None if there is none."""
    while text:
        text, last = text[:-1], ord(text[-1])
        if last < 0x10FFFF:
            raised = text + chr(0xE000 if last == 0xD7FF else last + 1)
            if len(raised.encode()) <= STAT_BYTES:
                return raised
    return None


def _binary_bounds(low: bytes, high: bytes, type_: pa.DataType) -> tuple[bytes | None, bytes | None]:
    if pa.types.is_fixed_size_binary(type_):
        return (low, high) if type_.byte_width <= STAT_BYTES else (None, None)
    if len(high) > STAT_BYTES:
        prefix = high[:STAT_BYTES].rstrip(b"\xff")
        return low[:STAT_BYTES], prefix[:-1] + bytes([prefix[-1] + 1]) if prefix else None
    return low[:STAT_BYTES], high


def merge(stats: Iterable[tuple[int, ColumnStats]]) -> ColumnStats:
    """The statistics of shards together, given with their row counts; what one does not know is unknown.

    A shard of nothing but nulls and NaN has no bounds and needs none.
    """
    known = list(stats)
    valued = [s for rows, s in known if s.nulls is None or s.nans is None or s.nulls + s.nans < rows]
    lows, highs = [s.min for s in valued], [s.max for s in valued]
    nulls, nans = [s.nulls for _, s in known], [s.nans for _, s in known]
    return ColumnStats(
        min=min(lows) if lows and None not in lows else None,
        max=max(highs) if highs and None not in highs else None,
        nulls=_total(nulls),
        nans=_total(nans),
    )


def _total(counts: Sequence[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None
