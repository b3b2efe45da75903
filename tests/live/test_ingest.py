"""Files appended to a dataset as they arrive: exactly once, whatever fails on the way."""

from __future__ import annotations

import logging
import threading
from functools import partial
from pathlib import Path

import pytest

import lake
from lake import live
from lake.errors import StoreError
from lake.live import policy, to_dataset
from lake.live.batch import Batch
from tests.live.watching import until, watched

pytestmark = pytest.mark.usefixtures("_impatient")


@pytest.fixture
def lk(tmp_path: Path) -> lake.Lake:
    return lake.open(tmp_path / "l")


def keys(lk: lake.Lake) -> list[str]:
    try:
        return sorted(lk.dataset("cam").scan(columns=["key"]).to_table().column("key").to_pylist())
    except lake.NotFoundError:
        return []


watching = partial(watched, call=live.ingest)


def test_rows_are_those_of_a_committed_folder(folder, lk, tmp_path):
    """Keys, fields, bytes, nulls; a field that comes later is a new column."""
    (folder / "d ü").mkdir()
    (folder / "d ü" / "x.jpg").write_bytes(b"1")
    (folder / "d ü" / "x.json").write_bytes(b"{}")
    (folder / "y").write_bytes(b"")
    with watching(folder, lk, "cam"):
        until(lambda: len(keys(lk)) == 2)
        (folder / "z.wav").write_bytes(b"3")
        until(lambda: len(keys(lk)) == 3)
    lk.commit("folder", folder)
    live_rows = lk.dataset("cam").scan().to_table().to_pylist()
    rows = lk.dataset("folder").scan().to_table().to_pylist()
    assert sorted(live_rows, key=lambda row: row["key"]) == rows
    assert lk.dataset("cam").key == "key"
    assert [entry.operation for entry in lk.log("cam")] == ["append", "append"]


def test_a_commit_whose_reply_was_lost_is_found_not_repeated(folder, lk, monkeypatch):
    """It lands, the watcher does not hear of it, and the same batch comes again."""
    commits = []
    real = lake.Lake.commit

    def commit(self, *arguments, **more):
        made = real(self, *arguments, **more)
        commits.append(more["txn"])
        if len(commits) < 3:
            raise StoreError("the reply was lost", retryable=True)
        return made

    monkeypatch.setattr(lake.Lake, "commit", commit)
    (folder / "a.jpg").write_bytes(b"1")
    with watching(folder, lk, "cam"):
        until(lambda: len(commits) == 3)
    assert len(set(commits)) == 1
    assert keys(lk) == ["a"]
    assert len(lk.log("cam")) == 1


def test_an_outage_is_waited_out_and_a_misfit_set_aside(folder, lk, monkeypatch, caplog):
    """However long the store does not answer; what can never be committed does not hold up the rest."""
    calls = []
    real = to_dataset.append

    def append(*arguments):
        calls.append(1)
        if len(calls) < 3 * policy.TRIES:
            raise StoreError("no route", retryable=True)
        return real(*arguments)

    monkeypatch.setattr(to_dataset, "append", append)
    monkeypatch.setattr(policy, "_LONGEST_PAUSE", 0.02)
    lk.commit("cam", [("old", {"jpg": 7})])
    (folder / "a.jpg").write_bytes(b"1")
    with caplog.at_level(logging.ERROR, "lake"), watching(folder, lk, "cam") as seen:
        until(lambda: "quarantined" in caplog.text)
        (folder / "b.wav").write_bytes(b"2")
        until(lambda: len(keys(lk)) == 2)
    assert keys(lk) == ["b", "old"]
    assert seen[0] == live.Watched(1, 1, 0, 1)
    assert "SchemaError" in caplog.text
    assert len(calls) > 3 * policy.TRIES


def test_files_are_deleted_when_their_commit_is_durable(folder, lk, monkeypatch):
    """Not before; also those whose deletion a restart makes up for."""
    there = []
    real = to_dataset.append

    def append(lk, dataset, batch: Batch):
        there.append(all((folder / name).exists() for name in batch.names))
        made = real(lk, dataset, batch)
        there.append(all((folder / name).exists() for name in batch.names))
        return made

    monkeypatch.setattr(to_dataset, "append", append)
    (folder / "a.jpg").write_bytes(b"1")
    with watching(folder, lk, "cam"):
        until(lambda: keys(lk) == ["a"])
    (folder / "b.jpg").write_bytes(b"2")
    with watching(folder, lk, "cam", delete=True):
        until(lambda: not list(folder.glob("*.jpg")))
    assert keys(lk) == ["a", "b"]
    assert all(there)


def test_small_shards_are_compacted(folder, lk, monkeypatch):
    """When they pile up; the rows stay, and so does their order."""
    monkeypatch.setattr(to_dataset, "_SMALL", 4)
    with watching(folder, lk, "cam") as seen:
        for n in range(8):
            (folder / f"{n}.jpg").write_bytes(b"%d" % n)
            until(lambda n=n: len(keys(lk)) == n + 1)
    assert [entry.operation for entry in lk.log("cam")].count("compact") == 1
    assert lk.dataset("cam").snapshot.document.shards <= 4
    assert [row["jpg"] for row in lk.dataset("cam").scan().to_table().to_pylist()] == [
        b"%d" % n for n in range(8)
    ]
    assert seen[0].files == 8


def test_bytes_make_a_batch_before_the_time_is_up(folder, lk):
    """And no batch is much larger."""
    for n in range(8):
        (folder / f"{n}.bin").write_bytes(bytes(1000))
    with watching(folder, lk, "cam", every="3kB"):
        until(lambda: len(keys(lk)) >= 6)
    assert [entry.rows_added for entry in lk.log("cam")][-2:] == [3, 3]


def test_a_folder_goes_to_one_dataset(folder, lk):
    """Another one would silently lack what came before."""
    (folder / "a.jpg").write_bytes(b"1")
    with watching(folder, lk, "cam"):
        until(lambda: keys(lk) == ["a"])
    for call in (partial(live.ingest, folder, lk, "other"), partial(live.watch, folder, print)):
        with pytest.raises(lake.ConflictError, match="to begin anew"):
            call(stop=threading.Event())
    with pytest.raises(ValueError, match="name"):
        live.ingest(folder, lk, "../cam")


def test_a_lake_inside_the_folder_is_refused(folder):
    """A lake that lies where files arrive is not taken for data, nor deleted as such."""
    lake.open(folder / "lk").init()
    with pytest.raises(ValueError, match="lies inside the folder"):
        live.ingest(folder, lake.open(folder / "lk"), "cam", delete=True)
    with pytest.raises(ValueError, match="is a lake"):
        live.ingest(folder / "lk", lake.open(folder / "lk"), "cam", delete=True)
    with pytest.raises(ValueError, match="is a lake"):
        live.watch(folder / "lk", print, delete=True)


def test_a_lake_in_a_bucket_is_no_different(folder, s3_url):
    """Files become rows there, and whoever follows the dataset on another machine hears of them."""
    (folder / "a.jpg").write_bytes(b"1")
    with watching(folder, s3_url, "cam"):
        until(lambda: keys(lake.open(s3_url)) == ["a"])
        follow = lake.open(s3_url).dataset("cam").follow(poll=0.1)
        (folder / "b.jpg").write_bytes(b"2")
        heard = next(iter(follow.samples()))
    assert heard == ("b", {"jpg": b"2"})
    assert [entry.rows_added for entry in lake.open(s3_url).log("cam")] == [1, 1]
