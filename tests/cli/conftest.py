"""A folder to work in, and the command: in this process, or as a shell would run it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from lake.cli import app

ROOT = Path(__file__).parents[2]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with a home of its own beside it."""
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "200")
    return work


@pytest.fixture
def run(folder: Path) -> Callable[..., Result]:
    """`lake` with these arguments, in this process."""
    return lambda *arguments: CliRunner().invoke(app, [str(each) for each in arguments])


@pytest.fixture
def answer(run: Callable[..., Result]) -> Callable[..., Any]:
    """What a command that succeeds prints with --json, parsed."""

    def ask(*arguments: str) -> Any:
        result = run(*arguments, "--json")
        assert result.exit_code == 0, result.stderr
        return json.loads(result.stdout)

    return ask


@pytest.fixture
def shell(folder: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """`lake` with these arguments, as a process of its own."""

    def call(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "lake", *arguments],
            env=os.environ | {"PYTHONPATH": str(ROOT)} | environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    return call


@pytest.fixture
def birds(folder: Path, run: Callable[..., Result]) -> Path:
    """A lake in ./l that holds the dataset `birds`: 20 rows from a CSV file, which is returned."""
    file = folder / "birds.csv"
    file.write_text("key,x,label\n" + "".join(f"k{i:02},{i},{'ab'[i % 2]}\n" for i in range(20)))
    assert run("init", "./l").exit_code == 0
    result = run("commit", "birds", "--from", file, "-m", "first", "--meta", "license=CC0", "--meta", "n=20")
    assert result.exit_code == 0, result.stderr
    return file
