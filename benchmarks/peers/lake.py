"""lake itself, by its public API."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

PACKAGES: tuple[str, ...] = ()  # the interpreter of the benchmark has it
PYTHON = (3, 11)
SYNCS = True


def load() -> dict[str, str]:
    """Import the library; its versions."""
    import lake

    return {"lake": lake.__version__, "pyarrow": importlib.metadata.version("pyarrow")}


def ingest(batches: pa.RecordBatchReader, folder: Path, shard_bytes: int) -> Path:
    """Commit."""
    import lake

    lk = lake.open(folder / "lake", cache_dir=folder / "cache", progress=False)
    lk.commit("data", batches, shard_bytes=shard_bytes)
    return folder / "lake"


def read(folder: Path) -> Iterator[pa.RecordBatch]:
    """Scan."""
    import lake

    yield from lake.open(folder / "lake", cache_dir=folder / "cache").dataset("data").scan()
