"""Arrow columns as tensors: no per-row Python, and never a tensor over memory that somebody else reads.

| column | tensor |
|---|---|
| number, bool, date, time, timestamp | [B] (moments as int64 or int32 counts of their unit) |
| fixed-size list of n, fixed-shape tensor | [B, n], [B, *shape] |
| dictionary | [B], int64 codes of `ds.vocab(column)` |
| list | "nested": jagged [B, *]; "values": (values, offsets); "pad": [B, longest] and `<column>_length` |
| string, binary | a list of str or bytes; with `binary="values"` (uint8 values, int64 offsets) |
| anything else | the Arrow array |
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import torch

from lake.errors import SchemaError

Ragged = Literal["nested", "values", "pad"]
Binary = Literal["list", "values"]


@dataclass(frozen=True)
class Form:
    """How columns become tensors; the keywords of `Scan.to_torch`."""

    ragged: Ragged = "nested"
    nulls: Literal["error"] | Mapping[str, Any] = "error"
    binary: Binary = "list"
    copy: bool = True

    def __post_init__(self) -> None:
        if self.ragged not in ("nested", "values", "pad"):
            raise ValueError(f"ragged is 'nested', 'values' or 'pad', not {self.ragged!r}")
        if self.binary not in ("list", "values"):
            raise ValueError(f"binary is 'list' or 'values', not {self.binary!r}")
        if self.nulls != "error" and not isinstance(self.nulls, Mapping):
            raise ValueError("nulls is 'error' or a mapping of columns to the value that stands for null")


def tensors(batch: pa.RecordBatch, form: Form, *, key: str | None = None) -> dict[str, Any]:
    """The columns of a batch as tensors, in the batch's order. `key`: the column that names rows in errors.

    Raises:
        SchemaError: a null in a column that becomes a tensor, and no value to stand for it.
    """
    found: dict[str, Any] = {}
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        filled = _filled(name, column, form, batch, key)
        value = _convert(filled, form)
        if form.ragged == "pad" and isinstance(value, _Padded):
            found[name], found[f"{name}_length"] = value.values, value.lengths
        else:
            found[name] = value
    return found


@dataclass(frozen=True, slots=True)
class _Padded:
    values: torch.Tensor
    lengths: torch.Tensor


def _filled(name: str, column: pa.Array, form: Form, batch: pa.RecordBatch, key: str | None) -> pa.Array:
    """The column without nulls, unless it stays Arrow or Python, where null is None."""
    nulls = column.null_count
    if isinstance(column, pa.ExtensionArray):
        inner = column.storage
        nulls += _inner_nulls(inner)
    else:
        nulls += _inner_nulls(column)
    if not nulls or not _becomes_tensor(column.type, form):
        return column
    if form.nulls != "error" and name in form.nulls and column.null_count == nulls:
        try:
            return column.fill_null(form.nulls[name])
        except (pa.ArrowException, TypeError) as error:
            raise SchemaError(f"column {name!r} ({column.type}) cannot have {form.nulls[name]!r} for null: {error}") from error
    if form.nulls != "error" and name in form.nulls:
        raise SchemaError(f"column {name!r} ({column.type}) has nulls inside its values, which nulls= cannot fill")
    first = int(np.flatnonzero(np.asarray(column.is_null()))[0]) if column.null_count else None
    at = "" if first is None or key is None or key not in batch.schema.names else f", first at key {batch[key][first].as_py()!r}"
    raise SchemaError(
        f"column {name!r} has {nulls:,} nulls{at}, and a tensor has none: nulls={{{name!r}: 0}} fills them, "
        f"where='{name} is not null' leaves those rows out"
    )


def _inner_nulls(column: pa.Array) -> int:
    """Nulls among the elements of a list column."""
    if pa.types.is_fixed_size_list(column.type) or pa.types.is_list(column.type) or pa.types.is_large_list(column.type):
        inner = column.flatten()
        return int(inner.null_count) + _inner_nulls(inner)
    return 0


def _becomes_tensor(type_: pa.DataType, form: Form) -> bool:
    if pa.types.is_dictionary(type_):
        return True
    if isinstance(type_, pa.FixedShapeTensorType):
        return True
    if _is_text(type_):
        return form.binary == "values"
    if pa.types.is_fixed_size_list(type_) or pa.types.is_list(type_) or pa.types.is_large_list(type_):
        return _is_plain(type_.value_type)
    return _is_plain(type_)


def _is_plain(type_: pa.DataType) -> bool:
    """Whether values have a fixed width that a torch dtype has too."""
    return bool(
        pa.types.is_boolean(type_)
        or pa.types.is_integer(type_)
        or pa.types.is_floating(type_)
        or pa.types.is_date(type_)
        or pa.types.is_time(type_)
        or pa.types.is_timestamp(type_)
        or pa.types.is_duration(type_)
    )


def _is_text(type_: pa.DataType) -> bool:
    return bool(
        pa.types.is_large_string(type_)
        or pa.types.is_large_binary(type_)
        or pa.types.is_string(type_)
        or pa.types.is_binary(type_)
    )


def _convert(column: pa.Array, form: Form) -> Any:
    type_ = column.type
    if isinstance(type_, pa.FixedShapeTensorType) and _is_plain(type_.value_type):
        return _fixed_shape(column, type_, form)
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
        type_ = column.type
    if pa.types.is_dictionary(type_):
        return _own(_plain(column.indices.cast(pa.int64())), form)
    if _is_plain(type_):
        return _own(_plain(column), form)
    if pa.types.is_fixed_size_list(type_) and _is_plain(type_.value_type):
        return _own(_plain(column.flatten()).view(len(column), type_.list_size), form)
    if (pa.types.is_list(type_) or pa.types.is_large_list(type_)) and _is_plain(type_.value_type):
        return _ragged(column, form)
    if _is_text(type_):
        return _octets(column, form) if form.binary == "values" else column.to_pylist()
    return column


def _fixed_shape(column: pa.ExtensionArray, type_: pa.FixedShapeTensorType, form: Form) -> torch.Tensor:
    values = _plain(column.storage.flatten()).view(len(column), *type_.shape)
    order = type_.permutation
    if order is not None and list(order) != sorted(order):
        values = values.permute(0, *(axis + 1 for axis in np.argsort(order).tolist())).contiguous()
    return _own(values, form)


def _plain(column: pa.Array) -> torch.Tensor:
    """Fixed-width values without nulls as a tensor over Arrow's memory, or over a copy where it has no such form."""
    type_ = column.type
    if pa.types.is_boolean(type_):
        return torch.from_dlpack(column.cast(pa.uint8())).view(torch.bool)
    if not (pa.types.is_integer(type_) or pa.types.is_floating(type_)):
        column = column.view(pa.int32() if type_.bit_width == 32 else pa.int64())
    if not len(column):
        return torch.from_numpy(np.empty(0, column.type.to_pandas_dtype()))
    return torch.from_dlpack(column)


def _own(values: torch.Tensor, form: Form) -> torch.Tensor:
    """The caller's own memory, unless it asked for a view: what Arrow maps must not be written to."""
    return values.clone() if form.copy else values


def _bounds(column: pa.Array) -> tuple[int, int, np.ndarray]:
    """First and last element of a list column's values, and int64 offsets that begin at 0."""
    offsets = np.asarray(column.offsets).astype(np.int64)
    return int(offsets[0]), int(offsets[-1]), offsets - offsets[0]


def _ragged(column: pa.Array, form: Form) -> Any:
    start, stop, offsets = _bounds(column)
    values = _plain(column.values.slice(start, stop - start)).clone()
    if form.ragged == "values":
        return values, torch.from_numpy(offsets)
    if form.ragged == "nested":
        return torch.nested.nested_tensor_from_jagged(values, torch.from_numpy(offsets))
    lengths = np.diff(offsets)
    longest = int(lengths.max(initial=0))
    padded = torch.zeros((len(column), longest), dtype=values.dtype)
    padded[torch.from_numpy(np.arange(longest) < lengths[:, None])] = values
    return _Padded(padded, torch.from_numpy(lengths))


def _octets(column: pa.Array, form: Form) -> tuple[torch.Tensor, torch.Tensor]:
    offsets = np.frombuffer(column.buffers()[1], np.int64 if pa.types.is_large_binary(column.type) or pa.types.is_large_string(column.type) else np.int32)
    offsets = offsets[column.offset : column.offset + len(column) + 1].astype(np.int64)
    data = column.buffers()[2]
    octets = np.frombuffer(data, np.uint8)[offsets[0] : offsets[-1]] if data is not None else np.empty(0, np.uint8)
    return torch.from_numpy(octets.copy()), torch.from_numpy(offsets - offsets[0])
