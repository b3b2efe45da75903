"""dload: samples of bytes, in packs named by their sha256, into a folder and (as it always does) its cache."""

from __future__ import annotations

import importlib.metadata
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from benchmarks.bucket import BUCKET
from benchmarks.peers.tasks import Item

PACKAGES: tuple[str, ...] = ("dload-ml==0.3.1", "torch==2.13.0", "pyarrow==26.0.1", "numpy")
PYTHON = (3, 12)
SYNCS = False

SCHEMA = "schema"  # beside the repository: dload keeps bytes, not types


def load() -> dict[str, str]:
    """Import the library; its versions."""
    import dload  # noqa: F401

    return {"dload-ml": importlib.metadata.version("dload-ml"), "pyarrow": pa.__version__}


def ingest(batches: pa.RecordBatchReader, folder: Path, shard_bytes: int) -> Path:
    """Commit; only the remote has to survive a crash."""
    (folder / SCHEMA).write_bytes(batches.schema.serialize())
    _open(folder).commit("data", samples(batches), target_shard_size=shard_bytes)
    return folder / "remote"


def samples(batches: pa.RecordBatchReader) -> Iterator[tuple[str, dict[str, bytes]]]:
    """Rows as dload takes them: the key (else the row's number), and the other columns' values as bytes."""
    number = 0
    for batch in batches:
        names = [name for name in batch.schema.names if name != "key"]
        numbers = range(number, number + batch.num_rows)
        keys = batch["key"].to_pylist() if "key" in batch.schema.names else map("{:08d}".format, numbers)
        for key, values in zip(
            keys, zip(*(_pieces(batch[name]) for name in names), strict=True), strict=True
        ):
            yield key, dict(zip(names, values, strict=True))
        number += batch.num_rows


def _pieces(column: pa.Array) -> list[bytes]:
    """Each row's bytes."""
    if pa.types.is_large_binary(column.type):
        return column.to_pylist()
    flat = column.flatten() if pa.types.is_fixed_size_list(column.type) else column
    data = memoryview(flat.to_numpy()).cast("B").tobytes()
    width = len(data) // len(column)
    return [data[start : start + width] for start in range(0, len(data), width)]


def read(folder: Path) -> Iterator[pa.RecordBatch]:
    """The samples as batches of the schema that went in."""
    schema = pa.ipc.read_schema(pa.py_buffer((folder / SCHEMA).read_bytes()))
    rows: list[Any] = []
    for row in _open(folder).dataset("data").samples():
        rows.append(row)
        if len(rows) == 1024:
            yield _batch(rows, schema)
            rows = []
    if rows:
        yield _batch(rows, schema)


def _batch(rows: list[Any], schema: pa.Schema) -> pa.RecordBatch:
    keys, fields = zip(*rows, strict=True)
    columns = [
        pa.array(keys, field.type)
        if field.name == "key"
        else _column([row[field.name] for row in fields], field.type)
        for field in schema
    ]
    return pa.record_batch(columns, schema=schema)


def _column(values: list[bytes], kind: pa.DataType) -> pa.Array:
    if pa.types.is_large_binary(kind):
        return pa.array(values, kind)
    data = pa.py_buffer(b"".join(values))
    if not pa.types.is_fixed_size_list(kind):
        return pa.Array.from_buffers(kind, len(values), [None, data])
    items = pa.Array.from_buffers(kind.value_type, len(values) * kind.list_size, [None, data])
    return pa.FixedSizeListArray.from_arrays(items, type=kind)


def _open(folder: Path) -> Any:
    from dload import Repository
    from dload.cache import ShardCache
    from dload.remote import LocalRemote

    return Repository(LocalRemote(folder / "remote"), ShardCache(folder / "cache", None))


def store(batches: pa.RecordBatchReader, folder: Path, shard_bytes: int) -> None:
    """Commit, and leave no cache beside it."""
    ingest(batches, folder, shard_bytes)
    shutil.rmtree(folder / "cache", ignore_errors=True)


class Reader:
    """Samples through its pipeline, with its default shuffle."""

    def __init__(self, prefix: str, endpoint: str, cache: Path, seed: int) -> None:
        import os

        os.environ |= {
            "AWS_ACCESS_KEY_ID": "bench",
            "AWS_SECRET_ACCESS_KEY": "bench",
            "AWS_DEFAULT_REGION": "us-east-1",
        }
        from dload import Repository
        from dload.cache import ShardCache
        from dload.remote import S3Remote

        remote = S3Remote(endpoint, BUCKET, f"{prefix}/remote")
        data = Repository(remote, ShardCache(cache, None)).dataset("data")
        self._samples = data.samples().shuffle(seed=seed)

    def epoch(self, number: int) -> Iterator[Item]:
        for key, fields in self._samples:
            yield key, fields["image"], int.from_bytes(fields["label"], "little")
