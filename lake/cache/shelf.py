"""The whole files of the cache, as readers meet them: leased only when their bytes are known to be right.

A file was verified when it landed; how it looked then (size, time of change, inode) is in the index. If it
looks otherwise, or a reader doubts it, or it is of an earlier boot of the machine, it is hashed once more. Where
that tells nothing, because the index is lost and the name is not the file's own digest, a file that others lease
is good and any other one is not.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from pathlib import Path
from typing import Any, Final

import xxhash

from lake import _os
from lake.cache import holds, index
from lake.cache.home import BLOCK, Home
from lake.cache.index import BOOT, LAYOUTS, Index
from lake.cache.lease import Lease, Looks, looks_of
from lake.cache.room import unlink

_CHUNK: Final = 1 << 20  # bytes hashed at once


class Shelf:
    """The whole files of one cache directory, as one process knows them."""

    def __init__(self, home: Home, found: Index) -> None:
        self._home, self._index = home, found
        self._known: dict[str, Looks] = {}

    def lease(self, key: str, *, verify: bool = False) -> Lease | None:
        """A lease on a file that is known to be right, or with `verify` proves to be; None if there is none.

        Only who holds the right to write the file may verify it: a wrong one is removed.
        """
        path = self._home.path(key)
        try:
            hold = holds.share(path)
        except FileNotFoundError:
            return None
        if hold is None:
            return None
        if not self._proven(key, looks_of(hold.stat)) and not (verify and self._verified(key, hold)):
            hold.close()
            return None
        return self.landed(key, hold)

    def landed(self, key: str, hold: holds.Hold) -> Lease:
        """The lease on a file that was verified just now."""
        self._known[key] = looks_of(hold.stat)
        self._index.touched[key] = time.time()
        path = self._home.path(key)
        if key.endswith(BLOCK):
            hold.last_out = path
        return Lease(Path(path), LAYOUTS[key[64:]], hold)

    def again(self, lease: Lease) -> bool:
        """Whether the file of a lease still looks as it did when it was leased; it then counts as used now."""
        stat = os.fstat(lease.fd)
        if not stat.st_nlink or looks_of(stat) != lease.looks:
            return False
        self._index.touched[lease.path.name] = time.time()
        return True

    def document(self, digest: str) -> bytes | None:
        """A document's bytes, verified. They need no lease: what has this digest is it, evicted or not."""
        try:
            data = Path(self._home.path(digest)).read_bytes()
        except FileNotFoundError:
            return None
        if hashlib.sha256(data).hexdigest() != digest:
            return None
        self._index.touched[digest] = time.time()
        return data

    def doubt(self, key: str) -> None:
        """Have a file verified before its next use, by whatever process."""
        with contextlib.suppress(OSError):
            os.utime(self._home.path(key))  # it no longer looks as it did

    def leases(self, key: str, counts: dict[int, int]) -> int:
        """How many leases there are on a file, given how many the system tells of on each inode."""
        path = self._home.path(key)
        try:
            hold = holds.take(path, exclusive=True)
        except FileNotFoundError:
            return 0
        if hold is None:
            return max(1, counts.get(_inode(path), 0))
        hold.close()
        return 0

    # --- inside -------------------------------------------------------------------------------

    def _proven(self, key: str, looks: Looks) -> bool:
        if self._known.get(key) == looks:
            return True
        query = "select bytes, mtime, inode, boot from files where key = ? and whole = 1"
        return self._index.read(query, key) == [(*looks, BOOT)]

    def _verified(self, key: str, hold: holds.Hold) -> bool:
        """Whether the bytes are what they were, as far as anybody knows; a file that is wrong goes."""
        rows = self._index.read("select checksum from files where key = ?", key)
        named = len(key) == 64
        found = _checksum(hold.fd, named=named)
        expected = key if named else rows[0][0] if rows else None
        good = found == expected or (expected is None and _others_lease(hold))
        with self._index.write() as connection:
            if _inode(self._home.path(key)) != hold.stat.st_ino:
                return good
            if good:
                index.add(connection, key, hold.stat.st_size)
                index.finish(connection, key, hold.stat, checksum=found)
            else:
                unlink(self._home.path(key))
                index.remove(connection, key)
        return good


def _others_lease(hold: holds.Hold) -> bool:
    """Whether the file is leased by others too, who then have verified it."""
    if _os.lock(hold.fd, exclusive=True, wait=False):
        return False
    return _os.lock(hold.fd, exclusive=False, wait=False)  # the attempt cost us our own lease


def _inode(path: str) -> int:
    try:
        return os.stat(path).st_ino  # noqa: PTH116
    except FileNotFoundError:
        return 0


def _checksum(fd: int, *, named: bool) -> str:
    found: Any = hashlib.sha256() if named else xxhash.xxh3_128()
    start = 0
    while data := _os.read_at(fd, _CHUNK, start):
        found.update(data)
        start += len(data)
    return str(found.hexdigest())
