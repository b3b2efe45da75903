"""Turn a stream of record batches into shards in the store: cut, digest, encode, publish.

The calling thread reads the input once and decides where shards end; a few workers carry shards out, each
batch by batch, so that memory is bounded by the shards in flight and not by the data. Nothing here becomes
visible: that is `lake.commit`'s last step.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from lake.format import content, cuts, names, part, schema, stats
from lake.format.values import Cuts, Part, Shard
from lake.guard import Guard
from lake.progress import Bar

IN_FLIGHT = 4  # shards being filled, waiting or carried out; each at most twice the target

Groups = tuple[tuple[str, ...], ...]
Reuse = Mapping[tuple[tuple[str, ...], str], Part]  # (fields, content) -> a part of the base


@dataclass(frozen=True, slots=True)
class Slab:
    """The rows of one shard to be, as slices of the input."""

    chunks: tuple[pa.RecordBatch, ...]
    rows: int
    bits: int  # raw size
    cut: int  # hash of the last row


@dataclass
class Ingested:
    """What was made of the input; `reused` parts were already in the store."""

    shards: list[Shard] = field(default_factory=list)
    rows: int = 0
    bytes_new: int = 0
    bytes_reused: int = 0
    inherited: set[str] = field(default_factory=set)  # digests taken over from the base by content


def slabs(batches: Iterable[pa.RecordBatch], key: str | None, target: int) -> Iterator[Slab]:
    """Cut a stream of stored-form batches into shards, in order. Keeps only the rows since the last cut."""
    cutter = cuts.Cutter(target)
    waiting: list[tuple[pa.RecordBatch, np.ndarray, np.ndarray]] = []
    first = seen = 0  # row numbers of the first waiting row and of the next batch

    def take(end: int) -> Slab:
        nonlocal first
        chunks, bits, last = [], 0, 0
        while first < end:
            batch, hashes, sizes = waiting.pop(0)
            rows = min(batch.num_rows, end - first)
            if rows < batch.num_rows:
                waiting.insert(0, (batch.slice(rows), hashes[rows:], sizes[rows:]))
            chunks.append(batch.slice(0, rows))
            bits += int(sizes[:rows].sum())
            last = int(hashes[rows - 1])
            first += rows
        return Slab(tuple(chunks), sum(chunk.num_rows for chunk in chunks), bits, last)

    for batch in batches:
        if not batch.num_rows:
            continue
        hashes, sizes = cuts.row_hashes(batch, key, seen), cuts.row_bits(batch)
        waiting.append((batch, hashes, sizes))
        seen += batch.num_rows
        for end in cutter.push(hashes, sizes):
            yield take(end)
    for end in cutter.finish():
        yield take(end)


class ShardWriter:
    """Carries slabs out: each part is looked up by content, else encoded and published.

    `reuse` maps (fields, content) to parts of the base, which cost neither compression nor upload.
    `known` maps digests of parts to the base's shard that has them, if its schema and key are the same: such a
    shard is taken over whole. `groups` says which columns share a part; None: the first shard's sizes decide.
    """

    def __init__(
        self,
        guard: Guard,
        stored: pa.Schema,
        key: str | None,
        layout: Cuts,
        *,
        groups: Groups | None = None,
        reuse: Reuse | None = None,
        known: Mapping[tuple[str, ...], Shard] | None = None,
    ) -> None:
        self.guard, self.stored, self.key, self.layout = guard, stored, key, layout
        self.groups = groups
        self.reuse, self.known = reuse or {}, known or {}
        self.result = Ingested()
        self._lock = threading.Lock()

    def write(self, slab: Slab, bar: Bar, groups: Groups | None = None) -> Shard:
        """One shard, its parts stored. `groups`: other than the writer's. Thread-safe."""
        parts = tuple(self.part(slab.chunks, fields, bar) for fields in groups or self._grouping(slab))
        same = self.known.get(tuple(one.digest for one in parts))
        if same is not None:
            return same
        keys = (
            (None, None)
            if self.key is None
            else (
                slab.chunks[0][self.key][0].as_py(),
                slab.chunks[-1][self.key][-1].as_py(),
            )
        )
        return Shard(
            rows=slab.rows,
            raw_bytes=-(-slab.bits // 8),
            first_key=keys[0],
            last_key=keys[1],
            cut=slab.cut,
            parts=parts,
            stats=stats.shard_stats(slab.chunks, self.stored, self.key),
        )

    def _grouping(self, slab: Slab) -> Groups:
        with self._lock:
            if self.groups is None:
                self.groups = part.group_fields(column_means(slab))
            return self.groups

    def part(self, chunks: Sequence[pa.RecordBatch], fields: tuple[str, ...], bar: Bar) -> Part:
        """One part of the given rows (stored form), stored. Thread-safe."""
        chunks = [chunk.select(list(fields)) for chunk in chunks]
        columns = [[chunk.column(i) for chunk in chunks] for i in range(len(fields))]
        digest = content.content_digest(list(chunks[0].schema), columns)
        known = self.reuse.get((fields, digest))
        if known is not None:
            self.result.inherited.add(known.digest)
            self._count(known, 0, bar)
            return known
        with self.guard.store.stage() as staged:
            made = part.encode_part(chunks, staged, content=digest, target=self.layout.target)
            new = self.guard.publish(names.part_keys(made.digest), staged, made.digest)
        self._count(made, made.bytes if new else 0, bar)
        return made

    def _count(self, part: Part, new: int, bar: Bar) -> None:
        with self._lock:
            self.result.bytes_new += new
            self.result.bytes_reused += part.bytes - new
        bar.advance(part.raw_bytes, new=new, reused=part.bytes - new)


def grouping(shard: Shard, stored: pa.Schema) -> Groups:
    """How a shard's columns are grouped into parts; columns that it does not have share one more."""
    kept = [tuple(one.held(stored.names)) for one in shard.parts]
    known = {name for group in kept for name in group}
    rest = tuple(name for name in stored.names if name not in known)
    return tuple(group for group in (*kept, rest) if group)


def column_means(slab: Slab) -> dict[str, float]:
    """Mean raw bytes a row of each column of a slab."""
    totals: dict[str, int] = {}
    for chunk in slab.chunks:
        for name, column in zip(chunk.schema.names, chunk.columns, strict=True):
            alone = pa.RecordBatch.from_arrays([column], names=[name])
            totals[name] = totals.get(name, 0) + int(cuts.row_bits(alone).sum())
    return {name: total / 8 / slab.rows for name, total in totals.items()}


def reusable(shards: Iterable[Shard], target: int) -> Reuse:
    """Parts that may be taken over by content, because they have the record batches that they would be given now."""
    return {
        (one.fields, one.content): one
        for shard in shards
        for one in shard.parts
        if part.fits(one, shard.rows, target)
    }


def _conformed(batches: Iterable[pa.RecordBatch], writer: ShardWriter) -> Iterator[pa.RecordBatch]:
    """The batches in stored form; an error names the row of the whole input."""
    first = 0
    for batch in batches:
        yield schema.conform(batch, writer.stored, key=writer.key, first=first)
        first += batch.num_rows


def ingest(batches: Iterable[pa.RecordBatch], writer: ShardWriter, bar: Bar) -> Ingested:
    """Write every row of `batches` (canonical schema) as shards; their order is the input's.

    The first failure, in whatever thread, stops the rest and is raised; what was already stored stays for gc.
    """
    result = writer.result
    conformed = _conformed(batches, writer)
    workers = min(IN_FLIGHT - 1, (os.cpu_count() or 1) + 1)  # one more than computes: it waits for the disk
    room = threading.Semaphore(IN_FLIGHT - 1)  # and one is being filled
    failed = threading.Event()

    def carry_out(slab: Slab) -> Shard:
        try:
            shard = writer.write(slab, bar)
        except BaseException:
            failed.set()
            raise
        finally:
            room.release()
        return shard

    done: list[Future[Shard]] = []
    with ThreadPoolExecutor(workers, thread_name_prefix="lake-ingest") as pool:
        try:
            for slab in slabs(conformed, writer.key, writer.layout.target):
                room.acquire()
                if failed.is_set():
                    break
                result.rows += slab.rows
                done.append(pool.submit(carry_out, slab))
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    result.shards = [future.result() for future in done]
    if sum(shard.rows for shard in result.shards) != result.rows:
        raise AssertionError(
            f"{result.rows} rows came in, {sum(shard.rows for shard in result.shards)} are in shards"
        )
    return result
