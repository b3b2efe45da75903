"""Datasets read and written by a Ray cluster: shards as read tasks, one log entry for all write tasks.

Workers reach the lake as the driver does: a lake in a folder must lie where every node sees it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from types import EllipsisType
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import ray
import ray.data
from ray.data import Datasink, Datasource, ReadTask
from ray.data.block import BlockAccessor, BlockMetadata

from lake import derive as derivation
from lake import frames
from lake.asked import whole
from lake.commit import Signature
from lake.dataset import Dataset
from lake.errors import StoreError
from lake.format.values import LogEntry
from lake.joint import Joint, Share, Task
from lake.pipeline import Pipeline
from lake.pipeline.deal import Worker
from lake.pipeline.lanes import dealt, grain_of, ordered, why_uncountable
from lake.pipeline.node import Counts, Node
from lake.plan import Ranks
from lake.repo import Lake
from lake.snapshot import Snapshot, Version
from lake.write import Request, request


def read(
    dataset: Dataset,
    *,
    columns: Sequence[str] | None = None,
    where: Any = None,
    parallelism: int = -1,
    concurrency: int | None = None,
    **ray_remote_args: Any,
) -> ray.data.Dataset:
    """The rows as a Ray dataset whose read tasks are runs of shards, in the order of the rows.

    Ray hands blocks on as they are ready, unless the dataset's `context.execution_options.preserve_order` is set.

    Shards that `where` (SQL text or a pyarrow expression) cannot meet are left out before tasks are made, and
    only `columns` are fetched; so are those that Ray finds to be all that is used. `parallelism`: how many read
    tasks, about; -1: Ray decides.
    """
    names, parallelism = dataset.snapshot.columns(columns), whole("parallelism", parallelism)
    found: ray.data.Dataset = ray.data.read_datasource(
        Shards(dataset.snapshot, names, where),
        override_num_blocks=None if parallelism < 0 else parallelism,
        concurrency=concurrency,
        ray_remote_args=ray_remote_args or None,
    )
    return found


def write(
    data: ray.data.Dataset,
    lake: Lake,
    name: str,
    *,
    mode: Literal["overwrite", "append"] | None = None,
    key: str | EllipsisType | None = ...,
    order: Literal["given", "key"] = "given",
    schema: Any = None,
    meta: Mapping[str, Any] | None = None,
    recipe: Any = None,
    message: str | None = None,
    txn: str | None = None,
    expect: str | Version | Dataset | EllipsisType | None = ...,
    shard_bytes: int | str = "64MiB",
    concurrency: int | None = None,
    **ray_remote_args: Any,
) -> Version:
    """Commit a Ray dataset: its tasks store shards, and one log entry makes all of them a version.

    Each row is in it exactly once, whatever tasks failed, were repeated or ran twice. Rows come in the order of
    the dataset, or sorted by key; a task's rows end in a shard of their own, so few large blocks make better
    shards than many small ones. With a `txn` a job whose driver died may be run again: it makes one version.
    Other arguments are those of `Lake.commit`.

    Raises:
        SchemaError: blocks of different types, unless `schema` says which; or rows that do not add up.
        ConflictError: somebody else moved the head.
    """
    asked = request(
        name,
        mode=mode,
        key=key,
        meta=meta,
        recipe=recipe,
        signature=Signature.of(txn, message),
        expect=expect,
        shard_bytes=shard_bytes,
        may_be_empty=schema is not None,
    )
    joint = Joint(lake.refs, asked, schema=schema, single_writer=lake.single_writer)
    entry = joint.earlier
    if entry is None:
        if order == "key":
            if key is None:
                raise ValueError('order="key" sorts by the key column, and key=None says that there is none')
            data = data.sort("key" if isinstance(key, EllipsisType) else key)
        sink = _Sink(joint.task)
        with _in_order(data):
            data.write_datasink(sink, concurrency=concurrency, ray_remote_args=ray_remote_args or None)
        entry = joint.land(sink.shares, sink.rows)
    assert entry.version is not None
    return Version.of(name, entry, lake.refs.version(name, entry.version))


def derive(
    lake: Lake,
    name: str,
    pipeline: Pipeline,
    *,
    tag: str | None = None,
    meta: Mapping[str, Any] | None = None,
    recipe: Any = None,
    message: str | None = None,
    shard_bytes: int | str = "64MiB",
    tasks: int | None = None,
    **ray_remote_args: Any,
) -> Dataset:
    """What `Lake.derive` gives, computed by Ray tasks where it has to be computed: the same rows in the same order.

    A pipeline whose items can be counted is cut into `tasks` runs of its items (by default two for each processor
    of the cluster); any other one is one task. Ray's retries, and tasks that run twice, change nothing.
    """

    tasks = None if tasks is None else whole("tasks", tasks, least=1)

    def commit(asked: Request, fresh: Pipeline) -> LogEntry:
        joint = Joint(lake.refs, asked, single_writer=lake.single_writer)
        if joint.earlier is not None:
            return joint.earlier
        resources = ray.cluster_resources()  # type: ignore[no-untyped-call]
        runs = _runs(fresh.node, tasks or 2 * int(resources.get("CPU", 1)))
        remote = ray.remote(
            **{"max_retries": 3, "retry_exceptions": [StoreError, OSError], **ray_remote_args}
        )(_run)
        job = ray.put(joint.task)
        shares = ray.get([remote.remote(job, number, Pipeline(run)) for number, run in enumerate(runs)])
        return joint.land(shares, sum(share.rows for share in shares))

    entry = derivation.derive(
        lake.refs,
        name,
        pipeline,
        tag=tag,
        meta=meta,
        recipe=recipe,
        message=message,
        shard_bytes=shard_bytes,
        single_writer=lake.single_writer,
        progress=lake.progress,
        commit=commit,
    )
    return lake.dataset(f"{name}@#{entry.seq}")


# --- reading ------------------------------------------------------------------------------------


class Shards(Datasource):
    """The shards of a version that may meet a condition, as read tasks."""

    def __init__(self, snapshot: Snapshot, columns: Sequence[str], where: Any) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._snapshot, self._columns, self._where = snapshot, list(columns), where
        self._projection_map = {name: name for name in columns}
        self._pieces = frames.shards_of(snapshot, where)

    def supports_projection_pushdown(self) -> bool:
        """Columns that nobody uses are not fetched."""
        return True

    def estimate_inmemory_data_size(self) -> int:
        """Raw bytes of the columns, about."""
        return int(self._sizes().sum())

    def get_read_tasks(
        self, parallelism: int, per_task_row_limit: int | None = None, data_context: Any = None
    ) -> list[ReadTask]:
        """So many runs of shards of about as many bytes each, in the order of the rows."""
        columns = self._names()
        schema = pa.schema([self._snapshot.document.schema.field(name) for name in columns])
        sizes, tasks = self._sizes(), []
        ends = np.cumsum(sizes)
        group = (ends - 1) * max(1, parallelism) // max(1, int(ends[-1]) if len(ends) else 1)
        for run in np.split(np.arange(len(sizes)), np.flatnonzero(np.diff(group)) + 1):
            if not len(run):
                continue
            rows = int(self._snapshot.manifest.rows[self._pieces[run]].sum())
            about = BlockMetadata(
                num_rows=rows if self._where is None else None,
                size_bytes=int(sizes[run].sum()),
                input_files=None,
                exec_stats=None,
            )
            call = partial(_read_run, self._snapshot, columns, self._where, self._pieces[run].tolist())
            tasks.append(ReadTask(call, about, schema=schema, per_task_row_limit=per_task_row_limit))
        return tasks

    def _names(self) -> list[str]:
        used = self.get_projection_map()
        return [name for name in self._columns if used is None or name in used]

    def _sizes(self) -> np.ndarray:
        """Raw bytes that each shard to be read takes, about."""
        raw = self._snapshot.manifest.sizes(self._names() or self._columns)[1]
        sizes: np.ndarray = np.maximum(raw[self._pieces], 1)
        return sizes


def _read_run(
    snapshot: Snapshot, columns: Sequence[str], where: Any, shards: Sequence[int]
) -> Iterator[pa.Table]:
    """The rows of some shards; in a worker, where others use the processors."""
    schema = pa.schema([snapshot.document.schema.field(name) for name in columns])
    for batch in frames.read(snapshot, columns, where, shards=frozenset(shards), threads=1):
        yield pa.Table.from_batches([batch], schema)


# --- writing ------------------------------------------------------------------------------------


class _Sink(Datasink[Share]):
    """What Ray's write tasks run, and what came back from them."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self.shares: list[Share] = []
        self.rows = 0  # as Ray has counted them

    def write(self, blocks: Iterable[Any], ctx: Any) -> Share:
        """Store the rows of one task."""
        tables = [table for block in blocks if len(table := BlockAccessor.for_block(block).to_arrow())]
        if not tables:
            return self._task.nothing(ctx.task_idx)
        return self._task.run(ctx.task_idx, pa.concat_tables(tables, promote_options="permissive"))

    def on_write_complete(self, write_result: Any) -> None:
        """Take what the tasks stored; the log entry is made when Ray is done."""
        self.shares, self.rows = list(write_result.write_returns), int(write_result.num_rows)

    def get_name(self) -> str:
        """What Ray shows."""
        return "lake"


def _runs(node: Node, tasks: int) -> list[Node]:
    """The pipeline as runs of its items, one after the other; as it is where they cannot be counted."""
    if why_uncountable(node) is not None or grain_of(node) is not None:
        return [node]
    items = int(Counts().of(node, 0))
    runs = max(1, min(tasks, items))
    size, whole = -(-items // runs), ordered(node)
    deals = [Worker.of(items, 0, size, Ranks(number, runs), "split", 0, 1) for number in range(runs)]
    return [dealt(whole, deal) for deal in deals] if runs > 1 else [node]


def _run(task: Task, number: int, pipeline: Pipeline) -> Share:
    """What a Ray task does for `derive`."""
    return task.run(number, pipeline)


@contextmanager
def _in_order(data: ray.data.Dataset) -> Iterator[None]:
    """Have Ray number the tasks in the order of the rows."""
    options = data.context.execution_options
    before, options.preserve_order = options.preserve_order, True
    try:
        yield
    finally:
        options.preserve_order = before
