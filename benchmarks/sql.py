"""Asking in SQL: the flights of 2013 a hundred times over, in a lake and in the Parquet file that it exports.

DuckDB answers both, with the same two aggregates: one column of all rows, and of the hundredth of them that a
condition on a sorted column leaves. Parquet is decoded each time; lake keeps columns that it had to decompress
for the next question, so "first" is the first question of a new process, which decompresses and verifies.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

import lake
from benchmarks import data
from benchmarks.report import (
    PATIENCE,
    Bar,
    interleave,
    plus_minus,
    ratio,
    reaches,
    seconds,
    table,
    versions,
    workspace,
)

Figures = dict[str, Any]

ALL = "select sum(dep_delay), count(dep_delay) from {}"
SOME = ALL + " where id >= {} and id < {}"

_FIRST = """
import sys, time
import lake
lk = lake.open(sys.argv[1], progress=False)
lk.sql("select 1").fetchall()
begin = time.perf_counter()
lk.sql(sys.argv[2]).fetchall()
print(time.perf_counter() - begin)
"""


def flights(times: int) -> Iterator[pa.RecordBatch]:
    """D5 so many times, with a column `id` that counts."""
    once = pa.Table.from_batches(list(data.d5()))
    at = 0
    for _ in range(times):
        for batch in once.to_batches():
            ids = pa.array(np.arange(at, at + batch.num_rows))
            at += batch.num_rows
            yield pa.RecordBatch.from_arrays([ids, *batch.columns], names=["id", *batch.schema.names])


def run(quick: bool) -> Figures:
    """Measure. Quick: a tenth of the rows, three rounds."""
    times, rounds = (10, 3) if quick else (100, 9)
    with workspace() as folder:
        make(folder, times)
        return measure(folder, rounds, patience=0.0 if quick else PATIENCE)


def make(folder: Path, times: int) -> None:
    """The lake, and the Parquet file that it exports."""
    lk = lake.open(folder / "lake", progress=False)
    batches = flights(times)
    first = next(batches)
    rows = pa.RecordBatchReader.from_batches(first.schema, chain([first], batches))
    lk.commit("flights", rows, key=None)
    lk.dataset("flights").export(folder / "flights.parquet")


def measure(folder: Path, rounds: int, *, patience: float = 0.0) -> Figures:
    """The figures of what `make` made."""
    lk, parquet = lake.open(folder / "lake", progress=False), folder / "flights.parquet"
    document = lk.dataset("flights").snapshot.document
    start, connection = document.rows // 2, duckdb.connect()
    bounds = start, start + document.rows // 100
    questions = {
        "all": (ALL.format("flights"), ALL.format(f"'{parquet}'")),
        "one in a hundred": (SOME.format("flights", *bounds), SOME.format(f"'{parquet}'", *bounds)),
    }
    taken: dict[str, dict[str, list[float]]] = {}
    for name, (ours, theirs) in questions.items():
        if lk.sql(ours).fetchall() != connection.sql(theirs).fetchall():  # which is the warm-up, too
            raise AssertionError(f"answers differ: {ours}")
        asking: dict[str, Callable[[], float]] = {
            "lake": partial(seconds, partial(_asked, lk, ours)),
            "DuckDB, Parquet": partial(seconds, partial(_asked, connection, theirs)),
            "lake, first": partial(_first, folder / "lake", ours),
        }
        taken[name] = interleave(asking, rounds, patience=patience)
    return {
        "versions": versions("duckdb", "pyarrow", "numpy"),
        "rows": document.rows,
        "shards": document.shards,
        "seconds": taken,
    }


def _asked(database: Any, question: str) -> Any:
    return database.sql(question).fetchall()


def _first(where: Path, question: str) -> float:
    """Seconds of a question in a process that has asked nothing before."""
    asked = [sys.executable, "-c", _FIRST, str(where), question]
    return float(subprocess.run(asked, capture_output=True, text=True, check=True).stdout)


def bars(figures: Figures) -> list[Bar]:
    """Bar 16: beside DuckDB on Parquet, and what a selective condition saves."""
    every, some = figures["seconds"]["all"], figures["seconds"]["one in a hundred"]
    speed = ratio(every["DuckDB, Parquet"], every["lake"])
    saved = ratio(every["lake"], some["lake"])
    first = ratio(every["lake, first"], some["lake, first"])
    return [
        Bar(
            16,
            "aggregate over a column, of DuckDB's speed on Parquet",
            "≥ 0.5",
            plus_minus(speed),
            reaches(speed, 0.5),
        ),
        Bar(
            16, "the same of 1 % of the rows, times faster", "≥ 10", plus_minus(saved, 1), reaches(saved, 10)
        ),
        Bar(16, "the same in a new process, times faster", "≥ 10", plus_minus(first, 1), reaches(first, 10)),
    ]


def page(figures: Figures) -> str:
    """The table as Markdown."""
    rows = []
    for question, taken in figures["seconds"].items():
        for who, found in taken.items():
            of = ratio(taken["DuckDB, Parquet"], found)
            milliseconds = sorted(1e3 * each for each in found)[len(found) // 2]
            rows.append([f"{who}: {question}", f"{milliseconds:.1f} ms", plus_minus(of)])
    header = ["rows asked for", "median", "DuckDB's seconds / these"]
    return f"{figures['rows']:,} rows in {figures['shards']:,} shards.\n\n{table(header, rows)}"


def draw(figures: Figures, *, quick: bool) -> Path | None:
    """Nothing: the table says it all."""
