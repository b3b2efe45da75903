"""Tables in memory and streams: untouched, in order, their own idea of columns and categories kept."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from decimal import Decimal

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset as pads
import pytest
from hypothesis import given, settings

from lake.convert import read, source
from lake.errors import SchemaError
from tests import strategies

TABLE = pa.table({"key": ["a", "b", "c"], "n": [1, 2, None]})


def table(found) -> pa.Table:
    whole = pa.Table.from_batches(found.batches, found.schema)
    whole.validate(full=True)
    return whole


KINDS = {
    "Table": lambda: TABLE,
    "RecordBatch": lambda: TABLE.to_batches()[0],
    "RecordBatchReader": TABLE.to_reader,
    "Dataset": lambda: pads.dataset(TABLE),
    "iterable of batches": lambda: (batch for batch in TABLE.to_batches(max_chunksize=2)),
    "polars": lambda: pl.from_arrow(TABLE),
    "lazy polars": lambda: pl.from_arrow(TABLE).lazy(),
    "pandas": lambda: pd.DataFrame({"key": ["a", "b", "c"], "n": pd.array([1, 2, None], "Int64")}),
    "DuckDB": lambda: duckdb.from_arrow(TABLE),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_table_gives_its_rows(kind):
    """With the column named `key` as the key that suggests itself."""
    found = read(KINDS[kind]())

    assert found.key == "key"
    assert table(found).to_pylist() == TABLE.to_pylist()
    assert found.read > 0


@settings(max_examples=40, deadline=None)
@given(strategies.tables())
def test_a_table_of_any_types_passes_through(data):
    """Schema, metadata and values."""
    found = read(data)

    assert found.schema.equals(data.schema, check_metadata=True)
    assert found.rows == data.num_rows
    batches = list(found.batches)
    assert all(batch.schema.equals(data.schema, check_metadata=True) for batch in batches)
    assert pa.Table.from_batches(batches, found.schema).equals(data) or "nan" in str(data)


def test_batches_pass_through_without_a_copy():
    """The very objects of a reader, and the very memory of a table."""
    batch = pa.record_batch({"x": pa.array(range(1000))})
    through = list(read(pa.RecordBatchReader.from_batches(batch.schema, [batch])).batches)

    assert through[0].column(0).buffers()[1].address == batch.column(0).buffers()[1].address
    assert [b.num_rows for b in through] == [1000]


def test_a_giant_batch_is_sliced_without_a_copy(monkeypatch):
    """Rows larger than the limit stay whole."""
    batch = pa.record_batch({"x": pa.array([b"x" * 100] * 10 + [b"y" * 5000], pa.large_binary())})

    parts = list(source.bounded(batch, 600))

    assert pa.Table.from_batches(parts).equals(pa.Table.from_batches([batch]))
    assert all(part.nbytes <= 600 or part.num_rows == 1 for part in parts)
    assert parts[0].column(0).buffers()[2].address == batch.column(0).buffers()[2].address


def test_streams_are_read_as_they_are_asked_for():
    """A reader of a million batches is not read ahead."""
    taken = 0

    def batches() -> Iterator[pa.RecordBatch]:
        nonlocal taken
        while True:
            taken += 1
            yield pa.record_batch({"x": [taken]})

    found = read(pa.RecordBatchReader.from_batches(pa.schema([("x", pa.int64())]), batches()))
    next(found.batches)

    assert taken <= 2


def test_a_named_pandas_index_is_a_column_and_another_is_not():
    """Row numbers that pandas made up are no data."""
    frame = pd.DataFrame({"x": [1, 2]})

    assert read(frame).schema.names == ["x"]
    assert read(frame.set_index("x")).schema.names == ["x"]
    assert read(frame.rename_axis("id")).schema.names == ["x", "id"]


def test_categories_keep_their_order():
    """A pandas Categorical and a polars Enum say in which order their values stand."""
    values = ["low", "high", "low"]
    order = ["low", "mid", "high"]

    pandas = read(pd.DataFrame({"x": pd.Categorical(values, order, ordered=True), "n": [1, 2, 3]}))
    polars = read(pl.DataFrame({"x": pl.Series(values, dtype=pl.Enum(order))}))

    assert pandas.vocab == polars.vocab == {"x": order}
    assert table(pandas)["x"].to_pylist() == table(polars)["x"].to_pylist() == values


def test_a_column_that_arrow_cannot_hold_is_named():
    """Pandas object columns may hold anything."""
    with pytest.raises(SchemaError, match="odd"):
        read(pd.DataFrame({"odd": [1, "a"]}))


def test_a_large_dataset_is_scanned_in_order(tmp_path):
    """Across files and row groups."""
    for i in range(3):
        pa.parquet.write_table(
            pa.table({"x": range(i * 1000, i * 1000 + 1000)}), tmp_path / f"{i}.parquet", row_group_size=100
        )

    found = read(pads.dataset(tmp_path))

    assert table(found)["x"].to_pylist() == list(range(3000))


def test_an_empty_table_is_a_table():
    """It says itself what its columns are."""
    assert table(read(TABLE.slice(0, 0))).schema == TABLE.schema


# --- key=, schema=, order= --------------------------------------------------------------------


def test_the_key_is_what_the_caller_says():
    """An absent one is an error that lists what there is."""
    assert read(TABLE, key="n").key == "n"
    assert read(TABLE, key=None).key is None
    assert read(TABLE.rename_columns(["k", "n"])).key is None
    with pytest.raises(SchemaError, match=r"key='id'.*'key', 'n'"):
        read(TABLE, key="id")


def test_schema_casts_adds_nullable_columns_and_reorders():
    """What is asked for is what comes."""
    wanted = pa.schema([("n", pa.float32()), ("new", pa.int8()), ("key", pa.string())])

    found = read(TABLE, schema=wanted)

    assert found.schema == wanted
    assert table(found).to_pylist() == [
        {"n": 1.0, "new": None, "key": "a"},
        {"n": 2.0, "new": None, "key": "b"},
        {"n": None, "new": None, "key": "c"},
    ]


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"key": pa.string()}, "'n' that the schema lacks"),
        ({"key": pa.string(), "n": pa.field("n", pa.int64(), nullable=False)}, "'n' of .* is null in row 2"),
        (
            {"key": pa.string(), "n": pa.int64(), "x": pa.field("x", pa.int8(), nullable=False)},
            "no column 'x'",
        ),
        ({"key": pa.int64(), "n": pa.int64()}, r"'key' of .*, row 0: 'a' of type string does not fit int64"),
        ({"key": ["a", "b"], "n": pa.int64()}, r"'key' of .*, row 2: 'c' .* the 2 values listed"),
    ],
)
def test_what_does_not_fit_the_schema_is_named(schema, message):
    """Column, row, both types."""
    with pytest.raises(SchemaError, match=message):
        table(read(TABLE, schema=schema))


def test_a_misfit_is_found_in_whichever_row_it_is():
    """By its number in the whole input, in whatever batch."""
    batches = [pa.record_batch({"x": pa.array(range(i, i + 50))}) for i in (0, 50, 100)]
    data = pa.RecordBatchReader.from_batches(batches[0].schema, iter(batches))

    with pytest.raises(SchemaError, match="row 128: 128 of type int64 does not fit int8"):
        table(read(data, schema={"x": pa.int8()}))


def test_listed_values_are_the_codes_of_a_dictionary_column():
    """In the order listed, used or not."""
    found = read(TABLE, schema={"key": ["c", "zzz", "b", "a"], "n": pa.int64()})

    assert found.vocab == {"key": ["c", "zzz", "b", "a"]}
    assert next(found.batches)["key"].indices.to_pylist() == [3, 2, 0]


def test_two_columns_of_one_name_are_an_error():
    """In a table, as Arrow allows, and in a schema."""
    with pytest.raises(SchemaError, match="two columns named 'a'"):
        read(pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"]))


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"order": "random"}, ValueError, "order='random'"),
        ({"order": "shuffled", "key": None}, ValueError, "key="),
        ({"labels": True}, ValueError, "labels=True"),
        ({"schema": "x: int"}, TypeError, "schema="),
    ],
)
def test_impossible_requests_are_refused(options, error, message):
    """Before anything is read."""
    with pytest.raises(error, match=message):
        read(TABLE, **options)


def test_other_things_are_refused_by_name():
    """With the list of what can be read."""
    with pytest.raises(TypeError, match=r"cannot read int: .*a folder.*iterable"):
        read(17)
    with pytest.raises(TypeError, match="Series"):
        read(pl.Series([1, 2]))


AWARE = dt.datetime(2020, 1, 1, 3, tzinfo=dt.UTC)
NAIVE = AWARE.replace(tzinfo=None)


@pytest.mark.parametrize(
    ("value", "source", "wanted"),
    [
        (NAIVE, pa.timestamp("us"), pa.timestamp("us", "UTC")),
        (AWARE, pa.timestamp("us", "UTC"), pa.timestamp("us")),
        ([NAIVE], pa.list_(pa.timestamp("us")), pa.list_(pa.timestamp("us", "UTC"))),
        ({"t": AWARE}, pa.struct([("t", pa.timestamp("us", "UTC"))]), pa.struct([("t", pa.timestamp("us"))])),
        (NAIVE, pa.dictionary(pa.int8(), pa.timestamp("us")), pa.timestamp("us", "UTC")),
        (NAIVE, pa.timestamp("us"), pa.date32()),
        (NAIVE, pa.timestamp("us"), pa.time64("us")),
        (NAIVE.replace(microsecond=5), pa.timestamp("us"), pa.timestamp("s")),
        (1e300, pa.float64(), pa.float32()),
        (1e300, pa.float64(), pa.float16()),
        ("1e300", pa.string(), pa.float32()),
        ([1e300], pa.list_(pa.float64()), pa.list_(pa.float32())),
        ([1e300], pa.list_(pa.float64(), 1), pa.list_(pa.float32(), 1)),
        ({"x": 1e300}, pa.struct([("x", pa.float64())]), pa.struct([("x", pa.float32())])),
        ({"x": 1, "y": 2}, pa.struct([("x", pa.int64()), ("y", pa.int64())]), pa.struct([("x", pa.int64())])),
        (2049, pa.int64(), pa.float16()),
        (2**53 + 1, pa.int64(), pa.float64()),
        (5, pa.int64(), pa.bool_()),
        (0.5, pa.float64(), pa.bool_()),
        (1.5, pa.float64(), pa.decimal128(10, 0)),
        (Decimal("1e60"), pa.decimal256(76, 0), pa.float32()),
    ],
)
def test_a_schema_never_changes_a_value_of_a_table(value, source, wanted):
    """Where Arrow's safe cast would: column, row, both types. Nulls, and what fits, are cast."""
    plain = source.value_type if pa.types.is_dictionary(source) else source
    column = pa.array([None, None, value], plain)
    data = pa.table({"x": column if plain == source else column.dictionary_encode()})

    with pytest.raises(SchemaError, match=r"column 'x' of .*, row [02]: .* of type .* does not fit"):
        table(read(data, schema={"x": wanted}))


def test_what_a_schema_may_do():
    """Round floats, keep infinities, move between zones (the moment stays), parse text."""
    data = pa.table({
        "x": [0.1, float("inf"), float("nan")],
        "b": [0, 1, None],
        "t": pa.array([AWARE] * 3),
        "s": ["0.1", "inf", "nan"],
        "d": [0.25, 1.0, None],
    })  # fmt: skip
    wanted = {
        "x": pa.float32(), "b": pa.bool_(), "t": pa.timestamp("ns", "Europe/Berlin"), "s": pa.float32(),
        "d": pa.decimal128(5, 2),
    }  # fmt: skip

    made = table(read(data, schema=wanted))

    assert made["x"].equals(data["x"].cast(pa.float32())) or str(made["x"][2]) == "nan"
    assert made["b"].to_pylist() == [False, True, None]
    assert made["t"][0].as_py() == AWARE
    assert made["d"].to_pylist() == [Decimal("0.25"), Decimal("1.00"), None]


def test_an_index_without_a_name_is_noted_where_it_says_something():
    """Row numbers are not missed."""
    frame = pd.DataFrame({"x": [1, 2, 3]})

    for silent in (frame, frame[1:], frame.iloc[:0], frame.set_index(pd.Index([0, 1, 2]))):
        assert read(silent).notes == []
    for index in (
        [7, 9, 8],
        ["a", "b", "c"],
        pd.date_range("2020", periods=3),
        [("a", 1), ("a", 2), ("b", 1)],
    ):
        (note,) = read(frame.set_index(pd.Index(index))).notes
        assert "index" in note
        assert "rename_axis" in note


@pytest.mark.parametrize("lazy", [False, True])
def test_polars_types_keep_their_meaning_or_are_refused(lazy):
    """An Enum keeps its order; Python objects would be their addresses."""
    enum = pl.DataFrame({"x": pl.Series(["b", "a", None], dtype=pl.Enum(["b", "a", "c"]))})
    objects = pl.DataFrame({"x": [1], "o": pl.Series([object()], dtype=pl.Object)})

    found = read(enum.lazy() if lazy else enum)

    assert found.vocab == {"x": ["b", "a", "c"]}
    assert table(found)["x"].to_pylist() == ["b", "a", None]
    with pytest.raises(SchemaError, match="column 'o' of the polars frame is Object"):
        read(objects.lazy() if lazy else objects)


def test_sparse_columns_are_refused_by_name():
    """With the way to make them dense."""
    with pytest.raises(SchemaError, match=r"column 's' of the DataFrame is Sparse\[int64, 0\].*to_dense"):
        read(pd.DataFrame({"a": [1, 2], "s": pd.arrays.SparseArray([0, 1])}))


@pytest.mark.parametrize("data", ["", [""], ["", "x.csv"], ("",)])
def test_an_empty_path_is_no_path(data):
    """Least of all that of the working directory."""
    with pytest.raises(ValueError, match="the path is empty"):
        read(data)
