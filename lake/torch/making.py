"""What a feed process makes of a pipeline: a part of it by position, or some of its lanes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from lake.pipeline.deal import Worker
from lake.pipeline.lanes import dealt, laned, untagged
from lake.pipeline.node import Node, Readings, Run, StageMeter, added, graph, is_ordered, stage_facts
from lake.pipeline.rewind import Rewind

_NOTED: Final = 8  # items of a lane between those that its position travels with


@dataclass(frozen=True)
class Deal:
    """One worker's part of a countable pipeline, from a position of all workers on."""

    epoch: int
    at: Any
    worker: Worker


@dataclass(frozen=True)
class Lane:
    """Where a lane is: how many items it gave, the position after them (None: the beginning), whether all."""

    items: int = 0
    at: Any = None
    is_over: bool = False


@dataclass(frozen=True)
class Lanes:
    """Some of the `count` lanes of a pipeline, and where each is."""

    epoch: int
    count: int
    at: Mapping[int, Lane]


@dataclass(frozen=True)
class Given:
    """An item of a lane; the first, and now and then another, with the position after it. `is_over`: there is none."""

    lane: int
    item: Any
    at: Any = None
    is_over: bool = False


def turn(lanes: Mapping[int, Lane]) -> int:
    """Which lane gives the next item: the one that gave fewest, of those that are not over.

    >>> turn({0: Lane(3), 2: Lane(2), 4: Lane(2), 6: Lane(1, is_over=True)})
    2

    Raises:
        StopIteration: all are over.
    """
    going = [(place.items, lane) for lane, place in lanes.items() if not place.is_over]
    if not going:
        raise StopIteration
    return min(going)[1]


class PipeJob:
    """Makes items of a pipeline, as a `Deal` or `Lanes` say."""

    def __init__(self, root: Node) -> None:
        self.root = root
        self._readings = Readings()
        self._past: dict[str, Any] = {}
        self._counted: list[tuple[Node, dict[Node, StageMeter]]] = []  # of the epoch at hand

    def open(self, wanted: Deal | Lanes) -> Dealing | Laning:
        self._past, self._counted = self._stages(), []
        return Dealing(self, wanted) if isinstance(wanted, Deal) else Laning(self, wanted)

    def opened(self, root: Node, epoch: int) -> Any:
        """The stage of a graph made of the pipeline's; what it costs is counted here."""
        meters: dict[Node, StageMeter] = {}
        self._counted.append((root, meters))
        return root.open(Run(epoch, meters, self._readings, untagged(root)))

    def metrics(self) -> dict[str, Any]:
        return {**self._readings.total(), **self._stages()}

    def _stages(self) -> dict[str, Any]:
        return added(self._past, *(stage_facts(root, meters) for root, meters in self._counted))


class Dealing:
    """The items of a deal."""

    def __init__(self, job: PipeJob, deal: Deal) -> None:
        self._stage = job.opened(dealt(job.root, deal.worker), deal.epoch)
        if deal.at is not None:
            self._stage.restore(deal.at[0])

    def next(self) -> Any:
        return self._stage.next()

    def close(self) -> None:
        self._stage.close()


class Laning:
    """The items of several lanes, in turn."""

    def __init__(self, job: PipeJob, lanes: Lanes) -> None:
        self._lanes = dict(lanes.at)
        self._every = _NOTED if all(map(is_ordered, graph(job.root))) else 1
        self._stages: dict[int, Rewind] = {}
        for lane, place in lanes.at.items():
            root = laned(job.root, lane, lanes.count, lanes.epoch)
            stage = self._stages[lane] = Rewind(job.opened(root, lanes.epoch), self._every)
            if place.at is not None:
                stage.restore(place.at)

    def next(self) -> Given:
        lane = turn(self._lanes)
        place, stage = self._lanes[lane], self._stages[lane]
        try:
            item = stage.next()
        except StopIteration:
            self._lanes[lane] = Lane(place.items, is_over=True)
            return Given(lane, None, stage.state(), is_over=True)
        self._lanes[lane] = Lane(place.items + 1)
        is_noted = stage.count == 1 or stage.count % self._every == 0
        return Given(lane, item, stage.state() if is_noted else None)

    def close(self) -> None:
        for stage in self._stages.values():
            stage.source.close()
