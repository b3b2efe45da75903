"""The order of an epoch's rows, in blocks: the rows that are decoded and permuted at once.

In sequence, a block is a shard. A shuffle visits the shards in random order and deals each into W pieces
(`shuffle_window`, at most the number of shards): its record batches, permuted, equal to within one batch, or
its rows where it has fewer batches than W. The deal is circular: of n shards, block t takes piece W-1-k of
the shard at place (t+k) mod n, for k = 0..W-1, and the rows of a block are permuted. So blocks are level,
about a shard each; a record batch is in one block only; each block after the first needs one new shard and
frees one. The first W-1 shards are met twice: some of their pieces at the beginning, the others at the end.
"full" permutes all rows, and its blocks are only runs of the result.

Orders are computed, a block at a time, and never stored: what is kept is a few numbers a shard. A limit ends
the order early. Ranks and batch sizes play no part here.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal, Protocol, TypeAlias

import numpy as np

from lake.plan.layout import Layout, Selection, Wanted, ramps
from lake.plan.permutation import Ints, bijection, key, keys, permutation

Shuffle: TypeAlias = bool | Literal["full"]

DEFAULT_WINDOW: Final = 16  # shards
FULL_BLOCK: Final = 65_536  # rows in a block of shuffle="full", or fewer: as many as FULL_BYTES has
FULL_BYTES: Final = 64 * 2**20  # decoded
EXACT: Final = 2**20  # rows up to which "full" sorts all of them; above it computes places one by one

_VISIT, _LAST, _DEAL, _BLOCK, _FULL = range(5)  # what a hash is for: none is used twice


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """What a block takes of one shard: record batches to read, and which of their rows."""

    shard: int
    batches: Ints  # ascending
    rows: Ints | None  # ascending, from the shard's first; None: all rows of these batches
    count: int


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """Rows that are decoded and permuted at once.

    `order` says which of the pieces' rows, laid end to end, comes out where; None: as they lie. It is shorter
    than the pieces together where a limit ends the plan inside the block.
    """

    pieces: tuple[Piece, ...]
    order: Ints | None
    count: int


class _Kind(Protocol):
    """One way of ordering: `starts[t]` is the first place of block t, and the last entry the end."""

    wanted: Wanted
    starts: Ints
    visit: Ints  # shards in the order of first need
    window: int  # how many of them one block needs

    def block(self, t: int) -> Block: ...


class Order:
    """The rows of one epoch, as places 0..rows-1, in blocks 0..blocks-1."""

    def __init__(self, kind: _Kind, shuffle: Shuffle, limit: int | None) -> None:
        whole = int(kind.starts[-1])
        self.rows = whole if limit is None else min(limit, whole)
        self.blocks = int(np.searchsorted(kind.starts, self.rows))
        self.starts = kind.starts[: self.blocks + 1].copy()
        self.starts[-1] = self.rows
        self.shuffle: Final = shuffle
        self._kind = kind

    @property
    def layout(self) -> Layout:
        """What is read."""
        return self._kind.wanted.layout

    @property
    def selection(self) -> Selection | None:
        """Which rows are wanted; None: all."""
        return self._kind.wanted.selection

    @property
    def visit(self) -> Ints:
        """The shards that have wanted rows, in the order in which blocks first need them."""
        return self._kind.visit

    @property
    def window(self) -> int:
        """How many shards a block needs: block t those of `visit` from t on, over its end to the first."""
        return self._kind.window

    def locate(self, place: int) -> tuple[int, int]:
        """The block that has the row at `place`, and where in it; by one binary search."""
        if not 0 <= place < self.rows:
            raise IndexError(f"place {place} of {self.rows} rows")
        block = int(self.starts.searchsorted(place, side="right")) - 1
        return block, place - int(self.starts[block])

    def block(self, t: int) -> Block:
        """What block t reads, and the order in which its rows come out."""
        count = self._count(t)
        block = self._kind.block(t)
        if count == block.count:
            return block
        return Block(block.pieces, None if block.order is None else block.order[:count], count)

    def block_rows(self, t: int) -> tuple[Ints, Ints]:
        """Shard and row within the shard of each row of block t, in the order in which they come out."""
        block = self.block(t)
        shards = np.repeat([piece.shard for piece in block.pieces], [piece.count for piece in block.pieces])
        rows = np.concatenate([self._piece_rows(piece) for piece in block.pieces])
        chosen = slice(block.count) if block.order is None else block.order
        return shards[chosen], rows[chosen]

    def shards(self, t: int) -> Ints:
        """The shards that block t needs."""
        self._count(t)
        visit, window = self._kind.visit, self._kind.window
        if window == len(visit):
            return visit
        return visit.take(np.arange(t, t + window), mode="wrap")

    def arrivals(self, t: int) -> Ints:
        """The shards that block t needs and block t-1 did not."""
        return self.shards(t) if t == 0 else self._without(t, t - 1)

    def departures(self, t: int) -> Ints:
        """The shards that block t needs and block t+1 does not. A shuffle's end needs the first again."""
        return self.shards(t) if t == self.blocks - 1 else self._without(t, t + 1)

    def _count(self, t: int) -> int:
        if not 0 <= t < self.blocks:
            raise IndexError(f"block {t} of {self.blocks}")
        return int(self.starts[t + 1] - self.starts[t])

    def _without(self, t: int, other: int) -> Ints:
        mine, others = self.shards(t), self.shards(other)
        return mine[:0] if mine is others else mine[~np.isin(mine, others)]

    def _piece_rows(self, piece: Piece) -> Ints:
        if piece.rows is not None:
            return piece.rows
        size = self.layout.batch_rows[piece.shard]
        starts = piece.batches * size
        return ramps(starts, np.minimum(self.layout.rows[piece.shard] - starts, size))


def order_rows(
    layout: Layout,
    *,
    selection: Selection | None = None,
    shuffle: Shuffle = False,
    seed: int = 0,
    epoch: int = 0,
    shuffle_window: int = DEFAULT_WINDOW,
    limit: int | None = None,
) -> Order:
    """The order of an epoch's rows: a pure function of its arguments.

    >>> order = order_rows(Layout.of([3, 3], [2, 2]), shuffle=True, seed=1)
    >>> [order.block_rows(t)[0].tolist() for t in range(order.blocks)]
    [[1, 0], [1, 0, 1, 0]]

    Raises:
        ValueError: an argument that means nothing.
    """
    if shuffle not in (False, True, "full"):
        raise ValueError(f"shuffle is False, True or 'full', not {shuffle!r}")
    if shuffle_window < 1:
        raise ValueError(f"shuffle_window is how many shards are mixed, at least 1: {shuffle_window}")
    if limit is not None and limit < 0:
        raise ValueError(f"limit is a number of rows: {limit}")
    if not -(2**63) <= seed < 2**64 or epoch < 0:
        raise ValueError(f"a seed has 64 bits and an epoch is no less than 0: seed={seed}, epoch={epoch}")
    wanted = Wanted.of(layout, selection)
    word = key(seed, epoch)
    kind: _Kind
    if shuffle == "full":
        kind = _Full(wanted, word)
    elif shuffle:
        kind = _Windowed(wanted, word, shuffle_window)
    else:
        kind = _Sequence(wanted)
    return Order(kind, shuffle, limit)


def _starts(sizes: Ints) -> Ints:
    return np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(sizes)])


def _distinct(ascending: Ints) -> Ints:
    return ascending[np.flatnonzero(np.diff(ascending, prepend=-1))]


class _Sequence:
    """Rows as they are stored; a block is a shard."""

    window = 1

    def __init__(self, wanted: Wanted) -> None:
        self.wanted = wanted
        self.visit = wanted.visible
        self.starts = _starts(wanted.counts[self.visit])

    def block(self, t: int) -> Block:
        shard = int(self.visit[t])
        count = int(self.wanted.counts[shard])
        rows = self.wanted.rows(shard)
        batches, _ = self.wanted.batches(shard, rows)
        return Block((Piece(shard, batches, rows, count),), None, count)


class _Windowed:
    """Shards in random order, dealt into the blocks of a window that moves by one shard a block."""

    def __init__(self, wanted: Wanted, word: int, window: int) -> None:
        self.wanted, self._word, self._asked = wanted, word, window
        self.visit = wanted.visible[permutation(key(word, _VISIT), len(wanted.visible))]
        self.window = min(window, len(self.visit))
        self.starts = _starts(self._sizes())
        # Each of the window's blocks wants another piece of a shard.
        self._dealt_rows = lru_cache(maxsize=self.window + 1)(self._permuted_rows)
        self._dealt = lru_cache(maxsize=self.window + 1)(self._dealt_shard)

    def __reduce__(self) -> tuple[object, ...]:  # the memo does not travel, and computing anew is exact
        return type(self), (self.wanted, self._word, self._asked)

    def block(self, t: int) -> Block:
        n, window = len(self.visit), self.window
        pieces = tuple(self._piece(int(self.visit[(t + k) % n]), window - 1 - k) for k in range(window))
        count = sum(piece.count for piece in pieces)
        return Block(pieces, permutation(key(self._word, _BLOCK, t), count), count)

    def _piece(self, shard: int, number: int) -> Piece:
        rows = self.wanted.rows(shard)
        batches, counts, order = self._dealt(shard)
        if order is None:
            rows = np.sort(self._share(self._dealt_rows(shard), number))
            return Piece(shard, _distinct(rows // self.wanted.layout.batch_rows[shard]), rows, len(rows))
        dealt = np.sort(self._share(order, number))
        mine = batches[dealt]
        if rows is not None:
            is_mine = np.zeros(batches[-1] + 1, dtype=np.bool_)
            is_mine[mine] = True
            rows = rows[is_mine[rows // self.wanted.layout.batch_rows[shard]]]
        return Piece(shard, mine, rows, int(np.add.reduce(counts[dealt])))

    def _dealt_shard(self, shard: int) -> tuple[Ints, Ints, Ints | None]:
        """A shard's batches with wanted rows, how many each has, and in which order these batches are dealt.

        No order: there are fewer than blocks, and rows are dealt.
        """
        batches, counts = self.wanted.batches(shard, self.wanted.rows(shard))
        order = None if len(batches) < self.window else self._dealt_batches(shard, len(batches))
        return batches, counts, order

    def _share(self, items: Ints, number: int) -> Ints:
        size = len(items)
        return items[number * size // self.window : (number + 1) * size // self.window]

    def _permuted_rows(self, shard: int) -> Ints:
        order = permutation(key(self._word, _DEAL, shard), int(self.wanted.counts[shard]))
        rows = self.wanted.rows(shard)
        return order if rows is None else rows[order]

    def _dealt_batches(self, shard: int, size: int) -> Ints:
        """A permutation of a shard's batches: all but the last permuted, and the last put at its own place.

        So the size of every block is known from one hash a shard, although the last batch is shorter.
        """
        place = key(self._word, _LAST, shard) % size
        others = permutation(key(self._word, _DEAL, shard), size - 1)
        return np.concatenate([others[:place], [size - 1], others[place:]])

    def _sizes(self) -> Ints:
        """Rows of each block, without the permutation of any shard that is wanted whole."""
        layout, counts = self.wanted.layout, self.wanted.counts[self.visit]
        step = layout.batch_rows[self.visit]
        batches = -(-counts // step)
        whole = counts == layout.rows[self.visit]
        apart = np.flatnonzero(~whole)
        by_batch = batches >= self.window
        items = np.where(whole, np.where(by_batch, batches, counts), 0)
        step = np.where(by_batch, step, 1)
        missing = items * step - counts  # rows that the last batch has not; 0 where rows are dealt
        last = keys(key(self._word, _LAST), self.visit) % np.maximum(items, 1).astype(np.uint64)
        last = last.astype(np.int64)
        sizes = self._pieces_of_some(apart)
        before = np.zeros_like(items)
        for number in range(self.window):
            until = (number + 1) * items // self.window
            rows = (until - before) * step
            rows -= np.where((before <= last) & (last < until), missing, 0)
            sizes += np.roll(rows, number + 1 - self.window)
            before = until
        return sizes

    def _pieces_of_some(self, places: Ints) -> Ints:
        """Rows of each block from the shards at `places`, which are not wanted whole."""
        sizes = np.zeros(len(self.visit), dtype=np.int64)
        edges = np.arange(self.window + 1)
        for place in places.tolist():
            shard = int(self.visit[place])
            _, counts = self.wanted.batches(shard, self.wanted.rows(shard))
            if len(counts) < self.window:
                rows = np.diff(edges * int(self.wanted.counts[shard]) // self.window)
            else:
                dealt = _starts(counts[self._dealt_batches(shard, len(counts))])
                rows = np.diff(dealt[edges * len(counts) // self.window])
            sizes[(place + 1 - self.window + edges[:-1]) % len(sizes)] += rows
        return sizes


class _Full:
    """All rows in one permutation; blocks are runs of it, and each needs every shard."""

    def __init__(self, wanted: Wanted, word: int) -> None:
        self.wanted, self._word = wanted, word
        self.visit = wanted.visible
        self.window = len(self.visit)
        self._firsts = _starts(wanted.counts[self.visit])
        size = int(self._firsts[-1])
        rows, raw_bytes = (int(of[self.visit].sum()) for of in (wanted.layout.rows, wanted.layout.raw_bytes))
        step = max(1, min(FULL_BLOCK, FULL_BYTES * rows // max(1, raw_bytes)))
        self.starts = np.minimum(np.arange(-(-size // step) + 1, dtype=np.int64) * step, size)
        self._sorted = permutation(key(word, _FULL), size) if size <= EXACT else None

    def block(self, t: int) -> Block:
        chosen = self._chosen(t)
        by_shard = np.argsort(chosen)
        order = np.empty_like(by_shard)
        order[by_shard] = np.arange(len(by_shard))
        chosen = chosen[by_shard]
        edges = np.searchsorted(chosen, self._firsts)
        places = np.flatnonzero(np.diff(edges))
        parts = [(place, chosen[edges[place] : edges[place + 1]]) for place in places.tolist()]
        return Block(tuple(self._piece(*part) for part in parts), order, len(order))

    def _piece(self, place: int, chosen: Ints) -> Piece:
        shard = int(self.visit[place])
        rows = chosen - self._firsts[place]
        wanted = self.wanted.rows(shard)
        rows = rows if wanted is None else wanted[rows]
        return Piece(shard, _distinct(rows // self.wanted.layout.batch_rows[shard]), rows, len(rows))

    def _chosen(self, t: int) -> Ints:
        """The wanted rows of block t, numbered through all shards, in the order in which they come out."""
        start, stop = int(self.starts[t]), int(self.starts[t + 1])
        if self._sorted is not None:
            return self._sorted[start:stop]
        size, places = int(self._firsts[-1]), np.arange(start, stop, dtype=np.int64)
        return bijection(key(self._word, _FULL), size, places)
