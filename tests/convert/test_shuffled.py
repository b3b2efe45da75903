"""`order="shuffled"`: a random order that is a function of the keys alone."""

from __future__ import annotations

import tempfile
from collections import Counter

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lake.convert import read, shuffled
from tests import strategies


def table(found) -> pa.Table:
    whole = pa.Table.from_batches(found.batches, found.schema)
    whole.validate(full=True)
    return whole


def reader(data: pa.Table, rows: int) -> pa.RecordBatchReader:
    return pa.RecordBatchReader.from_batches(data.schema, data.to_batches(max_chunksize=rows))


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 30), max_size=80), st.integers(1, 20), st.sampled_from([1, 200, 1 << 20]))
def test_the_order_does_not_depend_on_batches_memory_or_disk(keys, rows, size):
    """Equal keys stay in the order of the input."""
    data = pa.table({"key": [f"k{key}" for key in keys], "n": range(len(keys))})
    with tempfile.TemporaryDirectory() as scratch, pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", scratch)
        patch.setattr(shuffled, "MEMORY_BYTES", size)
        patch.setattr(shuffled, "_BUFFER_BYTES", size)
        found = table(read(reader(data, rows), order="shuffled"))

    expected = data.take(pa.array(shuffled.order_of(pa.array(data["key"].to_pylist(), pa.large_string()))))
    assert found.to_pylist() == expected.to_pylist()
    for key in set(keys):
        assert (np.diff(found.filter(pa.compute.field("key") == f"k{key}")["n"].to_numpy()) > 0).all()


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(0, 10**9), unique=True, min_size=1), st.integers(0, 10**9))
def test_an_edit_moves_no_other_row(keys, new):
    """Rows keep their order among each other, whatever is added or taken away."""
    before = table(read(pa.table({"key": keys}), order="shuffled"))["key"].to_pylist()
    after = table(read(pa.table({"key": [new, *keys]}), order="shuffled"))["key"].to_pylist()

    assert [key for key in after if key != new] == [key for key in before if key != new]
    assert Counter(after) == Counter([new, *keys])


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(strategies.tables(), st.sampled_from([1, 1 << 20]))
def test_rows_of_any_type_are_kept_whole(data, size):
    """Through memory and through temporary files."""
    for name in data.schema.names:
        if name == "row":
            return
    data = data.append_column("row", pa.array(range(data.num_rows), pa.int64()))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shuffled, "MEMORY_BYTES", size)
        source = read(data, order="shuffled", key="row")
        found = table(source)

    assert source.schema.names == data.schema.names
    order = found["row"].to_pylist()
    assert sorted(order) == list(range(data.num_rows))
    for name in data.schema.names:
        assert repr([found[name].to_pylist()[order.index(i)] for i in range(len(order))]) == repr(
            data[name].to_pylist()
        )


def test_the_order_is_frozen():
    """Another one would be another order for everybody's data, so this one is for ever."""
    found = table(read(pa.table({"key": list("abcdefgh")}), order="shuffled"))

    assert "".join(found["key"].to_pylist()) == "dfeahbcg"


def test_the_order_is_random():
    """Neighbours of the input are not neighbours any more, and halves mix evenly."""
    n = 20_000
    order = shuffled.order_of(pa.array(np.arange(n)))

    assert abs(np.corrcoef(order, np.arange(n))[0, 1]) < 0.03
    assert np.mean(np.abs(np.diff(order)) <= 10) < 0.01
    assert abs(np.mean(order[: n // 2] < n // 2) - 0.5) < 0.02


def test_cuts_fall_as_often_in_any_part_of_the_order():
    """The order's hash says nothing of the one that ends shards, or all would end near the beginning."""
    from lake.format import cuts

    keys = pa.array([f"k{i}" for i in range(20_000)], pa.large_string())
    ordered = pa.record_batch({"key": keys.take(pa.array(shuffled.order_of(keys)))})
    hashes = cuts.row_hashes(ordered, "key", 0) >> np.uint64(11)

    assert abs(np.corrcoef(hashes.astype(float), np.arange(len(hashes)))[0, 1]) < 0.03


def test_dictionaries_views_and_tensors_survive_the_disk(monkeypatch):
    """Categories keep their order."""
    monkeypatch.setattr(shuffled, "MEMORY_BYTES", 1)
    order = ["low", "mid", "high"]
    frame = pl.DataFrame(
        {"key": [str(i) for i in range(50)], "x": pl.Series(["high", "low"] * 25, dtype=pl.Enum(order))}
    )

    source = read(frame, order="shuffled")
    found = table(source)

    assert source.vocab == {"x": order}
    assert dict(zip(*found.select(["key", "x"]).to_pydict().values(), strict=True)) == dict(frame.rows())
    assert found["x"].unify_dictionaries().chunk(0).dictionary.to_pylist() == order


def test_memory_stays_bounded_and_no_file_is_left(monkeypatch, tmp_path):
    """A stream of 60 MB is sorted within 4 MB at a time; stopping early cleans up as well."""
    monkeypatch.setattr(shuffled, "MEMORY_BYTES", 4 << 20)
    monkeypatch.setattr(shuffled, "_BUFFER_BYTES", 4 << 20)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def batches():
        for i in range(60):
            yield pa.record_batch(
                {
                    "key": pa.array(range(i * 100, i * 100 + 100)),
                    "x": pa.array([bytes(10_000)] * 100, pa.large_binary()),
                }
            )

    schema = pa.schema([("key", pa.int64()), ("x", pa.large_binary())])
    before = pa.total_allocated_bytes()
    rows = peak = 0
    for batch in read(pa.RecordBatchReader.from_batches(schema, batches()), order="shuffled").batches:
        rows += batch.num_rows
        peak = max(peak, pa.total_allocated_bytes() - before)
    assert rows == 6000
    assert peak < 24 << 20

    source = read(pa.RecordBatchReader.from_batches(schema, batches()), order="shuffled")
    next(source.batches)
    assert list(tmp_path.iterdir())
    source.batches.close()
    assert not list(tmp_path.iterdir())


def test_without_a_key_there_is_nothing_to_hash():
    """The message names the way out."""
    with pytest.raises(ValueError, match="key="):
        read(pa.table({"x": [1]}), order="shuffled")
