"""What a user holds: options, the place in the epoch, and the ways to look at the batches."""

from __future__ import annotations

import atexit
import logging
import os
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, Literal, NoReturn, TypeVar, cast

import numpy as np
import pyarrow as pa

from lake import _os, plan
from lake.asked import by_number, whole
from lake.config import parse_bytes
from lake.parts import Meter, Pool, width
from lake.plan.cursor import Cursor
from lake.scan import gather
from lake.scan.batches import Batches
from lake.scan.columns import Columns
from lake.scan.crew import Crew, helpers, memory_bytes
from lake.scan.labels import sorted_labels
from lake.scan.load import Loader
from lake.scan.mapped import Format, Mapped
from lake.scan.residence import Residence, room, stays_open
from lake.scan.schedule import INFLATED_BYTES, WHOLE_BYTES, Schedule, Step, is_plain
from lake.scan.select import Selected, Selecting, select
from lake.scan.spans import Spans
from lake.snapshot import Snapshot
from lake.where import condition

if TYPE_CHECKING:
    import pandas
    import polars

    from lake.pipeline.node import Node
    from lake.torch import TensorStream

PAD = "_pad"  # the column that marks repeated rows where even="pad"

_log = logging.getLogger("lake")

Item = TypeVar("Item")


class Scan:
    """Record batches of one version, as `Dataset.scan` describes them; each `iter` is the next epoch.

    Planned when something of the plan is asked for, read when iterated. A scan has one iteration at a time: a
    second `iter` ends the first. A copy or pickle begins where its next `iter` would.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        *,
        columns: Sequence[str] | None = None,
        where: Any = None,
        batch_size: int = 1024,
        shuffle: bool | Literal["full"] = False,
        seed: int = 0,
        epoch: int = 0,
        shuffle_window: int = plan.DEFAULT_WINDOW,
        even: Literal["split", "drop", "pad"] | None = "split",
        rank: int | None = None,
        world_size: int | None = None,
        node: int | None = None,
        nodes: int | None = None,
        partitions: int | None = None,
        limit: int | None = None,
    ) -> None:
        self._asked = {name: value for name, value in locals().items() if name not in ("self", "snapshot")}
        self.snapshot = snapshot
        self.columns = _columns(snapshot, columns, even)
        self._condition = None if where is None else condition(where, snapshot.document.schema)
        self._epoch = whole("epoch", epoch)  # of the next iteration, unless a position was loaded
        self._partitions = (nodes or 1) if partitions is None else whole("partitions", partitions)
        self._options: dict[str, Any] = {
            "batch_size": batch_size,
            "shuffle": shuffle,
            "seed": seed,
            "shuffle_window": shuffle_window,
            "even": even,
            "ranks": plan.Ranks.of(rank, world_size, node, nodes),
            "limit": limit,
        }
        self._maps: tuple[Mapped, ...] = ()
        self._meter, self._pool = Meter(), Pool()
        self._loaded: Cursor | None = None  # where the next iteration begins
        self._mark: _Mark | None = None  # how far the last iteration came
        self._iteration: weakref.ref[_Iteration[Any]] | None = None
        self._outer: weakref.ref[Any] | None = None  # who hands the batches on, and so knows the position
        self._plans: dict[tuple[int, int, int], plan.EpochPlan] = {}
        if self._condition is None:
            self._planned(epoch)

    def __reduce__(self) -> tuple[Any, ...]:
        state = None if self._loaded is None else self._loaded.state()
        return _rebuilt, (self.snapshot, self._asked, self._maps, self._epoch, state)

    # --- what it will do ----------------------------------------------------------------------

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema of the batches; of a mapped scan, of its first batch, which is read for it."""
        if self._maps:
            batch = next(self._fresh()._items(Columns.batch, own=False), None)
            return pa.schema([]) if batch is None else batch.schema
        return self._read_schema

    @property
    def rows(self) -> int:
        """Rows of an epoch, for all ranks."""
        return self._planned(self._epoch).rows

    def __len__(self) -> int:
        """Batches of this rank in a whole epoch."""
        return len(self._planned(self._epoch))

    def __getitem__(self, index: object) -> NoReturn:
        raise by_number("scan")

    def check(self, *, budget: int | str | None = None) -> plan.Plan:
        """What an epoch would read, keep resident and fetch; reads nothing but what `where` needs.

        The log says so where a shuffle cannot do its work, because whole shards have one label. `budget`: judge by
        that of another cache, such as "60GB", also where the lake is a folder and needs none.

        Raises:
            BudgetError: it does not fit the cache's budget, or the one that is given.
        """
        planned = self._planned(self._epoch)
        if budget is not None:
            plan.check_budget(planned, parse_bytes(budget))
        if self.snapshot.cache is not None:
            room(self.snapshot, self.columns, planned)
        if planned.order.shuffle is True and (sorted_by := sorted_labels(self.snapshot, self.columns)):
            _log.warning(
                "%s: %s hardly changes within a shard, so that a shuffle of %s shards at a time leaves batches "
                "uneven: commit with order='shuffled', or scan with shuffle='full'",
                self.snapshot.label,
                ", ".join(sorted_by),
                planned.order.window,
            )
        found = plan.summarize(planned)
        return replace(
            found, memory_bytes=memory_bytes(self._schedule(planned), found.memory_bytes, len(self.columns))
        )

    def metrics(self) -> dict[str, float]:
        """What reading has cost since this scan was made.

        `bytes_fetched, requests` (to the store), `bytes_from_cache, batches, rows, decode_seconds` (of all
        threads) and `stall_seconds` (that the consumer waited).
        """
        return self._meter.counts()

    # --- where it is --------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """The position after the last batch handed out, as a small JSON document for all ranks."""
        self._check_asked("state_dict")
        return self._position().state()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Begin the next iteration where `state` says; an iteration in progress ends.

        Raises:
            ValueError: the state of another plan (it says what differs), or of one rank alone.
        """
        self._check_asked("load_state_dict")
        planned = self._planned(self._epoch)
        cursor = Cursor.of_state(state, planned.facts)
        if cursor.of != planned.rows:
            raise ValueError(f"a position of another plan: rows was {cursor.of:,}, is {planned.rows:,}")
        self._end()
        self._mark, self._loaded = None, cursor
        self._partitions, self._epoch = cursor.partitions, cursor.epoch

    def set_epoch(self, epoch: int) -> None:
        """Make the next iteration epoch `epoch`; a position that was loaded holds if it is of this epoch."""
        if whole("epoch", epoch) < 0:
            raise ValueError(f"epochs are numbered from 0: {epoch}")
        if self._loaded is not None and self._loaded.epoch != epoch:
            _log.info(
                "epoch %s begins at its beginning: the position loaded, row %s of epoch %s, is given up",
                epoch,
                f"{self._loaded.rows:,}",
                self._loaded.epoch,
            )
            self._loaded = None
        self._epoch = epoch

    # --- batches ------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return self._items(Columns.batch, own=False)

    def map(self, fn: Callable[[Any], Any], *, format: Format = "arrow") -> Scan:  # noqa: A002
        """A scan whose batches `fn` makes of this one's, with the same number of rows.

        `fn` gets a `RecordBatch`, or a dict of NumPy arrays (its own, to write to) or of lists, and gives a
        batch, a table or a dict. It runs where the scan is iterated.
        """
        mapped = self._fresh()
        mapped._maps = (*self._maps, Mapped(fn, format))
        return mapped

    def among(self, **asked: Any) -> Scan:
        """This scan with other options, such as ranks; it begins where this one's next `iter` would."""
        found = _rebuilt(self.snapshot, {**self._asked, **asked}, self._maps, self._epoch, None)
        if self._condition is not None and "_selection" in self.__dict__:
            found._selection = self._selection
        if self._loaded is not None:
            found.load_state_dict(self._loaded.state())
        return found

    def after(self, batches: int) -> dict[str, Any]:
        """The position after so many batches of the next iteration, without reading them."""
        epoch, rows = (self._epoch, 0) if self._loaded is None else (self._loaded.epoch, self._loaded.rows)
        return self._planned(epoch, rows).state(batches)

    def every(
        self, count: int, number: int, render: Callable[[Columns], Item], *, own: bool
    ) -> Iterator[Item | None]:
        """What `render` makes of the batches whose numbers are `number` modulo `count`; None for the others.

        Functions of a mapped scan are called for those alone.
        """
        return self._items(render, own=own, every=(count, number))

    def loose(self) -> Iterator[Columns]:
        """The batches as columns, of which strings and binaries stay where they lie: as views, or several arrays."""
        return self._items(_columns_of, own=False, loose=True)

    def twin(self) -> Scan:
        """Another scan of the same plan, at its beginning."""
        return self._fresh()

    @property
    def node(self) -> Node:
        """What `lake.mix` makes of it: a pipeline of its batches begins with this."""
        return Batches(self.twin(), _itself)

    def facts(self) -> dict[str, Any]:
        """What the batches depend on beside the data: options and functions."""
        where = None if self._condition is None else self._condition.text
        return {**self._asked, "columns": self.columns, "where": where, "maps": self._maps}

    def close(self) -> None:
        """End the iteration in progress, if there is one; the position stays."""
        self._end()

    def hand_over(self, outer: Any) -> None:
        """Have `outer` be asked for the position from now on, until this scan is iterated again."""
        self._end()
        self._outer = weakref.ref(outer)

    @property
    def asked(self) -> Mapping[str, Any]:
        """The options that this scan was made with."""
        return dict(self._asked)

    @property
    def is_mapped(self) -> bool:
        """Whether batches go through functions of the caller's."""
        return bool(self._maps)

    def to_reader(self) -> pa.RecordBatchReader:
        """The batches of one epoch as an Arrow stream."""
        batches = iter(self)
        if not self._maps:
            return pa.RecordBatchReader.from_batches(self._read_schema, batches)
        first = [batch for batch in [next(batches, None)] if batch is not None]
        schema = first[0].schema if first else pa.schema([])
        return pa.RecordBatchReader.from_batches(schema, _chained(first, batches))

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.to_reader().__arrow_c_stream__(requested_schema)

    def to_table(self) -> pa.Table:
        """All batches of one epoch."""
        return self.to_reader().read_all()

    def to_polars(self) -> polars.DataFrame:
        """All batches of one epoch as a polars frame."""
        import polars

        return polars.DataFrame(self.to_table())

    def to_pandas(self) -> pandas.DataFrame:
        """All batches of one epoch as a pandas frame."""
        return self.to_table().to_pandas()

    def to_torch(
        self,
        device: Any = None,
        *,
        ragged: Literal["nested", "values", "pad"] = "nested",
        nulls: Literal["error"] | Mapping[str, Any] = "error",
        binary: Literal["list", "values"] = "list",
        copy: bool = True,
    ) -> TensorStream:
        """The batches as dicts of tensors: see `lake.torch.tensors` for what each type becomes."""
        from lake.torch import Form, TensorStream

        return TensorStream(self, Form(ragged, nulls, binary, copy), device)

    # --- inside -------------------------------------------------------------------------------

    @cached_property
    def _layout(self) -> plan.Layout:
        manifest = self.snapshot.manifest
        batch_rows = manifest.batch_rows(self.columns, self.snapshot.document.cuts.target)
        return plan.Layout.of(manifest.rows, batch_rows, *manifest.sizes(self.columns))

    @cached_property
    def _is_inflated(self) -> bool:
        """Whether all that is read is decompressed frame by frame: values of one width each."""
        types = self.snapshot.reader.schema
        return not is_plain(self._layout) and all(width(types.field(name).type) for name in self.columns)

    @cached_property
    def _selection(self) -> Selected | None:
        return None if self._condition is None else select(self.snapshot, self._condition, self._meter)

    @cached_property
    def _read_schema(self) -> pa.Schema:
        """The schema of the batches before they are mapped."""
        schema = self.snapshot.document.schema
        fields = [schema.field(name) for name in self.columns]
        if self._options["even"] == "pad":
            fields.append(pa.field(PAD, pa.bool_(), nullable=False))
        return pa.schema(fields, schema.metadata)

    def _planned(self, epoch: int, start: int = 0) -> plan.EpochPlan:
        key = epoch, start, self._partitions
        if key not in self._plans:
            self._plans = {key: self._plan(epoch, start, self._selection, self._options)}
        return self._plans[key]

    def _plan(
        self, epoch: int, start: int, selection: Selected | None, options: Mapping[str, Any]
    ) -> plan.EpochPlan:
        identity = {"version": self.snapshot.version, "columns": self.columns}
        if self._condition is not None:
            identity["where"] = self._condition.text
        return plan.plan_epoch(
            self._layout,
            epoch=epoch,
            start=start,
            selection=selection,
            partitions=self._partitions,
            identity=identity,
            **options,
        )

    def _spans(self, epoch: int) -> Spans | None:
        """The epoch planned as it goes, where that saves waiting and nobody can tell the difference."""
        options = self._options
        alone = options["ranks"] is None and self._partitions == 1 and options["even"] in ("split", None)
        if self._condition is None or options["shuffle"] or not alone or "_selection" in self.__dict__:
            return None
        selecting = Selecting(self.snapshot, self._condition, self._meter)
        return Spans(
            selecting,
            lambda selected, limit: self._plan(epoch, 0, selected, {**options, "limit": limit}),
            options["limit"],
        )

    def _schedule(self, planned: plan.EpochPlan, *, is_open: bool = False) -> Schedule:
        """How a plan is carried out. In the lake's folder nothing is fetched: there shards are loaded whole.

        But of what is inflated threads take turns. `is_open`: as little has to be fetched, for parts are still open.
        """
        if self.snapshot.cache is not None and not is_open:
            return Schedule(planned)
        size = INFLATED_BYTES if self._is_inflated else WHOLE_BYTES
        return Schedule(planned, unit_bytes=size, first_bytes=size)

    def _position(self) -> Cursor:
        if self._loaded is not None:
            return self._loaded
        if self._mark is None:
            return self._planned(self._epoch).cursor(0)
        if self._mark.plan is not None:
            return self._mark.plan.cursor(self._mark.done)
        planned = self._planned(self._mark.epoch)
        return replace(planned.cursor(0), rows=self._mark.rows)

    def _check_asked(self, name: str) -> None:
        outer = None if self._outer is None else self._outer()
        if outer is not None:
            raise RuntimeError(
                f"this scan is read through {outer}: call {name}() of that, which knows the position"
            )

    def _fresh(self) -> Scan:
        """Another scan of the same plan, at its beginning."""
        scan = _rebuilt(self.snapshot, self._asked, self._maps, self._epoch, None)
        if self._condition is not None and "_selection" in self.__dict__:
            scan._selection = self._selection
        return scan

    def _end(self) -> None:
        """End the iteration in progress, if there is one."""
        iteration = None if self._iteration is None else self._iteration()
        if iteration is not None:
            iteration.close()
        self._iteration = self._outer = None

    def _items(
        self,
        render: Callable[[Columns], Item],
        *,
        own: bool,
        loose: bool = False,
        outer: Any = None,
        every: tuple[int, int] = (1, 0),
    ) -> _Iteration[Item]:
        """Begin an iteration that gives what `render` makes of each batch.

        `own`, `loose`: as in `gather`. `outer`: who hands the items on. `every`: which batches are wanted, as in
        `Scan.every`.
        """
        self._end()
        cursor, self._loaded = self._loaded, None
        epoch = self._epoch if cursor is None else cursor.epoch
        spans = self._spans(epoch)
        planned = self._planned(epoch, 0 if cursor is None else cursor.rows) if spans is None else None
        self._mark, self._epoch = _Mark(epoch, planned, spans), epoch + 1
        self._outer = None if outer is None else weakref.ref(outer)
        iteration = _Iteration(self, self._mark, render, own=own, loose=loose, every=every)
        self._iteration = weakref.ref(iteration)
        return iteration


class _Mark:
    """How far an iteration has come: so many steps of its plan; without one, so many rows."""

    def __init__(self, epoch: int, planned: plan.EpochPlan | None, spans: Spans | None) -> None:
        self.epoch, self.plan, self.spans = epoch, planned, spans
        self.done = self.rows = 0


class _Iteration(Generic[Item]):
    """One iteration of a scan. It ends when it is dropped."""

    def __init__(
        self,
        scan: Scan,
        mark: _Mark,
        render: Callable[[Columns], Item],
        *,
        own: bool,
        loose: bool,
        every: tuple[int, int],
    ) -> None:
        self._mark, self._render, self._own, self._loose, self._every = mark, render, own, loose, every
        self._snapshot, self._columns, self._meter = scan.snapshot, scan.columns, scan._meter
        self._schema, self._maps, self._scan = scan._read_schema, scan._maps, scan
        self._plan, self._done = mark.plan, 0  # what is being carried out, and how many of its steps are
        self._dictionaries = self._snapshot.reader.dictionaries
        self._step: Step | None = None  # what is being handed out
        self._batches: list[gather.Batch] = []  # of it, the last first
        self._ended = False
        self._error: Exception | None = None
        self._crew: Crew | None = None
        self._residence: Residence | None = None
        self._pid = os.getpid()
        _iterations.add(self)

    def __iter__(self) -> _Iteration[Item]:
        return self

    def __next__(self) -> Item:
        if self._error is not None:
            raise self._error
        if self._ended:
            raise StopIteration
        try:
            return self._next()
        except StopIteration:
            self._ended = True
            self.close()
            raise
        except Exception as error:  # comes again to whoever asks again: a failed epoch has no end
            self._error = error
            self._let_go()
            raise

    def _next(self) -> Item:
        while True:
            if self._crew is None or self._pid != os.getpid():  # a forked child has no thread of its parent's
                if self._plan is None and not self._turn_to_next_span():
                    raise StopIteration
                self._crew, self._pid, self._batches = self._hired(), os.getpid(), []
            if self._batches:
                if self._crew.error is not None:
                    raise self._crew.error
                return self._handed_out()
            got = self._crew.next()
            if self._residence is not None:
                self._residence.settled()
            if got is not None:
                self._step, self._batches = got
                self._batches.reverse()
            elif not self._turn_to_next_span():
                raise StopIteration

    def _handed_out(self) -> Item:
        step, (count, number) = self._step, self._every
        assert step is not None
        mine = (step.end - len(self._batches)) % count == number
        item = self._rendered(step, self._batches[-1]) if mine else cast("Item", None)
        self._batches.pop()
        rows = step.rows // step.batches
        self._done = self._mark.done = step.end - len(self._batches)
        self._mark.rows += rows
        self._meter.batches += 1  # only here, in the consumer's thread
        self._meter.rows += rows
        return item

    def _rendered(self, step: Step, values: gather.Batch) -> Item:
        columns = self._complete(step, values)
        for mapped in self._maps:
            columns = mapped(columns)
        return self._render(columns)

    def _turn_to_next_span(self) -> bool:
        """Whether there are rows beyond the plan that was carried out."""
        spans = self._mark.spans
        if spans is None:
            return False
        self._let_go()
        self._plan, self._done, self._crew, self._residence = spans.next(), 0, None, None
        if self._plan is None and spans.selecting.is_complete:
            self._scan.__dict__["_selection"] = spans.selecting.selected()
        return self._plan is not None

    def close(self) -> None:
        """Hand nothing out any more; threads end with what they are doing. Who leaves early leaves nothing open."""
        early, self._ended = not self._ended, True
        self._let_go(early=early)
        if self._mark.spans is not None:
            self._mark.spans.close()

    def _let_go(self, *, early: bool = False) -> None:
        self._batches = []
        if self._crew is not None:
            self._crew.close()
        if self._residence is not None and self._pid == os.getpid():
            self._residence.close(early=early)

    def __del__(self) -> None:
        if not self._ended:
            self.close()

    def _hired(self) -> Crew:
        assert self._plan is not None
        planned, first, pool = self._plan, self._done, self._scan._pool
        is_open = stays_open(self._snapshot, self._columns)
        schedule = self._scan._schedule(planned, is_open=is_open)
        residence = None
        if self._snapshot.cache is not None and len(planned) > first:
            residence = Residence(
                self._snapshot, self._columns, schedule, planned.order.selection, first, self._meter
            )
        self._residence = residence
        own, loose = self._own, self._loose
        load = Loader(self._snapshot, self._columns, schedule, self._meter, pool, residence)
        if residence is not None and residence.waits():
            load.foretell(next(schedule.steps(first)))
        crew = Crew(
            schedule,
            load,
            lambda rows, batches: gather.gather(rows, batches, pool, own=own, loose=loose),
            self._meter,
            first=first,
            threads=0 if loose and is_open and _is_at_hand(planned.order.layout) else helpers(),
            passed=None if residence is None else residence.passed,
            waits=None if residence is None else residence.waits,
        )
        if residence is not None:
            residence.fail = crew.fail
        return crew

    def _complete(self, step: Step, values: gather.Batch) -> Columns:
        rows = step.rows // step.batches
        if len(self._schema) > len(values):
            marked = np.arange(rows) >= rows - step.pads
            values = [*values, pa.array(marked)]
        return Columns(self._schema, values, rows, self._dictionaries)


def _itself(scan: Scan) -> Scan:
    return scan


def _is_at_hand(layout: plan.Layout) -> bool:
    """Whether open parts are there to be looked at: not compressed, and most likely in memory.

    Then there is next to nothing to do for threads, who would only take turns with a consumer who runs Python.
    """
    return is_plain(layout) and 2 * int(layout.stored_bytes.sum()) < _os.memory()


def _columns_of(columns: Columns) -> Columns:
    return columns


_iterations: weakref.WeakSet[_Iteration[Any]] = weakref.WeakSet()


@atexit.register
def _end() -> None:
    """End what a program leaves in the middle, also where the traceback of its end still refers to it."""
    for iteration in list(_iterations):
        iteration.close()


def _columns(snapshot: Snapshot, columns: Sequence[str] | None, even: str | None) -> list[str]:
    """The columns asked for, all without a choice.

    Raises:
        ValueError: unknown ones, one twice, or none.
    """
    asked = snapshot.columns(columns)
    if even == "pad" and PAD in asked:
        raise ValueError(f"even='pad' marks repeated rows in a column {PAD!r}, and {snapshot.name!r} has one")
    return asked


def _rebuilt(
    snapshot: Snapshot,
    asked: dict[str, Any],
    maps: tuple[Mapped, ...],
    epoch: int,
    state: dict[str, Any] | None,
) -> Scan:
    scan = Scan(snapshot, **asked)
    scan._maps, scan._epoch = maps, epoch
    if state is not None:
        scan.load_state_dict(state)
    return scan


def _chained(first: Sequence[Item], rest: Iterator[Item]) -> Iterator[Item]:
    yield from first
    yield from rest
