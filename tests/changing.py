"""What tests of changing data share: rows, small shards, and rivals that act at the worst moment."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pyarrow as pa

import lake
from lake.format.values import Shard
from lake.repo import Lake
from lake.stores import Store
from lake.stores.base import Buffer
from lake.stores.wrappers import CountingStore

FULL = bool(os.environ.get("LAKE_TEST_FULL"))
SHARD = "16KiB"  # the smallest target, so that a few hundred rows are many shards
PAD = 700  # bytes a row, so that a shard has some twenty

Rows = list[dict[str, Any]]


def birds(count: int, start: int = 0) -> Rows:
    """Rows with a key, a number that is sometimes null, a label, and a picture that weighs; equal for equal numbers."""
    return [
        {
            "key": f"k{n:05}",
            "x": None if n % 7 == 3 else n,
            "label": "abc"[n % 3],
            "image": np.random.default_rng(n).bytes(PAD),
        }
        for n in range(start, start + count)
    ]


SCHEMA = pa.schema([("key", pa.string()), ("x", pa.int64()), ("label", pa.string()), ("image", pa.binary())])


def table(rows: Rows, *columns: str) -> pa.Table:
    """These rows as a table, or some columns of them."""
    return pa.Table.from_pylist(rows, SCHEMA).select(list(columns) or SCHEMA.names)


def lake_of(path: os.PathLike[str] | str, *parts: Iterable[dict[str, Any]], key: Any = ...) -> Lake:
    """A lake whose dataset `birds` is these rows: a commit, then an append for each further list."""
    lk = lake.open(path, progress=False)
    for number, rows in enumerate(parts):
        mode = "append" if number else "overwrite"
        lk.commit("birds", table(list(rows)), mode=mode, shard_bytes=SHARD, key=key)  # type: ignore[arg-type]
    return lk


def read(lk: Lake, name: str = "birds", columns: list[str] | None = None) -> Rows:
    """All rows of a version, in order."""
    ds = lk.dataset(name)
    rows: Rows = ds.take(np.arange(len(ds)), columns=columns).to_pylist()
    return rows


def shards(lk: Lake, name: str = "birds") -> list[Shard]:
    """What the manifest says of a version."""
    return list(lk.dataset(name).snapshot.manifest.shards())


def over(lk: Lake, store: Store) -> Lake:
    """The lake through another store object."""
    return Lake(store, lk.settings, progress=False)


def written(store: CountingStore) -> list[str]:
    """Keys of the parts that were put into the store."""
    return [key for verb, key in store.calls if verb == "publish"]


class Meanwhile(CountingStore):
    """Lets `act` happen once, just before this store is asked to create a log entry."""

    def __init__(self, store: Store, act: Callable[[], object]) -> None:
        super().__init__(store)
        self._act: Callable[[], object] | None = act

    def put_new(self, key: str, data: Buffer) -> bool:
        if "/log/" in key and self._act is not None:
            act, self._act = self._act, None
            act()
        return super().put_new(key, data)
