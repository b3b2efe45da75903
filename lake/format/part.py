"""Parts: Arrow IPC files that hold some of a shard's columns. How rows become their bytes.

What columns share a part, how many rows a record batch has and whether it is compressed are decided here, by
frozen functions of the values. Reading is in `lake.format.decode`, whose names are here as well.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from lake.format.content import column_check
from lake.format.decode import (
    MAGIC,
    OpenPart,
    column_ranges,
    decode_batch,
    decode_columns,
    file_schema,
    head_range,
    message_range,
    needs_head,
    open_mapped,
    short_check,
)
from lake.format.normal import normal, occupied, overhead
from lake.format.values import Batch, Part

__all__ = [
    "OpenPart",
    "batch_rows",
    "choose_codec",
    "column_ranges",
    "decode_batch",
    "decode_columns",
    "encode_part",
    "fits",
    "group_fields",
    "head_range",
    "message_range",
    "needs_head",
    "open_mapped",
    "raw_size",
]

MIB = 2**20
SMALL_BATCH = 16 * MIB  # raw bytes up to which a small part is one batch

_SAMPLE = 256 * 1024  # raw bytes of each of the three runs of rows that decide a codec
_SAVING = 15  # per cent that compression must save
_JOIN = 64 * 1024  # bytes up to which what the encoder emits is joined before it is hashed and written

Groups = tuple[tuple[str, ...], ...]


class Sink(Protocol):
    """Where a part's bytes go (a store's `Staged` is one)."""

    def write(self, data: Any, /) -> Any: ...


# --- layout -----------------------------------------------------------------------------------


def group_fields(mean_bytes: Mapping[str, float]) -> Groups:
    """How columns are divided into parts: `(light, heavy)`, or all in one. Each keeps the columns' order.

    Heavy are the fewest largest columns that are each over 256 B a row and together over 8 times the rest.

    >>> group_fields({"key": 12, "jpg": 7000, "label": 8})
    (('key', 'label'), ('jpg',))
    >>> group_fields({"key": 12, "label": 8})
    (('key', 'label'),)
    """
    names = tuple(mean_bytes)
    falling = sorted(names, key=lambda name: -mean_bytes[name])  # stable: ties in the columns' order
    for count in range(1, len(names)):
        heavy, rest = falling[:count], falling[count:]
        if mean_bytes[heavy[-1]] <= 256:
            break
        if sum(mean_bytes[name] for name in heavy) > 8 * sum(mean_bytes[name] for name in rest):
            light = tuple(name for name in names if name not in heavy)
            return light, tuple(name for name in names if name in heavy)
    return (names,)


def batch_rows(rows: Any, raw_bytes: Any, target: int) -> Any:
    """Rows in each record batch of a part but the last; for ints or arrays of them. Frozen.

    A part below `target / 4` raw bytes (every light part, and a short last shard) is divided into batches of
    up to 16 MiB, so mostly not at all; any other into batches of `target / 64`, within 256 KiB and 4 MiB.

    >>> batch_rows(1000, 64 * MIB, 64 * MIB), batch_rows(1000, 15 * MIB, 64 * MIB)
    (16, 1000)
    """
    usual = min(max(target // 64, 256 * 1024), 4 * MIB)
    size = np.where(raw_bytes < target // 4, SMALL_BATCH, usual)
    count = np.clip(-(-raw_bytes // size), 1, rows)
    found = -(-rows // count)
    return found if isinstance(rows, np.ndarray) else int(found)


def fits(part: Part, rows: int, target: int) -> bool:
    """Whether a part that was found by its content also has the batches that this target gives it."""
    return bool(part.batches[0].rows == batch_rows(rows, part.raw_bytes, target))


def raw_size(chunks: Sequence[pa.RecordBatch]) -> int:
    """The `raw_bytes` of a part: what its columns take in memory, decoded; depends on their values alone."""
    bits = sum(occupied(column) for chunk in chunks for column in chunk.columns)
    return -(-bits // 8) + sum(overhead(field.type) for field in chunks[0].schema)


# --- encoding ---------------------------------------------------------------------------------


def choose_codec(chunks: Sequence[pa.RecordBatch]) -> str:
    """The codec for a part of these rows: "zstd" if a sample gets smaller by at least 15 %, else "none"."""
    return _codec(_Rows(chunks), raw_size(chunks))


def _codec(rows: _Rows, raw_bytes: int) -> str:
    window = max(1, min(rows.count, _SAMPLE * rows.count // max(1, raw_bytes)))
    starts = sorted({0, (rows.count - window) // 2, rows.count - window})
    samples = [rows.batch(start, window) for start in starts]
    plain, packed = (_stream_size(rows.schema, samples, codec) for codec in ("none", "zstd"))
    return "zstd" if 100 * packed <= (100 - _SAVING) * plain else "none"


def encode_part(
    chunks: Sequence[pa.RecordBatch], sink: Sink, *, content: str, target: int, codec: str | None = None
) -> Part:
    """Write the rows of `chunks` (stored schema, only this part's columns) to `sink` as one part.

    The bytes depend on the values alone, not on chunks, slices or what lies under nulls. They are hashed and
    written batch by batch; memory holds one batch beyond the input. `content` is the columns' content digest.
    """
    rows = _Rows(chunks)
    if not rows.count or not rows.schema.names:
        raise ValueError("a part has at least one row and one column")
    raw = raw_size(chunks)
    codec = codec or _codec(rows, raw)
    size = batch_rows(rows.count, raw, target)
    writer = _Writer(rows.schema, codec, sink)
    for start in range(0, rows.count, size):
        writer.write(rows.batch(start, min(size, rows.count - start)))
    digest, length = writer.close()
    return Part(digest, content, length, raw, codec, tuple(rows.schema.names), tuple(writer.batches))


class _Rows:
    """Chunks as one run of rows, from which batches in normal form are taken."""

    def __init__(self, chunks: Sequence[pa.RecordBatch]) -> None:
        self.schema = file_schema(chunks[0].schema.names, chunks[0].schema)
        self.chunks = [chunk for chunk in chunks if chunk.num_rows]
        self.starts = np.cumsum([0, *(chunk.num_rows for chunk in self.chunks)])
        self.count = int(self.starts[-1])

    def batch(self, start: int, rows: int) -> pa.RecordBatch:
        """These rows; copies only those of batches that lie in several chunks, and what hides under nulls."""
        pieces = []
        at, end = int(np.searchsorted(self.starts, start, "right")) - 1, start + rows
        while start < end:
            piece = self.chunks[at].slice(start - int(self.starts[at]), end - start)
            pieces.append(piece)
            start, at = start + piece.num_rows, at + 1
        columns = zip(*(piece.columns for piece in pieces), strict=True)
        arrays = [normal(column[0] if len(column) == 1 else pa.concat_arrays(column)) for column in columns]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


class _Tap:
    """A file that keeps references to what Arrow writes, to be hashed and passed on without a copy."""

    closed = False

    def __init__(self) -> None:
        self.pieces: list[Any] = []

    def write(self, data: Any) -> int:
        self.pieces.append(data)
        return len(data)

    def flush(self) -> None: ...

    def take(self) -> list[Any]:
        pieces, self.pieces = self.pieces, []
        return pieces


class _Writer:
    """An Arrow IPC file being written, hashed and described."""

    def __init__(self, schema: pa.Schema, codec: str, sink: Sink) -> None:
        self.batches: list[Batch] = []
        self._sink, self._hash, self._length = sink, hashlib.sha256(), 0
        self._tap = _Tap()
        self._writer = pa.ipc.new_file(pa.PythonFile(self._tap, "w"), schema, options=_options(codec))
        self._head = MAGIC + schema.serialize().to_pybytes()
        self._schema = short_check(self._head[len(MAGIC) :]).hex()

    def write(self, batch: pa.RecordBatch) -> None:
        checks = b"".join(column_check(column).to_bytes(8, "big") for column in batch.columns)
        self._writer.write_batch(batch, custom_metadata={"schema": self._schema, "xxh3": checks.hex()})
        pieces = self._tap.take()
        if not self.batches:
            pieces = self._without_head(pieces)
        message, body = _split(pieces)
        length = sum(len(piece) for piece in body)
        self.batches.append(Batch(self._length, len(message), length, batch.num_rows, short_check(message)))
        self._emit([message, *body])

    def close(self) -> tuple[str, int]:
        """The digest and length of the file."""
        self._writer.close()
        self._emit(self._tap.take())
        return self._hash.hexdigest(), self._length

    def _without_head(self, pieces: list[Any]) -> list[Any]:
        """What follows magic and schema, which are written first."""
        head = b""
        while len(head) < len(self._head):
            head += bytes(pieces.pop(0))
        if head != self._head:
            raise AssertionError("pyarrow wrote another schema message than it serializes")
        self._emit([head])
        return pieces

    def _emit(self, pieces: list[Any]) -> None:
        small, length = list[Any](), 0
        for piece in [*pieces, b""]:
            if small and (not len(piece) or len(piece) + length > _JOIN):
                self._put(b"".join(small))
                small, length = [], 0
            if len(piece) > _JOIN:
                self._put(piece)
            else:
                small.append(piece)
                length += len(piece)

    def _put(self, data: Any) -> None:
        self._hash.update(data)
        self._sink.write(data)
        self._length += len(data)


def _split(pieces: list[Any]) -> tuple[bytes, list[Any]]:
    """The message and the body of a record batch, from what Arrow wrote for it."""
    message, taken = b"", 0
    while len(message) < 8 or len(message) < 8 + int.from_bytes(message[4:8], "little"):
        message += bytes(pieces[taken])
        taken += 1
    return message, pieces[taken:]


def _options(codec: str) -> pa.ipc.IpcWriteOptions:
    if codec not in ("none", "zstd"):
        raise ValueError(f"codec {codec!r} is neither 'none' nor 'zstd'")
    return pa.ipc.IpcWriteOptions(
        compression=pa.Codec("zstd", compression_level=1) if codec == "zstd" else None
    )


def _stream_size(schema: pa.Schema, batches: Sequence[pa.RecordBatch], codec: str) -> int:
    """Bytes of an IPC stream of these batches."""
    counter = pa.MockOutputStream()
    with pa.ipc.new_stream(counter, schema, options=_options(codec)) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return int(counter.size())
