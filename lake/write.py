"""Commit data: a new version from a stream of batches, in place of the head's rows or after them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import EllipsisType
from typing import Any, Literal

import pyarrow as pa

from lake import resolve
from lake.commit import Draft, Signature, conflict, find_txn, land, prepare
from lake.config import parse_bytes
from lake.convert import SortedByClass, Source
from lake.errors import ConflictError, IntegrityError, NotFoundError, SchemaError
from lake.format import cuts, documents, draft, names, schema
from lake.format.segment import tail_to_merge
from lake.format.values import Cuts, LogEntry, Shard, VersionDocument
from lake.format.vocab import VocabBuilder
from lake.guard import Guard
from lake.ingest import Groups, Ingested, ShardWriter, grouping, ingest, reusable
from lake.progress import progress as show
from lake.refs import Base, Refs

Mode = Literal["overwrite", "append"]
Expect = (
    str | EllipsisType | None
)  # a version id; ... = the head seen when the call began; None = whatever is there
_LAST = 64  # shards of the head that an append looks at: an input that came before is not stored again
SHARD_BYTES = 16 * 2**10, 2**40  # least and most raw bytes of a shard's target

_log = logging.getLogger("lake")


@dataclass(frozen=True, slots=True)
class Request:
    """What the caller of a commit asked for, apart from the data."""

    name: str
    mode: Mode
    key: str | EllipsisType | None
    meta: dict[str, Any] | None
    recipe: Any
    signature: Signature
    expect: Expect
    target: int  # raw bytes of a shard
    may_be_empty: bool


def request(
    name: str,
    *,
    mode: str | None,
    key: str | EllipsisType | None,
    meta: Mapping[str, Any] | None,
    recipe: Any,
    signature: Signature,
    expect: object,
    shard_bytes: int | str,
    may_be_empty: bool,
) -> Request:
    """The request, checked as far as it can be without looking at the lake or the data.

    `expect`: the version that must be the head, as its id, a `Version` or a dataset; None or ... as in `Expect`.
    """
    names.check_name(name)
    if mode not in (None, "overwrite", "append"):
        raise ValueError(f"mode is 'overwrite' or 'append', not {mode!r}")
    if mode is None and signature.given:
        raise ValueError(
            "with a txn say mode='append' or mode='overwrite': a job that forgets it must not replace the table"
        )
    if meta is not None and not isinstance(meta, Mapping):
        raise TypeError(f"meta is a mapping, not {type(meta).__name__}")
    for what, value in (("meta", dict(meta or {})), ("recipe", recipe)):
        try:
            documents.canonical({what: value})
        except (TypeError, ValueError) as error:
            raise type(error)(f"{what} is kept as JSON: {error}") from error
    target = parse_bytes(shard_bytes)
    if target is None or not SHARD_BYTES[0] <= target <= SHARD_BYTES[1]:
        raise ValueError(
            f"shard_bytes is between {SHARD_BYTES[0]:,} and {SHARD_BYTES[1]:,} bytes, not {shard_bytes!r}"
        )
    whole = None if meta is None else dict(meta)
    chosen: Mode = "append" if mode == "append" else "overwrite"
    return Request(name, chosen, key, whole, recipe, signature, _expected(expect), target, may_be_empty)


def write(
    refs: Refs,
    asked: Request,
    read: Callable[..., Source],
    *,
    single_writer: bool,
    progress: bool | None,
    damaged: Collection[str] | None = None,
) -> LogEntry:
    """The log entry of the version that what `read` gives became; the head's where that held the same already.

    The head is looked at before `read(key=)` is called, and the lake is made, if there is none, after it. Whatever is
    raised, the head is where it was. `damaged`: keys of copies that count as absent, for an overwrite that stores
    everything again and takes nothing over.
    """
    start = head_seen(refs, asked.name) if damaged is None else _head_left(refs, asked.name)
    if asked.signature.given and (earlier := find_txn(refs, asked.name, asked.signature.txn)) is not None:
        return earlier
    expect = check_expected(asked, start)
    source = read(key=key_asked(asked, start))
    info = prepare(refs, single_writer=single_writer)
    guard = Guard(refs.store, info.grace, damaged or ())
    shards = _shards_to_look_at(refs, start.document, asked.mode) if damaged is None else []
    aim = aim_at(start.document, shards, source, asked)
    vocab, classes = VocabBuilder(aim.schema, source.vocab), SortedByClass(aim.key)
    writer = ShardWriter(
        guard,
        aim.stored,
        aim.key,
        aim.cuts,
        groups=aim.groups,
        reuse=reusable(shards, aim.cuts.target),
        known=_known(start.document, shards, aim),
    )
    with show(progress, f"commit {asked.name}", source.bytes, unit="bytes") as bar, _closing(source):
        made = ingest(_watched(source, vocab, classes), writer, bar)
    if source.rows is not None and source.rows != made.rows:
        raise SchemaError(
            f"the input announced {source.rows:,} rows and gave {made.rows:,}; nothing was committed"
        )
    if not made.rows and not asked.may_be_empty:
        raise ValueError(
            f"nothing to commit to {asked.name!r}: the input has no rows (schema= commits an empty dataset)"
        )
    change = Change(refs, guard, asked, start, shards, aim, made, vocab, anew=damaged is not None)
    entry = land(refs, guard, asked.name, start, change, asked.signature, expect=expect)
    for note in (*source.notes, *_retyped(start.document, aim), classes.warning()):
        if note:
            _log.warning("%s: %s", asked.name, note)
    return entry


def key_asked(asked: Request, start: Base) -> str | EllipsisType | None:
    """The key by which the input is read: on an append the head's, unless the caller names one."""
    known = asked.mode == "append" and start.document is not None and isinstance(asked.key, EllipsisType)
    return start.document.key if known and start.document else asked.key


def head_seen(refs: Refs, name: str) -> Base:
    """The head when the call began; nothing where there is no lake yet."""
    try:
        refs.info()
    except NotFoundError:
        return Base(0, 1, None, None)
    return refs.base(name)


def check_expected(asked: Request, start: Base) -> str | None:
    """The version id that must be the head when the entry is made, if the caller named one.

    Raises:
        ConflictError: it is not the head now.
    """
    expect = asked.expect if isinstance(asked.expect, str) else None
    if expect is not None and expect != start.version:
        raise conflict(asked.name, f"expected {expect[:12]} to be the head", start)
    return expect


@dataclass(frozen=True, slots=True)
class Aim:
    """How rows are to be stored, settled on the head seen when the call began."""

    schema: pa.Schema  # canonical, of the version to be
    stored: pa.Schema  # of the incoming columns, as parts hold them
    key: str | None
    cuts: Cuts
    groups: Groups | None  # columns that share a part; None: the first shard decides


def aim_at(old: VersionDocument | None, shards: Sequence[Shard], source: Source, asked: Request) -> Aim:
    """The aim of a commit on a dataset whose head is `old` and has `shards`.

    Raises:
        SchemaError: the data cannot be appended to the dataset, or lacks the key column.
    """
    incoming = schema.canonical_schema(source.schema)
    if asked.mode == "append" and old is not None:
        merged = schema.unify_for_append(old.schema, incoming)
        if not isinstance(asked.key, EllipsisType) and asked.key != old.key:
            raise SchemaError(
                f"the key of {asked.name!r} is {old.key!r}; an append cannot make it {asked.key!r}"
            )
        stored = schema.stored_schema(pa.schema([merged.field(name) for name in incoming.names]))
        return Aim(merged, stored, old.key, old.cuts, grouping(shards[-1], stored) if shards else None)
    key = source.key if isinstance(asked.key, EllipsisType) else asked.key
    if key is not None and key not in incoming.names:
        raise SchemaError(
            f"no column {key!r} to be the key of {asked.name!r}; there are {', '.join(incoming.names)}"
        )
    stored = schema.stored_schema(incoming)
    same_columns = old is not None and shards and set(old.schema.names) <= set(incoming.names)
    layout = Cuts(cuts.ALGORITHM, cuts.SEED, asked.target)
    return Aim(incoming, stored, key, layout, grouping(shards[-1], stored) if same_columns else None)


@dataclass(frozen=True)
class Change:
    """A commit of data as a function of the head that it lands on."""

    refs: Refs
    guard: Guard
    asked: Request
    start: Base
    shards: Sequence[Shard]  # the start's, where an overwrite may take some over
    aim: Aim
    made: Ingested
    vocab: VocabBuilder
    anew: bool = False

    def __call__(self, base: Base) -> Draft:
        moved = base.seq != self.start.seq
        if moved:
            self._detach(base)
        if self.asked.mode == "append" and base.document is not None:
            document, segments = self._after(base.document, base)
            removed = 0
        else:
            document, segments = self._instead(None if moved or self.anew else base.document)
            removed = base.document.rows if base.document else 0
        return Draft(
            operation=self.asked.mode,
            document=document,
            segments=segments,
            rows_added=self.made.rows,
            rows_removed=removed,
            bytes_new=self.made.bytes_new,
            bytes_reused=self.made.bytes_reused,
            anew=self.anew,
        )

    def _instead(self, old: VersionDocument | None) -> tuple[VersionDocument, draft.Segments]:
        aim, asked = self.aim, self.asked
        head = draft.Head(aim.schema, aim.key, aim.cuts, self.vocab.finish(), asked.meta, asked.recipe)
        return draft.whole(head, self.made.shards, draft.known_segments(old, self.shards, head))

    def _after(self, old: VersionDocument, base: Base) -> tuple[VersionDocument, draft.Segments]:
        merged = schema.unify_for_append(old.schema, self.aim.schema)
        stored = schema.stored_schema(merged)
        changed = [field.name for field in self.aim.stored if stored.field(field.name).type != field.type]
        if changed or old.key != self.aim.key:
            what = f"column {changed[0]!r} changed its type" if changed else f"the key became {old.key!r}"
            raise conflict(self.asked.name, f"{what} meanwhile", base, retryable=True)
        head = replace(
            draft.head_of(old),
            schema=merged,
            vocab=draft.longer_vocab(merged, old.vocab, self.vocab.finish()),
            meta=old.meta if self.asked.meta is None else self.asked.meta,
            recipe=old.recipe if self.asked.recipe is None else self.asked.recipe,
        )
        tail = self.refs.tables(old, last=tail_to_merge(old.segments), schema=merged)
        return draft.grown(old, head, self.made.shards, tail)

    def _detach(self, base: Base) -> None:
        """Carry the commit over to a newer head: what it took over from the old one is no longer inherited."""
        if self.asked.mode == "overwrite" and self.asked.expect is not None:
            raise conflict(
                self.asked.name,
                "the head moved while the commit ran (expect=None takes whatever is there)",
                base,
            )
        for digest in sorted(self.made.inherited):
            if not self.guard.has(names.part_keys(digest)):
                raise ConflictError(
                    f"part {digest[:12]} of {self.asked.name!r} was collected while the commit ran. Repeating is safe.",
                    retryable=True,
                )


# --- inside -----------------------------------------------------------------------------------


def _expected(expect: object) -> Expect:
    """The version id that must be the head, from whatever a caller may name it by."""
    if expect is None or isinstance(expect, EllipsisType):
        return expect
    if not isinstance(expect, str):
        try:
            return resolve.split(expect)[1]
        except TypeError:
            raise TypeError(f"expect is a version, its id or None, not {type(expect).__name__}") from None
    try:
        return names.check_digest(expect)
    except ValueError as error:
        raise ValueError(
            f"expect={expect!r}: a whole version id is asked for, such as dataset.version"
        ) from error


def _head_left(refs: Refs, name: str) -> Base:
    """The head, without its document if that is lost."""
    try:
        return refs.base(name)
    except (NotFoundError, IntegrityError):
        return refs.base(name, document=False)


def _shards_to_look_at(refs: Refs, old: VersionDocument | None, mode: Mode) -> Sequence[Shard]:
    """All shards of a head that is to be overwritten; of one that is appended to, the last few."""
    if old is None or not old.segments:
        return []
    manifest = refs.manifest(old) if mode == "overwrite" else refs.segments(old, last=1)
    return list(manifest.shards(0 if mode == "overwrite" else max(0, len(manifest) - _LAST)))


def _retyped(old: VersionDocument | None, aim: Aim) -> list[str]:
    """What an overwrite makes of columns that were of another type: maybe a slip in the input."""
    if old is None:
        return []
    before = {field.name: field.type for field in old.schema}
    return [
        f"column {field.name!r} was {before[field.name]} and is {field.type} now"
        for field in aim.schema
        if field.name in before and before[field.name] not in (field.type, pa.null())
    ]


def _known(old: VersionDocument | None, shards: Sequence[Shard], aim: Aim) -> dict[tuple[str, ...], Shard]:
    """The head's shards by the digests of their parts, if a shard of the new version is described alike."""
    if old is None or old.key != aim.key or not old.schema.equals(aim.schema, check_metadata=True):
        return {}
    return {tuple(one.digest for one in shard.parts): shard for shard in shards}


@contextmanager
def _closing(source: Source) -> Iterator[None]:
    """End what reads ahead, and take away temporary files, however the commit ends."""
    try:
        yield
    finally:
        close = getattr(source.batches, "close", None)
        if close is not None:
            close()


def _watched(source: Source, vocab: VocabBuilder, classes: SortedByClass) -> Iterator[pa.RecordBatch]:
    """The source's batches, seen by those who learn from them on the way."""
    for batch in source.batches:
        vocab.add(batch)
        classes.see(batch)
        yield batch
