"""Datasets that pipelines make: computed once for each fingerprint, found again by it from then on.

`derived/<fingerprint>.json` names the version that came out. It is a root, as a tag is, until `expire` gives
the version up. A pointer counts while its version can be read and every object of it is stored; otherwise the
pipeline runs again, what is lost is stored anew, and the pointer is put in its place.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

from lake import resolve
from lake.commit import Signature, find_txn
from lake.convert import read
from lake.errors import IntegrityError, NotFoundError, VersionExpired
from lake.format import log, names
from lake.format.names import Keys
from lake.format.values import LogEntry, VersionDocument
from lake.history import put_root
from lake.pipeline import Pipeline
from lake.pipeline.node import Counts, Uncountable, graph
from lake.refs import Refs
from lake.roots import parts_in
from lake.samples import Samples
from lake.stores.base import Object
from lake.survey import copies_of
from lake.write import Request, request, write


@dataclass(frozen=True, slots=True)
class Derivation:
    """How a version came out of a pipeline."""

    fingerprint: str
    version: str
    time: str
    author: str
    sources: Mapping[str, str]  # names of the datasets that were read, with their version ids
    pipeline: str  # its stages
    tag: str | None


def derive(
    refs: Refs,
    name: str,
    pipeline: Pipeline,
    *,
    tag: str | None,
    meta: Mapping[str, Any] | None,
    recipe: Any,
    message: str | None,
    shard_bytes: int | str,
    single_writer: bool,
    progress: bool | None,
    commit: Callable[[Request, Pipeline], LogEntry] | None = None,
) -> LogEntry:
    """The log entry of the version that the pipeline gives: the one there is, else of a commit made now.

    Of several that compute it at the same time, all return the same entry. `commit`: what commits it, elsewhere
    than in this process.

    Raises:
        NotReproducibleError: the pipeline has no fingerprint. ValueError: it has no end, or reads the dataset.
    """
    names.check_name(name)
    if not isinstance(pipeline, Pipeline):
        raise TypeError(
            f"derive() takes a pipeline, such as dataset.samples().map(fn), not {type(pipeline).__name__}"
        )
    if not (tag is None or isinstance(tag, str)):
        raise TypeError(f"tag is a text, not {type(tag).__name__}")
    fingerprint = pipeline.fingerprint(tag=tag)
    _check_derivable(refs, name, pipeline)
    search = _Search(refs, name, fingerprint)
    if (found := search.pointed_to()) is not None:
        return found
    entry, txn = search.committed()
    if entry is None:
        lost = search.lost  # its layout and notes are kept, so that objects come out as they were
        asked = request(
            name,
            mode="overwrite",
            key=...,
            meta=lost.meta if lost and meta is None else meta,
            recipe=lost.recipe if lost and recipe is None else recipe,
            signature=Signature.of(txn, message or f"derived: {pipeline!r}"),
            expect=None,
            shard_bytes=lost.cuts.target if lost else shard_bytes,
            may_be_empty=False,
        )
        fresh = Pipeline(pipeline.node)  # at the beginning of epoch 0, wherever the caller's is
        if commit is None or search.damaged is not None:
            commit = partial(_here, refs, search.damaged, single_writer, progress)
        entry = commit(asked, fresh)
    says = {"sources": pipeline.source_versions(), "pipeline": repr(pipeline), "tag": tag}
    return search.point_to(entry, says, Signature.of(None, message), single_writer=single_writer)


def _here(
    refs: Refs,
    damaged: set[str] | None,
    single_writer: bool,
    progress: bool | None,
    asked: Request,
    fresh: Pipeline,
) -> LogEntry:
    """Compute and commit in this process."""
    return write(
        refs, asked, partial(read, fresh), single_writer=single_writer, progress=progress, damaged=damaged
    )


def derivations(refs: Refs, name: str, head: LogEntry, version: str) -> list[Derivation]:
    """The pipelines that gave this version, in the dataset's present life; oldest first."""
    found = []
    for stored in refs.store.list(names.dataset_prefix(name) + "derived/"):
        parsed, says = names.parse_key(stored.key), resolve.pointer(refs, stored.key, head)
        if parsed and parsed.digest and says and says["version"] == version:
            sources, pipeline = dict(says.get("sources") or {}), str(says.get("pipeline", ""))
            time, author = str(says.get("time", "")), str(says.get("author", ""))
            found.append(Derivation(parsed.digest, version, time, author, sources, pipeline, says.get("tag")))
    return sorted(found, key=lambda one: one.time)


def check_derived(refs: Refs, name: str, pipeline: Pipeline, tag: str | None) -> None:
    """That the dataset has a version that this pipeline gave, sound or not.

    Raises:
        NotFoundError: it has none.
    """
    fingerprint = pipeline.fingerprint(tag=tag)
    if refs.store.head(names.derived_key(name, fingerprint)) is None:
        raise NotFoundError(
            f"no version of {name!r} was derived by this pipeline, whose fingerprint is {fingerprint[:12]}: its "
            "sources, code or tag changed since; lake.derived lists the fingerprints there are"
        )


# --- inside -----------------------------------------------------------------------------------


def _check_derivable(refs: Refs, name: str, pipeline: Pipeline) -> None:
    """Refuse what would never end, or be another pipeline once it is done."""
    try:
        if Counts().of(pipeline.node, 0) == math.inf:
            raise ValueError(f"derive({name!r}): this pipeline has no end; take(n) gives it one")
    except Uncountable:
        pass
    for node in graph(pipeline.node):
        if isinstance(node, Samples) and (node.snapshot.name, node.snapshot.refs.store.url) == (
            name,
            refs.store.url,
        ):
            raise ValueError(
                f"derive({name!r}): the pipeline reads {name!r} itself, whose head would move: give another name"
            )


class _Search:
    """What there is already of one fingerprint, in the present life of the dataset."""

    def __init__(self, refs: Refs, name: str, fingerprint: str) -> None:
        self.refs, self.name, self.fingerprint = refs, name, fingerprint
        self.key = names.derived_key(name, fingerprint)
        base = refs.base(name, document=False)
        self.head, self.born = base.entry if base.version else None, base.born
        self.damaged: set[str] | None = None  # keys of bad copies, where a version has lost objects
        self.lost: VersionDocument | None = None  # of that version

    def pointed_to(self) -> LogEntry | None:
        """The entry that the pointer names, if its version is whole."""
        says = None if self.head is None else resolve.pointer(self.refs, self.key, self.head)
        return None if says is None else self._whole_of(says)

    def committed(self) -> tuple[LogEntry | None, str]:
        """The entry of a commit that was not pointed to, and the transaction of that, or of the one to make.

        There is one transaction for each time that the version had to be made, numbered by the entry before.
        """
        after = 0
        while True:
            txn = f"derive {self.fingerprint} {self.born}.{after}"
            entry = find_txn(self.refs, self.name, txn)
            if entry is None or (entry.operation != log.EXPIRED and self._is_whole(entry)):
                return entry, txn
            after = entry.seq

    def point_to(
        self, entry: LogEntry, says: dict[str, Any], signature: Signature, *, single_writer: bool
    ) -> LogEntry:
        """The entry, with a pointer to it; or the one that another process was first to point to."""
        there = put_root(
            self.refs,
            self.name,
            entry,
            self.key,
            signature,
            single_writer=single_writer,
            says=says,
            holds=lambda found: self._whole_of(found) is not None,
        )
        return entry if there is None else self._whole_of(there) or entry

    def _whole_of(self, pointer: Mapping[str, Any]) -> LogEntry | None:
        """The entry of the version that a pointer names; None if it was expired or is damaged."""
        version = str(pointer["version"])
        try:
            entry = self.refs.entry(self.name, int(pointer.get("seq", 0)))
            if entry.version != version or entry.operation == log.EXPIRED:
                entry = resolve.find(self.refs, self.name, version)
        except (NotFoundError, VersionExpired):
            return None
        return entry if self._is_whole(entry) else None

    def _is_whole(self, entry: LogEntry) -> bool:
        """Whether every object of a version is stored, as far as sizes and the notes of `verify` tell."""
        bad = [copies for copies in self._judged(str(entry.version)) if copies is not None]
        if bad:
            self.damaged = (self.damaged or set()).union(*bad)
            with suppress(NotFoundError, IntegrityError):
                self.lost = self.refs.version(self.name, str(entry.version))
        return not bad

    def _judged(self, version: str) -> Iterator[set[str] | None]:
        """Of each object of a version: None if a copy is sound, else the keys of its copies."""
        refs, keys = self.refs, names.version_keys(self.name, version)
        try:
            document = refs.version(self.name, version)
        except (NotFoundError, IntegrityError):
            yield self._copies(keys)
            return
        yield self._bad(keys)
        sizes: dict[str, int] = {}
        for ref in document.segments:
            keys = names.segment_keys(ref.digest)
            try:
                sizes |= parts_in(refs.segment(ref.digest), ref, document)
            except (NotFoundError, IntegrityError):
                yield self._copies(keys)
            else:
                yield self._bad(keys)
        yield from refs.each(lambda digest: self._bad(names.part_keys(digest), sizes[digest]), sizes)

    def _bad(self, keys: Keys, size: int | None = None) -> set[str] | None:
        """None if a copy of the object is there, of this size and not noted as damaged; else the keys of all."""

        def is_sound(copy: Object) -> bool:
            return size in (None, copy.size) and copy.key not in self._noted

        first = self.refs.store.head(keys(0))
        if first is not None and is_sound(first):
            return None
        if any(map(is_sound, copies_of(self.refs.store, names.stem(keys(0))))):
            return None
        return self._copies(keys)

    def _copies(self, keys: Keys) -> set[str]:
        return {copy.key for copy in copies_of(self.refs.store, names.stem(keys(0)))}

    @cached_property
    def _noted(self) -> frozenset[str]:
        """The keys of what `verify` found altered."""
        notes = list(self.refs.store.list(names.DAMAGED))
        return frozenset(self.refs.store.get(note.key).decode() for note in notes)
