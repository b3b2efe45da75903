"""LitData: chunks as large as lake's shards. It digests nothing and forces nothing to the disk."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from benchmarks.bucket import BUCKET
from benchmarks.peers.tasks import Item, rows

PACKAGES: tuple[str, ...] = ("litdata==0.2.76", "torch==2.13.0", "boto3", "pyarrow==26.0.1")
PYTHON = (3, 11)
SYNCS = False


def load() -> dict[str, str]:
    """Import the library; its versions."""
    import litdata  # noqa: F401

    return {"litdata": importlib.metadata.version("litdata")}


def store(batches: pa.RecordBatchReader, folder: Path, shard_bytes: int) -> None:
    """Write the chunks and their index."""
    from litdata.streaming.cache import Cache

    cache = Cache(str(folder), chunk_bytes=shard_bytes)
    for number, (key, image, label) in enumerate(rows(batches)):
        cache[number] = {"key": key, "image": image, "label": label}
    cache.done()
    cache.merge()


class Reader:
    """Samples through its data set, without workers."""

    def __init__(self, prefix: str, endpoint: str, cache: Path, seed: int) -> None:
        from litdata import StreamingDataset
        from litdata.streaming import downloader

        downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = True  # it has no setting for a bucket without TLS
        self._data = StreamingDataset(
            f"s3://{BUCKET}/{prefix}",
            cache_dir=str(cache),
            shuffle=True,
            seed=seed,
            max_cache_size="10GB",
            storage_options={
                "endpoint_url": endpoint,
                "aws_access_key_id": "bench",
                "aws_secret_access_key": "bench",
                "region_name": "us-east-1",
            },
        )

    def epoch(self, number: int) -> Iterator[Item]:
        self._data.set_epoch(number)
        for row in self._data:
            yield row["key"], row["image"], row["label"]

    def position(self, items: int) -> Any:
        return self._data.state_dict(num_samples_yielded=items, num_workers=1, batch_size=1)

    def resume(self, position: Any) -> None:
        self._data.load_state_dict(position)
