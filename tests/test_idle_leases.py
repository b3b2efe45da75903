"""Parts that stay open between two epochs: opened once, in nobody's way, and never taken for what they are not."""

from __future__ import annotations

import gc
import hashlib
import shutil
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import lake
from lake.cache import Cache, Lease, Sink, idle
from lake.cache.holds import pauses
from lake.parts import access
from lake.parts.opened import Opened
from lake.repo import Lake
from tests.remote import remote_lake

ROWS = 2000


@pytest.fixture(scope="module", params=["plain", "compressed"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A lake of some shards, whose parts the cache keeps as they are, or decoded."""
    most = {"plain": 255, "compressed": 3}[request.param]
    values = np.random.default_rng(1).integers(0, most, ROWS * 512, np.uint8)
    folder = tmp_path_factory.mktemp(request.param) / "lake"
    lake.open(folder).commit(
        "rows",
        pa.table({"n": np.arange(ROWS), "x": pa.FixedSizeListArray.from_arrays(pa.array(values), 512)}),
        shard_bytes="64KiB",
    )
    return folder


@pytest.fixture(autouse=True)
def _long(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Idle leases would last for ever, but for what ends them; after a test no thread looks after them."""
    monkeypatch.setattr(idle, "IDLE_SECONDS", 1e9)
    yield
    gc.collect()
    assert eventually(lambda: not [each for each in threading.enumerate() if each.name == "lake-idle"])


def eventually(good: Any) -> bool:
    deadline = time.monotonic() + 10
    for pause in pauses():
        if good() or time.monotonic() > deadline:
            return bool(good())
        time.sleep(pause)
    raise AssertionError


def leased(cache: Cache) -> int:
    return sum(entry.leases > 0 for entry in cache.entries())


def working() -> set[str]:
    """The threads of lakes."""
    return {each.name for each in threading.enumerate() if each.name.startswith("lake-")}


def warm(folder: Path, cache: Path, budget: str = "unlimited") -> tuple[Lake, Any]:
    """A lake and a scan of all of it, which has been read twice: parts that are decoded are by now."""
    lk = remote_lake(folder, cache, budget=budget)
    scan = lk.dataset("rows").scan(shuffle=True, shuffle_window=3, batch_size=100)
    for _ in range(2):
        assert sorted(numbers(scan)) == list(range(ROWS))
    return lk, scan


def numbers(scan: Any) -> list[int]:
    return [n for batch in scan for n in batch["n"].to_pylist()]


def fill(data: bytes) -> Any:
    def fetch(sink: Sink) -> None:
        sink.write(data)

    return fetch


def get(cache: Cache, data: bytes) -> Lease:
    return cache.file(hashlib.sha256(data).hexdigest(), len(data), fill(data))


def test_an_epoch_opens_nothing_that_the_one_before_had_open(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And counts what it uses again as found in the cache. A part may land after the epoch that fetched it is over."""
    lk, scan = warm(folder, tmp_path / "cache")
    assert lk.cache is not None
    opened: list[Any] = []
    leased_of = Opened.leased
    monkeypatch.setattr(Opened, "leased", lambda *given: opened.append(given) or leased_of(*given))

    for _ in range(5):
        hits = lk.cache.counters.hits
        opened.clear()
        assert sorted(numbers(scan)) == list(range(ROWS))
        if not opened:
            break

    assert opened == []
    assert lk.cache.counters.hits >= hits + lk.dataset("rows").snapshot.document.shards
    lk.cache.close()
    assert leased(lk.cache) == 0


def test_idle_leases_end_when_nothing_has_used_them_for_a_while(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And with them the thread that looks after them (see the fixture)."""
    lk, _ = warm(folder, tmp_path / "cache")
    assert lk.cache is not None
    assert leased(lk.cache) > 0

    monkeypatch.setattr(idle, "IDLE_SECONDS", 0.1)

    assert eventually(lambda: leased(lk.cache) == 0)


def test_another_process_that_needs_room_gets_it_from_idle_leases(folder: Path, tmp_path: Path) -> None:
    """After a moment; the budget holds, and for a while none are kept."""
    lk, scan = warm(folder, tmp_path / "cache", "4MB")
    assert lk.cache is not None
    assert leased(lk.cache) > 0

    with Cache(tmp_path / "cache", 4_000_000, wait=60) as other:
        get(other, bytes(3_900_000)).close()
        assert other.used <= 4_000_000

    assert sorted(numbers(scan)) == list(range(ROWS))
    assert eventually(lambda: leased(lk.cache) == 0)
    lk.cache.close()


def test_room_that_is_needed_in_the_middle_of_an_epoch_is_made_in_it(folder: Path, tmp_path: Path) -> None:
    """Although all that the epoch reads was open when it began, and no thread brings anything in; rows are exact."""
    lk, scan = warm(folder, tmp_path / "cache", "4MB")
    assert lk.cache is not None
    batches = iter(scan)
    seen = list(next(batches)["n"].to_pylist())
    with ThreadPoolExecutor(1) as pool, Cache(tmp_path / "cache", 4_000_000, wait=60) as other:
        got = pool.submit(lambda: get(other, bytes(2_900_000)).close())
        while not got.done() and (batch := next(batches, None)) is not None:
            seen += batch["n"].to_pylist()
            time.sleep(0.1)
        got.result(60)
        assert other.used <= 4_000_000

    seen += [n for batch in batches for n in batch["n"].to_pylist()]
    assert sorted(seen) == list(range(ROWS))
    lk.cache.close()


def test_a_process_that_needs_room_gives_its_own_idle_leases_up_at_once(folder: Path, tmp_path: Path) -> None:
    """Though it may not wait."""
    lk, _ = warm(folder, tmp_path / "cache", "4MB")
    assert lk.cache is not None
    assert leased(lk.cache) > 0
    lk.cache.wait = 0

    get(lk.cache, bytes(3_900_000)).close()

    assert lk.cache.used <= 4_000_000
    lk.cache.close()


def test_a_cache_is_cleared_of_what_idles(folder: Path, tmp_path: Path) -> None:
    lk, scan = warm(folder, tmp_path / "cache")
    assert lk.cache is not None

    lk.cache.clear()

    assert lk.cache.used == 0
    assert sorted(numbers(scan)) == list(range(ROWS))
    lk.cache.close()


def test_a_cache_is_cleared_of_what_idles_in_other_processes(folder: Path, tmp_path: Path) -> None:
    """But not of what they read: that stays until they have."""
    lk, scan = warm(folder, tmp_path / "cache")
    assert lk.cache is not None

    with Cache(tmp_path / "cache", "auto") as other:
        assert leased(lk.cache) > 0
        assert other.clear() > 0
        assert other.used == 0

        batches = iter(scan)
        rows = next(batches)["n"].to_pylist()
        other.clear()
        assert sorted(rows + [n for batch in batches for n in batch["n"].to_pylist()]) == list(range(ROWS))
    lk.cache.close()


def test_a_file_that_was_damaged_while_it_idled_is_not_used_again(folder: Path, tmp_path: Path) -> None:
    """It no longer looks as it did when it was leased, so it is verified, and fetched anew."""
    lk, scan = warm(folder, tmp_path / "cache")
    assert lk.cache is not None
    expected = {n: row for batch in scan for n, row in zip(*columns(batch), strict=True)}
    files = [path for path in (tmp_path / "cache" / "files").glob("*/*") if path.stat().st_size > 20_000]
    assert files
    for path in files:
        with path.open("r+b") as file:
            file.seek(path.stat().st_size // 2)
            file.write(b"damage" * 100)

    assert {n: row for batch in scan for n, row in zip(*columns(batch), strict=True)} == expected
    lk.cache.close()


def columns(batch: pa.RecordBatch) -> tuple[list[int], list[bytes]]:
    values = batch["x"].flatten().to_numpy().reshape(len(batch), -1)
    return batch["n"].to_pylist(), [row.tobytes() for row in values]


@pytest.mark.parametrize("most", [0, 3])
def test_no_more_parts_idle_than_there_are_descriptors_for(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr(access, "IDLE_PARTS", most)
    lk, _ = warm(folder, tmp_path / "cache")
    assert lk.cache is not None

    assert leased(lk.cache) == most
    lk.cache.close()


def test_nothing_idles_where_not_all_has_room(folder: Path, tmp_path: Path) -> None:
    """What a scan is done with is then what makes room."""
    stored = int(lake.open(folder).dataset("rows").snapshot.manifest.sizes(["n", "x"])[0].sum())
    lk, _ = warm(folder, tmp_path / "cache", f"{stored * 9 // 10_000}kB")
    assert lk.cache is not None

    assert leased(lk.cache) == 0
    lk.cache.close()


def test_a_directory_that_was_removed_is_not_made_again_for_what_idled_in_it(
    folder: Path, tmp_path: Path
) -> None:
    """Whoever removes it need not have closed the lake; the next scan makes another."""
    lk, scan = warm(folder, tmp_path / "cache")
    assert leased(lk.cache)
    for _ in range(5):  # whatever is looked at while it goes
        assert eventually(lambda: all(name in ("lake-idle", "lake-scan") for name in working()))
        shutil.rmtree(tmp_path / "cache")
        time.sleep(2 * idle.LOOK_SECONDS)
        assert not (tmp_path / "cache").exists()
        assert sorted(numbers(scan)) == list(range(ROWS))
