"""Tables in memory and streams of record batches: passed through without copying."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from lake.convert.source import BATCH_BYTES, Meter, Request, Source, metered
from lake.errors import SchemaError

if TYPE_CHECKING:
    from pyarrow import dataset

_PROBE_ROWS = 64
_DATASET_ROWS = 1 << 17  # what Arrow itself takes


def is_arrow(data: Any) -> bool:
    """A pyarrow Table, RecordBatch, RecordBatchReader or Dataset."""
    return isinstance(data, (pa.Table, pa.RecordBatch, pa.RecordBatchReader)) or is_dataset(data)


def is_dataset(data: Any) -> bool:
    """A pyarrow Dataset; its module, which imports pandas, is not imported for the question."""
    dataset = sys.modules.get("pyarrow.dataset")
    return dataset is not None and isinstance(data, dataset.Dataset)


def is_pandas(data: Any) -> bool:
    """A pandas DataFrame; pandas is not imported for the question."""
    pandas = sys.modules.get("pandas")
    return pandas is not None and isinstance(data, pandas.DataFrame)


def is_lazy_polars(data: Any) -> bool:
    """A polars LazyFrame; polars is not imported for the question."""
    polars = sys.modules.get("polars")
    return polars is not None and isinstance(data, polars.LazyFrame)


def is_stream(data: Any) -> bool:
    """Anything with Arrow's PyCapsule interface: a polars DataFrame, a DuckDB relation."""
    return hasattr(data, "__arrow_c_stream__") or hasattr(data, "__arrow_c_array__")


def read_arrow(data: Any, request: Request) -> Source:
    """A source of pyarrow's own objects."""
    if is_dataset(data):
        return of_batches(data.schema, _scan(data))
    if isinstance(data, pa.RecordBatchReader):
        return of_batches(data.schema, data)
    table = pa.Table.from_batches([data]) if isinstance(data, pa.RecordBatch) else data
    return of_batches(table.schema, iter(table.to_batches()), rows=table.num_rows, size=table.nbytes)


def read_pandas(data: Any, request: Request) -> Source:
    """A source of a DataFrame. Its index is a column if it has a name; categories keep their order."""
    named = any(name is not None for name in data.index.names)
    for name, kind in data.dtypes.items():
        if str(kind).startswith("Sparse["):
            raise SchemaError(
                f"column {name!r} of the DataFrame is {kind}, which Arrow cannot hold: make it dense with "
                f"frame[{name!r}].sparse.to_dense()"
            )
    try:
        table = pa.Table.from_pandas(data, preserve_index=named)
    except (TypeError, pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, ValueError) as error:
        why = "; ".join(str(arg) for arg in error.args)
        raise SchemaError(
            f"the DataFrame has a column that Arrow cannot hold: {why}; convert it first"
        ) from error
    source = read_arrow(table, request)
    categories = {name: kind.categories for name, kind in data.dtypes.items() if hasattr(kind, "categories")}
    source.vocab = {
        str(name): pa.array(values).to_pylist()
        for name, values in categories.items()
        if str(name) in table.schema.names and pa.types.is_dictionary(table.schema.field(str(name)).type)
    }
    if not named and not _counts(data.index):
        source.notes.append(
            f"the DataFrame's index ({_shown(data.index[0])}, ...) has no name and was left out: give it one "
            "with frame.rename_axis(...) to keep it as a column"
        )
    return source


def _counts(index: Any) -> bool:
    """Whether an index only numbers the rows."""
    if type(index).__name__ == "RangeIndex":
        return True
    return not len(index) or bool(index.dtype.kind in "iu" and (index == np.arange(len(index))).all())


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."


def read_lazy_polars(data: Any, request: Request) -> Source:
    """A source of a LazyFrame, which runs in polars' streaming engine as its batches are asked for."""
    columns = data.collect_schema()
    _check_polars(columns)
    schema = pa.RecordBatchReader.from_stream(columns.to_frame()).schema
    frames = data.collect_batches(maintain_order=True)
    source = of_batches(
        schema, (batch for frame in frames for batch in pa.RecordBatchReader.from_stream(frame))
    )
    source.vocab = _enum_values(columns)
    return source


def read_stream(data: Any, request: Request) -> Source:
    """A source of whatever speaks Arrow's PyCapsule interface."""
    columns = _polars_columns(data)
    _check_polars(columns)
    try:
        if hasattr(data, "__arrow_c_stream__"):
            reader = pa.RecordBatchReader.from_stream(data)
        else:
            reader = pa.Table.from_batches([pa.record_batch(data)]).to_reader()
    except (pa.ArrowInvalid, TypeError, ValueError) as error:
        raise TypeError(
            f"{type(data).__name__} is no table: its Arrow stream has no columns ({error})"
        ) from error
    source = of_batches(reader.schema, reader)
    source.vocab = _enum_values(columns)
    return source


def of_batches(
    schema: pa.Schema, batches: Iterator[pa.RecordBatch], rows: int | None = None, size: int | None = None
) -> Source:
    """A source of record batches as they are."""
    meter = Meter()
    return Source(schema, metered(batches, meter), rows=rows, bytes=size, meter=meter)


def _scan(data: dataset.Dataset) -> Iterator[pa.RecordBatch]:
    """A dataset's batches in order, small enough that a few of them are little memory."""
    from pyarrow import dataset

    rows = _DATASET_ROWS
    if isinstance(data, (dataset.FileSystemDataset, dataset.UnionDataset)):
        head = data.head(_PROBE_ROWS, batch_size=_PROBE_ROWS, batch_readahead=0, fragment_readahead=0)
        each = max(1, head.nbytes // max(1, head.num_rows))
        rows = max(1, min(rows, BATCH_BYTES // each))
    yield from data.to_batches(batch_size=rows, batch_readahead=2, fragment_readahead=1)


def _polars_columns(data: Any) -> Mapping[str, Any]:
    """The columns' types of a polars frame; of anything else, none."""
    polars = sys.modules.get("polars")
    return data.schema if polars is not None and isinstance(data, polars.DataFrame) else {}


def _check_polars(columns: Mapping[str, Any]) -> None:
    """Refuse columns of Python objects, of which polars would give the addresses."""
    for name, kind in columns.items():
        if _holds_objects(kind):
            raise SchemaError(
                f"column {name!r} of the polars frame is {kind}, which holds Python objects: give it a type of "
                f"its own, or drop it with frame.drop({name!r})"
            )


def _holds_objects(kind: Any) -> bool:
    if type(kind).__name__ == "Object":
        return True
    inner = getattr(kind, "inner", None)
    fields = getattr(kind, "fields", None) or ()
    return (inner is not None and _holds_objects(inner)) or any(_holds_objects(f.dtype) for f in fields)


def _enum_values(columns: Mapping[str, Any]) -> dict[str, list[Any]]:
    """The values of polars' Enum columns, whose order is part of their type."""
    return {
        name: kind.categories.to_list() for name, kind in columns.items() if type(kind).__name__ == "Enum"
    }
