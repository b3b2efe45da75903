"""Vocabularies: for each dictionary column of a version the one list of values that its codes count.

Parts hold values, never codes; so a vocabulary can grow at its end without touching one. It takes its order
from the input where that has one: where each dictionary met is the beginning of the longest (pandas
categories, a ClassLabel, a stream that adds to its dictionary). Otherwise, and for columns given as plain
values, the values are sorted. What was there before keeps its place. Nulls are never among the values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lake.errors import SchemaError
from lake.format import arrays
from lake.format.casts import cast
from lake.format.content import value_digest
from lake.format.schema import canonical_schema
from lake.format.types import canonical_type

MAX_VALUES = 65_536


class VocabBuilder:
    """Collects the vocabularies of a commit's data, batch by batch.

    `base` has what stands at the front of each: on an append the head's vocabularies, or those that the input
    announces. With `extend` new values follow it, otherwise they are refused; columns that `base` does not
    name begin empty and grow freely. Every value of a dictionary counts, whether or not a row has it.
    """

    def __init__(
        self, schema: pa.Schema, base: Mapping[str, Sequence[Any]] | None = None, *, extend: bool = False
    ) -> None:
        self._columns = {
            field.name: _Column(field, (base or {}).get(field.name), extend)
            for field in canonical_schema(schema)
            if pa.types.is_dictionary(field.type)
        }

    def add(self, batch: pa.RecordBatch) -> None:
        """Take the values of a batch as the input has it, before `conform`.

        Raises:
            SchemaError: over 65,536 values, or one that the announced vocabulary lacks.
        """
        for name, column in self._columns.items():
            index = batch.schema.get_field_index(name)
            if index >= 0:
                column.add(batch.column(index))

    def finish(self) -> dict[str, list[Any]]:
        """The vocabulary of each dictionary column, as Python values in the order of their codes."""
        return {name: column.finish().to_pylist() for name, column in self._columns.items()}


class _Column:
    """The vocabulary of one column: `_base`, then what was found beyond it."""

    def __init__(self, field: pa.Field, base: Sequence[Any] | None, extend: bool) -> None:
        self._name, self._type = field.name, field.type.value_type
        self._base = values(base or [], field.type)
        self._closed = base is not None and not extend
        self._ordered = True  # `_found` has the input's order so far
        self._found = values([], field.type)
        self._taken: pa.Array | None = None  # the last dictionary

    def add(self, column: pa.Array) -> None:
        if not isinstance(column.type, pa.DictionaryType):
            self._ordered = False
            self._take(arrays.plain(column).unique())
        elif self._taken is None or not _same(self._taken, column.dictionary):
            self._taken = column.dictionary
            self._take(column.dictionary)

    def _take(self, given: pa.Array) -> None:
        shorter, longer = sorted((self._found, self._distinct(given)), key=len)
        self._ordered = self._ordered and _same(longer.slice(0, len(shorter)), shorter)
        self._found = longer if self._ordered else pc.unique(pa.concat_arrays([shorter, longer]))
        new = self._new()
        if self._closed and len(new):
            raise SchemaError(
                f"column {self._name!r}: {new[0].as_py()!r} is not in the vocabulary given for it"
            )
        if len(self._base) + len(new) > MAX_VALUES:
            text = f"column {self._name!r} has over {MAX_VALUES:,} values, too many for a dictionary"
            raise SchemaError(f"{text}: store it as {canonical_type(self._type)}")

    def _distinct(self, given: pa.Array) -> pa.Array:
        try:
            return pc.unique(cast(arrays.plain(given).drop_null(), self._type))
        except pa.ArrowInvalid as error:
            raise SchemaError(f"column {self._name!r}: {error}") from error

    def _new(self) -> pa.Array:
        return self._found.filter(pc.invert(pc.is_in(self._found, value_set=self._base)))

    def finish(self) -> pa.Array:
        new = self._new()
        return pa.concat_arrays([self._base, new if self._ordered else new.take(pc.array_sort_indices(new))])


def _same(one: pa.Array, other: pa.Array) -> bool:
    """Whether the values are the same, NaN included."""
    return bool(one.type == other.type) and value_digest([one]) == value_digest([other])


def values(vocab: Sequence[Any], type_: pa.DataType) -> pa.Array:
    """A vocabulary as an array: what `encode` takes. `type_`: the dictionary column's."""
    return pa.array(vocab, type_.value_type)


def encode(column: pa.Array, vocab: pa.Array, *, ordered: bool = False) -> pa.DictionaryArray:
    """A column of values as the codes of its vocabulary; nulls stay null.

    Raises:
        SchemaError: a value that the vocabulary lacks.
    """
    codes = pc.index_in(column, value_set=vocab)
    if codes.null_count > column.null_count:
        missing = column.filter(pc.and_(codes.is_null(), column.is_valid()))
        raise SchemaError(f"{missing[0].as_py()!r} is not among the {len(vocab):,} values of the vocabulary")
    return pa.DictionaryArray.from_arrays(codes, vocab, ordered=ordered)
