"""Samples made of files: which file is which field of which sample, and their bytes as record batches.

Folders and archives list their members and say how one is read; everything else about them is here, once.
Sizes are known before anything is read, so a batch's buffers are allocated once and filled in place by a few
threads; the order in which files are read is free, the order of samples is not.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa

from lake import filenames
from lake.convert.source import BATCH_BYTES, BATCH_ROWS, Meter
from lake.errors import SchemaError

KEY = "key"
LABEL = "label"
_TASK_FILES = 64  # files one thread reads at a time
_TASK_BYTES = 1 << 20
_AHEAD_BYTES = 2 * BATCH_BYTES  # read before they are asked for


class Member(NamedTuple):
    """One file of a folder or archive."""

    name: str  # "/"-separated, as it is called there
    size: int
    where: Any = None  # what its reader needs to find it


class Reader(Protocol):
    """Reads members. `read` is called from `threads` threads at once, for one thread in the order given."""

    threads: int

    def read(self, member: Member, view: memoryview) -> None:
        """Fill `view` (of the member's size) with its bytes, or raise naming it."""

    def close(self) -> None:
        """Let go of what is open. May be called twice."""


Opener = Callable[[list[Sequence[Member]]], Reader]  # given the members of each batch to come


@dataclass(slots=True)
class Skipped:
    """What was left out of a listing, by kind."""

    counts: Counter[str] = field(default_factory=Counter)

    def add(self, kind: str) -> None:
        """Count one more of `kind`, a noun in the singular: "hidden file"."""
        self.counts[kind] += 1

    def notes(self) -> list[str]:
        """One sentence per kind."""
        return [
            f"{n:,} {kind if n == 1 else _plural(kind)} skipped" for kind, n in sorted(self.counts.items())
        ]


@dataclass(frozen=True, slots=True)
class Samples:
    """Members grouped into samples, in the order in which samples are to be read."""

    keys: Sequence[str]
    fields: tuple[str, ...]
    members: Sequence[Member]  # by sample, and by field within one
    sample: np.ndarray[Any, Any]  # of each member: index into keys
    field: np.ndarray[Any, Any]  # of each member: index into fields
    label: np.ndarray[Any, Any] | None = None  # of each sample: index into classes
    classes: tuple[str, ...] = ()

    @property
    def bytes(self) -> int:
        """Of all members together."""
        return sum(member.size for member in self.members)

    def schema(self) -> pa.Schema:
        """What the record batches look like: the key, the label, then the fields by name."""
        columns = [pa.field(KEY, pa.large_string())]
        if self.label is not None:
            columns.append(pa.field(LABEL, pa.dictionary(pa.int32(), pa.large_string())))
        return pa.schema(columns + [pa.field(name, pa.large_binary()) for name in self.fields])

    def reordered(self, order: np.ndarray[Any, Any]) -> Samples:
        """The same samples, the i-th being what was the `order[i]`-th."""
        place = np.empty(len(order), np.int64)
        place[order] = np.arange(len(order))
        sample = place[self.sample]
        by = np.argsort(sample, kind="stable")
        return replace(
            self,
            keys=[self.keys[i] for i in order.tolist()],
            members=[self.members[i] for i in by.tolist()],
            sample=sample[by],
            field=self.field[by],
            label=None if self.label is None else self.label[order],
        )


def group(members: Sequence[Member], what: str, *, by_key: bool) -> Samples:
    """Members as samples: ordered by key, or by each key's first member.

    Raises:
        SchemaError: two members are the same field of the same sample, or one cannot be named.
    """
    pairs = [filenames.split(_utf8(member, what)) for member in members]
    fields = sorted({field for _, field in pairs})
    if KEY in fields:
        culprit = next(m for m, (_, f) in zip(members, pairs, strict=True) if f == KEY)
        raise SchemaError(
            f"{culprit.name!r} in {what} would be a field named {KEY!r}, which holds the samples' keys: "
            "rename the file"
        )
    return _arrange(members, pairs, fields, what, by_key)


def group_labelled(members: Sequence[Member], what: str, skipped: Skipped, *, by_key: bool) -> Samples:
    """Members as one image or one audio file per sample, the first folder of their path being the class.

    Raises:
        SchemaError: there are both images and audio, or two files of one key.
    """
    kept: list[Member] = []
    pairs: list[tuple[str, str]] = []
    example: dict[str, str] = {}
    for member in members:
        key, extension = filenames.split(_utf8(member, what))
        medium = filenames.medium(extension)
        if medium is None or "/" not in key:
            skipped.add("file outside a class folder" if medium else "other file")
            continue
        example.setdefault(medium, member.name)
        kept.append(member)
        pairs.append((key, medium))
    if len(example) > 1:
        raise SchemaError(
            f"labels=True makes one column, and {what} holds images ({example['image']!r}) and audio "
            f"({example['audio']!r}): keep one kind, or commit without labels=True"
        )
    samples = _arrange(kept, pairs, sorted(example), what, by_key)
    labels = [key.partition("/")[0] for key in samples.keys]
    classes = tuple(sorted(set(labels)))
    code = {name: i for i, name in enumerate(classes)}
    return replace(samples, label=np.array([code[name] for name in labels], np.int32), classes=classes)


def read_batches(samples: Samples, open_reader: Opener, meter: Meter) -> Iterator[pa.RecordBatch]:
    """The samples as record batches of about `BATCH_BYTES`, read ahead by the reader's threads."""
    schema = samples.schema()
    coming: deque[_Pending] = deque()
    ahead = 0  # bytes
    runs = list(cut(samples))
    reader = open_reader([samples.members[members_of(samples, run)] for run in runs])
    cuts = iter(runs)
    with ThreadPoolExecutor(reader.threads, thread_name_prefix="lake-read") as pool:
        try:
            while True:
                while ahead < _AHEAD_BYTES and (run := next(cuts, None)) is not None:
                    coming.append(_start(samples, run, schema, reader, pool))
                    ahead += coming[-1].bytes
                if not coming:
                    return
                pending = coming.popleft()
                batch = pending.finish()
                ahead -= pending.bytes
                meter.read += pending.bytes
                yield batch
        finally:
            pool.shutdown(cancel_futures=True)
            reader.close()


def cut(samples: Samples) -> Iterator[tuple[int, int]]:
    """The runs of samples that make a batch each, as half-open ranges."""
    sizes = np.array([member.size for member in samples.members], np.int64)
    per_sample = np.zeros(len(samples.keys), np.int64)
    np.add.at(per_sample, samples.sample, sizes)
    ends = np.cumsum(per_sample)
    start = 0
    while start < len(ends):
        before = int(ends[start - 1]) if start else 0
        end = int(np.searchsorted(ends, before + BATCH_BYTES, side="right"))
        end = min(max(end, start + 1), start + BATCH_ROWS)
        yield start, end
        start = end


def members_of(samples: Samples, run: tuple[int, int]) -> slice:
    """Where the members of a run of samples lie in `samples.members`."""
    first, last = np.searchsorted(samples.sample, run)
    return slice(int(first), int(last))


@dataclass(frozen=True, slots=True)
class _Pending:
    """A batch whose buffers are being filled."""

    schema: pa.Schema
    columns: list[pa.Array]
    tasks: list[Future[None]]
    bytes: int

    def finish(self) -> pa.RecordBatch:
        for task in self.tasks:
            task.result()
        return pa.RecordBatch.from_arrays(self.columns, schema=self.schema)


def _start(
    samples: Samples, run: tuple[int, int], schema: pa.Schema, reader: Reader, pool: ThreadPoolExecutor
) -> _Pending:
    """Allocate a batch's columns and set the threads to fill them."""
    start, end = run
    where = members_of(samples, run)
    members = samples.members[where]
    rows, fields = samples.sample[where] - start, samples.field[where]
    sizes = np.array([member.size for member in members], np.int64)
    columns = [pa.array(samples.keys[start:end], pa.large_string())]
    if samples.label is not None:
        codes = pa.array(samples.label[start:end])
        columns.append(pa.DictionaryArray.from_arrays(codes, pa.array(samples.classes, pa.large_string())))
    views: list[memoryview | None] = [None] * len(members)
    for number in range(len(samples.fields)):
        chosen = np.flatnonzero(fields == number)
        column, data, offsets = _allocate(end - start, rows[chosen], sizes[chosen])
        columns.append(column)
        for i, row in zip(chosen.tolist(), rows[chosen].tolist(), strict=True):
            views[i] = data[offsets[row] : offsets[row + 1]]
    jobs = [(member, view) for member, view in zip(members, views, strict=True) if view is not None]
    if reader.threads == 1:
        jobs.sort(key=lambda job: job[0].where)
    tasks = [pool.submit(_read_all, reader, chunk) for chunk in _tasks(jobs)]
    return _Pending(schema, columns, tasks, int(sizes.sum()))


def _allocate(
    rows: int, present: np.ndarray[Any, Any], sizes: np.ndarray[Any, Any]
) -> tuple[pa.Array, memoryview, list[int]]:
    """A large_binary array of `rows`, null but where `present`; the view to fill; where each value lies."""
    offsets = np.zeros(rows + 1, np.int64)
    offsets[present + 1] = sizes
    np.cumsum(offsets, out=offsets)
    data = np.empty(int(offsets[-1]), np.uint8)
    validity = None
    if len(present) < rows:
        bits = np.zeros(rows, np.bool_)
        bits[present] = True
        validity = pa.py_buffer(np.packbits(bits, bitorder="little"))
    buffers = [validity, pa.py_buffer(offsets), pa.py_buffer(data)]
    array = pa.Array.from_buffers(pa.large_binary(), rows, buffers, rows - len(present))
    return array, data.data, offsets.tolist()


def _tasks(jobs: list[tuple[Member, memoryview]]) -> Iterator[list[tuple[Member, memoryview]]]:
    chunk: list[tuple[Member, memoryview]] = []
    size = 0
    for job in jobs:
        chunk.append(job)
        size += job[0].size
        if size >= _TASK_BYTES or len(chunk) == _TASK_FILES:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def _read_all(reader: Reader, jobs: list[tuple[Member, memoryview]]) -> None:
    for member, view in jobs:
        reader.read(member, view)


def _arrange(
    members: Sequence[Member], pairs: list[tuple[str, str]], fields: list[str], what: str, by_key: bool
) -> Samples:
    keys = dict.fromkeys(key for key, _ in pairs)
    ordered = sorted(keys) if by_key else list(keys)
    place = {key: i for i, key in enumerate(ordered)}
    code = {name: i for i, name in enumerate(fields)}
    sample = np.fromiter((place[key] for key, _ in pairs), np.int64, len(pairs))
    field = np.fromiter((code[name] for _, name in pairs), np.int32, len(pairs))
    by = np.lexsort((field, sample))
    sample, field = sample[by], field[by]
    twice = np.flatnonzero((sample[1:] == sample[:-1]) & (field[1:] == field[:-1]))
    if len(twice):
        first, second = (members[by[i]].name for i in (twice[0], twice[0] + 1))
        raise SchemaError(
            f"{first!r} and {second!r} in {what} are both field {fields[field[twice[0]]]!r} of sample "
            f"{ordered[sample[twice[0]]]!r}: rename or remove one"
        )
    return Samples(ordered, tuple(fields), [members[i] for i in by.tolist()], sample, field)


def _utf8(member: Member, what: str) -> str:
    try:
        member.name.encode()
    except UnicodeEncodeError:
        raise SchemaError(
            f"the file name '{filenames.printable(member.name)}' in {what} is not UTF-8: rename the file"
        ) from None
    return member.name


def _plural(noun: str) -> str:
    head, space, tail = noun.partition(" outside")
    return head + "s" + space + tail
