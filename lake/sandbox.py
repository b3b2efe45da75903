"""DuckDB as a calculator: in memory, without files, network, extensions, or the caller's variables.

What both SQL conditions and the catalog are evaluated in. `unit(column, seed)` is known here.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
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
ALONE: Final[dict[str, Any]] = {"threads": 1, "async_threads": 0}  # no thread but the caller's

_open: weakref.WeakSet[duckdb.DuckDBPyConnection] = weakref.WeakSet()
_inherited: list[list[duckdb.DuckDBPyConnection]] = []  # of the processes that this one was forked from
_turn = threading.Lock()


def connect(**settings: Any) -> duckdb.DuckDBPyConnection:
    """A database of its own, whose settings the caller locks when it has made its tables.

    A forked child of its process has it, too, but not its threads: the child must make another one.
    """
    connection = duckdb.connect(":memory:", config=SETTINGS | settings)
    with _turn:
        _open.add(connection)
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


def of_duckdb(type: pa.DataType) -> pa.DataType | None:  # noqa: A002
    """What stands in DuckDB for a type that it lacks: the nearest that loses nothing."""
    return pa.float32() if pa.types.is_float16(type) else of_polars(type)


def of_polars(type: pa.DataType) -> pa.DataType | None:  # noqa: A002
    """What stands in polars for a type that it lacks."""
    return pa.string() if pa.types.is_decimal256(type) else None


def shown_type(
    type: pa.DataType,  # noqa: A002
    stand_in: Callable[[pa.DataType], pa.DataType | None] = of_duckdb,
) -> pa.DataType:
    """The type as an engine has it, at any depth.

    >>> shown_type(pa.list_(pa.float16())), shown_type(pa.decimal256(50, 2)), shown_type(pa.int8())
    (ListType(list<item: float>), DataType(string), DataType(int8))
    """
    found = stand_in(type)
    if found is not None:
        return found
    if not _lacking(type, stand_in):
        return type
    if isinstance(type, pa.BaseExtensionType):
        return shown_type(type.storage_type, stand_in)
    if pa.types.is_struct(type):
        return pa.struct([pa.field(f.name, shown_type(f.type, stand_in)) for f in type])
    if pa.types.is_map(type):
        return pa.map_(shown_type(type.key_type, stand_in), shown_type(type.item_type, stand_in))
    if pa.types.is_fixed_size_list(type):
        return pa.list_(shown_type(type.value_type, stand_in), type.list_size)
    make = pa.large_list if pa.types.is_large_list(type) else pa.list_
    return make(shown_type(type.value_type, stand_in))


def _lacking(type: pa.DataType, stand_in: Callable[[pa.DataType], pa.DataType | None]) -> bool:  # noqa: A002
    """Whether a type that the engine lacks is somewhere inside."""
    if isinstance(type, pa.BaseExtensionType):
        return _lacking(type.storage_type, stand_in)
    if pa.types.is_nested(type):
        return any(_lacking(type.field(i).type, stand_in) for i in range(type.num_fields))
    return stand_in(type) is not None


def _before_fork() -> None:
    _turn.acquire()
    _inherited.append(list(_open))


def _after_in_parent() -> None:
    _inherited.pop()
    _turn.release()


if hasattr(os, "register_at_fork"):  # to close a database is to wait for its threads, which a child has not
    os.register_at_fork(before=_before_fork, after_in_parent=_after_in_parent, after_in_child=_turn.release)
