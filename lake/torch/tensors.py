"""Columns as tensors: no per-row Python, and never a tensor over memory that somebody else reads.

| column | tensor |
|---|---|
| number, bool, date, time, timestamp, duration | [B] (moments as int64 or int32 counts of their unit) |
| fixed-size list of n, fixed-shape tensor | [B, n], [B, *shape] |
| dictionary | [B], int64 codes of `ds.vocab(column)` |
| list | "nested": jagged [B, *]; "values": (values, offsets); "pad": [B, longest] and `<column>_length` |
| string, binary | a list of str or bytes; with `binary="values"` (uint8 values, int64 offsets) |
| anything else | the Arrow array |
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import pyarrow as pa
import torch

from lake.errors import SchemaError
from lake.parts import Raw, raw_of
from lake.scan.columns import Columns, numbers, shape_of

_OfBytes: TypeAlias = Callable[[Raw], torch.Tensor]

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

    def check(self, schema: pa.Schema) -> None:
        """ValueError if `nulls` names a column that is not there."""
        known = schema.names
        named = self.nulls if isinstance(self.nulls, Mapping) else ()
        if unknown := [name for name in named if name not in known]:
            raise ValueError(
                f"nulls= names {', '.join(map(repr, unknown))}; columns of this scan are {', '.join(map(repr, known))}"
            )


class Tensors:
    """Makes tensors of batches. `key`: the column that names rows in errors."""

    def __init__(self, form: Form, *, key: str | None = None) -> None:
        self._form, self._key = form, key
        self._schema: pa.Schema | None = None
        self._of_bytes: list[_OfBytes | None] = []

    def __call__(self, columns: Columns) -> dict[str, Any]:
        """The columns as tensors, in the batch's order.

        Raises:
            SchemaError: a null in a column that becomes a tensor, and no value to stand for it.
        """
        if columns.schema is not self._schema:
            self._form.check(columns.schema)
            self._schema, self._names = columns.schema, columns.schema.names
            self._of_bytes = [_of_bytes(field.type) for field in columns.schema]
        found: dict[str, Any] = {}
        for number, name in enumerate(self._names):
            values = columns.values[number]
            if isinstance(values, np.ndarray):
                convert = self._of_bytes[number]
                found[name] = columns.array(number) if convert is None else convert(values)
                continue
            value = self._of_array(self._filled(columns, number, columns.schema.field(number).type))
            if isinstance(value, _Padded):
                found[name], found[f"{name}_length"] = value.values, value.lengths
            else:
                found[name] = value
        return found

    def _of_array(self, array: pa.Array) -> Any:
        type_ = array.type
        if pa.types.is_dictionary(type_):
            return torch.from_numpy(np.asarray(array.indices.cast(pa.int64())).copy())
        if shape_of(type_) is not None:
            return self._fixed(array)
        if isinstance(array, pa.ExtensionArray):
            array, type_ = array.storage, array.type.storage_type
        if pa.types.is_boolean(type_):
            return _bools(array)
        if _is_list(type_) and (
            shape_of(type_.value_type) is not None or pa.types.is_boolean(type_.value_type)
        ):
            return self._ragged(array)
        if _is_text(type_):
            return _octets(array) if self._form.binary == "values" else array.to_pylist()
        return array

    def _fixed(self, array: pa.Array) -> torch.Tensor:
        raw = raw_of(array)
        if raw is None:  # lists of no elements: no bytes at all
            dtype, shape, _ = shape_of(array.type) or (np.dtype(np.uint8), (), None)
            return torch.from_numpy(np.empty((len(array), *shape), dtype))
        found = numbers(raw, array.type)
        assert found is not None
        return torch.from_numpy(found.copy()) if self._form.copy else _over(raw, found)

    def _ragged(self, array: pa.Array) -> Any:
        offsets = np.asarray(array.offsets).astype(np.int64)
        inner = array.values.slice(int(offsets[0]), int(offsets[-1] - offsets[0]))
        offsets = offsets - offsets[0]
        values = _bools(inner) if pa.types.is_boolean(inner.type) else torch.from_numpy(_numbers(inner))
        if self._form.ragged == "values":
            return values, torch.from_numpy(offsets)
        if self._form.ragged == "nested":
            return torch.nested.nested_tensor_from_jagged(values, torch.from_numpy(offsets))
        lengths = np.diff(offsets)
        padded = torch.zeros((len(array), int(lengths.max(initial=0)), *values.shape[1:]), dtype=values.dtype)
        padded[torch.from_numpy(np.arange(padded.shape[1]) < lengths[:, None])] = values
        return _Padded(padded, torch.from_numpy(lengths))

    # --- nulls --------------------------------------------------------------------------------

    def _filled(self, columns: Columns, number: int, type_: pa.DataType) -> pa.Array:
        """The column without nulls, unless it stays Arrow or Python, where null is None."""
        name, array = columns.schema.names[number], columns.array(number)
        outer, inner = array.null_count, _inner_nulls(array)
        if not (outer or inner) or not self._becomes_tensor(type_):
            return array
        if self._form.nulls == "error" or name not in self._form.nulls:
            raise self._refused(columns, number, outer + inner)
        if inner:
            raise SchemaError(
                f"column {name!r} ({type_}) has nulls inside its values, which nulls= cannot fill"
            )
        value = self._form.nulls[name]
        try:
            return _fill(array, value)
        except (pa.ArrowException, TypeError, ValueError) as error:
            raise SchemaError(f"column {name!r} ({type_}) cannot have {value!r} for null: {error}") from error

    def _refused(self, columns: Columns, number: int, nulls: int) -> SchemaError:
        name, array, at = columns.schema.names[number], columns.array(number), ""
        if array.null_count and self._key in columns.schema.names:
            first = int(np.flatnonzero(np.asarray(array.is_null()))[0])
            key = columns.array(columns.schema.get_field_index(self._key))[first].as_py()
            at = f", first at key {key!r}"
        return SchemaError(
            f"column {name!r} has {nulls:,} nulls{at}, and a tensor has none: nulls={{{name!r}: 0}} fills them, "
            f"where='{name} is not null' leaves those rows out"
        )

    def _becomes_tensor(self, type_: pa.DataType) -> bool:
        if pa.types.is_dictionary(type_) or shape_of(type_) is not None or pa.types.is_boolean(type_):
            return True
        if isinstance(type_, pa.BaseExtensionType):
            return self._becomes_tensor(type_.storage_type)
        if _is_list(type_):
            return shape_of(type_.value_type) is not None or pa.types.is_boolean(type_.value_type)
        return _is_text(type_) and self._form.binary == "values"


def _of_bytes(type_: pa.DataType) -> _OfBytes | None:
    """What makes a tensor over bytes that are the caller's; None where there is no such tensor."""
    shape = shape_of(type_)
    if shape is None:
        return None
    if shape[2] is not None:  # axes change place
        return lambda raw: torch.from_numpy(numbers(raw, type_))
    dtype, stored, coded = shape[0], shape[1], pa.types.is_dictionary(type_)

    def convert(raw: Raw) -> torch.Tensor:
        tensor = torch.from_numpy(raw.view(dtype).reshape(len(raw), *stored))
        return tensor.long() if coded else tensor

    return convert


@dataclass(frozen=True, slots=True)
class _Padded:
    values: torch.Tensor
    lengths: torch.Tensor


def _fill(array: pa.Array, value: Any) -> pa.Array:
    """The array with `value` for null; for null lists, lists of it."""
    if isinstance(array, pa.ExtensionArray):
        return pa.ExtensionArray.from_storage(array.type, _fill(array.storage, value))
    if pa.types.is_dictionary(array.type):
        codes = array.indices.fill_null(pa.scalar(value, array.type.index_type))
        return pa.DictionaryArray.from_arrays(codes, array.dictionary, ordered=array.type.ordered, safe=False)
    if pa.types.is_fixed_size_list(array.type) and not isinstance(value, list | tuple):
        value = [value] * array.type.list_size
    return array.fill_null(pa.scalar(value, array.type))


def _inner_nulls(array: pa.Array) -> int:
    """Nulls among the elements of lists."""
    if isinstance(array, pa.ExtensionArray):
        return _inner_nulls(array.storage)
    if pa.types.is_fixed_size_list(array.type) or _is_list(array.type):
        inner = array.flatten()
        return int(inner.null_count) + _inner_nulls(inner)
    return 0


def _is_list(type_: pa.DataType) -> bool:
    return bool(pa.types.is_list(type_) or pa.types.is_large_list(type_))


def _is_text(type_: pa.DataType) -> bool:
    return bool(
        pa.types.is_large_string(type_)
        or pa.types.is_large_binary(type_)
        or pa.types.is_string(type_)
        or pa.types.is_binary(type_)
    )


def _bools(array: pa.Array) -> torch.Tensor:
    return torch.from_numpy(np.array(array.cast(pa.uint8()))).view(torch.bool)


def _numbers(array: pa.Array) -> np.ndarray[Any, Any]:
    """Values without nulls as an array of the receiver's own."""
    raw = raw_of(array)
    assert raw is not None
    found = numbers(raw, array.type)
    assert found is not None
    return found.copy()


def _over(raw: Raw, array: np.ndarray[Any, Any]) -> torch.Tensor:
    """A tensor over memory that is not the caller's, which asked for that; `array` are the same bytes as numbers."""
    if array.flags.writeable or not array.size:
        return torch.from_numpy(array if array.flags.writeable else array.copy())
    octets = torch.from_dlpack(pa.Array.from_buffers(pa.uint8(), raw.size, [None, pa.py_buffer(raw)]))
    return octets.view(torch.from_numpy(np.empty(0, array.dtype)).dtype).view(array.shape)


def _octets(array: pa.Array) -> tuple[torch.Tensor, torch.Tensor]:
    """The bytes of all values, and where each begins and ends."""
    wide = pa.types.is_large_binary(array.type) or pa.types.is_large_string(array.type)
    _, offset_buffer, data = array.buffers()
    if offset_buffer is None or not len(array):
        return torch.empty(0, dtype=torch.uint8), torch.zeros(1, dtype=torch.int64)
    offsets = np.frombuffer(offset_buffer, np.int64 if wide else np.int32)
    offsets = offsets[array.offset : array.offset + len(array) + 1].astype(np.int64)
    octets = (
        np.frombuffer(data, np.uint8)[offsets[0] : offsets[-1]] if data is not None else np.empty(0, np.uint8)
    )
    return torch.from_numpy(octets.copy()), torch.from_numpy(offsets - offsets[0])
