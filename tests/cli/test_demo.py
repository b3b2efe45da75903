"""The demo does what it says, and is an example that works."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

import lake

pytest.importorskip("sklearn")
pytest.importorskip("torch")
pytest.importorskip("PIL")


def test_the_demo_learns_to_read_digits(run: Callable[..., Result], folder: Path):
    """Over 95 % of digits held out are right; correcting ten labels stores little; the lake is kept."""
    result = run("demo", "--keep", "kept", "--json")

    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert found["rows"] == 1797
    assert found["accuracy"] > 0.95
    assert 0 < found["bytes_new"] < found["bytes_reused"] / 5
    digits = lake.open(folder / "kept").dataset("digits")
    assert digits.get("digit-0600")["label"] == 2
    assert digits.schema.field("pixels").type.shape == [8, 8]


def test_each_step_is_explained(run: Callable[..., Result], monkeypatch: pytest.MonkeyPatch, folder: Path):
    """Six numbered lines, and a word on where to go on from there."""
    monkeypatch.setattr("lake.cli.demo.train", lambda digits: (0.97, 1.0))
    kept, gone = run("demo", "--keep", "kept"), run("demo")

    for result in (kept, gone):
        assert result.exit_code == 0, result.stderr
        steps = [line for line in result.stdout.splitlines() if line[:1].isdigit() and line[1] == "."]
        assert [int(step[0]) for step in steps] == [1, 2, 3, 4, 5, 6]
    assert "Try: lake log digits --url kept" in kept.stdout
    assert [path.name for path in folder.iterdir()] == ["kept"]


def test_a_demo_without_its_packages_says_which(run: Callable[..., Result], monkeypatch: pytest.MonkeyPatch):
    """And how to get them."""
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    result = run("demo")

    assert result.exit_code == 1
    assert "pip install 'lakeshard[demo]'" in result.stderr
