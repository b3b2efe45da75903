"""Carry a schedule out ahead of its consumer: threads load units and gather steps, a bounded way ahead.

The consumer never waits for what nobody has begun: it does that itself. So a crew without threads gives the
same batches, only later, and a busy interpreter that keeps the threads waiting costs no more than their help.
Threads that have had nothing to do for a second end; the next batch that is asked for brings them back.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import numpy as np

from lake import _threads
from lake.parts import OPEN_PARTS, Meter
from lake.scan.gather import Batch, Loaded, Rows
from lake.scan.schedule import Schedule, Step, Unit

IDLE_SECONDS: Final = 1.0
AHEAD: Final = 8  # steps gathered before they are asked for, at most
AHEAD_BYTES: Final = 16 * 2**20  # and what they take, unless two take more: what the processor's cache holds
LIVE_BYTES: Final = 32 * 2**20  # of the units loaded, unless two alone take more
_DESCRIPTION: Final = 4096  # bytes, of what is known of a column in a record batch of an open part
_BESIDE: Final = 16 * 2**20  # that allocators keep for what comes, and threads take: as measured

_NEW, _BUSY, _DONE = range(3)

_is_one_of_many = False


@dataclass(slots=True, eq=False)
class _Unit:
    """A unit that some step to come needs."""

    unit: Unit
    bytes: int
    last: int  # number of the last batch that does
    state: int = _NEW
    result: Loaded | None = None


@dataclass(slots=True, eq=False)
class _Step:
    """A step to come."""

    step: Step
    units: list[_Unit] = field(default_factory=list)
    state: int = _NEW
    result: list[Batch] | None = None


class _Shared:
    """Calls that several threads may make, each some of them."""

    def __init__(self, calls: Sequence[Callable[[], Any]]) -> None:
        self.calls, self.results = calls, [None] * len(calls)
        self.waiting, self.left = deque(range(len(calls))), len(calls)
        self.error: Exception | None = None


_Task: TypeAlias = _Unit | _Step | _Shared
Share: TypeAlias = Callable[[Sequence[Callable[[], Any]]], list[Any]]


class Crew:
    """The steps of a schedule from batch `first` on, in order.

    `load` and `gather` are called in any thread. What they raise is raised by the next `next`, and again by
    those after it. `load` also gets what has calls made by all threads that have time. `passed` is told of the
    first batch that is not gathered when units are done with. `waits`: whether `load` waits for others than the
    processor.
    """

    def __init__(
        self,
        schedule: Schedule,
        load: Callable[[Unit, Share], Loaded],
        gather: Callable[[Sequence[Rows], int], list[Batch]],
        meter: Meter,
        *,
        first: int = 0,
        threads: int = 0,
        passed: Callable[[int], object] | None = None,
        waits: Callable[[], bool] | None = None,
    ) -> None:
        self._schedule, self._load, self._gather, self._meter = schedule, load, gather, meter
        self._steps = schedule.steps(first, most=schedule.step_batches)
        self._coming: deque[_Step] = deque()  # those that were looked at; the first is handed out next
        self._ready = 0  # of these, from the first on, are gathered
        self._front = first  # the first batch that is not gathered
        self._begun = False  # whether anything was handed out
        self._units: dict[Unit, _Unit] = {}
        self._unseen = schedule.units(first)
        self._following: Unit | None = next(self._unseen, None)  # to be loaded when there is room
        self._ahead = steps_ahead(schedule)
        self._passed, self._waits = passed, waits
        self._wanted, self._threads = threads, list[threading.Thread]()
        self._shared: list[_Shared] = []
        self.error: BaseException | None = None  # what `next` would raise
        self._closed = False
        self._pid = os.getpid()
        self._turn = threading.Condition()
        _crews.add(self)

    # --- the consumer's side ------------------------------------------------------------------

    def next(self) -> tuple[Step, list[Batch]] | None:
        """The next step, and its batches; None after the last."""
        while True:
            with self._turn:
                if self.error is not None:
                    raise self.error
                head = None if self._closed else self._look(0)
                if head is None:
                    return None
                if head.state == _DONE:
                    self._begun = True
                    self._coming.popleft()
                    self._ready -= 1
                    self._help()
                    self._turn.notify()
                    assert head.result is not None
                    return head.step, head.result
                waits = self._waits is not None and self._waits()
                task = self._next_soon(loads=False) if waits else self._next_ahead()
                if task is None:
                    self._wait()
            if task is not None:
                self._do(task)

    def fail(self, error: BaseException) -> None:
        """Have the consumer raise what went wrong elsewhere."""
        with self._turn:
            self.error = self.error or error
            self._turn.notify_all()

    def close(self) -> None:
        """Stop; threads end with what they are doing. In a forked child there is nothing to stop."""
        if self._pid == os.getpid():
            with self._turn:
                self._closed = True
                self._coming.clear()
                self._units.clear()
                self._turn.notify_all()

    # --- what is to be done (with the lock held) ----------------------------------------------

    def _look(self, place: int) -> _Step | None:
        """The step at this place among those to come."""
        while len(self._coming) <= place:
            step = next(self._steps, None)
            if step is None:
                return None
            needed = dict.fromkeys(take.unit for take in step.takes)
            self._coming.append(_Step(step, [self._unit(unit) for unit in needed]))
        return self._coming[place]

    def _unit(self, unit: Unit) -> _Unit:
        if unit not in self._units:
            self._units[unit] = _Unit(unit, self._schedule.bytes(unit), self._schedule.last(unit))
        return self._units[unit]

    def _next_ahead(self) -> _Task | None:
        """What may be done now, marked as begun: nothing that delays the first batch."""
        task = self._next_soon(loads=True)
        if task is not None or not self._begun:
            return task
        unit = self._unit_ahead()
        return None if unit is None or not self._has_room(unit) else _begun(unit)

    def _next_soon(self, *, loads: bool) -> _Task | None:
        """What brings the first step on and nobody has begun, marked as begun, or else one of those behind it.

        `loads`: these may be units.
        """
        for place in range(self._ahead if self._begun else 1):
            step = self._look(place)
            if step is None:
                break
            if step.state == _NEW:
                unit = next((unit for unit in step.units if unit.state == _NEW), None)
                if unit is not None and (not place or (loads and self._has_room(unit))):
                    return _begun(unit)
                if unit is None and all(unit.state == _DONE for unit in step.units):
                    return _begun(step)
            if not place and (shared := self._next_shared()) is not None:
                return shared
        return None

    def _next_shared(self) -> _Shared | None:
        return next((shared for shared in self._shared if shared.waiting), None)

    def _unit_ahead(self) -> _Unit | None:
        """The next unit that nobody has begun."""
        while self._following is not None:
            if self._schedule.last(self._following) >= self._front:
                unit = self._unit(self._following)
                if unit.state == _NEW:
                    return unit
            self._following = next(self._unseen, None)
        return None

    def _has_room(self, unit: _Unit) -> bool:
        live = [held.bytes for held in self._units.values() if held.state != _NEW]
        at_once = len(self._coming[0].units) if self._coming else 1
        return len(live) <= at_once or sum(live) + unit.bytes <= LIVE_BYTES

    def _gathered(self) -> bool:
        """Forget the units that no step still to be gathered needs; whether there are any."""
        while self._ready < len(self._coming) and self._coming[self._ready].state == _DONE:
            self._front = self._coming[self._ready].step.end
            self._ready += 1
        done = [unit for unit, held in self._units.items() if held.last < self._front]
        for unit in done:
            del self._units[unit]
        return bool(done)

    # --- doing it -----------------------------------------------------------------------------

    def _do(self, task: _Task) -> None:
        if isinstance(task, _Shared):
            return self._help_with(task)
        try:
            result: Any = (
                self._load(task.unit, self._share)
                if isinstance(task, _Unit)
                else self._gather(_rows(task), task.step.batches)
            )
        except Exception as error:
            return self.fail(error)
        except BaseException:  # Ctrl-C: nothing was begun
            with self._turn:
                task.state = _NEW
                self._turn.notify_all()
            raise
        done = False
        with self._turn:
            task.result, task.state = result, _DONE
            if isinstance(task, _Step):
                task.units = []
                done = self._gathered()
            self._turn.notify_all()
        if done and self._passed is not None:
            self._passed(self._front)
        return None

    def _share(self, calls: Sequence[Callable[[], Any]]) -> list[Any]:
        """What the calls give; made here and by whoever has time."""
        if len(calls) < 2 or not self._wanted:
            return [call() for call in calls]
        shared = _Shared(calls)
        with self._turn:
            self._shared.append(shared)
            self._help()
            self._turn.notify_all()
        try:
            while True:
                self._help_with(shared)
                with self._turn:
                    if shared.error is not None:
                        raise shared.error
                    if not shared.left or self._closed:
                        return shared.results
                    if not shared.waiting:
                        self._turn.wait()
        finally:
            with self._turn:
                self._shared.remove(shared)

    def _help_with(self, shared: _Shared) -> None:
        """Make calls until none is waiting."""
        while True:
            with self._turn:
                if not shared.waiting or shared.error is not None:
                    return
                number = shared.waiting.popleft()
            try:
                shared.results[number] = shared.calls[number]()
            except Exception as error:
                shared.error = error
            except BaseException:
                with self._turn:
                    shared.waiting.append(number)
                    self._turn.notify_all()
                raise
            with self._turn:
                shared.left -= 1
                if not shared.left or shared.error is not None:
                    self._turn.notify_all()

    def _wait(self) -> None:
        """Wait until something is done (with the lock held)."""
        begin = time.perf_counter()
        self._help()
        self._turn.wait()
        self._meter.add(stall_seconds=time.perf_counter() - begin)

    def _help(self) -> None:
        """See that there are threads (with the lock held)."""
        if len(self._threads) < self._wanted and (self._following is not None or self._look(0) is not None):
            self._threads.append(_threads.start("lake-scan", self._work))

    def _work(self) -> None:
        while (task := self._await_task()) is not None:
            self._do(task)
            del task

    def _await_task(self) -> _Task | None:
        """Something to do, as soon as there is; None: end."""
        deadline = time.monotonic() + IDLE_SECONDS
        with self._turn:
            while not self._closed and self.error is None:
                task = self._next_ahead()
                if task is not None:
                    return task
                left = deadline - time.monotonic()
                if left <= 0 or not self._turn.wait(left):
                    break
            self._threads.remove(threading.current_thread())
        return None


def helpers() -> int:
    """Threads of a crew here: none where other processes do the same work, and would take turns with these."""
    return 0 if _is_one_of_many else max(1, min(4, (os.cpu_count() or 2) - 1))


def be_one_of_many() -> None:
    """Have crews of this process do without threads: it is one of several that make what another consumes."""
    global _is_one_of_many
    _is_one_of_many = True


def steps_ahead(schedule: Schedule) -> int:
    """How many steps are gathered before they are asked for."""
    return max(2, min(AHEAD, AHEAD_BYTES // max(1, schedule.step_batches * schedule.batch_bytes)))


def memory_bytes(schedule: Schedule, units: int, columns: int) -> int:
    """What carrying a schedule out holds in memory at most, about; `units`: two of its largest."""
    layout = schedule.plan.order.layout
    raw, known = int(layout.raw_bytes.sum()), layout.rows[:OPEN_PARTS]
    described = int((-(-known // np.maximum(1, layout.batch_rows[:OPEN_PARTS]))).sum()) * columns
    batches = (steps_ahead(schedule) + 2) * schedule.step_batches
    held = min(max(units, LIVE_BYTES), max(units, raw)) + batches * schedule.batch_bytes
    return held + described * _DESCRIPTION + _BESIDE


def _begun(task: _Unit | _Step) -> _Task:
    task.state = _BUSY
    return task


def _rows(step: _Step) -> list[Rows]:
    """What a step takes, of units that are all loaded."""
    loaded = {unit.unit: unit.result for unit in step.units}
    return [
        (result, take.start, take.stop)
        for take in step.step.takes
        if (result := loaded[take.unit]) is not None
    ]


_crews: weakref.WeakSet[Crew] = weakref.WeakSet()


@atexit.register
def _end() -> None:
    """Have no thread run on into the end of the interpreter."""
    for crew in list(_crews):
        crew.close()
