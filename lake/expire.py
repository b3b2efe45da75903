"""Give versions up: their log entries become tombstones in place, and gc may have what nothing else names.

The head is never given up, nor what a tag or pin of the dataset's present life names. No log entry is deleted.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from lake import resolve
from lake.asked import whole
from lake.commit import prepare
from lake.config import parse_duration
from lake.errors import ConflictError
from lake.format import log, names
from lake.format.values import LogEntry
from lake.refs import Refs
from lake.roots import Listed, Pointer, datasets, life_of, pointers, whole_log


def expire(
    refs: Refs,
    name: str,
    *,
    keep: int | None = None,
    older_than: float | str | None = None,
    version: str | None = None,
    dry_run: bool = True,
    single_writer: bool = False,
) -> list[LogEntry]:
    """The entries whose versions go, newest first; unless `dry_run`, they are tombstones by then.

    An entry goes only if it is not among the `keep` newest and is older than `older_than`; either may be left
    out. `version`, instead: what may follow an `@`, for every entry of that version.

    Raises:
        ValueError: no rule. ConflictError: `version` is the head's, or a tag or pin keeps it.
    """
    _check_rules(keep, older_than, version)
    found = resolve.find(refs, name, version) if version is not None else None
    listed = datasets(refs.store, name).get(name, Listed())
    entries = whole_log(refs, name, listed.seqs)
    if not entries or entries[-1].version is None:
        raise resolve.missing_dataset(refs, name)
    life = life_of(entries)
    present = [entry for entry in entries[life - 1 :] if entry.operation != log.EXPIRED][::-1]
    roots = [pointer for pointer in pointers(refs, name, listed) if pointer.born >= life]
    kept = {pointer.version: pointer for pointer in roots if pointer.kind != "derived"}
    if found is not None:
        going = _of_version(name, present, found, kept.get(str(found.version)))
    else:
        age = None if older_than is None else parse_duration(older_than)
        due = [
            entry for entry in present[keep or 0 :] if age is None or refs.store.now() - _time(entry) > age
        ]
        going = [entry for entry in due if entry is not present[0] and entry.version not in kept]
    if not dry_run:
        prepare(refs, single_writer=single_writer)
        for entry in going:
            refs.store.put(names.log_key(name, entry.seq), log.encode_entry(log.tombstone(entry)))
        gone = {entry.version for entry in entries[life - 1 :]} - kept.keys()
        gone -= {entry.version for entry in present if entry not in going}
        _withdraw(refs, [root for root in roots if root.version in gone])
    return going


def _check_rules(keep: int | None, older_than: float | str | None, version: str | None) -> None:
    if keep is None and older_than is None and version is None:
        raise ValueError("say what may go: keep=, older_than= or version=")
    if version is not None and not (keep is None and older_than is None):
        raise ValueError("version= names one version; keep= and older_than= are other rules")
    if keep is not None and whole("keep", keep) < 1:
        raise ValueError(f"keep is a number of versions, at least 1 (the head always stays): {keep}")


def _of_version(
    name: str, present: Sequence[LogEntry], found: LogEntry, keeper: Pointer | None
) -> list[LogEntry]:
    """All entries of the version that `found` has, if it may go."""
    if present[0].version == found.version:
        raise ConflictError(
            f"{name}@#{present[0].seq} is the head: roll back or commit first, or remove {name!r}"
        )
    if keeper is not None:
        raise ConflictError(f"{keeper.key} keeps {name}@#{found.seq}: take the {keeper.kind} away first")
    return [entry for entry in present if entry.version == found.version]


def _time(entry: LogEntry) -> float:
    return datetime.fromisoformat(entry.time).timestamp()


def _withdraw(refs: Refs, derived: Sequence[Pointer]) -> None:
    """Delete the pointers from pipelines to versions that are expired."""
    for error in refs.store.delete([pointer.key for pointer in derived]).values():
        raise error
