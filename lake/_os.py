"""What differs between systems and between file systems; no other module asks where it runs.

Every difference has a portable fallback, and a test that forces it. Errors stay OSError: callers know
what a path means, this module does not.
"""

# File descriptors and flags are what this module is about:
# ruff: noqa: PTH104, PTH108, PTH116

from __future__ import annotations

import contextlib
import ctypes
import errno
import mmap
import os
import shutil
import signal
import sys
import tempfile
import time
import uuid
import weakref
from collections.abc import Callable
from math import inf
from pathlib import Path
from typing import Any

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl
    import resource

OPEN_FLAGS = (  # never inherited by a program started later, never followed through a link, never text
    getattr(os, "O_CLOEXEC", 0)
    | getattr(os, "O_NOFOLLOW", 0)
    | getattr(os, "O_NONBLOCK", 0)
    | getattr(os, "O_BINARY", 0)
)
_UNSUPPORTED = {errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EINVAL}

# --- durability -----------------------------------------------------------------------------


def fsync(fd: int) -> None:
    """Force a file's bytes to the disk, on macOS through the drive's own cache too."""
    full = getattr(fcntl, "F_FULLFSYNC", None) if sys.platform != "win32" else None
    if full is not None:
        try:
            fcntl.fcntl(fd, full)
            return
        except OSError:  # network file systems have no such call
            pass
    os.fsync(fd)


def fsync_dir(path: str) -> None:
    """Force the names in a directory to the disk, where the system knows such a thing."""
    if sys.platform == "win32":
        return
    fd = os.open(path, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_CLOEXEC", 0))
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
    finally:
        os.close(fd)


# --- creating a name only if it is free -----------------------------------------------------


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except FileExistsError:
        if not os.path.samestat(os.stat(source), os.lstat(target)):  # NFS repeats a call whose reply it lost
            raise
    except PermissionError as error:  # EPERM is how FAT says that it has no hard links
        if error.errno != errno.EPERM:
            raise
        raise OSError(errno.ENOTSUP, "no hard links here", target) from error
    with contextlib.suppress(FileNotFoundError):
        os.unlink(source)


def _rename(source: str, target: str) -> None:
    if sys.platform == "win32":
        os.rename(source, target)  # never replaces
        return
    library = ctypes.CDLL(None, use_errno=True)
    try:
        if sys.platform == "darwin":
            failed = library.renamex_np(os.fsencode(source), os.fsencode(target), 4)  # RENAME_EXCL
        else:
            failed = library.renameat2(
                -100, os.fsencode(source), -100, os.fsencode(target), 1
            )  # AT_FDCWD, NOREPLACE
    except AttributeError:
        raise OSError(errno.ENOSYS, "no rename without replacing here", target) from None
    if failed:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), source, None, target)


WAYS: tuple[Callable[[str, str], None], ...] = (_rename,) if sys.platform == "win32" else (_link, _rename)


def link_new(source: str, target: str) -> None:
    """Give the file `source` the name `target` in one step, unless that is taken; `source` is then gone.

    Raises:
        FileExistsError: `target` is taken; nothing happened.
        OSError: with ENOTSUP, the file system has neither hard links nor a rename that never replaces.
    """
    for way in WAYS:
        try:
            return way(source, target)
        except OSError as error:
            if error.errno not in _UNSUPPORTED:
                raise
    raise OSError(errno.ENOTSUP, "neither hard links nor a rename that never replaces", target)


# --- reading at a place ---------------------------------------------------------------------


def read_at(fd: int, length: int, start: int) -> bytes:
    """Up to `length` bytes from `start`, as one system call gives them. Not for a shared descriptor."""
    if hasattr(os, "pread"):
        return os.pread(fd, length, start)
    os.lseek(fd, start, os.SEEK_SET)
    return os.read(fd, length)


def read_into(fd: int, buffer: memoryview, start: int) -> int:
    """How many bytes from `start` were put into `buffer` by one system call."""
    if hasattr(os, "preadv"):
        return os.preadv(fd, [buffer], start)
    data = read_at(fd, len(buffer), start)
    buffer[: len(data)] = data
    return len(data)


# --- memory that processes share ------------------------------------------------------------


class SharedMemory:
    """`size` bytes, zeros at first, that a process shares with those it starts: it pickles on the way to them.

    No file system knows it by a name, so nothing is left however its processes end.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._key: Any = f"lake-{uuid.uuid4().hex}" if sys.platform == "win32" else _nameless_file(size)
        self._map()

    def __getstate__(self) -> Any:
        if sys.platform == "win32":
            return self._size, self._key
        from multiprocessing.reduction import DupFd

        return self._size, DupFd(self._key)

    def __setstate__(self, state: Any) -> None:
        self._size, key = state
        self._key = key if sys.platform == "win32" else key.detach()
        self._map()

    def _map(self) -> None:
        if sys.platform == "win32":
            self.map = mmap.mmap(-1, self._size, tagname=self._key)
        else:
            self.map = mmap.mmap(self._key, self._size)
            weakref.finalize(self, os.close, self._key)


def _nameless_file(size: int) -> int:
    """A file in memory, or an unlinked one."""
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("lake", os.MFD_CLOEXEC)
    else:
        fd, path = tempfile.mkstemp(prefix="lake-")
        os.unlink(path)
    os.ftruncate(fd, size)
    return fd


# --- clocks ---------------------------------------------------------------------------------


def boot_clock() -> float:
    """Seconds since some moment, the time that the machine slept included where the system can tell."""
    for name in ("CLOCK_BOOTTIME", "CLOCK_MONOTONIC"):  # the second sleeps on Linux, not on macOS
        if hasattr(time, name):
            return time.clock_gettime(getattr(time, name))
    return time.monotonic()


class SteadyClock:
    """Seconds since the epoch that never go back and never run slower than the wall clock or the boot clock.

    The wall clock may be set back, and the boot clock of some systems stops while they sleep.
    """

    def __init__(self, wall: Callable[[], float] = time.time, boot: Callable[[], float] = boot_clock) -> None:
        self._wall, self._boot = wall, boot
        self._offset = -inf

    def __call__(self) -> float:
        boot = self._boot()
        self._offset = max(self._offset, self._wall() - boot)
        return boot + self._offset


# --- leases ---------------------------------------------------------------------------------


def lock(fd: int, *, exclusive: bool, wait: bool = True) -> bool:
    """Whether a lease on the open file was taken; it ends with `unlock` or the process, however that ends.

    A second descriptor of the same process is a stranger like any other. On Windows every lease is exclusive.
    """
    if sys.platform == "win32":
        os.lseek(fd, 0x7FFF_FFF0, os.SEEK_SET)  # locks are mandatory there: beyond what anybody reads
        while True:
            try:
                msvcrt.locking(fd, msvcrt.LK_NBLCK, 1)
                return True
            except OSError:
                if not wait:
                    return False
                time.sleep(0.01)
    try:
        fcntl.flock(fd, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    return True


def unlock(fd: int) -> None:
    """Give the lease up, also where a forked child still holds the descriptor."""
    if sys.platform == "win32":
        os.lseek(fd, 0x7FFF_FFF0, os.SEEK_SET)
        msvcrt.locking(fd, msvcrt.LK_UNLCK, 1)
        return
    fcntl.flock(fd, fcntl.LOCK_UN)


def being_written(path: str) -> bool | None:
    """Whether a process has the file open for writing; None where the system does not say.

    Linux gives a lease for reading only on a file that nobody can write to; it is given back at once.
    """
    if sys.platform != "linux":
        return None
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGURG)  # a writer that comes now: SIGIO would end the process
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_RDLCK)
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except OSError as error:
        return True if error.errno == errno.EAGAIN else None
    finally:
        os.close(fd)
    return False


# --- the rest -------------------------------------------------------------------------------


def available_disk(path: str | Path) -> int:
    """Bytes that this user may still write where `path` is, or will be."""
    place = Path(path).absolute()
    while not place.exists():
        place = place.parent
    return shutil.disk_usage(place).free


def open_files() -> int:
    """How many files this process may have open at once, about."""
    if sys.platform == "win32":
        return 8192  # of the C library
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return 2**20 if limit == resource.RLIM_INFINITY else limit


def memory() -> int:
    """Bytes of the machine's memory; 0 where the system does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 0


def after_fork(call: Callable[[], None]) -> None:
    """Have `call` run in every forked child, before anything else of lake does."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=call)
