"""Read columns of a version's record batches, from wherever its parts are: the lake's folder, the cache, the bucket.

A lake in a folder is mapped in place. Of a bucket, a part is fetched whole into the cache, or only the bytes of
the batches and columns asked for, whichever costs less when a request counts as much as `REQUEST` bytes.
Whatever this process reads for the first time is verified; damage raises and never becomes rows.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from lake.cache import Cache, Sink
from lake.errors import IntegrityError, NotFoundError
from lake.format import names, part, schema, vocab
from lake.format.values import Part, Shard, VersionDocument
from lake.refs import Refs, generations
from lake.stores.base import Store

REQUEST = 2**20  # bytes that a request is worth
_OPEN = 256  # parts kept mapped
_PIECE = 8 * 2**20  # bytes of one request for a whole part
_GAP = 64 * 2**10  # bytes between two ranges that one request may as well fetch

Range = tuple[int, int]  # start, length


class PartReader:
    """Record batches of the parts that one version names. Thread-safe; a fork or a pickle starts empty.

    `cache` None: a part that must be fetched whole is held in memory.
    """

    def __init__(self, refs: Refs, document: VersionDocument, cache: Cache | None) -> None:
        self.store: Store = refs.store
        self.cache = cache
        self.schema = document.schema
        self.stored = schema.stored_schema(document.schema)
        self.vocab = document.vocab
        self._refs, self._document = refs, document
        self._open: OrderedDict[str, part.OpenPart] = OrderedDict()
        self._heads: dict[str, bytes] = {}
        self._seen: set[tuple[str, int, str]] = set()
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return PartReader, (self._refs, self._document, self.cache)

    # --- reading ------------------------------------------------------------------------------

    def shard(self, shard: Shard, columns: Sequence[str] | None = None) -> pa.Table:
        """All rows of a shard, in the schema's form: dictionaries encoded, absent columns null."""
        return self.rows(shard, np.arange(shard.rows), columns)

    def rows(self, shard: Shard, numbers: np.ndarray, columns: Sequence[str] | None = None) -> pa.Table:
        """These rows of a shard (int64, any order, counted from its first), in the schema's form.

        Raises:
            IntegrityError: stored bytes differ from their digests.
        """
        asked = self.schema.names if columns is None else list(columns)
        return self.finish(self._held(shard, numbers, asked), asked, len(numbers))

    def stored_rows(self, shard: Shard, numbers: np.ndarray, columns: Sequence[str]) -> pa.Table:
        """These rows of a shard as parts hold them: dictionary columns as their values, absent columns null."""
        found = self._held(shard, numbers, columns)
        fields = [self.stored.field(name) for name in columns]
        arrays = [found.get(field.name, pa.nulls(len(numbers), field.type)) for field in fields]
        return pa.Table.from_arrays(arrays, schema=pa.schema(fields, self.stored.metadata))

    def _held(self, shard: Shard, numbers: np.ndarray, columns: Sequence[str]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for one in shard.parts:
            held = [name for name in columns if name in one.fields]
            if held:
                found.update(self._part_rows(one, numbers, held))
        return found

    def stored_column(self, shard: Shard, column: str) -> pa.ChunkedArray:
        """All of a shard's values in one column, as stored."""
        for one in shard.parts:
            if column in one.fields:
                return self._part_rows(one, np.arange(shard.rows), [column])[column]
        return pa.chunked_array([pa.nulls(shard.rows, self.stored.field(column).type)])

    def finish(self, found: dict[str, Any], columns: Sequence[str], rows: int) -> pa.Table:
        """Stored columns as the schema has them: nulls for what no part holds, codes for dictionary values."""
        arrays = []
        for name in columns:
            field = self.schema.field(name)
            if name not in found:
                arrays.append(pa.nulls(rows, field.type))
            elif pa.types.is_dictionary(field.type):
                arrays.append(self._codes(found[name], field))
            else:
                arrays.append(found[name])
        return pa.Table.from_arrays(arrays, schema=pa.schema([self.schema.field(name) for name in columns], self.schema.metadata))

    def _codes(self, column: pa.ChunkedArray, field: pa.Field) -> pa.ChunkedArray:
        known = vocab.values(self.vocab[field.name], field.type)
        chunks = [vocab.encode(chunk, known, ordered=field.type.ordered) for chunk in column.chunks]
        return pa.chunked_array(chunks, field.type)

    def batches(self, one: Part, indices: Sequence[int], columns: Sequence[str]) -> list[pa.RecordBatch]:
        """These columns of these record batches of a part, as stored, in order.

        Raises:
            IntegrityError: the bytes are not what the manifest says they are.
        """
        opened = self._opened(one, indices, columns)
        if opened is None:
            return self._ranged(one, indices, columns)
        return [self._batch(one, opened, index, columns) for index in indices]

    # --- inside -------------------------------------------------------------------------------

    def _part_rows(self, one: Part, numbers: np.ndarray, columns: Sequence[str]) -> dict[str, pa.ChunkedArray]:
        size = one.batches[0].rows
        needed = np.unique(numbers // size)
        read = self.batches(one, needed.tolist(), columns)
        table = pa.Table.from_batches(read)
        if len(numbers) == table.num_rows and np.array_equal(numbers, np.arange(len(numbers))):
            chosen = table
        else:
            firsts = np.cumsum([0, *(batch.num_rows for batch in read)])[:-1]
            places = firsts[np.searchsorted(needed, numbers // size)] + numbers % size
            chosen = table.combine_chunks().take(pa.array(places))
        return dict(zip(chosen.schema.names, chosen.columns, strict=True))

    def _batch(self, one: Part, opened: part.OpenPart, index: int, columns: Sequence[str]) -> pa.RecordBatch:
        new = self._unseen(one, index, columns)
        batch = opened.batch(index, columns, verify=new, first_read=new)
        self._see(one, index, columns)
        return batch

    def _unseen(self, one: Part, index: int, columns: Sequence[str]) -> bool:
        with self._lock:
            return any((one.digest, index, name) not in self._seen for name in columns)

    def _see(self, one: Part, index: int, columns: Sequence[str]) -> None:
        with self._lock:
            self._seen.update((one.digest, index, name) for name in columns)

    def _opened(self, one: Part, indices: Sequence[int], columns: Sequence[str]) -> part.OpenPart | None:
        """The part mapped or in memory; None if ranges of it cost less."""
        with self._lock:
            known = self._open.get(one.digest)
            if known is not None:
                self._open.move_to_end(one.digest)
                return known
        path = self.store.local_path(names.part_key(one.digest))
        if path is not None:
            opened = self._mapped_in_place(one)
        elif (lease := self.cache.peek(one.digest) if self.cache else None) is not None:
            opened = part.OpenPart(pa.py_buffer(lease.map()), one, self.stored)
        elif self._cost(one, indices, columns) < one.bytes + REQUEST:
            return None
        elif self.cache is not None:
            lease = self.cache.file(one.digest, one.bytes, lambda sink: self._fetch(one, sink))
            opened = part.OpenPart(pa.py_buffer(lease.map()), one, self.stored)
        else:
            opened = part.OpenPart(self._get(one, 0, one.bytes), one, self.stored)
        with self._lock:
            self._open[one.digest] = opened
            while len(self._open) > _OPEN:
                self._open.popitem(last=False)
        return opened

    def _mapped_in_place(self, one: Part) -> part.OpenPart:
        keys = names.part_keys(one.digest)
        for key in (keys(0), *(copy.key for copy in generations(self.store, keys))):
            path = self.store.local_path(key)
            if path is not None and path.exists():
                return part.open_mapped(str(path), one, self.stored)
        raise self._missing(one)

    def _cost(self, one: Part, indices: Sequence[int], columns: Sequence[str]) -> float:
        """Bytes that reading only these columns of these batches is worth, before it is known where they lie."""
        share = len(columns) / max(1, len(one.fields))
        batches = [one.batches[index] for index in indices]
        return sum(share * batch.length + batch.meta_length for batch in batches) + 2 * REQUEST * len(batches)

    def _ranged(self, one: Part, indices: Sequence[int], columns: Sequence[str]) -> list[pa.RecordBatch]:
        messages = self._get_many(one, [part.message_range(one, index) for index in indices])
        head = None
        if indices and part.needs_head(bytes(messages[0]), one, indices[0], self.stored):
            head = self._head(one)
        wanted = [
            part.column_ranges(bytes(message), one, index, columns, self.stored, head=head)
            for index, message in zip(indices, messages, strict=True)
        ]
        flat = [found for ranges in wanted for found in ranges]
        data = dict(zip(flat, self._get_many(one, flat), strict=True))
        found = []
        for index, message, ranges in zip(indices, messages, wanted, strict=True):
            held = {key: data[key] for key in ranges}
            new = self._unseen(one, index, columns)
            found.append(
                part.decode_columns(one, index, bytes(message), held, columns, self.stored, head=head, first_read=new)
            )
            self._see(one, index, columns)
        return found

    def _head(self, one: Part) -> bytes:
        if one.digest not in self._heads:
            self._heads[one.digest] = self._get(one, *part.head_range(one))
        return self._heads[one.digest]

    def _get_many(self, one: Part, ranges: Sequence[Range]) -> list[memoryview]:
        """The bytes of each range; neighbours come with one request."""
        runs: list[list[int]] = []  # start, end
        for start, length in sorted(ranges):
            if runs and start - runs[-1][1] <= _GAP:
                runs[-1][1] = max(runs[-1][1], start + length)
            else:
                runs.append([start, start + length])
        fetched = {start: memoryview(self._get(one, start, end - start)) for start, end in runs}
        starts = np.array([start for start, _ in runs], dtype=np.int64)
        found = []
        for start, length in ranges:
            first = int(starts[np.searchsorted(starts, start, "right") - 1])
            found.append(fetched[first][start - first : start - first + length])
        return found

    def _get(self, one: Part, start: int, length: int) -> bytes:
        keys = names.part_keys(one.digest)
        try:
            return self.store.get_range(keys(0), start, length)
        except NotFoundError:
            for copy in generations(self.store, keys):
                return self.store.get_range(copy.key, start, length)
        raise self._missing(one)

    def _fetch(self, one: Part, sink: Sink) -> None:
        for start in range(0, one.bytes, _PIECE):
            sink.write(self._get(one, start, min(_PIECE, one.bytes - start)))

    def _missing(self, one: Part) -> IntegrityError:
        return IntegrityError(
            f"part {one.digest[:12]} is missing from {self.store.url}; `lake verify` shows what it hurts, "
            "`lake repair` brings back what can be",
            digest=one.digest,
        )


