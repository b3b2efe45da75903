"""What carrying out a plan takes: bytes in the cache, bytes to fetch, decoded bytes; and whether they fit.

Numbers are what the plan needs, whatever the cache holds already. The ranks of a machine share its cache and
step together, so that they count once, plus the blocks that lie between the first and the last of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lake.errors import BudgetError
from lake.plan.epoch import EpochPlan
from lake.plan.order import DEFAULT_WINDOW, Order
from lake.plan.permutation import Ints
from lake.plan.share import Ranks


@dataclass(frozen=True, slots=True)
class Plan:
    """What a scan is going to do, as numbers. Prints as a table."""

    batches: int  # of this rank
    rows: int  # of all ranks
    shards: int  # that have any of these rows
    resident_bytes: int  # that this machine's cache holds at once
    fetch_bytes: int  # that this machine reads, cached or not
    memory_bytes: int  # decoded, that one rank holds at once: two blocks

    def __str__(self) -> str:
        lines = [
            ("batches", f"{self.batches:,}", "of this rank"),
            ("rows", f"{self.rows:,}", "of all ranks"),
            ("shards", f"{self.shards:,}", ""),
            ("resident", size_text(self.resident_bytes), "held in this machine's cache at once"),
            ("fetch", size_text(self.fetch_bytes), "read by this machine, from cache or store"),
            ("memory", size_text(self.memory_bytes), "decoded at once, by each rank"),
        ]
        width = max(len(number) for _, number, _ in lines)
        return "\n".join(f"{name:<10}{number:>{width}}  {note}".rstrip() for name, number, note in lines)


def summarize(plan: EpochPlan) -> Plan:
    """The plan as numbers."""
    order = plan.order
    return Plan(
        batches=len(plan),
        rows=order.rows,
        shards=len(_touched(order)),
        resident_bytes=resident_bytes(plan),
        fetch_bytes=fetch_bytes(plan),
        memory_bytes=2 * int(_block_bytes(order, order.layout.raw_bytes).max(initial=0)),
    )


def resident_bytes(plan: EpochPlan) -> int:
    """Bytes that must be in this machine's cache at once: the window's shards, or all of them opened.

    Which shards a shuffle brings together is another matter in each epoch: the largest may come together, and what
    is enough for one epoch must be enough for the next.
    """
    return _bytes_within(plan, _rows_at_once(plan), any_epoch=True)


def step_bytes(plan: EpochPlan, batches: int) -> int:
    """The same of this epoch, where what a rank reads for so many batches stays until it has them all."""
    return _bytes_within(plan, max(_rows_at_once(plan), batches * _local_rows(plan)))


def fetch_bytes(plan: EpochPlan) -> int:
    """Bytes of the pieces that this machine's partitions still need; both sides of a cut count its block."""
    order, cut = plan.order, plan.share.partitions
    if order.shuffle == "full":
        return int(order.layout.stored_bytes[_touched(order)].sum()) if len(plan) else 0
    sums = np.concatenate([[0.0], np.cumsum(_block_bytes(order, order.layout.stored_bytes))])
    total = 0.0
    for number in machine_partitions(plan):
        start, stop = cut.rest(number, plan.share.start)
        if start < stop:
            total += sums[order.locate(stop - 1)[0] + 1] - sums[order.locate(start)[0]]
    return round(total)


def check_budget(plan: EpochPlan, budget: int | None, *, others: Mapping[str, int] | None = None) -> None:
    """Refuse a plan whose resident bytes exceed the cache's budget (None: unlimited).

    `others` are ways out that only the caller knows, and their needs: `{"columns=['label']": 40_000_000}`.

    Raises:
        BudgetError: with the numbers, and what to change.
    """
    needed = resident_bytes(plan)
    if budget is None or needed <= budget:
        return
    order = plan.order
    if order.shuffle == "full":
        problem = f"shuffle='full' keeps {size_text(needed)} open"
    elif order.shuffle:
        problem = f"shuffle=True keeps {order.window:,} shards, {size_text(needed)}"
    else:
        problem = f"a scan keeps whole shards, {size_text(needed)}"
    ways = _ways_out(plan, budget) + [(name, size) for name, size in (others or {}).items() if size <= budget]
    if ways:
        (name, size), *rest = ways
        advice = "; ".join([f"{name} needs {size_text(size)}", *(f"{n} {size_text(s)}" for n, s in rest)])
    else:
        advice = f"Raise the cache's budget to {size_text(needed)}"
    raise BudgetError(f"{problem}; budget {size_text(budget)}. {advice}.", needed=needed, budget=budget)


def machine_partitions(plan: EpochPlan) -> list[int]:
    """The partitions that this rank's machine takes rows of."""
    count, ranks = plan.partitions, plan.ranks or Ranks(0, 1)
    slots = ranks.slots(count)
    first, end = slots.start * count // ranks.world_size, -(-slots.stop * count // ranks.world_size)
    numbers: list[int] = plan.share.partitions.order[first:end].tolist()
    return numbers


def size_text(size: int) -> str:
    """Bytes as a person reads them.

    >>> size_text(1_100_000_000), size_text(60_000_000_000), size_text(999)
    ('1.1 GB', '60 GB', '999 B')
    """
    number, units = float(size), iter(("B", "kB", "MB", "GB", "TB", "PB"))
    unit = next(units)
    while number >= 999.5 and unit != "PB":
        number, unit = number / 1000, next(units)
    return f"{number:.1f} {unit}" if unit != "B" and number < 9.95 else f"{number:.0f} {unit}"


def _ways_out(plan: EpochPlan, budget: int) -> list[tuple[str, int]]:
    """The widest shuffle that certainly fits the budget: with the largest shards in one window."""
    order = plan.order
    if not order.shuffle:
        return []
    stored = order.layout.stored_bytes[order.visit]
    needs = np.cumsum(np.sort(stored)[::-1]) * len(machine_partitions(plan))
    between = 1 if plan.ranks is not None and plan.ranks.world_size > 1 else 0
    widest = DEFAULT_WINDOW if order.shuffle == "full" else order.window - 1
    window = min(int(np.searchsorted(needs, budget, side="right")) - between, widest, len(needs))
    if window < 1:
        return []
    name = "shuffle=True" if order.shuffle == "full" else ""
    if window < min(widest, len(needs)) or not name:
        name = f"{name}, shuffle_window={window}".removeprefix(", ")
    return [(name, int(needs[min(window + between, len(needs)) - 1]))]


def _touched(order: Order) -> Ints:
    """The shards that the plan's blocks need."""
    if not order.blocks:
        return order.visit[:0]
    return order.visit[: order.blocks + order.window - 1]


def _local_rows(plan: EpochPlan) -> int:
    """Rows of a batch of each rank of this machine."""
    ranks = plan.ranks or Ranks(0, 1)
    return len(ranks.of_node(ranks.node)) * plan.share.batch_size


def _rows_at_once(plan: EpochPlan) -> int:
    """Rows whose blocks this machine needs together: a lone rank takes its blocks one after the other."""
    alone = plan.ranks is None or plan.ranks.world_size == 1
    return 1 if alone else _local_rows(plan)


def _bytes_within(plan: EpochPlan, rows: int, *, any_epoch: bool = False) -> int:
    """The most that is needed at once of the shards of the blocks that so many rows in a run lie in."""
    order, partitions = plan.order, len(machine_partitions(plan))
    if order.shuffle == "full":
        return int(order.layout.raw_bytes[_touched(order)].sum())
    window = order.window + _blocks_within(order, -(-rows // partitions))
    return _window_bytes(order, window, partitions, any_epoch=any_epoch)


def _blocks_within(order: Order, rows: int) -> int:
    """How many blocks, at most, begin after the first of `rows` rows in a run."""
    if not order.blocks:
        return 0
    lasts = np.minimum(order.starts[1:] + rows - 2, order.rows - 1)
    return int((np.searchsorted(order.starts, lasts, side="right") - 1 - np.arange(order.blocks)).max())


def _window_bytes(order: Order, window: int, partitions: int, *, any_epoch: bool) -> int:
    """The most that any `window` shards that are visited in a run take in the store, in each of the partitions."""
    stored, touched = order.layout.stored_bytes[order.visit], len(_touched(order))
    if order.shuffle and any_epoch:
        stored = np.sort(stored)[::-1]
    total = int(stored[:touched].sum())
    if window >= len(stored):
        return total
    count = order.blocks if order.shuffle else order.blocks - window + 1
    most = int(_moving_sums(stored, window)[: max(1, count)].max(initial=0))
    return min(total, partitions * most)


def _block_bytes(order: Order, shard_bytes: Ints) -> npt.NDArray[np.float64]:
    """What each block takes of its shards' bytes, as far as is known before they are read."""
    of_shards = shard_bytes[order.visit]
    if order.shuffle == "full":
        return np.diff(order.starts) * (int(of_shards.sum()) / max(1, order.rows))
    return _moving_sums(of_shards, order.window)[: order.blocks] / max(1, order.window)


def _moving_sums(numbers: Ints, window: int) -> Ints:
    """Sums of each number and the window - 1 that follow it, over the end to the first."""
    sums = np.cumsum(np.concatenate([np.zeros(1, dtype=np.int64), numbers, numbers[: window - 1]]))
    moved: Ints = sums[window:] - sums[: len(sums) - window]
    return moved
