"""Planning an epoch of a million shards: seconds, memory, the place of a batch, and what resuming costs.

    python -m benchmarks.plan [--quick]

Seconds are of the processor. Planning is compared with one argsort of as many numbers as there are shards.
"""

from __future__ import annotations

import argparse
import tracemalloc
from typing import Any

import numpy as np

from benchmarks.report import cpu_seconds, median_and_spread, table, write
from lake.plan import EpochPlan, Layout, Ranks, Shuffle, plan_epoch

ORDERS: tuple[Shuffle, ...] = (False, True, "full")


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


def measure(layout: Layout, shuffle: Shuffle, rounds: int) -> dict[str, Any]:
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


def main() -> None:
    """Measure, print, keep."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="a tenth of the shards")
    quick = parser.parse_args().quick
    shards = 100_000 if quick else 1_000_000
    layout = layout_of(shards)
    rounds = 3 if quick else 5
    figures = {str(shuffle): measure(layout, shuffle, rounds) for shuffle in ORDERS}
    print(f"{shards:,} shards, {int(layout.rows.sum()):,} rows; bars: place 5 us, planning 10 s and 2 GB")
    print(
        table(
            ["shuffle", "plan", "/ argsort", "peak", "place", "batch", "order of a row", "resume at 90 %"],
            [
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
                for name, of in figures.items()
            ],
        )
    )
    print(write("plan", {"shards": shards, "orders": figures}, "numpy"))


if __name__ == "__main__":
    main()
