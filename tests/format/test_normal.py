"""The normal form of arrays: same values, same buffers, nothing of a parent or of what nulls hide."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from lake.format.content import value_digest
from lake.format.normal import normal, occupied, overhead
from lake.format.schema import stored_schema
from tests.strategies import arrays, junk_under_nulls, shifted, types


def stored_types():
    """The types that columns of parts have."""
    return types().map(lambda type_: stored_schema(pa.schema([("x", type_)]))[0].type)


def buffers(array: pa.Array) -> list[bytes | None]:
    return [buffer if buffer is None else buffer.to_pybytes() for buffer in array.buffers()]


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_equal_values_have_equal_buffers(data):
    """However an array was sliced, shifted, joined from chunks or filled under its nulls."""
    array = data.draw(arrays(data.draw(stored_types())))
    cut = data.draw(st.integers(0, len(array)))
    disguises = [
        shifted(array),
        junk_under_nulls(array),
        pa.concat_arrays([array.slice(0, cut), array.slice(cut)]),
        normal(array),
    ]

    expected = normal(array)

    for disguise in disguises:
        assert buffers(normal(disguise)) == buffers(expected)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_the_values_stay_and_are_valid(data):
    """Nothing but layout changes."""
    array = data.draw(arrays(data.draw(stored_types())))

    result = normal(array)

    result.validate(full=True)
    assert result.type == array.type
    assert result.null_count == array.null_count
    assert value_digest([result]) == value_digest([array])


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_an_array_takes_no_more_memory_than_is_said(data):
    """The size depends on the values alone, adds up over slices, and bounds the buffers."""
    array = data.draw(arrays(data.draw(stored_types())))
    cut = data.draw(st.integers(0, len(array)))
    whole = normal(array)

    size = occupied(whole)

    assert occupied(normal(array.slice(0, cut))) + occupied(normal(array.slice(cut))) == size
    assert occupied(normal(junk_under_nulls(array))) == size
    taken = sum(buffer.size for buffer in whole.buffers() if buffer is not None)
    assert taken <= -(-size // 8) + overhead(array.type)


def test_a_slice_keeps_nothing_of_its_parent():
    """Arrow pads what it writes with whatever follows in memory."""
    parent = pa.array([b"public", b"SECRET", b"public"] * 9, pa.large_binary())
    assert [b and b.size for b in normal(parent.slice(0, 1)).buffers()] == [None, 16, 6]
    numbers = pa.array(range(100), pa.int32())
    assert normal(numbers.slice(0, 3)).buffers()[1].size == 12


def test_values_without_nulls_are_shared():
    """A column of images costs nothing."""
    column = pa.array([b"x" * 1000] * 100, pa.large_binary())
    assert normal(column.slice(10, 50)).buffers()[2].address == column.buffers()[2].address + 10_000
    tensors = pa.FixedSizeListArray.from_arrays(pa.array(range(600), pa.float32()), 6)
    assert (
        normal(tensors.slice(5)).values.buffers()[1].address
        == tensors.values.buffers()[1].address + 5 * 6 * 4
    )


def test_what_nulls_hide_is_gone():
    """A deleted value must not survive in the bytes of a file."""
    hidden = pa.Array.from_buffers(
        pa.large_binary(),
        2,
        [
            pa.py_buffer(b"\x01"),
            pa.py_buffer(b"".join(n.to_bytes(8, "little") for n in (0, 1, 7))),
            pa.py_buffer(b"aSECRET"),
        ],
    )
    assert hidden.to_pylist() == [b"a", None]
    assert normal(hidden).buffers()[2].to_pybytes() == b"a"
