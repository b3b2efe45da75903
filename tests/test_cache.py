"""What one process may expect of the cache; `test_cache_processes` has what several may."""

from __future__ import annotations

import errno
import os
import pickle
import random
import shutil
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lake.cache import Cache, Memory, Reservation, Sink, groups, holds, index, room, shelf
from lake.cache import cache as cache_module
from lake.cache import sink as sink_module
from lake.errors import BudgetError, ConfigError, FormatError, IntegrityError, StoreError
from tests.cache_files import File, on_disk, unreachable, whole_files

MakeCache = Callable[..., Cache]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def make(root: Path) -> Iterator[MakeCache]:
    """Caches in one directory, as if of several processes that do not wait long."""
    made: list[Cache] = []

    def make(budget: int | None = 10_000, wait: float = 0.0) -> Cache:
        made.append(Cache(root, budget, wait=wait))
        return made[-1]

    yield make
    for cache in made:
        cache.close()


def get(cache: Cache, file: File, fetch: Callable[[Sink], object] | None = None) -> bytes:
    with cache.file(file.digest, file.size, fetch or file.fetch) as lease:
        return lease.path.read_bytes()


def is_kept(cache: Cache, file: File) -> bool:
    lease = cache.peek(file.digest)
    if lease is not None:
        lease.close()
    return lease is not None


FILES = [File.make(i) for i in range(30)]
A, B, C, *_ = FILES


# --- getting --------------------------------------------------------------------------------


def test_a_file_is_fetched_once_and_then_found(make: MakeCache, root: Path) -> None:
    """The second request fetches nothing, in this process or in another."""
    cache = make()

    assert get(cache, A) == A.data
    assert get(cache, A, unreachable) == A.data
    assert get(make(), A, unreachable) == A.data

    counted = cache.counters
    assert (counted.misses, counted.hits, counted.bytes_fetched, counted.bytes_hit) == (1, 1, 1000, 1000)
    assert cache.used == on_disk(root) == 1000


def test_a_document_is_fetched_once_and_then_found(make: MakeCache) -> None:
    assert make().blob(A.digest, lambda: A.data) == A.data
    assert make().blob(A.digest, unreachable) == A.data


def test_an_empty_file_is_a_file(make: MakeCache) -> None:
    empty = File.make(0, size=0)

    with make().file(empty.digest, 0, empty.fetch) as lease:
        assert bytes(lease.map()) == b""
    assert make().blob(empty.digest, unreachable) == b""


@given(st.binary(min_size=1, max_size=200), st.data())
def test_pieces_may_be_written_in_any_order(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, draw: st.DataObject
) -> None:
    """The checksum is that of the bytes in their places, whatever came first."""
    cuts = sorted(draw.draw(st.sets(st.integers(0, len(data)))) | {0, len(data)})
    pieces = draw.draw(st.permutations(list(pairwise(cuts))))
    path = tmp_path_factory.mktemp("sink") / "file"
    sink = Sink(str(path), len(data), named=True, make_room=lambda _: False)

    for start, end in pieces:
        sink.write_at(start, data[start:end])

    assert sink.checksum() == (len(data), File(data, cache_module.hashlib.sha256(data).hexdigest()).digest)
    assert path.read_bytes() == data
    sink.release()


def test_several_threads_may_write_the_pieces_of_one_file(make: MakeCache) -> None:
    file = File.make("big", 1_000_000)

    def fetch(sink: Sink) -> None:
        with ThreadPoolExecutor(8) as pool:
            list(
                pool.map(
                    lambda start: sink.write_at(start, file.data[start : start + 7919]),
                    range(0, file.size, 7919),
                )
            )

    assert get(make(2_000_000), file, fetch) == file.data


def test_threads_that_want_one_file_fetch_it_once(make: MakeCache) -> None:
    cache = make()
    fetched: list[int] = []

    def fetch(sink: Sink) -> None:
        fetched.append(1)
        time.sleep(0.05)
        A.fetch(sink)

    with ThreadPoolExecutor(8) as pool:
        got = list(pool.map(lambda _: get(cache, A, fetch), range(8)))

    assert got == [A.data] * 8
    assert fetched == [1]


# --- fetches that go wrong ------------------------------------------------------------------


def test_a_failing_fetch_leaves_nothing_behind(make: MakeCache, root: Path) -> None:
    cache = make()

    def fetch(sink: Sink) -> None:
        sink.write(A.data[:500])
        raise StoreError("the network went away")

    with pytest.raises(StoreError, match="network"):
        get(cache, A, fetch)

    assert cache.used == on_disk(root) == 0
    assert list((root / "flights").iterdir()) == []
    assert get(cache, A) == A.data


def test_bytes_that_differ_from_their_digest_are_fetched_again_and_then_refused(
    make: MakeCache, root: Path
) -> None:
    cache = make()
    tries: list[int] = []

    def fetch(sink: Sink) -> None:
        tries.append(1)
        sink.write(A.data if len(tries) == 6 else B.data)

    with pytest.raises(IntegrityError, match=A.digest[:12]) as caught:
        get(cache, A, fetch)
    assert caught.value.digest == A.digest
    assert len(tries) == 3
    assert on_disk(root) == 0

    assert get(cache, A, fetch) == A.data


def test_a_document_that_differs_from_its_digest_is_refused(make: MakeCache, root: Path) -> None:
    with pytest.raises(IntegrityError, match=A.digest[:12]):
        make().blob(A.digest, lambda: B.data)
    assert on_disk(root) == 0


def test_a_body_that_is_too_long_is_refused_before_it_is_written(make: MakeCache, root: Path) -> None:
    with pytest.raises(IntegrityError, match="1000 bytes"):
        get(make(), A, lambda sink: sink.write(A.data + b"x"))
    assert on_disk(root) == 0


def test_a_body_with_a_hole_is_refused(make: MakeCache) -> None:
    with pytest.raises(ValueError, match="byte 0"):
        get(make(), A, lambda sink: sink.write_at(500, A.data[500:]))


# --- damage ---------------------------------------------------------------------------------


def flip(path: Path, *, hide: bool) -> None:
    """Change one bit of a file; with `hide`, so that it looks as before."""
    stat = path.stat()
    path.chmod(0o600)
    with path.open("r+b") as file:
        byte = file.read(1)[0]
        file.seek(0)
        file.write(bytes([byte ^ 1]))
    if hide:
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def the_file(root: Path) -> Path:
    [path] = (root / "files").glob("*/*")
    return path


def test_a_file_that_was_changed_is_fetched_again(make: MakeCache, root: Path) -> None:
    """Also by a process that had verified it before."""
    cache = make()
    get(cache, A)
    flip(the_file(root), hide=False)

    assert get(cache, A) == A.data
    assert cache.counters.refetched == 1


@pytest.mark.parametrize("hide", [False, True])
def test_a_document_that_was_changed_is_fetched_again(make: MakeCache, root: Path, hide: bool) -> None:
    cache = make()
    cache.blob(A.digest, lambda: A.data)
    flip(the_file(root), hide=hide)

    assert cache.blob(A.digest, lambda: A.data) == A.data
    assert cache.blob(A.digest, unreachable) == A.data


def test_a_reader_that_finds_damage_has_the_file_fetched_again(make: MakeCache, root: Path) -> None:
    """What a batch's own checks find reaches every process; a false alarm costs a hash, not a fetch."""
    mine, others = make(), make()
    get(mine, A)
    get(others, A, unreachable)
    others.discard(A.digest)
    assert get(mine, A, unreachable) == A.data

    flip(the_file(root), hide=True)
    others.discard(A.digest)
    assert get(mine, A) == A.data


@pytest.mark.parametrize("damaged", [False, True])
@pytest.mark.parametrize("torn", [False, True], ids=["index good", "index torn"])
def test_files_of_an_earlier_boot_are_verified_once_more(
    make: MakeCache, root: Path, monkeypatch: pytest.MonkeyPatch, damaged: bool, torn: bool
) -> None:
    """After a power failure a file may look right and be wrong; undamaged ones are not fetched again."""
    with make() as before:
        get(before, A)
    if torn:
        tear(root)
    if damaged:
        flip(the_file(root), hide=True)
    for module in (index, shelf):
        monkeypatch.setattr(module, "BOOT", "the next boot")
    cache = make()

    assert get(cache, A, None if damaged else unreachable) == A.data
    assert cache.counters.misses == damaged
    assert get(cache, A, unreachable) == A.data


@pytest.mark.parametrize("loss", ["removed", "garbage"])
def test_losing_the_index_loses_no_file(make: MakeCache, root: Path, loss: str) -> None:
    """Files are found again, counted, and verified before they are used."""
    make().blob(B.digest, lambda: B.data)
    get(make(), A)
    get(make(), C)
    for cache in [make()]:
        cache.close()
    flip(root / "files" / C.digest[:2] / C.digest, hide=True)
    for path in root.glob("index.sqlite*"):
        path.unlink()
    if loss == "garbage":
        (root / "index.sqlite").write_bytes(b"not a database" * 1000)

    cache = make()

    assert cache.used == 3000
    assert get(cache, A, unreachable) == A.data
    assert cache.blob(B.digest, unreachable) == B.data
    assert get(cache, C) == C.data
    assert cache.counters.misses == 1


def tear(root: Path) -> None:
    """Overwrite the part of the index that lists the files; nobody has it open."""
    connection = sqlite3.connect(root / "index.sqlite")
    [(page,)] = connection.execute("select rootpage from sqlite_master where name = 'files'")
    connection.close()
    with (root / "index.sqlite").open("r+b") as index:
        index.seek(4096 * (page - 1))
        index.write(b"x" * 4096)


@pytest.mark.parametrize("reads", [True, False])
def test_an_index_that_breaks_is_made_anew(make: MakeCache, root: Path, reads: bool) -> None:
    """The change that meets the damage may be repeated; nothing that was cached is fetched again."""
    cache = make(10**6)
    for file in FILES:
        get(cache, file)
    cache.close()
    tear(root)

    if reads:
        assert len(cache.entries()) == 30
    else:
        with pytest.raises(StoreError, match="made anew") as caught:
            cache.clear()
        assert caught.value.retryable
    assert make(10**6).used == 30_000
    assert get(cache, A, unreachable) == A.data


def test_opening_a_cache_with_a_broken_index_mends_it(make: MakeCache, root: Path) -> None:
    with make() as cache:
        get(cache, A)
    tear(root)

    assert make().used == 1000


def test_a_directory_that_is_removed_under_a_running_process_is_made_anew(
    make: MakeCache, root: Path
) -> None:
    cache = make()
    held = cache.file(A.digest, A.size, A.fetch).map()
    reservation = cache.reserve("plan", "rank 0", 1000, [(A.digest, 1000)])
    shutil.rmtree(root)

    assert get(cache, A) == A.data
    assert bytes(held) == A.data
    assert cache.used == 1000
    reservation.advance(1)
    cache.reserve("plan", "rank 0", 1000, [(A.digest, 1000)]).close()


# --- the budget -----------------------------------------------------------------------------


def test_a_file_larger_than_the_budget_is_refused_before_it_is_fetched(make: MakeCache) -> None:
    with pytest.raises(BudgetError, match=r"1\.0 kB.*999 B") as caught:
        get(make(999), A, unreachable)
    assert (caught.value.needed, caught.value.budget) == (1000, 999)


def test_without_reservations_the_least_recently_used_goes_first(make: MakeCache, root: Path) -> None:
    cache = make(3000)
    for file in (A, B, C):
        get(cache, file)
    get(cache, A)

    get(cache, FILES[3])

    assert [is_kept(cache, file) for file in (A, B, C, FILES[3])] == [True, False, True, True]
    assert cache.used == on_disk(root) == 3000
    assert cache.counters.evicted == 1


def test_a_leased_file_stays_and_the_newcomer_is_refused_after_waiting(make: MakeCache) -> None:
    cache = make(1000, wait=0.2)
    lease = cache.file(A.digest, A.size, A.fetch)

    with pytest.raises(BudgetError, match="batches in use"):
        get(make(1000, wait=0.05), B)
    assert lease.path.read_bytes() == A.data
    assert make(1000).crowded

    lease.close()
    assert get(cache, B) == B.data


def test_waiting_ends_as_soon_as_a_lease_does(make: MakeCache) -> None:
    cache = make(1000, wait=30)
    lease = cache.file(A.digest, A.size, A.fetch)
    threading.Timer(0.1, lease.close).start()

    assert get(cache, B) == B.data


def test_a_map_keeps_its_file_leased_until_nothing_refers_to_it(make: MakeCache) -> None:
    """Closing the lease is not enough, for batches may look into the map still."""
    cache = make(1000)
    with cache.file(A.digest, A.size, A.fetch) as lease:
        buffer = pa.py_buffer(lease.map()).slice(10, 100)

    with pytest.raises(BudgetError):
        get(cache, B)
    assert buffer.to_pybytes() == A.data[10:110]

    del buffer
    assert get(cache, B) == B.data


def test_a_closed_lease_says_so(make: MakeCache) -> None:
    lease = make().file(A.digest, A.size, A.fetch)
    lease.close()
    with pytest.raises(ValueError, match="closed"):
        lease.map()


def test_a_document_without_room_is_given_but_not_kept(make: MakeCache) -> None:
    cache = make(1000)
    with cache.file(A.digest, A.size, A.fetch):
        assert cache.blob(B.digest, lambda: B.data) == B.data
        assert cache.used == 1000
    assert make(10).blob(C.digest, lambda: C.data) == C.data


def test_opening_with_a_smaller_budget_shrinks_at_once(make: MakeCache, root: Path) -> None:
    for file in FILES[:10]:
        get(make(), file)

    assert make(3500).used == on_disk(root) == 3000


def test_auto_is_half_of_what_would_be_free_without_the_cache(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So it does not shrink as the cache fills."""
    free = 100_000
    monkeypatch.setattr(cache_module._os, "available_disk", lambda _: free)
    with Cache(root) as cache:
        assert cache.budget == 50_000
        get(cache, A)
    free -= 1000
    with Cache(root) as cache:
        assert cache.budget == 50_000


def test_clearing_skips_what_is_leased(make: MakeCache, root: Path) -> None:
    cache = make()
    get(cache, A)
    cache.blob(B.digest, lambda: B.data)
    with cache.file(C.digest, C.size, C.fetch):
        assert cache.clear() == 2000
        assert set(whole_files(root)) == {C.digest}
    assert cache.clear() == 1000
    assert cache.used == on_disk(root) == 0


def test_entries_say_what_is_there_and_who_uses_it(make: MakeCache) -> None:
    cache = make()
    cache.blob(B.digest, lambda: B.data)
    with cache.file(A.digest, A.size, A.fetch), cache.file(A.digest, A.size, unreachable):
        found = {entry.digest: entry for entry in make().entries()}

    assert (found[A.digest].layout, found[A.digest].bytes) == ("stored", 1000)
    assert found[A.digest].leases == (2 if index.BOOT != "unknown" else 1)
    assert (found[B.digest].layout, found[B.digest].leases) == ("document", 0)


def test_a_cache_pickles_as_a_way_to_the_same_directory(make: MakeCache) -> None:
    get(make(5000, wait=7), A)

    copy = pickle.loads(pickle.dumps(make(5000, wait=7)))

    assert (copy.budget, copy.wait) == (5000, 7)
    assert get(copy, A, unreachable) == A.data
    copy.close()


def test_a_hold_is_never_on_a_file_that_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between opening a file and holding it, another process may have removed or replaced it."""
    lock, path = holds._os.lock, tmp_path / "file"
    removals = [path, path]

    def slow_lock(fd: int, *, exclusive: bool, wait: bool = True) -> bool:
        if removals:
            removals.pop().unlink()
        return lock(fd, exclusive=exclusive, wait=wait)

    monkeypatch.setattr(holds._os, "lock", slow_lock)
    path.touch()
    with pytest.raises(FileNotFoundError):
        holds.take(path, exclusive=False)
    with holds.take(path, exclusive=True, create=True) as hold:
        assert path.stat().st_ino == hold.stat.st_ino


# --- a full disk ----------------------------------------------------------------------------


class Quota:
    """A disk with room for `limit` bytes of the cache's."""

    def __init__(self, root: Path, limit: int) -> None:
        self.root, self.limit = root, limit

    def __call__(self, fd: int, data: memoryview, start: int) -> int:
        room = self.limit - on_disk(self.root)
        if room <= 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return os.pwrite(fd, data[:room], start)


def test_a_full_disk_means_evict_and_go_on(
    make: MakeCache, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk may be fuller than the budget says; old files make room for the new one."""
    monkeypatch.setattr(sink_module, "_pwrite", Quota(root, 3300))
    cache = make()
    for file in FILES[:8]:
        assert get(cache, file) == file.data
        assert on_disk(root) <= 3300


def test_a_disk_full_of_other_things_is_a_clear_error(
    make: MakeCache, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sink_module, "_pwrite", Quota(root, 900))
    cache = make()

    with pytest.raises(StoreError, match=r"disk of .* is full .* free some space"):
        get(cache, A)
    assert cache.used == on_disk(root) == 0
    assert cache.blob(B.digest, lambda: B.data) == B.data
    assert on_disk(root) == 0
    assert cache.used == 0


# --- what is not the cache's ----------------------------------------------------------------


def test_a_directory_with_other_things_in_it_is_refused(tmp_path: Path) -> None:
    """A cache deletes files: it must not be pointed at somebody's data by mistake."""
    (tmp_path / "thesis.tex").write_text("...")

    with pytest.raises(ConfigError, match=r"thesis\.tex"):
        Cache(tmp_path, 1000)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_cache_of_a_newer_lake_is_left_alone(make: MakeCache, root: Path) -> None:
    get(make(), A)
    (root / "lake-cache.json").write_text('{"lake cache": 2}')

    with pytest.raises(FormatError, match="format 2"):
        make()


def test_files_that_the_cache_did_not_write_are_never_deleted(make: MakeCache, root: Path) -> None:
    """Not by clearing, not by eviction, not when the index is lost, and they do not count."""
    get(make(), A)
    foreign = [
        root / "notes.txt",
        root / "files" / "readme",
        root / "files" / A.digest[:2] / "copy",
        root / "files" / "zz" / A.digest,
        root / "flights" / "todo",
        root / "members" / "list",
    ]
    for path in foreign:
        path.parent.mkdir(exist_ok=True)
        path.write_text("mine")
    for cache in [make()]:
        cache.close()
    (root / "index.sqlite").unlink()

    cache = make(2000)
    cache.clear()
    for file in FILES[:5]:
        get(cache, file)

    assert all(path.read_text() == "mine" for path in foreign)
    assert cache.used == 2000


# --- reservations ---------------------------------------------------------------------------


def needs(files: list[File]) -> list[tuple[str, int]]:
    return [(file.digest, file.size) for file in files]


def epoch(cache: Cache, reservation: Reservation, files: list[File], window: int) -> int:
    """How many of the files had to be fetched, reading ahead by `window` as a scan does."""
    before = cache.counters.misses
    for position in range(len(files)):
        for file in files[position : position + window]:
            get(cache, file)
        reservation.advance(position + 1)
    return cache.counters.misses - before


@pytest.mark.parametrize("shuffled", [False, True])
def test_a_budget_of_four_fifths_of_the_data_saves_four_fifths_of_the_second_epoch(
    make: MakeCache, shuffled: bool
) -> None:
    """Least-recently-used would save nothing of a scan in order."""
    cache = make(24_000)
    orders = [list(FILES) for _ in range(3)]
    if shuffled:
        orders = [random.Random(i).sample(FILES, len(FILES)) for i in range(3)]
    reservation = cache.reserve("plan", "scan", 3000, needs(orders[0]))

    fetched = [epoch(cache, reservation, orders[0], 3)]
    for number in (1, 2):
        reservation.begin(number, needs(orders[number]))
        fetched.append(epoch(cache, reservation, orders[number], 3))

    assert fetched[0] == 30
    assert fetched[1] <= 8
    assert fetched[2] <= 8
    reservation.close()


def test_a_scan_that_cannot_fit_is_told_at_once(make: MakeCache) -> None:
    with pytest.raises(BudgetError, match=r"11 kB.*10 kB.*shuffle_window"):
        make(10_000, wait=60).reserve("plan", "rank 0", 11_000, [])


def test_a_second_plan_waits_until_the_first_is_done_and_is_told_who_is_in_its_way(make: MakeCache) -> None:
    cache = make(10_000, wait=0.1)
    first = cache.reserve("one", "rank 0 of birds", 6000, needs(FILES[:6]))

    with pytest.raises(BudgetError, match="rank 0 of birds") as caught:
        make(10_000, wait=0.1).reserve("two", "rank 0", 5000, [])
    assert caught.value.holders == (os.getpid(),)
    make(10_000).reserve("two", "small", 4000, []).close()

    first.close()
    make(10_000).reserve("two", "rank 0", 5000, []).close()


def test_scans_of_one_plan_share_what_was_promised(make: MakeCache) -> None:
    cache = make(10_000)
    one = [cache.reserve("plan", f"rank {rank}", 6000, needs(FILES)) for rank in range(3)]

    cache.reserve("other", "rank 0", 4000, []).close()

    one.pop(0).close()
    with pytest.raises(BudgetError):
        cache.reserve("other", "rank 0", 4001, [])
    for reservation in one:
        reservation.close()
    cache.reserve("other", "rank 0", 10_000, []).close()


def test_scans_that_need_different_files_are_not_one_plan(make: MakeCache) -> None:
    cache = make()
    with (
        cache.reserve("plan", "rank 0", 1000, needs([A])),
        pytest.raises(ValueError, match="not one plan"),
    ):
        cache.reserve("plan", "rank 1", 1000, needs([B]))


def test_what_was_promised_stays_whatever_others_read(make: MakeCache) -> None:
    """Only the window is promised: what the plan needs later makes way for what is read now."""
    cache, other = make(4000), make(4000)
    with cache.reserve("plan", "scan", 2000, needs(FILES[:4])):
        for file in FILES[:4]:
            get(cache, file)
        with other.file(B.digest, B.size, unreachable):
            for file in FILES[10:20]:
                get(other, file)
        assert [is_kept(cache, file) for file in FILES[:4]] == [True, True, True, False]

        with (
            other.file(FILES[10].digest, 1000, FILES[10].fetch),
            other.file(FILES[11].digest, 1000, FILES[11].fetch),
        ):
            assert [is_kept(cache, file) for file in FILES[:4]] == [True, True, False, False]
            with pytest.raises(BudgetError, match="scan"):
                get(other, FILES[12])


def test_a_file_stays_until_every_member_of_the_group_has_passed_it(make: MakeCache) -> None:
    """The foremost waits for room rather than take what the hindmost still needs."""
    cache = make(3000)
    fast = cache.reserve("plan", "rank 0", 2000, needs(FILES[:6]))
    slow = cache.reserve("plan", "rank 1", 2000, needs(FILES[:6]))
    for position in range(3):
        get(cache, FILES[position])
        fast.advance(position + 1)

    with pytest.raises(BudgetError, match="rank 1"):
        get(cache, FILES[3])
    slow.advance(1)
    get(cache, FILES[3])

    assert [is_kept(cache, file) for file in FILES[:4]] == [False, True, True, True]
    fast.close()
    slow.close()


def test_a_member_that_is_long_behind_is_left_behind_and_fetches_for_itself(
    make: MakeCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(groups, "PATIENCE", 0.05)
    cache = make(3000, wait=10)
    fast = cache.reserve("plan", "rank 0", 2000, needs(FILES[:8]))
    slow = cache.reserve("plan", "rank 1", 2000, needs(FILES[:8]))

    for position in range(8):
        get(cache, FILES[position])
        fast.advance(position + 1)
    slow.advance(1)

    assert slow.apart
    assert not fast.apart
    get(cache, FILES[4])
    assert cache.counters.refetched == 1
    slow.advance(8)
    assert not slow.apart
    fast.close()
    slow.close()


def test_who_waits_for_a_promise_of_room_says_for_whom(
    make: MakeCache, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Two scans in one thread may wait for each other: then nobody else could say so."""
    monkeypatch.setattr(groups, "_SILENT", 0.05)
    cache = make(3000, wait=0.5)

    with cache.reserve("plan", "scan of birds", 2000, needs(FILES[:8])), pytest.raises(BudgetError):
        cache.reserve("another", "scan of bees", 2000, needs(FILES[:8]))

    [said] = [record.getMessage() for record in caplog.records]
    assert "scan of bees found no room" in said
    assert f"scan of birds (pid {os.getpid()})" in said


def test_what_was_deleted_by_a_process_that_was_killed_then_is_not_counted(make: MakeCache) -> None:
    """A file is deleted first, then said to be: whoever opens the cache next finds what is left of it."""
    cache = make(10_000)
    for file in FILES[:3]:
        get(cache, file)
    [gone] = [path for path in (cache.root / "files").glob("*/*") if path.name == FILES[1].digest]
    gone.unlink()

    again = make(10_000)

    assert again.used == on_disk(cache.root) == sum(file.size for file in (FILES[0], FILES[2]))
    get(again, FILES[1])
    assert again.used == on_disk(cache.root)


def test_a_group_does_not_wait_for_one_who_joins_more_than_the_budget_behind(make: MakeCache) -> None:
    """One that can still find all that it needs is waited for: here it would be, for a minute."""
    cache = make(3000, wait=0.5)
    fast = cache.reserve("plan", "rank 0", 2000, needs(FILES[:8]))
    for position in range(4):
        get(cache, FILES[position])
        fast.advance(position + 1)

    late = cache.reserve("plan", "latecomer", 2000, needs(FILES[:8]))

    for position in range(4, 8):
        get(cache, FILES[position])
        fast.advance(position + 1)
    for position in range(8):
        get(cache, FILES[position])
        late.advance(position + 1)
    assert not late.apart
    fast.close()
    late.close()


def test_a_member_that_stands_still_is_left_behind_by_those_who_wait_for_room(
    make: MakeCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also within the window, where the budget has no more than that; it rejoins when it has caught up."""
    monkeypatch.setattr(groups, "PATIENCE", 0.05)
    cache = make(2000, wait=10)
    fast = cache.reserve("plan", "rank 0", 2000, needs(FILES[:4]))
    still = cache.reserve("plan", "rank 1", 2000, needs(FILES[:4]))

    for position in range(4):
        get(cache, FILES[position])
        fast.advance(position + 1)

    still.advance(1)
    assert still.apart
    assert not fast.apart
    still.advance(4)
    assert not still.apart
    fast.close()
    still.close()


def test_a_member_ahead_in_the_next_epoch_does_not_take_the_end_of_this_one_from_the_others(
    make: MakeCache,
) -> None:
    cache = make(3000)
    order = FILES[:6]
    fast = cache.reserve("plan", "rank 0", 2000, needs(order))
    slow = cache.reserve("plan", "rank 1", 2000, needs(order))
    slow.advance(5)
    get(cache, order[5])
    fast.advance(6)
    fast.begin(1, needs(order[::-1][1:]))
    for file in order[::-1][1:3]:
        get(cache, file)

    with pytest.raises(BudgetError):
        get(cache, order[2])
    assert is_kept(cache, order[5])
    fast.close()
    slow.close()


def test_a_closed_reservation_says_so(make: MakeCache, root: Path) -> None:
    reservation = make().reserve("plan", "scan", 1000, [])
    reservation.close()
    reservation.close()
    assert list((root / "members").iterdir()) == []
    with pytest.raises(ValueError, match="closed"):
        reservation.advance(1)


# --- other layouts --------------------------------------------------------------------------


def test_the_open_form_takes_the_place_of_the_stored_one(make: MakeCache, root: Path) -> None:
    """Whoever asks for the file afterwards gets the open form, and is told."""
    cache = make()

    def build(sink: Sink) -> None:
        with cache.file(A.digest, A.size, A.fetch) as stored:
            sink.write(stored.path.read_bytes() * 2)

    with cache.open_file(A.digest, 2500, build) as lease:
        assert (lease.layout, bytes(lease.map())) == ("open", A.data * 2)
    with cache.file(A.digest, A.size, unreachable) as lease:
        assert (lease.layout, lease.size) == ("open", 2000)
    assert list(whole_files(root)) == [f"{A.digest}.open"]
    assert cache.used == 2000


def test_a_small_file_is_decoded_on_its_way_in_and_never_kept_as_stored(make: MakeCache, root: Path) -> None:
    """Room is taken for the decoded form alone, and only when the stored bytes have proven right."""
    cache = make(2000)
    tries: list[set[str]] = []

    def fetch(memory: Memory) -> None:
        tries.append(set(whole_files(root)))
        memory.write_at(400, (A if len(tries) > 2 else B).data[400:])
        memory.write_at(0, A.data[:400])
        assert memory.read_at(300, 50) == A.data[300:350]

    with cache.opened(A.digest, (A.size, 2000), fetch, lambda data, sink: sink.write(data * 2)) as lease:
        assert (lease.layout, bytes(lease.map())) == ("open", A.data * 2)
    assert tries == [set()] * 3
    assert list(whole_files(root)) == [f"{A.digest}.open"]
    assert cache.used == 2000


def test_a_small_file_that_stays_wrong_is_never_decoded(make: MakeCache, root: Path) -> None:
    cache, tries = make(), []

    def fetch(memory: Memory) -> None:
        tries.append(memory.write_at(0, B.data))

    with pytest.raises(IntegrityError, match=A.digest[:12]):
        cache.opened(A.digest, (A.size, 2000), fetch, lambda data, sink: pytest.fail("decoded"))
    assert len(tries) == 3
    assert cache.used == on_disk(root) == 0


def test_an_admission_that_has_room_looks_at_no_other_file_being_written(
    make: MakeCache, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else each of many that are on their way at once would look at all the others."""
    cache = make(3 * A.size)
    taken: list[str] = []

    def take(path: Path | str, **how: bool) -> holds.Hold | None:
        taken.append(os.path.basename(path))  # noqa: PTH119
        return real(path, **how)

    def fetch(sink: Sink) -> None:
        C.fetch(sink)
        monkeypatch.setattr(holds, "take", take)
        get(cache, B)
        monkeypatch.undo()

    real = holds.take
    monkeypatch.setattr(room, "_REAP_SECONDS", 60.0)
    get(cache, A)
    get(cache, C, fetch)

    assert {name[:64] for name in taken} == {B.digest}


def test_a_stored_file_in_use_goes_when_its_lease_does(make: MakeCache, root: Path) -> None:
    cache = make()
    stored = cache.file(A.digest, A.size, A.fetch)

    cache.open_file(A.digest, 2000, lambda sink: sink.write(A.data * 2)).close()
    assert stored.path.read_bytes() == A.data
    assert cache.used == 3000
    stored.close()

    assert cache.used == on_disk(root) == 2000


def test_a_stored_file_that_lands_after_its_open_form_is_dropped(make: MakeCache, root: Path) -> None:
    cache = make()

    def fetch(sink: Sink) -> None:
        cache.open_file(A.digest, 2000, lambda sink: sink.write(A.data * 2)).close()
        A.fetch(sink)

    with cache.file(A.digest, A.size, fetch) as lease:
        assert lease.layout == "open"
    assert list(whole_files(root)) == [f"{A.digest}.open"]
    assert cache.used == 2000


def test_arrow_writes_an_open_file(make: MakeCache) -> None:
    """pyarrow closes what it writes to; the cache finishes it all the same."""
    table = pa.table({"x": pa.array(range(1000), pa.int64())})

    def build(sink: Sink) -> None:
        with pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)
        sink.close()

    with make(100_000).open_file(A.digest, 50_000, build) as lease:
        assert pa.ipc.open_file(pa.py_buffer(lease.map())).read_all().equals(table)


def test_a_damaged_open_file_is_built_again(make: MakeCache, root: Path) -> None:
    cache = make()
    cache.open_file(A.digest, 1000, A.fetch).close()
    cache.discard(A.digest)
    cache.open_file(A.digest, 1000, unreachable).close()
    flip(the_file(root), hide=False)

    with cache.open_file(A.digest, 1000, A.fetch) as lease:
        assert bytes(lease.map()) == A.data


def test_a_block_is_built_once_and_lives_as_long_as_it_is_leased(make: MakeCache, root: Path) -> None:
    cache, other = make(), make()
    first = cache.block("plan 1, block 7", 1000, A.fetch)
    second = other.block("plan 1, block 7", 1000, unreachable)
    mapped = second.map()
    first.close()
    second.close()

    assert bytes(mapped) == A.data
    assert cache.used == on_disk(root) == 1000
    del mapped

    assert on_disk(root) == 0
    assert cache.used == 0


def test_blocks_count_and_are_never_evicted_while_they_are_leased(make: MakeCache) -> None:
    cache = make(2000)
    get(cache, A)
    with cache.block("b", 1500, lambda sink: sink.write(b"x" * 1500)) as block:
        assert not is_kept(cache, A)
        with pytest.raises(BudgetError):
            get(cache, B)
        assert block.path.read_bytes() == b"x" * 1500
    get(cache, B)


def test_many_may_make_one_cache_at_once(tmp_path: Path) -> None:
    """Threads or processes: the first marker stays, because it is what they lock."""
    for attempt in range(5):
        root = tmp_path / str(attempt)
        with ThreadPoolExecutor(8) as pool:
            caches = [*pool.map(Cache, [root] * 8, [1000] * 8)]
        assert [cache.used for cache in caches] == [0] * 8
        assert {path.name for path in root.glob("lake-cache.json*")} == {"lake-cache.json"}
        for cache in caches:
            cache.close()
