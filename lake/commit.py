"""Make a change visible: segments, then the version document, then one log entry, created only if absent.

At every moment a log entry names an existing version, a version existing segments, a segment existing parts.
A change is a function from a base (the head) to a `Draft`; when another writer takes the next log number, the
function is asked again on the newer base, and either answers with a new draft or raises `ConflictError`.
A crash in between leaves objects that nothing names, which only gc deletes.
"""

from __future__ import annotations

import contextlib
import getpass
import itertools
import os
import random
import socket
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from lake import stores
from lake.errors import CommitStateUnknown, ConflictError, NotFoundError, StoreError
from lake.format import documents, log, names, version
from lake.format.values import LogEntry, SegmentRef, VersionDocument
from lake.guard import Guard
from lake.refs import Base, LakeInfo, Refs, decode_info

DEADLINE = 300.0  # seconds that a commit keeps trying against rivals or a failing store
_PAUSE = 0.05, 5.0  # first and longest mean pause between tries, seconds
_probed: set[tuple[int, str]] = set()  # (pid, url) of stores known to refuse a second create


@dataclass(frozen=True)
class Draft:
    """What a change wants to be true on one base. `document` None ends the dataset."""

    operation: str
    document: VersionDocument | None
    segments: tuple[tuple[SegmentRef, bytes | None], ...] = ()  # bytes of those that the base does not have
    rows_added: int = 0
    rows_removed: int = 0
    bytes_new: int = 0
    bytes_reused: int = 0
    anew: bool = False  # to be stored though the base says the same, because what that needs is damaged


@dataclass(frozen=True, slots=True)
class Signature:
    """Who makes a change, why, and under which transaction; `given`: the caller chose the txn."""

    txn: str
    given: bool
    author: str
    message: str | None

    @classmethod
    def of(cls, txn: str | None, message: str | None) -> Signature:
        """The present user's signature, with a fresh transaction unless one is given.

        Raises:
            TypeError, ValueError: a txn or message that is no text, or an empty txn.
        """
        for what, text in (("txn", txn), ("message", message)):
            if text is not None and not isinstance(text, str):
                raise TypeError(f"{what} is a text, not {type(text).__name__}")
        if txn == "":
            raise ValueError("txn='' names no transaction: two commits would not be told apart")
        author = os.environ.get("LAKE_AUTHOR") or f"{_user()}@{socket.gethostname()}"
        return cls(txn or uuid.uuid4().hex, txn is not None, author, message)


def prepare(refs: Refs, *, single_writer: bool = False, grace: str = "7d") -> LakeInfo:
    """Make sure that there is a lake and that its store refuses to create what exists.

    Raises:
        StoreError: the store does not, and the lake was not opened with `single_writer=True`.
    """
    store = refs.store
    try:
        data = store.get(names.LAKE)
    except NotFoundError:
        if not single_writer:
            stores.probe(store)
        fresh = {
            "format": names.FORMAT,
            "id": uuid.uuid4().hex,
            "created": now(),
            "grace": grace,
            "needs": documents.NO_NEEDS,
        }
        store.put_new(names.LAKE, documents.canonical(fresh))
        data = store.get(names.LAKE)
    if not single_writer and (os.getpid(), store.url) not in _probed:
        stores.probe_identical(store, names.LAKE, data)
        _probed.add((os.getpid(), store.url))
    info = decode_info(data, store.url)
    documents.check_writable(data, names.LAKE)
    return info


def land(
    refs: Refs,
    guard: Guard,
    name: str,
    base: Base,
    build: Callable[[Base], Draft],
    signature: Signature,
    *,
    expect: str | None = None,
) -> LogEntry:
    """The log entry that makes the change true: a new one, the head's if nothing changed, or our own lost one.

    `expect`: the version id that must be the head at that moment.

    Raises:
        ConflictError: the head moved and the change cannot be carried over.
        CommitStateUnknown: the store stopped answering while the entry was being created.
    """
    give_up = time.monotonic() + DEADLINE
    if signature.given:
        earlier = _claim_txn(refs, name, base, signature.txn)
        if earlier is not None:
            return earlier
    for attempt in itertools.count():
        if expect is not None and base.version != expect:
            raise conflict(name, f"the head is not {expect[:12]}", base)
        draft = _drafted(build, base, signature)
        if draft is None:
            assert base.entry is not None
            return base.entry
        entry = _entry(refs, guard, name, base, draft, signature)
        if _create(refs, guard, name, entry, give_up):
            _hint(refs, name, entry.seq)
            return entry
        ours, base = _overtaken(refs, name, base, signature)
        if ours is not None:
            return ours
        if time.monotonic() > give_up:
            raise conflict(name, f"other writers were faster for {DEADLINE:.0f} s", base, retryable=True)
        time.sleep(random.uniform(0, min(_PAUSE[1], _PAUSE[0] * 2 ** min(attempt, 10))))
    raise AssertionError("unreachable")


def find_txn(refs: Refs, name: str, txn: str) -> LogEntry | None:
    """The log entry that a caller's transaction made earlier, if it did.

    Raises:
        ConflictError: it did so before the dataset was removed; a retry must not bring it back.
    """
    try:
        record = refs.document(names.txn_key(name, txn), "base")
    except NotFoundError:
        return None
    since = record["base"]
    entries = refs.entries(name, after=since if type(since) is int else 0)
    for entry in entries:
        if entry.txn != txn:
            continue
        if any(later.version is None for later in entries if later.seq > entry.seq):
            raise ConflictError(
                f"txn {txn!r} was committed to {name!r} as #{entry.seq}, and the dataset was removed since"
            )
        return entry
    return None


def conflict(name: str, why: str, base: Base, *, retryable: bool = False) -> ConflictError:
    """The error that says who moved the head, and whether repeating is safe."""
    entry = base.entry
    who = (
        f"; the head of {name!r} is now #{entry.seq} by {entry.author} at {entry.time}: "
        f"{entry.message or entry.operation!r}"
        if entry
        else f"; {name!r} has no versions"
    )
    advice = "Repeating is safe." if retryable else "Look at it before repeating."
    return ConflictError(f"{why}{who}. {advice}", retryable=retryable)


# --- inside -----------------------------------------------------------------------------------


def _drafted(build: Callable[[Base], Draft], base: Base, signature: Signature) -> Draft | None:
    """What the change wants on this base; None if that is so already, and no transaction asks for an entry."""
    draft = build(base)
    if draft.anew or draft.document is None or base.document is None:
        return draft
    if draft.document.data != base.document.data:
        return draft
    if not signature.given:
        return None
    return replace(draft, operation="same", document=base.document, segments=(), rows_added=0, rows_removed=0)


def _overtaken(refs: Refs, name: str, base: Base, signature: Signature) -> tuple[LogEntry | None, Base]:
    """What another process landed under our transaction, if it did; and the base to try on next.

    Raises:
        ConflictError: the dataset was removed meanwhile.
    """
    newer = refs.entries(name, after=base.seq)
    ours = next((entry for entry in newer if entry.txn == signature.txn), None)
    if ours is not None:
        return ours, base
    newest = refs.base_of(name, newer[0])
    if any(entry.version is None for entry in newer):
        raise conflict(name, f"{name!r} was removed meanwhile", newest)
    return None, newest


def _claim_txn(refs: Refs, name: str, base: Base, txn: str) -> LogEntry | None:
    record = documents.canonical({"base": base.seq, "txn": txn})
    if refs.store.put_new(names.txn_key(name, txn), record):
        return None
    return find_txn(refs, name, txn)


def _entry(refs: Refs, guard: Guard, name: str, base: Base, draft: Draft, signature: Signature) -> LogEntry:
    """Store what the entry will name, and say what it is to be."""
    _claim_name(refs, name, base)
    for segment, data in draft.segments:
        if data is not None:
            guard.put(names.segment_keys(segment.digest), data)
    version_id = None
    if draft.document is not None:
        document = version.encode_version(draft.document)
        version_id = version.version_id(document)
        if version_id != base.version or draft.anew:
            guard.put(names.version_keys(name, version_id), document)
    previous = base.entry.time if base.entry else ""
    return LogEntry(
        seq=base.seq + 1,
        version=version_id,
        parent=base.version,
        operation=draft.operation,
        time=max(now(), previous),
        author=signature.author,
        message=signature.message,
        txn=signature.txn,
        born=base.born,
        rows_added=draft.rows_added,
        rows_removed=draft.rows_removed,
        bytes_new=draft.bytes_new,
        bytes_reused=draft.bytes_reused,
    )


def _claim_name(refs: Refs, name: str, base: Base) -> None:
    """Take the name, before its first log entry, against others that differ by case only."""
    if base.seq:
        return
    key = names.name_key(name)
    if refs.store.put_new(key, documents.canonical({"name": name})):
        return
    spelled = refs.document(key, "name")["name"]
    if spelled != name:
        raise ValueError(
            f"{name!r} differs from the dataset {spelled!r} by case only; use that name or another"
        )


def _create(refs: Refs, guard: Guard, name: str, entry: LogEntry, give_up: float) -> bool:
    """Whether the entry is in the log now; not if its number is taken: by a rival, or by what another process landed
    first under the same transaction.

    A create whose reply was lost is read back; if it is not there, the identical entry is sent again.
    """
    key, data = names.log_key(name, entry.seq), log.encode_entry(entry)
    while True:
        try:
            with guard.root():
                created = refs.store.put_new(key, data)
            return created or refs.entry(name, entry.seq) == entry
        except (StoreError, NotFoundError) as error:
            if isinstance(error, StoreError) and not error.retryable:
                raise
            there = _read_back(refs, name, entry, give_up, error)
            if there is not None:
                return there == entry


def _read_back(refs: Refs, name: str, entry: LogEntry, give_up: float, cause: Exception) -> LogEntry | None:
    """What the log has under the entry's number after an unanswered create; None if nothing yet."""
    pause = _PAUSE[0]
    while time.monotonic() < give_up:
        time.sleep(random.uniform(0, pause))
        pause = min(pause * 2, _PAUSE[1])
        try:
            return refs.entry(name, entry.seq)
        except NotFoundError:
            return None
        except StoreError as error:
            if not error.retryable:
                break
    raise CommitStateUnknown(
        f"the store stopped answering while commit #{entry.seq} of {name!r} was being made ({cause}); "
        f"it may have landed. Commit again with txn={entry.txn!r}: that finds it if it did, and never doubles it.",
        txn=entry.txn,
    ) from cause


def _hint(refs: Refs, name: str, seq: int) -> None:
    """Leave a hint where the head is; it may be stale or missing, so a failure is nobody's business."""
    with contextlib.suppress(StoreError):
        refs.store.put(names.head_key(name), str(seq).encode())


def now() -> str:
    """The present, as log entries write it."""
    return datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container without a passwd entry
        return "unknown"
