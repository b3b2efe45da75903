"""What the cache's directory holds, as a small SQLite database beside the files; a change is a transaction.

A transaction is also the only time at which whole files appear or go, so whoever is inside one sees directory
and index agree, but for what a killed process left: a row without its file, or a file whose row says that it
is being written. Nothing here waits for the disk, and losing the index loses no more than the knowledge that
the files are good: they are found again, and verified again before they are used.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from lake.cache import holds
from lake.cache.eviction import prefix
from lake.cache.home import BLOCK, OPEN, STORED, Home
from lake.errors import ConfigError, StoreError

LAYOUTS: Final = {STORED: "stored", OPEN: "open", BLOCK: "block"}
DOCUMENT: Final = "document"  # a stored file that is small and wanted again: a segment, a version
DOOMED: Final = "doomed"  # a stored file whose open one took its place while somebody read it

_BUSY_SECONDS: Final = 60.0

_SCHEMA: Final = """
begin immediate;
create table files (
    key text primary key,
    layout text not null,
    bytes integer not null,
    prefix integer not null,     -- first 8 bytes of the digest, as a signed number
    whole integer not null,      -- 0: admitted, being written
    mtime integer,               -- nanoseconds; with size and inode, how it looked when it was verified
    inode integer,
    boot text,                   -- when it was verified: its bytes may not have reached the disk since
    checksum text,               -- of files that are not named by their own digest
    used real not null
) without rowid;
create index loose on files (key) where whole = 0 or layout in ('block', 'doomed');
create table state (
    bytes integer not null,      -- of all files, those being written included
    generation integer not null, -- counts changes of what the live plans need, other than their going on
    crowded real not null,       -- when leases last stood in the way of an admission
    boot text not null
);
insert into state values (0, 0, 0, '');
create trigger added after insert on files begin update state set bytes = bytes + new.bytes; end;
create trigger changed after update of bytes on files begin
    update state set bytes = bytes - old.bytes + new.bytes;
end;
create trigger removed after delete on files begin update state set bytes = bytes - old.bytes; end;
create table members (
    id integer primary key,
    plan text not null,
    name text not null,          -- as error messages call it
    process text not null,       -- the file that it holds while it lives
    pid integer not null,
    resident integer not null,   -- bytes
    epoch integer not null,
    position integer not null,
    behind real,                 -- since when it has been more than the window behind the foremost
    apart integer not null       -- 1: it was too long behind; the others go on without it
);
create table needs (
    id integer primary key autoincrement, -- never used again, so that processes may remember them by it
    plan text not null,
    epoch integer not null,
    prefixes blob not null,
    sizes blob not null,
    unique (plan, epoch)
);
pragma user_version = 1;
commit;
"""


def boot() -> str:
    """Which run of the machine this is; a constant where the system does not tell."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    except OSError:
        return "unknown"


BOOT: Final = boot()


class Index:
    """The index of one cache directory, for all threads of a process; opened when used, anew after a fork."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._lock = threading.RLock()
        self._connection: sqlite3.Connection | None = None
        self._inode = 0
        self.touched: dict[str, float] = {}  # key -> time of last use, written with the next transaction
        holds.at_fork(self)

    @contextlib.contextmanager
    def write(self) -> Iterator[sqlite3.Connection]:
        """A transaction that no other process's overlaps; left by an exception, it did not happen."""
        with self._lock, self._translated():
            connection = self._open()
            connection.execute("begin immediate")
            try:
                self._flush(connection)
                yield connection
                connection.execute("commit")
            except BaseException:
                with contextlib.suppress(sqlite3.Error):
                    connection.execute("rollback")
                raise

    def read(self, query: str, *values: Any) -> list[Any]:
        """The rows of one query; a damaged index is made anew first."""
        with self._lock, self._translated():
            try:
                return self._open().execute(query, values).fetchall()
            except sqlite3.DatabaseError as error:
                if not _damaged(error):
                    raise
                self._discard()
                return self._open().execute(query, values).fetchall()

    def look(self, query: str) -> list[Any] | None:
        """The rows of one query; None where the directory was removed, which is not made again for this."""
        with self._lock:
            is_there = self._inode and self._inode == self._home.inode()
            return self.read(query) if is_there else None

    def close(self) -> None:
        """Give the connection up; the next use opens another."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def __del__(self) -> None:
        if (
            not sys.is_finalizing()
        ):  # then a thread that is no more may have the lock, and the process ends anyway
            self.close()

    # SQLite's locks are the process's: a child must not even see a connection that was open at the fork.

    def before_fork(self) -> None:
        self._lock.acquire()
        self.close()

    def after_fork(self, *, child: bool) -> None:
        if child:
            self._lock = threading.RLock()
            self.touched = {}
        else:
            self._lock.release()

    # --- inside -------------------------------------------------------------------------------

    def _flush(self, connection: sqlite3.Connection) -> None:
        touched, self.touched = self.touched, {}
        if touched:
            connection.executemany(
                "update files set used = ? where key = ?", [(t, key) for key, t in touched.items()]
            )

    def _open(self) -> sqlite3.Connection:
        if self._connection is not None and self._inode == self._home.inode():
            return self._connection
        self.close()  # somebody removed the directory, or replaced a damaged index
        self._home.claim()
        for last in (False, True):
            try:
                with self._alone():  # journal modes and schemas are made without company
                    self._connection = self._connect()
                return self._connection
            except sqlite3.DatabaseError as error:
                if last or not _damaged(error):
                    raise
                self._discard()
        raise AssertionError

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self._home.index, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False
        )
        try:
            connection.execute("pragma journal_mode = wal")
            connection.execute("pragma synchronous = off")  # see _survey
            connection.execute("pragma wal_autocheckpoint = 256")
            connection.execute("pragma journal_size_limit = 1048576")
            if connection.execute("pragma user_version").fetchone()[0] == 0:
                connection.executescript(_SCHEMA)
            if connection.execute("select boot from state").fetchone()[0] != BOOT:
                self._survey(connection)
        except BaseException:
            connection.close()
            raise
        finally:
            self._inode = self._home.inode()
        return connection

    def _survey(self, connection: sqlite3.Connection) -> None:
        """Count what is really there: once a boot, and after a loss of the index."""
        if connection.execute("pragma quick_check(1)").fetchone()[0] != "ok":
            raise _DamagedError("torn")
        connection.execute("begin immediate")
        sizes = dict(connection.execute("select key, bytes from files where whole = 1"))
        for key, stat in self._home.found():
            if key not in sizes:
                add(connection, key, stat.st_size, whole=True)
            elif sizes.pop(key) != stat.st_size:
                connection.execute("update files set bytes = ? where key = ?", (stat.st_size, key))
        connection.executemany("delete from files where key = ?", [(key,) for key in sizes])
        for key in self._home.flying():
            add(connection, key, 0)
        connection.execute(
            "update state set boot = ?, bytes = (select coalesce(sum(bytes), 0) from files)", (BOOT,)
        )
        connection.execute("commit")

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        pauses = holds.pauses()
        try:
            while (hold := holds.take(self._home.marker, exclusive=True)) is None:
                time.sleep(next(pauses))
        except OSError as error:
            message = f"{self._home.root} cannot be locked ({error}): give the cache a local disk"
            raise ConfigError(message) from error
        try:
            yield
        finally:
            hold.close()

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.DatabaseError as error:
            if _damaged(error):
                self._discard()
                message = f"{self._home.index} was damaged ({error}) and is made anew: repeat the call"
                raise StoreError(message, retryable=True) from error
            busy = _code(error) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
            raise StoreError(f"the cache's index {self._home.index}: {error}", retryable=busy) from error

    def _discard(self) -> None:
        self.close()
        with self._alone():
            if self._home.inode() == self._inode:  # else another process has made a new one already
                for name in ("", "-wal", "-shm"):
                    Path(f"{self._home.index}{name}").unlink(missing_ok=True)


class _DamagedError(sqlite3.DatabaseError):
    sqlite_errorcode = sqlite3.SQLITE_CORRUPT


def _code(error: sqlite3.Error) -> int:
    return int(getattr(error, "sqlite_errorcode", 0)) & 0xFF


def _damaged(error: sqlite3.Error) -> bool:
    return _code(error) in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def add(
    connection: sqlite3.Connection, key: str, size: int, *, layout: str | None = None, whole: bool = False
) -> None:
    """Count a file: one about to be written, or with `whole` one that was found and is to be verified."""
    number = prefix(key)
    signed = number - (1 << 64) if number >> 63 else number
    connection.execute(
        "insert or ignore into files values (?, ?, ?, ?, ?, null, null, null, null, ?)",
        (key, layout or LAYOUTS[key[64:]], size, signed, whole, time.time()),
    )


def finish(
    connection: sqlite3.Connection, key: str, stat: os.stat_result, *, checksum: str | None = None
) -> None:
    """A counted file is whole and verified, and looks like `stat`."""
    connection.execute(
        "update files set whole = 1, bytes = ?, mtime = ?, inode = ?, boot = ?, checksum = ?, used = ?"
        " where key = ?",
        (stat.st_size, stat.st_mtime_ns, stat.st_ino, BOOT, checksum, time.time(), key),
    )


def remove(connection: sqlite3.Connection, key: str) -> None:
    """A file is gone."""
    connection.execute("delete from files where key = ?", (key,))


def total(connection: sqlite3.Connection) -> int:
    """Bytes of all files, those being written included."""
    return int(connection.execute("select bytes from state").fetchone()[0])


def keys(connection: sqlite3.Connection, condition: str, *values: Any) -> Sequence[str]:
    """Keys of the files that meet an SQL condition."""
    return [key for (key,) in connection.execute(f"select key from files where {condition}", values)]
