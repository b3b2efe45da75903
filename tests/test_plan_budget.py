"""What a plan takes, in bytes: as much as carrying it out needs, and refused where it cannot fit."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from hypothesis import assume
from hypothesis import strategies as st

from lake.errors import BudgetError
from lake.plan import (
    EpochPlan,
    Layout,
    Ranks,
    check_budget,
    fetch_bytes,
    plan_epoch,
    resident_bytes,
    step_bytes,
    summarize,
)
from tests.plans import every_rank, given, layouts, orders, worlds

MB = 1_000_000
SHARDS = Layout.of([640] * 40, [10] * 40, [64 * MB] * 40, [80 * MB] * 40)


def held(plans: list[EpochPlan], *, together: bool = False) -> int:
    """The most bytes in a cache that keeps what the ranks of a machine, stepping together, still need.

    `together`: also a lone rank keeps all that it reads for a batch.
    """
    order = plans[0].order
    most = 0
    for i in range(max(len(plan) for plan in plans)):
        of_step = [part.block for plan in plans if i < len(plan) for part in plan.slices(i)]
        if len(plans) == 1 and not together:  # one rank takes its blocks one after the other
            needs = [set(order.shards(block).tolist()) for block in of_step]
        else:
            needs = [{shard for block in of_step for shard in order.shards(block).tolist()}]
        most = max([most, *(int(order.layout.stored_bytes[sorted(shards)].sum()) for shards in needs)])
    return most


@given(layouts(), orders, st.integers(1, 9), worlds(4), st.booleans())
def test_what_is_resident_fits_what_the_plan_said(
    layout: Layout, how: dict[str, Any], batch_size: int, world: tuple[int, int], nodes_apart: bool
) -> None:
    """For one rank and for the ranks of a machine together, at every step but the cut last ones."""
    how = how | {"shuffle": bool(how["shuffle"])}
    ranks = [r for r in every_rank(*world) if r.node == 0]
    partitions = world[1] if nodes_apart else 1
    try:
        plans = [
            plan_epoch(layout, batch_size=batch_size, ranks=r, partitions=partitions, even="drop", **how)
            for r in ranks
        ]
    except ValueError:
        assume(False)
    assert held(plans) <= resident_bytes(plans[0])


@given(layouts(), orders)
def test_a_lone_reader_needs_its_window_and_no_more(layout: Layout, how: dict[str, Any]) -> None:
    """In order, the figure is reached: a smaller cache would have to read something twice."""
    plan = plan_epoch(layout, batch_size=3, **(how | {"shuffle": False}))
    assert held([plan]) == resident_bytes(plan) <= held([plan], together=True) <= step_bytes(plan, 1)


@given(layouts(), orders, st.integers(1, 50))
def test_what_fits_in_one_epoch_fits_in_every_other(layout: Layout, how: dict[str, Any], epoch: int) -> None:
    """The largest shards come together in one epoch and apart in another: a run must not end with that."""
    first, other = (
        plan_epoch(layout, batch_size=3, **(how | {"shuffle": True, "epoch": number}))
        for number in (0, epoch)
    )
    assert resident_bytes(first) == resident_bytes(other)
    assert held([other]) <= resident_bytes(first)


def test_a_shuffle_needs_what_its_largest_shards_take() -> None:
    """And that is reached by some epoch, so that less would not do."""
    layout = Layout.of([8] * 6, [1] * 6, [5, 1, 9, 2, 7, 3], [1] * 6)
    plans = [
        plan_epoch(layout, batch_size=3, shuffle=True, shuffle_window=2, epoch=epoch) for epoch in range(20)
    ]
    assert {resident_bytes(plan) for plan in plans} == {16} == {max(held([plan]) for plan in plans)}
    assert min(held([plan]) for plan in plans) < 16


@given(layouts(), orders)
def test_all_pieces_together_are_all_bytes(layout: Layout, how: dict[str, Any]) -> None:
    """An epoch without limit fetches each shard that has rows once."""
    plan = plan_epoch(layout, batch_size=3, **(how | {"limit": None}))
    assert fetch_bytes(plan) == pytest.approx(int(layout.stored_bytes[layout.rows > 0].sum()), abs=1)
    over = plan_epoch(layout, batch_size=3, start=plan.rows, **(how | {"limit": None}))
    assert fetch_bytes(over) == 0


def test_two_nodes_fetch_half_each() -> None:
    """And what lies on the cut twice."""
    for node in range(2):
        plan = plan_epoch(SHARDS, batch_size=10, shuffle=True, ranks=Ranks(2 * node, 4, 2), partitions=2)
        assert fetch_bytes(plan) == 20 * 64 * MB
    plan = plan_epoch(SHARDS, batch_size=10, ranks=Ranks(0, 3, 3), partitions=3)
    assert fetch_bytes(plan) == 14 * 64 * MB


def test_residency_of_each_order() -> None:
    """In sequence a shard, shuffled the window, in full everything opened."""
    assert resident_bytes(plan_epoch(SHARDS, batch_size=10)) == 64 * MB
    assert resident_bytes(plan_epoch(SHARDS, batch_size=10, shuffle=True)) == 16 * 64 * MB
    assert resident_bytes(plan_epoch(SHARDS, batch_size=10, shuffle="full")) == 40 * 80 * MB
    assert resident_bytes(plan_epoch(SHARDS, batch_size=10, shuffle=True, ranks=Ranks(0, 8))) == 17 * 64 * MB
    both = plan_epoch(SHARDS, batch_size=10, shuffle=True, shuffle_window=8, partitions=2)
    assert resident_bytes(both) == 2 * 8 * 64 * MB


@pytest.mark.parametrize(
    ("how", "budget", "says"),
    [
        (
            {"shuffle": "full"},
            1500 * MB,
            "shuffle='full' keeps 3.2 GB open; budget 1.5 GB. shuffle=True needs 1.0 GB; columns=[0] 40 MB.",
        ),
        (
            {"shuffle": "full"},
            200 * MB,
            (
                "shuffle='full' keeps 3.2 GB open; budget 200 MB. shuffle=True, shuffle_window=3 needs "
                "192 MB; columns=[0] 40 MB."
            ),
        ),
        (
            {"shuffle": True},
            500 * MB,
            (
                "shuffle=True keeps 16 shards, 1.0 GB; budget 500 MB. "
                "shuffle_window=7 needs 448 MB; columns=[0] 40 MB."
            ),
        ),
        (
            {"shuffle": True, "ranks": Ranks(0, 2)},
            500 * MB,
            (
                "shuffle=True keeps 16 shards, 1.1 GB; budget 500 MB. "
                "shuffle_window=6 needs 448 MB; columns=[0] 40 MB."
            ),
        ),
        ({}, 50 * MB, "a scan keeps whole shards, 64 MB; budget 50 MB. columns=[0] needs 40 MB."),
        ({}, 5 * MB, "a scan keeps whole shards, 64 MB; budget 5.0 MB. Raise the cache's budget to 64 MB."),
    ],
)
def test_what_cannot_fit_is_refused_with_ways_out(how: dict[str, Any], budget: int, says: str) -> None:
    """The numbers, and orders or columns that do fit; the error crosses processes whole."""
    plan = plan_epoch(SHARDS, batch_size=10, **how)
    with pytest.raises(BudgetError) as error:
        check_budget(plan, budget, others={"columns=[0]": 40 * MB})
    assert str(error.value) == says
    again = pickle.loads(pickle.dumps(error.value))
    assert (again.needed, again.budget, str(again)) == (resident_bytes(plan), budget, says)


@given(layouts(), orders, st.integers(0, 9000))
def test_a_window_that_is_advised_fits(layout: Layout, how: dict[str, Any], budget: int) -> None:
    """Doing what the message says is enough."""
    how = how | {"shuffle": True}
    plan = plan_epoch(layout, batch_size=3, **how)
    check_budget(plan, resident_bytes(plan))
    check_budget(plan, None)
    assume(resident_bytes(plan) > budget)
    with pytest.raises(BudgetError) as error:
        check_budget(plan, budget)
    _, _, advised = str(error.value).partition("shuffle_window=")
    if advised:
        window = int(advised.split()[0])
        assert window < plan.order.window
        check_budget(plan_epoch(layout, batch_size=3, **(how | {"shuffle_window": window})), budget)


def test_a_plan_prints_as_a_table() -> None:
    """What is going to happen, at a glance."""
    plan = summarize(plan_epoch(SHARDS, batch_size=10, shuffle=True, ranks=Ranks(0, 4)))
    assert (plan.batches, plan.rows, plan.shards, plan.fetch_bytes) == (640, 25_600, 40, 40 * 64 * MB)
    assert str(plan) == (
        "batches      640  of this rank\n"
        "rows      25,600  of all ranks\n"
        "shards        40\n"
        "resident  1.1 GB  held in this machine's cache at once\n"
        "fetch     2.6 GB  read by this machine, from cache or store\n"
        "memory    160 MB  decoded at once, by each rank"
    )


def test_blocks_of_a_full_shuffle_are_bounded_by_bytes() -> None:
    """Rows of a megabyte make blocks of 64 rows, which is what a reader may hold; small rows many more."""
    large = plan_epoch(
        Layout.of([1000] * 9, [4] * 9, [2**30] * 9, [1000 * 2**20] * 9), batch_size=10, shuffle="full"
    )
    assert large.order.starts[:3].tolist() == [0, 64, 128]
    assert summarize(large).memory_bytes == 2 * 64 * 2**20
    small = plan_epoch(Layout.of([100_000] * 9, [4] * 9), batch_size=10, shuffle="full")
    assert small.order.starts[:3].tolist() == [0, 65_536, 131_072]


def test_a_plan_of_nothing_takes_nothing() -> None:
    """No shards, or a condition that no row meets."""
    for shuffle in (False, True, "full"):
        plan = summarize(plan_epoch(Layout.of([], []), batch_size=10, shuffle=shuffle))
        assert (plan.batches, plan.rows, plan.shards, plan.resident_bytes, plan.memory_bytes) == (0,) * 5


def test_a_limit_needs_only_the_shards_it_touches() -> None:
    """The first rows of a sequence are in its first shard; of a shuffle, in its first window."""
    assert summarize(plan_epoch(SHARDS, batch_size=10, limit=100)).shards == 1
    assert summarize(plan_epoch(SHARDS, batch_size=10, limit=100, shuffle=True)).shards == 16
