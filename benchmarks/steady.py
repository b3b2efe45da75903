"""What a training run meets besides the rate: look-ups, resumes, memory, and a busy interpreter beside the scan.

All on D3 in a local folder, warm, in shards of 8 MiB.

- take: 10,000 random rows by number, beside Lance on its own table of the same rows;
- resume: seconds to the first batch of a new shuffled scan, at its beginning and at 90 % of the epoch;
- memory: resident memory after each of ten shuffled epochs in a fresh process, and what of it is the process's
  own (not mapped files) beyond what it had before the scan, beside what `check()` said;
- neighbour: a loop of steps of pure Python, some milliseconds each, that takes a batch before each step; only
  the steps are timed, with a scan and with batches that are there already.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import lake
from benchmarks import peers
from benchmarks.data import d3
from benchmarks.report import (
    ROOT,
    Bar,
    interleave,
    median_and_spread,
    plus_minus,
    ratio,
    reaches,
    seconds,
    table,
    versions,
    workspace,
)
from lake.dataset import Dataset

SHARD = 8 * 2**20
PICKED = 10_000
COLUMNS = ["x", "label"]
EPOCHS = 10

Figures = dict[str, Any]


def commit(folder: Path, scale: int) -> Dataset:
    """D3 as a dataset."""
    lk = lake.open(folder / "lake", cache_dir=folder / "cache", progress=False)
    lk.commit("D3", _stream(scale), shard_bytes=SHARD)
    found: Dataset = lk.dataset("D3")
    return found


def _stream(scale: int) -> pa.RecordBatchReader:
    batches = d3(scale)
    first = next(batches)

    def whole() -> Iterator[pa.RecordBatch]:
        yield first
        yield from batches

    return pa.RecordBatchReader.from_batches(first.schema, whole())


# --- measuring --------------------------------------------------------------------------------


def take(ds: Dataset, folder: Path, scale: int, rounds: int) -> Figures:
    """Seconds of each round, of lake and of Lance where there is an environment for it."""
    rng = np.random.default_rng(0)
    numbers: list[int] = []

    def turn() -> float:
        numbers[:] = rng.integers(0, len(ds), PICKED).tolist()
        return seconds(lambda: ds.take(numbers, columns=COLUMNS))

    contestants: dict[str, Callable[[], float]] = {"lake": turn}
    try:
        with peers.Peer("lance") as peer:
            source = folder / "D3.arrow"
            _write(source, scale)
            peer.ask("keep_rows", source=str(source), folder=str(folder / "lance"), shard_bytes=SHARD)
            asked = {"folder": str(folder / "lance"), "columns": COLUMNS}
            contestants["Lance"] = lambda: float(peer.ask("picked", numbers=numbers, **asked)["seconds"])
            interleave(contestants, 2)  # a warm-up
            taken = interleave(contestants, rounds)
            sums = peer.ask("picked", numbers=numbers, **asked)["sums"]
            if sums != [float(np.sum(_values(ds.take(numbers), name))) for name in COLUMNS]:
                raise AssertionError("Lance has other rows under these numbers")
            return {**taken, "versions": peer.versions}
    except peers.PeerMissing as missing:
        interleave({"lake": turn}, 2)
        return {**interleave({"lake": turn}, rounds), "missing": str(missing)}


def _values(rows: pa.Table, name: str) -> Any:
    column = rows[name].combine_chunks()
    return (column.flatten() if name == "x" else column).to_numpy().astype(np.float64)


def _write(path: Path, scale: int) -> None:
    """The stream as a file, for another process."""
    stream = _stream(scale)
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, stream.schema) as writer:
        for batch in stream:
            writer.write_batch(batch)


def resume(ds: Dataset, rounds: int) -> Figures:
    """Seconds to the first batch, fresh and at 90 %."""
    whole = ds.scan(COLUMNS, shuffle=True)
    state = {**whole.state_dict(), "rows": whole.rows * 9 // 10 // 1024 * 1024}

    def first(at: dict[str, Any] | None) -> float:
        begin = time.perf_counter()
        scan = ds.scan(COLUMNS, shuffle=True)
        if at is not None:
            scan.load_state_dict(at)
        batches = iter(scan.to_torch())
        next(batches)
        return time.perf_counter() - begin

    contestants = {"fresh": lambda: first(None), "at 90 %": lambda: first(state)}
    interleave(contestants, 2)
    return interleave(contestants, 3 * rounds)


def memory(folder: Path) -> Figures:
    """What a fresh process measures of itself: `python -m benchmarks.steady FOLDER`."""
    asked = [sys.executable, "-m", "benchmarks.steady", str(folder)]
    done = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=True)
    found: Figures = json.loads(done.stdout)
    return found


def neighbour(ds: Dataset, rounds: int) -> Figures:
    """Seconds of Python steps alone and beside a scan."""
    scan = ds.scan(COLUMNS, shuffle=True)
    stream = scan.to_torch()
    few = [batch for batch, _ in zip(stream, range(60), strict=False)]

    def spent(batches: Any) -> float:
        total = 0.0
        for batch, _ in zip(batches, range(60), strict=False):
            begin = time.perf_counter()
            _step(len(batch["label"]))
            total += time.perf_counter() - begin
        return total

    contestants = {"alone": lambda: spent(few), "beside": lambda: spent(stream)}
    interleave(contestants, 1)
    return interleave(contestants, 2 * rounds)


def _step(rows: int) -> int:
    """Some milliseconds of pure Python."""
    found = 0
    for number in range(60 * rows):
        found = (found * 31 + number) % 1_000_003
    return found


def run(quick: bool) -> Figures:
    """Measure. Quick: an eighth of the rows, three rounds."""
    scale, rounds = (8, 3) if quick else (1, 5)
    with workspace() as folder:
        ds = commit(folder, scale)
        for _ in ds.scan(COLUMNS):  # verified once
            pass
        return {
            "versions": versions("numpy", "pyarrow", "torch"),
            "rows": len(ds),
            "take": take(ds, folder, scale, rounds),
            "resume": resume(ds, rounds),
            "memory": memory(folder),
            "neighbour": neighbour(ds, rounds),
        }


# --- in the process whose memory is measured --------------------------------------------------


def _measure(folder: Path) -> Figures:
    lk = lake.open(folder / "lake", cache_dir=folder / "cache", progress=False)
    scan = lk.dataset("D3").scan(COLUMNS, shuffle=True)
    said = scan.check().memory_bytes
    stream = scan.to_torch()
    before, resident, own = _resident("RssAnon"), [], 0
    for _ in range(EPOCHS):
        for number, _ in enumerate(stream):
            if not number % 16:
                own = max(own, _resident("RssAnon") - before)
        resident.append(_resident("VmRSS"))
    return {"said": said, "own": own, "resident": resident}


def _resident(kind: str) -> int:
    """Bytes resident in this process: `VmRSS` all, `RssAnon` those of no file."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{kind}:")) * 1024


# --- what it means ----------------------------------------------------------------------------


def bars(figures: Figures) -> list[Bar]:
    """Bars 12, 19, 20 and 21."""
    found = []
    if "Lance" in figures["take"]:
        over = ratio(figures["take"]["Lance"], figures["take"]["lake"])
        found.append(
            Bar(
                12,
                f"{PICKED:,} random rows by take",
                "≥ Lance",
                plus_minus(over, unit=" x"),
                reaches(over, 1),
            )
        )
    later = ratio(figures["resume"]["at 90 %"], figures["resume"]["fresh"])
    slower = ratio(figures["neighbour"]["beside"], figures["neighbour"]["alone"])
    grown, own, said = _memory(figures["memory"])
    return [
        *found,
        Bar(
            19,
            "first batch at 90 % of an epoch",
            "≤ 2 x a fresh start",
            plus_minus(later),
            _at_most(later, 2),
        ),
        Bar(20, "RSS over ten epochs, after the second", "≤ 5 % more", f"{100 * grown:.1f} %", grown <= 0.05),
        Bar(
            20,
            "the scan's own memory",
            f"≤ {said / 1e6:.0f} MB, as check() said",
            f"{own / 1e6:.0f} MB",
            own <= said,
        ),
        Bar(21, "a loop of Python beside a scan", "≤ 1.05 x", plus_minus(slower, 3), _at_most(slower, 1.05)),
    ]


def _at_most(value: tuple[float, float], most: float) -> bool | None:
    reached = reaches(value, most)
    return None if reached is None else not reached


def _memory(of: Figures) -> tuple[float, int, int]:
    """How much resident memory grew after the second epoch, what the scan took at most, and what was said."""
    return max(of["resident"][1:]) / of["resident"][1] - 1, of["own"], of["said"]


def page(figures: Figures) -> str:
    """The table as Markdown."""
    rows = []
    for group in ("take", "resume", "neighbour"):
        for name, taken in figures[group].items():
            if isinstance(taken, list):
                middle, spread = median_and_spread(taken)
                rows.append([f"{group}: {name}", f"{1e3 * middle:.1f} ±{1e3 * spread:.1f} ms"])
    _, own, said = _memory(figures["memory"])
    resident = ", ".join(f"{size / 1e6:.0f}" for size in figures["memory"]["resident"])
    rows.append(["memory: resident after each epoch, MB", resident])
    rows.append(["memory: the scan's own, at most", f"{own / 1e6:.0f} MB (check(): {said / 1e6:.0f} MB)"])
    missing = figures["take"].get("missing")
    note = f"\n\nWithout Lance: {missing}." if missing else ""
    return f"{figures['rows']:,} rows.\n\n{table(['', 'measured'], rows)}{note}"


def draw(figures: Figures, *, quick: bool) -> Path | None:
    """Nothing: the table says it all."""


if __name__ == "__main__":
    print(json.dumps(_measure(Path(sys.argv[1]))))
