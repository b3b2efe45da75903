"""Segments: runs of a manifest's rows as Parquet, one row per shard. Their bytes, and where they are cut.

The bytes depend on the shards and the schema alone. Row groups are small, so that one shard of a million is
found without decoding thousands, and digests are never dictionary-encoded.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from itertools import takewhile
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lake.errors import FormatError
from lake.format.casts import cast
from lake.format.shards import BATCH, PART, list_of, stats_of, table_of
from lake.format.values import SegmentRef, Shard

SEGMENT_SHARDS = 8192  # at most
CUT_BITS = 11  # low bits that are zero in the `cut` of a segment's last shard: 2,048 shards on average
ROW_GROUP = 512  # shards

SHORT = 1024  # shards below which a segment at the end counts as short
SHORT_SEGMENTS = 32  # of which so many are merged

_VALUES = 2**26  # of one column in one segment: far above what 8,192 shards need
_UNPACKED = 2**30  # bytes of the columns that are read, decompressed

_BATCH_PATH = "parts.list.element.batches.list.element."
_DICTIONARIES = ["parts.list.element.codec", "parts.list.element.fields.list.element"]
_DELTAS = [_BATCH_PATH + name for name in ("offset", "meta_length", "length", "rows")]


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
    whole = {"rows": pa.int64(), "raw_bytes": pa.int64(), "cut": pa.uint64(), "parts": list_of(PART)}
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
        return list_of(_present(wanted.value_type, found.value_type))
    return wanted


def group_ends(data: Any) -> np.ndarray:
    """The number of shards up to the end of each row group of a segment."""
    metadata = pq.read_metadata(data if isinstance(data, str) else pa.BufferReader(data))
    ends: np.ndarray = np.cumsum([metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)])
    return ends
