"""A part that is open: as it is stored, or decoded, in a file of the cache whose batches are mapped."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, Final

import pyarrow as pa

from lake.cache import Lease, Sink
from lake.format import part
from lake.format.frames import Frame, Octets
from lake.format.values import Part
from lake.parts.chunk import Chunk

SMALL: Final = 4 * 2**20  # bytes of a part, stored and decoded, that are not written to disk between the two


class Opened:
    """The batches of one part, and those columns that were read before, where that costs no memory. Thread-safe."""

    __slots__ = ("_arrays", "_lock", "_source", "_stored", "chunks", "decoded", "lease", "mapped", "part")

    def __init__(
        self, one: Part, source: Any, stored: pa.Schema, *, decoded: bool, lease: Lease | None = None
    ) -> None:
        self.part, self.decoded, self.lease = one, decoded, lease
        self.mapped = decoded or one.codec == "none"  # what is read refers to the file
        self.chunks: dict[str, list[Chunk | None]] = {name: [None] * len(one.batches) for name in one.fields}
        self._source, self._stored = source, stored
        self._arrays: dict[str, list[pa.Array]] = {}  # of a decoded part
        self._lock = threading.Lock()

    @classmethod
    def of(cls, one: Part, data: Any, stored: pa.Schema, lease: Lease | None = None) -> Opened:
        """The part in these bytes."""
        return cls(one, part.OpenPart(data, one, stored), stored, decoded=False, lease=lease)

    @classmethod
    def leased(cls, one: Part, lease: Lease, stored: pa.Schema) -> Opened:
        """The part in a file of the cache, which is leased as long as anything refers to it."""
        with pa.memory_map(str(lease.path)) as file:
            mapped = file.read_buffer()
        data = pa.foreign_buffer(mapped.address, mapped.size, base=(mapped, lease))
        if lease.layout != "open":
            return cls.of(one, data, stored, lease)
        return cls(one, pa.ipc.open_file(data), stored, decoded=True, lease=lease)

    def known(self, indices: Sequence[int], columns: Sequence[str]) -> list[list[Chunk]] | None:
        """Columns of record batches, if all of them were read before."""
        found = []
        for name in columns:
            chunks = self.chunks[name]
            known = [chunk for index in indices if (chunk := chunks[index]) is not None]
            if len(known) < len(indices):
                return None
            found.append(known)
        return found

    def batch(self, index: int, columns: Sequence[str], *, new: bool) -> pa.RecordBatch:
        """Columns of a record batch, as stored. `new`: this process has not verified them yet."""
        if not self.decoded:
            return self._source.batch(index, columns, verify=new, first_read=new)
        return pa.RecordBatch.from_arrays([self.arrays(name)[index] for name in columns], list(columns))

    def arrays(self, name: str) -> list[pa.Array]:
        """A column of a decoded part, an array for each record batch: nothing is copied."""
        with self._lock:
            if not self._arrays:
                table = self._source.read_all()
                self._arrays = {name: table.column(name).chunks for name in self.part.fields}
            return self._arrays[name]

    @property
    def together(self) -> bool:
        """Whether `batches` may be asked for."""
        return not self.mapped and bool(self._source.consecutive)

    def batches(self, columns: Sequence[str], unseen: Sequence[int]) -> list[pa.RecordBatch]:
        """Columns of all record batches, as stored, decoded in one go; `unseen` ones are verified."""
        found: list[pa.RecordBatch] = self._source.batches(columns, unseen)
        return found

    def frames(self, column: str, width: int) -> list[Frame] | None:
        """Where the values of a column, of `width` bytes each, lie in a part as stored; None if not in frames."""
        found: list[Frame] | None = self._source.frames(column, width)
        return found

    def inflate(self, frames: Sequence[Frame], take: Callable[[int], Octets]) -> list[Octets]:
        """The values in each of these frames, in memory that `take` gives."""
        found: list[Octets] = self._source.inflate(frames, take)
        return found


def open_size(one: Part) -> int:
    """Bytes that the decoded form of a part takes at most: its values, padding and descriptions."""
    return one.raw_bytes + one.raw_bytes // 16 + (len(one.batches) + 2) * (4096 + 1024 * len(one.fields))


def is_small(one: Part) -> bool:
    """Whether a part may be decoded in memory on its way into the cache."""
    return max(one.bytes, open_size(one)) <= SMALL


def build_small(one: Part, stored: pa.Schema, data: bytearray, sink: Sink) -> None:
    """Write the decoded form of the part in `data`, verifying all of it, in one piece."""
    out = pa.BufferOutputStream()
    _write(Opened.of(one, data, stored), stored, out)
    sink.write(out.getvalue())


def build(opened: Opened, stored: pa.Schema, sink: Sink) -> None:
    """Write the decoded form of a part, verifying all of it."""
    with pa.PythonFile(sink, "w") as file:
        _write(opened, stored, file)


def _write(opened: Opened, stored: pa.Schema, file: pa.NativeFile) -> None:
    schema = pa.schema([stored.field(name) for name in opened.part.fields])
    with pa.ipc.new_file(file, schema) as writer:
        for index in range(len(opened.part.batches)):
            writer.write_batch(opened.batch(index, opened.part.fields, new=True))
