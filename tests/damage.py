"""Ways to damage one stored object, for the tests of what finds and mends it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa

from lake.repo import Lake
from tests.memory import MemoryStore, lake_on

Damage = Callable[[MemoryStore, str], None]


def truncated(store: MemoryStore, key: str) -> None:
    store.put(key, store.get(key)[:-1])


def flipped(store: MemoryStore, key: str) -> None:
    data = bytearray(store.get(key))
    data[len(data) // 2] ^= 0x10
    store.put(key, bytes(data))


def deleted(store: MemoryStore, key: str) -> None:
    store.delete([key])


def replaced(store: MemoryStore, key: str) -> None:
    """By another object, preferably of its own kind."""
    suffix = key.rpartition(".")[2]
    others = [other for other in store.objects if other != key and other.endswith(suffix)] or ["lake.json"]
    alike = [other for other in others if other.partition("/")[0] == key.partition("/")[0]]
    store.put(key, store.get((alike or others)[0]))


WAYS: tuple[Damage, ...] = (truncated, flipped, deleted, replaced)


def sample_lake(store: MemoryStore) -> Lake:
    """`birds`: three versions of several shards, the last two by appends, a tag and a pin; `fish`: one version."""
    lk = lake_on(store)
    lk.commit("birds", table(0, 2500), shard_bytes="16KiB")
    lk.commit("birds", table(2500, 2600), mode="append")
    lk.tag("birds", "v1")
    lk.commit("birds", table(2600, 2700), mode="append")
    lk.commit("fish", table(0, 50))
    return lk


def table(first: int, end: int) -> pa.Table:
    numbers = range(first, end)
    return pa.table(
        {"key": [f"k{n:05}" for n in numbers], "x": pa.array([n % 251 for n in numbers], pa.int64())}
    )


def every_row(lk: Lake, reference: str) -> pa.Table:
    """All rows, read anew."""
    dataset = lake_on(lk.store).dataset(reference)
    found: Any = dataset.take(range(len(dataset)))
    return found
