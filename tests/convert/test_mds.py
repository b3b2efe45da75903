"""MDS folders: two small ones that mosaicml-streaming 0.13 wrote, and what may be wrong with them."""

from __future__ import annotations

import json
import shutil
from contextlib import suppress
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import lake
import lake.stores
from lake.convert import read
from lake.errors import FormatError, NotFoundError, SchemaError

FOLDER = Path(__file__).parent / "mds"  # written with size_limit=4096, the second with compression and hashes


def table_of(folder: Path | str) -> pa.Table:
    source = read(folder)
    return pa.Table.from_batches(list(source.batches), source.schema)


@pytest.mark.parametrize("name", ["plain", "zstd"])
def test_samples_are_those_that_were_written(name: str) -> None:
    """Numbers, texts, bytes and arrays of every kind; pickles stay bytes, and that is said."""
    source = read(FOLDER / name)
    table = pa.Table.from_batches(list(source.batches), source.schema)

    assert source.rows == len(table) == 8
    assert table.schema.field("fixed").type == pa.fixed_shape_tensor(pa.float32(), [2, 3])
    for i, row in enumerate(table.to_pylist()):
        random = np.random.default_rng(i)
        random.integers(0, 255, (4, 5, 3), dtype=np.uint8)  # the photo
        assert (row["text"], row["n"], row["u8"]) == (f"ligne é {i}", -i, i)
        assert (row["f"], row["h"]) == (np.float32(i / 3), np.float16(i / 4))
        assert row["blob"] == random.bytes(i % 7)
        assert row["fixed"] == random.random((2, 3), dtype=np.float32).reshape(-1).tolist()
        assert row["ragged"] == {"data": list(range(1 + i % 4)), "shape": [1, 1 + i % 4]}
        assert row["free"] == {"data": [i] * (2 + 2 * (i % 3)), "shape": [1 + i % 3, 2]}
        assert json.loads(row["doc"]) == {"i": i, "x": [1, None]}
        assert (row["big"], float(row["sf"])) == (str(10**20 + i), i / 7)
        assert row["photo"].startswith(b"\xff\xd8")
        assert row["pickled"].startswith(b"\x80")
    assert source.notes == ["column 'pickled' holds pickles, which are kept as bytes: nothing is unpickled"]
    assert source.read == source.bytes


def test_a_folder_is_committed_by_its_name(tmp_path: Path) -> None:
    """As any other input; both folders hold the same data."""
    lk = lake.open(tmp_path, progress=False)
    a, b = (lk.commit(name, FOLDER / name, key="text") for name in ("plain", "zstd"))

    assert (a.rows, a.data) == (8, b.data)
    assert lk.dataset("plain").get("ligne é 3")["n"] == -3


def test_a_bucket_is_read_by_its_index(s3_url: str, tmp_path: Path) -> None:
    """The URL of the index; locally the path of the index will do as well."""
    store = lake.stores.open_store(s3_url)
    for file in (FOLDER / "zstd").iterdir():
        store.put(f"mds/{file.name}", file.read_bytes())

    assert table_of(f"{s3_url}/mds/index.json").equals(table_of(FOLDER / "zstd" / "index.json"))
    with pytest.raises(NotFoundError, match=r"no file 's3://.*none/index\.json'"):
        read(f"{s3_url}/none/index.json")


@pytest.mark.parametrize("name", ["plain", "zstd"])
def test_damage_is_found_in_every_byte_that_hashes_cover(name: str, tmp_path: Path) -> None:
    """With hashes any flipped bit is; without them what is out of place is, and nothing crashes."""
    folder = tmp_path / "mds"
    shutil.copytree(FOLDER / name, folder)
    index = json.loads((folder / "index.json").read_bytes())
    shard = index["shards"][0]["zip_data" if name == "zstd" else "raw_data"]["basename"]
    path, whole, sound = folder / shard, (folder / shard).read_bytes(), table_of(folder)
    for at in range(0, len(whole), 23):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :])
        if name == "zstd":
            with pytest.raises(FormatError, match="differs from its sha1"):
                table_of(folder)
            continue
        with suppress(FormatError, SchemaError):
            assert table_of(folder).num_rows == sound.num_rows
    path.write_bytes(whole[:-1])
    with pytest.raises(FormatError, match="bytes, and the index says"):
        table_of(folder)
    path.unlink()
    with pytest.raises(FormatError, match="is missing"):
        table_of(folder)


def test_an_index_that_points_elsewhere_is_refused(tmp_path: Path) -> None:
    """A shard lies beside its index; other versions and odd columns are named."""
    folder = tmp_path / "mds"
    shutil.copytree(FOLDER / "plain", folder)
    index = json.loads((folder / "index.json").read_bytes())

    for change, message in [
        (lambda shard: shard["raw_data"].update(basename="../secret"), "is not the name of a file beside it"),
        (lambda shard: shard.update(version=3), "lake reads version 2"),
        (lambda shard: shard.update(column_sizes=[1]), "sizes"),
        (lambda shard: shard.update(samples=9), "samples, and the index says 9"),
        (lambda shard: shard.update(samples="many"), "no index of MDS shards"),
    ]:
        changed = json.loads(json.dumps(index))
        change(changed["shards"][0])
        (folder / "index.json").write_text(json.dumps(changed))
        with pytest.raises(FormatError, match=message):
            table_of(folder)

    changed = json.loads(json.dumps(index))
    changed["shards"][1]["column_names"] = [*changed["shards"][1]["column_names"][:-1], "other"]
    (folder / "index.json").write_text(json.dumps(changed))
    with pytest.raises(SchemaError, match="other columns than the first"):
        table_of(folder)
