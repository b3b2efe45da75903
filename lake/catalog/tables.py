"""A dataset as a table: what DuckDB asks of it becomes a scan of the columns and rows that it needs.

Beside the dataset's own columns the table has one that holds nothing, in front: DuckDB reads the first column
where a statement needs none (`count(*)`), which would otherwise fetch it, often the images, to count them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import count
from typing import Any, Final, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.dataset as pads

from lake.format.values import VersionDocument
from lake.sandbox import shown_type
from lake.virtual import VirtualDataset, columns_of

_BATCH_BYTES: Final = 16 << 20  # raw bytes of a batch handed over, about
_BATCH_ROWS: Final = 1 << 17


class _Snapshot(Protocol):
    @property
    def document(self) -> VersionDocument: ...


class Table(Protocol):
    """What makes a dataset a table."""

    @property
    def snapshot(self) -> _Snapshot: ...

    def scan(
        self, columns: Sequence[str] | None = None, where: Any = None, /, *, batch_size: int = 1024
    ) -> Iterable[pa.RecordBatch]: ...


def table(dataset: Table) -> tuple[VirtualDataset, str]:
    """The dataset's rows, and the name of the column in front that is not its own."""
    document = dataset.snapshot.document
    schema = document.schema
    hidden = next(name for i in count() if (name := f"_{i}") not in schema.names)
    fields = [pa.field(hidden, pa.int8()), *(pa.field(f.name, shown_type(f.type)) for f in schema)]
    shown = pa.schema(fields)
    altered = {f.name for f in schema if shown_type(f.type) != f.type}

    def read(columns: list[str], where: pads.Expression | None) -> Iterator[pa.RecordBatch]:
        if columns == [hidden] and where is None:
            yield from _blank(document.rows, shown.field(hidden))
            return
        own = [name for name in columns if name != hidden]
        batches, where = _scan(dataset, own, where, shown, altered)
        for batch in batches:
            kept = _show(batch, shown, hidden if hidden in columns else None)
            yield (kept if where is None else kept.filter(where)).select(columns)

    return VirtualDataset(shown, read), hidden


def _scan(
    dataset: Table, own: list[str], where: pads.Expression | None, shown: pa.Schema, altered: set[str]
) -> tuple[Iterable[pa.RecordBatch], pads.Expression | None]:
    """A scan that gives at least these columns, and the filter that is left to apply to its batches."""
    document = dataset.snapshot.document
    used = set() if where is None else columns_of(where, shown)
    if where is not None and not used & altered:
        asked = own or [_cheapest(document.schema)]
        with suppress(NotImplementedError):  # a filter that the scan does not understand
            return dataset.scan(asked, where, batch_size=_batch_rows(document, asked)), None
    asked = own + sorted(used - set(own)) or [_cheapest(document.schema)]
    return dataset.scan(asked, batch_size=_batch_rows(document, asked)), where


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


def _batch_rows(document: VersionDocument, columns: Sequence[str]) -> int:
    """How many rows of these columns make a batch: where widths differ, by the mean of the whole row."""
    widths = [_width(document.schema.field(name).type) for name in columns]
    mean = document.raw_bytes // max(document.rows, 1)
    width = mean if None in widths else min(sum(w for w in widths if w), mean)
    return max(1, min(_BATCH_ROWS, _BATCH_BYTES // max(width, 1)))


def _width(type: pa.DataType) -> int | None:  # noqa: A002
    """Raw bytes of a value, at least one; None where values differ."""
    try:
        return max(int(type.bit_width) // 8, 1)
    except ValueError:
        return None


def _cheapest(schema: pa.Schema) -> str:
    """The column that is least to read, for rows of which no column is wanted."""
    widths = {field.name: _width(field.type) or 1 << 20 for field in schema}
    return str(min(widths, key=widths.__getitem__))
