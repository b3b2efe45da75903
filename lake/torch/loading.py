"""The loader: batches of a scan or a pipeline for one rank of a training run, and the position of the last one.

It is no `torch.utils.data.DataLoader`, and needs none: a scan is read by threads, which hold no lock of the
interpreter's, and a pipeline's functions run in processes of their own.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack
from itertools import repeat
from typing import Any, Final

import torch

from lake.asked import whole
from lake.pipeline import Pipeline
from lake.plan import Ranks
from lake.progress import Bar
from lake.progress import progress as shown
from lake.scan import Scan
from lake.torch.device import MovedReading, Mover, route_to
from lake.torch.pipes import Evenness, PipeSource
from lake.torch.ranks import find_ranks
from lake.torch.reading import Reading, Source
from lake.torch.scans import ScanSource
from lake.torch.stream import TensorStream
from lake.torch.tensors import Form

AS_ASKED: Final = "as asked"  # `even` is what the scan says, and "split" for a pipeline


class Loader:
    """Iterates this rank's items; each `iter` is the next epoch, and a second one ends the first.

    It knows the position: that after the last item it handed out, whatever was read ahead.
    """

    def __init__(
        self, source: Source, label: str, mover: Mover | None = None, *, progress: bool | None = False
    ) -> None:
        self._source, self._label, self._mover, self._progress = source, label, mover, progress
        self._outer: weakref.ref[Any] | None = None  # who hands the items on, and so knows the position
        self._reading: Reading | None = None  # the last epoch that was begun
        self._iteration: weakref.ref[_Iteration] | None = None

    def __repr__(self) -> str:
        return f"lake.torch.loader({self._label})"

    def __len__(self) -> int:
        """Items of an epoch for this rank.

        Raises:
            TypeError: the number is unknown, or there is no end.
        """
        return len(self._source)

    def __iter__(self) -> Iterator[Any]:
        self._end()
        self._reading = None
        self._reading = self._begun()
        total = None
        if self._progress is not False:
            with contextlib.suppress(TypeError):
                total = len(self)
        iteration = _Iteration(self._reading, shown(self._progress, repr(self), total, unit="batches"))
        self._iteration = weakref.ref(iteration)
        return iteration

    def state_dict(self) -> dict[str, Any]:
        """The position after the last item handed out, as a JSON document; of all ranks that step together."""
        self._check_asked("state_dict")
        return self.position()

    def position(self) -> dict[str, Any]:
        """The same, for who hands the items on."""
        reading = self._reading
        return self._source.state() if reading is None else reading.state(reading.mark())

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Begin the next iteration where `state` says, on any number of ranks and workers.

        Raises:
            ValueError: the position of something else (it says what differs), or of one rank alone.
        """
        self._check_asked("load_state_dict")
        self.go_to(state)

    def go_to(self, state: Mapping[str, Any]) -> None:
        """The same, for who hands the items on."""
        self._end()
        self._reading = None
        self._source.load(state)

    def hand_over(self, outer: Any) -> None:
        """Have `outer` be asked for the position from now on."""
        self._outer = weakref.ref(outer)

    def set_epoch(self, epoch: int) -> None:
        """Make the next iteration epoch `epoch`; a position that was loaded holds if it is of this epoch."""
        if whole("epoch", epoch) < 0:
            raise ValueError(f"epochs are numbered from 0: {epoch}")
        self._source.set_epoch(epoch)

    def metrics(self) -> dict[str, Any]:
        """What reading has cost since this loader was made: see `Scan.metrics` and `Pipeline.metrics`."""
        return self._source.metrics()

    def headroom(self, steps: int | None = None) -> Iterator[Any]:
        """One batch again and again, `steps` times (None: as many as an epoch has).

        A training loop over this takes as long as it would if reading cost nothing. The position stays.
        """
        if steps is None:
            steps = len(self)
        state = self.position()
        self._end()
        self._source.load(state)
        reading = self._begun()
        try:
            item = reading.next()
        finally:
            reading.close()
            self.go_to(state)
        return repeat(item, steps)

    def _check_asked(self, name: str) -> None:
        outer = None if self._outer is None else self._outer()
        if outer is not None:
            raise RuntimeError(
                f"{self} is read through {outer}: call {name}() of that, which knows the position"
            )

    def _begun(self) -> Reading:
        reading = self._source.begin()
        return reading if self._mover is None else MovedReading(reading, self._mover)

    def _end(self) -> None:
        """End the iteration in progress, if there is one."""
        iteration = None if self._iteration is None else self._iteration()
        if iteration is not None:
            iteration.close()
        self._iteration = None

    def close(self) -> None:
        """End what is in progress, and the processes."""
        self._end()
        self._source.close()


class _Iteration:
    """One epoch. It ends when it is dropped; an error is raised again by each further `next`."""

    def __init__(self, reading: Reading, bar: AbstractContextManager[Bar]) -> None:
        self._reading, self._shown = reading, ExitStack()
        self._bar = self._shown.enter_context(bar)
        self._ended: BaseException | None = None

    def __iter__(self) -> _Iteration:
        return self

    def __next__(self) -> Any:
        if self._ended is not None:
            raise self._ended
        try:
            item = self._reading.next()
        except StopIteration:
            self.close()
            raise
        except Exception as error:
            self.close(error)
            raise
        self._bar.advance(1)
        return item

    def close(self, error: BaseException | None = None) -> None:
        """Hand nothing out any more."""
        if self._ended is None:
            self._ended = error or StopIteration()
            self._shown.close()
            self._reading.close()

    def __del__(self) -> None:
        self.close()


def loader(
    x: Scan | TensorStream | Pipeline,
    *,
    num_workers: int | None = None,
    device: Any = None,
    steps: int | None = None,
    even: Evenness = AS_ASKED,
    gather: bool | None = None,
    rank: int | None = None,
    world_size: int | None = None,
    mesh: Any = None,
    progress: bool | None = False,
    multiprocessing_context: Any = None,
    **to_torch: Any,
) -> Loader:
    """Batches for this rank of a training run, with the position of the last one that was trained on.

    Args:
        x: a scan, which gives what `scan.to_torch(**to_torch)` does, or a pipeline, which gives its items.
        num_workers: processes beside this one; None: 0 for a scan, 1 for a pipeline or a mapped scan. They run
            the functions, and go a bounded number of bytes ahead.
        device: where tensors go, in dicts, tuples and lists; to CUDA through pinned memory, beside the computation.
        steps: of a pipeline: items of an epoch for each rank, whatever there is; its stream is repeated.
        even: what the last round does, as in `ds.scan`; by default what the scan says, "split" for a pipeline,
            whose last batches are then cut so that each rank has as many. "stop" (a pipeline whose count is
            unknown): all ranks stop with the first that has no more.
        gather: of a pipeline whose count is unknown, on several ranks: whether `state_dict` is called on all
            of them together, and gives the position of all.
        rank, world_size, mesh: this rank and all of them, or the mesh of the data-parallel ranks; by default
            what `torch.distributed` or the launcher's variables say when iteration starts.
        progress: whether a bar shows on stderr; None: where that is a terminal.
        multiprocessing_context: "fork", "spawn", "forkserver" or a context; None: as Python is set.
        to_torch: of a scan: `ragged`, `nulls`, `binary`, `copy`.

    Raises:
        TypeError: neither a scan nor a pipeline.
        ValueError: an argument that means nothing here; when iteration starts, a pipeline that cannot be split.
    """

    def find() -> Ranks:
        return find_ranks(rank, world_size, mesh)

    for name, value in (("num_workers", num_workers), ("steps", steps)):
        if value is not None and not hasattr(value, "__index__"):
            raise TypeError(f"loader(): {name} is a whole number or None, not {value!r}")
    if num_workers is not None and num_workers < 0:
        raise ValueError(f"num_workers is a number of processes: {num_workers}")
    if steps is not None and steps < 1:
        raise ValueError(f"steps is a number of items, at least 1: {steps}")
    _check_form(x, to_torch)
    inner: Any = x.scan if isinstance(x, TensorStream) else x
    source: Source
    if isinstance(inner, Scan):
        if steps is not None or gather is not None or even == "stop":
            raise ValueError("steps=, gather= and even='stop' are for pipelines: a scan knows its batches")
        workers = int(inner.is_mapped) if num_workers is None else num_workers
        form = x.form if isinstance(x, TensorStream) else Form(**to_torch)
        options = {} if even == AS_ASKED else {"even": even}
        source = ScanSource(inner, form, find, workers, options=options, context=multiprocessing_context)
    elif isinstance(inner, Pipeline):
        source = PipeSource(
            inner.copied(),
            find,
            1 if num_workers is None else num_workers,
            steps=steps,
            even=even,
            gather=gather,
            mesh=mesh,
            context=multiprocessing_context,
        )
    else:
        raise TypeError(f"loader() takes a scan or a pipeline, not {type(x).__name__}")
    if device is None and isinstance(x, TensorStream):
        device = x.device
    mover = None if device is None else Mover(route_to(torch.device(device)))
    label = "scan" if isinstance(inner, Scan) else "pipeline"
    made = Loader(source, label, mover, progress=progress)
    inner.hand_over(made)
    return made


def _check_form(x: object, to_torch: Mapping[str, Any]) -> None:
    """Raises TypeError where options that make tensors of a scan have nothing to act on."""
    for name in to_torch:
        if name not in Form.__dataclass_fields__:
            raise TypeError(f"loader() got an unexpected keyword argument {name!r}")
        if isinstance(x, TensorStream):
            raise TypeError(f"loader(scan.to_torch()): say {name}= to to_torch()")
        if isinstance(x, Pipeline):
            raise TypeError(
                f"loader(pipeline): {name}= makes tensors of a scan; items of a pipeline are as they are"
            )
