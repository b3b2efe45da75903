"""Versions of very many shards: what opening, planning, appending and asking cost does not grow with them in Python.

Their segments are written as commits write them, without the parts, which nothing here reads.
"""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import lake
from benchmarks import versions
from benchmarks.versions import NAME, STEPS, Bucket, alone, large
from lake.repo import Lake
from lake.stores import LocalStore
from tests.test_costs import python_calls

FULL = bool(os.environ.get("LAKE_TEST_FULL"))
FEW, MANY = 2_000, 20_000


@pytest.fixture(scope="module")
def lakes(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """A lake for each size."""
    made = {shards: tmp_path_factory.mktemp(f"{shards}") for shards in (FEW, MANY)}
    for shards, folder in made.items():
        large(versions.opened(folder), shards)
    return made


def test_a_large_version_says_what_its_shards_say(lakes: dict[int, Path]) -> None:
    """Rows, bytes and keys by SQL are those of the manifest, and so is the plan."""
    lk = versions.opened(lakes[FEW])
    dataset = lk.dataset(NAME)
    manifest = dataset.snapshot.manifest
    shards = list(manifest.shards())

    assert len(shards) == FEW
    assert versions.aggregate(lk) == (
        FEW,
        len(dataset),
        sum(part.bytes for shard in shards for part in shard.parts),
        min(shard.first_key for shard in shards),
        max(shard.last_key for shard in shards),
    )
    assert len(dataset) == sum(shard.rows for shard in shards) == int(manifest.starts[-1])
    assert versions.plan(lk) == -(-len(dataset) // 1024)
    [key, label, image] = versions.columns(lk)
    assert key[:4] == ("key", 0, "image-000000000000", f"image-{len(dataset) - 1:012}")
    assert label[:4] == ("label", 0, "0", "999")
    assert image[:4] == ("image", None, None, None)


@pytest.mark.parametrize("step", ["open", "plan an epoch", "lake.shards, an aggregate"])
def test_no_python_runs_for_each_shard(lakes: dict[int, Path], step: str) -> None:
    """Ten times the shards are some segments more: under a call for every ten shards."""
    lk = {shards: versions.opened(folder) for shards, folder in lakes.items()}

    few, many = (python_calls(partial(STEPS[step], each)) for each in lk.values())

    assert many - few < (MANY - FEW) / 10


def test_an_append_asks_for_the_same_however_many_shards_there_are(lakes: dict[int, Path]) -> None:
    """Requests counted; the first append finds a tail to merge, and leaves the segments before it alone."""
    asked = []
    for folder in lakes.values():
        store = Bucket(LocalStore(folder / "lake"))
        settings = lake.open(folder / "lake", cache_dir=folder / "cold").settings
        lk = Lake(store, settings, progress=False)
        before = lk.refs.base(NAME).document
        assert before is not None
        found = []
        for _ in range(2):
            store.reset()
            versions.append(lk)
            found.append(dict(store.counts))
        asked.append(found)
        after = lk.refs.base(NAME).document
        assert after is not None
        assert after.shards == before.shards + 2
        kept = {segment.digest for segment in before.segments} & {s.digest for s in after.segments}
        assert len(kept) == len(before.segments) - versions.SHORT
        assert list(lk.refs.manifest(after).rows[:-2]) == list(lk.refs.manifest(before).rows)

    few, many = asked
    assert few[1] == many[1]


def test_a_merged_tail_is_what_its_shards_make(lakes: dict[int, Path], tmp_path: Path) -> None:
    """Every shard that was merged is described as before."""
    large(versions.opened(tmp_path), 500)
    lk = versions.opened(tmp_path)
    before = list(lk.dataset(NAME).snapshot.manifest.shards())

    versions.append(lk)

    manifest = lk.dataset(NAME).snapshot.manifest
    assert list(manifest.shards())[:-1] == before
    assert len(manifest.refs) < versions.SHORT


def test_a_million_shards_fit_in_two_gigabytes(tmp_path: Path) -> None:
    """Every step in a process of its own; by default some, with a fiftieth of the shards and a tenth of the memory."""
    shards, most = (1_000_000, 2e9) if FULL else (20_000, 200e6)
    large(versions.opened(tmp_path), shards)

    for step in STEPS if FULL else ("plan an epoch", "append, merging the tail", "lake.shards, an aggregate"):
        found = alone(tmp_path, step)

        assert found["peak_bytes"] - (0 if FULL else found["at_rest_bytes"]) < most, step


def test_ten_thousand_versions_cost_no_more_requests_than_ten(tmp_path: Path) -> None:
    """To open the head, and to commit; every version another one."""
    few, many = (versions.requests(tmp_path, length) for length in (10, 10_000 if FULL else 300))

    assert {what: of["requests"] for what, of in few.items()} == {
        what: of["requests"] for what, of in many.items()
    }
    assert few["open the head"]["requests"] <= 4


def test_synthetic_cuts_end_in_segments_that_are_due_for_merging() -> None:
    """As many short ones as an append takes apart."""
    ends = versions._ends(np.arange(1, 20_001, dtype=np.uint64))

    assert len(ends) > versions.SHORT
    assert ends[-1] == 20_000
    assert np.diff(ends)[-versions.SHORT :].tolist() == [20_000 // (4 * versions.SHORT)] * versions.SHORT
