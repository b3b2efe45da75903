"""A dataset whose rows come from a function: who reads it, and what the function is asked for."""

from __future__ import annotations

import pickle
from collections.abc import Iterator

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.dataset as pads
import pytest

from lake.virtual import VirtualDataset, columns_of

TABLE = pa.table({"id": range(100), "x": [i / 2 for i in range(100)], "s": [str(i % 7) for i in range(100)]})
ID = pads.field("id")


def read(columns: list[str], where: pads.Expression | None) -> Iterator[pa.RecordBatch]:
    kept = TABLE if where is None else TABLE.filter(where)
    yield from kept.select(columns).to_batches(max_chunksize=10)


class Noted:
    """`read`, with what it was asked and how far it was pulled."""

    def __init__(self) -> None:
        self.asked: list[tuple[list[str], str | None]] = []
        self.batches = 0
        self.closed = 0

    def __call__(self, columns: list[str], where: pads.Expression | None) -> Iterator[pa.RecordBatch]:
        self.asked.append((columns, None if where is None else str(where)))
        try:
            for batch in read(columns, where):
                self.batches += 1
                yield batch
        finally:
            self.closed += 1


@pytest.fixture
def noted() -> Noted:
    return Noted()


@pytest.fixture
def virtual(noted: Noted) -> VirtualDataset:
    return VirtualDataset(TABLE.schema, noted)


def test_it_reads_as_a_dataset_in_memory_does(virtual: VirtualDataset):
    """Every way that pyarrow has to get rows out of a dataset gives the same."""
    real = pads.dataset(TABLE)
    computed = {"y": ID * 2, "s": pads.field("s")}
    for each in (virtual, real):
        assert each.to_table() == TABLE
        assert each.to_table(columns=["s", "id"], filter=ID < 3).to_pydict() == {
            "s": ["0", "1", "2"],
            "id": [0, 1, 2],
        }
        assert each.to_table(columns=computed, filter=ID == 3).to_pydict() == {"y": [6], "s": ["3"]}
        assert each.head(13).num_rows == 13
        assert each.head(3, columns=["id"], filter=ID > 50).to_pydict() == {"id": [51, 52, 53]}
        assert each.count_rows(filter=ID >= 90) == 10
        assert each.take([5, 1], columns=["id"]).to_pydict() == {"id": [5, 1]}
        assert sum(batch.num_rows for batch in each.to_batches()) == 100
        assert each.filter(ID > 5).filter(ID < 8).to_table(columns=["id"], filter=ID != 6)[
            "id"
        ].to_pylist() == [7]
        assert each.sort_by([("id", "descending")]).head(1)["id"].to_pylist() == [99]
        assert (
            each.join(pads.dataset(TABLE.select(["id"])[:2]), "id", join_type="inner").to_table().num_rows
            == 2
        )
        assert each.scanner(columns=["id"]).projected_schema == pa.schema({"id": pa.int64()})


def test_polars_pushes_into_it(virtual: VirtualDataset, noted: Noted):
    """Columns and filter arrive as the function's arguments."""
    found = pl.scan_pyarrow_dataset(virtual).filter(pl.col("id") < 3).select("s").collect()

    assert found["s"].to_list() == ["0", "1", "2"]
    assert noted.asked == [(["id", "s"], "(id < 3)")]


def test_duckdb_pushes_into_it(virtual: VirtualDataset, noted: Noted):
    """Also an OR and an IN; a LIMIT stops it, and it is closed."""
    con = duckdb.connect()
    con.register("v", virtual)

    assert con.sql("select s from v where id < 2 or id in (7, 8)").fetchall() == [
        ("0",),
        ("1",),
        ("0",),
        ("1",),
    ]
    [(columns, where)] = noted.asked
    assert columns == ["s"]
    assert where is not None
    assert len(con.sql("select id from v limit 3").fetchall()) == 3
    assert noted.batches < 10
    con.close()
    assert noted.closed == 2


def test_nothing_is_read_before_rows_are_pulled(virtual: VirtualDataset, noted: Noted):
    """A scanner or reader costs nothing; each one reads anew."""
    scanner = virtual.scanner()
    reader = scanner.to_reader()

    assert noted.asked == []
    assert reader.read_all().num_rows == scanner.to_table().num_rows == 100
    assert len(noted.asked) == 2


def test_what_it_cannot_do_is_refused():
    """An answer that is empty, or without the filter, would be believed."""
    virtual = VirtualDataset(TABLE.schema, read)

    with pytest.raises(NotImplementedError, match="no fragments"):
        virtual.get_fragments()
    with pytest.raises(NotImplementedError, match="keeps its schema"):
        virtual.replace_schema(TABLE.schema)
    assert str(virtual.partition_expression) == "true"


def test_it_pickles_with_its_function():
    """As far as the function does."""
    assert pickle.loads(pickle.dumps(VirtualDataset(TABLE.schema, read))).to_table() == TABLE


def test_any_arrow_type_may_be_in_its_schema():
    """Also a tensor with a permutation, of which Arrow cannot make an empty list."""
    odd = pa.FixedShapeTensorArray.from_numpy_ndarray(np.ones((3, 2, 2)).transpose(0, 2, 1))
    schema = pa.schema({"t": odd.type})

    assert VirtualDataset(schema, lambda columns, where: iter(())).to_table().schema == schema


def test_the_columns_of_an_expression_are_found():
    """At any depth, in any function, also of structs."""
    schema = pa.schema({"a": pa.int8(), "b": pa.string(), "c": pa.struct({"d": pa.int8()}), "e": pa.bool_()})
    a, b, d = pads.field("a"), pads.field("b"), pads.field("c", "d")

    assert columns_of((a > 1) | ~b.isin(["x"]), schema) == {"a", "b"}
    assert columns_of(d == 1, schema) == {"c"}
    assert columns_of(pads.field("e"), schema) == {"e"}
    assert columns_of(pads.scalar(True), schema) == set()
