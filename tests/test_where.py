"""Conditions: what they say of a shard is never contradicted by its rows, and their rows are those SQL gives."""

from __future__ import annotations

import datetime
import math
import os
import pickle
import re
import threading
from decimal import Decimal
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lake.bounds import ALL, NONE, SOME, Bounds
from lake.format import stats
from lake.where import Condition, condition

F = pc.field
DAY = datetime.date(2026, 1, 1)
HOUR = datetime.datetime(2026, 1, 1, 3)  # noqa: DTZ001 - the column has no zone

SCHEMA = pa.schema(
    {
        "a": pa.int64(),
        "u": pa.uint8(),
        "f": pa.float32(),
        "g": pa.float64(),
        "s": pa.large_string(),
        "b": pa.bool_(),
        "d": pa.date32(),
        "t": pa.timestamp("us"),
        "m": pa.decimal128(8, 2),
        "c": pa.dictionary(pa.int32(), pa.large_string()),
    }
)

NAIVE = datetime.datetime(2026, 1, 1, 3)  # noqa: DTZ001 - the column has no zone
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "a": st.integers(-3, 8),
    "u": st.integers(0, 255),
    "f": st.sampled_from([math.nan, math.inf, -0.0, 0.0, 0.1, 0.5, 1.0, 16777216.0]),
    "g": st.sampled_from([math.nan, 0.1, 0.30000000000000004, -2.5, 1e300]),
    "s": st.sampled_from(["", "a", "aa", "b", "cc", "é", "a" * 70, "z" * 70]),
    "b": st.booleans(),
    "d": st.integers(0, 5).map(lambda n: DAY + datetime.timedelta(n)),
    "t": st.integers(0, 5).map(lambda n: HOUR + datetime.timedelta(n)),
    "m": st.sampled_from([Decimal("-1.00"), Decimal("0.10"), Decimal("2.50")]),
    "c": st.sampled_from(["x", "y", "zz"]),
}

TEXTS = """
a < 3 | a >= 2.5 | a = 3 | a <> 3 | 3 < a | 3 = a and A < 4 | a not in (1, 2) | a in (1, 2, null) | a between 2 and 4
not (a between 2 and 4) | a is null | a is not null and s = 'b' | a = f | a + 1 > 3 | coalesce(a, 9) > 5 | a = null
u > 250 | u < -1 | u <= 255 | f < 0.1 | f <= 0.1 | f > 0.5 | f = 0.5 | f <> 0.5 | f > 100 | f = 'nan' | f = 16777217
g < 0.3 | g = 0.3 | g >= 1e299 | not (g > -2.5)
s = 'a' | s > 'b' | s >= '' | s < 'aaaa' | s in ('a', 'cc') | s like 'a%'
s <> 'zzz' | b | not b | b = false | b is null or a > 2 | d >= '2026-01-03' | d = date '2026-01-02' | d <> '2026-01-01'
t between '2026-01-02' and '2026-01-04 03:00:00' | t < timestamp '2026-01-02 03:00:00' | m > 0.1 | m = 2.5 | m <= -1
c = 'x' | c in ('y', 'q') | c is null | c > 'x' | true | false | not true | unit(s, 0) < 0.5 | unit(a, 3) >= 0.25
not (a < 3 or f > 0.5) | (a > 2 and s <> 'b') or d is null | case when a > 2 then true else b end | a < 3 is not true
"""
CONDITIONS: list[Any] = [text.strip() for line in TEXTS.strip().split("\n") for text in line.split("|")] + [
    F("a") < 3,
    F("a") >= 2.5,
    F("a") != 3,
    F("f") < 0.1,
    ~(F("f") < 0.5),
    F("g") == 0.1,
    F("s") == "a",
    F("s") > "b",
    F("a").is_null(),
    ~F("a").is_null(),
    (F("a") > 2) & (F("s") != "b"),
    (F("a") > 2) | F("b"),
    F("a").isin([1, 2]),
    ~F("a").isin([1, 2]),
    F("b"),
    ~F("b"),
    F("d") >= datetime.date(2026, 1, 3),
    F("f").is_nan(),
]


@st.composite
def shards(draw: st.DrawFn) -> list[pa.RecordBatch]:
    """Shards whose columns have few different values each, some of them null, some all null."""
    found = []
    for _ in range(draw(st.integers(1, 4))):
        rows = draw(st.integers(1, 5))
        columns = []
        for field in SCHEMA:
            values = draw(st.lists(VALUES[field.name], min_size=1, max_size=2))
            nulls = draw(st.sampled_from([0, 0, 1, 2]))  # none, some, all
            chosen = [
                None if nulls == 2 or (nulls and draw(st.booleans())) else draw(st.sampled_from(values))
                for _ in range(rows)
            ]
            type_ = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
            array = pa.array(chosen, type_)
            columns.append(array.dictionary_encode().cast(field.type) if field.name == "c" else array)
        found.append(pa.RecordBatch.from_arrays(columns, schema=SCHEMA))
    return found


def statistics(batches: list[pa.RecordBatch], name: str) -> pa.Array:
    """What a manifest has of a column, one struct a shard."""
    type_ = SCHEMA.field(name).type
    plain = type_.value_type if pa.types.is_dictionary(type_) else type_
    found = []
    for batch in batches:
        column = batch.column(name)
        column = column.dictionary_decode() if pa.types.is_dictionary(type_) else column
        found.append(stats.column_stats([column], plain))
    storage = {pa.date32(): pa.int32(), pa.timestamp("us"): pa.int64()}.get(plain)

    def bounds(values: list[Any]) -> pa.Array:
        known = [value for value in values if value is not None]
        if storage is None or not all(isinstance(value, int) for value in known):
            return pa.array(values, plain)
        return pa.array(values, storage).cast(plain)

    return pa.StructArray.from_arrays(
        [
            bounds([one.min for one in found]),
            bounds([one.max for one in found]),
            pa.array([one.nulls for one in found], pa.int64()),
            pa.array([one.nans for one in found], pa.int64()),
        ],
        ["min", "max", "nulls", "nans"],
    )


def masks(asked: Condition, batches: list[pa.RecordBatch]) -> list[np.ndarray]:
    return [asked.mask(batch.select(list(asked.columns)) if asked.columns else batch) for batch in batches]


@settings(max_examples=60, deadline=None)
@given(shards(), st.sampled_from(CONDITIONS))
def test_what_statistics_say_of_a_shard_is_true_of_its_rows(
    batches: list[pa.RecordBatch], where: Any
) -> None:
    """Of a shard that is ruled out no row meets the condition; of one that is ruled in, every row."""
    asked = condition(where, SCHEMA)
    rows = np.array([batch.num_rows for batch in batches])

    verdicts = asked.verdicts(lambda name: statistics(batches, name), rows)

    counts = np.array([mask.sum() for mask in masks(asked, batches)])
    assert (counts[verdicts == NONE] == 0).all()
    assert (counts[verdicts == ALL] == rows[verdicts == ALL]).all()


@settings(max_examples=60, deadline=None)
@given(
    st.lists(shards(), min_size=1, max_size=4),
    st.sampled_from([where for where in CONDITIONS if not isinstance(where, str)]),
)
def test_shards_that_are_judged_together_are_judged_truly(
    drawn: list[list[pa.RecordBatch]], where: Any
) -> None:
    """Runs of neighbours first: never more is claimed than of each alone, and what is ruled out has no such row."""
    batches = [batch for some in drawn for batch in some]
    asked = condition(where, SCHEMA)
    rows = np.array([batch.num_rows for batch in batches])
    one_by_one = asked.verdicts(lambda name: statistics(batches, name), rows)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lake.where.expressions._RUN", 2)
        verdicts = asked.verdicts(lambda name: statistics(batches, name), rows)

    assert verdicts.tolist() == one_by_one.tolist()
    counts = np.array([mask.sum() for mask in masks(asked, batches)])
    assert (counts[verdicts == NONE] == 0).all()
    assert (counts[verdicts == ALL] == rows[verdicts == ALL]).all()


def test_a_range_of_a_sorted_column_is_found_among_very_many_shards() -> None:
    """Also where no shard could be judged alone: most are ruled out with their neighbours."""
    shards, schema = 200_000, pa.schema({"x": pa.int64(), "name": pa.large_string()})
    low = np.arange(shards) * 10
    zeros = pa.array(np.zeros(shards, np.int64))
    of = {
        "x": [pa.array(low), pa.array(low + 9), zeros, zeros],
        "name": [pa.array([f"{n:09}" for n in low.tolist()], pa.large_string())] * 2 + [zeros, zeros],
    }
    asked = condition((F("x") >= 1_000_005) & (F("x") < 1_000_025) & (F("name") < "9"), schema)

    verdicts = asked.verdicts(
        lambda name: pa.StructArray.from_arrays(of[name], ["min", "max", "nulls", "nans"]),
        np.full(shards, 10),
    )

    assert np.flatnonzero(verdicts != NONE).tolist() == [100_000, 100_001, 100_002]
    assert verdicts[100_001] == ALL


def test_what_a_column_lacks_is_looked_up_for_all_shards_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not for each of those that are in doubt: its cost would grow with their square."""
    looked_up: list[int] = []
    complete = Bounds.complete.fget

    def counted(column: Bounds) -> Any:
        looked_up.append(len(column.low))
        return complete(column)

    monkeypatch.setattr(Bounds, "complete", property(counted))
    low = np.zeros(300, np.int64)
    held = pa.StructArray.from_arrays([low, low + 9, low, low], ["min", "max", "nulls", "nans"])

    verdicts = condition(F("a") > 4, SCHEMA).verdicts(lambda _: held, low + 10)

    assert (verdicts == SOME).all()
    assert len(looked_up) == 2  # of runs of shards, and of shards


@settings(max_examples=40, deadline=None)
@given(
    shards(), st.sampled_from([text for text in CONDITIONS if isinstance(text, str) and "unit" not in text])
)
def test_the_rows_of_a_text_are_those_that_duckdb_gives(batches: list[pa.RecordBatch], where: str) -> None:
    """A condition means what it means in a where clause."""
    asked = condition(where, SCHEMA)
    for batch, mask in zip(batches, masks(asked, batches), strict=True):
        rows = pa.Table.from_batches([batch]).append_column("_row", pa.array(range(batch.num_rows)))
        with duckdb.connect() as connection:
            connection.execute("set TimeZone = 'UTC'")
            connection.register("numbered", rows)
            found = connection.sql(f"select _row from numbered where {where}").to_arrow_table()["_row"]
            assert np.flatnonzero(mask).tolist() == sorted(found.to_pylist())


@settings(max_examples=25, deadline=None)
@given(shards(), st.sampled_from([where for where in CONDITIONS if not isinstance(where, str)]))
def test_the_rows_of_an_expression_are_those_that_arrow_gives(
    batches: list[pa.RecordBatch], where: Any
) -> None:
    """Null counts as no."""
    asked = condition(where, SCHEMA)
    for batch, mask in zip(batches, masks(asked, batches), strict=True):
        numbered = pa.Table.from_batches([batch]).append_column("_row", pa.array(range(batch.num_rows)))
        assert np.flatnonzero(mask).tolist() == numbered.filter(where)["_row"].to_pylist()


@pytest.mark.parametrize(
    ("where", "columns"),
    [
        ("a > 3 and S = 'x'", ("a", "s")),
        ("true", ()),
        ("a > 1 -- and b) or (true", ("a",)),  # a comment ends with its line
        ('"d" is null', ("d",)),
        (F("s") == "x", ("s",)),
        ((F("a") > 1) & (F("f") < 2), ("a", "f")),
    ],
)
def test_a_condition_needs_its_columns_and_no_others(where: Any, columns: tuple[str, ...]) -> None:
    """In whatever case SQL spells them."""
    assert condition(where, SCHEMA).columns == columns


def test_statistics_settle_what_they_can() -> None:
    """Sorted data is judged without being read; what is not known is never settled."""
    batches = [
        pa.RecordBatch.from_pylist(
            [{"a": n, "s": "k", "f": float(n), "b": True} for n in range(start, start + 10)], SCHEMA
        )
        for start in (0, 10, 20)
    ]
    rows = np.array([10, 10, 10])

    def judged(where: Any) -> list[int]:
        verdicts = condition(where, SCHEMA).verdicts(lambda name: statistics(batches, name), rows)
        return [int(verdict) for verdict in verdicts]

    assert judged("a between 10 and 19") == [NONE, ALL, NONE]
    assert judged("a < 15") == [ALL, 1, NONE]
    assert judged("b and s = 'k'") == [ALL, ALL, ALL]
    assert judged("d is null and f >= 20") == [NONE, NONE, ALL]
    assert judged("unit(a, 0) < 0.5") == [1, 1, 1]
    assert judged(F("a") < 10) == [ALL, NONE, NONE]


@pytest.mark.parametrize(
    "where",
    [
        "zz > 1",
        "a >",
        "",
        "true) union all select (1",
        "count(*) > 1",
        "(select 1) = 1",
        "a > 1; drop table t",
        "random() < 0.5",
        "now() > t",
        "read_csv('x')",
        "exists (from read_parquet('/etc/passwd'))",
        "getenv('HOME') = 'x'",
        "+".join(["a"] * 800) + " > 1",  # nested as deep as DuckDB takes it
        "not " * 800 + "a > 1",
        F("zz") > 1,
    ],
)
def test_what_is_no_condition_on_rows_is_refused(where: Any) -> None:
    """Unknown columns, statements, files, aggregates, and what answers differently from call to call."""
    with pytest.raises(ValueError, match="where="):
        condition(where, SCHEMA)


def test_other_things_are_refused_by_type() -> None:
    """A function is no condition."""
    with pytest.raises(TypeError, match="SQL"):
        condition(lambda batch: batch, SCHEMA)


@pytest.mark.parametrize("where", ["a > 3", F("a") > 3])
def test_a_condition_pickles(where: Any) -> None:
    """As what it was made of."""
    batch = pa.RecordBatch.from_pylist([{"a": 1}, {"a": 5}], SCHEMA)

    asked = pickle.loads(pickle.dumps(condition(where, SCHEMA)))

    assert asked.text == condition(where, SCHEMA).text
    assert asked.mask(batch.select(["a"])).tolist() == [False, True]


@pytest.mark.parametrize(
    "more", ["drop table x", "select 2", "create table y (n int)", "pragma version", "vacuum"]
)
def test_a_second_statement_is_named_as_no_condition(more: str) -> None:
    """Whatever it would do; the message is ours and repeats the text."""
    text = f"n = 1; {more}"
    with pytest.raises(ValueError, match=re.escape(f"where={text!r} is not one condition")):
        condition(text, pa.schema({"n": pa.int64()}))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing is forked here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_fork_beside_a_thread_that_evaluates_conditions_harms_neither_process() -> None:
    """The child drops what the thread had, whose own threads it has not; a condition of its parent works there."""
    batch = pa.record_batch({"n": pa.array([1, 2, 3])})
    found = condition("n > 1", batch.schema)
    over, ready = threading.Event(), threading.Event()

    def evaluate() -> None:
        found.mask(batch)
        ready.set()
        over.wait()

    thread = threading.Thread(target=evaluate)
    thread.start()
    ready.wait()
    found.mask(batch)
    try:
        child = os.fork()
        if child == 0:
            os._exit(0 if found.mask(batch).tolist() == [False, True, True] else 1)
        assert os.waitpid(child, 0)[1] == 0
    finally:
        over.set()
        thread.join()
    assert found.mask(batch).tolist() == [False, True, True]
