"""A dataset at one version: what it says about itself, its rows by number and key, and the ways to stream them."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from lake import derive, rows
from lake.asked import whole
from lake.derive import Derivation
from lake.export import export
from lake.follow import Follow
from lake.format.values import LogEntry
from lake.pipeline import Pipeline
from lake.pipeline.seeds import Seed
from lake.samples import Drawn, Samples
from lake.scan import Scan
from lake.snapshot import Snapshot, Version

if TYPE_CHECKING:
    import polars
    import pyarrow.dataset as pads

    from lake.repo import Lake


class Dataset:
    """A named, versioned, ordered collection of rows with one Arrow schema, at one version."""

    def __init__(self, lake: Lake, snapshot: Snapshot, passed_over: LogEntry | None = None) -> None:
        self.lake = lake
        self.snapshot = snapshot
        self._passed_over = passed_over  # the head, where lake.lock says another version

    def __repr__(self) -> str:
        head = self._passed_over
        note = f"; lake.lock, the head is #{head.seq} {str(head.version)[:12]}" if head else ""
        return f"<{self.name}@#{self.snapshot.entry.seq} {self.version[:12]}, {len(self):,} rows{note}>"

    @property
    def name(self) -> str:
        """The dataset's name."""
        return self.snapshot.name

    @property
    def version(self) -> str:
        """The version id."""
        return self.snapshot.version

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema; strings and binaries have 64-bit offsets, dictionaries int32 codes."""
        return self.snapshot.document.schema

    @property
    def key(self) -> str | None:
        """The key column's name, None without one."""
        return self.snapshot.document.key

    @property
    def meta(self) -> dict[str, Any]:
        """What `commit(meta=)` kept with the version."""
        return dict(self.snapshot.document.meta or {})

    @property
    def recipe(self) -> Any:
        """What `commit(recipe=)` kept with the version."""
        return self.snapshot.document.recipe

    def derivations(self) -> list[Derivation]:
        """The pipelines that gave this version through `derive`, with what they read; oldest first."""
        refs = self.lake.refs
        head = refs.head(self.name)
        return [] if head is None else derive.derivations(refs, self.name, head, self.version)

    def vocab(self, column: str) -> list[Any]:
        """The values of a dictionary column, in the order of their codes."""
        try:
            return list(self.snapshot.document.vocab[column])
        except (KeyError, TypeError):
            raise ValueError(f"{column!r} of {self.name!r} is not a dictionary column") from None

    def __len__(self) -> int:
        return self.snapshot.document.rows

    def __getitem__(self, index: int | slice) -> Any:
        """Row `index` as a dict, or the rows of a slice as a table."""
        return rows.item(self.snapshot, index)

    def take(self, indices: Any, *, columns: Sequence[str] | None = None) -> pa.Table:
        """Rows by number (negative from the end), in the order asked for."""
        return rows.take(self.snapshot, indices, columns)

    def get(self, key: Any) -> dict[str, Any]:
        """The first row with this key.

        Raises:
            NotFoundError: no row has it.
        """
        return rows.get(self.snapshot, key)

    def count(self, where: Any = None) -> int:
        """Rows for which `where` holds; all of them without it."""
        return len(self) if where is None else rows.count(self.snapshot, where)

    def split(self, *fractions: float, by: str | None = None, seed: int = 0) -> tuple[str, ...]:
        """Conditions for `where=` that divide the rows into such fractions, disjoint and complete.

        A row's side follows from its value in `by` (None: the key) alone: it keeps it in every version, order
        and derived dataset, and rows with equal values stay together.

        Raises:
            ValueError: neither a key nor `by`, or fractions that do not add up to 1.
        """
        return rows.split(self.snapshot, fractions, by, seed)

    def scan(
        self,
        columns: Sequence[str] | None = None,
        where: Any = None,
        *,
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
    ) -> Scan:
        """A stream of record batches: planned now, read when iterated. See `lake.scan.Scan`."""
        return Scan(
            self.snapshot,
            columns=columns,
            where=where,
            batch_size=batch_size,
            shuffle=shuffle,
            seed=seed,
            epoch=epoch,
            shuffle_window=shuffle_window,
            even=even,
            rank=rank,
            world_size=world_size,
            node=node,
            nodes=nodes,
            partitions=partitions,
            limit=limit,
        )

    def arrow(self) -> pads.Dataset:
        """A `pyarrow.dataset.Dataset`: what DuckDB, polars, pandas and Dask read with pushdown."""
        from lake import frames  # Arrow's datasets, polars and DuckDB take their time

        return frames.arrow(self.snapshot)

    def lazy(self) -> polars.LazyFrame:
        """A `polars.LazyFrame` with projection and predicate pushdown."""
        from lake import frames

        return frames.lazy(self.snapshot)

    def export(
        self,
        path: str | os.PathLike[str],
        format: Literal["parquet", "csv", "jsonl", "arrow", "webdataset", "folder"] | None = None,
        *,
        columns: Sequence[str] | None = None,
    ) -> None:
        """Write the rows as files: one if `path` ends as files of the format do, otherwise a folder of parts.

        Without `format` the path's ending says it, or it is Parquet. "webdataset" and "folder" hold samples: a file
        for each value, named by the row's key, with the column as its extension.

        Raises:
            FileExistsError: there is something at `path`.
            SchemaError: the format has no way to write a column.
        """
        export(self.snapshot, path, format, columns=columns, progress=self.lake.progress)

    def samples(
        self, *, columns: Sequence[str] | None = None, where: Any = None, prefetch: int | None = None
    ) -> Pipeline:
        """A pipeline of `(key, {field: value})`, one for each row; without a key its number stands for it.

        `prefetch`: rows that are decoded ahead, about; None: some MB. See `lake.pipeline.Pipeline` for what
        can be done with it.
        """
        ahead = None if prefetch is None else whole("prefetch", prefetch)
        return Pipeline(Samples.of(self.snapshot, columns, where, ahead))

    def draw(
        self,
        size: int | None = None,
        *,
        weights: str | Mapping[Any, float] | None = None,
        by: str | None = None,
        columns: Sequence[str] | None = None,
        where: Any = None,
        seed: int | None = None,
    ) -> Pipeline:
        """A pipeline of `size` samples (None: as many as there are rows), drawn at random and anew in each epoch.

        `weights`, a column of numbers: rows with replacement, each as likely as its weight says; None: all alike.
        `by`, a column of labels: each of its values as often as any other, or as `weights` says of the values
        (those not named never). Of 64 samples from a multiple of 64 on, each value has its share, rounded up or
        down; and of one value's rows each comes once before any comes again.

        Rows are looked up, so this is for data that the cache can hold; drawing takes 8 bytes for each of the
        `size` samples and of the rows. It resumes at any sample for nothing.

        Raises:
            ValueError: no such column; when iterated: nulls, or weights that cannot be.
        """
        if size is not None and whole("draw(): size", size) < 0:
            raise ValueError(f"draw(): size is a number of samples: {size}")
        source = Samples.of(self.snapshot, columns, where, None)
        return Pipeline(Drawn.of(source, size, weights, by, Seed.of(seed)))

    def follow(
        self,
        from_: str = "now",
        poll: float | str = "2s",
        *,
        columns: Sequence[str] | None = None,
        batch_size: int = 1024,
        stop: threading.Event | None = None,
    ) -> Follow:
        """Rows as they are committed, as batches or `samples()`, without end or until `stop` is set.

        `from_`: "now", "start" (all rows there are, then what comes), or "#12": what came after that log entry.
        `poll`: how often the log is looked at. See `lake.follow.Follow`.
        """
        return Follow(
            self.snapshot.refs, self.snapshot.cache, self.name, from_=from_, poll=poll, columns=columns,
            batch_size=batch_size, stop=stop,
        )  # fmt: skip

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.scan().to_reader().__arrow_c_stream__(requested_schema)


Reference = str | Version | Dataset  # how a caller names a dataset or a version of it
