"""Put values in the place of others, and columns beside those there: only the parts concerned are written.

New data is joined to rows by key, or, where it has no key column, by position. It is kept in a temporary Arrow
file and mapped, so that it may be larger than memory.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lake.commit import Signature
from lake.convert import Source
from lake.edit import Work, each, matches, plain_batches, stored_rows
from lake.errors import NotFoundError, SchemaError
from lake.format import cuts, draft, schema, stats
from lake.format.values import LogEntry, Part, Shard
from lake.format.vocab import VocabBuilder
from lake.ingest import ShardWriter, grouping, ingest
from lake.progress import Bar
from lake.progress import progress as show
from lake.where import condition

_log = logging.getLogger("lake")

Ints: TypeAlias = npt.NDArray[np.int64]
Hits: TypeAlias = tuple[Ints, Ints]  # rows of a shard, ascending, and the rows of the new data that go there

_NO_HITS: Hits = (np.empty(0, np.int64), np.empty(0, np.int64))


def update_rows(
    work: Work, source: Source, signature: Signature, *, insert: bool, progress: bool | None
) -> LogEntry:
    """Replace, in the rows that have the keys of `source`, the values of its other columns.

    Raises:
        NotFoundError: keys that no row has, unless `insert` makes rows of them.
        ValueError: no key, or a key twice in the data. SchemaError: a column or value that does not fit.
    """
    _check_update(work, source)
    head = head_with(work, schema.canonical_schema(source.schema))
    with _joined(work, source, head) as new:
        hits = each(work, "look up", progress, lambda _, shard, bar: new.hits(work, shard))
        missing = new.missing(hits)
        if missing.any() and not insert:
            first = ", ".join(map(repr, new.first_keys(missing)))
            raise NotFoundError(
                f"{missing.sum():,} keys are not in {work.name!r}, first {first}; insert=True adds them"
            )

        def one(number: int, shard: Shard, bar: Bar) -> Shard:
            rows, at = hits[number]
            return put_values(work, shard, rows, new.values(at), bar)

        shards = each(work, "update", progress, one)
        shards += _inserted(work, new, missing, progress)
        head = replace(head, vocab=draft.longer_vocab(head.schema, work.document.vocab, new.vocab))
        return work.land("update_rows", shards, signature, head=head, rows=(int(missing.sum()), 0))


def add_columns(
    work: Work, source: Source, signature: Signature, *, where: Any, progress: bool | None
) -> LogEntry:
    """Add the columns of `source`, by key or, where it has none, by position; rows it lacks are null.

    `where`: only rows that meet it get values; a column that exists keeps its other values.
    """
    key = work.document.key
    incoming = schema.canonical_schema(source.schema)
    by_key = key is not None and key in incoming.names
    check_new(work, [name for name in incoming.names if name != key], filling=where is not None)
    test = condition(where, work.document.schema) if where is not None else None
    head = head_with(work, incoming)
    with _joined(work, source, head) as new:
        if not by_key and len(new) != work.document.rows:
            raise ValueError(
                f"{len(new):,} rows for the {work.document.rows:,} of {work.name!r}: "
                f"columns without the key {key!r} are joined by position, and need one row for each"
            )
        starts = np.cumsum([0, *(shard.rows for shard in work.shards)])
        used = []

        def one(number: int, shard: Shard, bar: Bar) -> Shard:
            places = np.arange(shard.rows)
            rows, at = new.hits(work, shard) if by_key else (places, starts[number] + places)
            used.append((rows, at))
            if test is not None and len(rows):
                met = matches(work.reader, shard, test)[rows]
                rows, at = rows[met], at[met]
            return put_values(work, shard, rows, new.values(at), bar)

        shards = each(work, "add columns to", progress, one)
        unknown = new.missing(used)
        if unknown.any():
            first = ", ".join(map(repr, new.first_keys(unknown)))
            _log.warning("%s: %s keys of the data are not there, first %s", work.name, unknown.sum(), first)
        head = replace(head, vocab=draft.longer_vocab(head.schema, work.document.vocab, new.vocab))
        return work.land("add_columns", shards, signature, head=head)


# --- the columns of a version and of what is added ----------------------------------------------


def head_with(work: Work, incoming: pa.Schema) -> draft.Head:
    """The head with these columns (canonical), which are at the end and nullable where they are new.

    Raises:
        SchemaError: a column that is there cannot take values of the type given.
    """
    old = work.document.schema
    there = pa.schema([field for field in old if field.name in incoming.names])
    fields = {field.name: field for field in schema.unify_for_append(there, _nullable(incoming, old))}
    merged = [fields.pop(field.name, field) for field in old]
    columns = pa.schema([*merged, *fields.values()], old.metadata)
    known = draft.longer_vocab(columns, work.document.vocab, {})
    return replace(draft.head_of(work.document), schema=columns, vocab=known)


def check_new(work: Work, added: Sequence[str], *, filling: bool) -> None:
    """Raise SchemaError unless these columns can be added; `filling`: or get values in some rows."""
    there = [name for name in added if name in work.document.schema.names]
    if not added:
        raise SchemaError(f"the data has no column to add to {work.name!r}")
    if there and not filling:
        raise SchemaError(
            f"{work.name!r} has a column {there[0]!r} already: where= fills rows of it, update_rows replaces "
            "values, drop_columns takes it out"
        )


def _nullable(incoming: pa.Schema, old: pa.Schema) -> pa.Schema:
    return pa.schema([field if field.name in old.names else field.with_nullable(True) for field in incoming])


def _check_update(work: Work, source: Source) -> None:
    key, names = work.document.key, source.schema.names
    if key is None:
        raise ValueError(
            f"{work.name!r} was committed without a key: rows cannot be told apart to update them"
        )
    if key not in names:
        raise SchemaError(
            f"the data lacks the key column {key!r} of {work.name!r}; it has {', '.join(names)}"
        )
    if len(names) == 1:
        raise SchemaError(f"the data has nothing but the key {key!r}: there is no column to update")
    unknown = [name for name in names if name not in work.document.schema.names]
    if unknown:
        raise SchemaError(f"{work.name!r} has no column {unknown[0]!r} to update; add_columns makes new ones")


# --- putting values in place ------------------------------------------------------------------


def put_values(work: Work, shard: Shard, rows: Ints, values: pa.RecordBatch, bar: Bar) -> Shard:
    """The shard with `values` in these of its rows, which ascend.

    Parts that hold none of their columns stay; columns that no part holds share a new one, null elsewhere.
    """
    if not len(rows):
        return shard
    held = [name for one in shard.parts for name in one.fields if name in values.schema.names]
    before = _columns(work, shard, held, values.schema)
    after = {
        name: _placed(before.get(name), rows, column, shard.rows)
        for name, column in zip(values.schema.names, values.columns, strict=True)
    }
    parts = [_part_with(work, shard, one, after, bar) for one in shard.parts]
    fresh = tuple(name for name in after if name not in before)
    if fresh:
        parts.append(work.writer.part([_batch(after, fresh)], fresh, bar))
    return replace(
        shard,
        parts=tuple(parts),
        stats=shard.stats | {name: stats.column_stats([found], found.type) for name, found in after.items()},
        raw_bytes=shard.raw_bytes + -(-(_bits(after) - _bits(before)) // 8),
    )


def _columns(work: Work, shard: Shard, names: Sequence[str], wanted: pa.Schema) -> dict[str, pa.Array]:
    """All values of these columns of a shard, in the types that `wanted` has for them."""
    if not names:
        return {}
    [batch] = plain_batches(stored_rows(work.reader, shard, names))
    found = schema.conform(batch, pa.schema([wanted.field(name).with_nullable(True) for name in names]))
    return dict(zip(names, found.columns, strict=True))


def _placed(before: pa.Array | None, rows: Ints, new: pa.Array, count: int) -> pa.Array:
    """The values before (none: null), with those of `new` in these of the `count` rows."""
    if len(rows) == count:
        return new
    if before is None:
        places = np.full(count, -1)
        places[rows] = np.arange(len(rows))
        return new.take(pa.array(places, mask=places < 0))
    places = np.arange(count)
    places[rows] = count + np.arange(len(rows))
    return pa.concat_arrays([before, new]).take(pa.array(places))


def _part_with(work: Work, shard: Shard, one: Part, after: Mapping[str, pa.Array], bar: Bar) -> Part:
    """The part with those of these columns that it holds, written anew if there is one."""
    if after.keys().isdisjoint(one.fields):
        return one
    kept = [name for name in one.fields if name not in after]
    columns = {**_columns(work, shard, kept, work.reader.stored), **after}
    return work.writer.part([_batch(columns, one.fields)], one.fields, bar)


def _batch(columns: Mapping[str, pa.Array], names: Sequence[str]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([columns[name] for name in names], names=list(names))


def _bits(columns: Mapping[str, pa.Array]) -> int:
    return int(cuts.row_bits(_batch(columns, list(columns))).sum()) if columns else 0


def _inserted(work: Work, new: _New, missing: npt.NDArray[np.bool_], progress: bool | None) -> list[Shard]:
    """New shards of the data's rows that the dataset does not have; columns that they lack are null."""
    if not missing.any():
        return []
    absent = [field for field in work.document.schema if field.name not in new.table.schema.names]
    if required := [field.name for field in absent if not field.nullable]:
        raise SchemaError(f"rows of {work.name!r} cannot lack {required[0]!r}, so these cannot be inserted")
    groups = grouping(work.shards[-1], new.table.schema) if work.shards else None
    writer = ShardWriter(work.guard, new.table.schema, work.document.key, work.document.cuts, groups=groups)
    with show(progress, f"insert into {work.name}", unit="bytes") as bar:
        made = ingest(new.rows(missing), writer, bar)
    work.writer.result.bytes_new += made.bytes_new
    work.writer.result.bytes_reused += made.bytes_reused
    return made.shards


# --- what is joined ---------------------------------------------------------------------------


class _New:
    """New values in stored form, found by key. Thread-safe."""

    def __init__(self, table: pa.Table, key: str | None, vocab: dict[str, list[Any]]) -> None:
        self.table, self.key, self.vocab = table, key, vocab
        self._batches = table.to_batches()
        self._starts = np.cumsum([0, *(batch.num_rows for batch in self._batches)])
        self._plain = table.schema.remove(table.schema.get_field_index(key)) if key else table.schema
        if key is not None:
            self._index(table[key].combine_chunks())

    def __len__(self) -> int:
        return int(self._starts[-1])

    def hits(self, work: Work, shard: Shard) -> Hits:
        """The rows of a shard that have one of the keys, and where it is."""
        if not self._may_be_in(shard):
            return _NO_HITS
        table = stored_rows(work.reader, shard, [str(self.key)])
        return self._find(table.column(0).combine_chunks())

    def values(self, at: Ints) -> pa.RecordBatch:
        """The values of these rows, in this order, without the key."""
        order = np.argsort(at, kind="stable")
        ascending = at[order]
        chunks = np.searchsorted(self._starts, ascending, "right") - 1
        pieces = [
            self._batches[number]
            .select(self._plain.names)
            .take(pa.array(ascending[chunks == number] - self._starts[number]))
            for number in np.unique(chunks).tolist()
        ]
        [batch] = plain_batches(pa.Table.from_batches(pieces, self._plain))
        if np.array_equal(ascending, at):
            return batch
        back = np.empty_like(order)
        back[order] = np.arange(len(order))
        return batch.take(pa.array(back))

    def rows(self, wanted: npt.NDArray[np.bool_]) -> Iterator[pa.RecordBatch]:
        """These rows, the key included."""
        for batch, start in zip(self._batches, self._starts.tolist(), strict=False):
            yield batch.filter(pa.array(wanted[start : start + batch.num_rows]))

    def missing(self, hits: Iterable[Hits]) -> npt.NDArray[np.bool_]:
        """Which rows went nowhere."""
        missing = np.ones(len(self), np.bool_)
        for _, at in hits:
            missing[at] = False
        return missing

    def first_keys(self, of: npt.NDArray[np.bool_]) -> list[Any]:
        """The first five keys of these rows."""
        found: list[Any] = self._keys.take(pa.array(np.flatnonzero(of)[:5])).to_pylist()
        return found

    def _index(self, keys: pa.Array) -> None:
        """Make keys findable: by hash, and then by value.

        Raises:
            ValueError: a key is null, or there twice.
        """
        if keys.null_count:
            raise ValueError(f"the data has {keys.null_count:,} rows without a key ({self.key!r} is null)")
        hashes = _hashes(keys)
        self._keys = keys
        self._order = np.argsort(hashes, kind="stable")
        self._sorted = hashes[self._order]
        self._span = pc.min_max(keys).as_py() if len(keys) and stats.is_bounded(keys.type) else None
        if (self._sorted[1:] == self._sorted[:-1]).any():
            counts = keys.value_counts()
            twice = counts.filter(pc.greater(counts.field("counts"), 1))
            if len(twice):
                key, count = twice[0]["values"].as_py(), twice[0]["counts"].as_py()
                raise ValueError(f"key {key!r} is in the data {count} times")

    def _may_be_in(self, shard: Shard) -> bool:
        """Whether the shard's key statistics leave room for any of the keys."""
        known = shard.stats.get(str(self.key))
        if known is None or known.min is None or known.max is None or self._span is None:
            return True
        try:
            return bool(known.min <= self._span["max"] and known.max >= self._span["min"])
        except TypeError:  # bounds of dates and times are integers
            return True

    def _find(self, asked: pa.Array) -> Hits:
        if not len(self):
            return _NO_HITS
        hashes = _hashes(asked)
        first = np.minimum(np.searchsorted(self._sorted, hashes), len(self) - 1)
        rows = np.flatnonzero(self._sorted[first] == hashes)
        at = self._order[first[rows]]
        same = pc.equal(self._keys.take(pa.array(at)), asked.take(pa.array(rows)))
        if pc.all(pc.fill_null(same, False), min_count=0).as_py():
            return rows, at
        exact = pc.index_in(asked, value_set=self._keys)  # a null key, or two keys of one hash: once in ages
        rows = np.flatnonzero(exact.is_valid())
        return rows, np.asarray(exact.drop_null()).astype(np.int64)


def _hashes(keys: pa.Array) -> npt.NDArray[np.uint64]:
    return cuts.row_hashes(pa.RecordBatch.from_arrays([keys], names=["key"]), "key", 0)


@contextmanager
def _joined(work: Work, source: Source, head: draft.Head) -> Iterator[_New]:
    """The source's rows in stored form, in a temporary file, with the vocabularies met on the way."""
    names = schema.canonical_schema(source.schema).names
    wanted = pa.schema([head.schema.field(name) for name in names])
    vocab = VocabBuilder(wanted, source.vocab)
    stored = schema.stored_schema(wanted)
    with tempfile.TemporaryDirectory(prefix="lake-") as folder:
        path = str(Path(folder, "new.arrow"))
        with pa.OSFile(path, "wb") as file, pa.ipc.new_file(file, stored) as out:
            for batch in source.batches:
                vocab.add(batch)
                out.write_batch(schema.conform(batch, stored))
        with pa.memory_map(path) as file:
            table = pa.ipc.open_file(file).read_all()
            key = work.document.key if work.document.key in names else None
            yield _New(table, key, vocab.finish())
