"""A 64-bit fingerprint of each value or row: equal for equal values, and otherwise not, once in 2**64.

For comparing rows within one process; nothing stores them, so they may change. Values of any type have one, by
the bits that Arrow holds: 0.0 and -0.0 differ, NaNs of the same bits do not.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import xxhash

from lake.format import arrays, cuts
from lake.format.cuts import Hashes

_NULL = np.uint64(0x6E756C6C6E756C6C)  # any number that nothing else is likely to have
_LONG = 512  # mean bytes of values that are worth a call each


def row_fingerprints(columns: Sequence[Sequence[pa.Array]], rows: int) -> Hashes:
    """One for each row of columns that are given as chunks, each column chunked as it likes."""
    found = np.zeros(rows, np.uint64)
    for chunks in columns:
        found = combined(found, np.concatenate([np.empty(0, np.uint64), *map(fingerprints, chunks)]))
    return found


def fingerprints(array: pa.Array) -> Hashes:
    """One for each value."""
    array = arrays.plain(array)
    type_ = array.type
    if pa.types.is_struct(type_):
        found = row_fingerprints([[field] for field in array.flatten()], len(array))
    elif pa.types.is_nested(type_):
        found = _of_lists(array)
    elif _is_long(array):
        values = array.cast(pa.large_binary()).to_pylist()
        found = np.array([xxhash.xxh3_64_intdigest(value or b"") for value in values], np.uint64)
    else:
        return cuts.row_hashes(pa.RecordBatch.from_arrays([array], names=["x"]), "x", 0)
    valid = arrays.mask(array)
    return found if valid is None else np.where(valid, found, _NULL)


def _of_lists(array: pa.Array) -> Hashes:
    """A sum of what is made of each item and its place, then the length: a list's rows are runs of items."""
    sizes = arrays.lengths(array) if not pa.types.is_fixed_size_list(array.type) else _fixed_lengths(array)
    ends = np.cumsum(sizes)
    places = np.arange(sizes.sum()) - np.repeat(ends - sizes, sizes)
    items = combined(fingerprints(arrays.items(array)), places.astype(np.uint64))
    sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(items)])
    return combined(sums[ends] - sums[ends - sizes], sizes.astype(np.uint64))


def _fixed_lengths(array: pa.Array) -> arrays.Ints:
    valid = arrays.mask(array)
    sizes = np.full(len(array), array.type.list_size)
    return sizes if valid is None else np.where(valid, sizes, 0)


def _is_long(array: pa.Array) -> bool:
    if not (arrays.is_text(array.type) or arrays.is_octets(array.type)) or not len(array):
        return False
    where = arrays.offsets(array)
    return bool(where[-1] - where[0] > _LONG * len(array))


def combined(*numbers: Hashes) -> Hashes:
    """One number for the several, at most four, of each row."""
    names = [str(number) for number in range(len(numbers))]
    batch = pa.RecordBatch.from_arrays([pa.array(each) for each in numbers], names=names)
    return cuts.row_hashes(batch, None, 0)
