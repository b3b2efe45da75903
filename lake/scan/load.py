"""Units as columns: which rows of which shards they are, read and laid out for gathering."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Final, TypeAlias

import numpy as np

from lake.format.values import Part
from lake.parts import Chunk, Meter, Pool
from lake.plan import Piece
from lake.scan.crew import Share
from lake.scan.gather import Loaded, loaded
from lake.scan.residence import Residence
from lake.scan.schedule import Schedule, Step, Unit
from lake.snapshot import Snapshot

Read: TypeAlias = Callable[[], list[list[Chunk]]]

_SHARES: Final = 4  # into which the reading of a block is divided
_READERS: Final = 16  # pieces of a block that are waited for together


class Loader:
    """Loads the units of a schedule. Thread-safe."""

    def __init__(
        self,
        snapshot: Snapshot,
        columns: Sequence[str],
        schedule: Schedule,
        meter: Meter,
        pool: Pool,
        residence: Residence | None = None,
    ) -> None:
        self._snapshot, self._columns, self._schedule, self._meter = snapshot, list(columns), schedule, meter
        self._residence, self._pool = residence, pool

    def foretell(self, step: Step) -> None:
        """Ask for all that a step needs at once, and wait for nothing: its units are loaded one after the other."""
        if self._residence is None:
            return
        size = self._schedule.batch_rows
        for unit in dict.fromkeys(take.unit for take in step.takes):
            pieces, order = self._schedule.pieces(unit)
            for piece in pieces:
                own = unit if order is None else None
                first = partial(_batches_of, piece=piece, unit=own, size=int(size[piece.shard]))
                self._residence.ask(piece.shard, first)

    def __call__(self, unit: Unit, share: Share) -> Loaded:
        """The columns of a unit. `share` makes calls in several threads.

        Raises:
            IntegrityError: stored bytes differ from their digests; says where.
        """
        pieces, order = self._schedule.pieces(unit)
        reads: list[Read] = [partial(self._read, piece, unit if order is None else None) for piece in pieces]
        residence = self._residence
        at_hand = residence is None or all(residence.at_hand(piece.shard) for piece in pieces)
        read = _shared(reads, share) if at_hand else self._waited_for(reads)
        columns = [[chunk for chunks in found for chunk in chunks] for found in zip(*read, strict=True)]
        if residence is not None and not any(chunk.mapped for chunks in columns for chunk in chunks):
            residence.loaded(unit)
        return loaded(columns, order, self._pool)

    def _waited_for(self, reads: list[Read]) -> list[list[list[Chunk]]]:
        """What these read, each in a thread of its own: they wait for a network."""
        if len(reads) < 2:
            return [read() for read in reads]
        with ThreadPoolExecutor(min(len(reads), _READERS), "lake-load") as pool:
            return list(pool.map(lambda read: read(), reads))

    def _read(self, piece: Piece, unit: Unit | None) -> list[list[Chunk]]:
        """The columns of a piece, of a unit in stored order only its own rows."""
        snapshot = self._snapshot
        shard, reader = snapshot.shard(piece.shard), snapshot.reader
        # From the first part on: two readers who kept one mapped each while they waited for room for another would
        # wait for ever.
        own = self._residence is not None and self._residence.cramped(permuted=unit is None)
        with snapshot.located(piece.shard), self._having(piece, unit):
            if piece.rows is not None:
                rows = piece.rows if unit is None else piece.rows[unit.start : unit.stop]
                return reader.read(shard, self._columns, rows, self._meter, own=own, pool=self._pool)
            if unit is not None:
                runs = [(unit.start, unit.stop)]
                return reader.read(shard, self._columns, runs, self._meter, own=own, pool=self._pool)
            size = int(self._schedule.batch_rows[piece.shard])
            return reader.batches(shard, self._columns, piece.batches, size, self._meter, self._pool, own=own)

    def _having(self, piece: Piece, unit: Unit | None) -> AbstractContextManager[None]:
        if self._residence is None:
            return nullcontext()
        size = int(self._schedule.batch_rows[piece.shard])
        return self._residence.having(piece.shard, lambda one: _batches_of(one, piece, unit, size))


def _batches_of(one: Part, piece: Piece, unit: Unit | None, size: int) -> Iterable[int]:
    """The record batches of a part that have rows of a piece, of a unit in stored order only of its own."""
    own, count = one.batches[0].rows, len(one.batches)
    if piece.rows is not None:
        rows = piece.rows if unit is None else piece.rows[unit.start : unit.stop]
        return np.unique(rows // own).tolist()  # type: ignore[no-any-return]
    if unit is not None:
        return range(unit.start // own, -(-unit.stop // own))
    spans = [(batch * size // own, -(-(batch + 1) * size // own)) for batch in piece.batches.tolist()]
    return sorted({index for start, stop in spans for index in range(start, min(stop, count))})


def _shared(reads: list[Read], share: Share) -> list[list[list[Chunk]]]:
    """What these read, some at a time."""
    size = -(-len(reads) // _SHARES)
    calls = [partial(_in_turn, reads[start : start + size]) for start in range(0, len(reads), size)]
    return [found for some in share(calls) for found in some]


def _in_turn(reads: list[Read]) -> list[list[list[Chunk]]]:
    return [read() for read in reads]
