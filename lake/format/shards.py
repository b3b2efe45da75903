"""Shards as rows of a table, and back: what a segment holds, whatever file it is in.

What is read is checked for sense: a shard whose parts do not add up to its rows, or whose batches lie outside
their file, is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from lake.errors import FormatError
from lake.format.casts import cast
from lake.format.schema import stored_schema
from lake.format.stats import is_bounded, stats_type
from lake.format.values import Batch, ColumnStats, Part, Shard

CODECS = ("none", "zstd")


def list_of(item: pa.DataType) -> pa.DataType:
    """Lists as Parquet names their items."""
    return pa.list_(pa.field("element", item))


BATCH = pa.struct(
    {
        "offset": pa.int64(),
        "meta_length": pa.int32(),
        "length": pa.int64(),
        "rows": pa.int64(),
        "check": pa.binary(8),
    }
)
PART = pa.struct(
    {
        "digest": pa.binary(32),
        "content": pa.binary(32),
        "bytes": pa.int64(),
        "raw_bytes": pa.int64(),
        "codec": pa.string(),
        "fields": list_of(pa.string()),
        "batches": list_of(BATCH),
    }
)


def segment_schema(schema: pa.Schema, key: str | None) -> pa.Schema:
    """The columns of a segment under this schema. Keys of a type without bounds are not kept."""
    keys = pa.null() if key is None else stored_schema(schema).field(key).type
    keys = keys if is_bounded(keys) else pa.null()
    statistics = stats_type(schema, key)
    columns = {
        "rows": pa.int64(),
        "raw_bytes": pa.int64(),
        "first_key": keys,
        "last_key": keys,
        "cut": pa.uint64(),
        "parts": list_of(PART),
    }
    return pa.schema({**columns, "stats": statistics})


def stats_of(schema: pa.Schema, column: str) -> pa.DataType:
    """The type of a column's statistics."""
    return stats_type(pa.schema([schema.field(column)]))[0].type


# --- from shards --------------------------------------------------------------------------------


def table_of(shards: Sequence[Shard], schema: pa.Schema, key: str | None) -> pa.Table:
    """The rows that these shards are in a manifest of this schema."""
    wanted = segment_schema(schema, key)
    columns = {
        "parts": _lists([shard.parts for shard in shards], _encode_parts),
        "stats": _encode_stats(shards, wanted.field("stats").type),
    }
    arrays = [
        columns[field.name]
        if field.name in columns
        else _array([getattr(shard, field.name) for shard in shards], field.type)
        for field in wanted
    ]
    return pa.Table.from_arrays(arrays, schema=wanted)


def as_written(table: pa.Table, schema: pa.Schema, key: str | None) -> pa.Table:
    """The whole table of a segment, decoded under `schema`, as `table_of` would make it of the same shards."""
    wanted = segment_schema(schema, key)
    found = {name: table[name].combine_chunks() for name in table.column_names}
    return pa.Table.from_arrays([_member(found, field, len(table)) for field in wanted], schema=wanted)


def _member(found: Mapping[str, pa.Array], field: pa.Field, rows: int) -> pa.Array:
    """What is found of a column or statistic; structs with null for what was not."""
    array = found.get(field.name)
    if not pa.types.is_struct(field.type):
        return pa.nulls(rows, field.type) if array is None else cast(array, field.type)
    inside = {} if array is None else dict(zip(_names(array.type), array.flatten(), strict=True))
    members = [_member(inside, child, rows) for child in field.type]
    return pa.StructArray.from_arrays(members, fields=list(field.type))


def _names(struct: pa.StructType) -> list[str]:
    return [field.name for field in struct]


def _lists(rows: Sequence[Sequence[Any]], encode: Any) -> pa.Array:
    """An array of lists; `encode` makes the array of all their items."""
    offsets = np.cumsum([0, *map(len, rows)])
    items = encode(list(chain.from_iterable(rows)))
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), items, type=list_of(items.type))


def _encode_parts(parts: Sequence[Part]) -> pa.Array:
    return pa.StructArray.from_arrays(
        [
            _octets(b"".join(bytes.fromhex(part.digest) for part in parts), 32),
            _octets(b"".join(bytes.fromhex(part.content) for part in parts), 32),
            pa.array([part.bytes for part in parts], pa.int64()),
            pa.array([part.raw_bytes for part in parts], pa.int64()),
            pa.array([part.codec for part in parts], pa.string()),
            _lists([part.fields for part in parts], lambda names: pa.array(names, pa.string())),
            _lists([part.batches for part in parts], _encode_batches),
        ],
        fields=list(PART),
    )


def _encode_batches(batches: Sequence[Batch]) -> pa.Array:
    numbers = [pa.array([getattr(b, field.name) for b in batches], field.type) for field in list(BATCH)[:4]]
    return pa.StructArray.from_arrays(
        [*numbers, _octets(b"".join(b.check for b in batches), 8)], fields=list(BATCH)
    )


def _octets(data: bytes, width: int) -> pa.Array:
    return pa.Array.from_buffers(pa.binary(width), len(data) // width, [None, pa.py_buffer(data)])


def _encode_stats(shards: Sequence[Shard], type_: pa.DataType) -> pa.Array:
    unknown = ColumnStats()
    columns = []
    for column in type_:
        found = [shard.stats.get(column.name, unknown) for shard in shards]
        members = [
            _array([getattr(one, member.name) for one in found], member.type) for member in column.type
        ]
        columns.append(pa.StructArray.from_arrays(members, fields=list(column.type)))
    return pa.StructArray.from_arrays(columns, fields=list(type_))


# --- to shards ----------------------------------------------------------------------------------


def shards_of(table: pa.Table) -> Iterator[Shard]:
    """The shards in a whole table of a segment, checked for sense.

    Raises:
        FormatError: a shard whose parts cannot be what they are said to be.
    """
    try:
        yield from _shards(table)
    except (pa.ArrowException, ValueError, KeyError, TypeError, IndexError) as error:
        raise FormatError(f"a segment's shards: {error}") from error


def _shards(table: pa.Table) -> Iterator[Shard]:
    rows, raw_bytes, cuts = (table[name].to_numpy().tolist() for name in ("rows", "raw_bytes", "cut"))
    first_keys, last_keys = (_values(table[name].combine_chunks()) for name in ("first_key", "last_key"))
    lists = table["parts"].combine_chunks()
    _refuse_nulls(lists)
    ends = _ends(lists).tolist()
    parts = _parts(lists.flatten(), np.repeat(np.array(rows, np.int64), np.diff(ends)))
    statistics = _stats(table["stats"]) if "stats" in table.column_names else [{}] * len(rows)
    for i in range(len(rows)):
        own = tuple(parts[ends[i] : ends[i + 1]])
        fields = [name for part in own for name in part.fields]
        if len(set(fields)) < len(fields):
            raise ValueError(f"two parts of a shard hold the same column: {', '.join(sorted(fields))}")
        yield Shard(rows[i], raw_bytes[i], first_keys[i], last_keys[i], cuts[i], own, statistics[i])


def _parts(found: pa.StructArray, rows: np.ndarray) -> list[Part]:
    """Parts, given the rows of each one's shard."""
    digests, contents = (_hex(found.field(name)) for name in ("digest", "content"))
    sizes, raw_sizes = (found.field(name).to_numpy() for name in ("bytes", "raw_bytes"))
    codecs, fields = found.field("codec").to_pylist(), found.field("fields").to_pylist()
    lists = found.field("batches")
    ends = _ends(lists)
    batches = lists.flatten()
    offsets, metas, lengths, counts = (batches.field(i).to_numpy().astype(np.int64) for i in range(4))
    _check_batches(ends, offsets, metas, lengths, counts, sizes, rows)
    if (raw_sizes < 0).any() or not set(codecs) <= set(CODECS):
        raise ValueError("a part of an unknown codec or of negative size")
    checks = batches.field("check").to_pylist()
    numbers = (column.tolist() for column in (offsets, metas, lengths, counts))
    described = [Batch(*values) for values in zip(*numbers, checks, strict=True)]
    return [
        Part(digest, content, size, raw, codec, tuple(names), tuple(described[start:end]))
        for digest, content, size, raw, codec, names, start, end in zip(
            digests,
            contents,
            sizes.tolist(),
            raw_sizes.tolist(),
            codecs,
            fields,
            ends[:-1],
            ends[1:],
            strict=True,
        )
    ]


def _check_batches(
    ends: np.ndarray,
    offsets: np.ndarray,
    metas: np.ndarray,
    lengths: np.ndarray,
    counts: np.ndarray,
    sizes: np.ndarray,
    rows: np.ndarray,
) -> None:
    """That batches lie in their files, and that a part's are alike but for the last and have its rows."""
    number = np.diff(ends)
    if (number < 1).any():
        raise ValueError("a part without batches")
    room = np.repeat(sizes, number)
    inside = (
        (offsets >= 8)
        & (metas >= 8)
        & (lengths >= 0)
        & (offsets <= room)
        & (lengths <= room - offsets - metas)
    )
    if not inside.all():
        raise ValueError("a record batch outside its file")
    usual = np.repeat(counts[ends[:-1]], number)
    last = np.zeros(len(counts), bool)
    last[ends[1:] - 1] = True
    even = (counts == usual) | (last & (counts >= 1) & (counts < usual))
    if not even.all() or (usual < 1).any() or (usual > np.repeat(rows, number)).any():
        raise ValueError("record batches of unequal rows")
    if (np.add.reduceat(counts, ends[:-1]) != rows).any():
        raise ValueError("a part whose batches do not add up to the shard's rows")


def _ends(lists: pa.Array) -> np.ndarray:
    """Where each list ends among the items of all, with a zero before."""
    offsets: np.ndarray = lists.offsets.to_numpy()
    return offsets - int(offsets[0])


def _refuse_nulls(lists: pa.Array) -> None:
    """ValueError if anything that describes a part is null."""
    if lists.null_count:
        raise ValueError("null where a shard's parts should be")
    children = lists.flatten()
    for child in children.flatten() if pa.types.is_struct(children.type) else [children]:
        if child.null_count:
            raise ValueError("null in the description of a part")
        if pa.types.is_list(child.type):
            _refuse_nulls(child)


def _hex(octets: pa.Array) -> list[str]:
    width = 2 * octets.type.byte_width
    text = b"".join(octets.to_pylist()).hex()
    return [text[i : i + width] for i in range(0, len(text), width)]


def _stats(column: pa.ChunkedArray) -> list[dict[str, ColumnStats]]:
    found = column.combine_chunks()
    names = [field.name for field in found.type]
    columns = [
        [
            ColumnStats(*members)
            for members in zip(*(_values(member) for member in child.flatten()), strict=True)
        ]
        for child in found.flatten()
    ]
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)] or [{}] * len(found)


# --- values -------------------------------------------------------------------------------------


def _array(values: Sequence[Any], type_: pa.DataType) -> pa.Array:
    """The inverse of `_values`; of moments it takes what Python has for them as well."""
    if pa.types.is_null(type_):
        return pa.nulls(len(values))
    if _is_moment(type_) and all(value is None or isinstance(value, int) for value in values):
        return pa.array(values, _storage(type_)).view(type_)
    if pa.types.is_float16(type_):
        values = [None if value is None else np.float16(value) for value in values]
    return pa.array(values, type_)


def _values(array: pa.Array) -> list[Any]:
    """Python values; moments and durations as the integers that Arrow holds, which lose nothing."""
    if _is_moment(array.type):
        array = array.view(_storage(array.type))
    values: list[Any] = array.to_pylist()
    return values


def _is_moment(type_: pa.DataType) -> bool:
    return bool(pa.types.is_temporal(type_) and not pa.types.is_interval(type_))


def _storage(type_: pa.DataType) -> pa.DataType:
    return pa.int32() if type_.bit_width == 32 else pa.int64()
