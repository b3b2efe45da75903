"""Units as columns: which rows of which shards they are, read and laid out for gathering."""

from __future__ import annotations

from collections.abc import Sequence

from lake.parts import Chunk, Meter, located
from lake.plan import Piece
from lake.scan.gather import Loaded, loaded
from lake.scan.pool import Pool
from lake.scan.schedule import Schedule, Unit
from lake.snapshot import Snapshot


class Loader:
    """Loads the units of a schedule. Thread-safe."""

    def __init__(self, snapshot: Snapshot, columns: Sequence[str], schedule: Schedule, meter: Meter) -> None:
        self._snapshot, self._columns, self._schedule, self._meter = snapshot, list(columns), schedule, meter
        self._pool = Pool()

    def __call__(self, unit: Unit) -> Loaded:
        """The columns of a unit.

        Raises:
            IntegrityError: stored bytes differ from their digests; says where.
        """
        pieces, order = self._schedule.pieces(unit)
        read = [self._read(piece, unit if order is None else None) for piece in pieces]
        columns = [[chunk for chunks in found for chunk in chunks] for found in zip(*read, strict=True)]
        return loaded(columns, order, self._pool)

    def _read(self, piece: Piece, unit: Unit | None) -> list[list[Chunk]]:
        """The columns of a piece, of a unit in stored order only its own rows."""
        snapshot, manifest = self._snapshot, self._snapshot.manifest
        if unit is not None:
            wanted = [(unit.start, unit.stop)] if piece.rows is None else piece.rows[unit.start : unit.stop]
        elif piece.rows is not None:
            wanted = piece.rows
        else:
            size, rows = int(self._schedule.batch_rows[piece.shard]), int(manifest.rows[piece.shard])
            wanted = [(batch * size, min((batch + 1) * size, rows)) for batch in piece.batches.tolist()]
        with located(snapshot.label, piece.shard):
            return snapshot.reader.read(snapshot.shard(piece.shard), self._columns, wanted, self._meter)
