"""Hugging Face datasets: Parquet files as large as lake's shards, streamed, with its buffer shuffle."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from benchmarks.bucket import BUCKET
from benchmarks.peers.tasks import Item

PACKAGES: tuple[str, ...] = ("datasets==5.2.0", "torch==2.13.0", "aiohttp", "pyarrow==26.0.1")
PYTHON = (3, 11)
SYNCS = False


def load() -> dict[str, str]:
    """Import the library; its versions."""
    import datasets  # noqa: F401

    return {"datasets": importlib.metadata.version("datasets")}


def store(batches: pa.RecordBatchReader, folder: Path, shard_bytes: int) -> None:
    """Write the files, with record batches of the input as row groups, and how many there are."""
    import pyarrow.parquet as pq

    folder.mkdir(parents=True, exist_ok=True)
    files, size, writer = 0, 0, None
    for batch in batches:
        if writer is None:
            writer = pq.ParquetWriter(folder / f"{files:06d}.parquet", batch.schema)
            files, size = files + 1, 0
        writer.write_batch(batch)
        size += batch.nbytes
        if size >= shard_bytes:
            writer.close()
            writer = None
    if writer is not None:
        writer.close()
    (folder / "files").write_text(str(files))


class Reader:
    """Samples of the streamed files, through a shuffle buffer of 1,000, its default."""

    def __init__(self, prefix: str, endpoint: str, cache: Path, seed: int) -> None:
        import urllib.request

        import datasets

        datasets.disable_progress_bars()
        with urllib.request.urlopen(f"{endpoint}/{BUCKET}/{prefix}/files") as reply:
            files = int(reply.read())
        urls = [f"{endpoint}/{BUCKET}/{prefix}/{number:06d}.parquet" for number in range(files)]
        loaded = datasets.load_dataset(
            "parquet", data_files={"train": urls}, split="train", streaming=True, cache_dir=str(cache)
        )
        self._data = loaded.shuffle(seed=seed, buffer_size=1000)

    def epoch(self, number: int) -> Iterator[Item]:
        self._data.set_epoch(number)
        for row in self._data:
            yield row["key"], row["image"], row["label"]

    def position(self, items: int) -> Any:
        return self._data.state_dict()

    def resume(self, position: Any) -> None:
        self._data.load_state_dict(position)
