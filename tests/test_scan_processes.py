"""Scans of one bucket by many real processes of a machine: one budget, one download, whatever befalls any of them."""

from __future__ import annotations

import contextlib
import faulthandler
import hashlib
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lake
from lake.cache import DOWNLOADS, Cache
from lake.parts import flight
from lake.stores import LocalStore
from tests.cache_files import latest_scans, on_disk, on_disk_now
from tests.conftest import BUCKET
from tests.remote import Remote, remote_lake
from tests.stores.proxy import Request, S3Proxy
from tests.test_scan_remote import table

FULL = bool(os.environ.get("LAKE_TEST_FULL"))
ROWS = 20_000 if FULL else 2_500
PROCESSES = 8
_HANGS_SECONDS = 200
SHARE = 5  # the data is so many times the budget

CONTEXT: Any = multiprocessing.get_context(
    "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
)


@dataclass(frozen=True)
class Bucket:
    """A lake in a bucket whose requests are counted, and what a process needs to scan it."""

    proxy: S3Proxy
    url: str
    parts: dict[str, int]  # bytes of each part, by digest

    @property
    def bytes(self) -> int:
        return sum(self.parts.values())

    @property
    def place(self) -> tuple[str, str]:
        return self.url, self.proxy.url

    @property
    def budget(self) -> int:
        return self.bytes // SHARE

    @contextlib.contextmanager
    def held_until_scanned_by(self, count: int, cache: Path) -> Iterator[None]:
        """Answer for no part of an epoch before so many scans have joined: none is ahead of one yet to begin."""

        def joined(request: Request) -> None:
            while "/shards/" in request.path and not over.is_set():
                epoch, members = latest_scans(cache)
                if members == count:
                    begun.add(epoch)
                if epoch in begun:
                    return
                over.wait(0.05)

        begun: set[int] = set()
        over = threading.Event()
        self.proxy.rule = joined
        try:
            yield
        finally:
            over.set()
            self.proxy.rule = lambda request: None

    def fetched(self) -> Counter[str]:
        """Bytes of each part that were asked for since the last time."""
        requests, self.proxy.requests = self.proxy.requests, []
        found: Counter[str] = Counter()
        for request in requests:
            digest = Path(request.path).stem
            if request.method == "GET" and digest in self.parts:
                first, _, last = request.headers["range"].removeprefix("bytes=").partition("-")
                found[digest] += int(last) - int(first) + 1
        return found


@pytest.fixture(scope="module")
def bucket(s3_server: str) -> Iterator[Bucket]:
    """Some forty shards of two parts each, or three hundred."""
    url = f"s3://{BUCKET}/{uuid.uuid4().hex}"
    lk = lake.open(url, endpoint_url=s3_server)
    lk.commit("rows", table(ROWS), shard_bytes="64KiB")
    document = lk.dataset("rows").snapshot
    parts = {
        one.digest: one.bytes
        for number in range(document.document.shards)
        for one in document.shard(number).parts
    }
    CONTEXT.set_forkserver_preload(["lake", "lake.stores.s3", "lake.scan", "pyarrow", __name__])
    with S3Proxy(s3_server) as proxy:
        proxy.counts = lambda request: "/shards/" in request.path
        yield Bucket(proxy, url, parts)


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def scanned(
    place: tuple[str, str], cache: Path, budget: int, seed: int, epochs: int = 1, together: Any = None
) -> None:
    """Read epochs, each exact, and begin each `together` with others. What hangs says where."""
    faulthandler.dump_traceback_later(_HANGS_SECONDS, file=sys.__stderr__)
    flight._SLOW_SECONDS = 3600  # a request that is sent a second time would count twice
    url, endpoint = place
    ds = lake.open(url, endpoint_url=endpoint, cache_dir=cache, cache_budget=budget).dataset("rows")
    scan = ds.scan(["n", "x"], shuffle=True, shuffle_window=3, seed=seed, batch_size=50)
    for _ in range(epochs):
        if together is not None:
            together.wait(_HANGS_SECONDS)
        rows = [n for batch in scan for n in batch["n"].to_pylist()]
        assert sorted(rows) == list(range(ROWS))


class Crew:
    """Processes, none of which outlives the `with` block."""

    def __init__(self, bucket: Bucket, cache: Path) -> None:
        self._arguments = bucket.place, cache, bucket.budget
        self.members: list[BaseProcess] = []

    def start(self, seed: int, *more: Any) -> BaseProcess:
        process: BaseProcess = CONTEXT.Process(target=scanned, args=(*self._arguments, seed, *more))
        process.start()
        self.members.append(process)
        return process

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *exc: object) -> None:
        for process in self.members:
            process.kill()
            process.join(20)


LEAVER = """
import sys, time
from pathlib import Path
import lake
from lake.stores import LocalStore
from tests.remote import Remote, remote_lake

class Slow(Remote):
    def get_into(self, key, start, buffer):
        time.sleep(0.2 * key.startswith("shards"))
        return super().get_into(key, start, buffer)

folder, cache, how = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
scan = remote_lake(folder, cache, store=Slow(LocalStore(folder))).dataset("rows").scan(
    shuffle=True, shuffle_window=3, batch_size=16
)
batches = iter(scan)
next(batches)
print("reading", flush=True)
if how == "raise":
    raise KeyError("consumer")
if how == "exit":
    sys.exit(0)
if how == "close":
    batches.close()
if how == "interrupt":
    for batch in batches:
        time.sleep(0.2)
"""


@pytest.mark.parametrize(
    ("how", "code"), [("end", 0), ("close", 0), ("exit", 0), ("raise", 1), ("interrupt", -signal.SIGINT)]
)
def test_a_program_that_ends_in_the_middle_of_an_epoch_leaves_nothing(
    tmp_path: Path, cache: Path, how: str, code: int
) -> None:
    """Requests are under way: it ends all the same, and no half file, lease or reservation stays."""
    lake.open(tmp_path / "lake").commit("rows", table(1000), shard_bytes="64KiB")
    arguments = [sys.executable, "-c", LEAVER, tmp_path / "lake", cache, how]
    environment = {**os.environ, "PYTHONPATH": "."}
    with subprocess.Popen(
        arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "reading\n"
        if how == "interrupt":
            program.send_signal(signal.SIGINT)
        errors = program.communicate(timeout=60)[1]

    assert (program.returncode, "Traceback" in errors) == (code, how in ("raise", "interrupt"))
    assert [path.name for folder in ("flights", "members") for path in (cache / folder).iterdir()] == []
    with Cache(cache, None) as kept:
        assert all(entry.leases == 0 for entry in kept.entries())


def codes(processes: list[BaseProcess], seconds: float = 300) -> list[int | None]:
    """How they ended; None: not yet."""
    deadline = time.monotonic() + seconds
    for process in processes:
        process.join(max(0.0, deadline - time.monotonic()))
    return [process.exitcode for process in processes]


@contextlib.contextmanager
def watched(cache: Path) -> Iterator[list[int]]:
    """The size of a cache's files at moments some 10 ms apart."""
    sizes: list[int] = []
    over = threading.Event()

    def look() -> None:
        while not over.wait(0.01):
            if (cache / "index.sqlite").exists():
                sizes.append(on_disk_now(cache))

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield sizes
    finally:
        over.set()
        thread.join()


@pytest.mark.parametrize("passes", [1, 3] if FULL else [1])
def test_processes_with_one_plan_keep_one_budget_and_fetch_each_part_once_a_pass(
    bucket: Bucket, cache: Path, passes: int
) -> None:
    """Eight of them over five times the budget: at no moment more on the disk, and what one fetches all read.

    They begin each pass together, as the ranks of a training do. The first pass fetches each part once. Those after
    it find some parts, and what they find in place of those they fetch no more often together.
    """
    bucket.fetched()
    together = CONTEXT.Barrier(PROCESSES)

    with bucket.held_until_scanned_by(PROCESSES, cache), watched(cache) as sizes, Crew(bucket, cache) as crew:
        readers = [crew.start(7, passes, together) for _ in range(PROCESSES)]
        assert codes(readers) == [0] * PROCESSES

    assert bucket.budget // 2 < max(sizes) <= bucket.budget
    fetched = bucket.fetched()
    if passes == 1:
        assert dict(fetched) == bucket.parts
    assert sum(fetched.values()) <= passes * bucket.bytes
    assert bucket.proxy.most <= DOWNLOADS


def test_processes_with_plans_of_their_own_wait_for_room_and_all_end(bucket: Bucket, cache: Path) -> None:
    """Eight windows are more than the budget has: some wait, none for ever, and never is there more on the disk."""
    with watched(cache) as sizes, Crew(bucket, cache) as crew:
        readers = [crew.start(seed) for seed in range(PROCESSES)]
        assert codes(readers) == [0] * PROCESSES

    assert max(sizes) <= bucket.budget
    assert bucket.proxy.most <= DOWNLOADS


class Slow(Remote):
    """A store far enough away that processes divide the parts of their first windows among them."""

    def get_into(self, key: str, start: int, buffer: memoryview) -> int:
        time.sleep(0.02 * key.startswith("shards"))
        return super().get_into(key, start, buffer)


def counted(folder: Path, cache: Path, seed: int, together: Any) -> None:
    faulthandler.dump_traceback_later(_HANGS_SECONDS, file=sys.__stderr__)
    ds = remote_lake(folder, cache, store=Slow(LocalStore(folder))).dataset("rows")
    scan = ds.scan(shuffle=True, shuffle_window=3, seed=seed, batch_size=8)
    together.wait(300)
    assert sum(len(batch) for batch in scan) == 600


@pytest.mark.parametrize("seeds", [1, PROCESSES])
def test_processes_that_begin_together_wait_for_what_others_fetch_and_never_in_a_circle(
    tmp_path: Path, cache: Path, seeds: int
) -> None:
    """Each wants a few record batches first, of parts of many that another fetches, who wants some of this one's."""
    blobs = pa.array([random.Random(n).randbytes(100_000) for n in range(600)])
    lake.open(tmp_path / "lake").commit(
        "rows", pa.table({"n": range(600), "blob": blobs}), shard_bytes="8MiB"
    )
    together = CONTEXT.Barrier(PROCESSES)

    arguments = [(tmp_path / "lake", cache, number % seeds, together) for number in range(PROCESSES)]
    readers = [CONTEXT.Process(target=counted, args=each) for each in arguments]
    for reader in readers:
        reader.start()
    try:
        assert codes(readers) == [0] * PROCESSES
    finally:
        for reader in readers:
            reader.kill()
            reader.join(20)


def test_processes_killed_at_any_moment_neither_block_nor_corrupt_the_others(
    bucket: Bucket, cache: Path
) -> None:
    """With kill -9, of the same plan as a survivor's or of another: all survivors read all rows."""
    rng, kills = random.Random(0), 60 if FULL else 8
    with watched(cache) as sizes, Crew(bucket, cache) as crew:
        survivors, victims = [], [crew.start(rng.randrange(3), None, 1000) for _ in range(4)]
        for number in range(kills):
            if number % (kills // 4) == 0:
                survivors.append(crew.start(number % 2))
            time.sleep(rng.uniform(0.1, 0.5))
            victim = victims.pop(rng.randrange(len(victims)))
            victim.kill()
            victim.join(20)
            victims.append(crew.start(rng.randrange(3), None, 1000))
        assert codes(survivors) == [0] * 4

    assert max(sizes) <= bucket.budget
    with Cache(cache, bucket.budget, wait=0) as kept:
        assert kept.used == on_disk(cache) <= bucket.budget
        assert list((cache / "flights").iterdir()) == []
        for path in (cache / "files").glob("*/*"):
            assert hashlib.sha256(path.read_bytes()).hexdigest() == path.name
        kept.reserve("another", "mine", bucket.budget, []).close()
        kept.clear()
        assert kept.used == on_disk(cache) == 0
    assert list((cache / "members").iterdir()) == []
