"""Ways to damage one stored object, for the tests of what finds and mends it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa

from lake import history
from lake.commit import Signature
from lake.format import documents, names
from lake.repo import Lake
from tests.memory import GRACE, MemoryStore, lake_on

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


def rich_lake(store: MemoryStore) -> Lake:
    """Objects of every kind: parts of a shard, segments, a tag, pin, derived pointer, txn, tombstone, removal, list."""
    lk = lake_on(store)
    lk.commit("birds", with_images(0, 60))
    lk.commit("birds", with_images(60, 90), mode="append", txn="nightly")
    lk.tag("birds@#1", "v1")
    lk.commit("birds", with_images(10, 30), message="fewer")
    entry = lk.refs.entry("birds", 2)
    history.pin(lk.refs, "birds", entry, Signature.of(None, None), single_writer=False)
    lk.commit("fish", table(0, 50))
    derived(lk, "fish")
    lk.commit("owls", table(0, 40))
    lk.commit("owls", table(40, 90))
    lk.expire("owls", keep=1, dry_run=False)
    lk.commit("wrens", table(100, 120))
    lk.remove("wrens")
    lk.commit("wrens", table(120, 150))
    store.clock += 2 * GRACE
    lk.gc(dry_run=False, force=True)
    assert {kind_of(key) for key in store.objects} == KINDS
    return lk


KINDS = {
    "lake",
    "name",
    "log",
    "head",
    "version",
    "tag",
    "pin",
    "derived",
    "txn",
    "segment",
    "part",
    "condemned",
}


def kind_of(key: str) -> str:
    parsed = names.parse_key(key)
    assert parsed is not None
    return parsed.kind


def derived(lk: Lake, name: str) -> None:
    """The head, under a fingerprint as well."""
    head = lk.refs.base(name).entry
    assert head is not None
    said = {"version": head.version, "seq": head.seq, "born": head.born, "time": head.time, "author": "a"}
    document = documents.canonical(said | {"message": None, "needs": documents.NO_NEEDS, "sources": []})
    lk.store.put_new(names.derived_key(name, "ab" * 32), document)


def with_images(first: int, end: int) -> pa.Table:
    """Rows of a key, a number and a few kilobytes."""
    blobs = [bytes([n % 256]) * 3000 for n in range(first, end)]
    return table(first, end).append_column("image", pa.array(blobs, pa.large_binary()))


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
