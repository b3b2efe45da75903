"""Python values as Arrow columns: generous in finding a type, strict in keeping to it."""

from __future__ import annotations

import datetime
import decimal
import math
import uuid
from enum import IntEnum

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lake.convert import columns, tensors
from lake.convert.tensors import Misfit

UTC = datetime.UTC
NAIVE = datetime.datetime.fromisoformat("2020-01-01T00:00:00")
SCALARS = {
    pa.bool_(): st.booleans(),
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.float64(): st.floats(),
    pa.large_string(): st.text(max_size=5),
    pa.large_binary(): st.binary(max_size=5),
    pa.date32(): st.dates(),
    pa.timestamp("us"): st.datetimes(),
}


@st.composite
def typed(draw, depth: int = 2):
    """A type and a strategy for its values, none of which is None or empty at the top."""
    kind = draw(st.sampled_from([*SCALARS, *(["list", "dict"] if depth else [])]))
    if kind == "list":
        item, values = draw(typed(depth - 1))
        return pa.list_(item), st.lists(st.none() | values, max_size=3)
    if kind == "dict":
        children = draw(st.dictionaries(st.sampled_from("abc"), typed(depth - 1), min_size=1, max_size=2))
        return (
            pa.struct([(name, child) for name, (child, _) in children.items()]),
            st.fixed_dictionaries({name: st.none() | values for name, (_, values) in children.items()}),
        )
    return kind, SCALARS[kind]


def same(a, b) -> bool:
    """Equal, NaN being itself."""
    if isinstance(a, float) and isinstance(b, float):
        return a == b or (math.isnan(a) and math.isnan(b))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_values_come_back_as_they_were(data):
    """`build(values, infer(values))` loses nothing, whatever is null, empty or nested."""
    _, values = data.draw(typed())
    drawn = data.draw(st.lists(st.none() | values, max_size=6))

    array = columns.build(drawn, columns.infer(drawn))

    array.validate(full=True)
    assert same(array.to_pylist(), drawn)


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_a_type_depends_neither_on_nulls_nor_on_any_order(data):
    """Nulls and empty lists widen to anything; neither rows nor a dict's names have an order that counts."""
    kind, values = data.draw(typed())
    drawn = data.draw(st.lists(values, min_size=1, max_size=4))
    holes = data.draw(st.lists(st.none(), max_size=3))
    mixed = data.draw(st.permutations(drawn + holes))

    assert columns.infer(mixed).equals(columns.infer(drawn))
    if pa.types.is_list(kind):
        assert columns.infer([[], *drawn]).equals(columns.infer(drawn))


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_a_value_of_another_type_is_never_let_in(data):
    """Arrow itself would decode bytes, truncate floats and drop unknown names; an int may be a float."""
    kind, values = data.draw(typed(1))
    other, others = data.draw(
        typed(1).filter(lambda drawn: drawn[0] != kind and not pa.types.is_nested(drawn[0]))
    )
    if pa.types.is_nested(kind) or (kind == pa.float64() and other == pa.int64()):
        return
    drawn = data.draw(st.lists(values, max_size=3))
    odd = data.draw(others)

    with pytest.raises(Misfit):
        columns.build([*drawn, odd], kind)
    assert columns.first_misfit([*drawn, odd], kind) == len(drawn)


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([], pa.null()),
        ([None, None], pa.null()),
        ([1, 2.5, None], pa.float64()),
        ([True, None], pa.bool_()),
        ([[], None], pa.list_(pa.null())),
        ([[1], [2.5], []], pa.list_(pa.float64())),
        ([(1, 2)], pa.list_(pa.int64())),
        ([{"a": 1}, {"b": "x"}], pa.struct([("a", pa.int64()), ("b", pa.large_string())])),
        ([{"a": []}, {"a": [b"x"]}], pa.struct([("a", pa.list_(pa.large_binary()))])),
        ([np.float32(1), np.float32(2)], pa.float32()),
        ([np.int8(1), np.int16(2)], pa.int16()),
        ([np.uint8(1)], pa.uint8()),
        ([np.int32(1), 2], pa.int64()),
        ([np.float32(1), 2.5], pa.float64()),
        ([np.uint64(2**63)], pa.uint64()),
        ([np.uint64(1), -1], pa.int64()),
        ([np.bool_(True), False], pa.bool_()),
        ([np.str_("x"), "y"], pa.large_string()),
        ([bytearray(b"x"), memoryview(b"y"), b"z"], pa.large_binary()),
        ([IntEnum("E", "A").A], pa.int64()),
        ([datetime.date(2020, 1, 1)], pa.date32()),
        ([datetime.datetime(2020, 1, 1, tzinfo=UTC)], pa.timestamp("us", "UTC")),
        ([datetime.timedelta(1)], pa.duration("us")),
        ([np.timedelta64(1, "s")], pa.duration("s")),
        ([decimal.Decimal("1.25")], pa.decimal128(3, 2)),
        ([uuid.UUID(int=1)], pa.uuid()),
        ([np.zeros((2, 3), np.uint8)] * 2, pa.fixed_shape_tensor(pa.uint8(), (2, 3))),
        ([np.zeros(2, ">i2"), np.zeros(2, "<f4")], pa.fixed_shape_tensor(pa.float32(), (2,))),
        ([np.array(3, np.int16)], pa.int16()),
        ([torch.zeros(2, dtype=torch.float64), None], pa.fixed_shape_tensor(pa.float64(), (2,))),
        ([torch.tensor(7)], pa.int64()),
        ([np.zeros((1, 2)), np.zeros((3, 2))], tensors.variable_shape(pa.float64(), 2)),
        ([[np.zeros(2)], [np.zeros(2), np.zeros(2)]], pa.list_(pa.fixed_shape_tensor(pa.float64(), (2,)))),
    ],
)
def test_types_found(values, kind):
    """And values can be built of what was found."""
    assert columns.infer(values).equals(kind)
    array = columns.build(values, kind)
    array.validate(full=True)
    assert len(array) == len(values)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([1, "a"], "int and str are no one type"),
        ([True, 1], "bool and int"),
        ([[1], ["a"]], "int and str"),
        ([{"a": 1}, {"a": "x"}], "int and str"),
        ([{1: 2}], "keys must be str"),
        ([object()], "object cannot be stored"),
        ([{1, 2}], "set cannot be stored"),
        ([1 + 2j], "complex cannot be stored"),
        ([np.zeros(2, complex)], "complex128"),
        ([np.array(["a"])], "<U1"),
        ([np.zeros((2, 2)), np.zeros(2)], "of 1 and of 2 dimensions"),
        ([np.ma.masked_array([1, 2], [True, False])], "mask"),
        ([torch.zeros(2, dtype=torch.bfloat16)], "bfloat16"),
        ([np.zeros(2), [1.0, 2.0]], "list"),
        ([np.zeros(2, bool), np.zeros(2)], "bool and float64"),
        ([NAIVE, NAIVE.replace(tzinfo=UTC)], "zone"),
    ],
)
def test_what_has_no_type_says_why(values, message):
    """Naming both types."""
    with pytest.raises(Misfit, match=message):
        columns.infer(values)


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (1.0, pa.int64()),
        (np.float32(1.5), pa.int64()),
        (2**63, pa.int64()),
        (-(2**63) - 1, pa.int64()),
        (300, pa.uint8()),
        (2**53 + 1, pa.float64()),
        (True, pa.int64()),
        (1, pa.bool_()),
        ("a", pa.large_binary()),
        (b"a", pa.large_string()),
        ("\ud800", pa.large_string()),
        ({"a": 1, "z": 2}, pa.struct([("a", pa.int64())])),
        ([1, "a"], pa.list_(pa.int64())),
        ([1], pa.list_(pa.int64(), 2)),
        (1, pa.null()),
        (np.zeros(3), pa.fixed_shape_tensor(pa.float64(), (2,))),
        (np.zeros(2), pa.fixed_shape_tensor(pa.float32(), (2,))),
        (np.zeros(2), tensors.variable_shape(pa.float64(), 2)),
        (np.zeros(2), pa.list_(pa.int64())),
        (decimal.Decimal("123.45"), pa.decimal128(3, 2)),
        (NAIVE, pa.date32()),
        ("x", pa.dictionary(pa.int32(), pa.int64())),
    ],
)
def test_what_does_not_fit_is_refused(value, kind):
    """Though Arrow would take much of it, changed."""
    with pytest.raises(Misfit):
        columns.build([None, value], kind)


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (["a", None, "b", "a"], pa.dictionary(pa.int8(), pa.string())),
        ([None, [1, 2], [3, 4], None], pa.list_(pa.int64(), 2)),
        ([[], None], pa.list_(pa.int64(), 0)),
        ([[1], None, []], pa.large_list(pa.int8())),
        ([{"a": 1}, {}, None], pa.struct([("a", pa.int8()), ("b", pa.string())])),
        ([b"abc", None], pa.binary(3)),
        ([1, 0.1, None], pa.float32()),
        ([{}, None], pa.struct([])),
    ],
)
def test_types_that_a_schema_may_ask_for_are_built(values, kind):
    """Beyond those that are ever inferred; a float goes into float32 where that is asked for."""
    array = columns.build(values, kind)

    array.validate(full=True)
    assert array.type == kind
    assert array.to_pylist() == pa.array(values, kind).to_pylist()


def test_maps_are_built_of_dicts_and_pairs():
    """Their keys may be of any type."""
    array = columns.build([{1: "a"}, [(2, "b")], None], pa.map_(pa.int8(), pa.string()))

    assert array.to_pylist() == [[(1, "a")], [(2, "b")], None]


def test_arrays_fill_lists_that_a_schema_asks_for():
    """Of one dimension, without a detour through Python values."""
    array = columns.build([np.array([1, 2], np.int16), None, np.array([], np.int16)], pa.list_(pa.int64()))

    assert array.to_pylist() == [[1, 2], None, []]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_tensors_come_back_as_they_were(data):
    """Of one shape or several, of any dtype, null or not, however they lie in memory."""
    dtype = data.draw(st.sampled_from(["u1", "i8", "f2", "f4", ">f8", "?", "M8[us]"]))
    rank = data.draw(st.integers(1, 3))
    one = data.draw(st.booleans())
    shape = st.tuples(*[st.integers(0, 3)] * rank)
    fixed = data.draw(shape)
    shapes = data.draw(st.lists(st.none() | (st.just(fixed) if one else shape), min_size=1, max_size=5))
    arrays = [None if s is None else np.arange(math.prod(s)).reshape(s[::-1]).astype(dtype).T for s in shapes]

    kind = columns.infer(arrays)
    column = columns.build(arrays, kind)

    column.validate(full=True)
    assert column.is_null().to_pylist() == [a is None for a in arrays]
    for array, value in zip(arrays, column, strict=True):
        if array is None:
            continue
        if tensors.is_variable_shape(kind):
            back = np.array(value.as_py()["data"], array.dtype.newbyteorder("=")).reshape(
                value.as_py()["shape"]
            )
        else:
            back = np.array(value.value.as_py(), array.dtype.newbyteorder("=")).reshape(array.shape)
        assert back.shape == array.shape
        assert np.array_equal(back, array)


def test_stacking_copies_once():
    """A column of equal arrays is one block of memory, row-major."""
    arrays = [np.full((2, 3), i, np.float32) for i in range(4)]

    column = columns.build(arrays, columns.infer(arrays))

    assert np.array_equal(column.to_numpy_ndarray(), np.stack(arrays))


@given(st.lists(st.one_of(st.integers(0, 9), st.text(max_size=1), st.none()), max_size=12))
def test_the_first_odd_value_is_found(values):
    """It is the first whose prefix has no common type."""
    prefixes = []
    for end in range(len(values) + 1):
        try:
            columns.infer(values[:end])
            prefixes.append(True)
        except Misfit:
            prefixes.append(False)

    if not all(prefixes):
        assert columns.first_odd(values) == prefixes.index(False) - 1
