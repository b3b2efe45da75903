"""What several processes may expect of one cache, whatever befalls any of them."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest

from lake.cache import DOWNLOADS, Cache, Sink
from lake.errors import BudgetError
from tests.cache_files import File, on_disk, on_disk_now, unreachable, whole_files

FILES = [File.make(i, 20_000) for i in range(24)]
A, B, *_ = FILES
SPAWN = multiprocessing.get_context("spawn")

Start = Callable[..., BaseProcess]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def start() -> Iterator[Start]:
    """Start a process that runs a function of this module; none outlives the test."""
    started: list[BaseProcess] = []

    def start(target: Callable[..., None], *arguments: Any) -> BaseProcess:
        process = SPAWN.Process(target=target, args=arguments)
        process.start()
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.join(20)


def joined(processes: list[BaseProcess]) -> list[int | None]:
    for process in processes:
        process.join(60)
    return [process.exitcode for process in processes]


def eventually(condition: Callable[[], bool]) -> None:
    """Wait for what must come true."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def slowly(file: File, seconds: float) -> Callable[[Sink], None]:
    """A fetch that takes its time."""

    def fetch(sink: Sink) -> None:
        for start in range(0, file.size, 1000):
            sink.write(file.data[start : start + 1000])
            time.sleep(seconds * 1000 / file.size)

    return fetch


def logging(file: File, log: Path) -> Callable[[Sink], None]:
    """A fetch that leaves a line in a log that processes share."""

    def fetch(sink: Sink) -> None:
        with log.open("a") as out:
            out.write(file.digest + "\n")
        slowly(file, 0.02)(sink)

    return fetch


def read_all(root: Path, budget: int, seed: int, log: Path, rounds: int = 1) -> None:
    with Cache(root, budget) as cache:
        for number in range(rounds):
            for file in random.Random((seed, number).__hash__()).sample(FILES, len(FILES)):
                with cache.file(file.digest, file.size, logging(file, log)) as lease:
                    assert bytes(lease.map()) == file.data


def test_processes_that_want_the_same_files_fetch_each_once(root: Path, tmp_path: Path, start: Start) -> None:
    log = tmp_path / "log"

    assert joined([start(read_all, root, 10**6, seed, log) for seed in range(4)]) == [0] * 4

    assert sorted(log.read_text().split()) == sorted(file.digest for file in FILES)


def test_the_budget_holds_at_every_moment(root: Path, tmp_path: Path, start: Start) -> None:
    """Half written files included, however many processes share it."""
    budget, seen = 8 * 20_000 + 100, []
    readers = [start(read_all, root, budget, seed, tmp_path / "log", 2) for seed in range(4)]

    eventually((root / "index.sqlite").exists)
    while any(reader.is_alive() for reader in readers):
        seen.append(on_disk_now(root))
        time.sleep(0.001)

    assert joined(readers) == [0] * 4
    assert max(seen) <= budget
    assert max(seen) > budget // 2
    with Cache(root, budget) as cache:
        assert cache.used == on_disk(root)


def hold_half_a_file(root: Path, ready: Path) -> None:
    def fetch(sink: Sink) -> None:
        sink.write(A.data[:10_000])
        ready.touch()
        time.sleep(60)

    Cache(root, 10**6).file(A.digest, A.size, fetch)


def test_a_waiter_takes_over_when_the_process_that_fetches_is_killed(
    root: Path, tmp_path: Path, start: Start
) -> None:
    ready = tmp_path / "ready"
    process = start(hold_half_a_file, root, ready)
    eventually(ready.exists)
    assert whole_files(root) == {}
    threading.Timer(0.2, process.kill).start()

    with Cache(root, 10**6) as cache, cache.file(A.digest, A.size, A.fetch) as lease:
        assert bytes(lease.map()) == A.data
        assert cache.used == on_disk(root) == A.size


def test_half_a_file_of_a_killed_process_goes_when_the_cache_is_opened(
    root: Path, tmp_path: Path, start: Start
) -> None:
    ready = tmp_path / "ready"
    process = start(hold_half_a_file, root, ready)
    eventually(ready.exists)
    process.kill()
    process.join()
    assert on_disk(root) == 10_000

    with Cache(root, 10**6) as cache:
        assert cache.used == on_disk(root) == 0
        assert list((root / "flights").iterdir()) == []


def hold_everything(root: Path, budget: int, ready: Path) -> None:
    cache = Cache(root, budget)
    held = [
        cache.file(A.digest, A.size, A.fetch).map(),
        cache.block("b", 5000, lambda s: s.write(b"x" * 5000)).map(),
    ]
    cache.reserve("plan", "rank 0", budget, [(A.digest, A.size)])
    ready.touch()
    time.sleep(60)
    del held


def test_leases_blocks_and_reservations_end_with_a_killed_process(
    root: Path, tmp_path: Path, start: Start
) -> None:
    ready = tmp_path / "ready"
    process = start(hold_everything, root, 25_000, ready)
    eventually(ready.exists)
    with Cache(root, 25_000, wait=0) as cache:
        with pytest.raises(BudgetError):
            cache.file(B.digest, B.size, B.fetch)
        with pytest.raises(BudgetError, match="rank 0") as caught:
            cache.reserve("another", "mine", 1000, [])
        assert caught.value.holders == (process.pid,)

        process.kill()
        process.join()

        cache.reserve("another", "mine", 25_000, [(B.digest, B.size)]).close()
        cache.file(B.digest, B.size, B.fetch).close()
        assert cache.used == on_disk(root) == B.size


def hold_slots(root: Path, folder: Path, counts: Any) -> None:
    """Six threads take slots in turn, and count the holders whenever they are one; the first keep theirs until all
    slots are taken.
    """
    cache, all_taken = Cache(root, 10**6), folder.with_name("all_taken")

    def hold(thread: int) -> int:
        most = 0
        for _ in range(20):
            with cache.slots.one():
                mark = folder / f"{os.getpid()}-{thread}"
                mark.touch()
                while not all_taken.exists() and len(list(folder.iterdir())) < DOWNLOADS:
                    time.sleep(0.002)
                all_taken.touch()
                most = max(most, len(list(folder.iterdir())))
                time.sleep(0.002)
                mark.unlink()
        return most

    with ThreadPoolExecutor(6) as pool:
        counts.put(max(pool.map(hold, range(6))))


def test_a_machine_has_no_more_slots_however_many_processes_ask(
    root: Path, tmp_path: Path, start: Start
) -> None:
    """Eighteen threads of three processes: all come to their turns, eight at a time."""
    folder, counts = tmp_path / "holders", SPAWN.Queue()
    folder.mkdir()

    assert joined([start(hold_slots, root, folder, counts) for _ in range(3)]) == [0] * 3

    assert max(counts.get(timeout=20) for _ in range(3)) == DOWNLOADS


def hold_all_slots(root: Path, ready: Path) -> None:
    cache = Cache(root, 10**6)
    with contextlib.ExitStack() as stack:
        for _ in range(DOWNLOADS):
            stack.enter_context(cache.slots.one())
        ready.touch()
        with cache.slots.one():  # waits at the gate
            pass


def test_a_killed_process_leaves_its_slots_and_its_place_in_the_queue(
    root: Path, tmp_path: Path, start: Start
) -> None:
    process = start(hold_all_slots, root, tmp_path / "ready")
    eventually((tmp_path / "ready").exists)
    threading.Timer(0.2, process.kill).start()

    with Cache(root, 10**6) as cache, cache.slots.one():
        process.join(30)  # the kernel frees a slot a little before anybody can see that its holder is gone
        assert process.exitcode == -signal.SIGKILL


def test_two_jobs_start_at_once_in_an_empty_directory(root: Path, tmp_path: Path, start: Start) -> None:
    assert joined([start(read_all, root, 10**6, seed, tmp_path / "log") for seed in range(6)]) == [0] * 6


# --- forks ----------------------------------------------------------------------------------

forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


class Child:
    """A forked process. Calling it waits for its end and gives the exit code."""

    def __init__(self, work: Callable[[], None]) -> None:
        self.code: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            code = 1
            try:
                work()
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)

    def __call__(self) -> int:
        if self.code is None:
            self.code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.code


@contextlib.contextmanager
def forked(work: Callable[[], None]) -> Iterator[Child]:
    """Run `work` in a forked process, which is killed in the end and must have come to no other harm."""
    child = Child(work)
    try:
        yield child
    finally:
        if child.code is None:
            os.kill(child.pid, signal.SIGKILL)
            child()
    assert child.code in (0, -signal.SIGKILL)


pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")


def churn(root: Path, budget: int, seed: int) -> None:
    """Use everything that the cache has, for ever."""
    rng = random.Random(seed)
    cache = Cache(root, budget)
    while True:
        order = rng.sample(FILES, len(FILES))
        needs = [(file.digest, file.size) for file in order]
        with cache.reserve(f"plan {seed}", "scan", 40_000, needs) as reservation:
            for position, file in enumerate(order):
                doing = rng.randrange(4)
                if doing == 0:
                    assert cache.blob(file.digest, lambda data=file.data: data) == file.data
                elif doing == 1:
                    cache.block(file.digest, file.size, slowly(file, 0.001)).close()
                else:
                    with cache.file(file.digest, file.size, slowly(file, 0.001)) as lease:
                        assert bytes(lease.map()) == file.data
                reservation.advance(position + 1)


@forks
def test_processes_killed_at_any_moment_leave_a_whole_cache(root: Path) -> None:
    """Whatever they were doing: files are right, all is counted, and nothing half done stays."""
    budget = 10 * 20_000
    rng = random.Random(0)
    Cache(root, budget).close()
    for generation in range(20):
        with contextlib.ExitStack() as running:
            seeds = range(3 * generation, 3 * generation + 3)
            waits = [running.enter_context(forked(partial(churn, root, budget, seed))) for seed in seeds]
            time.sleep(rng.uniform(0, 0.1))
            assert on_disk_now(root) <= budget
            os.kill(waits[0].pid, signal.SIGKILL)
            assert waits[0]() == -signal.SIGKILL
            time.sleep(rng.uniform(0, 0.05))

    with Cache(root, budget, wait=0) as cache:
        assert cache.used == on_disk(root) <= budget
        assert list((root / "flights").iterdir()) == []
        good = {file.digest: file.data for file in FILES}
        assert whole_files(root).items() <= good.items()
        for file in FILES:
            with cache.file(file.digest, file.size, file.fetch) as lease:
                assert bytes(lease.map()) == file.data
        cache.clear()
        assert cache.used == on_disk(root) == 0
        cache.reserve("another", "mine", budget, []).close()
    assert list((root / "members").iterdir()) == []


@forks
def test_a_forked_child_does_not_keep_its_parents_leases(root: Path) -> None:
    """The file may go once the parent is done with it, though the child has mapped it and lives on."""
    cache = Cache(root, 25_000, wait=0)
    lease = cache.file(A.digest, A.size, A.fetch)
    kept = [lease.map()]

    with forked(partial(time.sleep, 60)):
        with pytest.raises(BudgetError):
            cache.file(B.digest, B.size, B.fetch)
        lease.close()
        kept.clear()
        patient = Cache(root, 25_000, wait=20)  # the child lets go as soon as it runs
        with patient, patient.file(B.digest, B.size, B.fetch) as other:
            assert bytes(other.map()) == B.data
    cache.close()


@forks
def test_what_a_forked_child_has_mapped_stays_good(root: Path) -> None:
    cache = Cache(root, 25_000, wait=20)  # the child lets go as soon as it runs
    kept = [cache.file(A.digest, A.size, A.fetch).map()]
    read, write = os.pipe()

    def work() -> None:
        assert os.read(read, 1)
        assert bytes(kept[0]) == A.data

    with forked(work) as child:
        kept.clear()
        cache.file(B.digest, B.size, B.fetch).close()
        os.write(write, b"x")
        assert child() == 0
    os.close(read)
    os.close(write)
    cache.close()


@forks
def test_a_forked_child_may_use_the_cache_and_end_without_harm_to_its_parent(root: Path) -> None:
    cache = Cache(root, 50_000, wait=0)
    lease = cache.file(A.digest, A.size, A.fetch)
    reservation = cache.reserve("plan", "rank 0", 50_000, [(A.digest, A.size)])

    def work() -> None:
        assert bytes(lease.path.read_bytes()) == A.data
        lease.close()
        reservation.close()
        with pytest.raises(RuntimeError, match="forked"):
            reservation.advance(1)
        with cache.file(B.digest, B.size, B.fetch) as mine:
            assert bytes(mine.map()) == B.data
        cache.reserve("plan", "rank 1", 1000, [(A.digest, A.size)]).close()
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(lambda: cache.used).result(20) == A.size + B.size
        cache.close()

    with forked(work) as child:
        assert child() == 0
    with pytest.raises(BudgetError):
        cache.reserve("another", "rank 0", 1000, [])
    cache.file(B.digest, B.size, unreachable).close()
    cache.clear()
    assert set(whole_files(root)) == {A.digest}
    reservation.close()
    cache.close()


@forks
def test_forking_while_other_threads_use_the_cache_harms_neither_side(root: Path) -> None:
    """No lock is inherited in the middle of something, and no connection to the index is shared."""
    cache = Cache(root, 10 * 20_000)
    stop = threading.Event()
    failures: list[BaseException] = []

    def read(seed: int) -> None:
        rng = random.Random(seed)
        try:
            while not stop.is_set():
                file = rng.choice(FILES)
                with cache.file(file.digest, file.size, file.fetch) as lease:
                    assert bytes(lease.map()) == file.data
        except BaseException as error:
            failures.append(error)

    def work() -> None:
        for file in FILES:
            cache.file(file.digest, file.size, file.fetch).close()

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(8):
            with forked(work) as child:
                assert child() == 0
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert failures == []
    assert cache.used == on_disk(root)
    cache.close()


def test_interrupted_and_terminated_programs_leave_a_cache_that_works(root: Path) -> None:
    """Ctrl-C and SIGTERM in the middle of a download: the next start needs no cleaning up."""
    program = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "from tests.test_cache_processes import Cache, hold_half_a_file\n"
        "hold_half_a_file(Path(sys.argv[1]), Path(sys.argv[2]))\n"
    )
    for number, sent in enumerate((signal.SIGINT, signal.SIGTERM)):
        ready = root.parent / f"ready{number}"
        process = subprocess.Popen(
            [sys.executable, "-c", program, root, ready],
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": "."},
        )
        eventually(ready.exists)
        process.send_signal(sent)
        assert process.wait(20) != 0

        with Cache(root, 10**6) as cache:
            assert cache.used == on_disk(root) == 0
