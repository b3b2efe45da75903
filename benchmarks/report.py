"""What every benchmark does with its figures: a table, a JSON document beside the machine's, a plot."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"


def machine(*packages: str) -> dict[str, Any]:
    """Where figures come from: processor, cores, system and the versions of packages."""
    versions = {name: importlib.metadata.version(name) for name in packages}
    return {"machine": platform.machine(), "cores": os.cpu_count(), "system": platform.platform(),
            "python": platform.python_version(), **versions}  # fmt: skip


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


def median_and_spread(numbers: Sequence[float]) -> tuple[float, float]:
    """The median, and half of what lies between the smallest and the largest."""
    return statistics.median(numbers), (max(numbers) - min(numbers)) / 2


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as they must be, the first to the left, the others to the right."""
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    lines = []
    for row in [header, *rows]:
        cells = [
            cell.rjust(width) if i else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def write(name: str, figures: Any, *packages: str) -> Path:
    """Keep figures as `results/<name>.json`, with the machine they were measured on."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps({"machine": machine(*packages), "figures": figures}, indent=2) + "\n")
    return path


def figure(width: float, height: float, columns: int) -> Any:
    """A matplotlib figure and its axes, side by side; None where matplotlib is not installed."""
    try:
        import matplotlib
    except ImportError:
        return None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot.subplots(1, columns, figsize=(width, height), squeeze=False)
