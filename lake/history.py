"""Name, protect, undo, copy and end versions. No data moves: only roots and log entries are made."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from lake import resolve
from lake.commit import Draft, Signature, conflict, land, now, prepare
from lake.errors import ConflictError, NotFoundError
from lake.format import documents, log, names
from lake.format.names import Keys
from lake.format.values import LogEntry, VersionDocument
from lake.guard import Guard
from lake.refs import Base, Refs


def tag(
    refs: Refs, name: str, entry: LogEntry, label: str, signature: Signature, *, single_writer: bool
) -> None:
    """Give a version an immutable name; the same name for the same version again is no error.

    Raises:
        ConflictError: the dataset has this tag on another version.
        VersionExpired: parts of the version were collected.
    """
    key = names.tag_key(name, label)
    found = put_root(refs, name, entry, key, signature, single_writer=single_writer)
    if found is not None and found.get("version") != entry.version:
        raise ConflictError(
            f"{name!r} has the tag {label!r} on {str(found.get('version'))[:12]} since {found.get('time')} "
            f"(by {found.get('author')}); untag it first, or choose another name"
        )


def pin(refs: Refs, name: str, entry: LogEntry, signature: Signature, *, single_writer: bool) -> None:
    """Protect a version from gc, whatever becomes of its log entry."""
    assert entry.version is not None
    put_root(refs, name, entry, names.pin_key(name, entry.version), signature, single_writer=single_writer)


def untag(refs: Refs, name: str, label: str) -> None:
    """Take a tag away.

    Raises:
        NotFoundError: the dataset has no such tag.
    """
    key = names.tag_key(name, label)
    head = refs.head(name)
    if head is None:
        raise resolve.missing_dataset(refs, name)
    if resolve.pointer(refs, key, head) is None:
        raise NotFoundError(f"{name!r} has no tag {label!r}")
    _delete(refs, key)


def unpin(refs: Refs, name: str, version: str) -> bool:
    """Let gc have a version again, once nothing else names it; False if it was not pinned."""
    key = names.pin_key(name, version)
    pinned = refs.store.head(key) is not None
    if pinned:
        _delete(refs, key)
    return pinned


def tags(refs: Refs, name: str) -> dict[str, dict[str, Any]]:
    """The tags of the dataset's present life and what each says: version, seq, time, author."""
    head = refs.head(name)
    if head is None:
        raise resolve.missing_dataset(refs, name)
    found = {}
    for stored in refs.store.list(names.dataset_prefix(name) + "tags/"):
        parsed = names.parse_key(stored.key)
        document = resolve.pointer(refs, stored.key, head)
        if parsed and parsed.tag and document:
            found[parsed.tag] = document
    return found


def rollback(refs: Refs, name: str, selector: str, signature: Signature, *, single_writer: bool) -> LogEntry:
    """Make an earlier version the head again; what came since stays in the log.

    Raises:
        ConflictError: the head moved since the call began.
    """
    base = refs.base(name)
    target = resolve.find(refs, name, selector)
    assert target.version is not None
    guard = Guard(refs.store, prepare(refs, single_writer=single_writer).grace)
    document = refs.version(name, target.version)
    guard.secure(objects_of(refs, name, target.version, document))
    return land(refs, guard, name, base, _Replacement("rollback", base, name, document), signature)


def copy(
    refs: Refs, name: str, entry: LogEntry, target: str, signature: Signature, *, single_writer: bool
) -> LogEntry:
    """Make a version the first of another dataset.

    Raises:
        ConflictError: a dataset of that name exists.
    """
    assert entry.version is not None
    names.check_name(target)
    guard = Guard(refs.store, prepare(refs, single_writer=single_writer).grace)
    base = refs.base(target)
    if base.document is not None:
        raise conflict(target, f"{target!r} exists already: remove it, or choose another name", base)
    document = refs.version(name, entry.version)
    guard.secure([*parts_of(refs, document), *(names.segment_keys(s.digest) for s in document.segments)])
    return land(refs, guard, target, base, _Replacement("copy", base, target, document), signature)


def remove(refs: Refs, name: str, signature: Signature, *, single_writer: bool) -> LogEntry:
    """End the dataset: its log goes on with a removal, and gc may have what nothing else names.

    Raises:
        NotFoundError: there is no such dataset.
    """
    guard = Guard(refs.store, prepare(refs, single_writer=single_writer).grace)
    base = refs.base(name)
    if base.document is None:
        raise resolve.missing_dataset(refs, name)
    return land(refs, guard, name, base, _Replacement(log.REMOVE, base, name, None), signature)


def objects_of(refs: Refs, name: str, version: str, document: VersionDocument) -> list[Keys]:
    """Every object that a version is made of."""
    segments = [names.segment_keys(segment.digest) for segment in document.segments]
    return [names.version_keys(name, version), *segments, *parts_of(refs, document)]


def parts_of(refs: Refs, document: VersionDocument) -> list[Keys]:
    """The parts of all shards of a version."""
    return [names.part_keys(digest) for digest in sorted(set(refs.manifest(document).every_digest()))]


class _Replacement:
    """One document, or none, in place of the head that was seen; a head that moved since is a conflict."""

    def __init__(self, operation: str, start: Base, name: str, document: VersionDocument | None) -> None:
        self.operation, self.start, self.name, self.document = operation, start, name, document

    def __call__(self, base: Base) -> Draft:
        if base.seq != self.start.seq:
            raise conflict(self.name, f"the head moved before the {self.operation}", base)
        return Draft(
            operation=self.operation,
            document=self.document,
            rows_added=self.document.rows if self.document else 0,
            rows_removed=base.document.rows if base.document else 0,
            bytes_reused=self.document.bytes if self.document else 0,
        )


def put_root(
    refs: Refs,
    name: str,
    entry: LogEntry,
    key: str,
    signature: Signature,
    *,
    single_writer: bool,
    says: Mapping[str, Any] | None = None,
    holds: Callable[[Mapping[str, Any]], bool] = lambda found: True,
) -> dict[str, Any] | None:
    """Make a tag, pin or derived pointer of the version, unless one stands there; that one is returned.

    One of an earlier life of the dataset, or that no longer holds, is overwritten. `says`: further members.
    """
    assert entry.version is not None
    guard = Guard(refs.store, prepare(refs, single_writer=single_writer).grace)
    guard.secure(objects_of(refs, name, entry.version, refs.version(name, entry.version)))
    document = documents.canonical(
        {
            "version": entry.version,
            "seq": entry.seq,
            "born": entry.born,
            "time": now(),
            "author": signature.author,
            "message": signature.message,
            "needs": documents.NO_NEEDS,
        }
        | dict(says or {})
    )
    with guard.root():
        if refs.store.put_new(key, document):
            return None
    found = refs.document(key, "born", "version")
    if found.get("born") == entry.born and holds(found):
        return found
    with guard.root():
        refs.store.put(key, document)
    return None


def _delete(refs: Refs, key: str) -> None:
    for error in refs.store.delete([key]).values():
        raise error
