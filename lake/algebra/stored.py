"""A column of a dataset as an operand: what its manifest's statistics settle is never read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lake.algebra.totals import Ints
from lake.algebra.weighted import Weighted
from lake.snapshot import Snapshot

if TYPE_CHECKING:
    from lake.dataset import Dataset

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Column:
    """A column of one version, for `count`, `sum`, `mean`, `min`, `max` and `group_count`; nothing is read yet.

    Each answers from the manifest as far as that goes and reads only the shards that it leaves open, one at a time.
    """

    snapshot: Snapshot
    name: str

    @property
    def type(self) -> pa.DataType:
        """The type of the values."""
        return _plain(self.snapshot.document.schema.field(self.name).type)

    def parts(self, settle: Settle) -> Iterator[Weighted]:
        """Values and rows that give the same answer as all rows do."""
        settled, known = settle(_Known.of(self.snapshot, self.name))
        yield from known
        for number in np.flatnonzero(~settled).tolist():
            with self.snapshot.located(number):
                chunks = self.snapshot.reader.column(self.snapshot.shard(number), self.name)
                yield from (Weighted.of(_encoded(chunk)) for chunk in chunks.iterchunks())


def column(dataset: Dataset, name: str) -> Column:
    """A column of a dataset, as an operand.

    Raises:
        TypeError: not a dataset. ValueError: it has no such column.
    """
    if not hasattr(dataset, "snapshot"):
        raise TypeError(f"column() takes a dataset and a name, not {type(dataset).__name__}")
    if name not in dataset.schema.names:
        raise ValueError(f"no column {name!r} in {dataset.name!r}: {', '.join(dataset.schema.names)}")
    return Column(dataset.snapshot, name)


@dataclass(frozen=True, eq=False)
class _Known:
    """What the manifest says of a column, shard by shard; counts are -1 where it says nothing."""

    type: pa.DataType
    rows: Ints
    nulls: Ints
    nans: Ints
    low: pa.Array
    high: pa.Array

    @classmethod
    def of(cls, snapshot: Snapshot, name: str) -> _Known:
        stats = snapshot.manifest.stats(name)
        whole = pa.concat_arrays(stats.chunks) if stats.num_chunks else pa.array([], stats.type)
        low, high, nulls, nans = (pc.struct_field(whole, part) for part in ("min", "max", "nulls", "nans"))
        type_ = _plain(snapshot.document.schema.field(name).type)
        nulls, nans = (np.asarray(pc.fill_null(of, -1)) for of in (nulls, nans))
        if not pa.types.is_floating(type_):
            nans = np.zeros_like(nulls)
        return cls(type_, snapshot.manifest.rows, nulls, nans, low, high)

    @property
    def values(self) -> Ints:
        """Rows with neither null nor NaN; negative where that is not known."""
        return np.where((self.nulls >= 0) & (self.nans >= 0), self.rows - self.nulls - self.nans, -1)

    @property
    def bounded(self) -> Mask:
        """Shards whose bounds are values that they hold, but for the sign of a zero."""
        if not _are_exact(self.type):
            return np.zeros(len(self.rows), np.bool_)
        return np.asarray(pc.and_(self.low.is_valid(), self.high.is_valid()), np.bool_)

    @property
    def constant(self) -> Mask:
        """Shards that hold one value, and it is known which."""
        bounded = self.bounded & (self.values > 0)
        if not bounded.any():
            return bounded
        found: Mask = bounded & np.asarray(pc.fill_null(pc.equal(self.low, self.high), False), np.bool_)
        if pa.types.is_floating(self.type):  # zeros may differ by sign
            low = self.low.cast(pa.float64())
            found &= ~np.asarray(pc.fill_null(pc.equal(low, pa.scalar(0.0)), False))
        return found

    def held(self, shards: Mask) -> list[Weighted]:
        """The nulls and NaN of these shards."""
        nulls = _one(pa.nulls(1, self.type), self.nulls[shards])
        if not pa.types.is_floating(self.type):
            return [nulls]
        return [nulls, _one(pa.array([np.nan], pa.float64()).cast(self.type), self.nans[shards])]


Settle = Callable[[_Known], tuple[Mask, list[Weighted]]]


def validity(known: _Known) -> tuple[Mask, list[Weighted]]:
    """What counts of nulls settle of `count`: rows, not values."""
    settled = known.nulls >= 0
    return settled, [_one(pa.array([True]), (known.rows - known.nulls)[settled])]


def values(known: _Known) -> tuple[Mask, list[Weighted]]:
    """Shards that hold one value, or none: settled for sums and groups."""
    constant = known.constant
    settled = constant | (known.values == 0)
    held = Weighted(known.low.filter(pa.array(constant)), known.values[constant])
    return settled, [*known.held(settled), _typed(held, known.type)]


def lows(known: _Known) -> tuple[Mask, list[Weighted]]:
    """What lower bounds settle."""
    return _bounds(known, known.low)


def highs(known: _Known) -> tuple[Mask, list[Weighted]]:
    """What upper bounds settle."""
    return _bounds(known, known.high)


def _bounds(known: _Known, bound: pa.Array) -> tuple[Mask, list[Weighted]]:
    bounded = known.bounded
    settled = bounded | (known.values == 0)
    held = Weighted(bound.filter(pa.array(bounded)), known.rows[bounded])
    return settled, [*known.held(settled & ~bounded), _typed(held, known.type)]


def _one(value: pa.Array, rows: Ints) -> Weighted:
    """One value, of all these rows together; nothing if there are none."""
    count = int(rows.sum())
    return Weighted(value if count else value.slice(0, 0), np.array([count] if count else [], np.int64))


def _typed(held: Weighted, type_: pa.DataType) -> Weighted:
    """Bounds as values of the column's type; where it has none they are of the null type, and there are none."""
    return held if held.values.type == type_ else Weighted(held.values.cast(type_), held.rows)


def _are_exact(type_: pa.DataType) -> bool:
    """Whether bounds of this type are neither cut, as those of texts, nor rounded, as those of some moments."""
    return bool(
        pa.types.is_boolean(type_)
        or pa.types.is_integer(type_)
        or pa.types.is_floating(type_)
        or pa.types.is_decimal(type_)
        or pa.types.is_date32(type_)
        or pa.types.is_time(type_)
        or (pa.types.is_timestamp(type_) and type_.unit != "s")
    )


def _plain(type_: pa.DataType) -> pa.DataType:
    return type_.value_type if pa.types.is_dictionary(type_) else type_


def _encoded(chunk: pa.Array) -> pa.RunEndEncodedArray | pa.DictionaryArray:
    """A chunk that was read, as runs, unless it is a dictionary anyway."""
    return chunk if isinstance(chunk, pa.DictionaryArray) else pc.run_end_encode(chunk)
