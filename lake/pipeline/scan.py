"""A state that goes through a stream, handed out after each item."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from lake.pipeline.node import Node, Run, StageMeter, name_of
from lake.pipeline.stage import Over, Stage
from lake.pipeline.values import Unstorable, decode, encode


@dataclass(frozen=True, eq=False)
class Scanned(Node):
    """`state = fn(state, item)`, from `init` on; each new state is an item."""

    name: ClassVar[str] = "scan"
    source: Node
    fn: Callable[[Any, Any], Any]
    init: Any

    @property
    def label(self) -> str:
        return f"scan({name_of(self.fn)})"

    def open(self, run: Run) -> Stage:
        return _Scanned(self.source.open(run), self, run.meter(self))


class _Scanned(Over):
    """The position holds the state where JSON can; otherwise the stream is read again from its beginning."""

    def __init__(self, source: Stage, node: Scanned, meter: StageMeter) -> None:
        super().__init__(source)
        self._fn, self._value, self._meter, self._count = node.fn, node.init, meter, 0

    def next(self) -> Any:
        item = self._source.next()
        self._value = self._fn(self._value, item)
        self._count += 1
        self._meter.items += 1
        return self._value

    def state(self) -> Any:
        try:
            return [self._count, self._source.state(), encode(self._value)]
        except Unstorable:
            return [self._count, None, None]

    def restore(self, state: Any) -> None:
        count, position, value = state
        if position is None:
            for _ in range(count):
                self.next()
            return
        self._source.restore(position)
        self._count, self._value = count, decode(value)
