"""Streams interleaved at random, with fixed weights."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, ClassVar, Final, Literal, TypeAlias

import numpy as np

from lake.pipeline.node import ENDLESS, FREE, Counts, Node, Run
from lake.pipeline.seeds import Draws, Seed, word
from lake.pipeline.stage import OverAll, Stage, passed

Until: TypeAlias = Literal["any", "all"]

_COUNTED: Final = 65_536  # draws that are looked at together


@dataclass(frozen=True, eq=False)
class Mix(Node):
    """Each item comes from one of the streams, drawn anew; until one is dry, or all are.

    Which stream gives item n depends on the seed, the epoch and n, and on which are dry. Positions do not hold
    the weights, so that they may change at a resume.
    """

    sources: tuple[Node, ...]
    weights: tuple[float, ...]
    seed: Seed
    until: Until
    called: str = field(default="mix", metadata=FREE)
    name: ClassVar[str] = "mix"

    @property
    def label(self) -> str:
        return f"{self.called}()"

    @property
    def outline(self) -> str:
        return f"{self.called}({len(self.sources)}, {self.seed}, until={self.until})"

    def open(self, run: Run) -> Stage:
        sources = [source.open(run) for source in self.sources]
        meter = run.meter(self)
        meter.sources = meter.sources or [0] * len(sources)
        return _Mix(sources, self, self.draws(run.epoch), meter.sources)

    def draws(self, epoch: int) -> Draws:
        """The random numbers that choose."""
        return Draws(word(self.seed, 0, epoch))

    def count(self, counts: Counts, epoch: int) -> float:
        drawn = [place for place, weight in enumerate(self.weights) if weight]
        sizes = [counts.of(self.sources[place], epoch) for place in drawn]
        if self.until == "all":
            return sum(sizes)
        if min(sizes) == ENDLESS:
            return ENDLESS
        return _first_dry(sizes, cumulative([self.weights[place] for place in drawn]), self.draws(epoch))


class _Mix(OverAll):
    def __init__(self, sources: list[Stage], node: Mix, draws: Draws, given: list[int]) -> None:
        super().__init__(sources)
        self._node, self._draws, self._given = node, draws, given
        self._count, self._last, self._is_over = 0, 0, False
        self._dry = set[int]()
        self._weigh()

    def next(self) -> Any:
        while not self._is_over:
            place = self._places[bisect_right(self._edges, self._draws[self._count])]
            try:
                item = self._sources[place].next()
            except StopIteration:
                self._dry.add(place)
                self._weigh()
                continue
            self._count += 1
            self._given[place] += 1
            self._last = place
            return item
        raise StopIteration

    def skip(self, count: int) -> int:
        most = _COUNTED if self._node.until == "any" else 1  # else who is dry changes what follows
        begun = self._count
        while not self._is_over and (left := begun + count - self._count):
            self._skip_block(min(left, most))
        return self._count - begun

    def state(self) -> Any:
        return [self._count, self._states()]  # which are dry shows when they are asked

    def restore(self, state: Any) -> None:
        self._count, states = state
        self._restore(states)

    def tag(self) -> Any:
        return self._last, self._sources[self._last].tag()

    def _skip_block(self, size: int) -> None:
        """Pass over items, up to the first that a dry stream would have to give."""
        chosen = np.searchsorted(self._edges, self._draws.many(self._count, size), side="right")
        end = size
        for number, place in enumerate(self._places):
            asked = np.flatnonzero(chosen == number)
            found = passed(self._sources[place], len(asked))
            if found < len(asked):
                self._dry.add(place)
                end = min(end, int(asked[found]))
        self._count += end
        if end < size:
            self._weigh()

    def _weigh(self) -> None:
        """Find what is drawn from, now that these are dry."""
        weights = self._node.weights
        self._places = [place for place, weight in enumerate(weights) if weight and place not in self._dry]
        self._is_over = not self._places or bool(self._dry and self._node.until == "any")
        self._edges = cumulative([weights[place] for place in self._places])


def checked_weights(called: str, weights: Sequence[float] | None, count: int) -> tuple[float, ...]:
    """Weights as given, or equal ones.

    Raises:
        ValueError: another number of weights than of streams, or weights that are none.
    """
    if weights is None:
        return (1.0,) * count
    found = tuple(float(weight) for weight in weights)
    if len(found) != count:
        raise ValueError(f"{called}(): {len(found)} weights for {count} streams")
    if not all(math.isfinite(weight) and weight >= 0 for weight in found) or not any(found):
        raise ValueError(f"{called}(): weights are not negative, and not all 0: {list(found)}")
    return found


def cumulative(weights: Sequence[float]) -> list[float]:
    """The numbers in [0, 1) at which one stream's share ends and the next begins: one fewer than streams."""
    total = math.fsum(weights)
    return [edge / total for edge in accumulate(weights)][:-1]


def _first_dry(sizes: Sequence[float], edges: Sequence[float], draws: Draws) -> int:
    """How many draws there are before one that asks a stream for more than it has."""
    taken, count = np.zeros(len(sizes)), 0
    while True:
        chosen = np.searchsorted(edges, draws.many(count, _COUNTED), side="right")
        for place, size in enumerate(sizes):
            asked = np.flatnonzero(chosen == place)
            left = size - taken[place]
            if len(asked) > left:
                chosen = chosen[: asked[int(left)]]
        if len(chosen) < _COUNTED:
            return count + len(chosen)
        taken += np.bincount(chosen, minlength=len(sizes))
        count += _COUNTED
