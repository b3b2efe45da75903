"""What a lake keeps: its roots, and every stored object that they reach. It reads, and fails closed.

Roots are the versions that the log entries of a dataset's present life name, tombstones excepted, and those
that its tags, pins and derived pointers of that life name. Whatever is unreadable or unknown raises: what a
newer release may have rooted in it must not be collected.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from lake.errors import FormatError, IntegrityError, NotFoundError
from lake.format import documents, log, names, version
from lake.format.segment import decode_segment
from lake.format.values import LogEntry, SegmentRef, VersionDocument
from lake.refs import Refs, decoded
from lake.stores.base import Store

POINTERS = ("tag", "pin", "derived")
_POINTER_FIELDS = {"version", "seq", "born", "time", "author", "message", "needs"}
_FIELDS = {
    "tag": _POINTER_FIELDS,
    "pin": _POINTER_FIELDS,
    "derived": _POINTER_FIELDS | {"sources", "pipeline", "tag"},
}
_PART = "parts.list.element."

Roots = Mapping[str, frozenset[str]]  # dataset -> version ids


@dataclass
class Listed:
    """What a listing shows of one dataset."""

    seqs: list[int] = field(default_factory=list)
    pointers: list[names.ParsedKey] = field(default_factory=list)
    txns: list[str] = field(default_factory=list)  # keys


@dataclass(frozen=True, slots=True)
class Pointer:
    """A tag, pin or derived pointer."""

    key: str
    kind: str
    version: str
    born: int


def datasets(store: Store, name: str | None = None, unknown: list[str] | None = None) -> dict[str, Listed]:
    """What there is of every dataset, removed ones included, or of one and those below it; one LIST.

    Raises:
        FormatError: something that no release so far puts there, unless `unknown` collects the keys.
    """
    found: dict[str, Listed] = {}
    for stored in store.list("datasets/" if name is None else names.dataset_prefix(name)):
        parsed = names.parse_key(stored.key)
        if parsed is None or parsed.name is None:
            if unknown is not None:
                unknown.append(stored.key)
                continue
            raise FormatError(f"unknown object {stored.key} in {store.url}: upgrade lake, or move it away")
        listed = found.setdefault(parsed.name, Listed())
        if parsed.kind == "log" and parsed.seq:
            listed.seqs.append(parsed.seq)
        elif parsed.kind in POINTERS:
            listed.pointers.append(parsed)
        elif parsed.kind == "txn":
            listed.txns.append(stored.key)
    return found


def read_roots(refs: Refs) -> Roots:
    """Every root, as of some moment after the call began.

    Datasets are listed before their logs are read and again after it, until the second listing shows none that
    the first did not.

    Raises:
        IntegrityError: a log has a gap, or a document is damaged. FormatError: one is of a newer release.
    """
    found: dict[str, frozenset[str]] = {}
    while fresh := {name: listed for name, listed in datasets(refs.store).items() if name not in found}:
        for name, listed in fresh.items():
            found[name] = _roots_of(refs, name, listed)
    return found


def whole_log(refs: Refs, name: str, listed: Sequence[int]) -> list[LogEntry]:
    """All entries of a dataset's log, oldest first. What follows the last is asked for after all are read.

    That order matters: the last entry read was the head, and no tombstone, at a moment when nothing followed it,
    so whatever lands later inherits from it or has been looked up by the rules of `lake.guard`.
    """
    newest = max(listed, default=0)
    gap = next((seq for seq, there in enumerate(sorted(listed), 1) if seq != there), None)
    if gap is not None:
        raise IntegrityError(f"{names.log_key(name, gap)} is missing from {refs.store.url}")
    entries: list[LogEntry] = refs.each(lambda seq: _entry(refs.store, name, seq), range(1, newest + 1))
    while True:
        try:
            entries.append(_entry(refs.store, name, len(entries) + 1))
        except NotFoundError:
            break
    if (hint := refs.hint(name)) > len(entries):
        raise IntegrityError(
            f"{names.log_key(name, hint)} is missing from {refs.store.url}: the head was there once"
        )
    return entries


def pointers(refs: Refs, name: str, listed: Listed) -> list[Pointer]:
    """The dataset's tags, pins and derived pointers, of whatever life."""
    found = []
    for parsed in listed.pointers:
        key = pointer_key(name, parsed)
        try:
            data = refs.store.get(key)
        except NotFoundError:  # taken away since it was listed
            continue
        pointer = decoded(partial(decode_pointer, parsed), data, f"{key} in {refs.store.url}")
        if is_misplaced(pointer, parsed):
            raise IntegrityError(
                f"{key} in {refs.store.url} is damaged (it is the pin of {pointer.version[:12]})"
            )
        found.append(pointer)
    return found


def is_misplaced(pointer: Pointer, parsed: names.ParsedKey) -> bool:
    """Whether a pin stands where that of another version belongs."""
    return parsed.kind == "pin" and pointer.version != parsed.digest


def decode_pointer(parsed: names.ParsedKey, data: bytes, what: str, *, writing: bool = False) -> Pointer:
    """What the tag, pin or derived pointer that has this key says. Writers refuse what they do not know.

    Raises:
        FormatError: it is none, or of a newer release.
    """
    document = documents.parse(data, what)
    documents.check_needs(document.get("needs", documents.NO_NEEDS), what, writing=writing)
    if writing and (unknown := set(document) - _FIELDS[parsed.kind]):
        raise FormatError(f"{what} has unknown {', '.join(sorted(unknown))}: upgrade lake to write here")
    born = document.get("born")
    try:
        target = names.check_digest(document.get("version"))
    except ValueError as error:
        raise FormatError(f"{what}: {error}") from error
    if type(born) is not int or born < 1:
        raise FormatError(f"{what}: `born` is {born!r}")
    return Pointer(pointer_key(str(parsed.name), parsed), parsed.kind, target, born)


def life_of(entries: Sequence[LogEntry]) -> int:
    """The first seq of a log's present (or next) life."""
    return next((entry.seq + 1 for entry in reversed(entries) if entry.version is None), 1)


def reached(refs: Refs, roots: Roots) -> dict[str, int]:
    """Every object that the roots reach: its stem (`lake.format.names.stem`) and its size in bytes.

    Raises:
        IntegrityError: a version document or segment is missing or damaged. FormatError: it is of a newer release.
    """
    sizes: dict[str, int] = {}
    segments: dict[str, tuple[SegmentRef, VersionDocument]] = {}
    wanted = [(name, version_id) for name, ids in sorted(roots.items()) for version_id in sorted(ids)]
    for (name, version_id), document, size in refs.each(lambda root: _document(refs, *root), wanted):
        sizes[names.stem(names.version_key(name, version_id))] = size
        segments |= {ref.digest: (ref, document) for ref in document.segments}
    for stems in refs.each(lambda found: _segment(refs, *found), segments.values()):
        sizes |= stems
    return sizes


# --- inside -----------------------------------------------------------------------------------


def _roots_of(refs: Refs, name: str, listed: Listed) -> frozenset[str]:
    entries = whole_log(refs, name, listed.seqs)
    life = life_of(entries)
    alive = {e.version for e in entries if e.seq >= life and e.version and e.operation != log.EXPIRED}
    return frozenset(
        alive | {pointer.version for pointer in pointers(refs, name, listed) if pointer.born >= life}
    )


def _entry(store: Store, name: str, seq: int) -> LogEntry:
    key = names.log_key(name, seq)
    entry = decoded(log.decode_entry, store.get(key), f"{key} in {store.url}")
    if entry.seq != seq:
        raise IntegrityError(f"{key} in {store.url} is damaged (it says that it is entry {entry.seq})")
    return entry


def pointer_key(name: str, parsed: names.ParsedKey) -> str:
    """The key of a tag, pin or derived pointer."""
    if parsed.kind == "tag":
        return names.tag_key(name, str(parsed.tag))
    return (names.pin_key if parsed.kind == "pin" else names.derived_key)(name, str(parsed.digest))


def _document(refs: Refs, name: str, version_id: str) -> tuple[tuple[str, str], VersionDocument, int]:
    data = _stored(refs, version_id, names.version_keys(name, version_id))
    return (name, version_id), version.decode_version(data, version_id, writing=True), len(data)


def _segment(refs: Refs, ref: SegmentRef, document: VersionDocument) -> dict[str, int]:
    data = _stored(refs, ref.digest, names.segment_keys(ref.digest))
    found = {names.stem(names.segment_key(ref.digest)): len(data)}
    found |= {names.stem(names.part_key(digest)): size for digest, size in parts_in(data, ref, document)}
    return found


def _stored(refs: Refs, digest: str, keys: names.Keys) -> bytes:
    try:
        return refs.blob(digest, keys)
    except NotFoundError as error:
        raise IntegrityError(f"{error}; a lake with damage is not collected", digest=digest) from error


def parts_in(data: bytes, ref: SegmentRef, document: VersionDocument) -> Iterator[tuple[str, int]]:
    """Digest and stored size of every part that a segment names."""
    table = decode_segment(data, ref, document.schema, [_PART + "digest", _PART + "bytes"], writing=True)
    parts = table["parts"].combine_chunks().flatten()
    octets = np.frombuffer(b"".join(parts.field("digest").to_pylist()), np.uint8).reshape(-1, 32)
    for digest, size in zip(octets, parts.field("bytes").to_pylist(), strict=True):
        yield digest.tobytes().hex(), size
