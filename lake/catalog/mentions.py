"""Which tables a statement names, from DuckDB's own parse of it (`json_serialize_sql`). Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple


class Mention(NamedTuple):
    """A table as the statement writes it; `schema` is empty where it names none."""

    schema: str
    name: str


def mentions(parsed: str, params: Mapping[str, Any] | None = None) -> frozenset[Mention] | None:
    """The tables that must exist outside of the statement; None where DuckDB does not show its kind, or it is
    nested too deep to look.

    `query_table($name)` names the table that the parameter holds.

    Names that a `with` defines count only where they cannot mean its own table: `with birds as (from birds)`
    needs the dataset, and a later `from birds` does not.
    """
    try:
        document = json.loads(parsed)
        tables = None if document["error"] else _tables(document["statements"], frozenset(), params or {})
    except RecursionError:
        tables = None
    return None if tables is None else frozenset(tables)


def _tables(node: Any, defined: frozenset[str], params: Mapping[str, Any]) -> list[Mention]:
    if isinstance(node, list):
        return [found for child in node for found in _tables(child, defined, params)]
    if not isinstance(node, dict):
        return []
    if node.get("type") == "RECURSIVE_CTE_NODE":
        defined |= {node["cte_name"].lower()}
    found: list[Mention] = []
    for entry in node.get("cte_map", {}).get("map", ()):
        found += _tables(entry["value"], defined, params)
        defined |= {entry["key"].lower()}
    if node.get("type") == "BASE_TABLE":
        mention = Mention(node.get("schema_name", ""), node["table_name"])
        if mention.schema or mention.name.lower() not in defined:
            found.append(mention)
    if node.get("type") == "TABLE_FUNCTION":
        found += _of_function(node["function"], params)
    for member, child in node.items():
        if member != "cte_map":
            found += _tables(child, defined, params)
    return found


def _of_function(function: dict[str, Any], params: Mapping[str, Any]) -> list[Mention]:
    if function.get("schema") == "lake":
        return [Mention("lake", function["function_name"])]
    if function["function_name"] != "query_table" or not function["arguments"]:
        return []
    argument = function["arguments"][0].get("expression", {})
    name = params.get(argument.get("identifier", ""))
    if argument.get("type") == "VALUE_CONSTANT":
        name = argument.get("literal", {}).get("text")
    return [Mention("", name)] if isinstance(name, str) else []
