"""Conditions: what statistics prove of a shard is true of its rows, and a text is one condition or an error."""

from __future__ import annotations

import datetime
import math
import pickle
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lake.bounds import ALL, NONE
from lake.format import stats
from lake.where import condition

SCHEMA = pa.schema(
    [
        ("a", pa.int64()),
        ("f", pa.float32()),
        ("s", pa.large_string()),
        ("b", pa.bool_()),
        ("d", pa.date32()),
        ("t", pa.timestamp("us")),
    ]
)
_DAYS = [datetime.date(2026, 1, day) for day in (1, 2, 3, 4, 5)]
_VALUES = {
    "a": st.integers(-3, 4),
    "f": st.sampled_from([math.nan, 0.1, 0.5, 1.0, -0.0, 0.0, math.inf, -math.inf, 3.5]),
    "s": st.sampled_from(["", "a", "aa", "b", "cc", "é", "\U0010ffff"]),
    "b": st.booleans(),
    "d": st.sampled_from(_DAYS),
    "t": st.sampled_from([datetime.datetime(2026, 1, day, 3) for day in (1, 2, 3, 4)]),  # noqa: DTZ001 - no zone
}
TEXTS = [
    "a < 3",
    "a >= 2.5",
    "a = 3",
    "a <> 3",
    "3 < a",
    "a between 1 and 2",
    "a in (1, 2)",
    "a not in (1, 2)",
    "a is null",
    "f < 0.1",
    "f <= 0.1",
    "f > 0.5",
    "f = 0.5",
    "f <> 0.5",
    "f >= 3.5",
    "f = 0",
    "s = 'a'",
    "s > 'b'",
    "s in ('a', 'cc')",
    "s like 'a%'",
    "not (a < 3 or f > 0.5)",
    "b",
    "not b",
    "a is not null and s = 'b'",
    "d >= '2026-01-03'",
    "t between '2026-01-02' and '2026-01-04 03:00:00'",
    "a = f",
    "true",
    "3 = a and A < 4",
    "unit(s, 0) < 0.5",
    "coalesce(a, 9) > 5",
    "case when b then a > 1 else f > 1 end",
]
_A, _F, _S, _B = (pc.field(name) for name in "afsb")
EXPRESSIONS = [
    _A < 3, _F < 0.1, ~(_F < 0.5), _S == "a", _A.is_null(), (_A > 2) & (_S != "b"), _A.isin([1, 2]), ~_A.isin([1, 2]),
    _B, ~_B, _F.is_nan(),
]  # fmt: skip


def _shard(draw: Any) -> pa.RecordBatch:
    rows = draw(st.integers(1, 5))
    columns = [
        draw(
            st.lists(st.none() | _VALUES[name], min_size=rows, max_size=rows)
            | st.lists(_VALUES[name], min_size=rows, max_size=rows)
        )
        for name in SCHEMA.names
    ]
    return pa.RecordBatch.from_arrays(
        [pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)], schema=SCHEMA
    )


def _stats(shards: list[pa.RecordBatch], name: str) -> pa.Array:
    """What a manifest says of a column: its statistics, shard by shard."""
    type_ = SCHEMA.field(name).type
    found = [stats.column_stats([shard.column(name)], type_) for shard in shards]
    integers = {pa.date32(): pa.int32(), pa.timestamp("us"): pa.int64()}.get(type_)

    def bounds(values: list[Any]) -> pa.Array:
        return pa.array(values, type_) if integers is None else pa.array(values, integers).cast(type_)

    return pa.StructArray.from_arrays(
        [
            bounds([each.min for each in found]),
            bounds([each.max for each in found]),
            pa.array([each.nulls for each in found], pa.int64()),
            pa.array([each.nans for each in found], pa.int64()),
        ],
        ["min", "max", "nulls", "nans"],
    )


@given(st.data())
@settings(max_examples=30, deadline=None)
def test_a_verdict_on_a_shard_holds_for_its_rows(data: st.DataObject) -> None:
    """NONE: no row meets the condition; ALL: every row does; for texts and expressions alike."""
    shards = [_shard(data.draw) for _ in range(data.draw(st.integers(1, 4)))]
    rows = np.array([shard.num_rows for shard in shards])
    for where in data.draw(
        st.lists(st.sampled_from([*TEXTS, *range(len(EXPRESSIONS))]), min_size=4, max_size=8)
    ):
        test = condition(where if isinstance(where, str) else EXPRESSIONS[where], SCHEMA)

        verdicts = test.verdicts(lambda name: _stats(shards, name), rows)

        met = np.array([test.mask(shard.select(list(test.columns) or ["a"])).sum() for shard in shards])
        assert (met[verdicts == NONE] == 0).all(), test.text
        assert (met[verdicts == ALL] == rows[verdicts == ALL]).all(), test.text


def test_statistics_decide_what_they_can() -> None:
    """A condition outside of a shard's bounds is NONE, one that bounds imply is ALL."""
    shard = pa.RecordBatch.from_pydict({"a": [1, 2], "f": [0.5, 1.0], "s": ["a", "b"], "b": [True, True],
                                        "d": _DAYS[:2], "t": [None, None]}, schema=SCHEMA)  # fmt: skip
    expected = {
        "a < 1": NONE,
        "a <= 2": ALL,
        "s > 'b'": NONE,
        "b": ALL,
        "f > 1.5": NONE,
        "t is null": ALL,
        "t > '2026-01-01'": NONE,
    }
    for text, verdict in expected.items():
        found = condition(text, SCHEMA).verdicts(lambda name: _stats([shard], name), np.array([2]))
        assert found.tolist() == [verdict], text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a > 998) or (1 = 1", "syntax error"),
        ("true) union all select (1", "syntax error"),
        ("a > 1; select 2", "not one condition"),
        ("a > 5 limit 2", "not one condition"),
        ("a > 1 group by a", "not one condition"),
        ("", "no condition"),
        ("  ", "no condition"),
        ("zz > 1", "zz"),
        ("count(*) > 1", "aggregate"),
        ("(select 1) = 1", "subquery"),
        ("random() < 0.5", "unit"),
        ("read_csv('/etc/passwd')", "read_csv"),
    ],
)
def test_what_is_not_one_condition_on_rows_is_refused(text: str, message: str) -> None:
    """Before anything is read, with the text in the message."""
    with pytest.raises(ValueError, match=message) as caught:
        condition(text, SCHEMA)
    assert "where=" in str(caught.value)


def test_a_value_that_does_not_convert_names_the_condition() -> None:
    """What DuckDB meets while it evaluates is an error of the condition."""
    test = condition("cast(s as int) > 1", SCHEMA)
    with pytest.raises(ValueError, match=r"cast\(s as int\)"):
        test.mask(pa.record_batch({"s": pa.array(["x"], pa.large_string())}))


def test_comments_and_odd_types_do_no_harm() -> None:
    """A comment ends with its line; half floats and wide decimals have conditions too."""
    schema = pa.schema([("h", pa.float16()), ("w", pa.decimal256(50, 2))])
    batch = pa.record_batch(
        [pa.array([1.0, 2.0], pa.float16()), pa.nulls(2, pa.decimal256(50, 2))], schema=schema
    )
    assert condition("h > 1.5 -- half", schema).mask(batch).tolist() == [False, True]
    assert condition("w is null", schema).mask(batch).tolist() == [True, True]


def test_columns_that_sql_cannot_tell_apart_are_refused_by_name() -> None:
    """`x` and `X` are one name to SQL; an expression knows them."""
    schema = pa.schema([("x", pa.int64()), ("X", pa.int64())])
    with pytest.raises(ValueError, match="'x' and 'X'"):
        condition("x > 1", schema)
    assert condition(pc.field("X") > 1, schema).columns == ("X",)


@pytest.mark.parametrize("where", [5, None, b"a > 1", ["a > 1"]])
def test_only_texts_and_expressions_are_conditions(where: Any) -> None:
    with pytest.raises(TypeError, match="SQL condition"):
        condition(where, SCHEMA)


def test_a_condition_pickles() -> None:
    """Worker processes get it with their scan."""
    for where in ("a > 1", _A > 1):
        again = pickle.loads(pickle.dumps(condition(where, SCHEMA)))
        assert again.mask(pa.record_batch({"a": [1, 2]})).tolist() == [False, True]
