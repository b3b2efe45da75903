"""Hugging Face datasets: objects and folders of `save_to_disk` give the same columns, features and all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import lake
from lake.convert import read
from lake.errors import FormatError, SchemaError

datasets = pytest.importorskip("datasets")
pytestmark = pytest.mark.filterwarnings("ignore")


def some(rows: int = 7, *, first: int = 0) -> Any:
    """A dataset with every feature that means more than its Arrow type."""
    features = datasets.Features(
        {
            "label": datasets.ClassLabel(names=["dog", "cat", "ant"]),
            "text": datasets.Value("string"),
            "photo": datasets.Image(),
            "sound": datasets.Audio(),
            "grid": datasets.Array2D((2, 3), "float32"),
            "xs": datasets.List(datasets.Value("int32")),
            "when": datasets.Value("timestamp[ns, tz=Europe/Paris]"),
            "n": datasets.Value("uint16"),
        }
    )
    numbers = range(first, first + rows)
    file = pa.struct({"bytes": pa.binary(), "path": pa.string()})
    grid = features["grid"]()
    lists = pa.array([[[float(n)] * 3] * 2 for n in numbers], grid.storage_type)
    table = pa.table(
        {
            "label": pa.array([[1, 0, -1, 2, None][n % 5] for n in numbers], pa.int64()),
            "text": [f"t{n}" if n % 3 else None for n in numbers],
            "photo": pa.array([{"bytes": b"p%d" % n, "path": None} for n in numbers], file),
            "sound": pa.array([{"bytes": b"s%d" % n, "path": "a.wav"} for n in numbers], file),
            "grid": pa.ExtensionArray.from_storage(grid, lists),
            "xs": pa.array([[n, n + 1][: n % 3] for n in numbers], pa.list_(pa.int32())),
            "when": pa.array([n * 10**9 for n in numbers], pa.timestamp("ns", "Europe/Paris")),
            "n": pa.array(list(numbers), pa.uint16()),
        }
    )
    memory = datasets.table.InMemoryTable(table)
    return datasets.Dataset(memory, info=datasets.DatasetInfo(features=features))


def table_of(data: Any, **how: Any) -> pa.Table:
    source = read(data, **how)
    return pa.Table.from_batches(list(source.batches), source.schema)


def test_features_become_types_that_stand_alone() -> None:
    """Labels are a dictionary in the order of their names, files their bytes, arrays tensors; the rest stays."""
    source = read(some())
    table = pa.Table.from_batches(list(source.batches), source.schema)

    assert source.vocab == {"label": ["dog", "cat", "ant"]}
    assert source.rows == 7
    assert table["label"].to_pylist() == ["cat", "dog", None, "ant", None, "cat", "dog"]
    assert table["photo"].to_pylist() == [b"p%d" % n for n in range(7)]
    assert table["sound"].to_pylist() == [b"s%d" % n for n in range(7)]
    assert table.schema.field("grid").type == pa.fixed_shape_tensor(pa.float32(), [2, 3])
    assert table["grid"].to_pylist() == [[float(n)] * 6 for n in range(7)]
    assert table.schema.field("xs").type == pa.list_(pa.int32())
    assert table.schema.field("when").type == pa.timestamp("ns", "Europe/Paris")
    assert table.schema.field("n").type == pa.uint16()
    assert table.schema.metadata is None


def test_objects_streams_and_folders_agree(tmp_path: Path) -> None:
    """In memory, as an iterable, picked and shuffled, on disk, also without the package's help."""
    dataset = some(20)
    dataset.save_to_disk(tmp_path / "saved", num_shards=3)
    whole = table_of(dataset)

    assert table_of(dataset.to_iterable_dataset()).equals(whole)
    assert table_of(tmp_path / "saved").equals(whole)
    assert table_of(dataset.select([5, 2, 2])).equals(whole.take([5, 2, 2]))
    assert table_of(dataset.shuffle(seed=1))["n"].to_pylist() == dataset.shuffle(seed=1)["n"][:]


def test_splits_are_a_column(tmp_path: Path) -> None:
    """In the order of the dict, from an object and from disk; the lake keeps that order as the vocabulary."""
    splits = datasets.DatasetDict({"train": some(5), "test": some(2, first=5)})
    splits.save_to_disk(tmp_path / "saved")
    lk = lake.open(tmp_path / "lake", progress=False)

    made = lk.commit("pets", splits)
    again = lk.commit("pets", tmp_path / "saved")

    dataset = lk.dataset("pets")
    assert made.id == again.id
    assert dataset.vocab("split") == ["train", "test"]
    assert dataset.vocab("label") == ["dog", "cat", "ant"]
    assert dataset.scan(["split"]).to_table()["split"].to_pylist() == ["train"] * 5 + ["test"] * 2
    assert dataset.scan(["n"], "split = 'test'").to_table()["n"].to_pylist() == [5, 6]


def test_files_that_are_only_named_are_read(tmp_path: Path) -> None:
    """An image with a path and no bytes."""
    (tmp_path / "a.jpg").write_bytes(b"jpeg")
    features = datasets.Features({"photo": datasets.Image()})
    dataset = datasets.Dataset.from_dict({"photo": [str(tmp_path / "a.jpg"), None]}, features=features)

    assert table_of(dataset)["photo"].to_pylist() == [b"jpeg", None]


def test_misfits_are_named(tmp_path: Path) -> None:
    """A split with other features, a column that would hide the splits, no rows, a missing file."""
    other = some(3).remove_columns("text")
    with pytest.raises(SchemaError, match="'test' has other features"):
        table_of(datasets.DatasetDict({"train": some(3), "test": other}))
    named = some(3).rename_column("text", "split")
    with pytest.raises(SchemaError, match="column 'split'"):
        table_of(datasets.DatasetDict({"train": named}))
    with pytest.raises(ValueError, match="no rows"):
        table_of(datasets.Dataset.from_dict({}))
    some(3).save_to_disk(tmp_path / "saved")
    next((tmp_path / "saved").glob("*.arrow")).unlink()
    with pytest.raises(FormatError, match="save_to_disk"):
        table_of(tmp_path / "saved")


def test_a_dataset_is_read_in_bounded_batches() -> None:
    """Large values give small batches."""
    rows = 40
    features = datasets.Features({"blob": datasets.Value("binary"), "n": datasets.Value("int64")})
    blobs = [np.random.default_rng(n).bytes(1 << 20) for n in range(rows)]
    dataset = datasets.Dataset.from_dict({"blob": blobs, "n": list(range(rows))}, features=features)

    batches = list(read(dataset).batches)

    assert sum(batch.num_rows for batch in batches) == rows
    assert max(batch.nbytes for batch in batches) < 20 << 20
