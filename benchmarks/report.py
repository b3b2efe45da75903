"""What every benchmark does with its figures: compare in rounds, lay out tables, judge bars, keep, draw.

Figures are plain JSON: pages and verdicts are functions of them, so that they can be made again without
measuring. Nothing here knows what is measured.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
QUICK = RESULTS / "quick"  # figures of --quick, which nobody keeps
PLOTS = ROOT / "docs" / "benchmarks"

CALM = 0.25  # processors that others may use
PATIENCE = 1.0  # seconds that a contestant waits for a quiet moment, where it is measured in full

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Bar:
    """What is to be reached, and what was measured."""

    number: int
    what: str
    asks: str
    figure: str
    reached: bool | None  # None: the spread of the rounds is too wide to tell


# --- measuring --------------------------------------------------------------------------------


def seconds(action: Callable[[], object]) -> float:
    """How long an action takes."""
    begin = time.perf_counter()
    action()
    return time.perf_counter() - begin


def cpu_seconds(action: Callable[[], object]) -> float:
    """How much processor time an action takes in this process: what it costs where others are busy too."""
    begin = time.process_time()
    action()
    return time.process_time() - begin


def interleave(
    contestants: Mapping[str, Callable[[], T]], rounds: int, *, patience: float = 0.0
) -> dict[str, list[T]]:
    """What each contestant gave in each round. A round asks all of them in turn: A B C A B C.

    `patience`: seconds that each waits at most for a quiet moment.

    >>> interleave({"a": lambda: 1, "b": lambda: 2}, 3)
    {'a': [1, 1, 1], 'b': [2, 2, 2]}
    """
    taken: dict[str, list[T]] = {name: [] for name in contestants}
    for _ in range(rounds):
        for name, act in contestants.items():
            settle(patience)
            taken[name].append(act())
    return taken


def busy_seconds() -> float:
    """Seconds that all processors together have worked since the system began, for anybody; 0 if it does not say."""
    try:
        fields = Path("/proc/stat").read_text().partition("\n")[0].split()[1:9]
    except OSError:
        return 0.0
    ticks = [int(field) for field in fields]
    return (sum(ticks) - ticks[3] - ticks[4]) / os.sysconf(
        "SC_CLK_TCK"
    )  # but for idling and waiting for disks


def settle(most: float) -> None:
    """Wait until others leave the processors alone for a moment, or so many seconds."""
    until = time.perf_counter() + most
    while time.perf_counter() < until:
        begin, busy = time.perf_counter(), busy_seconds()
        time.sleep(0.2)
        if (busy_seconds() - busy) / (time.perf_counter() - begin) < CALM:
            return


def calmest(taken: Mapping[str, list[dict[str, Any]]], rounds: int) -> dict[str, list[dict[str, Any]]]:
    """The rounds, in order, in which others took the least from whom they took the most: figure `others`.

    >>> calmest({"a": [{"others": 0.5}, {"others": 0}], "b": [{"others": 0}, {"others": 0.1}]}, 1)
    {'a': [{'others': 0}], 'b': [{'others': 0.1}]}
    """
    disturbed = [max(figure["others"] for figure in of) for of in zip(*taken.values(), strict=True)]
    chosen = sorted(sorted(range(len(disturbed)), key=disturbed.__getitem__)[:rounds])
    return {name: [of[i] for i in chosen] for name, of in taken.items()}


def median_and_spread(numbers: Sequence[float]) -> tuple[float, float]:
    """The median, and half of what lies between the smallest and the largest."""
    return statistics.median(numbers), (max(numbers) - min(numbers)) / 2


def ratio(above: Sequence[float], below: Sequence[float]) -> tuple[float, float]:
    """Median and spread of the quotients round by round, so that what slows a whole round cancels out.

    >>> ratio([2.0, 20.0, 4.0], [1.0, 10.0, 1.0])
    (2.0, 1.0)
    """
    return median_and_spread([a / b for a, b in zip(above, below, strict=True)])


def reaches(value: tuple[float, float], least: float) -> bool | None:
    """Whether a median is at least so much; None where its spread reaches across.

    >>> reaches((2.0, 0.5), 1.0), reaches((2.0, 0.5), 3.0), reaches((2.0, 0.5), 2.3)
    (True, False, None)
    """
    middle, spread = value
    return None if abs(middle - least) < spread else middle >= least


# --- where figures come from ------------------------------------------------------------------


def machine() -> dict[str, Any]:
    """The machine and how busy it is: figures are compared inside one run only."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "load": round(os.getloadavg()[0], 1) if hasattr(os, "getloadavg") else None,
        "when": time.strftime("%Y-%m-%d", time.gmtime()),
    }


def versions(*packages: str) -> dict[str, str]:
    """The versions of installed packages."""
    return {name: importlib.metadata.version(name) for name in packages}


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.machine()


@contextmanager
def workspace() -> Iterator[Path]:
    """An empty folder on the disk that is measured: where LAKE_BENCH_DIR says, else in the checkout."""
    home = Path(os.environ.get("LAKE_BENCH_DIR") or ROOT / ".bench")
    home.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="run-", dir=home) as folder:
        yield Path(folder)


# --- showing ----------------------------------------------------------------------------------


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table that is one in a terminal too: the first column to the left, the others to the right.

    >>> print(table(["who", "MB/s"], [["lake", "300"], ["a peer", "7"]]))
    | who    | MB/s |
    |--------|-----:|
    | lake   |  300 |
    | a peer |    7 |
    """
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]

    def line(row: Sequence[str]) -> str:
        cells = [
            cell.rjust(width) if i else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        return f"| {' | '.join(cells)} |"

    rule = "|".join("-" * (width + 1) + (":" if i else "-") for i, width in enumerate(widths))
    return "\n".join([line(header), f"|{rule}|", *map(line, rows)])


def verdicts(bars: Sequence[Bar]) -> str:
    """The bars as a table."""
    return table(
        ["bar", "of", "asks", "measured", "reached"],
        [
            [str(bar.number), bar.what, bar.asks, bar.figure, _WORDS[bar.reached]]
            for bar in sorted(bars, key=lambda bar: bar.number)
        ],
    )


_WORDS = {True: "yes", False: "**no**", None: "unsure"}


def plus_minus(value: tuple[float, float], digits: int = 2, unit: str = "") -> str:
    """A median and its spread as text.

    >>> plus_minus((1.234, 0.5))
    '1.23 ±0.50'
    """
    middle, spread = value
    return f"{middle:.{digits}f} ±{spread:.{digits}f}{unit}"


# --- keeping ----------------------------------------------------------------------------------


def keep(name: str, figures: Any, *, where: dict[str, Any], quick: bool) -> Path:
    """Keep figures as `results/<name>.json` (quick ones apart), with the machine they were measured on."""
    path = (QUICK if quick else RESULTS) / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"machine": where, "figures": figures}, indent=2) + "\n", "utf-8")
    return path


def plot(name: str, *, quick: bool) -> Path:
    """Where a plot goes."""
    path = (QUICK if quick else PLOTS) / f"{name}.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def canvas(width: float, height: float, columns: int) -> Any:
    """A matplotlib figure and its axes, side by side; None where matplotlib is not installed."""
    try:
        import matplotlib
    except ImportError:
        return None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot.subplots(1, columns, figsize=(width, height), squeeze=False)
