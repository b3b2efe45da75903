"""Datasets in other engines: the same rows, with columns and conditions pushed into the scan."""

from __future__ import annotations

import pickle
import threading
from pathlib import Path

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lake
from lake import frames
from lake.dataset import Dataset
from lake.errors import IntegrityError
from lake.parts import Meter
from lake.parts.kept import Kept
from lake.stores import LocalStore
from lake.stores.wrappers import CountingStore
from tests.remote import Remote, remote_lake


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


@pytest.mark.parametrize(
    "where",
    [
        pl.col("x") > 5,
        pl.col("x") <= 5,
        pl.col("x") == float("nan"),
        pl.col("x") != 1,
        ~(pl.col("x") > 5),
        (pl.col("x") >= 1) & (pl.col("key") != "a"),
        pl.col("key") > "b",
    ],
    ids=str,
)
def test_a_lazy_frame_orders_nan_as_polars_does(tmp_path: Path, where: pl.Expr) -> None:
    """A filter pushed down leaves the rows that it leaves of a frame in memory, where NaN is the greatest number."""
    rows = pl.DataFrame({"key": list("abcde"), "x": [1.0, float("nan"), float("inf"), None, 7.0]})
    lk = lake.open(tmp_path, progress=False)
    lk.commit("rows", rows)
    lazy = lk.dataset("rows").lazy()

    assert lazy.filter(where).select("key").collect().equals(rows.filter(where).select("key"))
    assert lazy.filter(where).head(1).collect()["key"].equals(rows.filter(where).head(1)["key"])
    assert lazy.head(2).filter(where).collect()["key"].equals(rows.head(2).filter(where)["key"])
    assert lazy.select(pl.len()).collect().item() == 5


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


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> tuple[pa.Table, Dataset]:
    """Light and heavy columns, so two parts a shard: compressed and not, in several record batches."""
    rows, random = 3_000, np.random.default_rng(0)
    table = pa.table(
        {
            "id": np.arange(rows),
            "x": pa.array([None if n % 7 == 0 else n % 50 for n in range(rows)], pa.int16()),
            "label": pa.array([["a", "b", None][n % 3] for n in range(rows)]).dictionary_encode(),
            "blob": pa.array([random.bytes(900) for _ in range(rows)], pa.large_binary()),
        }
    )
    lk = lake.open(tmp_path_factory.mktemp("mixed"), progress=False)
    lk.commit("mixed", table, shard_bytes="256KiB", key="id")
    lk.add_columns("mixed", pa.table({"id": table["id"], "text": [f"row {n // 9}" for n in range(rows)]}))
    dataset = lk.dataset("mixed")
    assert {part.codec for part in dataset.snapshot.shard(0).parts} == {"zstd", "none"}
    return dataset.scan().to_table(), dataset


CONDITIONS = st.one_of(
    st.builds(lambda n: pc.field("id") < n, st.integers(-1, 3_001)),
    st.builds(lambda n: (pc.field("id") >= n) & (pc.field("id") < n + 5), st.integers(0, 3_000)),
    st.builds(lambda n: pc.field("x") == n, st.integers(0, 60)),
    st.just(pc.field("x").is_null()),
    st.just(pc.field("label") == "b"),
    st.builds(lambda n: pc.field("text") == f"row {n}", st.integers(0, 400)),
    st.just(pc.scalar(True)),
)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.sampled_from(["id", "x", "label", "blob", "text"]), unique=True),
    st.none() | CONDITIONS,
    st.booleans(),
)
def test_any_columns_of_any_rows_are_those_of_a_table(
    mixed: tuple[pa.Table, Dataset], columns: list[str], where: pc.Expression | None, negated: bool
) -> None:
    """Whatever statistics rule out, whether few rows are picked or most are kept, and in whichever parts they lie."""
    table, dataset = mixed
    where = ~where if where is not None and negated else where

    expected = table if where is None else table.filter(where)
    batches = list(frames.arrow(dataset.snapshot).read(columns, where))

    assert sum(batch.num_rows for batch in batches) == len(expected)
    if columns:
        found = pa.Table.from_batches(batches, expected.select(columns).schema)
        assert found.equals(expected.select(columns))


def test_a_selective_question_fetches_its_shards_and_columns_alone(tmp_path: Path) -> None:
    """Of a bucket: the bytes of the few shards and of the columns named, whichever engine asks."""
    rows = 40_000
    table = pa.table({"id": np.arange(rows), "x": np.random.default_rng(1).random(rows), "n": [5] * rows})
    blobs = pa.array([np.random.default_rng(n).bytes(300) for n in range(rows)], pa.large_binary())
    folder = tmp_path / "lake"
    lake.open(folder, progress=False).commit(
        "wide", table.append_column("blob", blobs), key=None, shard_bytes="256KiB"
    )
    lk = remote_lake(folder, tmp_path / "cache")
    dataset, meter = lk.dataset("wide"), Meter()
    where = (pc.field("id") >= 20_000) & (pc.field("id") < 20_400)

    found = frames.arrow(dataset.snapshot, meter).to_table(columns=["x"], filter=where)

    assert found["x"].to_pylist() == table["x"][20_000:20_400].to_pylist()
    assert meter.bytes_fetched + meter.bytes_from_cache < dataset.snapshot.document.bytes / 50
    assert lk.sql("select count(*), sum(x) from wide where id >= 20000 and id < 20400").fetchall() == [
        (400, pytest.approx(pc.sum(found["x"]).as_py()))
    ]


@pytest.mark.parametrize("engine", ["sql", "polars", "pyarrow", "scan"])
def test_every_engine_reads_the_matching_shards_and_columns_alone(
    tmp_path: Path, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bytes that leave the store: of few shards, and of them the columns that are named."""
    monkeypatch.setattr(
        "lake.parts.reader._recent", Kept(0)
    )  # which other tests have filled with these columns
    rows = 40_000
    blobs = pa.array([np.random.default_rng(n).bytes(300) for n in range(rows)], pa.large_binary())
    table = pa.table({"id": np.arange(rows), "x": np.arange(rows) * 0.5, "blob": blobs})
    folder = tmp_path / "lake"
    lake.open(folder, progress=False).commit("wide", table, key=None, shard_bytes="256KiB")
    store = CountingStore(LocalStore(folder))
    lk = remote_lake(folder, tmp_path / "cache", store=Remote(store))
    dataset = lk.dataset("wide")
    assert len(dataset.snapshot.manifest) > 20
    store.reset()

    low, high = 20_000, 20_400
    found = {
        "sql": lambda: lk.sql(f"select sum(x) from wide where id >= {low} and id < {high}").fetchall()[0][0],
        "polars": lambda: (
            dataset.lazy()
            .filter(pl.col("id").is_between(low, high - 1))
            .select(pl.col("x").sum())
            .collect()
            .item()
        ),
        "pyarrow": lambda: pc.sum(
            dataset.arrow().to_table(["x"], filter=(pc.field("id") >= low) & (pc.field("id") < high))["x"]
        ).as_py(),
        "scan": lambda: pc.sum(dataset.scan(["x"], f"id >= {low} and id < {high}").to_table()["x"]).as_py(),
    }[engine]()

    assert found == sum(n * 0.5 for n in range(low, high))
    parts = [key for verb, key in store.calls if key.startswith("shards/")]
    assert 0 < len(set(parts)) <= 4
    assert store.bytes_read < dataset.snapshot.document.bytes / 40


def test_counting_reads_only_what_a_filter_needs(tmp_path: Path) -> None:
    """Nothing without one; of all other columns nothing with one."""
    table = pa.table({"id": np.arange(5_000), "blob": [bytes([n % 251]) * 700 for n in range(5_000)]})
    folder = tmp_path / "lake"
    lake.open(folder, progress=False).commit("t", table, key=None, shard_bytes="256KiB")
    dataset = remote_lake(folder, tmp_path / "cache").dataset("t")
    all_, some = Meter(), Meter()

    assert frames.arrow(dataset.snapshot, all_).count_rows() == 5_000
    assert frames.arrow(dataset.snapshot, some).count_rows(filter=pc.field("id") < 10) == 10
    assert all_.bytes_fetched == 0
    assert some.bytes_fetched < dataset.snapshot.document.bytes / 10
    assert dataset.lake.sql("select count(*) from lake.shards").fetchall() == [
        (len(dataset.snapshot.manifest),)
    ]


def test_what_was_decoded_is_kept_for_the_next_question(tmp_path: Path) -> None:
    """A column that had to be decompressed is decompressed once, whoever opens the dataset again."""
    table = pa.table({"n": np.repeat(np.arange(100), 300), "m": np.repeat(np.arange(300), 100)})
    lk = lake.open(tmp_path, progress=False)
    lk.commit("runs", table, key=None, shard_bytes="64KiB")
    first, second = Meter(), Meter()

    once = frames.arrow(lk.dataset("runs").snapshot, first).to_table(columns=["n"])
    again = frames.arrow(lk.dataset("runs").snapshot, second).to_table(columns=["n"])

    assert once.equals(again)
    assert first.decode_seconds > 0
    assert second.decode_seconds == 0


@pytest.mark.parametrize("columns", [["x"], ["label", "text"]])
def test_damage_is_found_before_a_value_is_used(
    tmp_path: Path, columns: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A flipped bit anywhere in a compressed record batch gives an error, or is none of these columns'."""
    monkeypatch.setattr("lake.parts.reader._recent", Kept(0))
    rows = 2_000
    table = pa.table(
        {
            "x": np.repeat(np.random.default_rng(2).integers(0, 99, rows // 4), 4),
            "label": pa.array(["a", "b"] * (rows // 2)).dictionary_encode(),
            "text": [f"row {n // 9}" for n in range(rows)],
        }
    )
    lk = lake.open(tmp_path, progress=False)
    lk.commit("t", table, key=None, shard_bytes="16KiB")
    sound = frames.arrow(lk.dataset("t").snapshot).to_table(columns=columns)
    [part] = lk.dataset("t").snapshot.shard(1).parts
    path = tmp_path / "shards" / part.digest[:2] / f"{part.digest}.arrow"
    whole, body = path.read_bytes(), part.batches[-1].offset
    path.chmod(0o644)
    found = 0
    for at in range(body, body + part.batches[-1].meta_length + part.batches[-1].length, 61):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :])
        try:
            read = frames.arrow(lake.open(tmp_path, progress=False).dataset("t").snapshot).to_table(columns)
        except IntegrityError:
            found += 1
        else:
            assert read.equals(sound)

    assert found > 0


def test_a_dataset_travels_to_another_process(numbers: Dataset) -> None:
    """As engines with workers send it."""
    there = pickle.loads(pickle.dumps(numbers.arrow()))

    assert there.to_table(columns=["x"]).equals(numbers.arrow().to_table(columns=["x"]))


def test_rows_that_nobody_pulls_are_not_read(numbers: Dataset) -> None:
    """Whoever takes the first batches and leaves ends the threads that read ahead."""
    meter = Meter()
    reader = iter(frames.arrow(numbers.snapshot, meter).read(["key"], None))

    first = next(reader)
    reader.close()

    assert first["key"][0].as_py() == "00000"
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("lake-frame")]
