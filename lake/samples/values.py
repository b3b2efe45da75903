"""Columns as lists of Python values, a batch at a time.

Bytes, strings, booleans, numbers and None as Python has them. Tensors and lists of numbers are NumPy arrays of
the caller's own; a list with a null in it stays a list. Dictionary columns give codes. Anything else is what
Arrow makes of it: lists, dicts, dates, decimals.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa

from lake.convert.tensors import MARK, is_variable_shape

Array = np.ndarray[Any, np.dtype[Any]]

_PLAIN: Final = frozenset(
    kind.id
    for kind in (
        *(pa.large_string(), pa.string_view(), pa.large_binary(), pa.binary_view(), pa.bool_()),
        *(pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
        *(pa.float32(), pa.float64()),
    )
)  # types whose values are what Arrow makes of them


def samples(
    keys: Sequence[Any], names: Sequence[str], columns: Sequence[Sequence[Any]]
) -> list[tuple[Any, dict[str, Any]]]:
    """Rows as `(key, {field: value})`."""
    if len(names) == 1:
        [name], [column] = names, columns
        return [(key, {name: value}) for key, value in zip(keys, column, strict=True)]
    rows = zip(*columns, strict=True) if columns else [()] * len(keys)
    return [(key, dict(zip(names, row, strict=True))) for key, row in zip(keys, rows, strict=True)]


def values(array: pa.Array | pa.ChunkedArray, field: pa.Field) -> list[Any]:
    """The values of a column, None for nulls; only strings and binaries may be in chunks."""
    kind = array.type
    if kind.id in _PLAIN:
        plain: list[Any] = array.to_pylist()
        return plain
    if pa.types.is_dictionary(kind):
        return list(array.indices.to_pylist())
    if isinstance(kind, pa.FixedShapeTensorType) and _is_number(kind.value_type):
        return _tensors(array)
    if _is_variable_shape(field, kind):
        shapes = array.field("shape").to_pylist()
        flat = _with_nulls(_lists(array.field("data")), array)
        return [
            None if each is None else each.reshape(shape) for each, shape in zip(flat, shapes, strict=True)
        ]
    if pa.types.is_fixed_size_list(kind) and _leaf(kind) is not None:
        return _fixed(array)
    if (pa.types.is_list(kind) or pa.types.is_large_list(kind)) and _is_number(kind.value_type):
        return _lists(array)
    return list(array.to_pylist())


def _is_variable_shape(field: pa.Field, kind: pa.DataType) -> bool:
    marked = dict(field.metadata or {}).get(next(iter(MARK))) == next(iter(MARK.values()))
    return marked and is_variable_shape(kind) and _is_number(kind[0].type.value_type)


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def _leaf(kind: pa.DataType) -> pa.DataType | None:
    """The numbers that fixed-size lists hold at the bottom."""
    while pa.types.is_fixed_size_list(kind):
        kind = kind.value_type
    return kind if _is_number(kind) else None


def _with_nulls(found: list[Any], array: pa.Array) -> list[Any]:
    if array.null_count:
        for place in np.flatnonzero(np.asarray(array.is_null())).tolist():
            found[place] = None
    return found


def _tensors(array: pa.Array) -> list[Any]:
    kind = array.type
    flat = _fixed(array.storage)
    axes = kind.permutation
    made = [None if each is None else np.reshape(each, kind.shape) for each in flat]
    if axes is None:
        return made
    return [None if each is None else np.ascontiguousarray(each.transpose(axes)) for each in made]


def _fixed(array: pa.Array) -> list[Any]:
    """Lists of one length, at any depth."""
    shape, numbers, rows = list[int](), array, len(array)
    while pa.types.is_fixed_size_list(numbers.type):
        size = numbers.type.list_size
        if numbers is not array and numbers.null_count:
            return _with_nulls([_array_or_list(each) for each in array.to_pylist()], array)
        numbers = numbers.values.slice(numbers.offset * size, len(numbers) * size)
        shape.append(size)
    if numbers.null_count and (not array.null_count or _has_inner_nulls(array)):
        dtype = numbers.type.to_pandas_dtype()
        return [_array_or_list(each, dtype) for each in array.to_pylist()]
    matrix = _numpy(numbers).reshape(rows, *shape)
    return _with_nulls([row.copy() for row in matrix], array)


def _has_inner_nulls(array: pa.Array) -> bool:
    inner = array.drop_null().flatten()
    while pa.types.is_fixed_size_list(inner.type):
        inner = inner.flatten()
    return bool(inner.null_count)


def _lists(array: pa.Array) -> list[Any]:
    """Lists of numbers, each of its own length."""
    offsets = array.offsets.to_pylist()
    first, last = (offsets[0], offsets[-1]) if offsets else (0, 0)
    numbers = array.values.slice(first, last - first)
    ends = [offset - first for offset in offsets]
    if numbers.null_count:
        dtype = numbers.type.to_pandas_dtype()
        return [_array_or_list(each, dtype) for each in array.to_pylist()]
    flat = _numpy(numbers)
    return _with_nulls([flat[start:stop].copy() for start, stop in pairwise(ends)], array)


def _numpy(numbers: pa.Array) -> Array:
    found: Array = (
        numbers.fill_null(0).to_numpy(zero_copy_only=False)
        if numbers.null_count
        else numbers.to_numpy(zero_copy_only=False)
    )
    return found


def _array_or_list(value: Any, dtype: Any = None) -> Any:
    """A list as an array, unless a null is in it."""
    if value is None or _has_none(value):
        return value
    return np.array(value, dtype)


def _has_none(value: Iterable[Any]) -> bool:
    return any(each is None or (isinstance(each, list) and _has_none(each)) for each in value)
