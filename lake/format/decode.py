"""Decode the record batches of a part from whole or partial bytes, and verify them.

It gets bytes and gives batches, and trusts nothing: bytes that differ from what the manifest and the batches'
own checks say raise `IntegrityError`, bytes that never were a part raise `FormatError`.

A reader who wants a few columns gets a batch's message, then the `column_ranges` of its body. To make sense
of either it needs the schema of the file; that follows from the version's, except where a part outlived a
change of schema. Each message holds a digest of its file's schema, so `needs_head` can tell.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa

from lake.errors import FormatError, IntegrityError
from lake.format import arrays, ipc
from lake.format.casts import cast
from lake.format.content import column_check
from lake.format.frames import Frame, frame_of, inflate
from lake.format.values import Part

MAGIC = b"ARROW1\0\0"


def short_check(data: Any) -> bytes:
    """The first 8 bytes of the sha256 of `data`."""
    return hashlib.sha256(data).digest()[:8]


def file_schema(fields: Sequence[str], stored: pa.Schema) -> pa.Schema:
    """The schema of a part's file: names and types; nullability and metadata are the version's to say."""
    return pa.schema([pa.field(name, stored.field(name).type) for name in fields])


class Layout:
    """Where the columns of a file lie in its record batches: which nodes, which buffers."""

    def __init__(self, schema: pa.Schema, message: bytes) -> None:
        self.schema, self.message = schema, message  # the encapsulated schema message
        self.digest = short_check(message).hex()
        self.index = {name: i for i, name in enumerate(schema.names)}
        counts = np.array([ipc.layout(field.type) for field in schema], np.int64).reshape(-1, 2)
        self.nodes, self.buffers = np.cumsum(np.vstack([[0, 0], counts]), axis=0).T


def head_range(part: Part) -> tuple[int, int]:
    """`(start, length)` of the head of a part's file: what `head=` takes."""
    return 0, part.batches[0].offset


def message_range(part: Part, index: int) -> tuple[int, int]:
    """`(start, length)` of the message of a record batch."""
    return part.batches[index].offset, part.batches[index].meta_length


def needs_head(message: bytes, part: Part, index: int, stored: pa.Schema) -> bool:
    """Whether the file was written under another schema than `stored`: then decoding takes `head=` too."""
    expected, found = _expected(part.fields, stored), _Reading(part, index).message(message)
    return expected is None or found.metadata.get("schema") != expected.digest


def column_ranges(
    message: bytes, part: Part, index: int, columns: Sequence[str], stored: pa.Schema, *, head: Any = None
) -> list[tuple[int, int]]:
    """`(start, length)` in the file of what these columns need of a batch's body; neighbours are joined."""
    _check_held(part, columns)
    return _Reading(part, index).begin(message, stored, head).ranges(columns)


def decode_columns(
    part: Part,
    index: int,
    message: bytes,
    ranges: Mapping[tuple[int, int], Any],
    columns: Sequence[str],
    stored: pa.Schema,
    *,
    head: Any = None,
    verify: bool = True,
    first_read: bool = False,
) -> pa.RecordBatch:
    """These columns of a batch, from its message and the bytes of its `column_ranges`.

    `verify` compares values with their checks; `first_read` also has Arrow validate every value.

    Raises:
        IntegrityError: damaged bytes.
        FormatError: bytes that no release wrote, or a head that is needed.
    """
    _check_held(part, columns)
    reading = _Reading(part, index).begin(message, stored, head)
    batch = reading.sparse(message, ranges, columns)
    if verify or first_read:
        reading.verify(batch, columns, first_read)
    return reading.conformed(batch, columns, stored)


def decode_batch(
    part: Part,
    index: int,
    data: Any,
    columns: Sequence[str] | None,
    stored: pa.Schema,
    *,
    head: Any = None,
    verify: bool = True,
    first_read: bool = False,
) -> pa.RecordBatch:
    """Columns (None: all) of a batch from its bytes, to which what is not compressed refers."""
    columns = part.fields if columns is None else columns
    _check_held(part, columns)
    reading, data = _Reading(part, index), pa.py_buffer(data)
    message = reading.message_of(data)
    batch = reading.begin(message, stored, head).whole(data, message, columns)
    if verify or first_read:
        reading.verify(batch, columns, first_read)
    return reading.conformed(batch, columns, stored)


class OpenPart:
    """The batches of a part whose whole file is in memory or mapped, decoded when asked for. Thread-safe."""

    def __init__(self, data: Any, part: Part, stored: pa.Schema) -> None:
        self.data, self.part, self.stored = pa.py_buffer(data), part, stored
        if len(self.data) != part.bytes:
            found = f"{len(self.data):,} bytes of {part.bytes:,}"
            raise IntegrityError(f"part {part.digest[:12]}: {found}", digest=part.digest)
        self._layout = _stated(part, self.data.slice(*head_range(part)).to_pybytes())

    def batch(
        self,
        index: int,
        columns: Sequence[str] | None = None,
        *,
        verify: bool = False,
        first_read: bool = False,
    ) -> pa.RecordBatch:
        """Columns (None: all of the part's fields) of a batch; what is not compressed refers to the file."""
        extent = self.part.batches[index]
        columns = self.part.fields if columns is None else columns
        data = self.data.slice(extent.offset, extent.meta_length + extent.length)
        whole = self.part.codec == "none" or len(columns) == len(self._layout.index)
        if whole and not (verify or first_read):
            _check_held(self.part, columns)
            try:
                batch = pa.ipc.read_record_batch(data, self._layout.schema)
                return _conformed(batch, columns, self.stored)
            except (pa.ArrowException, OSError) as error:
                raise _Reading(self.part, index).damage(str(error)) from error
        return decode_batch(
            self.part,
            index,
            data,
            columns,
            self.stored,
            head=self._layout,
            verify=verify,
            first_read=first_read,
        )

    def batches(self, columns: Sequence[str], unseen: Collection[int] = ()) -> list[pa.RecordBatch]:
        """Columns of all batches, decoded in one go; those of `unseen` batches are verified as on a first read.

        A file is a stream behind its magic, so Arrow reads the messages, which `unseen` checks, one after the
        other, in one call: a thread that came back from each would wait each time for the interpreter's lock,
        which a consumer may keep for milliseconds. Nothing is asked of the file's footer.
        """
        _check_held(self.part, columns)
        readings = [self._begun(index, columns) for index in unseen]
        options = pa.ipc.IpcReadOptions(
            included_fields=sorted(self._layout.index[name] for name in columns), use_threads=False
        )
        try:
            last = self.part.batches[-1]
            messages = self.data.slice(len(MAGIC), last.offset + last.meta_length + last.length - len(MAGIC))
            found = pa.ipc.open_stream(messages, options=options).read_all().to_batches()
            if [batch.num_rows for batch in found] != [extent.rows for extent in self.part.batches]:
                raise ValueError(f"{len(found)} record batches, or their rows, are not those of the manifest")
        except (pa.ArrowException, OSError, ValueError) as error:
            raise IntegrityError(f"part {self.part.digest[:12]}: {error}", digest=self.part.digest) from error
        for reading in readings:
            reading.verify(found[reading.index], columns, first_read=True)
        return [_conformed(batch, columns, self.stored) for batch in found]

    def frames(self, column: str, width: int) -> list[Frame] | None:
        """Where the values of a column, of `width` bytes each, lie in each batch; None if not all in a frame."""
        _check_held(self.part, [column])
        number, frames = self._layout.index[column], list[Frame]()
        if (
            self.part.codec == "none"
            or self._layout.schema.field(number).type != self.stored.field(column).type
        ):
            return None
        octets = np.frombuffer(self.data, np.uint8)
        for index, extent in enumerate(self.part.batches):
            message = octets[extent.offset : extent.offset + extent.meta_length].tobytes()
            reading = _Reading(self.part, index).begin(message, self.stored, self._layout)
            found = reading.frame(number, octets, width)
            if found is None:
                return None
            frames.append(found)
        return frames

    def inflate(self, frames: Sequence[Frame], take: Callable[[int], np.ndarray]) -> list[np.ndarray]:
        """The values in each of these frames, in memory that `take` gives. They are not verified."""
        try:
            return inflate(np.frombuffer(self.data, np.uint8), frames, take)
        except ValueError as error:
            raise IntegrityError(f"part {self.part.digest[:12]}: {error}", digest=self.part.digest) from error

    @property
    def consecutive(self) -> bool:
        """Whether the batches follow each other without a gap, as every release has written them."""
        at = self.part.batches[0].offset
        for extent in self.part.batches:
            if extent.offset != at:
                return False
            at += extent.meta_length + extent.length
        return True

    def _begun(self, index: int, columns: Sequence[str]) -> _Reading:
        """The reading of a batch, its message and what it claims checked."""
        extent = self.part.batches[index]
        data = self.data.slice(extent.offset, extent.meta_length + extent.length)
        reading = _Reading(self.part, index)
        reading.begin(reading.message_of(data), self.stored, self._layout)
        reading.check_sizes(np.frombuffer(data, np.uint8)[extent.meta_length :], columns)
        return reading


def open_mapped(path: str, part: Part, stored: pa.Schema) -> OpenPart:
    """The part in a local file, mapped: batches that are not compressed are never copied."""
    with pa.memory_map(path) as file:
        return OpenPart(file.read_buffer(), part, stored)


# --- inside -----------------------------------------------------------------------------------


@lru_cache(maxsize=256)
def _expected(fields: tuple[str, ...], stored: pa.Schema) -> Layout | None:
    """The layout of a part that was written under this schema, None if these cannot be its fields."""
    if any(name not in stored.names for name in fields):
        return None
    schema = file_schema(fields, stored)
    return Layout(schema, schema.serialize().to_pybytes())


def _check_held(part: Part, columns: Sequence[str]) -> None:
    """ValueError if the manifest does not say that the part holds these columns, whatever its file has."""
    places = part.places
    if unknown := [name for name in columns if name not in places]:
        raise ValueError(f"part {part.digest[:12]} does not hold {', '.join(unknown)}")


def _stated(part: Part, head: Any) -> Layout:
    """The layout that the head of a file states; the messages confirm it by their digest of the schema."""
    if isinstance(head, Layout):
        return head
    what, head = f"part {part.digest[:12]}", bytes(head)
    if len(head) != part.batches[0].offset or not head.startswith(MAGIC):
        raise IntegrityError(f"{what}: its head is not that of an Arrow file", digest=part.digest)
    try:
        message = head[len(MAGIC) :]
        layout = Layout(pa.ipc.read_schema(pa.py_buffer(message)), message)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise IntegrityError(f"{what}: unreadable schema: {error}", digest=part.digest) from error
    if missing := set(part.fields) - set(layout.index):
        raise IntegrityError(f"{what} lacks its columns {', '.join(sorted(missing))}", digest=part.digest)
    return layout


class _Reading:
    """One record batch being decoded, with what it has said of itself so far."""

    parsed: ipc.Message
    layout: Layout

    def __init__(self, part: Part, index: int) -> None:
        self.part, self.index, self.extent = part, index, part.batches[index]

    def begin(self, message: bytes, stored: pa.Schema, head: Any) -> _Reading:
        """Read the message, and check it against manifest and schema."""
        self.parsed = self.message(message)
        layout = _expected(self.part.fields, stored) if head is None else _stated(self.part, head)
        if layout is None or layout.digest != self.parsed.metadata.get("schema"):
            if head is not None:
                raise self.damage("the file's schema is not the one it was written with")
            raise self.foreign("written under another schema, so its head is needed")
        self.layout = layout
        self._check_structure()
        return self

    def message_of(self, data: pa.Buffer) -> bytes:
        """The message at the start of a whole batch."""
        whole = self.extent.meta_length + self.extent.length
        if len(data) != whole:
            raise self.damage(f"{len(data):,} bytes of {whole:,}")
        message: bytes = data.slice(0, self.extent.meta_length).to_pybytes()
        return message

    def message(self, message: bytes) -> ipc.Message:
        extent = self.extent
        if len(message) != extent.meta_length or short_check(message) != extent.check:
            raise self.damage("its message differs from the manifest's check")
        try:
            parsed = ipc.read_message(bytes(message))
        except ValueError as error:
            raise self.foreign(str(error)) from error
        if (parsed.rows, parsed.body, parsed.codec) != (extent.rows, extent.length, self.part.codec):
            found = f"{parsed.rows:,} rows in {parsed.body:,} bytes, codec {parsed.codec}"
            raise self.foreign(f"{found}: the manifest says otherwise")
        return parsed

    def ranges(self, columns: Sequence[str]) -> list[tuple[int, int]]:
        """Where in the file the buffers of these columns lie; what only padding divides is one range."""
        spans = []
        for i in self._indices(columns):
            buffers = self._buffers(i)
            buffers = buffers[buffers[:, 1] > 0]
            if len(buffers):
                spans.append((int(buffers[:, 0].min()), int(buffers.sum(axis=1).max())))
        joined: list[tuple[int, int]] = []
        for start, end in sorted(spans):
            if joined and start - joined[-1][1] < 64:
                start, end = joined[-1][0], max(end, joined.pop()[1])
            joined.append((start, end))
        body = self.extent.offset + self.extent.meta_length
        return [(body + start, end - start) for start, end in joined]

    def whole(self, data: pa.Buffer, message: bytes, columns: Sequence[str]) -> pa.RecordBatch:
        """The batch with at least these columns, from all of its bytes."""
        if self.part.codec != "none" and len(columns) < len(self.layout.index):
            start = self.extent.offset
            ranges = {(at, length): data.slice(at - start, length) for at, length in self.ranges(columns)}
            return self.sparse(message, ranges, columns)
        self._check_sizes(np.frombuffer(data, np.uint8)[len(message) :], range(len(self.layout.index)))
        with self._damage_if_unreadable():
            return pa.ipc.read_record_batch(data, self.layout.schema)

    def sparse(
        self, message: bytes, ranges: Mapping[tuple[int, int], Any], columns: Sequence[str]
    ) -> pa.RecordBatch:
        """The batch with these columns alone: read from a stream in which only their bytes are filled in."""
        lead = len(self.layout.message) + len(message)
        data = np.zeros(lead + self.extent.length, np.uint8)  # pages that are not filled cost nothing
        data[:lead] = np.frombuffer(self.layout.message + message, np.uint8)
        for start, length in self.ranges(columns):
            piece = np.frombuffer(ranges[start, length], np.uint8)
            if len(piece) != length:
                raise self.damage(f"{len(piece):,} bytes of {length:,} at {start:,}")
            at = lead + start - self.extent.offset - self.extent.meta_length
            data[at : at + length] = piece
        indices = self._indices(columns)
        self._check_sizes(data[lead:], indices)
        options = pa.ipc.IpcReadOptions(included_fields=indices, use_threads=False)
        with self._damage_if_unreadable():
            return pa.ipc.open_stream(pa.py_buffer(data), options=options).read_next_batch()

    def verify(self, batch: pa.RecordBatch, columns: Sequence[str], first_read: bool) -> None:
        checks = self.parsed.metadata["xxh3"]
        for name in columns:
            column, at = batch.column(name), 16 * self.layout.index[name]
            with self._damage_if_unreadable():
                column.validate()
                _check_sound(column)
                check = f"{column_check(column):016x}"
            if check != checks[at : at + 16]:
                raise self.damage(f"column {name!r} differs from its check")
            if first_read:
                try:
                    column.validate(full=True)
                except (pa.ArrowException, ValueError) as error:
                    raise self.foreign(f"column {name!r}: {error}") from error

    def conformed(self, batch: pa.RecordBatch, columns: Sequence[str], stored: pa.Schema) -> pa.RecordBatch:
        with self._damage_if_unreadable():
            return _conformed(batch, columns, stored)

    def damage(self, what: str) -> IntegrityError:
        return IntegrityError(f"{self._where()}: {what}", digest=self.part.digest)

    def foreign(self, what: str) -> FormatError:
        return FormatError(f"{self._where()}: {what}")

    def _where(self) -> str:
        first = sum(batch.rows for batch in self.part.batches[: self.index])
        rows = f"rows {first:,}-{first + self.extent.rows - 1:,}"
        return f"part {self.part.digest[:12]}, batch {self.index}, {rows}"

    def _buffers(self, column: int) -> np.ndarray:
        return self.parsed.buffers[self.layout.buffers[column] : self.layout.buffers[column + 1]]

    def frame(self, column: int, data: np.ndarray, width: int) -> Frame | None:
        """Where in the file the column's values lie, of so many bytes each; None if not in a frame, or not all."""
        layout = self.layout
        if self.parsed.nodes[layout.nodes[column] : layout.nodes[column + 1], 1].any():  # nulls
            return None
        start, length = self._buffers(column)[-1].tolist()
        start += self.extent.offset + self.extent.meta_length
        return frame_of(data, start, length, self.extent.rows * width)

    def _indices(self, columns: Sequence[str]) -> list[int]:
        return sorted(self.layout.index[name] for name in columns)

    def _check_structure(self) -> None:
        nodes, buffers, layout = self.parsed.nodes, self.parsed.buffers, self.layout
        if len(nodes) != layout.nodes[-1] or len(buffers) != layout.buffers[-1]:
            raise self.foreign(f"{len(nodes)} nodes and {len(buffers)} buffers do not fit its schema")
        lengths, nulls = nodes.T
        uneven = lengths[layout.nodes[:-1]] != self.parsed.rows
        if uneven.any() or (nulls < 0).any() or (nulls > lengths).any():
            raise self.foreign("impossible lengths or null counts")
        if (buffers < 0).any() or (buffers[:, 1] > self.parsed.body - buffers[:, 0]).any():
            raise self.foreign("a buffer outside its body")
        if len(self.parsed.metadata.get("xxh3", "")) != 16 * len(layout.index):
            raise self.foreign("not one check for each column")

    def check_sizes(self, body: np.ndarray, columns: Sequence[str]) -> None:
        """What these columns claim to decompress to must be within the part's raw size."""
        self._check_sizes(body, self._indices(columns))

    def _check_sizes(self, body: np.ndarray, columns: Sequence[int]) -> None:
        if self.part.codec == "none":
            return
        total = 0
        for offset, length in (pair for i in columns for pair in self._buffers(i).tolist() if pair[1]):
            claimed = int.from_bytes(body[offset : offset + 8].tobytes(), "little", signed=True)
            total += length - 8 if claimed == -1 else claimed
            if length < 8 or claimed < -1 or total > self.part.raw_bytes:
                raise self.damage(f"buffers of {total:,} bytes, over the part's {self.part.raw_bytes:,}")

    @contextmanager
    def _damage_if_unreadable(self) -> Iterator[None]:
        try:
            yield
        except (pa.ArrowException, OSError, ValueError) as error:
            raise self.damage(str(error)) from error


def _check_sound(array: pa.Array) -> None:
    """ValueError unless offsets rise and bitmaps have the nulls they are said to have.

    With `validate()` before it, that is what makes an array safe to compute with: kernels trust both.
    """
    if isinstance(array.type, pa.BaseExtensionType):
        return _check_sound(array.storage)
    if array.null_count and not pa.types.is_null(array.type):
        nulls = len(array) - int(np.count_nonzero(array.is_valid().to_numpy(zero_copy_only=False)))
        if nulls != array.null_count:
            raise ValueError(f"{nulls:,} nulls, not {array.null_count:,}")
    if pa.types.is_struct(array.type):
        for i in range(array.type.num_fields):
            _check_sound(array.field(i))
        return None
    if pa.types.is_fixed_size_list(array.type):
        return _check_sound(array.values)
    if pa.types.is_nested(array.type) or arrays.is_text(array.type) or arrays.is_octets(array.type):
        offsets = arrays.offsets(array)
        if offsets[0] < 0 or (offsets[1:] < offsets[:-1]).any():
            raise ValueError("offsets that do not rise")
    if pa.types.is_nested(array.type):
        return _check_sound(array.values)
    return None


def _conformed(batch: pa.RecordBatch, columns: Sequence[str], stored: pa.Schema) -> pa.RecordBatch:
    """These columns, in this order, with the types of `stored`."""
    fields = [stored.field(name) for name in columns]
    found = [cast(batch.column(field.name), field.type) for field in fields]
    return pa.RecordBatch.from_arrays(found, schema=pa.schema(fields))
