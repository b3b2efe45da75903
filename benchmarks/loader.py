"""Samples of D1 with a Python function through each library's loader, two workers, batches of 64.

lake's is `lake.torch.loader`; the others are torch's `DataLoader`, with workers that live on, or their own. All
deliver the same objects, checked in the round that warms up: lists of `(bytes, checksum of the first 64)`. Shards
of 8 MiB, data in the page cache. CPU seconds are those of the process that trains, without its workers.

A step that holds the interpreter's lock, 5 ms of plain Python, is timed alone and beside a loader whose function
takes as long again: what the loader costs the step is its noise. Rounds take turns.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pyarrow as pa

import lake
from benchmarks import samples
from benchmarks.data import d1
from benchmarks.report import Bar, interleave, plus_minus, ratio, reaches, table, workspace

WAYS = {"loader": ("D1", "image")}
STEP = 0.005  # seconds of Python in a step of training
STEPS = 200

Figures = dict[str, Any]


def run(quick: bool) -> Figures:
    """Measure. Quick: a twentieth of the rows, three rounds."""
    rounds = 3 if quick else 5
    figures = samples.measure(WAYS, 20 if quick else 1, rounds)
    return {**figures, "noise": noise(STEPS // 4 if quick else STEPS, rounds)}


def noise(steps: int, rounds: int) -> dict[str, Any]:
    """How long Python-heavy steps take alone, and beside a pipeline with a slow function."""
    loops = _loops_in(STEP)

    def spin(sample: Any) -> int:
        return _python(loops // 16) + len(sample[1]["image"])

    with workspace() as folder:
        lk = lake.open(folder / "lake")
        batches = d1(rows=8_000)
        first = next(batches)
        whole = pa.RecordBatchReader.from_batches(first.schema, (each for each in (first, *batches)))
        lk.commit("D1", whole, shard_bytes="8MiB", progress=False)
        pipeline = lk.dataset("D1").samples(columns=["image"]).map(spin).batch(16).repeat()
        loader = lake.torch.loader(pipeline, num_workers=1)

        def alone() -> float:
            return _timed(range(steps), loops)

        def beside() -> float:
            stream = iter(loader)
            next(stream)
            return _timed(range(steps), loops)  # the worker fills the ring meanwhile

        def taking() -> float:
            stream = iter(loader)
            next(stream)
            taken = 0.0
            for _ in range(steps):
                next(stream)
                taken += _timed(range(1), loops)
            return taken

        ways = {"alone": alone, "beside": beside, "taking": taking}
        interleave(ways, 1)
        seconds = interleave(ways, rounds)
        loader.close()
    return {
        "steps": steps,
        "slower": {name: ratio(seconds[name], seconds["alone"]) for name in ("beside", "taking")},
    }


def _timed(steps: range, loops: int) -> float:
    begin = time.perf_counter()
    for _ in steps:
        _python(loops)
    return time.perf_counter() - begin


def _python(loops: int) -> int:
    total = 0
    for number in range(loops):
        total += number & 7
    return total


def _loops_in(seconds: float) -> int:
    begin = time.perf_counter()
    _python(200_000)
    return max(1, int(200_000 * seconds / (time.perf_counter() - begin)))


def bars(figures: Figures) -> list[Bar]:
    """Bar 8, and of bar 21 what concerns pipelines."""
    slower = tuple(figures["noise"]["slower"]["taking"])
    reached = reaches(slower, 1.05)  # too wide a spread to tell stays so
    return [
        *samples._beside_best(8, "loader, 2 workers", figures["ways"]["loader"], 3),
        Bar(
            21,
            "a Python-heavy step beside a loader with a slow function",
            "≤ 1.05 of its time alone",
            plus_minus(slower),
            None if reached is None else not reached,
        ),
    ]


def page(figures: Figures) -> str:
    """The tables."""
    slower = figures["noise"]["slower"]
    rows = [[name, plus_minus(tuple(value))] for name, value in slower.items()]
    header = [f"{figures['noise']['steps']} steps of {STEP * 1000:.0f} ms", "of the time alone"]
    return f"{samples.page(figures)}\n\n{table(header, rows)}"


def draw(figures: Figures, *, quick: bool) -> Path | None:
    """Nothing: the tables say it all."""
