"""Schedules: units cover what a plan's slices do, come when they are needed, and are done with when they say."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from lake.plan import Layout, Ranks, plan_epoch
from lake.scan.schedule import Schedule
from tests.plans import given, layouts, selections


@st.composite
def schedules(draw: st.DrawFn) -> Schedule:
    """Schedules of small plans, with units of one record batch, of several, and of whole shards."""
    layout = draw(layouts())
    asked: dict[str, Any] = {
        "selection": draw(selections(layout)),
        "shuffle": draw(st.sampled_from([False, False, True, "full"])),
        "seed": draw(st.integers(0, 5)),
        "shuffle_window": draw(st.integers(1, 4)),
        "limit": draw(st.none() | st.integers(0, 100)),
    }
    rows = plan_epoch(layout, batch_size=1, **asked).rows
    world = draw(st.integers(1, max(1, min(4, rows))))
    even = draw(st.sampled_from(["split", "pad", None]))
    ranks = Ranks(draw(st.integers(0, world - 1)), world, draw(st.integers(1, world))) if rows else None
    plan = plan_epoch(
        layout,
        batch_size=draw(st.integers(1, 9)),
        ranks=ranks,
        partitions=draw(st.integers(1, 4)),
        even=even,
        **asked,
    )
    return Schedule(plan, unit_bytes=draw(st.sampled_from([1, 200, 10**9])))


@given(schedules())
def test_units_are_the_slices_of_the_plan(schedule: Schedule) -> None:
    """What a step takes, unit by unit, is what its slices say, row by row."""
    plan = schedule.plan
    for step in schedule.steps():
        taken = [
            (take.unit.block, take.unit.start + row)
            for take in step.takes
            for row in range(take.start, take.stop)
        ]
        assert taken == [
            (block, row) for block, start, stop in plan.slices(step.number) for row in range(start, stop)
        ]
        assert step.rows == len(taken)
        assert step.pads == plan.batch(step.number).pads
        for take in step.takes:
            assert 0 <= take.start < take.stop <= take.unit.stop - take.unit.start


@given(schedules(), st.integers(1, 9), st.data())
def test_batches_are_gathered_in_steps(schedule: Schedule, most: int, data: st.DataObject) -> None:
    """All batches in their order, of one length within a step, the first alone, and no more than asked."""
    first = data.draw(st.integers(0, len(schedule.plan)))
    steps = list(schedule.steps(first, most=most))

    assert [step.number for step in steps] == [first, *(step.end for step in steps)][: len(steps)]
    assert (steps[-1].end if steps else first) == len(schedule.plan)
    assert not steps or steps[0].batches == 1
    for step in steps:
        alone = list(schedule.steps(step.number, step.end))
        assert {one.rows for one in alone} == {step.rows // step.batches}
        assert 1 <= step.batches <= most
        assert step.batches == 1 or not step.pads
        rows = [(take.unit, row) for take in step.takes for row in range(take.start, take.stop)]
        assert rows == [
            (take.unit, row) for one in alone for take in one.takes for row in range(take.start, take.stop)
        ]


@given(schedules(), st.data())
def test_units_come_before_they_are_needed_and_not_after(schedule: Schedule, data: st.DataObject) -> None:
    """In the order of first need, whatever the first step; `last` is never too early."""
    first = data.draw(st.integers(0, len(schedule.plan)))
    steps = list(schedule.steps(first))
    needed = list(dict.fromkeys(take.unit for step in steps for take in step.takes))

    assert list(dict.fromkeys(schedule.units(first))) == needed
    for step in steps:
        for take in step.takes:
            assert schedule.last(take.unit) >= step.number
            assert schedule.last_of(take.unit.block) >= schedule.last(take.unit)


def test_most_units_are_done_with_when_they_say() -> None:
    """For a reader alone, `last` is exact: memory is not kept a step longer."""
    layout = Layout.of([1000] * 8, [100] * 8, [10_000] * 8, [10_000] * 8)
    for shuffle in (False, True):
        schedule = Schedule(
            plan_epoch(layout, batch_size=64, shuffle=shuffle, shuffle_window=3), unit_bytes=2000
        )
        used = {take.unit: step.number for step in schedule.steps() for take in step.takes}
        assert all(schedule.last(unit) == number for unit, number in used.items())


def test_units_are_found_without_looking_at_every_step() -> None:
    """The way to the next block is not paved with one-row batches."""
    layout = Layout.of([10_000] * 20, [1000] * 20, [10_000] * 20, [10_000] * 20)
    schedule = Schedule(plan_epoch(layout, batch_size=1, shuffle=True, shuffle_window=4))
    looked = 0
    steps = schedule.steps

    def counting(first: int = 0, stop: int | None = None) -> Any:
        nonlocal looked
        for step in steps(first, stop):
            looked += 1
            yield step

    schedule.steps = counting  # type: ignore[method-assign]

    assert len(list(schedule.units())) == 20
    assert looked <= 60


def test_the_first_unit_of_a_shard_is_small() -> None:
    """So that the first batch of a bucket is not behind megabytes that it does not need."""
    layout = Layout.of([6400], [100], [64 * 2**20], [64 * 2**20])
    schedule = Schedule(plan_epoch(layout, batch_size=100))
    units = list(schedule.units())

    assert units[0].stop == 100
    assert units[1].stop - units[1].start == 400
    assert sum(unit.stop - unit.start for unit in units) == 6400
    assert np.isclose(schedule.bytes(units[1]), 4 * 2**20, rtol=0.01)
