"""Operators on a run-length column, beside decoding it, computing on all rows and, of columns, encoding the result.

"Decoded" begins with the column decoded, so that only the computing is compared, and leaves the result as it is.
What comes out is compared once before anything is measured. Times are of the processor, which others on the machine
disturb least. An operator gets nothing but the runs: the values of single rows that it can have seen are at most
those that fit into the memory that it took, the peak of Arrow's pool and Python's together.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.report import (
    Bar,
    canvas,
    cpu_seconds,
    interleave,
    median_and_spread,
    plot,
    plus_minus,
    ratio,
    settle,
    table,
    versions,
)
from lake import algebra

ROWS, RUN = 100_000_000, 1_000  # rows, and the mean length of a run
LIMIT = 25  # filter keeps what is above
CHIEF = ("sum", "filter", "add")

Figures = dict[str, Any]
Ways = dict[str, Callable[[], Any]]


def column(rows: int, seed: int, type_: pa.DataType) -> pa.RunEndEncodedArray:
    """Runs of random lengths and values."""
    rng = np.random.default_rng(seed)
    ends = np.unique(np.append(rng.integers(1, rows, rows // RUN - 1), rows))
    values = pa.array(rng.integers(0, 50, len(ends))).cast(type_)
    return pa.RunEndEncodedArray.from_arrays(pa.array(ends, pa.int32()), values)


def operators(x: pa.Array, y: pa.Array) -> dict[str, Ways]:
    """Each operator, in each way."""
    one, other = pc.run_end_decode(x), pc.run_end_decode(y)
    limit = pa.scalar(LIMIT, one.type)

    def filtered(column: pa.Array) -> pa.Array:
        return column.filter(pc.greater(column, limit))

    decode, encode = pc.run_end_decode, pc.run_end_encode
    return {
        "sum": {
            "runs": lambda: algebra.sum(x),
            "decoded": lambda: pc.sum(one),
            "expanded": lambda: pc.sum(decode(x)),
        },
        "filter": {
            "runs": lambda: algebra.filter(x, lambda values: pc.greater(values, limit)),
            "decoded": lambda: filtered(one),
            "expanded": lambda: encode(filtered(decode(x))),
        },
        "add": {
            "runs": lambda: algebra.add(x, y),
            "decoded": lambda: pc.add_checked(one, other),
            "expanded": lambda: encode(pc.add_checked(decode(x), decode(y))),
        },
        "max": {
            "runs": lambda: algebra.max(x),
            "decoded": lambda: pc.max(one),
            "expanded": lambda: pc.max(decode(x)),
        },
        "group_count": {
            "runs": lambda: algebra.group_count(x),
            "decoded": lambda: pc.value_counts(one),
            "expanded": lambda: pc.value_counts(decode(x)),
        },
    }


def agree(found: Any, wanted: Any) -> bool:
    """Whether both ways gave the same."""
    if isinstance(found, pa.RunEndEncodedArray):
        plain = wanted if wanted.type == found.type.value_type else pc.run_end_decode(wanted)
        return bool(pc.run_end_decode(found).equals(plain))
    if isinstance(found, pa.Table):
        counted = dict(
            zip(wanted.field("values").to_pylist(), wanted.field("counts").to_pylist(), strict=True)
        )
        return dict(zip(found["value"].to_pylist(), found["count"].to_pylist(), strict=True)) == counted
    return bool(found.equals(wanted))


def peak(act: Callable[[], Any]) -> int:
    """The bytes that a call allocates at the most."""
    pool, before = pa.proxy_memory_pool(pa.default_memory_pool()), pa.default_memory_pool()
    pa.set_memory_pool(pool)
    tracemalloc.start()
    try:
        act()
        return int(pool.max_memory() + tracemalloc.get_traced_memory()[1])
    finally:
        tracemalloc.stop()
        pa.set_memory_pool(before)


def compare(ways: Ways, rounds: int) -> dict[str, Any]:
    """Seconds of each way, shares of them, and the memory that the runs took."""
    found = ways["runs"]()
    if not (agree(found, ways["decoded"]()) and agree(found, ways["expanded"]())):
        raise AssertionError("runs and rows differ")
    settle(1.0)
    taken = interleave({name: partial(cpu_seconds, way) for name, way in ways.items()}, rounds)
    return {
        **{name: median_and_spread(times) for name, times in taken.items()},
        "of_decoded": ratio(taken["runs"], taken["decoded"]),
        "of_expanded": ratio(taken["runs"], taken["expanded"]),
        "peak": peak(ways["runs"]),
    }


def run(quick: bool) -> Figures:
    """Measure. Quick: fewer rows and rounds."""
    rows, rounds = (10_000_000, 3) if quick else (ROWS, 7)
    compared: dict[str, dict[str, Any]] = {}
    for type_ in (pa.int64(), pa.float64()):
        x, y = column(rows, 0, type_), column(rows, 1, type_)
        of_type = operators(x, y)
        compared[str(type_)] = {name: compare(of_type.pop(name), rounds) for name in list(of_type)}
    return {
        "versions": versions("numpy", "pyarrow"),
        "rows": rows,
        "runs": len(x.values),
        "operators": compared,
    }


def bars(figures: Figures) -> list[Bar]:
    """None of those that are numbered; the page says which operators stay below a hundredth."""
    return []


def page(figures: Figures) -> str:
    """The table as Markdown."""

    def times(value: tuple[float, float], by: float, digits: int) -> str:
        return plus_minus((by * value[0], by * value[1]), digits)

    rows = [
        [
            f"{name} of {type_}",
            times(of["runs"], 1000, 2),
            times(of["decoded"], 1000, 0),
            times(of["expanded"], 1000, 0),
            times(of["of_decoded"], 100, 2),
            times(of["of_expanded"], 100, 2),
            f"{of['peak'] // 8:,}",
        ]
        for type_, named in figures["operators"].items()
        for name, of in named.items()
    ]
    header = [
        "operator",
        "runs, ms",
        "decoded, ms",
        "expanded, ms",
        "% of decoded",
        "% of expanded",
        "values that fit",
    ]
    return f"{figures['rows']:,} rows in {figures['runs']:,} runs.\n\n{table(header, rows)}"


def draw(figures: Figures, *, quick: bool) -> Path | None:
    """Both ways beside each other, on a logarithmic scale; None without matplotlib."""
    drawn = canvas(9, 3.4, len(figures["operators"]))
    if drawn is None:
        return None
    sheet, (axes,) = drawn
    for axis, (type_, named) in zip(axes, figures["operators"].items(), strict=True):
        places = np.arange(len(named))
        for shift, way in ((-0.25, "runs"), (0, "decoded"), (0.25, "expanded")):
            axis.barh(places + shift, [1000 * of[way][0] for of in named.values()], 0.23, label=way)
        axis.set_yticks(places, list(named))
        axis.set_xscale("log")
        axis.set_xlabel(f"ms, {type_}")
        axis.legend(fontsize=8)
    sheet.tight_layout()
    path = plot("algebra", quick=quick)
    sheet.savefig(path, dpi=110)
    return path
