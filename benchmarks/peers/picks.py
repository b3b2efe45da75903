"""Rows by number. Runs in the peer's interpreter; a peer that takes part has `ingest`, and `picked(folder, ...)`."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa


def keep_rows(adapter: Any, source: str, folder: str, shard_bytes: int) -> dict[str, Any]:
    """Keep the stream in the file `source`, off any clock."""
    Path(folder).mkdir()
    with pa.OSFile(source) as file, pa.ipc.open_stream(file) as batches:
        adapter.ingest(batches, Path(folder), shard_bytes)
    return {}


def picked(adapter: Any, folder: str, numbers: list[int], columns: list[str]) -> dict[str, Any]:
    """Seconds to get these rows as a table, and the sum of each column, to compare."""
    begin = time.perf_counter()
    rows = adapter.picked(Path(folder), numbers, columns)
    spent = time.perf_counter() - begin
    sums = []
    for name in columns:
        column = rows[name].combine_chunks()
        values = column.flatten() if pa.types.is_fixed_size_list(column.type) else column
        sums.append(float(np.sum(values.to_numpy().astype(np.float64))))
    return {"seconds": spent, "sums": sums}


PICKS: dict[str, Callable[..., dict[str, Any]]] = {"keep_rows": keep_rows, "picked": picked}
