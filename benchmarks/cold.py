"""A bucket far away and an empty cache: how fast the first epoch is, how soon its first batch, and what a column costs.

Every measurement opens the lake anew with an empty cache, in a process that has read from the bucket before. The
bucket serves files of this machine; lines are proxies:

- an epoch of D3 (8 MiB shards), beside the same bytes fetched by the same client with as many threads and
  ranges of 4 MiB: over 100 MB/s and 30 ms nothing else; without a limit hashed and written to a file too;
- the first batch of D3 (64 MiB shards), from opening the lake on: over 50 MB/s and 30 ms, over each alone, and
  through the same proxy without either. What 50 MB/s and 30 ms take longer than 50 MB/s alone are the round trips
  that it waits for; what 50 MB/s take longer than the bare proxy is the time of its bytes. 30 ms alone are shown
  too: there, requests that take turns on a few connections are waited for as well, which bytes hide elsewhere;
- the labels of D1 (8 MiB shards) over 50 MB/s and 30 ms, beside all columns.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import lake
from benchmarks.bucket import BUCKET, Bucket, served
from benchmarks.far import far
from benchmarks.report import (
    PATIENCE,
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
from benchmarks.scan import commit, consumed
from lake.cache import DOWNLOADS
from lake.dataset import Dataset
from lake.format.names import part_key
from lake.stores import open_store

RANGE = 4 * 2**20  # bytes of a request of the reference
ROUND_TRIP = 0.03  # seconds
FAST, SLOW = 100e6, 50e6  # bytes a second
BATCH = 1024

Figures = dict[str, Any]
Act = Callable[[], float]


class Places:
    """Where the bucket's datasets are opened from, each time with an empty cache."""

    def __init__(self, bucket: Bucket, folder: Path, stack: ExitStack) -> None:
        self.bucket = bucket
        self._folder, self._stack = folder, stack

    def at(self, *, bytes_per_second: float = 0, round_trip: float = 0) -> str:
        """The bucket's endpoint from so far away, through a proxy in any case."""
        return self._stack.enter_context(
            far(self.bucket.url, bytes_per_second=bytes_per_second, round_trip=round_trip)
        )

    @contextmanager
    def opened(self, endpoint: str, lake_name: str, name: str) -> Iterator[Dataset]:
        """A dataset, nothing of which is on this machine."""
        with tempfile.TemporaryDirectory(dir=self._folder) as cache:
            url = f"s3://{BUCKET}/{lake_name}"
            lk = lake.open(
                url, endpoint_url=endpoint, anonymous=True, cache_dir=cache, cache_budget="unlimited"
            )
            yield lk.dataset(name)
            lk.cache.close()
            while any(thread.name.startswith("lake-") for thread in threading.enumerate()):
                time.sleep(0.01)  # requests that nobody waits for any more


def ranges(ds: Dataset) -> list[tuple[str, int, int]]:
    """Key, start and length of the requests that all parts of a dataset take."""
    return [
        (part_key(one.digest), start, min(RANGE, one.bytes - start))
        for number in range(ds.snapshot.document.shards)
        for one in ds.snapshot.shard(number).parts
        for start in range(0, one.bytes, RANGE)
    ]


def fetched(endpoint: str, lake_name: str, wanted: list[tuple[str, int, int]], file: Path | None) -> None:
    """The reference: all ranges by as many threads; hashed and written one after the other where there is a file."""
    store = open_store(f"s3://{BUCKET}/{lake_name}", endpoint_url=endpoint, anonymous=True)
    ends = list(itertools.accumulate(length for _, _, length in wanted))
    with ExitStack() as stack:
        out = None if file is None else stack.enter_context(file.open("wb", buffering=0))

        def fetch(request: tuple[int, tuple[str, int, int]]) -> None:
            end, (key, start, length) = request
            buffer = memoryview(bytearray(length))
            assert store.get_into(key, start, buffer) == length
            if out is not None:
                hashlib.sha256(buffer).digest()
                os.pwrite(out.fileno(), buffer, end - length)

        with ThreadPoolExecutor(DOWNLOADS) as pool:
            list(pool.map(fetch, zip(ends, wanted, strict=True)))


def epochs(places: Places, folder: Path) -> dict[str, dict[str, Act]]:
    """Bar 9."""
    groups: dict[str, dict[str, Act]] = {}
    for name, line, written in (
        ("100 MB/s, 30 ms", {"bytes_per_second": FAST, "round_trip": ROUND_TRIP}, False),
        ("no limit", {}, True),
    ):
        endpoint = places.bucket.url if written else places.at(**line)
        with places.opened(endpoint, "small", "D3") as ds:
            wanted = ranges(ds)
        file = folder / "reference" if written else None
        groups[f"epoch, {name}"] = {
            "GET, sha256 and write" if written else "GET": lambda e=endpoint, w=wanted, f=file: seconds(
                lambda: fetched(e, "small", w, f)
            ),
            **{
                f"scan(shuffle={shuffle})": lambda e=endpoint, s=shuffle: _epoch(places, e, s)
                for shuffle in (False, True)
            },
        }
    return groups


def _epoch(places: Places, endpoint: str, shuffle: bool) -> float:
    with places.opened(endpoint, "small", "D3") as ds:
        return seconds(lambda: consumed(ds.scan(batch_size=BATCH, shuffle=shuffle)))


def first_batches(places: Places) -> dict[str, dict[str, Act]]:
    """Bar 10."""
    lines = {
        "50 MB/s, 30 ms": places.at(bytes_per_second=SLOW, round_trip=ROUND_TRIP),
        "50 MB/s": places.at(bytes_per_second=SLOW),
        "30 ms": places.at(round_trip=ROUND_TRIP),
        "no line": places.at(),
    }
    return {
        f"first batch, shuffle={shuffle}": {
            line: lambda e=endpoint, s=shuffle: _first_batch(places, e, s) for line, endpoint in lines.items()
        }
        for shuffle in (False, True)
    }


def _first_batch(places: Places, endpoint: str, shuffle: bool) -> float:
    begin = time.perf_counter()
    with places.opened(endpoint, "large", "D3") as ds:
        batches = iter(ds.scan(batch_size=BATCH, shuffle=shuffle))
        next(batches)
        taken = time.perf_counter() - begin
        batches.close()  # type: ignore[attr-defined]
    return taken


def columns(places: Places) -> dict[str, dict[str, Act]]:
    """Bar 11: seconds; `labels_share` has the bytes."""
    endpoint = places.at(bytes_per_second=SLOW, round_trip=ROUND_TRIP)
    return {
        "D1, 50 MB/s, 30 ms": {
            "all columns": lambda: _column(places, endpoint, None)[0],
            "labels": lambda: _column(places, endpoint, ["label"])[0],
        }
    }


def _column(places: Places, endpoint: str, names: list[str] | None) -> tuple[float, int]:
    """Seconds of an epoch, and bytes that the bucket sent for it."""
    with places.opened(endpoint, "small", "D1") as ds:
        places.bucket.counts()
        return seconds(lambda: consumed(ds.scan(names, batch_size=BATCH))), places.bucket.counts().bytes


def run(quick: bool) -> Figures:
    """Measure. Quick: a quarter of the rows, three rounds."""
    rounds = 3 if quick else 5
    with workspace() as folder, ExitStack() as stack:
        for lake_name, shard, names in (("small", "8MiB", ("D3", "D1")), ("large", "64MiB", ("D3",))):
            lk = lake.open(folder / "bucket" / lake_name)
            sizes = {name: commit(lk, name, 4 if quick else 1, shard) for name in names}
        block = int(sizes["D3"].snapshot.manifest.sizes(sizes["D3"].schema.names)[0].max())
        places = Places(stack.enter_context(served(folder / "bucket")), folder, stack)
        groups = epochs(places, folder) | first_batches(places) | columns(places)
        ways = {f"{group}: {name}": act for group, acts in groups.items() for name, act in acts.items()}
        interleave(ways, 1)  # a warm-up
        taken = interleave(ways, rounds, patience=0.0 if quick else PATIENCE)
        near = places.bucket.url
        share = _column(places, near, ["label"])[1] / _column(places, near, None)[1]
    network = {
        f"{group}: {line}": median_and_spread(
            [
                (slowed - less) / unit
                for slowed, less in zip(taken[f"{group}: {line}"], taken[f"{group}: {without}"], strict=True)
            ]
        )
        for group in groups
        if group.startswith("first batch")
        for line, without, unit in (
            ("50 MB/s, 30 ms", "50 MB/s", ROUND_TRIP),
            ("30 ms", "no line", ROUND_TRIP),
            ("50 MB/s", "no line", block / SLOW),
        )
    }
    measured = {
        f"{group}: {name}": {
            "seconds": median_and_spread(taken[f"{group}: {name}"]),
            "of_first": ratio(taken[f"{group}: {next(iter(acts))}"], taken[f"{group}: {name}"]),
        }
        for group, acts in groups.items()
        for name in acts
    }
    return {
        "versions": versions("pyarrow", "boto3"),
        "ways": measured,
        "network": network,
        "labels_share": share,
        "shard_seconds": block / SLOW,
    }


def bars(figures: Figures) -> list[Bar]:
    """Bars 9, 10 and 11."""
    ways = figures["ways"]
    found = [
        Bar(9, way, "≥ 0.9 of the reference", plus_minus(of["of_first"]), reaches(of["of_first"], 0.9))
        for way, of in ways.items()
        if way.startswith("epoch") and "scan(" in way
    ]
    for shuffle, trips, shards, what in ((False, 10, 1 / 5, "1/5 shard"), (True, 12, 1, "one block")):
        group = f"first batch, shuffle={shuffle}"
        depth, line = (figures["network"][f"{group}: {of}"] for of in ("50 MB/s, 30 ms", "50 MB/s"))
        found += [
            Bar(10, group, f"≤ {trips} round trips", plus_minus(depth, 1), below(depth, trips)),
            Bar(10, group, f"≤ {what}", f"{plus_minus(line)} shards", below(line, shards)),
        ]
    faster = ways["D1, 50 MB/s, 30 ms: labels"]["of_first"]
    share = figures["labels_share"]
    return [
        *found,
        Bar(11, "labels of D1", "≤ 2 % of the bytes", f"{share:.2%}", share <= 0.02),
        Bar(11, "labels of D1", "≥ 20x faster", plus_minus(faster, 0), reaches(faster, 20)),
    ]


def below(value: tuple[float, ...], most: float) -> bool | None:
    """Whether a median is at most so much; None where its spread reaches across."""
    return reaches((-value[0], value[1]), -most)


def page(figures: Figures) -> str:
    """The table as Markdown."""
    rows = [
        [way, plus_minus(of["seconds"], unit=" s"), plus_minus(of["of_first"])]
        for way, of in figures["ways"].items()
    ]
    shard = figures["shard_seconds"]
    alone = " and ".join(
        f"{plus_minus(figures['network'][f'first batch, shuffle={shuffle}: 30 ms'], 1)} (shuffle={shuffle})"
        for shuffle in (False, True)
    )
    return (
        f"A 64 MiB shard of D3 takes {shard:.2f} s at 50 MB/s; a round trip takes {ROUND_TRIP * 1000:.0f} ms. 30 ms "
        f"alone cost a first batch {alone} round trips. The labels of D1 are {figures['labels_share']:.2%} of its "
        f"bytes.\n\n{table(['', 'takes', 'the first of its group takes'], rows)}"
    )


def draw(figures: Figures, *, quick: bool) -> Path | None:
    """Nothing: the table says it all."""
