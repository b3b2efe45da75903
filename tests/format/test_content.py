"""Digests of logical values: against a reference that works from Python values, and frozen."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from lake.format.content import column_check, content_digest, value_digest
from lake.format.schema import conform, stored_schema
from tests.strategies import arrays, build, disguises, maybe, types


@settings(deadline=None, max_examples=150)
@given(st.data())
def test_equal_values_have_equal_digests_whatever_holds_them(data: st.DataObject) -> None:
    """Chunks, offsets, string widths, dictionaries and bytes under nulls do not enter a digest."""
    type_ = data.draw(types())
    array = data.draw(arrays(type_))
    chunks = data.draw(disguises(array))
    field = pa.field("x", type_)

    assert content_digest([field], [chunks]) == content_digest([field], [[array]])


@settings(deadline=None, max_examples=150)
@given(st.data())
def test_the_digest_is_what_the_page_says(data: st.DataObject) -> None:
    """A reader who builds the canonical stream row by row, from Python values, finds the same digests."""
    type_ = data.draw(types())
    items = data.draw(st.lists(maybe(type_), max_size=8))
    array = build(items, type_)

    assert value_digest([array]) == reference(items, type_, hashlib.sha256)
    assert column_check(array) == int.from_bytes(reference(items, type_, xxhash.xxh3_64), "big")


@settings(deadline=None, max_examples=100)
@given(st.data())
def test_the_stored_form_has_the_digest_of_the_input(data: st.DataObject) -> None:
    """Conforming changes layouts, never values: what is looked up by content is found."""
    type_ = data.draw(types())
    array = data.draw(arrays(type_))
    schema = pa.schema([pa.field("x", type_)])

    conformed = conform(pa.record_batch([array], schema=schema), stored_schema(schema))

    assert content_digest(conformed.schema, [[conformed.column(0)]]) == content_digest(schema, [[array]])


def reference(items: Sequence[Any], type_: pa.DataType, new_hash: Any) -> bytes:
    """The digest of a column by the docstring of `lake.format.content`, one value at a time."""
    if isinstance(type_, pa.BaseExtensionType):
        return reference(items, type_.storage_type, new_hash)
    if isinstance(type_, (pa.DictionaryType, pa.RunEndEncodedType)):
        return reference(items, type_.value_type, new_hash)
    null = [item is None for item in items]
    stream = struct.pack("<Q", len(items)) + bytes([any(null)])
    if any(null):
        stream += bits([not one for one in null])
    return new_hash(stream + reference_values(items, type_, new_hash)).digest()


def reference_values(items: Sequence[Any], type_: pa.DataType, new_hash: Any) -> bytes:
    present = [item for item in items if item is not None]
    if pa.types.is_null(type_):
        return b""
    if pa.types.is_boolean(type_):
        return bits([bool(item) for item in items])
    if pa.types.is_struct(type_):
        fields = [[item and item[i] for item in items] for i in range(type_.num_fields)]
        return b"".join(reference(x, field.type, new_hash) for x, field in zip(fields, type_, strict=True))
    if pa.types.is_fixed_size_list(type_):
        return reference([x for item in present for x in item], type_.value_type, new_hash)
    if pa.types.is_map(type_):
        entries = pa.struct([type_.key_field, type_.item_field])
        return lengths(items) + reference([x for item in present for x in item], entries, new_hash)
    if pa.types.is_nested(type_):
        return lengths(items) + reference([x for item in present for x in item], type_.value_type, new_hash)
    try:
        width = type_.bit_width // 8
    except ValueError:
        octets = [item.encode() if isinstance(item, str) else item or b"" for item in items]
        return lengths(octets) + b"".join(x or b"" for x in octets)
    return b"".join(bytes(width) if item is None else octets_of(item, type_) for item in items)


def octets_of(item: Any, type_: pa.DataType) -> bytes:
    return build([item], type_).buffers()[1].to_pybytes()[: type_.bit_width // 8]


def lengths(items: Sequence[Any]) -> bytes:
    return b"".join(struct.pack("<Q", len(item) if item is not None else 0) for item in items)


def bits(flags: Sequence[bool]) -> bytes:
    octets = bytearray(-(-len(flags) // 8))
    for i, flag in enumerate(flags):
        octets[i // 8] |= flag << i % 8
    return bytes(octets)


def test_long_columns_are_hashed_like_short_ones() -> None:
    """Blocks in which lengths and nulls are worked on leave no trace."""
    rows = 300_000
    valid = np.arange(rows) % 7 > 0
    numbers, texts = np.arange(rows), [str(i) for i in range(rows)]
    head = struct.pack("<Q", rows) + b"\x01" + np.packbits(valid, bitorder="little").tobytes()
    sizes = np.where(valid, [len(text) for text in texts], 0).astype("<u8").tobytes()
    characters = "".join(text for text, keep in zip(texts, valid, strict=True) if keep).encode()

    assert (
        value_digest([pa.array(numbers, mask=~valid)])
        == hashlib.sha256(head + (numbers * valid).tobytes()).digest()
    )
    assert value_digest([pa.array(texts, mask=~valid)]) == hashlib.sha256(head + sizes + characters).digest()


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (pa.array([None], pa.string()), pa.array([""])),
        (pa.array([0, None]), pa.array([0, 0])),
        (pa.array([0.0]), pa.array([-0.0])),
        (pa.array(["ab", "c"]), pa.array(["a", "bc"])),
        (pa.array([[1], [2]]), pa.array([[1, 2], []])),
        (pa.array([[], None], pa.list_(pa.int64())), pa.array([None, []], pa.list_(pa.int64()))),
        (pa.array([{"a": None}]), pa.array([None], pa.struct([("a", pa.null())]))),
        (pa.nulls(1), pa.nulls(2)),
        (pa.array([True, False]), pa.array([True])),
    ],
)
def test_what_differs_has_another_digest(one: pa.Array, other: pa.Array) -> None:
    """Null is not empty, zeros have signs, and where one value ends and the next begins counts."""
    assert value_digest([one]) != value_digest([other])
    assert column_check(one) != column_check(other)


def test_names_types_and_order_of_fields_enter_the_content_of_a_part() -> None:
    """Two parts with equal buffers under other names, types or in other order are not the same."""
    ints, dates = pa.array([1, 2], pa.int32()), pa.array([1, 2], pa.date32())
    a, b, date = pa.field("a", pa.int32()), pa.field("b", pa.int32()), pa.field("a", pa.date32())

    digests = {
        content_digest([a], [[ints]]),
        content_digest([b], [[ints]]),
        content_digest([date], [[dates]]),
        content_digest([a, b], [[ints], [ints]]),
        content_digest([b, a], [[ints], [ints]]),
    }

    assert len(digests) == 5


def test_nullability_and_metadata_do_not_enter_the_content_of_a_part() -> None:
    """They belong to the version's schema; a part whose values are equal is the same part."""
    column = [[pa.array([1])]]

    plain = content_digest([pa.field("a", pa.int64())], column)

    assert content_digest([pa.field("a", pa.int64(), False, {"unit": "m"})], column) == plain


def test_a_column_without_chunks_is_a_column_without_rows() -> None:
    """No batches and an empty batch are the same data."""
    field = pa.field("a", pa.list_(pa.uuid()))

    assert content_digest([field], [[]]) == content_digest([field], [[pa.nulls(0, field.type)]])


def test_values_without_nulls_are_hashed_where_they_lie() -> None:
    """Nothing is copied, and runs are long enough for the hash to let other threads run."""
    seen: list[tuple[int, int]] = []

    class Recorder:
        def update(self, data: Any) -> None:
            view = np.frombuffer(data, np.uint8)
            seen.append((view.ctypes.data if len(view) else 0, len(view)))

        def digest(self) -> bytes:
            return b""

    values = pa.array(np.arange(2**20, dtype=np.float32))
    tensors = pa.FixedSizeListArray.from_arrays(values, 256).slice(2)
    address = values.buffers()[1].address + 2 * 256 * 4

    value_digest([tensors], Recorder)

    assert (address, values.nbytes - 2 * 256 * 4) in seen


FROZEN: list[tuple[pa.DataType, list[Any], str, int]] = [
    (pa.null(), [None, None], "3621cae11c25f3cf", 0x16E840F4F459E70),
    (pa.bool_(), [True, None, False, True] * 3, "c6157d72206d1776", 0xBDEE2BCFED8A1C13),
    (pa.int8(), [1, None, -128], "6cf3dcc6ff540d71", 0x58821F16DC3CFE8),
    (pa.uint64(), [2**64 - 1, 0], "ee65e8b19ab0fa2a", 0x8026DE679AFC7526),
    (pa.float16(), [1.5, None, -0.0], "db5f89ea542b5844", 0x43A6D1AF73900499),
    (pa.float64(), [float("inf"), -0.0, None], "e34cd767e9c15a6f", 0x9320CA4A0C0A494E),
    (pa.decimal32(7, 2), [Decimal("1.25"), None], "b4ff666196dd86d5", 0x8B5F107F5E14C7A0),
    (pa.decimal256(70, 20), [Decimal("-1.25"), None], "defea801a1a18045", 0x28A043FCE6880480),
    (pa.date64(), [86_400_000, None], "da9c41bb669f4795", 0x2BD6AB421AEF981D),
    (pa.timestamp("ns", "Europe/Berlin"), [1, None], "313cce0e19f2acd4", 0xD629EC4F28B6B4B7),
    (pa.duration("s"), [-1, None], "1de54d447c843199", 0x4855FB2E2ED56791),
    (pa.month_day_nano_interval(), [(1, 2, 3), None], "fcf267aa43fd6851", 0xFEF673DC87EF8189),
    (pa.string(), ["", None, "é", "lake"], "f4a31e44d93da6a0", 0x30BC5E31A0272F96),
    (pa.binary_view(), [b"", None, b"\xff"], "b93451cd8403717b", 0xC908D68706DEFCCD),
    (pa.binary(3), [b"abc", None], "317777d7694f2034", 0x53145C932423ED2C),
    (pa.list_(pa.int32()), [[1, None], None, []], "4a5ad14a3030d6ef", 0x7A6839A8D0272921),
    (pa.large_list_view(pa.string()), [["a"], None, ["b", "c"]], "0a57cfc86dbf9903", 0xE1FEDE64291F69D5),
    (pa.list_(pa.float32(), 2), [[1.0, 2.0], None, [None, 3.0]], "4a9a6418f28c05f9", 0x8B83187C518EB05F),
    (
        pa.struct([("a", pa.int8()), ("b", pa.string())]),
        [(1, "x"), None, (None, "y")],
        "b9dfb1bbde8f2f4b",
        0x58F0BAA5D600781B,
    ),
    (
        pa.map_(pa.string(), pa.int16()),
        [[("k", 1), ("l", None)], None, []],
        "04dd1c4dff282371",
        0x59DF32B17E152423,
    ),
    (pa.dictionary(pa.int8(), pa.string()), ["b", None, "a", "b"], "b13664083616b05f", 0xC0B334A702434188),
    (pa.run_end_encoded(pa.int32(), pa.int64()), [7, 7, None], "0b088e046a0a4f57", 0xC905CFC0CDBF4F7F),
    (pa.uuid(), [bytes(range(16)), None], "eddcf9759dad4818", 0x2946FC713E37F4DD),
    (pa.bool8(), [1, None], "df9e7ae818254a48", 0xE58480CFB8D0B04D),
    (pa.json_(), ["{}", None], "9358284595ed701b", 0xCFC2042DDE79EE8A),
    (
        pa.fixed_shape_tensor(pa.uint8(), [2, 1], dim_names=["y", "x"]),
        [[1, 2], None],
        "6ecacedc19049f83",
        0x23E6B920CEEE797E,
    ),
    (
        pa.list_(pa.struct([("t", pa.fixed_shape_tensor(pa.float32(), [2]))])),
        [[([1.0, 2.0],), None], None],
        "5f9549250df5efda",
        0x5906699DA48DFF8A,
    ),
]


@pytest.mark.parametrize(
    ("type_", "items", "digest", "check"), FROZEN, ids=[str(frozen[0]) for frozen in FROZEN]
)
def test_digests_are_frozen(type_: pa.DataType, items: list[Any], digest: str, check: int) -> None:
    """Contents name stored parts and checks lie inside them: neither may ever come out differently."""
    array = build(items, type_)

    assert content_digest([pa.field("x", type_)], [[array]])[:16] == digest
    assert column_check(array) == check


def test_the_stream_of_a_small_column_byte_by_byte() -> None:
    """The worked example: three strings, the second null."""
    stream = (
        b"\x03\0\0\0\0\0\0\0"  # rows
        b"\x01\x05"  # there are nulls; rows 0 and 2 are valid
        b"\x02\0\0\0\0\0\0\0" + bytes(8) + b"\x01\0\0\0\0\0\0\0"  # lengths
        b"hi!"
    )
    values = hashlib.sha256(stream).digest()
    part = b"\x04\0\0\0\0\0\0\0name\x06\0\0\0\0\0\0\0string\x20\0\0\0\0\0\0\0" + values
    array = pa.array(["hi", None, "!"])

    assert value_digest([array]) == values
    assert content_digest([pa.field("name", pa.string_view())], [[array]]) == hashlib.sha256(part).hexdigest()
