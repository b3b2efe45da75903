"""A dataset as what other engines read lazily: a `pyarrow.dataset.Dataset`, a `polars.LazyFrame`.

Columns and conditions that an engine pushes down become those of a scan, so that shards are skipped by their
statistics and only what is asked for is fetched.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.dataset as pads

from lake.scan import Scan
from lake.snapshot import Snapshot
from lake.virtual import VirtualDataset

if TYPE_CHECKING:
    import polars

BATCH_BYTES = 16 * 2**20  # raw bytes of a batch handed over, about


def arrow(snapshot: Snapshot) -> VirtualDataset:
    """The version as a pyarrow dataset, which DuckDB, polars, pandas and Dask read."""

    def read(columns: list[str], where: pads.Expression | None) -> Iterator[pa.RecordBatch]:
        document = snapshot.document
        rows = BATCH_BYTES * max(1, document.rows) // max(1, document.raw_bytes)
        yield from Scan(snapshot, columns=columns, where=where, batch_size=max(1, min(rows, 2**17)))

    return VirtualDataset(snapshot.document.schema, read)


def lazy(snapshot: Snapshot) -> polars.LazyFrame:
    """The version as a lazy frame of polars, with columns and predicates pushed down."""
    import polars

    return polars.scan_pyarrow_dataset(arrow(snapshot))
