"""Scans of a bucket: exact whatever the store does, nothing fetched twice, within the budget, nothing left behind."""

from __future__ import annotations

import gc
import itertools
import multiprocessing
import os
import random
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from torch.utils.data import DataLoader

import lake
from lake.cache import DOWNLOADS, Cache
from lake.dataset import Dataset
from lake.format.names import part_key
from lake.repo import Lake
from lake.stores import LocalStore, Store
from lake.stores.s3 import S3Store
from lake.stores.wrappers import CountingStore
from tests.conftest import BUCKET
from tests.remote import Remote, remote_lake
from tests.stores.proxy import Reply, Request, S3Proxy, Spoiled

FULL = bool(os.environ.get("LAKE_TEST_FULL"))
ROWS = 4000


def table(rows: int = ROWS) -> pa.Table:
    """A key, numbers in order, 1 KiB that does not compress, and a label."""
    rng = np.random.default_rng(1)
    return pa.table(
        {
            "key": [f"row-{n:05d}" for n in range(rows)],
            "n": np.arange(rows),
            "x": pa.FixedSizeListArray.from_arrays(
                pa.array(rng.integers(0, 255, rows * 1024, np.uint8)), 1024
            ),
            "label": pa.array(rng.integers(0, 9, rows)),
        }
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A lake of some 16 shards, each with a part for `x` and one for the rest."""
    folder = tmp_path_factory.mktemp("remote") / "lake"
    version = lake.open(folder).commit("rows", table(), shard_bytes="256KiB")
    assert version.shards > 8
    return folder


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture(autouse=True)
def _nothing_left(cache: Path) -> Iterator[None]:
    """After each test: no thread of lake, no file half written, no lease, no reservation."""
    yield
    assert not eventually(lambda: left_behind(cache), lambda left: not left)


def left_behind(cache: Path) -> list[str]:
    gc.collect()  # an exception that a test has caught may hold an iteration, an iteration its lake
    threads = [thread.name for thread in threading.enumerate() if thread.name.startswith("lake-")]
    flights = [path.name for folder in ("flights", "members") for path in (cache / folder).glob("*")]
    return threads + flights


def numbers(scan: Any) -> list[int]:
    return [n for batch in scan for n in batch["n"].to_pylist()]


def counted(folder: Path, cache: Path, **options: Any) -> tuple[CountingStore, Lake]:
    store = CountingStore(Remote(LocalStore(folder)))
    return store, remote_lake(folder, cache, store=store, **options)


def parts_bytes(ds: Dataset, columns: list[str] | None = None) -> int:
    names = ds.schema.names if columns is None else columns
    return int(ds.snapshot.manifest.sizes(names)[0].sum())


# --- what is fetched --------------------------------------------------------------------------


@pytest.mark.parametrize("shuffle", [False, True, "full"])
def test_an_epoch_fetches_each_byte_once_and_the_next_none(folder: Path, cache: Path, shuffle: Any) -> None:
    """Cold and warm, in any order, the rows are those of the lake read in place."""
    store, lk = counted(folder, cache)
    here = lake.open(folder).dataset("rows").scan(shuffle=shuffle, seed=1, batch_size=100)
    ds = lk.dataset("rows")
    scan = ds.scan(shuffle=shuffle, seed=1, batch_size=100)
    len(scan)
    store.reset()

    assert scan.to_table().equals(here.to_table())

    assert store.bytes_read == scan.metrics()["bytes_fetched"] == parts_bytes(ds)
    store.reset()
    assert len(numbers(scan)) == ROWS
    assert store.bytes_read == 0


def test_a_small_column_costs_little(folder: Path, cache: Path) -> None:
    """What lies beside large columns is read without them, in about one request for each shard."""
    store, lk = counted(folder, cache)
    ds = lk.dataset("rows")
    len(ds.scan(["label"]))
    store.reset()

    assert ds.scan(["label"]).to_table()["label"].to_pylist() == table()["label"].to_pylist()

    assert store.bytes_read < 0.05 * parts_bytes(ds)
    assert store.counts["get_into"] <= 1.2 * ds.snapshot.document.shards


def test_a_condition_on_a_sorted_column_fetches_what_meets_it(folder: Path, cache: Path) -> None:
    """Statistics rule the other shards out; `limit` stops as early."""
    store, lk = counted(folder, cache)
    ds = lk.dataset("rows")
    len(ds.scan())
    store.reset()

    assert numbers(ds.scan(where="n between 2000 and 2039")) == list(range(2000, 2040))
    manifest = ds.snapshot.manifest
    sizes = manifest.sizes(ds.schema.names)[0]
    assert store.bytes_read <= sizes[manifest.find(2000)[0] : manifest.find(2039)[0] + 1].sum()

    store.reset()
    assert numbers(ds.scan(limit=10)) == list(range(10))
    assert store.bytes_read <= sizes[0]


def test_labels_beside_blobs_of_100_kb_cost_two_percent_at_most(tmp_path: Path, cache: Path) -> None:
    """In about one request for each shard."""
    blobs = [np.random.default_rng(n).bytes(100_000) for n in range(200)]
    rows = pa.table({"key": [f"{n:04d}" for n in range(200)], "blob": blobs, "label": np.arange(200) % 7})
    lake.open(tmp_path / "lake").commit("rows", rows, shard_bytes="1MiB")
    store, lk = counted(tmp_path / "lake", cache)
    ds = lk.dataset("rows")
    len(ds.scan(["label"]))
    store.reset()

    assert ds.scan(["label"]).to_table()["label"].to_pylist() == rows["label"].to_pylist()

    assert store.bytes_read < 0.02 * parts_bytes(ds)
    assert store.counts["get_into"] <= 1.2 * ds.snapshot.document.shards


def test_one_percent_of_a_sorted_column_fetches_three_percent_of_the_parts_at_most(
    tmp_path: Path, cache: Path
) -> None:
    """Of all columns, the pass that selects rows included."""
    lake.open(tmp_path / "lake").commit("rows", table(), shard_bytes="16KiB")
    store, lk = counted(tmp_path / "lake", cache)
    ds = lk.dataset("rows")
    len(ds.scan())
    store.reset()

    for shuffle in (False, True):
        scan = ds.scan(where="n >= 1000 and n < 1040", shuffle=shuffle)
        assert sorted(numbers(scan)) == list(range(1000, 1000 + ROWS // 100))

    shards = range(ds.snapshot.document.shards)
    parts = {part_key(one.digest) for number in shards for one in ds.snapshot.shard(number).parts}
    assert 0 < len({key for _, key in store.calls} & parts) < 0.03 * len(parts)


def test_resuming_at_batch_900_000_fetches_the_first_block_only(tmp_path: Path, cache: Path) -> None:
    """Of a million batches: whatever was handed out before is neither read nor counted through."""
    rows = pa.table({"n": np.arange(1_000_000)})
    lake.open(tmp_path / "lake").commit("rows", rows, shard_bytes="256KiB", key=None)
    store, lk = counted(tmp_path / "lake", cache)
    ds = lk.dataset("rows")
    for shuffle in (False, True):
        scan = ds.scan(batch_size=1, shuffle=shuffle, shuffle_window=4)
        assert len(scan) == 1_000_000
        state = scan.state_dict() | {"rows": 900_000}
        store.reset()

        scan.load_state_dict(state)
        batches = iter(scan)
        first = next(batches)
        fetched = store.bytes_read
        batches.close()  # type: ignore[attr-defined]

        assert first.num_rows == 1
        assert shuffle or first["n"].to_pylist() == [900_000]
        largest = max(
            one.bytes for n in range(ds.snapshot.document.shards) for one in ds.snapshot.shard(n).parts
        )
        ahead = (
            ds.snapshot.document.shards // 10 + 1
        )  # what is left: threads may have brought it in meanwhile
        assert ds.snapshot.document.shards > 20
        assert 0 < fetched <= (4 * shuffle + ahead) * largest
        lk.cache.clear()


def test_what_was_found_of_a_condition_is_remembered(tmp_path: Path, cache: Path) -> None:
    """On this machine: another scan, of another process maybe, reads the condition's column no more."""
    folder = tmp_path / "lake"
    lake.open(folder).commit("rows", table(), shard_bytes="64KiB")
    where, found = "n % 100 = 7", list(range(7, ROWS, 100))
    store, lk = counted(folder, cache)
    assert sorted(numbers(lk.dataset("rows").scan(["x", "n"], where, shuffle=True))) == found
    ds = lk.dataset("rows")
    lk.cache.discard("0" * 64)
    store.reset()

    assert len(ds.scan(["label"], where)) == 1
    assert ds.count(where) == len(found)

    assert store.counts["get_into"] == 0


def test_the_first_rows_come_before_the_last_are_looked_for(tmp_path: Path, cache: Path) -> None:
    """A stream with a condition looks at the next shards only; who breaks off has paid for no more."""
    folder = tmp_path / "lake"
    lake.open(folder).commit("rows", table(), shard_bytes="16KiB")
    store, lk = counted(folder, cache)
    ds = lk.dataset("rows")
    assert ds.snapshot.document.shards > 150
    len(ds.scan())
    store.reset()
    scan = ds.scan(["n"], "n % 2 = 0", batch_size=10)

    batches = iter(scan)
    first = next(batches)["n"].to_pylist()
    assert 0 < len(first) <= 10
    assert first == list(range(0, 2 * len(first), 2))
    assert store.counts["get_into"] < 120
    batches.close()  # type: ignore[attr-defined]

    assert numbers(ds.scan(["n"], "n % 2 = 0", limit=5)) == [0, 2, 4, 6, 8]
    scan.set_epoch(0)
    whole = iter(scan)
    first = next(whole)["n"].to_pylist()
    state = scan.state_dict()
    assert state["rows"] == len(first)
    assert first + [n for batch in whole for n in batch["n"].to_pylist()] == list(range(0, ROWS, 2))
    scan.load_state_dict(state)
    assert first + numbers(scan) == list(range(0, ROWS, 2))


@pytest.mark.timeout(100)
@pytest.mark.parametrize("how", [{}, {"shuffle": True, "shuffle_window": 3}], ids=["stored", "shuffled"])
@pytest.mark.parametrize("batch_size", [20, 200, 1500])
@pytest.mark.parametrize("more", [0, 100_000])
def test_a_budget_of_the_resident_bytes_is_enough(
    folder: Path, cache: Path, how: dict[str, Any], batch_size: int, more: int
) -> None:
    """Also for batches that lie in several blocks: what was read for one makes room for the next."""
    lk = remote_lake(folder, cache)
    needed = lk.dataset("rows").scan(**how, batch_size=batch_size).check().resident_bytes
    lk = remote_lake(folder, cache, budget=str(needed + more))

    batches = list(lk.dataset("rows").scan(**how, batch_size=batch_size))

    assert sorted(n for batch in batches for n in batch["n"].to_pylist()) == list(range(ROWS))


@pytest.mark.parametrize(("budget", "layout"), [("unlimited", "open"), ("300kB", "stored")])
def test_what_is_compressed_is_decoded_once_where_there_is_room(
    tmp_path: Path, cache: Path, budget: str, layout: str
) -> None:
    """The cache keeps parts decoded if all of them fit, otherwise as they are; rows are the same."""
    folder = tmp_path / "lake"
    rows = pa.table({"n": np.arange(ROWS), "x": [f"{n % 7}" * 200 for n in range(ROWS)]})
    lake.open(folder).commit("rows", rows, shard_bytes="64KiB")
    here, lk = lake.open(folder).dataset("rows"), remote_lake(folder, cache, budget=budget)
    ds = lk.dataset("rows")
    assert {one.codec for one in ds.snapshot.shard(0).parts} == {"zstd"}

    for shuffle in (False, True):
        scan = ds.scan(shuffle=shuffle, shuffle_window=2)
        for _ in range(2):
            assert scan.to_table().equals(here.scan(shuffle=shuffle, shuffle_window=2, epoch=_).to_table())
    entries = eventually(lk.cache.entries, lambda found: not any(entry.leases for entry in found))
    layouts = {entry.layout for entry in entries} - {"document"}
    assert layouts <= {layout, "stored"}
    assert layout in layouts


def test_resuming_reads_nothing_of_what_was_passed(folder: Path, cache: Path) -> None:
    """The first batch after a resume at nine tenths costs its block, however long the epoch."""
    store, lk = counted(folder, cache)
    ds = lk.dataset("rows")
    scan = ds.scan(batch_size=50)
    state = scan.state_dict() | {"rows": 3600}
    store.reset()

    scan.load_state_dict(state)
    batch = next(iter(scan))

    assert batch["n"].to_pylist() == list(range(3600, 3650))
    assert store.bytes_read < 0.2 * parts_bytes(ds) + 2**20


def test_the_first_batch_does_not_wait_for_whole_shards(tmp_path: Path, cache: Path) -> None:
    """In order it takes its record batches, shuffled its block; whole parts come after it."""
    folder = tmp_path / "lake"
    lake.open(folder).commit("rows", table(20_000), shard_bytes="8MiB")
    gate = threading.Event()

    class Slow(Remote):
        """Answers what is large only when the first batch is there."""

        def get_into(self, key: str, start: int, buffer: Any) -> int:
            if key.startswith("shards") and len(buffer) > 3 * 2**20:
                gate.wait(30)
            return super().get_into(key, start, buffer)

    for shuffle in (False, True):
        gate.clear()
        lk = remote_lake(folder, cache / str(shuffle), store=Slow(LocalStore(folder)))
        scan = lk.dataset("rows").scan(["n", "x"], shuffle=shuffle, batch_size=64)
        batches = iter(scan)
        assert next(batches).num_rows == 64
        gate.set()
        assert sum(batch.num_rows for batch in batches) == 20_000 - 64


@pytest.mark.parametrize("shuffle", [False, True])
def test_the_first_batch_asks_for_all_that_it_needs_at_once(
    tmp_path: Path, cache: Path, shuffle: bool
) -> None:
    """However many shards that is: no answer comes before as many requests are there as may be."""
    folder = tmp_path / "lake"
    lake.open(folder).commit("rows", table(), shard_bytes="64KiB")
    together, turns = threading.Barrier(DOWNLOADS), itertools.count()

    class Together(Remote):
        def get_into(self, key: str, start: int, buffer: Any) -> int:
            if key.startswith("shards") and next(turns) < DOWNLOADS:
                together.wait(10)
            return super().get_into(key, start, buffer)

    store = Together(LocalStore(folder))
    batches = iter(
        remote_lake(folder, cache, store=store).dataset("rows").scan(shuffle=shuffle, batch_size=600)
    )

    assert next(batches).num_rows == 600
    assert sum(batch.num_rows for batch in batches) == ROWS - 600


# --- faults -----------------------------------------------------------------------------------


STALL = 0.7  # seconds: as long beside the requests of these tests as 30 s beside those of a bucket


class Flaky(Remote):
    """Fails one request in ten: refused, reset, timed out, cut short, wrong once for each part, or hanging."""

    def __init__(self, store: Store, seed: int = 0) -> None:
        super().__init__(store)
        self._random, self._spoilt, self.failed = random.Random(seed), set[str](), Counter[str]()
        self._lock = threading.Lock()

    def get_into(self, key: str, start: int, buffer: Any) -> int:
        with self._lock:
            kinds = ["503 SlowDown", "connection reset", "timed out", "cut", "wrong", "stall"]
            kind = self._random.choice(kinds) if self._random.random() < 0.1 else ""
            if not key.startswith("shards") or (kind == "wrong" and key in self._spoilt):
                kind = ""
            self.failed[kind] += 1
        if kind in ("503 SlowDown", "connection reset", "timed out"):
            raise lake.StoreError(kind, retryable=True)
        if kind == "stall":
            time.sleep(STALL)
        count = super().get_into(key, start, buffer)
        if kind == "cut":
            return count // 2
        if kind == "wrong":
            self._spoilt.add(key)
            buffer[len(buffer) // 2] ^= 1
        return count


@pytest.mark.parametrize("columns", [None, ["n"], ["x", "n"]])
def test_an_epoch_is_exact_over_a_store_that_fails(
    folder: Path, cache: Path, columns: list[str] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is refused, lost, late, short or wrong is asked for again, and never becomes a row."""
    monkeypatch.setattr("lake.parts.copies._FIRST_PAUSE", 0.001)
    monkeypatch.setattr("lake.parts.flight._SLOW_SECONDS", 0.05)
    expected = lake.open(folder).dataset("rows").scan(columns, shuffle=True).to_table()
    failed = Counter[str]()
    for seed in range(6):
        store = Flaky(LocalStore(folder), seed)
        ds = remote_lake(folder, cache / str(seed), store=store).dataset("rows")
        assert ds.scan(columns, shuffle=True).to_table().equals(expected)
        failed += store.failed
    assert failed.total() - failed[""] > 5


def test_an_epoch_is_exact_over_a_service_that_fails(s3_server: str, tmp_path: Path, cache: Path) -> None:
    """The same over HTTP: one request for data in ten is refused, dropped, cut, wrong once, or late."""
    url = f"s3://{BUCKET}/{uuid.uuid4().hex}"
    lake.open(url, endpoint_url=s3_server).commit("rows", table(2500), shard_bytes="64KiB")
    kinds, failed, lock = (
        itertools.cycle(["refused", "drop", "cut", "wrong", "stall"]),
        list[str](),
        threading.Lock(),
    )
    turns = itertools.count(1)

    def spoil(request: Request) -> Spoiled | None:
        if "/shards/" not in request.path:
            return None
        with lock:
            if next(turns) % 10:
                return None
            kind = next(kinds)
            failed.append(kind)
        if kind == "stall":
            time.sleep(2.5)
        if kind == "refused":
            return Reply(503, "SlowDown")
        if kind == "wrong":
            return lambda status, headers, body: (status, headers, bytes([body[0] ^ 1]) + body[1:])
        return "cut" if kind == "cut" else "drop"

    with S3Proxy(s3_server) as proxy:
        proxy.rule = spoil
        store = S3Store(*url.removeprefix("s3://").split("/"), endpoint_url=proxy.url, timeout=1)
        ds = remote_lake(tmp_path, cache, store=store).dataset("rows")
        assert sorted(numbers(ds.scan(shuffle=True, batch_size=50))) == list(range(2500))
        eventually(lambda: left_behind(cache), lambda left: not left)
    assert set(failed) == {"refused", "drop", "cut", "wrong", "stall"}


def test_an_epoch_is_over_before_requests_that_stall_for_30_seconds(
    s3_server: str, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One request for data in ten fails, a third of these by a reply that takes 30 s: those are sent again.

    The service hears of the end of the epoch and lets go of what stalls; at full size it does not.
    """
    monkeypatch.setattr("lake.parts.flight._SLOW_SECONDS", 0.5)
    rows = 20_000 if FULL else 5_000
    url = f"s3://{BUCKET}/{uuid.uuid4().hex}"
    lake.open(url, endpoint_url=s3_server).commit("rows", table(rows), shard_bytes="64KiB")
    kinds = itertools.cycle(["refused", "stall", "drop", "cut", "stall", "wrong"])
    turns, lock, over = itertools.count(1), threading.Lock(), threading.Event()
    stalled, overtaken = list[str](), list[bool]()

    def spoil(request: Request) -> Spoiled | None:
        if "/shards/" not in request.path:
            return None
        with lock:
            kind = "" if next(turns) % 10 else next(kinds)
        if kind == "stall":
            stalled.append(request.path)
            if FULL:
                time.sleep(30)
            over.wait(30)
            overtaken.append(over.is_set())
        if kind == "refused":
            return Reply(503, "SlowDown")
        if kind == "wrong":
            return lambda status, headers, body: (status, headers, bytes([body[0] ^ 1]) + body[1:])
        return {"drop": "drop", "cut": "cut"}.get(kind)  # type: ignore[return-value]

    with S3Proxy(s3_server) as proxy:
        proxy.rule = spoil
        ds = lake.open(url, endpoint_url=proxy.url, cache_dir=cache).dataset("rows")
        assert sorted(numbers(ds.scan(shuffle=True, batch_size=50))) == list(range(rows))
        over.set()
        assert len(stalled) >= 3
        sent = Counter(request.path for request in proxy.requests)
        assert all(sent[path] > 1 for path in stalled)
        eventually(lambda: len(overtaken), lambda count: count == len(stalled), seconds=35)
        assert overtaken == [True] * len(stalled)
        eventually(lambda: left_behind(cache), lambda left: not left)


class Broken(Remote):
    """Has one byte of one part wrong, for ever."""

    def __init__(self, store: Store, key: str = "", place: int = 0) -> None:
        super().__init__(store)
        self.key, self.place = key, place

    def __reduce__(self) -> tuple[Any, ...]:
        return Broken, (self.store, self.key, self.place)

    def get_into(self, key: str, start: int, buffer: Any) -> int:
        count = super().get_into(key, start, buffer)
        if key == self.key and start <= self.place < start + count:
            buffer[self.place - start] ^= 1
        return count


@pytest.mark.parametrize(("columns", "read"), [(None, "whole"), (["x"], "whole"), (["x"], "take")])
def test_a_damaged_part_is_named(folder: Path, cache: Path, columns: list[str] | None, read: str) -> None:
    """After three fetches the error says which part, shard and rows, and what to do; no row of it was given."""
    store = Broken(LocalStore(folder))
    ds = remote_lake(folder, cache, store=store).dataset("rows")
    one = next(one for one in ds.snapshot.shard(3).parts if "x" in one.fields)
    store.key, store.place = part_key(one.digest), one.batches[0].offset + one.batches[0].meta_length + 64
    first = int(ds.snapshot.manifest.starts[3])

    found: list[int] = []
    where = rf"{one.digest[:12]} of rows@#1, shard 3, rows {first:,}-.*lake repair rows"
    with pytest.raises(lake.IntegrityError, match=where) as raised:
        count_into(found, ds.scan(columns, batch_size=10)) if read == "whole" else ds.take(
            [first], columns=columns
        )
    assert raised.value.digest == one.digest
    assert sum(found) <= first


def image(batch: dict[str, Any]) -> dict[str, Any]:
    return {"x": batch["x"]}


@pytest.mark.parametrize("mode", ["loader", "feed", "fork", *(["spawn"] if FULL else [])])
def test_a_damaged_part_is_named_in_every_worker_mode(folder: Path, cache: Path, mode: str) -> None:
    """In threads, in feed processes and in the workers of torch's own loader."""
    store = Broken(LocalStore(folder))
    ds = remote_lake(folder, cache, store=store).dataset("rows")
    one = next(one for one in ds.snapshot.shard(3).parts if "x" in one.fields)
    store.key, store.place = part_key(one.digest), one.batches[0].offset + one.batches[0].meta_length + 64
    scan = ds.scan(["x"], batch_size=50)
    batches: Any
    if mode == "loader":
        batches = lake.torch.loader(scan)
    elif mode == "feed":
        batches = lake.torch.loader(scan.map(image, format="numpy"))
    else:
        dataset = lake.torch.as_iterable_dataset(scan)
        batches = DataLoader(dataset, None, num_workers=2, multiprocessing_context=mode)

    with pytest.raises(lake.IntegrityError, match=rf"{one.digest[:12]} of rows@#1, shard 3"):
        list(batches)
    del batches
    gc.collect()
    Cache(cache, None).close()  # torch kills workers that are slow to end: what they left goes now


def count_into(found: list[int], scan: Any) -> None:
    found.extend(batch.num_rows for batch in scan)


def test_an_error_comes_back_to_whoever_asks_again(folder: Path, cache: Path) -> None:
    """An epoch that failed never looks as if it had ended."""
    store = Broken(LocalStore(folder))
    ds = remote_lake(folder, cache, store=store).dataset("rows")
    one = ds.snapshot.shard(0).parts[0]
    store.key, store.place = part_key(one.digest), one.bytes // 2
    batches = iter(ds.scan(batch_size=10))

    for _ in range(3):
        with pytest.raises(lake.IntegrityError):
            list(batches)


def test_a_request_that_hangs_is_sent_again(
    folder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The epoch goes on with the second answer, and what hung is not waited for."""
    monkeypatch.setattr("lake.parts.flight._SLOW_SECONDS", 0.5)
    hung, over, waited = threading.Event(), threading.Event(), list[bool]()

    class Hanging(Remote):
        def get_into(self, key: str, start: int, buffer: Any) -> int:
            if key.startswith("shards") and len(buffer) > 100_000 and not hung.is_set() and start == 0:
                hung.set()
                waited.append(over.wait(30))
            return super().get_into(key, start, buffer)

    ds = remote_lake(folder, cache, store=Hanging(LocalStore(folder))).dataset("rows")
    assert sorted(numbers(ds.scan(shuffle=True))) == list(range(ROWS))
    assert hung.is_set()
    over.set()
    assert eventually(lambda: waited, bool) == [True]


# --- the budget -------------------------------------------------------------------------------


def test_what_cannot_fit_is_refused_before_the_first_request(folder: Path, cache: Path) -> None:
    """The error has the numbers and a way out; `check` says the same."""
    store, lk = counted(folder, cache, budget="400kB")
    ds = lk.dataset("rows")
    scan = ds.scan(shuffle=True)
    len(scan)
    store.reset()

    for ask in (lambda: list(scan), scan.check):
        with pytest.raises(lake.BudgetError, match="budget 400 kB") as refused:
            ask()
        assert refused.value.needed > refused.value.budget == 400_000
    assert not store.calls
    assert len(numbers(ds.scan(["n"], shuffle=True))) == ROWS


@pytest.mark.parametrize(("shuffle", "window"), [(False, 16), (True, 3), (True, 16)])
def test_epochs_in_a_small_cache_are_exact_and_hit_what_fits(
    tmp_path: Path, cache: Path, shuffle: bool, window: int
) -> None:
    """At a budget of four fifths of the data each epoch after the first finds three quarters of it at least."""
    folder = tmp_path / "lake"
    whole = lake.open(folder).commit("rows", table(), shard_bytes="64KiB").bytes
    store, lk = counted(folder, cache, budget=f"{whole * 8 // 10}")
    scan = lk.dataset("rows").scan(shuffle=shuffle, shuffle_window=window, batch_size=64)
    epochs = []
    for _ in range(4):
        store.reset()
        assert sorted(numbers(scan)) == list(range(ROWS))
        assert lk.cache.used <= lk.cache.budget
        epochs.append(store.bytes_read / whole)
    assert epochs[0] < 1.05
    assert max(epochs[1:]) <= 0.25


# --- leaving ----------------------------------------------------------------------------------


@pytest.mark.parametrize("leave", ["break", "raise", "close"])
def test_whoever_leaves_early_leaves_nothing(folder: Path, cache: Path, leave: str) -> None:
    """Threads, flights, leases and reservations end with the iteration (see the fixture)."""
    lk = remote_lake(folder, cache)
    scan = lk.dataset("rows").scan(["n", "x"], shuffle=True, batch_size=16)
    if leave == "break":
        for _ in scan:
            break
    elif leave == "raise":
        with pytest.raises(KeyError):
            fail_inside(scan)
        scan.set_epoch(0)
        iter(scan)  # ends the one that failed, whose traceback may be kept
    else:
        batches = iter(scan)
        next(batches)
        batches.close()  # type: ignore[attr-defined]
        assert next(batches, None) is None
    assert all(
        entry.leases == 0 for entry in eventually(lk.cache.entries, lambda es: not any(e.leases for e in es))
    )


def fail_inside(scan: Any) -> None:
    for _ in scan:
        raise KeyError("consumer")


def eventually(ask: Callable[[], Any], good: Callable[[Any], bool], *, seconds: float = 10) -> Any:
    """What is found when it is good, or at last; looks are counted, for a clock runs on while we are stopped."""
    for _ in range(round(seconds / 0.02)):
        if good(found := ask()):
            break
        time.sleep(0.02)
    return found


def _rest(batches: Any, results: Any) -> None:
    results.put([n for batch in batches for n in batch["n"].to_pylist()])


def test_a_forked_child_reads_a_bucket_on(folder: Path, cache: Path) -> None:
    """Leases and reservations of the parent stay the parent's; the child makes its own."""
    scan = remote_lake(folder, cache).dataset("rows").scan(["n", "x"], shuffle=True, batch_size=50)
    batches = iter(scan)
    seen = [n for _ in range(3) for n in next(batches)["n"].to_pylist()]
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    child = context.Process(target=_rest, args=(batches, results))
    child.start()
    rest = results.get(timeout=60)
    child.join()

    assert sorted(seen + rest) == list(range(ROWS))
    assert [n for batch in batches for n in batch["n"].to_pylist()] == rest


def test_batches_outlive_the_scan(folder: Path, cache: Path) -> None:
    """A batch that is kept stays what it was, whatever happens to the cache."""
    lk = remote_lake(folder, cache)
    kept = list(lk.dataset("rows").scan(["n", "x"], batch_size=70))
    expected = [
        batch.to_pylist() for batch in lake.open(folder).dataset("rows").scan(["n", "x"], batch_size=70)
    ]
    lk.cache.clear()

    assert [batch.to_pylist() for batch in kept] == expected


def test_a_bucket_gives_the_same_as_a_folder(s3_url: str, tmp_path: Path) -> None:
    """The same commit, scanned from S3."""
    lk = lake.open(s3_url, cache_dir=tmp_path / "cache", cache_budget="unlimited")
    lk.commit("rows", table(1000), shard_bytes="128KiB")

    for shuffle in (False, True):
        found = lk.dataset("rows").scan(shuffle=shuffle, batch_size=64).to_table()
        assert found.sort_by("n").to_pylist() == table(1000).to_pylist()
