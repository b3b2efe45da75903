"""A stream in random order, through a buffer, where the plan cannot carry a shuffle out.

Items come in chunks. Each chunk is permuted and dealt into W pieces; block t is made of one piece of each of
the W chunks that end with chunk t, permuted. So an item moves within W chunks, about the buffer in all, and
the position is that of the oldest chunk still held: a restore reads the held chunks again.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from itertools import pairwise
from math import inf, isqrt
from typing import Any, ClassVar, Final, NamedTuple

from lake.pipeline.node import Node, Run
from lake.pipeline.rewind import Rewind, every_of
from lake.pipeline.seeds import Seed, word
from lake.pipeline.sizes import size_of
from lake.pipeline.stage import Stage
from lake.plan.permutation import key, permutation

PIECES: Final = 8  # of a chunk, at most
BUFFER_BYTES: Final = 256 * 2**20  # that are held, about

_WEIGHED: Final = 8  # items, of which one is weighed for all
_DEAL, _BLOCK = range(2)


@dataclass(frozen=True, eq=False)
class Shuffled(Node):
    """All items, in random order; about `buffer` of them are held, fewer where they are large."""

    name: ClassVar[str] = "shuffle"
    source: Node
    buffer: int
    seed: Seed

    @property
    def outline(self) -> str:
        return f"shuffle({self.buffer}, {self.seed})"

    def open(self, run: Run) -> Stage:
        return _Shuffled(self.source.open(run), self, word(self.seed, 0, run.epoch))


class _Chunk(NamedTuple):
    first: int  # number of its first item in the input
    size: int
    pieces: list[list[tuple[Any, Any]]]  # items with their tags


class _Shuffled:
    def __init__(self, source: Stage, node: Shuffled, seed: int) -> None:
        self._source, self._seed = source, seed
        self._input = Rewind(source, every_of(node))
        self._pieces = min(PIECES, max(1, isqrt(node.buffer)))
        # A chunk, and what is left of those before it, make `buffer` together.
        self._chunk = max(1, 2 * node.buffer // (self._pieces + 1))
        self._chunk_bytes = 2 * BUFFER_BYTES // (self._pieces + 1)
        self._chunks: deque[_Chunk] = deque(maxlen=self._pieces)  # the last ones; empty ones after the end
        self._made = 0  # blocks
        self._block: list[tuple[Any, Any]] = []  # in reverse
        self._size = 0  # of the block, before any was given
        self._tag: Any = None

    def next(self) -> Any:
        while not self._block:
            self._turn()
        item, self._tag = self._block.pop()
        return item

    def state(self) -> Any:
        held = self._chunks[0].first if self._chunks else self._input.count
        sizes = [chunk.size for chunk in self._chunks]
        return [self._input.state(held), self._made, sizes, self._size - len(self._block)]

    def restore(self, state: Any) -> None:
        position, made, sizes, given = state
        self._input.restore(position)
        self._made = made - len(sizes)
        for size in sizes:
            self._read(size)
        if sizes:
            self._deal()
            del self._block[len(self._block) - given :]

    def tag(self) -> Any:
        return self._tag

    def close(self) -> None:
        self._source.close()

    # --- inside -------------------------------------------------------------------------------

    def _turn(self) -> None:
        """Begin the next block.

        Raises:
            StopIteration: all chunks were dealt out.
        """
        if self._made and not any(chunk.size for chunk in list(self._chunks)[1 - self._pieces :]):
            raise StopIteration
        self._read()
        self._input.forget(self._chunks[0].first)
        self._deal()

    def _read(self, exactly: int | None = None) -> None:
        """Take one more chunk of the input, and permute it."""
        first, items, taken = self._input.count, list[tuple[Any, Any]](), 0
        limit, most = (self._chunk, self._chunk_bytes) if exactly is None else (exactly, inf)
        while len(items) < limit and taken < most:
            try:
                item = self._input.next()
            except StopIteration:
                break
            if len(items) % _WEIGHED == 0:
                taken += _WEIGHED * size_of(item)
            items.append((item, self._source.tag()))
        order = permutation(key(self._seed, _DEAL, self._made), len(items)).tolist()
        edges = [number * len(items) // self._pieces for number in range(self._pieces + 1)]
        pieces = [[items[place] for place in order[start:stop]] for start, stop in pairwise(edges)]
        self._chunks.append(_Chunk(first, len(items), pieces))
        self._made += 1

    def _deal(self) -> None:
        """Make the block that ends with the last chunk: piece k of the chunk k before it."""
        dealt: list[tuple[Any, Any]] = []
        for age, chunk in enumerate(reversed(self._chunks)):
            dealt += chunk.pieces[age]
            chunk.pieces[: age + 1] = [[]] * (age + 1)
        order = permutation(key(self._seed, _BLOCK, self._made), len(dealt)).tolist()
        self._block = [dealt[place] for place in order]
        self._size = len(dealt)
