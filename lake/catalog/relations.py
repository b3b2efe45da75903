"""What a lake says of itself, as Arrow: the tables beneath the views of `sql/views`.

Each is read when a statement scans it, one dataset after the other: only the datasets that the statement's
filter leaves, and only the columns that it uses. Reads documents, never rows of a dataset; writes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads
from pyarrow.fs import LocalFileSystem

from lake.errors import NotFoundError
from lake.format import names
from lake.format.log import EXPIRED
from lake.format.segment import decode_segment
from lake.format.values import LogEntry, VersionDocument
from lake.refs import Refs
from lake.virtual import VirtualDataset, columns_of

if TYPE_CHECKING:
    from lake.cache import Cache

_AHEAD: Final = 8  # datasets whose documents are asked for at once


class Lake(Protocol):
    """What the relations need of a lake."""

    @property
    def refs(self) -> Refs: ...

    @property
    def cache(self) -> Cache: ...


@dataclass(frozen=True, slots=True)
class Relation:
    """One table. `read(lake, dataset, columns)` gives one dataset's rows, with these columns at least."""

    schema: pa.Schema
    read: Callable[[Lake, str, Sequence[str]], Iterable[pa.RecordBatch]]


def virtual(lake: Lake, relation: Relation) -> VirtualDataset:
    """The rows of a relation for every dataset of the lake, to be scanned."""
    schema = relation.schema

    def read(columns: list[str], where: pads.Expression | None) -> Iterator[pa.RecordBatch]:
        used = {*columns, *(columns_of(where, schema) if where is not None else ())}
        wanted = [name for name in schema.names if name in used] or schema.names[:1]
        needed = pa.schema([schema.field(name) for name in wanted])
        datasets = _spelled(lake.refs)
        if "dataset" in schema.names:
            datasets = _surviving(datasets, schema, where)
        for batches in _ahead(lambda name: list(relation.read(lake, name, wanted)), datasets):
            for batch in batches:
                kept = batch.select(wanted).cast(needed)
                kept = kept if where is None else kept.filter(where)
                yield kept.select(columns)

    return VirtualDataset(schema, read)


def cached_files(lake: Lake) -> VirtualDataset:
    """The files of the machine's cache, to be scanned."""

    def read(columns: list[str], where: pads.Expression | None) -> Iterator[pa.RecordBatch]:
        rows = [{name: getattr(entry, name) for name in CACHE.names} for entry in lake.cache.entries()]
        table = pa.Table.from_pylist(rows, CACHE)
        yield from (table if where is None else table.filter(where)).select(columns).to_batches()

    return VirtualDataset(CACHE, read)


# --- one dataset's rows -------------------------------------------------------------------------


def _heads(lake: Lake, name: str, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    if head := _head(lake, name):
        yield _batch([_version_row(name, *head)], HEADS)


def _log(lake: Lake, name: str, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    yield _batch([{"dataset": name} | asdict(entry) for entry in lake.refs.entries(name)], LOG)


def _versions(lake: Lake, name: str, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    entries = lake.refs.entries(name)
    if entries and entries[0].version is not None:
        living = [entry for entry in entries if entry.seq >= entries[0].born and entry.operation != EXPIRED]
        rows = [_version_row(name, entry, _document(lake, name, entry)) for entry in living]
        yield _batch(rows, VERSIONS)


def _shards(lake: Lake, name: str, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    head = _head(lake, name)
    if head is None:
        return
    entry, document = head
    stored = ["rows", *(path for column in columns for path in _STORED.get(column, ()))]
    shard = start = 0
    for segment in document.segments:
        table = decode_segment(lake.refs.segment(segment.digest), segment, document.schema, stored)
        rows = table["rows"].cast(pa.int64())
        ends = pc.add(pc.cumulative_sum(rows), start)
        count = table.num_rows
        found = {
            "dataset": pa.repeat(name, count),
            "version": pa.repeat(entry.version, count),
            "shard": pa.array(np.arange(shard, shard + count)),
            "start": pc.subtract(ends, rows),
            **{column: table[column] for column in _STORED if column in table.column_names},
        }
        for key in ("first_key", "last_key"):
            if key in found:
                found[key] = _texts(found[key])
        shown = pa.table({column: found[column] for column in columns})
        yield from shown.combine_chunks().to_batches()
        shard, start = shard + count, start + segment.rows


def _columns(lake: Lake, name: str, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    head = _head(lake, name)
    if head is None:
        return
    entry, document = head
    manifest = lake.refs.manifest(document)
    rows = pa.array(manifest.rows)
    found = []
    for position, column in enumerate(document.schema):
        row = {"dataset": name, "version": entry.version, "position": position, "name": column.name}
        row |= {"type": str(column.type)} | _summary(manifest.stats(column.name), rows)
        found.append(row | {"bytes": int(manifest.sizes([column.name])[0].sum())})
    yield _batch(found, COLUMNS)


def _tags(lake: Lake, name: str, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    pointers = _pointers(lake, name, "tag", "tags/")
    yield _batch([row | {"tag": key.tag} for key, row in pointers], TAGS)


def _derived(lake: Lake, name: str, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    pointers = _pointers(lake, name, "derived", "derived/")
    rows = [row | {"fingerprint": key.digest, "sources": _json(row.get("sources"))} for key, row in pointers]
    yield _batch(rows, DERIVED)


# --- inside -------------------------------------------------------------------------------------


def _head(lake: Lake, name: str) -> tuple[LogEntry, VersionDocument] | None:
    entry = lake.refs.head(name)
    return (entry, _document(lake, name, entry)) if entry else None


def _document(lake: Lake, name: str, entry: LogEntry) -> VersionDocument:
    assert entry.version is not None
    return lake.refs.version(name, entry.version)


def _version_row(name: str, entry: LogEntry, document: VersionDocument) -> dict[str, Any]:
    plain = ("data", "rows", "shards", "bytes", "raw_bytes", "key")
    return {
        "dataset": name,
        "seq": entry.seq,
        "version": entry.version,
        "time": entry.time,
        "meta": _json(document.meta),
        "recipe": _json(document.recipe),
    } | {member: getattr(document, member) for member in plain}


def _pointers(
    lake: Lake, name: str, kind: str, folder: str
) -> Iterator[tuple[names.ParsedKey, dict[str, Any]]]:
    """Pointers of the dataset's present life, each with its key and what it says."""
    head = lake.refs.head(name)
    if head is None:
        return
    for found in lake.refs.store.list(names.dataset_prefix(name) + folder):
        key = names.parse_key(found.key)
        if key is not None and key.kind == kind:
            row = lake.refs.document(found.key, "born", "version")
            if row.get("born") == head.born:
                yield key, row | {"dataset": name}


def _summary(stats: pa.ChunkedArray, rows: pa.Array) -> dict[str, Any]:
    """A column's counts and bounds over all shards: unknown where a shard that has values does not say."""
    low, high, nulls, nans = (pc.struct_field(stats, member) for member in ("min", "max", "nulls", "nans"))
    valued = pc.fill_null(pc.not_equal(nulls, rows), True)  # a shard of nulls has no bounds to know
    known = {
        "min": pc.min(low) if _complete(low, valued) else None,
        "max": pc.max(high) if _complete(high, valued) else None,
    }
    counts = {"nulls": nulls, "nans": nans}
    return {member: _text(value) for member, value in known.items()} | {
        member: None if values.null_count else pc.sum(values).as_py() for member, values in counts.items()
    }


def _complete(bounds: pa.ChunkedArray, valued: pa.ChunkedArray) -> bool:
    return not pc.any(pc.and_(pc.is_null(bounds), valued)).as_py()


def _text(value: pa.Scalar | None) -> str | None:
    """A value as a person reads it; binary ones in hex."""
    plain = None if value is None else value.as_py()
    if plain is None:
        return None
    return plain.hex() if isinstance(plain, bytes) else str(plain)


def _texts(values: pa.ChunkedArray) -> pa.ChunkedArray | pa.Array:
    """Values as a person reads them."""
    if pa.types.is_large_string(values.type) or pa.types.is_integer(values.type):
        return values.cast(pa.string())
    return pa.array([_text(value) for value in values], pa.string())


def _json(value: Any) -> str | None:
    return None if value is None else json.dumps(value, ensure_ascii=False)


def _batch(rows: Sequence[dict[str, Any]], schema: pa.Schema) -> pa.RecordBatch:
    whole = [{name: row.get(name) for name in schema.names} for row in rows]
    return pa.RecordBatch.from_pylist(whole, schema)


def _spelled(refs: Refs) -> list[str]:
    """Names of all datasets that ever were, sorted."""

    def spelled(key: str) -> list[str]:
        return [refs.document(key, "name")["name"]]

    refs.info()
    keys = [found.key for found in refs.store.list(names.NAMES)]
    return sorted(name for [name] in _ahead(spelled, keys))


def _surviving(datasets: Iterable[str], schema: pa.Schema, where: pads.Expression | None) -> list[str]:
    """The datasets whose rows may pass the filter, by Arrow's own simplification of `dataset = <name>`."""
    if where is None:
        return list(datasets)
    form, here = pads.IpcFileFormat(), LocalFileSystem()
    fragments = [  # nothing is opened: each stands for a dataset
        form.make_fragment(name, here, partition_expression=pads.field("dataset") == name)
        for name in datasets
    ]
    kept = pads.FileSystemDataset(fragments, schema, form, here).get_fragments(filter=where)
    return [fragment.path for fragment in kept]


def _ahead(function: Callable[[str], list[Any]], items: Sequence[str]) -> Iterator[list[Any]]:
    """`function` of each item in order, some computed at once; what vanishes meanwhile is left out."""

    def attempt(item: str) -> list[Any] | None:
        try:
            return function(item)
        except NotFoundError:
            return None

    with ThreadPoolExecutor(_AHEAD) as pool:
        for first in range(0, len(items), _AHEAD):
            for result in pool.map(attempt, items[first : first + _AHEAD]):
                if result is not None:
                    yield result


def _schema(**columns: pa.DataType) -> pa.Schema:
    return pa.schema(list(columns.items()))


_TEXT, _COUNT = pa.string(), pa.int64()
_DIGEST = pa.binary(32)
_VERSION = {
    "seq": _COUNT,
    "version": _TEXT,
    "rows": _COUNT,
    "shards": _COUNT,
    "bytes": _COUNT,
    "raw_bytes": _COUNT,
    "time": _TEXT,
}
HEADS: Final = _schema(dataset=_TEXT, key=_TEXT, **_VERSION)
VERSIONS: Final = _schema(dataset=_TEXT, data=_TEXT, meta=_TEXT, recipe=_TEXT, **_VERSION)
LOG: Final = _schema(
    dataset=_TEXT,
    seq=_COUNT,
    version=_TEXT,
    parent=_TEXT,
    operation=_TEXT,
    time=_TEXT,
    author=_TEXT,
    message=_TEXT,
    txn=_TEXT,
    born=_COUNT,
    rows_added=_COUNT,
    rows_removed=_COUNT,
    bytes_new=_COUNT,
    bytes_reused=_COUNT,
)
_PARTS = pa.list_(
    pa.struct(
        {
            "digest": _DIGEST,
            "content": _DIGEST,
            "bytes": _COUNT,
            "raw_bytes": _COUNT,
            "codec": _TEXT,
            "fields": pa.list_(_TEXT),
        }
    )
)
SHARDS: Final = _schema(
    dataset=_TEXT,
    version=_TEXT,
    shard=_COUNT,
    start=_COUNT,
    rows=_COUNT,
    raw_bytes=_COUNT,
    first_key=_TEXT,
    last_key=_TEXT,
    parts=_PARTS,
)
COLUMNS: Final = _schema(
    dataset=_TEXT,
    version=_TEXT,
    position=_COUNT,
    name=_TEXT,
    type=_TEXT,
    nulls=_COUNT,
    nans=_COUNT,
    min=_TEXT,
    max=_TEXT,
    bytes=_COUNT,
)
TAGS: Final = _schema(
    dataset=_TEXT, tag=_TEXT, version=_TEXT, seq=_COUNT, author=_TEXT, time=_TEXT, message=_TEXT
)
DERIVED: Final = _schema(dataset=_TEXT, fingerprint=_TEXT, version=_TEXT, time=_TEXT, sources=_TEXT)
CACHE: Final = _schema(digest=_TEXT, layout=_TEXT, bytes=_COUNT, leases=_COUNT)

_STORED: Final = {  # a column of SHARDS -> what it takes of a segment
    "rows": (),
    "raw_bytes": ("raw_bytes",),
    "first_key": ("first_key",),
    "last_key": ("last_key",),
    "parts": tuple(f"parts.list.element.{field.name}" for field in _PARTS.value_type),
}

RELATIONS: Final = {
    "_heads": Relation(HEADS, _heads),
    "_log": Relation(LOG, _log),
    "_versions": Relation(VERSIONS, _versions),
    "_shards": Relation(SHARDS, _shards),
    "_columns": Relation(COLUMNS, _columns),
    "_tags": Relation(TAGS, _tags),
    "_derived": Relation(DERIVED, _derived),
}
