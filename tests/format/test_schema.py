"""Canonical schemas, their texts, what may be cast into them and what an append makes of them."""

from __future__ import annotations

import json
import pickle
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from lake.errors import FormatError, SchemaError
from lake.format.casts import cast, castable
from lake.format.content import value_digest
from lake.format.schema import (
    canonical_schema,
    canonical_type,
    conform,
    decode_schema,
    describe,
    encode_schema,
    stored_schema,
    unify_for_append,
)
from tests.strategies import (
    DECIMALS,
    EXTENSIONS,
    FLOATS,
    INTEGERS,
    PRIMITIVES,
    TEMPORALS,
    arrays,
    batches,
    schemas,
    types,
)


def of(*types_: pa.DataType) -> pa.Schema:
    """A schema of columns a, b, ... of these types."""
    return pa.schema([pa.field("abcdef"[i], type_) for i, type_ in enumerate(types_)])


# Canonical form ---


@settings(deadline=None, max_examples=150)
@given(schemas())
def test_the_canonical_form_is_its_own(schema: pa.Schema) -> None:
    """Canonical and stored schemas are fixed points, with the names and texts of what they came from."""
    canonical, stored = canonical_schema(schema), stored_schema(schema)

    assert canonical_schema(canonical).equals(canonical, check_metadata=True)
    assert stored_schema(stored).equals(stored, check_metadata=True)
    assert stored_schema(canonical).equals(stored, check_metadata=True)
    texts = [[canonical_type(field) for field in form] for form in (schema, canonical, stored)]
    assert texts[0] == texts[1] == texts[2]
    assert canonical.names == schema.names


@pytest.mark.parametrize(
    ("given_", "canonical"),
    [
        (pa.string(), pa.large_string()),
        (pa.string_view(), pa.large_string()),
        (pa.binary_view(), pa.large_binary()),
        (pa.list_view(pa.string()), pa.list_(pa.large_string())),
        (pa.large_list_view(pa.int8()), pa.large_list(pa.int8())),
        (pa.list_(pa.field("element", pa.int8(), False)), pa.list_(pa.field("item", pa.int8(), False))),
        (pa.dictionary(pa.int8(), pa.string(), True), pa.dictionary(pa.int32(), pa.large_string(), True)),
        (pa.dictionary(pa.int8(), pa.timestamp("ns")), pa.timestamp("ns")),
        (pa.list_(pa.dictionary(pa.int8(), pa.string())), pa.list_(pa.large_string())),
        (pa.run_end_encoded(pa.int16(), pa.binary()), pa.large_binary()),
        (pa.struct([("x", pa.json_())]), pa.struct([("x", pa.json_(pa.large_string()))])),
        (pa.opaque(pa.string(), "t", "v"), pa.opaque(pa.large_string(), "t", "v")),
        (pa.map_(pa.string(), pa.string_view()), pa.map_(pa.large_string(), pa.large_string())),
        (pa.fixed_shape_tensor(pa.int8(), [2, 2]), pa.fixed_shape_tensor(pa.int8(), [2, 2])),
        (pa.timestamp("ns", "Europe/Berlin"), pa.timestamp("ns", "Europe/Berlin")),
        (pa.float16(), pa.float16()),
    ],
)
def test_each_type_has_one_canonical_form(given_: pa.DataType, canonical: pa.DataType) -> None:
    """Layouts meet in one type; what carries meaning (zones, shapes, widths of numbers, order) stays."""
    assert canonical_schema(of(given_)).equals(of(canonical), check_metadata=True)


def test_metadata_is_sorted_and_foreign_metadata_goes() -> None:
    """Schemas that differ in the order of metadata, or in pandas' notes, are one."""
    field = pa.field(
        "a", pa.list_(pa.field("x", pa.int8(), metadata={"q": "1", "p": "2"})), metadata={"z": "1", "b": "2"}
    )
    schema = pa.schema([field], metadata={"pandas": "{}", "y": "1", "huggingface": "{}", "x": "2"})

    canonical = canonical_schema(schema)

    assert list(canonical.metadata) == [b"x", b"y"]
    assert list(canonical.field("a").metadata) == [b"b", b"z"]
    assert list(canonical.field("a").type.value_field.metadata) == [b"p", b"q"]


def test_what_no_dataset_can_hold_is_refused_by_name() -> None:
    """Unions and repeated names are errors before any data is read."""
    with pytest.raises(SchemaError, match=r"column 'a'.*union.*struct"):
        canonical_schema(of(pa.list_(pa.sparse_union([pa.field("x", pa.int8())]))))
    with pytest.raises(SchemaError, match="'a' is there twice"):
        canonical_schema(pa.schema([("a", pa.int8()), ("a", pa.int8())]))


TEXTS = [
    (pa.null(), "null"),
    (pa.bool_(), "bool"),
    (pa.uint16(), "uint16"),
    (pa.float16(), "float16"),
    (pa.float64(), "float64"),
    (pa.decimal32(7, 2), "decimal32[7,2]"),
    (pa.decimal256(70, -2), "decimal256[70,-2]"),
    (pa.date32(), "date32"),
    (pa.date64(), "date64"),
    (pa.time32("s"), "time32[s]"),
    (pa.time64("ns"), "time64[ns]"),
    (pa.timestamp("us"), "timestamp[us]"),
    (pa.timestamp("us", 'a"b'), 'timestamp[us,"a\\"b"]'),
    (pa.duration("ms"), "duration[ms]"),
    (pa.month_day_nano_interval(), "month_day_nano_interval"),
    (pa.string_view(), "string"),
    (pa.binary(), "binary"),
    (pa.binary(16), "fixed_size_binary[16]"),
    (pa.large_list(pa.string()), "list<string>"),
    (pa.list_(pa.int8(), 3), "fixed_size_list<int8,3>"),
    (pa.struct([("é,", pa.int8()), ("b", pa.struct([]))]), 'struct<"é,":int8,"b":struct<>>'),
    (pa.map_(pa.string(), pa.int8()), "map<string,int8>"),
    (pa.map_(pa.string(), pa.int8(), keys_sorted=True), "map<string,int8,sorted>"),
    (pa.dictionary(pa.int8(), pa.string()), "string"),
    (pa.run_end_encoded(pa.int16(), pa.int8()), "int8"),
    (pa.uuid(), 'extension<"arrow.uuid","",fixed_size_binary[16]>'),
    (pa.bool8(), 'extension<"arrow.bool8","",int8>'),
    (pa.json_(pa.string_view()), 'extension<"arrow.json","",string>'),
    (
        pa.opaque(pa.null(), "t", "v"),
        'extension<"arrow.opaque","{\\"type_name\\":\\"t\\",\\"vendor_name\\":\\"v\\"}",null>',
    ),
    (
        pa.fixed_shape_tensor(pa.int8(), [2, 3], dim_names=["y", "x"]),
        (
            'extension<"arrow.fixed_shape_tensor",'
            '"{\\"dim_names\\":[\\"y\\",\\"x\\"],\\"shape\\":[2,3]}",fixed_size_list<int8,6>>'
        ),
    ),
]


@pytest.mark.parametrize(("type_", "text"), TEXTS)
def test_the_texts_of_types_are_frozen(type_: pa.DataType, text: str) -> None:
    """They enter digests."""
    assert canonical_type(type_) == text


@settings(deadline=None, max_examples=150)
@given(st.data())
def test_only_one_type_has_a_text(data: st.DataObject) -> None:
    """Types share a text if and only if they differ in nothing but names of items, nullability and layout."""
    one = data.draw(types())
    other = data.draw(types() | st.just(one))

    same = _plain(stored_schema(of(one)).field(0).type) == _plain(stored_schema(of(other)).field(0).type)

    assert (canonical_type(one) == canonical_type(other)) == same


def _plain(type_: pa.DataType) -> Any:
    """A type without what its text leaves out."""
    if pa.types.is_list(type_) or pa.types.is_large_list(type_):
        return "list", _plain(type_.value_type)
    if pa.types.is_struct(type_):
        return [(field.name, _plain(field.type)) for field in type_]
    if pa.types.is_map(type_):
        return _plain(type_.key_type), _plain(type_.item_type)
    if pa.types.is_fixed_size_list(type_):
        return type_.list_size, _plain(type_.value_type)
    return type_


class Celsius(pa.ExtensionType):
    """An extension that some processes know and others do not."""

    def __init__(self) -> None:
        super().__init__(pa.float32(), "lake.tests.celsius")

    def __arrow_ext_serialize__(self) -> bytes:
        return b"\xff\x00C"

    @classmethod
    def __arrow_ext_deserialize__(cls, storage_type: pa.DataType, serialized: bytes) -> Celsius:
        return cls()


@pytest.fixture
def unregistered() -> pa.Schema:
    """A schema with `Celsius`, alone and in a list, as a process reads it that does not know the type."""
    return pa.ipc.read_schema(of(Celsius(), pa.list_(Celsius())).serialize())


def test_an_unregistered_extension_reads_like_the_registered_one(unregistered: pa.Schema) -> None:
    """Digests do not depend on which extension types a process has registered."""
    assert unregistered.field("a").type == pa.float32()

    known = of(Celsius(), pa.list_(Celsius()))

    assert [canonical_type(field) for field in unregistered] == [canonical_type(field) for field in known]
    assert canonical_type(known.field("a")) == 'extension<"lake.tests.celsius","ÿ\\u0000C",float32>'


# Documents ---


@settings(deadline=None, max_examples=100)
@given(schemas())
def test_an_encoded_schema_is_read_back_exactly(schema: pa.Schema) -> None:
    """Types, names, nullability and metadata survive, and equal schemas are equal texts."""
    canonical = canonical_schema(schema)

    assert decode_schema(encode_schema(canonical)).equals(canonical, check_metadata=True)
    assert encode_schema(canonical_schema(canonical)) == encode_schema(canonical)
    json.dumps(describe(canonical), allow_nan=False)


@pytest.mark.parametrize("text", ["", "AAAA", "no base64", "é", "/////wAAAAA=", "////////////"])
def test_a_text_that_is_no_schema_is_a_format_error(text: str) -> None:
    """Documents may be damaged or hostile."""
    with pytest.raises(FormatError, match="not a schema"):
        decode_schema(text)


def test_a_description_shows_what_differs() -> None:
    """Names, types, nullability and metadata at any depth, and what is a dictionary: all of a schema."""
    inner = pa.field("item", pa.int8())
    variants = [
        pa.field("a", pa.string()),
        pa.field("b", pa.string()),
        pa.field("a", pa.string(), nullable=False),
        pa.field("a", pa.string(), metadata={"unit": "m"}),
        pa.field("a", pa.dictionary(pa.int32(), pa.string())),
        pa.field("a", pa.dictionary(pa.int32(), pa.string(), ordered=True)),
        pa.field("a", pa.list_(inner)),
        pa.field("a", pa.list_(inner.with_nullable(False))),
        pa.field("a", pa.list_(pa.list_(inner.with_metadata({"unit": "m"})))),
        pa.field("a", pa.list_(pa.list_(inner))),
        pa.field("a", pa.map_(pa.string(), pa.int8())),
        pa.field("a", pa.map_(pa.string(), pa.field("value", pa.int8(), nullable=False))),
    ]

    texts = {json.dumps(describe(canonical_schema(pa.schema([field])))) for field in variants}

    assert len(texts) == len(variants)
    assert describe(pa.schema([variants[0]])) == [{"name": "a", "type": "string", "nullable": True}]
    assert describe(pa.schema([variants[10]])) == [
        {"name": "a", "type": "map<string,int8>", "nullable": True}
    ]


# Conforming ---


@settings(deadline=None, max_examples=150)
@given(batches())
def test_conforming_keeps_every_value(batch: pa.RecordBatch) -> None:
    """Any batch fits the stored form of its own schema, with equal values and exactly that schema."""
    stored = stored_schema(batch.schema)

    conformed = conform(batch, stored)

    conformed.validate(full=True)
    assert conformed.schema.equals(stored, check_metadata=True)
    for column, field, given_ in zip(conformed.columns, stored, batch.columns, strict=True):
        assert column.type.equals(field.type, check_metadata=True)
        assert repr(column.to_pylist()) == repr(given_.to_pylist())
    assert conform(conformed, stored).equals(conformed) or "nan" in repr(conformed.to_pylist())


def test_columns_that_match_are_not_copied() -> None:
    """Conforming costs nothing where types match already, whatever the order of columns."""
    tensors = pa.FixedSizeListArray.from_arrays(pa.array(np.zeros(64, np.float32)), 8)
    batch = pa.record_batch({"b": pa.array(["x"] * 8, pa.large_string()), "a": tensors})
    stored = pa.schema([("a", tensors.type), ("b", pa.large_string())])

    conformed = conform(batch, stored)

    def addresses(array: pa.Array) -> list[int]:
        return [buffer.address for buffer in array.buffers() if buffer]

    assert addresses(conformed["a"]) == addresses(batch["a"])
    assert addresses(conformed["b"]) == addresses(batch["b"])


def test_renamed_list_items_share_their_values() -> None:
    """Parquet's "element" becomes "item" without a copy of the items."""
    lists = pa.array([[1, 2], [3]], pa.list_(pa.field("element", pa.int64())))

    conformed = conform(pa.record_batch([lists], names=["a"]), of(pa.list_(pa.int64())))

    assert conformed["a"].values.buffers()[1].address == lists.values.buffers()[1].address


def test_absent_nullable_columns_are_null() -> None:
    """So that data may lack a column that the dataset gained."""
    stored = pa.schema([("a", pa.int8()), ("t", pa.fixed_shape_tensor(pa.int8(), [2]))])

    conformed = conform(pa.record_batch({"a": pa.array([1, 2], pa.int8())}), stored)

    assert conformed["t"].to_pylist() == [None, None]


@pytest.mark.parametrize(
    ("batch", "text"),
    [
        ({"a": [1], "x": [1]}, "'x' is not in the schema"),
        ({"x": [1]}, "'x' is not in the schema"),
        ({}, "'a' is missing, but declared not null"),
        ({"a": ["1"]}, "'a' is int32 and cannot take string"),
        ({"a": [1.0]}, "'a' is int32 and cannot take float64"),
        ({"a": [1, None]}, "'a', row 1: null, but declared not null"),
    ],
)
def test_what_does_not_fit_the_schema_is_named(batch: dict[str, Any], text: str) -> None:
    """The message has column and types; nothing is parsed, printed or rounded."""
    stored = pa.schema([pa.field("a", pa.int32(), nullable=False), ("b", pa.int8())])

    with pytest.raises(SchemaError, match=text):
        conform(pa.record_batch(batch), stored)


def test_a_batch_with_a_column_twice_is_refused() -> None:
    """Rather than taking one of them, or neither."""
    with pytest.raises(SchemaError, match="'a' is there twice"):
        conform(pa.record_batch([pa.array([1]), pa.array([2])], names=["a", "a"]), of(pa.int64()))


@settings(deadline=None, max_examples=60)
@given(st.lists(st.none() | st.integers(-300, 300), min_size=1, max_size=40), st.integers(0, 3))
def test_the_first_row_that_does_not_fit_is_named(numbers: list[int | None], before: int) -> None:
    """With column, value, both types, and as attributes that survive pickling."""
    misfits = [i for i, number in enumerate(numbers) if number is not None and not -128 <= number < 128]
    assume(misfits)
    array = pa.array([0] * before + numbers, pa.int64()).slice(before)

    with pytest.raises(SchemaError) as caught:
        conform(pa.record_batch([array], names=["a"]), of(pa.int8()))

    assert f"column 'a', row {misfits[0]}: {numbers[misfits[0]]} (int64) does not fit int8" in str(
        caught.value
    )
    error = pickle.loads(pickle.dumps(caught.value))
    assert (error.column, error.row) == ("a", misfits[0])


def test_what_hides_under_nulls_never_fails_a_cast() -> None:
    """Bytes under a null are not values, at any depth."""
    junk = pa.array([1, 2**40, 3, 2**40])
    valid = pa.py_buffer(b"\x01")  # only row 0
    offsets = pa.py_buffer(np.array([0, 1, 4], np.int32))
    lists = pa.Array.from_buffers(pa.list_(pa.int64()), 2, [valid, offsets], children=[junk])
    pairs = pa.Array.from_buffers(
        pa.list_(pa.int64(), 2), 2, [pa.py_buffer(b"\x02")], children=[junk.take([1, 3, 0, 2])]
    )
    structs = pa.StructArray.from_arrays([junk], ["x"], mask=pa.array([False, True, False, True]))

    assert conform(pa.record_batch([lists], names=["a"]), of(pa.list_(pa.int8())))["a"].to_pylist() == [
        [1],
        None,
    ]
    assert conform(pa.record_batch([pairs], names=["a"]), of(pa.list_(pa.int8(), 2)))["a"].to_pylist() == [
        None,
        [1, 3],
    ]
    conformed = conform(pa.record_batch([structs], names=["a"]), of(pa.struct([("x", pa.int8())])))
    assert conformed["a"].to_pylist() == [{"x": 1}, None, {"x": 3}, None]


# Casts ---


NUMBERS = [
    *INTEGERS,
    *FLOATS,
    *DECIMALS,
    pa.decimal128(38, 0),
    pa.decimal128(20, 3),
    pa.decimal64(9, 2),
    pa.decimal256(76, 20),
]


@settings(deadline=None, max_examples=400)
@given(st.data())
def test_a_cast_loses_nothing_or_fails(data: st.DataObject) -> None:
    """What may be cast comes back equal when cast back; otherwise the cast says that a value does not fit."""
    source = data.draw(st.sampled_from(NUMBERS + TEMPORALS))
    target = data.draw(st.sampled_from([type_ for type_ in NUMBERS + TEMPORALS if castable(source, type_)]))
    array = data.draw(arrays(source))

    try:
        made = cast(array, target)
    except pa.ArrowInvalid:
        return
    made.validate(full=True)
    assert made.type == target
    if pa.types.is_decimal(target):  # narrowing back is beyond Arrow
        assert made.to_pylist() == array.to_pylist()
    else:
        assert value_digest([made.cast(source)]) == value_digest([array])


@settings(deadline=None, max_examples=200)
@given(st.data())
def test_castable_types_are_cast(data: st.DataObject) -> None:
    """Whatever `castable` allows, `cast` knows how to do: nulls and no rows always fit."""
    source = data.draw(types())
    relatives = [type_ for type_ in PRIMITIVES + EXTENSIONS if castable(source, type_)]
    target = stored_schema(of(data.draw(st.sampled_from([source, *relatives])))).field(0).type

    assert cast(pa.nulls(3, source), target).to_pylist() == [None] * 3
    assert cast(pa.nulls(0, source), target).type == target


@pytest.mark.parametrize(
    ("source", "target", "allowed"),
    [
        (pa.null(), pa.list_(pa.uuid()), True),
        (pa.int8(), pa.uint64(), True),
        (pa.int64(), pa.int8(), True),
        (pa.int64(), pa.float32(), True),
        (pa.int8(), pa.float16(), False),
        (pa.bool_(), pa.int8(), False),
        (pa.float32(), pa.float64(), True),
        (pa.float64(), pa.float32(), False),
        (pa.float64(), pa.int64(), False),
        (pa.int64(), pa.string(), False),
        (pa.string(), pa.int64(), False),
        (pa.string(), pa.binary(), False),
        (pa.string_view(), pa.dictionary(pa.int8(), pa.string()), True),
        (pa.dictionary(pa.int8(), pa.int8()), pa.int64(), True),
        (pa.decimal128(5, 2), pa.decimal64(7, 3), True),
        (pa.decimal128(5, 2), pa.decimal128(5, 3), False),
        (pa.timestamp("s"), pa.timestamp("ns"), True),
        (pa.timestamp("s", "UTC"), pa.timestamp("s"), False),
        (pa.timestamp("s", "UTC"), pa.timestamp("s", "Etc/UTC"), False),
        (pa.date32(), pa.date64(), True),
        (pa.date32(), pa.timestamp("s"), False),
        (pa.large_list(pa.int8()), pa.list_(pa.int64()), True),
        (pa.list_(pa.int8()), pa.list_(pa.int8(), 2), False),
        (pa.list_(pa.int8(), 3), pa.list_(pa.int8(), 2), False),
        (pa.struct([("a", pa.int8())]), pa.struct([("b", pa.string()), ("a", pa.int64())]), True),
        (
            pa.struct([("a", pa.int8())]),
            pa.struct([pa.field("b", pa.int8(), False), ("a", pa.int8())]),
            False,
        ),
        (pa.struct([("a", pa.int8()), ("b", pa.int8())]), pa.struct([("a", pa.int8())]), False),
        (pa.map_(pa.string(), pa.int8()), pa.map_(pa.large_string(), pa.int64()), True),
        (pa.binary(16), pa.uuid(), False),
        (pa.fixed_shape_tensor(pa.int8(), [2, 3]), pa.fixed_shape_tensor(pa.int8(), [3, 2]), False),
        (pa.json_(), pa.json_(pa.string_view()), True),
    ],
)
def test_which_types_may_be_cast(source: pa.DataType, target: pa.DataType, allowed: bool) -> None:
    """Widths and layouts yes; meaning, shape and zone no."""
    assert castable(source, target) is allowed


def test_structs_are_cast_by_name() -> None:
    """Fields in another order, and absent nullable ones, as JSON gives them."""
    target = pa.struct([("b", pa.string()), ("a", pa.int64()), ("c", pa.float32())])

    made = cast(pa.array([{"a": 1, "b": "x"}, None]), target)

    assert made.to_pylist() == [{"b": "x", "a": 1, "c": None}, None]


# Appending ---


def test_an_append_keeps_the_heads_columns_and_adds_new_ones_last() -> None:
    """Types, order, nullability and metadata are the head's, whatever the layout and order of what comes."""
    head = pa.schema(
        [pa.field("a", pa.int32(), metadata={"unit": "m"}), ("b", pa.dictionary(pa.int8(), pa.string()))],
        {"k": "v"},
    )
    incoming = pa.schema([("c", pa.string()), ("b", pa.string_view()), ("a", pa.int64())])

    unified = unify_for_append(head, incoming)

    expected = pa.schema([*canonical_schema(head), ("c", pa.large_string())], metadata={"k": "v"})
    assert unified.equals(expected, check_metadata=True)


@settings(deadline=None, max_examples=100)
@given(schemas())
def test_appending_the_same_schema_changes_nothing(schema: pa.Schema) -> None:
    """Nor does appending any layout of it, or a part of its nullable columns."""
    canonical = canonical_schema(schema)

    assert unify_for_append(canonical, schema).equals(canonical, check_metadata=True)
    assert unify_for_append(canonical, stored_schema(schema)).equals(canonical, check_metadata=True)
    assert unify_for_append(canonical, pa.schema([])).equals(canonical, check_metadata=True)


@settings(deadline=None, max_examples=100)
@given(st.data())
def test_any_type_may_be_appended_to_a_column_of_nulls(data: st.DataObject) -> None:
    """The column gets that type, and its old rows are read as nulls of it."""
    type_ = data.draw(types())

    unified = unify_for_append(of(pa.null()), of(type_))

    assert unified.equals(canonical_schema(of(type_)), check_metadata=True)
    old = conform(pa.record_batch([pa.nulls(2)], names=["a"]), stored_schema(unified))
    assert old["a"].to_pylist() == [None, None]


def test_nulls_inside_lists_structs_and_maps_are_filled_as_well() -> None:
    """A list that was always empty has items of type null, and takes any."""
    head = of(
        pa.list_(pa.null()), pa.struct([("x", pa.null()), ("y", pa.int8())]), pa.map_(pa.string(), pa.null())
    )
    incoming = of(pa.large_list(pa.string()), pa.struct([("x", pa.bool_())]), pa.map_(pa.string(), pa.int8()))

    unified = unify_for_append(head, incoming)

    assert unified.types == [
        pa.list_(pa.large_string()),
        pa.struct([("x", pa.bool_()), ("y", pa.int8())]),
        pa.map_(pa.large_string(), pa.int8()),
    ]
    old = pa.record_batch([pa.array([[], None, [None]], pa.list_(pa.null()))], names=["a"])
    assert conform(old, unified)["a"].to_pylist() == [[], None, [None]]


@pytest.mark.parametrize(
    ("head", "incoming", "text"),
    [
        (of(pa.int64()), of(pa.string()), "'a' is int64 and cannot take string"),
        (of(pa.float32()), of(pa.float64()), "'a' is float32 and cannot take float64"),
        (of(pa.list_(pa.int8(), 2)), of(pa.list_(pa.int8(), 3)), r"fixed_size_list<int8,2> and cannot take"),
        (pa.schema([pa.field("a", pa.int8(), False)]), of(), "'a' is missing, but declared not null"),
        (of(), pa.schema([pa.field("a", pa.int8(), False)]), "'a' is new, so earlier rows have no value"),
    ],
)
def test_an_append_that_does_not_fit_names_what_does_not(
    head: pa.Schema, incoming: pa.Schema, text: str
) -> None:
    """Column and both types, before any data is read."""
    with pytest.raises(SchemaError, match=text):
        unify_for_append(head, incoming)


def test_appended_values_are_cast_without_loss() -> None:
    """Wider integers go into the head's where they fit; a dictionary into strings; fewer digits into more."""
    head = of(pa.int8(), pa.string(), pa.decimal128(9, 3))
    incoming = pa.record_batch(
        [
            pa.array([127, None]),
            pa.array(["x", "y"]).dictionary_encode(),
            pa.array([Decimal("1.5"), None], pa.decimal32(3, 1)),
        ],
        names=["a", "b", "c"],
    )

    conformed = conform(incoming, stored_schema(unify_for_append(head, incoming.schema)))

    assert conformed.to_pydict() == {"a": [127, None], "b": ["x", "y"], "c": [Decimal("1.500"), None]}
    assert conformed["a"].type == pa.int8()


@pytest.mark.parametrize(
    "wrap", [pa.list_, lambda t: pa.struct([("x", t)]), lambda t: pa.map_(pa.int8(), t)], ids=range(3)
)
@pytest.mark.parametrize("depth", [64, 100, 900])
def test_types_nested_too_deep_are_refused_by_name(wrap, depth):
    """Arrow can neither write them, nor Python recurse into the deepest."""

    def nested(levels):
        found = pa.int8()
        for _ in range(levels):
            found = wrap(found)
        return pa.schema([("c", found)])

    with pytest.raises(SchemaError, match="column 'c': a type nested over 64 deep"):
        canonical_schema(nested(depth))
    canonical_schema(nested(63 if depth == 64 else 20))


@pytest.mark.parametrize("kind", [pa.binary(0), pa.dictionary(pa.int8(), pa.binary(0))], ids=str)
def test_binaries_of_no_bytes_are_refused_by_name(kind):
    """Parquet cannot hold their statistics."""
    with pytest.raises(SchemaError, match=r"column 'c': .*fixed_size_binary\[0\]"):
        canonical_schema(pa.schema([("c", kind)]))


def test_a_misfit_is_named_by_row_and_key():
    """The row of the whole input, its key, both types, and what to do."""
    stored = pa.schema([("k", pa.large_string()), ("a", pa.int8()), pa.field("b", pa.int8(), nullable=False)])
    wide = pa.record_batch({"k": ["x", "y"], "a": pa.array([1, 300]), "b": [1, 1]})
    null = pa.record_batch({"k": ["x", "y"], "a": [1, 1], "b": pa.array([1, None])})

    with pytest.raises(
        SchemaError,
        match=r"column 'a', row 11, key 'y': 300 \(int64\) does not fit int8: .*Correct it, or overwrite",
    ) as caught:
        conform(wide, stored, key="k", first=10)
    assert (caught.value.column, caught.value.row) == ("a", 11)
    with pytest.raises(SchemaError, match="column 'b', row 11, key 'y': null"):
        conform(null, stored, key="k", first=10)
    with pytest.raises(SchemaError, match="column 'a', row 1: 300"):
        conform(wide, stored)
    with pytest.raises(SchemaError, match="row 1: 300"):
        conform(wide.select(["a", "b"]), stored, key="k")


def test_types_that_cannot_be_appended_say_what_to_do():
    """Both types, and the two ways out."""
    with pytest.raises(
        SchemaError, match=r"is int64 and cannot take string: convert the data to int64.*overwrite"
    ):
        unify_for_append(pa.schema([("a", pa.int64())]), pa.schema([("a", pa.string())]))
