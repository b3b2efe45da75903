"""Some of the items of a stream, dealt out by position: what one worker of one rank takes, or one lane.

Which items is decided before anything is read, and told as runs of positions. A stage of a deal passes over
what lies between them, which costs next to nothing where sources can be entered anywhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any, ClassVar, Final, Protocol, TypeAlias

from lake.pipeline.batch import Batch, Collating
from lake.pipeline.node import Node, Run
from lake.pipeline.stage import Over, Stage, passed, several
from lake.plan import Even, Ranks, Share
from lake.plan.permutation import key

MOST: Final = 2**62  # items of a stream without end, as far as anybody counts

Runs: TypeAlias = Iterator[tuple[int, int]]  # positions [start, stop), ascending


@dataclass(frozen=True)
class Every:
    """Runs of `size` items, each `stride` after the one before, the first at `first`; multiples of `size` both.

    `items` are in such runs, and are the first `runs` runs of a deal.
    """

    first: int
    size: int
    stride: int
    items: int
    runs: int


class Deal(Protocol):
    """Which items are wanted."""

    def runs(self) -> Runs:
        """Their positions; 0 is where the stream is opened."""

    def every(self) -> Every | None:
        """Those of the runs that are regular; None if there are none."""


@dataclass(frozen=True)
class Lane:
    """One run of `size` items of every `lanes`; now this one, now that, so that rows in periods meet every lane."""

    lane: int
    lanes: int
    size: int

    def run(self, turn: int) -> tuple[int, int]:
        """The positions of its run among those of a turn."""
        place = turn * self.lanes + (self.lane + key(turn)) % self.lanes
        return place * self.size, (place + 1) * self.size

    def turn_of(self, position: int) -> int:
        """The turn that a position belongs to."""
        return position // (self.lanes * self.size)


@dataclass(frozen=True)
class Scaled:
    """The items that those of a deal are made of, `by` of each."""

    deal: Deal
    by: int

    def runs(self) -> Runs:
        return ((start * self.by, stop * self.by) for start, stop in self.deal.runs())

    def every(self) -> Every | None:
        found, by = self.deal.every(), self.by
        if found is None:
            return None
        return Every(found.first * by, found.size * by, found.stride * by, found.items * by, found.runs)


@dataclass(frozen=True)
class Worker:
    """The batches that one worker of a rank makes: `size` in a row, of every `workers * size` of the rank's."""

    share: Share
    worker: int = 0
    workers: int = 1
    size: int = 1
    done: int = 0  # of its batches, which it has made before

    @classmethod
    def of(
        cls, items: int, given: int, batch_size: int, ranks: Ranks, even: Even, worker: int, workers: int
    ) -> Worker:
        """A worker's part of what is left of `items` items, of which all ranks were given `given`.

        Raises:
            ValueError: fewer items than ranks.
        """
        cut = None if ranks.world_size == 1 else Ranks(ranks.rank, ranks.world_size)
        share = Share.of(items, batch_size, cut, even=even, start=given)
        longest = _LONGEST if ranks.world_size == 1 else _SHORTER
        return cls(share, worker, workers, _run_size(len(share) * batch_size, workers, batch_size, longest))

    def __len__(self) -> int:
        """Batches of the rank, for all its workers."""
        return len(self.share)

    def numbers(self) -> Iterator[int]:
        """Which of the rank's batches."""
        turns, place = divmod(self.done, self.size)
        first = (self.worker + turns * self.workers) * self.size
        for start in range(first, len(self.share), self.workers * self.size):
            yield from range(start + place, min(start + self.size, len(self.share)))
            place = 0

    def runs(self) -> Runs:
        share = self.share
        width, first = share.batch_size * share.world_size, share.slot * share.batch_size
        for number in self.numbers():
            if number < share.full:
                start = first + number * width
                yield start, start + share.batch_size
            else:
                [(start, stop)] = share[number].runs
                yield start - share.start, stop - share.start

    def every(self) -> Every | None:
        share, each = self.share, self.size * self.workers
        if self.done or (share.world_size > 1 and self.size > 1):
            return None
        turns = (share.full - self.worker * self.size) // each  # that are whole, whatever the tail is
        if turns < 1:
            return None
        size, stride = self.size * share.batch_size, each * share.batch_size * share.world_size
        first = (share.slot + self.worker * self.size * share.world_size) * share.batch_size
        return Every(first, size, stride, turns * size, turns * self.size)

    def sizes(self) -> Iterator[int]:
        """Items of each batch."""
        return (stop - start for start, stop in self.runs())

    def worker_of(self, number: int) -> int:
        """Who makes the rank's batch of this number."""
        return number // self.size % self.workers

    def taken(self, number: int) -> int:
        """Items that all ranks were given since the start, once each has had its first `number` batches."""
        return self.share.position(number)[0] - self.share.start


def lane_of(items: float, lane: int, lanes: int) -> Lane:
    """A lane of a stream of so many items."""
    return Lane(lane, lanes, _run_size(items, lanes, 1, _SHORTER))


_LONGEST: Final = 256  # items in a run: what is decoded together, and what one worker makes while others wait
_SHORTER: Final = (
    64  # the same of lanes, and of ranks, whose runs are each of one batch where that is as large
)
_TURNS: Final = 8  # runs for each, where the stream is short


_WORTH: Final = (
    16  # items in a run, from which a stage of such runs alone costs less than passing over others
)


def _run_size(items: float, takers: int, batch_size: int, most: int) -> int:
    longest = most if items == float("inf") else int(items) // (takers * _TURNS)
    return max(1, min(most, longest) // batch_size)


@dataclass(frozen=True, eq=False)
class Dealt(Node):
    """The items of a countable stream that a deal names. It is opened where all of them are."""

    source: Node
    deal: Deal

    @cached_property
    def depth(self) -> int:
        return self.source.depth

    def open(self, run: Run) -> Stage:
        return _Dealt(self.source, run, self.deal)


class _Dealt:
    """First the regular runs, by a stage of those alone where the source has one; then runs by passing over others."""

    def __init__(self, source: Node, run: Run, deal: Deal) -> None:
        self._node, self._run, self._deal = source, run, deal
        self._state: Any = None  # where the stream begins
        self._stage: Stage | None = None
        self._runs: Runs = iter(())
        self._is_some = False  # whether the stage has the regular runs alone
        self._at = self._left = 0  # items of the stream passed or taken, and left of the run

    def next(self) -> Any:
        if self._stage is None:
            self._begin()
        if not self._left:
            self._turn()
        assert self._stage is not None
        item = self._stage.next()
        self._at += 1
        self._left -= 1
        return item

    def several(self, count: int) -> list[Any]:
        if self._stage is None or not self._left:
            return [self.next()]
        items = several(self._stage, min(count, self._left))
        self._at += len(items)
        self._left -= len(items)
        return items

    def state(self) -> Any:  # who takes what was dealt knows how much there was, and asks nobody
        return None

    def restore(self, state: Any) -> None:
        self._state = state

    def tag(self) -> Any:
        assert self._stage is not None
        return self._stage.tag()

    def close(self) -> None:
        if self._stage is not None:
            self._stage.close()
        self._runs, self._left = iter(()), 0

    # --- inside -------------------------------------------------------------------------------

    def _begin(self) -> None:
        self._runs = self._deal.runs()
        every, opened = self._deal.every(), getattr(self._node, "open_every", None)
        if opened is None or every is None or every.size < _WORTH or every.size == every.stride:
            self._stage = self._whole()
            return
        self._stage, self._left = opened(self._run, self._state, every), every.items
        self._is_some = True
        self._runs = islice(self._runs, every.runs, None)

    def _turn(self) -> None:
        start, stop = next(self._runs)
        if self._is_some:
            assert self._stage is not None
            self._stage.close()
            self._stage, self._at, self._is_some = self._whole(), 0, False
        assert self._stage is not None
        if start > self._at:
            passed(self._stage, start - self._at)
        self._at, self._left = start, stop - start

    def _whole(self) -> Stage:
        stage = self._node.open(self._run)
        if self._state is not None:
            stage.restore(self._state)
        return stage


@dataclass(frozen=True, eq=False)
class Laned(Node):
    """The items of a countable stream that a lane takes. Its position is its own."""

    source: Node
    lane: Lane

    @cached_property
    def depth(self) -> int:
        return self.source.depth

    def open(self, run: Run) -> Stage:
        return _Laned(self.source.open(run), self.lane)


class _Laned(Over):
    """The position is the stream's, and the number of the stream's items before it that were taken or passed."""

    def __init__(self, source: Stage, lane: Lane) -> None:
        super().__init__(source)
        self._lane = lane
        self._at = self._start = self._stop = 0  # in the stream; the run

    def next(self) -> Any:
        if not self._start <= self._at < self._stop:
            self._turn()
        item = self._source.next()
        self._at += 1
        return item

    def _turn(self) -> None:
        """Go to the next run.

        Raises:
            StopIteration: the stream ends before it.
        """
        turn = self._lane.turn_of(self._at)
        self._start, self._stop = self._lane.run(turn)
        if self._at >= self._stop:
            self._start, self._stop = self._lane.run(turn + 1)
        if self._at < self._start:
            self._at += passed(self._source, self._start - self._at)
        if self._at < self._start:
            raise StopIteration

    def state(self) -> Any:
        return [self._at, self._source.state()]

    def restore(self, state: Any) -> None:
        self._at, position = state
        self._source.restore(position)


@dataclass(frozen=True, eq=False)
class Sized(Batch):
    """Batches of the sizes that a deal says."""

    name: ClassVar[str] = "batch"
    deal: Worker

    def open(self, run: Run) -> Stage:
        return _Sized(self.source.open(run), self, is_tagged=run.untagged is not self)


class _Sized(Collating):
    def __init__(self, source: Stage, node: Sized, *, is_tagged: bool) -> None:
        super().__init__(source, node, is_tagged=is_tagged)
        self._drop, self._sizes = False, node.deal.sizes()

    def next(self) -> Any:
        self._size = next(self._sizes)
        return super().next()
