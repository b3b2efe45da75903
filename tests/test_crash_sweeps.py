"""Whatever store call of an operation fails, or loses its reply: the lake is whole, and repeating succeeds."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lake
from lake import commit
from lake.format import names
from lake.repo import Lake
from lake.stores.wrappers import FAULTS, Fault, FaultStore
from tests.damage import every_row, table
from tests.memory import GRACE, MemoryStore, lake_on
from tests.scheduler import Inline

ROOT = Path(__file__).parents[1]
FULL = bool(os.environ.get("LAKE_TEST_FULL"))


def base(store: MemoryStore) -> Lake:
    """`birds`: two appends on a first version of several shards, a grace ago."""
    lk = lake_on(store)
    lk.commit("birds", table(0, 2000), shard_bytes="16KiB")
    lk.commit("birds", table(2000, 2020), mode="append")
    lk.commit("birds", table(2020, 2040), mode="append")
    store.clock += 2 * GRACE
    return lk


def expired(store: MemoryStore) -> Lake:
    lk = base(store)
    lk.expire("birds", keep=1, dry_run=False)
    lk.commit("birds", table(0, 60), shard_bytes="16KiB")
    lk.expire("birds", keep=1, dry_run=False)
    return lk


def condemned(store: MemoryStore) -> Lake:
    lk = expired(store)
    lk.gc(dry_run=False, force=True)
    store.clock += GRACE
    return lk


def damaged(store: MemoryStore) -> Lake:
    lk = base(store)
    [*_, last] = lk.dataset("birds").snapshot.manifest.shards()
    store.delete([names.part_key(part.digest) for part in last.parts])
    return lk


def mirrored(store: MemoryStore) -> Lake:
    """As `damaged`, with a copy of the lake from before."""
    base(store)
    MIRROR.objects = dict(store.objects)
    store.objects.clear()
    return damaged(store)


MIRROR = MemoryStore()


def tagged(store: MemoryStore) -> Lake:
    lk = base(store)
    lk.tag("birds@#1", "v1")
    return lk


def doubled(batch: pa.RecordBatch) -> dict[str, Any]:
    return {"twice": [2 * x for x in batch["x"].to_pylist()]}


@dataclass(frozen=True)
class Operation:
    """What is done on what, and what is then true."""

    prepare: Callable[[MemoryStore], Lake]
    act: Callable[[Lake], object]
    rows: int  # of the head afterwards
    again: bool = True  # whether repeating it after it was done is allowed, and changes nothing
    hurt: bool = False  # whether the lake is damaged to begin with


OPERATIONS: dict[str, Operation] = {
    "overwrite": Operation(base, lambda lk: lk.commit("birds", table(100, 1500), shard_bytes="16KiB"), 1400),
    "append": Operation(base, lambda lk: lk.commit("birds", table(2040, 2100), mode="append", txn="t"), 2100),
    "delete_rows": Operation(base, lambda lk: lk.delete_rows("birds", "x = 3"), 2031),
    "update_rows": Operation(base, lambda lk: lk.update_rows("birds", table(5, 9)), 2040),
    "add_columns": Operation(base, lambda lk: lk.add_columns("birds", doubled), 2040, again=False),
    "drop_columns": Operation(base, lambda lk: lk.drop_columns("birds", ["x"]), 2040, again=False),
    "compact": Operation(base, lambda lk: lk.compact("birds"), 2040),
    "rollback": Operation(base, lambda lk: lk.rollback("birds", "#1"), 2000),
    "copy": Operation(base, lambda lk: lk.copy("birds", "fish"), 2040, again=False),
    "tag": Operation(base, lambda lk: lk.tag("birds@#1", "v1"), 2040),
    "untag": Operation(tagged, lambda lk: lk.untag("birds", "v1"), 2040, again=False),
    "expire": Operation(base, lambda lk: lk.expire("birds", keep=1, dry_run=False), 2040),
    "condemn": Operation(expired, lambda lk: lk.gc(dry_run=False, force=True), 60),
    "sweep": Operation(condemned, lambda lk: lk.gc(dry_run=False, force=True), 60),
    "gc without writers": Operation(
        expired, lambda lk: lk.gc(dry_run=False, force=True, no_writers=True, grace=0), 60
    ),
    "repair": Operation(damaged, lambda lk: lk.repair("birds", drop=True, dry_run=False), 2020, hurt=True),
    "repair from a copy": Operation(
        mirrored,
        lambda lk: lk.repair("birds", source=lake_on(MIRROR), dry_run=False),
        2040,
        hurt=True,
    ),
}


@pytest.fixture(autouse=True)
def _in_order(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """One thread, so that call i is the same call each time; no pauses; a folder for unfinished work."""
    for module in ("refs", "ingest", "edit", "verify"):
        monkeypatch.setattr(f"lake.{module}.ThreadPoolExecutor", Inline)
    monkeypatch.setattr(commit.time, "sleep", lambda seconds: None)
    monkeypatch.setenv("LAKE_CACHE_DIR", str(tmp_path / "cache"))


def twin(store: MemoryStore) -> MemoryStore:
    made = MemoryStore()
    made.objects, made.clock = dict(store.objects), store.clock
    return made


def calls_of(operation: Operation, start: MemoryStore) -> int:
    """How many store calls it makes when nothing fails."""
    faulty = FaultStore(twin(start))  # type: ignore[arg-type]
    operation.act(lake_on(faulty))
    return len(faulty.calls)


@pytest.mark.parametrize("name", OPERATIONS)
def test_any_call_may_fail_or_lose_its_reply(name: str):
    """Fail at call i, reopen, verify full: the old state or the new one, whole. Retry, verify: the new one."""
    operation = OPERATIONS[name]
    start = MemoryStore()
    lk = operation.prepare(start)
    before = len(lk.dataset("birds"))
    calls = calls_of(operation, start)
    assert calls > 3
    faults: tuple[Fault, ...] = FAULTS if FULL else ("raise", "lost")
    for fault in (fault for fault in faults if fault != "slow"):
        for index in range(0, calls, 1 if FULL else 4):
            store = twin(start)
            try:
                operation.act(lake_on(FaultStore(store, {index: fault})))  # type: ignore[arg-type]
                failed = False
            except lake.LakeError:
                failed = True
            where = f"{name}: {fault} at call {index}, failed: {failed}"
            _check_whole(store, operation, before, where)
            with nullcontext() if operation.again else suppress(lake.LakeError):
                operation.act(lake_on(store))
            _check_done(store, operation, where)


def _check_whole(store: MemoryStore, operation: Operation, before: int, where: str) -> None:
    if not operation.hurt:
        report = lake_on(store).verify("full")
        assert report.ok, f"{where}: {report.problems}"
        now = every_row(lake_on(store), "birds")
        assert len(now) in (before, operation.rows), where
    seqs = [entry.seq for entry in lake_on(store).log("birds")]
    assert seqs == list(range(len(seqs), 0, -1)), where


def _check_done(store: MemoryStore, operation: Operation, where: str) -> None:
    assert len(every_row(lake_on(store), "birds")) == operation.rows, where
    if operation.hurt:
        lake_on(store).expire("birds", keep=1, dry_run=False)
    report = lake_on(store).verify("full")
    assert report.ok, f"{where}: {report.problems}"
    for _ in range(3):
        store.clock += GRACE
        lake_on(store).gc(dry_run=False, force=True)
    assert len(every_row(lake_on(store), "birds")) == operation.rows, where
    assert lake_on(store).gc(no_writers=True, grace=0).condemned == 0, (
        f"{where}: something is never collected"
    )


_KILLED = """
import sys
import lake
from tests.damage import table
lk = lake.open(sys.argv[1], progress=False)
for n in range(1000):
    print(n, flush=True)
    lk.commit("birds", table(n, n + 400), shard_bytes="16KiB")
    lk.commit("birds", table(n + 400, n + 420), mode="append")
    lk.delete_rows("birds", "x = 3")
    lk.expire("birds", keep=2, dry_run=False)
"""


def test_a_process_that_is_killed_leaves_a_whole_lake(tmp_path: Path):
    """`kill -9` at random moments, of a process that commits all the time: verify finds nothing, commits go on."""
    dice = random.Random(9)
    url = tmp_path / "lake"
    for moment in range(100 if FULL else 4):
        with subprocess.Popen(
            [sys.executable, "-c", _KILLED, str(url)], stdout=subprocess.PIPE, cwd=ROOT
        ) as process:
            assert process.stdout is not None
            process.stdout.readline()
            time.sleep(dice.uniform(0, 0.5))
            process.kill()
        lk = lake.open(url)
        try:
            report = lk.verify("full")
        except lake.NotFoundError:  # before the lake was made
            continue
        assert report.ok, f"moment {moment}: {report.problems}"
        seqs = [entry.seq for entry in lk.refs.entries("birds")]
        assert seqs == list(range(len(seqs), 0, -1))
    lk.commit("birds", table(0, 50), shard_bytes="16KiB")
    lk.gc(dry_run=False, force=True, no_writers=True, grace=0)
    assert len(lk.dataset("birds")) == 50
    assert not any((url / "tmp").iterdir())
    assert lk.verify("full").ok
