"""How results look: tables on a terminal, plain columns in a pipe, JSON if asked. All else: stderr."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from functools import partial
from typing import Any, Final

from lake.config import format_bytes
from lake.jsonable import jsonable

Row = Mapping[str, Any]

_DIGITS: Final = 12  # of a digest, where people read it
_BYTES: Final = frozenset(
    [
        "bytes",
        "raw_bytes",
        "bytes_new",
        "bytes_reused",
        "bytes_fetched",
        "freed_bytes",
        "cache_used",
        "cache_budget",
        "resident_bytes",
        "fetch_bytes",
        "memory_bytes",
    ]
)
_DIGESTS: Final = frozenset({"version", "data", "parent", "id"})
_CELL: Final = 60  # characters of a cell, on a terminal


def note(text: str) -> None:
    """Something worth knowing that is not a result."""
    print(text, file=sys.stderr)


def error(text: str) -> None:
    """What went wrong, in one line."""
    note("error: " + " ".join(text.split()))


def print_json(value: Any) -> None:
    """The value as one JSON document: bytes in base64, times in ISO 8601, NaN and infinities null."""
    print(json.dumps(jsonable(value), ensure_ascii=False, indent=2 if sys.stdout.isatty() else None))


def print_csv(names: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """A header and the rows; null is empty, as is the empty text; lists and structs are JSON."""
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(names)
    writer.writerows([_csv_cell(value) for value in row] for row in rows)


def print_rows(rows: Sequence[Row], names: Sequence[str], *, as_json: bool = False) -> None:
    """These members of each row: a table, or JSON with all members."""
    if as_json:
        print_json(rows)
    else:
        columns = [[row.get(name) for row in rows] for name in names]
        print_columns(names, columns, [partial(shown, name=name) for name in names])


def print_columns(
    names: Sequence[str], columns: Sequence[Sequence[Any]], show: Sequence[Callable[[Any], str]]
) -> None:
    """A table of these columns, each with what makes a cell of a value; numbers to the right."""
    cells = [[each(value) for value in column] for column, each in zip(columns, show, strict=True)]
    print_table(names, list(zip(*cells, strict=True)), [_numeric(column) for column in columns])


def print_record(record: Row, *, as_json: bool = False) -> None:
    """One thing: its members below each other, or JSON."""
    if as_json:
        print_json(record)
        return
    width = max(map(len, record), default=0)
    for name, value in record.items():
        print(f"{name:<{width}}  {shown(value, name)}".rstrip())


def print_table(names: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[bool] = ()) -> None:
    """Cells under their names: framed where someone looks at a terminal, else aligned only and never cut."""
    right = right or [False] * len(names)
    if sys.stdout.isatty():
        _print_framed(names, rows, right)
        return
    widths = [max(map(len, column)) for column in zip(names, *rows, strict=True)]
    for row in (names, *rows):
        cells = [
            cell.rjust(width) if number else cell.ljust(width)
            for cell, width, number in zip(row, widths, right, strict=True)
        ]
        print("  ".join(cells).rstrip())


def shown(value: Any, name: str = "") -> str:
    """A value as a person reads it; `name` tells what it is.

    >>> shown(81920, "rows"), shown(1_200_000, "bytes"), shown(None), shown(b"abc")
    ('81,920', '1.2 MB', '', '<3 B>')
    """
    if type(value) is int:
        return format_bytes(value) if name in _BYTES else f"{value:,}"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, datetime):
        return value.isoformat(" ", "seconds").removesuffix("+00:00")
    text = plain_text(value)
    return text[:_DIGITS] if name in _DIGESTS else text


def plain_text(value: Any) -> str:
    """A value as it is, on one line; of bytes only how many.

    >>> plain_text(81920), plain_text([1, None]), plain_text("a\\nb"), plain_text(True)
    ('81920', '[1, null]', 'a\\\\nb', 'true')
    """
    if value is None:
        return ""
    if isinstance(value, bytes):
        return f"<{format_bytes(len(value))}>"
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, datetime):
        return value.isoformat(" ")
    if isinstance(value, bool | list | tuple | Mapping):
        return json.dumps(jsonable(value), ensure_ascii=False)
    text = str(value)
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _print_framed(names: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[bool]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.ROUNDED, header_style="bold")
    for name, number in zip(names, right, strict=True):
        table.add_column(Text(name), justify="right" if number else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell if len(cell) <= _CELL else cell[: _CELL - 1] + "…") for cell in row))
    Console().print(table)


def _numeric(values: Iterable[Any]) -> bool:
    kinds = {type(value) for value in values if value is not None}
    return bool(kinds) and kinds <= {int, float, Decimal}


def _csv_cell(value: Any) -> Any:
    if value is None or isinstance(value, str | float):
        return value
    plain = jsonable(value)
    return plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False)
