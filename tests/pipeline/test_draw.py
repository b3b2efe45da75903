"""Rows drawn by weights and by shares: how often each comes, in which order, and what is refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lake
from lake.dataset import Dataset
from lake.pipeline import Pipeline
from lake.pipeline.seeds import Seed
from lake.samples.lots import STRETCH, Weighted, strata_of
from tests.contracts.stage import items, run_resume_contract

SEED = Seed.of(3)


@pytest.fixture(scope="module")
def ds(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """900 rows: 800 of class a, 80 of b, 20 of c; several shards; `weight` is 0 for every third row."""
    lk = lake.open(tmp_path_factory.mktemp("draw"), progress=False)
    count = 900
    rng = np.random.default_rng(0)
    table = pa.table(
        {
            "key": [f"r{n:03}" for n in range(count)],
            "n": np.arange(count),
            "weight": np.arange(count) % 3 * 1.0,
            "label": pa.array(["a"] * 800 + ["b"] * 80 + ["c"] * 20).dictionary_encode(),
            "text": [f"label {n % 4}" for n in range(count)],
            "maybe": pa.array([None if n == 5 else n for n in range(count)]),
            "blob": [rng.bytes(100) for _ in range(count)],
        }
    )
    lk.commit("rows", table.take(rng.permutation(count)), shard_bytes="16KiB")
    return lk.dataset("rows")


WAYS: dict[str, Callable[[Dataset], Pipeline]] = {
    "uniform": lambda ds: ds.draw(90, seed=1),
    "weights": lambda ds: ds.draw(90, weights="weight", columns=["n"], seed=1),
    "strata": lambda ds: ds.draw(90, by="label", columns=["n"], seed=1),
    "shares": lambda ds: ds.draw(90, by="text", weights={"label 1": 3, "label 2": 1}, columns=["n"], seed=1),
    "random": lambda ds: ds.draw(90, by="label", columns=["n"], seed=1).map(
        lambda sample, rng: (sample[1]["n"], float(rng.random())), rng=True, seed=2
    ),
    "shuffled": lambda ds: ds.draw(90, by="label", columns=["n"], seed=1).shuffle(20, seed=2).batch(4),
}


@pytest.mark.parametrize("name", WAYS)
def test_a_draw_resumes_exactly(ds: Dataset, name: str) -> None:
    """At every place, like any other pipeline."""
    assert run_resume_contract(lambda: WAYS[name](ds), most=100, places=[0, 1, 2, 17, 23])


def labels_of(pipeline: Pipeline, ds: Dataset) -> list[str]:
    vocab = ds.vocab("label")
    return [vocab[fields["label"]] for _, fields in pipeline]


def test_strata_come_in_equal_shares_though_rows_do_not(ds: Dataset) -> None:
    """A class of 20 rows as often as one of 800; in each stretch to within one; no row twice before all came."""
    drawn = list(ds.draw(1200, by="label", columns=["n", "label"], seed=1))
    labels = [ds.vocab("label")[fields["label"]] for _, fields in drawn]
    for first in range(0, 1200 - STRETCH, STRETCH):
        assert {21, 22} >= set(Counter(labels[first : first + STRETCH]).values())
    rare = [fields["n"] for label, (_, fields) in zip(labels, drawn, strict=True) if label == "c"]
    for first in range(0, len(rare) - 20, 20):
        assert sorted(rare[first : first + 20]) == list(range(880, 900))
    common = [fields["n"] for label, (_, fields) in zip(labels, drawn, strict=True) if label == "a"]
    assert len(set(common)) == len(common)


def test_shares_are_those_asked_for(ds: Dataset) -> None:
    """Values without a share never come, and one may be asked for that is rare."""
    pipeline = ds.draw(640, by="label", weights={"b": 3, "c": 1}, columns=["label"], seed=1)
    assert Counter(labels_of(pipeline, ds)) == {"b": 480, "c": 160}


def test_a_draw_has_only_rows_that_meet_the_condition(ds: Dataset) -> None:
    """A validation split stays apart."""
    train, held = ds.split(0.8, 0.2, seed=0)
    rest = set(ds.scan(columns=["n"], where=held).to_table()["n"].to_pylist())
    for how in ({"by": "label"}, {"weights": "weight"}, {}):
        drawn = {fields["n"] for _, fields in ds.draw(3000, where=train, columns=["n"], seed=1, **how)}
        assert not drawn & rest
        assert len(drawn) > 300


def test_epochs_seeds_and_their_absence(ds: Dataset) -> None:
    """Each epoch draws anew; a seed repeats all of it; without one there is no fingerprint."""
    pipeline = ds.draw(200, by="label", columns=["n"], seed=1)
    first, second = items(pipeline), items(pipeline)
    assert first != second
    assert items(ds.draw(200, by="label", columns=["n"], seed=1)) == first
    assert items(ds.draw(200, by="label", columns=["n"], seed=2)) != first
    assert len(pipeline) == 200
    assert pipeline.check().rows == 900
    with pytest.raises(lake.NotReproducibleError, match=r"draw.*its seed was drawn"):
        ds.draw(9).fingerprint()
    prints = [WAYS[name](ds).fingerprint() for name in WAYS] + [ds.draw(91, seed=1).fingerprint()]
    assert len(set(prints)) == len(prints)


def test_samples_are_those_of_the_dataset(ds: Dataset) -> None:
    """Key and values, whatever the types."""
    every = dict(ds.samples())
    assert all(every[key] == fields for key, fields in ds.draw(300, weights="weight", seed=1))


def test_a_draw_goes_through_a_process(ds: Dataset, tmp_path: Path) -> None:
    """It pickles with its position."""
    import pickle

    pipeline = ds.draw(50, by="label", columns=["n"], seed=1)
    whole = items(pipeline)
    pipeline.set_epoch(0)
    seen = items(pipeline, 20)
    assert seen + items(pickle.loads(pickle.dumps(pipeline))) == whole


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ({"by": "labels"}, r"no column 'labels'"),
        ({"weights": "weigh"}, r"no column 'weigh'"),
        ({"weights": {"a": 1}}, r"need by="),
        ({"by": "label", "weights": "weight"}, r"given for its values"),
        ({"by": "label", "weights": {"a": -1}}, r"not negative"),
        ({"by": "label", "weights": {"a": 0}}, r"not all 0"),
        ({"by": "label", "weights": {"d": 1}}, r"no row has the value 'd'; there are 'a', 'b', 'c'"),
        ({"by": "label", "where": "n < 10", "weights": {"b": 1}}, r"no row has the value 'b'; there are 'a'"),
        ({"weights": "maybe"}, r"1 rows have no 'maybe': where='maybe is not null'"),
        ({"weights": "text"}, r"weights='text' is a column of numbers, not of "),
        ({"weights": "n", "where": "n = 0"}, r"not all 0"),
        ({"where": "n < 0"}, r"no rows to draw from"),
        ({"size": -1}, r"number of samples"),
    ],
    ids=str,
)
def test_what_cannot_be_drawn_is_refused(ds: Dataset, how: dict[str, Any], says: str) -> None:
    """With the column or value that is in the way."""
    with pytest.raises(ValueError, match=says):
        next(iter(ds.draw(**how, seed=1)))


def test_labels_that_are_lists_are_refused(tmp_path: Path) -> None:
    """With the column and its type: rows are told apart by single values."""
    lk = lake.open(tmp_path, progress=False)
    lk.commit("pairs", pa.table({"key": ["a", "b"], "pair": [[1, 2], [3, 4]]}))
    with pytest.raises(ValueError, match=r"by='pair' is a column of labels, not of .*list"):
        next(iter(lk.dataset("pairs").draw(2, by="pair", seed=0)))


def test_weighted_rows_come_as_often_as_their_weights_say() -> None:
    """Chi-squared over 200 rows: far from what other weights would give; weight 0 never."""
    weights = np.arange(200) % 7.0
    order = Weighted(np.arange(200) * 3, weights).order(SEED, 0, 200_000)
    found = np.bincount(order, minlength=600)[::3]
    expected = weights / weights.sum() * 200_000
    assert not found[weights == 0].any()
    drawn = weights > 0
    chi = ((found - expected)[drawn] ** 2 / expected[drawn]).sum()
    assert 110 < chi < 240  # 170 degrees of freedom


def test_shares_that_do_not_divide_a_stretch_are_kept_on_average() -> None:
    """64 draws have 21 or 22 of a third: over 3,000 stretches a third of all."""
    found = np.arange(9) % 3
    order = strata_of(np.arange(9), found, range(3), None).order(SEED, 0, 3000 * STRETCH)
    counts = np.bincount(found[order])
    assert np.ptp(counts) < 3000 * 0.05


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.integers(0, 6), min_size=1, max_size=80),
    st.integers(0, 400),
    st.integers(0, 3),
    st.data(),
)
def test_strata_keep_their_shares_whatever_they_are(codes: Any, size: int, epoch: int, data: Any) -> None:
    """In each stretch every share is rounded up or down; rows of one stratum come equally often to within one."""
    found, present = np.array(codes), sorted(set(codes))
    shares = {
        value: data.draw(st.floats(0.01, 9)) for value in data.draw(st.permutations(present))[: len(present)]
    }
    lots = strata_of(np.arange(len(found)) + 100, found, range(7), shares)
    order = lots.order(SEED, epoch, size) - 100
    assert len(order) == size
    assert (order == strata_of(np.arange(len(found)), found, range(7), shares).order(SEED, epoch, size)).all()
    total = sum(shares.values())
    for first in range(0, size - STRETCH + 1, STRETCH):
        counts = Counter(found[order[first : first + STRETCH]].tolist())
        for value, share in shares.items():
            assert abs(counts[value] - STRETCH * share / total) < 1 + 1e-6
    times = np.bincount(order, minlength=len(found))
    for value in present:
        assert np.ptp(times[found == value]) <= 1
