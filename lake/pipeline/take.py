"""The first items of a stream."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from lake.pipeline.node import Counts, Node, Run
from lake.pipeline.stage import Over, Stage, passed


@dataclass(frozen=True, eq=False)
class Take(Node):
    """At most `size` items."""

    name: ClassVar[str] = "take"
    source: Node
    size: int
    per_lane: bool = False

    @property
    def label(self) -> str:
        return f"take({self.size})"

    def open(self, run: Run) -> Stage:
        return _Take(self.source.open(run), self.size)

    def count(self, counts: Counts, epoch: int) -> float:
        return min(self.size, counts.of(self.source, epoch)) if self.size else 0


class _Take(Over):
    def __init__(self, source: Stage, size: int) -> None:
        super().__init__(source)
        self._left = self._size = size

    def next(self) -> Any:
        if not self._left:
            raise StopIteration
        item = self._source.next()
        self._left -= 1
        return item

    def skip(self, count: int) -> int:
        count = passed(self._source, min(count, self._left))
        self._left -= count
        return count

    def state(self) -> Any:
        return [self._size - self._left, self._source.state()]

    def restore(self, state: Any) -> None:
        taken, position = state
        self._left = self._size - taken
        self._source.restore(position)
