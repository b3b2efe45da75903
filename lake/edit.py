"""Change which rows or columns a dataset has, by writing only what changes.

Each operation maps the shards of the head that it saw to new ones. If the head moves meanwhile, the result is
carried over as long as those shards still stand in one run: what others appended stays after them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from lake.asked import listed
from lake.bounds import ALL, NONE
from lake.commit import Draft, Signature, conflict, land, prepare
from lake.errors import ConflictError, SchemaError
from lake.format import cuts, draft, schema
from lake.format.values import LogEntry, Part, Shard, VersionDocument
from lake.guard import Guard
from lake.ingest import ShardWriter, Slab, grouping, ingest, reusable
from lake.parts import PartReader
from lake.progress import Bar
from lake.progress import progress as show
from lake.refs import Base, Refs
from lake.resolve import missing_dataset
from lake.where import Condition, condition

WORKERS = 2  # shards rewritten at once

Made = TypeVar("Made")


@dataclass(frozen=True)
class Work:
    """A dataset's head being changed: what was there, and what writes what is to be."""

    refs: Refs
    guard: Guard
    name: str
    base: Base
    document: VersionDocument
    shards: tuple[Shard, ...]
    reader: PartReader
    writer: ShardWriter

    @classmethod
    def on(cls, refs: Refs, name: str, cache: Any, *, single_writer: bool) -> Work:
        """Start on the head of a dataset that exists."""
        base = refs.base(name)
        if base.document is None:
            raise missing_dataset(refs, name)
        guard = Guard(refs.store, prepare(refs, single_writer=single_writer).grace)
        document = base.document
        shards = tuple(refs.manifest(document).shards())
        writer = ShardWriter(guard, schema.stored_schema(document.schema), document.key, document.cuts)
        return cls(refs, guard, name, base, document, shards, PartReader(refs, document, cache), writer)

    def land(
        self,
        operation: str,
        shards: Sequence[Shard],
        signature: Signature,
        *,
        head: draft.Head | None = None,
        rows: tuple[int, int] = (0, 0),
    ) -> LogEntry:
        """Put `shards` in the place of those seen. `rows`: added and removed."""
        change = _Splice(self, operation, tuple(shards), head or draft.head_of(self.document), rows)
        return land(self.refs, self.guard, self.name, self.base, change, signature)


@dataclass(frozen=True)
class _Splice:
    """New shards in place of the run of old ones, on whatever head still has that run."""

    work: Work
    operation: str
    shards: tuple[Shard, ...]
    head: draft.Head
    rows: tuple[int, int]

    def __call__(self, base: Base) -> Draft:
        work, document = self.work, base.document
        assert document is not None  # a removal in between is a conflict already
        if base.seq == work.base.seq:
            before: tuple[Shard, ...] = work.shards
            start, rest = 0, before[:0]
        else:
            before = tuple(work.refs.manifest(document).shards())
            start, rest = self._run(before, document, base)
        shards = (*before[:start], *self.shards, *rest)
        head = self._head(document, base)
        made, segments = draft.whole(head, shards, draft.known_segments(document, before, head))
        return Draft(
            operation=self.operation,
            document=made,
            segments=segments,
            rows_added=self.rows[0],
            rows_removed=self.rows[1],
            bytes_new=work.writer.result.bytes_new,
            bytes_reused=made.bytes - work.writer.result.bytes_new,
        )

    def _run(
        self, now: tuple[Shard, ...], document: VersionDocument, base: Base
    ) -> tuple[int, tuple[Shard, ...]]:
        """Where the shards that the work began with stand in a newer head, and what follows them."""
        old, new = draft.identity(self.work.shards), draft.identity(now)
        places = range(len(new) - len(old) + 1)
        begun = (at for at in places if new[at : at + 1] == old[:1])
        start = next((at for at in begun if new[at : at + len(old)] == old), None)
        if start is None:
            raise self._conflict(f"rows that {self.operation} began with have changed", base)
        return start, now[start + len(old) :]

    def _head(self, now: VersionDocument, base: Base) -> draft.Head:
        """The new head on a base to which others may have added rows, columns and values meanwhile."""
        then, new = self.work.document, self.head
        kept = pa.schema(list(now.schema)[: len(then.schema)], now.schema.metadata)
        if not kept.equals(then.schema, check_metadata=True) or (now.key, now.cuts) != (then.key, then.cuts):
            raise self._conflict(f"columns that {self.operation} began with have changed", base)
        later = {field.name: field for field in list(now.schema)[len(then.schema) :]}
        for name in later.keys() & set(new.schema.names):
            if not later.pop(name).equals(new.schema.field(name), check_metadata=True):
                raise self._conflict(f"a column {name!r} was added meanwhile", base)
        columns = pa.schema([*new.schema, *later.values()], new.schema.metadata)
        vocab = draft.longer_vocab(columns, now.vocab, new.vocab)
        return replace(new, schema=columns, vocab=vocab, meta=now.meta, recipe=now.recipe)

    def _conflict(self, why: str, base: Base) -> ConflictError:
        """Repeated on the new head, the call is a new change."""
        return conflict(self.work.name, why, base, retryable=True)


def delete_rows(work: Work, where: Any, signature: Signature, *, progress: bool | None) -> LogEntry:
    """Take out the rows that meet a condition; shards keep their boundaries, and only those hit are written."""
    test = condition(where, work.document.schema)
    manifest = work.refs.manifest(work.document)
    verdicts = test.verdicts(manifest.stats, manifest.rows)

    def one(number: int, shard: Shard, bar: Bar) -> Shard | None:
        if verdicts[number] == NONE:
            return shard
        if verdicts[number] == ALL:
            return None
        met = matches(work.reader, shard, test)
        if met.all():
            return None
        rows = np.flatnonzero(~met)
        return rewrite(work, shard, rows, int(manifest.starts[number]), bar) if met.any() else shard

    kept = [shard for shard in each(work, "delete rows of", progress, one) if shard is not None]
    removed = work.document.rows - sum(shard.rows for shard in kept)
    return work.land("delete_rows", kept, signature, rows=(0, removed))


def drop_columns(work: Work, columns: Sequence[str], signature: Signature) -> LogEntry:
    """Take columns out; no data is read or written, and earlier versions keep them."""
    columns, old = listed("columns", columns), work.document
    unknown = [name for name in columns if name not in old.schema.names]
    if unknown:
        raise SchemaError(f"{work.name!r} has no column {unknown[0]!r}; it has {', '.join(old.schema.names)}")
    if old.key in columns:
        raise SchemaError(
            f"{old.key!r} is the key of {work.name!r}: commit again with another key to drop it"
        )
    kept = [field for field in old.schema if field.name not in columns]
    if not kept:
        raise SchemaError(f"{work.name!r} must keep a column; remove the dataset instead")
    head = replace(
        draft.head_of(old),
        schema=pa.schema(kept, old.schema.metadata),
        vocab={name: values for name, values in old.vocab.items() if name not in columns},
    )
    shards = [without(shard, columns) for shard in work.shards]
    return work.land("drop_columns", shards, signature, head=head)


def compact(work: Work, signature: Signature, *, progress: bool | None) -> LogEntry:
    """Cut all rows anew: exactly the shards that an overwrite with the same rows would give."""
    groups = grouping(work.shards[-1], work.writer.stored) if work.shards else None
    layout = work.document.cuts
    reuse = reusable(work.shards, layout.target)
    writer = ShardWriter(
        work.guard, work.writer.stored, work.document.key, layout, groups=groups, reuse=reuse
    )
    work = replace(work, writer=writer)
    with show(progress, f"compact {work.name}", work.document.raw_bytes, unit="bytes") as bar:
        made = ingest(_stored_batches(work), writer, bar)
    return work.land("compact", made.shards, signature)


# --- shards -----------------------------------------------------------------------------------


class Sizes:
    """A bar that is told the bytes written, while something else counts how far the work is."""

    def __init__(self, bar: Bar) -> None:
        self._bar = bar

    def advance(self, n: int, *, new: int = 0, reused: int = 0) -> None:
        self._bar.advance(0, new=new, reused=reused)


def each(
    work: Work, label: str, progress: bool | None, change: Callable[[int, Shard, Bar], Made]
) -> list[Made]:
    """What `change` makes of every shard, a few at a time; the first failure ends it."""
    with show(progress, f"{label} {work.name}", work.document.rows) as bar:

        def one(number: int, shard: Shard) -> Made:
            made = change(number, shard, Sizes(bar))
            bar.advance(shard.rows)
            return made

        with ThreadPoolExecutor(WORKERS, thread_name_prefix="lake-edit") as pool:
            futures = [pool.submit(one, number, shard) for number, shard in enumerate(work.shards)]
            try:
                return [future.result() for future in futures]
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise


def rewrite(work: Work, shard: Shard, rows: np.ndarray, first: int, bar: Bar) -> Shard:
    """The shard with only these of its rows; `first`: the number of its first row in the version."""
    chunks = tuple(stored_rows(work.reader, shard, work.writer.stored.names, rows).to_batches())
    bits = sum(int(cuts.row_bits(chunk).sum()) for chunk in chunks)
    last = chunks[-1].slice(chunks[-1].num_rows - 1)
    cut = int(cuts.row_hashes(last, work.document.key, first + len(rows) - 1)[0])
    return work.writer.write(Slab(chunks, len(rows), bits, cut), bar, grouping(shard, work.writer.stored))


def without(shard: Shard, columns: Sequence[str]) -> Shard:
    """The shard as if it never had these columns; files stay as they are."""
    parts: list[Part] = []
    for one in shard.parts:
        fields = tuple(name for name in one.fields if name not in columns)
        if fields:
            parts.append(replace(one, fields=fields))
    stats = {name: held for name, held in shard.stats.items() if name not in columns}
    return replace(shard, parts=tuple(parts), stats=stats)


def matches(reader: PartReader, shard: Shard, test: Condition) -> np.ndarray:
    """Which rows of a shard meet a condition, as a mask."""
    if not test.columns:
        return np.asarray(test.mask(pa.RecordBatch.from_pydict({"": pa.nulls(shard.rows)})))
    table = reader.table(reader.read(shard, test.columns, [(0, shard.rows)]), test.columns)
    return np.concatenate([test.mask(batch) for batch in table.to_batches()])


def stored_rows(
    reader: PartReader, shard: Shard, columns: Sequence[str], rows: np.ndarray | None = None
) -> pa.Table:
    """A shard, or these of its rows, as parts hold them: dictionary columns as their values, absent ones null."""
    stored = schema.stored_schema(
        pa.schema([reader.schema.field(name) for name in columns], reader.schema.metadata)
    )
    found = reader.table(reader.read(shard, columns, [(0, shard.rows)] if rows is None else rows), columns)
    return pa.Table.from_batches([schema.conform(batch, stored) for batch in found.to_batches()], stored)


def plain_batches(table: pa.Table) -> list[pa.RecordBatch]:
    """The table as one record batch, also where it has no rows."""
    batches = table.combine_chunks().to_batches()
    return batches or [pa.RecordBatch.from_pylist([], table.schema)]


def _stored_batches(work: Work) -> Iterator[pa.RecordBatch]:
    for shard in work.shards:
        yield from stored_rows(work.reader, shard, work.writer.stored.names).to_batches()
