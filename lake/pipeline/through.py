"""A whole stream through code of the caller's."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from lake.pipeline.node import Node, Run, StageMeter, name_of
from lake.pipeline.stage import Over, Stage


class Resumable(Protocol):
    """What `through` takes besides a function. Each epoch begins with a copy of the object as it was given."""

    def next(self, stream: Iterator[Any]) -> Any:
        """The next item, made of as many of the stream's as it takes; StopIteration ends."""

    def state(self) -> Any:
        """What it keeps between items, as JSON values."""

    def restore(self, state: Any) -> None:
        """Go on from what `state` gave; the stream continues where it was then."""


@dataclass(frozen=True, eq=False)
class Through(Node):
    """What `fn(iterator)` iterates. Its place is on its own stack: it resumes by reading the epoch again."""

    name: ClassVar[str] = "through"
    source: Node
    fn: Callable[[Iterator[Any]], Iterator[Any]]

    @property
    def label(self) -> str:
        return f"through({name_of(self.fn)})"

    def open(self, run: Run) -> Stage:
        return _Through(self.source.open(run), self, run)


@dataclass(frozen=True, eq=False)
class ThroughObject(Node):
    """What a `Resumable` makes of the stream."""

    name: ClassVar[str] = "through"
    source: Node
    made: Resumable

    @property
    def label(self) -> str:
        return f"through({name_of(self.made)})"

    def open(self, run: Run) -> Stage:
        return _ThroughObject(self.source.open(run), copy.deepcopy(self.made), run.epoch, run.meter(self))


class _Feed:
    """A stage as an iterator."""

    def __init__(self, source: Stage) -> None:
        self._source = source

    def __iter__(self) -> _Feed:
        return self

    def __next__(self) -> Any:
        return self._source.next()


class _Through(Over):
    def __init__(self, source: Stage, node: Through, run: Run) -> None:
        super().__init__(source)
        self._epoch, self._meter, self._count = run.epoch, run.meter(node), 0
        self._items = iter(node.fn(_Feed(source)))

    def next(self) -> Any:
        item = next(self._items)
        self._count += 1
        self._meter.items += 1
        return item

    def state(self) -> Any:
        return self._count

    def restore(self, state: Any) -> None:
        for _ in range(state):
            self.next()

    def tag(self) -> Any:
        return self._epoch, self._count

    def close(self) -> None:
        close = getattr(self._items, "close", None)
        if close is not None:
            close()
        self._items = iter(())
        super().close()


class _ThroughObject(Over):
    def __init__(self, source: Stage, made: Resumable, epoch: int, meter: StageMeter) -> None:
        super().__init__(source)
        self._feed, self._made, self._epoch, self._meter = _Feed(source), made, epoch, meter
        self._count, self._is_over = 0, False

    def next(self) -> Any:
        if self._is_over:
            raise StopIteration
        try:
            item = self._made.next(self._feed)
        except StopIteration:
            self._is_over = True
            raise
        self._count += 1
        self._meter.items += 1
        return item

    def state(self) -> Any:
        return [self._count, self._is_over, self._source.state(), self._made.state()]

    def restore(self, state: Any) -> None:
        self._count, self._is_over, position, made = state
        self._source.restore(position)
        self._made.restore(made)

    def tag(self) -> Any:
        return self._epoch, self._count
