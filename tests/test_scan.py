"""Scans of small lakes: each row once, in the plan's order, on any ranks; positions; conditions; what is refused."""

from __future__ import annotations

import json
import logging
import multiprocessing
import pickle
import threading
import time
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lake
from lake.dataset import Dataset
from lake.plan import Ranks
from lake.scan import Scan

ROWS = 600


def table(rows: int = ROWS) -> pa.Table:
    """Rows of every kind of column: fixed, ragged, null, codes; `x` is heavy, so shards have two parts."""
    rng = np.random.default_rng(0)
    return pa.table(
        {
            "key": [f"row-{n:05d}" for n in range(rows)],
            "n": np.arange(rows),
            "x": pa.FixedSizeListArray.from_arrays(
                pa.array(rng.integers(0, 255, rows * 2048, np.uint8)), 2048
            ),
            "flag": pa.array(rng.random(rows) < 0.5),
            "maybe": pa.array([None if n % 7 == 3 else n / 2 for n in range(rows)]),
            "class": pa.array([f"c{n * 5 // rows}" for n in range(rows)]).dictionary_encode(),
            "tags": [["a"] * (n % 4) for n in range(rows)],
        }
    )


@pytest.fixture(scope="module")
def ds(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """A dataset of several shards, of two record batches each where `x` is read and of one where not."""
    lk = lake.open(tmp_path_factory.mktemp("scan") / "lake")
    lk.commit("rows", table(), shard_bytes="320KiB")
    found = lk.dataset("rows")
    assert found.snapshot.document.shards >= 4
    assert len(found.snapshot.manifest.shard(0).parts) == 2
    return found


CONDITIONS = {
    None: lambda n: np.ones_like(n, bool),
    "n % 3 = 0": lambda n: n % 3 == 0,
    "n < 300": lambda n: n < 300,
    "n between 100 and 130 or key = 'row-00500'": lambda n: ((n >= 100) & (n <= 130)) | (n == 500),
    "maybe is null and class <> 'c1'": lambda n: (n % 7 == 3) & (n * 5 // ROWS != 1),
    "n > 5000": lambda n: n > 5000,
}

options = st.fixed_dictionaries(
    {
        "columns": st.sampled_from([["n"], ["n", "x"], ["tags", "n", "class"], None]),
        "where": st.sampled_from(list(CONDITIONS)),
        "batch_size": st.sampled_from([1, 7, 50, 64, 200, 400]),
        "shuffle": st.sampled_from([False, True, "full"]),
        "seed": st.integers(0, 3),
        "shuffle_window": st.integers(1, 6),
        "limit": st.none() | st.integers(0, ROWS),
        "partitions": st.integers(1, 4),
    }
)

modest = settings(max_examples=25, deadline=None)


def numbers(scan: Any) -> list[int]:
    return [n for batch in scan for n in batch["n"].to_pylist()]


def planned(scan: Scan, epoch: int = 0) -> list[int]:
    """The rows of an epoch as the plan alone has them."""
    plan, starts = scan._planned(epoch), scan.snapshot.manifest.starts
    found: list[int] = []
    for number in range(len(plan)):
        for block, start, stop in plan.slices(number):
            shards, rows = plan.order.block_rows(block)
            found += (starts[shards] + rows)[start:stop].tolist()
    return found


# --- exactness --------------------------------------------------------------------------------


@modest
@given(options, st.integers(0, 2))
def test_a_scan_gives_each_wanted_row_once_in_the_order_of_its_plan(
    ds: Dataset, asked: dict[str, Any], epoch: int
) -> None:
    """What comes out is what the plan says, whatever is loaded together and by whom."""
    scan = ds.scan(**asked, epoch=epoch)

    found = numbers(scan)

    assert found == planned(scan, epoch)
    wanted = np.flatnonzero(CONDITIONS[asked["where"]](np.arange(ROWS)))
    if asked["limit"] is None:
        assert sorted(found) == wanted.tolist()
    else:
        assert len(set(found)) == len(found) == min(asked["limit"], len(wanted))
        assert set(found) <= set(wanted.tolist())


@modest
@given(options)
def test_rows_stay_whole(ds: Dataset, asked: dict[str, Any]) -> None:
    """Every column of a row comes from that row, of both parts of a shard, in the order of the columns asked for."""
    whole = table()
    scan = ds.scan(**asked)

    for batch in scan:
        batch.validate(full=True)
        assert batch.schema == scan.schema
        assert batch.equals(rows_of(whole, batch["n"], scan.schema))


def rows_of(whole: pa.Table, n: pa.Array, schema: pa.Schema) -> pa.RecordBatch:
    chosen = whole.select(schema.names).cast(schema).take(n).combine_chunks()
    [batch] = chosen.to_batches()
    return batch


@modest
@given(options, st.integers(1, 5), st.data())
def test_ranks_share_an_epoch(ds: Dataset, asked: dict[str, Any], world: int, data: st.DataObject) -> None:
    """Over all ranks each row comes once, in equally many batches, and the order is that of one reader."""
    alone = ds.scan(**asked)
    nodes = data.draw(st.integers(1, world))
    if alone.rows < world:
        with pytest.raises(ValueError, match="ranks"):
            len(ds.scan(**asked, rank=0, world_size=world))
        return
    ranks = []
    for rank in range(world):
        node = Ranks(rank, world, nodes).node
        scan = ds.scan(**asked, rank=rank, world_size=world, node=node, nodes=nodes)
        ranks.append([batch["n"].to_pylist() for batch in scan])
        assert len(scan) == len(ranks[-1])

    assert len({len(batches) for batches in ranks}) == 1
    assert sorted(n for batches in ranks for batch in batches for n in batch) == sorted(numbers(alone))


@modest
@given(options, st.data())
def test_resuming_gives_the_same_rest(ds: Dataset, asked: dict[str, Any], data: st.DataObject) -> None:
    """Stopping after any batch and resuming, twice even, loses and repeats nothing, with any batch size."""
    whole = numbers(ds.scan(**asked, epoch=1))
    scan = ds.scan(**asked, epoch=1)
    stop = data.draw(st.integers(0, len(scan)))
    batches = iter(scan)
    seen = [n for _ in range(stop) for n in next(batches)["n"].to_pylist()]
    state = json.loads(json.dumps(scan.state_dict()))

    for _ in range(2):
        same = ds.scan(**asked)
        same.load_state_dict(state)
        assert seen + numbers(same) == whole
    other = ds.scan(**{**asked, "batch_size": data.draw(st.integers(1, 400)), "partitions": 1})
    other.load_state_dict(state)
    assert sorted(seen + numbers(other)) == sorted(whole)


@modest
@given(options, st.integers(1, 4), st.integers(1, 4), st.data())
def test_one_ranks_state_serves_any_number_of_ranks(
    ds: Dataset, asked: dict[str, Any], before: int, after: int, data: st.DataObject
) -> None:
    """What some ranks have seen and what others then see is the epoch, each row once."""
    rows = ds.scan(**asked).rows
    if rows < max(before, after):
        return
    scans = [ds.scan(**asked, rank=r, world_size=before) for r in range(before)]
    stop = data.draw(st.integers(0, len(scans[0])))
    iterators = [iter(scan) for scan in scans]
    seen = [n for it in iterators for _ in range(stop) for n in next(it)["n"].to_pylist()]
    states = [scan.state_dict() for scan in scans]
    assert all(state == states[0] for state in states)
    left = rows - len(seen)
    if 0 < left < after:
        return
    rest: list[int] = []
    for r in range(after):
        scan = ds.scan(**asked, rank=r, world_size=after)
        scan.load_state_dict(data.draw(st.sampled_from(states)))
        rest += numbers(scan)

    assert sorted(seen + rest) == sorted(numbers(ds.scan(**asked)))


# --- iterations -------------------------------------------------------------------------------


def test_each_iteration_is_the_next_epoch_and_set_epoch_fixes_it(ds: Dataset) -> None:
    """Finished or abandoned, the next iteration is the next epoch; one that was set is that one."""
    scan = ds.scan(["n"], shuffle=True)
    epochs = [planned(scan, epoch) for epoch in range(6)]

    assert numbers(scan) == epochs[0]
    next(iter(scan))
    assert numbers(scan) == epochs[2]
    scan.set_epoch(5)
    assert numbers(scan) == epochs[5]
    assert len({tuple(epoch) for epoch in epochs}) == 6


def test_a_second_iteration_ends_the_first(ds: Dataset) -> None:
    """A scan is one stream: whoever begins it anew has it."""
    scan = ds.scan(["n"], batch_size=10)
    first = iter(scan)
    next(first)

    second = iter(scan)

    assert next(first, None) is None
    assert next(second)["n"][0].as_py() == 0


def test_the_state_follows_what_was_handed_out(ds: Dataset) -> None:
    """It is never that of what was read ahead; after the last batch it is the epoch's end."""
    scan = ds.scan(["n"], batch_size=100)
    assert scan.state_dict()["rows"] == 0

    rows = [scan.state_dict()["rows"] for _ in scan]

    assert rows == [100 * (i + 1) for i in range(6)]
    ended = ds.scan(["n"], batch_size=100)
    ended.load_state_dict(scan.state_dict())
    assert numbers(ended) == []
    assert len(numbers(ended)) == ROWS
    assert ended.state_dict()["epoch"] == 1


def test_a_loaded_position_holds_for_its_epoch_only(ds: Dataset, caplog: pytest.LogCaptureFixture) -> None:
    """`set_epoch` of the position's epoch keeps it; of another begins that one, and says so."""
    scan = ds.scan(["n"], batch_size=100, epoch=3)
    next(iter(scan))
    state = scan.state_dict()
    kept, given_up = ds.scan(["n"]), ds.scan(["n"])
    for other in (kept, given_up):
        other.load_state_dict(state)
        assert other.state_dict() == state
    kept.set_epoch(3)
    with caplog.at_level(logging.INFO, "lake"):
        given_up.set_epoch(4)

    assert numbers(kept) == list(range(100, ROWS))
    assert "epoch 4" in caplog.text
    assert given_up.state_dict()["epoch"] == 4
    assert len(numbers(given_up)) == ROWS


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"columns": ["n", "flag"]}, "columns"),
        ({"where": "n < 5"}, "where"),
        ({"seed": 1}, "seed was 0, is 1"),
        ({"shuffle": False}, "shuffle was True, is False"),
        ({"shuffle_window": 3}, "shuffle_window"),
        ({"limit": 10}, "limit"),
    ],
)
def test_the_state_of_another_plan_is_refused(ds: Dataset, change: dict[str, Any], said: str) -> None:
    """A position means nothing in another order; the message has both values."""
    asked: dict[str, Any] = {"columns": ["n"], "shuffle": True}

    with pytest.raises(ValueError, match=said):
        ds.scan(**asked | change).load_state_dict(ds.scan(**asked).state_dict())


def test_a_scan_pickles_with_its_position(ds: Dataset) -> None:
    """The copy's next iteration is what the next one here would be."""
    scan = ds.scan(["n"], "n < 500", shuffle=True, batch_size=50)
    epochs = [planned(scan, epoch) for epoch in range(3)]
    next(iter(scan))
    state = scan.state_dict()

    assert numbers(pickle.loads(pickle.dumps(scan))) == epochs[1]
    scan.load_state_dict(state)
    assert numbers(pickle.loads(pickle.dumps(scan))) == epochs[0][50:]
    scan.set_epoch(2)
    assert numbers(pickle.loads(pickle.dumps(scan))) == epochs[2]


def test_pads_are_marked(ds: Dataset) -> None:
    """`even="pad"` fills each batch with repeats, which `_pad` tells from the rest."""
    batches = [
        batch
        for rank in range(4)
        for batch in ds.scan(["n"], batch_size=64, even="pad", rank=rank, world_size=4, shuffle=True)
    ]

    assert {batch.num_rows for batch in batches} == {64}
    kept = [
        n
        for b in batches
        for n, pad in zip(b["n"].to_pylist(), b["_pad"].to_pylist(), strict=True)
        if not pad
    ]
    assert sorted(kept) == list(range(ROWS))


# --- mapping, other forms ---------------------------------------------------------------------


def test_a_map_changes_batches_and_not_rows(ds: Dataset) -> None:
    """The function gets what it asked for, and what it gives are the batches, with the scan's positions."""
    doubled = ds.scan(["n", "key"], batch_size=100).map(lambda d: {"n": d["n"] * 2}, format="numpy")
    texts = ds.scan(["n", "key"]).map(lambda d: {"n": [f"{n}" for n in d["n"]]}, format="python")
    kept = ds.scan(["n", "key"]).map(lambda batch: batch.select(["n"]))

    assert numbers(doubled) == list(range(0, 2 * ROWS, 2))
    assert texts.to_table()["n"].to_pylist() == [f"{n}" for n in range(ROWS)]
    assert kept.schema.names == ["n"]
    assert numbers(kept) == list(range(ROWS))
    assert next(iter(doubled))["n"][0].as_py() == 0
    assert doubled.state_dict()["rows"] == 100


def test_a_map_that_loses_rows_is_refused(ds: Dataset) -> None:
    """Positions count rows: what filters is `where` or a pipeline."""
    with pytest.raises(lake.SchemaError, match=r"made 1 rows of 600.*where="):
        ds.scan(["n"]).map(lambda batch: batch.slice(0, 1)).to_table()
    with pytest.raises(TypeError, match="gave int"):
        ds.scan(["n"]).map(lambda batch: 3).to_table()


def test_a_scan_is_an_arrow_stream(ds: Dataset) -> None:
    """Tables, frames and anything that takes Arrow streams see the same rows."""
    scan = ds.scan(["n", "key"], batch_size=100)

    assert scan.to_table().equals(pa.table(ds.scan(["n", "key"])))
    assert scan.to_polars()["n"].to_list() == list(range(ROWS))
    assert scan.to_pandas()["n"].tolist() == list(range(ROWS))


def test_a_split_is_disjoint_complete_and_the_same_in_every_order(ds: Dataset) -> None:
    """Each row is on one side; groups stay together; the texts are what a person would write."""
    train, val = ds.split(0.9, 0.1)
    assert train == "unit(key, 0) < 0.9"
    parts = [numbers(ds.scan(["n"], where)) for where in (train, val)]
    assert sorted(parts[0] + parts[1]) == list(range(ROWS))
    assert 0.8 * ROWS < len(parts[0]) < ROWS
    assert ds.count(train) == len(parts[0])
    assert sorted(numbers(ds.scan(["n"], train, shuffle=True))) == parts[0]

    thirds = ds.split(1 / 3, 1 / 3, 1 / 3, by="class", seed=7)
    sides = [set(ds.scan(["class"], where).to_table()["class"].to_pylist()) for where in thirds]
    assert sorted(name for side in sides for name in side) == [f"c{i}" for i in range(5)]


def test_a_split_of_nothing_in_particular_is_refused(ds: Dataset, tmp_path: Any) -> None:
    """Without a key or a column, rows have no side; fractions are all of the rows."""
    lk = lake.open(tmp_path)
    lk.commit("keyless", pa.table({"n": [1, 2]}))

    with pytest.raises(ValueError, match="by="):
        lk.dataset("keyless").split(0.5, 0.5)
    with pytest.raises(ValueError, match="add up to 1"):
        ds.split(0.9, 0.2)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"columns": ["nope"]}, "no column 'nope'"),
        ({"columns": []}, "at least one"),
        ({"columns": ["n", "n"]}, "different names"),
        ({"where": "nope > 1"}, "nope"),
        ({"where": "random() < 0.5"}, "unit"),
        ({"batch_size": 0}, "batch_size"),
        ({"shuffle": "yes"}, "shuffle"),
        ({"even": "odd"}, "even"),
        ({"rank": 0}, "world_size"),
        ({"limit": -1}, "limit"),
    ],
)
def test_what_means_nothing_is_refused_at_once(ds: Dataset, asked: dict[str, Any], said: str) -> None:
    """The call that is wrong raises, not the training step an hour later."""
    with pytest.raises(ValueError, match=said):
        len(ds.scan(**asked))


def test_check_says_what_a_shuffle_cannot_mend(tmp_path: Any, caplog: pytest.LogCaptureFixture) -> None:
    """A label that is constant within shards is named, with the way out; mixed data is not complained of."""
    lk = lake.open(tmp_path / "lake")
    rows = table()
    lk.commit("sorted", rows, shard_bytes="64KiB")
    lk.commit("mixed", rows.take(pa.array(np.random.default_rng(0).permutation(ROWS))), shard_bytes="64KiB")

    caplog.clear()  # the commit said so, too
    with caplog.at_level(logging.WARNING, "lake"):
        lk.dataset("mixed").scan(shuffle=True).check()
        lk.dataset("sorted").scan().check()
        assert not caplog.records
        lk.dataset("sorted").scan(shuffle=True).check()
    assert "class hardly changes within a shard" in caplog.text
    assert "order='shuffled'" in caplog.text


def test_check_tells_what_will_be_read(ds: Dataset) -> None:
    """Numbers of the plan, as attributes and as a table; nothing is read."""
    found = ds.scan(["n", "x"], batch_size=100, limit=250).check()

    assert (found.batches, found.rows) == (3, 250)
    assert 0 < found.shards < ds.snapshot.document.shards
    assert 0 < found.fetch_bytes < ds.snapshot.document.bytes
    assert "250" in str(found)


# --- threads ----------------------------------------------------------------------------------


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("lake-")]


def wait_for_no_threads() -> None:
    deadline = time.monotonic() + 5
    while threads() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not threads()


def fail_inside(scan: Scan) -> None:
    for _ in scan:
        raise KeyError("consumer")


def test_a_consumer_that_leaves_leaves_no_thread(ds: Dataset) -> None:
    """Breaking off, raising, and holding on to the iterator without using it all end the threads."""
    for batch in ds.scan(["n", "x"], batch_size=10, shuffle=True):
        assert batch.num_rows == 10
        break
    wait_for_no_threads()

    with pytest.raises(KeyError) as kept:  # its traceback holds the loop's iterator
        fail_inside(ds.scan(["n", "x"], batch_size=10))
    wait_for_no_threads()
    assert kept

    idle = iter(ds.scan(["n", "x"], batch_size=10))
    first = next(idle)["n"].to_pylist()
    wait_for_no_threads()
    assert first + [n for batch in idle for n in batch["n"].to_pylist()] == list(range(ROWS))


def _rest_in_child(batches: Any, results: Any) -> None:
    results.put([n for batch in batches for n in batch["n"].to_pylist()])


def test_a_forked_child_goes_on_where_its_parent_was(ds: Dataset) -> None:
    """Threads and locks of the parent are no hindrance; parent and child both read to the end."""
    batches = iter(ds.scan(["n", "x"], batch_size=10, shuffle=True, seed=5))
    seen = [n for _ in range(3) for n in next(batches)["n"].to_pylist()]
    context = multiprocessing.get_context("fork")
    results = context.Queue()

    child = context.Process(target=_rest_in_child, args=(batches, results))
    child.start()
    rest = results.get(timeout=60)
    child.join()

    assert sorted(seen + rest) == list(range(ROWS))
    assert [n for batch in batches for n in batch["n"].to_pylist()] == rest


def _whole_in_child(scan: Scan, results: Any) -> None:
    results.put(numbers(scan))


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_scan_goes_to_other_processes(ds: Dataset, method: str) -> None:
    """Also after it was read here."""
    scan = ds.scan(["n"], shuffle=True, seed=2)
    first = numbers(scan)
    scan.set_epoch(0)
    context = multiprocessing.get_context(method)
    results = context.Queue()

    child = context.Process(target=_whole_in_child, args=(scan, results))
    child.start()

    assert results.get(timeout=60) == first
    child.join()
    assert child.exitcode == 0


def test_data_sorted_by_class_is_mixed_by_the_order_of_its_commit(tmp_path: Any) -> None:
    """With order="shuffled" a batch has as many classes as of a uniform permutation; as given, fewer."""
    rows, classes, size = 6400, 50, 32
    labels = np.arange(rows) * classes // rows
    data = pa.table({"key": [f"{n:05d}" for n in range(rows)], "label": labels, "x": np.arange(rows)})

    def classes_of_a_batch(order: Any) -> float:
        lk = lake.open(tmp_path / order)
        lk.commit("rows", data, order=order, shard_bytes="16KiB")
        batches = lk.dataset("rows").scan(["label"], batch_size=size, shuffle=True, shuffle_window=4, seed=1)
        return float(np.mean([len(batch["label"].unique()) for batch in batches]))

    by_chance = np.random.default_rng(0).permutation(labels).reshape(-1, size)
    uniform = np.mean([len(np.unique(batch)) for batch in by_chance])
    assert classes_of_a_batch("shuffled") == pytest.approx(uniform, rel=0.02)
    assert classes_of_a_batch("given") < 0.8 * uniform
