"""How good a shuffle is, beside a uniform permutation of the same rows.

The measures, of the order in which rows come out:

- same shard: how often the next row is from the same shard;
- displacement: how far a row has moved, as a fraction of the rows (uniform: 1/3);
- rank correlation of places before and after (uniform: 0);
- together: how many neighbours of the version end within one batch of 256.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.report import Bar, canvas, median_and_spread, plot, plus_minus, table, versions
from lake.plan import Layout, Shuffle, order_rows

SHARDS, BATCHES, BATCH = 64, 64, 256

Figures = dict[str, Any]
Numbers = np.ndarray
MEASURES = ("same shard", "displacement", "rank correlation", "together")


def read_out(layout: Layout, shuffle: Shuffle, window: int, seed: int) -> Numbers:
    """The rows' numbers in the version, in the order in which they come out."""
    order = order_rows(layout, shuffle=shuffle, shuffle_window=window, seed=seed)
    firsts = np.cumsum(layout.rows) - layout.rows
    blocks = map(order.block_rows, range(order.blocks))
    return np.concatenate([firsts[shards] + rows for shards, rows in blocks])


def quality(layout: Layout, numbers: Numbers) -> tuple[float, ...]:
    """The measures of an order."""
    size = len(numbers)
    shards = np.repeat(np.arange(len(layout.rows)), layout.rows)[numbers]
    places = np.empty(size, dtype=np.int64)
    places[numbers] = np.arange(size)
    return (
        float((shards[1:] == shards[:-1]).mean()),
        float(np.abs(places - np.arange(size)).mean() / size),
        float(np.corrcoef(places, np.arange(size))[0, 1]),
        float((np.abs(np.diff(places)) < 256).mean()),
    )


def layout() -> Layout:
    """What is shuffled: level shards."""
    return Layout.of([BATCHES * BATCH] * SHARDS, [BATCH] * SHARDS)


def orders(layout: Layout) -> dict[str, Callable[[int], Numbers]]:
    """What is compared: each makes an order from a seed."""
    size = int(layout.rows.sum())
    return {
        "uniform": lambda seed: np.random.default_rng(seed).permutation(size),
        "shuffle='full'": lambda seed: read_out(layout, "full", 16, seed),
        **{
            f"shuffle=True, window {window}": lambda seed, window=window: read_out(layout, True, window, seed)
            for window in (64, 16, 4)
        },
        "one batch a shard, window 16": lambda seed: read_out(
            Layout.of(layout.rows, layout.rows), True, 16, seed
        ),
        "shuffle=False": lambda seed: read_out(layout, False, 16, seed),
    }


def run(quick: bool) -> Figures:
    """Measure. Quick: fewer seeds."""
    seeds = 3 if quick else 9
    shuffled = layout()
    compared: dict[str, dict[str, tuple[float, float]]] = {}
    for name, order in orders(shuffled).items():
        results = zip(*(quality(shuffled, order(seed)) for seed in range(seeds)), strict=True)
        compared[name] = {m: median_and_spread(of) for m, of in zip(MEASURES, results, strict=True)}
    return {"versions": versions("numpy"), "seeds": seeds, "orders": compared}


def bars(figures: Figures) -> list[Bar]:
    """None: quality is shown, beside uniform."""
    return []


def page(figures: Figures) -> str:
    """The table as Markdown."""
    rows = [[name, *(plus_minus(of[m], 4) for m in MEASURES)] for name, of in figures["orders"].items()]
    what = (
        f"{SHARDS} shards of {BATCHES} record batches of {BATCH} rows; medians of {figures['seeds']} seeds."
    )
    return f"{what}\n\n{table(['order', *MEASURES], rows)}"


def draw(figures: Figures, *, quick: bool) -> Path | None:
    """Where rows of the version come out, as one panel an order; None without matplotlib."""
    shuffled = layout()
    compared = orders(shuffled)
    drawn = canvas(3 * len(compared), 3.4, len(compared))
    if drawn is None:
        return None
    sheet, (axes,) = drawn
    chosen = np.sort(np.random.default_rng(0).choice(int(shuffled.rows.sum()), 20_000, replace=False))
    for axis, (name, order) in zip(axes, compared.items(), strict=True):
        axis.plot(chosen, order(0)[chosen], ",", alpha=0.5)
        axis.set_title(name, fontsize=9)
        axis.set_xlabel("comes out as")
    axes[0].set_ylabel("row of the version")
    sheet.tight_layout()
    path = plot("shuffle", quick=quick)
    sheet.savefig(path, dpi=110)
    return path
