"""What the cache's tests put into it, and what they see of its directory from outside."""

from __future__ import annotations

import contextlib
import hashlib
import os
import sqlite3
from dataclasses import dataclass
from pathlib import Path

from lake.cache import Sink


@dataclass(frozen=True)
class File:
    """Bytes and their digest; `fetch` writes them, in pieces."""

    data: bytes
    digest: str

    @classmethod
    def make(cls, seed: object, size: int = 1000) -> File:
        data = hashlib.shake_128(repr(seed).encode()).digest(size)
        return cls(data, hashlib.sha256(data).hexdigest())

    @property
    def size(self) -> int:
        return len(self.data)

    def fetch(self, sink: Sink) -> None:
        step = max(1, self.size // 4)
        for start in range(0, self.size, step):
            sink.write(self.data[start : start + step])


def unreachable(*_: object) -> bytes:
    """A fetch for what must be cached already."""
    raise AssertionError("fetched what should have been in the cache")


def on_disk(root: Path) -> int:
    """Bytes in the cache's files, half written ones included; the rest of the directory is its index."""
    total = 0
    for folder in ("files", "flights"):
        for place, _, names in os.walk(root / folder):
            for name in names:
                with contextlib.suppress(FileNotFoundError):
                    total += (Path(place) / name).stat().st_size
    return total


def on_disk_now(root: Path) -> int:
    """The same at one moment: nothing appears or goes while it is added up."""
    index = sqlite3.connect(root / "index.sqlite", timeout=60, isolation_level=None)
    try:
        index.execute("begin immediate")
        return on_disk(root)
    finally:
        index.close()


def latest_scans(root: Path) -> tuple[int, int]:
    """The latest epoch that a live scan is in, and how many are in it."""
    index = sqlite3.connect(root / "index.sqlite", timeout=60, isolation_level=None)
    try:
        query = "select epoch, count(*) from members group by epoch order by epoch desc limit 1"
        epoch, members = index.execute(query).fetchone() or (0, 0)
        return int(epoch), int(members)
    finally:
        index.close()


def whole_files(root: Path) -> dict[str, bytes]:
    """Every whole file by name."""
    return {path.name: path.read_bytes() for path in (root / "files").glob("*/*")}
