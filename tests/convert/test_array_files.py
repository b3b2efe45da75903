"""NumPy's files and safetensors, and inputs by URL and by WebDataset's patterns."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lake
import lake.stores
from lake.convert import read
from lake.convert.paths import braced
from lake.errors import FormatError, NotFoundError, SchemaError

DTYPES = [
    "?",
    "i1",
    "u1",
    "<i2",
    "<u2",
    "<i4",
    "<u4",
    "<i8",
    "<u8",
    "<f2",
    "<f4",
    "<f8",
    ">i4",
    ">f8",
    "<M8[us]",
]


def table_of(data: Any, **how: Any) -> pa.Table:
    source = read(data, **how)
    table = pa.Table.from_batches(list(source.batches), source.schema)
    assert source.rows == len(table)
    return table


def values_of(column: pa.ChunkedArray) -> np.ndarray:
    array = column.combine_chunks()
    if isinstance(array.type, pa.FixedShapeTensorType):
        flat = array.storage.flatten().to_numpy(zero_copy_only=False)
        return flat.reshape(len(array), *array.type.shape)
    return array.to_numpy(zero_copy_only=False)


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(DTYPES),
    st.lists(st.integers(1, 4), min_size=0, max_size=3),
    st.integers(0, 9),
    st.booleans(),
)
def test_arrays_are_what_numpy_says(
    tmp_path_factory: pytest.TempPathFactory, dtype: str, shape: list[int], rows: int, fortran: bool
) -> None:
    """Any dtype, byte order, shape and order of axes, in each kind of file."""
    if np.dtype(dtype).kind == "M" and shape:
        shape = []
    whole = np.arange(rows * int(np.prod(shape)), dtype="i8").reshape(rows, *shape).astype(dtype)
    array = np.asfortranarray(whole) if fortran else whole
    folder = tmp_path_factory.mktemp("arrays")
    np.save(folder / "a.npy", array)
    np.savez(folder / "a.npz", x=array, y=np.arange(rows))
    np.savez_compressed(folder / "c.npz", x=array)

    assert np.array_equal(values_of(table_of(folder / "a.npy")["values"]), whole)
    archive = table_of(folder / "a.npz")
    assert np.array_equal(values_of(archive["x"]), whole)
    assert archive["y"].to_pylist() == list(range(rows))
    assert np.array_equal(values_of(table_of(folder / "c.npz")["x"]), whole)


def test_safetensors_are_what_their_package_writes(tmp_path: Path) -> None:
    """Every type that Arrow has, by name, with shapes; types that it lacks are named."""
    from safetensors.numpy import save_file

    arrays = {
        f"t{i}": np.arange(12, dtype="i8").reshape(4, 3).astype(dtype)
        for i, dtype in enumerate(DTYPES)
        if np.dtype(dtype).isnative and np.dtype(dtype).kind != "M"
    }
    save_file(arrays | {"ids": np.arange(4)}, tmp_path / "x.safetensors", metadata={"made": "here"})

    table = table_of(tmp_path / "x.safetensors")

    assert set(table.column_names) == {*arrays, "ids"}
    for name, array in arrays.items():
        assert np.array_equal(values_of(table[name]), array)
    torch = pytest.importorskip("torch")
    from safetensors.torch import save_file as save_torch

    save_torch({"w": torch.zeros(2, 2, dtype=torch.bfloat16)}, tmp_path / "b.safetensors")
    with pytest.raises(SchemaError, match="tensor 'w' is BF16"):
        read(tmp_path / "b.safetensors")


def test_several_files_are_one_table(tmp_path: Path) -> None:
    """In the order of their names, as any tables; rows of records are columns."""
    for n in range(3):
        np.save(tmp_path / f"{n}.npy", np.full((2, 5), n, "f4"))
    np.save(tmp_path / "records.npy", np.array([(1, 2.5), (3, 4.5)], [("a", "i4"), ("b", "f8")]))
    lk = lake.open(tmp_path / "lake", progress=False)

    assert lk.commit("many", str(tmp_path / "[0-9].npy")).rows == 6
    assert table_of(tmp_path / "records.npy").to_pylist() == [{"a": 1, "b": 2.5}, {"a": 3, "b": 4.5}]


def test_damage_and_misfits_are_named(tmp_path: Path) -> None:
    """Pickled objects, cut files, arrays of different lengths, headers that lie."""
    np.save(tmp_path / "o.npy", np.array([{"a": 1}], object), allow_pickle=True)
    with pytest.raises(FormatError, match=r"o\.npy is no file of arrays.*Python objects"):
        read(tmp_path / "o.npy")
    np.savez(tmp_path / "u.npz", x=np.zeros(3), y=np.zeros(4))
    with pytest.raises(SchemaError, match=r"x \[3\], y \[4\]"):
        read(tmp_path / "u.npz")
    np.save(tmp_path / "c.npy", np.zeros(3, "c16"))
    with pytest.raises(SchemaError, match="complex128"):
        read(tmp_path / "c.npy")
    np.save(tmp_path / "s.npy", np.float64(1))
    with pytest.raises(SchemaError, match="first axis"):
        read(tmp_path / "s.npy")
    whole = (tmp_path / "c.npy").read_bytes()
    (tmp_path / "cut.npy").write_bytes(whole[:-20])
    with pytest.raises(FormatError, match=r"cut\.npy"):
        read(tmp_path / "cut.npy")
    for header in [b"\xff" * 8, b"\x05" + bytes(7) + b"xxxxx", b""]:
        (tmp_path / "bad.safetensors").write_bytes(header)
        with pytest.raises(FormatError, match=r"bad\.safetensors"):
            read(tmp_path / "bad.safetensors")
    lie = json.dumps({"w": {"dtype": "F32", "shape": [10], "data_offsets": [0, 40]}}).encode()
    (tmp_path / "lie.safetensors").write_bytes(len(lie).to_bytes(8, "little") + lie + bytes(8))
    with pytest.raises(FormatError, match="tensor 'w' lies outside the file"):
        read(tmp_path / "lie.safetensors")


# --- WebDataset's shards ------------------------------------------------------------------------


def write_shards(folder: Path, counts: list[int], *, suffix: str = "tar") -> list[str]:
    """Shards named as WebDataset names them, and all their keys."""
    keys = []
    for number, count in enumerate(counts):
        mode = {"tar": "w", "tar.gz": "w:gz"}[suffix]
        with tarfile.open(folder / f"s-{number:03}.{suffix}", mode) as out:
            for n in range(count):
                keys.append(f"{number:03}/{n:04}")
                fields = {"txt": b"text %d" % n} | ({"cls": b"%d" % (n % 3)} if number % 2 else {})
                for field, data in fields.items():
                    member = tarfile.TarInfo(f"{keys[-1]}.{field}")
                    member.size = len(data)
                    out.addfile(member, io.BytesIO(data))
    return keys


@pytest.mark.parametrize("suffix", ["tar", "tar.gz"])
def test_shards_of_a_webdataset_are_one_dataset(tmp_path: Path, suffix: str) -> None:
    """By glob, by braces and as a list: samples in the order of the shards; a field that some lack is null."""
    keys = write_shards(tmp_path, [5, 3, 4], suffix=suffix)
    lk = lake.open(tmp_path / "lake", progress=False)

    tables = [
        table_of(data)
        for data in (
            f"{tmp_path}/s-*.{suffix}",
            f"{tmp_path}/s-{{000..002}}.{suffix}",
            [tmp_path / f"s-{n:03}.{suffix}" for n in range(3)],
        )
    ]

    assert all(table.equals(tables[0]) for table in tables)
    assert tables[0]["key"].to_pylist() == keys
    assert tables[0]["cls"].to_pylist() == [None] * 5 + [b"0", b"1", b"2"] + [None] * 4
    shuffled = table_of(f"{tmp_path}/s-*.{suffix}", order="shuffled")
    assert sorted(shuffled["key"].to_pylist()) == sorted(keys) != shuffled["key"].to_pylist()
    assert lk.commit("texts", f"{tmp_path}/s-*.{suffix}").rows == 12
    with pytest.raises(ValueError, match="labels=True takes one archive"):
        read(f"{tmp_path}/s-*.{suffix}", labels=True)


def test_shards_in_a_bucket_are_read_by_their_pattern(s3_url: str, tmp_path: Path) -> None:
    """As those in a folder are."""
    write_shards(tmp_path, [3, 2])
    store = lake.stores.open_store(s3_url)
    for file in tmp_path.iterdir():
        store.put(f"wds/{file.name}", file.read_bytes())

    assert table_of(f"{s3_url}/wds/s-*.tar").equals(table_of(f"{tmp_path}/s-*.tar"))
    assert table_of(f"{s3_url}/wds/s-{{000..001}}.tar").equals(table_of(f"{tmp_path}/s-*.tar"))


def test_braces_are_names() -> None:
    """Ranges keep their leading zeros; several pairs combine; without braces nothing changes."""
    assert braced("a") == ["a"]
    assert braced("{a,b}-{0..1}") == ["a-0", "a-1", "b-0", "b-1"]
    assert braced("{008..010}") == ["008", "009", "010"]


# --- URLs ---------------------------------------------------------------------------------------


def test_urls_that_fsspec_knows_are_read(tmp_path: Path) -> None:
    """Files and globs; what neither pyarrow nor fsspec knows is said."""
    fsspec = pytest.importorskip("fsspec")
    memory = fsspec.filesystem("memory")
    for n in range(3):
        with memory.open(f"/lake-test/t{n}.parquet", "wb") as out:
            pq.write_table(pa.table({"n": [n, n]}), out)
    pq.write_table(pa.table({"n": [9]}), tmp_path / "f.parquet")

    assert table_of("memory://lake-test/t1.parquet")["n"].to_pylist() == [1, 1]
    assert table_of("memory://lake-test/t*.parquet")["n"].to_pylist() == [0, 0, 1, 1, 2, 2]
    assert table_of((tmp_path / "f.parquet").as_uri())["n"].to_pylist() == [9]
    with pytest.raises(NotFoundError, match=r"memory://lake-test/no\.parquet"):
        read("memory://lake-test/no.parquet")
    with pytest.raises(ValueError, match="nosuch"):
        read("nosuch://x/y.parquet")
    memory.rm("/lake-test", recursive=True)


def test_urls_without_fsspec_say_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is optional."""
    monkeypatch.setattr("lake.convert.paths._fsspec", lambda: None)

    with pytest.raises(ValueError, match="with fsspec and its package for memory installed it can be read"):
        read("memory://lake-test/t.parquet")
