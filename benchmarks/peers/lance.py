"""Lance: one table, its files as large as lake's shards. It neither digests its files nor forces them to the disk."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.bucket import BUCKET
from benchmarks.peers.tasks import Item, rows

PACKAGES: tuple[str, ...] = ("pylance==14.0.2", "pyarrow==26.0.1")
PYTHON = (3, 11)
SYNCS = False


def load() -> dict[str, str]:
    """Import the library; its versions."""
    import lance

    return {"pylance": lance.__version__, "pyarrow": pa.__version__}


def ingest(batches: pa.RecordBatchReader, folder: Path, shard_bytes: int) -> Path:
    """Write the table, or another version of it."""
    import lance

    table = folder / "data.lance"
    mode = "overwrite" if table.exists() else "create"
    lance.write_dataset(batches, str(table), mode=mode, max_bytes_per_file=shard_bytes)
    return table


def read(folder: Path) -> Iterator[pa.RecordBatch]:
    """Scan."""
    import lance

    yield from lance.dataset(str(folder / "data.lance")).to_batches()


def picked(folder: Path, numbers: list[int], columns: list[str]) -> pa.Table:
    """Rows by number, of a table that stays open."""
    return _opened(str(folder / "data.lance")).take(numbers, columns=columns)


@cache
def _opened(path: str) -> Any:
    import lance

    return lance.dataset(path)


def store(batches: pa.RecordBatchReader, folder: Path, shard_bytes: int) -> None:
    """Write the table."""
    ingest(batches, folder, shard_bytes)


class Reader:
    """Batches of 256 rows taken at random, as its own sampler for training does; it keeps no copy on disk."""

    def __init__(self, prefix: str, endpoint: str, cache: Path, seed: int) -> None:
        import lance

        self._seed = seed
        self._table = lance.dataset(
            f"s3://{BUCKET}/{prefix}/data.lance",
            storage_options={
                "aws_endpoint": endpoint,
                "aws_access_key_id": "bench",
                "aws_secret_access_key": "bench",
                "aws_region": "us-east-1",
                "allow_http": "true",
            },
        )

    def epoch(self, number: int) -> Iterator[Item]:
        order = np.random.default_rng([self._seed, number]).permutation(self._table.count_rows())
        for start in range(0, len(order), 256):
            taken = self._table.take(order[start : start + 256].tolist(), columns=["key", "image", "label"])
            yield from rows(taken.to_batches())
