"""A scan or a pipeline as a data set of torch's, for loaders that are not lake's.

Each worker of a `DataLoader`, on each rank, reads a part of its own. The epoch is in memory that all of them
share, so that it goes on whether or not workers live on, and `set_epoch` reaches those that do.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

import torch
from torch.utils.data import IterableDataset, get_worker_info

from lake.asked import whole
from lake.pipeline import Pipeline
from lake.pipeline.deal import MOST, Worker
from lake.pipeline.lanes import (
    Position,
    check_split,
    drawn_seeds,
    grain_of,
    ordered,
    why_uncountable,
)
from lake.pipeline.node import Readings, Run
from lake.plan import Ranks
from lake.scan import Scan
from lake.torch.making import Deal, Lane, Lanes, PipeJob
from lake.torch.ranks import find_ranks, is_cut_by_accelerate
from lake.torch.stream import TensorStream
from lake.torch.tensors import Form

_WORKERS: Final = 1024  # of one loader, at most


class LakeIterable(IterableDataset[Any]):  # type: ignore[misc]  # torch has no types here
    """What `as_iterable_dataset` makes."""

    def __init__(self, x: Any, rank: int | None, world_size: int | None) -> None:
        self._x, self._ranks = x, None if rank is None else find_ranks(rank, world_size)
        self._epochs = torch.zeros(1 + _WORKERS, dtype=torch.int64).share_memory_()

    def __getstate__(self) -> dict[str, Any]:  # to a worker that knows of no process group
        return {**self.__dict__, "_ranks": self._found()}

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        number, workers = (0, 1) if info is None else (info.id, info.num_workers)
        begun = self._epochs[1 + number]
        epoch = int(self._epochs[0] + begun)
        begun += 1
        return _Items(self, number, workers, epoch)

    def set_epoch(self, epoch: int) -> None:
        """Make the next iteration epoch `epoch`, in living workers too."""
        if whole("epoch", epoch) < 0:
            raise ValueError(f"epochs are numbered from 0: {epoch}")
        self._epochs.zero_()
        self._epochs[0] = epoch

    def state_dict(self) -> dict[str, Any]:
        """No state: workers are ahead of what was trained on, and nothing tells how far.

        Raises:
            RuntimeError: always; names what knows.
        """
        raise RuntimeError(
            "a DataLoader does not say which of its workers' items were used: lake.torch.loader(...) knows the "
            "position, and so does torchdata's StatefulDataLoader over this data set"
        )

    def begun(self, number: int, epoch: int) -> None:
        """A worker is in this epoch: the next is the one after."""
        self._epochs[1 + number] = epoch + 1 - self._epochs[0]

    def opened(self, number: int, workers: int, epoch: int, state: Mapping[str, Any] | None) -> Any:
        """The part of one worker, from its own position on."""
        ranks = self._found()
        if isinstance(self._x, Pipeline):
            return _pipe(self._x, ranks, number, workers, epoch, state)
        return _Scanned(self._x, ranks, number, workers, epoch, state)

    def _found(self) -> Ranks:
        if self._ranks is not None:
            return self._ranks
        if is_cut_by_accelerate():
            raise RuntimeError(
                "Accelerate cuts what a DataLoader gives once more for its processes: use lake.torch.loader(...), "
                "which it leaves alone, or say rank=0, world_size=1 here to have it do all the cutting"
            )
        return find_ranks()


class _Items:
    """One worker's items of an epoch, and its position, for `StatefulDataLoader`. Begins to read when asked to."""

    def __init__(self, dataset: LakeIterable, number: int, workers: int, epoch: int) -> None:
        self._dataset, self._number, self._workers, self._epoch = dataset, number, workers, epoch
        self._state: Mapping[str, Any] | None = None
        self._part: Any = None

    def __iter__(self) -> _Items:
        return self

    def __next__(self) -> Any:
        if self._part is None:
            self._part = self._dataset.opened(self._number, self._workers, self._epoch, self._state)
        return self._part.next()

    def state_dict(self) -> dict[str, Any]:
        place = self._state if self._part is None else self._part.state()
        return {"epoch": self._epoch, "worker": self._number, "workers": self._workers, "place": place}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if (state["worker"], state["workers"]) != (self._number, self._workers):
            raise ValueError(
                f"a position of {state['workers']} workers, and there are {self._workers}: take as many, or "
                "lake.torch.loader, which goes on with any number"
            )
        self._epoch, self._state, self._part = int(state["epoch"]), state["place"], None
        self._dataset.begun(self._number, self._epoch)


class _Scanned:
    """Batches of a scan: workers of ranks share it as so many ranks would."""

    def __init__(
        self,
        stream: TensorStream,
        ranks: Ranks,
        number: int,
        workers: int,
        epoch: int,
        state: Mapping[str, Any] | None,
    ) -> None:
        scan = stream.scan
        if scan.asked["rank"] is not None:
            ranks = find_ranks(scan.asked["rank"], scan.asked["world_size"])
        rank, world_size = ranks.rank * workers + number, ranks.world_size * workers
        scan = scan.among(rank=rank, world_size=world_size, node=ranks.node, nodes=ranks.nodes)
        scan.set_epoch(epoch)
        if state is not None:
            scan.load_state_dict(state)
        self._stream = TensorStream(scan, stream.form)
        self._items = iter(self._stream)

    def next(self) -> dict[str, Any]:
        return next(self._items)

    def state(self) -> dict[str, Any]:
        return self._stream.state_dict()


def _pipe(
    pipeline: Pipeline, ranks: Ranks, number: int, workers: int, epoch: int, state: Mapping[str, Any] | None
) -> _Dealt | _Lane:
    root = pipeline.node
    if ranks.world_size > 1 and (drawn := drawn_seeds(root)):
        raise ValueError(f"{next(iter(drawn.values()))} drew its seed, on each rank another: seed=")
    if why_uncountable(root, epoch) is None:
        return _Dealt(pipeline, ranks, number, workers, epoch, state)
    check_split(root, lanes=ranks.world_size * workers, ranks=ranks.world_size)
    return _Lane(pipeline, ranks.rank + number * ranks.world_size, ranks.world_size * workers, epoch, state)


class _Dealt:
    """Every so-manieth item of a countable pipeline, or batch, of this rank."""

    def __init__(
        self,
        pipeline: Pipeline,
        ranks: Ranks,
        number: int,
        workers: int,
        epoch: int,
        state: Mapping[str, Any] | None,
    ) -> None:
        root, grain = ordered(pipeline.node), grain_of(pipeline.node)
        left = Position(root, Run(epoch, {}, Readings()), None).left()
        size, even = (1, None) if grain is None else (grain.size, "drop" if grain.drop_last else "split")
        left -= left % size if grain is not None and grain.drop_last and left < MOST else 0
        deal = Worker.of(left, 0, size, ranks, even, number, workers)  # type: ignore[arg-type]
        self._done = 0 if state is None else int(state["done"])
        deal = replace(deal, size=1, done=self._done)  # item by item: the order in which a DataLoader asks
        self._items = PipeJob(root).open(Deal(epoch, None, deal))

    def next(self) -> Any:
        item = self._items.next()
        self._done += 1
        return item

    def state(self) -> dict[str, Any]:
        return {"done": self._done}


class _Lane:
    """One lane of a pipeline."""

    def __init__(
        self, pipeline: Pipeline, lane: int, lanes: int, epoch: int, state: Mapping[str, Any] | None
    ) -> None:
        self._at: Any = None if state is None else state["at"]
        self._items = PipeJob(pipeline.node).open(Lanes(epoch, lanes, {lane: Lane(0, self._at)}))

    def next(self) -> Any:
        given = self._items.next()
        if given.at is not None:
            self._at = given.at
        else:
            position, items = self._at
            self._at = [position, items + 1]
        if given.is_over:
            raise StopIteration
        return given.item

    def state(self) -> dict[str, Any]:
        return {"at": self._at}


def as_iterable_dataset(
    x: Scan | TensorStream | Pipeline, *, rank: int | None = None, world_size: int | None = None
) -> LakeIterable:
    """A scan (its batches as tensors: `DataLoader(..., batch_size=None)`) or a pipeline, for a `DataLoader`.

    Each rank and worker sees its own part; ranks are those of `torch.distributed` or the launcher's variables
    when iteration starts, unless given. Each `iter` is the next epoch. Nothing here knows the position of the
    last item that was used: `lake.torch.loader` does, and torchdata's `StatefulDataLoader` over this.

    Raises:
        TypeError: neither a scan nor a pipeline.
        RuntimeError: when iterated by one of several processes of Accelerate without `rank`: it cuts again.
    """
    if rank is None and world_size is not None:
        raise ValueError("rank= and world_size= go together")
    if isinstance(x, Scan):
        x = TensorStream(x, Form())
    if not isinstance(x, TensorStream | Pipeline):
        raise TypeError(f"as_iterable_dataset() takes a scan or a pipeline, not {type(x).__name__}")
    return LakeIterable(x, rank, world_size)
