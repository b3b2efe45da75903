"""Which rows are loaded together, and which are gathered together. Pure: no I/O, no clock.

What is loaded at once is a *unit*: a whole block where rows are permuted, since any of them may come first;
a few record batches of a shard where they come as they are stored, so that the first need not wait for all.
What is gathered at once is a *step*: plan batches, so few that whoever keeps one of them keeps little else.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np

from lake.plan import EpochPlan, Layout, Piece
from lake.plan.permutation import Ints

UNIT_BYTES: Final = 4 * 2**20  # decoded, of a unit in stored order, about
WHOLE_BYTES: Final = 64 * 2**20  # the same where nothing has to be fetched
INFLATED_BYTES: Final = 8 * 2**20  # the same where that costs threads milliseconds
FIRST_BYTES: Final = 2**20  # of the first of a shard, which a consumer may be waiting for
STEP_BYTES: Final = 4 * 2**20  # of a step of several batches, about
STEP_BATCHES: Final = 16  # of a step, at most


class Unit(NamedTuple):
    """Rows [start, stop) of a block."""

    block: int
    start: int
    stop: int


class Take(NamedTuple):
    """Rows [start, stop) of a unit, as they come out of it."""

    unit: Unit
    start: int
    stop: int


class Step(NamedTuple):
    """Consecutive plan batches of this rank, equally long: what they take, in order.

    `number` is that of the first of them. The last `pads` rows are repeats, of a step of one batch.
    """

    number: int
    takes: tuple[Take, ...]
    rows: int
    pads: int
    batches: int = 1

    @property
    def end(self) -> int:
        """The number of the batch after it."""
        return self.number + self.batches


class Schedule:
    """The plan batches of one rank's epoch, in steps."""

    def __init__(
        self, plan: EpochPlan, *, unit_bytes: int = UNIT_BYTES, first_bytes: int = FIRST_BYTES
    ) -> None:
        self.plan = plan
        self._unit_bytes, self._first_bytes = unit_bytes, first_bytes
        self._edges = lru_cache(maxsize=256)(self._edges_of)
        self._row_bytes = lru_cache(maxsize=256)(self._row_bytes_of)
        self._lately = lru_cache(maxsize=2)(plan.order.block)
        share = plan.share
        self._round = share.batch_size * share.world_size
        self._tail_ends = np.cumsum(share.tail)
        # Before this batch each round takes equally much of each partition.
        self._steady = share.full if self._round % share.partitions.count == 0 else 0
        self._is_whole = share.partitions.count == 1  # then a batch of a full round is one run of places
        self._block = (0, 0, 0)  # the block that was looked at last: number, first place, end

    def steps(self, first: int = 0, stop: int | None = None, *, most: int = 1) -> Iterator[Step]:
        """The plan batches with the numbers [first, stop), in steps of at most `most` of them.

        The first step is one batch, and those after it up to twice as many as the one before.
        """
        number, size = first, 1
        end = len(self.plan) if stop is None else stop
        while number < end:
            step = self._step(number, min(size, end - number))
            yield step
            number, size = step.end, min(2 * size, most)

    def _step(self, number: int, batches: int) -> Step:
        """The plan batches from `number` on: so many, or one if they are not equally long."""
        share = self.plan.share
        size = share.batch_size
        if number >= share.full:
            batch = self.plan.batch(number)
            return Step(number, self._takes(batch.runs), batch.rows, batch.pads)
        batches = min(batches, share.full - number)
        if self._is_whole:
            place = share.start + share.slot * size + number * self._round
            runs = [(place + n * self._round, place + n * self._round + size) for n in range(batches)]
            if share.world_size == 1:
                runs = [(place, place + batches * size)]
        else:
            runs = [run for n in range(batches) for run in self.plan.batch(number + n).runs]
        return Step(number, self._takes(runs), batches * size, 0, batches)

    def units(self, first: int = 0) -> Iterator[Unit]:
        """The units of the batches from number `first` on, in the order of first need.

        Batches that need nothing new are passed over, not looked at. A unit may come again, though rarely.
        """
        number, known = first, frozenset[Unit]()
        while number < len(self.plan):
            [step] = self.steps(number, number + 1)
            needed = dict.fromkeys(take.unit for take in step.takes)
            yield from (unit for unit in needed if unit not in known)
            known = frozenset(needed)
            number = self._next_new(number, needed)

    def _next_new(self, number: int, needed: Iterable[Unit]) -> int:
        """The first batch after `number` that may need another unit than these, which batch `number` needs."""
        if number >= self._steady:
            return number + 1
        ends = [end for unit in needed for end in self._ends(unit) if end >= number]
        return max(number + 1, min([self._steady, *ends]))

    def last(self, unit: Unit) -> int:
        """The number of the last batch that may take rows of a unit."""
        return max(self._ends(unit))

    def _ends(self, unit: Unit) -> list[int]:
        first = int(self.plan.order.starts[unit.block])
        return self._rounds(first + unit.start, first + unit.stop)

    @property
    def batch_bytes(self) -> int:
        """What a batch takes decoded, about."""
        layout = self.plan.order.layout
        rows = int(layout.rows.sum())
        return self.plan.share.batch_size * int(layout.raw_bytes.sum()) // max(1, rows)

    @property
    def step_batches(self) -> int:
        """How many batches are gathered at once, at most: no more rows than a block has."""
        order, size = self.plan.order, self.plan.share.batch_size
        by_bytes = round(STEP_BYTES / max(1, self.batch_bytes))
        return max(1, min(STEP_BATCHES, by_bytes, order.rows // max(1, order.blocks * size)))

    def last_of(self, block: int) -> int:
        """The number of the last batch that may take rows of a block."""
        return max(self._rounds(*self.plan.order.starts[block : block + 2].tolist()))

    def bytes(self, unit: Unit) -> int:
        """What a unit takes decoded, about."""
        return int((unit.stop - unit.start) * self._row_bytes(unit.block))

    def _row_bytes_of(self, block: int) -> float:
        order = self.plan.order
        shards = order.shards(block)
        return float(order.layout.raw_bytes[shards].sum() / max(1, order.layout.rows[shards].sum()))

    def pieces(self, unit: Unit) -> tuple[tuple[Piece, ...], Ints | None]:
        """What a unit's block reads, and the order in which the rows of its pieces come out; None: as they lie.

        Then the unit's rows are those numbers of the rows of the only piece.
        """
        block = self._lately(unit.block)
        return block.pieces, block.order

    @property
    def batch_rows(self) -> Ints:
        """Rows of each shard's record batches that pieces speak of."""
        return self.plan.order.layout.batch_rows

    # --- inside -------------------------------------------------------------------------------

    def _takes(self, runs: Iterable[tuple[int, int]]) -> tuple[Take, ...]:
        """What the places [start, stop) of the order are, in units."""
        takes = []
        for start, stop in runs:
            while start < stop:
                block, begin, end = self._block
                if not begin <= start < end:
                    block, offset = self.plan.order.locate(start)
                    begin, end = start - offset, int(self.plan.order.starts[block + 1])
                    self._block = block, begin, end
                edges, until = self._edges(block), min(stop, end) - begin
                first = start - begin
                at = bisect_right(edges, first) - 1
                while first < until:
                    unit = Unit(block, edges[at], edges[at + 1])
                    last = min(until, unit.stop)
                    takes.append(Take(unit, first - unit.start, last - unit.start))
                    first, at = last, at + 1
                start = begin + until
        return tuple(takes)

    def _edges_of(self, block: int) -> list[int]:
        """Where the units of a block begin, and its end."""
        order = self.plan.order
        count = int(order.starts[block + 1] - order.starts[block])
        if order.shuffle:
            return [0, count]
        [piece] = self._lately(block).pieces
        layout = order.layout
        size = int(layout.batch_rows[piece.shard])
        raw = max(1, int(layout.raw_bytes[piece.shard]))
        batch_bytes = max(1, raw * size // int(layout.rows[piece.shard]))
        first, step = (
            size * max(1, bytes_ // batch_bytes)
            for bytes_ in (
                min(self._first_bytes if block else FIRST_BYTES, self._unit_bytes),
                self._unit_bytes,
            )
        )
        edges = np.arange(first, int(layout.rows[piece.shard]), step)
        if piece.rows is not None:
            edges = np.searchsorted(piece.rows, edges)
        inside = np.unique(edges[(edges > 0) & (edges < count)])
        return [0, *inside.tolist(), count]

    def _rounds(self, start: int, stop: int) -> list[int]:
        """For each partition that has some of the places [start, stop), the round that takes its last of them."""
        cut = self.plan.share.partitions
        low, high = _partition(cut.rows, cut.count, start), _partition(cut.rows, cut.count, stop - 1)
        rounds = []
        for number in range(low, high + 1):
            begin, end = cut.run(number)
            rounds.append(self._round_of((min(end, stop) - 1 - begin) * cut.count + number))
        return rounds

    def _round_of(self, taken: int) -> int:
        """The round that takes the row of this number, counted as partitions give them in turn; -1: it was taken."""
        share = self.plan.share
        since = taken - share.start
        if since < share.full * self._round:
            return max(-1, since // self._round)
        since -= share.full * self._round
        return share.full + int(np.searchsorted(self._tail_ends, since, "right"))


def is_plain(layout: Layout) -> bool:
    """Whether most of what is read is stored as it is, not compressed: then it is mapped."""
    return int(layout.stored_bytes.sum()) * 11 >= int(layout.raw_bytes.sum()) * 10


def _partition(rows: int, count: int, place: int) -> int:
    """Which of `count` runs, equal to within one row and the longer ones first, has the place."""
    size, longer = divmod(rows, count)
    if place < longer * (size + 1):
        return place // (size + 1)
    return longer + (place - longer * (size + 1)) // size
