"""What lies in an Arrow array, whatever its layout: no dictionaries, runs, views, offsets or junk.

Everything here takes slices as they come, ignores what is hidden under nulls, and shares memory with the
array where no null forces a copy. It knows Arrow's layouts and nothing of lake's format.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

_BLOCK = 2**20  # bytes at a time where values must be copied: they stay in the CPU's cache

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


def is_text(type_: pa.DataType) -> bool:
    """Whether values are strings, of any offset width or as views."""
    return bool(
        pa.types.is_string(type_) or pa.types.is_large_string(type_) or pa.types.is_string_view(type_)
    )


def is_octets(type_: pa.DataType) -> bool:
    """Whether values are binaries of any length, of any offset width or as views."""
    return bool(
        pa.types.is_binary(type_) or pa.types.is_large_binary(type_) or pa.types.is_binary_view(type_)
    )


def is_view(type_: pa.DataType) -> bool:
    """Whether rows of lists may lie anywhere in their items."""
    return bool(pa.types.is_list_view(type_) or pa.types.is_large_list_view(type_))


def is_list(type_: pa.DataType) -> bool:
    """Whether values are lists of any length, of any offset width or as views; maps are not."""
    return bool(pa.types.is_list(type_) or pa.types.is_large_list(type_) or is_view(type_))


def plain(array: pa.Array) -> pa.Array:
    """The array with extensions as their storage, dictionaries and runs as values, string views as strings.

    Only the outermost level: what lists and structs hold stays as it is.
    """
    while True:
        type_ = array.type
        if isinstance(type_, pa.BaseExtensionType):
            array = array.storage
        elif isinstance(type_, (pa.DictionaryType, pa.RunEndEncodedType)):
            array = decoded(array)
        elif pa.types.is_string_view(type_):
            return array.cast(pa.large_string())
        elif pa.types.is_binary_view(type_):
            return array.cast(pa.large_binary())
        else:
            return array


def decoded(array: pa.Array) -> pa.Array:
    """The values of a dictionary or run-end encoded array, one for each row; strings with 64-bit offsets."""
    if isinstance(array.type, pa.DictionaryType):
        values = array.dictionary
        if is_text(values.type):  # one row each: maybe far more bytes than 32-bit offsets can count
            values = values.cast(pa.large_string())
        elif is_octets(values.type):
            values = values.cast(pa.large_binary())
        return values.take(array.indices)
    ends = np.clip(array.run_ends.to_numpy().astype(np.int64) - array.offset, 0, len(array))
    return _picked(array.values, np.repeat(np.arange(len(ends)), np.diff(ends, prepend=0)))


def _picked(values: pa.Array, places: Ints) -> pa.Array:
    """The values at these places."""
    try:
        return values.take(pa.array(places))
    except pa.ArrowNotImplementedError:  # views or runs: Arrow can only join pieces of them
        pieces = np.split(places, np.flatnonzero(np.diff(places) != 1) + 1) if len(places) else [places]
        return pa.concat_arrays([values.slice(piece[0] if len(piece) else 0, len(piece)) for piece in pieces])


def mask(array: pa.Array) -> Bools | None:
    """Which rows are not null; None if all are."""
    if not array.null_count:
        return None
    valid: Bools = array.is_valid().to_numpy(zero_copy_only=False)
    return valid


def packed(bits: list[pa.Array]) -> npt.NDArray[np.uint8]:
    """Boolean arrays without nulls as bits, least significant first, the last byte filled up with zeros."""
    joined = pa.concat_arrays(bits)  # begins at bit 0, whatever the offsets were
    size = -(-len(joined) // 8)
    if not size:
        return np.empty(0, np.uint8)
    octets = np.frombuffer(joined.buffers()[1], np.uint8, size)
    if len(joined) % 8:
        octets = octets.copy()
        octets[-1] &= 0xFF >> (8 - len(joined) % 8)
    return octets


def validity(array: pa.Array) -> pa.Buffer | None:
    """The validity bits from bit 0 on, as `pa.Array.from_buffers` wants them; None if no row is null."""
    return pa.py_buffer(packed([array.is_valid()])) if array.null_count else None


def offsets(array: pa.Array) -> npt.NDArray[Any]:
    """The n + 1 offsets of n strings, binaries, lists or maps; not of views."""
    if not len(array):
        return np.zeros(1, np.int64)
    if pa.types.is_nested(array.type):
        found: npt.NDArray[Any] = array.offsets.to_numpy()
        return found
    wide = pa.types.is_large_string(array.type) or pa.types.is_large_binary(array.type)
    width = np.dtype(np.int64 if wide else np.int32)
    return np.frombuffer(array.buffers()[1], width, len(array) + 1, array.offset * width.itemsize)


def lengths(array: pa.Array) -> Ints:
    """How many bytes or items each row of strings, binaries, lists or maps has; 0 where null."""
    if is_view(array.type):
        sizes: Ints = array.sizes.to_numpy().astype(np.int64)
    else:
        where = offsets(array)
        sizes = np.subtract(where[1:], where[:-1], dtype=np.int64)
    valid = mask(array)
    return sizes if valid is None else np.where(valid, sizes, 0)


def octets(array: pa.Array) -> memoryview:
    """The bytes of all strings or binaries that are not null, one after the other."""
    where = offsets(array)
    if array.null_count and lengths(array).sum() < where[-1] - where[0]:
        array = array.drop_null()  # with what it hid
        where = offsets(array)
    if where[-1] == where[0]:
        return memoryview(b"")
    return memoryview(array.buffers()[2])[where[0] : where[-1]]


def items(array: pa.Array) -> pa.Array:
    """The items of all lists or maps (then: key-value structs) that are not null, one after the other."""
    if pa.types.is_fixed_size_list(array.type):
        size = array.type.list_size
        valid = mask(array)
        if valid is None:
            return array.values.slice(array.offset * size, len(array) * size)
        starts = (array.offset + np.flatnonzero(valid)) * size
        return _picked(array.values, (starts[:, None] + np.arange(size)).ravel())
    sizes = lengths(array)
    if is_view(array.type):
        starts = array.offsets.to_numpy().astype(np.int64)
    else:
        where = offsets(array)
        if sizes.sum() == where[-1] - where[0]:  # nothing is hidden under nulls
            return array.values.slice(where[0], where[-1] - where[0])
        starts = where[:-1]
    before = np.cumsum(sizes) - sizes
    return _picked(array.values, np.repeat(starts - before, sizes) + np.arange(sizes.sum()))


def octets_of_equal_length(array: pa.Array) -> npt.NDArray[np.uint8]:
    """The bytes of fixed-size binaries without nulls, [rows, width]; not copied."""
    width = array.type.byte_width
    octets = np.frombuffer(array.buffers()[1], np.uint8, len(array) * width, array.offset * width)
    return octets.reshape(-1, width)


def fixed_blocks(array: pa.Array) -> Iterator[npt.NDArray[np.uint8]]:
    """The bytes of fixed-width values (no booleans), nulls as zeros; without nulls one piece, not copied."""
    width = array.type.bit_width // 8
    if not len(array) * width:
        return
    size, first = len(array) * width, array.offset * width
    valid = mask(array)
    if valid is None:
        yield np.frombuffer(array.buffers()[1], np.uint8, size, first)
        return
    unit = next(unit for unit in (8, 4, 2, 1) if width % unit == 0)
    values = np.frombuffer(array.buffers()[1], f"u{unit}", size // unit, first).reshape(len(array), -1)
    step = -(-_BLOCK // width)
    for start in range(0, len(array), step):
        part = slice(start, start + step)
        yield np.where(valid[part, None], values[part], values.dtype.type(0)).reshape(-1).view(np.uint8)
