"""The statements of sql/, as files: each is one statement, says what it gives, and parses."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pytest

from lake.catalog.engine import INSTALLED, VIEWS
from lake.catalog.files import Statement, parse, query, statements
from lake.errors import NotFoundError

FOLDER = Path(__file__).parents[2] / "sql"
KINDS = ("macros", "views", "queries")
ALL = [
    pytest.param(kind, each, id=f"{kind}/{each.name}") for kind in KINDS for each in statements(kind).values()
]


def test_every_file_of_the_folder_is_read():
    """No statement is left out because of where it lies or how it is called."""
    found = {f"{kind}/{name}.sql" for kind in KINDS for name in statements(kind)}

    assert found == {str(path.relative_to(FOLDER).as_posix()) for path in FOLDER.rglob("*.sql")}


@pytest.mark.parametrize(("kind", "statement"), ALL)
def test_a_file_is_one_statement_named_as_the_file(kind: str, statement: Statement):
    """What a file installs has the file's name; a query asks and nothing else."""
    found = duckdb.connect().extract_statements(statement.text)

    assert len(found) == 1
    if kind == "queries":
        assert found[0].type == duckdb.StatementType.SELECT
    else:
        what = kind.removesuffix("s")
        assert f"create or replace {what} lake.{statement.name}" in statement.text


@pytest.mark.parametrize(("kind", "statement"), ALL)
def test_the_header_lists_exactly_the_parameters(kind: str, statement: Statement):
    """Whoever reads the header knows what to pass."""
    [found] = duckdb.connect().extract_statements(statement.text)

    assert found.named_parameters == set(statement.parameters)
    assert all(": " in meaning for meaning in statement.parameters.values())


@pytest.mark.parametrize(("kind", "statement"), ALL)
def test_the_header_says_what_it_is(kind: str, statement: Statement):
    """The first words tell what a row is, or for a scalar macro what it returns."""
    table = kind != "macros" or "as table" in statement.text

    assert statement.doc.startswith("A row is") or (not table and statement.doc)
    assert statement.doc.endswith(".")


def test_everything_is_installed():
    """A macro or view that nobody installs would be dead."""
    installed = {(kind, name) for kind, names in INSTALLED for name in names}

    assert installed == {(kind, name) for kind in ("macros", "views") for name in statements(kind)}
    assert set(VIEWS) == set(statements("views"))


def test_the_readme_names_every_statement():
    """The folder's README is its index."""
    text = (FOLDER / "README.md").read_text("utf-8")

    expected = [
        f"`{name}`" if kind == "queries" else f"`lake.{name}" for kind in KINDS for name in statements(kind)
    ]

    assert [each for each in expected if each not in text] == []


def test_a_query_is_found_by_name_and_refuses_other_parameters():
    """The errors say what is there and what is needed."""
    assert query("history", {"dataset": "birds"}).name == "history"
    with pytest.raises(NotFoundError, match="nearest: 'history'"):
        query("histroy")
    with pytest.raises(ValueError, match=r"needs the parameters \$dataset; given: none"):
        query("history")
    with pytest.raises(ValueError, match=r"needs the parameters none; given: \$x"):
        query("sizes", ["x"])


def test_a_header_ends_with_the_first_line_that_is_no_comment():
    """Comments inside of a statement are not its description."""
    statement = parse(
        "x", "-- A row is x.\n-- $n integer: how many\nselect $n -- $m text: no\n-- $k text: no"
    )

    assert (statement.doc, statement.parameters) == ("A row is x.", {"n": "integer: how many"})
