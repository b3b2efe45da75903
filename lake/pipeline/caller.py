"""The results of a call, one by one, in the thread that asks."""

from __future__ import annotations

from operator import length_hint
from time import perf_counter
from typing import Any, Protocol

from lake.pipeline.call import Call
from lake.pipeline.node import StageMeter
from lake.pipeline.stage import Over, Stage, passed, read, several


class Caller(Stage, Protocol):
    """Results one by one. `item` is the one that the last result was made of."""

    item: Any


class Inline(Over, Caller):
    """Calls in the thread that asks."""

    def __init__(self, source: Stage, call: Call, depth: int, meter: StageMeter) -> None:
        super().__init__(source)
        self.item: Any = None
        self._call, self._meter = call, meter
        self._simple, self._applied = call.simple(), call.applied(depth)

    def next(self) -> Any:
        source, simple, meter = self._source, self._simple, self._meter
        while True:
            self.item = item = source.next()
            begun = perf_counter()
            try:
                made = self._applied(item, source.tag()) if simple is None else simple(item)
            except Exception as error:
                self._call.failed(error, item, meter)
                continue
            meter.seconds += perf_counter() - begun
            meter.items += 1
            return made

    def several(self, count: int) -> list[Any]:
        simple, meter = self._simple, self._meter
        if simple is None or not self._call.keeps_count:
            return [self.next()]
        items = several(self._source, count)
        left = iter(items)
        begun = perf_counter()
        try:
            made = [simple(item) for item in left]
        except Exception as error:
            done = len(items) - length_hint(left) - 1  # how many are left says which one failed
            meter.items += done
            self._call.failed(error, items[done], meter)
            raise  # does not come to this: it keeps the count
        meter.seconds += perf_counter() - begun
        meter.items += len(made)
        self.item = items[-1]
        return made

    def skip(self, count: int) -> int:
        return passed(self._source, count) if self._call.keeps_count else read(self, count)

    def state(self) -> Any:  # as with threads, whose number is no part of a position
        return [[self._source.state(), 0], []]

    def restore(self, state: Any) -> None:
        (position, items), given = state
        if given:
            raise ValueError(
                f"a position of {self._call.label} with ordered=False, of whose items some were ahead of others: "
                "go on with ordered=False"
            )
        self._source.restore(position)
        passed(self._source, items)
