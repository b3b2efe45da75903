"""The command as a shell runs it: a process with pipes, an environment and an exit code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.main import get_command

from lake.cli import app
from lake.cli.app import Exit
from tests.cli.conftest import ROOT

Shell = Callable[..., "subprocess.CompletedProcess[str]"]
COMMANDS = get_command(app).commands  # type: ignore[attr-defined]
DOCS = (ROOT / "docs" / "cli.md").read_text("utf-8")


def test_the_library_and_the_command_agree(shell: Shell, folder: Path):
    """A lake from the environment: commit, ask, list, all as processes."""
    (folder / "a.jsonl").write_text('{"key": "a", "x": 1}\n{"key": "b", "x": 2}\n')
    lake = {"LAKE_URL": str(folder / "l")}

    made = shell("commit", "letters", "--from", "a.jsonl", "--json", **lake)
    asked = shell("sql", "select sum(x) as s from letters", "--json", **lake)
    missing = shell("head", "leters", **lake)

    assert (made.returncode, made.stderr, json.loads(made.stdout)["rows"]) == (0, "", 2)
    assert (asked.returncode, asked.stderr, json.loads(asked.stdout)) == (0, "", [{"s": 3}])
    assert (missing.returncode, missing.stdout, missing.stderr.count("\n")) == (7, "", 1)


def test_a_traceback_is_shown_on_request_only(shell: Shell):
    """LAKE_DEBUG=1, before the line that says what went wrong."""
    quiet = shell("head", "birds", "--url", "./none")
    loud = shell("head", "birds", "--url", "./none", LAKE_DEBUG="1")

    assert "Traceback" not in quiet.stderr
    assert loud.stderr.startswith("Traceback")
    assert loud.stderr.splitlines()[-1] == quiet.stderr.strip()
    assert loud.returncode == quiet.returncode == Exit.NOT_FOUND


def test_a_reader_that_has_seen_enough_is_no_error(shell: Shell, folder: Path):
    """`lake sql ... | head -1`."""
    command = f"{sys.executable} -m lake sql 'from range(300000)' --format csv --url {folder / 'l'} | head -1"
    assert shell("init", "./l").returncode == 0
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert (done.returncode, done.stdout, done.stderr) == (0, "range\n", "")


def test_help_imports_nothing_heavy(shell: Shell):
    """Not DuckDB, not torch, not pyarrow: help is there at once."""
    code = (
        "import sys\nfrom lake.cli import main\ntry:\n    main(['commit', '--help'])\nexcept SystemExit:\n"
        "    print([name for name in ('duckdb', 'torch', 'pyarrow', 'boto3', 'ray') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )

    assert done.stdout.splitlines()[-1] == "[]"


def test_commands_are_as_designed():
    """In the order in which someone new meets them."""
    assert list(COMMANDS)[:4] == ["init", "status", "commit", "ls"]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_examples_and_the_common_options(name: str):
    """--json everywhere, --url where there is a lake; each option says what it is for."""
    command = COMMANDS[name]
    options = {option for parameter in command.params for option in parameter.opts}

    assert command.help
    assert command.epilog.startswith(f"Example: lake {name}")
    assert "--json" in options
    assert "--url" in options or name in ("archive", "demo")
    assert [p.name for p in command.params if not p.help] == []


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_is_documented(name: str):
    """docs/cli.md names each in the command's section."""
    section = DOCS.partition(f"## `lake {name}`\n")[2].partition("\n## ")[0]
    options = [
        option for parameter in COMMANDS[name].params for option in parameter.opts if option.startswith("-")
    ]
    wanted = [option for option in options if option not in ("--json", "--url", "--help", "-h")]

    assert [option for option in wanted if f"`{option}" not in section] == []


def test_every_exit_code_is_documented():
    """In docs/cli.md and in `lake --help`."""
    shown = get_command(app).epilog

    assert [code for code in Exit if f"| {code} | " not in DOCS] == []
    assert [code for code in Exit if f"{code} " not in shown] == []
