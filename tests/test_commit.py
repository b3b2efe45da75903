"""Commits: what is written, what is not, what a rival, a crash or a lost reply leaves behind."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import lake
from lake.repo import Lake
from lake.stores import LocalStore, Store
from lake.stores.wrappers import CountingStore, FaultStore, _Around

FULL = bool(os.environ.get("LAKE_TEST_FULL"))
WRITES = ("put_new", "put", "publish", "copy", "delete")


def table(rows: int, start: int = 0, width: int = 4) -> pa.Table:
    """Rows with a key, a vector and a label, the same for the same numbers."""
    numbers = np.arange(start, start + rows)
    vectors = np.random.default_rng(7).standard_normal((start + rows, width)).astype(np.float32)[start:]
    return pa.table(
        {
            "key": [f"row-{n:07d}" for n in numbers],
            "x": pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), width),
            "label": pa.array(numbers % 3),
        }
    )


def open_on(store: Store) -> Lake:
    """A lake on this store object, with the settings of a lake on its URL."""
    opened = lake.open(store.url)
    return Lake(store, opened.settings, progress=False)


def read(lk: Lake, name: str) -> pa.Table:
    """All rows of the head."""
    dataset = lk.dataset(name)
    return dataset.take(range(len(dataset)))


def test_a_commit_reads_back_equal(store: Store) -> None:
    """What was committed is what is read, in order, on a folder and on S3."""
    lk = open_on(store)

    made = lk.commit("birds", table(1000), shard_bytes="16KiB")

    assert made.rows == len(lk.dataset("birds")) == 1000
    assert made.shards > 1
    expected = table(1000).cast(lk.dataset("birds").schema)
    assert read(lk, "birds").equals(expected)


def test_committing_the_same_data_again_writes_nothing(store: Store) -> None:
    """The second commit returns the first version and writes nothing (the store refuses the probe's one create)."""
    first = open_on(store).commit("birds", table(500))
    counting = CountingStore(store)

    again = open_on(counting).commit("birds", table(500))

    assert again.id == first.id
    assert again.seq == 1
    written = [(verb, key) for verb, key in counting.calls if verb in WRITES]
    assert [call for call in written if call != ("put_new", "lake.json")] == []


def test_another_name_process_and_lake_give_the_same_version_id(tmp_path: Path) -> None:
    """A version id depends on the data alone; the parts are stored once under both names."""
    lk = lake.open(tmp_path / "here")
    first = lk.commit("birds", table(200))
    other_name = lk.commit("copies/of-birds", table(200))
    program = (
        "import sys, lake; sys.path.insert(0, sys.argv[2]); from test_commit import table; "
        "print(lake.open(sys.argv[1]).commit('x', table(200)).id)"
    )

    elsewhere = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "there"), str(Path(__file__).parent)],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()

    assert first.id == other_name.id == elsewhere
    assert other_name.bytes_new == 0
    assert other_name.bytes_reused == first.bytes_new


def test_an_append_adds_rows_after_those_there(store: Store) -> None:
    """Appends keep order, write only their own parts, and cost the same number of requests at any length."""
    counting = CountingStore(store)
    lk = open_on(counting)
    lk.commit("birds", table(100))
    costs = []
    for start in range(100, 900, 100):
        counting.reset()
        made = lk.commit("birds", table(100, start), mode="append")
        costs.append(sum(counting.counts.values()))
        assert made.bytes_reused == 0

    assert read(lk, "birds").equals(table(900).cast(lk.dataset("birds").schema))
    assert len(set(costs[1:])) == 1, costs


def test_an_overwrite_of_a_moved_head_conflicts(tmp_path: Path) -> None:
    """By default an overwrite lands on the head it saw; expect=None takes whatever is there."""
    lk = lake.open(tmp_path)
    first = lk.commit("birds", table(10))
    rival = lake.open(tmp_path)

    def rows() -> Any:
        yield "a", {"x": 1}
        rival.commit("birds", table(20))

    with pytest.raises(lake.ConflictError, match=r"#2 by .*overwrite"):
        lk.commit("birds", rows())
    assert lk.dataset("birds").snapshot.entry.seq == 2
    with pytest.raises(lake.ConflictError, match="expected"):
        lk.commit("birds", table(5), expect=first)
    assert lk.commit("birds", rows(), expect=None).seq == 3


class _Overtaken(_Around):
    """A store on which, once, somebody is faster: `first` runs just before a log entry is created."""

    first: Callable[[], object] | None = None

    def put_new(self, key: str, data: bytes) -> bool:
        if self.first is not None and "/log/" in key:
            first, self.first = self.first, None
            first()
        return self.store.put_new(key, data)


def test_who_is_overtaken_under_the_same_txn_has_the_first_version(store: Store) -> None:
    """Two processes with one transaction and other data: both have what landed, and only that was committed."""
    ahead, slow = open_on(store), _Overtaken(store)
    landed = []
    slow.first = lambda: landed.append(ahead.commit("birds", table(10), mode="append", txn="night"))

    behind = open_on(slow).commit("birds", table(7), mode="append", txn="night")

    assert [behind.id] == [version.id for version in landed]
    assert behind.rows == 10
    assert len(ahead.log("birds")) == 1


def test_a_txn_makes_a_commit_idempotent(store: Store) -> None:
    """The same txn again returns the first version, whatever the data; it always leaves an entry."""
    lk = open_on(store)
    lk.commit("birds", table(10))
    first = lk.commit("birds", table(5, 10), mode="append", txn="night-1")

    assert lk.commit("birds", table(9, 50), mode="append", txn="night-1") == first
    assert [entry.seq for entry in lk.log("birds")] == [2, 1]
    with pytest.raises(ValueError, match="mode="):
        lk.commit("birds", table(5), txn="night-2")
    same = lk.commit("birds", read(lk, "birds"), mode="overwrite", txn="night-3")
    lk.commit("birds", read(lk, "birds"), mode="overwrite", txn="night-4")
    operations = [entry.operation for entry in lk.log("birds")]
    assert same.rows == 15
    assert operations[0] == "same"


def test_names_that_differ_by_case_collide(store: Store) -> None:
    """Two datasets whose names differ only by case cannot both exist."""
    lk = open_on(store)
    lk.commit("Birds", table(3))

    with pytest.raises(ValueError, match="'Birds' by case"):
        lk.commit("birds", table(3))
    assert lk.datasets() == ["Birds"]


def test_a_fault_at_any_call_leaves_the_old_head_or_the_new_one(tmp_path: Path) -> None:
    """Whatever call fails, and however: the head reads back whole, and repeating the commit succeeds."""

    def prepare(path: Path) -> None:
        lake.open(path).commit("birds", table(300), shard_bytes="16KiB")

    prepare(tmp_path / "dry")
    counting = FaultStore(LocalStore(tmp_path / "dry"))
    open_on(counting).commit("birds", table(450, 150), shard_bytes="16KiB")
    calls = len(counting.calls)
    assert calls > 15

    for fault in ("raise", "lost", "503", "dead"):
        for index in range(0, calls, 1 if FULL else 3):
            root = tmp_path / f"{fault}-{index}"
            prepare(root)
            faulty = open_on(FaultStore(LocalStore(root), {index: fault}))  # type: ignore[dict-item]
            with contextlib.suppress(lake.LakeError):
                faulty.commit("birds", table(450, 150), shard_bytes="16KiB")
            now = lake.open(root)
            whole = read(now, "birds")
            assert whole.num_rows in (300, 450), (fault, index)
            assert whole.equals(
                table(*((300, 0) if whole.num_rows == 300 else (450, 150))).cast(whole.schema)
            )
            now.commit("birds", table(450, 150), shard_bytes="16KiB")
            assert read(now, "birds").equals(table(450, 150).cast(whole.schema)), (fault, index)


def test_a_lost_reply_to_the_log_entry_is_success(store: Store) -> None:
    """The store made the entry and dropped the reply: the commit finds it, and there is one entry."""
    seen = FaultStore(store)
    open_on(seen).commit("birds", table(10))
    place = next(i for i, (verb, key) in enumerate(seen.calls) if verb == "put_new" and "/log/" in key)
    faulty = open_on(FaultStore(store, {place: "lost"}))

    made = faulty.commit("fish", table(10))

    assert made.seq == 1
    assert len(faulty.log("fish")) == 1


def _append(url: str, worker: int, commits: int) -> None:
    lk = lake.open(url)
    for number in range(commits):
        lk.commit("shared", [(f"{worker}-{number}", {"x": worker})], mode="append")


def _race(url: str, workers: int, commits: int) -> None:
    lk = lake.open(url)
    lk.commit("shared", [("first", {"x": -1})])
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_append, args=(url, worker, commits)) for worker in range(workers)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * workers
    log = lk.log("shared")
    assert [entry.seq for entry in log] == list(range(workers * commits + 1, 0, -1))
    keys = read(lk, "shared")["key"].to_pylist()
    assert sorted(keys) == sorted(["first", *(f"{w}-{n}" for w in range(workers) for n in range(commits))])


def test_processes_that_append_at_once_lose_and_repeat_nothing(tmp_path: Path) -> None:
    """Each of several processes' commits is in the log once, without a gap, and every row is there once."""
    _race(str(tmp_path), *((16, 25) if FULL else (4, 6)))


def test_processes_that_append_to_a_bucket_at_once_lose_and_repeat_nothing(s3_url: str) -> None:
    """The same, on S3."""
    _race(s3_url, *((16, 25) if FULL else (3, 5)))


@pytest.mark.parametrize("change", ["edit", "insert", "delete"])
def test_changing_one_row_uploads_at_most_two_shards(tmp_path: Path, change: str) -> None:
    """Cuts follow the content: an edit in the middle changes the shard it falls in and rarely the next ones."""
    rows, width, size, trials = (1_000_000, 64, "6MiB", 100) if FULL else (20_000, 16, "64KiB", 12)
    lk = lake.open(tmp_path, progress=False)
    whole = table(rows, width=width).append_column("text", pa.array([f"text {n % 977}" for n in range(rows)]))
    whole = whole.cast(lk_schema(lk.commit("birds", whole, shard_bytes=size), lk))
    known = parts_of(lk, "birds")
    assert lk.dataset("birds").snapshot.document.shards >= 40 if FULL else 20
    spare = whole.set_column(0, whole.schema.field(0), pc.utf8_upper(whole["key"]))
    rng = np.random.default_rng(3)
    good = 0
    for _ in range(trials):
        at = int(rng.integers(rows // 10, rows))
        extra = whole[:0] if change == "delete" else spare[at : at + 1]
        changed = pa.concat_tables([whole[:at], extra, whole[at + (change != "insert") :]])
        lk.commit("birds", changed, shard_bytes=size)
        good += len(parts_of(lk, "birds") - known) <= 2
    assert good >= trials * 0.99 if FULL else good >= trials - 1


def lk_schema(version: lake.Version, lk: Lake) -> pa.Schema:
    """The schema in which a version's rows are read."""
    return lk.dataset(version).schema


def parts_of(lk: Lake, name: str) -> set[str]:
    """Digests of the parts of the head."""
    manifest = lk.dataset(name).snapshot.manifest
    return {digest for shard in range(len(manifest)) for digest in manifest.digests(shard)}


BAD: dict[str, tuple[Callable[[Path], Any], type[Exception], str]] = {
    "a sample without a field": (
        lambda _: [("a", {"x": 1, "y": 2}), ("b", {"x": 1})],
        lake.SchemaError,
        "'b'.*'y'|'y'.*'b'",
    ),
    "a wrong type, late": (
        lambda _: ((str(n), {"x": n if n != 30_000 else "thirty"}) for n in range(40_000)),
        lake.SchemaError,
        "'30000'",
    ),
    "nothing": (lambda _: [], ValueError, "no rows|empty|nothing"),
    "an empty table": (lambda _: table(5)[:0], ValueError, "no rows"),
    "an empty folder": (lambda path: (path / "empty").mkdir() or path / "empty", ValueError, "empty"),
    "a missing folder": (lambda path: path / "absent", lake.NotFoundError, "absent"),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_input_raises_one_clear_error_and_moves_no_head(tmp_path: Path, what: str) -> None:
    """The error names the culprit, and the head is where it was."""
    make, kind, message = BAD[what]
    lk = lake.open(tmp_path / "lake")
    lk.commit("birds", table(5))

    with pytest.raises(kind, match=message):
        lk.commit("birds", make(tmp_path))
    assert [entry.seq for entry in lk.log("birds")] == [1]


@pytest.mark.parametrize("name", ["..", "a/../b", "con", "x.lock", "", "a b", "é", "a" * 81, "log"])
def test_names_that_no_dataset_may_have_are_refused(tmp_path: Path, name: str) -> None:
    """Before anything is stored."""
    with pytest.raises(ValueError, match="dataset name"):
        lake.open(tmp_path / "lake").commit(name, table(5))
    assert not (tmp_path / "lake").exists()


def test_every_shard_is_named_by_the_sha256_of_its_bytes(tmp_path: Path) -> None:
    """`sha256sum` of each shard equals its name."""
    import hashlib

    lake.open(tmp_path).commit("birds", table(3000), shard_bytes="16KiB")

    shards = sorted((tmp_path / "shards").glob("*/*.arrow"))
    assert len(shards) > 3
    for shard in shards:
        assert hashlib.sha256(shard.read_bytes()).hexdigest() == shard.stem


def test_expect_takes_a_version_a_dataset_or_a_whole_id_and_nothing_else(tmp_path: Path) -> None:
    """What cannot be compared with the head is refused; it never switches the comparison off."""
    lk = lake.open(tmp_path)
    first = lk.commit("birds", table(5))
    lk.commit("birds", table(6))

    for stale in (first, lk.dataset("birds@#1"), first.id):
        with pytest.raises(lake.ConflictError):
            lk.commit("birds", table(7), expect=stale)
    for wrong in (5, True, b"x", []):
        with pytest.raises(TypeError, match="expect"):
            lk.commit("birds", table(7), expect=wrong)  # type: ignore[arg-type]
    for wrong in (first.id[:8], "#1", ""):
        with pytest.raises(ValueError, match="whole version id"):
            lk.commit("birds", table(7), expect=wrong)
    assert lk.commit("birds", table(7), expect=lk.dataset("birds")).seq == 3


def test_a_transaction_has_a_name(tmp_path: Path) -> None:
    """An empty txn would make two commits one, or none; anything but text is no name."""
    lk = lake.open(tmp_path)
    with pytest.raises(ValueError, match="txn"):
        lk.commit("birds", table(5), mode="append", txn="")
    for wrong in ({"txn": 5, "mode": "append"}, {"message": 5}):
        with pytest.raises(TypeError, match="is a text"):
            lk.commit("birds", table(5), **wrong)
    with pytest.raises(ValueError, match="meta is kept as JSON"):
        lk.commit("birds", table(5), meta={"a": float("nan")})


def test_a_commit_that_changes_nothing_says_that_nothing_was_written(tmp_path: Path) -> None:
    """Its version is the head's; the bytes are those found in place."""
    lk = lake.open(tmp_path)
    first = lk.commit("birds", table(500))

    again = lk.commit("birds", table(500), message="the same")

    assert (again.id, again.seq, again.bytes_new, again.bytes_reused) == (first.id, 1, 0, first.bytes)


def test_a_column_that_changes_its_type_is_pointed_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One bad cell of a CSV can turn numbers into text: an overwrite says so."""
    lk = lake.open(tmp_path)
    lk.commit("birds", pa.table({"key": ["a"], "x": [1]}))

    lk.commit("birds", pa.table({"key": ["a"], "x": ["one"]}))

    assert "column 'x' was int64 and is large_string now" in caplog.text
