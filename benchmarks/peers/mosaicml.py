"""MosaicML Streaming: MDS shards as large as lake's, with its own default shuffle (py1e)."""

from __future__ import annotations

import importlib.metadata
import os
import sys
import types
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import pyarrow as pa

from benchmarks.bucket import BUCKET
from benchmarks.peers.tasks import Item, rows

PACKAGES: tuple[str, ...] = ("mosaicml-streaming==0.13.0", "torch==2.13.0", "pyarrow==26.0.1")
PYTHON = (3, 11)
SYNCS = False


def load() -> dict[str, str]:
    """Import the library; its versions."""
    _torchvision()
    import streaming  # noqa: F401

    return {"mosaicml-streaming": importlib.metadata.version("mosaicml-streaming")}


def store(batches: pa.RecordBatchReader, folder: Path, shard_bytes: int) -> None:
    """Write the shards and their index, with the hash that its reader can check."""
    from streaming import MDSWriter

    columns = {"key": "str", "image": "bytes", "label": "int"}
    with MDSWriter(out=str(folder), columns=columns, size_limit=shard_bytes, hashes=["xxh128"]) as out:
        for key, image, label in rows(batches):
            out.write({"key": key, "image": image, "label": label})


def _torchvision() -> None:
    """Let the names be found that the library imports from torchvision, and that nothing here uses.

    The torchvision of PyPI cannot be loaded beside a torch without CUDA.
    """
    try:
        import torchvision  # noqa: F401
    except Exception:
        for half in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[half]
        for name, found in {
            "torchvision": {},
            "torchvision.transforms": {},
            "torchvision.transforms.functional": {"to_tensor": None},
            "torchvision.datasets": {"VisionDataset": object},
        }.items():
            module: Any = types.ModuleType(name)
            module.__dict__.update(found, __path__=[], __spec__=ModuleSpec(name, None))
            sys.modules[name] = module


class Reader:
    """Samples through its data set, without workers, its shards checked as they arrive."""

    def __init__(self, prefix: str, endpoint: str, cache: Path, seed: int) -> None:
        os.environ |= {
            "S3_ENDPOINT_URL": endpoint,
            "AWS_ACCESS_KEY_ID": "bench",
            "AWS_SECRET_ACCESS_KEY": "bench",
            "AWS_DEFAULT_REGION": "us-east-1",
        }
        from streaming import StreamingDataset
        from streaming.base.util import clean_stale_shared_memory

        clean_stale_shared_memory()
        self._data = StreamingDataset(
            remote=f"s3://{BUCKET}/{prefix}",
            local=str(cache),
            shuffle=True,
            shuffle_seed=seed,
            batch_size=1,
            validate_hash="xxh128",
        )

    def epoch(self, number: int) -> Iterator[Item]:
        for row in self._data:
            yield row["key"], row["image"], row["label"]

    def position(self, items: int) -> Any:
        return self._data.state_dict(items, from_beginning=False)

    def resume(self, position: Any) -> None:
        self._data.load_state_dict(position)
