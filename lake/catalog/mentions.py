"""Which tables a statement names, from DuckDB's own parse of it (`json_serialize_sql`). Pure."""

from __future__ import annotations

import json
from typing import Any, NamedTuple


class Mention(NamedTuple):
    """A table as the statement writes it; `schema` is empty where it names none."""

    schema: str
    name: str


def mentions(parsed: str) -> frozenset[Mention] | None:
    """The tables that must exist outside of the statement; None where DuckDB does not show its kind.

    Names that a `with` defines count only where they cannot mean its own table: `with birds as (from birds)`
    needs the dataset, and a later `from birds` does not.
    """
    document = json.loads(parsed)
    return None if document["error"] else frozenset(_tables(document["statements"], frozenset()))


def _tables(node: Any, defined: frozenset[str]) -> list[Mention]:
    if isinstance(node, list):
        return [found for child in node for found in _tables(child, defined)]
    if not isinstance(node, dict):
        return []
    if node.get("type") == "RECURSIVE_CTE_NODE":
        defined |= {node["cte_name"].lower()}
    found: list[Mention] = []
    for entry in node.get("cte_map", {}).get("map", ()):
        found += _tables(entry["value"], defined)
        defined |= {entry["key"].lower()}
    if node.get("type") == "BASE_TABLE":
        mention = Mention(node.get("schema_name", ""), node["table_name"])
        if mention.schema or mention.name.lower() not in defined:
            found.append(mention)
    if node.get("type") == "TABLE_FUNCTION" and node["function"].get("schema") == "lake":
        found.append(Mention("lake", node["function"]["function_name"]))
    for member, child in node.items():
        if member != "cte_map":
            found += _tables(child, defined)
    return found
