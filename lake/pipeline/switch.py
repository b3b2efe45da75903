"""A control stream says which stream gives the next item."""

from __future__ import annotations

import operator
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from lake.pipeline.mixture import checked_weights, cumulative
from lake.pipeline.node import Node, Run
from lake.pipeline.seeds import Draws, Seed, word
from lake.pipeline.stage import OverAll, Stage


@dataclass(frozen=True, eq=False)
class Select(Node):
    """The item of the stream that the control names by its number; ends when either has no more."""

    name: ClassVar[str] = "select"
    control: Node
    sources: tuple[Node, ...]

    def open(self, run: Run) -> Stage:
        return _Chosen([each.open(run) for each in (*self.sources, self.control)], None)


@dataclass(frozen=True, eq=False)
class ChoiceBy(Node):
    """The item of a stream drawn with the weights, or the probability of the first, that the control gives."""

    name: ClassVar[str] = "choice"
    control: Node
    sources: tuple[Node, ...]
    seed: Seed

    @property
    def outline(self) -> str:
        return f"choice({len(self.sources)}, {self.seed})"

    def open(self, run: Run) -> Stage:
        draws = Draws(word(self.seed, 1, run.epoch))
        return _Chosen([each.open(run) for each in (*self.sources, self.control)], draws)


class _Chosen(OverAll):
    """The control is the last of the stages."""

    def __init__(self, stages: list[Stage], draws: Draws | None) -> None:
        super().__init__(stages)
        self._draws = draws
        self._count, self._last, self._is_over = 0, 0, False

    def next(self) -> Any:
        if self._is_over:
            raise StopIteration
        try:
            place = self._place(self._sources[-1].next())
            item = self._sources[place].next()
        except StopIteration:
            self._is_over = True
            raise
        self._count += 1
        self._last = place
        return item

    def state(self) -> Any:
        return [self._count, self._is_over, self._states()]

    def restore(self, state: Any) -> None:
        self._count, self._is_over, states = state
        self._restore(states)

    def tag(self) -> Any:
        return self._last, self._sources[self._last].tag()

    def _place(self, said: Any) -> int:
        count = len(self._sources) - 1
        if self._draws is not None:
            weights = as_weights(said, count)
            return bisect_right(cumulative(weights), self._draws[self._count])
        try:
            place = operator.index(said)
        except TypeError:
            place = -1
        if not 0 <= place < count:
            raise ValueError(
                f"select(): item {self._count:,} of the control is {said!r}; streams are 0 to {count - 1}"
            )
        return place


def as_weights(p: float | Sequence[float], count: int) -> tuple[float, ...]:
    """Weights of each stream, from those or from the probability of the first of two.

    Raises:
        ValueError: a probability of more streams than two, or outside [0, 1]; weights that are none.
    """
    if isinstance(p, Sequence | np.ndarray):
        return checked_weights("choice", list(p), count)
    if count != 2:
        raise ValueError(
            f"choice(): p={p!r} is the probability of the first of two streams; of {count}, give weights"
        )
    if not 0 <= p <= 1:
        raise ValueError(f"choice(): a probability lies within 0 and 1: {p!r}")
    return float(p), 1 - float(p)
