"""Parts: Arrow IPC files that hold some of a shard's columns. This module encodes, decodes and verifies them.

It gets and gives bytes, never a store. Decoding trusts nothing: bytes that differ from what the manifest and
the batches' own checks say raise `IntegrityError`, bytes that never were a part raise `FormatError`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import pyarrow as pa

from lake.format.values import Part


class Sink(Protocol):
    """Where a part's bytes go (a store's `Staged` is one)."""

    def write(self, data: Any, /) -> Any: ...


def group_fields(mean_bytes: Mapping[str, float]) -> tuple[tuple[str, ...], ...]:
    """How columns are divided into parts: `(light, heavy)`, or one group of all. Keeps the columns' order in each."""
    raise NotImplementedError


def batch_rows(rows: Any, raw_bytes: Any, target: int) -> Any:
    """Rows in each record batch but the last of a part; ints or NumPy arrays, a frozen function.

    `raw_bytes` is the part's. A part below `target / 4` (so every light part, and a short last shard) is cut
    into batches of up to 16 MiB, usually one; others into about `target / 64`, within 256 KiB and 4 MiB.
    """
    raise NotImplementedError


def fits(part: Part, rows: int, target: int) -> bool:
    """Whether a part, found by content, also has the batches that a commit with this target would give it."""
    raise NotImplementedError


def choose_codec(chunks: Sequence[pa.RecordBatch]) -> str:
    """ "zstd" where a sample of the part saves at least 15 %, else "none"."""
    raise NotImplementedError


def encode_part(
    chunks: Sequence[pa.RecordBatch], sink: Sink, *, content: str, target: int, codec: str | None = None
) -> Part:
    """Write the rows of `chunks` (stored schema, the part's columns) as one part; about a batch at a time in memory."""
    raise NotImplementedError


def column_ranges(message: bytes, part: Part, index: int, columns: Sequence[str], stored: pa.Schema) -> list[tuple[int, int]]:
    """`(start, length)` in the file of what `columns` need of a batch's body, neighbours joined; checks the message."""
    raise NotImplementedError


def decode_columns(
    part: Part,
    index: int,
    message: bytes,
    ranges: Mapping[tuple[int, int], bytes],
    columns: Sequence[str],
    stored: pa.Schema,
    *,
    verify: bool = True,
    first_read: bool = False,
) -> pa.RecordBatch:
    """Those columns of a batch, from its message and the bytes of `column_ranges`."""
    raise NotImplementedError


def decode_batch(
    part: Part,
    index: int,
    data: Any,
    columns: Sequence[str] | None,
    stored: pa.Schema,
    *,
    verify: bool = True,
    first_read: bool = False,
) -> pa.RecordBatch:
    """A batch from its whole bytes, message and body; without compression it refers to `data`."""
    raise NotImplementedError


class OpenPart:
    """The record batches of a part's file that is mapped or in memory, decoded when asked for."""

    def batch(self, index: int, columns: Sequence[str] | None = None, *, verify: bool = False) -> pa.RecordBatch:
        raise NotImplementedError


def open_mapped(path: str, part: Part, stored: pa.Schema) -> OpenPart:
    """A part's file, mapped: batches without compression are not copied."""
    raise NotImplementedError
