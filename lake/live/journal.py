"""What was handed over: a small database in `.lake-live`, a hidden folder inside the watched one.

Hidden files are never part of what is committed, and the journal moves with the folder. A batch is written down
with its files before it is handed over and marked after, each forced to the disk, so that after any crash the same
files come back under the same id. Whoever holds the file `watcher` is the only one who writes here.
"""

from __future__ import annotations

import os
import sqlite3
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Final

from lake import _os, filenames
from lake.errors import ConflictError, FormatError
from lake.live.arrivals import File, Sample, Stamp

HOME: Final = ".lake-live"
_FORMAT: Final = 1
_REMEMBERED: Final = 86400.0  # seconds that a deleted file is known, so that what follows it is late
_HERE, _LEAVING, _GONE = 0, 1, 2  # whether a file that was handed over still lies in the folder

_SCHEMA: Final = """
create table journal (id text not null, target text not null);
create table batches (
    number integer primary key autoincrement, state text not null, failures integer not null, error text, time real
);
create table files (
    batch integer not null references batches, sample integer not null, late integer not null,
    path text not null, size integer not null, written integer not null, place integer not null default 0
);
create index files_by_batch on files (batch);
create index files_by_path on files (path);
"""


@dataclass(slots=True)
class Open:
    """A batch that is to be handed over."""

    number: int
    samples: list[Sample]
    failures: int = 0  # that count against it
    attempts: int = 0  # of this process

    @property
    def files(self) -> list[File]:
        """All its files."""
        return [file for sample in self.samples for file in sample.files]


class Journal:
    """The journal of one folder, held until it is closed. `target`: where its files go; "": wherever they went.

    Raises:
        ConflictError: another process watches the folder; or what was handed over went to another target.
        FormatError: a newer lake wrote it.
        OSError: the folder cannot be written.
    """

    def __init__(self, folder: Path, target: str) -> None:
        self.home = folder / HOME
        try:
            self.home.mkdir(exist_ok=True)
        except OSError as error:
            why = f"{error.strerror}: what was handed over is written down in the folder, so make it writable"
            raise type(error)(error.errno, why, str(self.home)) from None
        self._lease = _claim(self.home / "watcher", folder)
        with ExitStack() as undo:
            undo.callback(_give_up, self._lease)
            self._db = _connected(self.home / "journal.sqlite")
            undo.callback(self._db.close)
            self.id = self._opened(folder, target)
            self._put_back(folder)
            undo.pop_all()

    def close(self) -> None:
        """Let another process watch the folder."""
        self._db.close()
        _give_up(self._lease)

    def batch_id(self, number: int) -> str:
        """The id of a batch, the same whenever it is handed over."""
        return f"{self.id}-{number}"

    # --- reading ------------------------------------------------------------------------------

    def known(self) -> dict[str, Stamp]:
        """The files of all batches, as they were when they were handed over last."""
        rows = self._db.execute("select path, size, written from files order by batch")
        return {path: Stamp(size, written) for path, size, written in rows}

    def deletable(self) -> set[File]:
        """Files that were handed over and lie in the folder still, as far as is known."""
        rows = self._db.execute(
            "select path, size, written from files join batches on number = batch where state = 'done' and place = ?",
            (_HERE,),
        )
        return {File(path, Stamp(size, written)) for path, size, written in rows}

    def unfinished(self) -> list[Open]:
        """Batches that were not handed over, or not to the end, oldest first."""
        rows = self._db.execute("select number, failures from batches where state = 'open' order by number")
        return [Open(number, self._samples(number), failures) for number, failures in rows.fetchall()]

    def _samples(self, number: int) -> list[Sample]:
        rows = self._db.execute(
            "select sample, late, path, size, written from files where batch = ? order by sample, rowid",
            (number,),
        )
        samples = []
        for _, group in groupby(rows, key=lambda row: row[0]):
            found = list(group)
            files = tuple(File(path, Stamp(size, written)) for _, _, path, size, written in found)
            samples.append(Sample(filenames.split(files[0].path)[0], files, bool(found[0][1])))
        return samples

    # --- writing ------------------------------------------------------------------------------

    def begin(self, samples: Sequence[Sample], *, failures: int = 0, state: str = "open") -> Open:
        """Write a batch down, before it is handed over."""
        with self._durably():
            number = self._db.execute(
                "insert into batches (state, failures, time) values (?, ?, ?)", (state, failures, time.time())
            ).lastrowid
            assert number is not None
            self._db.executemany(
                "insert into files (batch, sample, late, path, size, written) values (?, ?, ?, ?, ?, ?)",
                (
                    (number, place, sample.late, file.path, *file.stamp)
                    for place, sample in enumerate(samples)
                    for file in sample.files
                ),
            )
        return Open(number, list(samples), failures)

    def drop(self, batch: Open, files: Iterable[File]) -> None:
        """Take files out of a batch that is not handed over yet."""
        with self._durably():
            self._db.executemany(
                "delete from files where batch = ? and path = ?",
                [(batch.number, file.path) for file in files],
            )

    def finish(self, batch: Open, state: str) -> None:
        """The batch is "done", "void" (nothing was left of it) or "quarantined"."""
        with self._durably():
            self._db.execute("update batches set state = ? where number = ?", (state, batch.number))

    def fail(self, batch: Open, error: str) -> None:
        """Handing the batch over failed, `batch.failures` times so far."""
        with self._durably():
            self._db.execute(
                "update batches set failures = ?, error = ? where number = ?",
                (batch.failures, error, batch.number),
            )

    def release(self) -> int:
        """Let every quarantined batch be handed over again; how many there are."""
        with self._durably():
            changed = self._db.execute(
                "update batches set state = 'open', failures = 0 where state = 'quarantined'"
            )
        return changed.rowcount

    # --- deleting -----------------------------------------------------------------------------

    def delete(self, folder: Path, files: Sequence[File]) -> list[str]:
        """Delete files that were handed over; the paths of those that had changed, which stay.

        Each is moved away first and looked at there: what a writer puts in its place meanwhile is not deleted.
        """
        with self._durably():
            leaving = [self._row(file) for file in files]
            self._db.executemany(
                "update files set place = ? where rowid = ?", [(_LEAVING, row) for row in leaving]
            )
        changed = []
        for file, row in zip(files, leaving, strict=True):
            away = self.home / f"leaving-{row}"
            with suppress(FileNotFoundError):
                (folder / file.path).replace(away)
                if not _os.being_written(str(away)) and stamp_of(away) == file.stamp:  # in this order
                    away.unlink()
                else:
                    _restore(away, folder / file.path)
                    changed.append(file.path)
        with self._durably():
            self._db.executemany(
                "update files set place = ? where rowid = ?", [(_GONE, row) for row in leaving]
            )
        return changed

    def _row(self, file: File) -> int:
        found = self._db.execute(
            "select max(rowid) from files where path = ? and size = ? and written = ?",
            (file.path, *file.stamp),
        ).fetchone()
        return int(found[0])

    def _put_back(self, folder: Path) -> None:
        """End the deletions that a crash cut short."""
        rows = self._db.execute("select rowid, path, size, written from files where place = ?", (_LEAVING,))
        for row, path, size, written in rows.fetchall():
            away = self.home / f"leaving-{row}"
            stamp = stamp_of(away)
            if stamp == Stamp(size, written):
                away.unlink()
            elif stamp is not None:
                _restore(away, folder / path)
        with self._durably():
            self._db.execute("update files set place = ? where place = ?", (_HERE, _LEAVING))
            self._db.execute(
                "delete from files where place = ? and batch in (select number from batches where time < ?)",
                (_GONE, time.time() - _REMEMBERED),
            )

    # --- inside -------------------------------------------------------------------------------

    def _opened(self, folder: Path, target: str) -> str:
        version = self._db.execute("pragma user_version").fetchone()[0]
        if version > _FORMAT:
            raise FormatError(
                f"{self.home} is a journal of format {version}; this lake knows {_FORMAT}: upgrade it"
            )
        if version == 0:
            self._db.executescript(
                f"begin; {_SCHEMA} insert into journal values ('{uuid.uuid4().hex}', ''); "
                f"pragma user_version = {_FORMAT}; commit;"
            )
        found, before = self._db.execute("select id, target from journal").fetchone()
        if target and before not in ("", target):
            raise ConflictError(
                f"the files of {folder} went to {before} so far, not to {target}: delete {self.home} to begin anew"
            )
        with self._durably():
            self._db.execute("update journal set target = ?", (target or before,))
        return str(found)

    @contextmanager
    def _durably(self) -> Iterator[None]:
        """One transaction, on the disk when this ends."""
        self._db.execute("begin immediate")
        try:
            yield
        except BaseException:
            self._db.execute("rollback")
            raise
        self._db.execute("commit")


def stamp_of(path: str | Path) -> Stamp | None:
    """The stamp of the file at a path; None if there is none."""
    try:
        status = os.stat(path)  # noqa: PTH116 - asked for every file of every listing
    except (FileNotFoundError, NotADirectoryError):
        return None
    return Stamp(status.st_size, status.st_mtime_ns)


def _connected(path: Path) -> sqlite3.Connection:
    db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    db.execute("pragma locking_mode = exclusive")  # so that the log needs no shared memory, on any disk
    db.execute("pragma journal_mode = wal")
    db.execute("pragma synchronous = full")
    return db


def _claim(path: Path, folder: Path) -> int:
    """An open file that only one process has."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o644)
    try:
        if not _os.lock(fd, exclusive=True, wait=False):
            holder = _os.read_at(fd, 20, 0).decode("ascii", "replace").strip()
            raise ConflictError(f"{folder} is watched by process {holder or '?'} already: stop it first")
        os.ftruncate(fd, 0)
        os.write(fd, b"%d\n" % os.getpid())
    except BaseException:
        os.close(fd)
        raise
    _held.add(fd)
    return fd


def _restore(away: Path, path: Path) -> None:
    """Put a file back under its name, unless a newer one took it."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _os.link_new(str(away), str(path))
    except FileExistsError:
        away.unlink()


_held: set[int] = set()


def _give_up(fd: int) -> None:
    _held.discard(fd)
    os.close(fd)


def _let_go() -> None:
    """A forked child must not hold what its parent does, or it would outlive the parent's death."""
    for fd in _held:
        with suppress(OSError):
            os.close(fd)
    _held.clear()


_os.after_fork(_let_go)
