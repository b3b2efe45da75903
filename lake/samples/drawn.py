"""Rows of a version drawn at random: by weights that a column holds, or by shares of a column's values."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lake import rows
from lake.parts import Meter
from lake.pipeline.node import Counts, Node, Run, short
from lake.pipeline.seeds import Seed
from lake.pipeline.stage import Stage
from lake.plan.permutation import Ints
from lake.samples.lots import Stratified, Weighted, strata_of
from lake.samples.source import Samples
from lake.samples.values import samples, values
from lake.scan import Scan
from lake.scan.select import select
from lake.where import condition

TOGETHER_BYTES: Final = 32 * 2**20  # decoded, of the rows that are looked up together
TOGETHER: Final = 4096  # of them, at most
_NUMBERS: Final = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal, pa.types.is_boolean)


@dataclass(frozen=True, eq=False)
class Drawn(Node):
    """Samples of `size` rows, drawn anew in each epoch."""

    name: ClassVar[str] = "draw"
    source: Samples  # of all rows that may be drawn
    size: int
    weights: str | None
    by: str | None
    shares: tuple[tuple[Any, float], ...] | None  # of values of `by`
    seed: Seed

    @classmethod
    def of(
        cls,
        source: Samples,
        size: int | None,
        weights: str | Mapping[Any, float] | None,
        by: str | None,
        seed: Seed,
    ) -> Drawn:
        """What was asked for.

        Raises:
            ValueError: no such column, or weights that cannot be.
        """
        if by is None and weights is not None and not isinstance(weights, str):
            raise ValueError(
                "draw(): weights for values need by=, the column that has them; or name a column of weights"
            )
        if by is not None and isinstance(weights, str):
            raise ValueError(f"draw(): with by={by!r}, weights are given for its values: {{value: weight}}")
        for column in (by, weights):
            if isinstance(column, str) and column not in source.snapshot.document.schema.names:
                raise ValueError(f"draw(): no column {column!r} in {source.snapshot.name!r}")
        shares = None
        if isinstance(weights, Mapping):
            shares = tuple((value, float(share)) for value, share in weights.items())
            if not all(0 <= share < math.inf for _, share in shares) or not any(s for _, s in shares):
                raise ValueError(f"draw(): weights are not negative, and not all 0: {dict(weights)}")
        size = source.snapshot.document.rows if size is None else size
        return cls(source, size, weights if isinstance(weights, str) else None, by, shares, seed)

    @property
    def label(self) -> str:
        return f"draw({self.source.snapshot.name})"

    @property
    def outline(self) -> str:
        how = f"by={self.by} {short(self.shares)}" if self.by else f"weights={self.weights}"
        return f"draw({self.size}, {how}, {self.seed})"

    def open(self, run: Run) -> Stage:
        return _Drawn(self, run)

    def count(self, counts: Counts, epoch: int) -> float:
        return self.size

    @cached_property
    def lots(self) -> Weighted | Stratified:
        """What is drawn from. Reads one column."""
        numbers = self._numbers
        if not len(numbers):
            raise ValueError(f"{self.label}: there are no rows to draw from")
        if self.by is not None:
            column = self._column(self.by)
            try:
                coded = column if pa.types.is_dictionary(column.type) else pc.dictionary_encode(column)
            except pa.ArrowNotImplementedError:
                raise ValueError(
                    f"{self.label}: by={self.by!r} is a column of labels, not of {column.type}"
                ) from None
            codes = np.asarray(coded.indices).astype(np.int64)
            return strata_of(numbers, codes, coded.dictionary.to_pylist(), dict(self.shares or ()) or None)
        if self.weights is None:
            return Weighted(numbers, np.ones(len(numbers)))
        found = self._column(self.weights)
        kind = found.type.value_type if pa.types.is_dictionary(found.type) else found.type
        if not any(is_kind(kind) for is_kind in _NUMBERS):
            raise ValueError(f"{self.label}: weights={self.weights!r} is a column of numbers, not of {kind}")
        weights = np.asarray(found).astype(np.float64)
        if not (weights >= 0).all() or not 0 < weights.sum() < math.inf:
            raise ValueError(
                f"{self.label}: weights in {self.weights!r} are finite, not negative and not all 0"
            )
        return Weighted(numbers, weights)

    @cached_property
    def _numbers(self) -> Ints:
        """The numbers of the rows that may be drawn."""
        snapshot, where = self.source.snapshot, self.source.where
        if where is None:
            return np.arange(snapshot.document.rows)
        found = select(snapshot, condition(where, snapshot.document.schema), Meter())
        starts = snapshot.manifest.starts
        return np.concatenate([starts[shard] + found.rows(shard) for shard in range(len(found.counts))])

    def _column(self, name: str) -> pa.Array:
        """The values of those rows in one column, none of them null."""
        scan = Scan(self.source.snapshot, columns=[name], where=self.source.where)
        column = scan.to_table()[name].combine_chunks()
        if column.null_count:
            raise ValueError(
                f"{self.label}: {column.null_count:,} rows have no {name!r}: where='{name} is not null'"
            )
        return column


class _Drawn:
    """Looks rows up many together. The position is how many were handed out."""

    def __init__(self, node: Drawn, run: Run) -> None:
        self._node, self._run = node, run
        self._at, self._first = 0, 0  # samples handed out, and those before the ones at hand
        self._samples: list[tuple[Any, dict[str, Any]]] = []
        self._order: Ints | None = None

    def next(self) -> Any:
        if self._at >= self._node.size:
            raise StopIteration
        place = self._at - self._first
        if not 0 <= place < len(self._samples):
            self._look_up()
            place = 0
        self._at += 1
        return self._samples[place]

    def skip(self, count: int) -> int:
        count = min(count, self._node.size - self._at)
        self._at += count
        return count

    def state(self) -> Any:
        return self._at

    def restore(self, state: Any) -> None:
        self._at = state

    def tag(self) -> Any:
        return self._run.epoch, self._at  # a row drawn twice is two items

    def close(self) -> None:
        self._samples, self._order = [], None

    def _look_up(self) -> None:
        node, source = self._node, self._node.source
        if self._order is None:
            self._order = node.lots.order(node.seed, self._run.epoch, node.size)
        numbers = self._order[self._at : self._at + source.rows_in(TOGETHER_BYTES, TOGETHER, source.read)]
        table = rows.take(source.snapshot, numbers, source.read)
        made = {field.name: values(table[field.name].combine_chunks(), field) for field in table.schema}
        key = source.snapshot.document.key
        keys = numbers.tolist() if key is None else made[key]
        self._samples, self._first = (
            samples(keys, source.fields, [made[name] for name in source.fields]),
            self._at,
        )
