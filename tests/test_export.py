"""Exported files: what other tools read of them, and that a commit of them gives the same rows."""

from __future__ import annotations

import datetime as dt
import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest

import lake
from lake import export
from lake.repo import Lake
from tests.changing import birds, lake_of, read, shards, table

TABLES = {"parquet": ".parquet", "csv": ".csv", "jsonl": ".jsonl", "arrow": ".arrow"}


def plain(rows: int) -> pa.Table:
    """Columns that every table format can hold, with nulls, empty texts, quotes and line breaks."""
    numbers = range(rows)
    return pa.table(
        {
            "key": [f"k{n:04}" for n in numbers],
            "n": pa.array([None if n % 5 == 2 else n for n in numbers], pa.int64()),
            "f": pa.array([n / 4 if n % 7 else None for n in numbers]),
            "s": pa.array([[None, "", 'a "b", c', "x\ny", "ü"][n % 5] for n in numbers]),
            "t": pa.array([n % 2 == 0 for n in numbers]),
            "pad": ["x" * 500 + str(n) for n in numbers],
        }
    )


@pytest.fixture
def lk(tmp_path: Path) -> Lake:
    """A lake with the dataset `plain`, in several shards."""
    lk = lake.open(tmp_path / "lake", progress=False)
    lk.commit("plain", plain(200), shard_bytes="16KiB")
    return lk


def rows_of(path: Path) -> list[dict[str, Any]]:
    """The rows of a file, or of a folder's parts in order, as the format's own reader has them."""
    if path.is_dir():
        return [row for part in sorted(path.iterdir()) for row in rows_of(part)]
    if path.suffix == ".parquet":
        return pq.read_table(path).to_pylist()
    if path.suffix == ".arrow":
        return pa.ipc.open_file(path).read_all().to_pylist()
    if path.suffix == ".csv":
        options = pacsv.ConvertOptions(strings_can_be_null=True, quoted_strings_can_be_null=False)
        parse = pacsv.ParseOptions(newlines_in_values=True)
        return pacsv.read_csv(path, convert_options=options, parse_options=parse).to_pylist()
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


@pytest.mark.parametrize("form", TABLES)
@pytest.mark.parametrize("single", [True, False])
def test_tables_hold_the_rows(
    lk: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: Any, single: bool
):
    """In one file, or in the parts of a folder; and committed again they are the same rows."""
    monkeypatch.setattr(export, "PART_BYTES", 40_000)
    path = tmp_path / "out" / (f"rows{TABLES[form]}" if single else "rows")

    lk.dataset("plain").export(path, form)

    assert rows_of(path) == plain(200).to_pylist()
    assert path.is_file() == single
    parts = [path] if single else sorted(path.iterdir())
    assert single or 3 <= len(parts) < len(shards(lk, "plain"))
    assert [part.name for part in parts][:1] == [
        "rows" + TABLES[form] if single else f"part-00000{TABLES[form]}"
    ]
    assert [other.name for other in path.parent.iterdir()] == [path.name]
    lk.commit("again", str(path if single else path / f"*{TABLES[form]}"), key="key")
    expected = plain(200).to_pylist()
    if form == "csv":  # which has no null for text: reading takes nothing for the empty text
        expected = [row | {"s": row["s"] or ""} for row in expected]
    assert read(lk, "again") == expected


def test_row_groups_are_shards(lk: Lake, tmp_path: Path):
    """polars and pyarrow read the file; each row group is one shard."""
    lk.dataset("plain").export(tmp_path / "rows.parquet")

    file = pq.ParquetFile(tmp_path / "rows.parquet")
    groups = [file.metadata.row_group(n).num_rows for n in range(file.num_row_groups)]
    assert groups == [shard.rows for shard in shards(lk, "plain")]
    assert pl.read_parquet(tmp_path / "rows.parquet").filter(pl.col("n") > 190)["n"].to_list() == [
        n for n in range(191, 200) if n % 5 != 2
    ]


def typed() -> pa.Table:
    """Columns of types that Parquet and Arrow hold exactly."""
    vectors = np.arange(12, dtype=np.float32).reshape(4, 3)
    return pa.table(
        {
            "key": [3, 1, 2, 0],
            "label": pa.array(["b", None, "a", "b"]).dictionary_encode(),
            "bytes": [b"\xff", None, b"", b"a"],
            "list": [[1, None], [], None, [2]],
            "struct": [{"x": 1, "y": None}, None, {"x": None, "y": "z"}, {"x": 2, "y": ""}],
            "tensor": pa.FixedShapeTensorArray.from_numpy_ndarray(vectors),
            "when": pa.array([1, None, 2**60, -5], pa.timestamp("ns", "Europe/Berlin")),
            "day": pa.array([dt.date(2026, 1, 2), None, dt.date(1, 1, 1), dt.date(9999, 12, 31)]),
        }
    )


@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
def test_types_are_kept(tmp_path: Path, suffix: str):
    """The same schema comes back, dictionaries and tensors too; a commit of the file has the same data."""
    lk = lake.open(tmp_path / "lake", progress=False)
    first = lk.commit("t", typed(), key="key")
    path = tmp_path / f"t{suffix}"

    lk.dataset("t").export(path)

    found = pq.read_table(path) if suffix == ".parquet" else pa.ipc.open_file(path).read_all()
    assert found.cast(lk.dataset("t").schema).equals(lk.dataset("t").take(range(4)))
    assert pa.types.is_dictionary(found.schema.field("label").type)
    assert found.schema.field("tensor") == lk.dataset("t").schema.field("tensor")
    assert lk.commit("again", str(path), key="key").data == first.data


def test_jsonl_says_everything_in_what_json_has(tmp_path: Path):
    """Bytes in base64, times as ISO text with all digits, tensors as lists, NaN as null."""
    lk = lake.open(tmp_path / "lake", progress=False)
    lk.commit("t", typed().append_column("f", pa.array([float("nan"), float("inf"), 0.5, None])), key="key")

    lk.dataset("t").export(tmp_path / "t.jsonl")

    first, _, third, _ = rows_of(tmp_path / "t.jsonl")
    assert first == {
        "key": 3,
        "label": "b",
        "bytes": "/w==",
        "list": [1, None],
        "struct": {"x": 1, "y": None},
        "tensor": [0.0, 1.0, 2.0],
        "when": "1970-01-01 01:00:00.000000001+0100",
        "day": "2026-01-02",
        "f": None,
    }
    assert third["f"] == 0.5
    assert third["when"].startswith("2006-07-15 01:58:24.606846976")


@pytest.mark.parametrize(
    ("columns", "path", "message"),
    [
        (None, "x.csv", "CSV cannot hold column 'bytes'"),
        (["key", "list"], "x.csv", "CSV cannot hold column 'list'"),
        (["key", "tensor"], "x.csv", "CSV cannot hold column 'tensor'"),
    ],
)
def test_what_a_format_cannot_hold_is_refused(tmp_path: Path, columns: Any, path: str, message: str):
    """The column is named, and nothing is left behind; columns= leaves it out."""
    lk = lake.open(tmp_path / "lake", progress=False)
    lk.commit("t", typed(), key="key")

    with pytest.raises(lake.SchemaError, match=message):
        lk.dataset("t").export(tmp_path / "out" / path, columns=columns)
    assert [*(tmp_path / "out").iterdir()] == []
    lk.dataset("t").export(tmp_path / "out" / path, columns=["key", "label", "day"])
    assert [row["label"] for row in rows_of(tmp_path / "out" / path)] == ["b", None, "a", "b"]


def samples() -> pa.Table:
    """Samples of files: keys with folders and dots, fields that are missing here and there."""
    return pa.table(
        {
            "key": ["a/x", "a/y.z", "b", "ü"],
            "wav": [b"\x00\x01", None, b"", b"zz"],
            "json": [b"{}", b"[1]", None, b"3"],
        }
    )


@pytest.mark.parametrize("form", ["webdataset", "folder"])
def test_samples_come_back_as_they_were(tmp_path: Path, form: Any):
    """A tar or a folder of one file for each value: committed, it is the same data."""
    lk = lake.open(tmp_path / "lake", progress=False)
    first = lk.commit("s", samples())
    path = tmp_path / ("s.tar" if form == "webdataset" else "s")

    lk.dataset("s").export(path, form)

    made = lk.commit("again", path)
    assert sorted(read(lk, "again"), key=str) == sorted(
        read(lk, "s", columns=lk.dataset("again").schema.names), key=str
    )
    assert made.rows == first.rows
    if form == "webdataset":
        with tarfile.open(path) as tar:
            assert tar.getnames() == ["a/x.wav", "a/x.json", "a/y.z.json", "b.wav", "ü.wav", "ü.json"]
        lk.dataset("s").export(tmp_path / "twin.tar")
        assert (tmp_path / "twin.tar").read_bytes() == path.read_bytes()


def test_values_that_are_no_bytes_become_text(tmp_path: Path):
    """Text as UTF-8, numbers and lists as JSON; rows without a key are named by number."""
    lk = lake.open(tmp_path / "lake", progress=False)
    cls = pa.array(["cat", "dog"]).dictionary_encode()
    lk.commit(
        "n", pa.table({"cls": cls, "txt": ["ä", None], "num": [1.5, 2.0], "box": [[1, 2], []]}), key=None
    )

    lk.dataset("n").export(tmp_path / "n", "folder")

    assert {file.name: file.read_text("utf-8") for file in (tmp_path / "n").iterdir()} == {
        "000000000.cls": "cat",
        "000000000.txt": "ä",
        "000000000.num": "1.5",
        "000000000.box": "[1, 2]",
        "000000001.cls": "dog",
        "000000001.num": "2.0",
        "000000001.box": "[]",
    }


@pytest.mark.parametrize("key", ["/etc/passwd", "../x", "a/../b", "", "a//b", "./a", None])
@pytest.mark.parametrize("form", ["webdataset", "folder"])
def test_keys_that_lead_elsewhere_are_refused(tmp_path: Path, key: Any, form: Any):
    """Nothing is ever written outside of the folder, or made that unpacks outside of one."""
    lk = lake.open(tmp_path / "lake", progress=False)
    lk.commit("s", pa.table({"key": pa.array(["ok", key], pa.string()), "x": [b"1", b"2"]}))

    with pytest.raises(ValueError, match="cannot be a file's name"):
        lk.dataset("s").export(tmp_path / "out" / ("s.tar" if form == "webdataset" else "s"), form)
    assert [*(tmp_path / "out").iterdir()] == []


def test_nothing_is_written_over(lk: Lake, tmp_path: Path):
    """A file, or a folder that holds something, stays; an empty folder is taken."""
    ds = lk.dataset("plain")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").write_text("x")
    (tmp_path / "rows.csv").write_text("mine")
    (tmp_path / "empty").mkdir()

    for path in ("full", "rows.csv"):
        with pytest.raises(FileExistsError, match="exists: remove it"):
            ds.export(tmp_path / path)
    ds.export(tmp_path / "empty", "csv")
    assert rows_of(tmp_path / "empty") == plain(200).to_pylist()
    assert (tmp_path / "rows.csv").read_text() == "mine"


@pytest.mark.parametrize(
    ("path", "form", "message"),
    [
        ("rows.csv", "parquet", "rows.csv has the suffix of csv, but the format asked for is parquet"),
        ("rows", "xml", "one of parquet, csv, jsonl, arrow, webdataset, folder"),
        ("s3://bucket/rows", None, "writes to local disks"),
    ],
)
def test_a_target_that_cannot_be_is_refused(lk: Lake, tmp_path: Path, path: str, form: Any, message: str):
    """Before anything is made."""
    target = path if "://" in path else tmp_path / "out" / path
    with pytest.raises(ValueError, match=message):
        lk.dataset("plain").export(target, form)
    assert not (tmp_path / "out").exists()
    with pytest.raises(ValueError, match="no column 'z' in 'plain'"):
        lk.dataset("plain").export(tmp_path / "out", columns=["z"])


def test_a_dataset_without_rows_has_files_all_the_same(tmp_path: Path):
    """They tell its columns."""
    lk = lake.open(tmp_path / "lake", progress=False)
    lk.commit("n", plain(0), schema=plain(0).schema)

    for form, suffix in TABLES.items():
        lk.dataset("n").export(tmp_path / f"n{suffix}")
        lk.dataset("n").export(tmp_path / form, form)  # type: ignore[arg-type]
        assert rows_of(tmp_path / f"n{suffix}") == rows_of(tmp_path / form) == []
    assert pq.read_schema(tmp_path / "parquet" / "part-00000.parquet").names == plain(0).column_names


def test_a_version_is_exported_as_it_was(tmp_path: Path):
    """An older one, with columns that some shards lack."""
    lk = lake_of(tmp_path / "lake", birds(40))
    lk.add_columns("birds", pa.table({"key": ["k00001"], "y": [1]}))
    lk.drop_columns("birds", ["image"])

    lk.dataset("birds@#2").export(tmp_path / "old.parquet", columns=["y", "key"])
    lk.dataset("birds").export(tmp_path / "new.parquet")

    assert [row["y"] for row in rows_of(tmp_path / "old.parquet")] == [None, 1, *[None] * 38]
    assert rows_of(tmp_path / "new.parquet") == read(lk)
    assert table(birds(40)).num_rows == 40


@pytest.mark.parametrize("columns", ["x", [], ["x", "x"]])
def test_columns_are_different_names_wherever_they_are_asked_for(tmp_path: Path, columns: Any):
    """A text, none, or one twice is refused by scan, export and pull alike, before anything is written."""
    lk = lake.open(tmp_path / "lake", progress=False)
    lk.commit("n", pa.table({"x": [1], "y": [2]}), key=None)

    for ask in (
        lk.dataset("n").scan,
        lambda columns: lk.dataset("n").export(tmp_path / "n.csv", columns=columns),
        lambda columns: lk.pull("n", columns=columns),
    ):
        with pytest.raises((TypeError, ValueError), match=r"^columns are (a list of|different) names"):
            ask(columns)
    assert not (tmp_path / "n.csv").exists()


@pytest.mark.parametrize("target", ["n.tar", "folder"])
@pytest.mark.parametrize(
    "rows",
    [
        {"key": ["a", "a"], "n": [b"1", b"2"]},
        {"key": ["a.n", "a"], "n": [b"1", None], "n.n": [None, b"2"]},
    ],
)
def test_two_samples_never_become_one_file(lk: Lake, tmp_path: Path, target: str, rows: dict[str, Any]):
    """Keys that come again, or that a column's name completes, are refused by name; nothing is left behind."""
    lk.commit("twice", pa.table(rows))
    with pytest.raises(
        ValueError, match=r"key 'a' and column 'n.*' give the file 'a\.n.*', which is there already"
    ):
        lk.dataset("twice").export(tmp_path / target, format="folder" if target == "folder" else None)
    assert [path.name for path in tmp_path.iterdir() if path.name.lstrip(".").startswith(target)] == []


# --- pull ---------------------------------------------------------------------------------------


def test_a_pulled_version_is_read_without_the_network(s3_url: str, tmp_path: Path):
    """Every part is in the cache; a second time nothing is fetched; a column costs its own parts only."""
    lk = lake.open(s3_url, cache_dir=tmp_path / "cache", progress=False)
    rows = [row | {"image": row["image"] * 10} for row in birds(60)]
    lk.commit("birds", table(rows), shard_bytes="64KiB")
    parts = [part for shard in shards(lk) for part in shard.parts]
    light = sum(part.bytes for part in parts if "label" in part.fields)

    assert lk.pull("birds", columns=["label"]).bytes_fetched == light
    found = lk.pull("birds")

    assert found.bytes == sum(part.bytes for part in parts) == found.bytes_fetched + light
    assert lk.pull("birds").bytes_fetched == 0
    assert {entry.digest for entry in lk.cache.entries()} >= {part.digest for part in parts}
    lk.store.delete([found.key for found in lk.store.list("shards/")])
    assert read(lk) == rows


def test_what_does_not_fit_is_not_fetched(s3_url: str, tmp_path: Path):
    """The message has both numbers and the way out."""
    lk = lake.open(s3_url, cache_dir=tmp_path, cache_budget=100_000, progress=False)
    lk.commit("birds", table(birds(300)), shard_bytes="64KiB")

    with pytest.raises(lake.BudgetError, match=r"birds has 2\d\d kB, the cache's budget is 100 kB") as caught:
        lk.pull("birds")
    assert caught.value.budget == 100_000 < caught.value.needed
    assert lk.cache.used < 20_000


def test_a_lake_in_a_folder_needs_no_pull(lk: Lake):
    """It is read in place; columns that are not there are refused all the same."""
    assert lk.pull("plain").bytes_fetched == 0
    with pytest.raises(ValueError, match="no column 'z'"):
        lk.pull("plain", columns=["z"])


@pytest.mark.parametrize(("path", "kind"), [("", ValueError), (b"x.csv", TypeError), (None, TypeError)])
def test_what_is_no_path_is_refused(lk: Lake, path: Any, kind: type[Exception]) -> None:
    """An empty text does not stand for the working directory."""
    with pytest.raises(kind, match="path"):
        lk.dataset("plain").export(path)
