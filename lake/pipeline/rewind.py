"""The position before any recent item of a stage: what stages that read ahead, or keep items, need for theirs."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any, Final, cast

from lake.pipeline.node import Node, graph, is_ordered
from lake.pipeline.stage import Lending, Stage, passed

EVERY: Final = 32  # items between positions that are noted


def every_of(node: Node) -> int:
    """How often to note a position under a node: always where a call hands results out as they come.

    Reading again would give another order there.
    """
    return EVERY if all(map(is_ordered, graph(node))) else 1


class Rewind:
    """Reads a stage, and tells its position before item `at`, for any item that was not forgotten.

    Every so many items it notes the position. In between, a position is the last one noted and how many items
    to pass over, which `restore` does.
    """

    def __init__(self, source: Stage, every: int = EVERY, most: int | None = None) -> None:
        self.source = source
        self.count = 0  # items read since this object was made or restored
        self._every = every
        self._noted: deque[tuple[int, Any]] = deque(maxlen=most)  # positions that are kept
        self._due = 0

    def next(self) -> Any:
        """The next item."""
        if self.count >= self._due:
            self._noted.append((self.count, self.source.state()))
            self._due = self.count + self._every
        item = self.source.next()
        self.count += 1
        return item

    def lent(self) -> Iterator[Any]:
        """The next items of a stage that lends them; what is known is the position before them, not each."""
        self._noted.append((self.count, self.source.state()))
        return cast("Lending", self.source).lent()

    def skip(self, count: int) -> int:
        """Pass over items of a stage that can."""
        count = passed(self.source, count)
        self.count += count
        self._due = self.count
        return count

    def state(self, at: int | None = None) -> Any:
        """The position before item number `at`; None: where the stage is."""
        if at is None or at == self.count:
            return [self.source.state(), 0]
        number, state = next(noted for noted in reversed(self._noted) if noted[0] <= at)
        return [state, at - number]

    def before_error(self) -> Any:
        """The position after the last item returned, where an error left the stage anywhere: from one noted."""
        number, state = self._noted[-1]
        return [state, self.count - number]

    def forget(self, before: int) -> None:
        """Positions before items of lower numbers than `before` will not be asked for."""
        noted = self._noted
        while len(noted) > 1 and noted[1][0] <= before:
            noted.popleft()

    def restore(self, state: Any) -> None:
        """Go to a position; the item read next has number 0."""
        noted, items = state
        self.source.restore(noted)
        passed(self.source, items)
        self.count, self._due = 0, self._every - items
        self._noted.clear()
        self._noted.append((-items, noted))
