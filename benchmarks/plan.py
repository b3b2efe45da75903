"""Planning an epoch of a million shards: seconds, memory, the place of a batch, and what resuming costs.

Seconds are of the processor. Planning is compared with one argsort of as many numbers as there are shards.
"""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.report import Bar, cpu_seconds, median_and_spread, table, versions
from lake.plan import EpochPlan, Layout, Ranks, Shuffle, plan_epoch

ORDERS: tuple[Shuffle, ...] = (False, True, "full")

Figures = dict[str, Any]


def layout_of(shards: int) -> Layout:
    """Shards of uneven size with some 64 record batches each."""
    rng = np.random.default_rng(0)
    rows = rng.integers(40_000, 90_000, shards)
    return Layout.of(rows, np.full(shards, 1024), rows * 1000, rows * 1100)


def plan(layout: Layout, shuffle: Shuffle, *, done: float = 0.0) -> EpochPlan:
    """The plan of one rank of eight, with this fraction of the epoch done."""
    start = int(int(layout.rows.sum()) * done) // 8192 * 8192
    return plan_epoch(layout, batch_size=1024, shuffle=shuffle, ranks=Ranks(3, 8), start=start)


def peak_bytes(layout: Layout, shuffle: Shuffle) -> int:
    """What planning allocates at most beside the layout."""
    tracemalloc.start()
    plan(layout, shuffle)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def measure(layout: Layout, shuffle: Shuffle, rounds: int) -> Figures:
    """The figures of one order."""
    shards = len(layout.rows)
    numbers = np.random.default_rng(1).integers(0, 2**63, shards, dtype=np.uint64)
    planning, sorting, resuming = [], [], []
    for _ in range(rounds):  # interleaved, so that all see the same neighbours on the machine
        sorting.append(cpu_seconds(lambda: np.argsort(numbers)))
        planning.append(cpu_seconds(lambda: plan(layout, shuffle)))
        resuming.append(cpu_seconds(lambda: plan(layout, shuffle, done=0.9).slices(0)))
    ready = plan(layout, shuffle)
    places = np.random.default_rng(2).integers(0, ready.rows, 100_000).tolist()
    locating = [
        cpu_seconds(lambda: [ready.order.locate(place) for place in places]) / len(places)
        for _ in range(rounds)
    ]
    batches = np.random.default_rng(3).integers(0, len(ready), 20_000).tolist()
    cutting = [cpu_seconds(lambda: [ready.slices(i) for i in batches]) / len(batches) for _ in range(rounds)]
    few = plan(layout_of(1000), shuffle).order  # a full shuffle's block has rows of every shard
    blocks = range(0, few.blocks, few.blocks // 8)
    rows = sum(few.block(t).count for t in blocks)
    ordering = [cpu_seconds(lambda: [few.block(t) for t in blocks]) / rows for _ in range(rounds)]
    seconds_, spread = median_and_spread(planning)
    return {
        "plan_seconds": seconds_,
        "plan_spread": spread,
        "times_one_argsort": seconds_ / median_and_spread(sorting)[0],
        "peak_bytes": peak_bytes(layout, shuffle),
        "place_microseconds": 1e6 * median_and_spread(locating)[0],
        "batch_microseconds": 1e6 * median_and_spread(cutting)[0],
        "row_nanoseconds": 1e9 * median_and_spread(ordering)[0],
        "resume_seconds": median_and_spread(resuming)[0],
    }


def run(quick: bool) -> Figures:
    """Measure. Quick: a tenth of the shards, three rounds."""
    shards = 100_000 if quick else 1_000_000
    layout = layout_of(shards)
    orders = {str(shuffle): measure(layout, shuffle, 3 if quick else 5) for shuffle in ORDERS}
    return {"versions": versions("numpy"), "shards": shards, "rows": int(layout.rows.sum()), "orders": orders}


def bars(figures: Figures) -> list[Bar]:
    """Of bar 15 what planning decides: opening a version that large is another script's."""
    orders = figures["orders"].values()
    slowest = max(of["plan_seconds"] for of in orders)
    largest = max(of["peak_bytes"] for of in orders)
    place = max(of["place_microseconds"] for of in orders)
    what = f"planning {figures['shards']:,} shards, the worst order"
    return [
        Bar(15, what, "≤ 10 s", f"{slowest:.2f} s", slowest <= 10),
        Bar(15, what, "≤ 2 GB", f"{largest / 1e9:.2f} GB", largest <= 2e9),
        Bar(15, "place of a batch", "≤ 5 us", f"{place:.1f} us", place <= 5),
    ]


def page(figures: Figures) -> str:
    """The table as Markdown."""
    rows = [
        [
            name,
            f"{of['plan_seconds']:.2f} ±{of['plan_spread']:.2f} s",
            f"{of['times_one_argsort']:.1f}",
            f"{of['peak_bytes'] / 1e6:.0f} MB",
            f"{of['place_microseconds']:.1f} us",
            f"{of['batch_microseconds']:.1f} us",
            f"{of['row_nanoseconds']:.0f} ns",
            f"{of['resume_seconds']:.2f} s",
        ]
        for name, of in figures["orders"].items()
    ]
    header = ["shuffle", "plan", "/ argsort", "peak", "place", "batch", "order of a row", "resume at 90 %"]
    return f"{figures['shards']:,} shards, {figures['rows']:,} rows.\n\n{table(header, rows)}"


def draw(figures: Figures, *, quick: bool) -> Path | None:
    """Nothing: the table says it all."""
