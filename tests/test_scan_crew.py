"""The crew: order, errors, interruptions, how far ahead, how many threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from lake.parts import Meter
from lake.plan import Layout, plan_epoch
from lake.scan.crew import Crew
from lake.scan.schedule import Schedule, Unit


def schedule(shards: int = 12, rows: int = 40, raw: int = 0, batch_size: int = 15, **asked: Any) -> Schedule:
    layout = Layout.of([rows] * shards, [10] * shards, [raw] * shards, [raw] * shards)
    return Schedule(plan_epoch(layout, batch_size=batch_size, **asked), unit_bytes=max(1, raw // 2))


class Work:
    """Loads a unit as its block and start, and gathers the names of rows; notes who is at it."""

    def __init__(self, load: Callable[[Unit], None] = lambda unit: None) -> None:
        self.load, self.lock = load, threading.Lock()
        self.loaded: list[Unit] = []
        self.threads: set[str] = set()

    def __call__(self, unit: Unit, share: Any) -> Any:
        with self.lock:
            self.loaded.append(unit)
            self.threads.add(threading.current_thread().name)
        self.load(unit)
        return share([lambda: unit.block, lambda: unit.start])

    def gather(self, rows: Any, batches: int) -> Any:
        named = [(block, first + row) for (block, first), start, stop in rows for row in range(start, stop)]
        size = len(named) // batches
        return [named[number * size : (number + 1) * size] for number in range(batches)]


def crew(plan: Schedule, work: Work, threads: int = 2, **options: Any) -> Crew:
    return Crew(plan, work, work.gather, Meter(), threads=threads, **options)


def expected(plan: Schedule, first: int = 0) -> list[list[tuple[int, int]]]:
    return [
        [
            (take.unit.block, take.unit.start + row)
            for take in step.takes
            for row in range(take.start, take.stop)
        ]
        for step in plan.steps(first)
    ]


def everything(hired: Crew) -> list[Any]:
    found = []
    while (got := hired.next()) is not None:
        assert len(got[1]) == got[0].batches
        found += got[1]
    return found


def eventually(good: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 10
    while not good() and time.monotonic() < deadline:
        time.sleep(0.01)
    return good()


@pytest.mark.parametrize("threads", [0, 1, 3])
@pytest.mark.parametrize(
    "asked", [{}, {"shuffle": True, "shuffle_window": 3}, {"partitions": 3, "batch_size": 2}]
)
@pytest.mark.parametrize("first", [0, 5])
def test_batches_come_in_order_with_any_threads(threads: int, asked: dict[str, Any], first: int) -> None:
    """None is as good as many: then the consumer does it all."""
    plan = schedule(**asked)
    work = Work(lambda unit: time.sleep(0.001 * (unit.block % 3)))

    assert everything(crew(plan, work, threads, first=first)) == expected(plan, first)

    assert len(set(work.loaded)) == len(work.loaded)
    assert len(work.threads) <= threads + 1


def test_what_fails_anywhere_is_raised_by_the_next_step_and_again() -> None:
    """The error itself, once it has happened, although batches before it are ready."""
    failed = threading.Event()

    def load(unit: Unit) -> None:
        if unit.block == 4:
            failed.set()
            raise OSError("disk on fire")

    hired = crew(schedule(raw=2**20), Work(load))
    hired.next()
    assert failed.wait(10)
    for _ in range(3):
        with pytest.raises(OSError, match="on fire"):
            everything(hired)


@pytest.mark.parametrize("where", ["load", "gather"])
def test_an_interruption_undoes_nothing(where: str) -> None:
    """After Ctrl-C in the middle of a step the next call goes on where it was."""
    plan, work, times = schedule(), Work(), iter([False, False, True, *[False] * 1000])

    def interrupted(*_: Any) -> None:
        if next(times):
            raise KeyboardInterrupt

    if where == "load":
        work.load = interrupted
    gather = (lambda *asked: (interrupted(), work.gather(*asked))[1]) if where == "gather" else work.gather
    hired = Crew(plan, work, gather, Meter())
    found, interruptions, over = [], 0, False
    while not over:
        try:
            got = hired.next()
        except KeyboardInterrupt:
            interruptions += 1
            continue
        over = got is None
        found += [] if got is None else got[1]

    assert interruptions == 1
    assert found == expected(plan)


@pytest.mark.parametrize(("raw", "least", "most"), [(64 * 2**20, 1, 2), (2**20, 32, 36)])
def test_little_is_loaded_ahead(raw: int, least: int, most: int) -> None:
    """Two large units at once, while the consumer takes its time; of small ones as many as 32 MiB have.

    Besides those of which all is gathered: here eight steps of sixteen rows, of units of forty.
    """
    plan = schedule(shards=100, raw=raw, batch_size=1, shuffle=True, shuffle_window=2)
    work = Work()
    hired = crew(plan, work)
    hired.next()

    assert eventually(lambda: len(work.loaded) >= least)
    time.sleep(0.1)
    assert len(work.loaded) <= most
    hired.close()


def test_an_idle_crew_has_no_threads_and_comes_back() -> None:
    """Threads end after a second without work; the batches go on."""
    plan = schedule(shards=40, raw=64 * 2**20)
    hired = crew(plan, Work())
    first = [batch for _ in range(3) for batch in hired.next()[1]]  # type: ignore[index]

    assert eventually(lambda: not hired._threads)
    assert first + everything(hired) == expected(plan)


def test_after_closing_there_is_nothing() -> None:
    """And threads end soon."""
    hired = crew(schedule(), Work())
    hired.next()
    hired.close()

    assert hired.next() is None
    assert eventually(lambda: not hired._threads)


def test_calls_are_shared_with_whoever_has_time() -> None:
    """What a unit reads is read by several threads; what one of them raises is the unit's failure."""
    together = threading.Barrier(2)

    def load(unit: Unit, share: Any) -> Any:
        return share([lambda: together.wait(10), lambda: together.wait(10)])

    plan = schedule(shards=1)
    assert len(everything(Crew(plan, load, _nothing, Meter(), threads=1))) == len(plan.plan)

    def fails(unit: Unit, share: Any) -> Any:
        return share([lambda: 1 / 0, lambda: None])

    with pytest.raises(ZeroDivisionError):
        everything(Crew(plan, fails, _nothing, Meter(), threads=1))


def _nothing(rows: Any, batches: int) -> Any:
    return [None] * batches


def test_a_consumer_that_would_wait_for_a_thread_loads_what_comes_later() -> None:
    """More than the next steps need, as threads do: else it waits for the slowest unit, and then threads for it."""
    main, begun, enough, released = threading.current_thread(), threading.Event(), threading.Event(), []
    mine: list[Unit] = []

    def load(unit: Unit) -> None:
        if threading.current_thread() is not main:
            begun.set()
            released.append(enough.wait(10))
            return
        mine.append(unit)
        if len(mine) == 3:  # the first is needed at once; so the thread's is one of the next
            assert begun.wait(10)
        if len(mine) == 20:
            enough.set()

    plan = schedule(shards=40, raw=2**20)
    assert everything(crew(plan, Work(load), threads=1)) == expected(plan)

    assert released
    assert all(released)
