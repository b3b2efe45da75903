"""Runs of consecutive items as lists."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from lake.pipeline.node import Node, Run
from lake.pipeline.rewind import Rewind, every_of
from lake.pipeline.stage import Stage


@dataclass(frozen=True, eq=False)
class Window(Node):
    """Lists of `size` items, each beginning `stride` items after the one before.

    A last, partial list is handed out if its items were in no full one, unless `drop_last`.
    """

    name: ClassVar[str] = "window"
    source: Node
    size: int
    stride: int
    drop_last: bool

    @property
    def outline(self) -> str:
        return f"window({self.size}, {self.stride}, drop_last={self.drop_last})"

    def open(self, run: Run) -> Stage:
        return _Window(self.source.open(run), self)


class _Window:
    """The position is before the first item that the next window needs, or that lies between windows."""

    def __init__(self, source: Stage, node: Window) -> None:
        self._node, self._source = node, source
        self._input = Rewind(source, every_of(node))
        self._items: list[tuple[Any, Any]] = []  # with their tags
        self._new = 0  # of them, how many were in no window
        self._tag: Any = None
        self._is_over = False

    def next(self) -> list[Any]:
        size, stride = self._node.size, self._node.stride
        items = self._items
        while not self._is_over and len(items) < size:
            try:
                item = self._input.next()
            except StopIteration:
                self._is_over = True
            else:
                items.append((item, self._source.tag()))
                self._new += 1
        partial = len(items) < size
        if partial and (not self._new or self._node.drop_last):
            raise StopIteration
        self._new = 0
        made = [item for item, _ in items[:size]]
        self._tag = items[0][1]
        del items[:stride]
        if partial:
            items.clear()
        for _ in range(stride - size):  # items between windows
            try:
                self._input.next()
            except StopIteration:
                self._is_over = True
                break
        self._input.forget(self._input.count - len(items))
        return made

    def state(self) -> Any:
        return [self._input.state(self._input.count - len(self._items)), len(self._items) - self._new]

    def restore(self, state: Any) -> None:
        position, kept = state
        self._input.restore(position)
        for _ in range(kept):
            self._items.append((self._input.next(), self._source.tag()))

    def tag(self) -> Any:
        return self._tag

    def close(self) -> None:
        self._source.close()
