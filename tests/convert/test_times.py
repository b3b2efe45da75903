"""Dates and times keep their moment, their unit and their zone, or are refused."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lake.convert import columns, read
from lake.convert.tensors import Misfit
from lake.errors import SchemaError

AWARE = dt.datetime(2020, 1, 1, 3, tzinfo=dt.UTC)
NAIVE = AWARE.replace(tzinfo=None)
NANO = "2020-01-01T00:00:00.123456789"
UNITS = ("s", "ms", "us", "ns")
PER_SECOND = dict(zip(UNITS, (1, 10**3, 10**6, 10**9), strict=True))


def table(samples, **options) -> pa.Table:
    found = read(samples, **options)
    return pa.Table.from_batches(found.batches, found.schema)


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([NAIVE], pa.timestamp("us")),
        ([AWARE], pa.timestamp("us", "UTC")),
        ([pd.Timestamp(NANO), NAIVE], pa.timestamp("ns")),
        ([pd.Timestamp(NANO, tz="Europe/Berlin")], pa.timestamp("ns", "Europe/Berlin")),
        ([pd.Timestamp("2020-01-01").as_unit("s")], pa.timestamp("s")),
        ([np.datetime64(NANO, "ns"), NAIVE], pa.timestamp("ns")),
        ([np.datetime64("2020-01-01T01", "h")], pa.timestamp("s")),
        ([np.datetime64("2020-01-01"), np.datetime64("2020-01-02T03:04:05.006")], pa.timestamp("ms")),
        ([np.datetime64("2020-01-01"), None], pa.date32()),
        ([dt.date(2020, 1, 1)], pa.date32()),
        ([pd.Timedelta(1001, "ns"), dt.timedelta(1)], pa.duration("ns")),
        ([np.timedelta64(5, "D")], pa.duration("s")),
        ([np.timedelta64(5, "ms"), dt.timedelta(1)], pa.duration("us")),
        ([pd.NaT, NAIVE, np.datetime64("NaT")], pa.timestamp("us")),
    ],
)
def test_the_finest_unit_holds_all_values(values, kind):
    """Nothing is cut to microseconds, and NaT is null."""
    found = table([(i, {"t": value}) for i, value in enumerate(values)])["t"]

    there = [value for value in values if value is not None and value == value]
    assert found.type == kind
    assert [pd.Timestamp(v) if not pa.types.is_duration(kind) else pd.Timedelta(v) for v in there] == [
        pd.Timestamp(v) if not pa.types.is_duration(kind) else pd.Timedelta(v)
        for v in found.drop_null().to_pylist()
    ]


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(["datetime", "timestamp", "numpy"]),
    st.sampled_from(UNITS),
    st.sampled_from(UNITS),
    st.integers(-(2**33), 2**33),
    st.integers(0, 10**9 - 1),
)
def test_a_value_is_stored_exactly_or_refused(source, unit, target, seconds, nanos):
    """A moment in one unit, in a column of another: that moment, or Misfit."""
    unit = "us" if source == "datetime" else unit
    ticks = seconds * PER_SECOND[unit] + nanos * PER_SECOND[unit] // 10**9
    moment = np.datetime64(ticks, unit)
    value = (
        moment.item() if source == "datetime" else pd.Timestamp(moment) if source == "timestamp" else moment
    )

    fits = ticks * PER_SECOND[target] % PER_SECOND[unit] == 0
    try:
        made = columns.build([value, None], pa.timestamp(target)).cast(pa.int64())[0].as_py()
    except Misfit:
        assert not fits or abs(seconds) > 9_223_372_000
    else:
        assert made * PER_SECOND[unit] == ticks * PER_SECOND[target]


@pytest.mark.parametrize("schema", [None, "given"])
@pytest.mark.parametrize(
    ("first", "later", "says"),
    [
        (NAIVE, AWARE, "with a zone, does not fit timestamp"),
        (AWARE, NAIVE, "without a zone, does not fit timestamp"),
        (AWARE, np.datetime64(NAIVE), "without a zone"),
        (NAIVE, pd.Timestamp(NANO), "would lose data"),
        (NAIVE, np.datetime64(NANO), "would lose data"),
        (dt.timedelta(1), pd.Timedelta(1, "ns"), "would lose data"),
        (dt.timedelta(1), np.timedelta64(1, "M"), "units of 'M'"),
        (dt.date(2020, 1, 1), NAIVE, "whole days"),
        (dt.date(2020, 1, 1), np.datetime64(NAIVE), "whole days"),
        (dt.time(1), dt.time(1, tzinfo=dt.UTC), "with a zone"),
    ],
)
def test_a_later_value_is_never_moved_or_cut(monkeypatch, first, later, says, schema):
    """After the samples that settle the types, or with a schema: the error names sample, field and both types."""
    monkeypatch.setattr("lake.convert.samples.WINDOW_ROWS", 1)
    asked = None if schema is None else pa.schema([("t", columns.infer([first]))])

    with pytest.raises(SchemaError, match=r"sample 'b' \(row 1\), field 't': .*" + says):
        table([("a", {"t": first}), ("b", {"t": later})], schema=asked)


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (NAIVE.replace(microsecond=5), pa.timestamp("s")),
        (dt.timedelta(microseconds=5), pa.duration("ms")),
        (dt.time(0, 0, 0, 5), pa.time32("s")),
        (1e300, pa.float32()),
        (np.float64(1e300), pa.float32()),
        (1e5, pa.float16()),
        (2049, pa.float16()),
        (70_000, pa.float16()),
        (2**24 + 1, pa.float32()),
        (2**53 + 1, pa.float64()),
        ([1e300], pa.list_(pa.float32())),
        ({"x": 1e300}, pa.struct([("x", pa.float32())])),
        ([1e300], pa.fixed_shape_tensor(pa.float32(), (1,))),
        ([1.5], pa.fixed_shape_tensor(pa.int8(), (1,))),
        (np.array([2**53 + 1]), pa.list_(pa.float64())),
        (np.array([2**53 + 1]), pa.fixed_shape_tensor(pa.float64(), (1,))),
        (np.array(["2500-01-01"], "M8[s]"), pa.fixed_shape_tensor(pa.timestamp("ns"), (1,))),
        (Decimal("1.234"), pa.decimal128(5, 2)),
        (Decimal("NaN"), pa.decimal128(5, 2)),
    ],
)
def test_a_schema_never_changes_a_value(value, kind):
    """What it cannot hold is an error with sample, field, value and type."""
    with pytest.raises(SchemaError, match=r"sample 'a' \(row 0\), field 'v': .*fit"):
        table([("a", {"v": value})], schema=pa.schema([("v", kind)]))


def test_floats_may_round_and_infinity_stays_infinite():
    """As the documentation says of float32 columns."""
    values = [0.1, float("inf"), float("-inf"), 3, None]

    found = table([(str(i), {"v": v}) for i, v in enumerate(values)], schema=pa.schema([("v", pa.float32())]))

    assert found["v"].to_pylist() == [float(np.float32(0.1)), float("inf"), float("-inf"), 3.0, None]


def test_decimals_that_are_no_numbers_are_named():
    """Arrow's own message speaks of a precision of minus two thousand million."""
    for bad in ("NaN", "Infinity", "sNaN"):
        with pytest.raises(
            SchemaError, match=rf"sample 'b' \(row 1\), field 'v': Decimal\('{bad}'\) is no number"
        ):
            table([("a", {"v": Decimal("1.5")}), ("b", {"v": Decimal(bad)})])
