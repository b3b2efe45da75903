"""Casts that keep every value or fail: nothing is rounded, truncated, parsed or printed.

`castable` judges types; whether each value fits is for `cast` to find out. Arrays that have the type already
are handed back as they are.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa

from lake.format import arrays
from lake.format.types import canonical_type, children, values_of

_TEMPORAL_KINDS: tuple[Callable[[pa.DataType], bool], ...] = (
    pa.types.is_date,
    pa.types.is_time,
    pa.types.is_timestamp,
    pa.types.is_duration,
)


def castable(source: pa.DataType, target: pa.DataType) -> bool:
    """Whether values of `source` may go into a column of `target`, provided each fits.

    Any layout of one canonical type; null into anything; integers into integers, float32 and float64; floats
    into wider ones; decimals into ones with room for all digits; dates, times, durations and timestamps of
    one zone into other units; lists, maps and structs whose children may. A struct may lack nullable fields.
    """
    source, target = values_of(source), values_of(target)
    if pa.types.is_null(source):
        return True
    if pa.types.is_integer(source):
        return bool(pa.types.is_integer(target) or pa.types.is_float32(target) or pa.types.is_float64(target))
    if pa.types.is_floating(source):
        return bool(pa.types.is_floating(target) and source.bit_width <= target.bit_width)
    if pa.types.is_decimal(source) and pa.types.is_decimal(target):
        whole = source.precision - source.scale <= target.precision - target.scale
        return bool(whole and source.scale <= target.scale)
    if pa.types.is_timestamp(source) and pa.types.is_timestamp(target) and source.tz != target.tz:
        return False
    if any(is_kind(source) and is_kind(target) for is_kind in _TEMPORAL_KINDS):
        return True
    if same_kind(source, target):
        return _castable_children(source, target)
    return canonical_type(source) == canonical_type(target)


def same_kind(source: pa.DataType, target: pa.DataType) -> bool:
    """Whether both are lists, both maps, both structs, or both lists of one fixed size."""
    if pa.types.is_fixed_size_list(source) and pa.types.is_fixed_size_list(target):
        return bool(source.list_size == target.list_size)
    kinds = (arrays.is_list, pa.types.is_map, pa.types.is_struct)
    return any(is_kind(source) and is_kind(target) for is_kind in kinds)


def _castable_children(source: pa.DataType, target: pa.DataType) -> bool:
    pairs = list(zip(children(source), children(target), strict=False))
    if pa.types.is_struct(source) and _names(source) != _names(target):
        given = {field.name: field for field in source}
        if len(given) < source.num_fields or not given.keys() <= set(_names(target)):
            return False
        if not all(field.nullable for field in target if field.name not in given):
            return False
        pairs = [(given[field.name], field) for field in target if field.name in given]
    return all(castable(a.type, b.type) for a, b in pairs)


def _names(type_: pa.DataType) -> list[str]:
    return [field.name for field in type_]


def cast(array: pa.Array, target: pa.DataType) -> pa.Array:
    """The values of `array` as `target`, to which its type must be `castable`; itself if it is that.

    Raises:
        pa.ArrowInvalid: a value does not fit.
    """
    source = array.type
    if source.equals(target, check_metadata=True):
        return array
    if pa.types.is_null(source):
        return pa.nulls(len(array), target)
    if isinstance(source, (pa.DictionaryType, pa.RunEndEncodedType)):
        return cast(arrays.decoded(array), target)
    if isinstance(target, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(target, cast(array.storage, target.storage_type))
    if pa.types.is_struct(target):
        return _cast_struct(array, target)
    if pa.types.is_fixed_size_list(target):
        return _cast_fixed_size_list(array, target)
    if pa.types.is_nested(target):
        return _cast_lists(array, target)
    return array.cast(target)


def _cast_struct(array: pa.Array, target: pa.DataType) -> pa.Array:
    given = array.flatten()  # null wherever the struct is
    if _names(array.type) != _names(target):
        named = dict(zip(_names(array.type), given, strict=True))
        given = [named.get(field.name, pa.nulls(len(array))) for field in target]
    made = [cast(child, field.type) for child, field in zip(given, target, strict=True)]
    return pa.Array.from_buffers(target, len(array), [arrays.validity(array)], children=made)


def _cast_fixed_size_list(array: pa.Array, target: pa.DataType) -> pa.Array:
    items = cast(arrays.items(array), target.value_type)
    valid = arrays.mask(array)
    if valid is not None:  # the items of nulls were left out: put nulls there
        first = (np.cumsum(valid) - 1) * target.list_size
        places = (first[:, None] + np.arange(target.list_size)).ravel()
        items = items.take(pa.array(places, mask=np.repeat(~valid, target.list_size)))
    return pa.Array.from_buffers(target, len(array), [arrays.validity(array)], children=[items])


def _cast_lists(array: pa.Array, target: pa.DataType) -> pa.Array:
    """Lists of any layout into lists, maps into maps."""
    width = np.int64 if pa.types.is_large_list(target) else np.int32
    ends = np.cumsum(arrays.lengths(array))
    if len(ends) and ends[-1] > np.iinfo(width).max:
        raise pa.ArrowInvalid(f"{ends[-1]:,} items in one batch are too many for {target}: use large_list")
    where = pa.py_buffer(np.concatenate([[0], ends]).astype(width))
    inner = pa.struct(children(target)) if pa.types.is_map(target) else target.value_type
    made = [cast(arrays.items(array), inner)]
    return pa.Array.from_buffers(target, len(array), [arrays.validity(array), where], children=made)


def first_misfit(array: pa.Array, target: pa.DataType) -> int:
    """The number of the first row that `cast` refuses, of an array that it refuses; by bisection."""
    fits, refused = 0, len(array)  # the prefixes of so many rows
    while refused - fits > 1:
        middle = (fits + refused) // 2
        try:
            cast(array.slice(fits, middle - fits), target)
            fits = middle
        except pa.ArrowInvalid:
            refused = middle
    return fits
