"""Columns that a caller's function makes of those there, a batch at a time, shard by shard.

The function runs in the caller's thread, one call after the other; what it made is written meanwhile.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from lake.asked import whole
from lake.columns import Ints, check_new, head_with, put_values
from lake.commit import Signature
from lake.edit import WORKERS, Sizes, Work, matches, plain_batches, stored_rows
from lake.errors import SchemaError
from lake.format import draft, schema
from lake.format.values import LogEntry, Shard
from lake.format.vocab import VocabBuilder
from lake.parts import PartReader
from lake.progress import progress as show
from lake.unfinished import Unfinished
from lake.where import condition

_log = logging.getLogger("lake")

Compute = Callable[[pa.RecordBatch], Any]  # -> a batch, table or mapping of columns, one row for each row


def compute_columns(
    work: Work,
    compute: Compute,
    signature: Signature,
    *,
    columns: Sequence[str] | None,
    batch_size: int,
    where: Any,
    kept: Path | None,
    progress: bool | None,
) -> LogEntry:
    """Add the columns that `compute` makes of batches of the given ones.

    `kept`: a folder where finished shards are remembered, so that the same call goes on after a crash.
    """
    made = _Made(work, compute, _asked(work, columns), batch_size, where)
    done = Unfinished(kept, work.guard, work.document.key)
    if (answer := done.answer()) is not None:
        made.settle(answer)
    with show(progress, f"add columns to {work.name}", work.document.rows) as bar:

        def finish(shard: Shard, rows: Ints, values: pa.RecordBatch | None) -> Shard:
            new = shard if values is None else put_values(work, shard, rows, values, Sizes(bar))
            if made.head is not None:
                done.remember(shard, new, made.answer, made.head.schema)
            bar.advance(shard.rows)
            return new

        def step(number: int, shard: Shard) -> Callable[[], Shard]:
            known = done.recall(shard)
            if known is None:
                return partial(finish, shard, *made.of(number, shard))
            made.recall(known)
            bar.advance(shard.rows)
            return partial(lambda shard: shard, known)

        shards = _carried_out(step(number, shard) for number, shard in enumerate(work.shards))
    if made.head is None:
        _log.warning("%s: no row meets the condition, so nothing was computed", work.name)
        assert work.base.entry is not None
        return work.base.entry
    head = replace(
        made.head, vocab=draft.longer_vocab(made.head.schema, work.document.vocab, made.vocabulary())
    )
    entry = work.land("add_columns", shards, signature, head=head)
    done.forget()
    return entry


def _asked(work: Work, columns: Sequence[str] | None) -> list[str]:
    """The columns that the function gets."""
    there = work.document.schema.names
    if columns is None:
        return list(there)
    if isinstance(columns, str) or not columns:
        raise ValueError(f"columns= is a list of columns of {work.name!r}, not {columns!r}")
    if unknown := [name for name in columns if name not in there]:
        raise ValueError(f"no column {unknown[0]!r} in {work.name!r}; there are {', '.join(there)}")
    return list(columns)


def _carried_out(steps: Iterator[Callable[[], Shard]]) -> list[Shard]:
    """What the steps give, in order: made in this thread, carried out in a few others, not far behind it."""
    futures: list[Future[Shard]] = []
    with ThreadPoolExecutor(WORKERS, thread_name_prefix="lake-edit") as pool:
        try:
            for step in steps:
                futures.append(pool.submit(step))
                if len(futures) > WORKERS:
                    futures[-1 - WORKERS].result()
            return [future.result() for future in futures]
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


class _Made:
    """What a function makes: its columns, settled by its first answer, which later ones must fit."""

    def __init__(
        self, work: Work, compute: Compute, asked: Sequence[str], batch_size: int, where: Any
    ) -> None:
        if whole("batch_size", batch_size) < 1:
            raise ValueError(f"batch_size is a number of rows, at least 1: {batch_size}")
        self._work, self._compute, self._asked, self._batch_size = work, compute, asked, batch_size
        self._test = condition(where, work.document.schema) if where is not None else None
        self.head: draft.Head | None = None
        self.answer = pa.schema([])
        self._vocab: VocabBuilder | None = None
        self._stored: pa.Schema | None = None

    def of(self, number: int, shard: Shard) -> tuple[Ints, pa.RecordBatch | None]:
        """The rows of a shard that get values, and their values in stored form; none where no row does."""
        rows = np.arange(shard.rows)
        if self._test is not None:
            rows = rows[matches(self._work.reader, shard, self._test)]
        found = []
        for start in range(0, len(rows), self._batch_size):
            taken = rows[start : start + self._batch_size]
            [batch] = plain_batches(self._work.reader.rows(shard, taken, self._asked))
            try:
                found.append(self._fitted(self._compute(batch), batch.num_rows))
            except Exception as error:
                first = sum(one.rows for one in self._work.shards[:number]) + int(taken[0])
                error.add_note(f"while computing columns of {self._work.name!r}, from row {first:,} on")
                raise
        if not found:
            return rows, None
        [values] = plain_batches(pa.Table.from_batches(found))
        return rows, values

    def _fitted(self, answer: Any, rows: int) -> pa.RecordBatch:
        """An answer in stored form.

        Raises:
            SchemaError: another number of rows, other columns, or values that do not fit.
            TypeError: neither a batch, a table nor a mapping.
        """
        batch = _as_batch(answer)
        if batch.num_rows != rows:
            raise SchemaError(f"the function gave {batch.num_rows:,} rows for {rows:,}")
        self.settle(schema.canonical_schema(batch.schema))
        assert self._vocab is not None
        if lacking := set(self.answer.names) - set(batch.schema.names):
            raise SchemaError(f"the function gave {min(lacking)!r} before, and now does not")
        self._vocab.add(batch)
        return schema.conform(batch, self._stored)

    def settle(self, answer: pa.Schema) -> None:
        """Know the columns of the function's answers (canonical), if they are not known yet."""
        if self._stored is not None:
            return
        check_new(self._work, answer.names, filling=self._test is not None)
        if self._work.document.key in answer.names:
            raise SchemaError(
                f"the function gave the key column {self._work.document.key!r}; it gives new columns only"
            )
        self.answer = answer
        self.head = head_with(self._work, answer)
        fields = pa.schema([self.head.schema.field(name) for name in answer.names])
        self._vocab = VocabBuilder(fields)
        self._stored = schema.stored_schema(fields)

    def recall(self, shard: Shard) -> None:
        """Count the values of a shard that an earlier run made."""
        assert self.head is not None
        assert self._vocab is not None
        columns = [self.head.schema.field(name) for name in self.answer.names]
        names = [field.name for field in columns if pa.types.is_dictionary(field.type)]
        if names:
            widened = replace(self._work.document, schema=schema.stored_schema(self.head.schema))
            reader = PartReader(self._work.refs, widened, self._work.reader.cache)
            for batch in stored_rows(reader, shard, names).to_batches():
                self._vocab.add(batch)

    def vocabulary(self) -> dict[str, list[Any]]:
        """The values met, of each dictionary column."""
        return self._vocab.finish() if self._vocab else {}


def _as_batch(answer: Any) -> pa.RecordBatch:
    if isinstance(answer, pa.RecordBatch):
        return answer
    if isinstance(answer, pa.Table):
        [batch] = plain_batches(answer)
        return batch
    if isinstance(answer, Mapping):
        return pa.RecordBatch.from_pydict({name: _as_array(value) for name, value in answer.items()})
    raise TypeError(
        f"the function gives a batch, a table or a mapping of columns, not {type(answer).__name__}"
    )


def _as_array(values: Any) -> pa.Array:
    """A column of a function's answer; rows of a NumPy array or tensor of several axes are tensors."""
    if isinstance(values, (pa.Array, pa.ChunkedArray)):
        return values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
    if hasattr(values, "detach"):  # a torch tensor, on whatever device
        values = values.detach().cpu().numpy()
    if isinstance(values, np.ndarray) and values.ndim > 1:
        return pa.FixedShapeTensorArray.from_numpy_ndarray(np.ascontiguousarray(values))
    return pa.array(values)
