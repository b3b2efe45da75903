"""A plan batch as columns, before it is a record batch, a dict of tensors or anything else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from lake.parts import Raw, array_of, raw_of
from lake.scan.gather import Values


class Columns(NamedTuple):
    """The columns of a batch, in the order of `schema`; `dictionaries` has the values of those that are codes."""

    schema: pa.Schema
    values: Sequence[Values]
    rows: int
    dictionaries: Mapping[str, pa.Array]

    @classmethod
    def of(cls, batch: pa.RecordBatch) -> Columns:
        """The columns of a record batch."""
        return cls(batch.schema, batch.columns, batch.num_rows, {})

    def array(self, number: int) -> pa.Array:
        """One column as Arrow has it."""
        values = self.values[number]
        if isinstance(values, np.ndarray):
            field = self.schema.field(number)
            return array_of(values, field.type, self.dictionaries.get(field.name))
        return values

    def batch(self) -> pa.RecordBatch:
        """The columns as a record batch; nothing is copied."""
        arrays = [self.array(number) for number in range(len(self.values))]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


@lru_cache(maxsize=1024)
def shape_of(type_: pa.DataType) -> tuple[np.dtype[Any], tuple[int, ...], tuple[int, ...] | None] | None:
    """What a value of a fixed width is as an array: dtype, shape as stored, and the order of its axes.

    Moments are counts of their unit, codes are codes; None: nothing that an array can hold.

    >>> shape_of(pa.list_(pa.float32(), 3))
    (dtype('float32'), (3,), None)
    """
    if isinstance(type_, pa.FixedShapeTensorType):
        inner = shape_of(type_.value_type)
        axes = type_.permutation
        order = None if axes is None else tuple(axes)
        return None if inner is None else (inner[0], tuple(type_.shape), order)
    if isinstance(type_, pa.BaseExtensionType):
        return shape_of(type_.storage_type)
    if pa.types.is_dictionary(type_):
        return shape_of(type_.index_type)
    if pa.types.is_fixed_size_list(type_):
        inner = shape_of(type_.value_type)
        return None if inner is None else (inner[0], (type_.list_size, *inner[1]), None)
    if pa.types.is_integer(type_) or pa.types.is_floating(type_):
        return np.dtype(type_.to_pandas_dtype()), (), None
    if pa.types.is_temporal(type_) and not pa.types.is_interval(type_):
        return np.dtype(np.int32 if type_.bit_width == 32 else np.int64), (), None
    return None


def numbers(raw: Raw, type_: pa.DataType) -> np.ndarray[Any, Any] | None:
    """Bytes of values as an array of them, [rows, *shape], not copied unless axes change place."""
    shape = shape_of(type_)
    if shape is None:
        return None
    dtype, stored, order = shape
    if not len(raw):
        found = np.empty((0, *stored), dtype)
    else:
        found = raw.reshape(-1).view(dtype).reshape(len(raw), *stored)
    return found if order is None else np.ascontiguousarray(found.transpose(0, *(axis + 1 for axis in order)))


def numpy_of(columns: Columns, number: int) -> np.ndarray[Any, Any]:
    """A column as a NumPy array, which may be written to: [rows, *shape], or objects where there is no such form.

    Nulls: NaN among numbers, None among objects.
    """
    values, type_ = columns.values[number], columns.schema.field(number).type
    if pa.types.is_dictionary(type_):
        values = columns.array(number).dictionary_decode()
        type_ = type_.value_type
    raw = values if isinstance(values, np.ndarray) else raw_of(values)
    found = None if raw is None else numbers(raw, type_)
    if found is None:
        return _objects(columns.array(number) if isinstance(values, np.ndarray) else values)
    if pa.types.is_temporal(type_):
        return np.array(columns.array(number).to_numpy(zero_copy_only=False))
    return found if isinstance(values, np.ndarray) else found.copy()


def _objects(array: pa.Array) -> np.ndarray[Any, Any]:
    """Values that have no array form, by Arrow's rules."""
    found: np.ndarray[Any, Any] = array.to_numpy(zero_copy_only=False)
    return found if found.flags.writeable else found.copy()
