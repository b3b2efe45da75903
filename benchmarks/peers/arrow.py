"""Plain Arrow IPC files, uncompressed, one after the other: written, forced to the disk, then the next."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa

PACKAGES: tuple[str, ...] = ()
PYTHON = (3, 11)
SYNCS = True


def load() -> dict[str, str]:
    """Import the library; its version."""
    return {"pyarrow": pa.__version__}


def ingest(batches: pa.RecordBatchReader, folder: Path, shard_bytes: int) -> Path:
    """Write files; the next batch waits for the disk."""
    return write(batches, folder, shard_bytes, force)


def write(
    batches: pa.RecordBatchReader, folder: Path, shard_bytes: int, done: Callable[[Path], object]
) -> Path:
    """Files of at least `shard_bytes`; `done` is told of each that is complete, and of the folder at the end."""
    size, files = shard_bytes, 0
    writer = None
    for batch in batches:
        if size >= shard_bytes:
            path = folder / f"{files:06d}.arrow"
            writer, size, files = pa.ipc.new_file(path, batches.schema), 0, files + 1
        writer.write_batch(batch)
        size += batch.nbytes
        if size >= shard_bytes:
            writer.close()
            done(path)
    if size < shard_bytes:
        writer.close()
        done(path)
    done(folder)
    return folder


def force(path: Path) -> None:
    """Onto the disk."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def read(folder: Path) -> Iterator[pa.RecordBatch]:
    """The files in order."""
    for path in sorted(folder.glob("*.arrow")):
        with pa.memory_map(str(path)) as file, pa.ipc.open_file(file) as reader:
            yield from map(reader.get_batch, range(reader.num_record_batches))
