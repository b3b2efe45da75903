"""Several streams side by side, until the shortest ends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from lake.pipeline.node import Counts, Node, Run
from lake.pipeline.stage import OverAll, Stage, passed


@dataclass(frozen=True, eq=False)
class Zip(Node):
    """Tuples of one item from each."""

    name: ClassVar[str] = "zip"
    sources: tuple[Node, ...]
    per_lane: bool = False

    def open(self, run: Run) -> Stage:
        return _Zip([source.open(run) for source in self.sources])

    def count(self, counts: Counts, epoch: int) -> float:
        return min(counts.of(source, epoch) for source in self.sources)


class _Zip(OverAll):
    def __init__(self, sources: list[Stage]) -> None:
        super().__init__(sources)
        self._is_over = False

    def next(self) -> tuple[Any, ...]:
        if self._is_over:
            raise StopIteration
        try:
            return tuple([source.next() for source in self._sources])
        except StopIteration:
            self._is_over = True
            raise

    def skip(self, count: int) -> int:
        if self._is_over:
            return 0
        least = min(passed(source, count) for source in self._sources)
        self._is_over = least < count
        return least

    def state(self) -> Any:
        return [self._is_over, self._states()]

    def restore(self, state: Any) -> None:
        self._is_over, states = state
        self._restore(states)

    def tag(self) -> Any:
        return tuple([source.tag() for source in self._sources])
