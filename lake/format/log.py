"""Log entries: the steps of a dataset's history, one canonical JSON document each.

An entry is created once and never changed, except by `expire`, which puts its tombstone in its place.
"""

from __future__ import annotations

import re
from dataclasses import asdict, fields, replace
from typing import Any

from lake.errors import FormatError
from lake.format.documents import canonical, check_fields, check_needs, parse
from lake.format.names import check_digest
from lake.format.values import LogEntry

REMOVE = "remove"  # ends a dataset; has no version
EXPIRED = "expired"  # a tombstone

_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z")
_FIELDS = tuple(field.name for field in fields(LogEntry))
_COUNTS = ("seq", "born", "rows_added", "rows_removed", "bytes_new", "bytes_reused")


def encode_entry(entry: LogEntry) -> bytes:
    """The entry's document: equal entries give equal bytes, so that a repeated create is recognised."""
    data = canonical(asdict(entry))
    decode_entry(data, "log entry", writing=True)
    return data


def decode_entry(data: bytes, what: str, *, writing: bool = False) -> LogEntry:
    """The entry in `data`; `what` (its key) names it in errors. Writers refuse what they do not know.

    Raises:
        FormatError: not a log entry, or one that needs a newer release.
    """
    document = parse(data, what)
    check_needs(document.get("needs", {}), what, writing=writing)
    check_fields(document, _FIELDS, what, writing=writing)
    for name in _FIELDS:
        if not _valid(name, document[name]):
            raise FormatError(f"{what}: `{name}` is {str(document[name])[:80]!r}")
    if (document["version"] is None) != (document["operation"] == REMOVE):
        raise FormatError(f"{what}: operation {document['operation']!r} with version {document['version']!r}")
    if not 1 <= document["born"] <= document["seq"]:
        raise FormatError(f"{what}: born at {document['born']}, but is entry {document['seq']}")
    return LogEntry(**{name: document[name] for name in _FIELDS})


def tombstone(entry: LogEntry) -> LogEntry:
    """What takes the place of `entry` once its version is expired: seq, time, txn and the id it had stay."""
    if entry.version is None:
        raise ValueError(f"entry {entry.seq} is a removal: it has no version to expire")
    return replace(entry, operation=EXPIRED)


def _valid(name: str, value: Any) -> bool:
    if name in _COUNTS:
        return type(value) is int and 0 <= value < 2**63
    if name in ("version", "parent"):
        return value is None or _is_digest(value)
    if name == "message":
        return value is None or isinstance(value, str)
    if name == "needs":
        return True  # looked at before
    if name == "time":
        return isinstance(value, str) and _TIME.fullmatch(value) is not None
    return isinstance(value, str) and (value != "" or name == "author")


def _is_digest(value: Any) -> bool:
    try:
        return bool(check_digest(value))
    except ValueError:
        return False
