"""What a user writes wrongly is refused in words, with exit code 2, before anything is done."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.main import get_command
from typer.testing import Result

from lake.cli import app
from tests.cli.conftest import ROOT

Run = Callable[..., Result]
COMMANDS = get_command(app).commands  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["ls", "--url", "a", "--url", "b"], "--url is given 2 times"),
        (["commit", "d", "--from", "a", "--from", "b"], "--from is given 2 times"),
        (["commit", "d", "--from", "a", "-m", "x", "--message", "y"], "--message is given 2 times"),
        (["commit", "d", "--from", "a", "--meta", "a=1", "--meta", "a=2"], "--meta a is given twice"),
        (["sql", "select $a", "-p", "a=1", "--param", "a=2"], "--param a is given twice"),
        (["log", "d", "-n", "1", "-n", "2"], "-n is given 2 times"),
        (["commit", "d", "--from", ""], "--from is empty"),
        (["commit", "d", "--from", "a", "--txn", ""], "--txn is empty"),
        (["commit", "", "--from", "a"], "NAME is empty"),
        (["repair", "d", "--from", ""], "--from is empty"),
        (["export", "d", "out", "-c", ""], "--column is empty"),
        (["init", ""], "[URL] is empty"),
        (["init", "./a", "--url", "./b"], "named twice"),
        (["ls", "--url", ""], "--url is empty"),
        (["ls", "--url", "gopher://x"], "gopher://x"),
        (["ls", "--url", "s3://"], "s3://"),
        (["ls", "--url", "s3://user:password@bucket/x"], "credentials"),
        (["init", "./l", "--cache-budget", "much"], "much"),
        (["config", "set", "cache_budget", "much"], "much"),
        (["config", "set", "colour", "red"], "colour"),
        (["plan", "d", "--budget", "much"], "much"),
        (["sql", "selec 1"], "syntax error"),
        (["sql", "select nothing"], "nothing"),
        (["sql", "select no_such(1)"], "no_such"),
        (["sql", "select $a"], "needs the parameters $a; given: none"),
        (["sql", "select $a", "-p", "b=1"], "needs the parameters $a; given: $b"),
        (["sql", "create table t (x int)"], "CREATE is refused"),
        (["sql", "select 1; select 2"], "one statement"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_what_cannot_be_meant_is_refused(run: Run, folder: Path, arguments: list[str], words: str):
    """Nothing is taken in silence for something else, and nothing is made."""
    result = run(*arguments)

    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert words in result.stderr
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("LAKE_URL", "gopher://x"),
        ("LAKE_CACHE_BUDGET", "much"),
        ("LAKE_ANONYMOUS", "maybe"),
        ("LAKE_ENDPOINT_URL", "x"),
    ],
)
def test_a_variable_that_cannot_be_used_is_usage_too(
    run: Run, monkeypatch: pytest.MonkeyPatch, variable: str, value: str
):
    """As is a setting of a file."""
    monkeypatch.setenv(variable, value)

    result = run("ls")

    assert (result.exit_code, value in result.stderr) == (2, True)


def test_what_is_harmless_is_not_refused(run: Run, birds: Path):
    """A flag twice, an empty message, an empty value of a meta key."""
    result = run(
        "commit", "birds", "--from", birds, "--json", "--json", "-m", "", "--meta", "a=", "--mode", "append"
    )

    assert result.exit_code == 0, result.stderr


def test_a_mistake_of_the_data_is_no_usage(run: Run, birds: Path):
    """The statement is sound; a value that it meets is not."""
    result = run("sql", "select cast(label as integer) from birds")

    assert result.exit_code == 1
    assert "Conversion Error" in result.stderr


def test_columns_of_one_name_are_all_shown(run: Run, folder: Path):
    """Told apart by numbers that no other column has, in every form."""
    query = "select 1 as a, 2 as a, 3 as a_1, 4 as a"

    assert json.loads(run("sql", query, "--json").stdout) == [{"a": 1, "a_2": 2, "a_1": 3, "a_3": 4}]
    assert run("sql", query, "--format", "csv").stdout == "a,a_2,a_1,a_3\n1,2,3,4\n"
    assert run("sql", query).stdout.split() == ["a", "a_2", "a_1", "a_3", "1", "2", "3", "4"]


def test_a_configuration_below_another_adds_to_it(folder: Path, run: Run, monkeypatch: pytest.MonkeyPatch):
    """`lake init --cache-dir` in a folder of a project keeps the project's lake and budget."""
    assert run("init", "./l", "--cache-budget", "1GB").exit_code == 0
    (folder / "sub").mkdir()
    monkeypatch.chdir(folder / "sub")

    made = json.loads(run("init", "--cache-dir", "./c", "--json").stdout)
    settings = {row["setting"]: row["value"] for row in json.loads(run("config", "--json").stdout)}

    assert made == {"lake": str(folder / "l"), "configuration": str(folder / "sub" / "lake.toml")}
    assert settings["url"] == str(folder / "l")
    assert settings["cache_dir"] == str(folder / "sub" / "c")
    assert settings["cache_budget"] == 10**9


@pytest.mark.parametrize("user", [[], ["--user"]])
def test_a_relative_path_means_the_same_in_the_file_that_it_is_written_to(
    folder: Path, run: Run, monkeypatch: pytest.MonkeyPatch, user: list[str]
):
    """Also where the file lies elsewhere: above, or in the user's home."""
    assert run("config", "set", "region", "eu-west-1").exit_code == 0
    (folder / "sub").mkdir()
    monkeypatch.chdir(folder / "sub")

    assert run("config", "set", "url", "./l", *user).exit_code == 0
    assert run("config", "set", "cache_dir", "./c", *user).exit_code == 0
    settings = {row["setting"]: row["value"] for row in json.loads(run("config", "--json").stdout)}

    assert settings["url"] == str(folder / "sub" / "l")
    assert settings["cache_dir"] == str(folder / "sub" / "c")


def test_garbage_in_a_lake_is_damage(run: Run, birds: Path, folder: Path):
    """Exit code 3, and the object by name."""
    (folder / "l" / "lake.json").write_text("<html>")

    result = run("ls")

    assert result.exit_code == 3
    assert "lake.json" in result.stderr


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", ">&- 2>&-"])
def test_closed_streams_are_no_error(folder: Path, closed: str):
    """What would be written to them is not; the exit code is what it is."""
    command = f"{sys.executable} -m lake sql 'select 1 as x' {closed}"
    done = subprocess.run(
        ["bash", "-c", command], env=_environment(), capture_output=True, text=True, timeout=120, check=False
    )

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == ("" if closed.startswith(">") else "x\n1\n")


def test_an_interrupt_while_lake_is_being_imported_ends_in_one_line(folder: Path):
    """Not in a traceback through whatever was being imported."""
    code = (
        "import sys, lake.__main__\n"
        "class Slow:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'lake.cli':\n"
        "            print('importing', flush=True)\n"
        "            import time; time.sleep(60)\n"
        "sys.meta_path.insert(0, Slow())\n"
        "lake.__main__.main()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code],
        env=_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "importing\n"
        process.send_signal(signal.SIGINT)
        assert process.stderr.read() == "error: interrupted; whatever was committed before is whole\n"
    assert process.returncode == 130


# what messages and documents say of commands


def _said() -> Iterator[tuple[str, str]]:
    """Every command line that a message or a document gives, and the file it is in."""
    for folder, kind in (("lake", "*.py"), ("docs", "*.md"), ("sql", "*.md"), (".", "*.md")):
        for file in (ROOT / folder).glob(kind if folder == "." else f"**/{kind}"):
            text = file.read_text("utf-8")
            for line in re.findall(r"`lake ([^`\n]+)`", text):
                yield str(file.relative_to(ROOT)), line
            for block in re.findall(r"```sh\n(.*?)```", text, re.DOTALL):
                for line in re.findall(r"^lake (.+)$", block, re.MULTILINE):
                    yield str(file.relative_to(ROOT)), line


def test_every_command_that_is_named_exists():
    """With the options that it is named with."""
    said = list(_said())
    wrong = []
    for file, line in said:
        name, _, rest = line.partition(" ")
        if name in ("--help", "...", "<name>"):
            continue
        known = {
            option for parameter in getattr(COMMANDS.get(name), "params", ()) for option in parameter.opts
        }
        named = re.findall(r"(?<!\S)--?[a-z][a-z-]*", rest)
        if name not in COMMANDS or not set(named) <= known | {"--help"}:
            wrong.append((file, line))

    assert len(said) > 100
    assert wrong == []


def _environment() -> dict[str, str]:
    import os

    return os.environ | {"PYTHONPATH": str(ROOT), "LAKE_URL": "./none"}
