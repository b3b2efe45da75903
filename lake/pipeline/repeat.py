"""A stream again and again, each time as its next epoch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from lake.pipeline.node import ENDLESS, Counts, Node, Run
from lake.pipeline.stage import Stage, passed


@dataclass(frozen=True, eq=False)
class Repeat(Node):
    """`times` passes, or passes without end; of a stream without items none at all.

    Epoch e of it is made of the epochs from e * times on, or from e on where there is no end.
    """

    name: ClassVar[str] = "repeat"
    source: Node
    times: int | None

    @property
    def label(self) -> str:
        return f"repeat({'' if self.times is None else self.times})"

    def open(self, run: Run) -> Stage:
        return _Repeat(self, run)

    def count(self, counts: Counts, epoch: int) -> float:
        if self.times is None:
            return ENDLESS if counts.of(self.source, epoch) else 0
        first = epoch * self.times
        return sum(counts.of(self.source, number) for number in range(first, first + self.times))


class _Repeat:
    def __init__(self, node: Repeat, run: Run) -> None:
        self._node, self._run = node, run
        self._first = run.epoch * (1 if node.times is None else node.times)
        self._pass, self._has_items = 0, False
        self._current = self._opened(0) if node.times != 0 else None

    def next(self) -> Any:
        while self._current is not None:
            try:
                item = self._current.next()
            except StopIteration:
                self._turn()
            else:
                self._has_items = True
                return item
        raise StopIteration

    def skip(self, count: int) -> int:
        left = count
        while self._current is not None:
            found = passed(self._current, left)
            self._has_items, left = self._has_items or found > 0, left - found
            if not left:
                break
            self._turn()
        return count - left

    def state(self) -> Any:
        return [self._pass, None if self._current is None else self._current.state(), self._has_items]

    def restore(self, state: Any) -> None:
        number, position, self._has_items = state
        if position is None:
            self.close()
            self._pass, self._current = number, None
            return
        if number != self._pass:
            self.close()
            self._pass, self._current = number, self._opened(number)
        assert self._current is not None
        self._current.restore(position)

    def tag(self) -> Any:
        assert self._current is not None
        return self._current.tag()

    def close(self) -> None:
        if self._current is not None:
            self._current.close()

    def _turn(self) -> None:
        """Begin the next pass, or end."""
        self.close()
        self._pass += 1
        is_over = self._pass == self._node.times or not (self._has_items or self._node.times)
        self._current = None if is_over else self._opened(self._pass)
        self._has_items = False

    def _opened(self, number: int) -> Stage:
        return self._node.source.open(self._run.at(self._first + number))
