"""Columns of a shard's rows, in the form that the version's schema gives them."""

from __future__ import annotations

import time
import weakref
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lake import _os
from lake.cache import Cache
from lake.errors import IntegrityError
from lake.format import schema, vocab
from lake.format.values import Part, Shard, VersionDocument
from lake.parts.access import Access
from lake.parts.chunk import Chunk, width
from lake.parts.kept import Kept
from lake.parts.meter import Meter
from lake.parts.opened import Opened
from lake.parts.pool import Pool
from lake.refs import Refs

_KEPT: Final = 128 * 2**20  # bytes of columns kept decoded, of record batches that were wanted in part
_RECENT: Final = (
    512 * 2**20
)  # bytes of whole columns that had to be decoded, for all that this process queries

Ints: TypeAlias = npt.NDArray[np.int64]
Run: TypeAlias = tuple[int, int]  # rows [start, stop) of a shard


class PartReader:
    """Columns of the parts that one version names. Thread-safe; a forked child starts empty."""

    def __init__(self, refs: Refs, document: VersionDocument, cache: Cache | None) -> None:
        self.store, self.cache = refs.store, cache
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
        self.access = Access(self.store, self.cache, self.stored)
        self._kept = Kept(_KEPT)

    # --- reading ------------------------------------------------------------------------------

    def read(
        self,
        shard: Shard,
        columns: Sequence[str],
        wanted: Ints | Sequence[Run],
        meter: Meter | None = None,
        *,
        own: bool = False,
        pool: Pool | None = None,
    ) -> list[list[Chunk]]:
        """For each column its values in the rows wanted: ascending numbers, which are copied, or runs.

        In the schema's form: dictionaries as codes, null where no part holds the column. `own`: nothing refers to
        a file, not even while the next part is waited for. `pool`: where memory comes from.

        Raises:
            IntegrityError: stored bytes differ from their digests.
        """
        meter, pool = meter or Meter(), pool or Pool()
        found: dict[str, list[Chunk]] = {}
        for one in shard.parts:
            held = one.held(columns)
            if held:
                if isinstance(wanted, np.ndarray):
                    read = self._rows(one, held, wanted, meter, pool)
                else:
                    read = self._runs(one, held, wanted, meter, pool)
                found.update(zip(held, _owned(read) if own else read, strict=True))
        if len(found) < len(columns):
            count = len(wanted) if isinstance(wanted, np.ndarray) else sum(b - a for a, b in wanted)
            found |= {name: [self._nothing(name, count)] for name in columns if name not in found}
        return [found[name] for name in columns]

    def batches(
        self,
        shard: Shard,
        columns: Sequence[str],
        batches: Ints,
        size: int,
        meter: Meter,
        pool: Pool,
        *,
        own: bool = False,
    ) -> list[list[Chunk]]:
        """For each column its values in these runs of `size` rows, as `read` gives them: of no row in part."""
        numbers = batches.tolist()
        found: dict[str, list[Chunk]] = {}
        for one in shard.parts:
            held = one.held(columns)
            if not held:
                continue
            if one.batches[0].rows == size:
                read = self.chunks(one, numbers, held, meter, pool)
            elif len(one.batches) == 1:
                edges = [(number * size, min(number * size + size, shard.rows)) for number in numbers]
                read = [
                    [chunk.slice(*edge) for edge in edges]
                    for [chunk] in self.chunks(one, [0], held, meter, pool)
                ]
            else:
                runs = [(number * size, min(number * size + size, shard.rows)) for number in numbers]
                read = self._runs(one, held, runs, meter, pool)
            found.update(zip(held, _owned(read) if own else read, strict=True))
        if len(found) < len(columns):
            count = sum(min(size, shard.rows - number * size) for number in numbers)
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

    def whole(self, shard: Shard, columns: Sequence[str], meter: Meter | None = None) -> pa.Table:
        """All of a shard's rows in these columns. What had to be decoded is kept for whoever asks next.

        Raises:
            IntegrityError: stored bytes differ from their digests.
        """
        meter = meter or Meter()
        found: dict[str, Any] = {}
        for one in shard.parts:
            held = one.held(columns)
            known = {name: _recent.get((one.digest, name, self.schema.field(name).type)) for name in held}
            found.update({name: chunk.array for name, chunk in known.items() if chunk is not None})
            if missing := [name for name in held if known[name] is None]:
                found.update(self._all(one, missing, meter))
        fields = [self.schema.field(name) for name in columns]
        arrays = [
            found[field.name] if field.name in found else pa.nulls(shard.rows, field.type) for field in fields
        ]
        return pa.Table.from_arrays(arrays, schema=pa.schema(fields, self.schema.metadata))

    def _all(self, one: Part, columns: Sequence[str], meter: Meter) -> dict[str, pa.ChunkedArray]:
        """Columns of a whole part; those that had to be decoded in one piece each, which is kept."""
        read, mapped = self._chunks(one, range(len(one.batches)), columns, meter, Pool())
        found = {}
        for name, chunks in zip(columns, read, strict=True):
            arrays = [chunk.array for chunk in chunks]
            if not mapped:
                arrays = [pa.concat_arrays(arrays)]
                _recent.put((one.digest, name, arrays[0].type), Chunk(arrays[0]))
            found[name] = pa.chunked_array(arrays)
        return found

    def chunks(
        self,
        one: Part,
        indices: Sequence[int],
        columns: Sequence[str],
        meter: Meter,
        pool: Pool,
        *,
        partly: bool = False,
    ) -> list[list[Chunk]]:
        """For each column its chunks in these record batches of a part.

        `partly`: not all of their rows are wanted, so that the others may be asked for soon. Those are kept, and
        what is so small that a shard has no more than one batch of it.
        """
        opened = self.access.opened(one)
        if opened is not None and opened.mapped:
            read = opened.known(indices, columns)
            return self._chunks(one, indices, columns, meter, pool)[0] if read is None else read
        if not (partly or len(one.batches) == 1):
            return self._chunks(one, indices, columns, meter, pool)[0]
        known = [[self._kept.get((one.digest, index, name)) for index in indices] for name in columns]
        if all(chunk is not None for chunks in known for chunk in chunks):
            return known  # type: ignore[return-value]
        found, mapped = self._chunks(one, indices, columns, meter, pool)
        if not mapped:
            for name, chunks in zip(columns, found, strict=True):
                for index, chunk in zip(indices, chunks, strict=True):
                    self._kept.put((one.digest, index, name), chunk)
        return found

    def keep(self, one: Part, meter: Meter) -> None:
        """Have a whole part in the cache, fetched if it is not there. Nothing to do without a cache."""
        self.access.keep(one, meter)

    def _chunks(
        self, one: Part, indices: Sequence[int], columns: Sequence[str], meter: Meter, pool: Pool
    ) -> tuple[list[list[Chunk]], bool]:
        """The chunks, and whether they refer to a mapped file: then keeping them keeps that, and saves nothing."""
        while True:
            try:
                found = self.access.read(one, indices, columns, meter)
                if isinstance(found, Opened):
                    return self._from_open(found, indices, columns, meter, pool), found.mapped
                return [
                    [self._finished(batch.column(name), name) for batch in found] for name in columns
                ], False
            except IntegrityError:
                if not self.access.mend(one):
                    raise

    def _from_open(
        self, opened: Opened, indices: Sequence[int], columns: Sequence[str], meter: Meter, pool: Pool
    ) -> list[list[Chunk]]:
        begin = time.perf_counter()
        if not opened.mapped:
            decoded = self._decoded(opened, indices, columns, pool)
            meter.add(decode_seconds=time.perf_counter() - begin)
            return decoded
        if opened.decoded:
            for name in columns:
                arrays, chunks = opened.arrays(name), opened.chunks[name]
                for index in indices:
                    if chunks[index] is None:
                        chunks[index] = self._finished(arrays[index], name, mapped=True)
        else:
            for index in indices:
                missing = [name for name in columns if opened.chunks[name][index] is None]
                if missing:
                    batch = self.access.batch(opened, index, missing)
                for name in missing:
                    opened.chunks[name][index] = self._finished(batch.column(name), name, mapped=True)
            meter.add(decode_seconds=time.perf_counter() - begin)
        found = opened.known(indices, columns)
        assert found is not None
        return found

    def _decoded(
        self, opened: Opened, indices: Sequence[int], columns: Sequence[str], pool: Pool
    ) -> list[list[Chunk]]:
        """Columns of record batches that are compressed: inflated where that does, or else as Arrow decodes them."""
        found = {name: self._inflated(opened, indices, name, pool) for name in columns}
        rest = [name for name, chunks in found.items() if chunks is None]
        if rest:
            if opened.together and len(indices) == len(opened.part.batches) > 1:
                batches = self.access.batches(opened, rest)
            else:
                batches = [self.access.batch(opened, index, rest) for index in indices]
            found |= {name: [self._finished(batch.column(name), name) for batch in batches] for name in rest}
        return [found[name] for name in columns]  # type: ignore[misc]

    def _inflated(self, opened: Opened, indices: Sequence[int], name: str, pool: Pool) -> list[Chunk] | None:
        """A column of record batches, decompressed to memory of the pool; None if that does not do."""
        type_ = self.schema.field(name).type
        size = None if pa.types.is_dictionary(type_) else width(type_)
        frames = None if size is None else self.access.frames(opened, indices, name, size)
        if size is None or frames is None:
            return None
        values = opened.inflate(frames, lambda size: pool.take(size, 1)[:, 0])
        return [Chunk.of_raw(octets.reshape(-1, size), type_) for octets in values]

    # --- rows to batches ----------------------------------------------------------------------

    def _runs(
        self, one: Part, columns: Sequence[str], runs: Sequence[Run], meter: Meter, pool: Pool
    ) -> list[list[Chunk]]:
        size = one.batches[0].rows
        spans = [(start // size, -(-stop // size), start, stop) for start, stop in runs]
        indices = list(dict.fromkeys(index for first, end, _, _ in spans for index in range(first, end)))
        whole = (len(one.batches) - 1) * size + one.batches[-1].rows
        partly = any(start % size or (stop % size and stop != whole) for start, stop in runs)
        read = self.chunks(one, indices, columns, meter, pool, partly=partly)
        if not partly and len(indices) == sum(end - first for first, end, _, _ in spans):
            return read
        return [_cut(dict(zip(indices, chunks, strict=True)), spans, size) for chunks in read]

    def _rows(
        self, one: Part, columns: Sequence[str], numbers: Ints, meter: Meter, pool: Pool
    ) -> list[list[Chunk]]:
        if not len(numbers):
            return [[self._nothing(name, 0)] for name in columns]
        size, count = one.batches[0].rows, len(one.batches)
        if count == 1:
            needed, places = [0], [numbers]
        else:
            ends = np.searchsorted(numbers, np.arange(size, (count + 1) * size, size)).tolist()
            spans = [
                (index, start, end) for index, (start, end) in enumerate(pairwise([0, *ends])) if start < end
            ]
            needed = [index for index, _, _ in spans]
            places = [numbers[start:end] - index * size for index, start, end in spans]
        partly = len(numbers) < sum(one.batches[index].rows for index in needed)
        read = self.chunks(one, needed, columns, meter, pool, partly=partly)
        return [[chunk.take(rows) for chunk, rows in zip(chunks, places, strict=True)] for chunks in read]

    def _nothing(self, name: str, rows: int) -> Chunk:
        return Chunk(pa.nulls(rows, self.schema.field(name).type))

    def _finished(self, column: pa.Array, name: str, *, mapped: bool = False) -> Chunk:
        """A stored column as the schema has it."""
        type_ = self.schema.field(name).type
        if pa.types.is_dictionary(type_):
            column = vocab.encode(column, self.dictionaries[name], ordered=type_.ordered)
        return Chunk(column, mapped=mapped)


def _owned(columns: Sequence[Sequence[Chunk]]) -> list[list[Chunk]]:
    return [[chunk.owned() for chunk in chunks] for chunks in columns]


def _cut(chunks: Mapping[int, Chunk], spans: Sequence[tuple[int, int, int, int]], size: int) -> list[Chunk]:
    """The rows [start, stop) of each span of record batches [first, end), of `size` rows each."""
    return [
        chunks[index].slice(max(start - index * size, 0), min(stop - index * size, chunks[index].rows))
        for first, end, start, stop in spans
        for index in range(first, end)
    ]


_readers: weakref.WeakSet[PartReader] = weakref.WeakSet()
_recent = Kept(_RECENT)


def _forget() -> None:
    """A forked child reads anew: its parent's leases and locks are its parent's."""
    global _recent
    _recent = Kept(_RECENT)
    for reader in list(_readers):
        reader._reset()


_os.after_fork(_forget)
