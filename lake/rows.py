"""Look rows up: by number, by slice, by key; and count those that meet a condition."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lake.asked import whole
from lake.errors import NotFoundError
from lake.scan.select import count as count_selected
from lake.snapshot import Snapshot
from lake.where import condition


def item(snapshot: Snapshot, index: int | slice) -> Any:
    """Row `index` as a dict, or the rows of a slice as a table."""
    rows = snapshot.document.rows
    if isinstance(index, slice):
        return take(
            snapshot, np.arange(rows)[index] if rows < 2**20 else np.arange(*index.indices(rows)), None
        )
    try:
        number = int(index.__index__())
    except AttributeError:
        raise TypeError(
            f"rows are numbered by int or slice, not {type(index).__name__}; by key: get(key)"
        ) from None
    if not -rows <= number < rows:
        raise IndexError(f"row {number:,} of {rows:,} rows")
    return take(snapshot, [number], None).to_pylist()[0]


def take(snapshot: Snapshot, indices: Any, columns: Sequence[str] | None) -> pa.Table:
    """Rows by number, negative ones from the end, in the order asked for; a row may be asked for twice."""
    columns = None if columns is None else snapshot.columns(columns)
    numbers = np.asarray(indices)
    if numbers.ndim != 1 or (len(numbers) and numbers.dtype.kind not in "iu"):
        raise TypeError("take() needs a flat sequence of row numbers")
    numbers = numbers.astype(np.int64)
    rows = snapshot.document.rows
    wrong = (numbers < -rows) | (numbers >= rows)
    if wrong.any():
        raise IndexError(f"row {int(numbers[wrong][0]):,} of {rows:,} rows")
    numbers = np.where(numbers < 0, numbers + rows, numbers)
    order = np.argsort(numbers, kind="stable")
    asked = numbers[order]
    starts = snapshot.manifest.starts
    places = np.searchsorted(starts, asked, "right") - 1
    tables = []
    for shard in np.unique(places).tolist():
        inside = asked[places == shard] - starts[shard]
        with snapshot.located(shard):
            tables.append(snapshot.reader.rows(snapshot.shard(shard), inside, columns))
    if not tables:
        return snapshot.document.schema.empty_table().select(
            snapshot.document.schema.names if columns is None else columns
        )
    found = pa.concat_tables(tables)
    if np.array_equal(order, np.arange(len(order))):
        return found
    back = np.empty_like(order)
    back[order] = np.arange(len(order))
    return found.combine_chunks().take(pa.array(back))


def get(snapshot: Snapshot, key: Any) -> dict[str, Any]:
    """The first row with this key.

    Raises:
        ValueError: the dataset has no key.
        NotFoundError: no row has it.
    """
    column = snapshot.document.key
    if column is None:
        raise ValueError(f"{snapshot.name!r} was committed without a key; use ds[i], or scan(where=...)")
    type_ = snapshot.reader.stored.field(column).type
    try:
        wanted = pa.scalar(key, type_)
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise TypeError(f"keys of {snapshot.name!r} are {type_}, not {type(key).__name__}") from error
    for number in _candidates(snapshot, column, wanted):
        shard = snapshot.shard(number)
        with snapshot.located(number):
            place = pc.index(snapshot.reader.column(shard, column), wanted).as_py()
            if place >= 0:
                row: dict[str, Any] = snapshot.reader.rows(shard, np.array([place])).to_pylist()[0]
                return row
    raise NotFoundError(f"no row of {snapshot.name!r} has the key {key!r}")


def _candidates(snapshot: Snapshot, column: str, wanted: pa.Scalar) -> list[int]:
    """Shards whose statistics admit the key, in order."""
    stats = snapshot.manifest.stats(column)
    low, high = pc.struct_field(stats, "min"), pc.struct_field(stats, "max")
    possible = pc.and_(
        pc.fill_null(pc.less_equal(low, wanted), True), pc.fill_null(pc.greater_equal(high, wanted), True)
    )
    return np.flatnonzero(np.asarray(possible)).tolist()


def count(snapshot: Snapshot, where: Any) -> int:
    """How many rows meet the condition."""
    return count_selected(snapshot, condition(where, snapshot.document.schema))


def split(snapshot: Snapshot, fractions: Sequence[float], by: str | None, seed: int) -> tuple[str, ...]:
    """Conditions on a hash of `by` (None: the key) that divide the rows into such fractions."""
    column = by if by is not None else snapshot.document.key
    if column is None:
        raise ValueError(f"{snapshot.name!r} has no key: name the column that decides, by='speaker'")
    if column not in snapshot.document.schema.names:
        raise ValueError(f"no column {column!r} in {snapshot.name!r}")
    if not all(isinstance(fraction, int | float) for fraction in fractions):
        raise TypeError(f"fractions are numbers: {', '.join(map(repr, fractions))}")
    if not fractions or min(fractions) < 0 or not math.isclose(math.fsum(fractions), 1, abs_tol=1e-9):
        raise ValueError(f"fractions are not negative and add up to 1: {', '.join(map(str, fractions))}")
    number = f"unit({_quoted(column, snapshot.document.schema)}, {whole('seed', seed)})"
    edges = [round(edge, 12) for edge in accumulate(fractions)][:-1]
    if not edges:
        return ("true",)
    between = [f"{number} >= {low!r} and {number} < {high!r}" for low, high in pairwise(edges)]
    return (f"{number} < {edges[0]!r}", *between, f"{number} >= {edges[-1]!r}")


def _quoted(column: str, schema: pa.Schema) -> str:
    """A column as SQL names it, bare where that means the column and nothing else."""
    with contextlib.suppress(ValueError):
        if column.isidentifier() and condition(f"unit({column}, 0) < 1", schema).columns == (column,):
            return column
    return '"' + column.replace('"', '""') + '"'
