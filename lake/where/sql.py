"""Conditions as SQL texts: DuckDB parses and evaluates them."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from functools import partial, reduce
from typing import Any

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lake import sandbox
from lake.bounds import Bounds, Verdict, certain, compare, is_null, unknown
from lake.where.statistics import Ints, Mask, Stats, bounds_of, first_line

_CHANGING = frozenset(  # functions whose answer differs from call to call
    [
        "random",
        "setseed",
        "uuid",
        "gen_random_uuid",
        "uuidv4",
        "uuidv7",
        "now",
        "today",
        "current_date",
        "current_time",
        "current_timestamp",
        "get_current_time",
        "get_current_timestamp",
        "transaction_timestamp",
        "nextval",
        "currval",
        "getvariable",
        "getenv",
    ]
)


class Sql:
    """A condition as a text."""

    def __init__(self, text: str, schema: pa.Schema) -> None:
        self.text = text.strip()
        self._schema = schema
        self._local = threading.local()
        try:
            self._tree = _parsed(self.text)
            self.columns = _columns(self.text, self._tree, schema)
        except RecursionError:
            raise ValueError(
                f"where={self.text[:80]!r}... is nested too deep; say it with in (...)"
            ) from None
        self._shown = pa.schema(
            [pa.field(name, sandbox.shown_type(schema.field(name).type)) for name in self.columns]
        )
        self._bind()

    def __reduce__(self) -> tuple[Any, ...]:
        return Sql, (self.text, self._schema)

    def verdicts(self, stats: Stats, rows: Ints) -> npt.NDArray[np.int8]:
        return _judge(self._tree, partial(bounds_of, stats, self._schema, rows), len(rows)).summary()

    def mask(self, batch: pa.RecordBatch) -> Mask:
        columns = [batch.column(field.name) for field in self._shown]
        shown = [
            column if column.type == field.type else column.cast(field.type)
            for column, field in zip(columns, self._shown, strict=True)
        ]
        rows = pa.Table.from_arrays(shown, schema=self._shown) if shown else _empty(batch.num_rows)
        found = self._ask(rows, f"select coalesce((\n{self.text}\n)::boolean, false) from rows")
        return np.asarray(found.column(0).combine_chunks().cast(pa.uint8())).view(np.bool_)

    def _bind(self) -> None:
        """Have DuckDB make sense of the text as what a where clause may be, which an aggregate is not.

        Raises:
            ValueError: it cannot.
        """
        none = [pa.nulls(0, field.type) for field in self._shown]
        rows = pa.Table.from_arrays(none, schema=self._shown) if none else _empty(0)
        self._ask(rows, f"select 1 from rows where (\n{self.text}\n)")

    def _ask(self, rows: pa.Table, query: str) -> pa.Table:
        connection = self._connection()
        connection.register("rows", rows)
        try:
            return connection.sql(query).to_arrow_table()
        except duckdb.Error as error:
            raise ValueError(
                f"where={self.text!r}: {first_line(error)}; columns: {', '.join(self._schema.names)}"
            ) from error
        finally:
            connection.unregister("rows")

    def _connection(self) -> duckdb.DuckDBPyConnection:
        if not hasattr(self._local, "connection"):
            self._local.connection = sandbox.connect(**sandbox.ALONE)
            self._local.connection.execute("set lock_configuration = true")
        found: duckdb.DuckDBPyConnection = self._local.connection
        return found


def _empty(rows: int) -> pa.Table:
    return pa.table({"": pa.nulls(rows)})


def _columns(text: str, tree: dict[str, Any], schema: pa.Schema) -> tuple[str, ...]:
    """The columns that a condition names, in the schema's order.

    Raises:
        ValueError: one of several that differ by case only, which SQL does not tell apart.
    """
    named = {name.lower() for name in _names(tree)}
    columns = tuple(name for name in schema.names if name.lower() in named)
    twins = [name for name in columns if sum(name.lower() == other.lower() for other in columns) > 1]
    if twins:
        raise ValueError(
            f"where={text!r}: SQL does not tell the columns {' and '.join(map(repr, twins))} apart; "
            f"use a pyarrow expression, such as pyarrow.compute.field({twins[0]!r}) > 0"
        )
    return columns


def _parsed(text: str) -> dict[str, Any]:
    """DuckDB's tree of the condition.

    The text is parsed twice: on its own, so that it cannot close the parentheses in which it is evaluated, and
    in them, as it is evaluated.

    Raises:
        ValueError: not one expression over columns, or one that does not always give the same answer.
    """
    alone, tree = _clause(text, text), _clause(text, f"(\n{text}\n)")
    if _shape(alone) != _shape(tree):
        raise ValueError(f"where={text!r} is not one condition")
    for node in _walk(tree):
        if node.get("class") == "SUBQUERY":
            raise ValueError(f"where={text!r}: a condition on rows has no subquery; use lk.sql")
        if node.get("function_name", "").lower() in _CHANGING:
            raise ValueError(
                f"where={text!r}: {node['function_name']}() differs from call to call; for a fraction of the rows "
                "take unit(key, 0) < 0.1"
            )
    return tree


def _clause(text: str, clause: str) -> dict[str, Any]:
    """The tree of a where clause, and of a statement that has nothing else."""
    if not text:
        raise ValueError("where='' is no condition; leave it out for all rows")
    [(answer,)] = (
        _parser().execute("select json_serialize_sql($1)", [f"select 1 from rows where {clause}"]).fetchall()
    )
    document = json.loads(answer)
    if document["error"] and document["error_type"] == "not implemented":  # another statement comes after it
        raise ValueError(f"where={text!r} is not one condition")
    if document["error"]:
        raise ValueError(f"where={text!r}: {document['error_message']}")
    nodes = [statement["node"] for statement in document["statements"]]
    node = nodes[0]
    extra = len(nodes) != 1 or node["type"] != "SELECT_NODE" or not node.get("where_clause")
    if extra or any(
        node.get(part) for part in ("modifiers", "group_expressions", "having", "qualify", "sample")
    ):
        raise ValueError(f"where={text!r} is not one condition")
    tree: dict[str, Any] = node["where_clause"]
    return tree


def _shape(tree: Any) -> Any:
    """A tree without where its pieces stand in the text."""
    if isinstance(tree, list):
        return [_shape(child) for child in tree]
    if isinstance(tree, dict):
        return {name: _shape(child) for name, child in tree.items() if not name.startswith("query_location")}
    return tree


_parsers = threading.local()


def _parser() -> duckdb.DuckDBPyConnection:
    if not hasattr(_parsers, "connection"):
        _parsers.connection = sandbox.connect(**sandbox.ALONE)
    found: duckdb.DuckDBPyConnection = _parsers.connection
    return found


def _walk(node: Any) -> list[dict[str, Any]]:
    if isinstance(node, list):
        return [found for child in node for found in _walk(child)]
    if not isinstance(node, dict):
        return []
    return [node, *(found for child in node.values() for found in _walk(child))]


def _names(tree: dict[str, Any]) -> set[str]:
    """The columns that a tree may refer to: a dotted name may begin with its table's."""
    refs = [node["column_names"] for node in _walk(tree) if node.get("type") == "COLUMN_REF"]
    return {name for ref in refs for name in ref[:2]}


_COMPARISONS = {
    "COMPARE_EQUAL": "=",
    "COMPARE_NOTEQUAL": "<>",
    "COMPARE_LESSTHAN": "<",
    "COMPARE_GREATERTHAN": ">",
    "COMPARE_LESSTHANOREQUALTO": "<=",
    "COMPARE_GREATERTHANOREQUALTO": ">=",
}
_TURNED = {"=": "=", "<>": "<>", "<": ">", ">": "<", "<=": ">=", ">=": "<="}


def _judge(node: dict[str, Any], bounds: Callable[[str], Bounds | None], shards: int) -> Verdict:
    """What a tree can say of each shard; whatever is not known for certain may be anything."""
    kind, children = node["type"], node.get("children", [])
    judge = partial(_judge, bounds=bounds, shards=shards)
    if kind in ("CONJUNCTION_AND", "CONJUNCTION_OR"):
        join = Verdict.__and__ if kind == "CONJUNCTION_AND" else Verdict.__or__
        return reduce(join, map(judge, children))
    if kind == "OPERATOR_NOT":
        return ~judge(children[0])
    if kind in ("OPERATOR_IS_NULL", "OPERATOR_IS_NOT_NULL"):
        held = bounds(_column(children[0]))
        verdict = is_null(held) if held else unknown(shards)
        return verdict if kind == "OPERATOR_IS_NULL" else ~verdict
    if kind in _COMPARISONS:
        return _compared(_COMPARISONS[kind], node["left"], node["right"], bounds, shards)
    if kind == "COMPARE_BETWEEN":
        low = _compared(">=", node["input"], node["lower"], bounds, shards)
        return low & _compared("<=", node["input"], node["upper"], bounds, shards)
    if kind in ("COMPARE_IN", "COMPARE_NOT_IN"):
        options = [_compared("=", children[0], child, bounds, shards) for child in children[1:]]
        found = reduce(Verdict.__or__, options)
        return found if kind == "COMPARE_IN" else ~found
    if kind == "VALUE_CONSTANT" and node["literal"]["kind"] == "BOOLEAN":
        return certain(node["literal"]["text"] == "true", shards)
    if kind == "COLUMN_REF":
        held = bounds(_column(node))
        if held is not None and pa.types.is_boolean(held.type):
            return compare("=", held, True)
    return unknown(shards)


def _compared(
    operator: str,
    left: dict[str, Any],
    right: dict[str, Any],
    bounds: Callable[[str], Bounds | None],
    shards: int,
) -> Verdict:
    if left["type"] == "VALUE_CONSTANT":
        operator, left, right = _TURNED[operator], right, left
    held = bounds(_column(left)) if left["type"] == "COLUMN_REF" else None
    if held is None or right["type"] != "VALUE_CONSTANT":
        return unknown(shards)
    literal = right["literal"]
    return compare(operator, held, (literal["kind"], literal.get("text")))


def _column(node: dict[str, Any]) -> str:
    """The column that a node is, the empty text if it is none."""
    names = node.get("column_names", [])
    return names[0] if node["type"] == "COLUMN_REF" and len(names) == 1 else ""
