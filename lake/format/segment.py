"""Segments: runs of a manifest's rows as Parquet, one row per shard. Their bytes, and where they are cut.

The bytes depend on the shards and the schema alone. Row groups are small, so that one shard of a million is
found without decoding thousands, and digests are never dictionary-encoded. What a reader decodes is checked
for sense: a shard whose parts do not add up to its rows, or whose batches lie outside their file, is refused.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, takewhile
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lake.errors import FormatError
from lake.format.casts import cast
from lake.format.schema import stored_schema
from lake.format.stats import is_bounded, stats_type
from lake.format.values import Batch, ColumnStats, Part, SegmentRef, Shard

SEGMENT_SHARDS = 8192  # at most
CUT_BITS = 11  # low bits that are zero in the `cut` of a segment's last shard: 2,048 shards on average
ROW_GROUP = 512  # shards

SHORT = 1024  # shards below which a segment at the end counts as short
SHORT_SEGMENTS = 32  # of which so many are merged

_VALUES = 2**26  # of one column in one segment: far above what 8,192 shards need
_UNPACKED = 2**30  # bytes of the columns that are read, decompressed

CODECS = ("none", "zstd")


def _list(item: pa.DataType) -> pa.DataType:
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
        "fields": _list(pa.string()),
        "batches": _list(BATCH),
    }
)
_BATCH_PATH = "parts.list.element.batches.list.element."
_DICTIONARIES = ["parts.list.element.codec", "parts.list.element.fields.list.element"]
_DELTAS = [_BATCH_PATH + name for name in ("offset", "meta_length", "length", "rows")]


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
        "parts": _list(PART),
    }
    return pa.schema({**columns, "stats": statistics})


# --- where segments end -----------------------------------------------------------------------


def segment_cuts(cuts: Sequence[int]) -> list[int]:
    """Ends of the segments of shards whose `cut`s these are: by content, so that an edit moves few of them.

    >>> segment_cuts([5, 2048, 7, 6])
    [2, 4]
    """
    ends, start = [], 0
    for end, cut in enumerate(cuts, 1):
        if cut % 2**CUT_BITS == 0 or end - start == SEGMENT_SHARDS or end == len(cuts):
            ends.append(end)
            start = end
    return ends


def tail_to_merge(refs: Sequence[SegmentRef]) -> int:
    """How many segments at the end an append takes apart, to divide their shards anew with its own: mostly 0.

    Once 32 short ones in a row are there, these. So an append costs the same however large the manifest is,
    and small appends leave it with few segments.
    """
    short = list(takewhile(lambda ref: ref.shards < SHORT, reversed(refs)))
    return len(short) if len(short) >= SHORT_SEGMENTS else 0


# --- encoding ---------------------------------------------------------------------------------


def encode_segment(shards: Sequence[Shard], schema: pa.Schema, key: str | None) -> tuple[SegmentRef, bytes]:
    """The segment that these shards make, and its bytes."""
    return encode_table(table_of(shards, schema, key))


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


def encode_table(table: pa.Table) -> tuple[SegmentRef, bytes]:
    """The segment that these rows of a manifest make, and its bytes: they depend on the values alone."""
    sink = pa.BufferOutputStream()
    pq.write_table(
        table.combine_chunks(),
        sink,
        row_group_size=ROW_GROUP,
        compression="zstd",
        use_dictionary=_DICTIONARIES,
        column_encoding=dict.fromkeys(_DELTAS, "DELTA_BINARY_PACKED"),
        write_statistics=False,
    )
    data: bytes = sink.getvalue().to_pybytes()
    parts = table["parts"].combine_chunks().flatten()
    ref = SegmentRef(
        digest=hashlib.sha256(data).hexdigest(),
        rows=pc.sum(table["rows"], min_count=0).as_py(),
        shards=len(table),
        bytes=pc.sum(parts.field("bytes"), min_count=0).as_py(),
        raw_bytes=pc.sum(table["raw_bytes"], min_count=0).as_py(),
    )
    return ref, data


def _lists(rows: Sequence[Sequence[Any]], encode: Any) -> pa.Array:
    """An array of lists; `encode` makes the array of all their items."""
    offsets = np.cumsum([0, *map(len, rows)])
    items = encode(list(chain.from_iterable(rows)))
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), items, type=_list(items.type))


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


# --- decoding ---------------------------------------------------------------------------------


def decode_segment(
    data: Any,
    ref: SegmentRef,
    schema: pa.Schema,
    columns: Sequence[str] | None = None,
    *,
    row_groups: Sequence[int] | None = None,
    writing: bool = False,
) -> pa.Table:
    """The rows of a segment (bytes, or the path of a file), whose digest the caller has checked.

    `columns`: Parquet paths, such as "rows" or "parts.list.element.digest"; those that the segment lacks are
    left out. Statistics have the types of `schema`. Writers refuse columns that they do not know.

    Raises:
        FormatError: not a segment, or not the one that `ref` describes.
    """
    what = f"segment {ref.digest[:12]}"
    try:
        with pq.ParquetFile(data if isinstance(data, str) else pa.BufferReader(data)) as file:
            _check_file(file, ref, columns, writing)
            groups = range(file.num_row_groups) if row_groups is None else row_groups
            table = file.read_row_groups(groups, columns=None if columns is None else list(columns))
        return _typed(table, schema).combine_chunks()
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError) as error:
        raise FormatError(f"{what}: {error}") from error


def _check_file(file: pq.ParquetFile, ref: SegmentRef, columns: Sequence[str] | None, writing: bool) -> None:
    """That this is a segment of so many shards, and that reading it costs what a segment may cost."""
    metadata = file.metadata
    if metadata.num_rows != ref.shards or ref.shards > SEGMENT_SHARDS:
        raise ValueError(
            f"{metadata.num_rows:,} shards instead of {ref.shards:,}, of at most {SEGMENT_SHARDS:,}"
        )
    unpacked = 0
    leaves = _leaves(metadata, columns)
    for group in range(metadata.num_row_groups):
        for leaf in leaves:
            column = metadata.row_group(group).column(leaf)
            unpacked += column.total_uncompressed_size
            if column.num_values > _VALUES or unpacked > _UNPACKED:
                raise ValueError(f"over {_VALUES:,} values or {_UNPACKED:,} bytes in its columns")
    if writing and (unknown := _unknown(file.schema_arrow)):
        raise ValueError(f"unknown columns {', '.join(unknown)}: upgrade lake to write here")


def _leaves(metadata: pq.FileMetaData, columns: Sequence[str] | None) -> list[int]:
    """The numbers of the Parquet columns at or below these paths; of all, if None."""
    paths = [f"{metadata.schema.column(leaf).path}." for leaf in range(metadata.num_columns)]
    wanted = ("",) if columns is None else tuple(f"{path}." for path in columns)
    return [leaf for leaf, path in enumerate(paths) if path.startswith(wanted)]


_KNOWN = ("rows", "raw_bytes", "first_key", "last_key", "cut", "parts", "stats")


def _unknown(found: pa.Schema) -> list[str]:
    unknown = [name for name in found.names if name not in _KNOWN]
    part = found.field("parts").type.value_type
    unknown += [f"parts.{field.name}" for field in part if PART.get_field_index(field.name) < 0]
    batch = part.field("batches").type.value_type
    return unknown + [f"batches.{field.name}" for field in batch if BATCH.get_field_index(field.name) < 0]


def _typed(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """The table with every known column in its type, and no others."""
    whole = {"rows": pa.int64(), "raw_bytes": pa.int64(), "cut": pa.uint64(), "parts": _list(PART)}
    if "stats" in table.schema.names:
        named = [field.name for field in table.schema.field("stats").type]
        whole["stats"] = pa.struct([(name, stats_of(schema, name)) for name in named if name in schema.names])
    columns = {}
    for name in table.schema.names:
        if name in ("first_key", "last_key"):
            columns[name] = table[name]
        elif name in whole:
            column = table[name].combine_chunks()
            columns[name] = cast(column, _present(whole[name], column.type))
    return pa.table(columns)


def _present(wanted: pa.DataType, found: pa.DataType) -> pa.DataType:
    """The type that is wanted, without what was not read of it."""
    if pa.types.is_struct(wanted):
        there = [field for field in wanted if found.get_field_index(field.name) >= 0]
        return pa.struct(
            [field.with_type(_present(field.type, found.field(field.name).type)) for field in there]
        )
    if pa.types.is_list(wanted):
        return _list(_present(wanted.value_type, found.value_type))
    return wanted


def group_ends(data: Any) -> np.ndarray:
    """The number of shards up to the end of each row group of a segment."""
    metadata = pq.read_metadata(data if isinstance(data, str) else pa.BufferReader(data))
    ends: np.ndarray = np.cumsum([metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)])
    return ends


def stats_of(schema: pa.Schema, column: str) -> pa.DataType:
    """The type of a column's statistics."""
    return stats_type(pa.schema([schema.field(column)]))[0].type


# --- shards -----------------------------------------------------------------------------------


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
