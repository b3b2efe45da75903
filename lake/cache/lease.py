"""A lease on one cached file, which ends when it is closed and no map of the file is left."""

from __future__ import annotations

import os
from mmap import ACCESS_READ, mmap
from pathlib import Path

from lake.cache.holds import Hold

Looks = tuple[int, int, int]  # size, nanoseconds of the last change, inode


def looks_of(stat: os.stat_result) -> Looks:
    """What tells whether a file is what it was."""
    return stat.st_size, stat.st_mtime_ns, stat.st_ino


class Lease:
    """A cross-process hold on the file at `path`: while it lasts, the file is not evicted.

    `layout` says what the file is: "stored" as downloaded, "open" decoded, or a "block".
    """

    __slots__ = ("_hold", "layout", "looks", "path", "size")

    def __init__(self, path: Path, layout: str, hold: Hold) -> None:
        self.path, self.layout, self.size = path, layout, hold.stat.st_size
        self.looks = looks_of(hold.stat)
        self._hold: Hold | None = hold

    def map(self) -> mmap | bytes:
        """The file's bytes, read-only and not copied; as long as anything refers to them, the lease lasts."""
        hold = self._held()
        if not self.size:
            return b""
        # A map keeps a copy of its descriptor, which a forked child inherits: not of the one that leases.
        with self.path.open("rb") as file:
            mapped = _Map(file.fileno(), self.size, access=ACCESS_READ)
        mapped.hold = hold
        return mapped

    @property
    def fd(self) -> int:
        """The open file, for reading at a place (`os.preadv`)."""
        return self._held().fd

    def close(self) -> None:
        """End the lease, or leave that to the maps that are still in use."""
        self._hold = None

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _held(self) -> Hold:
        if self._hold is None or self._hold.fd < 0:
            raise ValueError(f"the lease on {self.path.name} is closed")
        return self._hold


class _Map(mmap):
    hold: Hold
