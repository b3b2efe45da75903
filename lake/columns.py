"""Put values in the place of others, and columns beside those there: only the parts concerned are written.

New data is joined to rows by key, or, where it has no key column, by position. It is kept in a temporary Arrow
file and mapped, so that it may be larger than memory.
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lake.commit import Signature
from lake.convert import Source
from lake.edit import Work, each, matches, plain_batches, stored_rows
from lake.errors import NotFoundError, SchemaError
from lake.format import cuts, draft, schema, stats
from lake.format.values import LogEntry, Part, Shard
from lake.format.vocab import VocabBuilder
from lake.ingest import ShardWriter, ingest
from lake.parts import PartReader
from lake.progress import Bar
from lake.progress import progress as show
from lake.unfinished import Unfinished
from lake.where import condition

Compute = Callable[[pa.RecordBatch], Any]  # -> a batch, table or mapping of columns, one row for each row


def update_rows(
    work: Work, source: Source, signature: Signature, *, insert: bool, progress: bool | None
) -> LogEntry:
    """Replace, in the rows that have the keys of `source`, the values of its other columns.

    Raises:
        NotFoundError: keys that no row has, unless `insert` makes rows of them.
        ValueError: no key, or a key twice in the data. SchemaError: a column or value that does not fit.
    """
    key = _key_of(work, source)
    incoming = schema.canonical_schema(source.schema)
    unknown = [name for name in incoming.names if name not in work.document.schema.names]
    if unknown:
        raise SchemaError(f"{work.name!r} has no column {unknown[0]!r} to update; add_columns makes new ones")
    changed = tuple(name for name in incoming.names if name != key)
    head = _head_with(work, [work.document.schema.field(name) for name in incoming.names])
    with _joined(work, source, head) as (new, vocab), show(progress, f"update {work.name}") as bar:
        found = np.zeros(len(new.table), np.bool_)

        def one(_: int, shard: Shard) -> Shard:
            if not new.may_have(shard):
                return shard
            places = new.places(stored_rows(work.reader, shard, np.arange(shard.rows), [key])[key])
            found[places[places >= 0]] = True
            return put_values(work, shard, changed, new.table, places, bar) if (places >= 0).any() else shard

        shards = each(work.shards, one)
        missing = np.flatnonzero(~found)
        if len(missing) and not insert:
            first = new.table[key].take(pa.array(missing[:5])).to_pylist()
            raise NotFoundError(
                f"{len(missing):,} keys are not in {work.name!r}, first {', '.join(map(repr, first))}; "
                "insert=True adds them"
            )
        if len(missing):
            shards += _inserted(work, new.table.take(pa.array(missing)), bar)
        head = replace(head, vocab=draft.longer_vocab(head.schema, work.document.vocab, vocab.finish()))
        return work.land("update_rows", shards, signature, head=head, rows=(len(missing), 0))


def add_columns(
    work: Work, source: Source, signature: Signature, *, where: Any, progress: bool | None
) -> LogEntry:
    """Add the columns of `source`, by key or, where it has none, by position; rows it lacks are null.

    `where`: only rows that meet it get values; a column that exists keeps its other values.
    """
    key = work.document.key
    by_key = key is not None and key in source.schema.names
    incoming = schema.canonical_schema(source.schema)
    added = tuple(name for name in incoming.names if name != key)
    _check_new(work, added, where)
    head = _head_with(work, [_nullable(work, incoming.field(name)) for name in added])
    test = condition(where, work.document.schema) if where is not None else None
    with _joined(work, source, head) as (new, vocab), show(progress, f"add columns to {work.name}") as bar:
        if not by_key and len(new.table) != work.document.rows:
            raise ValueError(
                f"{len(new.table):,} rows for the {work.document.rows:,} of {work.name!r}: "
                f"columns without the key {key!r} are joined by position, and need one row for each"
            )
        starts = np.cumsum([0, *(shard.rows for shard in work.shards)])

        def one(number: int, shard: Shard) -> Shard:
            if by_key:
                places = new.places(
                    stored_rows(work.reader, shard, np.arange(shard.rows), [str(key)])[str(key)]
                )
            else:
                places = np.arange(starts[number], starts[number + 1])
            if test is not None:
                places = np.where(matches(work.reader, shard, test), places, -1)
            return put_values(work, shard, added, new.table, places, bar)

        shards = each(work.shards, one)
        head = replace(head, vocab=draft.longer_vocab(head.schema, work.document.vocab, vocab.finish()))
        return work.land("add_columns", shards, signature, head=head)


def compute_columns(
    work: Work,
    compute: Compute,
    signature: Signature,
    *,
    columns: Sequence[str] | None,
    batch_size: int,
    where: Any,
    kept: Path | None,
    progress: bool | None,
) -> LogEntry:
    """Add the columns that `compute` makes of batches of the given ones.

    `kept`: a folder where finished shards are remembered, so that the same call goes on after a crash.
    """
    if batch_size < 1:
        raise ValueError(f"batch_size is a number of rows, at least 1: {batch_size}")
    asked = work.document.schema.names if columns is None else list(columns)
    test = condition(where, work.document.schema) if where is not None else None
    turn = threading.Lock()  # a caller's function is not asked to be safe in threads
    making = _Made(work, where)

    def one(number: int, shard: Shard, bar: Bar) -> Shard:
        rows = (
            np.flatnonzero(matches(work.reader, shard, test)) if test is not None else np.arange(shard.rows)
        )
        with turn:
            found = []
            for start in range(0, len(rows), batch_size):
                table = work.reader.rows(shard, rows[start : start + batch_size], asked)
                [batch] = plain_batches(table)
                found.append(making.take(compute(batch), batch.num_rows, f"shard {number}"))
        if not found:
            return shard
        places = np.full(shard.rows, -1)
        places[rows] = np.arange(len(rows))
        return put_values(work, shard, tuple(making.answer.names), pa.Table.from_batches(found), places, bar)

    with show(progress, f"add columns to {work.name}", work.document.raw_bytes, unit="bytes") as bar:
        done = Unfinished(kept, work.guard, work.document.key)
        if (answer := done.answer()) is not None:
            making.settle(answer)

        def recalled_or_made(number: int, shard: Shard) -> Shard:
            found = done.recall(shard)
            if found is not None:
                making.recall(found)
                return found
            made = one(number, shard, bar)
            if making.head is not None:
                done.remember(shard, made, making.answer, making.head.schema)
            return made

        shards = each(work.shards, recalled_or_made)
    if making.head is None:
        raise ValueError(f"no row of {work.name!r} meets the condition, so there is nothing to compute")
    head = replace(
        making.head, vocab=draft.longer_vocab(making.head.schema, work.document.vocab, making.vocabulary())
    )
    entry = work.land("add_columns", shards, signature, head=head)
    done.forget()
    return entry


# --- putting values in place ------------------------------------------------------------------


def put_values(
    work: Work, shard: Shard, columns: tuple[str, ...], new: pa.Table, places: np.ndarray, bar: Bar
) -> Shard:
    """The shard with `columns` taken from `new` in the rows whose place there is not -1.

    Parts that hold none of the columns stay; columns that no part holds share a new one.
    """
    parts: list[Part] = []
    held = {name for one in shard.parts for name in one.fields}
    changed: dict[str, pa.Array] = {}
    growth = 0  # bits
    groups = [(one, one.fields) for one in shard.parts]
    fresh = tuple(name for name in columns if name not in held)
    for one, fields in [*groups, (None, fresh)]:
        if not fields or (one is not None and not set(columns) & set(fields)):
            parts += [one] if one is not None else []
            continue
        arrays = {}
        old = stored_rows(work.reader, shard, np.arange(shard.rows), fields if one is not None else ())
        for name in fields:
            before = old[name].combine_chunks() if one is not None else None
            after = _merged(before, new[name], places) if name in columns else before
            arrays[name] = after
            if name in columns:
                growth += _bits(after) - (_bits(before) if before is not None else 0)
                changed[name] = after
        batch = pa.RecordBatch.from_pydict(arrays)
        parts.append(work.writer.part([batch], fields, bar))
    held_stats = stats.shard_stats([pa.RecordBatch.from_pydict(changed)], pa.schema(_fields(changed)))
    raw = shard.raw_bytes + -(-growth // 8)
    return replace(shard, parts=tuple(parts), stats=shard.stats | held_stats, raw_bytes=raw)


def _merged(before: pa.Array | None, new: pa.ChunkedArray, places: np.ndarray) -> pa.Array:
    """Values of `new` at `places`, and those before (or null) where the place is -1."""
    whole = new.combine_chunks() if isinstance(new, pa.ChunkedArray) else new
    if before is None:
        return whole.take(pa.array(places, mask=places < 0))
    both = pa.concat_arrays([before, whole])
    return both.take(pa.array(np.where(places < 0, np.arange(len(places)), places + len(before))))


def _bits(column: pa.Array) -> int:
    return int(cuts.row_bits(pa.RecordBatch.from_arrays([column], names=["x"])).sum())


def _fields(columns: Mapping[str, pa.Array]) -> list[pa.Field]:
    return [pa.field(name, column.type) for name, column in columns.items()]


# --- what is joined ---------------------------------------------------------------------------


class _Rows:
    """New values in stored form, found by key."""

    def __init__(self, table: pa.Table, key: str | None) -> None:
        self.table, self.key = table, key
        if key is None:
            return
        keys = table[key].combine_chunks()
        if keys.null_count:
            raise ValueError(f"the data has {keys.null_count:,} rows without a key ({key!r} is null)")
        self._keys = keys
        hashes = _hashes(keys)
        self._order = np.argsort(hashes, kind="stable")
        self._sorted = hashes[self._order]
        self._check_unique()
        self._span = pc.min_max(keys) if len(keys) and stats.is_bounded(keys.type) else None

    def may_have(self, shard: Shard) -> bool:
        """Whether the shard's key statistics leave room for any of the keys."""
        known = shard.stats.get(str(self.key))
        if known is None or known.min is None or known.max is None or self._span is None:
            return True
        if isinstance(known.min, (str, int, bytes)) and isinstance(
            self._span["min"].as_py(), type(known.min)
        ):
            return bool(known.min <= self._span["max"].as_py() and known.max >= self._span["min"].as_py())
        return True

    def places(self, keys: pa.ChunkedArray) -> np.ndarray:
        """For each key its row in the table, or -1."""
        asked = keys.combine_chunks() if isinstance(keys, pa.ChunkedArray) else keys
        if not len(self._keys):
            return np.full(len(asked), -1)
        hashes = _hashes(asked)
        at = np.minimum(np.searchsorted(self._sorted, hashes), len(self._sorted) - 1)
        found = np.where(self._sorted[at] == hashes, self._order[at], -1)
        rows = np.flatnonzero(found >= 0)
        same = pc.equal(self._keys.take(pa.array(found[rows])), asked.take(pa.array(rows)))
        if pc.all(same).as_py() is not False:
            return found
        exact = pc.fill_null(
            pc.index_in(asked, value_set=self._keys), -1
        )  # two keys of one hash: once in ages
        return np.asarray(exact).astype(np.int64)

    def _check_unique(self) -> None:
        twins = np.flatnonzero(self._sorted[1:] == self._sorted[:-1])
        if not len(twins):
            return
        counts = self._keys.value_counts()
        twice = counts.filter(pc.greater(counts.field("counts"), 1))
        if len(twice):
            raise ValueError(
                f"key {twice[0]['values'].as_py()!r} is in the data {twice[0]['counts'].as_py()} times"
            )


def _hashes(keys: pa.Array) -> np.ndarray:
    return cuts.row_hashes(pa.RecordBatch.from_arrays([keys], names=["key"]), "key", 0)


@contextmanager
def _joined(work: Work, source: Source, head: draft.Head) -> Iterator[tuple[_Rows, VocabBuilder]]:
    """The source's rows in stored form, in a temporary file, and the vocabularies met on the way."""
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
            yield _Rows(table, work.document.key if work.document.key in names else None), vocab


def _key_of(work: Work, source: Source) -> str:
    key = work.document.key
    if key is None:
        raise ValueError(
            f"{work.name!r} was committed without a key: rows cannot be told apart to update them"
        )
    if key not in source.schema.names:
        raise SchemaError(
            f"the data lacks the key column {key!r} of {work.name!r}; it has {', '.join(source.schema.names)}"
        )
    if len(source.schema.names) == 1:
        raise SchemaError(f"the data has nothing but the key {key!r}: there is no column to update")
    return key


def _check_new(work: Work, added: Iterable[str], where: Any) -> None:
    there = [name for name in added if name in work.document.schema.names]
    if there and where is None:
        raise SchemaError(
            f"{work.name!r} has a column {there[0]!r} already: where= fills rows of it, update_rows replaces values, "
            "drop_columns takes it out"
        )


def _nullable(work: Work, field: pa.Field) -> pa.Field:
    """A column as it can be added: the one that is there, or a new one that rows may lack."""
    if field.name in work.document.schema.names:
        return work.document.schema.field(field.name)
    return field.with_nullable(True)


def _head_with(work: Work, fields: Sequence[pa.Field]) -> draft.Head:
    """The head with these columns, at the end where they are new."""
    old = work.document.schema
    new = [field for field in fields if field.name not in old.names]
    merged = pa.schema([*old, *new], old.metadata)
    known = draft.longer_vocab(merged, work.document.vocab, {})
    return replace(draft.head_of(work.document), schema=merged, vocab=known)


def _inserted(work: Work, rows: pa.Table, bar: Bar) -> list[Shard]:
    """New shards of rows that the dataset did not have; columns that they lack are null."""
    writer = ShardWriter(work.guard, work.writer.stored, work.document.key, work.document.cuts)
    made = ingest(iter(rows.to_batches()), writer, bar)
    work.writer.result.bytes_new += made.bytes_new
    work.writer.result.bytes_reused += made.bytes_reused
    return made.shards


# --- what is computed -------------------------------------------------------------------------


class _Made:
    """What a function makes: its columns, settled by its first answer, which later ones must fit."""

    def __init__(self, work: Work, where: Any) -> None:
        self._work, self._where = work, where
        self.head: draft.Head | None = None
        self.answer = pa.schema([])
        self._vocab: VocabBuilder | None = None
        self._stored: pa.Schema | None = None

    def take(self, answer: Any, rows: int, place: str) -> pa.RecordBatch:
        """An answer in stored form.

        Raises:
            SchemaError: another number of rows, other columns, or values that do not fit.
            TypeError: neither a batch, a table nor a mapping.
        """
        batch = _as_batch(answer)
        if batch.num_rows != rows:
            raise SchemaError(f"the function gave {batch.num_rows:,} rows for {rows:,} ({place})")
        self.settle(schema.canonical_schema(batch.schema))
        assert self._vocab is not None
        self._vocab.add(batch)
        return schema.conform(batch, self._stored)

    def settle(self, answer: pa.Schema) -> None:
        """Know the columns of the function's answers (canonical), if they are not known yet."""
        if self._stored is not None:
            return
        _check_new(self._work, answer.names, self._where)
        if self._work.document.key in answer.names:
            raise SchemaError(
                f"the function gave the key column {self._work.document.key!r}; it gives new columns only"
            )
        self.answer = answer
        fields = [_nullable(self._work, field) for field in answer]
        self.head = _head_with(self._work, fields)
        self._vocab = VocabBuilder(pa.schema(fields))
        self._stored = schema.stored_schema(pa.schema(fields))

    def recall(self, shard: Shard) -> None:
        """Count the values of a shard that an earlier run made."""
        assert self.head is not None
        assert self._vocab is not None
        names = [field.name for field in self.answer if pa.types.is_dictionary(field.type)]
        if names:
            widened = replace(self._work.document, schema=self.head.schema)
            reader = PartReader(self._work.refs, widened, self._work.reader.cache)
            for batch in stored_rows(reader, shard, np.arange(shard.rows), names).to_batches():
                self._vocab.add(batch)

    def vocabulary(self) -> dict[str, list[Any]]:
        """The values met, of each dictionary column."""
        return self._vocab.finish() if self._vocab else {}


def _as_batch(answer: Any) -> pa.RecordBatch:
    if isinstance(answer, pa.RecordBatch):
        return answer
    if isinstance(answer, pa.Table):
        [batch] = plain_batches(answer)
        return batch
    if isinstance(answer, Mapping):
        return pa.RecordBatch.from_pydict({name: _as_array(value) for name, value in answer.items()})
    raise TypeError(
        f"the function gives a batch, a table or a mapping of columns, not {type(answer).__name__}"
    )


def _as_array(values: Any) -> pa.Array:
    """A column of a function's answer; rows of a NumPy array or tensor of several axes are tensors."""
    if isinstance(values, (pa.Array, pa.ChunkedArray)):
        return values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
    if hasattr(values, "detach"):  # a torch tensor, on whatever device
        values = values.detach().cpu().numpy()
    if isinstance(values, np.ndarray) and values.ndim > 1:
        return pa.FixedShapeTensorArray.from_numpy_ndarray(np.ascontiguousarray(values))
    return pa.array(values)
