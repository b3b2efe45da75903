"""Scans beside the least that the same work can cost.

Each row is one way of reading, in rows per second, and its ratio to the reference of its group in the same
round; rounds take all of them in turn. References:

- sequential: `torch.empty` for each batch, filled from a NumPy memory map;
- shuffled: `np.take` of a memory map at a sorted chunk of a permutation, and a copy to a staging tensor;
- binary: pyarrow's own reading of the same record batches, or `take` from them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch

import lake
from benchmarks.data import SETS
from benchmarks.report import (
    Bar,
    interleave,
    median_and_spread,
    plus_minus,
    ratio,
    reaches,
    table,
    versions,
    workspace,
)
from lake.repo import Dataset

BATCH = 1024
COLUMNS = {"D1": [], "D2": ["tokens"], "D3": ["x", "label"]}  # none: the binary column, as record batches
BARS = {"binary": (5, 0.9), "sequential": (1, 0.9), "shuffled": (2, 0.8)}  # by a word of the way's name

Figures = dict[str, Any]
Way = Callable[[], object]


def commit(lk: Any, name: str, scale: int, shard: str) -> Dataset:
    """The data set as a dataset of the lake, in shards of this size."""
    batches = SETS[name](scale)
    first = next(batches)

    def stream() -> Iterator[pa.RecordBatch]:
        yield first
        yield from batches

    lk.commit(
        name, pa.RecordBatchReader.from_batches(first.schema, stream()), shard_bytes=shard, progress=False
    )
    found: Dataset = lk.dataset(name)
    return found


def memory_maps(ds: Dataset, columns: list[str], folder: Path) -> dict[str, np.ndarray]:
    """The columns as NumPy memory maps: what a person would have who needs no lake."""
    maps = {}
    for name in columns:
        path = folder / f"{ds.name}-{name}.npy"
        with path.open("wb") as file:
            for batch in ds.scan([name], batch_size=8192).to_torch():
                batch[name].numpy().tofile(file)
        shape, dtype = batch[name].shape[1:], batch[name].numpy().dtype
        maps[name] = np.memmap(path, dtype, "r", shape=(len(ds), *shape))
    return maps


def filled(maps: dict[str, np.ndarray]) -> None:
    """Sequential, the reference."""
    rows = len(next(iter(maps.values())))
    for start in range(0, rows, BATCH):
        for array in maps.values():
            piece = array[start : start + BATCH]
            tensor = torch.empty(piece.shape, dtype=torch.from_numpy(np.empty(0, piece.dtype)).dtype)
            tensor.numpy()[...] = piece


def taken(maps: dict[str, np.ndarray], seed: int) -> None:
    """Shuffled, the reference, on one thread: `copy_` of torch takes several, which on busy cores spin."""
    rows = len(next(iter(maps.values())))
    order = np.random.default_rng(seed).permutation(rows)
    staging = {
        name: torch.empty((BATCH, *array.shape[1:]), dtype=torch.from_numpy(np.empty(0, array.dtype)).dtype)
        for name, array in maps.items()
    }
    for start in range(0, rows, BATCH):
        chunk = np.sort(order[start : start + BATCH])
        for name, array in maps.items():
            staging[name].numpy()[: len(chunk)] = np.take(array, chunk, axis=0)


def consumed(stream: Any) -> None:
    """Every batch, once."""
    for _ in stream:
        pass


def tensor_ways(ds: Dataset, columns: list[str], maps: dict[str, np.ndarray]) -> dict[str, dict[str, Way]]:
    """Ways of reading fixed-width columns as tensors."""
    sequential = ds.scan(columns, batch_size=BATCH)
    shuffled = ds.scan(columns, batch_size=BATCH, shuffle=True)
    return {
        f"{ds.name} sequential": {
            "memory map": lambda: filled(maps),
            "scan().to_torch()": lambda: consumed(sequential.to_torch()),
        },
        f"{ds.name} shuffled": {
            "memory map": lambda: taken(maps, 0),
            "scan(shuffle=True).to_torch()": lambda: consumed(shuffled.to_torch()),
        },
    }


def binary_ways(ds: Dataset, folder: Path) -> dict[str, dict[str, Way]]:
    """Ways of reading a binary column as record batches of 256 rows."""
    path = folder / f"{ds.name}.arrow"
    scan = ds.scan(["image"], batch_size=256)
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, scan.schema) as writer:
        for batch in ds.scan(["image"], batch_size=1024):
            writer.write_batch(batch)
    order = np.random.default_rng(0).permutation(len(ds))

    def read() -> None:
        reader = pa.ipc.open_file(pa.memory_map(str(path)))
        for number in range(reader.num_record_batches):
            batch = reader.get_batch(number)
            for start in range(0, batch.num_rows, 256):
                pa.concat_arrays([batch.column(0).slice(start, 128), batch.column(0).slice(start + 128, 128)])

    def take() -> None:
        reader = pa.ipc.open_file(pa.memory_map(str(path)))
        for number in range(reader.num_record_batches):
            batch = reader.get_batch(number)
            places = np.argsort(order[: batch.num_rows])
            for start in range(0, batch.num_rows, 256):
                batch.take(pa.array(places[start : start + 256]))

    shuffled = ds.scan(["image"], batch_size=256, shuffle=True)
    return {
        f"{ds.name} binary, sequential": {"pyarrow": read, "scan()": lambda: consumed(scan)},
        f"{ds.name} binary, shuffled": {"pyarrow": take, "scan(shuffle=True)": lambda: consumed(shuffled)},
    }


def measure(groups: dict[str, dict[str, Way]], rows: dict[str, int], rounds: int) -> dict[str, Any]:
    """Rows per second, processor time and the ratio to the first way of each group; all ways in turn."""
    ways = {f"{group}: {name}": way for group, ways in groups.items() for name, way in ways.items()}
    interleave(ways, 1)  # a warm-up
    spent = interleave({name: lambda way=way: _spent(way) for name, way in ways.items()}, rounds)
    figures: dict[str, Any] = {}
    for group, named in groups.items():
        reference = [wall for wall, _ in spent[f"{group}: {next(iter(named))}"]]
        for name in named:
            wall, cpu = zip(*spent[f"{group}: {name}"], strict=True)
            figures[f"{group}: {name}"] = {
                "rows_per_second": rows[group] / median_and_spread(wall)[0],
                "cpu_seconds_per_million_rows": median_and_spread(cpu)[0] / rows[group] * 1e6,
                "ratio": ratio(reference, wall),
            }
    return figures


def _spent(way: Way) -> tuple[float, float]:
    """Seconds by the clock and of the processor."""
    wall, cpu = time.perf_counter(), time.process_time()
    way()
    return time.perf_counter() - wall, time.process_time() - cpu


def run(quick: bool, shard: str = "8MiB") -> Figures:
    """Measure. Quick: an eighth of the rows, three rounds."""
    with workspace() as folder:
        lk = lake.open(folder / "lake")
        groups: dict[str, dict[str, Way]] = {}
        rows: dict[str, int] = {}
        for name, columns in COLUMNS.items():
            ds = commit(lk, name, 8 if quick else 1, shard)
            ways = (
                tensor_ways(ds, columns, memory_maps(ds, columns, folder))
                if columns
                else binary_ways(ds, folder)
            )
            groups |= ways
            rows |= dict.fromkeys(ways, len(ds))
        measured = measure(groups, rows, 3 if quick else 5)
    return {"versions": versions("numpy", "pyarrow", "torch"), "shard": shard, "ways": measured}


def bars(figures: Figures) -> list[Bar]:
    """Of bars 1, 2 and 5 what is measured here: how near to the reference of its group each scan comes."""
    return [
        Bar(number, way, f"≥ {least} of the reference", plus_minus(of["ratio"]), reaches(of["ratio"], least))
        for way, of in figures["ways"].items()
        if "scan(" in way
        for number, least in [next(bar for part, bar in BARS.items() if part in way)]
    ]


def page(figures: Figures) -> str:
    """The table as Markdown."""
    rows = [
        [
            name,
            f"{of['rows_per_second'] / 1e6:.3f} M",
            f"{of['cpu_seconds_per_million_rows']:.2f}",
            plus_minus(of["ratio"]),
        ]
        for name, of in figures["ways"].items()
    ]
    header = ["", "rows/s", "CPU s / M rows", "of the reference"]
    return f"Shards of {figures['shard']}.\n\n{table(header, rows)}"


def draw(figures: Figures, *, quick: bool) -> Path | None:
    """Nothing: the table says it all."""
