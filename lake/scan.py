"""Carry a plan out: a stream of record batches, in the plan's order, from wherever the parts are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa

from lake import plan
from lake.snapshot import Snapshot

if TYPE_CHECKING:
    import pandas
    import polars

    from lake.torch import TensorStream


class Scan:
    """Record batches of one version, as `Dataset.scan` describes them; each `iter` is the next epoch."""

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
        shuffle_window: int = 16,
        even: Literal["split", "drop", "pad"] | None = "split",
        rank: int | None = None,
        world_size: int | None = None,
        node: int | None = None,
        nodes: int | None = None,
        partitions: int | None = None,
        limit: int | None = None,
    ) -> None:
        self.snapshot = snapshot
        names = snapshot.document.schema.names
        self.columns = list(names if columns is None else columns)
        unknown = [name for name in self.columns if name not in names]
        if unknown:
            raise ValueError(f"no column {unknown[0]!r} in {snapshot.name!r}; there are {', '.join(names)}")
        if where is not None:
            raise NotImplementedError
        self._epoch = epoch
        self._options: dict[str, Any] = {
            "batch_size": batch_size,
            "shuffle": shuffle,
            "seed": seed,
            "shuffle_window": shuffle_window,
            "even": even,
            "ranks": plan.Ranks.of(rank, world_size, node, nodes),
            "partitions": partitions or nodes or 1,
            "limit": limit,
        }
        manifest = snapshot.manifest
        sizes = manifest.sizes(self.columns)
        self._layout = plan.Layout.of(
            manifest.rows, manifest.batch_rows(self.columns, snapshot.document.cuts.target), sizes[0], sizes[1]
        )
        self._plan = self._planned(epoch)

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema of the batches."""
        schema = self.snapshot.document.schema
        return pa.schema([schema.field(name) for name in self.columns], schema.metadata)

    @property
    def rows(self) -> int:
        """Rows of the whole plan, for all ranks."""
        return self._plan.rows

    def __len__(self) -> int:
        """Batches of this rank."""
        return len(self._plan)

    def check(self) -> plan.Plan:
        """What would be read, resident and fetched; reads nothing."""
        return plan.summarize(self._plan)

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        planned = self._planned(self._epoch)
        self._epoch += 1
        held: tuple[int, pa.Table] | None = None
        for number in range(len(planned)):
            pieces = []
            for block, start, stop in planned.slices(number):
                if held is None or held[0] != block:
                    held = block, self._read(planned, block)
                pieces.append(held[1].slice(start, stop - start))
            yield pa.concat_tables(pieces).combine_chunks().to_batches()[0]

    def to_reader(self) -> pa.RecordBatchReader:
        """The batches as an Arrow stream."""
        return pa.RecordBatchReader.from_batches(self.schema, iter(self))

    def to_table(self) -> pa.Table:
        """All batches of one epoch."""
        return pa.Table.from_batches(list(self), self.schema)

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

    def _planned(self, epoch: int) -> plan.EpochPlan:
        return plan.plan_epoch(self._layout, epoch=epoch, **self._options)

    def _read(self, planned: plan.EpochPlan, block: int) -> pa.Table:
        shards, rows = planned.order.block_rows(block)
        tables, order = [], np.empty(len(rows), dtype=np.int64)
        at = 0
        for shard in np.unique(shards).tolist():
            places = np.flatnonzero(shards == shard)
            places = places[np.argsort(rows[places], kind="stable")]
            tables.append(self.snapshot.reader.rows(self.snapshot.manifest.shard(shard), rows[places], self.columns))
            order[places] = np.arange(at, at + len(places))
            at += len(places)
        return pa.concat_tables(tables).combine_chunks().take(pa.array(order))
