"""What `rm`, `expire`, `gc`, `verify` and `repair` do, print and exit with."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

import lake

Run = Callable[..., Result]
Answer = Callable[..., Any]


@pytest.fixture
def versions(birds: Path, run: Run) -> Path:
    """The lake in ./l, whose `birds` has three versions."""
    for n in (1, 2):
        birds.write_text(birds.read_text() + f"extra{n},{n},a\n")
        assert run("commit", "birds", "--from", birds).exit_code == 0
    return birds.parent / "l"


def part_of(place: Path) -> Path:
    """The file of a part that only the head has."""
    lk = lake.open(place)
    [*_, shard] = lk.dataset("birds").snapshot.manifest.shards()
    [found] = (place / "shards").glob(f"*/{shard.parts[-1].digest}.arrow")
    return found


def test_rm_removes_a_dataset_when_told(versions: Path, run: Run, answer: Answer):
    """Without a terminal to ask on it needs --yes; a dataset that is not there is not found."""
    refused = run("rm", "birds")

    assert refused.exit_code == 2
    assert "--yes" in refused.stderr
    assert "3 versions" in refused.stderr
    assert answer("rm", "birds", "--yes", "-m", "old") == {"removed": "birds"}
    assert run("info", "birds").exit_code == 7
    assert run("rm", "birds", "--yes").exit_code == 7
    assert answer("log", "birds")[0]["message"] == "old"


def test_rm_gives_one_version_up(versions: Path, run: Run, answer: Answer):
    """Not the head, and not what has a tag."""
    assert run("rm", "birds", "--version", "#2").exit_code == 2
    assert answer("rm", "birds", "--version", "#2", "--yes")["entries"] == 1
    assert run("info", "birds@#2").exit_code == 7
    assert run("rm", "birds", "--version", "#3", "--yes").exit_code == 4
    assert run("tag", "birds@#1", "first").exit_code == 0
    tagged = run("rm", "birds", "--version", "#1", "--yes")
    assert tagged.exit_code == 4
    assert "tag" in tagged.stderr


def test_expire_reports_and_then_does(versions: Path, run: Run, answer: Answer):
    """Both rules must allow it; one rule is needed."""
    assert run("expire", "birds").exit_code == 2
    assert [row["seq"] for row in answer("expire", "birds", "--keep", "1")] == [2, 1]
    assert answer("expire", "birds", "--keep", "1", "--older-than", "1d") == []
    shown = run("expire", "birds", "--keep", "2")
    assert "1 would be expired; --yes does it" in shown.stderr
    assert run("info", "birds@#1").exit_code == 0
    assert [row["seq"] for row in answer("expire", "birds", "--keep", "2", "--yes")] == [1]
    assert run("info", "birds@#1").exit_code == 7


def test_gc_reports_and_then_does(versions: Path, run: Run, answer: Answer):
    """The numbers first; too much at once is a matter of --force."""
    (versions / "notes.txt").write_text("mine")
    assert run("expire", "birds", "--keep", "1", "--yes").exit_code == 0
    how = ("--no-writers", "--grace", "0s")

    told = run("gc", *how)
    assert told.exit_code == 0
    assert "--yes --force does it" in told.stderr
    assert "not lake's, left alone: notes.txt" in told.stderr
    assert run("gc", *how, "--yes").exit_code == 2
    done = answer("gc", *how, "--yes", "--force")
    assert done["deleted"] == done["condemned"] > 0
    assert answer("gc", *how)["condemned"] == 0
    assert run("gc", "--grace", "1h").exit_code == 2
    assert (versions / "notes.txt").exists()


def test_verify_tells_damage_by_its_exit_code(versions: Path, run: Run, answer: Answer):
    """3, with the object and the versions that it hurts; a lake with damage is not collected."""
    assert answer("verify")["ok"]
    assert answer("verify", "birds", "--level", "full")["problems"] == []
    part_of(versions).unlink()

    result = run("verify", "--json")
    assert result.exit_code == 3
    [problem] = json.loads(result.stdout)["problems"]
    assert problem["kind"] == "missing"
    assert problem["versions"][0].startswith("birds@")
    assert "missing" in run("verify", "birds").stdout
    assert run("verify", "fish").exit_code == 7
    assert run("gc").exit_code == 3


def test_repair_fetches_from_a_mirror_or_gives_up(versions: Path, run: Run, answer: Answer, folder: Path):
    """Only --drop makes a version without what is lost; 3 says that something still is."""
    shutil.copytree(versions, folder / "mirror")
    lost = part_of(versions)
    lost.unlink()

    assert run("repair", "birds").exit_code == 3
    told = run("repair", "birds", "--from", "./mirror")
    assert told.exit_code == 0
    assert not lost.exists()
    assert len(answer("repair", "birds", "--from", "./mirror", "--yes")["fetched"]) == 1
    assert answer("verify", "--level", "full")["ok"]

    lost.unlink()
    dropped = answer("repair", "birds", "--drop", "--yes")
    assert dropped["rows_lost"] > 0
    assert dropped["entry"]["operation"] == "repair"
    assert run("head", "birds").exit_code == 0
