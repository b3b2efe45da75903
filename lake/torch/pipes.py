"""A pipeline as a loader reads it: split over ranks and workers, by position or by lanes, and put together again."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeAlias, cast

from lake.pipeline import Pipeline
from lake.pipeline.deal import MOST, Worker
from lake.pipeline.lanes import (
    Position,
    check_split,
    drawn_seeds,
    grain_of,
    ordered,
    why_uncountable,
    with_seeds,
)
from lake.pipeline.node import Counts, Node, Readings, Run, added, outline
from lake.pipeline.pipeline import FORMAT, check_state
from lake.pipeline.repeat import Repeat
from lake.plan import Even, Ranks
from lake.torch.feed import Alone, Hands, Team
from lake.torch.making import Deal, Given, Lane, Lanes, PipeJob, turn
from lake.torch.ranks import Flag, agree, gathered, has_group
from lake.torch.reading import Reading

Evenness: TypeAlias = "Even | Literal['stop', 'as asked']"

_log = logging.getLogger("lake")


class PipeSource:
    """Epochs of a pipeline, made by `workers` processes, or by this one."""

    def __init__(
        self,
        pipeline: Pipeline,
        find_ranks: Callable[[], Ranks],
        workers: int,
        *,
        steps: int | None,
        even: Evenness,
        gather: bool | None,
        mesh: Any,
        context: Any,
    ) -> None:
        if even == "pad":
            raise ValueError(
                "even='pad' marks rows of a scan; a pipeline has 'split', 'drop', 'stop' and None"
            )
        if even not in ("as asked", "split", "drop", "stop", None):
            raise ValueError(f"even={even!r}: a pipeline has 'split', 'drop', 'stop' and None")
        self._root = pipeline.node if steps is None else Repeat(pipeline.node, None)
        self._find, self._workers, self._steps, self._mesh = find_ranks, workers, steps, mesh
        self._even: Any = "split" if even == "as asked" else even
        self._gather, self._context = gather, context
        self._hands: Hands | None = None
        self._flag: Flag | None = None
        state = pipeline.state_dict()
        self._epoch, self._loaded = int(state["epoch"]), None if state["at"] is None else self._checked(state)

    def __len__(self) -> int:
        if self._steps is not None:
            return self._steps
        items = Counts().of(self._root, self._epoch)
        if items == float("inf"):
            raise TypeError("this pipeline has no end: steps= gives each epoch one")
        grain, even = self._grain()
        size = 1 if grain is None else grain.size
        if grain is not None:
            items = Counts().of(grain.source, self._epoch)
            items -= items % size if grain.drop_last else 0
        return len(Worker.of(int(items), 0, size, self._find(), even, 0, 1))

    def begin(self) -> Reading:
        ranks = self._find()
        loaded, epoch = self._loaded, self._epoch
        if why_uncountable(self._root, epoch) is None:
            self._agree_on_seeds(ranks)
            reading: Reading = self._dealt(ranks, loaded, epoch)
        else:
            self._check_lanes(ranks)
            self._agree_on_seeds(ranks)
            reading = self._laned(ranks, loaded, epoch)
        self._loaded, self._epoch = None, epoch + 1
        return reading

    def state(self) -> dict[str, Any]:
        return self._loaded or self.document(self._epoch, at=None)

    def load(self, state: Mapping[str, Any]) -> None:
        self._loaded = self._checked(state)
        self._epoch = int(self._loaded["epoch"])

    def set_epoch(self, epoch: int) -> None:
        if self._loaded is not None and self._loaded["epoch"] != epoch:
            _log.info("epoch %s begins at its beginning: the position loaded, in another, is given up", epoch)
            self._loaded = None
        self._epoch = epoch

    def metrics(self) -> dict[str, Any]:
        return {} if self._hands is None else added(*self._hands.metrics())

    def close(self) -> None:
        if self._hands is not None:
            self._hands.close()

    def document(self, epoch: int, **place: Any) -> dict[str, Any]:
        """A position in an epoch as a JSON document."""
        return {"format": FORMAT, "stages": outline(self._root), "epoch": epoch, **place}

    # --- by position --------------------------------------------------------------------------

    def _grain(self) -> tuple[Any, Even]:
        """The batches that are cut where ranks need them to be, and how the last round is."""
        grain = grain_of(self._root)
        if self._even == "split" or self._even == "stop":
            return grain, None if grain is None else "drop" if grain.drop_last else "split"
        return grain, cast("Even", self._even)

    def _dealt(self, ranks: Ranks, loaded: Mapping[str, Any] | None, epoch: int) -> Reading:
        grain, even = self._grain()
        root = ordered(self._root)
        position = Position(root, Run(epoch, {}, Readings()), None if loaded is None else loaded["at"])
        given = 0 if loaded is None else int(loaded.get("items", 0))
        left, size = position.left(), 1 if grain is None else grain.size
        if grain is not None and grain.drop_last and left < MOST:
            left = max(0, left - (given + left) % size)
        items, workers = min(MOST, given + left), max(1, self._workers)
        deals = [
            Worker.of(items, items - left, size, ranks, even, number, workers) for number in range(workers)
        ]
        if even is None and left < MOST and left % ranks.world_size and not self._steps:
            _log.warning(
                "%s items do not divide by %s ranks: some yield one more. batch() cuts the last ones so that counts "
                "are equal, even='drop' leaves them out",
                f"{left:,}",
                ranks.world_size,
            )
        hands = self._at_work(root)
        hands.begin([Deal(epoch, position.beginning, deal) for deal in deals])
        return Dealt(self, hands, deals[0], position, epoch, given, self._going(loaded))

    # --- by lanes -----------------------------------------------------------------------------

    def _check_lanes(self, ranks: Ranks) -> None:
        """Refuse what has no meaning in lanes, before anything is read."""
        is_even = self._steps is not None or self._even == "stop"
        lanes = ranks.world_size * max(1, self._workers)
        check_split(self._root, lanes=lanes, ranks=ranks.world_size, is_even=is_even)
        if self._even == "stop" and ranks.world_size > 1 and not has_group():
            raise ValueError(
                "even='stop' asks all ranks at each step, and there is no process group of torch.distributed: steps="
            )

    def _laned(self, ranks: Ranks, loaded: Mapping[str, Any] | None, epoch: int) -> Reading:
        workers = max(1, self._workers)
        lanes = Lanes(epoch, ranks.world_size * workers, {}) if loaded is None else _lanes_of(loaded)
        mine = range(ranks.rank, lanes.count, ranks.world_size)
        if not mine:
            raise ValueError(f"a position of {lanes.count} lanes cannot go on with {ranks.world_size} ranks")
        if loaded is not None and (missing := [lane for lane in mine if lane not in lanes.at]):
            raise ValueError(
                f"a position of one rank alone, without lane {missing[0]} of {lanes.count}: lake.merge_states of all "
                "ranks' states, or loader(..., gather=True), gives a position for all"
            )
        at = {lane: lanes.at.get(lane, Lane()) for lane in mine}
        shares = [{lane: at[lane] for lane in mine[number::workers]} for number in range(workers)]
        hands = self._at_work(self._root)
        hands.begin([Lanes(epoch, lanes.count, share) if share else None for share in shares])
        owners = {lane: number for number, share in enumerate(shares) for lane in share}
        flag = None
        if self._even == "stop" and self._steps is None and ranks.world_size > 1:
            flag = self._flag = self._flag or Flag(self._mesh)
        return Turns(self, hands, Lanes(epoch, lanes.count, at), owners, self._going(loaded), flag, ranks)

    def complete(self, lanes: Lanes, ranks: Ranks) -> Mapping[int, Lane]:
        """Where all lanes are that a state of this rank has to tell of.

        Raises:
            ValueError: nobody said whether ranks put their states together.
        """
        if ranks.world_size == 1 or self._gather is False:
            return lanes.at
        if self._gather is None:
            raise ValueError(
                "each rank knows its own lanes: gather=True has state_dict() collect all of them, on every rank "
                "alike; gather=False keeps one state for each rank, and lake.merge_states puts them together"
            )
        if not has_group():
            raise ValueError("gather=True asks all ranks, and there is no process group of torch.distributed")
        found: dict[int, Lane] = {}
        for each in gathered(dict(lanes.at), self._mesh):
            found |= each
        return dict(sorted(found.items()))

    # --- both ---------------------------------------------------------------------------------

    def _at_work(self, root: Node) -> Hands:
        if self._hands is None:
            job = PipeJob(root)
            self._hands = Team(job, self._workers, self._context) if self._workers else Alone(job)
        return self._hands

    def _agree_on_seeds(self, ranks: Ranks) -> None:
        """Have all ranks use the seeds that the first one drew."""
        drawn = drawn_seeds(self._root)
        if ranks.world_size == 1 or not drawn or self._hands is not None:
            return
        if not has_group():
            raise ValueError(
                f"{next(iter(drawn.values()))} drew its seed, on each rank another, and there is no process group of "
                "torch.distributed to agree in: seed="
            )
        first = agree(list(drawn), self._mesh)
        self._root = with_seeds(self._root, dict(zip(drawn, first, strict=True)))

    def _going(self, loaded: Mapping[str, Any] | None) -> Going:
        return Going(self._steps, 0 if loaded is None else int(loaded.get("steps", 0)))

    def _checked(self, state: Mapping[str, Any]) -> dict[str, Any]:
        check_state(state, outline(self._root))
        return dict(state)


class Going:
    """How many items an epoch still has, where that was said."""

    def __init__(self, steps: int | None, done: int) -> None:
        self.steps, self.done = steps, done

    @property
    def is_over(self) -> bool:
        return self.steps is not None and self.done >= self.steps

    def facts(self, done: int) -> dict[str, int]:
        """What a position after so many says of it."""
        return {} if self.steps is None else {"steps": done}


class Dealt:
    """One epoch of a countable pipeline: its items in order, each from who made it."""

    def __init__(
        self,
        source: PipeSource,
        hands: Hands,
        deal: Worker,
        position: Position,
        epoch: int,
        given: int,
        going: Going,
    ) -> None:
        self._source, self._hands, self._deal, self._position = source, hands, deal, position
        self._epoch, self._given, self._going = epoch, given, going
        self._number, self._count = 0, len(deal)

    def next(self) -> Any:
        if self._number == self._count or self._going.is_over:
            if not self._going.is_over:
                self._hands.finish()
            raise StopIteration
        try:
            item = self._hands.take(self._deal.worker_of(self._number))
        except StopIteration:
            raise RuntimeError(
                f"the pipeline ended after {self._number:,} of this rank's {self._count:,} items: "
                "a sequence or function gives fewer than it said"
            ) from None
        self._number += 1
        self._going.done += 1
        return item

    def mark(self) -> Any:
        return self._number, self._going.done

    def state(self, mark: Any) -> dict[str, Any]:
        number, done = mark
        taken = self._deal.taken(number)
        at, items = self._position.after(taken), self._given + taken
        return self._source.document(self._epoch, at=at, items=items, **self._going.facts(done))

    def close(self) -> None:
        self._hands.end()


class Turns:
    """One epoch of an uncountable pipeline: items of this rank's lanes in turn."""

    def __init__(
        self,
        source: PipeSource,
        hands: Hands,
        lanes: Lanes,
        owners: Mapping[int, int],
        going: Going,
        flag: Flag | None,
        ranks: Ranks,
    ) -> None:
        self._source, self._hands, self._owners, self._ranks = source, hands, owners, ranks
        self._epoch, self._lanes, self._count = lanes.epoch, dict(lanes.at), lanes.count
        self._going, self._flag = going, flag

    def next(self) -> Any:
        if self._going.is_over:
            raise StopIteration
        found = self._found()
        if self._flag is not None and not self._flag.all_go_on(found is not None):
            raise StopIteration
        if found is None:
            if self._going.steps is not None:
                raise RuntimeError(
                    f"rank {self._ranks.rank} has no rows for steps={self._going.steps}: its lanes are all empty"
                )
            self._hands.finish()
            raise StopIteration
        place = self._lanes[found.lane]
        at = found.at if found.at is not None else _later(place.at)
        self._lanes[found.lane] = Lane(place.items + 1, at)
        self._going.done += 1
        return found.item

    def mark(self) -> Any:
        return dict(self._lanes), self._going.done

    def state(self, mark: Any) -> dict[str, Any]:
        mine, done = mark
        lanes = self._source.complete(Lanes(self._epoch, self._count, mine), self._ranks)
        if self._count == 1:
            place: dict[str, Any] = {"at": lanes[0].at}
        else:
            at = {str(lane): [where.items, where.at, where.is_over] for lane, where in lanes.items()}
            place = {"lanes": {"count": self._count, "at": at}}
        return self._source.document(self._epoch, **place, **self._going.facts(done))

    def close(self) -> None:
        self._hands.end()

    def _found(self) -> Given | None:
        """The next item of whose turn it is; None where there is none."""
        while True:
            try:
                lane = turn(self._lanes)
            except StopIteration:
                return None
            found: Given = self._hands.take(self._owners[lane])
            if not found.is_over:
                return found
            self._lanes[lane] = Lane(self._lanes[lane].items, found.at, is_over=True)


def _later(at: Any) -> Any:
    """The position one item after another."""
    state, items = at
    return [state, items + 1]


def _lanes_of(state: Mapping[str, Any]) -> Lanes:
    if "lanes" not in state:
        return Lanes(int(state["epoch"]), 1, {0: Lane(0, state["at"])})
    said = state["lanes"]
    at = {int(lane): Lane(*place) for lane, place in said["at"].items()}
    return Lanes(int(state["epoch"]), int(said["count"]), at)
