"""Rows as samples: their values, their order, what is read for them."""

from __future__ import annotations

import datetime
import pickle
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lake
from lake.dataset import Dataset
from lake.pipeline import Pipeline
from lake.samples.source import BATCH_ROWS, OPEN_ROWS
from lake.samples.values import values
from tests.contracts.stage import items, plain, resumed
from tests.pipeline.conftest import ROWS, table
from tests.remote import remote_lake


def numbers(pipeline: Pipeline) -> list[int]:
    return [sample["n"] for _, sample in pipeline]


def test_a_sample_is_a_key_and_its_fields(ds: Dataset) -> None:
    """Values as Python and NumPy have them; the key is no field; dictionary columns give codes."""
    samples = list(ds.samples())
    assert [key for key, _ in samples] == table()["key"].to_pylist()
    key, fields = samples[8]
    assert key == "row-008"
    assert plain(fields) == {
        "n": 8,
        "words": "text 8 é",
        "blob": table()["blob"][8].as_py(),
        "tokens": ["array", "<i8", [0]],
        "class": ds.vocab("class").index("c2"),
    }
    assert samples[5][1]["words"] is None
    assert len(ds.samples()) == ROWS


def test_columns_and_conditions_choose(ds: Dataset) -> None:
    """The key comes along unasked and is not repeated; len counts the rows that meet the condition."""
    assert list(ds.samples(columns=["n", "key"], where="n < 2")) == [
        ("row-000", {"n": 0}),
        ("row-001", {"n": 1}),
    ]
    assert len(ds.samples(where="n % 7 = 0")) == len(range(0, ROWS, 7))
    assert list(ds.samples(columns=[], where="n = 4")) == [("row-004", {})]
    with pytest.raises(ValueError, match="no column 'm'"):
        ds.samples(columns=["m"])
    with pytest.raises(ValueError, match="m"):
        ds.samples(where="m = 3")
    with pytest.raises(TypeError, match="list of names"):
        ds.samples(columns="n")
    with pytest.raises(ValueError, match="at least 1"):
        ds.samples(prefetch=0)


def test_without_a_key_the_rows_number_stands_for_it(tmp_path: Path) -> None:
    """Whatever the order and condition, it is the row's place in the version."""
    lk = lake.open(tmp_path, progress=False)
    lk.commit(
        "plain", pa.table({"x": np.arange(500), "pad": ["p" * 200] * 500}), key=None, shard_bytes="16KiB"
    )
    ds = lk.dataset("plain")
    for pipeline in (
        ds.samples(columns=["x"]),
        ds.samples(columns=["x"]).shuffle(seed=1),
        ds.samples(columns=["x"], where="x % 3 = 1").shuffle(seed=1, full=True),
    ):
        found = list(pipeline)
        assert found
        assert all(key == fields["x"] for key, fields in found)
    with pytest.raises(ValueError, match="no key"):
        list(ds.samples(columns=[]))


def test_arrays_are_the_callers_own(ds: Dataset) -> None:
    """They may be written to; neither their neighbours nor a second reading change."""
    first = [fields["tokens"] for _, fields in ds.samples(columns=["tokens"])]
    for array in first:
        array += 100
    second = [fields["tokens"] for _, fields in ds.samples(columns=["tokens"])]
    assert [array.tolist() for array in second] == [list(range(n % 7)) for n in range(ROWS)]
    assert [array.tolist() for array in first] == [list(range(100, 100 + n % 7)) for n in range(ROWS)]


def tensor(shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


TYPES: list[tuple[pa.Array, list[Any]]] = [
    (pa.array([1, None, 3], pa.uint8()), [1, None, 3]),
    (pa.array([True, None, False]), [True, None, False]),
    (pa.array([1.5, None]), [1.5, None]),
    (pa.array([b"", None, b"\x00\xff"], pa.large_binary()), [b"", None, b"\x00\xff"]),
    (pa.array(["é", None, ""], pa.large_string()), ["é", None, ""]),
    (pa.array(["b", None, "a"]).dictionary_encode(), [0, None, 1]),
    (
        pa.array([[1, 2], None, []], pa.list_(pa.int16())),
        [np.array([1, 2], np.int16), None, np.array([], np.int16)],
    ),
    (pa.array([[1, None], [3]], pa.large_list(pa.int32())), [[1, None], np.array([3], np.int32)]),
    (pa.array([["a"], None, []], pa.list_(pa.string())), [["a"], None, []]),
    (
        pa.array([[1, 2], None, [3, 4]], pa.list_(pa.float64(), 2)),
        [np.array([1.0, 2]), None, np.array([3.0, 4])],
    ),
    (pa.array([[1, None], [3, 4]], pa.list_(pa.int8(), 2)), [[1, None], np.array([3, 4], np.int8)]),
    (
        pa.array([[[1, 2]], [[3, 4]]], pa.list_(pa.list_(pa.int8(), 2), 1)),
        [np.array([[1, 2]], np.int8), np.array([[3, 4]], np.int8)],
    ),
    (
        pa.FixedShapeTensorArray.from_numpy_ndarray(np.stack([tensor((2, 3)), tensor((2, 3)) + 1])),
        [tensor((2, 3)), tensor((2, 3)) + 1],
    ),
    (pa.array([{"a": 1, "b": [None]}, None]), [{"a": 1, "b": [None]}, None]),
    (pa.array([datetime.date(2026, 1, 2)]), [datetime.date(2026, 1, 2)]),
    (pa.array([None, None]), [None, None]),
]


@pytest.mark.parametrize(("array", "wanted"), TYPES, ids=lambda value: str(getattr(value, "type", "")))
def test_each_type_has_its_python_form(array: pa.Array, wanted: list[Any]) -> None:
    """Sliced or not; nulls are None."""
    padded = pa.concat_arrays([array, array, array])
    for found in (array, padded.slice(len(array), len(array))):
        assert plain(values(found, pa.field("x", array.type))) == plain(wanted)


ragged = st.lists(st.none() | st.lists(st.none() | st.integers(-9, 9), max_size=4), max_size=8)


@settings(max_examples=60, deadline=None)
@given(ragged, st.integers(0, 3))
def test_lists_of_numbers_are_arrays_unless_a_null_is_in_them(rows: list[Any], start: int) -> None:
    """Any mixture of nulls, empty lists and nulls inside, from any place."""
    found = values(pa.array(rows, pa.list_(pa.int64())).slice(start), pa.field("x", pa.list_(pa.int64())))
    wanted = [row if row is None or None in row else ["array", "<i8", row] for row in rows[start:]]
    assert plain(found) == wanted


def test_tensors_of_several_shapes_come_back_in_shape(tmp_path: Path) -> None:
    """What was committed as arrays is read as such."""
    lk = lake.open(tmp_path, progress=False)
    shapes = [(2, 3), (1, 4), (0, 2)]
    lk.commit("t", [(f"k{n}", {"x": tensor(shape), "y": tensor((2, 2))}) for n, shape in enumerate(shapes)])
    for (_, fields), shape in zip(lk.dataset("t").samples(), shapes, strict=True):
        assert np.array_equal(fields["x"], tensor(shape))
        assert fields["x"].shape == shape
        assert np.array_equal(fields["y"], tensor((2, 2)))
        fields["x"] += 1


def test_a_shuffle_over_samples_is_the_plans(ds: Dataset) -> None:
    """Also below stages that look at one item at a time: the same order, and still countable."""
    direct = ds.samples(columns=["n"]).shuffle(seed=5)
    order = numbers(direct)
    assert sorted(order) == list(range(ROWS))
    assert order != list(range(ROWS))
    scanned = ds.scan(columns=["n"], shuffle=True, seed=5).to_table()["n"].to_pylist()
    assert order == scanned
    mapped = (
        ds.samples(columns=["n"]).map(lambda s: s[1]["n"]).maybe(lambda n: n, 0.5, seed=0).shuffle(seed=5)
    )
    assert list(mapped) == order
    assert len(mapped) == ROWS
    kept = ds.samples(columns=["n"]).filter(lambda s: s[1]["n"] % 2).shuffle(seed=5)
    assert numbers(kept) == [n for n in order if n % 2]


def test_a_full_shuffle_is_uniform_and_goes_over_samples_only(ds: Dataset) -> None:
    """It is the plan's full permutation."""
    full = numbers(ds.samples(columns=["n"]).shuffle(seed=5, full=True))
    assert full == ds.scan(columns=["n"], shuffle="full", seed=5).to_table()["n"].to_pylist()
    with pytest.raises(ValueError, match=r"directly over ds.samples\(\)"):
        ds.samples().map(len).shuffle(full=True)


def test_shuffling_one_branch_leaves_the_other_as_it_is(ds: Dataset) -> None:
    """A pipeline that is used twice is two streams."""
    base = ds.samples(columns=["n"])
    for pipes in ([base.shuffle(seed=1), base], [base, base.shuffle(seed=1)]):
        both = numbers(lake.concat(pipes))
        halves = {tuple(both[:ROWS]), tuple(both[ROWS:])}
        assert tuple(range(ROWS)) in halves
        assert len(halves) == 2


def test_samples_at_hand_end_with_their_iteration(ds: Dataset) -> None:
    """Made or not, none is handed out by an iterator that another one followed, and none is lost by that."""
    pipeline, whole = ds.samples(columns=["n"], prefetch=512), list(ds.samples(columns=["n"]))
    first = iter(pipeline)
    assert [next(first) for _ in range(7)] == whole[:7]
    state = pipeline.state_dict()
    second = iter(pipeline)
    assert list(first) == []
    assert list(second) == whole
    pipeline.load_state_dict(state)
    assert list(pipeline) == whole[7:]


def test_more_rows_are_read_together_where_nothing_is_fetched(tmp_path: Path) -> None:
    """In the lake's folder; through a cache fewer are, and `prefetch` has its say in both."""
    lk = lake.open(tmp_path / "lake", progress=False)
    lk.commit("rows", pa.table({"n": np.arange(OPEN_ROWS + 1)}))
    cached = remote_lake(tmp_path / "lake", tmp_path / "cache").dataset("rows")
    cache = cached.snapshot.cache
    assert cache is not None
    with cache:
        for found, together in ((lk.dataset("rows"), OPEN_ROWS), (cached, BATCH_ROWS)):
            for samples, rows in ((found.samples(), together), (found.samples(prefetch=800), 100)):
                assert numbers(samples) == list(range(OPEN_ROWS + 1))
                assert samples.metrics()["batches"] == OPEN_ROWS // rows + 1


def test_samples_that_are_at_hand_need_no_thread(tmp_path: Path) -> None:
    """Threads read and verify ahead in a folder that is new to this process, and nobody's after that."""
    lk = lake.open(tmp_path, progress=False)
    lk.commit("rows", table(), shard_bytes="16KiB")
    pipeline = lk.dataset("rows").samples()

    def hired() -> int:
        before = set(threading.enumerate())
        stream = iter(pipeline)
        next(stream)
        found = [thread for thread in set(threading.enumerate()) - before if thread.name == "lake-scan"]
        assert sum(1 for _ in stream) == ROWS - 1
        return len(found)

    assert [hired() > 0, hired()] == [True, 0]


@pytest.mark.parametrize("shuffled", [False, True])
def test_damage_is_met_at_its_place(tmp_path: Path, *, shuffled: bool) -> None:
    """Samples before it are handed out; it is raised again and again; mended, the position goes on from there."""
    lk = lake.open(tmp_path, progress=False)
    lk.commit("rows", table(), shard_bytes="16KiB")
    ds, whole = lk.dataset("rows"), [key for key, _ in lk.dataset("rows").samples()]
    [*_, hurt] = ds.snapshot.shard(2).parts
    part = tmp_path / "shards" / hurt.digest[:2] / f"{hurt.digest}.arrow"
    good = part.read_bytes()
    part.chmod(0o644)
    part.write_bytes(bytes(octet ^ 0x55 for octet in good))

    def made() -> Pipeline:
        samples = lake.open(tmp_path, progress=False).dataset("rows").samples()
        return samples.shuffle(seed=1) if shuffled else samples

    pipeline, seen = made(), list[Any]()
    stream = iter(pipeline)
    with pytest.raises(lake.IntegrityError) as caught:
        seen.extend(key for key, _ in stream)
    with pytest.raises(lake.IntegrityError) as again:
        next(stream)
    assert again.value is caught.value
    part.write_bytes(good)
    rest = [key for key, _ in resumed(made, pipeline.state_dict())]
    assert [*seen, *rest] == [key for key, _ in made()]
    assert sorted([*seen, *rest]) == whole


def test_a_batch_tells_which_sample_failed(ds: Dataset) -> None:
    """Functions are called for many at once, and counted one by one."""
    pipeline = ds.samples(columns=["n"]).map(lambda sample: 1 / (sample[1]["n"] - 13)).batch(8)
    stream = iter(pipeline)
    next(stream)
    with pytest.raises(ZeroDivisionError) as caught:
        next(stream)
    assert caught.value.__notes__ == ["in map(<lambda>), sample 'row-013'"]
    [stage] = pipeline.metrics()["stages"].values()
    assert stage["items"] == 13
    with pytest.raises(RuntimeError, match=r"StopIteration in map.*'row-000'"):
        list(ds.samples().map(lambda sample: next(iter(()))).batch(8))


def test_epochs_of_samples(ds: Dataset) -> None:
    """Each iter is the next epoch, `set_epoch` chooses it, and it is the scan's."""
    shuffled = ds.samples(columns=["n"]).shuffle(seed=1)
    first, second = numbers(shuffled), numbers(shuffled)
    assert first != second
    shuffled.set_epoch(0)
    assert numbers(shuffled) == first
    assert second == ds.scan(columns=["n"], shuffle=True, seed=1, epoch=1).to_table()["n"].to_pylist()


def test_a_headline_pattern_is_exact(ds: Dataset) -> None:
    """shuffle, repeat: every row exactly n times, passes in different orders."""
    found = numbers(ds.samples(columns=["n"]).shuffle(seed=0).repeat(3))
    passes = [found[start : start + ROWS] for start in range(0, 3 * ROWS, ROWS)]
    assert [sorted(each) for each in passes] == [list(range(ROWS))] * 3
    assert len({tuple(each) for each in passes}) == 3


def test_checking_and_naming_read_nothing(ds: Dataset) -> None:
    """`check` adds the sources up before any read; `source_versions` names them."""
    pipeline = lake.zip(ds.samples().shuffle(seed=1), ds.samples(columns=["n"])).batch(8)
    plan = pipeline.check()
    assert (plan.items, plan.rows, len(plan.sources)) == (8, 2 * ROWS, 2)
    assert plan.shards == 2 * ds.snapshot.document.shards
    assert plan.fetch_bytes > 0
    assert "samples(rows)" in str(plan)
    assert pipeline.source_versions() == {"rows": ds.version}
    assert "rows" not in pipeline.metrics()


def test_versions_of_one_dataset_are_told_apart(tmp_path: Path) -> None:
    """Two versions of a name in one pipeline."""
    lk = lake.open(tmp_path, progress=False)
    lk.commit("d", pa.table({"key": ["a"]}))
    lk.commit("d", pa.table({"key": ["b"]}))
    old, new = lk.dataset("d@#1"), lk.dataset("d@#2")
    both = lake.concat([old.samples(), new.samples()])
    assert both.source_versions() == {"d@#1": old.version, "d@#2": new.version}


def test_metrics_count_rows_stages_and_what_was_skipped(ds: Dataset) -> None:
    """Over all iterations, whatever passes a repeat made."""
    pipeline = ds.samples(columns=["n"]).map(lambda s: 1 // (s[1]["n"] % 30), on_error="skip").repeat(2)
    found = list(pipeline)
    metrics = pipeline.metrics()
    assert metrics["rows"] == 2 * ROWS
    [stage] = metrics["stages"].values()
    assert (stage["items"], stage["skipped"]) == (len(found), 4)
    assert stage["skipped_keys"] == ["row-000", "row-030"] * 2
    assert stage["seconds"] > 0


def test_a_pipeline_travels_with_its_functions_and_its_place(ds: Dataset) -> None:
    """Pickled in the middle, lambdas included, it goes on elsewhere."""
    pipeline = ds.samples(columns=["n"]).shuffle(seed=2).map(lambda s: s[1]["n"])
    whole = items(pipeline)
    pipeline.set_epoch(0)
    seen = items(pipeline, 17)
    copy = pickle.loads(pickle.dumps(pipeline))
    assert seen + items(copy) == whole
    assert items(copy) == items(pipeline)


def test_decode_and_to_tuple(ds: Dataset) -> None:
    """Fields by codec or function; nulls stay; other fields too."""
    pipeline = ds.samples(columns=["n", "words"]).decode(words=str.upper, n=lambda n: n + 0.5)
    assert list(pipeline.to_tuple("words", "n").take(2)) == [(None, 0.5), ("TEXT 1 É", 1.5)]
    with pytest.raises(ValueError, match="no field 'x' in the sample; there are n, words"):
        list(pipeline.to_tuple("x"))
    with pytest.raises(ValueError, match="no field 'x'"):
        list(ds.samples(columns=["n"]).decode(x="text"))


def test_a_pipeline_is_data_for_a_commit(ds: Dataset, tmp_path: Path) -> None:
    """Samples in, samples out."""
    lk = lake.open(tmp_path, progress=False)
    lk.commit("evens", ds.samples(columns=["n"]).filter(lambda s: s[1]["n"] % 2 == 0))
    assert numbers(lk.dataset("evens").samples()) == list(range(0, ROWS, 2))
