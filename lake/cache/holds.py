"""Holds on files, shared or exclusive, that end with their process, however that ends.

A hold is an advisory lock on an open file description. The kernel drops it with the process, so nothing is
left behind and nobody guesses who is alive; a forked child closes what it inherited, which leaves the hold
with its parent. Nothing here waits for long but `queue`, and nothing here knows what the files are for.
"""

from __future__ import annotations

import contextlib
import errno
import os
import random
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Final, Protocol

from lake import _os

_guard = threading.RLock()  # a fork waits for it, so no descriptor is ever open and unknown
_open: dict[int, int] = {}  # descriptor -> id of its Hold


class Hold:
    """A hold on one file, until it is closed or nothing refers to it any more.

    `stat` is the file's, when the hold was taken. `last_out`: the path to unlink if no other hold is left.
    """

    __slots__ = ("__weakref__", "fd", "last_out", "stat")

    def __init__(self, fd: int, stat: os.stat_result) -> None:
        self.fd, self.stat = fd, stat
        self.last_out: str | None = None
        _open[fd] = id(self)

    def close(self) -> None:
        with _alone():
            if _open.get(self.fd) == id(self):  # not where it was inherited: the number may be another's now
                del _open[self.fd]
                if self.last_out is not None and _os.lock(self.fd, exclusive=True, wait=False):
                    self._unlink(self.last_out)
                os.close(self.fd)
            self.fd = -1

    def _unlink(self, path: str) -> None:
        with contextlib.suppress(OSError):
            if os.stat(path).st_ino == self.stat.st_ino:  # noqa: PTH116
                os.unlink(path)  # noqa: PTH108

    def __enter__(self) -> Hold:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    __del__ = close


def _alone() -> AbstractContextManager[object]:
    """The guard; at the end of the interpreter nothing, for a thread that is no more may have it."""
    return nullcontext() if sys.is_finalizing() else _guard


def take(path: Path | str, *, exclusive: bool, create: bool = False) -> Hold | None:
    """A hold on the file at `path`, None while another's hold forbids it.

    Raises:
        FileNotFoundError: no such file, or it went while it was opened; never with `create`.
    """
    flags = _os.OPEN_FLAGS | (os.O_RDWR | os.O_CREAT if create else os.O_RDONLY)
    while True:
        with _guard:
            fd = os.open(path, flags, 0o600)
            try:
                held = _os.lock(fd, exclusive=exclusive, wait=False)
                stat = os.fstat(fd)
                if held and stat.st_nlink:
                    return Hold(fd, stat)
            except BaseException:
                os.close(fd)
                raise
            os.close(fd)
        if not held:
            return None
        if not create:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))


def queue(path: Path | str) -> Hold:
    """An exclusive hold on the file at `path`, made if absent, as soon as those who asked before have let go.

    Raises:
        FileNotFoundError: no such folder.
    """
    with _guard:
        fd = os.open(path, _os.OPEN_FLAGS | os.O_RDWR | os.O_CREAT, 0o600)
        hold = Hold(
            fd, os.fstat(fd)
        )  # known before it waits, so that a child that is forked meanwhile closes it
    try:
        _os.lock(fd, exclusive=True)
    except BaseException:
        hold.close()
        raise
    return hold


def share(path: str, *, patience: float = 2.0) -> Hold | None:
    """A shared hold on the file; None if somebody excludes others for longer than `patience` seconds.

    Raises:
        FileNotFoundError: no such file.
    """
    deadline = 0.0
    for pause in pauses(0.0002):
        hold = take(path, exclusive=False)
        if hold is not None or 0 < deadline < time.monotonic():
            return hold
        deadline = deadline or time.monotonic() + patience
        time.sleep(pause)
    raise AssertionError


def counts() -> dict[int, int]:
    """How many shared holds there are on each inode, of those that this system tells of."""
    found: dict[int, int] = {}
    try:
        lines = Path("/proc/locks").read_text("ascii").splitlines()
    except OSError:
        return found
    for line in lines:  # 1: FLOCK ADVISORY READ <pid> <device>:<inode> 0 EOF
        fields = line.split()
        if len(fields) > 5 and fields[1] == "FLOCK" and fields[3] == "READ":
            inode = int(fields[5].rpartition(":")[2])
            found[inode] = found.get(inode, 0) + 1
    return found


def pauses(first: float = 0.001, longest: float = 0.05) -> Iterator[float]:
    """Seconds to sleep between looks at something that others change: growing, with jitter, for ever."""
    pause = first
    while True:
        yield pause * random.uniform(0.5, 1.0)
        pause = min(pause * 1.5, longest)


# --- forks ----------------------------------------------------------------------------------


class Forks(Protocol):
    """Something that must be at rest when the process forks."""

    def before_fork(self) -> None: ...

    def after_fork(self, *, child: bool) -> None: ...


_participants: weakref.WeakSet[Forks] = weakref.WeakSet()
_resting: Final[list[Forks]] = []


def at_fork(participant: Forks) -> None:
    """Tell `participant` of every fork, as long as it lives."""
    with _guard:
        _participants.add(participant)


def _before() -> None:
    _resting.extend(_participants)
    for participant in _resting:
        participant.before_fork()
    _guard.acquire()


def _after_in_parent() -> None:
    _guard.release()
    for participant in _resting:
        participant.after_fork(child=False)
    _resting.clear()


def _after_in_child() -> None:
    for fd in _open:
        os.close(fd)
    _open.clear()
    _guard.release()
    for participant in _resting:
        participant.after_fork(child=True)
    _resting.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_after_in_parent, after_in_child=_after_in_child)
