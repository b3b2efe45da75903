"""What a store can do, one small Protocol per capability; a caller names only those it needs.

A store keeps bytes under keys: relative, "/"-separated texts. Every verb does what it says or raises:
`NotFoundError` for what is not there (a refusal is never taken for that), `StoreError` for everything that
the bucket, folder or network did. All may be called from any thread, and in a forked child. A store pickles
to what it was built from.

This module does no I/O.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, Self

Buffer = bytes | bytearray | memoryview  # anything with the buffer protocol; a pyarrow.Buffer too
LEASE_KEY = "gc/lease"  # a folder's root lease is held on this file; it stays empty


@dataclass(frozen=True, slots=True)
class Object:
    """What a store tells of one key without reading it."""

    key: str
    size: int  # bytes
    modified: float  # seconds since the epoch, by the store's clock


class Get(Protocol):
    def get(self, key: str) -> bytes:
        """The whole object."""

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """`length` bytes from `start`; fewer only where the object ends, which is the caller's to notice."""

    def get_into(self, key: str, start: int, buffer: bytearray | memoryview) -> int:
        """Fill `buffer` with the bytes from `start`; how many there were. After an error: anything."""

    def head(self, key: str) -> Object | None:
        """What is known of the key, None if it is not there."""


class List(Protocol):
    def list(self, prefix: str = "", *, start_after: str | None = None) -> Iterator[Object]:
        """Every object whose key begins with `prefix` and comes after `start_after`, in order of bytes.

        It ends only at the end; whatever goes wrong on the way raises.
        """

    def list_dirs(self, prefix: str = "") -> Iterator[str]:
        """Names, sorted, of the folders in the folder `prefix` that hold an object at any depth."""


class PutNew(Protocol):
    def put_new(self, key: str, data: Buffer) -> bool:
        """Create the object, whole and durable; False if the key is taken.

        After a lost reply the store may meet its own object: where False matters, compare what is there.
        """


class Put(Protocol):
    def put(self, key: str, data: Buffer) -> None:
        """Create or replace the object; readers see the old or the new one, never a mixture."""


class Staged(Protocol):
    """Bytes on their way into a store, visible to nobody until published. Not for several threads at once.

    Leaving the `with` block discards what was not published.
    """

    def write(self, data: Buffer, /) -> int:
        """Append all of `data`; its length in bytes."""

    def tell(self) -> int:
        """Bytes written so far."""

    def publish(self, key: str, sha256: str) -> bool:
        """Create the object from what was written, durable; False if the key is taken.

        `sha256` is the hex digest of what was written; a bucket checks it on arrival. After False the bytes
        are still there, to be published under another key; after a retryable error, to be published again.
        """

    def discard(self) -> None:
        """Forget the bytes. Does nothing after a successful publication."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *exc_info: object) -> None: ...


class Stage(Protocol):
    def stage(self) -> Staged:
        """A place to write an object piece by piece."""


class Copy(Protocol):
    def copy(self, source: str, target: str) -> bool:
        """Copy an object without its bytes passing through a network to here; False if `target` is taken."""


class Delete(Protocol):
    def delete(self, keys: Iterable[str]) -> dict[str, Exception]:
        """Delete objects; those that may still be there, with the reason. Absent ones count as deleted.

        No request is ever sent twice: a late second delete could hit what was written in between.
        """


class Abandon(Protocol):
    def abandon(self, before: float, *, dry_run: bool = False) -> int:
        """Take back uploads that were begun before that time and never completed; how many there are.

        A folder has none: what it did not finish is listed below `tmp/`.
        """


class Clock(Protocol):
    def now(self) -> float:
        """Seconds since the epoch by the clock that dates the objects; it runs while the machine sleeps."""


class Place(Protocol):
    @property
    def url(self) -> str:
        """Where the store is, as messages name it."""

    def exists(self) -> bool:
        """Whether the bucket or folder itself is there, whatever is in it."""

    def local_path(self, key: str) -> Path | None:
        """The file that holds, or would hold, the object; None unless the store is a folder."""

    def root_lease(self, *, exclusive: bool = False) -> AbstractContextManager[None]:
        """Keep the exclusive lease (or any other) from being taken meanwhile. Buckets need none."""


class Store(Get, List, PutNew, Put, Stage, Copy, Delete, Abandon, Clock, Place, Protocol):
    """Everything at once."""


def check_key(key: str) -> str:
    """The key, if it is one.

    Raises:
        ValueError: it is empty, absolute, climbs out, or no store could keep it as it is.

    >>> check_key("shards/ab/abcd.arrow")
    'shards/ab/abcd.arrow'
    >>> check_key("shards/../../secret")
    Traceback (most recent call last):
    ValueError: no key: 'shards/../../secret' (parts are joined by one '/'; none is empty, '.' or '..')
    """
    if any(part in ("", ".", "..") for part in key.split("/")):
        raise ValueError(f"no key: {key!r} (parts are joined by one '/'; none is empty, '.' or '..')")
    if "\\" in key or "\0" in key:
        raise ValueError(
            f"no key: {key!r} (backslashes and NUL bytes mean different things to different stores)"
        )
    return key


def check_prefix(prefix: str) -> str:
    """The prefix, if keys can begin with it: a key cut short anywhere, or nothing."""
    if prefix:
        check_key(prefix + "x" if prefix.endswith("/") else prefix)
    return prefix
