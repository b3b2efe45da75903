"""The items that a function says yes to."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from lake.pipeline.ahead import called
from lake.pipeline.call import Call
from lake.pipeline.caller import Caller
from lake.pipeline.node import Node, RowShuffle, Run
from lake.pipeline.stage import Over, Stage


@dataclass(frozen=True, eq=False)
class Filter(Node):
    """The items for which the call gives something true."""

    name: ClassVar[str] = "filter"
    source: Node
    call: Call

    @property
    def label(self) -> str:
        return self.call.label

    @property
    def outline(self) -> str:
        return self.call.outline

    def open(self, run: Run) -> Stage:
        return _Filter(called(self.call, self, self.source, run))

    def shuffled(self, shuffle: RowShuffle) -> Node | None:
        source = self.source.shuffled(shuffle)
        return None if source is None else replace(self, source=source)


class _Filter(Over):
    def __init__(self, calls: Caller) -> None:
        super().__init__(calls)
        self._calls = calls

    def next(self) -> Any:
        calls = self._calls
        while not calls.next():
            pass
        return calls.item
