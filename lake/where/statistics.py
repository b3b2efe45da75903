"""What is known of a column in each shard, as conditions are held against it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lake.bounds import Bounds

Mask = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]
Stats = Callable[[str], pa.Array]  # column -> a struct of min, max, nulls, nans for each shard


def bounds_of(stats: Stats, schema: pa.Schema, rows: Ints, name: str) -> Bounds | None:
    """The statistics of a column, whose name SQL may have spelled in another case."""
    exact = [known for known in schema.names if known == name] or [
        known for known in schema.names if known.lower() == name.lower()
    ]
    return Bounds.of(stats(exact[0]), schema.field(exact[0]).type, rows) if len(exact) == 1 else None


def first_line(error: Exception) -> str:
    return str(error).split("\n")[0].strip()
