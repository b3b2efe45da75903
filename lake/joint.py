"""A commit whose rows are written by tasks in many processes, and whose log entry is made by one.

Tasks are values that travel; what each gives back says which shards it stored. Parts are named by their
content, so a task that ran twice stored nothing twice, and only what is given back for each number counts: no
row is lost or doubled, whatever was killed or repeated. The one who makes the entry checks the sums first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from types import EllipsisType
from typing import Any

import pyarrow as pa

from lake.commit import find_txn, land, prepare
from lake.convert import Source, read
from lake.convert.fit import as_schema
from lake.errors import ConflictError, SchemaError, VersionExpired
from lake.format import cuts, names, schema
from lake.format.values import Cuts, LogEntry, Shard
from lake.format.vocab import VocabBuilder
from lake.guard import Guard
from lake.ingest import Ingested, ShardWriter, ingest
from lake.progress import progress
from lake.refs import Refs
from lake.stores.base import Store
from lake.write import Change, Request, aim_at, check_expected, head_seen, key_asked


@dataclass(frozen=True, slots=True)
class Share:
    """What one task stored: a run of the rows, the `number`-th of all."""

    number: int
    rows: int  # that it was given
    schema: pa.Schema | None  # canonical; None without a row
    key: str | None
    shards: tuple[Shard, ...]
    vocab: Mapping[
        str, tuple[Sequence[Any], bool]
    ]  # values of dictionary columns, and whether in the input's order
    bytes_new: int
    bytes_reused: int


@dataclass(frozen=True, slots=True)
class Task:
    """What a process needs to know to write some of the rows. Pickles."""

    store: Store
    grace: float
    key: str | EllipsisType | None
    cuts: Cuts
    schema: Any  # as `commit(schema=)` takes it

    def run(self, number: int, data: Any) -> Share:
        """Store the rows of `data`, which is anything that `commit` takes; may be run any number of times."""
        source = read(data, key=self.key, schema=self.schema)
        canonical = schema.canonical_schema(source.schema)
        vocab = VocabBuilder(canonical, source.vocab)
        writer = ShardWriter(
            Guard(self.store, self.grace), schema.stored_schema(canonical), source.key, self.cuts
        )
        with progress(False, "share", None, unit="bytes") as bar:
            made = ingest(_seen(source, vocab), writer, bar)
        ordered = {
            field.name: pa.types.is_dictionary(field.type) and field.name in source.schema.names
            for field in source.schema
        }
        return Share(
            number,
            made.rows,
            canonical,
            source.key,
            tuple(made.shards),
            {name: (values, ordered.get(name, False)) for name, values in vocab.finish().items()},
            made.bytes_new,
            made.bytes_reused,
        )

    def nothing(self, number: int) -> Share:
        """The share of a task without rows."""
        return Share(number, 0, None, None, (), {}, 0, 0)


class Joint:
    """One such commit, from where its log entry will be made.

    `earlier` is the entry that the request's transaction made before: then there is nothing to do.

    Raises:
        ConflictError: the head is not the one expected.
    """

    def __init__(
        self, refs: Refs, asked: Request, *, schema: Any = None, single_writer: bool = False
    ) -> None:
        self._refs, self._asked, self._schema = refs, asked, schema
        self._start = start = head_seen(refs, asked.name)
        self.earlier: LogEntry | None = None
        if asked.signature.given:
            self.earlier = find_txn(refs, asked.name, asked.signature.txn)
        if self.earlier is None:
            self._expect = check_expected(asked, start)
            info = prepare(refs, single_writer=single_writer)
            self._guard = Guard(refs.store, info.grace)  # read before any task looks a part up
            old = start.document if asked.mode == "append" else None
            layout = Cuts(cuts.ALGORITHM, cuts.SEED, asked.target) if old is None else old.cuts
            self.task = Task(refs.store, info.grace, key_asked(asked, start), layout, schema)

    def land(self, shares: Iterable[Share], rows: int) -> LogEntry:
        """The log entry of the version that the shares are, in the order of their numbers; `rows` in all.

        Raises:
            SchemaError: shares differ in their columns, or their rows do not add up.
            ConflictError: the head moved and the change cannot be carried over, or a part was collected.
        """
        found = sorted({share.number: share for share in shares}.values(), key=lambda share: share.number)
        made = Ingested(
            [shard for share in found for shard in share.shards],
            sum(share.rows for share in found),
            sum(share.bytes_new for share in found),
            sum(share.bytes_reused for share in found),
        )
        if sum(shard.rows for shard in made.shards) != made.rows or made.rows != rows:
            raise SchemaError(
                f"{rows:,} rows went in, and {made.rows:,} came back from {len(found):,} tasks; nothing was committed"
            )
        if not made.rows and self._schema is None:
            raise ValueError(f"nothing to commit to {self._asked.name!r}: the input has no rows")
        whole, key = self._common(found)
        aim = aim_at(self._start.document, [], Source(whole, iter(()), key), self._asked)
        vocab = VocabBuilder(aim.schema, _listed(self._schema))
        for share in found:
            for name, (values, ordered) in share.vocab.items():
                vocab.add(_sighting(name, values, whole.field(name).type, ordered=ordered))
        change = Change(self._refs, self._guard, self._asked, self._start, [], aim, made, vocab)
        self._secure(made.shards)
        return land(
            self._refs,
            self._guard,
            self._asked.name,
            self._start,
            change,
            self._asked.signature,
            expect=self._expect,
        )

    # --- inside -------------------------------------------------------------------------------

    def _common(self, shares: Sequence[Share]) -> tuple[pa.Schema, str | None]:
        """The schema and key of all shares; a column may be null throughout in some, or absent."""
        given = [(share.number, share.schema) for share in shares if share.schema is not None]
        if not given:
            return schema.canonical_schema(as_schema(self._schema)[0]), None
        whole = reduce(schema.unify_for_append, [found for _, found in given])
        for number, found in given:
            for field in found:
                wanted = whole.field(field.name).type
                if field.type != wanted and not pa.types.is_null(field.type):
                    raise SchemaError(
                        f"column {field.name!r} is {field.type} in the rows of task {number} and {wanted} in others: "
                        "say which with schema="
                    )
        keys = {share.key for share in shares if share.schema is not None}
        if len(keys) > 1:
            raise SchemaError(f"the key column {max(map(str, keys))!r} is not in the rows of every task")
        return whole, keys.pop()

    def _secure(self, shards: Iterable[Shard]) -> None:
        """Rely on the parts that tasks stored, which must be there."""
        digests = sorted({part.digest for shard in shards for part in shard.parts})
        try:
            self._guard.secure([names.part_keys(digest) for digest in digests])
        except VersionExpired as error:
            raise ConflictError(f"{error} Repeating the commit writes it again.", retryable=True) from error


def _seen(source: Source, vocab: VocabBuilder) -> Iterable[pa.RecordBatch]:
    for batch in source.batches:
        vocab.add(batch)
        yield batch


def _listed(schema: Any) -> dict[str, list[Any]]:
    """The values that `schema=` lists for dictionary columns."""
    return {} if schema is None else as_schema(schema)[1]


def _sighting(name: str, values: Sequence[Any], kind: pa.DataType, *, ordered: bool) -> pa.RecordBatch:
    """A batch in which a dictionary column has these values: as its dictionary if their order means something."""
    known = pa.array(values, kind.value_type)
    if ordered:
        known = pa.DictionaryArray.from_arrays(pa.array([], pa.int32()), known)
    return pa.record_batch({name: known})
