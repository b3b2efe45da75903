"""Statistics: bounds that hold for every value of every type, and counts that are exact."""

from __future__ import annotations

import datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lake.format.schema import canonical_schema, conform, stored_schema
from lake.format.stats import (
    STAT_BYTES,
    column_stats,
    is_bounded,
    merge,
    shard_stats,
    stats_columns,
    stats_type,
)
from lake.format.values import ColumnStats
from tests.strategies import PRIMITIVES, arrays, batches, disguises, types

PARTS = ("min", "max", "nulls", "nans")


def stored(array: pa.Array) -> pa.Array:
    """The array in stored form."""
    schema = pa.schema([pa.field("x", array.type)])
    return conform(pa.record_batch([array], schema=schema), stored_schema(schema)).column(0)


@settings(deadline=None, max_examples=400)
@given(st.data())
def test_bounds_hold_for_every_value(data: st.DataObject) -> None:
    """No value is under min or over max, as Arrow compares them; nulls and NaN are counted, not bounded."""
    array = stored(data.draw(arrays(data.draw(st.sampled_from(PRIMITIVES)))))
    found = column_stats([array], array.type)

    assert found.nulls == array.null_count
    if not is_bounded(array.type):
        assert found == ColumnStats(nulls=array.null_count)
        return
    values = array.drop_null()
    if pa.types.is_floating(array.type):
        assert found.nans == pc.sum(pc.is_nan(values)).as_py() or (found.nans == 0 and not len(values))
        values = values.filter(pc.invert(pc.is_nan(values)))
    else:
        assert found.nans == 0
    assert len(values) or (found.min, found.max) == (None, None)
    for bound, holds in ((found.min, pc.less_equal), (found.max, pc.greater_equal)):
        if bound is not None:
            assert pc.all(holds(*_comparable(pa.array([bound], array.type), values))).as_py() in (True, None)


def _comparable(bound: pa.Array, values: pa.Array) -> tuple[pa.Scalar, pa.Array]:
    if pa.types.is_float16(values.type):
        bound, values = bound.cast(pa.float32()), values.cast(pa.float32())
    if pa.types.is_decimal(values.type):
        wide = pa.decimal256(76, values.type.scale)
        bound, values = bound.cast(wide), values.cast(wide)
    return bound[0], values


@settings(deadline=None, max_examples=200)
@given(st.data())
def test_statistics_do_not_depend_on_chunks(data: st.DataObject) -> None:
    """Equal values give equal statistics, signs of zeros included, whatever chunks hold them."""
    array = stored(data.draw(arrays(data.draw(types()))))
    chunks = [stored(chunk) for chunk in data.draw(disguises(array))]

    found = column_stats(chunks, array.type)

    assert repr(found) == repr(column_stats([array], array.type))
    assert repr(merge((len(c), column_stats([c], c.type)) for c in chunks)) == repr(found) or _loosened(found)


def _loosened(found: ColumnStats) -> bool:
    """Whether a merge may know less: chunks whose own maximum cannot be raised, or unknown NaN."""
    return found.nans is None or isinstance(found.min, (str, bytes))


@settings(deadline=None, max_examples=60)
@given(batches())
def test_statistics_survive_parquet(batch: pa.RecordBatch) -> None:
    """They have the type announced for them, and a segment gives back exactly what was found."""
    schema = stored_schema(batch.schema)
    found = shard_stats([conform(batch, schema)], schema)
    row = {name: {part: getattr(stats, part) for part in PARTS} for name, stats in found.items()}
    column = pa.array([row], stats_type(schema))
    assert stats_type(canonical_schema(batch.schema)) == column.type

    file = pa.BufferOutputStream()
    pq.write_table(pa.table({"stats": column}), file)
    read = pq.read_table(pa.BufferReader(file.getvalue()))["stats"].combine_chunks()

    for name in found:
        for part in PARTS:
            written = column.field(name).field(part)
            assert str(read.field(name).field(part).cast(written.type)) == str(written)


EDGES: list[tuple[pa.DataType, list[Any], Any, Any]] = [
    (pa.int64(), [3, None, -(2**63), 2**63 - 1], -(2**63), 2**63 - 1),
    (pa.uint64(), [2**64 - 1, 0], 0, 2**64 - 1),
    (pa.bool_(), [True, None], True, True),
    (pa.float64(), [0.0], -0.0, 0.0),
    (pa.float32(), [-0.0, 0.0], -0.0, 0.0),
    (pa.float64(), [float("nan"), float("-inf")], float("-inf"), float("-inf")),
    (pa.float64(), [float("nan"), None], None, None),
    (pa.date32(), [datetime.date(1970, 1, 3)], 2, 2),
    (pa.date64(), [1, 86_400_001], 0, 2 * 86_400_000),
    (pa.timestamp("ns", "Europe/Berlin"), [1, -(2**62)], -(2**62), 1),
    (pa.timestamp("s"), [2**62, 0], 0, None),
    (pa.time64("ns"), [1], 1, 1),
    (pa.duration("s"), [1], None, None),
    (pa.binary(65), [b"a" * 65], None, None),
    (pa.binary(2), [b"b\xff", b"a\x00"], b"a\x00", b"b\xff"),
    (pa.decimal256(39, 2), [1], None, None),
    (pa.decimal128(5, -2), [100], None, None),
    (pa.large_string(), ["a" * 64], "a" * 64, "a" * 64),
    (pa.large_string(), ["a" * 65], "a" * 64, "a" * 63 + "b"),
    (pa.large_string(), ["é" * 33], "é" * 32, "é" * 31 + "ê"),
    (pa.large_string(), ["a" + "é" * 32], "a" + "é" * 31, "a" + "é" * 30 + "ê"),
    (pa.large_string(), ["\U0010ffff" * 17], "\U0010ffff" * 16, None),
    (pa.large_string(), ["a" + "\U0010ffff" * 17], "a" + "\U0010ffff" * 15, "b"),
    (pa.large_string(), ["\ud7ff" * 22], "\ud7ff" * 21, "\ud7ff" * 20 + "\ue000"),
    (pa.large_string(), ["a" * 63 + "\x7fz"], "a" * 63 + "\x7f", "a" * 62 + "b"),
    (pa.large_string(), ["\uffff" * 22], "\uffff" * 21, "\uffff" * 20 + "\U00010000"),
    (pa.large_binary(), [b"\xff" * 65], b"\xff" * 64, None),
    (pa.large_binary(), [b"\x00" + b"\xff" * 64], b"\x00" + b"\xff" * 63, b"\x01"),
    (pa.large_binary(), [b"", b"\xff" * 64], b"", b"\xff" * 64),
]


@pytest.mark.parametrize(
    ("type_", "items", "low", "high"), EDGES, ids=[f"{i}-{edge[0]}" for i, edge in enumerate(EDGES)]
)
def test_bounds_at_the_edges(type_: pa.DataType, items: list[Any], low: Any, high: Any) -> None:
    """Cut at a character or byte and raised where that is possible; else unknown."""
    found = column_stats([pa.array(items, type_)], type_)

    assert repr((found.min, found.max)) == repr((low, high))
    for bound in (found.min, found.max):
        if isinstance(bound, (str, bytes)):
            assert len(bound.encode() if isinstance(bound, str) else bound) <= STAT_BYTES


def test_text_that_is_no_utf8_has_no_bounds() -> None:
    """Arrow does not check what it is handed; a bound of replacement characters would be false."""
    array = pa.array([b"a\xff", b"b"]).view(pa.string())

    assert column_stats([array], pa.large_string()) == ColumnStats(None, None, 0, 0)


def test_nothing_is_known_of_no_rows() -> None:
    """No chunks, and empty ones."""
    assert column_stats([], pa.float64()) == ColumnStats(None, None, 0, 0)
    assert column_stats([pa.array([], pa.int8())], pa.int8()) == ColumnStats(None, None, 0, 0)


def test_the_first_256_columns_and_the_key_have_statistics() -> None:
    """A wide table does not make a wide manifest."""
    schema = pa.schema([(f"c{i}", pa.int8()) for i in range(400)])

    assert stats_columns(schema, "c399") == [f"c{i}" for i in range(256)] + ["c399"]
    assert stats_columns(schema, "c3") == stats_columns(schema) == schema.names[:256]
    assert [field.name for field in stats_type(schema, "c399")] == stats_columns(schema, "c399")


def test_merged_statistics_know_what_all_know() -> None:
    """A shard without bounds spoils them, unless it has nothing to bound."""
    one, two = ColumnStats(1, 5, 0, 0), ColumnStats(-1, 3, 2, 0)
    unknown, empty = ColumnStats(None, None, None, 0), ColumnStats(None, None, 4, 0)

    assert merge([(9, one), (9, two)]) == ColumnStats(-1, 5, 2, 0)
    assert merge([(9, one), (4, empty)]) == ColumnStats(1, 5, 4, 0)
    assert merge([(9, one), (5, empty)]) == ColumnStats(None, None, 4, 0)
    assert merge([(9, one), (9, unknown)]) == ColumnStats(None, None, None, 0)
    assert merge([]) == ColumnStats(None, None, 0, 0)
