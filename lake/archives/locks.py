"""A lock that a forked child finds open, whoever held it in the parent."""

from __future__ import annotations

import threading
import weakref

from lake import _os

_locks: weakref.WeakSet[Lock] = weakref.WeakSet()


class Lock:
    """For a `with` block. What it guards must make sense whenever a thread of another process disappears."""

    def __init__(self) -> None:
        self.fresh()
        _locks.add(self)

    def fresh(self) -> None:
        """Begin anew, open."""
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *exc: object) -> None:
        self._lock.release()

    def __reduce__(self) -> tuple[type[Lock], tuple[()]]:
        return Lock, ()


def _after_fork() -> None:
    for lock in list(_locks):
        lock.fresh()


_os.after_fork(_after_fork)
