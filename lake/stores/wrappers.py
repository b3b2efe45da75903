"""Stores around a store: one that counts, one that fails on order, one that moves everything below a prefix.

A wrapper decides about calls; bytes pass through it untouched. The store inside knows nothing of it.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Literal, Self, TypeVar, cast

from lake.errors import StoreError
from lake.stores.base import Buffer, Object, Staged, Store

_T = TypeVar("_T")
Fault = Literal["raise", "lost", "503", "truncate", "slow", "dead"]
FAULTS: tuple[Fault, ...] = ("raise", "lost", "503", "truncate", "slow", "dead")


class _Around:
    """Every verb of `store`, each carried out by way of `_do(verb, key, call)`."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def _do(self, verb: str, key: str, call: Callable[[], _T]) -> _T:
        return call()

    @property
    def url(self) -> str:
        return self.store.url

    def local_path(self, key: str) -> Path | None:
        return self.store.local_path(key)

    def root_lease(self, *, exclusive: bool = False) -> AbstractContextManager[None]:
        return self.store.root_lease(exclusive=exclusive)

    def now(self) -> float:
        return self.store.now()

    def exists(self) -> bool:
        return self._do("exists", "", self.store.exists)

    def get(self, key: str) -> bytes:
        return self._do("get", key, lambda: self.store.get(key))

    def get_range(self, key: str, start: int, length: int) -> bytes:
        return self._do("get_range", key, lambda: self.store.get_range(key, start, length))

    def get_into(self, key: str, start: int, buffer: bytearray | memoryview) -> int:
        return self._do("get_into", key, lambda: self.store.get_into(key, start, buffer))

    def head(self, key: str) -> Object | None:
        return self._do("head", key, lambda: self.store.head(key))

    def list(self, prefix: str = "", *, start_after: str | None = None) -> Iterator[Object]:
        return self._do("list", prefix, lambda: self.store.list(prefix, start_after=start_after))

    def list_dirs(self, prefix: str = "") -> Iterator[str]:
        return self._do("list_dirs", prefix, lambda: self.store.list_dirs(prefix))

    def put_new(self, key: str, data: Buffer) -> bool:
        return self._do("put_new", key, lambda: self.store.put_new(key, data))

    def put(self, key: str, data: Buffer) -> None:
        return self._do("put", key, lambda: self.store.put(key, data))

    def stage(self) -> Staged:
        return _StagedAround(self.store.stage(), self)

    def copy(self, source: str, target: str) -> bool:
        return self._do("copy", target, lambda: self.store.copy(source, target))

    def delete(self, keys: Iterable[str]) -> dict[str, Exception]:
        doomed = [*keys]
        return self._do("delete", doomed[0] if doomed else "", lambda: self.store.delete(doomed))

    def abandon(self, before: float, *, dry_run: bool = False) -> int:
        return self._do("abandon", "", lambda: self.store.abandon(before, dry_run=dry_run))


class _StagedAround:
    """Staged bytes whose publication is a call of the store around."""

    def __init__(self, inside: Staged, around: _Around) -> None:
        self._inside, self._around = inside, around
        self.write, self.tell, self.discard = inside.write, inside.tell, inside.discard

    def publish(self, key: str, sha256: str) -> bool:
        return self._around._do("publish", key, lambda: self._inside.publish(key, sha256))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.discard()


class CountingStore(_Around):
    """Counts what is asked of a store: `counts` by verb, `calls` in order, bytes both ways.

    A listing is one call however many pages it has. Staging counts when published. Every other verb counts
    when called, failed calls too.
    """

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self._lock = threading.Lock()
        self.reset()

    def reset(self) -> None:
        """Start again from nothing."""
        self.counts: Counter[str] = Counter()
        self.calls: list_of_calls = []
        self.bytes_read = self.bytes_written = 0

    def __reduce__(self) -> tuple[Any, ...]:
        return CountingStore, (self.store,)

    def _do(self, verb: str, key: str, call: Callable[[], _T]) -> _T:
        with self._lock:
            self.counts[verb] += 1
            self.calls.append((verb, key))
        result = call()
        if verb in ("get", "get_range", "get_into"):
            self._moved(read=len(result) if isinstance(result, bytes) else int(result))  # type: ignore[call-overload]
        return result

    def _moved(self, *, read: int = 0, written: int = 0) -> None:
        with self._lock:
            self.bytes_read += read
            self.bytes_written += written

    def put_new(self, key: str, data: Buffer) -> bool:
        created = super().put_new(key, data)
        self._moved(written=memoryview(data).nbytes)
        return created

    def put(self, key: str, data: Buffer) -> None:
        super().put(key, data)
        self._moved(written=memoryview(data).nbytes)

    def stage(self) -> Staged:
        return _CountedStaged(self.store.stage(), self)


class _CountedStaged(_StagedAround):
    def publish(self, key: str, sha256: str) -> bool:
        created = super().publish(key, sha256)
        if isinstance(self._around, CountingStore):
            self._around._moved(written=self.tell())
        return created


list_of_calls = list[tuple[str, str]]  # (verb, key); named here because a store's `list` hides the type


class FaultStore(_Around):
    """Fails on order: `plan` says at which calls (counted from 0, over all verbs and threads), and how.

    | fault | what the caller sees |
    |---|---|
    | `"raise"` | a StoreError that is not retryable; nothing was done |
    | `"503"` | a retryable StoreError; nothing was done |
    | `"lost"` | a retryable StoreError, though the call was carried out |
    | `"truncate"` | half of the bytes; a listing that raises half-way (retryable); other verbs: "503" |
    | `"slow"` | the right answer, `delay` seconds late |
    | `"dead"` | this call and all later ones raise, and do nothing: the writer's power is gone |
    | an exception | it is raised; nothing was done |

    `calls` lists (verb, key) of every call so far, so `range(len(store.calls))` after a run without faults is
    what a sweep goes through.
    """

    def __init__(
        self, store: Store, plan: Mapping[int, Fault | BaseException] | None = None, delay: float = 0.02
    ) -> None:
        super().__init__(store)
        self.plan = dict(plan or {})
        self.delay = delay
        self.calls: list_of_calls = []
        self._dead = False
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return FaultStore, (self.store, self.plan, self.delay)

    def _do(self, verb: str, key: str, call: Callable[[], _T]) -> _T:
        with self._lock:
            index = len(self.calls)
            self.calls.append((verb, key))
            fault = "dead" if self._dead else self.plan.get(index)
            self._dead = fault == "dead"
        what = f"call {index} ({verb} {key})"
        if isinstance(fault, BaseException):
            raise fault
        if fault in ("raise", "dead"):
            raise StoreError(f"{what} failed on order ({fault})")
        if fault == "503" or (fault == "truncate" and verb not in _CUT):
            raise StoreError(f"{what}: 503 SlowDown, on order", retryable=True)
        if fault == "slow":
            time.sleep(self.delay)
        result = call()
        if fault == "lost":
            if verb in ("list", "list_dirs"):
                return cast(_T, _broken_off(result, what, keep=0))
            raise StoreError(f"the reply to {what} was lost on order", retryable=True)
        return cast(_T, _CUT[verb](result, what)) if fault == "truncate" else result


def _broken_off(listing: Any, what: str, keep: int | None = None) -> Any:
    found = [*listing]
    yield from found[: len(found) // 2 if keep is None else keep]
    raise StoreError(f"{what} broke off on order", retryable=True)


_CUT: dict[str, Callable[[Any, str], Any]] = {
    "get": lambda data, _: data[: len(data) // 2],
    "get_range": lambda data, _: data[: len(data) // 2],
    "get_into": lambda count, _: count // 2,
    "list": _broken_off,
    "list_dirs": _broken_off,
}


class PrefixStore:
    """The part of a store below `prefix`, as a store: its keys begin after it."""

    def __init__(self, store: Store, prefix: str) -> None:
        self.store = store
        self.prefix = prefix.strip("/")
        self._root = f"{self.prefix}/"

    def __reduce__(self) -> tuple[Any, ...]:
        return PrefixStore, (self.store, self.prefix)

    @property
    def url(self) -> str:
        return f"{self.store.url}/{self.prefix}"

    def exists(self) -> bool:
        return self.store.exists()

    def local_path(self, key: str) -> Path | None:
        return self.store.local_path(self._root + key)

    def root_lease(self, *, exclusive: bool = False) -> AbstractContextManager[None]:
        return self.store.root_lease(exclusive=exclusive)

    def now(self) -> float:
        return self.store.now()

    def get(self, key: str) -> bytes:
        return self.store.get(self._root + key)

    def get_range(self, key: str, start: int, length: int) -> bytes:
        return self.store.get_range(self._root + key, start, length)

    def get_into(self, key: str, start: int, buffer: bytearray | memoryview) -> int:
        return self.store.get_into(self._root + key, start, buffer)

    def head(self, key: str) -> Object | None:
        found = self.store.head(self._root + key)
        return found and self._relative(found)

    def list(self, prefix: str = "", *, start_after: str | None = None) -> Iterator[Object]:
        after = None if start_after is None else self._root + start_after
        return map(self._relative, self.store.list(self._root + prefix, start_after=after))

    def list_dirs(self, prefix: str = "") -> Iterator[str]:
        return self.store.list_dirs(self._root + prefix)

    def put_new(self, key: str, data: Buffer) -> bool:
        return self.store.put_new(self._root + key, data)

    def put(self, key: str, data: Buffer) -> None:
        self.store.put(self._root + key, data)

    def stage(self) -> Staged:
        return _PrefixStaged(self.store.stage(), self._root)

    def copy(self, source: str, target: str) -> bool:
        return self.store.copy(self._root + source, self._root + target)

    def delete(self, keys: Iterable[str]) -> dict[str, Exception]:
        failed = self.store.delete(self._root + key for key in keys)
        return {key.removeprefix(self._root): error for key, error in failed.items()}

    def abandon(self, before: float, *, dry_run: bool = False) -> int:
        return self.store.abandon(before, dry_run=dry_run)  # all of the store's: they have no keys yet

    def _relative(self, found: Object) -> Object:
        return Object(found.key.removeprefix(self._root), found.size, found.modified)


class _PrefixStaged:
    def __init__(self, inside: Staged, root: str) -> None:
        self._inside, self._root = inside, root
        self.write, self.tell, self.discard = inside.write, inside.tell, inside.discard

    def publish(self, key: str, sha256: str) -> bool:
        return self._inside.publish(self._root + key, sha256)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.discard()
