"""What peers are asked to do. Runs in the peer's interpreter: needs pyarrow and NumPy, nothing of lake.

A peer that takes part in `ingest` and `recommit` has

- `ingest(batches, folder, shard_bytes) -> Path`: keeps a stream of record batches as the next version of one
  data set in `folder`, and says below which folder lies what has to survive a crash;
- `SYNCS`: whether that is on the disk already when `ingest` returns; what is not is forced to it here, on the
  clock, by four threads;
- `read(folder) -> iterator of record batches`: everything back, in order, in the columns of the input.

A peer that takes part in `stream`, `resume` and `audit`, which read D1 from a bucket, has

- `store(batches, folder, shard_bytes)`: keeps the stream in a folder, which is then served as a prefix;
- `Reader(prefix, endpoint, cache, seed)` with `epoch(number)`, an iterator of shuffled samples `(key, image,
  label)`; and where it can resume, `position(items)`, its state after so many samples of the epoch in hand, and
  `resume(position)`.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from benchmarks.peers import pace
from benchmarks.report import busy_seconds, settle

Item = tuple[str, bytes, int]  # key, image, label: a sample of D1


class Adapter(Protocol):
    """A peer that keeps data."""

    SYNCS: bool

    def ingest(self, batches: pa.RecordBatchReader, folder: Path, shard_bytes: int) -> Path: ...

    def read(self, folder: Path) -> Iterator[pa.RecordBatch]: ...


class _Input:
    """The batches of the file asked for last, kept in memory, so that reading them is no part of any figure."""

    path = ""
    batches: tuple[pa.RecordBatch, ...] = ()

    @classmethod
    def of(cls, source: str) -> tuple[pa.RecordBatch, ...]:
        if cls.path != source:
            cls.path, cls.batches = source, ()
            cls.batches = tuple(_stream(source))
        return cls.batches


def ingest(
    adapter: Adapter, source: str, folder: str, shard_bytes: int, patience: float, check: bool = False
) -> dict[str, Any]:
    """Keep the stream in the file `source`. `check`: read it back (off the clock) and compare.

    `patience`: seconds to wait at most for others to leave the processors alone.
    """
    batches, home = _Input.of(source), Path(folder)
    home.mkdir()
    figures, kept = _timed(adapter, batches, home, shard_bytes, patience)
    if check:
        expected = pa.Table.from_batches(batches)
        found = pa.Table.from_batches(adapter.read(home)).cast(expected.schema)
        if not found.equals(expected):
            raise AssertionError("what was read back is not what went in")
    stored = sum(_files(kept).values())
    shutil.rmtree(home)
    return {**figures, "stored": stored}


def recommit(adapter: Adapter, source: str, folder: str, shard_bytes: int, patience: float) -> dict[str, Any]:
    """Keep the stream, then keep it once more with one row in the middle edited."""
    batches, home = _Input.of(source), Path(folder)
    home.mkdir()
    first, kept = _timed(adapter, batches, home, shard_bytes, patience)
    before = _files(kept)
    second, _ = _timed(adapter, edited(batches), home, shard_bytes, patience)
    new = {path: size for path, size in _files(kept).items() if path not in before}
    shutil.rmtree(home)
    return {
        "first": first["seconds"],
        "second": second["seconds"],
        "first_cpu": first["cpu"],
        "second_cpu": second["cpu"],
        "others": max(first["others"], second["others"]),
        "uploaded": sum(new.values()),
        "shards": sum(path.startswith("shards/") for path in new),
        "of_shards": sum(path.startswith("shards/") for path in before),
    }


def memory(adapter: Adapter, source: str, folder: str, shard_bytes: int) -> dict[str, Any]:
    """The most memory that this process ever had resident, before and after it kept a stream read on the way."""
    home = Path(folder)
    home.mkdir()
    before = peak_memory()
    batches = _stream(source)
    first = next(batches)

    def whole() -> Iterator[pa.RecordBatch]:
        yield first
        yield from batches

    adapter.ingest(pa.RecordBatchReader.from_batches(first.schema, whole()), home, shard_bytes)
    after = peak_memory()
    shutil.rmtree(home)
    return {"before": before, "peak": after}


def edited(batches: tuple[pa.RecordBatch, ...]) -> tuple[pa.RecordBatch, ...]:
    """The same batches but for one value: the first of the row in the middle, in the column `x`."""
    middle = len(batches) // 2
    batch = batches[middle]
    place = batch.schema.get_field_index("x")
    lists = batch.column(place)
    values = np.array(lists.flatten())
    values[batch.num_rows // 2 * lists.type.list_size] += 1
    changed = pa.FixedSizeListArray.from_arrays(pa.array(values), type=lists.type)
    return (
        *batches[:middle],
        batch.set_column(place, batch.schema.field(place), changed),
        *batches[middle + 1 :],
    )


def store(adapter: Any, source: str, folder: str, shard_bytes: int) -> dict[str, Any]:
    """Keep the stream in the file `source`, off any clock."""
    Path(folder).mkdir(parents=True)
    batches = _Input.of(source)
    reader = pa.RecordBatchReader.from_batches(batches[0].schema, iter(batches))
    adapter.store(reader, Path(folder), shard_bytes)
    return {"stored": sum(_files(Path(folder)).values())}


def stream(adapter: Any, prefix: str, endpoint: str, cache: str, patience: float) -> dict[str, Any]:
    """Two epochs with a cache that begins empty: what each cost, and the order of the first."""
    settle(patience)
    begin, cpu = time.perf_counter(), _cpu_seconds()
    reader = adapter.Reader(prefix, endpoint, Path(cache), seed=0)
    keys, first = [], 0.0
    for key, _, _ in reader.epoch(0):
        first = first or time.perf_counter() - begin
        keys.append(int(key))
    ended = time.perf_counter()
    again = sum(1 for _ in reader.epoch(1))
    wall, cpu = time.perf_counter() - begin, _cpu_seconds() - cpu
    return {
        "first": first,
        "epoch1": ended - begin,
        "epoch2": wall - (ended - begin),
        "cpu": cpu / (len(keys) + again),
        "rows": [len(keys), again],
        "peak": peak_memory(),
        "keys": keys,
    }


def resume(adapter: Any, prefix: str, endpoint: str, cache: str, items: int) -> dict[str, Any]:
    """Whether an epoch that stops after so many samples and goes on in another reader is the one that did not."""
    if not hasattr(adapter.Reader, "resume"):
        return {"exact": None}
    whole = [key for key, _, _ in _reader(adapter, prefix, endpoint, cache).epoch(0)]
    stopped = _reader(adapter, prefix, endpoint, cache)
    samples = stopped.epoch(0)
    begun = [key for _, (key, _, _) in zip(range(items), samples, strict=False)]
    position = json.loads(json.dumps(stopped.position(items)))
    del samples, stopped
    other = _reader(adapter, prefix, endpoint, cache)
    other.resume(position)
    rest = [key for key, _, _ in other.epoch(0)]
    return {
        "exact": begun + rest == whole,
        "repeated": len({*begun} & {*rest}),
        "lost": len({*whole} - {*begun, *rest}),
    }


def audit(adapter: Any, prefix: str, endpoint: str, cache: str, source: str) -> dict[str, Any]:
    """Read all samples, and compare them with what was kept: the error that was raised, or how many are wrong."""
    right = {key: (image, label) for key, image, label in rows(_Input.of(source))}
    wrong = 0
    try:
        for key, image, label in _reader(adapter, prefix, endpoint, cache).epoch(0):
            wrong += right.pop(key, None) != (image, label)
    except Exception as error:
        return {"raised": type(error).__name__, "wrong": wrong}
    return {"raised": None, "wrong": wrong + len(right)}


def rows(batches: Iterable[pa.RecordBatch]) -> Iterator[Item]:
    """The samples of D1."""
    for batch in batches:
        yield from zip(*(batch[name].to_pylist() for name in ("key", "image", "label")), strict=True)


TASKS: dict[str, Callable[..., dict[str, Any]]] = {
    "ingest": ingest,
    "recommit": recommit,
    "memory": memory,
    "store": store,
    "stream": stream,
    "resume": resume,
    "audit": audit,
    "keep": pace.keep,
    "pace": pace.pace,
}


# --- inside -----------------------------------------------------------------------------------


def _cpu_seconds() -> float:
    """Of this process and of those that it has waited for."""
    return sum(os.times()[:4])


def _reader(adapter: Any, prefix: str, endpoint: str, cache: str) -> Any:
    return adapter.Reader(prefix, endpoint, Path(cache), seed=0)


def _timed(
    adapter: Adapter, batches: tuple[pa.RecordBatch, ...], home: Path, shard_bytes: int, patience: float
) -> tuple[dict[str, float], Path]:
    """What it costs until the batches are on the disk, and where they are.

    `seconds` by the clock, `cpu` seconds of this process, how many processors `others` used meanwhile, how many
    `syncs` were made from Python and the seconds, of all threads together, that these took.
    """
    os.sync()  # what others left to be written is not on this clock
    settle(patience)
    reader = pa.RecordBatchReader.from_batches(batches[0].schema, iter(batches))
    busy, wall, cpu = busy_seconds(), time.perf_counter(), time.process_time()
    with _watched_syncs() as syncs:
        kept = adapter.ingest(reader, home, shard_bytes)
        if not adapter.SYNCS:
            _force(kept)
    wall, cpu, busy = time.perf_counter() - wall, time.process_time() - cpu, busy_seconds() - busy
    figures = {"seconds": wall, "cpu": cpu, "others": max(0.0, busy - cpu) / wall}
    return {**figures, "syncs": len(syncs), "sync_seconds": sum(syncs)}, kept


@contextmanager
def _watched_syncs() -> Iterator[list[float]]:
    """The seconds of each `os.fsync` meanwhile."""
    took, fsync = [], os.fsync

    def watched(fd: int) -> None:
        begin = time.perf_counter()
        fsync(fd)
        took.append(time.perf_counter() - begin)

    os.fsync = watched
    try:
        yield took
    finally:
        os.fsync = fsync


def _force(folder: Path) -> None:
    """Onto the disk with every file and directory."""
    places = [folder, *folder.rglob("*")]
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(_fsync, places))


def _fsync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _files(folder: Path) -> dict[str, int]:
    return {
        path.relative_to(folder).as_posix(): path.stat().st_size
        for path in folder.rglob("*")
        if path.is_file()
    }


def _stream(source: str) -> Iterator[pa.RecordBatch]:
    with pa.OSFile(source) as file, pa.ipc.open_stream(file) as reader:
        yield from reader


def peak_memory() -> int:
    """The most bytes that this process ever had resident; what its parent had does not count."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        import resource

        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if os.uname().sysname == "Darwin" else most * 1024
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) * 1024
