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
from tests.live.test_kills import ROOT


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


def test_a_forked_child_does_not_hold_the_folder(tmp_path):
    """Or a worker that outlives its parent would keep everybody away."""
    if not hasattr(os, "fork"):
        pytest.skip("no fork here")
    journal = Journal(tmp_path, "t")
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.read(read, 1)
        os._exit(0)
    journal.close()
    try:
        Journal(tmp_path, "t").close()
    finally:
        os.write(write, b"x")
        os.waitpid(child, 0)
        os.close(read)
        os.close(write)


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


@pytest.mark.parametrize("delete", [False, True])
def test_a_crash_at_any_step_loses_nothing_and_repeats_only_under_the_same_id(tmp_path, monkeypatch, delete):
    """Before or after every change of the journal and every hand-over, until there is no step left to crash at."""
    monkeypatch.setattr("lake.live.watcher._TICK", 0.001)
    how = How(Every(0.0), 0.0, delete, single=False, passing=lambda error: False)
    crashes = 0
    for at in range(1000):
        folder = tmp_path / f"{at}"
        folder.mkdir()
        for name in ("a.jpg", "a.json", "b.jpg"):
            sample(folder, name, f"{at}{name}".encode())
        got: dict[str, dict[str, bytes]] = {}
        steps = iter(range(10**6))

        def step(steps=steps, at=at) -> None:
            if next(steps) == at:
                raise Crash

        def hand_over(batch, got=got, step=step) -> None:
            step()
            files = {name: batch.read(name) for name in batch.names}
            assert got.setdefault(batch.id, files) == files
            step()

        def life(folder=folder, step=step, hand_over=hand_over, late=False) -> None:
            with monkeypatch.context() as patch:
                for name in ("begin", "drop", "finish", "delete"):
                    patch.setattr(Journal, name, stepping(getattr(Journal, name), step))
                with closing(Journal(folder, "t")) as journal:
                    rounds = iter([False] * 6)
                    Watcher(folder, journal, hand_over, how).run(lambda: next(rounds, True))

        try:
            life()
            crashed = False
        except Crash:
            crashed = True
        crashes += crashed
        life()
        life()
        files = [pair for batch in got.values() for pair in batch.items()]
        assert sorted(files) == [(name, f"{at}{name}".encode()) for name in ("a.jpg", "a.json", "b.jpg")]
        left = {path.name for path in folder.iterdir()} - {HOME}
        assert left == (set() if delete else {"a.jpg", "a.json", "b.jpg"})
        if not crashed:
            break
    assert crashes >= 6


def stepping(method, step):
    """The method, with a place to crash before and after it."""

    def call(*arguments, **more):
        step()
        found = method(*arguments, **more)
        step()
        return found

    return call
