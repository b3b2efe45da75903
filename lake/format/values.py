"""The values that the format's documents hold; what each looks like as bytes is in its own module.

Digests are lower-case hex of sha256. Byte counts named `raw` are decoded Arrow bytes as
`lake.format.cuts` counts them; all others are stored bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Batch:
    """Where one record batch lies in its part."""

    offset: int  # of the message, from the start of the file
    meta_length: int  # the message with its length prefix and padding
    length: int  # of the body that follows it
    rows: int
    check: bytes  # first 8 bytes of the sha256 of the message


@dataclass(frozen=True, slots=True)
class Part:
    """One immutable Arrow IPC file: some of a shard's columns, all of its rows."""

    digest: str
    content: str
    bytes: int
    raw_bytes: int
    codec: str  # "zstd" or "none"
    fields: tuple[str, ...]  # which columns it speaks for; others in the file are ignored
    batches: tuple[Batch, ...]

    @property
    def places(self) -> Mapping[str, int]:
        """The number of each of its columns."""
        return _places(self.fields)

    def held(self, columns: Iterable[str]) -> list[str]:
        """Those of these columns that it speaks for, in their order."""
        places = self.places
        return [name for name in columns if name in places]


@lru_cache(maxsize=256)
def _places(fields: tuple[str, ...]) -> Mapping[str, int]:
    return {name: place for place, name in enumerate(fields)}


@dataclass(frozen=True, slots=True)
class ColumnStats:
    """What a shard's manifest row says of one column. None = unknown, for every member."""

    min: Any = None  # Python value of the column's type; a true lower bound
    max: Any = None
    nulls: int | None = None
    nans: int | None = None


@dataclass(frozen=True, slots=True)
class Shard:
    """A run of rows: one row of a manifest."""

    rows: int
    raw_bytes: int
    first_key: Any
    last_key: Any
    cut: int  # hash of the last row
    parts: tuple[Part, ...]
    stats: dict[str, ColumnStats] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SegmentRef:
    """What a version document says of one segment of its manifest."""

    digest: str
    rows: int
    shards: int
    bytes: int
    raw_bytes: int


@dataclass(frozen=True, slots=True)
class Cuts:
    """How shard boundaries were found: part of the version, so that a later commit cuts alike."""

    algorithm: int
    seed: int
    target: int  # raw bytes


@dataclass(frozen=True)
class VersionDocument:
    """The immutable document that is a version. It knows no clock, author, path or dataset name."""

    schema: pa.Schema  # canonical, as readers see it
    rows: int
    shards: int
    bytes: int
    raw_bytes: int
    segments: tuple[SegmentRef, ...]
    cuts: Cuts
    key: str | None
    vocab: dict[str, list[Any]]  # per dictionary column: its values, in code order
    meta: dict[str, Any] | None
    recipe: Any
    chain: str  # running digest over the shards' contents; see lake.format.version
    data: str  # digest of the logical content
    needs: dict[str, list[str]] = field(default_factory=lambda: {"read": [], "write": []})


@dataclass(frozen=True, slots=True)
class LogEntry:
    """One step of a dataset's history."""

    seq: int
    version: str | None  # None: a removal
    parent: str | None
    operation: str
    time: str  # UTC, ISO 8601 with microseconds and "Z"
    author: str
    message: str | None
    txn: str
    born: int  # first seq since the last removal
    rows_added: int
    rows_removed: int
    bytes_new: int
    bytes_reused: int
    needs: dict[str, list[str]] = field(default_factory=lambda: {"read": [], "write": []})
