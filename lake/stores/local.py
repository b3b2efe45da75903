"""A store in a folder: a key is a file below the root.

An object is written as `tmp/<uuid>`, forced to the disk, and then gets its name in one step that fails if the
name is taken; directories follow. So a name never stands for half an object, whatever crashes. Nothing is
ever reached through a symbolic link below the root: no key leads out of it.
"""

# Descriptors, flags and plain texts, because this is the hot path of a local lake:
# ruff: noqa: PTH103, PTH104, PTH105, PTH108, PTH111, PTH112, PTH118, PTH120

from __future__ import annotations

import contextlib
import errno
import os
import stat
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Self

from lake import _os
from lake.errors import NotFoundError, StoreError
from lake.stores.base import LEASE_KEY, Buffer, Object, check_key, check_prefix

_ABSENT = (FileNotFoundError, NotADirectoryError)
_WRITE_BUFFER = 1 << 18  # bytes: pyarrow writes messages and paddings in crumbs; larger pieces pass uncopied
_COPY_PIECE = 4 << 20
_MOST_AT_ONCE = 1 << 30  # Linux reads at most 2 GiB a call, macOS fails above

_TRANSIENT = {
    errno.EAGAIN,
    errno.EBUSY,
    errno.EINTR,
    errno.EMFILE,
    errno.ENFILE,
    errno.ESTALE,
    errno.ETIMEDOUT,
}
_WAYS_OUT = {
    errno.EACCES: "give this user the right to, or open the lake as one who has it",
    errno.EPERM: "give this user the right to, or open the lake as one who has it",
    errno.EROFS: "mount it writable, or open another lake",
    errno.EFBIG: "raise the file size limit (`ulimit -f`), or commit with smaller shard_bytes",
    errno.ELOOP: "a lake is never read through symbolic links; mount or move the data into it",
    errno.EXDEV: "all of a lake must be on one file system, its tmp/ included",
    errno.EMFILE: "raise the limit of open files (`ulimit -n`)",
    errno.ENAMETOOLONG: "use shorter names",
}


class LocalStore:
    """The store in the folder `root`, which need not exist yet: the first write makes it.

    `single_writer`: do with a folder that can neither link nor rename without replacing; there, two writers
    at once may undo each other's work.
    """

    def __init__(self, root: str | os.PathLike[str], *, single_writer: bool = False) -> None:
        self.root = Path(os.path.realpath(os.path.expanduser(root)))
        self.single_writer = single_writer
        self._base = str(self.root)
        self._ground = next(str(place) for place in (self.root, *self.root.parents) if place.exists())
        self._settled: set[str] = set()  # directories whose own names this process has seen onto the disk
        self._inside: set[str] = set()  # directories seen to lie below the root
        self.now = _os.SteadyClock()

    @property
    def url(self) -> str:
        return self._base

    def __repr__(self) -> str:
        return f"LocalStore({self._base!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (self._base, self.single_writer)

    def exists(self) -> bool:
        return self.root.is_dir()

    def local_path(self, key: str) -> Path | None:
        return Path(self._path(key))

    # --- reading ------------------------------------------------------------------------------

    def get(self, key: str) -> bytes:
        with self._reading(key) as (fd, size):
            return _read(fd, size, 0)

    def get_range(self, key: str, start: int, length: int) -> bytes:
        if start < 0 or length < 0:
            raise ValueError(f"no range: {length} bytes from {start}")
        with self._reading(key) as (fd, size):
            return _read(fd, max(0, min(length, size - start)), start)

    def get_into(self, key: str, start: int, buffer: bytearray | memoryview) -> int:
        if start < 0:
            raise ValueError(f"no range: from {start}")
        with self._reading(key) as (fd, _), memoryview(buffer).cast("B") as view:
            done = 0
            while done < len(view):
                got = _os.read_into(fd, view[done : done + _MOST_AT_ONCE], start + done)
                if not got:
                    break
                done += got
            return done

    def head(self, key: str) -> Object | None:
        path = self._path(key)
        try:
            found = os.lstat(path)
        except _ABSENT:
            return None
        except OSError as error:
            raise self._explained("look up", path, error) from error
        return Object(key, found.st_size, found.st_mtime) if not stat.S_ISDIR(found.st_mode) else None

    def list(self, prefix: str = "", *, start_after: str | None = None) -> Iterator[Object]:
        folder, _, name = check_prefix(prefix).rpartition("/")
        return self._walk(folder, name, start_after or "")

    def list_dirs(self, prefix: str = "") -> Iterator[str]:
        folder = check_prefix(prefix).removesuffix("/")
        for name, _ in self._entries(folder, ""):
            if name.endswith("/") and any(True for _ in self._walk(f"{folder}/{name}".strip("/"), "", "")):
                yield name[:-1]

    def _walk(self, folder: str, name_prefix: str, start_after: str) -> Iterator[Object]:
        for name, entry in self._entries(folder, name_prefix):
            key = f"{folder}/{name}" if folder else name
            if name.endswith("/"):
                if key > start_after or start_after.startswith(key):
                    yield from self._walk(key[:-1], "", start_after)
            elif key > start_after:
                try:
                    found = entry.stat(follow_symlinks=False)
                except FileNotFoundError:  # deleted since
                    continue
                except OSError as error:
                    raise self._explained("look up", entry.path, error) from error
                yield Object(key, found.st_size, found.st_mtime)

    def _entries(self, folder: str, name_prefix: str) -> Sequence[tuple[str, os.DirEntry[str]]]:
        """A directory's entries in the order of keys: the name of a directory counts with its slash."""
        path = self._place(folder)
        try:
            with os.scandir(path) as found:
                entries = [(entry.name + "/" * entry.is_dir(follow_symlinks=False), entry) for entry in found]
        except _ABSENT:
            return []
        except OSError as error:
            raise self._explained("list", path, error) from error
        return sorted((e for e in entries if e[0].startswith(name_prefix)), key=lambda e: e[0])

    @contextmanager
    def _reading(self, key: str) -> Iterator[tuple[int, int]]:
        """An object's descriptor and size."""
        path = self._path(key)
        try:
            fd = os.open(path, os.O_RDONLY | _os.OPEN_FLAGS)
            try:
                found = os.fstat(fd)
                if not stat.S_ISREG(found.st_mode):
                    raise FileNotFoundError
                yield fd, found.st_size
            finally:
                os.close(fd)
        except _ABSENT as error:
            nowhere = "" if self.exists() else "; folder exists: no"
            raise NotFoundError(f"no {key} in {self.url}{nowhere}") from error
        except OSError as error:
            raise self._explained("read", path, error) from error

    # --- writing ------------------------------------------------------------------------------

    def put_new(self, key: str, data: Buffer) -> bool:
        with self.stage() as staged:
            staged.write(data)
            return staged.publish(key)

    def put(self, key: str, data: Buffer) -> None:
        path = self._path(key)
        with self.stage() as staged:
            staged.write(data)
            staged.close()
            try:
                try:
                    os.replace(staged.path, path)
                except FileNotFoundError:
                    self._make(os.path.dirname(path))
                    os.replace(staged.path, path)
                self._settle(os.path.dirname(path))
            except OSError as error:
                raise self._explained("write", path, error) from error

    def stage(self) -> LocalStaged:
        return LocalStaged(self)

    def copy(self, source: str, target: str) -> bool:
        with self._reading(source) as (fd, size), self.stage() as staged:
            done = 0
            while done < size and (piece := _os.read_at(fd, _COPY_PIECE, done)):
                staged.write(piece)
                done += len(piece)
            return staged.publish(target)

    def delete(self, keys: Iterable[str]) -> dict[str, Exception]:
        failed: dict[str, Exception] = {}
        emptied: dict[str, str] = {}
        for key in keys:
            path = self._path(key)
            try:
                os.unlink(path)
            except _ABSENT:
                continue
            except OSError as error:
                failed[key] = self._explained("delete", path, error)
            else:
                emptied[os.path.dirname(path)] = key
        for folder, key in emptied.items():
            try:
                _os.fsync_dir(folder)
            except OSError as error:
                failed[key] = self._explained("delete", folder, error)
        return failed

    def abandon(self, before: float, *, dry_run: bool = False) -> int:
        return 0

    def link_in(self, path: str, key: str) -> bool:
        """Give the finished file `path` the name `key`, durable; False if that is taken."""
        target = self._path(key)
        folder = os.path.dirname(target)
        try:
            try:
                created = self._link(path, target)
            except FileNotFoundError:
                self._make(folder)
                created = self._link(path, target)
            self._settle(folder)  # where it is taken too: who gave that name may not have come this far
        except OSError as error:
            raise self._explained("create", target, error) from error
        return created

    def _link(self, path: str, target: str) -> bool:
        try:
            _os.link_new(path, target)
        except FileExistsError:
            if os.path.isdir(target):
                raise
            return False
        except OSError as error:
            if error.errno != errno.ENOTSUP or not self.single_writer:
                raise
            if os.path.lexists(target):
                return False
            os.rename(path, target)
        return True

    def _make(self, folder: str) -> None:
        """Make a directory and those that lead to it; their names are not on the disk yet."""
        fresh, place = {folder}, os.path.dirname(folder)
        while place not in fresh and not os.path.isdir(place):
            fresh.add(place)
            place = os.path.dirname(place)
        os.makedirs(folder, exist_ok=True)
        self._settled -= fresh

    def _settle(self, folder: str) -> None:
        """Force the names in a directory to the disk, and those of the directories that lead to it."""
        _os.fsync_dir(folder)
        while folder != self._ground and folder not in self._settled:
            parent = os.path.dirname(folder)
            _os.fsync_dir(parent)
            self._settled.add(folder)
            folder = parent

    # --- the folder itself --------------------------------------------------------------------

    @contextmanager
    def root_lease(self, *, exclusive: bool = False) -> Iterator[None]:
        path = self._path(LEASE_KEY)
        how = os.O_RDWR | os.O_CREAT | _os.OPEN_FLAGS
        try:
            try:
                fd = os.open(path, how, 0o666)
            except FileNotFoundError:
                self._make(os.path.dirname(path))
                fd = os.open(path, how, 0o666)
        except OSError as error:
            raise self._explained("lease", path, error) from error
        try:
            try:
                _os.lock(fd, exclusive=exclusive)
            except OSError as error:
                if not self.single_writer:
                    raise self._explained("lease", path, error) from error
            yield
        finally:
            with contextlib.suppress(OSError):
                _os.unlock(fd)
            os.close(fd)

    def _path(self, key: str) -> str:
        folder, _, name = check_key(key).rpartition("/")
        return os.path.join(self._place(folder), name)

    def _place(self, folder: str) -> str:
        """A directory's path, seen not to lead through a symbolic link."""
        path = os.path.join(self._base, *folder.split("/")) if folder else self._base
        if path not in self._inside:
            if os.path.realpath(path) != path:
                raise self._explained("enter", path, OSError(errno.ELOOP, "a symbolic link"))
            if os.path.isdir(path):
                self._inside.add(path)
        return path

    def _explained(self, verb: str, path: str, error: OSError) -> StoreError:
        code = error.errno or 0
        if code in (errno.ENOSPC, errno.EDQUOT):
            free = _os.available_disk(path)
            way_out = f"{free:,} bytes are free there: make room, or move the lake"
        elif code == errno.ENOTSUP:
            way_out = "it cannot keep two writers apart; if there is ever only one: single_writer=True"
        elif isinstance(error, FileExistsError):
            way_out = "something else of that name is in the way"
        else:
            way_out = _WAYS_OUT.get(code, "")
        reason = error.strerror or type(error).__name__
        return StoreError(
            f"cannot {verb} {path}: {reason}{f' ({way_out})' if way_out else ''}",
            retryable=code in _TRANSIENT,
        )


class LocalStaged:
    """A file in `tmp/` that has no key yet."""

    def __init__(self, store: LocalStore) -> None:
        self._store = store
        self.path = store._path(f"tmp/{uuid.uuid4().hex}")
        self._size = 0
        try:
            try:
                self._file = self._create()
            except FileNotFoundError:
                store._make(os.path.dirname(self.path))
                self._file = self._create()
        except OSError as error:
            raise store._explained("create", self.path, error) from error

    def _create(self) -> BinaryIO:
        fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _os.OPEN_FLAGS, 0o666)
        return os.fdopen(fd, "wb", buffering=_WRITE_BUFFER)

    def write(self, data: Buffer, /) -> int:
        try:
            written = self._file.write(data)
        except OSError as error:
            raise self._failed(error) from error
        self._size += written
        return written

    def tell(self) -> int:
        return self._size

    def close(self) -> None:
        """Force what was written to the disk. Nothing can be written afterwards."""
        if self._file.closed:
            return
        try:
            self._file.flush()
            _os.fsync(self._file.fileno())
            self._file.close()
        except OSError as error:
            raise self._failed(error) from error

    def publish(self, key: str, sha256: str = "") -> bool:
        self.close()
        return self._store.link_in(self.path, key)

    def _failed(self, error: OSError) -> StoreError:
        """Give up: nobody knows what is on the disk after a failed fsync, and a second one may lie."""
        explained = self._store._explained("write", self.path, error)
        self.discard()
        return explained

    def discard(self) -> None:
        with contextlib.suppress(OSError):  # a full disk: closing tries to write the rest once more
            self._file.close()
        with contextlib.suppress(OSError):
            os.unlink(self.path)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.discard()


def _rebuild(root: str, single_writer: bool) -> LocalStore:
    return LocalStore(root, single_writer=single_writer)


def _read(fd: int, length: int, start: int) -> bytes:
    """`length` bytes from `start`, or those up to the end."""
    data = _os.read_at(fd, min(length, _MOST_AT_ONCE), start)
    if len(data) in (0, length):
        return data
    pieces = [data]
    done = len(data)
    while done < length and (data := _os.read_at(fd, min(length - done, _MOST_AT_ONCE), start + done)):
        pieces.append(data)
        done += len(data)
    return b"".join(pieces)
