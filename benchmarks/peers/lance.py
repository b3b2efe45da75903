"""Lance: one table, its files as large as lake's shards. It neither digests its files nor forces them to the disk."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

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
