"""Lakes of every release are read for ever, and go on."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import lake
from lake.errors import NotFoundError
from tests.formats.make import HOME, shown

RELEASES = sorted(path.parent.name for path in HOME.glob("*/expected.json"))


@pytest.fixture(params=RELEASES)
def release(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy of what the release kept."""
    shutil.copytree(HOME / request.param, tmp_path / "kept")
    return tmp_path / "kept"


def opened(release: Path) -> lake.Lake:
    return lake.open(release / "lake", cache_dir=release / "cache", progress=False)


def test_this_release_keeps_a_lake() -> None:
    """`python -m tests.formats.make` has been run."""
    assert lake.__version__ in RELEASES


def test_every_version_reads_back(release: Path) -> None:
    """By number, tag, head and copy; the removed one is gone; nothing is damaged; SQL answers."""
    lk = opened(release)

    for name, rows in json.loads((release / "expected.json").read_text("utf-8")).items():
        assert shown(lk.dataset(name).scan().to_table()) == rows, name
    with pytest.raises(NotFoundError):
        lk.dataset("gone")
    assert lk.dataset("birds/all@#1").meta == {"made": "for ever"}
    assert lk.verify(level="full").ok
    assert lk.sql("select count(*) from \"birds/all@v1.0\" where class = 'tit'").fetchall() == [(40,)]


def test_it_goes_on(release: Path) -> None:
    """A retry of an old commit finds it, an append adds to what is there, and versions old and new are compared."""
    lk = opened(release)
    head = lk.dataset("birds/all")
    rows = len(head)

    again = lk.commit("birds/all", head.take([0, 1]).drop_columns(["double"]), mode="append", txn="nightly-1")
    more = lk.commit("birds/all", head.take([0, 1]), mode="append")

    assert again.seq == 2
    assert more.rows == rows + 2
    assert len(lk.diff("birds/all@#1", "birds/all").added) > 0
    assert lk.verify(level="full").ok
