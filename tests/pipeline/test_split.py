"""One stream over ranks and workers: by position where it is countable, by lanes where it is not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice, zip_longest
from typing import Any

import pytest

import lake
from lake.dataset import Dataset
from lake.pipeline import Pipeline
from lake.pipeline.deal import Worker
from lake.pipeline.lanes import Position, dealt, grain_of, laned, ordered
from lake.pipeline.node import Node, Readings, Run
from lake.plan import Ranks
from tests.contracts.stage import plain


def number(sample: Any) -> int:
    return int(sample[1]["n"])


def base(ds: Dataset) -> Pipeline:
    return ds.samples(columns=["n"]).map(number)


COUNTABLE: dict[str, Callable[[Dataset], Pipeline]] = {
    "samples": lambda ds: ds.samples(),
    "where": lambda ds: ds.samples(where="n % 3 = 0").map(number),
    "shuffled": lambda ds: ds.samples(columns=["n"]).shuffle(seed=1).map(number),
    "batches": lambda ds: base(ds).batch(8),
    "threads": lambda ds: base(ds).map(abs, workers=2).batch(8).map(list, workers=2),
    "batches of batches": lambda ds: base(ds).batch(3).batch(4),
    "take": lambda ds: base(ds).map(abs, workers=2).take(25),
    "repeat": lambda ds: ds.samples(columns=["n"]).shuffle(seed=1).map(number).repeat(3),
    "batches again": lambda ds: base(ds).batch(8).repeat(2),
    "zip": lambda ds: lake.zip(base(ds), base(ds).map(abs, workers=2)).map(list),
    "unequal zip": lambda ds: lake.zip(base(ds), lake.from_iterable(range(17))),
    "concat": lambda ds: lake.concat([base(ds), lake.from_iterable(range(50)), base(ds)]),
    "mix": lambda ds: lake.mix([base(ds), lake.from_iterable(range(50))], [0.7, 0.3], seed=1),
    "mix to the end": lambda ds: lake.mix(
        [base(ds), lake.from_iterable(range(50))], [0.7, 0.3], seed=1, until="all"
    ),
    "random": lambda ds: lake.zip(base(ds), lake.random_stream(seed=3)),
    "maybe": lambda ds: base(ds).maybe(lambda n: -n - 1, 0.5, seed=3).batch(4),
    "random map": lambda ds: base(ds).map(lambda n, rng: (n, rng.random()), rng=True, seed=5),
}


def run(epoch: int = 0) -> Run:
    return Run(epoch, {}, Readings())


def taken(root: Node, at: Any, ranks: Ranks, workers: int) -> list[Any]:
    """What a rank's workers make, put together as they say; positions are asked for on the way."""
    position = Position(root, run(), at)
    grain = grain_of(root)
    deals = [
        Worker.of(
            position.left(), 0, grain.size if grain else 1, ranks, "split" if grain else None, number, workers
        )
        for number in range(workers)
    ]
    stages = [dealt(root, deal).open(run()) for deal in deals]
    if position.beginning is not None:
        for stage in stages:
            stage.restore(position.beginning[0])
    found = []
    for number in range(len(deals[0])):
        found.append(stages[deals[0].worker_of(number)].next())
        if number % 4 == 1:
            position.after(deals[0].taken(number + 1))
    for stage in stages:
        with pytest.raises(StopIteration):
            stage.next()
        stage.close()
    return [plain(item) for item in found]


@pytest.mark.parametrize("name", COUNTABLE)
def test_a_countable_stream_is_dealt_out_whole(ds: Dataset, name: str) -> None:
    """From its beginning and from its middle: all workers of all ranks together give the one stream, in order.

    Batches of several ranks are those of the stream until the last round, and equally many for each.
    """
    make = COUNTABLE[name]
    root = ordered(make(ds).node)
    grain = grain_of(root)
    for start in (0, 3):
        pipeline = make(ds)
        stream = iter(pipeline)
        list(islice(stream, start))
        at = pipeline.state_dict()["at"] if start else None
        rest = [plain(item) for item in stream]
        for ranks, workers in ((1, 1), (1, 3), (3, 1), (2, 2)):
            found = [taken(root, at, Ranks(rank, ranks), workers) for rank in range(ranks)]
            dealt_out = [item for turn in zip_longest(*found, fillvalue=None) for item in turn]
            if ranks == 1 or not grain:
                assert [item for item in dealt_out if item is not None] == rest
                continue
            assert len({len(each) for each in found}) == 1
            assert sorted(i for batch in dealt_out for i in batch) == sorted(
                i for batch in rest for i in batch
            )
            full = max(0, sum(map(len, rest)) // (grain.size * ranks) - 1) * ranks
            assert dealt_out[:full] == rest[:full]


@pytest.mark.parametrize("name", COUNTABLE)
def test_positions_found_by_counting_are_those_found_by_reading(ds: Dataset, name: str) -> None:
    """A pipeline goes on from either, and reading nothing is enough to know where one is."""
    pipeline = COUNTABLE[name](ds)
    root = ordered(pipeline.node)
    grain = grain_of(root)
    whole = [plain(item) for item in pipeline]
    for count in (0, 1, 7, len(whole)):
        items = min(count * (grain.size if grain else 1), 10**9)
        resumed = COUNTABLE[name](ds)
        resumed.load_state_dict(
            {**pipeline.state_dict(), "epoch": 0, "at": Position(root, run(), None).after(items)}
        )
        assert [plain(item) for item in resumed] == whole[count:]


UNCOUNTABLE: dict[str, Callable[[Dataset], Pipeline]] = {
    "filter": lambda ds: base(ds).filter(lambda n: n % 3),
    "take below": lambda ds: base(ds).take(20).filter(lambda n: n % 3),
    "shuffle": lambda ds: base(ds).map(abs).batch(2).filter(bool).flat_map(list).shuffle(8, seed=1),
    "batches below": lambda ds: base(ds).batch(4).flat_map(list),
    "generator": lambda ds: lake.from_iterable(lambda: iter(range(37))).map(abs),
    "flat_map": lambda ds: base(ds).flat_map(lambda n: [n] * (n % 3)),
    "concat": lambda ds: lake.concat([base(ds).filter(lambda n: n % 2), lake.from_iterable(range(9))]),
}


@pytest.mark.parametrize("name", UNCOUNTABLE)
@pytest.mark.parametrize("lanes", [1, 2, 5])
def test_lanes_use_each_row_once_and_resume(ds: Dataset, name: str, lanes: int) -> None:
    """Every lane is a stream that goes on from any of its positions; together they make what one would."""
    found = []
    for lane in range(lanes):
        root = laned(UNCOUNTABLE[name](ds).node, lane, lanes, 0)
        stage, items, states = root.open(run()), list[Any](), list[Any]()
        while True:
            states.append(stage.state())
            try:
                items.append(stage.next())
            except StopIteration:
                break
        for place in (0, len(items) // 2, len(items)):
            again = root.open(run())
            again.restore(states[place])
            rest = []
            while True:
                try:
                    rest.append(again.next())
                except StopIteration:
                    break
            assert rest == items[place:]
        found += items

    assert sorted(found) == sorted(UNCOUNTABLE[name](ds))


@pytest.mark.parametrize("lanes", [2, 4, 8])
def test_rows_in_periods_meet_every_lane(lanes: int) -> None:
    """Every second, third or eighth row is as common in each lane as in the stream."""
    for period in (2, 3, lanes):
        stream = lake.from_iterable(range(960)).filter(lambda n, period=period: n % period == 0)
        counts = [sum(1 for _ in lane_items(stream, lane, lanes)) for lane in range(lanes)]

        assert sum(counts) == -(-960 // period)
        assert min(counts) > sum(counts) / lanes / 4


def lane_items(stream: Pipeline, lane: int, lanes: int) -> Iterator[Any]:
    """What a lane gives."""
    stage = laned(stream.node, lane, lanes, 0).open(run())
    while True:
        try:
            yield stage.next()
        except StopIteration:
            return


def test_a_source_that_is_replicated_is_whole_in_each_lane(ds: Dataset) -> None:
    """Side streams, such as noise to add, are beside each lane's rows."""
    pipeline = lake.zip(
        base(ds).filter(lambda n: n % 2),
        lake.from_iterable([1, 2, 3], replicate=True).map(abs).repeat(),
        per_lane=True,
    )
    sides = []
    for lane in range(2):
        stage = laned(pipeline.node, lane, 2, 0).open(run())
        sides.append([stage.next()[1] for _ in range(4)])

    assert sides == [[1, 2, 3, 1]] * 2


def test_functions_are_called_for_what_is_wanted_alone(ds: Dataset) -> None:
    """A worker of four calls a quarter as often, threads that call ahead included."""
    calls: list[int] = []
    for workers in (0, 2):
        calls.clear()
        pipeline = base(ds).map(lambda n: calls.append(n) or n, workers=workers).batch(2)
        taken(ordered(pipeline.node), None, Ranks(1, 4), 1)

        assert len(calls) == len(ds) // 4


@pytest.mark.parametrize(("before", "after"), [(0, 2), (2, 0), (1, 3)])
def test_the_number_of_threads_is_no_part_of_a_position(ds: Dataset, before: int, after: int) -> None:
    """Neither is it of the outline: a run goes on with more, fewer or none."""

    def make(workers: int) -> Pipeline:
        return base(ds).filter(lambda n: n % 2, workers=workers).map(abs, workers=workers).batch(3)

    pipeline = make(before)
    whole = list(pipeline)
    list(islice(pipeline, 4))
    resumed = make(after)
    resumed.load_state_dict({**pipeline.state_dict(), "epoch": 0})

    assert list(resumed) == whole[4:]
