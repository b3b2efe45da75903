"""Read the metadata message of an Arrow record batch: rows, nodes, buffers, codec, custom metadata.

pyarrow tells none of this, and a column can be fetched alone only by someone who knows where its buffers lie.
The message is a flatbuffer (Arrow's `Message.fbs`); every offset in it is checked before it is followed, so
hostile bytes raise `ValueError` and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import unpack_from

import numpy as np
import pyarrow as pa

from lake.format import arrays

_RECORD_BATCH = 3  # MessageHeader.RecordBatch
_CODECS = {0: "lz4", 1: "zstd"}
_CONTINUATION = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class Message:
    """What a record batch says of itself before its body."""

    rows: int
    nodes: np.ndarray  # [n, 2]: length, null count; depth first
    buffers: np.ndarray  # [n, 2]: offset in the body, length
    codec: str  # "none", "lz4" or "zstd"
    metadata: dict[str, str]
    body: int  # bytes


@dataclass(frozen=True, slots=True)
class _Table:
    """A flatbuffer table at `at`."""

    data: bytes
    at: int

    def slot(self, field: int, size: int) -> int | None:
        """Where the field's value lies, None if it is absent."""
        vtable = self.at - _read(self.data, "<i", self.at)
        entry = 4 + 2 * field
        if entry + 2 > _read(self.data, "<H", vtable):
            return None
        offset = _read(self.data, "<H", vtable + entry)
        return _inside(self.data, self.at + offset, size) if offset else None

    def number(self, field: int, code: str, default: int = 0) -> int:
        slot = self.slot(field, 1)
        return default if slot is None else _read(self.data, code, slot)

    def child(self, field: int) -> int | None:
        """Where the table, vector or string that the field refers to begins."""
        slot = self.slot(field, 4)
        return None if slot is None else _inside(self.data, slot + _read(self.data, "<I", slot), 4)

    def table(self, field: int) -> _Table | None:
        at = self.child(field)
        return None if at is None else _Table(self.data, at)

    def tables(self, field: int) -> list[_Table]:
        at = self.child(field)
        if at is None:
            return []
        slots = range(at + 4, _end(self.data, at, 4), 4)
        starts = [slot + _read(self.data, "<I", slot) for slot in slots]
        return [_Table(self.data, _inside(self.data, start, 4)) for start in starts]

    def text(self, field: int) -> str:
        at = self.child(field)
        return "" if at is None else self.data[at + 4 : _end(self.data, at, 1)].decode()

    def pairs(self, field: int) -> np.ndarray:
        """A vector of structs of two int64."""
        at = self.child(field)
        if at is None:
            return np.empty((0, 2), "<i8")
        return np.frombuffer(self.data[at + 4 : _end(self.data, at, 16)], "<i8").reshape(-1, 2)


def read_message(data: bytes) -> Message:
    """The record batch message in `data`, which begins with its length prefix.

    Raises:
        ValueError: these bytes are no record batch message.
    """
    if _read(data, "<I", 0) != _CONTINUATION or _read(data, "<i", 4) + 8 != len(data):
        raise ValueError("not an encapsulated message of this length")
    flat = data[8:]
    message = _Table(flat, _inside(flat, _read(flat, "<I", 0), 4))
    batch = message.table(2)
    if message.number(1, "<B") != _RECORD_BATCH or batch is None:
        raise ValueError("not a record batch")
    compression = batch.table(3)
    return Message(
        rows=batch.number(0, "<q"),
        nodes=batch.pairs(1),
        buffers=batch.pairs(2),
        codec="none" if compression is None else _CODECS.get(compression.number(0, "<b"), "unknown"),
        metadata={pair.text(0): pair.text(1) for pair in message.tables(4)},
        body=message.number(3, "<q"),
    )


def layout(type_: pa.DataType) -> tuple[int, int]:
    """How many nodes and buffers a column of this type has.

    >>> layout(pa.list_(pa.large_string()))
    (2, 5)
    """
    if isinstance(type_, pa.BaseExtensionType):
        return layout(type_.storage_type)
    if pa.types.is_null(type_):
        return 1, 0
    own = 1 if pa.types.is_fixed_size_list(type_) or pa.types.is_struct(type_) else 2
    if arrays.is_text(type_) or arrays.is_octets(type_):
        own = 3
    children = [layout(type_.field(i).type) for i in range(type_.num_fields)]
    return 1 + sum(nodes for nodes, _ in children), own + sum(buffers for _, buffers in children)


def _read(data: bytes, code: str, at: int) -> int:
    _inside(data, at, 1)
    try:
        return int(unpack_from(code, data, at)[0])
    except Exception as error:  # struct.error: past the end
        raise ValueError(f"damaged message: {error}") from None


def _inside(data: bytes, at: int, size: int) -> int:
    if not 0 <= at <= len(data) - size:
        raise ValueError("damaged message: an offset outside it")
    return at


def _end(data: bytes, at: int, size: int) -> int:
    """The end of the vector at `at`, whose elements have `size` bytes."""
    return _inside(data, at + 4 + size * _read(data, "<I", at), 0)
