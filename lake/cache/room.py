"""Room for what is to be written, within the budget at every moment: admission, eviction, clearing up.

Everything here that takes a connection belongs inside a transaction of the index.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from typing import Final

import numpy as np

from lake.cache import eviction, groups, holds, index
from lake.cache.groups import Groups, no_room
from lake.cache.home import BLOCK, Home
from lake.cache.index import DOCUMENT, LAYOUTS, Index
from lake.config import format_bytes
from lake.errors import BudgetError

_QUEUE_SECONDS: Final = 1.0  # how long an order of eviction is gone by
_LEASED_SECONDS: Final = 5.0  # that an admission waits for leases before it takes what is needed later
_VAIN_SECONDS: Final = 60.0  # for which none waits after one has in vain: batches are kept, it seems
_QUEUED: Final = 16  # one of so many of the files that no plan needs this epoch is queued
_LEAST: Final = 16 << 20  # bytes freed at least when the disk is full
_REAP_SECONDS: Final = 1.0  # between two times that what was left is looked for though there is room
_LOOSE: Final = "whole = 0 or layout in ('block', 'doomed')"  # as the index of that name says it


class Room:
    """The budget of one cache directory, as one process keeps it. `evicted`: files deleted to make room."""

    def __init__(self, home: Home, found: Index, groups: Groups) -> None:
        self.budget: int | None = None
        self.evicted = 0
        self._home, self._index, self._groups = home, found, groups
        self._queue: list[str] = []  # keys in order of eviction, of files that no plan needs this epoch
        self._queue_of: tuple[int, float] = (-1, 0.0)  # generation, time
        self._vain_until = 0.0
        self._reaped = 0.0

    def admit(self, key: str, size: int, wait: float, give_way: Callable[[], bool]) -> None:
        """Count a file before its first byte is written, as soon as there is room for it.

        `give_way`: whether this process had leases that it can do without, and ended them.

        Raises:
            BudgetError: it cannot fit, or does not after `wait` seconds.
        """
        name = f"file {key[:12]}"
        if self.budget is not None and size > self.budget:
            raise BudgetError(
                f"{name} has {format_bytes(size)}; the cache's budget is {format_bytes(self.budget)}",
                needed=size,
                budget=self.budget,
            )
        begin = time.monotonic()
        for pause in holds.pauses(longest=0.25):
            waited = time.monotonic() - begin
            patient = waited < min(wait, _LEASED_SECONDS) and begin + waited > self._vain_until
            if not patient and waited >= _LEASED_SECONDS:
                self._vain_until = begin + waited + _VAIN_SECONDS
            with self._index.write() as connection:
                if self.admitted(connection, key, size, LAYOUTS[key[64:]], patient=patient):
                    return
                if waited > groups.PATIENCE:
                    self._groups.leave_behind(connection, key, size)
                members = self._groups.live(connection)[1]
            if give_way():
                continue
            if waited > wait:
                raise no_room(name, size, self.budget, wait, members)
            with self._groups.turn:
                self._groups.turn.wait(pause)

    def admitted(
        self, connection: sqlite3.Connection, key: str, size: int, layout: str, *, patient: bool = False
    ) -> bool:
        """Whether there is room for a file, which is counted then. `patient`: as `evict` takes it."""
        full = self.budget is not None and index.total(connection) + size > self.budget
        if full or time.monotonic() - self._reaped > _REAP_SECONDS:  # it looks at every flight
            self.reap(connection)
        index.remove(connection, key)  # a row whose file is gone, or not what it should be
        if self.budget is not None:
            excess = index.total(connection) + size - self.budget
            if self.evict(connection, excess, (key, size), patient=patient) < excess:
                return False
        index.add(connection, key, size, layout=layout)
        return True

    def make(self, size: int) -> bool:
        """Whether a full disk could be made less full."""
        with self._index.write() as connection:
            before = index.total(connection)
            self.reap(connection)
            self.evict(connection, max(size, _LEAST))
            return index.total(connection) < before

    def fit(self, connection: sqlite3.Connection) -> None:
        """Shrink to the budget as far as leases and reservations allow."""
        if self.budget is not None:
            self.evict(connection, index.total(connection) - self.budget)

    def clear(self) -> bool:
        """Delete all whole files but those that are leased; whether none was."""
        with self._index.write() as connection:
            gone = [self.drop(connection, key) for key in index.keys(connection, "whole = 1")]
            if not all(gone):
                _crowd(connection)
            return all(gone)

    def evict(
        self,
        connection: sqlite3.Connection,
        amount: int,
        newcomer: tuple[str, int] | None = None,
        *,
        patient: bool = False,
    ) -> int:
        """Delete files that may go until `amount` bytes are free, or no more may go; the bytes freed.

        `patient`: nothing that a plan needs, as long as what none needs is only leased.
        """
        freed, leased = 0, False
        if amount <= 0:
            return 0
        for key, size, needed in self._candidates(connection, newcomer):
            if needed and leased and patient:
                break
            if self.drop(connection, key):
                freed += size
                self.evicted += 1
                if freed >= amount:
                    return freed
            else:
                leased = True
        if leased:
            _crowd(connection)
        return freed

    def _candidates(
        self, connection: sqlite3.Connection, newcomer: tuple[str, int] | None
    ) -> Iterator[tuple[str, int, bool]]:
        """Files that may go, in the order in which they should: key, size, whether a plan needs it this epoch."""
        generation = connection.execute("select generation from state").fetchone()[0]
        if generation == self._queue_of[0] and time.monotonic() - self._queue_of[1] < _QUEUE_SECONDS:
            yield from self._queued(connection)
        live = self._groups.live(connection)[0]
        rows = connection.execute(
            "select key, prefix, bytes, used, layout = ? from files where whole = 1 and layout <> ?",
            (DOCUMENT, LAYOUTS[BLOCK]),
        ).fetchall()
        if not rows:
            return
        keys, prefixes, sizes, used, documents = zip(*rows, strict=True)
        order, free = eviction.victims(
            np.array(prefixes, np.int64).view(np.uint64),
            np.array(sizes, np.int64),
            np.array(used, np.float64),
            np.array(documents, np.bool_),
            live,
            horizon=eviction.horizon(*newcomer, live) if newcomer else -1,
            documents_limit=(self.budget or eviction.NEVER) // eviction.DOCUMENTS_SHARE,
        )
        queued = -(-free // _QUEUED)
        self._queue = [keys[i] for i in order[:queued][::-1]]
        self._queue_of = (connection.execute("select generation from state").fetchone()[0], time.monotonic())
        yield from self._queued(connection)
        yield from ((keys[i], sizes[i], place >= free) for place, i in enumerate(order) if place >= queued)

    def _queued(self, connection: sqlite3.Connection) -> Iterator[tuple[str, int, bool]]:
        while self._queue:
            key = self._queue.pop()
            row = connection.execute("select bytes from files where key = ? and whole = 1", (key,)).fetchone()
            if row is not None:
                yield key, row[0], False

    def drop(self, connection: sqlite3.Connection, key: str) -> bool:
        """Whether the file is gone now: it was not leased, or not there."""
        path = self._home.path(key)
        try:
            hold = holds.take(path, exclusive=True)
            if hold is None:
                return False
            with hold:
                unlink(path)
        except FileNotFoundError:
            pass
        index.remove(connection, key)
        return True

    def reap(self, connection: sqlite3.Connection, *, thorough: bool = False) -> None:
        """Remove what killed processes left, unleased blocks, and stored files whose open form is here.

        `thorough`: also what nothing in the index tells of, and what only the index tells of, since its process was
        killed between the two; at the cost of listing all directories.
        """
        if thorough:
            self._groups.sweep()
            for key in set(index.keys(connection, "whole = 1")) - self._home.kept():
                index.remove(connection, key)
        self._reaped = time.monotonic()
        rows = connection.execute(f"select key, whole from files where {_LOOSE}").fetchall()
        flying = {key for key, whole in rows if not whole}
        for key in {key for key, whole in rows if whole}:
            self.drop(connection, key)
        for key in flying | (self._home.flying() if thorough else set()):
            self._bury(connection, key)

    def _bury(self, connection: sqlite3.Connection, key: str) -> None:
        """Remove a flight whose process is dead."""
        try:
            hold = holds.take(self._home.lock(key), exclusive=True)
            if hold is None:
                return
        except FileNotFoundError:
            hold = None
        with hold or contextlib.nullcontext():
            self._clear(connection, key)

    def _clear(self, connection: sqlite3.Connection, key: str) -> None:
        unlink(self._home.flight(key))
        size = _size(self._home.path(key))
        if size is None:
            connection.execute("delete from files where key = ? and whole = 0", (key,))
        else:  # killed after it was moved in place, before it was said to be whole: yet to be verified
            connection.execute(
                "update files set whole = 1, bytes = ? where key = ? and whole = 0", (size, key)
            )
        unlink(self._home.lock(key))


def _crowd(connection: sqlite3.Connection) -> None:
    """Say to all processes that leases stand in somebody's way."""
    connection.execute("update state set crowded = ?", (time.monotonic(),))


def unlink(path: str) -> None:
    """Delete a file that may be gone already."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)  # noqa: PTH108


def _size(path: str) -> int | None:
    try:
        return os.stat(path).st_size  # noqa: PTH116
    except FileNotFoundError:
        return None
