"""A dataset as what other engines read lazily: a `pyarrow.dataset.Dataset`, a `polars.LazyFrame`.

Engines ask for columns and a filter and want all of it, so rows come shard after shard without a plan or a
cursor, and threads read ahead. Shards that the filter cannot meet are skipped by their statistics; of the
others its columns are read first, and the rest only where it leaves rows.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads

from lake.bounds import ALL, NONE
from lake.parts import Meter, width
from lake.sandbox import of_polars, shown_type
from lake.snapshot import Snapshot
from lake.virtual import VirtualDataset, recast
from lake.where import Condition, condition

if TYPE_CHECKING:
    import polars

_PIECE_BYTES: Final = 64 * 2**20  # raw, of the columns asked for, that are read at once, about
_REQUESTS: Final = 8  # pieces of a bucket that are waited for together
_FEW: Final = 8  # of one row in so many, or fewer, only the record batches that hold them are read


def arrow(snapshot: Snapshot, meter: Meter | None = None) -> VirtualDataset:
    """The version as a pyarrow dataset, which DuckDB, polars, pandas and Dask read. `meter` counts what it costs."""
    return VirtualDataset(snapshot.document.schema, _Rows(snapshot, meter))


@dataclass(frozen=True)
class _Rows:
    """What a dataset of a version reads with; it pickles, for engines that read in other processes."""

    snapshot: Snapshot
    meter: Meter | None

    def __call__(self, columns: list[str], where: pads.Expression | None) -> Iterator[pa.RecordBatch]:
        yield from read(self.snapshot, columns, where, meter=self.meter)


def read(
    snapshot: Snapshot,
    columns: Sequence[str],
    where: Any = None,
    *,
    shards: Collection[int] | None = None,
    meter: Meter | None = None,
    threads: int | None = None,
) -> Iterator[pa.RecordBatch]:
    """The rows that meet a condition, in order, with these columns; `shards`: of these alone."""
    question = _Question(snapshot, columns, where, meter or Meter())
    if threads is None:
        threads = (os.cpu_count() or 1) if snapshot.cache is None else _REQUESTS
    return _ahead(question, question.pieces(shards), threads)


def shards_of(snapshot: Snapshot, where: Any = None) -> np.ndarray:
    """The numbers of the shards that may hold rows that meet a condition, ascending."""
    manifest = snapshot.manifest
    if where is None:
        return np.arange(len(manifest))
    verdicts = condition(where, snapshot.document.schema).verdicts(manifest.stats, manifest.rows)
    return np.flatnonzero(verdicts != NONE)


def lazy(snapshot: Snapshot) -> polars.LazyFrame:
    """The version as a lazy frame of polars, with columns and predicates pushed down.

    Decimals of over 38 digits, which polars lacks, are text, as they are in SQL.
    """
    import polars
    from polars.io.plugins import register_io_source

    source = arrow(snapshot)
    shown = pa.schema([pa.field(f.name, shown_type(f.type, of_polars)) for f in source.schema])
    cast = recast(source, shown)
    frame = polars.scan_pyarrow_dataset(cast)
    unordered = _with_nan(snapshot)
    if not unordered:
        return frame

    def rows(
        columns: list[str] | None, where: polars.Expr | None, count: int | None, _: int | None
    ) -> Iterator[polars.DataFrame]:
        pushed = where is None or unordered.isdisjoint(where.meta.root_names())
        found = polars.scan_pyarrow_dataset(cast, allow_pyarrow_filter=pushed)
        found = found if count is None else found.head(count)
        found = found if where is None else found.filter(where)
        yield from (found if columns is None else found.select(columns)).collect_batches()

    return register_io_source(rows, schema=frame.collect_schema(), is_pure=True)


def _with_nan(snapshot: Snapshot) -> set[str]:
    """The columns that may hold NaN: the greatest number to polars, none at all to an Arrow filter."""
    floats = [f.name for f in snapshot.document.schema if pa.types.is_floating(f.type)]
    return {
        name
        for name in floats
        if pc.any(
            pc.not_equal(pc.fill_null(pc.struct_field(snapshot.manifest.stats(name), "nans"), 1), 0)
        ).as_py()
    }


@dataclass(frozen=True, slots=True)
class _Piece:
    """Rows [start, stop) of a shard; `some`: not all of them may meet the filter."""

    shard: int
    start: int
    stop: int
    some: bool


class _Question:
    """Columns of the rows that meet a filter, in pieces that can be read in any order and thread."""

    def __init__(self, snapshot: Snapshot, columns: Sequence[str], where: Any, meter: Meter) -> None:
        self.snapshot, self.columns, self.meter = snapshot, list(columns), meter
        self._where: Condition | None = None
        self._filtered: list[str] = []
        if where is not None:
            self._where = condition(where, snapshot.document.schema)
            self._filtered = list(self._where.columns)

    def pieces(self, shards: Collection[int] | None = None) -> Iterator[_Piece]:
        """All that may hold rows, in their order."""
        manifest = self.snapshot.manifest
        verdicts = np.full(len(manifest), ALL, np.int8)
        if self._where is not None:
            verdicts = self._where.verdicts(manifest.stats, manifest.rows)
        steps = self._steps()
        for shard in np.flatnonzero(verdicts != NONE).tolist():
            if shards is not None and shard not in shards:
                continue
            rows, step = int(manifest.rows[shard]), int(steps[shard])
            for start in range(0, rows, step):
                yield _Piece(shard, start, min(start + step, rows), bool(verdicts[shard] != ALL))

    def read(self, piece: _Piece) -> pa.Table:
        """The rows of a piece that meet the filter."""
        with self.snapshot.located(piece.shard):
            if not piece.some or self._where is None:
                return self._rows(piece, self.columns)
            met = self._met(self._where, piece)
            if not self.columns:
                return _bare(len(met))
            if len(met) == piece.stop - piece.start:
                return self._rows(piece, self.columns)
            if len(met) * _FEW < piece.stop - piece.start:
                return self._picked(piece, met)
            return _taken(self._rows(piece, self.columns), met)

    # --- inside -------------------------------------------------------------------------------

    def _steps(self) -> np.ndarray:
        """Of each shard, the rows of its pieces: whole record batches of every part that is read."""
        manifest, schema = self.snapshot.manifest, self.snapshot.document.schema
        widths = [width(schema.field(name).type) for name in self.columns]
        raw = manifest.sizes(self.columns)[1]
        if None not in widths:
            raw = np.minimum(raw, sum(each or 0 for each in widths) * manifest.rows)
        batch = manifest.batch_rows(self.columns, self.snapshot.document.cuts.target)
        count = np.maximum(1, raw // _PIECE_BYTES)
        return np.where(count == 1, manifest.rows, -(-manifest.rows // (count * batch)) * batch)

    def _met(self, where: Condition, piece: _Piece) -> np.ndarray:
        """The rows that meet the filter, counted from the first of the piece."""
        if not self._filtered:
            rows = pa.record_batch({"": pa.nulls(piece.stop - piece.start)})
            return np.flatnonzero(where.mask(rows))
        batches = self._rows(piece, self._filtered).to_batches()
        return np.flatnonzero(np.concatenate([where.mask(batch) for batch in batches]))

    def _rows(self, piece: _Piece, columns: Sequence[str]) -> pa.Table:
        """Columns of all rows of a piece."""
        reader, shard = self.snapshot.reader, self.snapshot.shard(piece.shard)
        if not columns:
            return _bare(piece.stop - piece.start)
        if piece.stop - piece.start == shard.rows:
            return reader.whole(shard, columns, self.meter)
        read = reader.read(shard, columns, [(piece.start, piece.stop)], self.meter)
        return reader.table(read, columns)

    def _picked(self, piece: _Piece, met: np.ndarray) -> pa.Table:
        """A few rows of a piece: columns that the filter did not need are read where these rows lie."""
        reader, shard = self.snapshot.reader, self.snapshot.shard(piece.shard)
        other = [name for name in self.columns if name not in self._filtered]
        had = [name for name in self.columns if name in self._filtered]
        read = reader.table(reader.read(shard, other, piece.start + met, self.meter), other)
        found = {name: read[name] for name in other}
        if had:
            taken = _taken(self._rows(piece, had), met)
            found |= {name: taken[name] for name in had}
        fields = [self.snapshot.document.schema.field(name) for name in self.columns]
        return pa.Table.from_arrays([found[field.name] for field in fields], schema=pa.schema(fields))


def _taken(table: pa.Table, rows: np.ndarray) -> pa.Table:
    """These rows of a table; a run of them, as a sorted column gives, without copying."""
    if len(rows) and rows[-1] - rows[0] == len(rows) - 1:
        return table.slice(int(rows[0]), len(rows))
    return table.take(pa.array(rows))


def _bare(rows: int) -> pa.Table:
    """So many rows of no columns."""
    return pa.table({"": pa.nulls(rows)}).select([])


def _ahead(question: _Question, pieces: Iterator[_Piece], threads: int) -> Iterator[pa.RecordBatch]:
    """The batches of all pieces in order, some pieces being read while others are used."""
    first = list(islice(pieces, threads + 1))
    if len(first) == 1:
        yield from question.read(first[0]).to_batches()
        return
    with ThreadPoolExecutor(threads, "lake-frame") as pool:
        coming: deque[Future[pa.Table]] = deque(pool.submit(question.read, piece) for piece in first)
        try:
            while coming:
                table = coming.popleft().result()
                coming.extend(pool.submit(question.read, piece) for piece in islice(pieces, 1))
                yield from table.to_batches()
        finally:
            pool.shutdown(cancel_futures=True)
