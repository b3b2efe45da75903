"""A manifest: all shards of a version, kept as columns so that a million of them open in seconds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from lake.format.values import SegmentRef, Shard


class Manifest:
    """The shards of a version, in order. `rows` (int64) per shard, `starts` (one more): each shard's first row."""

    rows: np.ndarray
    raw_bytes: np.ndarray
    starts: np.ndarray

    @classmethod
    def open(cls, schema: pa.Schema, refs: Sequence[SegmentRef], data: Sequence[Any]) -> Manifest:
        """The manifest whose segments are `refs`; `data`: their bytes, or paths of files that hold them."""
        raise NotImplementedError

    def __len__(self) -> int:
        raise NotImplementedError

    def shard(self, index: int) -> Shard:
        """All that the manifest says of one shard, read when asked for."""
        raise NotImplementedError

    def shards(self, start: int = 0, stop: int | None = None) -> Iterator[Shard]:
        """The shards from `start` to `stop`, in order."""
        raise NotImplementedError

    def find(self, row: int) -> tuple[int, int]:
        """The shard that holds a row, and the row's place in it."""
        raise NotImplementedError

    def batch_rows(self, columns: Sequence[str], target: int) -> np.ndarray:
        """Per shard, the batch size of the largest part among those that hold `columns`."""
        raise NotImplementedError

    def sizes(self, columns: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """Per shard, stored and raw bytes of the parts that hold `columns`."""
        raise NotImplementedError

    def stats(self, column: str) -> pa.ChunkedArray:
        """Per shard, a struct of `min, max, nulls, nans` of a column; null where unknown."""
        raise NotImplementedError
