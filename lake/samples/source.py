"""The rows of a version as the first node of a pipeline, and what reads them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from operator import length_hint
from typing import Any, ClassVar, Final

import numpy as np
import pyarrow as pa

from lake import plan
from lake.pipeline.deal import Every
from lake.pipeline.node import FREE, Counts, Node, RowShuffle, Run, short
from lake.pipeline.stage import Stage
from lake.plan.permutation import Ints
from lake.samples.values import samples, values
from lake.scan import Scan
from lake.scan.columns import Columns
from lake.snapshot import Snapshot
from lake.where import condition

BATCH_BYTES: Final = 2**21  # decoded, of the rows that are read together
BATCH_ROWS: Final = 1024  # of them, at most
OPEN_BYTES: Final = 2**23  # the same of the lake's own folder, where no first sample waits for a network
OPEN_ROWS: Final = 4096
PART_BYTES: Final = 2**19  # of those that are made samples together: few enough for the processor's cache
PART_ROWS: Final = 256  # of them, at most
_SPREAD: Final = 8  # batches that a scan reads ahead
_LEAST_PART: Final = 16  # rows that are made samples together where many are passed over


@dataclass(frozen=True, eq=False)
class Samples(Node):
    """Items `(key, {field: value})`, one for each row; without a key the row's number stands for it."""

    name: ClassVar[str] = "samples"
    snapshot: Snapshot
    columns: tuple[str, ...] | None
    where: Any
    prefetch: int | None = field(default=None, metadata=FREE)
    order: RowShuffle | None = None

    @classmethod
    def of(
        cls, snapshot: Snapshot, columns: Sequence[str] | None, where: Any, prefetch: int | None
    ) -> Samples:
        """The samples asked for.

        Raises:
            ValueError: unknown columns, or a condition that does not fit.
        """
        if isinstance(columns, str):
            raise TypeError(f"columns are a list of names: [{columns!r}]")
        if prefetch is not None and prefetch < 1:
            raise ValueError(f"prefetch is how many rows are decoded ahead, at least 1: {prefetch}")
        samples = cls(snapshot, None if columns is None else tuple(columns), where, prefetch)
        samples.unread(0)
        return samples

    @property
    def label(self) -> str:
        return f"samples({self.snapshot.name})"

    @property
    def outline(self) -> str:
        facts = {"version": self.snapshot.version}
        if self.columns is not None:
            facts["columns"] = short(",".join(self.columns))
        if self.where is not None:
            facts["where"] = short(self._where)
        if self.order is not None:
            size = "full" if self.order.buffer is None else self.order.buffer
            facts["shuffle"] = f"{size} {self.order.seed}"
        return f"samples({self.snapshot.name}, {', '.join(f'{name}={said}' for name, said in facts.items())})"

    def open(self, run: Run) -> Stage:
        return _Rows(self, run, self.scan(run.epoch))

    def open_every(self, run: Run, at: Any, every: Every) -> Stage:
        """A stage of some of the rows alone, from a position of all of them on."""
        scan = self.scan(run.epoch)
        place, count = every.first // every.size, every.stride // every.size
        some = scan.among(batch_size=every.size, rank=place, world_size=count, even=None)
        stage = _Rows(self, run, some)
        if at is not None:
            stage.restore(at)
        return stage

    def count(self, counts: Counts, epoch: int) -> float:
        if self.where is None:
            return self.snapshot.document.rows
        return self.scan(epoch).rows

    def shuffled(self, shuffle: RowShuffle) -> Node:
        return Samples(self.snapshot, self.columns, self.where, self.prefetch, shuffle)

    def plan(self) -> plan.Plan:
        return self.scan(0).check()

    def version(self) -> tuple[str, int, str]:
        return self.snapshot.name, self.snapshot.entry.seq, self.snapshot.version

    def facts(self) -> Mapping[str, Any]:
        return {
            "data": self.snapshot.document.data,
            "columns": list(self.fields),
            "where": None if self.where is None else self._where,
            "order": self.order,
        }

    @cached_property
    def fields(self) -> tuple[str, ...]:
        """The fields of a sample, which the key is none of."""
        document = self.snapshot.document
        names = document.schema.names if self.columns is None else self.columns
        return tuple([name for name in names if name != document.key])

    @cached_property
    def read(self) -> list[str]:
        """The columns that are read: the fields, and the key."""
        key = self.snapshot.document.key
        return [*self.fields] if key is None else [*self.fields, key]

    def scan(self, epoch: int) -> Scan:
        """The rows of an epoch as batches, at its beginning; those that meet a condition are found once."""
        scan = self.unread(epoch)
        if self.where is not None:
            found = self.__dict__.get("_selection")
            if found is None:
                self.__dict__["_selection"] = scan._selection
            else:
                scan._selection = found
        return scan

    def unread(self, epoch: int) -> Scan:
        """The same, though nothing was read for a condition."""
        read = self.read
        if not read:
            raise ValueError(f"{self.snapshot.name!r} has no key: samples() of no columns would be empty")
        order = self.order
        shuffled: dict[str, Any] = {}
        if order is not None:
            shuffle = "full" if order.buffer is None else True
            shuffled = {"shuffle": shuffle, "seed": order.seed.value, "shuffle_window": self._window}
        return Scan(
            self.snapshot,
            columns=read,
            where=self.where,
            batch_size=self._batch_size(read),
            epoch=epoch,
            **shuffled,
        )

    @cached_property
    def _where(self) -> str:
        return condition(self.where, self.snapshot.document.schema).text

    @cached_property
    def _window(self) -> int:
        """Shards that have as many rows as are to be mixed."""
        assert self.order is not None
        document = self.snapshot.document
        asked = (self.order.buffer or 0) * document.shards
        return max(plan.DEFAULT_WINDOW, -(-asked // max(1, document.rows)))

    def rows_in(self, size: int, most: int, columns: Sequence[str]) -> int:
        """How many rows have so many bytes of these columns, decoded; at least one."""
        raw = int(self.snapshot.manifest.sizes(columns)[1].sum())
        return max(1, min(most, size * self.snapshot.document.rows // max(1, raw)))

    @cached_property
    def part(self) -> int:
        """How many rows are made samples together."""
        return self.rows_in(PART_BYTES, PART_ROWS, self.read)

    def _batch_size(self, columns: Sequence[str]) -> int:
        if self.prefetch is not None:
            return max(1, min(BATCH_ROWS, self.prefetch // _SPREAD))
        if self.snapshot.cache is None:
            return self.rows_in(OPEN_BYTES, OPEN_ROWS, columns)
        return self.rows_in(BATCH_BYTES, BATCH_ROWS, columns)


class _Rows:
    """Samples one by one, made many at a time. The position is the scan's, to the row.

    Samples at hand are what is left of one iterator, which is lent to whoever reads fastest by it: how many
    were taken is how many are missing.
    """

    def __init__(self, node: Samples, run: Run, scan: Scan) -> None:
        self._node, self._run, self._scan = node, run, scan
        self._start = self._scan.state_dict()  # of this epoch's rows, before the first that is read
        self._key = node.snapshot.document.key
        self._batches: Iterator[Columns] | None = None
        self._columns: list[tuple[pa.Array, pa.Field]] = []  # of the batch: fields, and the key
        self._rows = 0  # of it
        self._samples: Iterator[tuple[Any, dict[str, Any]]] = iter(())  # left of those made
        self._offset = self._made = 0  # rows of the batch before those made samples, and how many these were
        self._part = self._most = node.part  # rows that are made samples together, and at most
        self._since = 0  # the place in the epoch from which items are taken, since some were passed over
        self._before, self._number = int(self._start["rows"]), 0  # rows and batches before this one
        self._numbers: Ints | None = None  # of the batch's rows in the version
        self._is_over = False
        self._planned: plan.EpochPlan | None = None
        self._block: tuple[int, Ints] = (-1, np.empty(0, np.int64))

    def next(self) -> Any:
        for sample in self._samples:
            return sample
        return next(self.lent())

    def several(self, count: int) -> list[Any]:
        return list(islice(self._samples, count)) or list(islice(self.lent(), count))

    def lent(self) -> Iterator[Any]:
        if not length_hint(self._samples):
            self._turn()
        return self._samples

    def skip(self, count: int) -> int:
        before = self._at
        count = max(0, min(count, int(self._start["of"]) - before))
        if self._batches is None:
            self._before += count
            self._start = {**self._start, "rows": self._before}
            self._scan.load_state_dict(self._start)
            return count
        self._part = min(self._most, max(_LEAST_PART, before - self._since))  # as many as were taken last
        self._since = before + count
        self._go_to(before + count)
        return count

    def state(self) -> Any:
        return {**self._start, "rows": self._at}

    def restore(self, state: Any) -> None:
        self._scan.load_state_dict(state)
        self._start, self._before = dict(state), int(state["rows"])

    def tag(self) -> Any:
        if self._numbers is None:
            self._numbers = self._rows_of(self._number - 1)
        return self._run.epoch, int(self._numbers[self._offset + self._taken - 1])

    def close(self) -> None:
        self._run.reading.end(self)
        self._before = self._at
        deque(self._samples, maxlen=0)  # for those who were lent it
        self._batches, self._columns, self._is_over = None, [], True
        self._rows = self._offset = self._made = 0
        self._scan._end()

    # --- inside -------------------------------------------------------------------------------

    def _turn(self) -> None:
        """Make the next samples, where none is left.

        Raises:
            StopIteration: there is no row.
        """
        self._offset, self._made = self._offset + self._made, 0
        if self._offset >= self._rows:
            self._turn_batch()
        found = self._samples_of(self._offset, min(self._rows, self._offset + self._part))
        self._samples, self._made = iter(found), len(found)

    def _turn_batch(self) -> None:
        """Go to the next batch."""
        if self._is_over:
            raise StopIteration
        if self._batches is None:
            self._since = self._before
            self._batches = self._scan.loose()
            self._run.reading.begin(self, self._scan.metrics)
        self._columns = []  # first: what is to come may need the room of the files that these lie in
        try:
            batch = next(self._batches)
        except StopIteration:
            self._is_over = True
            raise
        self._before += self._rows
        self._rows, self._offset, self._numbers = batch.rows, 0, None
        self._columns = [(batch.array(number), field) for number, field in enumerate(batch.schema)]
        self._number += 1

    def _go_to(self, place: int) -> None:
        """Go to a place of the epoch without making samples of what is before it."""
        deque(islice(self._samples, place - self._at), maxlen=0)
        if place == self._at:
            return
        self._made = 0
        while place >= self._before + self._rows:
            try:
                self._turn_batch()
            except StopIteration:
                break
        self._offset = place - self._before

    @property
    def _at(self) -> int:
        """Rows of the epoch before the next sample."""
        return self._before + self._offset + self._taken

    @property
    def _taken(self) -> int:
        """How many of the samples made were handed out."""
        return self._made - length_hint(self._samples)

    def _samples_of(self, start: int, stop: int) -> list[tuple[Any, dict[str, Any]]]:
        """The samples of these rows of the batch."""
        columns = [values(array[start:stop], field) for array, field in self._columns]
        if self._key is not None:
            keys = columns.pop()  # it is read last
        else:
            if self._numbers is None:
                self._numbers = self._rows_of(self._number - 1)
            keys = self._numbers[start:stop].tolist()
        return samples(keys, self._node.fields, columns)

    def _rows_of(self, number: int) -> Ints:
        """The numbers in the version of the rows of a batch."""
        if self._planned is None:
            self._planned = self._scan._planned(self._run.epoch, int(self._start["rows"]))
        starts = self._node.snapshot.manifest.starts
        found = [np.empty(0, np.int64)]
        for block, start, stop in self._planned.slices(number):
            found.append(self._numbers_of(block, starts)[start:stop])
        return np.concatenate(found)

    def _numbers_of(self, block: int, starts: Ints) -> Ints:
        assert self._planned is not None
        if self._block[0] != block:
            shards, rows = self._planned.order.block_rows(block)
            self._block = block, starts[shards] + rows
        return self._block[1]
