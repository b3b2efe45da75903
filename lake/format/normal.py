"""The normal form of an Arrow array: equal values in equal buffers, however the array was sliced or built.

Arrow leaves free what lies under nulls, before an offset and after the last value, and its writers copy some
of that into files. In normal form an array begins at the start of its buffers, which are exactly as long as
its values; null slots hold zeros or nothing; slots below a null are not null themselves; and there is a
bitmap only where there are nulls. Buffers that are so already are shared, not copied.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Mask = npt.NDArray[np.bool_] | None  # bool per slot


def normal(array: pa.Array, hidden: Mask = None, each: int = 1) -> pa.Array:
    """`array` in normal form. `hidden` marks runs of `each` slots that lie below a null."""
    type_, size = array.type, len(array)
    if isinstance(type_, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(type_, normal(array.storage, hidden, each))
    if pa.types.is_null(type_):
        return pa.nulls(size)
    if array.null_count == 0:
        buffers, children = _contents(array, hidden, each)
        return pa.Array.from_buffers(type_, size, [None, *buffers], 0, 0, children)
    blank = ~_numpy(array.is_valid())
    valid = ~blank
    if hidden is not None:
        hidden = np.repeat(hidden, each)
        blank, valid = blank | hidden, valid | hidden
    nulls = size - int(np.count_nonzero(valid))
    buffers, children = _contents(array, blank, 1)
    return pa.Array.from_buffers(type_, size, [_bits(valid) if nulls else None, *buffers], nulls, 0, children)


def occupied(array: pa.Array) -> int:
    """Bits that an array takes in memory in normal form, a bitmap at every level included.

    It depends on the values alone, and is the sum over any division of the array into slices.
    """
    slot = _slot(array.type)
    return _occupied(normal(array)) if slot is None else len(array) * slot


def _slot(type_: pa.DataType) -> int | None:
    """Bits of each slot, bitmaps included; None if that depends on the value."""
    if isinstance(type_, pa.BaseExtensionType):
        return _slot(type_.storage_type)
    if pa.types.is_null(type_):
        return 0
    if _offset_width(type_) is not None:
        return None
    if not pa.types.is_nested(type_):
        return 1 + int(type_.bit_width)
    inner = [_slot(type_.field(i).type) for i in range(type_.num_fields)]
    times = type_.list_size if pa.types.is_fixed_size_list(type_) else 1
    return None if None in inner else 1 + times * sum(bits for bits in inner if bits is not None)


def _occupied(array: pa.Array) -> int:
    """The same, of an array in normal form."""
    type_, size = array.type, len(array)
    slot = _slot(type_)
    if slot is not None:
        return size * slot
    if isinstance(type_, pa.BaseExtensionType):
        return _occupied(array.storage)
    if pa.types.is_struct(type_):
        return size + sum(_occupied(array.field(i)) for i in range(type_.num_fields))
    if pa.types.is_fixed_size_list(type_):
        return size + _occupied(array.values)
    width = _offset_width(type_) or 0
    inner = _occupied(array.values) if type_.num_fields else 8 * int(_offsets(array, width)[-1])
    return size * (1 + 8 * width) + inner


def overhead(type_: pa.DataType) -> int:
    """Bytes that an array may take beyond `occupied`: bits filled up, and one offset more than slots."""
    if isinstance(type_, pa.BaseExtensionType):
        return overhead(type_.storage_type)
    if pa.types.is_null(type_):
        return 0
    own = 1 + (_offset_width(type_) or 1)
    return own + sum(overhead(type_.field(i).type) for i in range(type_.num_fields))


def _contents(
    array: pa.Array, blank: Mask, each: int
) -> tuple[list[pa.Buffer | None], list[pa.Array] | None]:
    """Buffers after the bitmap, and children; runs of `each` slots that are `blank` hold nothing."""
    type_, size = array.type, len(array)
    if pa.types.is_struct(type_):
        return [], [normal(array.field(i), blank, each) for i in range(type_.num_fields)]
    if pa.types.is_fixed_size_list(type_):
        items = array.values.slice(array.offset * type_.list_size, size * type_.list_size)
        return [], [normal(items, blank, each * type_.list_size)]
    width = _offset_width(type_)
    if width is None and not pa.types.is_boolean(type_):
        return [_fixed(array, blank, each)], None
    blank = blank if blank is None or each == 1 else np.repeat(blank, each)
    if width is None:
        return [_flags(array, blank)], None
    offsets, array = _dense(array, width, blank)
    first, last = (int(offset) for offset in _offsets(array, width)[[0, -1]])
    if type_.num_fields:
        return [offsets], [normal(array.values.slice(first, last - first))]
    data = array.buffers()[2]
    return [offsets, pa.py_buffer(b"") if data is None else data.slice(first, last - first)], None


def _fixed(array: pa.Array, blank: Mask, each: int) -> pa.Buffer:
    width = array.type.bit_width // 8
    start, length = array.offset * width, len(array) * width
    buffer = array.buffers()[1]
    if not length or buffer is None:
        return pa.py_buffer(b"")
    exact = buffer.slice(start, length)
    if blank is None:
        return exact
    run = each * width
    unit = next(size for size in (8, 4, 2, 1) if run % size == 0)
    values = np.frombuffer(exact, f"u{unit}").reshape(-1, run // unit)
    if not values[blank].any():
        return exact
    values = values.copy()
    values[blank] = 0
    return pa.py_buffer(values)


def _flags(array: pa.Array, blank: Mask) -> pa.Buffer:
    values = _numpy(array.fill_null(False) if array.null_count else array)
    return _bits(values if blank is None else values & ~blank)


def _dense(array: pa.Array, width: int, blank: Mask) -> tuple[pa.Buffer, pa.Array]:
    """Offsets from zero, and an array whose values between its first and last offset they mark off."""
    offsets = _offsets(array, width)
    if blank is not None:
        lengths = np.diff(offsets)
        if lengths[blank].any():
            lengths[blank] = 0
            return _from_lengths(lengths, offsets.dtype), array.filter(pa.array(~blank))
    if offsets[0]:
        return pa.py_buffer(offsets - offsets[0]), array
    if array.buffers()[1] is None or not array.buffers()[1].size:
        return pa.py_buffer(offsets), array
    return array.buffers()[1].slice(array.offset * width, len(offsets) * width), array


def _from_lengths(lengths: np.ndarray, dtype: Any) -> pa.Buffer:
    offsets = np.zeros(len(lengths) + 1, dtype)
    np.cumsum(lengths, out=offsets[1:])
    return pa.py_buffer(offsets)


def _offset_width(type_: pa.DataType) -> int | None:
    """Bytes of an offset of a type of variable length, None for other types."""
    if pa.types.is_large_string(type_) or pa.types.is_large_binary(type_) or pa.types.is_large_list(type_):
        return 8
    if (
        pa.types.is_string(type_)
        or pa.types.is_binary(type_)
        or pa.types.is_list(type_)
        or pa.types.is_map(type_)
    ):
        return 4
    return None


def _offsets(array: pa.Array, width: int) -> np.ndarray:
    buffer = array.buffers()[1]
    if buffer is None or not buffer.size:  # allowed for an empty array
        return np.zeros(1, f"<i{width}")
    return np.frombuffer(buffer, f"<i{width}", len(array) + 1, array.offset * width)


def _numpy(flags: pa.Array) -> npt.NDArray[np.bool_]:
    found: npt.NDArray[np.bool_] = flags.to_numpy(zero_copy_only=False)
    return found


def _bits(flags: np.ndarray) -> pa.Buffer:
    return pa.py_buffer(np.packbits(flags, bitorder="little"))
