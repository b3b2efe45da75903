"""Items in batches: by count, by what they cost, or with those that cost alike together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from lake.pipeline.node import ENDLESS, Counts, Node, Run, name_of
from lake.pipeline.rewind import Rewind, every_of
from lake.pipeline.sizes import size_of
from lake.pipeline.stage import Over, Stage, passed, several
from lake.plan.permutation import key, permutation

POOL_BYTES: Final = 256 * 2**20  # of the items that are sorted into batches together

Collate = Callable[[list[Any]], Any]


@dataclass(frozen=True, eq=False)
class Batch(Node):
    """Lists of `size` items, or what `collate` makes of each; the last may be shorter."""

    name: ClassVar[str] = "batch"
    source: Node
    size: int
    collate: Collate | None
    drop_last: bool

    @property
    def label(self) -> str:
        return f"batch({self.size})"

    @property
    def outline(self) -> str:  # of any size: its position is its input's
        return f"batch(drop_last={self.drop_last})"

    def open(self, run: Run) -> Stage:
        return Collating(self.source.open(run), self, is_tagged=run.untagged is not self)

    def count(self, counts: Counts, epoch: int) -> float:
        items = counts.of(self.source, epoch)
        if items == ENDLESS:
            return items
        return items // self.size if self.drop_last else -(-items // self.size)


class Collating(Over):
    """Batches of the source's items."""

    def __init__(self, source: Stage, node: Batch, *, is_tagged: bool) -> None:
        super().__init__(source)
        self._size, self._collate, self._drop = node.size, node.collate, node.drop_last
        self._is_tagged, self._tag = is_tagged, None

    def next(self) -> Any:
        source, size, items = self._source, self._size, list[Any]()
        if self._is_tagged:
            items.append(source.next())
            self._tag = source.tag()
        try:
            while len(items) < size:
                items += several(source, size - len(items))
        except StopIteration:
            if self._drop or not items:
                raise
        return items if self._collate is None else self._collate(items)

    def skip(self, count: int) -> int:
        items = passed(self._source, count * self._size)
        return items // self._size if self._drop else -(-items // self._size)

    def tag(self) -> Any:
        return self._tag


@dataclass(frozen=True, eq=False)
class BatchBy(Node):
    """Lists of items that cost no more than `size` together, or alone if one does.

    `padded`: a batch costs as much as its dearest item times their number. `buckets`: items for that many
    batches are sorted by cost before they are cut, and their batches handed out in random order.
    """

    name: ClassVar[str] = "batch"
    source: Node
    size: float
    by: Callable[[Any], float]
    padded: bool
    buckets: int | None
    collate: Collate | None
    drop_last: bool

    @property
    def label(self) -> str:
        return f"batch({self.size}, by={name_of(self.by)})"

    @property
    def outline(self) -> str:
        return f"{self.label[:-1]}, padded={self.padded}, buckets={self.buckets}, drop_last={self.drop_last})"

    def open(self, run: Run) -> Stage:
        return _BatchBy(self.source.open(run), self)


class _BatchBy:
    """Cuts pools of items into batches; without buckets a pool is one batch.

    The position is before a pool's first item, and how many of its batches were handed out.
    """

    def __init__(self, source: Stage, node: BatchBy) -> None:
        self._source, self._node = source, node
        self._input = Rewind(source, every_of(node))
        self._pool: list[list[_Costed]] = []  # batches to come, the last first
        self._first, self._size = 0, 0  # the pool's first item and how many it has
        self._made, self._given = 0, 0  # pools so far, batches of this one
        self._carried: _Costed | None = None  # read, though it begins the next pool
        self._is_over = False
        self._tag: Any = None

    def next(self) -> Any:
        while not self._pool:
            self._fill()
        batch = self._pool.pop()
        self._given += 1
        self._tag = batch[0][2]
        items = [item for _, item, _ in batch]
        return items if self._node.collate is None else self._node.collate(items)

    def state(self) -> Any:
        if self._pool:
            return [self._input.state(self._first), self._made - 1, self._given, self._size]
        carried = 0 if self._carried is None else 1
        return [self._input.state(self._input.count - carried), self._made, 0, 0]

    def restore(self, state: Any) -> None:
        position, self._made, given, size = state
        self._input.restore(position)
        if given:
            self._fill(size)
            del self._pool[len(self._pool) - given :]
            self._given = given

    def tag(self) -> Any:
        return self._tag

    def close(self) -> None:
        self._source.close()

    # --- inside -------------------------------------------------------------------------------

    def _fill(self, exactly: int | None = None) -> None:
        """Read a pool and cut it.

        Raises:
            StopIteration: there is nothing left.
        """
        self._first = self._input.count - (0 if self._carried is None else 1)
        self._input.forget(self._first)
        items = self._read(exactly)
        if not items:
            raise StopIteration
        self._size = len(items)
        buckets = self._node.buckets
        batches = self._cut(sorted(items, key=_cost) if buckets else items)
        if self._is_over and self._node.drop_last and not self._is_full(batches[-1]):
            batches.pop()
        order: Sequence[int] = range(len(batches))
        if buckets:
            order = permutation(key(self._made), len(batches)).tolist()
        self._pool = [batches[place] for place in reversed(order)]
        self._made, self._given = self._made + 1, 0

    def _read(self, exactly: int | None) -> list[_Costed]:
        """Items for as many batches as there are buckets, or a number of them that was found before."""
        many = self._node.buckets or 1
        items, filling, batches, taken = list[_Costed](), _Filling(self._node), 1, 0
        while True:
            costed, self._carried = self._carried, None
            if costed is None:
                try:
                    costed = self._costed(self._input.next())
                except StopIteration:
                    self._is_over = True
                    return items
            if not filling.takes(costed[0]):
                batches += 1
                filling = _Filling(self._node)
                filling.takes(costed[0])
            if (batches > many or taken > POOL_BYTES) if exactly is None else len(items) == exactly:
                self._carried = costed
                return items
            items.append(costed)
            taken += size_of(costed[1]) if many > 1 else 0

    def _costed(self, item: Any) -> _Costed:
        cost = self._node.by(item)
        if not cost >= 0:
            raise ValueError(f"{self._node.label}: an item costs {cost!r}")
        return cost, item, self._source.tag()

    def _cut(self, items: list[_Costed]) -> list[list[_Costed]]:
        batches: list[list[_Costed]] = []
        filling = _Filling(self._node)
        for costed in items:
            if batches and filling.takes(costed[0]):
                batches[-1].append(costed)
            else:
                filling = _Filling(self._node)
                filling.takes(costed[0])
                batches.append([costed])
        return batches

    def _is_full(self, batch: list[_Costed]) -> bool:
        """Whether one more item like its last would not have gone in."""
        filling = _Filling(self._node)
        for cost, _, _ in batch:
            filling.takes(cost)
        return not filling.takes(batch[-1][0])


_Costed = tuple[float, Any, Any]  # cost, item, tag


def _cost(costed: _Costed) -> float:
    return costed[0]


class _Filling:
    """A batch being filled, as numbers."""

    def __init__(self, node: BatchBy) -> None:
        self._size, self._padded = node.size, node.padded
        self._items, self._sum, self._most = 0, 0.0, 0.0

    def takes(self, cost: float) -> bool:
        """Add an item of this cost, unless it is one too many."""
        most, total = max(self._most, cost), self._sum + cost
        if self._items and (most * (self._items + 1) if self._padded else total) > self._size:
            return False
        self._items, self._sum, self._most = self._items + 1, total, most
        return True
