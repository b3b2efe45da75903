"""How fast peers hand samples out, from a local folder, one by one and through their loaders.

Runs in the peer's interpreter. A peer that takes part has `Local(folder, shard_bytes)` in `WAYS` below, with

- `keep(batches)`: keeps a stream of record batches of `key` and one binary column;
- `samples(shuffled)`: an iterator of `(key, value)`, as the library gives single samples, made equal;
- `mapped(fn, size)`: lists of `size` results of a Python function of each sample, in this process;
- `loader(fn, size, workers)`: the same through the library's own loader or the one its guide advises, which is
  kept, with its workers, from epoch to epoch.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa

from benchmarks.report import busy_seconds, settle

Sample = tuple[str, bytes]


def summed(sample: Any) -> Any:
    """The Python map of bar 8: the value and a checksum of its beginning."""
    value = sample[1]
    return value, zlib.crc32(value[:64])


def measured(sample: Any) -> Any:
    """The Python map of bar 7."""
    return sample[0], len(sample[1])


class Pipelines:
    """What lake and dload, whose pipelines have the same names, are asked alike."""

    _dataset: Any

    def _pipeline(self, fn: Callable[[Any], Any] | None = None) -> Any:
        samples = self._dataset.samples()
        return samples if fn is None else samples.map(lambda sample: fn((sample[0], sample[1]["value"])))

    def pipeline(self, *, shuffled: bool) -> Any:
        """The samples as a pipeline."""
        pipeline = self._pipeline()
        return pipeline.shuffle(seed=0) if shuffled else pipeline

    def samples(self, shuffled: bool) -> Iterator[Any]:
        return iter(self.pipeline(shuffled=shuffled))

    def mapped(self, fn: Callable[[Any], Any], size: int) -> Iterator[Any]:
        return iter(self._pipeline(fn).batch(size))


class Lake(Pipelines):
    """lake, by its public API."""

    def __init__(self, folder: Path, shard_bytes: int) -> None:
        import lake

        self._shard_bytes = shard_bytes
        self._lake = lake.open(folder / "lake", cache_dir=folder / "cache", progress=False)

    def keep(self, batches: pa.RecordBatchReader) -> None:
        self._lake.commit("data", batches, shard_bytes=self._shard_bytes)

    @cached_property
    def _dataset(self) -> Any:
        return self._lake.dataset("data")

    def loader(self, fn: Callable[[Any], Any], size: int, workers: int) -> Iterable[Any]:
        import lake

        return lake.torch.loader(self._pipeline(fn).batch(size), num_workers=workers)


class Dload(Pipelines):
    """dload: its pipeline, and torch's DataLoader over that."""

    def __init__(self, folder: Path, shard_bytes: int) -> None:
        from benchmarks.peers.dload import _open

        self._repository, self._shard_bytes = _open(folder), shard_bytes

    @cached_property
    def _dataset(self) -> Any:
        return self._repository.dataset("data")

    def keep(self, batches: pa.RecordBatchReader) -> None:
        from benchmarks.peers.dload import samples

        self._repository.commit("data", samples(batches), target_shard_size=self._shard_bytes)

    def loader(self, fn: Callable[[Any], Any], size: int, workers: int) -> Iterable[Any]:
        from torch.utils.data import DataLoader

        data = self._pipeline(fn).batch(size)
        return DataLoader(data, batch_size=None, num_workers=workers, persistent_workers=workers > 0)


class Litdata:
    """LitData: its data set, and its own loader."""

    def __init__(self, folder: Path, shard_bytes: int) -> None:
        self._folder, self._shard_bytes = folder / "chunks", shard_bytes

    def keep(self, batches: pa.RecordBatchReader) -> None:
        from litdata.streaming.cache import Cache

        self._folder.mkdir()
        cache = Cache(str(self._folder), chunk_bytes=self._shard_bytes)
        rows = (row for batch in batches for row in zip(*(c.to_pylist() for c in batch.columns), strict=True))
        for number, (key, value) in enumerate(rows):
            cache[number] = {"key": key, "value": value}
        cache.done()
        cache.merge()

    def _data(self, shuffled: bool, transform: Any = None) -> Any:
        from litdata import StreamingDataset

        return StreamingDataset(str(self._folder), shuffle=shuffled, seed=0, transform=transform)

    def samples(self, shuffled: bool) -> Iterator[Any]:
        return ((row["key"], {"value": row["value"]}) for row in self._data(shuffled))

    def mapped(self, fn: Callable[[Any], Any], size: int) -> Iterator[Any]:
        raise NotImplementedError("it has no pipeline")

    def loader(self, fn: Callable[[Any], Any], size: int, workers: int) -> Iterable[Any]:
        from litdata import StreamingDataLoader

        data = self._data(False, lambda row: fn((row["key"], row["value"])))
        return StreamingDataLoader(
            data, batch_size=size, num_workers=workers, collate_fn=list, persistent_workers=workers > 0
        )


class Datasets:
    """Hugging Face datasets: Arrow files on disk as an iterable data set, and torch's DataLoader."""

    def __init__(self, folder: Path, shard_bytes: int) -> None:
        self._folder, self._shard_bytes = folder / "arrow", shard_bytes

    def keep(self, batches: pa.RecordBatchReader) -> None:
        import datasets

        datasets.disable_progress_bars()
        table = batches.read_all()
        shards = max(1, table.nbytes // self._shard_bytes)
        datasets.Dataset(datasets.table.InMemoryTable(table)).save_to_disk(
            str(self._folder), num_shards=shards
        )

    def _data(self) -> Any:
        import datasets

        loaded = datasets.load_from_disk(str(self._folder))
        return loaded.to_iterable_dataset(num_shards=64)

    def samples(self, shuffled: bool) -> Iterator[Any]:
        data = self._data()
        data = data.shuffle(seed=0, buffer_size=1000) if shuffled else data
        return ((row["key"], {"value": row["value"]}) for row in data)

    def mapped(self, fn: Callable[[Any], Any], size: int) -> Iterator[Any]:
        return iter(self.loader(fn, size, 0))

    def loader(self, fn: Callable[[Any], Any], size: int, workers: int) -> Iterable[Any]:
        from torch.utils.data import DataLoader

        def collate(rows: list[Any]) -> list[Any]:
            return [fn((row["key"], row["value"])) for row in rows]

        return DataLoader(
            self._data(),
            batch_size=size,
            num_workers=workers,
            collate_fn=collate,
            persistent_workers=workers > 0,
        )


WAYS: dict[str, Any] = {"lake": Lake, "dload": Dload, "litdata": Litdata, "datasets": Datasets}


def keep(adapter: Any, source: str, folder: str, shard_bytes: int) -> dict[str, Any]:
    """Keep the stream in the file `source`, off any clock."""
    home = Path(folder)
    home.mkdir(parents=True)
    with pa.OSFile(source) as file, pa.ipc.open_stream(file) as batches:
        _local(adapter, home, shard_bytes).keep(batches)
    return {}


def pace(
    adapter: Any, way: str, folder: str, shard_bytes: int, patience: float, check: bool = False
) -> dict[str, Any]:
    """An epoch of everything, one way: seconds, and a sum over what came out, to compare."""
    local = _local(adapter, Path(folder), shard_bytes)
    settle(patience)
    busy, wall, cpu = busy_seconds(), time.perf_counter(), _cpu()
    count = _count(way, local)
    wall, cpu, busy = time.perf_counter() - wall, _cpu() - cpu, busy_seconds() - busy
    sums = _sums(_items(way, local)) if check else None
    return {"seconds": wall, "cpu": cpu, "others": max(0.0, busy - cpu) / wall, "count": count, "sums": sums}


def _cpu() -> float:
    import os

    return sum(os.times()[:4])


@cache
def _local(adapter: Any, folder: Path, shard_bytes: int) -> Any:
    """Opened once: what checking the data for the first time costs belongs to the round that warms up."""
    return WAYS[adapter.__name__.rpartition(".")[2]](folder, shard_bytes)


@cache
def _loader(local: Any) -> Iterable[Any]:
    found: Iterable[Any] = local.loader(summed, 64, 2)
    return found


_BATCHED: dict[str, Callable[[Any], Iterable[list[Any]]]] = {
    "map and batch": lambda local: local.mapped(measured, 64),
    "loader": _loader,
}
_SINGLE: dict[str, Callable[[Any], Iterator[Any]]] = {
    "samples": lambda local: local.samples(False),
    "shuffled samples": lambda local: local.samples(True),
}


def _items(way: str, local: Any) -> Iterator[Any]:
    if way in _SINGLE:
        return _SINGLE[way](local)
    return (item for batch in _BATCHED[way](local) for item in batch)


def _count(way: str, local: Any) -> int:
    if way in _SINGLE:
        return sum(1 for _ in _SINGLE[way](local))
    return sum(map(len, _BATCHED[way](local)))


def _sums(items: Iterator[Any]) -> list[Any]:
    """How many items of which types there are, and a sum over their contents that knows no order."""
    count, total, kinds = 0, 0, set[str]()
    for item in items:
        count += 1
        total += zlib.crc32(repr(item).encode())
        kinds.add(_kind(item))
    return [count, total, sorted(kinds)]


def _kind(item: Any) -> str:
    if isinstance(item, tuple | list):
        return f"{type(item).__name__}({', '.join(map(_kind, item))})"
    return (
        f"dict({', '.join(f'{k}={_kind(v)}' for k, v in item.items())})"
        if isinstance(item, dict)
        else type(item).__name__
    )
