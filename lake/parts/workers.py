"""A few threads for work that waits: what is urgent first. Threads without work for a second end."""

from __future__ import annotations

import atexit
import heapq
import itertools
import os
import threading
import time
import weakref
from collections.abc import Callable
from typing import Final, TypeAlias

from lake import _threads

Work: TypeAlias = Callable[[], object]

URGENT: Final = 0  # priorities: lower first

_IDLE_SECONDS: Final = 1.0


class Workers:
    """Does work in at most `limit` threads at once. Work does not raise.

    While `calm`, only urgent work begins: it has the network for itself.
    """

    def __init__(self, limit: int, name: str) -> None:
        self._calm = False
        self._limit, self._name = limit, name
        self._waiting: list[tuple[int, int, Work]] = []
        self._numbers = itertools.count()
        self._threads: list[threading.Thread] = []
        self._idle = 0
        self._ended = False
        self._pid = os.getpid()
        self._turn = threading.Condition()
        _all.add(self)

    @property
    def calm(self) -> bool:
        """Whether only urgent work begins."""
        return self._calm

    @calm.setter
    def calm(self, calm: bool) -> None:
        if calm != self._calm:
            with self._turn:
                self._calm = calm
                self._turn.notify_all()

    def submit(self, priority: int, work: Work) -> None:
        """Have `work` done, before all that has a higher priority number and has not begun."""
        with self._turn:
            heapq.heappush(self._waiting, (priority, next(self._numbers), work))
            if self._idle:
                self._turn.notify()
            if len(self._waiting) > self._idle and len(self._threads) < self._limit and not self._ended:
                self._threads.append(_threads.start(self._name, self._run))

    def give_up(self, thread: threading.Thread) -> None:
        """Count a thread whose work hangs no longer: another may take its place. It ends when that work does."""
        with self._turn:
            if thread in self._threads:
                self._threads.remove(thread)

    def end(self) -> None:
        """Begin nothing any more."""
        with self._turn:
            self._ended = True
            self._waiting.clear()
            self._turn.notify_all()

    def _run(self) -> None:
        while (taken := self._take()) is not None:
            taken()
            del taken

    def _take(self) -> Work | None:
        deadline, mine = time.monotonic() + _IDLE_SECONDS, threading.current_thread()
        with self._turn:
            while mine in self._threads:
                if self._waiting and (self._waiting[0][0] == URGENT or not self._calm):
                    return heapq.heappop(self._waiting)[2]
                left = deadline - time.monotonic()
                if self._ended or (left <= 0 and not self._waiting):
                    self._threads.remove(mine)
                    break
                self._idle += 1
                self._turn.wait(max(left, _IDLE_SECONDS / 4))
                self._idle -= 1
        return None


_all: weakref.WeakSet[Workers] = weakref.WeakSet()


@atexit.register
def _end() -> None:
    """Have no thread run on into the end of the interpreter."""
    for each in [
        each for each in _all if each._pid == os.getpid()
    ]:  # a forked child has none of these threads
        each.end()
