"""Conditions on rows: which columns they need, which shards they rule out, which rows meet them.

A condition is SQL text or a pyarrow expression. DuckDB evaluates texts, in a database without tables, files or
network; Arrow evaluates expressions. What a condition says of a whole shard is worked out from statistics only
where that is certain; everything else is "some". Null counts as no. Either engine is loaded when it is needed.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lake.where.statistics import Ints, Mask, Stats

__all__ = ["Condition", "Ints", "Mask", "Stats", "condition"]


class Condition(Protocol):
    """What `condition` makes of a text or an expression. Thread-safe; pickles as what it was made of."""

    @property
    def text(self) -> str:
        """Equal for equal conditions: part of a plan's identity."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that it needs, in the schema's order."""

    def verdicts(self, stats: Stats, rows: Ints) -> npt.NDArray[np.int8]:
        """NONE, SOME or ALL of the rows of each shard, of which `rows` are the row counts."""

    def mask(self, batch: pa.RecordBatch) -> Mask:
        """Which rows of a batch, which has at least `columns` in the schema's form, meet it."""


def condition(where: Any, schema: pa.Schema) -> Condition:
    """The condition on rows of `schema` that a SQL text or a pyarrow expression states.

    Raises:
        ValueError: not a condition on these columns, or one whose answer changes from call to call.
        TypeError: neither text nor expression.
    """
    if isinstance(where, str):
        from lake.where.sql import Sql

        return Sql(where, schema)
    if isinstance(where, pc.Expression):
        from lake.where.expressions import Expression

        return Expression(where, schema)
    raise TypeError(f"where is a SQL condition as text or a pyarrow expression, not {type(where).__name__}")
