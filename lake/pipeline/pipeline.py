"""What a user holds: a graph of combinators, the place in it, and the methods that make longer ones."""

from __future__ import annotations

import logging
import math
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain
from typing import Any, Final, NoReturn, cast

import cloudpickle

from lake.asked import by_number, whole
from lake.pipeline.batch import Batch, BatchBy
from lake.pipeline.call import Call, OnError, Rng
from lake.pipeline.checked import PipelinePlan, checked
from lake.pipeline.filter import Filter
from lake.pipeline.flat_map import FlatMap
from lake.pipeline.identity import fingerprint
from lake.pipeline.lanes import untagged
from lake.pipeline.map import Decoding, Fields, Map, Maybe, MaybeBy
from lake.pipeline.node import (
    Counts,
    Node,
    Readings,
    RowShuffle,
    Run,
    StageMeter,
    graph,
    outline,
    stage_facts,
)
from lake.pipeline.pack import Pack
from lake.pipeline.repeat import Repeat
from lake.pipeline.rewind import Rewind, every_of
from lake.pipeline.scan import Scanned
from lake.pipeline.seeds import Seed
from lake.pipeline.shuffle import Shuffled
from lake.pipeline.take import Take
from lake.pipeline.through import Resumable, Through, ThroughObject
from lake.pipeline.window import Window
from lake.pipeline.zipped import Zip

FORMAT: Final = 1

_log = logging.getLogger("lake")


class Pipeline:
    """One stream of items, deterministic under its seeds; each `iter` is the next epoch.

    Methods that make a longer pipeline leave this one as it is. A pipeline has one iteration at a time: a
    second `iter` ends the first. It pickles with its position, functions and lambdas included.
    """

    def __init__(self, node: Node) -> None:
        self.node = node
        self._epoch = 0  # of the next iteration, unless a position was loaded
        self._loaded: Mapping[str, Any] | None = None  # where the next iteration begins
        self._mark: _Mark | None = None  # how far the last iteration came
        self._iteration: weakref.ref[_Iteration | _Lending] | None = None
        self._outer: weakref.ref[Any] | None = None  # who hands the items on, and so knows the position
        self._meters: dict[Node, StageMeter] = {}
        self._readings = Readings()

    def __repr__(self) -> str:
        return " -> ".join(node.label for node in graph(self.node))

    def __reduce__(self) -> tuple[Any, ...]:
        state = None if self._mark is None and self._loaded is None else self._position()
        return _unpickled, (cloudpickle.dumps(self.node), self._epoch, state)

    # --- one item for each --------------------------------------------------------------------

    def map(
        self,
        fn: Callable[..., Any],
        *,
        rng: Rng = False,
        seed: int | None = None,
        workers: int = 0,
        ordered: bool = True,
        on_error: OnError = "raise",
    ) -> Pipeline:
        """`fn(item)` for each item.

        Args:
            rng: True: `fn(item, generator)` with a NumPy generator; "global": the generators of `random`,
                NumPy and torch are seeded for the call. What they give depends on the seed, the epoch, the
                row and this stage: not on the order of reading, and not on what was read before.
            seed: of `rng`; None draws one now.
            workers: threads that call `fn` ahead of who iterates.
            ordered: False hands results out as they come; a stage above that keeps items back (shuffle,
                pack, batch by cost) then cannot resume exactly.
            on_error: "skip" leaves items out for which `fn` raises; `metrics()` counts them.
        """
        call = Call.of("map", fn, rng=rng, seed=seed, workers=workers, ordered=ordered, on_error=on_error)
        return Pipeline(Map(self.node, call))

    def star_map(self, fn: Callable[..., Any], **how: Any) -> Pipeline:
        """`fn(*item)` for each item. Keywords as in `map`."""
        return Pipeline(Map(self.node, Call.of("star_map", fn, spread=True, **how)))

    def decode(
        self,
        *,
        rng: Rng = False,
        seed: int | None = None,
        workers: int = 0,
        ordered: bool = True,
        on_error: OnError = "raise",
        **fields: str | Callable[..., Any],
    ) -> Pipeline:
        """Samples with these fields decoded: by the codec of this name in `lake.codecs`, or by a function.

        Nulls stay None. Keywords as in `map`.
        """
        call = Call.of(
            "decode",
            Decoding.of(fields),
            rng=rng,
            seed=seed,
            workers=workers,
            ordered=ordered,
            on_error=on_error,
        )
        return Pipeline(Map(self.node, call))

    def to_tuple(self, *fields: str) -> Pipeline:
        """These fields of each sample as a tuple."""
        if not fields:
            raise ValueError("to_tuple() takes names of fields")
        return Pipeline(Map(self.node, Call.of("to_tuple", Fields(fields))))

    def zip_with(
        self, fn: Callable[..., Any], *others: Pipeline, per_lane: bool = False, **how: Any
    ) -> Pipeline:
        """`fn(item, *items of the others)`; ends with the shortest. Keywords as in `map`."""
        sources = (self.node, *(node_of("zip_with", each) for each in others))
        call = Call.of("zip_with", fn, spread=True, **how)
        return Pipeline(Map(Zip(sources, per_lane), call))

    def maybe(
        self,
        fn: Callable[[Any], Any],
        p: float | Callable[[Any], float] | Pipeline = 0.5,
        *,
        seed: int | None = None,
    ) -> Pipeline:
        """`fn(item)` for a fraction `p` of the items, the others as they are.

        `p`: a probability, a function of the item that gives one, or a pipeline of them, with which this ends.
        """
        if not callable(fn):
            raise TypeError(f"maybe() takes a function, not {type(fn).__name__}")
        if isinstance(p, Pipeline):
            return Pipeline(MaybeBy(self.node, p.node, fn, Seed.of(seed)))
        if not callable(p) and not 0 <= p <= 1:
            raise ValueError(f"maybe(): a probability lies within 0 and 1: {p!r}")
        return Pipeline(Maybe(self.node, fn, p if callable(p) else float(p), Seed.of(seed)))

    # --- more or fewer items ------------------------------------------------------------------

    def filter(self, pred: Callable[..., Any], **how: Any) -> Pipeline:
        """The items for which `pred(item)` is true. Keywords as in `map`."""
        return Pipeline(Filter(self.node, Call.of("filter", pred, **how)))

    def flat_map(self, fn: Callable[..., Any], **how: Any) -> Pipeline:
        """All items of the iterable `fn(item)`, for each item. Keywords as in `map`."""
        return Pipeline(FlatMap(self.node, Call.of("flat_map", fn, **how)))

    def take(self, n: int, *, per_lane: bool = False) -> Pipeline:
        """The first `n` items."""
        return Pipeline(Take(self.node, whole("take(): n", n, least=0), per_lane))

    def repeat(self, times: int | None = None) -> Pipeline:
        """The stream `times` times, 100,000 at most, or without end; each pass is the next epoch."""
        if times is not None and whole("repeat(): times", times, least=0) > _PASSES:
            raise ValueError(
                f"repeat({times}) counts passes one by one, up to {_PASSES:,}; repeat() goes on for ever"
            )
        return Pipeline(Repeat(self.node, times))

    # --- the whole stream ---------------------------------------------------------------------

    def scan(self, fn: Callable[[Any, Any], Any], init: Any) -> Pipeline:
        """Each new state of `state = fn(state, item)`, which begins as `init`. `fn` makes a new one each time."""
        return Pipeline(Scanned(self.node, fn, init))

    def through(self, fn: Callable[[Iterator[Any]], Iterator[Any]] | Resumable) -> Pipeline:
        """What `fn(iterator)` iterates; or what an object with `next(stream)`, `state()` and `restore(state)` makes.

        A function resumes by reading the epoch from its beginning, an object where it was.
        """
        if all(hasattr(fn, name) for name in ("next", "state", "restore")):
            return Pipeline(ThroughObject(self.node, fn))  # type: ignore[arg-type]
        if not callable(fn):
            raise TypeError(
                f"through() takes fn(iterator), or an object with next, state and restore, not {fn!r}"
            )
        return Pipeline(Through(self.node, fn))

    def window(self, size: int, stride: int | None = None, *, drop_last: bool = False) -> Pipeline:
        """Lists of `size` consecutive items, one every `stride` (None: `size`) items.

        A last, shorter one is handed out if it has items that were in none, unless `drop_last`.
        """
        size = whole("window(): size", size, least=1)
        stride = size if stride is None else whole("window(): stride", stride, least=1)
        return Pipeline(Window(self.node, size, stride, drop_last))

    def shuffle(self, buffer: int = 4096, *, seed: int | None = None, full: bool = False) -> Pipeline:
        """The items in random order, another one in each epoch.

        Over `ds.samples()`, with nothing but map, filter and their like in between, the plan shuffles: shards
        are read in random order, and `buffer` is the least number of rows that are mixed. Elsewhere about
        `buffer` items are held. `full`: all rows, evenly; directly over `ds.samples()` only.
        """
        buffer, chosen = whole("shuffle(): buffer", buffer, least=1), Seed.of(seed)
        if full and self.node.inputs:
            raise ValueError(
                f"shuffle(full=True) goes directly over ds.samples(), not over {self.node.label}: "
                "ds.samples().shuffle(full=True)...."
            )
        folded = self.node.shuffled(RowShuffle(None if full else buffer, chosen))
        if folded is not None:
            return Pipeline(folded)
        if full:
            raise ValueError(f"shuffle(full=True) goes over ds.samples(), not over {self.node.label}")
        return Pipeline(Shuffled(self.node, buffer, chosen))

    def batch(
        self,
        size: float,
        *,
        collate: Callable[[list[Any]], Any] | None = None,
        drop_last: bool = False,
        by: Callable[[Any], float] | None = None,
        padded: bool = False,
        buckets: int | None = None,
    ) -> Pipeline:
        """Lists of `size` items, or `collate(list)`.

        Args:
            by: what an item costs, such as its length: `size` then bounds the sum of a batch.
            padded: the bound is on the largest cost times the number of items, as after padding.
            buckets: items for so many batches are sorted by cost before they are cut into batches.
        """
        if by is None:
            if padded or buckets:
                raise ValueError(
                    "batch(): padded= and buckets= need by=, a function of an item that gives its cost"
                )
            return Pipeline(Batch(self.node, whole("batch(): size", size, least=1), collate, drop_last))
        if not (size > 0 and math.isfinite(size)):
            raise ValueError(f"batch(): size is more than 0: {size}")
        if buckets is not None:
            buckets = whole("batch(): buckets", buckets, least=1)
        return Pipeline(BatchBy(self.node, size, by, padded, buckets, collate, drop_last))

    def pack(
        self,
        length: int,
        *,
        field: str | None = None,
        eos: int | None = None,
        split: bool = True,
        pad: int = 0,
    ) -> Pipeline:
        """Documents of tokens as rows of one length: dicts of the tokens, `segment_ids` and `positions`.

        An item is a sequence of tokens, or a sample or dict that has one in `field`. `eos` ends each document.
        With `split`, documents run on into the next row and only the stream's last rest is dropped; without,
        each goes whole into the first row that has room, rows are filled up with `pad` (segment 0), and longer
        ones are cut (`metrics()` counts them).
        """
        return Pipeline(Pack(self.node, whole("pack(): length", length, least=1), field, eos, split, pad))

    # --- what it will do ----------------------------------------------------------------------

    def __len__(self) -> int:
        """Items of an epoch.

        Raises:
            TypeError: the number is unknown, or there is no end.
        """
        count = Counts().of(self.node, self._epoch)
        if count == math.inf:
            raise TypeError("this pipeline has no end")
        return int(count)

    def __getitem__(self, index: object) -> NoReturn:
        raise by_number("pipeline")

    def check(self) -> PipelinePlan:
        """What an epoch would read, keep resident and fetch, of all sources; reads nothing but what `where` needs.

        Raises:
            BudgetError: it does not fit the cache's budget.
        """
        return checked(self.node, self._epoch)

    def fingerprint(self, *, tag: str | None = None) -> str:
        """A digest of all that the items depend on: sources' data, stages, parameters, and functions' code.

        `tag` enters it, and stands for values that cannot be pinned down.

        Raises:
            NotReproducibleError: there is such a value, or a seed that nobody chose; names the stage.
        """
        return fingerprint(self.node, tag)

    def source_versions(self) -> dict[str, str]:
        """Version ids of the datasets that are read, by name; by `name@#seq` where one is read at several."""
        read = {version for node in graph(self.node) if (version := node.version()) is not None}
        names = [name for name, _, _ in read]
        return {
            name if names.count(name) == 1 else f"{name}@#{seq}": version
            for name, seq, version in sorted(read)
        }

    def metrics(self) -> dict[str, Any]:
        """What reading and the stages have cost since this pipeline was made.

        The sources' numbers, as `Scan.metrics` gives them, summed; `stages`: for each one that calls functions
        its items, seconds, how many were skipped and the first keys of those; `sources`: items of each input
        of a mix.
        """
        return {**self._readings.total(), **stage_facts(self.node, self._meters)}

    # --- where it is --------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """The position after the last item handed out, as a small JSON document."""
        self._check_asked("state_dict")
        return self._position()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Begin the next iteration where `state` says; an iteration in progress ends.

        Raises:
            ValueError: the position of another pipeline; says what differs.
        """
        self._check_asked("load_state_dict")
        check_state(state, self._outline)
        if "lanes" in state:
            raise ValueError(
                f"a position of {state['lanes']['count']} lanes: lake.torch.loader goes on from it"
            )
        self._end()
        self._mark, self._loaded, self._epoch = None, dict(state), state["epoch"]

    def set_epoch(self, epoch: int) -> None:
        """Make the next iteration epoch `epoch`; a position that was loaded holds if it is of this epoch."""
        if whole("epoch", epoch) < 0:
            raise ValueError(f"epochs are numbered from 0: {epoch}")
        if self._loaded is not None and self._loaded["epoch"] != epoch:
            _log.info(
                "epoch %s begins at its beginning: the position loaded, in epoch %s, is given up",
                epoch,
                self._loaded["epoch"],
            )
            self._loaded = None
        self._epoch = epoch

    def hand_over(self, outer: Any) -> None:
        """Have `outer` be asked for the position from now on, until this pipeline is iterated again."""
        self._end()
        self._outer = weakref.ref(outer)

    def copied(self) -> Pipeline:
        """The same pipeline with a position of its own: where this one's next `iter` begins."""
        made = Pipeline(self.node)
        made._epoch, made._loaded = self._epoch, self._loaded
        return made

    def __iter__(self) -> Iterator[Any]:
        self._end()
        loaded = self._loaded
        epoch = self._epoch if loaded is None else loaded["epoch"]
        run = Run(epoch, self._meters, self._readings, untagged(self.node))
        stage = Rewind(self.node.open(run), _ANCHORED if every_of(self.node) > 1 else 1, 1)
        if loaded is not None and loaded["at"] is not None:
            stage.restore(loaded["at"])
        self._mark, self._loaded, self._epoch = _Mark(stage, epoch), None, epoch + 1
        iteration = _lending(self._mark) if hasattr(stage.source, "lent") else _Iteration(self._mark)
        self._iteration = weakref.ref(iteration)
        return iteration

    # --- inside -------------------------------------------------------------------------------

    def _position(self) -> dict[str, Any]:
        if self._loaded is not None:
            return dict(self._loaded)
        if self._mark is not None:
            return self._document(self._mark.epoch, self._mark.position())
        return self._document(self._epoch, None)

    def _document(self, epoch: int, position: Any) -> dict[str, Any]:
        return {"format": FORMAT, "stages": self._outline, "epoch": epoch, "at": position}

    @cached_property
    def _outline(self) -> list[str]:
        return outline(self.node)

    def _end(self) -> None:
        """End the iteration in progress, if there is one."""
        iteration = None if self._iteration is None else self._iteration()
        if iteration is not None:
            iteration.close()
        self._iteration = self._outer = None

    def _check_asked(self, name: str) -> None:
        outer = None if self._outer is None else self._outer()
        if outer is not None:
            raise RuntimeError(
                f"this pipeline is read through {outer}: call {name}() of that, which knows the position"
            )


_PASSES: Final = 100_000  # of repeat(times): each may have a count of its own
_ANCHORED: Final = 256  # items between positions that are noted in case an error destroys the one at hand


class _Mark:
    """Where an iteration is: after the last item that was handed out, however it ended."""

    def __init__(self, stage: Rewind, epoch: int) -> None:
        self.stage, self.epoch = stage, epoch
        self.error: BaseException | None = None
        self._final: Any = None
        self.is_closed = False

    def position(self) -> Any:
        if self.is_closed:
            return self._final
        if self.error is not None:  # inside a stage: the position before the item that failed
            return self.stage.before_error()
        return self.stage.state()

    def close(self) -> None:
        """Keep nothing but the position."""
        if not self.is_closed:
            self._final, self.is_closed = self.position(), True
            self.stage.source.close()


class _Iteration:
    """One iteration of a pipeline. It ends when it is dropped; an error is raised again by each further `next`."""

    def __init__(self, mark: _Mark) -> None:
        self._mark, self._stage = mark, mark.stage

    def __iter__(self) -> _Iteration:
        return self

    def __next__(self) -> Any:
        mark = self._mark
        if mark.is_closed:
            raise mark.error or StopIteration
        try:
            return self._stage.next()
        except StopIteration:
            mark.close()
            raise
        except BaseException as error:
            mark.error = error
            mark.close()
            raise

    def close(self) -> None:
        """Hand nothing out any more."""
        self._mark.close()

    def __del__(self) -> None:
        if not self._mark.is_closed:
            self.close()


class _Lending(chain[Any]):
    """The same over a stage that lends its items: between two lots of them no Python is run for any."""

    _mark: _Mark

    def close(self) -> None:
        """Hand nothing out any more."""
        self._mark.close()

    def __del__(self) -> None:
        if not self._mark.is_closed:
            self.close()


def _lending(mark: _Mark) -> _Lending:
    made = cast("_Lending", _Lending.from_iterable(_Lots(mark)))
    made._mark = mark
    return made


class _Lots:
    """What a stage lends, lot by lot; in place of one that cannot be had, the error, again and again."""

    def __init__(self, mark: _Mark) -> None:
        self._mark = mark

    def __iter__(self) -> _Lots:
        return self

    def __next__(self) -> Iterator[Any]:
        mark = self._mark
        if mark.is_closed:
            raise StopIteration
        try:
            return mark.stage.lent()
        except StopIteration:
            mark.close()
            raise
        except BaseException as error:
            mark.error = error
            mark.close()
            return _Again(error)


class _Again:
    def __init__(self, error: BaseException) -> None:
        self._error = error

    def __iter__(self) -> _Again:
        return self

    def __next__(self) -> Any:
        raise self._error


def node_of(called: str, given: Any) -> Node:
    """The graph of a pipeline that was given as an argument."""
    if isinstance(given, Pipeline):
        return given.node
    raise TypeError(f"{called}() takes pipelines, not {type(given).__name__}; lake.from_iterable makes one")


def _unpickled(node: bytes, epoch: int, state: Mapping[str, Any] | None) -> Pipeline:
    pipeline = Pipeline(cloudpickle.loads(node))
    pipeline._epoch = epoch
    if state is not None:
        pipeline.load_state_dict(state)
    return pipeline


def check_state(state: Any, outline: Sequence[str]) -> None:
    """Refuse what is no position of a pipeline with this outline.

    Raises:
        ValueError: says what differs.
    """
    if not isinstance(state, Mapping) or state.get("format") != FORMAT or "stages" not in state:
        raise ValueError(f"not the state of a pipeline, of format {FORMAT}")
    _check_same(state["stages"], outline)


def _check_same(old: Sequence[str], new: Sequence[str]) -> None:
    if list(old) == list(new):
        return
    for number, (was, now) in enumerate(zip(old, new, strict=False), 1):
        if was != now:
            raise ValueError(f"a position of another pipeline: stage {number} was {was!r}, is {now!r}")
    raise ValueError(f"a position of another pipeline: it had {len(old)} stages, this one has {len(new)}")
