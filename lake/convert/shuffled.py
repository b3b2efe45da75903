"""Rows in the order of the hash of their key: random, yet the same on every machine and after every edit.

The hash is seeded otherwise than the one that decides where shards end: in an order by that one, all rows
that end a shard would come first, and one inserted row would move every later boundary.

Rows of one hash are ordered by key, then by their place in the input. What fits `MEMORY_BYTES` is sorted at
once; more is dealt by ranges of the hash into temporary files, each of which is sorted alone.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lake.convert.source import BATCH_BYTES
from lake.format import cuts
from lake.format import schema as schemas
from lake.format.casts import cast

SEED = 0x6F72646572  # "order"; another one is another order for everybody's data
MEMORY_BYTES = 128 << 20  # sorted in memory at a time
_FILES = 64  # that one pass deals into
_BITS = 6
_BUFFER_BYTES = 32 << 20  # dealt at a time

Array = np.ndarray[Any, Any]


def order_of(keys: pa.Array) -> Array:
    """The order in which rows of these keys are read: indices into `keys`."""
    hashes = _hashes(keys)
    order = np.argsort(hashes, kind="stable")
    ordered = hashes[order]
    if (ordered[1:] == ordered[:-1]).any():
        table = pa.table({"hash": hashes, "key": keys, "row": np.arange(len(keys))})
        by = [("hash", "ascending"), ("key", "ascending"), ("row", "ascending")]
        order = np.asarray(pc.sort_indices(table, sort_keys=by))
    return order


def shuffled(batches: Iterable[pa.RecordBatch], schema: pa.Schema, key: str) -> Iterator[pa.RecordBatch]:
    """All rows, in the order of their keys' hashes. The schema is as given, views and runs made plain."""
    plain = sortable(schema)
    yield from _sorted((_made_plain(batch, plain) for batch in batches), plain, key, 0)


def sortable(schema: pa.Schema) -> pa.Schema:
    """The schema with types that Arrow can reorder in place of those it cannot."""
    return schemas.canonical_schema(schema)


def _sorted(
    batches: Iterable[pa.RecordBatch], schema: pa.Schema, key: str, depth: int
) -> Iterator[pa.RecordBatch]:
    """Sort rows whose hashes agree in their first `depth` digits of `_BITS` bits."""
    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    rest = iter(batches)
    for batch in rest:
        waiting.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if size > MEMORY_BYTES and rows > 1 and depth * _BITS < 64:
            break
    else:
        yield from _sorted_in_memory(waiting, schema, key)
        return
    with tempfile.TemporaryDirectory(prefix="lake-shuffle-") as folder:
        paths = _deal(_chain(waiting, rest), schema, key, depth, Path(folder))
        for path in paths:
            if path.exists():
                with pa.memory_map(str(path)) as file:
                    yield from _sorted(pa.ipc.open_stream(file), schema, key, depth + 1)
                path.unlink()


def _deal(
    batches: Iterator[pa.RecordBatch], schema: pa.Schema, key: str, depth: int, folder: Path
) -> list[Path]:
    """Write each row to the file of its hash's next digit, in order; the files by digit, made when needed."""
    paths = [folder / f"{digit}.arrows" for digit in range(_FILES)]
    with ExitStack() as stack:
        writers: dict[int, Any] = {}
        for table in _gathered(batches, schema):
            digits = _digits(_one(table.column(key)), depth)
            order = np.argsort(digits, kind="stable")
            dealt = table.take(pa.array(order))
            ends = np.searchsorted(digits[order], np.arange(_FILES + 1))
            for digit in range(_FILES):
                start, end = int(ends[digit]), int(ends[digit + 1])
                if start == end:
                    continue
                if digit not in writers:
                    writers[digit] = stack.enter_context(pa.ipc.new_stream(str(paths[digit]), schema))
                for batch in dealt.slice(start, end - start).to_batches():
                    writers[digit].write_batch(batch)
    return paths


def _digits(keys: pa.Array, depth: int) -> Array:
    shift = np.uint64(max(0, 64 - _BITS * (depth + 1)))
    digits: Array = (_hashes(keys) >> shift) & np.uint64(_FILES - 1)
    return digits.astype(np.int64)


def _hashes(keys: pa.Array) -> Array:
    if pa.types.is_dictionary(keys.type):
        keys = keys.cast(keys.type.value_type)
    return cuts.row_hashes(pa.RecordBatch.from_arrays([keys], names=["key"]), "key", 0, seed=SEED)


def _sorted_in_memory(batches: list[pa.RecordBatch], schema: pa.Schema, key: str) -> Iterator[pa.RecordBatch]:
    table = pa.Table.from_batches(batches, schema).unify_dictionaries()
    batches.clear()
    if not table.num_rows:
        return
    order = order_of(_one(table.column(key)))
    rows = max(1, min(table.num_rows, BATCH_BYTES * table.num_rows // max(1, table.nbytes)))
    for start in range(0, table.num_rows, rows):
        taken = table.take(pa.array(order[start : start + rows])).combine_chunks()
        yield from taken.to_batches()


def _gathered(batches: Iterator[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.Table]:
    """The rows in tables of at least `_BUFFER_BYTES`, so that no file gets them one by one."""
    waiting: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        waiting.append(batch)
        size += batch.nbytes
        if size >= _BUFFER_BYTES:
            yield pa.Table.from_batches(waiting, schema).unify_dictionaries()
            waiting, size = [], 0
    if waiting:
        yield pa.Table.from_batches(waiting, schema).unify_dictionaries()


def _made_plain(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    if batch.schema.equals(schema, check_metadata=True):
        return batch
    columns = [_plain(column, field.type) for column, field in zip(batch.columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _plain(column: pa.Array, kind: pa.DataType) -> pa.Array:
    if column.type.equals(kind) or not pa.types.is_dictionary(kind):
        return cast(column, kind)
    return pa.DictionaryArray.from_arrays(
        column.indices.cast(kind.index_type), cast(column.dictionary, kind.value_type), ordered=kind.ordered
    )


def _one(column: pa.ChunkedArray) -> pa.Array:
    whole = column.combine_chunks()
    return whole if isinstance(whole, pa.Array) else pa.concat_arrays(whole.chunks)


def _chain(waiting: list[pa.RecordBatch], rest: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    waiting.reverse()
    while waiting:
        yield waiting.pop()
    yield from rest
