"""lake itself, by its public API."""

from __future__ import annotations

import importlib.metadata
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from benchmarks.bucket import BUCKET
from benchmarks.peers.tasks import Item

PACKAGES: tuple[str, ...] = ()  # the interpreter of the benchmark has it
PYTHON = (3, 11)
SYNCS = True


def load() -> dict[str, str]:
    """Import the library; its versions."""
    import lake
    from lake import repo  # noqa: F401 - what `import lake` puts off until it is needed

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


def store(batches: pa.RecordBatchReader, folder: Path, shard_bytes: int) -> None:
    """Commit, and leave no cache beside it."""
    ingest(batches, folder, shard_bytes)
    shutil.rmtree(folder / "cache", ignore_errors=True)


class Reader:
    """Samples, shuffled as is the default."""

    def __init__(self, prefix: str, endpoint: str, cache: Path, seed: int) -> None:
        import lake

        lk = lake.open(
            f"s3://{BUCKET}/{prefix}/lake",
            endpoint_url=endpoint,
            region="us-east-1",
            anonymous=True,
            cache_dir=cache,
            progress=False,
        )
        self._samples = lk.dataset("data").samples().shuffle(seed=seed)

    def epoch(self, number: int) -> Iterator[Item]:
        self._samples.set_epoch(number)
        for key, fields in self._samples:
            yield key, fields["image"], fields["label"]

    def position(self, items: int) -> Any:
        return self._samples.state_dict()

    def resume(self, position: Any) -> None:
        self._samples.load_state_dict(position)
