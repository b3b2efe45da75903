"""Datasets in other engines: the same rows, with columns and conditions pushed into the scan."""

from __future__ import annotations

from pathlib import Path

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import lake
from lake.repo import Dataset


@pytest.fixture
def numbers(tmp_path: Path) -> Dataset:
    """20,000 rows in many shards, sorted by `x`."""
    rows = 20_000
    table = pa.table(
        {
            "key": [f"{n:05d}" for n in range(rows)],
            "x": np.arange(rows),
            "label": pa.array(["a", "b"] * (rows // 2)).dictionary_encode(),
        }
    )
    lk = lake.open(tmp_path, progress=False)
    assert lk.commit("numbers", table, shard_bytes="16KiB").shards > 20
    return lk.dataset("numbers")


def test_engines_agree_on_the_rows_that_a_condition_leaves(numbers: Dataset) -> None:
    """polars, DuckDB over Arrow, pyarrow, lake's SQL and a scan give the same answer."""
    table = numbers.arrow()  # DuckDB finds it by name
    answers = [
        numbers.lazy()
        .filter((pl.col("x") > 500) & (pl.col("label") == "a"))
        .select(pl.col("x").sum())
        .collect()
        .item(),
        duckdb.sql(
            "select sum(x) from table_ where x > 500 and label = 'a'", connection=_with(table)
        ).fetchall()[0][0],
        pc.sum(
            table.to_table(columns=["x"], filter=(pc.field("x") > 500) & (pc.field("label") == "a"))["x"]
        ).as_py(),
        numbers.lake.sql("select sum(x) from numbers where x > 500 and label = 'a'").fetchall()[0][0],
        pc.sum(numbers.scan(["x"], where="x > 500 and label = 'a'").to_table()["x"]).as_py(),
    ]

    assert len(set(answers)) == 1, answers


def _with(table: object) -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect()
    connection.register("table_", table)
    return connection


def test_frames_have_the_dataset_s_columns_and_types(numbers: Dataset) -> None:
    """A lazy frame's schema is known without reading; categories stay categories."""
    assert numbers.arrow().schema.equals(numbers.schema)
    assert numbers.lazy().collect_schema().names() == ["key", "x", "label"]
    assert numbers.scan().to_pandas()["label"].dtype == "category"
    assert numbers.scan(["x"]).to_polars().height == 20_000


def test_a_pushed_condition_reads_only_the_shards_that_may_meet_it(
    numbers: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One row of a sorted column costs one shard, whichever engine asks."""
    from lake.parts import PartReader

    read: list[int] = []
    original = PartReader.chunks

    def counted(self: PartReader, shard: object, *args: object, **options: object) -> object:
        read.append(1)
        return original(self, shard, *args, **options)

    monkeypatch.setattr(PartReader, "chunks", counted)
    found = numbers.lazy().filter(pl.col("x") == 12_345).collect()

    assert found["key"].to_list() == ["12345"]
    assert 0 < len(read) <= 4
