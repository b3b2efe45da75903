"""Leases that a process keeps a moment longer than it uses them, and ends as soon as they are in the way.

What one epoch is done with, the next one begins with, after a validation maybe; to lease a file again, map it,
and find what is in it costs as much as to read it. So whoever has such leases keeps them, and they end when
nothing was kept or used again for a minute, when somebody waits for room, or when the cache is cleared or closed.
"""

from __future__ import annotations

import atexit
import threading
import time
import weakref
from collections.abc import Callable
from typing import Final, Protocol

from lake import _threads
from lake.cache import holds
from lake.errors import LakeError

IDLE_SECONDS: Final = 60.0  # for which a lease is kept that nothing uses
LOOK_SECONDS: Final = 0.05  # between two looks whether somebody waits for room
_REFUSED_SECONDS: Final = 30.0  # for which nothing is kept after somebody has waited


class Holder(Protocol):
    """Who keeps leases that nothing uses."""

    def release(self) -> None:
        """End them."""


class Idle:
    """The idle leases of one process on the files of one cache. Thread-safe. `unwelcome`: they are in the way."""

    def __init__(self, unwelcome: Callable[[], bool]) -> None:
        self._unwelcome = unwelcome
        self._turn = threading.Condition()
        self._holders: weakref.WeakSet[Holder] = weakref.WeakSet()
        self._thread: threading.Thread | None = None
        self._used = 0.0
        self._refused_until = 0.0
        self._over = False  # the process ends, and all leases with it
        holds.at_fork(self)
        _all.add(self)

    @property
    def welcome(self) -> bool:
        """Whether leases may be kept: nobody has been in need of room lately."""
        return time.monotonic() >= self._refused_until

    def note(self, holder: Holder) -> None:
        """`holder` keeps a lease, or has used one of them again: they last for another minute."""
        with self._turn:
            self._used = time.monotonic()
            self._holders.add(holder)
            if self._thread is None:
                self._thread = _threads.start("lake-idle", self._watch)

    def release(self) -> bool:
        """End all of them; whether there were any."""
        with self._turn:
            holders = list(self._holders)
            self._holders.clear()
            self._turn.notify_all()
        for holder in holders:
            holder.release()
        return bool(holders)

    def give_way(self) -> bool:
        """End all of them, because somebody waits for room, and keep none for a while; whether there were any."""
        if ended := self.release():
            self._refused_until = time.monotonic() + _REFUSED_SECONDS
        return ended

    def close(self) -> None:
        """End all of them, and the thread that looks after them."""
        self.release()
        with self._turn:
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def leave(self) -> None:
        """Look after nothing any more: the process ends."""
        with self._turn:
            self._over = True
            self._turn.notify_all()

    def before_fork(self) -> None:
        pass

    def after_fork(self, *, child: bool) -> None:
        if child:  # the leases were the parent's
            self._turn, self._thread = threading.Condition(), None
            self._holders = weakref.WeakSet()

    # --- in a thread of its own ---------------------------------------------------------------

    def _watch(self) -> None:
        while self._is_needed():
            try:
                if self._unwelcome():
                    self.give_way()
            except LakeError:  # an index that cannot be read: whoever uses it next says so
                self.release()
        if not self._over:
            self.release()

    def _is_needed(self) -> bool:
        """Whether there is something to look after, some time later; else the thread has ended."""
        with self._turn:
            if self._holders and not self._over:
                self._turn.wait(LOOK_SECONDS)
            needed = bool(self._holders) and not self._over and time.monotonic() - self._used < IDLE_SECONDS
            if not needed:
                self._thread = None
            return needed


_all: weakref.WeakSet[Idle] = weakref.WeakSet()


@atexit.register
def _end() -> None:
    """Have no thread run on into the end of the interpreter."""
    for each in list(_all):
        each.leave()
