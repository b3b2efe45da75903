"""Rows by number, slice and key; counts; from a folder and from a bucket."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lake
from lake.dataset import Dataset
from lake.stores import LocalStore
from lake.stores.wrappers import CountingStore
from tests.remote import Remote, remote_lake

ROWS = 500


def table() -> pa.Table:
    """A key, numbers, a wide column in a part of its own, codes, and nulls."""
    rng = np.random.default_rng(3)
    return pa.table(
        {
            "key": [f"k{n:04d}" if n != 250 else "k0249" for n in range(ROWS)],
            "n": np.arange(ROWS),
            "x": pa.FixedSizeListArray.from_arrays(
                pa.array(rng.integers(0, 255, ROWS * 1024, np.uint8)), 1024
            ),
            "c": pa.array([f"c{n % 3}" for n in range(ROWS)]).dictionary_encode(),
            "maybe": pa.array([None if n % 5 == 0 else [n] * (n % 4) for n in range(ROWS)]),
        }
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rows") / "lake"
    version = lake.open(folder).commit("rows", table(), shard_bytes="64KiB")
    assert version.shards > 4
    return folder


@pytest.fixture(scope="module", params=["folder", "bucket"])
def ds(request: pytest.FixtureRequest, folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    if request.param == "folder":
        return lake.open(folder).dataset("rows")
    return remote_lake(folder, tmp_path_factory.mktemp("cache") / "cache").dataset("rows")


@settings(max_examples=40, deadline=None)
@given(
    numbers=st.lists(st.integers(-ROWS, ROWS - 1), max_size=30),
    columns=st.none() | st.sampled_from([["n"], ["x", "n"], ["maybe", "c"]]),
)
def test_take_gives_the_rows_asked_for(ds: Dataset, numbers: list[int], columns: list[str] | None) -> None:
    """In that order, twice if asked twice, counted from the end if negative."""
    found = ds.take(numbers, columns=columns)

    expected = table().cast(ds.schema).take(pa.array([n % ROWS for n in numbers], pa.int64()))
    names = ds.schema.names if columns is None else columns
    assert found.schema.names == names
    assert found.to_pylist() == expected.select(names).to_pylist()


@settings(max_examples=30, deadline=None)
@given(
    start=st.none() | st.integers(-ROWS - 5, ROWS + 5),
    stop=st.none() | st.integers(-ROWS - 5, ROWS + 5),
    step=st.none() | st.sampled_from([1, 2, 7, -1, -3]),
)
def test_slices_are_those_of_a_list(
    ds: Dataset, start: int | None, stop: int | None, step: int | None
) -> None:
    """`ds[a:b:c]` has the rows that a list of them would."""
    found = ds[start:stop:step]

    assert found["n"].to_pylist() == list(range(ROWS))[start:stop:step]


def test_one_row_is_a_dict(ds: Dataset) -> None:
    """By position from either end."""
    assert ds[17] == table().cast(ds.schema).slice(17, 1).to_pylist()[0]
    assert ds[-1] == ds[ROWS - 1] == ds[np.int64(ROWS - 1)]


@pytest.mark.parametrize("wrong", [ROWS, -ROWS - 1, 10**12])
def test_rows_that_are_not_there(ds: Dataset, wrong: int) -> None:
    """The error has both numbers."""
    for ask in (lambda: ds[wrong], lambda: ds.take([0, wrong])):
        with pytest.raises(IndexError, match="of 500 rows"):
            ask()


def test_what_is_no_row_number(ds: Dataset) -> None:
    """Keys have a method of their own."""
    for ask in (lambda: ds["k0001"], lambda: ds[1.5], lambda: ds.take(["k"]), lambda: ds.take([[1]])):
        with pytest.raises(TypeError):
            ask()


def test_a_key_finds_the_first_row_that_has_it(ds: Dataset) -> None:
    """Keys need not be unique."""
    assert ds.get("k0249")["n"] == 249
    assert ds.get("k0499")["n"] == 499
    with pytest.raises(lake.NotFoundError, match="k9999"):
        ds.get("k9999")
    with pytest.raises(TypeError, match="large_string"):
        ds.get(3)


def test_without_a_key_there_is_no_get(tmp_path: Path) -> None:
    """The error says what there is instead."""
    lk = lake.open(tmp_path / "lake")
    lk.commit("plain", pa.table({"n": [1]}))

    with pytest.raises(ValueError, match="where="):
        lk.dataset("plain").get("x")


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        (None, ROWS),
        ("n < 100", 100),
        ("maybe is null", 100),
        ("c = 'c1' and n >= 3", 166),
        ("true", ROWS),
        ("1 = 1", ROWS),
        ("n < 0", 0),
    ],
)
def test_counts(ds: Dataset, where: str | None, expected: int) -> None:
    """Of all rows, or of those that meet a condition."""
    assert ds.count(where) == expected


def test_counting_reads_only_what_is_in_doubt(folder: Path, tmp_path: Path) -> None:
    """Statistics answer for whole shards; the rest needs the condition's column alone."""
    store = CountingStore(Remote(LocalStore(folder)))
    ds = remote_lake(folder, tmp_path / "cache", store=store).dataset("rows")
    assert len(ds.snapshot.manifest) > 4
    store.reset()

    assert ds.count("n >= 0 and key is not null") == ROWS
    assert not store.calls
    assert ds.count("n < 250") == 250
    assert store.counts["get_into"] <= 2
    assert store.bytes_read < 30_000


def test_damage_is_found_by_whoever_looks(tmp_path: Path) -> None:
    """A flipped bit raises, with the part's name and what to do, in place too."""
    lk = lake.open(tmp_path / "lake")
    lk.commit("rows", table(), shard_bytes="64KiB")
    ds: Any = lk.dataset("rows")
    one = next(one for one in ds.snapshot.shard(0).parts if "x" in one.fields)
    path = next((tmp_path / "lake").glob(f"shards/*/{one.digest}.arrow"))
    data = bytearray(path.read_bytes())
    data[one.batches[0].offset + one.batches[0].meta_length + 100] ^= 4
    path.chmod(0o644)
    path.write_bytes(data)

    for ask in (lambda: ds.take([0]), lambda: ds[0], lambda: list(ds.scan()), lambda: ds.get("k0000")):
        with pytest.raises(
            lake.IntegrityError, match=rf"{one.digest[:12]} of rows@#1, shard 0.*lake repair rows"
        ):
            ask()
    assert ds.take([0], columns=["n"])["n"].to_pylist() == [0]
