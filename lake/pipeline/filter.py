"""The items that a function says yes to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from lake.pipeline.ahead import Calling
from lake.pipeline.caller import Caller
from lake.pipeline.node import Node, RowShuffle, Run, below
from lake.pipeline.stage import Over, Stage


@dataclass(frozen=True, eq=False)
class Filter(Calling):
    """The items for which the call gives something true."""

    name: ClassVar[str] = "filter"

    def open(self, run: Run) -> Stage:
        return _Filter(self.results(run))

    def shuffled(self, shuffle: RowShuffle) -> Node | None:
        return below(self, shuffle)


class _Filter(Over):
    def __init__(self, calls: Caller) -> None:
        super().__init__(calls)
        self._calls = calls

    def next(self) -> Any:
        calls = self._calls
        while not calls.next():
            pass
        return calls.item
