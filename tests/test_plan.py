"""A whole epoch: for any data, order, ranks and batch size, each selected row once, and resumed exactly."""

from __future__ import annotations

import json
import pickle
import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import assume
from hypothesis import strategies as st

from lake.plan import Cursor, EpochPlan, Layout, Ranks, plan_epoch
from tests.plans import (
    Masks,
    Row,
    every_rank,
    given,
    layouts,
    orders,
    rows_of_order,
    selected_rows,
    selections,
    worlds,
)

sizes = st.integers(1, 9)


def read(plan: EpochPlan, since: int = 0, until: int | None = None) -> list[list[Row]]:
    """The rows of each of a rank's batches, gathered from its blocks as a reader does."""
    batches = []
    for i in range(since, len(plan) if until is None else until):
        batch: list[Row] = []
        for block, start, stop in plan.slices(i):
            shards, rows = plan.order.block_rows(block)
            batch += zip(shards[start:stop].tolist(), rows[start:stop].tolist(), strict=True)
        assert len(batch) == plan.batch(i).rows
        batches.append(batch)
    return batches


def flat(batches: list[list[Row]]) -> list[Row]:
    return [row for batch in batches for row in batch]


@given(layouts(6, 25), st.data(), orders, sizes, worlds(), st.integers(1, 4))
def test_each_selected_row_is_read_once(
    layout: Layout,
    data: st.DataObject,
    how: dict[str, Any],
    size: int,
    world: tuple[int, int],
    partitions: int,
) -> None:
    """Over all ranks; with one partition in the same order for all, and always in equally many batches."""
    selection = data.draw(selections(layout))
    how |= {"selection": selection, "partitions": partitions}
    whole = rows_of_order(plan_epoch(layout, batch_size=1, **how).order)
    assume(len(whole) >= world[0])

    plans = [plan_epoch(layout, batch_size=size, ranks=ranks, **how) for ranks in every_rank(*world)]
    per_rank = [read(plan) for plan in plans]

    assert len({len(batches) for batches in per_rank}) == 1
    assert sorted(flat([flat(batches) for batches in per_rank])) == sorted(whole)
    assert set(whole) <= set(selected_rows(layout, selection))
    if partitions == 1 and world[1] == 1:
        assert [row for round_ in zip(*per_rank, strict=True) for row in flat(list(round_))] == whole


@given(layouts(6, 25), st.data(), orders, sizes, worlds(), st.integers(1, 4))
def test_stopping_anywhere_and_resuming_loses_and_repeats_nothing(
    layout: Layout,
    data: st.DataObject,
    how: dict[str, Any],
    size: int,
    world: tuple[int, int],
    partitions: int,
) -> None:
    """Through JSON; on the same ranks the same batches, on others or with other batches the same rows."""
    how |= {"selection": data.draw(selections(layout)), "identity": {"version": "v"}}
    everybody = every_rank(*world)
    total = plan_epoch(layout, batch_size=1, **how).rows
    assume(total >= world[0])
    plans = [
        plan_epoch(layout, batch_size=size, ranks=ranks, partitions=partitions, **how) for ranks in everybody
    ]
    done = data.draw(st.integers(0, len(plans[0])))
    saved = [json.loads(json.dumps(plan.state(done))) for plan in plans]
    assert all(state == saved[0] for state in saved)

    cursor = Cursor.of_state(saved[0], plans[0].facts)
    how |= {"partitions": cursor.partitions, "epoch": cursor.epoch, "start": cursor.rows}
    same = [plan_epoch(layout, batch_size=size, ranks=ranks, **how) for ranks in everybody]
    others_size, others = data.draw(sizes), every_rank(*data.draw(worlds()))
    rest = [row for plan in plans for row in flat(read(plan, done))]

    assert [read(plan) for plan in same] == [read(plan, done) for plan in plans]
    if total - cursor.rows >= len(others) or cursor.rows == total:
        other = [plan_epoch(layout, batch_size=others_size, ranks=ranks, **how) for ranks in others]
        assert sorted(row for plan in other for row in flat(read(plan))) == sorted(rest)
    alone = flat(read(plan_epoch(layout, batch_size=others_size, **how)))
    assert sorted(alone) == sorted(rest)
    if partitions == 1:
        assert alone == rows_of_order(plans[0].order)[cursor.rows :]


@given(layouts(6, 25), st.data(), orders, sizes, worlds())
def test_blocks_are_named_in_the_order_in_which_they_are_needed(
    layout: Layout, data: st.DataObject, how: dict[str, Any], size: int, world: tuple[int, int]
) -> None:
    """Each once, from any batch on: what a reader may prefetch."""
    try:
        plan = plan_epoch(
            layout, batch_size=size, ranks=Ranks(0, *world), partitions=world[1], even="drop", **how
        )
    except ValueError:
        assume(False)
    since = data.draw(st.integers(0, len(plan)))
    needed = [part.block for i in range(since, len(plan)) for part in plan.slices(i)]
    assert list(plan.blocks(since)) == list(dict.fromkeys(needed))


def test_epochs_differ_and_positions_stay_in_theirs() -> None:
    """A position in epoch 3 goes on with epoch 3's order."""
    layout = Layout.of([50, 60], [5, 6])
    orders_ = [rows_of_order(plan_epoch(layout, batch_size=7, shuffle=True, epoch=e).order) for e in range(4)]
    assert len({tuple(rows) for rows in orders_}) == 4
    state = plan_epoch(layout, batch_size=7, shuffle=True, epoch=3).state(2)
    plan = plan_epoch(layout, batch_size=10, shuffle=True, epoch=state["epoch"], start=state["rows"])
    assert flat(read(plan)) == orders_[3][14:]


def test_numbers_of_numpy_are_numbers() -> None:
    """Sizes and seeds often come from arrays; the plan is the same, its state JSON. Fractions are refused."""
    layout = Layout.of([50, 60], [5, 6])
    how = {
        "batch_size": 7,
        "seed": 3,
        "epoch": 1,
        "shuffle_window": 2,
        "limit": 90,
        "partitions": 2,
        "start": 14,
    }
    plan = plan_epoch(layout, shuffle=True, **how)  # type: ignore[arg-type]
    same = plan_epoch(layout, shuffle=True, **{name: np.int32(number) for name, number in how.items()})  # type: ignore[arg-type]
    assert read(same) == read(plan)
    assert json.loads(json.dumps(same.state(1))) == plan.state(1)
    for name in how:
        with pytest.raises(TypeError):
            plan_epoch(layout, shuffle=True, **(how | {name: 1.5}))  # type: ignore[arg-type]


def test_a_plan_crosses_processes() -> None:
    """Pickled, it reads the same rows."""
    layout = Layout.of([50, 60, 7], [5, 60, 2])
    selection = Masks([np.arange(rows) % 2 == 0 for rows in layout.rows])
    for shuffle in (False, True, "full"):
        plan = plan_epoch(layout, batch_size=7, shuffle=shuffle, selection=selection, ranks=Ranks(1, 3))
        assert read(pickle.loads(pickle.dumps(plan))) == read(plan)


def test_resuming_a_million_batches_on_costs_no_rows() -> None:
    """At batch 900,000 of 1,000,000 a plan begins at once: what came before is not ordered again."""
    layout = Layout.of([4000] * 16_000, [100] * 16_000)
    selection = Masks([np.arange(4000) % 2 == 0] * 16_000)
    for shuffle in (False, True, "full"):
        selection.asked.clear()
        plan = plan_epoch(layout, batch_size=32, shuffle=shuffle, selection=selection, start=32 * 900_000)
        assert len(plan) == 100_000
        assert len(plan.slices(0)) >= 1
        assert plan.state(0)["rows"] == 32 * 900_000
        # A shuffle has to know how many selected rows each record batch has; nothing else asks.
        assert sorted(selection.asked) == (list(range(16_000)) if shuffle is True else [])


def test_a_plan_keeps_a_few_numbers_a_shard() -> None:
    """For 100,000 shards of 100,000 rows under 10 MB stay, and under 30 MB are used, whatever the order."""
    n = 100_000
    layout = Layout.of(np.full(n, 100_000), np.full(n, 1500), np.full(n, 2**26), np.full(n, 2**26))
    for shuffle in (False, True, "full"):
        tracemalloc.start()
        plan = plan_epoch(layout, batch_size=1024, shuffle=shuffle, ranks=Ranks(3, 8))
        kept, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert len(plan) == -(-n * 100_000 // (8 * 1024))
        assert kept < 10e6
        assert peak < 30e6


@given(layouts(), st.data(), orders)
def test_a_plan_knows_the_order_that_follows(
    layout: Layout, data: st.DataObject, how: dict[str, Any]
) -> None:
    """That of the next epoch, whatever it is a plan of."""
    how |= {"selection": data.draw(selections(layout)), "batch_size": 4, "even": None}

    follows = plan_epoch(layout, **how).next_order()

    assert rows_of_order(follows) == rows_of_order(
        plan_epoch(layout, **how | {"epoch": how["epoch"] + 1}).order
    )
