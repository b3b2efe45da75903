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
from lake.virtual import VirtualDataset, columns_of

_BATCH_ROWS: Final = 1 << 17


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
    source = dataset.arrow()
    schema = source.schema
    hidden = next(name for i in count() if (name := f"_{i}") not in schema.names)
    fields = [pa.field(hidden, pa.int8()), *(pa.field(f.name, shown_type(f.type)) for f in schema)]
    shown = pa.schema(fields)
    altered = {f.name for f in schema if shown_type(f.type) != f.type}

    def read(columns: list[str], where: pads.Expression | None) -> Iterator[pa.RecordBatch]:
        if columns == [hidden] and where is None:
            yield from _blank(len(dataset), shown.field(hidden))
            return
        own = [name for name in columns if name != hidden]
        used = columns_of(where, shown) if where is not None and altered else set()
        left = where if used & altered else None  # the filter, where it is on values as they are shown
        asked = own if left is None else own + sorted(used - set(own))
        for batch in source.read(asked, None if left is not None else where):
            kept = _show(batch, shown, hidden if hidden in columns else None)
            yield (kept if left is None else kept.filter(left)).select(columns)

    return VirtualDataset(shown, read), hidden


def _show(batch: pa.RecordBatch, shown: pa.Schema, hidden: str | None) -> pa.RecordBatch:
    """The batch in the types of the table, with the column that holds nothing if that is wanted."""
    fields = [shown.field(name) for name in batch.schema.names]
    columns = [
        column if column.type == field.type else column.cast(field.type)
        for column, field in zip(batch.columns, fields, strict=True)
    ]
    if hidden is not None:
        fields.append(shown.field(hidden))
        columns.append(pa.array(np.zeros(batch.num_rows, np.int8)))
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))


def _blank(rows: int, field: pa.Field) -> Iterator[pa.RecordBatch]:
    """That many rows of the column that holds nothing."""
    whole = pa.array(np.zeros(min(rows, _BATCH_ROWS), np.int8))
    for start in range(0, rows, _BATCH_ROWS):
        yield pa.RecordBatch.from_arrays([whole[: rows - start]], schema=pa.schema([field]))
