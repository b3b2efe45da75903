"""DuckDB as a calculator: in memory, without files, network, extensions, or the caller's variables.

What both SQL conditions and the catalog are evaluated in. `unit(column, seed)` is known here.
"""

from __future__ import annotations

from typing import Any, Final

import duckdb
import numpy as np
import pyarrow as pa
from duckdb.func import ARROW, SPECIAL

from lake.format import cuts

SETTINGS: Final[dict[str, Any]] = {
    "allow_community_extensions": False,
    "allow_persistent_secrets": False,
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
    "enable_external_access": False,
    "python_enable_replacements": False,
    "temp_directory": "",  # a statement that does not fit in memory fails: it writes no file
}


def connect(**settings: Any) -> duckdb.DuckDBPyConnection:
    """A database of its own, whose settings the caller locks when it has made its tables."""
    connection = duckdb.connect(":memory:", config=SETTINGS | settings)
    connection.execute("set global TimeZone = 'UTC'")
    connection.create_function("unit", _unit, return_type="double", type=ARROW, null_handling=SPECIAL)
    return connection


def _unit(column: pa.ChunkedArray, seed: pa.ChunkedArray) -> pa.Array:
    """`unit(column, seed)` of SQL: see `lake.format.cuts`."""
    if not len(column):
        return pa.array([], pa.float64())
    seeds = seed.unique()
    if len(seeds) != 1 or not pa.types.is_integer(seeds.type) or seeds[0].as_py() is None:
        raise ValueError("unit(column, seed): the seed is one whole number")
    return pa.array(np.asarray(cuts.unit(column.combine_chunks(), seeds[0].as_py())), pa.float64())
