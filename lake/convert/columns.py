"""Python values as Arrow columns: what type a column of them has, and the column itself. Pure.

Two steps, because the type of a stream is settled by its beginning: `infer` is generous (nulls and empty
lists widen to anything, ints to floats, dicts to the union of their names), `build` is strict (what is not of
the settled type raises, even where Arrow would quietly round, decode or drop). Both work on whole columns.
"""

from __future__ import annotations

import datetime
import decimal
import math
import uuid
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lake.convert import tensors, times
from lake.convert.tensors import Misfit

_INT64 = pa.int64()
_NARROW = frozenset({pa.float16(), pa.float32()})
_CANNOT = (
    pa.ArrowInvalid,
    pa.ArrowTypeError,
    pa.ArrowNotImplementedError,
    OverflowError,
    TypeError,
    ValueError,
)
# In this order: a bool is an int, a datetime a date.
_PLAIN: tuple[tuple[type | tuple[type, ...], str], ...] = (
    ((bool, np.bool_), "bool"),
    ((int, np.integer), "int"),
    ((float, np.floating), "float"),
    (str, "str"),
    ((bytes, bytearray, memoryview), "bytes"),
    ((list, tuple), "list"),
    (Mapping, "dict"),
    ((datetime.datetime, np.datetime64), "datetime"),
    (datetime.date, "date"),
    (datetime.time, "time"),
    ((datetime.timedelta, np.timedelta64), "timedelta"),
    (decimal.Decimal, "decimal"),
    (uuid.UUID, "uuid"),
)  # fmt: skip

_FAMILIES: dict[type, str] = {}


def family(cls: type) -> str:
    """What kind of value a Python type holds: "int", "str", "array"...; "" for what lake cannot store."""
    known = _FAMILIES.get(cls)
    if known is None:
        known = _FAMILIES[cls] = _family(cls)
    return known


def _family(cls: type) -> str:
    if issubclass(cls, np.timedelta64):  # which is one of NumPy's integers
        return "timedelta"
    for types, name in _PLAIN:
        if issubclass(cls, types):
            return name
    return "array" if tensors.is_array(cls) else ""


def infer(values: Sequence[Any]) -> pa.DataType:
    """The one type of a column of these values.

    >>> infer([None, [], [1, 2.5]])
    ListType(list<item: double>)

    Raises:
        Misfit: there is none.
    """
    values, types = _survey(values)
    families = {family(cls) for cls in types}
    if not families:
        return pa.null()
    if families == {"int", "float"}:
        families = {"float"}
    if len(families) > 1:
        a, b = sorted(_name(cls) for cls in _one_of_each(types))[:2]
        raise Misfit(f"{a} and {b} are no one type")
    kind = families.pop()
    if kind in ("int", "float", "bool"):
        return _number(types)
    return _INFER[kind](values)


def build(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """The values as a column of this type.

    Raises:
        Misfit: a value is not of it.
    """
    values, types = _survey(values)
    accepted = _accepted(kind)
    for cls in types:
        if family(cls) not in accepted:
            raise Misfit(f"{_name(cls)} does not fit {kind}")
    try:
        return _builder(kind, types)(values, kind)
    except _CANNOT as error:
        raise Misfit(f"{_shown(values)} does not fit {kind} ({error})") from None


def first_misfit(values: Sequence[Any], kind: pa.DataType) -> int:
    """The index of the first value that `build` refuses."""
    for i, value in enumerate(values):
        try:
            build([value], kind)
        except Misfit:
            return i
    return 0


def first_odd(values: Sequence[Any]) -> int:
    """The index of the first value that has no type in common with those before it, found by halving."""
    low, high = 0, len(values)  # values[:low] have a type, values[:high] have none
    while high - low > 1:
        middle = (low + high) // 2
        try:
            infer(values[:middle])
            low = middle
        except Misfit:
            high = middle
    return low


def _survey(values: Sequence[Any]) -> tuple[Sequence[Any], set[type]]:
    """The values, arrays as NumPy's, and which types they have; None has none."""
    types = set(map(type, values)) - {type(None)}
    if any(family(cls) == "array" for cls in types):
        values = [v if v is None or family(type(v)) != "array" else tensors.as_numpy(v) for v in values]
        types = set(map(type, values)) - {type(None)}
    for cls in types:
        if not family(cls):
            raise Misfit(
                f"{_name(cls)} cannot be stored: bytes, str, numbers, bools, None, arrays, tensors, dates, "
                "lists and dicts can"
            )
    return values, types


# --- types ------------------------------------------------------------------------------------


def _number(types: set[type]) -> pa.DataType:
    dtypes = {np.dtype(cls) if issubclass(cls, np.generic) else np.dtype(_base(cls)) for cls in types}
    wide = np.result_type(*dtypes)
    if wide.kind == "f" and all(dtype.kind in "iu" for dtype in dtypes):
        return _INT64  # uint64 beside int64: NumPy would round
    return tensors.arrow_type(wide)


def _base(cls: type) -> type:
    return next(base for base in (bool, int, float) if issubclass(cls, base))


def _infer_list(values: Sequence[Any]) -> pa.DataType:
    return pa.list_(tensors.marked(pa.field("item", infer(list(chain.from_iterable(filter(None, values)))))))


def _infer_dict(values: Sequence[Any]) -> pa.DataType:
    names = dict.fromkeys(chain.from_iterable(filter(None, values)))
    _check_names(names)
    fields = [tensors.marked(pa.field(name, infer(_child(values, name)))) for name in sorted(names)]
    return pa.struct(fields)  # sorted: the order of a dict's names is no part of its value


def _infer_array(values: Sequence[Any]) -> pa.DataType:
    return tensors.infer([value for value in values if value is not None])


def _infer_decimal(values: Sequence[Any]) -> pa.DataType:
    odd = next((value for value in values if value is not None and not value.is_finite()), None)
    if odd is not None:
        raise Misfit(f"{odd!r} is no number that a decimal column can hold: use None, or floats")
    return _by_arrow(values)


def _by_arrow(values: Sequence[Any]) -> pa.DataType:
    try:
        return pa.infer_type(values)
    except _CANNOT as error:
        raise Misfit(str(error)) from None


_INFER: dict[str, Callable[[Sequence[Any]], pa.DataType]] = {
    "str": lambda values: pa.large_string(),
    "bytes": lambda values: pa.large_binary(),
    "list": _infer_list,
    "dict": _infer_dict,
    "array": _infer_array,
    "datetime": times.infer_datetime,
    "date": _by_arrow,
    "time": _by_arrow,
    "timedelta": times.infer_timedelta,
    "decimal": _infer_decimal,
    "uuid": _by_arrow,
}


# --- columns ----------------------------------------------------------------------------------


@lru_cache(maxsize=1024)
def _accepted(kind: pa.DataType) -> frozenset[str]:
    """The families of values that a type takes."""
    t = pa.types
    if isinstance(kind, pa.FixedShapeTensorType) or tensors.is_variable_shape(kind):
        return frozenset({"array", "list", "dict"} if t.is_struct(kind) else {"array", "list"})
    if isinstance(kind, pa.UuidType):
        return frozenset({"uuid", "bytes"})
    if isinstance(kind, pa.BaseExtensionType):
        return _accepted(kind.storage_type)
    if t.is_dictionary(kind):
        return _accepted(kind.value_type)
    tests: tuple[tuple[Callable[[pa.DataType], bool], set[str]], ...] = (
        (t.is_null, set()),
        (t.is_boolean, {"bool"}),
        (t.is_integer, {"int"}),
        (t.is_floating, {"int", "float"}),
        (t.is_decimal, {"decimal", "int"}),
        (lambda k: t.is_string(k) or t.is_large_string(k) or t.is_string_view(k), {"str"}),
        (
            lambda k: (
                t.is_binary(k) or t.is_large_binary(k) or t.is_binary_view(k) or t.is_fixed_size_binary(k)
            ),
            {"bytes"},
        ),
        (t.is_map, {"dict", "list"}),
        (_is_list, {"list", "array"}),
        (t.is_struct, {"dict"}),
        (t.is_timestamp, {"datetime"}),
        (t.is_date, {"date", "datetime"}),  # of NumPy's: whole days
        (t.is_time, {"time"}),
        (t.is_duration, {"timedelta"}),
    )
    return frozenset(next((families for test, families in tests if test(kind)), set()))


def _is_list(kind: pa.DataType) -> bool:
    t = pa.types
    return bool(t.is_list(kind) or t.is_large_list(kind) or t.is_fixed_size_list(kind))


def _builder(kind: pa.DataType, types: set[type]) -> Callable[[Sequence[Any], pa.DataType], pa.Array]:
    if isinstance(kind, pa.FixedShapeTensorType):
        return partial(_build_tensor, tensors.build_fixed)
    if tensors.is_variable_shape(kind) and not any(family(cls) == "dict" for cls in types):
        return partial(_build_tensor, tensors.build_variable)
    if pa.types.is_dictionary(kind):
        return _build_dictionary
    if pa.types.is_struct(kind):
        return _build_struct
    if _is_list(kind):
        return _build_list
    if pa.types.is_map(kind):
        return _build_map
    if pa.types.is_temporal(kind):
        return times.build
    return _build_float if kind in _NARROW else _build_plain


def _build_plain(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    return pa.array(values, kind)


def _build_float(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Floats of fewer bits than Python's: they may round, but integers may not, and none may become infinite."""
    array = pa.array(values, kind)
    if kind == pa.float32() and not pc.any(pc.is_inf(array)).as_py():  # Arrow itself has checked the integers
        return array
    for value, made in zip(values, array.to_pylist(), strict=True):
        if made is None or value == made or value != value:
            continue
        if isinstance(value, (int, np.integer)) or math.isinf(made):
            raise Misfit(f"{value!r} does not fit {kind}")
    return array


def _build_map(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    return pa.array([list(v.items()) if isinstance(v, Mapping) else v for v in values], kind)


def _build_tensor(make: Callable[..., pa.Array], values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    element = kind[0].type.value_type if pa.types.is_struct(kind) else kind.value_type
    dtype = element.to_pandas_dtype()
    return make([_as_tensor(v, dtype) if isinstance(v, (list, tuple)) else v for v in values], kind)


def _as_tensor(value: Sequence[Any], dtype: Any) -> np.ndarray[Any, Any]:
    """A nested list as an array of these elements; floats may round, as they do in columns."""
    with np.errstate(over="ignore"):
        array = np.array(value, dtype)
    given = np.array(value)
    rounds = given.dtype.kind == array.dtype.kind == "f"
    same = np.isfinite(given) == np.isfinite(array) if rounds else given == array
    if not np.all(same):
        raise Misfit(f"a list of {given.dtype} does not fit an array of {np.dtype(dtype)}")
    return array


def _build_dictionary(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    encoded = build(values, kind.value_type).dictionary_encode()
    return pa.DictionaryArray.from_arrays(encoded.indices.cast(kind.index_type), encoded.dictionary)


def _build_list(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    lengths = np.array([0 if value is None else len(value) for value in values], np.int64)
    arrays = [value for value in values if isinstance(value, np.ndarray)]
    if arrays and len(arrays) == sum(value is not None for value in values) and arrays[0].ndim == 1:
        child = _flat_arrays(arrays, kind.value_type)
    else:
        child = build(
            list(chain.from_iterable(value for value in values if value is not None)), kind.value_type
        )
    valid = tensors.validity([value is not None for value in values])
    if pa.types.is_fixed_size_list(kind):
        return _fixed_size(values, lengths, child, valid, kind)
    width = np.int64 if pa.types.is_large_list(kind) else np.int32
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    if offsets[-1] > np.iinfo(width).max:
        raise Misfit(
            f"a list of {int(lengths.max()):,} items does not fit {kind}: say pa.large_list with schema="
        )
    return pa.Array.from_buffers(
        kind, len(values), [valid, pa.py_buffer(offsets.astype(width))], children=[child]
    )


def _flat_arrays(arrays: list[np.ndarray[Any, Any]], kind: pa.DataType) -> pa.Array:
    flat = np.concatenate(arrays)
    if not pa.types.is_primitive(kind):
        raise Misfit(f"an array of {flat.dtype} does not fit a list of {kind}")
    return pa.array(tensors.converted(flat, kind.to_pandas_dtype()), kind)


def _fixed_size(
    values: Sequence[Any],
    lengths: np.ndarray[Any, Any],
    child: pa.Array,
    valid: pa.Buffer | None,
    kind: pa.DataType,
) -> pa.Array:
    wrong = [
        n
        for n, value in zip(lengths.tolist(), values, strict=True)
        if value is not None and n != kind.list_size
    ]
    if wrong:
        raise Misfit(f"a list of {wrong[0]:,} items does not fit {kind}")
    if valid is not None:  # null rows take up room
        place = np.repeat(np.cumsum(lengths > 0) - 1, kind.list_size) * kind.list_size
        place += np.tile(np.arange(kind.list_size), len(values))
        there = np.repeat(lengths > 0, kind.list_size)
        child = child.take(pa.array(place, mask=~there))
    return pa.Array.from_buffers(kind, len(values), [valid], children=[child])


def _build_struct(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    names = dict.fromkeys(chain.from_iterable(filter(None, values)))
    _check_names(names)
    extra = [name for name in names if name not in set(kind.names)]
    if extra:
        raise Misfit(f"a dict with {extra[0]!r} does not fit {kind}")
    children = []
    for field in kind:
        child = build(_child(values, field.name), field.type)
        if not field.nullable and any(v is not None and v.get(field.name) is None for v in values):
            raise Misfit(f"a dict without {field.name!r} does not fit {kind}")
        children.append(child)
    valid = tensors.validity([value is not None for value in values])
    return pa.Array.from_buffers(kind, len(values), [valid], children=children)


def _child(values: Sequence[Any], name: str) -> list[Any]:
    return [None if value is None else value.get(name) for value in values]


def _check_names(names: Mapping[Any, None]) -> None:
    for name in names:
        if not isinstance(name, str):
            raise Misfit(
                f"a dict with the key {name!r} ({_name(type(name))}) is no struct: its keys must be str"
            )


def _one_of_each(types: set[type]) -> list[type]:
    """One type of each family, whatever the set's order."""
    return list({family(cls): cls for cls in sorted(types, key=_name)}.values())


def _name(cls: type) -> str:
    return cls.__name__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__name__}"


def _shown(values: Sequence[Any]) -> str:
    if len(values) != 1:
        return "a value"
    text = repr(values[0])
    return text if len(text) <= 60 else text[:57] + "..."
