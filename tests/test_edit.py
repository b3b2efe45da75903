"""Deleting rows, dropping columns, compacting: what is there afterwards, and how little is written."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as pads
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lake
from lake.stores.wrappers import CountingStore
from tests.changing import FULL, SHARD, Meanwhile, birds, lake_of, over, read, shards, table, written
from tests.test_ingest import MEGABYTES, PROGRAM

CONDITIONS = {
    "x < 50": lambda row: row["x"] is not None and row["x"] < 50,
    "x is null": lambda row: row["x"] is None,
    "label = 'b' or key >= 'k00080'": lambda row: row["label"] == "b" or row["key"] >= "k00080",
    "x between 20 and 70 and label <> 'a'": lambda row: row["x"] in range(20, 71) and row["label"] != "a",
    "true": lambda row: True,
    "x > 1000": lambda row: False,
}


@settings(max_examples=50 if FULL else 12, deadline=None)
@given(
    counts=st.lists(st.integers(0, 60), min_size=1, max_size=3),
    steps=st.lists(st.sampled_from(sorted(CONDITIONS)), min_size=1, max_size=3),
)
def test_deleting_rows_is_filtering_them(counts: list[int], steps: list[str]):
    """Whatever conditions, one after the other: the rows left are those of a list that is filtered, in order."""
    with tempfile.TemporaryDirectory() as folder:
        rows = birds(sum(counts) + 1)
        cuts = [sum(counts[:n]) for n in range(1, len(counts))]
        runs = [rows[a:b] for a, b in zip([0, *cuts], [*cuts, len(rows)], strict=True)]
        lk = lake_of(folder, *[run for run in runs if run])

        for where in steps:
            made = lk.delete_rows("birds", where)
            before, rows = len(rows), [row for row in rows if not CONDITIONS[where](row)]
            assert made.rows == len(rows)
            assert read(lk) == rows
            if before != len(rows):
                assert lk.log("birds")[0].rows_removed == before - len(rows)
        assert sum(shard.rows for shard in shards(lk)) == len(rows)
        assert all(shard.rows for shard in shards(lk))


def test_only_the_shards_hit_are_written(tmp_path: Path):
    """One row of many shards: one shard's parts are new; boundaries stay; a whole shard costs nothing to drop."""
    lk = lake_of(tmp_path, birds(300))
    before = shards(lk)
    counting = CountingStore(lk.store)

    over(lk, counting).delete_rows("birds", "key = 'k00150'")

    after = shards(lk)
    changed = [n for n, (old, new) in enumerate(zip(before, after, strict=True)) if old != new]
    assert len(before) > 8
    assert len(changed) == 1
    assert len(written(counting)) == len(after[changed[0]].parts)
    assert [s.rows for s in after] == [s.rows - (n in changed) for n, s in enumerate(before)]
    counting.reset()
    last = after[-1]
    over(lk, counting).delete_rows("birds", f"key >= '{last.first_key}'")
    assert written(counting) == []
    assert shards(lk) == after[:-1]


def test_a_condition_may_be_an_arrow_expression(tmp_path: Path):
    """The same rows go as by text."""
    lk = lake_of(tmp_path, birds(60))

    lk.delete_rows("birds", pads.field("x") < 40)

    assert read(lk) == [row for row in birds(60) if row["x"] is None or row["x"] >= 40]


def test_deleting_nothing_makes_no_version(tmp_path: Path):
    """The head stays what it is."""
    lk = lake_of(tmp_path, birds(50))

    assert lk.delete_rows("birds", "x < 0").seq == 1
    assert len(lk.log("birds")) == 1


def test_a_dataset_may_lose_all_rows_and_get_new_ones(tmp_path: Path):
    """Without a row it keeps its columns and key, and everything can still be done to it."""
    lk = lake_of(tmp_path, birds(50))
    schema = lk.dataset("birds").schema

    assert lk.delete_rows("birds", "true").rows == 0

    empty = lk.dataset("birds")
    assert (len(empty), empty.schema, empty.key) == (0, schema, "key")
    assert read(lk) == []
    assert lk.delete_rows("birds", "true").rows == lk.compact("birds").rows == 0
    lk.drop_columns("birds", ["x"])
    lk.add_columns("birds", pa.table({"key": pa.array([], pa.string()), "y": pa.array([], pa.int8())}))
    assert lk.dataset("birds").schema.names == ["key", "label", "image", "y"]
    lk.commit("birds", table(birds(30), "key", "label", "image"), mode="append")
    assert [row["key"] for row in read(lk)] == [row["key"] for row in birds(30)]
    assert {row["y"] for row in read(lk)} == {None}


def test_dropping_columns_writes_no_part(tmp_path: Path):
    """Only documents are new; earlier versions keep the columns; the bytes that remain count as reused."""
    lk = lake_of(tmp_path, birds(100), birds(40, 100))
    counting = CountingStore(lk.store)

    made = over(lk, counting).drop_columns("birds", ["x", "image"])

    assert written(counting) == []
    assert made.bytes_new == 0
    assert read(lk) == [{"key": row["key"], "label": row["label"]} for row in birds(140)]
    assert read(lk, "birds@#2") == birds(140)
    assert lk.dataset("birds").schema.names == ["key", "label"]


def test_a_dropped_column_does_not_come_back_by_its_name(tmp_path: Path):
    """A new column of that name is null where nothing was given, though old files hold values of that name."""
    lk = lake_of(tmp_path, birds(60))
    lk.drop_columns("birds", ["x"])

    lk.commit("birds", table(birds(20, 60)), mode="append")

    assert [row["x"] for row in read(lk)] == [None] * 60 + [row["x"] for row in birds(20, 60)]
    lk.compact("birds")
    assert [row["x"] for row in read(lk)] == [None] * 60 + [row["x"] for row in birds(20, 60)]


def test_columns_that_only_new_shards_have_may_be_all_that_is_left(tmp_path: Path):
    """Shards then have rows and no part at all."""
    lk = lake.open(tmp_path, progress=False)
    lk.commit("birds", pa.table({"x": [1, 2, 3]}), key=None)
    lk.commit("birds", pa.table({"x": [4], "y": ["d"]}), mode="append")

    lk.drop_columns("birds", ["x"])

    assert read(lk) == [{"y": None}] * 3 + [{"y": "d"}]
    assert lk.delete_rows("birds", "y = 'd'").rows == 3
    assert lk.compact("birds").rows == 3
    assert read(lk) == [{"y": None}] * 3


@pytest.mark.parametrize(
    ("columns", "kind", "message"),
    [
        (["z"], lake.SchemaError, "no column 'z'; it has key, x, label, image"),
        (["key"], lake.SchemaError, "'key' is the key"),
        ("x", TypeError, r"\['x'\]"),
    ],
)
def test_columns_that_cannot_be_dropped(
    tmp_path: Path, columns: list[str], kind: type[Exception], message: str
):
    """Each refusal says why; nothing changes."""
    lk = lake_of(tmp_path, birds(5))

    with pytest.raises(kind, match=message):
        lk.drop_columns("birds", columns)
    assert len(lk.log("birds")) == 1


def test_the_last_column_stays(tmp_path: Path):
    """A dataset without columns would be none."""
    lk = lake.open(tmp_path, progress=False)
    lk.commit("n", pa.table({"x": [1]}), key=None)

    with pytest.raises(lake.SchemaError, match="must keep a column"):
        lk.drop_columns("n", ["x"])


def test_compacting_gives_the_shards_of_an_overwrite(tmp_path: Path):
    """Many small appends, deletions among them: the same shards, rows and order as one commit of those rows."""
    lk = lake_of(tmp_path, *[birds(9, start) for start in range(0, 270, 9)])
    lk.delete_rows("birds", "x between 100 and 120")
    rows = read(lk)
    assert len(shards(lk)) > 28

    made = lk.compact("birds")

    lk.commit("whole", table(rows), shard_bytes=SHARD)
    assert read(lk) == rows
    assert shards(lk) == shards(lk, "whole")
    assert made.data == lk.dataset("whole").snapshot.document.data
    assert len(shards(lk)) < 20
    assert lk.compact("birds").seq == made.seq


def test_compacting_takes_over_what_is_right_already(tmp_path: Path):
    """A dataset of full shards with a small append at its end: only the end is written."""
    lk = lake_of(tmp_path, birds(300), birds(3, 300))
    counting = CountingStore(lk.store)

    over(lk, counting).compact("birds")

    assert read(lk) == birds(303)
    assert len(shards(lk)) > 8
    assert len(written(counting)) <= 6


@pytest.mark.parametrize("change", ["delete", "drop", "compact"])
def test_a_change_is_carried_over_rows_that_others_append_meanwhile(tmp_path: Path, change: str):
    """Appended rows stay, after the others, untouched by the change; the log has every step."""
    lk = lake_of(tmp_path, birds(40), birds(20, 40))
    rival = lake.open(tmp_path, progress=False)
    more = table(birds(9, 60)).append_column("y", pa.array(range(9)))
    mine = over(lk, Meanwhile(lk.store, lambda: rival.commit("birds", more, mode="append")))

    if change == "delete":
        mine.delete_rows("birds", "x is not null")
        expected = [row | {"y": None} for row in birds(60) if row["x"] is None]
    elif change == "drop":
        mine.drop_columns("birds", ["x"])
        expected = [row | {"y": None} for row in birds(60)]
    else:
        mine.compact("birds")
        expected = [row | {"y": None} for row in birds(60)]
    expected += [row | {"y": n} for n, row in enumerate(birds(9, 60))]
    if change == "drop":
        expected = [{name: row[name] for name in row if name != "x"} for row in expected]

    assert read(lk) == expected
    assert [entry.seq for entry in lk.log("birds")] == [4, 3, 2, 1]


def test_a_change_of_rows_that_others_change_meanwhile_is_a_conflict(tmp_path: Path):
    """Who came first is named; nothing of the second change is visible, and repeating it succeeds."""
    lk = lake_of(tmp_path, birds(60))
    rival = lake.open(tmp_path, progress=False)
    mine = over(lk, Meanwhile(lk.store, lambda: rival.delete_rows("birds", "x = 5", message="five")))

    with pytest.raises(lake.ConflictError, match="'five'") as caught:
        mine.delete_rows("birds", "x = 6")
    assert caught.value.retryable

    assert [row["x"] for row in read(lk)].count(6) == 1
    mine.delete_rows("birds", "x = 6")
    assert not {5, 6} & {row["x"] for row in read(lk)}


def test_a_column_dropped_meanwhile_is_a_conflict(tmp_path: Path):
    """A change that began with it would bring it back."""
    lk = lake_of(tmp_path, birds(60))
    rival = lake.open(tmp_path, progress=False)
    mine = over(lk, Meanwhile(lk.store, lambda: rival.drop_columns("birds", ["x"])))

    with pytest.raises(lake.ConflictError, match="delete_rows began with have changed"):
        mine.delete_rows("birds", "x = 6")


def test_a_removal_meanwhile_is_a_conflict(tmp_path: Path):
    """The dataset stays removed."""
    lk = lake_of(tmp_path, birds(20))
    rival = lake.open(tmp_path, progress=False)

    with pytest.raises(lake.ConflictError, match="removed"):
        over(lk, Meanwhile(lk.store, lambda: rival.remove("birds"))).delete_rows("birds", "x = 3 or x = 4")
    assert lk.datasets() == []


def test_datasets_that_are_not_there_cannot_be_changed(tmp_path: Path):
    """The nearest name is offered."""
    lk = lake_of(tmp_path, birds(5))

    with pytest.raises(lake.NotFoundError, match="nearest: 'birds'"):
        lk.delete_rows("brids", "true")


COMPACTS = (
    PROGRAM[: PROGRAM.index("first = next")]
    + """
lk = lake.open(sys.argv[1], progress=False)
for batch in stream():
    lk.commit("big", pa.table(batch), mode="append")
before = lk.dataset("big").snapshot.document
made = lk.compact("big")
assert before.shards == batches and made.shards < batches / 4 and made.rows == before.rows == rows * batches
"""
    + PROGRAM[PROGRAM.index("print(") :]
)


@pytest.mark.skipif(sys.platform != "linux", reason="counts resident memory as Linux reports it")
def test_compaction_stays_under_a_gigabyte_at_the_default_shard_size(tmp_path: Path):
    """However many small appends become full shards: the rows of a few are in memory."""
    answer = subprocess.run(
        [sys.executable, "-c", COMPACTS, str(tmp_path / "lake"), str(MEGABYTES // 2)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(answer.stdout) * 1024 < 1_000_000_000
