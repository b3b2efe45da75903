"""Zero or more items for each one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from lake.pipeline.ahead import Calling
from lake.pipeline.caller import Caller
from lake.pipeline.node import Run, StageMeter
from lake.pipeline.rewind import Rewind, every_of
from lake.pipeline.stage import Stage


@dataclass(frozen=True, eq=False)
class FlatMap(Calling):
    """All items of what the call gives for each."""

    name: ClassVar[str] = "flat_map"

    def open(self, run: Run) -> Stage:
        call = replace(self.call, fn=Listed(self.call.fn)) if self.call.workers else self.call
        return _FlatMap(self.results(run, call), self, run.meter(self))


@dataclass(frozen=True)
class Listed:
    """A function whose result is taken in full where it is called: in a thread."""

    fn: Callable[..., Any]

    def __call__(self, *given: Any) -> list[Any]:
        return list(self.fn(*given))


class _FlatMap:
    """The position is before the item whose results are being handed out, and how many of them were."""

    def __init__(self, calls: Caller, node: FlatMap, meter: StageMeter) -> None:
        self._calls, self._call, self._meter = calls, node.call, meter
        self._input = Rewind(calls, every_of(node))
        self._rest: Iterator[Any] | None = None
        self._given = 0

    def next(self) -> Any:
        while True:
            if self._rest is None:
                self._begin()
            assert self._rest is not None
            try:
                made = next(self._rest)
            except StopIteration:
                self._rest = None
            except Exception as error:
                self._rest = None
                self._call.failed(error, self._calls.item, self._meter)
            else:
                self._given += 1
                return made

    def state(self) -> Any:
        if self._rest is None:
            return [self._input.state(), 0]
        return [self._input.state(self._input.count - 1), self._given]

    def restore(self, state: Any) -> None:
        position, given = state
        self._input.restore(position)
        if given:
            for _ in range(given):
                self.next()

    def tag(self) -> Any:
        return self._calls.tag(), self._given

    def close(self) -> None:
        self._rest = None
        self._calls.close()

    def _begin(self) -> None:
        made = self._input.next()
        self._input.forget(self._input.count - 1)
        try:
            self._rest, self._given = iter(made), 0
        except TypeError as error:
            raise TypeError(
                f"{self._call.label} gave {type(made).__name__}: an iterable is wanted"
            ) from error
