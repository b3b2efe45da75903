"""The members of an archive, one row each, in columns: compact for millions of them, and cheap to pickle."""

from __future__ import annotations

from array import array
from collections import Counter
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Member:
    """One file of an archive."""

    name: str  # "/"-separated, relative
    size: int  # bytes
    stored: int  # bytes that it takes in the archive
    method: str  # "stored", "deflated", "zstd", ...


@dataclass(slots=True)
class Table:
    """Names, and where the bytes of each lie; `skipped` counts what is no file."""

    names: list[str] = field(default_factory=list)
    start: array[int] = field(default_factory=lambda: array("q"))
    size: array[int] = field(default_factory=lambda: array("q"))
    skipped: Counter[str] = field(default_factory=Counter)

    def add(self, name: str, start: int, size: int) -> None:
        """Append a member."""
        self.names.append(name)
        self.start.append(start)
        self.size.append(size)
