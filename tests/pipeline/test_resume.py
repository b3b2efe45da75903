"""Every combinator goes on from any of its positions exactly."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lake
from lake.dataset import Dataset
from lake.pipeline import Pipeline
from tests.contracts.stage import items, resumed, run_resume_contract


def numbers(count: int = 23) -> Pipeline:
    return lake.from_iterable(range(count))


def texts() -> Pipeline:
    """Numbers, of which reading some more was forgotten by no position."""
    return numbers().map(str)


def noisy(item: int, rng: np.random.Generator) -> float:
    return item + float(rng.random())


def document(n: int) -> list[int]:
    return list(range(n * 100, n * 100 + n % 6))


class Pairs:
    """Sums of two items, the second of which is kept for the next sum."""

    def __init__(self) -> None:
        self.kept: int | None = None

    def next(self, stream: Iterator[int]) -> int:
        first = next(stream) if self.kept is None else self.kept
        self.kept = next(stream)
        return first + self.kept

    def state(self) -> int | None:
        return self.kept

    def restore(self, state: int | None) -> None:
        self.kept = state


def every_second(stream: Iterator[Any]) -> Iterator[Any]:
    for place, item in enumerate(stream):
        if place % 2:
            yield item


def halves() -> Pipeline:
    return lake.from_iterable([0.0, 0.3, 1.0] * 6)


COMBINATORS: dict[str, Callable[[], Pipeline]] = {
    "from a sequence": numbers,
    "from an iterable": lambda: lake.from_iterable(dict.fromkeys(range(9)).keys()),
    "from a factory": lambda: lake.from_iterable(lambda: iter("factory")),
    "random_stream": lambda: lake.random_stream(3),
    "map": texts,
    "map with rng": lambda: numbers().map(noisy, rng=True, seed=5),
    "map with global rng": lambda: numbers().map(lambda n: np.random.rand() + n, rng="global", seed=5),
    "map in threads": lambda: numbers().map(noisy, rng=True, seed=5, workers=3),
    "map that skips": lambda: numbers().map(lambda n: 1 // (n % 4), on_error="skip"),
    "map in threads that skips": lambda: numbers().map(lambda n: 1 // (n % 4), on_error="skip", workers=2),
    "star_map": lambda: lake.zip(numbers(), texts()).star_map(lambda n, text: text * (n % 3)),
    "filter": lambda: numbers().filter(lambda n: n % 3 == 1),
    "filter in threads": lambda: numbers().filter(lambda n: n % 3 == 1, workers=2),
    "flat_map": lambda: numbers().flat_map(document),
    "flat_map in threads": lambda: numbers().flat_map(document, workers=2),
    "map with rng over flat_map": lambda: numbers().flat_map(document).map(noisy, rng=True, seed=1),
    "scan": lambda: numbers().scan(lambda total, n: total + n, 0),
    "scan of tuples": lambda: numbers().scan(lambda last, n: (n, last[0]), (0, None)),
    "scan of what JSON cannot hold": lambda: numbers(9).scan(lambda seen, n: seen | {n}, frozenset()),
    "through a function": lambda: numbers().through(every_second),
    "through an object": lambda: numbers().through(Pairs()),
    "zip": lambda: lake.zip(numbers(), texts(), numbers(17)),
    "zip_with": lambda: numbers().zip_with(lambda a, b: a * b, numbers(17)),
    "maybe": lambda: numbers().maybe(lambda n: -n, 0.4, seed=2),
    "maybe by a function": lambda: numbers().maybe(lambda n: -n, lambda n: n / 23, seed=2),
    "maybe by a pipeline": lambda: numbers().maybe(lambda n: -n, halves(), seed=2),
    "window": lambda: numbers().window(5),
    "window that overlaps": lambda: numbers().window(5, 2),
    "window with gaps": lambda: numbers().window(2, 5),
    "window without rest": lambda: numbers().window(5, 3, drop_last=True),
    "shuffle": lambda: numbers(120).shuffle(30, seed=7),
    "shuffle of one": lambda: numbers().shuffle(1, seed=7),
    "shuffle of more than all": lambda: numbers().shuffle(4096, seed=7),
    "batch": lambda: numbers().batch(4),
    "batch without rest": lambda: numbers().batch(4, drop_last=True, collate=tuple),
    "batch by cost": lambda: numbers().batch(20, by=lambda n: n),
    "batch by padded cost": lambda: numbers().batch(40, by=lambda n: n, padded=True, drop_last=True),
    "batch in buckets": lambda: numbers(40).batch(12, by=lambda n: n * 7 % 11, buckets=3),
    "batch in padded buckets": lambda: numbers(40).batch(
        30, by=lambda n: n * 7 % 11, buckets=3, padded=True, drop_last=True
    ),
    "pack": lambda: numbers().map(document).pack(7, eos=-1),
    "pack of long documents": lambda: lake.from_iterable([list(range(50)), [7], list(range(9))]).pack(4),
    "pack whole": lambda: numbers(60).map(document).pack(7, eos=-1, split=False, pad=-2),
    "take": lambda: numbers().take(11),
    "take none": lambda: numbers().take(0),
    "repeat": lambda: numbers(5).shuffle(4, seed=1).repeat(3),
    "repeat for ever": lambda: numbers(5).shuffle(4, seed=1).repeat(),
    "repeat of nothing": lambda: numbers().filter(lambda n: False).repeat(),
    "mix": lambda: lake.mix([numbers(), texts()], [1, 3], seed=4),
    "mix until all": lambda: lake.mix([numbers(9), texts(), numbers(3)], [1, 3, 0], seed=4, until="all"),
    "mix of repeats": lambda: lake.mix([numbers(4).repeat(), texts().repeat()], [2, 1], seed=4),
    "choice": lambda: lake.choice([numbers(), texts()], 0.3, seed=9),
    "choice by a pipeline": lambda: lake.choice([numbers(), texts()], halves(), seed=9),
    "choice by weights": lambda: lake.choice(
        [numbers(), texts(), numbers(3)], lake.from_iterable([[1, 1, 0], [0, 1, 2]]).repeat(), seed=9
    ),
    "select": lambda: lake.select(lake.from_iterable([0, 1, 1, 0, True] * 4), numbers(), texts()),
    "concat": lambda: lake.concat([numbers(3), numbers(0), texts()]),
    "deep": lambda: (
        lake.mix([numbers().flat_map(document).shuffle(9, seed=1), numbers().window(3, 2).map(sum)], seed=2)
        .map(noisy, rng=True, seed=3, workers=2)
        .batch(9, by=lambda x: x % 5)
    ),
}


@pytest.mark.parametrize("name", COMBINATORS)
def test_a_combinator_resumes_exactly_at_every_item(name: str) -> None:
    """First k items and the rest of a resumed run are the uninterrupted run, as lists, for every k."""
    run_resume_contract(COMBINATORS[name])


_RESUMED = """
import json, sys
from tests.contracts.stage import items, resumed
from tests.pipeline.test_resume import COMBINATORS
states = json.load(sys.stdin)
json.dump({name: repr(items(resumed(COMBINATORS[name], state), 40)) for name, state in states.items()}, sys.stdout)
"""


def test_every_combinator_goes_on_in_another_process() -> None:
    """From the middle of an epoch, with nothing but the state: the same remainder."""
    states, rests = {}, {}
    for name, make in COMBINATORS.items():
        pipeline = make()
        pipeline.set_epoch(1)
        stream = iter(pipeline)
        items(islice(stream, 5))
        states[name] = pipeline.state_dict()
        rests[name] = repr(items(stream, 40))
    done = subprocess.run(
        [sys.executable, "-c", _RESUMED],
        input=json.dumps(states),
        env={**os.environ, "PYTHONHASHSEED": "7"},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert json.loads(done.stdout) == rests


def split(n: int) -> list[int]:
    return [n] * (n % 3)


def total(group: list[int]) -> int:
    return sum(group) % 50


LINKS: list[Callable[[Pipeline], Pipeline]] = [
    lambda p: p.map(lambda n: n + 1),
    lambda p: p.map(lambda n, rng: n + int(rng.integers(5)), rng=True, seed=1),
    lambda p: p.map(lambda n, rng: n + int(rng.integers(5)), rng=True, seed=1, workers=2),
    lambda p: p.filter(lambda n: n % 3),
    lambda p: p.flat_map(split),
    lambda p: p.scan(lambda a, n: (a + n) % 40, 0),
    lambda p: p.window(3, 2).map(total),
    lambda p: p.shuffle(9, seed=2),
    lambda p: p.batch(3).map(total),
    lambda p: p.batch(25, by=lambda n: n, buckets=2).map(total),
    lambda p: p.map(split).pack(4, split=False).map(lambda row: int(row["tokens"].sum())),
    lambda p: p.map(split).pack(4).map(lambda row: int(row["tokens"].sum())),
    lambda p: p.maybe(lambda n: n + 7, 0.3, seed=3),
    lambda p: p.through(every_second),
    lambda p: lake.mix([p, numbers(9)], [2, 1], seed=4, until="all"),
    lambda p: lake.zip_with(lambda a, b: a + b, p, numbers(30).shuffle(8, seed=5)),
    lambda p: lake.concat([numbers(3), p]),
    lambda p: p.repeat(2),
    lambda p: p.take(25),
]


@settings(max_examples=30, deadline=None)
@given(st.lists(st.sampled_from(LINKS), min_size=2, max_size=5), st.integers(10, 60), st.data())
def test_any_chain_of_combinators_resumes_exactly(chain: list[Any], count: int, data: Any) -> None:
    """Whatever lies over what."""

    def make() -> Pipeline:
        pipeline = numbers(count)
        for link in chain:
            pipeline = link(pipeline)
        return pipeline

    size = len(items(make(), 60))
    places = data.draw(st.lists(st.integers(0, size), min_size=1, max_size=3))
    run_resume_contract(make, epoch=0, most=61, places=places)


ROWS: dict[str, Callable[[Dataset], Pipeline]] = {
    "samples": lambda ds: ds.samples(),
    "samples where": lambda ds: ds.samples(columns=["n"], where="n % 3 = 0"),
    "shuffled": lambda ds: ds.samples(columns=["n"]).shuffle(seed=3),
    "shuffled fully": lambda ds: ds.samples(columns=["n"], prefetch=24).shuffle(seed=3, full=True),
    "shuffled below map": lambda ds: (
        ds.samples(columns=["n"]).map(lambda s: s[1]["n"]).shuffle(seed=3).batch(7)
    ),
    "random": lambda ds: (
        ds.samples(columns=["n"])
        .shuffle(seed=3)
        .map(lambda s, rng: (s[0], float(rng.random())), rng=True, seed=1)
    ),
    "repeated": lambda ds: ds.samples(columns=["n"]).shuffle(seed=3).repeat(2).take(100),
    "buffered": lambda ds: (
        ds.samples(columns=["tokens"]).flat_map(lambda s: s[1]["tokens"]).shuffle(20, seed=3)
    ),
    "packed": lambda ds: ds.samples(columns=["tokens"]).shuffle(seed=1).pack(8, field="tokens", eos=-1),
}


@pytest.mark.parametrize("name", ROWS)
def test_a_pipeline_over_a_dataset_resumes_exactly(ds: Dataset, name: str) -> None:
    """The same for pipelines that begin with rows of a lake."""
    whole = run_resume_contract(lambda: ROWS[name](ds), most=200, places=[0, 1, 2, 5, 8])
    assert whole


def test_a_position_is_small_whatever_the_shuffle(ds: Dataset) -> None:
    """samples -> shuffle -> map -> batch has a state under 10 KB."""
    pipeline = ds.samples().shuffle(1_000_000, seed=0).map(len).batch(4)
    next(iter(pipeline))
    assert len(json.dumps(pipeline.state_dict())) < 1000


def test_a_buffered_shuffle_keeps_no_items_in_its_position() -> None:
    """However much an unfolded shuffle holds, its position is a few numbers."""
    pipeline = numbers(50_000).map(str).shuffle(20_000, seed=0)
    items(pipeline, 30_000)
    assert len(json.dumps(pipeline.state_dict())) < 1000


def test_another_process_goes_on(ds: Dataset) -> None:
    """A state written by one process is exact in the next."""
    code = (
        "import json, sys, lake\n"
        "state = json.load(sys.stdin)\n"
        "p = lake.open(sys.argv[1]).dataset('rows').samples(columns=['n']).shuffle(seed=3)\n"
        "p = p.flat_map(lambda s: [s[1]['n']] * 2).shuffle(10, seed=1)\n"
        "p = p.map(lambda n, r: [n, r.random()], rng=True, seed=1)\n"
        "p.load_state_dict(state)\n"
        "json.dump(list(p), sys.stdout)\n"
    )
    pipeline = ds.samples(columns=["n"]).shuffle(seed=3)
    pipeline = pipeline.flat_map(lambda s: [s[1]["n"]] * 2).shuffle(10, seed=1)
    pipeline = pipeline.map(lambda n, r: [n, r.random()], rng=True, seed=1)
    whole = items(pipeline)
    pipeline.set_epoch(0)
    seen = items(pipeline, 47)
    environment = {**os.environ, "PYTHONHASHSEED": "77"}
    done = subprocess.run(
        [sys.executable, "-c", code, ds.lake.url],
        input=json.dumps(pipeline.state_dict()),
        capture_output=True,
        text=True,
        check=True,
        env=environment,
        timeout=120,
    )
    assert seen + json.loads(done.stdout) == whole


def test_an_error_costs_no_item() -> None:
    """The position after an error is before the item that failed; the error comes again until then."""
    broken = [True]

    def fragile(n: int) -> int:
        if n == 600 and broken[0]:
            raise OSError("not now")
        return n

    def make() -> Pipeline:
        return numbers(700).map(fragile).batch(3)

    pipeline = make()
    stream, seen = iter(pipeline), []
    with pytest.raises(OSError, match="not now") as caught:
        seen.extend(stream)
    assert "in map(" in caught.value.__notes__[0]
    with pytest.raises(OSError, match="not now"):
        next(stream)
    broken[0] = False
    seen = items(make(), 200)
    assert seen + items(resumed(make, pipeline.state_dict())) == items(make())


def test_a_break_keeps_the_position_and_the_next_iter_is_the_next_epoch() -> None:
    """After `break` the pipeline still knows where it was; iterating again begins another epoch."""
    pipeline = numbers().shuffle(9, seed=1)
    for place, _ in enumerate(pipeline):
        if place == 4:
            break
    state = pipeline.state_dict()
    fresh = numbers().shuffle(9, seed=1)
    first, second = items(fresh), items(fresh)
    assert first != second
    assert items(pipeline) == second
    assert items(resumed(lambda: numbers().shuffle(9, seed=1), state)) == first[5:]


def test_a_second_iter_ends_the_first() -> None:
    """One object has one current iterator."""
    pipeline = numbers()
    first = iter(pipeline)
    next(first)
    iter(pipeline)
    assert next(first, None) is None


@pytest.mark.parametrize(
    ("other", "says"),
    [
        (lambda ds: ds.samples(columns=["n"]).shuffle(seed=4).batch(3), "seed=3.*seed=4"),
        (
            lambda ds: ds.samples(columns=["n", "words"]).shuffle(seed=3).batch(3),
            "columns=n, .*columns=n,words",
        ),
        (lambda ds: ds.samples(columns=["n"], where="n > 3").shuffle(seed=3).batch(3), "where="),
        (lambda ds: ds.samples(columns=["n"]).shuffle(seed=3), "had 2 stages, this one has 1"),
        (lambda ds: ds.samples(columns=["n"]).shuffle(seed=3).window(3), r"batch\(.*window\("),
    ],
)
def test_the_position_of_another_pipeline_is_refused(ds: Dataset, other: Any, says: str) -> None:
    """What differs is named, old and new, before anything is read."""
    pipeline = ds.samples(columns=["n"]).shuffle(seed=3).batch(3)
    items(pipeline, 2)
    with pytest.raises(ValueError, match=says):
        other(ds).load_state_dict(pipeline.state_dict())


def test_batch_sizes_and_weights_may_change_at_a_resume(ds: Dataset) -> None:
    """They are no part of a position."""
    pipeline = ds.samples(columns=["n"]).map(lambda s: s[1]["n"]).batch(8)
    items(pipeline, 3)
    other = ds.samples(columns=["n"]).map(lambda s: s[1]["n"]).batch(5)
    other.load_state_dict(pipeline.state_dict())
    assert items(other, 1) == [[24, 25, 26, 27, 28]]
    mixed = lake.mix([numbers(), texts()], [1, 3], seed=4)
    items(mixed, 5)
    changed = lake.mix([numbers(), texts()], [0, 3], seed=4)
    changed.load_state_dict(mixed.state_dict())
    assert all(isinstance(item, str) for item in changed)


def test_set_epoch_between_load_and_iter_keeps_a_position_of_that_epoch(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Trainers call set_epoch after a resume, too; another epoch begins anew, and the log says so."""
    pipeline = numbers()
    pipeline.set_epoch(2)
    items(pipeline, 20)
    state = pipeline.state_dict()
    same = resumed(numbers, state)
    same.set_epoch(2)
    assert items(same) == [20, 21, 22]
    other = resumed(numbers, state)
    with caplog.at_level("INFO", logger="lake"):
        other.set_epoch(3)
    assert "epoch 3 begins at its beginning" in caplog.text
    assert items(other) == list(range(23))
