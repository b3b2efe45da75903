"""Runs of values in one column, and their bytes where a value is nothing but a fixed number of them."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Raw: TypeAlias = npt.NDArray[np.uint8]  # [rows, bytes of a value]
Ints: TypeAlias = npt.NDArray[np.int64]


class Chunk:
    """Some rows of a column. `raw` is None where values have no fixed width, or one is null.

    Rows that were picked from others are copied when they are looked at, or straight to where they are wanted.
    `fixed`: the bytes of a value; None where there is no `raw`. `mapped`: they lie in a file.
    """

    __slots__ = (
        "_address",
        "_array",
        "_buffer",
        "_picked",
        "_raw",
        "_spans",
        "dictionary",
        "fixed",
        "mapped",
        "rows",
        "type",
    )

    def __init__(self, array: pa.Array, *, mapped: bool = False) -> None:
        self.type, self.rows, self.mapped = array.type, len(array), mapped
        self._array: pa.Array | None = array
        self._raw = raw_of(array)
        self._picked: tuple[Raw | pa.Array, Ints] | None = None  # from whose bytes, or values without a width
        self._buffer: pa.Buffer | None = None
        self._address: int | None = None
        self._spans: tuple[Ints, pa.Buffer | None] | None = None
        self.fixed = None if self._raw is None else int(self._raw.shape[1])
        self.dictionary = array.dictionary if pa.types.is_dictionary(array.type) else None

    @classmethod
    def of_raw(cls, raw: Raw, type_: pa.DataType) -> Chunk:
        """The values with these bytes, of a type that is no dictionary."""
        chunk = object.__new__(cls)
        chunk.type, chunk.fixed, chunk.dictionary, chunk.mapped = type_, int(raw.shape[1]), None, False
        return chunk._of(len(raw), raw, None)

    @property
    def raw(self) -> Raw | None:
        """The values' bytes, [rows, fixed]."""
        if self._raw is None and self._picked is not None and self.fixed is not None:
            source, rows = self._picked
            self._raw, self._picked = source.take(rows, axis=0), None
        return self._raw

    @property
    def buffer(self) -> pa.Buffer:
        """The bytes among which those of the values are, of values of fixed width."""
        if self._buffer is None:
            raw = self.raw if self._picked is None else self._picked[0]
            self._buffer = pa.py_buffer(raw)
        return self._buffer

    @property
    def address(self) -> int:
        """Where the bytes of the values begin, of values of fixed width."""
        if self._address is None:
            assert self.raw is not None
            self._address = int(self.raw.ctypes.data)
        return self._address

    @property
    def picked(self) -> Ints | None:
        """Which of the values in `buffer` or `source` these are; None: all of them."""
        return None if self._picked is None else self._picked[1]

    @property
    def spans(self) -> tuple[Ints, pa.Buffer | None]:
        """Where the values in `source` begin, and the last one ends, in which bytes; of strings and binaries."""
        if self._spans is not None:
            return self._spans
        array = self.source
        _, where, data = array.buffers()
        found = np.frombuffer(where, np.int64, len(array) + 1, 8 * array.offset), data
        if self._picked is None:  # else `source` may change
            self._spans = found
        return found

    @property
    def source(self) -> pa.Array:
        """The values among which these are, of values without a fixed width."""
        return self.array if self._picked is None else self._picked[0]

    @property
    def array(self) -> pa.Array:
        """The rows as Arrow has them."""
        if self._array is None:
            if self.fixed is None and self._picked is not None:
                source, rows = self._picked
                self._array, self._picked = source.take(pa.array(rows)), None
            else:
                raw = self.raw
                assert raw is not None
                self._array = array_of(raw, self.type, self.dictionary)
        return self._array

    def copy_to(self, out: Raw) -> None:
        """Copy the values' bytes to `out`."""
        if self._picked is not None:
            source, rows = self._picked
            source.take(rows, axis=0, out=out, mode="clip")  # all are in range, and "raise" would copy twice
        elif self._raw is not None:
            out[...] = self._raw

    def slice(self, start: int, stop: int) -> Chunk:
        """Rows [start, stop), not copied."""
        if start == 0 and stop == self.rows:
            return self
        raw = self.raw
        if raw is not None:
            return self._of(stop - start, raw[start:stop], None)
        array = self.array.slice(start, stop - start)
        if self.array.null_count:  # its rows may have a width where none of them is null
            return Chunk(array, mapped=self.mapped)
        chunk = self._of(len(array), None, None)
        chunk._array = array
        return chunk

    def take(self, rows: Ints) -> Chunk:
        """These rows."""
        raw = self.raw
        return self._of(len(rows), None, (self.array if raw is None else raw, rows))

    def owned(self) -> Chunk:
        """The same rows in memory, so that nothing refers to a file."""
        if not self.mapped:
            return self
        if self.fixed is None:
            is_copied = self._picked is not None
            return Chunk(self.array if is_copied else pa.concat_arrays([self.array, self.array[:0]]))
        raw = np.empty((self.rows, self.fixed), np.uint8)
        self.copy_to(raw)
        owned = self._of(self.rows, raw, None)
        owned.mapped = False
        return owned

    def _of(self, rows: int, raw: Raw | None, picked: tuple[Raw | pa.Array, Ints] | None) -> Chunk:
        chunk = object.__new__(Chunk)
        chunk.type, chunk.rows, chunk.fixed, chunk.dictionary = self.type, rows, self.fixed, self.dictionary
        chunk.mapped = self.mapped
        chunk._array, chunk._raw, chunk._picked = None, raw, picked
        chunk._buffer = chunk._address = chunk._spans = None
        return chunk


def width(type_: pa.DataType) -> int | None:
    """Bytes of a value of this type; None if they differ from value to value, are bits, or none at all.

    >>> width(pa.list_(pa.float32(), 256)), width(pa.large_string()), width(pa.dictionary(pa.int32(), pa.int8()))
    (1024, None, 4)
    """
    if isinstance(type_, pa.BaseExtensionType):
        return width(type_.storage_type)
    if pa.types.is_dictionary(type_):
        return width(type_.index_type)
    if pa.types.is_fixed_size_list(type_):
        each = None if _has_dictionary(type_.value_type) else width(type_.value_type)
        return each * type_.list_size or None if each else None
    if pa.types.is_nested(type_) or pa.types.is_boolean(type_) or pa.types.is_null(type_):
        return None
    try:
        return int(type_.bit_width) // 8 or None
    except ValueError:
        return None


def _has_dictionary(type_: pa.DataType) -> bool:
    """Whether codes lie somewhere below a fixed-size list: bytes alone would not say of which dictionary."""
    if isinstance(type_, pa.BaseExtensionType):
        return _has_dictionary(type_.storage_type)
    if pa.types.is_fixed_size_list(type_):
        return _has_dictionary(type_.value_type)
    return bool(pa.types.is_dictionary(type_))


def raw_of(array: pa.Array) -> Raw | None:
    """The values' bytes where Arrow holds them, [rows, width]; None if there is a null or no width."""
    size = width(array.type)
    if size is None:
        return None
    rows = len(array)
    while True:
        if array.null_count:
            return None
        type_ = array.type
        if isinstance(type_, pa.BaseExtensionType):
            array = array.storage
        elif pa.types.is_dictionary(type_):
            array = array.indices
        elif pa.types.is_fixed_size_list(type_):
            first = array.offset * type_.list_size
            array = array.values.slice(first, len(array) * type_.list_size)
        else:
            break
    if not rows:
        return np.empty((rows, size), np.uint8)
    each = type_.bit_width // 8
    return np.frombuffer(array.buffers()[1], np.uint8, rows * size, array.offset * each).reshape(rows, size)


def array_of(raw: Raw, type_: pa.DataType, dictionary: pa.Array | None = None) -> pa.Array:
    """The array whose values have these bytes, which are not copied. `dictionary`: the values of one."""
    rows = len(raw)
    if isinstance(type_, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(type_, array_of(raw, type_.storage_type))
    if pa.types.is_dictionary(type_):
        codes = array_of(raw, type_.index_type)
        return pa.DictionaryArray.from_arrays(codes, dictionary, ordered=type_.ordered, safe=False)
    if pa.types.is_fixed_size_list(type_):
        each = raw.shape[1] // type_.list_size
        values = array_of(raw.reshape(rows * type_.list_size, each), type_.value_type)
        return pa.Array.from_buffers(type_, rows, [None], 0, children=[values])
    return pa.Array.from_buffers(type_, rows, [None, pa.py_buffer(raw)], 0)
