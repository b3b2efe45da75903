"""`lake.lock`: where it is found, what it says, and what is said where it decides."""

from __future__ import annotations

import logging
import shutil
import tomllib
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lake
from lake import lock
from lake.format import names
from lake.repo import Lake

ID = "ab" * 32


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory: an experiment of its own, beside the lake."""
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def lk(tmp_path: Path) -> Lake:
    """A lake whose dataset `n` has three versions of one, two and three rows."""
    lk = lake.open(tmp_path / "lake", progress=False)
    for rows in (1, 2, 3):
        lk.commit("n", pa.table({"x": range(rows)}), key=None)
    return lk


def test_a_pinned_version_is_what_a_plain_name_means(project: Path, lk: Lake):
    """Until it is unpinned; an explicit reference always wins, and writes take the head."""
    pinned = lk.pin("n@#2")

    assert (pinned.seq, pinned.rows) == (2, 2)
    assert len(lk.dataset("n")) == 2
    assert len(lk.dataset("n@head")) == len(lk.dataset("n@#3")) == 3
    assert lk.sql("select count(*) from n").fetchall() == [(2,)]
    lk.tag("n", "newest")
    assert len(lk.dataset("n@newest")) == 3
    assert lk.copy("n", "m").rows == 2
    assert lk.delete_rows("n", "x = 0").rows == 2
    assert lk.pin("n").seq == 4
    lk.unpin("n")
    assert len(lk.dataset("n")) == 2
    assert lk.dataset("n").snapshot.entry.seq == 4


def test_the_file_is_sorted_toml_with_quoted_names(project: Path, lk: Lake):
    """Names with dots and slashes too; it merges well and any TOML reader reads it."""
    for name in ("z.9", "a/b", "m"):
        lk.copy("n", name)
        lk.pin(name)

    text = (project / "lake.lock").read_text()

    head = lk.versions("n")[0].id
    assert text.splitlines()[-3:] == [f'"{name}" = "{head}"' for name in ("a/b", "m", "z.9")]
    assert tomllib.loads(text) == {"versions": dict.fromkeys(["a/b", "m", "z.9"], head)}
    assert text.startswith("# ")
    assert sorted(path.name for path in project.iterdir()) == ["lake.lock"]


def test_the_nearest_ancestor_counts(project: Path, lk: Lake, monkeypatch: pytest.MonkeyPatch):
    """A pin from a folder below changes the project's file; without one the working directory gets it."""
    lk.pin("n@#1")
    below = project / "scripts" / "deep"
    below.mkdir(parents=True)
    monkeypatch.chdir(below)

    assert len(lk.dataset("n")) == 1
    lk.pin("n@#2")

    assert lock.path() == project / "lake.lock"
    assert lock.read() == {"n": lk.versions("n")[1].id}
    assert not [*below.iterdir()]


def test_a_lock_from_another_machine_resolves(
    project: Path, s3_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The file and the lake's URL are all that another machine needs, whatever was committed since."""
    here = lake.open(s3_url, cache_dir=tmp_path / "here", progress=False)
    here.commit("n", pa.table({"x": [1]}), key=None)
    here.pin("n")
    here.commit("n", pa.table({"x": [1, 2]}), key=None)
    other = tmp_path / "other"
    other.mkdir()
    shutil.copy(project / "lake.lock", other)
    monkeypatch.chdir(other)

    there = lake.open(s3_url, cache_dir=tmp_path / "there", progress=False)

    assert there.dataset("n").take([0])["x"].to_pylist() == [1]
    assert len(there.dataset("n")) == 1


def test_a_pinned_version_outlives_all_others(project: Path, lk: Lake, tmp_path: Path):
    """Everything else is expired and collected, parts of its own among it; the pin still reads, here and elsewhere."""
    lk.pin("n@#2")

    lk.expire("n", keep=1, dry_run=False)
    report = lk.gc(dry_run=False, force=True, no_writers=True, grace=0)

    assert report.deleted >= 3
    other = lake.open(tmp_path / "lake", cache_dir=tmp_path / "elsewhere", progress=False)
    for each in (lk, other):
        assert each.dataset("n").take([0, 1])["x"].to_pylist() == [0, 1]
        assert len(each.dataset("n@head")) == 3
        assert each.verify("full").ok
        with pytest.raises(lake.VersionExpired):
            each.dataset("n@#1")


def test_a_pin_that_another_project_takes_away_leaves_what_the_log_has(
    project: Path, lk: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """One pin of a version for all: the other `lake.lock` still resolves, until the version is expired; a tag stays."""
    lk.pin("n@#1")
    other = tmp_path / "other"
    shutil.copytree(project, other)
    lk.unpin("n")
    monkeypatch.chdir(other)

    assert len(lk.dataset("n")) == 1
    lk.pin(f"n@{lk.dataset('n').version}")
    lk.expire("n", keep=1, dry_run=False)
    assert len(lk.dataset("n")) == 1


def test_where_the_lock_decides_it_says_so_once(project: Path, lk: Lake, caplog: pytest.LogCaptureFixture):
    """Both versions are named, in the log as a warning, once, and wherever the dataset is printed."""
    lk.pin("n@#2")
    second, head = lk.versions("n")[1], lk.versions("n")[0]

    ds = lk.dataset("n")
    lk.dataset("n")

    [record] = caplog.records
    assert (record.name, record.levelno) == ("lake", logging.WARNING)
    text = f"n: {project / 'lake.lock'} says #2 {second.id[:12]}, the head is #3 {head.id[:12]}"
    assert record.getMessage() == text
    assert repr(ds) == f"<n@#2 {second.id[:12]}, 2 rows; lake.lock, the head is #3 {head.id[:12]}>"
    assert repr(lk.dataset("n@#2")) == f"<n@#2 {second.id[:12]}, 2 rows>"
    caplog.clear()
    lk.pin("n")
    assert repr(lk.dataset("n")) == f"<n@#3 {head.id[:12]}, 3 rows>"
    assert not caplog.records


def test_a_pin_protects_the_version_in_the_store(project: Path, lk: Lake):
    """Moving a pin leaves the older one, which `unpin` of that version lets go; unpinning twice is an error."""
    first, second = lk.pin("n@#1"), lk.pin("n@#2")

    def protected() -> set[str]:
        return {key.key for key in lk.store.list("datasets/n/pins/")}

    assert protected() == {names.pin_key("n", v.id) for v in (first, second)}
    lk.unpin(first)
    assert protected() == {names.pin_key("n", second.id)}
    assert len(lk.dataset("n")) == 2
    lk.unpin("n")
    assert protected() == set()
    assert lock.read() == {}
    with pytest.raises(lake.NotFoundError, match=r"'n' is not in .*lake\.lock"):
        lk.unpin("n")
    with pytest.raises(lake.NotFoundError, match=r"n@.* is not pinned"):
        lk.unpin(first)


def test_unpinning_needs_no_protection_in_the_store(project: Path, lk: Lake):
    """A line written by hand, or protection that another took away, can be taken out all the same."""
    (project / "lake.lock").write_text(f'[versions]\n"n" = "{lk.versions("n")[2].id}"\n')
    assert len(lk.dataset("n")) == 1

    lk.unpin("n")

    assert lock.read() == {}


def test_a_pin_of_what_is_gone_is_an_error(project: Path, lk: Lake):
    """Never the head in its place; the message names the file, for nobody who says `n` asked for that version."""
    (project / "lake.lock").write_text(f'[versions]\n"n" = "{ID}"\n')

    with pytest.raises(lake.NotFoundError, match=r"lake\.lock says n@abab.*: no version .*`lake unpin`"):
        lk.dataset("n")

    first = lk.versions("n")[-1]
    (project / "lake.lock").write_text(f'[versions]\n"n" = "{first.id}"\n')
    lk.expire("n", keep=1, dry_run=False)
    with pytest.raises(lake.VersionExpired, match=r"lake\.lock says n@.* was expired.*`lake unpin`"):
        lk.dataset("n")


@pytest.mark.parametrize(
    "text",
    [
        "[versions",
        '[versions]\n"n" = "abc"',
        "[versions]\nn = 3",
        "versions = 3",
        f'[versions]\n".." = "{ID}"',
    ],
)
def test_a_damaged_file_is_named(project: Path, lk: Lake, text: str):
    """It is never taken for an empty one."""
    (project / "lake.lock").write_text(text)

    with pytest.raises(lake.ConfigError, match=r"lake\.lock: .*`lake pin`") as caught:
        lk.dataset("n")
    assert "object has no" not in str(caught.value)


NAMES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,9}(/[A-Za-z0-9][A-Za-z0-9._-]{0,9})?", fullmatch=True)


@settings(max_examples=30, deadline=None)
@given(pinned=st.dictionaries(NAMES, st.text("0123456789abcdef", min_size=64, max_size=64), max_size=5))
def test_what_is_written_is_read(tmp_path_factory: pytest.TempPathFactory, pinned: dict[str, str]):
    """For all names that datasets may have."""
    valid = {}
    for name, version in pinned.items():
        try:
            valid[names.check_name(name)] = version
        except ValueError:
            continue
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("project"))
        for name, version in valid.items():
            lock.pin(name, version)
        assert lock.read() == valid
        for name, version in valid.items():
            assert lock.unpin(name) == version
        assert lock.read() == {}
