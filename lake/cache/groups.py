"""Reservations: what live scans were promised, and where in their epoch they are.

Scans of one plan are a group. It was promised room once, for the window that follows its hindmost member: a
file stays until every member has passed it. One that is more than the window behind the foremost for
`PATIENCE` seconds, or that others have waited for as long, is left behind: nobody keeps files for it until it
has caught up. So is one that joins more than the budget behind: what lies between is not all here, and to wait
for it would save nothing. Members end with their process.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
import threading
import time
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from lake.cache import holds
from lake.cache.eviction import Group, Needs, horizon
from lake.cache.home import Home
from lake.cache.index import Index
from lake.config import format_bytes
from lake.errors import BudgetError

PATIENCE: Final = 60.0  # seconds

_SILENT: Final = 5.0  # seconds that a scan waits for room without a word

_log = logging.getLogger("lake")


@dataclass(frozen=True, slots=True)
class Member:
    """One live scan."""

    id: int
    plan: str
    name: str
    process: str
    pid: int
    resident: int
    epoch: int
    position: int
    behind: float | None
    apart: int

    @property
    def place(self) -> tuple[int, int]:
        return self.epoch, self.position


class Groups:
    """All reservations of a cache directory, and this process's part in them."""

    def __init__(self, home: Home, index: Index) -> None:
        self._home, self._index = home, index
        self._process: tuple[str, holds.Hold] | None = None
        self._needs: dict[int, Needs] = {}  # by their id in the index
        self.turn = threading.Condition()  # told when a member of this process goes on
        holds.at_fork(self)

    # --- joining and going on -----------------------------------------------------------------

    def join(
        self,
        plan: str,
        name: str,
        resident: int,
        epoch: int,
        needs: Needs,
        position: int,
        *,
        budget: int | None,
        wait: float,
    ) -> int:
        """The id of a new member, as soon as there is room for its plan; holds nothing while it waits.

        Raises:
            BudgetError: the plan cannot fit, or does not after `wait` seconds.
        """
        if budget is not None and resident > budget:
            raise BudgetError(
                f"{name} keeps {format_bytes(resident)} resident; the cache's budget is "
                f"{format_bytes(budget)}: raise the budget, or read fewer columns or a smaller shuffle_window",
                needed=resident,
                budget=budget,
            )
        begin = time.monotonic()
        told = False
        for pause in holds.pauses(longest=0.25):
            with self._index.write() as connection:
                others = [member for member in self._alive(connection) if member.plan != plan]
                if budget is None or promised(others) + resident <= budget:
                    member = self._insert(connection, plan, name, resident, epoch, needs, position)
                    if budget is not None:
                        self._leave_latecomer(connection, member, plan, budget)
                    return member
            waited = time.monotonic() - begin
            if waited > wait:
                raise no_room(name, resident, budget, wait, others)
            if waited > _SILENT and not told:
                told = True
                _log.warning(
                    "%s, and waits for up to %g s", no_room(name, resident, budget, _SILENT, others), wait
                )
            time.sleep(pause)
        raise AssertionError

    def begin(self, member: int, plan: str, epoch: int, needs: Needs, position: int) -> None:
        """The member starts another epoch."""
        with self._index.write() as connection:
            self._put_needs(connection, plan, epoch, needs)
            connection.execute(
                "update members set epoch = ?, position = ?, behind = null, apart = 0 where id = ?",
                (epoch, position, member),
            )
            self._changed(connection)

    def follow(self, plan: str, epoch: int, needs: Needs) -> None:
        """The members will use these files in the epoch that comes after `epoch`."""
        with self._index.write() as connection:
            if _members(connection, "plan = ? and epoch = ?", plan, epoch):
                self._put_needs(connection, plan, epoch + 1, needs)
                self._changed(connection)

    def advance(self, member: int, position: int) -> bool:
        """Whether the member still moves with its group, once it is done with what lies before `position`."""
        with self._index.write() as connection:
            connection.execute("update members set position = ? where id = ?", (position, member))
            rows = _members(connection, "plan = (select plan from members where id = ?)", member)
            if len(rows) > 1:
                rows = self._settled(connection, rows)
            with self.turn:
                self.turn.notify_all()
            return any(row.id == member and not row.apart for row in rows)

    def leave_behind(self, connection: sqlite3.Connection, key: str, size: int) -> None:
        """Go on without the hindmost of groups that need a file only later, after a long wait for room for it."""
        for plan, rows in _by_plan(self._settled(connection, self._alive(connection))).items():
            together = [row for row in rows if not row.apart]
            hindmost = min(row.place for row in together)
            group = self._group(connection, plan, rows)
            if group.spread and horizon(key, size, [group]) >= 0:
                connection.executemany(
                    "update members set behind = ?, apart = 1 where id = ?",
                    [(time.monotonic(), row.id) for row in together if row.place == hindmost],
                )
                self._changed(connection)

    def leave(self, member: int) -> None:
        """The member is done, whether it finished or not."""
        with self._index.write() as connection:
            connection.execute("delete from members where id = ?", (member,))
            self._changed(connection)
            if self._process and not _members(connection, "process = ?", self._process[0]):
                self._resign()

    def close(self) -> None:
        """End this process's part."""
        if self._process is not None and self._home.inode():
            with self._index.write() as connection:
                connection.execute("delete from members where process = ?", (self._process[0],))
                self._changed(connection)
        self._resign()

    def sweep(self) -> None:
        """Remove what dead processes held."""
        for process in self._home.processes():
            self._dead(process)

    # --- looking ------------------------------------------------------------------------------

    def live(self, connection: sqlite3.Connection) -> tuple[list[Group], list[Member]]:
        """What eviction has to respect, and who is behind it."""
        members = self._settled(connection, self._alive(connection))
        return [self._group(connection, plan, rows) for plan, rows in _by_plan(members).items()], members

    def before_fork(self) -> None:
        pass

    def after_fork(self, *, child: bool) -> None:
        if child:
            self._process, self.turn = None, threading.Condition()

    # --- inside -------------------------------------------------------------------------------

    def _alive(self, connection: sqlite3.Connection) -> list[Member]:
        """The members whose process lives; rows of the others go."""
        members = _members(connection, "true")
        dead = {process for process in {member.process for member in members} if self._dead(process)}
        if dead:
            connection.executemany("delete from members where process = ?", [(process,) for process in dead])
            self._changed(connection)
        return [member for member in members if member.process not in dead]

    def _dead(self, process: str) -> bool:
        path = self._home.member(process)
        try:
            hold = holds.take(path, exclusive=True)
        except FileNotFoundError:
            return True
        if hold is not None:
            with contextlib.suppress(OSError):
                path.unlink()
            hold.close()
        return hold is not None

    def _settled(self, connection: sqlite3.Connection, members: list[Member]) -> list[Member]:
        """The members with `behind` and `apart` as they are now."""
        now, settled = time.monotonic(), []
        for rows in _by_plan(members).values():
            foremost = max(rows, key=lambda row: row.place)
            settled += [self._settle(connection, row, foremost, now) for row in rows]
        return settled

    def _settle(self, connection: sqlite3.Connection, row: Member, foremost: Member, now: float) -> Member:
        late = self._distance(connection, row, foremost) > (0 if row.apart else row.resident)
        behind = (now if row.behind is None else row.behind) if late else None
        apart = int(behind is not None and (bool(row.apart) or now - behind > PATIENCE))
        if (behind, apart) == (row.behind, row.apart):
            return row
        connection.execute("update members set behind = ?, apart = ? where id = ?", (behind, apart, row.id))
        if apart != row.apart:
            self._changed(connection)
        return replace(row, behind=behind, apart=apart)

    def _distance(self, connection: sqlite3.Connection, row: Member, foremost: Member) -> int:
        """Bytes between a member and the foremost of its group."""
        if row.place == foremost.place:
            return 0
        here, there = (self._read(connection, member.plan, member.epoch) for member in (row, foremost))
        whole = int(here.starts[-1]) if row.epoch != foremost.epoch else 0
        return whole + there.before(foremost.position) - here.before(row.position)

    def _group(self, connection: sqlite3.Connection, plan: str, rows: list[Member]) -> Group:
        together = [row for row in rows if not row.apart]
        hindmost = min(together, key=lambda row: row.place)
        epochs = sorted({row.epoch for row in rows if row.epoch >= hindmost.epoch})
        known = connection.execute("select 1 from needs where plan = ? and epoch = ?", (plan, epochs[-1] + 1))
        return Group(
            tuple(self._read(connection, plan, epoch) for epoch in epochs),
            hindmost.position,
            max(row.resident for row in rows),
            self._read(connection, plan, epochs[-1] + 1) if known.fetchone() else None,
            any(row.place > hindmost.place for row in together),
        )

    def _insert(
        self,
        connection: sqlite3.Connection,
        plan: str,
        name: str,
        resident: int,
        epoch: int,
        needs: Needs,
        position: int,
    ) -> int:
        self._put_needs(connection, plan, epoch, needs)
        cursor = connection.execute(
            "insert into members values (null, ?, ?, ?, ?, ?, ?, ?, null, 0)",
            (plan, name, self._me(), os.getpid(), resident, epoch, position),
        )
        self._changed(connection)
        assert cursor.lastrowid is not None
        return cursor.lastrowid

    def _leave_latecomer(self, connection: sqlite3.Connection, member: int, plan: str, budget: int) -> None:
        """Have a group not wait for a member that joins too far behind it."""
        rows = _members(connection, "plan = ?", plan)
        foremost = max(rows, key=lambda row: row.place)
        [joined] = [row for row in rows if row.id == member]
        if self._distance(connection, joined, foremost) > budget:
            connection.execute(
                "update members set behind = ?, apart = 1 where id = ?", (time.monotonic(), member)
            )

    def _resign(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(OSError):
                self._home.member(process[0]).unlink()
            process[1].close()

    def _me(self) -> str:
        removed = self._process is not None and not os.fstat(self._process[1].fd).st_nlink
        if self._process is None or removed:
            name = uuid.uuid4().hex
            hold = holds.take(self._home.member(name), exclusive=True, create=True)
            assert hold is not None
            self._process = name, hold
        return self._process[0]

    def _put_needs(self, connection: sqlite3.Connection, plan: str, epoch: int, needs: Needs) -> None:
        blobs = needs.prefixes.astype("<u8").tobytes(), needs.sizes.astype("<i8").tobytes()
        query = "select prefixes, sizes from needs where plan = ? and epoch = ?"
        row = connection.execute(query, (plan, epoch)).fetchone()
        if row is None:
            connection.execute("insert into needs values (null, ?, ?, ?, ?)", (plan, epoch, *blobs))
        elif row != blobs:
            raise ValueError(
                f"two scans of plan {plan[:12]} need different files in epoch {epoch}: they are not one plan"
            )

    def _read(self, connection: sqlite3.Connection, plan: str, epoch: int) -> Needs:
        query = "select id from needs where plan = ? and epoch = ?"
        number = connection.execute(query, (plan, epoch)).fetchone()[0]
        if number not in self._needs:
            query = "select prefixes, sizes from needs where id = ?"
            prefixes, sizes = connection.execute(query, (number,)).fetchone()
            live = {found for (found,) in connection.execute("select id from needs")}
            self._needs = {known: needs for known, needs in self._needs.items() if known in live}
            self._needs[number] = Needs(np.frombuffer(prefixes, "<u8"), np.frombuffer(sizes, "<i8"))
        return self._needs[number]

    def _changed(self, connection: sqlite3.Connection) -> None:
        """Needs of epochs that nobody is in or comes to go; what processes think may be evicted is void."""
        connection.execute(
            "delete from needs where not exists (select 1 from members m"
            " where m.plan = needs.plan and m.epoch in (needs.epoch, needs.epoch - 1))"
        )
        connection.execute("update state set generation = generation + 1")


class Reservation:
    """Room that a scan was promised for its resident window, until it is closed or its process ends."""

    def __init__(self, groups: Groups, member: int, plan: str, epoch: int) -> None:
        self._groups, self._member, self._plan = groups, member, plan
        self._pid = os.getpid()
        self._open = True
        self.epoch = epoch
        self.apart = False  # left behind by its group: what it reads is not kept for it

    def begin(self, epoch: int, needs: Needs | Iterable[tuple[str, int]], position: int = 0) -> None:
        """Go on with another epoch, as `Cache.reserve` began the first."""
        self._check()
        self._groups.begin(self._member, self._plan, epoch, Needs.of(needs), position)
        self.epoch, self.apart = epoch, False

    def follow(self, needs: Needs | Iterable[tuple[str, int]]) -> None:
        """Say what the epoch after this one will use, in its order: what it needs first is then kept longest."""
        self._check()
        self._groups.follow(self._plan, self.epoch, Needs.of(needs))

    def advance(self, position: int) -> None:
        """Be done with everything before `position` in the epoch's needs."""
        self._check()
        self.apart = not self._groups.advance(self._member, position)

    def close(self) -> None:
        """Give the room back. In a forked child this does nothing: the reservation is its parent's."""
        if self._open and self._pid == os.getpid():
            self._open = False
            self._groups.leave(self._member)

    def __enter__(self) -> Reservation:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _check(self) -> None:
        if not self._open:
            raise ValueError("this reservation is closed")
        if self._pid != os.getpid():
            raise RuntimeError(
                "a forked child cannot use its parent's reservation: reserve in the process that reads"
            )


def promised(members: Sequence[Member]) -> int:
    """Bytes that these members were promised, once for each plan."""
    return sum(max(row.resident for row in rows) for rows in _by_plan(members).values())


def no_room(
    name: str, needed: int, budget: int | None, wait: float, members: Sequence[Member]
) -> BudgetError:
    """The error of one who waited in vain."""
    assert budget is not None
    pids = tuple(sorted({member.pid for member in members}))
    names = ", ".join(f"{member.name} (pid {member.pid})" for member in members)
    return BudgetError(
        f"{name} found no room for {format_bytes(needed)} in the cache within {wait:g} s: of its budget of "
        f"{format_bytes(budget)}, {format_bytes(promised(members))} are promised to {names or 'no scan'}, "
        "and batches in use hold the rest; wait for them, or raise the budget",
        needed=needed,
        budget=budget,
        holders=pids,
    )


def _members(connection: sqlite3.Connection, condition: str, *values: Any) -> list[Member]:
    columns = ", ".join(Member.__dataclass_fields__)
    return [
        Member(*row) for row in connection.execute(f"select {columns} from members where {condition}", values)
    ]


def _by_plan(members: Iterable[Member]) -> dict[str, list[Member]]:
    plans: dict[str, list[Member]] = {}
    for member in members:
        plans.setdefault(member.plan, []).append(member)
    return plans
