"""Iterables of samples: types from the beginning, then kept to, and every error with key, field and row."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lake.convert import read, samples, source, tensors
from lake.errors import SchemaError


def table(found) -> pa.Table:
    whole = pa.Table.from_batches(found.batches, found.schema)
    whole.validate(full=True)
    return whole


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.text(max_size=4),
            st.fixed_dictionaries(
                {"b": st.none() | st.binary(max_size=9), "n": st.integers(-9, 9), "s": st.text(max_size=9)}
            ),
        ),
        min_size=1,
        max_size=30,
    ),
    st.integers(1, 60),
    st.integers(1, 10),
)
def test_samples_come_back_wherever_batches_end(drawn, batch_bytes, window):
    """In their order; keys need not be unique."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(samples, "BATCH_BYTES", batch_bytes)
        patch.setattr(samples, "WINDOW_ROWS", window)
        if not any(row["b"] for _, row in drawn[:window]):
            drawn[0] = (drawn[0][0], drawn[0][1] | {"b": b"x"})

        found = table(read(iter(drawn)))

    assert found.to_pylist() == [{"key": key, **fields} for key, fields in drawn]
    assert found.schema.names == ["key", "b", "n", "s"]


def test_every_kind_of_value_has_its_type():
    """As the design lists them."""
    fields = {
        "bytes": b"b",
        "str": "s",
        "bool": True,
        "int": 1,
        "float": 0.5,
        "none": None,
        "scalar": np.float32(1),
        "array": np.zeros((2, 2), np.uint8),
        "tensor": torch.ones(3),
        "list": [1, 2],
        "dict": {"x": "y"},
    }

    found = read([("a", fields)])

    assert found.key == "key"
    assert {f.name: f.type for f in found.schema} == {
        "key": pa.large_string(),
        "bytes": pa.large_binary(),
        "str": pa.large_string(),
        "bool": pa.bool_(),
        "int": pa.int64(),
        "float": pa.float64(),
        "none": pa.null(),
        "scalar": pa.float32(),
        "array": pa.fixed_shape_tensor(pa.uint8(), (2, 2)),
        "tensor": pa.fixed_shape_tensor(pa.float32(), (3,)),
        "list": pa.list_(pa.int64()),
        "dict": pa.struct([("x", pa.large_string())]),
    }
    assert found.schema.names == ["key", *sorted(fields)]
    assert table(found).num_rows == 1


def test_tensors_of_several_shapes_are_marked():
    """A reader sees from the field that it holds tensors, also where it is nested."""
    values = [np.zeros((1, 2)), np.zeros((2, 2))]

    found = read([(str(i), {"x": v, "deep": {"y": [v]}}) for i, v in enumerate(values)])

    assert found.schema.field("x").metadata == tensors.MARK
    assert found.schema.field("deep").type.field("y").type.value_field.metadata == tensors.MARK
    assert table(found)["x"].to_pylist()[1] == {"data": [0.0] * 4, "shape": [2, 2]}


@pytest.mark.parametrize("key", ["k", b"k", 7], ids=repr)
def test_keys_are_text_bytes_or_ints(key):
    """And keep their type."""
    assert table(read([(key, {"x": 1})]))["key"].to_pylist() == [key]


@pytest.mark.parametrize("key", [None, 1.5, True, ("a", "b")])
def test_other_keys_are_refused(key):
    """They do not name anything for good."""
    with pytest.raises(SchemaError, match="key"):
        read([(key, {"x": 1})])


@pytest.mark.parametrize(
    ("later", "message"),
    [
        ({"x": "one", "y": b""}, r"sample 'k4' \(row 4\), field 'x': str does not fit int64.*schema="),
        ({"x": 2.0, "y": b""}, r"row 4\), field 'x': float does not fit int64"),
        ({"x": 2**63, "y": b""}, r"row 4\), field 'x': 9223372036854775808 does not fit int64"),
        ({"x": 1, "y": "text"}, r"field 'y': str does not fit large_binary"),
        ({"x": 1}, r"sample 'k4' \(row 4\) has no field 'y'.*None.*schema="),
        ({"x": 1, "y": b"", "z": 1}, r"sample 'k4' \(row 4\) has a field 'z'.*schema="),
    ],
)
def test_a_later_sample_that_does_not_fit_is_named(monkeypatch, later, message):
    """Key, row, field, both types, and the way out."""
    monkeypatch.setattr(samples, "WINDOW_ROWS", 2)
    monkeypatch.setattr(samples, "BATCH_ROWS", 2)
    data = [(f"k{i}", {"x": i, "y": b"y"}) for i in range(4)] + [("k4", later), ("k5", {"x": 5, "y": b""})]

    with pytest.raises(SchemaError, match=message):
        table(read(data))


@pytest.mark.parametrize(
    ("second", "message"),
    [
        ({"x": "a"}, r"sample 'k1' \(row 1\), field 'x': int and str are no one type.*schema="),
        ({}, r"sample 'k1' \(row 1\) has no field 'x'"),
        ({"x": 2**64}, r"row 1\), field 'x': 18446744073709551616 does not fit int64"),
        ({"x": object()}, r"row 1\), field 'x': object cannot be stored"),
        ({"x": 1, 2: 3}, "field is named 2"),
        ({"x": 1, "key": 3}, "field named 'key'"),
    ],
)
def test_first_samples_that_do_not_agree_are_named(second, message):
    """Within what settles the types."""
    with pytest.raises(SchemaError, match=message):
        table(read([("k0", {"x": 1}), ("k1", second), ("k2", {"x": 3})]))


@pytest.mark.parametrize(("row", "fits"), [(9_999, True), (10_000, False)])
def test_the_first_ten_thousand_samples_settle_the_types(row, fits):
    """Not one more, so that the types of a stream are known from its beginning."""
    found = read((i, {"x": 0.5 if i == row else i}) for i in range(10_100))

    if fits:
        assert table(found)["x"].type == pa.float64()
    else:
        with pytest.raises(SchemaError, match=r"row 10,000\), field 'x': float does not fit int64"):
            table(found)


def test_a_window_ends_by_bytes_too(monkeypatch):
    """Large samples are not hoarded to find their types."""
    monkeypatch.setattr(samples, "WINDOW_BYTES", 1000)
    monkeypatch.setattr(samples, "BATCH_BYTES", 500)
    taken = 0

    def endless():
        nonlocal taken
        while True:
            taken += 1
            yield str(taken), {"x": b"x" * 100}

    read(endless())

    assert taken < 20


def test_batches_are_of_bounded_size():
    """In bytes, whatever holds them, and in rows."""
    blobs = read((str(i), {"x": bytes(1 << 20)}) for i in range(20))
    arrays = read((str(i), {"x": np.zeros(1 << 17)}) for i in range(20))
    nested = read((str(i), {"x": [["y" * (1 << 20)]]}) for i in range(20))
    tiny = read((i, {}) for i in range(source.BATCH_ROWS + 1))

    for found in (blobs, arrays, nested):
        assert max(batch.nbytes for batch in found.batches) <= source.BATCH_BYTES + (2 << 20)
    assert [batch.num_rows for batch in tiny.batches] == [10_000, source.BATCH_ROWS - 10_000 + 1]


def test_schema_settles_the_types_and_what_may_be_missing():
    """A nullable field may be missing, another not; listed values are codes; the key is implied."""
    schema = {
        "label": ["cat", "dog"],
        "x": pa.float32(),
        "must": pa.field("must", pa.int8(), nullable=False),
    }

    found = read([("a", {"label": "dog", "must": 1}), ("b", {"x": 0.1, "must": 2})], schema=schema)

    assert found.schema.names == ["key", "label", "x", "must"]
    assert found.vocab == {"label": ["cat", "dog"]}
    assert table(found).to_pylist() == [
        {"key": "a", "label": "dog", "x": None, "must": 1},
        {"key": "b", "label": None, "x": pytest.approx(0.1), "must": 2},
    ]
    for sample, message in [
        ({"label": "dog"}, "has no field 'must'"),
        ({"must": None}, "'must': None does not fit int8"),
        ({"must": 300}, r"\(row 0\), field 'must': 300 does not fit int8"),
        ({"must": 1, "new": 1}, "has a field 'new' that schema= lacks"),
        ({"must": 1, "label": "cow"}, "'cow' .* the 2 values listed"),
    ]:
        with pytest.raises(SchemaError, match=message):
            table(read([("a", sample)], schema=schema))


def test_nothing_to_read_says_what_was_looked_for():
    """Unless `schema=` says what there could have been."""
    with pytest.raises(ValueError, match=r"empty.*\(key, \{field: value\}\)"):
        read([])
    assert table(read([], schema={"x": pa.int8()})).schema.names == ["key", "x"]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([{"a": 1}], "from_pylist"),
        ({"ab": {"x": 1}}, "items"),
        ([("a", {"x": 1}), 7], "item 1 .* is 7"),
        ([("a", 1)], "not a sample"),
        ([("a", {}, 3)], "not a sample"),
    ],
)
def test_what_is_no_sample_is_shown(data, message):
    """With what to commit instead."""
    with pytest.raises(TypeError, match=message):
        table(read(data))


def test_an_error_of_the_iterable_is_its_own():
    """A bug in the user's generator is not lake's to explain away."""

    def broken():
        yield "a", {"x": 1}
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        table(read(broken()))
