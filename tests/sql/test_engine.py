"""Datasets as tables: what is found under which name, what is pushed down, and what no statement can do."""

from __future__ import annotations

import gc
import os
import threading
import weakref
from datetime import date
from pathlib import Path
from types import MappingProxyType
from typing import Any

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import lake
from lake import catalog
from lake.catalog import engine
from lake.catalog.tables import table
from lake.errors import BudgetError, NotFoundError, SchemaError
from lake.repo import Lake
from tests.sql.conftest import HandMade, HandMadeLake

BIRDS = pa.table(
    {
        "image": pa.array([b"x" * 1000] * 100, pa.large_binary()),
        "id": pa.array(range(100), pa.int64()),
        "label": pa.array(["owl", "tit", None, "jay"] * 25).dictionary_encode(),
        "score": pa.array([None if i % 7 == 0 else i / 10 for i in range(100)], pa.float64()),
    }
)


@pytest.fixture
def birds() -> HandMade:
    return HandMade(BIRDS, step=10)


@pytest.fixture
def lk(birds: HandMade) -> HandMadeLake:
    return HandMadeLake(birds=birds)


@pytest.mark.parametrize("terms", [300, 900])
def test_a_statement_may_be_nested_as_deep_as_duckdb_takes_it(lk: HandMadeLake, terms: int):
    """Deeper than Python likes to look."""
    assert lk.sql(f"select {' + '.join(['id'] * terms)} from birds limit 2 offset 1").fetchall() == [
        (terms,),
        (2 * terms,),
    ]


def test_a_dataset_is_a_table_of_its_name(lk: HandMadeLake):
    """Names with a version, with dots and slashes, and in another case are found too."""
    lk.tables |= {
        name: HandMade(BIRDS[:n]) for n, name in enumerate(["birds@v1", "a/b", "a.b", "x@#2"], start=1)
    }

    counts = [
        lk.sql(f"select count(*) from {name}").fetchall()
        for name in ("birds", "Birds", '"birds@v1"', '"BIRDS@v1"', '"a/b"', '"a.b"', '"x@#2"')
    ]

    assert counts == [[(n,)] for n in (100, 100, 1, 1, 2, 3, 4)]


def test_only_the_columns_used_are_read(lk: HandMadeLake, birds: HandMade):
    """Projection reaches the scan."""
    lk.sql("select sum(id) from birds where score is not null or id > 3").fetchall()

    assert [sorted(columns) for columns, _ in birds.asked] == [["id"]]


def test_a_filter_reaches_the_scan(lk: HandMadeLake, birds: HandMade):
    """Comparisons, IN, BETWEEN, OR and null tests are not left to DuckDB, which would need all rows."""
    for condition, rows in {
        "id = 3": 1,
        "id in (1, 2, 300)": 2,
        "id between 5 and 9": 5,
        "id < 2 or label = 'jay'": 27,
        "label is null and id < 8": 2,
    }.items():
        birds.given = 0
        assert len(lk.sql(f"select id from birds where {condition}").fetchall()) == rows
        assert birds.given == rows, condition


def test_counting_reads_no_rows(lk: HandMadeLake, birds: HandMade):
    """`count(*)` comes from the version document, not from the first column, which may hold images."""
    assert lk.sql("select count(*) from birds").fetchall() == [(100,)]
    assert birds.asked == []


def test_counting_with_a_filter_asks_for_no_column(lk: HandMadeLake, birds: HandMade):
    """None is read beside those that the filter needs."""
    assert lk.sql("select count(*) from birds where id >= 90").fetchall() == [(10,)]
    assert [columns for columns, _ in birds.asked] == [()]


def test_a_limit_ends_the_scan(lk: HandMadeLake, birds: HandMade):
    """Rows beyond it are not read, and the scan is closed."""
    assert len(lk.sql("select id from birds limit 3").fetchall()) == 3
    gc.collect()

    assert birds.given < 100
    assert birds.open == 0


def test_the_table_has_the_columns_of_the_dataset(lk: HandMadeLake):
    """The helper column that counts rows is not seen."""
    answer = lk.sql("from birds").to_arrow_table()

    assert answer.column_names == BIRDS.column_names
    assert answer["image"].to_pylist() == BIRDS["image"].to_pylist()
    assert [row[0] for row in lk.sql("describe birds").fetchall()] == BIRDS.column_names


def test_a_dataset_without_rows_is_a_table_too():
    """It has columns, and a count of zero."""
    lk = HandMadeLake(none=BIRDS[:0])

    assert lk.sql("from none").to_arrow_table().column_names == BIRDS.column_names
    assert lk.sql("select count(*) from none where id > 1").fetchall() == [(0,)]


def test_a_column_may_have_any_name():
    """Quotes, blanks, and the helper's own names."""
    names = ["_0", "_1", 'q"x', "a b", "x", "select"]
    lk = HandMadeLake(odd=pa.table({name: [i] for i, name in enumerate(names)}))

    assert lk.sql("from odd").fetchall() == [tuple(range(len(names)))]
    assert lk.sql('select "q""x" from odd where "select" = 5').fetchall() == [(2,)]
    assert lk.sql("select count(*) from odd").fetchall() == [(1,)]


def test_what_duckdb_lacks_is_shown_as_the_nearest_type():
    """float16 becomes float32 and a wide decimal text, at any depth; filters hold on what is shown."""
    half = pa.array(np.array([1.5, 2.5, np.nan], "f2"))
    wide = pa.array([1, 2, None], pa.decimal256(60, 2))
    tensor = pa.ExtensionArray.from_storage(
        pa.fixed_shape_tensor(pa.float16(), [1]), pa.FixedSizeListArray.from_arrays(half, 1)
    )
    nested = pa.array([[{"h": np.float16(1)}], [], None], pa.large_list(pa.struct({"h": pa.float16()})))
    lk = HandMadeLake(
        odd=pa.table({"half": half, "wide": wide, "tensor": tensor, "nested": nested, "id": [1, 2, 3]})
    )

    assert lk.sql("select half, wide, tensor, nested from odd where id = 1").fetchall() == [
        (1.5, "1.00", (1.5,), [{"h": 1.0}])
    ]
    assert lk.sql("select id from odd where wide = '2.00'").fetchall() == [(2,)]
    assert lk.sql("select id from odd where half < 2").fetchall() == [(1,)]
    assert lk.sql("select id from odd where half > 2 order by id").fetchall() == [
        (2,),
        (3,),
    ]  # NaN is the largest


conditions = st.sampled_from(
    [
        "{c} < {v}", "{c} <= {v}", "{c} > {v}", "{c} >= {v}", "{c} = {v}", "{c} <> {v}", "{c} is null",
        "{c} is not null", "{c} in ({v}, {v})", "{c} between {v} and {v}", "{c} is distinct from {v}",
    ]
)  # fmt: skip
VALUES = {
    "i": st.integers(-3, 3).map(str),
    "f": st.sampled_from(["-1.5", "0.0", "-0.0", "2.0", "'nan'::double", "'inf'::double"]),
    "s": st.sampled_from(["''", "'a'", "'b'", "'ä'"]),
    "d": st.sampled_from(["''", "'a'", "'b'", "'zz'"]),
    "b": st.sampled_from(["true", "false"]),
    "t": st.sampled_from(["date '2020-01-01'", "date '2021-06-01'"]),
}


@st.composite
def wheres(draw: st.DrawFn) -> str:
    def one() -> str:
        column = draw(st.sampled_from(sorted(VALUES)))
        shape = draw(conditions)
        filled = shape.replace("{c}", column)
        while "{v}" in filled:
            filled = filled.replace("{v}", draw(VALUES[column]), 1)
        return f"not ({filled})" if draw(st.booleans()) else filled

    text = one()
    for _ in range(draw(st.integers(0, 3))):
        text = f"({text}) {draw(st.sampled_from(['and', 'or']))} ({one()})"
    return text


@st.composite
def odd_tables(draw: st.DrawFn) -> pa.Table:
    rows = draw(st.integers(0, 12))

    def column(values: st.SearchStrategy[object], type_: pa.DataType) -> pa.Array:
        return pa.array(draw(st.lists(st.none() | values, min_size=rows, max_size=rows)), type_)

    floats = st.sampled_from([-1.5, 0.0, -0.0, 2.0, float("nan"), float("inf")])
    return pa.table(
        {
            "i": column(st.integers(-3, 3), pa.int32()),
            "f": column(floats, pa.float64()),
            "s": column(st.sampled_from(["", "a", "b", "ä"]), pa.large_string()),
            "d": column(st.sampled_from(["a", "b"]), pa.dictionary(pa.int32(), pa.large_string())),
            "b": column(st.booleans(), pa.bool_()),
            "t": column(st.sampled_from([18262, 18779]), pa.int32()).cast(pa.date32()),
        }
    )


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(odd_tables(), wheres())
def test_a_pushed_filter_keeps_what_duckdb_would(table: pa.Table, where: str):
    """Any condition selects the same rows as DuckDB does over a table of its own."""
    numbered = table.append_column("n", pa.array(range(len(table)), pa.int64()))
    con = duckdb.connect()
    con.register("arrow", numbered)
    con.execute("create table own as from arrow")
    expected = con.sql(f"select n from own where {where} order by n").fetchall()
    lk = HandMadeLake(own=HandMade(numbered, step=5))

    assert lk.sql(f"select n from own where {where} order by n").fetchall() == expected
    assert lk.sql(f"select count(*) from own where {where}").fetchall() == [(len(expected),)]


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> tuple[Lake, duckdb.DuckDBPyConnection]:
    """Odd values in shards of a real lake, and in a table of DuckDB's own."""
    random = np.random.default_rng(0)
    choices = {
        "i": [None, -3, -1, 0, 2, 3],
        "f": [None, -1.5, 0.0, -0.0, 2.0, float("nan"), float("inf")],
        "s": [None, "", "a", "b", "ä"],
        "b": [None, True, False],
        "t": [None, date(2020, 1, 1), date(2021, 6, 1)],
    }
    table = pa.table(
        {name: [values[k] for k in random.integers(0, len(values), 2000)] for name, values in choices.items()}
    )
    table = table.append_column("d", table["s"].dictionary_encode()).append_column("n", pa.array(range(2000)))
    folder = tmp_path_factory.mktemp("stored")
    lk = lake.open(folder / "lake", cache_dir=folder / "cache", progress=False)
    lk.commit("own", table.sort_by("i"), shard_bytes="16KiB")
    con = duckdb.connect()
    con.register("arrow", table)
    con.execute("create table own as from arrow")
    return lk, con


@settings(max_examples=40, deadline=None)
@given(wheres())
def test_a_filter_over_shards_keeps_what_duckdb_would(
    stored: tuple[Lake, duckdb.DuckDBPyConnection], where: str
):
    """Statistics rule out no shard that has a row to give."""
    lk, con = stored
    query = f"select n from own where {where} order by n"

    assert lk.sql(query).fetchall() == con.sql(query).fetchall()
    assert (
        lk.sql(f"select count(*) from own where {where}").fetchall()
        == con.sql(f"select count(*) from own where {where}").fetchall()
    )


def test_frames_of_the_caller_are_tables(lk: HandMadeLake):
    """Arrow, polars, pandas and datasets of other lakes, by keyword; they go before datasets."""
    other = HandMade(pa.table({"id": [7]}))
    frame = pl.DataFrame({"id": [1, 2]})

    assert lk.sql("from p join a using (id) join birds using (id)", p=frame, a=frame.to_arrow()).fetchall()
    assert lk.sql("select id from birds", birds=other).fetchall() == [(7,)]
    assert lk.sql("select id from BIRDS", birds=frame.to_pandas()).fetchall() == [(1,), (2,)]
    with pytest.raises(TypeError, match="table 'x': DuckDB cannot read a object"):
        lk.sql("from x", x=object())
    with pytest.raises(ValueError, match="begin with '_'"):
        lk.sql("from _log", _log=frame)


def test_parameters_fill_the_statement(lk: HandMadeLake):
    """By name or by position, also beside a dataset."""
    assert lk.sql("select id from birds where id = $n", {"n": 5}).fetchall() == [(5,)]
    assert lk.sql("select id from birds where id = ?", [6]).fetchall() == [(6,)]


def test_an_unknown_name_is_not_found(lk: HandMadeLake):
    """The error is the lake's; DuckDB's suggestions know nothing of datasets."""
    with pytest.raises(NotFoundError, match="no dataset 'brids'"):
        lk.sql("from brids")
    with pytest.raises(NotFoundError, match=r"no relation lake\.shrads; nearest: 'shards'"):
        lk.sql("from lake.shrads")
    with pytest.raises(NotFoundError, match=r'quoted if it has dots: "birds\.sub"'):
        lk.sql("from birds.sub")
    with pytest.raises(NotFoundError, match="is no name"):
        lk.sql('from "a~b"')


def test_names_that_a_statement_defines_are_its_own(lk: HandMadeLake, birds: HandMade):
    """A `with` hides a dataset of that name, but may itself be made of it."""
    assert lk.sql("with own as (select 1 as x) from own").fetchall() == [(1,)]
    assert lk.sql("with birds as (select 1 as x) from birds").fetchall() == [(1,)]
    assert lk.sql("with birds as (select id from birds where id < 2) from birds").fetchall() == [(0,), (1,)]
    counted = (
        "with recursive r(n) as (select 1 union all select n + 1 from r where n < 3) select count(*) from r"
    )
    assert lk.sql(counted).fetchall() == [(3,)]
    with pytest.raises(NotFoundError, match="later"):
        lk.sql("with a as (from later), later as (select 1) from a")


def test_every_kind_of_question_finds_datasets(lk: HandMadeLake):
    """Also those that DuckDB does not show as a tree: PIVOT and EXPLAIN."""
    assert lk.sql("pivot birds on label using count(*)").fetchall()
    assert lk.sql("-- why\nexplain (format json) (select id from birds)").fetchall()
    assert lk.sql("(select id from birds) union all (from birds select id)").fetchall()
    assert "PYTHON_ARROW_SCAN" in lk.sql("explain select id from birds").fetchall()[0][1]
    assert lk.sql("summarize birds").fetchall()
    assert lk.sql("select (select max(id) from birds), exists(from birds where id > 1000)").fetchall() == [
        (99, False)
    ]


@pytest.mark.parametrize(
    "statement",
    [
        "create table x as from birds",
        "create view x as from birds",
        "insert into birds values (1)",
        "delete from birds",
        "drop view lake.log",
        "attach 'x.db'",
        "copy birds to 'x.csv'",
        "export database 'x'",
        "install httpfs",
        "load httpfs",
        "set enable_external_access = true",
        "set lock_configuration = false",
        "pragma database_list",
        "call pragma_version()",
        "begin",
        "checkpoint",
        "prepare p as select 1",
        "set variable x = 1",
        "import database 'x'",
        "vacuum",
        "use memory",
        "truncate birds",
        "update birds set id = 1",
        "alter table birds add column z int",
        "create secret s (type s3)",
        "comment on view lake.log is 'x'",
        "pragma enable_profiling",
        "with x as (select 1 as id) insert into birds from x",
        "explain analyze create table x as select 1",
        "explain (analyze, format json) create table x as select 1",
        "create table x as from (pivot birds on label using count(*))",
        "copy (pivot birds on label using count(*)) to 'x.csv'",
    ],
)
def test_a_statement_only_asks(
    lk: HandMadeLake, statement: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """What would change something is refused by its kind, before it runs."""
    monkeypatch.chdir(tmp_path)

    with pytest.raises(ValueError, match="is refused: a statement may only ask"):
        lk.sql(statement)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "statement",
    [
        "from 'secret.csv'",
        "from read_csv('secret.csv')",
        "from read_text('secret.csv')",
        "from read_blob('*')",
        "from glob('*')",
        "from read_parquet('https://example.invalid/x.parquet')",
        "from read_json('s3://bucket/x.json')",
        "from sniff_csv('secret.csv')",
        "from parquet_metadata('secret.csv')",
        "explain analyze copy (select 1) to 'made.csv'",
        "from query('select * from read_text(''secret.csv'')')",
        "from query('copy (select 1) to ''made.csv''')",
        "from query_table('secret.csv')",
        "with x as (copy (select 1) to 'made.csv') select 1",
        "from json_execute_serialized_sql(json_serialize_sql('from read_csv(''secret.csv'')'))",
        "from enable_logging(storage='file', storage_path='made.log')",
        "from enable_profiling(format='json', save_location='made.json')",
        "from read_duckdb('made.db')",
        "describe 'secret.csv'",
        "summarize 'secret.csv'",
        "from duckdb_extensions()",
    ],
)
def test_no_statement_touches_a_file(
    lk: HandMadeLake, statement: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Not by name, by function, by URL or inside of another statement."""
    (tmp_path / "secret.csv").write_text("a\n1\n")
    monkeypatch.chdir(tmp_path)

    with pytest.raises((catalog.Error, NotFoundError, ValueError)):
        lk.sql(statement).fetchall()
    assert [path.name for path in tmp_path.iterdir()] == ["secret.csv"]


def test_a_statement_that_outgrows_memory_writes_no_file(
    lk: HandMadeLake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """There is no place to spill to."""
    monkeypatch.chdir(tmp_path)

    assert lk.sql("select current_setting('temp_directory')").fetchall() == [("",)]
    assert lk.sql("select count(*) from (select * from range(3000000) order by hash(range))").fetchall()
    assert list(tmp_path.iterdir()) == []


def test_variables_of_the_caller_are_not_tables(lk: HandMadeLake):
    """Only tables that were given are seen: a misspelt name never finds a local variable."""
    hidden = pl.DataFrame({"x": [1]})  # noqa: F841

    with pytest.raises(NotFoundError):
        lk.sql("from hidden")


def test_one_statement_at_a_time(lk: HandMadeLake):
    """Two would hide what the first did."""
    with pytest.raises(ValueError, match="this text has 2"):
        lk.sql("select 1; select 2")
    with pytest.raises(ValueError, match="this text has 0"):
        lk.sql("-- nothing")
    with pytest.raises(catalog.Error, match="syntax error"):
        lk.sql("selec 1")


def test_statements_do_not_see_each_others_tables(lk: HandMadeLake):
    """A relation keeps the tables that it was made with, whatever is asked meanwhile."""
    first = lk.sql("select x from t", t=pa.table({"x": [1]}))
    second = lk.sql("select x from t", t=pa.table({"x": [2]}))
    gc.collect()

    assert (first.fetchall(), second.fetchall()) == ([(1,)], [(2,)])
    with pytest.raises(NotFoundError):
        lk.sql("from t")


def test_the_failure_of_a_scan_keeps_its_numbers(lk: HandMadeLake, birds: HandMade):
    """DuckDB passes on the text; the original is found by it."""
    birds.failure = BudgetError("needs 5 bytes, budget 3", needed=5, budget=3)

    with pytest.raises(catalog.Error, match="needs 5 bytes, budget 3") as caught:
        lk.sql("select id from birds").fetchall()

    assert catalog.cause_of(caught.value) is birds.failure
    assert catalog.cause_of(ValueError("another")).args == ("another",)


def test_unit_is_known_to_sql(lk: HandMadeLake):
    """The same number for the same value, whatever asks; the seed is one whole number."""
    numbers = [x for (x,) in lk.sql("select unit(id, 0) from birds").fetchall()]

    assert len(set(numbers)) == 100
    assert all(0 <= x < 1 for x in numbers)
    assert lk.sql("select unit(id, 0) from birds").fetchall() == [(x,) for x in numbers]
    assert lk.sql("select unit(id, 1) from birds").fetchall() != [(x,) for x in numbers]
    assert lk.sql("select count(*) from birds where unit(id, 0) < 0.5").fetchall() == [
        (sum(x < 0.5 for x in numbers),)
    ]
    with pytest.raises(catalog.Error, match="one whole number"):
        lk.sql("select unit(id, id) from birds").fetchall()


def test_times_are_shown_in_utc(lk: HandMadeLake):
    """The same answer on every machine."""
    assert lk.sql("select current_setting('TimeZone')").fetchall() == [("UTC",)]


def test_threads_may_ask_at_once(lk: HandMadeLake):
    """Each gets its own answer."""
    answers: list[tuple[int, int]] = []

    def ask(n: int) -> None:
        [(found,)] = lk.sql("select count(*) from birds where id < $n", {"n": n}).fetchall()
        answers.append((n, found))

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(answers) == [(n, n) for n in range(8)]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_child_may_ask(lk: HandMadeLake):
    """DuckDB's threads are not there after a fork; the child opens its own."""
    lk.sql("select count(*) from birds").fetchall()
    if (child := os.fork()) == 0:
        rows = lk.sql("select count(*) from birds where id < 5").fetchall()
        os._exit(0 if rows == [(5,)] else 1)

    assert os.waitpid(child, 0)[1] == 0


def test_a_question_asked_again_is_neither_parsed_nor_prepared_anew(
    lk: HandMadeLake, birds: HandMade, monkeypatch: pytest.MonkeyPatch
):
    """Its parse is kept by its text, whatever its parameters name; its tables by version, so a new one is seen."""
    made: list[str] = []

    def counted(dataset: HandMade) -> Any:
        made.append(dataset.version)
        return table(dataset)

    monkeypatch.setattr(engine, "table", counted)
    lk.tables["few"] = few = HandMade(BIRDS[:3])
    query, names = "select count(*) from query_table($name)", ("birds", "few", "birds")

    counts = [lk.sql(query, {"name": "birds"}).fetchall()]
    with monkeypatch.context() as patched:
        patched.setattr(engine, "_PARSE", "select error('parsed again')")
        counts += [lk.sql(query, {"name": name}).fetchall() for name in names]
        lk.tables["birds"] = newer = HandMade(BIRDS[:5])
        counts.append(lk.sql(query, {"name": "birds"}).fetchall())

    assert counts == [[(n,)] for n in (100, 100, 3, 100, 5)]
    assert made == [birds.version, few.version, newer.version]


def test_no_more_parses_are_kept_than_said(lk: HandMadeLake):
    """However many statements are asked; one too long to keep is parsed each time."""
    for number in range(engine._KEPT_TEXTS + 5):
        lk.sql(f"select {number}")
    long = f"select len([{', '.join(['1'] * 500)}])"

    assert [lk.sql(long).fetchall() for _ in range(2)] == [[(500,)]] * 2
    assert len(lk.catalog._parsed) == engine._KEPT_TEXTS
    assert long not in lk.catalog._parsed


def test_a_lake_that_was_asked_ends_with_its_last_use(tmp_path: Path):
    """What was asked of it outlives it; then nothing does: no database, and none of its threads."""
    lk = lake.open(tmp_path)
    lk.commit("birds", pa.table({"id": [1, 2, 3]}))
    answers = [lk.sql("select count(*) from birds"), lk.sql("select rows from lake.datasets")]
    alive = weakref.ref(lk)
    del lk
    assert [answer.fetchall() for answer in answers] == [[(3,)], [(3,)]]

    answers.clear()
    gc.collect()
    assert alive() is None


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_child_may_drop_what_its_parent_asked_with(tmp_path: Path):
    """To close a database waits for its threads; the child has none of them, and closes nothing."""
    lk = lake.open(tmp_path)
    lk.commit("birds", pa.table({"id": [1, 2, 3]}))
    lk.sql("select count(*) from birds").fetchall()
    if (child := os.fork()) == 0:
        del lk
        gc.collect()
        os._exit(0)

    assert os.waitpid(child, 0)[1] == 0
    assert lk.sql("select count(*) from birds").fetchall() == [(3,)]


# what SQL cannot tell apart


_INNER = pa.struct({"a": pa.int64(), "A": pa.int64()})
_FLAT = {"two": {"x": [1], "X": [2]}, "apart": {"X": [1], "b": [0], "x": [2]}}
_DEEP = {
    "struct": {"s": pa.array([{"a": 1, "A": 2}], _INNER)},
    "list": {"l": pa.array([[{"a": 1, "A": 2}]], pa.list_(_INNER))},
}
_FRAMES = {
    "dataset": HandMade,
    "arrow": lambda rows: rows,
    "polars": pl.from_arrow,
    "lazy": lambda rows: pl.from_arrow(rows).lazy(),
    "pandas": pa.Table.to_pandas,
}


@pytest.mark.parametrize(
    ("form", "columns"),
    [
        *((form, columns) for form in _FRAMES for columns in _FLAT),
        *((form, columns) for form in ("dataset", "arrow") for columns in _DEEP),
    ],
)
def test_columns_that_differ_by_case_are_refused(hand_made, form: str, columns: str):
    """DuckDB would give one for the other; the message names both, and the way out."""
    frame = _FRAMES[form](pa.table((_FLAT | _DEEP)[columns]))
    one, other = ("'x'", "'X'") if columns in _FLAT else (".a'", ".A'")
    message = r"cannot tell columns .* and .* of 'birds' apart.*scan\(columns="

    with pytest.raises(SchemaError, match=message) as caught:
        hand_made().sql("from birds", birds=frame)
    assert one in str(caught.value)
    assert other in str(caught.value)
    if form == "dataset":
        with pytest.raises(SchemaError, match=message):
            hand_made(birds=frame).sql("from birds")


def test_letters_beyond_ascii_keep_their_case(hand_made):
    """As in DuckDB."""
    lake = hand_made(birds=pa.table({"ä": [1], "Ä": [2]}))

    assert lake.sql('select "Ä" from birds').fetchall() == [(2,)]


# mistakes of a caller


@pytest.mark.parametrize(
    ("arguments", "tables", "words"),
    [
        ((5,), {}, "a query is a text, not int"),
        ((None,), {}, "a query is a text, not NoneType"),
        ((b"select 1",), {}, "a query is a text, not bytes"),
        (("select ?", 5), {}, r"params is a mapping \(\$name\) or a list \(\?\), not int"),
        (("select ?", "a"), {}, "not str"),
        (("select ?", {1}), {}, "not set"),
        (("from no", None), {"no": None}, "table 'no': DuckDB cannot read a NoneType"),
        (("from no", None), {"no": 5}, "table 'no': DuckDB cannot read a int"),
    ],
)
def test_a_wrong_type_is_said_plainly(hand_made, arguments: Any, tables: dict[str, Any], words: str):
    """Before DuckDB says it in its own words."""
    with pytest.raises(TypeError, match=words):
        hand_made().sql(*arguments, **tables)


@pytest.mark.parametrize("params", [{"a": 5}, MappingProxyType({"a": 5})])
def test_any_mapping_and_any_sequence_fill_parameters(hand_made, params: Any):
    """Not dicts and lists alone."""
    assert hand_made().sql("select $a", params).fetchall() == [(5,)]
    assert hand_made().sql("select ?", (5,)).fetchall() == [(5,)]
