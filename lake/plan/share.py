"""Which rows a rank takes, in plan batches, and how far all ranks together have come after each.

The places of an epoch's order are cut into `partitions` runs, equal to within one row. A *round* is one plan
batch for each rank. Rounds take rows from all partitions alike: the t-th row of the epoch comes from
partition t mod P, so after t rows partition p has given the same rows whatever the ranks and batch sizes
were, and one number is the whole position. A round's rows, partition by partition, are cut into one batch
for each rank, in an order of ranks and partitions that gives node n the partitions congruent to n: as many
partitions as nodes, or a multiple or divisor of them, means that each row is fetched by one node only.

All rounds but the last are full. What the last one does is `even`:

- "split": its rows are cut into batches whose sizes differ by at most one; where that would leave a rank
  without any, the last two rounds are cut together, into two rounds, this way. (With batches of one row there
  is nothing to cut: then one round takes both, and some of its batches have two rows.)
- "drop": it is left out. "pad": its batches are filled with rows of the same round. None: counts differ.

A position says nothing of ranks or batch sizes: what is left is planned anew, and for the same ranks and
batch size comes out the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np

from lake.asked import whole
from lake.plan.permutation import Ints

Even: TypeAlias = Literal["split", "drop", "pad"] | None
Run: TypeAlias = tuple[int, int]  # places [start, stop) of the epoch's order


@dataclass(frozen=True, slots=True)
class Ranks:
    """Who shares an epoch: `world_size` ranks, numbered node by node over `nodes` nodes; this is `rank`.

    With another numbering than node by node every row is still taken once; more nodes fetch the same bytes.
    """

    rank: int
    world_size: int
    nodes: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.world_size:
            raise ValueError(f"rank {self.rank} of {self.world_size}: ranks count from 0")
        if not 1 <= self.nodes <= self.world_size:
            raise ValueError(f"{self.nodes} nodes for {self.world_size} ranks: each node has one, or more")

    @classmethod
    def of(
        cls, rank: int | None, world_size: int | None, node: int | None = None, nodes: int | None = None
    ) -> Ranks | None:
        """The ranks that a caller names, or None: one reader takes everything.

        Raises:
            TypeError: one is no whole number.
            ValueError: one of a pair is missing, or the numbers contradict each other.
        """
        if rank is None and world_size is None and node is None and nodes is None:
            return None
        if rank is None or world_size is None:
            raise ValueError("rank= and world_size= go together, and node= and nodes= need both")
        if (node is None) != (nodes is None) and nodes != 1:
            raise ValueError("node= and nodes= go together")
        ranks = cls(
            whole("rank", rank),
            whole("world_size", world_size),
            whole("nodes", 1 if nodes is None else nodes),
        )
        if node is not None and not 0 <= whole("node", node) < ranks.nodes:
            raise ValueError(f"node {node} of {ranks.nodes}: nodes count from 0")
        return ranks

    @property
    def node(self) -> int:
        """The node of this rank."""
        return self.rank * self.nodes // self.world_size

    def of_node(self, node: int) -> range:
        """The ranks of a node."""
        first, end = (-(-number * self.world_size // self.nodes) for number in (node, node + 1))
        return range(first, end)

    def slots(self, partitions: int) -> range:
        """The places in a round of this rank's node: its ranks stand together."""
        order = sorted(range(self.nodes), key=lambda node: (node % partitions, node))
        before = sum(len(self.of_node(node)) for node in order[: order.index(self.node)])
        return range(before, before + len(self.of_node(self.node)))

    def slot(self, partitions: int) -> int:
        """This rank's place in a round."""
        return self.slots(partitions)[self.rank - self.of_node(self.node).start]


@dataclass(frozen=True, slots=True, eq=False)
class Partitions:
    """An epoch's `rows` places, cut into `count` runs; and which of them a stretch of the epoch takes."""

    rows: int
    count: int
    order: Ints  # in which a round lays them end to end

    @classmethod
    def of(cls, rows: int, count: int, nodes: int) -> Partitions:
        """The partitions of an epoch, in the order in which `nodes` nodes take them."""
        if count < 1:
            raise ValueError(f"partitions are the runs an epoch is cut into, at least 1: {count}")
        numbers = np.arange(count, dtype=np.int64)
        return cls(rows, count, numbers[np.lexsort((numbers, numbers % nodes))])

    def run(self, number: int) -> Run:
        """The places of a partition."""
        return _even_cut(self.rows, self.count, number)

    def rest(self, number: int, taken: int) -> Run:
        """The places of a partition that are left once the epoch's first `taken` rows are taken."""
        start, stop = self.run(number)
        return start + int(self._given(number, taken)), stop

    def runs(self, since: int, until: int, start: int, stop: int) -> list[Run]:
        """The places of rows [start, stop) of the round that takes the epoch's rows [since, until)."""
        each, uneven = divmod(until - since, self.count)
        if uneven:
            return self._uneven_runs(since, until, start, stop)
        runs = []
        while start < stop:
            at, offset = divmod(start, each)
            size = min(each - offset, stop - start)
            number = int(self.order[at])
            first = self.run(number)[0] + self._given(number, since) + offset
            runs.append((first, first + size))
            start += size
        return runs

    def ends(self, since: int, until: int) -> Ints:
        """Where each partition's rows end in the round that takes the epoch's rows [since, until)."""
        ends: Ints = np.cumsum(self._given(self.order, until) - self._given(self.order, since))
        return ends

    def _uneven_runs(self, since: int, until: int, start: int, stop: int) -> list[Run]:
        ends = self.ends(since, until)
        at = int(np.searchsorted(ends, start, side="right"))
        runs = []
        while start < stop:
            size = min(int(ends[at]), stop) - start
            if size:
                number = int(self.order[at])
                first = self.run(number)[0] + self._given(number, until) - int(ends[at]) + start
                runs.append((first, first + size))
            start, at = start + size, at + 1
        return runs

    def _given(self, number: Any, taken: int) -> Any:
        """How many of the first `taken` rows of the epoch are of partition `number`: an int or an array."""
        return (taken + self.count - 1 - number) // self.count


@dataclass(frozen=True, slots=True)
class PlanBatch:
    """Places of the epoch's order that one rank takes in one step; the last `pads` rows are repeats."""

    runs: tuple[Run, ...]
    rows: int
    pads: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Share:
    """The plan batches of one rank from position `start` on: `len(share)` of them, `share[i]`."""

    partitions: Partitions
    start: int
    batch_size: int
    world_size: int
    slot: int
    even: Even
    full: int  # rounds of whole batches
    tail: tuple[int, ...]  # rows of each round after them

    @classmethod
    def of(
        cls,
        rows: int,
        batch_size: int,
        ranks: Ranks | None = None,
        *,
        partitions: int = 1,
        even: Even = "split",
        start: int = 0,
    ) -> Share:
        """A rank's share of what is left of an epoch of `rows` rows, of which all ranks have taken `start`.

        `ranks=None`: everything is for one reader, who may find nothing.

        Raises:
            ValueError: fewer rows than ranks, or an argument that means nothing; the same on every rank.
        """
        batch_size, start = whole("batch_size", batch_size), whole("start", start)
        partitions = whole("partitions", partitions)
        if batch_size < 1:
            raise ValueError(f"batch_size is a number of rows, at least 1: {batch_size}")
        if even not in ("split", "drop", "pad", None):
            raise ValueError(f"even is 'split', 'drop', 'pad' or None, not {even!r}")
        if not 0 <= start <= rows:
            raise ValueError(f"position {start:,} in an epoch of {rows:,} rows")
        if ranks is not None:
            _check_enough(rows, start, batch_size, ranks.world_size, even)
        ranks = ranks or Ranks(0, 1)
        cut = Partitions.of(rows, partitions, ranks.nodes)
        full, tail = _rounds(rows - start, batch_size, ranks.world_size, even)
        return cls(cut, start, batch_size, ranks.world_size, ranks.slot(partitions), even, full, tail)

    def __len__(self) -> int:
        if self.even is None and self.tail and self.slot * self.batch_size >= self.tail[0]:
            return self.full
        return self.full + len(self.tail)

    @property
    def rows(self) -> int:
        """Rows of all this rank's batches, repeats included."""
        return self.full * self.batch_size + sum(self[i].rows for i in range(self.full, len(self)))

    def __getitem__(self, i: int) -> PlanBatch:
        """Batch i of this rank."""
        if not 0 <= i < len(self):
            raise IndexError(f"plan batch {i} of {len(self)}")
        since, until = self.taken(i), self.taken(i + 1)
        start, stop = self._cut(i, since, until)
        runs, pads = self.partitions.runs(since, until, start, stop), 0
        if self.even == "pad":
            pads = self.batch_size - (stop - start)
            for again in _around(until - since, stop, pads):
                runs += self.partitions.runs(since, until, *again)
        return PlanBatch(tuple(runs), stop - start + pads, pads)

    def taken(self, i: int) -> int:
        """Rows of the epoch that have been taken once each rank has had its first i batches."""
        taken = self.start + min(i, self.full) * self.batch_size * self.world_size
        return taken if i <= self.full else taken + sum(self.tail[: i - self.full])

    def position(self, i: int) -> tuple[int, bool]:
        """`taken(i)`, and whether it holds for all ranks.

        It does not at the end of a rank where counts differ: the position is then the epoch's end.
        """
        if self.even is None and self.tail and i == len(self):
            return self.partitions.rows, self.tail[0] > (self.world_size - 1) * self.batch_size
        return self.taken(i), True

    def _cut(self, i: int, since: int, until: int) -> Run:
        """Which rows of round i, of the epoch's rows [since, until), this rank takes."""
        rows = until - since
        if i < self.full or self.even is None:
            first = self.slot * self.batch_size
            return min(first, rows), min(first + self.batch_size, rows)
        if self.world_size % self.partitions.count:
            return _even_cut(rows, self.world_size, self.slot)
        # Cut partition by partition: no node takes rows of another's, and sizes still differ by at most one.
        at, local = divmod(self.slot, self.world_size // self.partitions.count)
        edges = [0, *self.partitions.ends(since, until).tolist()]
        start, stop = _even_cut(edges[at + 1] - edges[at], self.world_size // self.partitions.count, local)
        return edges[at] + start, edges[at] + stop


def _even_cut(rows: int, count: int, number: int) -> Run:
    """One of `count` runs, equal to within one row, of `rows` rows; the longer ones come first."""
    size, longer = divmod(rows, count)
    return number * size + min(number, longer), (number + 1) * size + min(number + 1, longer)


def _around(rows: int, start: int, count: int) -> list[Run]:
    """Runs of `count` rows in all, from `start` on and over the end of `rows` to its beginning again."""
    runs = []
    while count:
        start %= rows
        stop = min(start + count, rows)
        runs.append((start, stop))
        count, start = count - (stop - start), stop
    return runs


def _rounds(rows: int, batch_size: int, world_size: int, even: Even) -> tuple[int, tuple[int, ...]]:
    """How many full rounds `rows` rows make, and the rows of each round after them."""
    full, left = divmod(rows, batch_size * world_size)
    if not left or even == "drop":
        return full, ()
    if even != "split" or left >= world_size:
        return full, (left,)
    both = batch_size * world_size + left
    if both < 2 * world_size:
        return full - 1, (both,)
    size, longer = divmod(both, 2 * world_size)
    first = world_size * size + min(longer, world_size)
    return full - 1, (first, both - first)


def _check_enough(rows: int, start: int, batch_size: int, world_size: int, even: Even) -> None:
    """Refuse what would leave a rank without a batch; the message is the same on every rank."""
    left, need = rows - start, batch_size * world_size
    if not start:
        if rows < world_size:
            raise ValueError(f"{rows:,} rows are too few for {world_size:,} ranks: each takes at least one")
        if even == "drop" and rows < need:
            raise ValueError(f"even='drop' would drop all {rows:,} rows: a round takes {need:,}")
    elif even == "split" and 0 < left < world_size:
        raise ValueError(
            f"{left:,} rows are left of the epoch, too few for {world_size:,} ranks: go on with {left:,} "
            "ranks or fewer, with even='drop', 'pad' or None, or with the next epoch"
        )
