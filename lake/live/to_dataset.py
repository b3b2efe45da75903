"""Files that arrive in a folder, appended to a dataset: a commit for each batch, which its id makes only once."""

from __future__ import annotations

import logging
import os
import threading
from typing import Any

import numpy as np
import pyarrow as pa

from lake import filenames, repo
from lake.config import parse_duration
from lake.convert import files
from lake.convert.source import Meter
from lake.format import names
from lake.live import policy
from lake.live.arrivals import Sample
from lake.live.batch import Batch
from lake.live.to_function import existing, run
from lake.live.watcher import How, Watched
from lake.snapshot import Version
from lake.stores.local import LocalStore

_SMALL = 64  # shards beyond twice as many as there need be, at which a dataset is compacted

_log = logging.getLogger("lake")


def ingest(
    folder: str | os.PathLike[str],
    lake: repo.Lake | str | os.PathLike[str],
    dataset: str,
    *,
    every: float | str = "10s",
    delete: bool = False,
    settle: float | str = "2s",
    stop: threading.Event | None = None,
) -> Watched:
    """Append every file that arrives in the folder to a dataset, once; blocks until stopped.

    As `lake.live.watch`, with a commit for each batch: keys and fields as when a folder is committed, and the batch's
    id as `txn`, so that a crash neither loses a file nor commits it twice. While the store does not answer, the batch
    in hand is tried until it does. Many small shards are compacted now and then.

    Args:
        lake: the lake, or its URL; it is created if there is none.
        dataset: made by the first batch if there is none.
        every: a commit after so long ("10s"), or as soon as so much has arrived ("64MB") or a minute has passed.
        delete: delete files once the commit that holds them is durable.

    Raises:
        ValueError: the lake lies inside the folder: it would be taken for data, and deleted with it.
    """
    lk = lake if isinstance(lake, repo.Lake) else repo.open(lake)
    names.check_name(dataset)
    root = existing(folder)
    if isinstance(lk.store, LocalStore) and lk.store.root.resolve().is_relative_to(root):
        raise ValueError(
            f"the lake {lk.url!r} lies inside the folder {str(root)!r}: its own files would arrive there"
        )
    lk.init()

    def hand_over(batch: Batch) -> None:
        _keep_compact(lk, dataset, append(lk, dataset, batch))

    how = How(policy.Every.of(every), parse_duration(settle), delete, single=False, passing=policy.transient)
    return run(root, f"{dataset!r} of the lake {lk.refs.info().id}", hand_over, how, stop)


def append(lk: repo.Lake, dataset: str, batch: Batch) -> Version:
    """Commit a batch, or find that it was committed; the version."""
    grouped = _grouped(batch.groups)
    batches = files.read_batches(grouped, lambda _: _Reader(batch), Meter())
    reader = pa.RecordBatchReader.from_batches(grouped.schema(), batches)
    return lk.commit(
        dataset,
        reader,
        mode="append",
        txn=batch.id,
        message=f"{len(batch):,} files of {batch.id}",
        progress=False,
    )


def crowded(version: Version, target: int) -> bool:
    """Whether the version has so many small shards that it should be compacted.

    Between two compactions there are at least as many commits as a compaction writes shards, so they cost no more
    than writing each row about twice.
    """
    return version.shards > 2 * (version.bytes // target) + _SMALL


def _keep_compact(lk: repo.Lake, dataset: str, version: Version) -> None:
    """Compact if it is time; the rows are committed, so a failure is left to the next batch to mend."""
    try:
        if crowded(version, lk.refs.version(dataset, version.id).cuts.target):
            lk.compact(dataset)
    except Exception as error:
        _log.warning("compacting %s failed: %s: %s", dataset, type(error).__name__, error)


class _Reader:
    """Reads the files of a batch."""

    threads = 4

    def __init__(self, batch: Batch) -> None:
        self._batch = batch

    def read(self, member: files.Member, view: memoryview) -> None:
        """Fill `view` with the file's bytes."""
        with self._batch.stream(member.name) as file:
            done = 0
            while done < len(view) and (more := file.readinto(view[done:])):  # type: ignore[attr-defined]
                done += more

    def close(self) -> None:
        """Nothing stays open."""


def _grouped(samples: tuple[Sample, ...]) -> files.Samples:
    """The samples as a folder's are, but for keys, which may be there twice."""
    members = [files.Member(file.path, file.stamp.size) for sample in samples for file in sample.files]
    fields = [filenames.split(member.name)[1] for member in members]
    known = sorted(set(fields))
    code: dict[str, Any] = {name: number for number, name in enumerate(known)}
    return files.Samples(
        keys=[sample.key for sample in samples],
        fields=tuple(known),
        members=members,
        sample=np.repeat(np.arange(len(samples)), [len(sample.files) for sample in samples]),
        field=np.array([code[name] for name in fields], np.int32),
    )
