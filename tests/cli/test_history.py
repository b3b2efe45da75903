"""What the commands about versions do and print."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

Run = Callable[..., Result]
Answer = Callable[..., Any]


@pytest.fixture
def two(birds: Path, run: Run) -> Path:
    """`birds` with a second version: one row changed, one gone, one new, another meta."""
    lines = birds.read_text().splitlines()
    lines[4] = "k03,33,b"
    birds.write_text("\n".join([*lines[:10], *lines[11:], "k99,99,c"]) + "\n")
    result = run("commit", "birds", "--from", birds, "-m", "second", "--meta", "license=CC0")
    assert result.exit_code == 0, result.stderr
    return birds


def test_diff_counts_and_names_what_differs(two: Path, run: Run, answer: Answer):
    """Rows by key, meta, bytes; --keys says how many keys are shown."""
    found = answer("diff", "birds@#1", "birds")

    assert (found["added"], found["removed"], found["changed"]) == (1, 1, 1)
    assert found["keys"] == {"added": ["k99"], "removed": ["k09"], "changed": ["k03"]}
    assert found["meta"] == [{"name": "n", "before": 20, "after": None}]
    assert found["schema"] == []
    assert found["bytes"] > 0
    assert answer("diff", "birds@#1", "birds", "--keys", "0")["keys"] == {
        "added": [],
        "removed": [],
        "changed": [],
    }
    shown = run("diff", "birds@#1", "birds").stdout
    assert shown.splitlines()[0] == "added    1"
    assert [line.split() for line in shown.splitlines()[4:]] == [
        ["what", "name", "before", "after"],
        ["row", "added", "k99"],
        ["row", "removed", "k09"],
        ["row", "changed", "k03"],
        ["meta", "n", "20"],
    ]
    assert len(run("diff", "birds", "birds").stdout.splitlines()) == 4


def test_recipe_prints_what_was_committed(birds: Path, run: Run, answer: Answer, folder: Path):
    """Text as it is, other things as JSON; none is null."""
    (folder / "r.txt").write_text("made by hand\nin May")
    (folder / "r.json").write_text('{"steps": [1, 2]}')
    assert run("recipe", "birds").stdout == "null\n"

    run("commit", "birds", "--from", birds, "--recipe", "r.txt")
    assert run("recipe", "birds").stdout == "made by hand\nin May\n"
    assert answer("recipe", "birds") == "made by hand\nin May"
    run("commit", "birds", "--from", birds, "--recipe", "r.json")
    assert json.loads(run("recipe", "birds").stdout) == {"steps": [1, 2]}


def test_tags_are_given_listed_and_taken_away(two: Path, run: Run, answer: Answer):
    """A conflict has its own exit code."""
    made = answer("tag", "birds@#1", "v1", "-m", "published")

    assert (made["tag"], made["seq"], made["rows"]) == ("v1", 1, 20)
    [listed] = answer("tag", "birds")
    assert (listed["tag"], listed["version"], listed["message"]) == ("v1", made["id"], "published")
    assert "published" in run("tag", "birds").stdout
    assert answer("tag", "birds@#2") == [listed]
    assert run("tag", "birds", "-m", "why").exit_code == 2  # there is nothing to keep it with
    assert run("tag", "nothing").exit_code == 7
    clash = run("tag", "birds", "v1")
    assert (clash.exit_code, clash.stdout) == (4, "")
    assert "untag it first" in clash.stderr
    assert run("untag", "birds", "v1").stdout.split() == ["name", "birds", "untagged", "v1"]
    assert answer("tag", "birds") == []
    assert run("untag", "birds", "v1").exit_code == 7


def test_a_pin_decides_until_it_is_taken_out(two: Path, run: Run, answer: Answer, folder: Path):
    """`lake.lock` has it, reading says so on stderr."""
    pinned = answer("pin", "birds@#1")

    assert f'"birds" = "{pinned["id"]}"' in (folder / "lake.lock").read_text()
    result = run("info", "birds", "--json")
    assert json.loads(result.stdout)["seq"] == 1
    assert result.stderr.startswith("warning: birds: ")
    assert answer("unpin", "birds") == {"unpinned": "birds"}
    assert answer("info", "birds")["seq"] == 2
    assert run("unpin", "birds").exit_code == 7


def test_rollback_and_copy_make_versions_of_old_ones(two: Path, run: Run, answer: Answer):
    """Each prints the version that it made."""
    first = answer("info", "birds@#1")["version"]

    back = answer("rollback", "birds", "--to", "#1", "-m", "oops")
    copied = answer("copy", "birds@#2", "exp/birds", "-m", "try")

    assert (back["id"], back["seq"]) == (first, 3)
    assert answer("log", "birds")[0]["message"] == "oops"
    assert (copied["name"], copied["seq"], copied["rows"]) == ("exp/birds", 1, 20)
    assert answer("log", "exp/birds")[0]["message"] == "try"
    assert run("copy", "birds", "exp/birds").exit_code == 4
    assert run("rollback", "birds", "--to", "#9").exit_code == 7
    assert run("rollback", "birds").exit_code == 2


def test_a_change_of_an_older_version_is_a_conflict(two: Path, run: Run):
    """`birds@#1` is not what a change begins with."""
    result = run("rollback", "birds@#1", "--to", "#2")

    assert result.exit_code == 4
    assert "is not the head" in result.stderr
