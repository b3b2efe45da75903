"""Questions to columns of a dataset: what the manifest knows is not read, and every answer is that of all rows."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lake
from lake import algebra
from lake.dataset import Dataset
from lake.stores.wrappers import CountingStore

ROWS = 6_000


class Remote(CountingStore):
    """A store whose files are not at hand, so that all reading is counted."""

    def local_path(self, key: str) -> None:
        return None


def table() -> pa.Table:
    """Columns that statistics settle in part: constant stretches, all null, NaN, noise, texts, classes."""
    rng = np.random.default_rng(0)
    numbers = np.arange(ROWS)
    noise = rng.standard_normal(ROWS)
    return pa.table(
        {
            "stretch": numbers // (ROWS // 3),
            "noise": noise,
            "integer": rng.integers(-1000, 1000, ROWS),
            "gappy": pa.array(numbers, mask=numbers % 7 == 0),
            "nothing": pa.nulls(ROWS, pa.int32()),
            "odd": np.where(numbers < ROWS // 2, math.nan, np.where(numbers % 2, 0.0, -0.0)),
            "text": [f"word {i % 500:03}" for i in range(ROWS)],
            "label": pa.array([f"class {i * 4 // ROWS}" for i in range(ROWS)]).dictionary_encode(),
            "day": pa.array(numbers // 100, pa.int32()).cast(pa.date32()),
            "second": pa.array(numbers, pa.timestamp("s")),
            "payload": [bytes([i % 256]) * 300 for i in range(ROWS)],
        }
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A lake with the table in many shards."""
    folder = tmp_path_factory.mktemp("stored")
    lk = lake.open(folder / "lake", cache_dir=folder / "cache")
    lk.commit("rows", table(), key=None, shard_bytes="64KiB")
    assert lk.dataset("rows").snapshot.document.shards > 12
    return folder


@pytest.fixture
def counted(folder: Path, tmp_path: Path) -> tuple[Dataset, CountingStore]:
    """The dataset on a machine that has its manifest and none of its rows, and the count of requests."""
    plain = lake.open(folder / "lake", cache_dir=tmp_path / "cache")
    store = Remote(plain.store)
    ds = lake.Lake(store, plain.settings).dataset("rows")
    ds.snapshot.manifest.stats("noise")
    store.reset()
    return ds, store


def unsigned(found: dict[str, Any]) -> dict[str, Any]:
    """The answers with zeros for zeros as extremes, of which statistics do not keep the sign."""
    return {**found, **{name: 0.0 for name in ("min", "max") if found[name] == 0}}


def answers(column: Any, type_: pa.DataType) -> dict[str, Any]:
    """What each operator says, or the kind of error."""
    found = {}
    for name in ("count", "sum", "mean", "min", "max"):
        try:
            found[name] = getattr(algebra, name)(column).as_py()
        except TypeError:
            found[name] = TypeError
    groups = algebra.group_count(column)
    pairs = zip(groups["value"].to_pylist(), groups["count"].to_pylist(), strict=True)
    return {**found, "group_count": sorted(map(repr, pairs))}


@pytest.mark.parametrize("name", table().schema.names)
def test_a_stored_column_answers_as_its_rows_do(name: str, counted: tuple[Dataset, CountingStore]) -> None:
    """All reductions of every kind of column, against the same of an encoded array of all rows."""
    ds, _ = counted
    values = table()[name].combine_chunks()
    whole = (
        values
        if isinstance(values, pa.DictionaryArray)
        else values.cast(ds.schema.field(name).type).dictionary_encode()
    )

    found = answers(algebra.column(ds, name), values.type)

    assert repr(unsigned(found)) == repr(unsigned(answers(whole, values.type)))


@pytest.mark.parametrize(
    ("operator", "name"),
    [
        *[
            (op, name)
            for op in ("min", "max")
            for name in ("noise", "integer", "gappy", "day", "nothing", "odd")
        ],
        *[("count", name) for name in ("noise", "gappy", "text", "nothing", "label", "payload")],
        *[(op, "nothing") for op in ("sum", "mean", "group_count")],
    ],
)
def test_what_statistics_hold_is_not_read(
    operator: str, name: str, counted: tuple[Dataset, CountingStore]
) -> None:
    """No request at all reaches the store."""
    ds, store = counted

    getattr(algebra, operator)(algebra.column(ds, name))

    assert sum(store.counts.values()) == 0
    assert store.bytes_read == 0


def test_sums_read_only_where_values_differ(counted: tuple[Dataset, CountingStore]) -> None:
    """Of a column of three stretches the shards across the two borders, of noise all."""
    ds, store = counted
    assert algebra.sum(algebra.column(ds, "stretch")).as_py() == ROWS
    few = store.bytes_read
    store.reset()
    assert algebra.sum(algebra.column(ds, "noise")).as_py() == math.fsum(table()["noise"].to_pylist())

    assert few < store.bytes_read / 3


@settings(max_examples=10, deadline=None)
@given(
    values=st.lists(
        st.tuples(
            st.none() | st.sampled_from([0.0, -0.0, 1.5, -3.0, math.nan, math.inf]), st.integers(1, 3000)
        ),
        min_size=1,
        max_size=8,
    )
)
def test_any_stretches_of_values_are_answered_exactly(
    values: list[tuple[float | None, int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Runs of NaN, null, zeros of both signs and infinities, cut into small shards wherever they fall."""
    rows = [value for value, count in values for _ in range(count)]
    array = pa.array(rows, pa.float64())
    folder = tmp_path_factory.mktemp("stretches")
    lk = lake.open(folder / "lake", cache_dir=folder / "cache")
    lk.commit("rows", pa.table({"x": array}), key=None, shard_bytes="16KiB")

    found = answers(algebra.column(lk.dataset("rows"), "x"), array.type)

    assert repr(unsigned(found)) == repr(unsigned(answers(array.dictionary_encode(), array.type)))


def test_an_unknown_column_is_named(counted: tuple[Dataset, CountingStore]) -> None:
    """With those that there are."""
    with pytest.raises(ValueError, match=r"no column 'nosie' in 'rows': stretch, noise"):
        algebra.column(counted[0], "nosie")


def test_an_error_names_the_column(tmp_path: Path) -> None:
    """What cannot be done to it, and to columns of which dataset; and that it is no array."""
    lk = lake.open(tmp_path / "lake")
    lk.commit("d", pa.table({"s": ["a", "b"], "l": [[1], [2]], "n": [2**62, 2**62]}), key=None)
    ds = lk.dataset("d")
    for ask, name in (
        (algebra.sum, "s"), (algebra.mean, "s"), (algebra.min, "l"), (algebra.max, "l"), (algebra.group_count, "l")
    ):  # fmt: skip
        with pytest.raises(TypeError, match=f"column '{name}' of 'd': "):
            ask(algebra.column(ds, name))
    with pytest.raises(OverflowError, match="column 'n' of 'd': "):
        algebra.sum(algebra.column(ds, "n"))
    with pytest.raises(TypeError, match="column 'n' of 'd' is for count, sum"):
        algebra.add(algebra.column(ds, "n"), 1)
    with pytest.raises(TypeError, match="takes a dataset and a name, not int"):
        algebra.column(3, "n")
