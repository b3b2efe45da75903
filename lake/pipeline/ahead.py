"""Calls in threads, a bounded number of items and bytes ahead of who asks."""

from __future__ import annotations

import os
from collections import deque
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Final

from lake.pipeline.call import Call
from lake.pipeline.caller import Caller, Inline
from lake.pipeline.node import Node, Run, StageMeter
from lake.pipeline.rewind import Rewind
from lake.pipeline.sizes import size_of
from lake.pipeline.stage import Stage, read

AHEAD: Final = 4  # items for each thread
AHEAD_BYTES: Final = 128 * 2**20  # of items and results that wait, unless one alone takes more


@dataclass(slots=True, eq=False)
class _Task:
    number: int
    item: Any
    tag: Any
    size: int
    future: Future[tuple[Any, float]]
    is_measured: bool = False


class Ahead(Caller):
    """Results in the order of the items, or as they come.

    The position is that of what was handed out: what threads have done beyond it is done again after a
    restore. In a forked child the threads are hired anew.
    """

    def __init__(self, source: Stage, call: Call, depth: int, meter: StageMeter) -> None:
        self.item: Any = None
        self._input = Rewind(source)
        self._call, self._meter = call, meter
        self._apply = call.applied(depth)
        self._tasks: deque[_Task] = deque()
        self._given: set[int] = set()  # handed out, though an earlier one was not
        self._bytes = 0
        self._stop: Exception | None = None  # the source's end, or error
        self._tag: Any = None
        self._pool: ThreadPoolExecutor | None = None
        self._pid = 0

    def next(self) -> Any:
        while True:
            self._fill()
            if not self._tasks:
                assert self._stop is not None
                raise self._stop
            task = self._finished()
            self._settle(task)
            self.item, self._tag = task.item, task.tag
            try:
                made, seconds = task.future.result()
            except Exception as error:
                self._call.failed(error, task.item, self._meter)
                continue
            self._meter.seconds += seconds
            self._meter.items += 1
            return made

    def skip(self, count: int) -> int:
        if not self._call.keeps_count:
            return read(self, count)
        left = count
        while left and self._tasks:
            task = self._tasks[0]
            task.future.cancel()
            self._settle(task)
            left -= 1
        return count - left + (self._input.skip(left) if left else 0)

    def state(self) -> Any:
        first = self._tasks[0].number if self._tasks else self._input.count
        return [self._input.state(first), sorted(number - first for number in self._given if number >= first)]

    def restore(self, state: Any) -> None:
        position, given = state
        self._input.restore(position)
        self._given = set(given)

    def tag(self) -> Any:
        return self._tag

    def close(self) -> None:
        self._tasks.clear()
        if self._pool is not None and self._pid == os.getpid():
            self._pool.shutdown(wait=False, cancel_futures=True)
        self._pool, self._stop = None, self._stop or StopIteration()
        self._input.source.close()

    # --- inside -------------------------------------------------------------------------------

    def _fill(self) -> None:
        self._hire()
        limit = AHEAD * self._call.workers
        while (
            self._stop is None and len(self._tasks) < limit and (not self._tasks or self._bytes < AHEAD_BYTES)
        ):
            number = self._input.count
            try:
                item = self._input.next()
            except Exception as error:
                self._stop = error
                return
            if number in self._given:
                continue
            size = size_of(item)
            self._bytes += size
            tag = self._input.source.tag()
            self._tasks.append(_Task(number, item, tag, size, self._submit(item, tag)))

    def _hire(self) -> None:
        if self._pool is not None and self._pid == os.getpid():
            return
        self._pool = ThreadPoolExecutor(self._call.workers, thread_name_prefix="lake-map")
        self._pid = os.getpid()
        for task in self._tasks:  # of a parent process, whose threads are not here
            if not task.future.done():
                task.future = self._submit(task.item, task.tag)

    def _submit(self, item: Any, tag: Any) -> Future[tuple[Any, float]]:
        assert self._pool is not None
        return self._pool.submit(_timed, self._apply, item, tag)

    def _finished(self) -> _Task:
        """The task that is handed out next, done."""
        tasks = self._tasks
        chosen = tasks[0]
        if not self._call.ordered and not chosen.future.done():
            wait([task.future for task in tasks], return_when=FIRST_COMPLETED)
            chosen = next(task for task in tasks if task.future.done())
        else:
            wait([chosen.future])
        self._measure()
        return chosen

    def _measure(self) -> None:
        """Count the results that wait."""
        for task in self._tasks:
            if not task.is_measured and task.future.done() and task.future.exception() is None:
                task.is_measured = True
                size = size_of(task.future.result()[0])
                task.size += size
                self._bytes += size

    def _settle(self, task: _Task) -> None:
        """Note that a task is handed out."""
        self._tasks.remove(task)
        self._bytes -= task.size
        self._given.add(task.number)
        first = self._tasks[0].number if self._tasks else self._input.count
        self._given = {number for number in self._given if number > first}
        self._input.forget(first)


@dataclass(frozen=True, eq=False)
class Calling(Node):
    """A node that calls a function of each item."""

    source: Node
    call: Call

    @property
    def label(self) -> str:
        return self.call.label

    @property
    def outline(self) -> str:
        return self.call.outline

    def results(self, run: Run, call: Call | None = None) -> Caller:
        """What the calls give, by as many threads as is asked for."""
        call = call or self.call
        kind = Ahead if call.workers else Inline
        return kind(self.source.open(run), call, self.depth, run.meter(self))


def _timed(apply: Any, item: Any, tag: Any) -> tuple[Any, float]:
    begun = perf_counter()
    made = apply(item, tag)
    return made, perf_counter() - begun
