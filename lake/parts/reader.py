"""Read columns of a version's parts, from wherever they are: the lake's folder, the cache, the bucket.

A lake in a folder is mapped in place. Of a bucket, a part is fetched whole into the cache, or only the bytes of
the batches and columns asked for, whichever costs less when a request counts as much as `REQUEST` bytes.
Whatever this process reads for the first time is verified; damage raises and never becomes rows.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lake import _os
from lake.cache import Cache, Sink
from lake.errors import IntegrityError, NotFoundError
from lake.format import names, part, schema, vocab
from lake.format.values import Part, Shard, VersionDocument
from lake.parts.chunk import Chunk
from lake.parts.kept import Kept
from lake.parts.meter import Meter
from lake.refs import Refs, generations
from lake.stores.base import Store

REQUEST = 2**20  # bytes that a request is worth
_OPEN = 256  # parts kept mapped
_KEPT = 128 * 2**20  # bytes of columns kept decoded, of record batches that were wanted in part
_PIECE = 8 * 2**20  # bytes of one request for a whole part
_GAP = 64 * 2**10  # bytes between two ranges that one request may as well fetch

Ints: TypeAlias = npt.NDArray[np.int64]
Range: TypeAlias = tuple[int, int]  # start, length
Run: TypeAlias = tuple[int, int]  # rows [start, stop) of a shard


class PartReader:
    """Columns of the parts that one version names. Thread-safe; a forked child starts empty.

    `cache` None: a part that must be fetched whole is held in memory.
    """

    def __init__(self, refs: Refs, document: VersionDocument, cache: Cache | None) -> None:
        self.store: Store = refs.store
        self.cache = cache
        self.schema = document.schema
        self.stored = schema.stored_schema(document.schema)
        self.dictionaries = {
            field.name: vocab.values(document.vocab[field.name], field.type)
            for field in document.schema
            if pa.types.is_dictionary(field.type)
        }
        self._reset()
        _readers.add(self)

    def _reset(self) -> None:
        self._open: OrderedDict[str, _Opened] = OrderedDict()
        self._kept = Kept(_KEPT)
        self._heads: dict[str, bytes] = {}
        self._damaged: set[str] = set()  # keys of copies that were found damaged
        self._seen: dict[str, int] = {}  # bits of the columns of batches that were verified, by part
        self._lock = threading.Lock()

    # --- reading ------------------------------------------------------------------------------

    def read(
        self, shard: Shard, columns: Sequence[str], wanted: Ints | Sequence[Run], meter: Meter | None = None
    ) -> list[list[Chunk]]:
        """For each column its values in the rows wanted: ascending numbers, which are copied, or runs.

        In the schema's form: dictionaries as codes, null where no part holds the column.

        Raises:
            IntegrityError: stored bytes differ from their digests.
        """
        meter = meter or Meter()
        found: dict[str, list[Chunk]] = {}
        for one in shard.parts:
            held = [name for name in columns if name in one.fields]
            if held:
                if isinstance(wanted, np.ndarray):
                    read = self._rows(one, held, wanted, meter)
                else:
                    read = self._runs(one, held, wanted, meter)
                found.update(zip(held, read, strict=True))
        if len(found) < len(columns):
            count = len(wanted) if isinstance(wanted, np.ndarray) else sum(b - a for a, b in wanted)
            found |= {name: [self._nothing(name, count)] for name in columns if name not in found}
        return [found[name] for name in columns]

    def rows(self, shard: Shard, numbers: Ints, columns: Sequence[str] | None = None) -> pa.Table:
        """These rows of a shard, in any order, counted from its first."""
        asked = self.schema.names if columns is None else list(columns)
        if len(numbers) < 2 or (np.diff(numbers) >= 0).all():
            return self.table(self.read(shard, asked, numbers), asked)
        order = np.argsort(numbers, kind="stable")
        back = np.empty_like(order)
        back[order] = np.arange(len(order))
        return (
            self.table(self.read(shard, asked, numbers[order]), asked).combine_chunks().take(pa.array(back))
        )

    def column(self, shard: Shard, name: str) -> pa.ChunkedArray:
        """All of a shard's values in one column."""
        [chunks] = self.read(shard, [name], [(0, shard.rows)])
        return pa.chunked_array([chunk.array for chunk in chunks], self.schema.field(name).type)

    def table(self, columns: Sequence[Sequence[Chunk]], names: Sequence[str]) -> pa.Table:
        """Columns as `read` gives them, as a table."""
        fields = [self.schema.field(name) for name in names]
        arrays = [
            pa.chunked_array([chunk.array for chunk in chunks], field.type)
            for field, chunks in zip(fields, columns, strict=True)
        ]
        return pa.Table.from_arrays(arrays, schema=pa.schema(fields, self.schema.metadata))

    def chunks(
        self, one: Part, indices: Sequence[int], columns: Sequence[str], meter: Meter, *, partly: bool = False
    ) -> list[list[Chunk]]:
        """For each column its chunks in these record batches of a part.

        `partly`: not all of their rows are wanted, so that the others may be asked for soon.
        """
        while True:
            try:
                return self._chunks_of(one, indices, columns, meter, partly)
            except IntegrityError:
                if not self._turn_to_another(one):
                    raise

    def _chunks_of(
        self, one: Part, indices: Sequence[int], columns: Sequence[str], meter: Meter, partly: bool
    ) -> list[list[Chunk]]:
        opened = self._known(one)
        if opened is not None and (opened.mapped or not partly):
            return self._from_open(opened, indices, columns, meter)
        if not partly:
            return self._chunks(one, indices, columns, meter)
        known = [[self._kept.get((one.digest, index, name)) for index in indices] for name in columns]
        if all(chunk is not None for chunks in known for chunk in chunks):
            return known  # type: ignore[return-value]
        found = self._chunks(one, indices, columns, meter)
        for name, chunks in zip(columns, found, strict=True):
            for index, chunk in zip(indices, chunks, strict=True):
                self._kept.put((one.digest, index, name), chunk)
        return found

    def _chunks(
        self, one: Part, indices: Sequence[int], columns: Sequence[str], meter: Meter
    ) -> list[list[Chunk]]:
        opened = self._opened(one, indices, columns, meter)
        if opened is not None:
            return self._from_open(opened, indices, columns, meter)
        batches = self._ranged(one, indices, columns, meter)
        return [[self._finished(batch, name) for batch in batches] for name in columns]

    def keep(self, one: Part, meter: Meter) -> None:
        """Have a whole part in the cache, fetched if it is not there. Nothing to do without a cache."""
        while self.cache is not None:
            try:
                return self.cache.file(one.digest, one.bytes, lambda sink: self._fetch(one, sink, meter)).close()
            except IntegrityError:
                if not self._turn_to_another(one):
                    raise

    # --- rows to batches ----------------------------------------------------------------------

    def _runs(
        self, one: Part, columns: Sequence[str], runs: Sequence[Run], meter: Meter
    ) -> list[list[Chunk]]:
        size = one.batches[0].rows
        spans = [(start // size, -(-stop // size), start, stop) for start, stop in runs]
        indices = list(dict.fromkeys(index for first, end, _, _ in spans for index in range(first, end)))
        whole = (len(one.batches) - 1) * size + one.batches[-1].rows
        partly = any(start % size or (stop % size and stop != whole) for start, stop in runs)
        read = self.chunks(one, indices, columns, meter, partly=partly)
        if not partly and len(indices) == sum(end - first for first, end, _, _ in spans):
            return read
        return [_cut(dict(zip(indices, chunks, strict=True)), spans, size) for chunks in read]

    def _rows(self, one: Part, columns: Sequence[str], numbers: Ints, meter: Meter) -> list[list[Chunk]]:
        if not len(numbers):
            return [[self._nothing(name, 0)] for name in columns]
        size, count = one.batches[0].rows, len(one.batches)
        if count == 1:
            needed, places = [0], [numbers]
        else:
            indices = numbers // size
            starts = np.flatnonzero(np.diff(indices, prepend=-1))
            needed = indices[starts].tolist()
            pieces = np.split(numbers, starts[1:])
            places = [piece - index * size for index, piece in zip(needed, pieces, strict=True)]
        partly = len(numbers) < sum(one.batches[index].rows for index in needed)
        read = self.chunks(one, needed, columns, meter, partly=partly)
        return [[chunk.take(rows) for chunk, rows in zip(chunks, places, strict=True)] for chunks in read]

    def _nothing(self, name: str, rows: int) -> Chunk:
        return Chunk(pa.nulls(rows, self.schema.field(name).type))

    def _finished(self, batch: pa.RecordBatch, name: str) -> Chunk:
        """A stored column as the schema has it."""
        column, type_ = batch.column(name), self.schema.field(name).type
        if pa.types.is_dictionary(type_):
            column = vocab.encode(column, self.dictionaries[name], ordered=type_.ordered)
        return Chunk(column)

    # --- whole parts --------------------------------------------------------------------------

    def _from_open(
        self, opened: _Opened, indices: Sequence[int], columns: Sequence[str], meter: Meter
    ) -> list[list[Chunk]]:
        """Per column, the chunks of these batches."""
        found = [[opened.chunks[name][index] for index in indices] for name in columns]
        if all(chunk is not None for chunks in found for chunk in chunks):
            return found  # type: ignore[return-value]
        begin = time.perf_counter()
        for at, index in enumerate(indices):
            missing = [number for number, chunks in enumerate(found) if chunks[at] is None]
            if missing:
                names = [columns[number] for number in missing]
                new = not self._has_seen(opened.part, index, names)
                batch = opened.source.batch(index, names, verify=new, first_read=new)
                self._see(opened.part, index, names)
                for number in missing:
                    found[number][at] = self._finished(batch, columns[number])
                    if opened.mapped:
                        opened.chunks[columns[number]][index] = found[number][at]
        meter.add(decode_seconds=time.perf_counter() - begin)
        return found  # type: ignore[return-value]

    def _has_seen(self, one: Part, index: int, columns: Iterable[str]) -> bool:
        bits = _bits(one, index, columns)
        with self._lock:
            return self._seen.get(one.digest, 0) & bits == bits

    def _see(self, one: Part, index: int, columns: Iterable[str]) -> None:
        with self._lock:
            self._seen[one.digest] = self._seen.get(one.digest, 0) | _bits(one, index, columns)

    def _known(self, one: Part) -> _Opened | None:
        with self._lock:
            known = self._open.get(one.digest)
            if known is not None:
                self._open.move_to_end(one.digest)
            return known

    def _opened(
        self, one: Part, indices: Sequence[int], columns: Sequence[str], meter: Meter
    ) -> _Opened | None:
        """The part mapped or in memory; None if ranges of it cost less."""
        known = self._known(one)
        if known is not None:
            return known
        source = self._source(one, indices, columns, meter)
        if source is None:
            return None
        opened = _Opened(one, source)
        with self._lock:
            opened = self._open.setdefault(one.digest, opened)
            while len(self._open) > _OPEN:
                self._open.popitem(last=False)
        return opened

    def _source(
        self, one: Part, indices: Sequence[int], columns: Sequence[str], meter: Meter
    ) -> part.OpenPart | None:
        if self.store.local_path(names.part_key(one.digest)) is not None:
            return self._mapped_in_place(one)
        lease = self.cache.peek(one.digest) if self.cache else None
        if lease is not None:
            meter.add(bytes_from_cache=one.bytes)
        elif self._cost(one, indices, columns) < one.bytes + REQUEST:
            return None
        elif self.cache is not None:
            lease = self.cache.file(one.digest, one.bytes, lambda sink: self._fetch(one, sink, meter))
        else:
            return part.OpenPart(self._get(one, 0, one.bytes, meter), one, self.stored)
        return part.OpenPart(pa.py_buffer(lease.map()), one, self.stored)

    def _turn_to_another(self, one: Part) -> bool:
        """Whether the part has a further stored copy: the first one, found damaged, is avoided from now on."""
        copies = [key for key in self._copies(one) if self.store.head(key) is not None]
        if len(copies) < 2:
            return False
        with self._lock:
            self._damaged.add(copies[0])
            self._open.pop(one.digest, None)
            self._heads.pop(one.digest, None)
        return True

    def _copies(self, one: Part) -> Iterator[str]:
        """Where stored copies of a part may be: its own key, then, at the cost of one LIST, the others."""
        keys = names.part_keys(one.digest)
        if keys(0) not in self._damaged:
            yield keys(0)
        for copy in generations(self.store, keys):
            if copy.key not in self._damaged:
                yield copy.key

    def _mapped_in_place(self, one: Part) -> part.OpenPart:
        for key in self._copies(one):
            path = self.store.local_path(key)
            if path is not None and path.exists():
                return part.open_mapped(str(path), one, self.stored)
        raise self._missing(one)

    def _cost(self, one: Part, indices: Sequence[int], columns: Sequence[str]) -> float:
        """Bytes that reading only these columns of these batches is worth, before it is known where they lie."""
        share = len(columns) / max(1, len(one.fields))
        batches = [one.batches[index] for index in indices]
        return sum(share * batch.length + batch.meta_length for batch in batches) + 2 * REQUEST * len(batches)

    # --- parts of parts -----------------------------------------------------------------------

    def _ranged(
        self, one: Part, indices: Sequence[int], columns: Sequence[str], meter: Meter
    ) -> list[pa.RecordBatch]:
        messages = self._get_many(one, [part.message_range(one, index) for index in indices], meter)
        head = None
        if indices and part.needs_head(bytes(messages[0]), one, indices[0], self.stored):
            head = self._head(one, meter)
        wanted = [
            part.column_ranges(bytes(message), one, index, columns, self.stored, head=head)
            for index, message in zip(indices, messages, strict=True)
        ]
        flat = [found for ranges in wanted for found in ranges]
        data = dict(zip(flat, self._get_many(one, flat, meter), strict=True))
        found = []
        for index, message, ranges in zip(indices, messages, wanted, strict=True):
            held = {key: data[key] for key in ranges}
            new = not self._has_seen(one, index, columns)
            found.append(
                part.decode_columns(
                    one, index, bytes(message), held, columns, self.stored, head=head, first_read=new
                )
            )
            self._see(one, index, columns)
        return found

    def _head(self, one: Part, meter: Meter) -> bytes:
        if one.digest not in self._heads:
            self._heads[one.digest] = self._get(one, *part.head_range(one), meter)
        return self._heads[one.digest]

    def _get_many(self, one: Part, ranges: Sequence[Range], meter: Meter) -> list[memoryview]:
        """The bytes of each range; neighbours come with one request."""
        runs: list[list[int]] = []  # start, end
        for start, length in sorted(ranges):
            if runs and start - runs[-1][1] <= _GAP:
                runs[-1][1] = max(runs[-1][1], start + length)
            else:
                runs.append([start, start + length])
        fetched = {start: memoryview(self._get(one, start, end - start, meter)) for start, end in runs}
        starts = np.array([start for start, _ in runs], dtype=np.int64)
        found = []
        for start, length in ranges:
            first = int(starts[np.searchsorted(starts, start, "right") - 1])
            found.append(fetched[first][start - first : start - first + length])
        return found

    def _get(self, one: Part, start: int, length: int, meter: Meter) -> bytes:
        for key in self._copies(one):
            try:
                found = self.store.get_range(key, start, length)
            except NotFoundError:
                continue
            meter.add(requests=1, bytes_fetched=len(found))
            return found
        raise self._missing(one)

    def _fetch(self, one: Part, sink: Sink, meter: Meter) -> None:
        for start in range(0, one.bytes, _PIECE):
            sink.write(self._get(one, start, min(_PIECE, one.bytes - start), meter))

    def _missing(self, one: Part) -> IntegrityError:
        return IntegrityError(f"part {one.digest[:12]} is missing from {self.store.url}", digest=one.digest)


class _Opened:
    """A part that is open, and what was read of it before where that costs no memory."""

    __slots__ = ("chunks", "mapped", "part", "source")

    def __init__(self, one: Part, source: part.OpenPart) -> None:
        self.part, self.source = one, source
        self.mapped = one.codec == "none"
        self.chunks: dict[str, list[Chunk | None]] = {name: [None] * len(one.batches) for name in one.fields}


def _cut(chunks: Mapping[int, Chunk], spans: Sequence[tuple[int, int, int, int]], size: int) -> list[Chunk]:
    """The rows [start, stop) of each span of record batches [first, end), of `size` rows each."""
    return [
        chunks[index].slice(max(start - index * size, 0), min(stop - index * size, chunks[index].rows))
        for first, end, start, stop in spans
        for index in range(first, end)
    ]


def _bits(one: Part, index: int, columns: Iterable[str]) -> int:
    """A bit for each of the columns of a record batch."""
    first = index * len(one.fields)
    return sum(1 << (first + one.fields.index(name)) for name in columns)


@contextmanager
def located(dataset: str, shard: int) -> Iterator[None]:
    """Say of damage in which shard of which dataset it is, and what can be done."""
    try:
        yield
    except IntegrityError as error:
        name = dataset.partition("@")[0]
        text = f"{error} (shard {shard:,} of {dataset}): `lake repair {name}`"
        raise IntegrityError(text, digest=error.digest) from error


_readers: weakref.WeakSet[PartReader] = weakref.WeakSet()


def _forget() -> None:
    """A forked child reads anew: its parent's leases and locks are its parent's."""
    for reader in list(_readers):
        reader._reset()


_os.after_fork(_forget)
