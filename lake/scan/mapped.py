"""Functions over batches: what `Scan.map` gives its function, and what it takes back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import pyarrow as pa

from lake.errors import SchemaError
from lake.scan.columns import Columns, numpy_of

Format: TypeAlias = Literal["arrow", "numpy", "python"]


@dataclass(frozen=True)
class Mapped:
    """`fn`, called with each batch in the format it wants."""

    fn: Callable[[Any], Any]
    format: Format

    def __post_init__(self) -> None:
        if self.format not in ("arrow", "numpy", "python"):
            raise ValueError(f"format is 'arrow', 'numpy' or 'python', not {self.format!r}")
        if not callable(self.fn):
            raise TypeError(f"map() takes a function of a batch, not {type(self.fn).__name__}")

    def __call__(self, columns: Columns) -> Columns:
        """The columns that the function makes of these.

        Raises:
            TypeError: it gave back no batch, table or dict of columns.
            SchemaError: another number of rows, or values that are no column.
        """
        made = _batch_of(self.fn(self._given(columns)), self.fn)
        if made.num_rows != columns.rows:
            raise SchemaError(
                f"{_name(self.fn)} made {made.num_rows:,} rows of {columns.rows:,}: a mapped scan keeps its rows; "
                "filter with where=, or in a pipeline (ds.samples())"
            )
        return Columns.of(made)

    def _given(self, columns: Columns) -> Any:
        names = columns.schema.names
        if self.format == "arrow":
            return columns.batch()
        if self.format == "numpy":
            return {name: numpy_of(columns, number) for number, name in enumerate(names)}
        return {name: columns.array(number).to_pylist() for number, name in enumerate(names)}


def _batch_of(made: Any, fn: Callable[..., Any]) -> pa.RecordBatch:
    if isinstance(made, pa.RecordBatch):
        return made
    if isinstance(made, pa.Table):
        [batch] = made.combine_chunks().to_batches() or [pa.RecordBatch.from_pylist([], made.schema)]
        return batch
    if not isinstance(made, Mapping):
        raise TypeError(
            f"{_name(fn)} gave {type(made).__name__}: a batch, a table or a dict of columns is wanted"
        )
    return pa.RecordBatch.from_pydict({name: _column(name, values, fn) for name, values in made.items()})


def _column(name: str, values: Any, fn: Callable[..., Any]) -> pa.Array:
    try:
        if isinstance(values, pa.ChunkedArray):
            return values.combine_chunks()
        if hasattr(values, "detach"):  # a tensor of torch
            values = values.detach().cpu().numpy()
        if isinstance(values, np.ndarray) and values.ndim > 1:
            return _tensors(np.ascontiguousarray(values))
        return values if isinstance(values, pa.Array) else pa.array(values)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise SchemaError(f"{_name(fn)}: what it gave as {name!r} is no column: {error}") from error


def _tensors(values: np.ndarray[Any, Any]) -> pa.Array:
    """Rows of several numbers: as lists of one length, or tensors of one shape."""
    size = values[0].size if len(values) else int(np.prod(values.shape[1:]))
    lists = pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), size)
    if values.ndim == 2:
        return lists
    return pa.ExtensionArray.from_storage(
        pa.fixed_shape_tensor(lists.type.value_type, values.shape[1:]), lists
    )


def _name(fn: Callable[..., Any]) -> str:
    return f"{getattr(fn, '__qualname__', type(fn).__name__)}()"
