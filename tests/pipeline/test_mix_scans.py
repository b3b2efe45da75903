"""Scans in a mixture: batches in the ratio of rows, from any position on."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import lake
from lake.dataset import Dataset
from lake.pipeline import Pipeline
from tests.contracts.stage import items, run_resume_contract


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> tuple[Dataset, Dataset]:
    """`even` and `odd` numbers, 2,000 rows each, in several shards."""
    lk = lake.open(tmp_path_factory.mktemp("mix"), progress=False)
    for name, first in (("even", 0), ("odd", 1)):
        numbers = np.arange(first, 4000, 2)
        lk.commit(name, pa.table({"n": numbers, "x": numbers / 2}), shard_bytes="16KiB")
    return lk.dataset("even"), lk.dataset("odd")


def numbers(batch: pa.RecordBatch) -> list[int]:
    return batch["n"].to_pylist()


WAYS: dict[str, Callable[[Dataset, Dataset], Pipeline]] = {
    "any": lambda a, b: lake.mix([a.scan(batch_size=100), b.scan(batch_size=300)], [1, 1], seed=1).map(
        numbers
    ),
    "all": lambda a, b: lake.mix(
        [a.scan(batch_size=100, shuffle=True), b.scan(batch_size=300)], seed=1, until="all"
    ).map(numbers),
    "tensors": lambda a, b: lake.mix(
        [each.scan(columns=["n"], batch_size=150, shuffle=True).to_torch() for each in (a, b)], seed=1
    ).map(lambda batch: batch["n"].tolist()),
}


@pytest.mark.parametrize("name", WAYS)
def test_a_mix_of_scans_resumes_exactly(two: tuple[Dataset, Dataset], name: str) -> None:
    """Its position is those of the scans, wherever it is asked for."""
    whole = run_resume_contract(lambda: WAYS[name](*two), places=[0, 1, 5, 11])
    rows = [n for batch in whole for n in batch]
    assert len(set(rows)) == len(rows)
    assert name != "all" or sorted(rows) == list(range(4000))
    pipeline = WAYS[name](*two)
    pipeline.set_epoch(1)
    assert len(pipeline) == len(whole)


def test_weights_are_in_rows(two: tuple[Dataset, Dataset]) -> None:
    """Batches of 20 rows come five times as often as those of 100, for as many rows."""
    small, large = two[0].scan(batch_size=20), two[1].scan(batch_size=100)
    pipeline = lake.mix([small, large], [2, 1], seed=0, until="all").take(60)
    batches = [batch.num_rows for batch in pipeline]
    assert batches.count(20) == pytest.approx(10 / 11 * 60, abs=8)
    with pytest.raises(ValueError, match="3 weights for 2 streams"):
        lake.mix([small, large], [1, 2, 3], seed=0)


def test_what_scans_are_mixed_with_is_said(two: tuple[Dataset, Dataset]) -> None:
    """Batches and samples make no mixture; the plan is that of both scans; nothing moves the scans themselves."""
    scan = two[0].scan(batch_size=100, shuffle=True, seed=3)
    with pytest.raises(TypeError, match="takes pipelines, not Scan"):
        lake.mix([two[0].samples(), scan], seed=0)
    with pytest.raises(TypeError, match="takes pipelines, not list"):
        lake.mix([[1]], seed=0)
    mixed = lake.mix([scan, two[1].scan(where="n < 99")], seed=0, until="all")
    assert mixed.check().rows == 2049
    assert mixed.source_versions() == {"even": two[0].version, "odd": two[1].version}
    before = items(map(numbers, two[0].scan(batch_size=100, shuffle=True, seed=3)))
    mixed = mixed.map(numbers)
    assert len(items(mixed)) == 21
    assert scan.state_dict()["rows"] == 0
    assert items(map(numbers, scan)) == before
    assert mixed.metrics()["rows"] == 2049


def test_its_fingerprint_has_what_the_scans_do(two: tuple[Dataset, Dataset], tmp_path: Path) -> None:
    """Options, conditions and functions of both."""
    made = [
        two[0].scan(), two[1].scan(), two[0].scan(shuffle=True), two[0].scan(where="n > 3"), two[0].scan(columns=["n"]),
        two[0].scan(batch_size=9), two[0].scan().map(lambda batch: batch), two[0].scan().to_torch(),
    ]  # fmt: skip
    prints = [lake.mix([scan], seed=0).fingerprint() for scan in made]
    assert len(set(prints)) == len(prints)
    assert lake.mix([two[0].scan()], seed=0).fingerprint() == prints[0]


def test_it_goes_on_in_another_process(two: tuple[Dataset, Dataset]) -> None:
    """With its position."""
    pipeline = WAYS["all"](*two)
    whole = items(pipeline)
    pipeline.set_epoch(0)
    seen = items(pipeline, 7)
    assert seen + items(pickle.loads(pickle.dumps(pipeline))) == whole
