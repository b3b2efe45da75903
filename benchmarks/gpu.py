"""Batches to a CUDA device beside one plain loop of pinned copies: for whenever a GPU is at hand.

    python -m benchmarks.gpu [ROWS]

Checks first that what arrives is what was committed. Then, in rounds that take turns, in GB/s:

- plain: one pinned buffer of a batch's size, copied to the device again and again;
- loader: `lake.torch.loader(scan, device="cuda")` over rows like those of D3 (float32[256], a label), shuffled;
- feed: `DeviceFeed` over batches that are in memory already: the way to the device alone.

And how much longer a loop takes that computes on each batch about as long as its transfer, than the computation
alone: transfers that are hidden cost nothing.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pyarrow as pa
import torch

import lake
from benchmarks.data import d3
from benchmarks.report import interleave, median_and_spread, plus_minus, ratio, workspace

BATCH = 4096
ROUNDS = 5


def commit(lk: Any, rows: int) -> Any:
    batches = d3(rows=rows)
    first = next(batches)

    def stream() -> Iterator[pa.RecordBatch]:
        yield first
        yield from batches

    lk.commit("D3", pa.RecordBatchReader.from_batches(first.schema, stream()), progress=False)
    return lk.dataset("D3")


def check(ds: Any, device: torch.device) -> None:
    """What is on the device is what the scan gives on the host, batch by batch."""
    columns = ["x", "label"]
    host = ds.scan(columns, batch_size=BATCH).to_torch()
    there = lake.torch.loader(ds.scan(columns, batch_size=BATCH), device=device)
    for number, (left, right) in enumerate(zip(host, there, strict=True)):
        for name in columns:
            assert right[name].device.type == device.type
            assert left[name].equal(right[name].cpu()), f"batch {number}, column {name}"


def gigabytes(batches: Iterable[Any], sync: Callable[[], object]) -> float:
    """GB/s of all tensors that are handed out."""
    total, begin = 0, time.perf_counter()
    for batch in batches:
        total += sum(tensor.nbytes for tensor in batch.values())
    sync()
    return total / (time.perf_counter() - begin) / 1e9


def plain(
    batch: dict[str, torch.Tensor], times: int, device: torch.device
) -> Iterator[dict[str, torch.Tensor]]:
    """Copies of one pinned batch."""
    pinned = {name: tensor.pin_memory() for name, tensor in batch.items()}
    for _ in range(times):
        yield {name: tensor.to(device, non_blocking=True) for name, tensor in pinned.items()}


def hidden(batches: list[dict[str, torch.Tensor]], device: torch.device, sync: Callable[[], object]) -> float:
    """Seconds of a loop that computes about as long as it transfers, over those of the computation alone."""
    there = {name: tensor.to(device) for name, tensor in batches[0].items()}
    weights = torch.randn(256, 256, device=device)

    def compute(batch: dict[str, torch.Tensor], times: int) -> None:
        x = batch["x"]
        for _ in range(times):
            x = x @ weights

    def seconds(stream: Iterable[dict[str, torch.Tensor]], times: int) -> float:
        sync()
        begin = time.perf_counter()
        for batch in stream:
            compute(batch, times)
        sync()
        return time.perf_counter() - begin

    transfer = seconds(lake.torch.DeviceFeed(batches, device), 0)
    once = seconds([there] * len(batches), 1)
    times = max(1, round(transfer / once))
    return seconds(lake.torch.DeviceFeed(batches, device), times) / seconds([there] * len(batches), times)


def main(rows: int) -> None:
    if not torch.cuda.is_available():
        sys.exit("no CUDA device here; tests/torch/test_device.py walks the same path on a CPU")
    device, sync = torch.device("cuda"), torch.cuda.synchronize
    with workspace() as folder:
        ds = commit(lake.open(folder / "lake"), rows)
        check(ds, device)
        columns = ["x", "label"]
        host = [dict(batch) for batch in ds.scan(columns, batch_size=BATCH).to_torch()]
        loader = lake.torch.loader(ds.scan(columns, batch_size=BATCH, shuffle=True), device=device)
        ways: dict[str, Callable[[], float]] = {
            "plain": lambda: gigabytes(plain(host[0], len(host), device), sync),
            "loader": lambda: gigabytes(loader, sync),
            "feed": lambda: gigabytes(lake.torch.DeviceFeed(host, device), sync),
        }
        interleave(ways, 1)
        found = interleave(ways, ROUNDS)
        print(
            f"{torch.cuda.get_device_name()}, torch {torch.__version__}; {rows:,} rows, equal on the device"
        )
        for name, figures in found.items():
            share = plus_minus(ratio(figures, found["plain"]))
            print(f"{name:8} {plus_minus(median_and_spread(figures))} GB/s, {share} of plain")
        overlap = median_and_spread([hidden(host, device, sync) for _ in range(ROUNDS)])
        print(f"a loop that computes as long as it transfers: {plus_minus(overlap)} of the computation alone")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 400_000)
