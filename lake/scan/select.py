"""Which rows meet a condition: by statistics where they tell, otherwise by reading what the condition needs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lake.bounds import ALL, SOME
from lake.parts import Meter
from lake.plan.permutation import Ints
from lake.snapshot import Snapshot
from lake.where import Condition, Mask

_READERS = 4  # shards looked at together

Bits = npt.NDArray[np.uint8]


@dataclass(frozen=True, eq=False)
class Selected:
    """The rows that meet a condition: a `lake.plan.Selection`."""

    counts: Ints  # per shard
    _rows: Ints
    _bits: Mapping[int, Bits]  # of the shards of which statistics do not tell

    def rows(self, shard: int) -> Ints:
        """The rows of a shard that do, ascending, counted from its first."""
        if shard not in self._bits:
            return np.arange(self.counts[shard], dtype=np.int64)
        mask = np.unpackbits(self._bits[shard], count=int(self._rows[shard]))
        return np.flatnonzero(mask).astype(np.int64, copy=False)


def select(snapshot: Snapshot, condition: Condition, meter: Meter) -> Selected:
    """The rows of a version that meet the condition; reads only its columns, and of shards that may differ."""
    manifest = snapshot.manifest
    verdicts = condition.verdicts(manifest.stats, manifest.rows)
    counts: Ints = np.where(verdicts == ALL, manifest.rows, 0)
    some = np.flatnonzero(verdicts == SOME).tolist()
    bits: dict[int, Bits] = {}
    with ThreadPoolExecutor(min(_READERS, os.cpu_count() or 1), "lake-select") as pool:
        masks = pool.map(lambda shard: mask(snapshot, condition, shard, meter), some)
        for shard, found in zip(some, masks, strict=True):
            counts[shard] = np.count_nonzero(found)
            if 0 < counts[shard] < len(found):
                bits[shard] = np.packbits(found)
    return Selected(counts, manifest.rows, bits)


def count(snapshot: Snapshot, condition: Condition) -> int:
    """How many rows of a version meet the condition."""
    return int(select(snapshot, condition, Meter()).counts.sum())


def mask(snapshot: Snapshot, condition: Condition, number: int, meter: Meter) -> Mask:
    """Which rows of a shard meet the condition."""
    shard, names = snapshot.shard(number), list(condition.columns)
    if not names:
        return condition.mask(pa.record_batch({"": pa.nulls(shard.rows)}))
    with snapshot.located(number):
        columns = snapshot.reader.read(shard, names, [(0, shard.rows)], meter)
    table = snapshot.reader.table(columns, names).combine_chunks()
    return np.concatenate([condition.mask(batch) for batch in table.to_batches()])
