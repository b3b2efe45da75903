"""Which rows meet a condition: by statistics where they tell, otherwise by reading what the condition needs.

What was read is remembered on this machine, by what the shards hold and what the condition says.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lake.bounds import ALL, NONE, SOME
from lake.cache import Sink
from lake.parts import Meter
from lake.plan.permutation import Ints
from lake.snapshot import Snapshot
from lake.where import Condition, Mask

GROUP: Final = 64  # shards whose masks are remembered together

_READERS: Final = 8  # shards looked at together
_VERSION: Final = b"lake mask 1"  # changes with what a remembered mask means

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


class Stopped(Exception):
    """Nobody wants to know any more."""


class Selecting:
    """What is known so far of the rows that meet a condition. For one thread at a time.

    `stopped`: when set, `look` raises `Stopped` soon.
    """

    def __init__(self, snapshot: Snapshot, condition: Condition, meter: Meter) -> None:
        manifest = snapshot.manifest
        self._snapshot, self._condition, self._meter = snapshot, condition, meter
        self._verdicts = condition.verdicts(manifest.stats, manifest.rows)
        self._counts: Ints = np.where(self._verdicts == ALL, manifest.rows, 0)
        self._bits: dict[int, Bits] = {}
        self._looked = np.asarray(self._verdicts != SOME)
        self.stopped = False

    @property
    def visible(self) -> Ints:
        """The shards that may have such rows, ascending."""
        return np.flatnonzero(self._verdicts != NONE)

    @property
    def is_complete(self) -> bool:
        """Whether every shard was looked at."""
        return bool(self._looked.all())

    def look(self, shards: Ints) -> None:
        """Find the rows of these shards, ascending: only the condition's columns, and where statistics leave doubt."""
        doubtful = shards[~self._looked[shards]]
        groups = np.split(doubtful, np.flatnonzero(np.diff(doubtful // GROUP)) + 1) if len(doubtful) else []
        with ThreadPoolExecutor(min(_READERS, 2 * (os.cpu_count() or 1)), "lake-select") as pool:
            for group in groups:
                for shard, bits in zip(group.tolist(), self._masks(group.tolist(), pool), strict=True):
                    self._keep(shard, bits)
        self._looked[shards] = True

    def selected(self, shards: Ints | None = None) -> Selected:
        """The rows found, of these shards alone."""
        counts = self._counts
        if shards is not None:
            counts = np.zeros_like(counts)
            counts[shards] = self._counts[shards]
        return Selected(counts, self._snapshot.manifest.rows, self._bits)

    # --- inside -------------------------------------------------------------------------------

    def _keep(self, shard: int, bits: Bits) -> None:
        rows = int(self._snapshot.manifest.rows[shard])
        self._counts[shard] = np.count_nonzero(np.unpackbits(bits, count=rows))
        if 0 < self._counts[shard] < rows:
            self._bits[shard] = bits

    def _masks(self, shards: Sequence[int], pool: ThreadPoolExecutor) -> list[Bits]:
        """The masks of a group's doubtful shards, as bits: remembered, or found now."""
        cache = self._snapshot.cache
        if cache is None or not self._is_whole_group(shards):
            return list(pool.map(self._mask, shards))
        sizes = [-(-int(self._snapshot.manifest.rows[shard]) // 8) for shard in shards]

        def build(sink: Sink) -> None:
            for bits in pool.map(self._mask, shards):
                sink.write(bits)

        with cache.open_file(self._name(shards), sum(sizes), build) as lease:
            found = np.frombuffer(lease.map(), np.uint8).copy()
        return np.split(found, np.cumsum(sizes)[:-1])

    def _is_whole_group(self, shards: Sequence[int]) -> bool:
        first = shards[0] // GROUP * GROUP
        return len(shards) == int(np.count_nonzero(self._verdicts[first : first + GROUP] == SOME))

    def _name(self, shards: Sequence[int]) -> str:
        """What the masks depend on: the contents of what is read, and the condition."""
        digest = hashlib.sha256(_VERSION + self._condition.text.encode() + b"\\0")
        for shard in shards:
            for one in self._snapshot.shard(shard).parts:
                if not set(one.fields).isdisjoint(self._condition.columns):
                    digest.update(bytes.fromhex(one.content))
            digest.update(int(self._snapshot.manifest.rows[shard]).to_bytes(8, "little"))
        return digest.hexdigest()

    def _mask(self, number: int) -> Bits:
        if self.stopped:
            raise Stopped
        return np.packbits(mask(self._snapshot, self._condition, number, self._meter))


def select(snapshot: Snapshot, condition: Condition, meter: Meter) -> Selected:
    """The rows of a version that meet the condition."""
    selecting = Selecting(snapshot, condition, meter)
    selecting.look(np.arange(len(snapshot.manifest)))
    return selecting.selected()


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
