"""A store in memory with a clock of its own, and lakes on it: for tests of what takes days, or thousands of runs."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from pathlib import Path
from typing import Any, Self

import pyarrow as pa

import lake
from lake.config import Settings
from lake.errors import NotFoundError
from lake.refs import Refs
from lake.repo import Lake
from lake.stores.base import Buffer, Object

DAY = 24 * 3600.0
GRACE = 7 * DAY


class MemoryStore:
    """All of `lake.stores.base.Store` over a dict. `clock` is the time, and passes only when a test says so."""

    def __init__(self) -> None:
        self.objects: dict[str, tuple[bytes, float]] = {}
        self.clock = 1_800_000_000.0

    url = "memory://lake"

    def now(self) -> float:
        return self.clock

    def exists(self) -> bool:
        return True

    def local_path(self, key: str) -> Path | None:
        return None

    def root_lease(self, *, exclusive: bool = False) -> AbstractContextManager[None]:
        return nullcontext()

    def get(self, key: str) -> bytes:
        try:
            return self.objects[key][0]
        except KeyError:
            raise NotFoundError(f"no {key} in {self.url}") from None

    def get_range(self, key: str, start: int, length: int) -> bytes:
        return self.get(key)[start : start + length]

    def get_into(self, key: str, start: int, buffer: bytearray | memoryview) -> int:
        data = self.get(key)[start : start + len(buffer)]
        buffer[: len(data)] = data
        return len(data)

    def head(self, key: str) -> Object | None:
        return self._object(key) if key in self.objects else None

    def list(self, prefix: str = "", *, start_after: str | None = None) -> Iterator[Object]:
        keys = sorted(key for key in self.objects if key.startswith(prefix) and key > (start_after or ""))
        return iter([self._object(key) for key in keys])

    def list_dirs(self, prefix: str = "") -> Iterator[str]:
        below = (key[len(prefix) :] for key in self.objects if key.startswith(prefix))
        return iter(sorted({key.partition("/")[0] for key in below if "/" in key}))

    def put_new(self, key: str, data: Buffer) -> bool:
        if key in self.objects:
            return False
        self.put(key, data)
        return True

    def put(self, key: str, data: Buffer) -> None:
        self.objects[key] = bytes(data), self.clock

    def stage(self) -> MemoryStaged:
        return MemoryStaged(self)

    def copy(self, source: str, target: str) -> bool:
        return self.put_new(target, self.get(source))

    def delete(self, keys: Iterable[str]) -> dict[str, Exception]:
        for key in keys:
            self.objects.pop(key, None)
        return {}

    def abandon(self, before: float, *, dry_run: bool = False) -> int:
        return 0

    def _object(self, key: str) -> Object:
        data, modified = self.objects[key]
        return Object(key, len(data), modified)


class MemoryStaged:
    def __init__(self, store: MemoryStore) -> None:
        self._store, self._data = store, bytearray()

    def write(self, data: Buffer, /) -> int:
        self._data += memoryview(data).cast("B")
        return memoryview(data).nbytes

    def tell(self) -> int:
        return len(self._data)

    def publish(self, key: str, sha256: str) -> bool:
        assert hashlib.sha256(self._data).hexdigest() == sha256
        return self._store.put_new(key, bytes(self._data))

    def discard(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None: ...


def lake_on(store: Any) -> Lake:
    """A lake on this store object that keeps nothing on this machine."""
    lk = Lake(store, _settings(os.environ.get("LAKE_CACHE_DIR")), progress=False)
    lk.__dict__ |= {"refs": Refs(store), "cache": None}
    return lk


@cache
def _settings(cache_dir: str | None) -> Settings:
    """What the configuration says, looked up once: thousands of lakes are opened on stores in memory."""
    return lake.open("./nowhere").settings


def rows(*keys: int | str, x: int = 0) -> pa.Table:
    """A row for each key."""
    return pa.table({"key": [f"{key}" for key in keys], "x": pa.array([x] * len(keys), pa.int64())})


def keys_of(lk: Lake, reference: str) -> list[str]:
    """The keys of a dataset, as it is stored now."""
    dataset = lake_on(lk.store).dataset(reference)
    found: list[str] = dataset.take(range(len(dataset)))["key"].to_pylist()
    return found


def blobs(store: Any) -> set[str]:
    """Keys of all version documents, segments and parts."""
    return {
        found.key
        for found in store.list()
        if found.key.startswith(("shards/", "manifests/")) or "/versions/" in found.key
    }
