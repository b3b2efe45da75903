"""Scans as tensors: every type, values that are the caller's own, nulls, positions."""

from __future__ import annotations

import datetime
import gc
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import lake
from lake.dataset import Dataset
from lake.scan.columns import Columns
from lake.torch import Form, Tensors
from tests.remote import remote_lake

ROWS = 300


def columns() -> dict[str, Any]:
    """A column of each kind that the table in `lake.torch.tensors` names."""
    rng = np.random.default_rng(0)
    ints = {
        f"{kind}{bits}": np.arange(ROWS).astype(f"{kind}{bits}")
        for kind in "iu"
        for bits in ("1", "2", "4", "8")
    }
    day = datetime.date(2026, 1, 1)
    tensors = pa.ExtensionArray.from_storage(
        pa.fixed_shape_tensor(pa.float32(), (2, 3)),
        pa.FixedSizeListArray.from_arrays(pa.array(np.arange(ROWS * 6, dtype=np.float32)), 6),
    )
    return {
        "n": np.arange(ROWS),
        **ints,
        **{f"f{bits}": rng.standard_normal(ROWS).astype(f"f{bits}") for bits in "248"},
        "flag": np.arange(ROWS) % 3 == 0,
        "day": pa.array([day + datetime.timedelta(n) for n in range(ROWS)]),
        "at": pa.array(np.arange(ROWS, dtype="i8"), pa.timestamp("us", "UTC")),
        "clock": pa.array(np.arange(ROWS, dtype="i4"), pa.time32("s")),
        "span": pa.array(np.arange(ROWS, dtype="i8"), pa.duration("ms")),
        "x": pa.FixedSizeListArray.from_arrays(pa.array(np.arange(ROWS * 4, dtype=np.float32)), 4),
        "grid": pa.FixedSizeListArray.from_arrays(
            pa.FixedSizeListArray.from_arrays(pa.array(np.arange(ROWS * 6, dtype=np.int16)), 3), 2
        ),
        "image": tensors,
        "class": pa.array([f"c{n % 5}" for n in range(ROWS)]).dictionary_encode(),
        "ragged": pa.array([list(range(n % 4)) for n in range(ROWS)], pa.list_(pa.int32())),
        "text": pa.array(["é" * (n % 3) for n in range(ROWS)]),
        "blob": pa.array([bytes([n % 256]) * (n % 4) for n in range(ROWS)]),
        "money": pa.array(range(ROWS), pa.decimal128(10, 2)),
        "mac": pa.array([bytes([n % 256] * 6) for n in range(ROWS)], pa.binary(6)),
        "point": pa.array([{"u": n, "v": -n} for n in range(ROWS)]),
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tensors") / "lake"
    lk = lake.open(folder)
    lk.commit("rows", pa.table(columns()), shard_bytes="16KiB")
    nulls = {
        "key": [f"k{n}" for n in range(50)],
        "a": pa.array([None if n == 7 else n for n in range(50)], pa.float32()),
        "x": pa.array([None if n == 9 else [n, n] for n in range(50)], pa.list_(pa.int64(), 2)),
        "y": pa.array([[n, None if n == 3 else n] for n in range(50)], pa.list_(pa.int64(), 2)),
        "c": pa.array([None if n % 10 == 0 else "v" for n in range(50)]).dictionary_encode(),
        "t": [None if n == 5 else "t" for n in range(50)],
        "b": [None if n == 6 else True for n in range(50)],
    }
    lk.commit("nulls", pa.table(nulls), key="key")
    return folder


@pytest.fixture
def ds(folder: Path) -> Dataset:
    return lake.open(folder).dataset("rows")


def whole(stream: Any) -> dict[str, list[Any]]:
    """All batches, column by column."""
    found: dict[str, list[Any]] = {}
    for batch in stream:
        for name, values in batch.items():
            found.setdefault(name, []).append(values)
    return found


DTYPES = {
    **{f"i{bits}": getattr(torch, f"int{bits * 8}") for bits in (1, 2, 4, 8)},
    **{f"u{bits}": getattr(torch, f"uint{bits * 8}") for bits in (1, 2, 4, 8)},
    "f2": torch.float16, "f4": torch.float32, "f8": torch.float64, "flag": torch.bool, "day": torch.int32,
    "at": torch.int64, "clock": torch.int32, "span": torch.int64, "x": torch.float32, "grid": torch.int16,
    "image": torch.float32, "class": torch.int64,
}  # fmt: skip
SHAPES = {"x": (4,), "grid": (2, 3), "image": (2, 3)}


@pytest.mark.parametrize("shuffle", [False, True])
def test_every_type_becomes_what_the_table_says(ds: Dataset, shuffle: bool) -> None:
    """Dtypes, shapes and values, batch by batch, over shard borders."""
    table, source = ds.scan().to_table(), columns()
    for batch in ds.scan(shuffle=shuffle, batch_size=70).to_torch():
        rows = batch["n"].numpy()
        for name, dtype in DTYPES.items():
            values = batch[name]
            assert values.dtype == dtype, name
            assert values.shape == (len(rows), *SHAPES.get(name, ())), name
            expected = source[name]
            if name == "class":
                expected = np.array([ds.vocab("class").index(v) for v in table["class"].to_pylist()])
            elif name in ("day", "clock"):
                expected = np.asarray(expected.cast(pa.int32()))
            elif name in ("at", "span"):
                expected = np.asarray(expected.cast(pa.int64()))
            elif name in SHAPES:
                kind = np.float32 if dtype == torch.float32 else np.int16
                expected = np.arange(ROWS * values[0].numel()).astype(kind).reshape(ROWS, *SHAPES[name])
            assert np.array_equal(values.numpy(), np.asarray(expected)[rows]), name
        assert batch["text"] == ["é" * (n % 3) for n in rows]
        assert batch["blob"] == [bytes([n % 256]) * (n % 4) for n in rows]
        assert [part.tolist() for part in batch["ragged"].unbind()] == [list(range(n % 4)) for n in rows]
        for name in ("money", "mac", "point"):
            assert isinstance(batch[name], pa.Array)
            assert batch[name].to_pylist() == table[name].take(pa.array(rows)).to_pylist()


def test_ragged_and_binary_columns_in_their_other_forms(ds: Dataset) -> None:
    """Values with offsets, and padded with lengths."""
    asked = ds.scan(["ragged", "text", "blob", "n"], batch_size=64)
    for batch in asked.to_torch(ragged="values", binary="values"):
        rows = batch["n"].tolist()
        values, offsets = batch["ragged"]
        pieces = [values[a:b].tolist() for a, b in pairwise(offsets.tolist())]
        assert pieces == [list(range(n % 4)) for n in rows]
        octets, offsets = batch["text"]
        assert octets.dtype == torch.uint8
        assert bytes(octets[offsets[1] : offsets[3]].tolist()).decode() == "é" * (rows[1] % 3 + rows[2] % 3)
        assert int(batch["blob"][1][-1]) == sum(n % 4 for n in rows)
    for batch in asked.to_torch(ragged="pad"):
        rows = batch["n"].tolist()
        assert batch["ragged"].shape == (len(rows), max(n % 4 for n in rows))
        assert batch["ragged_length"].tolist() == [n % 4 for n in rows]
        assert batch["ragged"][3].tolist() == (list(range(rows[3] % 4)) + [0] * 3)[: batch["ragged"].shape[1]]


# --- whose memory -----------------------------------------------------------------------------


@pytest.mark.parametrize("shuffle", [False, True, "full"])
def test_batches_that_are_kept_are_never_overwritten(ds: Dataset, shuffle: Any) -> None:
    """Nor are views of them: buffers are used again only when nothing refers to them."""
    names = ["n", "x", "i4", "flag", "class", "image"]
    stream = ds.scan(names, shuffle=shuffle, batch_size=16).to_torch()
    kept = [{name: values[1:3] for name, values in batch.items()} for batch in stream]
    again = list(ds.scan(names, shuffle=shuffle, batch_size=16).to_torch())

    for few, batch in zip(kept, again, strict=True):
        for name in names:
            assert torch.equal(few[name], batch[name][1:3])


def test_buffers_are_used_again(ds: Dataset) -> None:
    """A loop that keeps nothing sees few different places, in one epoch and the next."""
    stream = ds.scan(["x"], batch_size=4).to_torch()
    places = {batch["x"].data_ptr() // 2**10 for _ in range(8) for batch in stream}

    assert len(places) < len(stream)


@pytest.mark.parametrize("shuffle", [False, True])
def test_writing_to_a_batch_changes_nothing_else(folder: Path, tmp_path: Path, shuffle: bool) -> None:
    """Not the lake's files, not the cache, not the next epoch."""
    names = ["n", "x", "i8", "flag", "class", "image", "day", "ragged"]
    here = lake.open(folder).dataset("rows")
    there = remote_lake(folder, tmp_path / "cache").dataset("rows")
    for ds in (here, there):
        scan = ds.scan(names, shuffle=shuffle, batch_size=32)
        for batch in scan.to_torch(ragged="values"):
            for values in batch.values():
                for tensor in values if isinstance(values, tuple) else (values,):
                    tensor.zero_()
        expected = {name: columns()[name] for name in ("n", "i8")}
        table = ds.scan(names).to_table()
        assert np.array_equal(table["n"], expected["n"])
        assert np.array_equal(table["i8"], expected["i8"])
        assert ds.scan(names).to_table().equals(here.scan(names).to_table())


def test_without_copy_tensors_are_views(ds: Dataset) -> None:
    """What is asked for with `copy=False` has the same values."""
    names = ["n", "x", "f8", "class", "image", "at"]
    for one, other in zip(
        ds.scan(names, batch_size=64).to_torch(copy=False),
        ds.scan(names, batch_size=64).to_torch(),
        strict=True,
    ):
        for name in names:
            assert torch.equal(one[name], other[name])
            assert one[name].dtype == other[name].dtype


def test_memory_is_given_back(ds: Dataset) -> None:
    """After an epoch that kept nothing, Arrow holds what it held before."""
    stream = ds.scan(["n", "x", "text"], shuffle=True, batch_size=16).to_torch()
    for _ in stream:
        pass
    gc.collect()
    before = pa.total_allocated_bytes()
    for _ in range(3):
        for _ in stream:
            pass
    gc.collect()
    assert pa.total_allocated_bytes() <= before + 2**16


# --- nulls ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("column", "said"),
    [("a", r"column 'a' has 1 nulls, first at key 'k7'.*nulls=\{'a': 0\}.*a is not null"), ("x", "'x' has 1 nulls"),
     ("y", "'y' has 1 nulls"), ("c", "'c' has 5 nulls"), ("b", "'b' has 1 nulls")],
)  # fmt: skip
def test_a_null_is_an_error_that_names_it(folder: Path, column: str, said: str) -> None:
    """Which column, how many, which row first, and both ways out."""
    ds = lake.open(folder).dataset("nulls")

    with pytest.raises(lake.SchemaError, match=said):
        list(ds.scan(["key", column]).to_torch())
    assert len(list(ds.scan(["t"]).to_torch())) == 1


def test_nulls_are_filled_on_request(folder: Path) -> None:
    """With the value given for the column, in every element of a list."""
    ds = lake.open(folder).dataset("nulls")

    [batch] = ds.scan(["a", "x", "c", "t", "b"]).to_torch(nulls={"a": -1, "x": 5, "c": -100, "b": False})

    assert batch["a"][7] == -1
    assert batch["x"][9].tolist() == [5, 5]
    assert batch["c"][0] == -100
    assert batch["c"][1] == 0
    assert not batch["b"][6]
    assert batch["t"][5] is None
    with pytest.raises(lake.SchemaError, match="inside"):
        list(ds.scan(["y"]).to_torch(nulls={"y": 0}))
    with pytest.raises(lake.SchemaError, match="cannot have 'no'"):
        list(ds.scan(["a"]).to_torch(nulls={"a": "no"}))


def test_keywords_that_mean_nothing_are_refused(ds: Dataset) -> None:
    """At the call."""
    for wrong in ({"ragged": "dense"}, {"binary": "text"}, {"nulls": 0}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            ds.scan().to_torch(**wrong)  # type: ignore[arg-type]


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_slices_of_arrays_become_the_same_tensors(data: st.DataObject) -> None:
    """Offsets into Arrow's buffers are respected, in all forms."""
    size = data.draw(st.integers(0, 12))
    whole_ = pa.record_batch(
        {
            "f": pa.array(np.arange(size, dtype=np.float32)),
            "b": pa.array(np.arange(size) % 2 == 0, pa.bool_()),
            "l": pa.array([list(range(n % 3)) for n in range(size)], pa.large_list(pa.int16())),
            "x": pa.FixedSizeListArray.from_arrays(pa.array(np.arange(size * 2)), 2),
            "s": pa.array(["ab"[: n % 3] for n in range(size)], pa.large_string()),
        }
    )
    start = data.draw(st.integers(0, size))
    batch = whole_.slice(start, data.draw(st.integers(0, size - start)))
    form = Form(ragged="values", binary="values", copy=data.draw(st.booleans()))

    found = Tensors(form)(Columns.of(batch))

    assert found["f"].tolist() == batch["f"].to_pylist()
    assert found["b"].tolist() == batch["b"].to_pylist()
    assert found["x"].tolist() == batch["x"].to_pylist()
    values, offsets = found["l"]
    ends = offsets.tolist()
    assert [values[a:b].tolist() for a, b in pairwise(ends)] == batch["l"].to_pylist()
    octets, offsets = found["s"]
    ends = offsets.tolist()
    assert [bytes(octets[a:b].tolist()).decode() for a, b in pairwise(ends)] == batch["s"].to_pylist()


# --- positions, devices -----------------------------------------------------------------------


def test_the_stream_owns_the_position(ds: Dataset) -> None:
    """It resumes exactly; the scan inside says whom to ask, until the stream is gone."""
    scan = ds.scan(["n"], shuffle=True, batch_size=50)
    stream = scan.to_torch()
    batches = iter(stream)
    seen = next(batches)["n"].tolist()
    state = stream.state_dict()

    for name, ask in (
        ("state_dict", scan.state_dict),
        ("load_state_dict", lambda: scan.load_state_dict(state)),
    ):
        with pytest.raises(RuntimeError, match=rf"scan\.to_torch\(\): call {name}\(\)"):
            ask()

    rest = [n for batch in batches for n in batch["n"].tolist()]
    resumed = ds.scan(["n"], shuffle=True, batch_size=50).to_torch()
    resumed.load_state_dict(state)
    assert [n for batch in resumed for n in batch["n"].tolist()] == rest
    assert sorted(seen + rest) == list(range(ROWS))
    del stream, batches
    gc.collect()
    assert scan.state_dict()["rows"] == ROWS


def test_a_batch_that_was_not_handed_out_is_not_counted(folder: Path) -> None:
    """A null that stops the stream leaves the position before its batch, and the error comes again."""
    stream = lake.open(folder).dataset("nulls").scan(["a"], batch_size=5).to_torch()
    batches = iter(stream)
    next(batches)
    for _ in range(2):
        with pytest.raises(lake.SchemaError, match="nulls"):
            next(batches)
    assert stream.state_dict()["rows"] == 5


def test_epochs_and_lengths_are_the_scans(ds: Dataset) -> None:
    """Each iteration is the next epoch; a map runs before the tensors are made."""
    stream = ds.scan(["n"], shuffle=True, batch_size=64).to_torch()
    first, second = ([n for b in stream for n in b["n"].tolist()] for _ in range(2))
    stream.set_epoch(0)
    assert [n for b in stream for n in b["n"].tolist()] == first != second
    assert len(stream) == len(list(stream)) == 5
    assert stream.rows == ROWS
    assert stream.metrics()["rows"] == 4 * ROWS

    mapped = ds.scan(["n", "x"]).map(lambda b: {"y": b["x"] * 2, "n": b["n"]}, format="numpy").to_torch()
    batch = next(iter(mapped))
    assert batch["y"].shape == (ROWS, 4)
    assert torch.equal(batch["y"][1], torch.tensor([8.0, 10, 12, 14]))


def test_a_device_gets_what_becomes_tensors(ds: Dataset) -> None:
    """The path that a GPU takes runs on a machine without one."""
    [batch] = ds.scan(["n", "x", "text", "ragged"]).to_torch("cpu", ragged="values")

    assert batch["x"].device == torch.device("cpu")
    assert batch["ragged"][0].device == torch.device("cpu")
    assert batch["text"][4] == "é"
