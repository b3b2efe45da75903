"""Files handed to a function: each once, when it is whole, whatever the function does."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress

import pytest

import lake
from lake import live
from lake.live import notices, policy
from tests.live.test_kills import ROOT
from tests.live.watching import SOON, Got, for_a_while, until, watched

pytestmark = pytest.mark.usefixtures("_impatient")


def test_each_file_is_handed_over_once_across_restarts(folder):
    """Those that were there, those that come, in folders that come; hidden and unfinished ones only when renamed."""
    got = Got()
    (folder / "before.jpg").write_bytes(b"0")
    with watched(folder, got) as seen:
        until(lambda: got.names == ["before.jpg"])
        (folder / "dày 1").mkdir()
        (folder / "dày 1" / "x y.jpg").write_bytes(b"1")
        (folder / ".hidden.jpg").write_bytes(b"2")
        (folder / "c.jpg.part").write_bytes(b"3")
        until(lambda: len(got.names) == 2)
        for_a_while()
        (folder / "c.jpg.part").rename(folder / "c.jpg")
        until(lambda: len(got.names) == 3)
    assert seen[0] == live.Watched(3, 3)
    (folder / "while nobody looked.log").write_bytes(b"4")
    with watched(folder, got):
        until(lambda: len(got.names) == 4)
        for_a_while()
    assert got.names == ["before.jpg", "c.jpg", "dày 1/x y.jpg", "while nobody looked.log"]
    assert len({batch for batch, _ in got}) == 4


def test_a_slow_writer_is_waited_for(folder):
    """A file that is open for writing has not arrived, however long nothing is written; nor after a restart."""
    got = Got()
    with (folder / "slow.jpg").open("wb") as file:
        file.write(b"half")
        file.flush()
        for _ in range(2):
            with watched(folder, got):
                for_a_while()
            if sys.platform == "linux":
                assert got == []
        file.write(b"whole")
    with watched(folder, got):
        until(lambda: got)
    assert got[-1][1] == {"slow.jpg": b"halfwhole"}


def test_late_and_overwritten_files_are_rows_of_their_own_and_reported(folder, caplog):
    """`late` names them, so does the log; what was handed over stays what it was."""
    late: list[tuple[str, ...]] = []
    got = Got()

    def take(batch: live.Batch) -> None:
        got(batch)
        late.append(batch.late)

    with caplog.at_level(logging.WARNING, "lake"), watched(folder, take) as seen:
        (folder / "a.wav").write_bytes(b"1")
        (folder / "a.json").write_bytes(b"2")
        until(lambda: len(got.names) == 2)
        (folder / "a.txt").write_bytes(b"3")
        until(lambda: len(got.names) == 3)
        (folder / "a.wav").write_bytes(b"changed")
        until(lambda: len(got.names) == 4)
    assert late == [(), ("a.txt",), ("a.wav",)]
    assert got[-1][1] == {"a.wav": b"changed"}
    assert seen[0].late == 2
    assert "a.txt" in caplog.text


def test_a_failing_batch_is_tried_again_then_quarantined_then_released(folder, caplog):
    """Under one id; others are not held up for good; its files stay, and `release` gives them another chance."""
    calls: list[str] = []
    got = Got()

    def fail(batch: live.Batch) -> None:
        if "bad.jpg" in batch.names:
            calls.append(batch.id)
            raise RuntimeError("no such camera")
        got(batch)

    (folder / "bad.jpg").write_bytes(b"?")
    with caplog.at_level(logging.ERROR, "lake"), watched(folder, fail) as seen:
        until(lambda: len(calls) == policy.TRIES)
        (folder / "good.jpg").write_bytes(b"!")
        until(lambda: got.names == ["good.jpg"])
    assert seen[0] == live.Watched(1, 1, 0, 1)
    assert len(set(calls)) == 1
    assert "quarantined after 5 failures" in caplog.text
    assert "no such camera" in caplog.text
    assert (folder / "bad.jpg").exists()
    with watched(folder, got):
        for_a_while()
    assert got.names == ["good.jpg"]
    assert live.release(folder) == 1
    with watched(folder, got):
        until(lambda: got.names == ["bad.jpg", "good.jpg"])
    assert got[-1][0] == calls[0]


def test_a_file_that_changes_while_it_is_read_comes_whole_later(folder):
    """The batch goes on without it, under the same id."""
    got = Got()
    first: list[str] = []

    def take(batch: live.Batch) -> None:
        if not first:
            first.append(batch.id)
            (folder / "a.jpg").write_bytes(b"changed")
        got(batch)

    (folder / "a.jpg").write_bytes(b"1")
    (folder / "b.jpg").write_bytes(b"2")
    with watched(folder, take):
        until(lambda: len(got.names) == 2)
    assert got[0] == (first[0], {"b.jpg": b"2"})
    assert got[1][1] == {"a.jpg": b"changed"}


def test_what_was_handed_over_is_deleted_and_kept_as_a_zip(folder, tmp_path):
    """Only then; and the zip is a batch again."""
    got = Got()
    (folder / "a b.jpg").write_bytes(b"\xff\xd8\xff1")
    (folder / "a b.json").write_bytes(b'{"x": 1}')
    with watched(folder, got, delete=True, archive=tmp_path / "kept"):
        until(lambda: {path.name for path in folder.iterdir()} == {".lake-live"})
    [(batch, files)] = got
    kept = live.Batch.open(tmp_path / "kept" / f"{batch}.zip")
    assert kept.id == batch
    assert {name: kept.read(name) for name in kept.names} == files
    assert [key for key, _ in kept.samples()] == ["a b"]
    assert [record.value for record in kept.json()] == [{"x": 1}]
    assert len(list((tmp_path / "kept").iterdir())) == 1


def test_files_come_one_by_one_as_soon_as_they_are_whole(folder):
    """Closed or renamed, with their kind; not while they are open; again when they change."""
    got: list[tuple[str, str, bytes]] = []
    with watched(folder, on_file=lambda file: got.append((file.name, file.kind, file.read())), settle=5):
        time.sleep(0.3)
        with (folder / "a.txt").open("wb") as file:
            file.write(b"half")
            file.flush()
            time.sleep(0.3)
            assert got == []
            file.write(b"whole")
        until(lambda: got == [("a.txt", "text", b"halfwhole")])
        (folder / "b.part").write_bytes(b"\x89PNG\r\n\x1a\n")
        (folder / "b.part").rename(folder / "b")
        until(lambda: len(got) == 2)
        (folder / "a.txt").write_bytes(b"other")
        until(lambda: len(got) == 3)
    assert got[1:] == [("b", "image", b"\x89PNG\r\n\x1a\n"), ("a.txt", "text", b"other")]
    with watched(folder, on_file=lambda file: got.append((file.name, file.kind, file.read()))):
        for_a_while()
    assert len(got) == 3


def test_a_file_whose_function_fails_is_tried_again_and_holds_up_no_other(folder):
    """Also when it is the only thing that ever fails."""
    calls: list[str] = []

    def take(file: live.Arrived) -> None:
        calls.append(file.name)
        if file.name == "bad.txt" and calls.count("bad.txt") < 3:
            raise RuntimeError("not yet")

    with watched(folder, on_file=take) as seen:
        time.sleep(0.2)
        (folder / "bad.txt").write_bytes(b"1")
        (folder / "good.txt").write_bytes(b"2")
        until(lambda: calls.count("bad.txt") == 3)
    assert calls.count("good.txt") == 1
    assert seen[0] == live.Watched(2, 2)


@pytest.mark.parametrize("single", [False, True])
def test_without_notifications_listing_is_enough(folder, monkeypatch, single):
    """Where there is no watchdog, or the file system tells nothing."""
    monkeypatch.setattr(notices, "_observed", lambda root, put: None)
    got = Got()
    how = {"on_file": lambda file: got(file.batch)} if single else {"on_batch": got}
    with watched(folder, **how):
        (folder / "a").mkdir()
        (folder / "a" / "x.jpg").write_bytes(b"1")
        until(lambda: got.names == ["a/x.jpg"])
    assert len(got) == 1


def test_a_link_to_a_folder_is_that_folder(folder, tmp_path, caplog):
    """The system's notifications too; and its journal is the same."""
    link = tmp_path / "link"
    try:
        link.symlink_to(folder, target_is_directory=True)
    except OSError:
        pytest.skip("no links here")
    got: list[str] = []
    names = (f"{n}.txt" for n in range(10_000))

    def told() -> list[str]:
        """What came, after one more file did: those before the first notification are only listed."""
        (folder / next(names)).write_bytes(b"1")
        return got

    with watched(link, on_file=lambda file: got.append(file.name), settle=1000):
        until(told)
    assert "cannot be watched" not in caplog.text
    with watched(folder, on_file=lambda file: got.append(file.name)):
        until(lambda: len(got) == len(list(folder.glob("*.txt"))))
    assert len(set(got)) == len(got)


def test_names_that_make_no_sample_are_reported_and_left(folder, caplog):
    """A name that is not UTF-8, and the field `key`, which holds the samples' keys."""
    got = Got()
    with suppress(OSError, UnicodeError):
        (folder / os.fsdecode(b"\xff.jpg")).write_bytes(b"1")
    (folder / "server.key").write_bytes(b"2")
    (folder / "a.jpg").write_bytes(b"3")
    with caplog.at_level(logging.WARNING, "lake"), watched(folder, got):
        until(lambda: got.names)
    assert got.names == ["a.jpg"]
    assert "server.key" in caplog.text
    assert caplog.text.count("left alone") <= 2


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_finishes_the_batch_in_hand(folder, tmp_path, how):
    """And ends the call, not the process."""
    if sys.platform == "win32":
        pytest.skip("no such signals here")
    script = """
import sys, time; from lake import live
def take(batch):
    print("begun", flush=True); time.sleep(1); print("ended", batch.names, flush=True)
print(live.watch(sys.argv[1], take, every=0.05, settle=0.1), flush=True)
"""
    (folder / "a.jpg").write_bytes(b"1")
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    call = [sys.executable, "-c", script, folder]
    with subprocess.Popen(call, env=environment, stdout=subprocess.PIPE, text=True) as watcher:
        assert watcher.stdout is not None
        assert watcher.stdout.readline() == "begun\n"
        (folder / "b.jpg").write_bytes(b"2")
        watcher.send_signal(how)
        rest = watcher.stdout.read()
        assert watcher.wait(timeout=60) == 0
    assert rest == "ended ('a.jpg',)\nWatched(batches=1, files=1, late=0, quarantined=0)\n"


def test_what_cannot_be_meant_is_refused(folder, tmp_path):
    """In words, before anything is watched."""
    with pytest.raises(ValueError, match="one of them"):
        live.watch(folder)
    with pytest.raises(ValueError, match="one of them"):
        live.watch(folder, print, on_file=print)
    with pytest.raises(ValueError, match="one of them"):
        live.watch(folder, on_file=print, archive=tmp_path)
    with pytest.raises(ValueError, match="inside the folder"):
        live.watch(folder, print, archive=folder / "kept")
    (tmp_path / "a.zip").write_bytes(b"")
    with pytest.raises(ValueError, match="is a file"):
        live.watch(folder, print, archive=tmp_path / "a.zip")
    with pytest.raises(TypeError, match=r"watch\(on_batch=\)"):
        live.watch(folder, 5)
    with pytest.raises(TypeError, match=r"watch\(on_file=\)"):
        live.watch(folder, on_file="x")
    with pytest.raises(ValueError, match="has no name"):
        live.watch("", print)
    with pytest.raises(ValueError, match="every="):
        live.watch(folder, print, every="often")
    with pytest.raises(lake.NotFoundError, match="no folder"):
        live.watch(tmp_path / "none", print)
    assert not (folder / ".lake-live").exists()


def test_a_second_watcher_is_refused(folder):
    """By the pid of the first."""
    with watched(folder, Got()):
        until(lambda: (folder / ".lake-live" / "journal.sqlite").exists())
        with pytest.raises(lake.ConflictError, match=str(os.getpid())):
            live.watch(folder, print, stop=threading.Event(), **SOON)
