"""WebDataset: tars as large as lake's shards, fetched by curl and kept in its cache folder."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from benchmarks.bucket import BUCKET
from benchmarks.peers.tasks import Item, rows

PACKAGES: tuple[str, ...] = ("webdataset==1.0.2", "torch==2.13.0", "pyarrow==26.0.1")
PYTHON = (3, 11)
SYNCS = False

_NAME = "data-{:06d}.tar"


def load() -> dict[str, str]:
    """Import the library; its versions."""
    import webdataset  # noqa: F401

    return {"webdataset": importlib.metadata.version("webdataset")}


def store(batches: pa.RecordBatchReader, folder: Path, shard_bytes: int) -> None:
    """Write the tars, and how many there are."""
    import webdataset as wds

    folder.mkdir(parents=True, exist_ok=True)
    with wds.ShardWriter(
        str(folder / _NAME.replace("{:06d}", "%06d")), maxsize=shard_bytes, verbose=0
    ) as out:
        for key, image, label in rows(batches):
            out.write({"__key__": key, "jpg": image, "cls": label})
        (folder / "shards").write_text(str(out.shard))


class Reader:
    """Samples through its pipeline: shards shuffled, then a buffer of 1,000 samples, as its guide has it."""

    def __init__(self, prefix: str, endpoint: str, cache: Path, seed: int) -> None:
        import urllib.request

        import webdataset as wds

        with urllib.request.urlopen(f"{endpoint}/{BUCKET}/{prefix}/shards") as reply:
            shards = int(reply.read())
        urls = [f"{endpoint}/{BUCKET}/{prefix}/{_NAME.format(number)}" for number in range(shards)]
        cache.mkdir(parents=True, exist_ok=True)
        self._data = wds.WebDataset(
            urls, shardshuffle=100, detshuffle=True, seed=seed, cache_dir=str(cache)
        ).shuffle(1000)

    def epoch(self, number: int) -> Iterator[Item]:
        for row in self._data:
            yield row["__key__"], row["jpg"], int(row["cls"])
