"""What reading a user's data gives: a schema, a stream of record batches, and what is known beforehand.

A source is read once. It never decides where shards end, what is stored or how: that is the commit's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

BATCH_BYTES = 8 << 20  # about how much of the input one batch holds, where convert makes the batches
BATCH_ROWS = 1 << 16  # and never more rows, however small
SLICE_BYTES = 64 << 20  # a caller's batch passes through untouched up to this, and is sliced above


@dataclass(slots=True)
class Meter:
    """Bytes of the input read so far; only the thread that takes batches moves it."""

    read: int = 0


@dataclass(slots=True)
class Source:
    """A user's data as a stream of Arrow record batches, every batch of exactly `schema`.

    `bytes` and `read` count the same thing, whatever the input has to count: bytes of files, or of Arrow
    buffers. Closing `batches` early stops its threads and removes its temporary files.
    """

    schema: pa.Schema
    batches: Iterator[pa.RecordBatch]
    key: str | None = None  # the key column, where one is named or suggests itself
    vocab: dict[str, list[Any]] = field(default_factory=dict)  # dictionary columns whose order is known
    rows: int | None = None
    bytes: int | None = None
    notes: list[str] = field(default_factory=list)  # what was left out, counted
    sorted_by: str | None = None  # a column of few values that the rows are known to be sorted by
    meter: Meter = field(default_factory=Meter)
    typed: bool = True  # the input itself says what its types are, even when it has no rows

    @property
    def read(self) -> int:
        """Bytes of the input read so far, out of `bytes`."""
        return self.meter.read


@dataclass(frozen=True, slots=True)
class Access:
    """How to reach `s3://` inputs; credentials come from the standard AWS chain."""

    endpoint_url: str | None = None
    region: str | None = None
    anonymous: bool = False


@dataclass(frozen=True, slots=True)
class Request:
    """What the caller asked for, as every kind of input needs it."""

    schema: pa.Schema | None = None
    vocab: Mapping[str, list[Any]] = field(default_factory=dict)  # from `schema`, where it lists values
    labels: bool = False
    shuffled: bool = False
    access: Access = field(default_factory=Access)


def bounded(batch: pa.RecordBatch, limit: int = SLICE_BYTES) -> Iterator[pa.RecordBatch]:
    """The batch itself if it holds at most `limit` bytes, else halves of it, without copying."""
    if batch.num_rows < 2 or batch.nbytes <= limit:
        yield batch
        return
    middle = batch.num_rows // 2
    yield from bounded(batch.slice(0, middle), limit)
    yield from bounded(batch.slice(middle), limit)


def metered(batches: Iterable[pa.RecordBatch], meter: Meter) -> Iterator[pa.RecordBatch]:
    """The same batches, their Arrow bytes counted as they are taken."""
    for batch in batches:
        meter.read += batch.nbytes
        yield batch
