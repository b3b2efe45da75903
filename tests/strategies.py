"""Hypothesis strategies for Arrow data: every type a dataset may hold, in every physical disguise.

`types()` draws a type, `arrays(type)` an array of it, `batches()` and `tables()` whole rows, and
`disguises(array)` chunks that hold the same values in another layout: sliced, chunked, with junk under nulls,
with other offsets, as dictionaries. Values are few and hostile: NaN, -0.0, extremes, empty, U+10FFFF.
"""

from __future__ import annotations

import decimal
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

UNITS = ("s", "ms", "us", "ns")
ZONES = (None, "UTC", "Europe/Berlin", "+05:30")

INTEGERS = [getattr(pa, f"{sign}int{bits}")() for sign in ("", "u") for bits in (8, 16, 32, 64)]
FLOATS = [pa.float16(), pa.float32(), pa.float64()]
DECIMALS = [
    pa.decimal32(7, 2),
    pa.decimal64(15, 3),
    pa.decimal128(38, 10),
    pa.decimal128(5, -2),
    pa.decimal256(70, 20),
]
TEMPORALS = [
    pa.date32(),
    pa.date64(),
    *[pa.time32(unit) for unit in ("s", "ms")],
    *[pa.time64(unit) for unit in ("us", "ns")],
    *[pa.timestamp(unit, zone) for unit in UNITS for zone in ZONES],
    *[pa.duration(unit) for unit in UNITS],
    pa.month_day_nano_interval(),
]
STRINGS = [pa.string(), pa.large_string(), pa.string_view()]
BINARIES = [pa.binary(), pa.large_binary(), pa.binary_view(), pa.binary(3), pa.binary(16)]
PRIMITIVES = [pa.null(), pa.bool_(), *INTEGERS, *FLOATS, *DECIMALS, *TEMPORALS, *STRINGS, *BINARIES]
EXTENSIONS = [
    pa.uuid(),
    pa.bool8(),
    pa.json_(),
    pa.json_(pa.large_string()),
    pa.opaque(pa.binary(), "thing", "vendor"),
    pa.fixed_shape_tensor(pa.float32(), [2, 3]),
    pa.fixed_shape_tensor(pa.uint8(), [2, 2], dim_names=["y", "x"], permutation=[1, 0]),
]
NAMES = st.sampled_from(["a", "b", "item", "element", "key", "é", "with space", 'quote"', "a.b"])


def is_dictionary_value(type_: pa.DataType) -> bool:
    """Whether Arrow dictionary-encodes this type."""
    return type_ in [
        pa.bool_(),
        *INTEGERS,
        pa.float64(),
        *STRINGS[:2],
        *BINARIES[:2],
        pa.decimal128(38, 10),
        pa.date32(),
    ]


@st.composite
def types(
    draw: st.DrawFn, *, nested: bool = True, dictionaries: bool = True, extensions: bool = True
) -> pa.DataType:
    """Types of columns, half of them flat; dictionaries and runs also inside lists and structs."""
    depth = draw(st.sampled_from([0, 0, 1, 2])) if nested else 0
    if depth == 0:
        return draw(_leaves(dictionaries, extensions))
    inner = types(nested=depth > 1, dictionaries=dictionaries, extensions=extensions)
    return draw(_nest(inner, draw(st.integers(0, len(_COMPOUNDS) - 1))))


@st.composite
def _leaves(draw: st.DrawFn, dictionaries: bool, extensions: bool) -> pa.DataType:
    kind = draw(st.integers(0, 5))
    if kind == 0 and dictionaries:
        return draw(dictionary_types() | st.just(pa.run_end_encoded(pa.int32(), pa.int64())))
    return draw(st.sampled_from(EXTENSIONS if kind == 1 and extensions else PRIMITIVES))


def dictionary_types() -> st.SearchStrategy[pa.DataType]:
    """Dictionary types of various index widths, ordered or not."""
    values = st.sampled_from([type_ for type_ in PRIMITIVES if is_dictionary_value(type_)])
    return st.builds(
        pa.dictionary,
        st.sampled_from([pa.int8(), pa.uint16(), pa.int32(), pa.int64()]),
        values,
        st.booleans(),
    )


def _nest(inner: st.SearchStrategy[pa.DataType], compound: int) -> st.SearchStrategy[pa.DataType]:
    return _COMPOUNDS[compound](inner, st.builds(pa.field, st.sampled_from(["item", "element"]), inner))


_COMPOUNDS: list[Callable[..., st.SearchStrategy[pa.DataType]]] = [
    lambda inner, item: st.builds(pa.list_, item),
    lambda inner, item: st.builds(pa.large_list, item),
    lambda inner, item: st.builds(pa.list_view, item) | st.builds(pa.large_list_view, item),
    lambda inner, item: st.builds(pa.list_, item, st.integers(1, 3)),
    lambda inner, item: st.builds(
        pa.map_, st.sampled_from([pa.string(), pa.int32(), pa.large_string()]), inner
    ),
    lambda inner, item: st.dictionaries(NAMES, inner, min_size=1, max_size=3).map(
        lambda named: pa.struct([*named.items()])
    ),
]


def fields(**which: bool) -> st.SearchStrategy[pa.Field]:
    """Nullable fields with a name and maybe metadata."""
    metadata = st.none() | st.dictionaries(NAMES, NAMES, max_size=2)
    return st.builds(
        lambda name, type_, extra: pa.field(name, type_, metadata=extra), NAMES, types(**which), metadata
    )


def schemas(*, max_fields: int = 4, **which: bool) -> st.SearchStrategy[pa.Schema]:
    """Schemas of one to `max_fields` fields with distinct names, maybe with metadata."""
    columns = st.lists(fields(**which), min_size=1, max_size=max_fields, unique_by=lambda field: field.name)
    return st.builds(pa.schema, columns, st.none() | st.dictionaries(NAMES, NAMES, max_size=2))


# Values ---


def text() -> st.SearchStrategy[str]:
    """Short texts, some over 64 bytes, with every plane of Unicode."""
    tricky = st.sampled_from(
        ["", "\x00", "\x7f", "￿", "\ud7ff", "\U0010ffff", "\U0010ffff" * 20, "é" * 40, "a" * 70, "😀"]
    )
    return (
        tricky
        | st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
        | st.builds(str.__add__, tricky, tricky)
    )


def octets() -> st.SearchStrategy[bytes]:
    """Short binaries, some over 64 bytes."""
    return st.sampled_from([b"", b"\x00", b"\xff", b"\xff" * 70, b"\x00" * 9, b"a" * 64]) | st.binary(
        max_size=20
    )


def values(type_: pa.DataType) -> st.SearchStrategy[Any]:
    """Values of a type that are not null, as `build` takes them; what they contain may be null."""
    if pa.types.is_null(type_):
        return st.none()
    if pa.types.is_boolean(type_):
        return st.booleans()
    if pa.types.is_integer(type_):
        low, high = (
            (0, 2**type_.bit_width - 1) if pa.types.is_unsigned_integer(type_) else _signed(type_.bit_width)
        )
        return st.sampled_from([0, 1, low, high]) | st.integers(low, high)
    if pa.types.is_floating(type_):
        special = st.sampled_from([0.0, -0.0, float("nan"), float("inf"), float("-inf"), 1.5])
        return special | st.floats(width=type_.bit_width)
    if pa.types.is_decimal(type_):
        return _decimals(type_)
    if pa.types.is_temporal(type_):
        return _temporals(type_)
    if type_ in STRINGS:
        return text()
    if pa.types.is_fixed_size_binary(type_):
        return st.binary(min_size=type_.byte_width, max_size=type_.byte_width)
    if type_ in BINARIES:
        return octets()
    return _compound(type_)


def _compound(type_: pa.DataType) -> st.SearchStrategy[Any]:
    if isinstance(type_, pa.BaseExtensionType):
        if type_.extension_name == "arrow.json":
            return st.sampled_from(["{}", '{"a": 1}', "[]", "null"])
        return values(_full(type_.storage_type))
    if isinstance(type_, (pa.DictionaryType, pa.RunEndEncodedType)):
        return values(type_.value_type)
    if pa.types.is_struct(type_):
        return st.tuples(*(maybe(field.type) for field in type_))
    if pa.types.is_map(type_):
        return st.lists(st.tuples(values(type_.key_type), maybe(type_.item_type)), max_size=3)
    size = type_.list_size if pa.types.is_fixed_size_list(type_) else None
    item = maybe(type_.value_type) if type_.value_field.nullable else values(type_.value_type)
    return st.lists(item, min_size=size or 0, max_size=3 if size is None else size)


def _full(type_: pa.DataType) -> pa.DataType:
    """A tensor's storage: its items are not null."""
    if pa.types.is_fixed_size_list(type_):
        return pa.list_(pa.field("item", type_.value_type, nullable=False), type_.list_size)
    return type_


def maybe(type_: pa.DataType) -> st.SearchStrategy[Any]:
    """Values of a type, or None."""
    return st.none() | values(type_)


def _signed(bits: int) -> tuple[int, int]:
    return -(2 ** (bits - 1)), 2 ** (bits - 1) - 1


def _decimals(type_: pa.DataType) -> st.SearchStrategy[decimal.Decimal]:
    limit = 10**type_.precision - 1
    digits = st.sampled_from([0, 1, -1, limit, -limit]) | st.integers(-limit, limit)
    return digits.map(lambda n: decimal.Decimal((n < 0, tuple(map(int, str(abs(n)))), -type_.scale)))


def _temporals(type_: pa.DataType) -> st.SearchStrategy[Any]:
    if pa.types.is_interval(type_):
        return st.tuples(st.integers(-12, 12), st.integers(-31, 31), st.integers(-(10**9), 10**9))
    if pa.types.is_date64(type_):
        return st.integers(-700_000, 700_000).map(lambda day: day * 86_400_000)  # years that Python has
    if pa.types.is_time(type_):
        return st.integers(0, 86_400 * 1000 ** UNITS.index(type_.unit) - 1)
    per_day = 1 if pa.types.is_date32(type_) else 86_400 * 1000 ** UNITS.index(type_.unit)
    return st.integers(-25_000 * per_day, 25_000 * per_day)  # years 1901 to 2038: any unit, zone and library


def build(items: Sequence[Any], type_: pa.DataType) -> pa.Array:
    """The array of these values (None: null); of any type, unlike `pa.array`: extensions inside lists too."""
    valid = np.array([item is not None for item in items], dtype=bool)
    if isinstance(type_, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(type_, build(items, type_.storage_type))
    if isinstance(type_, pa.DictionaryType):
        plain = build(items, type_.value_type)
        encoded = plain.dictionary_encode()
        return pa.DictionaryArray.from_arrays(
            encoded.indices.cast(type_.index_type), encoded.dictionary, ordered=type_.ordered
        )
    if isinstance(type_, pa.RunEndEncodedType):
        ends = pa.array(range(1, len(items) + 1), type_.run_end_type)
        return pa.RunEndEncodedArray.from_arrays(ends, build(items, type_.value_type))
    if pa.types.is_struct(type_):
        children = [build([item and item[i] for item in items], field.type) for i, field in enumerate(type_)]
        return pa.StructArray.from_arrays(children, fields=list(type_), mask=pa.array(~valid))
    if pa.types.is_fixed_size_list(type_):
        rows = [[None] * type_.list_size if item is None else item for item in items]
        child = build([value for row in rows for value in row], type_.value_type)
        return pa.FixedSizeListArray.from_arrays(child, type=type_, mask=pa.array(~valid))
    if pa.types.is_map(type_):
        pairs = [pair for item in items for pair in item or ()]
        entries = [
            build([pair[i] for pair in pairs], kind)
            for i, kind in enumerate((type_.key_type, type_.item_type))
        ]
        child = pa.StructArray.from_arrays(entries, fields=[type_.key_field, type_.item_field])
        return _with_offsets(type_, items, child, np.int32)
    if pa.types.is_list(type_) or pa.types.is_large_list(type_):
        child = build([value for item in items for value in item or ()], type_.value_type)
        return _with_offsets(type_, items, child, np.int64 if pa.types.is_large_list(type_) else np.int32)
    if pa.types.is_list_view(type_) or pa.types.is_large_list_view(type_):
        return _list_view(type_, items, valid)
    if type_ == pa.float16():
        return pa.array([None if item is None else np.float16(item) for item in items], type_)
    return pa.array(items, type_)


def _lengths(items: Sequence[Any]) -> np.ndarray:
    return np.array([len(item) if item is not None else 0 for item in items], dtype=np.int64)


def _with_offsets(type_: pa.DataType, items: Sequence[Any], child: pa.Array, width: type) -> pa.Array:
    offsets = np.concatenate([[0], np.cumsum(_lengths(items))]).astype(width)
    validity = _bitmap(np.array([item is not None for item in items], dtype=bool))
    return pa.Array.from_buffers(type_, len(items), [validity, pa.py_buffer(offsets)], children=[child])


def _list_view(type_: pa.DataType, items: Sequence[Any], valid: np.ndarray) -> pa.Array:
    """Rows lie in the child in reverse order: what only a view can say."""
    child = build([value for item in reversed(items) for value in item or ()], type_.value_type)
    sizes = _lengths(items)
    offsets = sizes[::-1].cumsum()[::-1] - sizes
    width = np.int32 if pa.types.is_list_view(type_) else np.int64
    buffers = [_bitmap(valid), pa.py_buffer(offsets.astype(width)), pa.py_buffer(sizes.astype(width))]
    return pa.Array.from_buffers(type_, len(items), buffers, children=[child])


def _bitmap(valid: np.ndarray) -> pa.Buffer | None:
    return None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))


# Arrays ---


@st.composite
def arrays(
    draw: st.DrawFn, type_: pa.DataType, *, min_size: int = 0, max_size: int = 8, nulls: bool = True
) -> pa.Array:
    """Arrays of a type: whole, all null, or a slice of a longer one (so that offsets are not zero)."""
    item = st.none() if nulls and draw(st.integers(0, 9)) == 0 else maybe(type_) if nulls else values(type_)
    items = draw(st.lists(item, min_size=min_size, max_size=max_size))
    before, after = draw(st.tuples(st.integers(0, 9), st.integers(0, 2)))
    if before + after and (filler := draw(st.lists(values(type_), min_size=1, max_size=2))):
        padded = [filler[i % len(filler)] for i in range(before)] + items + [filler[0]] * after
        return build(padded, type_).slice(before, len(items))
    return build(items, type_)


@st.composite
def disguises(draw: st.DrawFn, array: pa.Array) -> list[pa.Array]:
    """Chunks with the values of `array` in other layouts, empty ones among them; one canonical type."""
    cuts = sorted(draw(st.lists(st.integers(0, len(array)), max_size=3)))
    edges = [0, *cuts, len(array)]
    chunks = [array.slice(a, b - a) for a, b in pairwise(edges)]
    return [draw(st.sampled_from(_LAYOUTS))(chunk) for chunk in chunks]


def _as_is(array: pa.Array) -> pa.Array:
    return array


def _copied(array: pa.Array) -> pa.Array:
    """The same values at offset 0 in buffers of their own."""
    return array.take(pa.array(range(len(array)), pa.int64())) if _can_take(array.type) else array


def shifted(array: pa.Array) -> pa.Array:
    """The same values at another offset, after others."""
    if not len(array) or not _can_take(array.type):
        return array
    return pa.concat_arrays([array.slice(0, 1)] * 3 + [array]).slice(3)


def _can_take(type_: pa.DataType) -> bool:
    """Whether Arrow's take and concat do this type, views and runs inside others excepted."""
    try:
        pa.concat_arrays([pa.nulls(1, type_)] * 2).take(pa.array([0]))
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid, pa.ArrowKeyError):
        return False
    return True


def junk_under_nulls(array: pa.Array) -> pa.Array:
    """The same values with what differs hidden under nulls: bytes of strings, numbers, items of lists."""
    if not len(array) or not array.null_count or not _can_take(array.type) or array.null_count == len(array):
        return array
    if isinstance(array.type, (pa.DictionaryType, pa.RunEndEncodedType)) or pa.types.is_union(array.type):
        return array
    if isinstance(array.type, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(array.type, junk_under_nulls(array.storage))
    valid = np.array(array.is_valid().to_pylist())
    some = int(np.flatnonzero(valid)[0])
    full = array.take(pa.array(np.where(valid, np.arange(len(array)), some)))
    children = _children(full)
    buffers = [_bitmap(valid), *full.buffers()[1 : full.type.num_buffers]]
    return pa.Array.from_buffers(full.type, len(full), buffers, offset=full.offset, children=children)


def _children(array: pa.Array) -> list[pa.Array] | None:
    if pa.types.is_struct(array.type):
        return [array.field(i) for i in range(array.type.num_fields)] if array.offset == 0 else None
    return [array.values] if pa.types.is_nested(array.type) else None


def dictionary_encoded(array: pa.Array) -> pa.Array:
    """The same values as a dictionary, where Arrow makes one."""
    return array.dictionary_encode() if is_dictionary_value(array.type) else array


def other_width(array: pa.Array) -> pa.Array:
    """The same values with other offsets: a view for a string, 64 bits for 32."""
    swaps = {
        pa.string(): pa.large_string(),
        pa.large_string(): pa.string_view(),
        pa.string_view(): pa.string(),
    }
    swaps |= {
        pa.binary(): pa.large_binary(),
        pa.large_binary(): pa.binary_view(),
        pa.binary_view(): pa.binary(),
    }
    return array.cast(swaps[array.type]) if array.type in swaps else array


_LAYOUTS = [_as_is, _copied, shifted, junk_under_nulls, dictionary_encoded, other_width]


@st.composite
def batches(
    draw: st.DrawFn, schema: pa.Schema | None = None, *, max_rows: int = 8, **which: bool
) -> pa.RecordBatch:
    """Record batches of a schema (drawn, if none is given); columns are drawn independently."""
    schema = draw(schemas(**which)) if schema is None else schema
    rows = draw(st.integers(0, max_rows))
    columns = [
        draw(arrays(field.type, min_size=rows, max_size=rows, nulls=field.nullable)) for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


@st.composite
def tables(
    draw: st.DrawFn, schema: pa.Schema | None = None, *, max_batches: int = 3, **which: bool
) -> pa.Table:
    """Tables of up to `max_batches` chunks; each may have dictionaries of its own."""
    schema = draw(schemas(**which)) if schema is None else schema
    return pa.Table.from_batches(draw(st.lists(batches(schema), max_size=max_batches)), schema)
