"""Vocabularies: whose order, what an append does to them, and codes that mean what they say."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lake.errors import SchemaError
from lake.format.content import value_digest
from lake.format.schema import canonical_schema, conform, stored_schema
from lake.format.vocab import MAX_VALUES, VocabBuilder, encode, values
from tests.strategies import build, dictionary_types, maybe

STRINGS = pa.dictionary(pa.int32(), pa.string())
SCHEMA = pa.schema([("label", STRINGS), ("x", pa.int64())])


def batch(labels: list[Any], codes: list[int | None] | None = None) -> pa.RecordBatch:
    """A batch whose dictionary is `labels`, or with `codes=None` one of plain values."""
    if codes is None:
        return pa.record_batch([pa.array(labels, pa.string_view())], names=["label"])
    dictionary = pa.DictionaryArray.from_arrays(pa.array(codes, pa.int8()), pa.array(labels, pa.string()))
    return pa.record_batch([dictionary], names=["label"])


def built(*batches: pa.RecordBatch, base: list[str] | None = None, extend: bool = False) -> list[Any]:
    """The vocabulary of `label` after these batches."""
    builder = VocabBuilder(SCHEMA, None if base is None else {"label": base}, extend=extend)
    for one in batches:
        builder.add(one)
    vocab = builder.finish()
    assert vocab.keys() == {"label"}
    return vocab["label"]


def test_the_inputs_order_is_kept() -> None:
    """Categories of pandas and names of a ClassLabel, used or not; later dictionaries may be longer."""
    assert built(batch(["z", "a", "m"], [0, 2])) == ["z", "a", "m"]
    assert built(batch(["z"], [0]), batch(["z", "a"], [1]), batch(["z"], [0])) == ["z", "a"]


def test_nan_is_a_value_like_others() -> None:
    """It does not equal itself, and yet the dictionaries that have it agree."""
    schema = pa.schema([("x", pa.dictionary(pa.int32(), pa.float64()))])
    builder = VocabBuilder(schema)
    for length in (2, 3, 3):
        dictionary = pa.array([2.0, float("nan"), 1.0][:length])
        builder.add(pa.record_batch([pa.DictionaryArray.from_arrays([0], dictionary)], names=["x"]))

    assert str(builder.finish()["x"]) == "[2.0, nan, 1.0]"


def test_without_one_order_values_are_sorted() -> None:
    """Dictionaries that contradict each other, and plain values, have none."""
    assert built(batch(["b", "a"], [0, 1]), batch(["c", "a"], [0])) == ["a", "b", "c"]
    assert built(batch(["b", None, "a", "b"])) == ["a", "b"]
    assert built(batch(["b", "c"], [0]), batch(["a"])) == ["a", "b", "c"]
    assert built(batch(["😀", "\uffff", "a", "B"])) == ["B", "a", "\uffff", "😀"]


def test_appends_only_add_at_the_end() -> None:
    """Codes that exist keep their meaning; new values follow in the input's order, or sorted."""
    head = ["m", "z"]

    assert built(batch(["z", "q", "b"], [0]), base=head, extend=True) == ["m", "z", "q", "b"]
    assert built(batch(["z", "q", "b"]), base=head, extend=True) == ["m", "z", "b", "q"]
    assert built(batch(["z"]), base=head, extend=True) == head
    assert built(base=head, extend=True) == head


def test_an_announced_vocabulary_is_complete() -> None:
    """What a ClassLabel does not name is an error, named."""
    assert built(batch(["b"]), base=["c", "b", "a"]) == ["c", "b", "a"]
    with pytest.raises(SchemaError, match=r"'label': 'x' is not in the vocabulary"):
        built(batch(["b", "x"]), base=["b"])


def test_nulls_and_repeated_entries_of_a_dictionary_are_no_values() -> None:
    """Arrow allows both in a dictionary."""
    assert built(batch(["b", None, "b", "a"], [0, 1, 2, None])) == ["b", "a"]


def test_too_many_values_are_refused_with_the_way_out() -> None:
    """At 65,537, not at 65,536, over all batches together."""
    names = [f"{i:05}" for i in range(MAX_VALUES)]
    assert built(batch(names)) == names
    for batches in ([batch([*names, "x"])], [batch(names), batch(["x"])]):
        with pytest.raises(SchemaError, match=r"'label' has over 65,536 values.*store it as string"):
            built(*batches)
    with pytest.raises(SchemaError, match="65,536"):
        built(batch(["x"]), base=names, extend=True)


def test_every_dictionary_column_has_a_vocabulary_even_without_rows() -> None:
    """A version lists one for each, and none for others."""
    assert VocabBuilder(SCHEMA).finish() == {"label": []}


def test_a_dictionary_that_the_column_cannot_take_is_named() -> None:
    """An append of wider integers with a value that does not fit."""
    schema = pa.schema([("n", pa.dictionary(pa.int32(), pa.int8()))])
    wide = pa.array([1000]).dictionary_encode()

    with pytest.raises(SchemaError, match=r"column 'n'.*1000"):
        VocabBuilder(schema).add(pa.record_batch([wide], names=["n"]))


@settings(deadline=None, max_examples=150)
@given(st.data())
def test_codes_give_back_the_values(data: st.DataObject) -> None:
    """Whatever the type of values, and however batches differ in their dictionaries."""
    type_ = data.draw(dictionary_types())
    field = canonical_schema(pa.schema([("d", type_)])).field("d")
    items = data.draw(st.lists(st.lists(maybe(type_), max_size=5), max_size=3))
    batches = [pa.record_batch([build(part, type_)], names=["d"]) for part in items]
    builder = VocabBuilder(pa.schema([field]))
    for one in batches:
        builder.add(one)
    if not pa.types.is_dictionary(field.type):
        assert builder.finish() == {}
        return
    vocab = values(builder.finish()["d"], field.type)

    assert len(vocab.unique()) == len(vocab)
    for one in batches:
        column = conform(one, stored_schema(one.schema))["d"]
        coded = encode(column, vocab, ordered=field.type.ordered)
        assert coded.type == field.type
        assert value_digest([coded]) == value_digest([column])


def test_a_value_outside_the_vocabulary_cannot_be_encoded() -> None:
    """A null is no such value."""
    vocab = values(["a", "b"], STRINGS)

    assert encode(pa.array(["b", None, "a"], vocab.type), vocab).indices.to_pylist() == [1, None, 0]
    with pytest.raises(SchemaError, match="'c' is not among the 2 values"):
        encode(pa.array(["a", None, "c"], vocab.type), vocab)
