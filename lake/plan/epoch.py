"""One epoch for one rank: the order of its rows and this rank's share of them, put together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

from lake.asked import whole
from lake.plan.cursor import Cursor, Facts, facts
from lake.plan.layout import Layout, Selection
from lake.plan.order import DEFAULT_WINDOW, Order, Shuffle, order_rows
from lake.plan.share import Even, PlanBatch, Ranks, Share


class Slice(NamedTuple):
    """Rows [start, stop) of a block, as they come out of it."""

    block: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True, eq=False)
class EpochPlan:
    """What one rank still reads of an epoch: `len(plan)` plan batches, numbered from where it begins."""

    order: Order
    share: Share
    ranks: Ranks | None
    epoch: int
    facts: Facts

    def __len__(self) -> int:
        return len(self.share)

    @property
    def rows(self) -> int:
        """Rows of the whole epoch, for all ranks."""
        return self.order.rows

    @property
    def partitions(self) -> int:
        """How many runs the epoch's order is cut into."""
        return self.share.partitions.count

    def batch(self, i: int) -> PlanBatch:
        """Plan batch i of this rank: places in the epoch's order."""
        return self.share[i]

    def slices(self, i: int) -> list[Slice]:
        """Plan batch i of this rank: rows of blocks, in the order in which they come out."""
        slices = []
        for start, stop in self.share[i].runs:
            while start < stop:
                block, offset = self.order.locate(start)
                size = min(stop, int(self.order.starts[block + 1])) - start
                slices.append(Slice(block, offset, offset + size))
                start += size
        return slices

    def blocks(self, i: int = 0) -> Iterator[int]:
        """The blocks that this rank needs from batch i on, each once, in the order of first need."""
        seen = bytearray(self.order.blocks)
        for number in range(i, len(self)):
            for block, _, _ in self.slices(number):
                if not seen[block]:
                    seen[block] = True
                    yield block

    def next_order(self) -> Order:
        """The order of the epoch after this one."""
        if not self.order.shuffle:
            return self.order
        return order_rows(
            self.order.layout,
            selection=self.order.selection,
            shuffle=self.order.shuffle,
            seed=cast(int, self.facts["seed"]),
            epoch=self.epoch + 1,
            shuffle_window=cast(int, self.facts.get("shuffle_window", DEFAULT_WINDOW)),
            limit=cast(int | None, self.facts.get("limit")),
        )

    def cursor(self, i: int) -> Cursor:
        """The position after this rank's first i batches."""
        rows, common = self.share.position(i)
        return Cursor(self.facts, self.partitions, self.epoch, rows, self.rows, common)

    def state(self, i: int) -> dict[str, Any]:
        """`cursor(i)` as a JSON document: a rank's state after i batches serves all that step together."""
        return self.cursor(i).state()


def plan_epoch(
    layout: Layout,
    *,
    batch_size: int,
    selection: Selection | None = None,
    shuffle: Shuffle = False,
    seed: int = 0,
    epoch: int = 0,
    shuffle_window: int = DEFAULT_WINDOW,
    limit: int | None = None,
    ranks: Ranks | None = None,
    partitions: int = 1,
    even: Even = "split",
    start: int = 0,
    identity: Mapping[str, Any] | None = None,
) -> EpochPlan:
    """What a rank reads of an epoch, from row `start` of all ranks' on: a pure function of its arguments.

    `identity` names what is read (version, columns, condition) in the states of this plan. To go on from a
    cursor: its `partitions`, `epoch`, and `start=cursor.rows`.

    >>> plan = plan_epoch(Layout.of([4, 3], [2, 2]), batch_size=2, ranks=Ranks(1, 2))
    >>> [plan.slices(i) for i in range(len(plan))]
    [[Slice(block=0, start=2, stop=4)], [Slice(block=1, start=2, stop=3)]]

    Raises:
        ValueError: fewer rows than ranks, or an argument that means nothing.
    """
    seed, epoch = whole("seed", seed), whole("epoch", epoch)
    shuffle_window = whole("shuffle_window", shuffle_window)
    limit = None if limit is None else whole("limit", limit)
    order = order_rows(
        layout,
        selection=selection,
        shuffle=shuffle,
        seed=seed,
        epoch=epoch,
        shuffle_window=shuffle_window,
        limit=limit,
    )
    share = Share.of(order.rows, batch_size, ranks, partitions=partitions, even=even, start=start)
    said = facts(identity or {}, shuffle=shuffle, seed=seed, shuffle_window=shuffle_window, limit=limit)
    return EpochPlan(order, share, ranks, epoch, said)
