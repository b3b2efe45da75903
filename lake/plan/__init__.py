"""Decide which rows are read, in which order and by which rank, before anything is read.

A plan is a pure function of its arguments: no file, clock, thread or socket, NumPy arrays in and out. So all
ranks that are given the same arguments agree without talking, and a test needs neither a store nor a machine.
`lake.scan` carries a plan out.

    layout, selection     what there is: rows, record batches and bytes of each shard, and the rows wanted
    order                 the epoch's order of rows, in blocks; independent of ranks and batch sizes
    share                 which of them a rank takes, in plan batches, and how far all have come after each
    epoch                 both together, for one epoch and rank
    cursor                a position, as the JSON document that a checkpoint keeps
    budget                what carrying it out takes, and whether it fits the cache
    permutation           the frozen algorithms under all of it

>>> layout = Layout.of(rows=[400] * 6, batch_rows=[100] * 6, stored_bytes=[8000] * 6, raw_bytes=[9000] * 6)
>>> plan = plan_epoch(layout, batch_size=100, shuffle=True, shuffle_window=2, seed=7, ranks=Ranks(0, 4))
>>> len(plan), plan.batch(0).runs, plan.slices(2)
(6, ((0, 100),), [Slice(block=2, start=0, stop=100)])
>>> cursor = Cursor.of_state(plan.state(2), plan.facts)
>>> cursor.rows
800
"""

from lake.plan.budget import (
    Plan,
    check_budget,
    fetch_bytes,
    machine_partitions,
    resident_bytes,
    step_bytes,
    summarize,
)
from lake.plan.cursor import Cursor, Facts, facts, merge_states
from lake.plan.epoch import EpochPlan, Slice, plan_epoch
from lake.plan.layout import Layout, Selection, ramps
from lake.plan.order import DEFAULT_WINDOW, Block, Order, Piece, Shuffle, order_rows
from lake.plan.permutation import ALGORITHM
from lake.plan.share import Even, PlanBatch, Ranks, Share

__all__ = [
    "ALGORITHM",
    "DEFAULT_WINDOW",
    "Block",
    "Cursor",
    "EpochPlan",
    "Even",
    "Facts",
    "Layout",
    "Order",
    "Piece",
    "Plan",
    "PlanBatch",
    "Ranks",
    "Selection",
    "Share",
    "Shuffle",
    "Slice",
    "check_budget",
    "facts",
    "fetch_bytes",
    "machine_partitions",
    "merge_states",
    "order_rows",
    "plan_epoch",
    "ramps",
    "resident_bytes",
    "step_bytes",
    "summarize",
]
