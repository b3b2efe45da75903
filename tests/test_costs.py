"""What things cost, counted and not timed: requests, bytes, Python function calls.

A bound is what the code needs now, with some room. One that is missed says that something got dearer: make it
cheap again, or raise the bound and say in the commit what that buys.
"""

from __future__ import annotations

import concurrent.futures.thread
import itertools
import queue
import sys
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import lake
from lake.dataset import Dataset
from lake.repo import Lake
from lake.stores import LocalStore
from lake.stores.wrappers import CountingStore

WIDTH = 256  # float32 a row: 1 KiB
ROWS = 8000
SHARD = "1MiB"
ROOM = 1.25  # for function calls, which differ between Python's releases
WAITING = {  # how often these are called is up to the scheduler
    threading.__file__,
    queue.__file__,
    concurrent.futures._base.__file__,
    concurrent.futures.thread.__file__,
}


class Bucket(CountingStore):
    """A folder of which nothing is mapped: every byte is asked for, as of a bucket."""

    def local_path(self, key: str) -> None:
        return None

    @property
    def requests(self) -> int:
        """How many since the last reset."""
        return sum(self.counts.values())


class Machine:
    """A lake on a counting store, seen by machines that have nothing cached."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.machines = folder, itertools.count()
        self.store = Bucket(LocalStore(folder / "bucket"))

    def lake(self) -> Lake:
        """The lake, with an empty cache; what was counted is forgotten."""
        cache = self.folder / f"cache-{next(self.machines)}"
        opened = Lake(self.store, lake.open(self.store.url, cache_dir=cache).settings, progress=False)
        self.store.reset()
        return opened

    def dataset(self, name: str) -> Dataset:
        """The dataset, opened and planned once by a machine of its own; what was counted is forgotten."""
        found = self.lake().dataset(name)
        len(found.scan())
        self.store.reset()
        return found


def wide(rows: int, start: int = 0) -> pa.Table:
    """Rows of about 1 KiB: a key, a vector, a label; the same for the same numbers."""
    numbers = np.arange(start, start + rows)
    vectors = np.random.default_rng(start).standard_normal((rows, WIDTH), dtype=np.float32)
    return pa.table(
        {
            "key": [f"row-{number:07d}" for number in numbers],
            "x": pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), WIDTH),
            "label": pa.array(numbers % 7),
        }
    )


def narrow(rows: int) -> pa.Table:
    """Rows of a few bytes: many to a record batch."""
    numbers = np.arange(rows)
    return pa.table({"key": pa.array(numbers).cast(pa.large_string()), "n": numbers, "half": numbers / 2})


def edited(table: pa.Table, row: int) -> pa.Table:
    """The table with another vector in one row."""
    values = np.array(table["x"].combine_chunks().flatten())
    values[row * WIDTH] += 1
    return table.set_column(1, "x", pa.FixedSizeListArray.from_arrays(pa.array(values), WIDTH))


def consumed(items: Iterable[Any]) -> None:
    """To the end."""
    for _ in items:
        pass


def least_calls(act: Callable[[], object]) -> int:
    """The fewest calls of some runs: how often threads look for work is the scheduler's choice as well."""
    return min(python_calls(act) for _ in range(4))


def python_calls(act: Callable[[], object]) -> int:
    """Python functions called by `act` in this thread and those that it starts, but for those that only wait."""
    calls = itertools.count()

    def see(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename not in WAITING:
            next(calls)

    threading.setprofile(see)
    sys.setprofile(see)
    try:
        act()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return next(calls)


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    """A dataset `wide` of some ten shards and `deep` of one or two, each shard of two parts."""
    made = Machine(tmp_path_factory.mktemp("costs"))
    lk = made.lake()
    assert 8 <= lk.commit("wide", wide(ROWS), shard_bytes=SHARD).shards <= 16
    assert lk.commit("deep", wide(ROWS), shard_bytes="8MiB").shards <= 2
    return made


# --- requests and bytes -----------------------------------------------------------------------


def test_a_commit_costs_two_requests_a_part_and_a_handful(machine: Machine) -> None:
    """Each part is looked up and written; documents, log and head are few and small, whatever is committed."""
    lk = machine.lake()

    made = lk.commit("again", wide(ROWS, 10**6), shard_bytes=SHARD)

    assert machine.store.counts["publish"] == 2 * made.shards
    assert machine.store.requests <= 2 * 2 * made.shards + 14
    assert machine.store.bytes_read <= 4096
    assert made.bytes_new == made.bytes
    assert machine.store.bytes_written <= made.bytes + 20_000


def test_committing_the_same_again_writes_nothing_and_reads_little(machine: Machine) -> None:
    """Head, version and segment are read, also on a machine that has nothing cached."""
    lk = machine.lake()

    lk.commit("wide", wide(ROWS), shard_bytes=SHARD)

    assert machine.store.requests <= 8
    assert machine.store.bytes_read <= 20_000
    assert machine.store.bytes_written == 0


def test_an_edit_costs_one_part(machine: Machine) -> None:
    """One row with another vector: one part is uploaded; the segment that names it is written anew."""
    lk = machine.lake()
    lk.commit("edited", wide(ROWS), shard_bytes=SHARD)
    machine.store.reset()

    made = lk.commit("edited", edited(wide(ROWS), ROWS // 2), shard_bytes=SHARD)

    assert machine.store.counts["publish"] == 1
    assert machine.store.requests <= 15
    assert made.bytes_new <= 2 * 2**20  # a shard is at most twice the target
    assert machine.store.bytes_written <= made.bytes_new + 20_000


def test_an_append_costs_the_same_after_any_number_of_others(machine: Machine) -> None:
    """Its two parts and a handful of small objects: neither the rows nor the versions before it are read."""
    lk = machine.lake()
    lk.commit("grown", wide(50), shard_bytes=SHARD)
    for number in range(1, 12):
        machine.store.reset()
        made = lk.commit("grown", wide(50, number * 50), mode="append")
        assert machine.store.requests <= 17
        assert machine.store.bytes_read <= 20_000
        assert machine.store.bytes_written <= made.bytes_new + 20_000


def test_opening_costs_four_requests_and_the_segments_once(machine: Machine) -> None:
    """A machine with nothing cached needs four requests and one a segment; a new process beside it, the head."""
    lk = machine.lake()

    opened = lk.dataset("wide")
    assert machine.store.requests <= 4
    len(opened.scan())
    assert machine.store.requests <= 5
    assert machine.store.bytes_read <= 20_000

    machine.store.reset()
    beside = Lake(machine.store, lk.settings, progress=False)
    len(beside.dataset("wide").scan())
    assert machine.store.requests <= 3
    assert machine.store.bytes_read <= 1000


def test_a_row_costs_one_record_batch_of_each_part_once(machine: Machine) -> None:
    """A message and a range, and the light part; of small shards also what is left of the part. Then nothing."""
    for name, most in (("deep", 300_000), ("wide", 2 * 2**20)):
        ds = machine.dataset(name)
        ds.take([ROWS // 2])
        assert machine.store.requests <= 4
        assert machine.store.bytes_read <= most

        machine.store.reset()
        ds.take([ROWS // 2])
        assert machine.store.requests == 0


def test_a_key_is_found_by_reading_the_keys_of_one_shard(machine: Machine) -> None:
    """Statistics leave one shard of sorted keys; its light part and one record batch are read."""
    ds = machine.dataset("deep")

    ds.get(f"row-{ROWS // 3:07d}")

    assert machine.store.requests <= 3
    assert machine.store.bytes_read <= 300_000


def test_labels_are_read_without_the_vectors(machine: Machine) -> None:
    """A small column of all rows: a request a shard, and less than a hundredth of the bytes."""
    ds = machine.dataset("wide")

    consumed(ds.scan(["label"]))

    assert machine.store.requests <= len(ds.snapshot.manifest)
    assert machine.store.bytes_read <= ds.snapshot.document.bytes / 100


@pytest.mark.parametrize("shuffle", [False, True])
def test_an_epoch_fetches_every_byte_once_and_the_next_none(machine: Machine, shuffle: bool) -> None:
    """About a request a part, and the first block's bytes ahead of their parts; then the cache has them all."""
    ds = machine.dataset("wide")
    scan = ds.scan(shuffle=shuffle, shuffle_window=4)
    ahead = max(sum(part.bytes for part in shard.parts) for shard in ds.snapshot.manifest.shards())

    consumed(scan)
    assert machine.store.requests <= 1.3 * 2 * len(ds.snapshot.manifest)
    assert machine.store.bytes_read <= 1.01 * ds.snapshot.document.bytes + ahead

    machine.store.reset()
    consumed(scan)
    assert machine.store.requests == 0


# --- Python function calls --------------------------------------------------------------------


def test_rows_cost_no_python_when_committed(machine: Machine) -> None:
    """Ten times the rows in as many shards and record batches: as many calls."""
    lk = machine.lake()
    lk.commit("few", narrow(100))  # what is imported or made once is

    few, many = (
        python_calls(lambda rows=rows: lk.commit(f"narrow-{rows}", narrow(rows)))
        for rows in (10_000, 100_000)
    )

    assert many <= 1.1 * few


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("torch", [False, True])
def test_rows_cost_no_python_when_scanned(machine: Machine, shuffle: bool, torch: bool) -> None:
    """Ten times the rows in as many batches: as many calls."""
    lk = machine.lake()
    counted = []
    for rows in (10_000, 100_000):
        lk.commit(f"scanned-{rows}", narrow(rows))
        scan = lk.dataset(f"scanned-{rows}").scan(["n", "half"], batch_size=rows // 20, shuffle=shuffle)
        batches = scan.to_torch() if torch else scan
        consumed(batches)
        counted.append(least_calls(lambda batches=batches: consumed(batches)))

    assert counted[1] <= 1.5 * counted[0]  # per-row Python would make it some ten times as many


def test_a_shard_costs_a_bounded_number_of_calls_to_commit(machine: Machine) -> None:
    """Two parts, eight record batches: digests, checks, statistics and the way into the store."""
    lk = machine.lake()
    counted = []
    for rows in (ROWS // 2, ROWS):
        made = []
        data = wide(rows, 2 * 10**6)
        calls = python_calls(
            lambda rows=rows, data=data, made=made: made.append(
                lk.commit(f"calls-{rows}", data, shard_bytes=SHARD)
            )
        )
        counted.append((made[0].shards, calls))

    (few, cheap), (many, dear) = counted
    assert (dear - cheap) / (many - few) <= 1600 * ROOM


def test_a_small_append_costs_a_bounded_number_of_calls(machine: Machine) -> None:
    """One shard; most of it is documents and the protocol."""
    lk = machine.lake()
    lk.commit("small", wide(50), shard_bytes=SHARD)
    lk.commit("small", wide(50, 50), mode="append")
    data = wide(50, 100)

    assert python_calls(lambda: lk.commit("small", data, mode="append")) <= 7000 * ROOM


@pytest.mark.parametrize("torch", [False, True])
def test_a_batch_costs_a_bounded_number_of_calls_to_scan(machine: Machine, torch: bool) -> None:
    """What a batch costs beside the record batches that it is made of."""
    ds = machine.dataset("wide")
    counted = []
    for size in (250, 125):
        scan = ds.scan(["x", "label"], batch_size=size)
        batches = scan.to_torch() if torch else scan
        consumed(batches)
        counted.append((len(scan), least_calls(lambda batches=batches: consumed(batches))))

    (few, cheap), (many, dear) = counted
    assert (dear - cheap) / (many - few) <= 60 * ROOM


def test_taking_many_rows_costs_calls_by_shard_and_not_by_row(machine: Machine) -> None:
    """Four times the rows of the same shards: as many calls."""
    ds = machine.dataset("wide")
    counted = []
    for count in (20_000, 80_000):
        numbers = np.random.default_rng(0).integers(0, ROWS, count)
        ds.take(numbers)
        counted.append(python_calls(lambda numbers=numbers: ds.take(numbers)))

    assert counted[1] <= 1.1 * counted[0]
    assert counted[1] <= 630 * ROOM * len(ds.snapshot.manifest)


def test_opening_costs_a_bounded_number_of_calls(machine: Machine) -> None:
    """With everything cached."""
    lk = machine.lake()
    lk.dataset("wide")

    assert python_calls(lambda: lk.dataset("wide")) <= 400 * ROOM
