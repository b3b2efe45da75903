"""A dataset as a table: what DuckDB asks of it becomes a scan of the columns and rows that it needs.

Beside the dataset's own columns the table has one that holds nothing, in front: DuckDB reads the first column
where a statement needs none (`count(*)`), which would otherwise fetch it, often the images, to count them.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Final, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.dataset as pads

from lake.sandbox import shown_type
from lake.virtual import VirtualDataset, recast

_BATCH_ROWS: Final = 1 << 19


class Table(Protocol):
    """What makes a dataset a table."""

    @property
    def name(self) -> str: ...

    @property
    def version(self) -> str: ...

    def __len__(self) -> int: ...

    def arrow(self) -> VirtualDataset: ...


def table(dataset: Table) -> tuple[VirtualDataset, str]:
    """The dataset's rows, and the name of the column in front that is not its own."""
    own = dataset.arrow()
    own = recast(own, pa.schema([pa.field(f.name, shown_type(f.type)) for f in own.schema]))
    hidden = pa.field(next(name for i in count() if (name := f"_{i}") not in own.schema.names), pa.int8())
    shown = pa.schema([hidden, *own.schema])

    def read(columns: list[str], where: pads.Expression | None) -> Iterator[pa.RecordBatch]:
        if columns == [hidden.name] and where is None:
            yield from _blank(len(dataset), hidden)
            return
        asked = [name for name in columns if name != hidden.name]
        for batch in own.read(asked, where):
            yield batch if len(asked) == len(columns) else _with(batch, hidden).select(columns)

    return VirtualDataset(shown, read), hidden.name


def _with(batch: pa.RecordBatch, hidden: pa.Field) -> pa.RecordBatch:
    """The batch with the column that holds nothing."""
    nothing = pa.array(np.zeros(batch.num_rows, np.int8))
    schema = pa.schema([hidden, *batch.schema])
    return pa.RecordBatch.from_arrays([nothing, *batch.columns], schema=schema)


def _blank(rows: int, field: pa.Field) -> Iterator[pa.RecordBatch]:
    """That many rows of the column that holds nothing."""
    whole = pa.array(np.zeros(min(rows, _BATCH_ROWS), np.int8))
    for start in range(0, rows, _BATCH_ROWS):
        yield pa.RecordBatch.from_arrays([whole[: rows - start]], schema=pa.schema([field]))
