"""Scans beside the least that the same work can cost.

Each row is one way of reading, in rows per second, and its ratio to the reference of its group in the same
round; rounds take all of them in turn. References:

- sequential: `torch.empty` for each batch, filled from a NumPy memory map;
- shuffled: `np.take` of a memory map at a sorted chunk of a permutation, and a copy to a staging tensor;
- binary: pyarrow's own reading of the same record batches, or `take` from them;
- decoded: pyarrow decompressing the same columns of the same files in two threads, and nothing else.

D2 and D3 are read a second time with values that compress (tokens of 12 bits, vectors of bfloat16's precision):
from a bucket (a folder that is not mapped) whose parts the cache keeps decoded, "open cache", and in place from
the lake's folder, where every epoch decodes them.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import torch

import lake
from benchmarks.data import SETS
from benchmarks.report import (
    PATIENCE,
    Bar,
    busy_seconds,
    calmest,
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
from lake.format.names import part_key
from lake.repo import Lake
from lake.scan import gather
from lake.scan.load import Loader
from lake.stores import LocalStore
from lake.torch.tensors import Tensors

BATCH = 1024
STEPS: dict[str, tuple[Any, str]] = {  # what an epoch is made of, as it is called
    "find rows, lay them out": (Loader, "__call__"),
    "copy": (gather, "gather"),
    "make tensors": (Tensors, "__call__"),
}
REST = "plan, hand out"
COLUMNS = {"D1": [], "D2": ["tokens"], "D3": ["x", "label"]}  # none: the binary column, as record batches
BARS = {  # by words of the way's name, the first that fits
    "binary": (5, 0.9),
    "sequential, open cache": (3, 0.9),
    "shuffled, open cache": (3, 0.8),
    "sequential, decoded": (4, 0.9),
    "shuffled, decoded": (4, 0.75),
    "sequential": (1, 0.9),
    "shuffled": (2, 0.8),
}

Figures = dict[str, Any]
Way = Callable[[], object]


class Far(LocalStore):
    """A folder that is read as a bucket is."""

    def local_path(self, key: str) -> None:
        return None


def packed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The batches of D2 or D3 with values that compress."""
    for batch in batches:
        name = "tokens" if "tokens" in batch.schema.names else "x"
        lists = batch[name]
        values = lists.flatten().to_numpy()
        if name == "tokens":
            values = values & 0x0FFF
        else:
            values = (values.view(np.uint32) & 0xFFFF0000).view(np.float32)
        column = pa.FixedSizeListArray.from_arrays(pa.array(values), lists.type.list_size)
        yield batch.set_column(batch.schema.get_field_index(name), name, column)


def commit(lk: Any, name: str, scale: int, shard: str, *, pack: bool = False) -> Dataset:
    """The data set as a dataset of the lake, in shards of this size; `pack`: with values that compress."""
    batches = packed(SETS[name](scale)) if pack else SETS[name](scale)
    name = f"{name}-packed" if pack else name
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


def packed_ways(lk: Any, ds: Dataset, columns: list[str], folder: Path) -> dict[str, dict[str, Way]]:
    """Ways of reading what is stored compressed."""
    cached = lake.open(lk.url, cache_dir=folder / f"open-{ds.name}", cache_budget="unlimited").settings
    far = Lake(Far(folder / "lake"), cached, progress=False).dataset(ds.name)
    ways = {
        f"{group}, open cache": named
        for group, named in tensor_ways(far, columns, memory_maps(ds, columns, folder)).items()
    }
    parts = [one for shard in ds.snapshot.manifest.shards() for one in shard.parts]
    store, files = ds.snapshot.refs.store, list[tuple[str, list[int]]]()
    for one in parts:
        held = [list(one.fields).index(name) for name in columns if name in one.fields]
        if held:
            files.append((str(store.local_path(part_key(one.digest))), held))

    def decode(file: tuple[str, list[int]]) -> None:
        options = pa.ipc.IpcReadOptions(included_fields=file[1], use_threads=False)
        reader = pa.ipc.open_file(pa.memory_map(file[0]), options=options)
        for number in range(reader.num_record_batches):
            reader.get_batch(number)

    def both() -> None:
        with ThreadPoolExecutor(2) as threads:
            list(threads.map(decode, files))

    for word, shuffle in (("sequential", False), ("shuffled", True)):
        scan = ds.scan(columns, batch_size=BATCH, shuffle=shuffle)
        ways[f"{ds.name} {word}, decoded"] = {
            "pyarrow": both,
            "scan().to_torch()": lambda scan=scan: consumed(scan.to_torch()),
        }
    return ways


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


def measure(
    groups: dict[str, dict[str, Way]], rows: dict[str, int], rounds: int, patience: float
) -> dict[str, Any]:
    """Rows per second, processor time and the ratio to the first way of each group; all ways in turn.

    With patience twice as many rounds, of which those count in which others took the least from a group.
    """
    ways = {f"{group}: {name}": way for group, ways in groups.items() for name, way in ways.items()}
    interleave(ways, 1)  # a warm-up
    spent = interleave(
        {name: partial(_spent, way) for name, way in ways.items()},
        2 * rounds if patience else rounds,
        patience=patience,
    )
    figures: dict[str, Any] = {}
    for group, named in groups.items():
        calm = calmest({name: spent[f"{group}: {name}"] for name in named}, rounds)
        wall = {name: [of["seconds"] for of in each] for name, each in calm.items()}
        reference = wall[next(iter(named))]
        for name in named:
            figures[f"{group}: {name}"] = {
                "rows_per_second": rows[group] / median_and_spread(wall[name])[0],
                "cpu_seconds_per_million_rows": median_and_spread([of["cpu"] for of in calm[name]])[0]
                / rows[group]
                * 1e6,
                "others": max(of["others"] for of in calm[name]),
                "ratio": ratio(reference, wall[name]),
            }
    return figures


def _spent(way: Way) -> dict[str, float]:
    """Seconds by the clock and of the processor, and the processors that others had meanwhile."""
    busy, wall, cpu = busy_seconds(), time.perf_counter(), time.process_time()
    way()
    wall, cpu, busy = time.perf_counter() - wall, time.process_time() - cpu, busy_seconds() - busy
    return {"seconds": wall, "cpu": cpu, "others": max(0.0, busy - cpu) / wall}


def steps(way: Way, rows: int) -> dict[str, float]:
    """Microseconds a row of each step of an epoch, which this thread carries out alone."""
    spent = dict.fromkeys(STEPS, 0.0)

    def timed(step: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def made(*args: Any, **more: Any) -> Any:
            begin = time.perf_counter()
            found = call(*args, **more)
            spent[step] += time.perf_counter() - begin
            return found

        return made

    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(sys.modules["lake.scan.scan"], "helpers", return_value=0))
        for step, (owner, name) in STEPS.items():
            stack.enter_context(mock.patch.object(owner, name, timed(step, getattr(owner, name))))
        whole = seconds(way)
    spent[REST] = whole - sum(spent.values())
    return {step: each / rows * 1e6 for step, each in spent.items()}


def _profiled(groups: dict[str, dict[str, Way]], rows: dict[str, int]) -> dict[str, dict[str, float]]:
    """The steps of each group's scan: the median of three epochs."""
    found = {}
    for group, named in groups.items():
        [way] = [way for name, way in named.items() if "scan(" in name]
        three = [steps(way, rows[group]) for _ in range(3)]
        found[group] = {step: median_and_spread([of[step] for of in three])[0] for step in three[0]}
    return found


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
            if columns:
                ways |= packed_ways(
                    lk, commit(lk, name, 8 if quick else 1, shard, pack=True), columns, folder
                )
            groups |= ways
            rows |= dict.fromkeys(ways, len(ds))
        measured = measure(groups, rows, *((3, 0.0) if quick else (5, PATIENCE)))
        profile = _profiled(groups, rows)
    return {
        "versions": versions("numpy", "pyarrow", "torch"),
        "shard": shard,
        "ways": measured,
        "profile": profile,
    }


def bars(figures: Figures) -> list[Bar]:
    """Of bars 1 to 5 what is measured here: how near to the reference of its group each scan comes."""
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
            f"{of['others']:.1f}",
            plus_minus(of["ratio"]),
        ]
        for name, of in figures["ways"].items()
    ]
    header = ["", "rows/s", "CPU s / M rows", "others", "of the reference"]
    texts = [f"Shards of {figures['shard']}.", table(header, rows), _where(figures["profile"])]
    return "\n\n".join(texts)


def _where(profile: dict[str, dict[str, float]]) -> str:
    names = list(next(iter(profile.values())))
    rows = [[group, *(f"{of[name]:.2f}" for name in names)] for group, of in profile.items()]
    text = (
        "### Where a scan's time goes\n\n"
        "Microseconds a row, of an epoch that one thread carries out alone: above, another one helps. Laying out is\n"
        "finding the wanted rows in mapped files (in those that are compressed, decoding them); what is copied once\n"
        "is what the reference copies, too."
    )
    return text + "\n\n" + table(["us a row", *names], rows)


def draw(figures: Figures, *, quick: bool) -> Path | None:
    """Nothing: the table says it all."""
