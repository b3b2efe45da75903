"""Look rows up: by number, by slice, by key; and count those that meet a condition."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lake.errors import NotFoundError
from lake.scan import Scan
from lake.snapshot import Snapshot


def item(snapshot: Snapshot, index: int | slice) -> Any:
    """Row `index` as a dict, or the rows of a slice as a table."""
    rows = snapshot.document.rows
    if isinstance(index, slice):
        return take(snapshot, np.arange(rows)[index] if rows < 2**20 else np.arange(*index.indices(rows)), None)
    try:
        number = int(index.__index__())
    except AttributeError:
        raise TypeError(f"rows are numbered by int or slice, not {type(index).__name__}; by key: get(key)") from None
    if not -rows <= number < rows:
        raise IndexError(f"row {number:,} of {rows:,} rows")
    return take(snapshot, [number], None).to_pylist()[0]


def take(snapshot: Snapshot, indices: Any, columns: Sequence[str] | None) -> pa.Table:
    """Rows by number, negative ones from the end, in the order asked for; a row may be asked for twice."""
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
        tables.append(snapshot.reader.rows(snapshot.manifest.shard(shard), inside, columns))
    if not tables:
        return snapshot.reader.finish({}, snapshot.document.schema.names if columns is None else list(columns), 0)
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
    manifest = snapshot.manifest
    for number in _candidates(snapshot, column, wanted):
        shard = manifest.shard(number)
        keys = snapshot.reader.stored_column(shard, column)
        place = pc.index(keys, wanted).as_py()
        if place >= 0:
            row: dict[str, Any] = snapshot.reader.rows(shard, np.array([place]), None).to_pylist()[0]
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
    return Scan(snapshot, columns=[], where=where).rows
