"""Layouts, selections and arguments of plans, as Hypothesis strategies; and a plan read out row by row."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import hypothesis
import numpy as np
from hypothesis import strategies as st

from lake.plan import EpochPlan, Layout, Order, Ranks


def given(*strategies: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Hypothesis' `given` without a deadline: how long an example takes is no property of a plan."""
    return lambda test: hypothesis.settings(deadline=None)(hypothesis.given(*strategies)(test))


Row = tuple[int, int]  # shard, row within the shard


@dataclass
class Masks:
    """A selection held as one boolean array a shard; `asked` are the shards whose rows were asked for."""

    masks: list[np.ndarray]

    def __post_init__(self) -> None:
        self.asked: list[int] = []

    @property
    def counts(self) -> np.ndarray:
        return np.array([mask.sum() for mask in self.masks], dtype=np.int64)

    def rows(self, shard: int) -> np.ndarray:
        self.asked.append(shard)
        return np.flatnonzero(self.masks[shard])


@st.composite
def layouts(draw: st.DrawFn, max_shards: int = 8, max_rows: int = 40) -> Layout:
    """Shards with and without rows, of one record batch or many."""
    rows = draw(st.lists(st.integers(0, max_rows), max_size=max_shards))
    sizes = [draw(st.integers(1, 12)) for _ in rows]
    stored = [draw(st.integers(0, 1000)) for _ in rows]
    return Layout.of(rows, sizes, stored, [2 * size for size in stored])


@st.composite
def selections(draw: st.DrawFn, layout: Layout) -> Masks | None:
    """No selection, or one that keeps all, some or none of each shard's rows."""
    if draw(st.booleans()):
        return None
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    return Masks([rng.random(rows) < draw(st.sampled_from([0, 0.1, 0.7, 1])) for rows in layout.rows])


orders = st.fixed_dictionaries(
    {
        "shuffle": st.sampled_from([False, True, "full"]),
        "seed": st.integers(-(2**63), 2**64 - 1),
        "epoch": st.integers(0, 3),
        "shuffle_window": st.integers(1, 9),
        "limit": st.none() | st.integers(0, 60),
    }
)


@st.composite
def worlds(draw: st.DrawFn, max_ranks: int = 6) -> tuple[int, int]:
    """A number of ranks, and of nodes they are on."""
    size = draw(st.integers(1, max_ranks))
    return size, draw(st.integers(1, size))


def every_rank(world_size: int, nodes: int) -> list[Ranks]:
    return [Ranks(rank, world_size, nodes) for rank in range(world_size)]


def rows_of_order(order: Order) -> list[Row]:
    """All rows in the order in which they come out."""
    blocks = [order.block_rows(t) for t in range(order.blocks)]
    return [row for shards, rows in blocks for row in zip(shards.tolist(), rows.tolist(), strict=True)]


def selected_rows(layout: Layout, selection: Masks | None) -> list[Row]:
    """The rows that a plan without shuffle gives, found the slow way."""
    return [
        (shard, row)
        for shard, rows in enumerate(layout.rows)
        for row in range(rows)
        if selection is None or selection.masks[shard][row]
    ]


def places(runs: Iterable[tuple[int, int]]) -> list[int]:
    return [place for start, stop in runs for place in range(start, stop)]


def batches(plan: EpochPlan | Any) -> list[list[int]]:
    """The places of each plan batch of a rank."""
    share = getattr(plan, "share", plan)
    return [places(share[i].runs) for i in range(len(share))]
