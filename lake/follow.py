"""Rows as they are committed: the log of a dataset is asked for its newest entries now and then.

What is new in each of them is decided from the entries alone (`news`); only those rows are read.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from lake import resolve
from lake.asked import listed, whole
from lake.cache import Cache
from lake.config import parse_duration
from lake.errors import StoreError, VersionExpired
from lake.format import log
from lake.format.values import LogEntry
from lake.pipeline import Pipeline, from_iterable
from lake.refs import BlobCache, Refs
from lake.samples.values import values
from lake.scan import Scan
from lake.snapshot import Snapshot
from lake.stores import Store

_TICK = 0.1  # seconds in which a stop is noticed

_log = logging.getLogger("lake")


class Follow:
    """The rows that are committed to a dataset from some moment on, as record batches; without end.

    `seq` is the log entry up to which all rows were handed out: `ds.follow(from_=f"#{seq}")` goes on there. Rows
    count once: appended and inserted ones as they come, all of them when the dataset is overwritten. Rows that are
    updated, deleted, rolled back or compacted are not new.

    Raises:
        VersionExpired: while iterating, a version whose rows were not handed out yet was expired.
    """

    def __init__(
        self,
        refs: Refs,
        cache: Cache | None,
        name: str,
        *,
        from_: str = "now",
        poll: float | str = "2s",
        columns: Sequence[str] | None = None,
        batch_size: int = 1024,
        stop: threading.Event | None = None,
    ) -> None:
        self._refs, self._cache, self._name = refs, cache, name
        self._poll = parse_duration(poll)
        self._columns = None if columns is None else listed("columns", columns)
        self._batch_size, self._stop = whole("batch_size", batch_size, least=1), stop
        self.seq, self._whole = _begin(refs, name, from_)

    def __repr__(self) -> str:
        return f"<rows of {self._name} committed after #{self.seq}>"

    def __reduce__(self) -> tuple[Any, ...]:
        refs, from_ = self._refs, f"#{self.seq}" if self._whole is None else "start"
        how = {"from_": from_, "poll": self._poll, "columns": self._columns, "batch_size": self._batch_size}
        return _again, (refs.store, refs.cache, self._cache, self._name, how)

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        for batch, _, _ in self._batches():
            yield batch

    def samples(self) -> Pipeline:
        """The same rows as samples `(key, {field: value})`; without a key the row's number stands for it."""
        return from_iterable(self._samples)

    # --- inside -------------------------------------------------------------------------------

    def _samples(self) -> Iterator[tuple[Any, dict[str, Any]]]:
        for batch, first, key in self._batches():
            schema = batch.schema
            columns = [values(batch.column(field.name), field) for field in schema if field.name != key]
            names = [name for name in schema.names if name != key]
            keys = (
                range(first, first + len(batch))
                if key is None
                else values(batch.column(key), schema.field(key))
            )
            for number, each in enumerate(keys):
                yield each, {name: column[number] for name, column in zip(names, columns, strict=True)}

    def _batches(self) -> Iterator[tuple[pa.RecordBatch, int, str | None]]:
        """New batches, each with the number of its first row and the name of the key."""
        if self._whole is not None:
            yield from self._read(self._whole, None)
            self._whole = None
        while not (self._stop is not None and self._stop.is_set()):
            began = time.monotonic()
            for entry, count in news(self._newer(), self._name):
                if count:
                    yield from self._read(entry, count)
                self.seq = entry.seq
            self._wait(began + self._poll)

    def _newer(self) -> list[LogEntry]:
        """The entries since the last look, oldest first."""
        try:
            return self._refs.entries(self._name, after=self.seq)[::-1]
        except StoreError as error:
            if not error.retryable:
                raise
            _log.warning("following %s: %s; it is asked again", self._name, error)
            return []

    def _read(self, entry: LogEntry, count: int | None) -> Iterator[tuple[pa.RecordBatch, int, str | None]]:
        """The last `count` rows of the version that an entry made; None: all of them."""
        snapshot = Snapshot(self._refs, self._cache, self._name, entry)
        document = snapshot.document
        row = 0 if count is None else document.rows - count
        if row == document.rows:
            return
        scan = Scan(snapshot, columns=self._asked(document.key), batch_size=self._batch_size)
        scan.load_state_dict({**scan.state_dict(), "rows": row})
        for batch in scan:
            yield batch, row, document.key
            row += len(batch)

    def _asked(self, key: str | None) -> list[str] | None:
        if self._columns is None or key is None or key in self._columns:
            return self._columns
        return [key, *self._columns]

    def _wait(self, until: float) -> None:
        while (left := until - time.monotonic()) > 0 and not (self._stop is not None and self._stop.is_set()):
            time.sleep(min(left, _TICK))


def news(entries: Iterable[LogEntry], name: str) -> Iterator[tuple[LogEntry, int]]:
    """Of log entries, oldest first: where there is something new, and how many of the last rows are.

    Additions that follow each other are read together, from the last one's version, which holds them all: earlier
    ones may be expired.

    Raises:
        VersionExpired: that version is; the rows in it were not read in time.
    """
    added, last = 0, None
    for entry in entries:
        if not (entry.version is None or entry.rows_removed or entry.operation == "rollback"):
            added, last = added + entry.rows_added, entry
            continue
        if last is not None:
            yield _readable(last, added, name), added
        added, last = 0, None
        replaced = entry.operation in ("overwrite", log.EXPIRED) and entry.rows_added
        yield (_readable(entry, entry.rows_added, name), entry.rows_added) if replaced else (entry, 0)
    if last is not None:
        yield _readable(last, added, name), added


def _readable(entry: LogEntry, count: int, name: str) -> LogEntry:
    if count and entry.operation == log.EXPIRED:
        raise VersionExpired(
            f"{name}@#{entry.seq} was expired before its {count:,} new rows were read: look more often (poll=), "
            "or expire later"
        )
    return entry


def _begin(refs: Refs, name: str, from_: str) -> tuple[int, LogEntry | None]:
    """The seq after which entries are new, and a version all of whose rows are."""
    head = resolve.find(refs, name)
    if from_ in ("now", "start"):
        return head.seq, head if from_ == "start" else None
    if not isinstance(from_, str) or not from_.startswith("#") or not from_[1:].isdecimal():
        raise ValueError(f"from_={from_!r}: it is 'now', 'start', or a log entry such as '#{head.seq}'")
    seq = int(from_[1:])
    if seq > head.seq:
        raise ValueError(f"from_={from_!r}: the log of {name!r} ends at #{head.seq}")
    return seq, None


def _again(
    store: Store, documents: BlobCache | None, cache: Cache | None, name: str, how: dict[str, Any]
) -> Follow:
    return Follow(Refs(store, documents), cache, name, **how)
