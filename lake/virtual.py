"""A `pyarrow.dataset.Dataset` whose rows come from a function, with columns and filter handed to it.

DuckDB, polars and pandas recognise a dataset by its class and call `scanner`; so this one pushes what they
ask for into whatever `read` is, where a duck-typed look-alike would be refused. It holds no files and no
fragments, and keeps no rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.dataset as pads

Read = Callable[[list[str], pads.Expression | None], Iterator[pa.RecordBatch]]


class VirtualDataset(pads.InMemoryDataset):  # type: ignore[misc]  # pyarrow has no types
    """Rows of `schema` that `read(columns, filter)` gives when they are asked for, each time anew.

    `read` yields record batches of exactly these columns, in this order, and applies the filter entirely: who
    asked does not apply it again. It is called when rows are first pulled, in the thread that pulls, and is
    closed when the reader is dropped.
    """

    def __init__(self, schema: pa.Schema, read: Read) -> None:
        super().__init__(pa.Table.from_batches([], schema))
        self.read = read

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.schema, self.read)

    def scanner(
        self,
        columns: Sequence[str] | Mapping[str, pads.Expression] | None = None,
        filter: pads.Expression | None = None,  # noqa: A002  # pyarrow's name
        **options: Any,
    ) -> Reading | pads.Scanner:
        """What reads these columns of the rows that pass the filter; `options` mean nothing here."""
        names = list(columns) if isinstance(columns, list | tuple) else self.schema.names
        reading = Reading(pa.schema([self.schema.field(name) for name in names]), names, filter, self.read)
        if isinstance(columns, Mapping):  # computed columns: Arrow computes them over all the others
            return pads.Scanner.from_batches(reading.to_reader(), columns=dict(columns))
        return reading

    def filter(self, expression: pads.Expression) -> VirtualDataset:
        """The rows of this dataset that also pass `expression`."""
        read = self.read
        return VirtualDataset(self.schema, lambda columns, also: read(columns, _both(expression, also)))

    @property
    def partition_expression(self) -> pads.Expression:
        """What is known of all rows: nothing."""
        return pads.scalar(True)

    def get_fragments(self, filter: pads.Expression | None = None) -> Iterator[Any]:  # noqa: A002
        """Refused: an empty answer would be taken for an empty dataset."""
        raise NotImplementedError("no fragments: read a lake's dataset with to_batches() or scanner()")

    def replace_schema(self, schema: pa.Schema) -> pads.Dataset:
        """Refused: cast what `to_batches()` gives instead."""
        raise NotImplementedError("a lake's dataset keeps its schema; cast what to_batches() gives")

    def sort_by(self, sorting: Any, **options: Any) -> pads.InMemoryDataset:
        """All rows, sorted, in memory."""
        return pads.InMemoryDataset(self.to_table().sort_by(sorting, **options))

    def join(self, right_dataset: pads.Dataset, *args: Any, **options: Any) -> pads.InMemoryDataset:
        """All rows joined with those of another dataset, in memory."""
        return pads.InMemoryDataset(self.to_table().join(right_dataset.to_table(), *args, **options))

    def join_asof(self, right_dataset: pads.Dataset, *args: Any, **options: Any) -> pads.InMemoryDataset:
        """All rows joined with the nearest of another dataset, in memory."""
        return pads.InMemoryDataset(self.to_table().join_asof(right_dataset.to_table(), *args, **options))


@dataclass(frozen=True, slots=True)
class Reading:
    """One question to a `VirtualDataset`; with the methods of a pyarrow `Scanner` that give rows."""

    projected_schema: pa.Schema
    columns: list[str]
    filter: pads.Expression | None
    read: Read

    def to_reader(self) -> pa.RecordBatchReader:
        """The rows, batch by batch, as they are pulled."""
        return pa.RecordBatchReader.from_batches(self.projected_schema, self.read(self.columns, self.filter))

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """The rows as record batches."""
        return iter(self.to_reader())

    def to_table(self) -> pa.Table:
        """All rows at once."""
        return self.to_reader().read_all()

    def head(self, num_rows: int) -> pa.Table:
        """The first rows; nothing beyond their batches is read."""
        taken: list[pa.RecordBatch] = []
        missing = num_rows
        for batch in self.read(self.columns, self.filter):
            taken.append(batch.slice(0, missing))
            missing -= taken[-1].num_rows
            if missing <= 0:
                break
        return pa.Table.from_batches(taken, self.projected_schema)

    def take(self, indices: Any) -> pa.Table:
        """The rows with these numbers, of those that pass the filter."""
        return self.to_table().take(indices)

    def count_rows(self) -> int:
        """How many rows pass the filter; no column is asked for."""
        return sum(batch.num_rows for batch in self.read([], self.filter))


def recast(source: VirtualDataset, schema: pa.Schema) -> VirtualDataset:
    """The same rows with the types of `schema`, in which filters are meant: where they look at a column whose type
    differs, they are applied here."""
    altered = {field.name for field in schema if source.schema.field(field.name).type != field.type}
    if not altered:
        return source

    def read(columns: list[str], where: pads.Expression | None) -> Iterator[pa.RecordBatch]:
        used = set() if where is None else columns_of(where, schema)
        left = where if used & altered else None
        asked = columns if left is None else columns + sorted(used - set(columns))
        for batch in source.read(asked, where if left is None else None):
            if altered.isdisjoint(asked):
                yield batch
                continue
            fields = [schema.field(name) for name in asked]
            cast = [column.cast(field.type) for column, field in zip(batch.columns, fields, strict=True)]
            made = pa.RecordBatch.from_arrays(cast, schema=pa.schema(fields))
            yield (made if left is None else made.filter(left)).select(columns)

    return VirtualDataset(schema, read)


def columns_of(expression: pads.Expression, schema: pa.Schema) -> set[str]:
    """The columns that an expression looks at: those without which it means nothing.

    >>> schema = pa.schema({"a": pa.int8(), "b": pa.int8(), "c": pa.int8()})
    >>> sorted(columns_of((pads.field("a") > 1) | pads.field("b").is_null(), schema))
    ['a', 'b']
    """
    return set(_needed(expression, schema, range(len(schema))))


def _needed(expression: pads.Expression, schema: pa.Schema, among: range) -> list[str]:
    """Those of a run of columns that the expression needs, found by halving: mostly it needs few of many."""
    others = [field for i, field in enumerate(schema) if i not in among]
    if not among or _binds(expression, pa.schema(others)):
        return []
    if len(among) == 1:
        return [schema.names[among[0]]]
    middle = len(among) // 2
    return _needed(expression, schema, among[:middle]) + _needed(expression, schema, among[middle:])


def _binds(expression: pads.Expression, schema: pa.Schema) -> bool:
    try:
        pads.InMemoryDataset(pa.Table.from_batches([], schema)).scanner(filter=expression)
    except pa.ArrowInvalid:
        return False
    return True


def _both(one: pads.Expression, other: pads.Expression | None) -> pads.Expression:
    return one if other is None else one & other
