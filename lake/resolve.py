"""Find the version that a text, `Version` or dataset means: `birds`, `birds@#12`, `birds@v1.0`, `birds@2026-11-01`.

After the `@`, the first of these that fits: `head`; `#` and a seq; 8 to 64 hex digits, the beginning of a version
id; an ISO date or time, UTC, for the head at that moment (a date alone: at its end); a tag.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from itertools import takewhile
from typing import Any

from lake.commit import conflict
from lake.errors import NotFoundError, VersionExpired
from lake.format import log, names
from lake.format.values import LogEntry
from lake.refs import Refs
from lake.snapshot import Version

_HEX = re.compile(r"[0-9a-f]{8,64}")
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}([T ].*)?")


def split(reference: object) -> tuple[str, str | None]:
    """The dataset name and what follows the `@`, of a text, a `Version`, or anything with `name` and `version`."""
    if isinstance(reference, Version):
        return reference.name, reference.id
    if isinstance(reference, str):
        name, at, selector = reference.partition("@")
        if at and not selector:
            raise ValueError(f"{reference!r} names no version after the @")
        return names.check_name(name), selector or None
    named, version = getattr(reference, "name", None), getattr(reference, "version", None)
    if isinstance(named, str) and isinstance(version, str):
        return named, version
    raise TypeError(
        f"a dataset is named by a text, a Version or a Dataset, not by {type(reference).__name__}"
    )


def selector_of(name: str, version: object) -> str:
    """What stands for a version of the dataset: what may follow an `@`, with or without it, or names it in full."""
    if isinstance(version, str) and "@" not in version.removeprefix("@"):
        return version.removeprefix("@")
    named, selector = split(version)
    if named != name or selector is None:
        raise ValueError(f"{version!r} is no version of {name!r}")
    return selector


def to_change(refs: Refs, reference: object) -> str:
    """The name of a dataset that is to be changed.

    Raises:
        ConflictError: a version is named, and it is not the head.
    """
    name, selector = split(reference)
    if selector is not None:
        base = refs.base(name, document=False)
        if base.version != find(refs, name, selector).version:
            raise conflict(name, f"{name}@{selector[:12]} is not the head, which a change begins with", base)
    return name


def find(refs: Refs, name: str, selector: str | None = None) -> LogEntry:
    """The log entry that made the version meant; without a selector the head.

    Raises:
        NotFoundError: no such dataset, or no such version of it.
        VersionExpired: the version was there and has been expired.
    """
    head = refs.head(name)
    if head is None:
        raise missing_dataset(refs, name)
    if selector in (None, "head"):
        return head
    assert selector is not None
    if selector.startswith("#"):
        return _by_seq(refs, name, head, selector)
    if _HEX.fullmatch(selector):
        return _by_id(refs, name, head, selector)
    if _DATE.fullmatch(selector):
        return _by_time(refs, name, head, selector)
    return _by_tag(refs, name, head, selector)


def missing_dataset(refs: Refs, name: str) -> NotFoundError:
    """The error for a name that no dataset has, with the nearest that one has."""
    known = refs.datasets()
    near = difflib.get_close_matches(name, known, 1)
    hint = (
        f"; nearest: {near[0]!r}"
        if near
        else f"; there are {len(known)} datasets"
        if known
        else "; the lake is empty"
    )
    return NotFoundError(f"no dataset {name!r} in {refs.store.url}{hint}")


def pointer(refs: Refs, key: str, head: LogEntry) -> dict[str, Any] | None:
    """What a tag or pin of the dataset's present life says; None if there is none."""
    try:
        found = refs.document(key, "born", "version")
    except NotFoundError:
        return None
    return found if found.get("born") == head.born else None


def kept(refs: Refs, name: str, head: LogEntry) -> set[str]:
    """The versions that tags and pins of the dataset's present life keep."""
    prefix = names.dataset_prefix(name)
    keys = [stored.key for folder in ("tags/", "pins/") for stored in refs.store.list(prefix + folder)]
    return {str(found["version"]) for key in keys if (found := pointer(refs, key, head))}


def _usable(refs: Refs, name: str, head: LogEntry, entry: LogEntry) -> LogEntry:
    """The entry, if its version can be read: an expired one only while a tag or pin keeps it."""
    if entry.version is None:
        raise NotFoundError(f"{name}@#{entry.seq} is where the dataset was removed: no version to read")
    if entry.born != head.born:
        raise NotFoundError(
            f"{name}@#{entry.seq} went when the dataset was removed; it came into being again with #{head.born}"
        )
    if entry.operation == log.EXPIRED and entry.version not in kept(refs, name, head):
        raise VersionExpired(f"{name}@#{entry.seq} was expired; tag or pin what a long run needs")
    return entry


def _by_seq(refs: Refs, name: str, head: LogEntry, selector: str) -> LogEntry:
    if not selector[1:].isdecimal():
        raise ValueError(
            f"{name}@{selector}: after # comes the number of a log entry, such as {name}@#{head.seq}"
        )
    seq = int(selector[1:])
    if not 1 <= seq <= head.seq:
        raise NotFoundError(f"no {name}@#{seq}: the log of {name!r} goes from #1 to #{head.seq}")
    return _usable(refs, name, head, refs.entry(name, seq))


def _by_id(refs: Refs, name: str, head: LogEntry, prefix: str) -> LogEntry:
    if head.version == prefix:
        return head
    if len(prefix) == 64 and (pin := pointer(refs, names.pin_key(name, prefix), head)):
        return refs.entry(name, int(pin["seq"]))  # what a lock says costs the same however old it is
    folder = names.dataset_prefix(name) + "versions/"
    fits = {
        parsed.digest for found in refs.store.list(folder + prefix) if (parsed := names.parse_key(found.key))
    }
    life = takewhile(lambda entry: entry.seq >= head.born, refs.search(name, head.seq))
    entries: Iterable[LogEntry] = (entry for entry in life if str(entry.version).startswith(prefix))
    if len(fits) > 1:
        known = list(entries)
        if len(some := sorted({str(entry.version)[:16] for entry in known})) > 1:
            raise ValueError(f"{name}@{prefix} fits several versions: {', '.join(some)}; give more digits")
        entries = known
    newest = None
    for entry in entries:
        if entry.operation != log.EXPIRED:
            return entry
        newest = newest or entry
    if newest is None:
        raise NotFoundError(f"no version of {name!r} begins with {prefix}; `lake log {name}` lists them")
    return _usable(refs, name, head, newest)


def _by_time(refs: Refs, name: str, head: LogEntry, selector: str) -> LogEntry:
    try:
        moment = datetime.fromisoformat(selector)
    except ValueError as error:
        raise ValueError(f"{name}@{selector}: not an ISO date or time ({error})") from error
    if len(selector) == len("2026-11-01"):
        moment += timedelta(days=1, microseconds=-1)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    low, high = 0, head.seq  # times never decrease along a log: bisect for the last entry up to the moment
    while low < high:
        middle = (low + high + 1) // 2
        if datetime.fromisoformat(refs.entry(name, middle).time) <= moment:
            low = middle
        else:
            high = middle - 1
    if not low:
        raise NotFoundError(
            f"{name!r} had no version yet at {selector}; its log begins at {refs.entry(name, 1).time}"
        )
    return _usable(refs, name, head, refs.entry(name, low))


def _by_tag(refs: Refs, name: str, head: LogEntry, tag: str) -> LogEntry:
    found = pointer(refs, names.tag_key(name, tag), head)
    if found is None:
        raise NotFoundError(f"{name!r} has no tag {tag!r}; `lake tag {name}` lists those it has")
    return refs.entry(name, int(found["seq"]))


def living(entries: list[LogEntry]) -> list[LogEntry]:
    """Of a log, newest first: the entries with a version to read, since the dataset last came into being."""
    if not entries or entries[0].version is None:
        return []
    return [
        entry
        for entry in entries
        if entry.born == entries[0].born and entry.version is not None and entry.operation != log.EXPIRED
    ]
