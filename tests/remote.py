"""A lake that must be read as one in a bucket is, although it lies in a folder: quick, and countable."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lake
from lake.repo import Lake
from lake.stores import LocalStore, Store
from lake.stores.wrappers import _Around


class Remote(_Around):
    """A store whose files nobody may map."""

    def __reduce__(self) -> tuple[Any, ...]:
        return Remote, (self.store,)

    @property
    def url(self) -> str:
        return f"remote:{self.store.url}"

    def local_path(self, key: str) -> Path | None:
        return None


def remote_lake(folder: Path, cache: Path, *, budget: str = "unlimited", store: Store | None = None) -> Lake:
    """The lake in `folder`, through a cache; `store`: what to read it through, a `Remote` on it by default."""
    settings = lake.open(folder, cache_dir=cache, cache_budget=budget).settings
    return Lake(store or Remote(LocalStore(folder)), settings, progress=False)
