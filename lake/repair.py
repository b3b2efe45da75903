"""Mend what `verify` finds: fetch sound bytes from elsewhere, or give up what is lost in a new version.

Nothing is edited in place and nothing is deleted. What a sound copy is found of, in another store, in the
cache or under another dataset, is stored beside the damaged one as a further generation; what a pipeline
derived is computed again. Only if told to drop does it write a new version without the shards that are lost;
the versions before it stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from lake.cache import Cache
from lake.commit import Draft, Signature, conflict, land, prepare
from lake.errors import IntegrityError, LakeError, NotFoundError
from lake.format import documents, draft, log, names
from lake.format.manifest import Manifest
from lake.format.values import LogEntry, Shard, VersionDocument
from lake.guard import Guard
from lake.refs import Base, Refs, read_generation
from lake.stores.base import Store
from lake.survey import BLOBS
from lake.verify import Problem, Report, verify

OPERATION = "repair"
_NAMED = 5  # lost objects that the log's message names


@dataclass(frozen=True, slots=True)
class Repair:
    """What was done, or with `dry_run` would be."""

    fetched: tuple[str, ...]  # keys of which a sound copy was found, or computed, and stored
    lost: tuple[Problem, ...]  # what is still damaged
    rows_lost: int  # of the head: in shards that the new version is without
    entry: LogEntry | None  # the log entry of the new version
    dry_run: bool


def repair(
    refs: Refs,
    name: str,
    signature: Signature,
    *,
    source: Store | None = None,
    cache: Cache | None = None,
    recompute: Callable[[], object] | None = None,
    drop: bool = False,
    dry_run: bool = True,
    single_writer: bool = False,
    progress: bool | None = None,
) -> Repair:
    """Mend a dataset's damage from `source` (another copy of the lake) and `cache`; then, if told, drop the rest.

    `recompute` stores what a pipeline gives once more, if anything is lost then.

    Raises:
        NotFoundError: there is no lake at `source`.
        IntegrityError: nothing of the dataset's present life can be read any more.
    """
    refs = Refs(refs.store)
    if source is not None:
        _check_source(source)
    look = partial(verify, refs, level="full", name=name, progress=progress)
    found = look()
    guard = None if dry_run else Guard(refs.store, prepare(refs, single_writer=single_writer).grace)
    found, fetched = _fetched(found, look, refs.store, guard, _sources(refs.store, source, cache))
    if recompute is not None and guard is not None and found.problems:
        before = [problem.key for problem in found.problems]
        recompute()
        found = look()
        still = {problem.key for problem in found.problems}
        fetched += [key for key in before if key not in still]
    lost = tuple(problem for problem in found.problems if guard is not None or problem.key not in fetched)
    salvage = _Salvage.of(refs, name, lost) if lost and drop else None
    if salvage is None or salvage.is_whole:
        return Repair(tuple(fetched), lost, 0, None, dry_run)
    entry = None if guard is None else salvage.land(guard, signature)
    return Repair(tuple(fetched), lost, salvage.rows_lost, entry, dry_run)


# --- fetching ---------------------------------------------------------------------------------


def _check_source(source: Store) -> None:
    """That there is a lake to fetch from, damaged or not; also where nothing has to be fetched."""
    try:
        Refs(source).info()
    except NotFoundError as error:
        raise NotFoundError(f"nothing to repair from: no lake at {source.url}") from error
    except IntegrityError:
        pass  # its description is damaged; its objects name their own digests


Find = Callable[
    [names.ParsedKey, Problem], bytes | None
]  # sound bytes of a damaged object, if they are there


def _fetched(
    found: Report, look: Callable[[], Report], store: Store, guard: Guard | None, sources: Sequence[Find]
) -> tuple[Report, list[str]]:
    """What is damaged still, and the keys of what was mended; without a guard what could be, and nothing is stored.

    A segment that was mended may name parts that are lost: it is looked again until nothing more is found.
    """
    fetched: list[str] = []
    while mended := [
        problem.key
        for problem in found.problems
        if problem.key not in fetched and _mend(store, problem, guard, sources)
    ]:
        fetched += mended
        if guard is None:
            break
        found = look()
    return found, fetched


def _mend(store: Store, problem: Problem, guard: Guard | None, sources: Sequence[Find]) -> bool:
    """Whether some source has sound bytes of the object; with a guard they are stored."""
    parsed = names.parse_key(problem.key)
    for find in sources if parsed else ():
        assert parsed is not None
        data = find(parsed, problem)
        if data is None:
            continue
        if guard is not None and parsed.kind in BLOBS:
            guard.further(_keys(parsed), partial(_create, store, data))
        elif guard is not None:
            store.put_new(problem.key, data)
        return True
    return False


def _create(store: Store, data: bytes, key: str) -> bool:
    return store.put_new(key, data)


def _sources(own: Store, source: Store | None, cache: Cache | None) -> list[Find]:
    found: list[Find] = [partial(_of_twin, own)]
    if source is not None:
        found.append(partial(_of_store, source, own.get(names.LAKE) == _get(source, names.LAKE)))
    if cache is not None:
        found.append(partial(_of_cache, cache))
    return found


def _of_twin(store: Store, parsed: names.ParsedKey, problem: Problem) -> bytes | None:
    """A version document from another dataset that has the version."""
    if parsed.kind != "version":
        return None
    for stored in store.list("datasets/"):
        other = names.parse_key(stored.key)
        if other and other.kind == "version" and other.digest == parsed.digest and other.name != parsed.name:
            data = _get(store, stored.key)
            if data is not None and documents.sha256_hex(data) == parsed.digest:
                return data
    return None


def _of_store(source: Store, same: bool, parsed: names.ParsedKey, problem: Problem) -> bytes | None:
    """From another store by digest; documents without one only from a copy of the `same` lake, if missing here."""
    if parsed.kind in BLOBS:
        try:
            return read_generation(source, _keys(parsed), str(parsed.digest))
        except (NotFoundError, IntegrityError):
            return None
    return _get(source, problem.key) if same and problem.kind == "missing" else None


def _of_cache(cache: Cache, parsed: names.ParsedKey, problem: Problem) -> bytes | None:
    if parsed.kind not in BLOBS:
        return None
    digest = str(parsed.digest)
    lease = cache.peek(digest) if parsed.kind == "part" else None
    try:
        data = bytes(lease.map()) if lease is not None else cache.blob(digest, _nothing)
    except LakeError:
        return None
    return data if documents.sha256_hex(data) == digest else None


def _nothing() -> bytes:
    raise NotFoundError("not in the cache")


def _get(store: Store, key: str) -> bytes | None:
    try:
        return store.get(key)
    except NotFoundError:
        return None


def _keys(parsed: names.ParsedKey) -> names.Keys:
    if parsed.kind == "version":
        return names.version_keys(str(parsed.name), str(parsed.digest))
    return (names.segment_keys if parsed.kind == "segment" else names.part_keys)(str(parsed.digest))


# --- dropping ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Salvage:
    """What is left of a dataset's newest version that can be read, as a change on its head."""

    refs: Refs
    name: str
    base: Base
    version: str  # that is salvaged: the head's, unless its document is lost
    document: VersionDocument
    shards: tuple[Shard, ...]
    rows_lost: int
    lost: tuple[str, ...]  # keys

    @classmethod
    def of(cls, refs: Refs, name: str, lost: Iterable[Problem]) -> _Salvage:
        head = refs.base(name, document=False)
        keys = tuple(problem.key for problem in lost)
        digests = {parsed.digest for key in keys if (parsed := names.parse_key(key))}
        changed = 0  # rows by which the head is larger than the version at hand
        for entry in _readable(refs, name, head, keys):
            if entry.version not in digests and entry.operation != log.EXPIRED:
                document = refs.version(name, str(entry.version))
                shards = tuple(_sound_shards(refs, document, digests))
                rows = sum(shard.rows for shard in shards)
                return cls(
                    refs,
                    name,
                    head,
                    str(entry.version),
                    document,
                    shards,
                    document.rows + changed - rows,
                    keys,
                )
            changed += entry.rows_added - entry.rows_removed
        raise IntegrityError(f"no version of {name!r} can be read any more; `lake verify` shows what is lost")

    @property
    def is_whole(self) -> bool:
        """Whether the head has lost nothing."""
        return self.version == self.base.version and len(self.shards) == self.document.shards

    def land(self, guard: Guard, signature: Signature) -> LogEntry:
        """Make it the head."""
        if self.version != self.base.version:
            guard.secure([names.part_keys(part.digest) for shard in self.shards for part in shard.parts])
        some = ", ".join(self.lost[:_NAMED]) + (
            f" and {len(self.lost) - _NAMED} more" if self.lost[_NAMED:] else ""
        )
        said = signature.message or f"without {self.rows_lost:,} rows that were lost with {some}"
        return land(self.refs, guard, self.name, self.base, self._draft, replace(signature, message=said))

    def _draft(self, base: Base) -> Draft:
        if base.seq != self.base.seq:
            raise conflict(self.name, "the head moved while it was being repaired", base, retryable=True)
        document, segments = draft.whole(draft.head_of(self.document), self.shards)
        return Draft(
            operation=OPERATION,
            document=document,
            segments=segments,
            rows_removed=self.rows_lost,
            bytes_reused=document.bytes,
        )


def _readable(refs: Refs, name: str, head: Base, lost: Collection[str]) -> Iterator[LogEntry]:
    """The entries of the present life that are not among the `lost` keys, newest first."""
    for seq in range(head.seq, head.born - 1, -1):
        if names.log_key(name, seq) not in lost:
            entry = refs.entry(name, seq)
            if entry.version is not None:
                yield entry


def _sound_shards(refs: Refs, document: VersionDocument, lost: Collection[str | None]) -> Iterator[Shard]:
    """The shards of a version of which nothing is lost."""
    for ref in document.segments:
        if ref.digest in lost:
            continue
        for shard in Manifest.open(document.schema, [ref], [refs.segment(ref.digest)]).shards():
            if not any(part.digest in lost for part in shard.parts):
                yield shard
