"""What may be split over ranks and workers, told before anything is read."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import lake
from lake.pipeline import Pipeline
from lake.pipeline.lanes import check_split, untagged


def numbers() -> Pipeline:
    return lake.from_iterable(range(9))


def odd() -> Pipeline:
    return numbers().filter(lambda n: n % 2)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: odd().take(5), r"take\(5\) over filter\(.* 2 lanes: per_lane=True"),
        (lambda: lake.zip(numbers(), odd()), r"zip\(\) over filter"),
        (lambda: numbers().zip_with(max, odd()), r"zip\(\) over filter"),
        (lambda: lake.mix([odd(), numbers()], seed=0).map(str), r"mix\(\) over filter\(.*repeat\(\)"),
        (lambda: lake.mix([odd().repeat(), numbers()], seed=0), r"mix\(\)"),
        (lambda: numbers().shuffle(seed=1).batch(2).take(1), r"take\(1\) over batch\(2\)"),
    ],
    ids=["take", "zip", "zip_with", "mix", "half a mix", "batches"],
)
def test_stages_that_mean_nothing_in_lanes_are_named(make: Callable[[], Pipeline], says: str) -> None:
    """Five items of each lane would be ten: the error says what to do; one lane is no lane."""
    with pytest.raises(ValueError, match=says):
        check_split(make().node, lanes=2)
    check_split(make().node, lanes=1)


@pytest.mark.parametrize(
    "make",
    [
        lambda: numbers().take(5),
        lambda: lake.zip(numbers(), numbers().map(str)),
        lambda: lake.mix([numbers(), numbers()], seed=0).take(3),
        lambda: odd().take(5, per_lane=True),
        lambda: lake.zip(numbers(), odd(), per_lane=True),
        lambda: lake.mix([odd().repeat(), odd().repeat().map(str)], seed=0),
        lambda: odd().map(str).batch(4),
    ],
    ids=["take", "zip", "mix", "take in lanes", "zip in lanes", "mix of repeats", "filter"],
)
def test_what_is_countable_or_meant_so_may_be_split(make: Callable[[], Pipeline]) -> None:
    """Counts by position, lanes that were asked for, ratios that every lane keeps."""
    check_split(make().node, lanes=4)


def test_ranks_that_would_yield_different_counts_need_a_way_to_be_even() -> None:
    """The message names the stage and the ways out."""
    with pytest.raises(
        ValueError, match=r"filter\(.* makes .*2 ranks.*steps=, even='stop', or where= in samples"
    ):
        check_split(odd().node, lanes=1, ranks=2)
    check_split(odd().node, lanes=2, ranks=2, is_even=True)
    check_split(numbers().node, lanes=2, ranks=2)


@pytest.mark.parametrize(
    ("make", "is_asked"),
    [
        (lambda: numbers().batch(2), False),
        (lambda: numbers().batch(2).map(sum).star_map(str), False),
        (lambda: numbers().batch(2).map(max, rng=True, seed=1), True),
        (lambda: numbers().batch(2).map(max, rng=True, seed=1).map(str), True),
        (lambda: numbers().batch(2).map(sum, workers=1), True),
        (lambda: numbers().batch(2).maybe(sum, seed=1), True),
        (lambda: numbers().batch(2).filter(sum), True),
        (lambda: numbers().batch(2).shuffle(seed=1), True),
        (lambda: numbers().map(str), True),
    ],
    ids=["batch", "maps", "rng", "map of rng", "threads", "maybe", "filter", "shuffle", "no batch"],
)
def test_batches_are_tagged_where_somebody_may_ask(make: Callable[[], Pipeline], *, is_asked: bool) -> None:
    """Whatever lies between them and who iterates, unless it is functions of a batch alone."""
    assert (untagged(make().node) is None) is is_asked
