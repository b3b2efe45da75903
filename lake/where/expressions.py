"""Conditions as pyarrow expressions: Arrow binds and evaluates them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads
import pyarrow.fs as pafs

from lake.bounds import ALL, NONE, SOME, Bounds
from lake.virtual import columns_of
from lake.where.statistics import Ints, Mask, Stats, bounds_of, first_line

_EXPRESSION_SHARDS = 50_000  # above, an expression is not held against statistics one by one
_RUN = 16  # shards that are judged together first, at least
_RUNS = 4096  # of them, at most


@dataclass(frozen=True)
class Expression:
    """A condition as an expression."""

    expression: pc.Expression
    schema: pa.Schema

    def __post_init__(self) -> None:
        self.columns  # noqa: B018 - binds the expression, and so refuses what does not fit

    @property
    def text(self) -> str:
        return str(self.expression)

    @cached_property
    def columns(self) -> tuple[str, ...]:
        names = self.schema.names
        nothing = pads.InMemoryDataset(pa.Table.from_batches([], self.schema))
        try:
            for each in (self.expression, ~self.expression):  # bound to the columns, not carried out
                nothing.scanner(columns={"met": each})
        except (pa.ArrowException, ValueError) as error:
            raise ValueError(
                f"where={self.text}: {first_line(error)}; columns: {', '.join(names)}"
            ) from error
        used = columns_of(self.expression, self.schema)
        return tuple(name for name in names if name in used)

    def verdicts(self, stats: Stats, rows: Ints) -> npt.NDArray[np.int8]:
        """Neighbours are judged together first, and one by one only where that leaves doubt."""
        held = {name: bounds_of(stats, self.schema, rows, name) for name in self.columns}
        size = max(_RUN, -(-len(rows) // _RUNS))
        found: npt.NDArray[np.int8] = np.full(len(rows), SOME, np.int8)
        if len(rows) > 2 * size:
            joined = {name: column and column.joined(size) for name, column in held.items()}
            found = np.repeat(self._judged(joined, -(-len(rows) // size)), size)[: len(rows)]
        doubtful = np.flatnonzero(found == SOME)
        if len(doubtful) <= _EXPRESSION_SHARDS:
            left = {name: column and column.take(doubtful) for name, column in held.items()}
            found[doubtful] = self._judged(left, len(doubtful))
        return found

    def mask(self, batch: pa.RecordBatch) -> Mask:
        found = pc.fill_null(self._evaluate(batch), False)
        return np.asarray(found.cast(pa.uint8())).view(np.bool_)

    def _evaluate(self, batch: pa.RecordBatch) -> pa.Array:
        table = pads.Scanner.from_batches(
            [batch], schema=batch.schema, columns={"met": self.expression}, use_threads=False
        ).to_table()
        return table["met"].combine_chunks()

    def _judged(self, held: Mapping[str, Bounds | None], shards: int) -> npt.NDArray[np.int8]:
        """What can be said of each shard, or run of shards, with these statistics."""
        found: npt.NDArray[np.int8] = np.full(shards, NONE, np.int8)
        known = {name: column for name, column in held.items() if column is not None}
        complete = {name: column.complete for name, column in known.items()}
        form, system = pads.IpcFileFormat(), pafs.LocalFileSystem()
        fragments = [
            form.make_fragment(str(number), system, partition_expression=_guarantee(known, complete, number))
            for number in range(shards)
        ]
        admitted = _admitted(fragments, self.expression, self.schema)
        certain = np.full(shards, len(known) == len(held))
        for each in complete.values():
            certain &= each
        found[admitted] = ALL
        found[_admitted([fragments[number] for number in admitted], ~self.expression, self.schema)] = SOME
        found[(found == ALL) & ~certain] = SOME
        return found


def _guarantee(held: Mapping[str, Bounds], complete: Mapping[str, Mask], shard: int) -> pc.Expression:
    """What is known of all rows of a shard, as Arrow's simplification understands it."""
    known = pc.scalar(True)
    for name, column in held.items():
        if (bounds := column.exact(shard)) is not None:
            field = pc.field(name)
            inside = (field >= bounds[0]) & (field <= bounds[1])
            known = known & (inside if complete[name][shard] else inside | field.is_null())
    return known


def _admitted(fragments: Sequence[pads.Fragment], expression: pc.Expression, schema: pa.Schema) -> Ints:
    """Numbers of the fragments of which Arrow cannot rule out that a row meets the expression. Nothing is opened."""
    dataset = pads.FileSystemDataset(fragments, schema, pads.IpcFileFormat(), pafs.LocalFileSystem())
    return np.array([int(found.path) for found in dataset.get_fragments(filter=expression)], np.int64)
