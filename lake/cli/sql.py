"""The command `sql`: ask the lake."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from itertools import count
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

import lake
from lake.cli.app import Json, Url, answers, command, pairs
from lake.cli.output import note, plain_text, print_columns, print_csv, print_json, print_rows

_SHOWN = 200  # rows of a table on a terminal


Format = Literal["table", "csv", "json", "parquet", "arrow"]


@command(
    "sql",
    'lake sql "select label, count(*) from birds group by label"',
    "lake sql \"from lake.shards where dataset = 'birds'\" --format csv",
    "lake sql @history -p dataset=birds",
    'lake sql "from birds where label = 3" --output owls.parquet',
)
def sql(
    query: Annotated[
        str | None, typer.Argument(metavar="[QUERY]", help="A statement; @NAME: a query that came with lake.")
    ] = None,
    parameters: Annotated[
        list[str] | None,
        typer.Option("--param", "-p", metavar="K=V", help="Fills $K of the query. Repeatable."),
    ] = None,
    form: Annotated[
        Format | None, typer.Option("--format", help="table, csv, json, parquet or arrow (a stream).")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="A new file; its suffix says the format."),
    ] = None,
    listing: Annotated[bool, typer.Option("--list", help="List the queries that @NAME runs.")] = False,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Ask in SQL: datasets are tables by name, "birds@v1" is a version, lake.* describes the lake."""
    form = "json" if as_json else form or _said_by(output)
    if listing:
        _list(form)
        return
    if not query:
        raise typer.BadParameter("a query is needed, or --list")
    given = pairs(parameters or (), "--param")
    if query.startswith("@"):
        from lake.catalog import query as named

        query = named(query[1:], given).text
    if form in ("parquet", "arrow") and output is None and sys.stdout.isatty():
        raise typer.BadParameter(f"{form} is not for a terminal: say --output FILE, or pipe it")
    with answers():
        _put(lake.open(url).sql(query, given or None).to_arrow_reader(), form, output)


def _said_by(output: Path | None) -> Format:
    """The format that a file's suffix says; a table without a file."""
    if output is None:
        return "table"
    suffixes: dict[str, Format] = {".parquet": "parquet", ".arrow": "arrow", ".csv": "csv", ".json": "json"}
    try:
        return suffixes[output.suffix.lower()]
    except KeyError:
        raise typer.BadParameter(f"{output}: say --format, or end it in {', '.join(suffixes)}") from None


def _put(answer: Any, form: Format, output: Path | None) -> None:
    """Write the rows to a new file, or print them."""
    from lake.catalog import new_file, write_answer

    if output is None and form in ("parquet", "arrow"):
        write_answer(answer, sys.stdout.buffer, form)
    elif output is None:
        _print(answer, form)
    else:
        with new_file(output) as fresh:
            if form in ("parquet", "arrow"):
                with fresh.open("wb") as file:
                    write_answer(answer, file, form)
            else:
                with fresh.open("w", encoding="utf-8", newline="") as text, redirect_stdout(text):
                    _print(answer, form)


def _print(answer: Any, form: Format) -> None:
    """Print an Arrow reader's rows; CSV as they come, the others when all are there."""
    names = _told_apart(answer.schema.names)
    if form == "csv":
        batches = ([column.to_pylist() for column in batch.columns] for batch in answer)
        print_csv(names, (row for columns in batches for row in zip(*columns, strict=True)))
        return
    table = answer.read_all()
    if form == "json":
        print_json(table.rename_columns(names).to_pylist())
        return
    cut = sys.stdout.isatty() and table.num_rows > _SHOWN
    columns = [column[: _SHOWN if cut else None].to_pylist() for column in table.columns]
    print_columns(names, columns, [plain_text] * len(names))
    if cut:
        note(f"the first {_SHOWN} of {table.num_rows:,} rows; --format csv prints all")


def _list(form: Format) -> None:
    from lake.catalog import statements

    rows = [
        {"query": f"@{query.name}", "parameters": ", ".join(query.parameters), "a row is": query.doc}
        for query in statements("queries").values()
    ]
    print_rows(rows, ("query", "parameters", "a row is"), as_json=form == "json")


def _told_apart(names: list[str]) -> list[str]:
    """The names, each once: a JSON object holds one member of a name.

    >>> _told_apart(["a", "a", "a_1", "b"])
    ['a', 'a_2', 'a_1', 'b']
    """
    taken, told = set(names), []
    for name in names:
        fresh = name
        if name in told:
            fresh = next(text for i in count(1) if (text := f"{name}_{i}") not in taken)
        taken.add(fresh)
        told.append(fresh)
    return told
