"""Plain Arrow IPC files whose way to the disk is left to a second thread: the most that a writer can hide."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa

from benchmarks.peers.arrow import PACKAGES, PYTHON, SYNCS, force, load, read, write

__all__ = ["PACKAGES", "PYTHON", "SYNCS", "ingest", "load", "read"]


def ingest(batches: pa.RecordBatchReader, folder: Path, shard_bytes: int) -> Path:
    """Write files; the next batch waits for nothing."""
    with ThreadPoolExecutor(1) as behind:
        forced = []
        write(batches, folder, shard_bytes, lambda path: forced.append(behind.submit(force, path)))
    for one in forced:
        one.result()
    return folder
