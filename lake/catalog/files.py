"""The statements of `sql/`: one per file, the file's stem is its name, its first comment says what it gives.

This is the only reader of that folder, and it runs nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from typing import Final, Literal

from lake.errors import NotFoundError

_HERE = files("lake")
_SQL: Final = next(d for d in (_HERE / "sql", _HERE / ".." / "sql") if d.is_dir())  # wheel, checkout

Kind = Literal["macros", "views", "queries"]


@dataclass(frozen=True, slots=True)
class Statement:
    """One file of `sql/`."""

    name: str
    text: str
    doc: str  # what a row is
    parameters: dict[str, str]  # name without its "$" -> type and meaning


@cache
def statements(kind: Kind) -> dict[str, Statement]:
    """The statements of one folder by name, sorted."""
    found = [
        parse(file.name.removesuffix(".sql"), file.read_text("utf-8"))
        for file in (_SQL / kind).iterdir()
        if file.name.endswith(".sql")
    ]
    return {statement.name: statement for statement in sorted(found, key=lambda statement: statement.name)}


def query(name: str, given: Iterable[str] = ()) -> Statement:
    """The query in `sql/queries/<name>.sql`, to be asked with these parameters.

    Raises:
        NotFoundError: there is no such query.
        ValueError: a parameter is missing or unknown.
    """
    known = statements("queries")
    if name not in known:
        near = get_close_matches(name, known, 1)
        hint = f"nearest: {near[0]!r}" if near else f"known are {', '.join(known)}"
        raise NotFoundError(f"no query {name!r}; {hint}")
    needed, given = known[name].parameters, list(given)
    if set(given) != set(needed):
        shown = [", ".join(f"${each}" for each in names) or "none" for names in (needed, given)]
        raise ValueError(f"query {name!r} needs the parameters {shown[0]}; given: {shown[1]}")
    return known[name]


def parse(name: str, text: str) -> Statement:
    """A file's text with what its header says: prose, then one `-- $name type: meaning` for each parameter.

    >>> parse("log", "-- A row is a log entry.\\n-- $dataset varchar: its name\\nfrom lake.log").parameters
    {'dataset': 'varchar: its name'}
    """
    prose: list[str] = []
    parameters: dict[str, str] = {}
    for line in text.splitlines():
        if not line.startswith("--"):
            break
        comment = line.removeprefix("--").strip()
        if comment.startswith("$"):
            parameter, _, meaning = comment[1:].partition(" ")
            parameters[parameter] = meaning.strip()
        else:
            prose.append(comment)
    return Statement(name, text, " ".join(prose), parameters)
