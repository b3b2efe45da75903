"""The journal: what was handed over is known after any crash, and nothing is deleted that was not."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from lake.errors import ConflictError, FormatError
from lake.live.arrivals import File, Sample
from lake.live.journal import HOME, Journal, stamp_of
from lake.live.policy import Every
from lake.live.watcher import How, Watcher
from tests.live.test_kills import FULL, ROOT


class Crash(BaseException):
    """The process ends here."""


def sample(folder: Path, name: str, data: bytes = b"x") -> Sample:
    (folder / name).write_bytes(data)
    stamp = stamp_of(folder / name)
    assert stamp is not None
    return Sample(name.partition(".")[0], (File(name, stamp),), False)


def test_what_was_begun_comes_back_as_it_was(tmp_path):
    """The same files, in order, with the same id; finished batches do not."""
    names = ["b.jpg", "ü a.jpg", "日.json"]
    samples = [sample(tmp_path, name) for name in names]
    with closing(Journal(tmp_path, "t")) as journal:
        first = journal.begin(samples)
        second = journal.begin([sample(tmp_path, "d.log")])
        journal.finish(second, "done")
        ids = journal.batch_id(first.number), journal.batch_id(second.number)
    with closing(Journal(tmp_path, "t")) as journal:
        [again] = journal.unfinished()
        assert again.samples == samples
        assert journal.batch_id(again.number) == ids[0] != ids[1]
        assert journal.known() == {name: stamp_of(tmp_path / name) for name in [*names, "d.log"]}


def test_a_second_watcher_is_refused_by_pid(tmp_path):
    """Until the first one ends, however it does."""
    script = "import sys; from pathlib import Path; from lake.live.journal import Journal\n"
    script += "j = Journal(Path(sys.argv[1]), 't'); print('held', flush=True); input()"
    other = subprocess.Popen(
        [sys.executable, "-c", script, tmp_path],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    with other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        with pytest.raises(ConflictError, match=f"process {other.pid} "):
            Journal(tmp_path, "t")
        other.kill()
        other.wait()
    Journal(tmp_path, "t").close()


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_a_forked_child_does_not_hold_the_folder(tmp_path):
    """Or a worker that outlives its parent would keep everybody away."""
    if not hasattr(os, "fork"):
        pytest.skip("no fork here")
    journal = Journal(tmp_path, "t")
    read, write = os.pipe()
    ready, begun = os.pipe()
    child = os.fork()
    if not child:
        os.write(begun, b"x")
        os.read(read, 1)
        os._exit(0)
    os.read(ready, 1)
    journal.close()
    try:
        Journal(tmp_path, "t").close()
    finally:
        os.write(write, b"x")
        os.waitpid(child, 0)
        for fd in (read, write, ready, begun):
            os.close(fd)


def test_another_target_and_a_newer_journal_are_refused(tmp_path):
    """Nothing that was handed over is silently left out of another dataset."""
    Journal(tmp_path, "one").close()
    with pytest.raises(ConflictError, match=r"went to one so far, not to two: delete .*\.lake-live"):
        Journal(tmp_path, "two")
    journal = Journal(tmp_path, "one")
    journal._db.execute("pragma user_version = 99")
    journal.close()
    with pytest.raises(FormatError, match="format 99"):
        Journal(tmp_path, "one")


def test_only_what_was_handed_over_is_deleted(tmp_path):
    """A file that was overwritten since stays, under its name."""
    same, other = sample(tmp_path, "same.jpg"), sample(tmp_path, "other.jpg")
    with closing(Journal(tmp_path, "t")) as journal:
        journal.finish(journal.begin([same, other]), "done")
        (tmp_path / "other.jpg").write_bytes(b"newer")
        assert journal.delete(tmp_path, [*same.files, *other.files]) == ["other.jpg"]
    assert {path.name for path in tmp_path.iterdir()} == {HOME, "other.jpg"}
    assert (tmp_path / "other.jpg").read_bytes() == b"newer"


def test_a_deletion_cut_short_is_ended_and_loses_nothing(tmp_path):
    """What had been moved away is deleted if it was handed over, else put back."""
    same, other = sample(tmp_path, "same.jpg"), sample(tmp_path, "other.jpg")
    with closing(Journal(tmp_path, "t")) as journal:
        journal.finish(journal.begin([same, other]), "done")
        (tmp_path / "other.jpg").write_bytes(b"newer")
        journal._db.execute("update files set place = 1")
        rows = dict(journal._db.execute("select path, rowid from files"))
        for name, row in rows.items():
            (tmp_path / name).rename(journal.home / f"leaving-{row}")
    with closing(Journal(tmp_path, "t")) as journal:
        assert not list(journal.home.glob("leaving-*"))
    assert not (tmp_path / "same.jpg").exists()
    assert (tmp_path / "other.jpg").read_bytes() == b"newer"


NAMES = ("a.jpg", "a.json", "b.jpg")


@pytest.mark.parametrize("delete", [False, True])
def test_crashes_at_any_step_lose_nothing_and_repeat_only_under_the_same_id(tmp_path, monkeypatch, delete):
    """Two crashes, before or after any change of the journal or hand-over; between them a file is overwritten."""
    monkeypatch.setattr("lake.live.watcher._TICK", 0.001)
    for first in range(100):
        seconds = range(14) if FULL else (first % 14, (first + 5) % 14)
        crashed = [
            two_lives_and_a_long_one(tmp_path / f"{first} {at}", monkeypatch, delete, first, at)
            for at in seconds
        ]
        if not any(crashed):
            break
    assert first >= 6


def two_lives_and_a_long_one(folder: Path, monkeypatch, delete: bool, first: int, second: int) -> bool:
    """Whether the first life ended early. Checks what was handed over in all three."""
    folder.mkdir()
    for name in NAMES:
        sample(folder, name, f"old {name}".encode())
    got: dict[str, dict[str, bytes]] = {}
    crashed = life(folder, monkeypatch, delete, got, first)
    if second % 3:  # else what is there is what was handed over, or is to be
        sample(folder, "a.jpg", b"the newer a.jpg")
    life(folder, monkeypatch, delete, got, second)
    life(folder, monkeypatch, delete, got, -1)
    files = [pair for batch in got.values() for pair in batch.items()]
    newest = [(name, f"old {name}".encode()) for name in NAMES]
    if second % 3:
        newest[0] = ("a.jpg", b"the newer a.jpg")
    assert len(set(files)) == len(files)
    assert set(newest) <= set(files) <= {*newest, ("a.jpg", b"old a.jpg")}
    left = {path.name for path in folder.iterdir()} - {HOME}
    assert left == (set() if delete else set(NAMES))
    return crashed


def life(folder: Path, monkeypatch, delete: bool, got: dict[str, dict[str, bytes]], at: int) -> bool:
    """Watch for some turns, and crash at a step; whether it came to that."""
    steps = iter(range(10**6))

    def step() -> None:
        if next(steps) == at:
            raise Crash

    def hand_over(batch) -> None:
        step()
        files = {name: batch.read(name) for name in batch.names}
        got.setdefault(batch.id, files)  # as a txn does it: what came first under an id stays
        step()

    how = How(Every(0.0), 0.0, delete, single=False, passing=lambda error: False)
    turns = iter([False] * 8)
    with monkeypatch.context() as patch:
        for name in ("begin", "drop", "finish", "delete"):
            patch.setattr(Journal, name, stepping(getattr(Journal, name), step))
        patch.setattr("lake.live.journal.stamp_of", stepping(stamp_of, step))
        try:
            with closing(Journal(folder, "t")) as journal:
                Watcher(folder, journal, hand_over, how).run(lambda: next(turns, True))
        except Crash:
            return True
    return False


def stepping(method, step):
    """The method, with a place to crash before and after it."""

    def call(*arguments, **more):
        step()
        found = method(*arguments, **more)
        step()
        return found

    return call
