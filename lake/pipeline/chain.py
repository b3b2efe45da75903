"""One stream after the other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from lake.pipeline.node import Counts, Node, Run
from lake.pipeline.stage import Stage, passed


@dataclass(frozen=True, eq=False)
class Concat(Node):
    """All items of each, in turn."""

    name: ClassVar[str] = "concat"
    sources: tuple[Node, ...]

    def open(self, run: Run) -> Stage:
        return _Concat(self.sources, run)

    def count(self, counts: Counts, epoch: int) -> float:
        return sum(counts.of(source, epoch) for source in self.sources)


class _Concat:
    """Only the stream that is being read is open."""

    def __init__(self, sources: tuple[Node, ...], run: Run) -> None:
        self._sources, self._run = sources, run
        self._place, self._current = 0, sources[0].open(run)

    def next(self) -> Any:
        while True:
            try:
                return self._current.next()
            except StopIteration:
                if self._place == len(self._sources) - 1:
                    raise
            self._go_to(self._place + 1)

    def skip(self, count: int) -> int:
        left = count - passed(self._current, count)
        while left and self._place < len(self._sources) - 1:
            self._go_to(self._place + 1)
            left -= passed(self._current, left)
        return count - left

    def state(self) -> Any:
        return [self._place, self._current.state()]

    def restore(self, state: Any) -> None:
        place, position = state
        if place:
            self._go_to(place)
        self._current.restore(position)

    def tag(self) -> Any:
        return self._place, self._current.tag()

    def close(self) -> None:
        self._current.close()

    def _go_to(self, place: int) -> None:
        self._current.close()
        self._place, self._current = place, self._sources[place].open(self._run)
