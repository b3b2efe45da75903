"""A manifest: all shards of a version. What planning needs is kept as arrays; a shard is read when asked for.

It is made from the bytes of its segments and never asks for more. A million shards take some 200 MB.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lake.errors import FormatError
from lake.format import arrays
from lake.format.part import batch_rows, fits
from lake.format.segment import decode_segment, group_ends
from lake.format.shards import shards_of, stats_of
from lake.format.values import SegmentRef, Shard

Ints = npt.NDArray[np.int64]

_PART = "parts.list.element."
_PLANNING = ["rows", "raw_bytes", *(_PART + name for name in ("digest", "bytes", "raw_bytes", "fields"))]
_GROUPS_KEPT = 32  # row groups of segments that are kept decoded, a megabyte or two each
_STATS_KEPT = 2  # columns: queries come back to the same
_RUN = 8  # neighbouring shards that are read together, which costs little more than one
_RUNS_KEPT = 64


class _Planning(NamedTuple):
    """What planning needs, of one segment or of all."""

    rows: Ints  # per shard, as the next two
    raw_bytes: Ints
    parts: Ints
    part_bytes: Ints  # per part, as the rest
    part_raw: Ints
    part_group: npt.NDArray[np.int32]  # number of its list of fields
    part_digest: npt.NDArray[np.uint8]  # [n, 32]


_NONE = np.empty(0, np.int64)
_EMPTY = _Planning(_NONE, _NONE, _NONE, _NONE, _NONE, np.empty(0, np.int32), np.empty((0, 32), np.uint8))


class Manifest:
    """The shards of a version, in order. `rows` and `raw_bytes` are per shard; `starts`, one longer, in rows.

    Thread-safe.
    """

    def __init__(
        self, schema: pa.Schema, refs: Sequence[SegmentRef], data: Sequence[Any], target: int | None = None
    ) -> None:
        self.schema, self.refs, self.target = schema, tuple(refs), target
        self._data = data
        self._firsts = np.cumsum([0, *(ref.shards for ref in refs)])  # first shard of each segment
        self._field_groups: dict[str, int] = {}  # joined names -> number
        self.fields: list[tuple[str, ...]] = []  # of each group of columns that shares parts
        self._ends = lru_cache(maxsize=None)(lambda segment: group_ends(self._data[segment]))
        self._group = lru_cache(maxsize=_GROUPS_KEPT)(self._read_group)
        self._run = lru_cache(maxsize=_RUNS_KEPT)(self._read_run)
        self._known_stats = lru_cache(maxsize=_STATS_KEPT)(self._read_stats)
        self._per = self._load()
        self.rows, self.raw_bytes = self._per.rows, self._per.raw_bytes
        self.starts: Ints = np.concatenate([[0], np.cumsum(self.rows)])
        self._part_starts: Ints = np.concatenate([[0], np.cumsum(self._per.parts)])

    @classmethod
    def open(
        cls, schema: pa.Schema, refs: Sequence[SegmentRef], data: Sequence[Any], *, target: int | None = None
    ) -> Manifest:
        """The manifest whose segments are `refs`; `data`: their bytes, or paths of files that hold them.

        `data` is gone through once, and asked again for the segments of shards and statistics that are wanted, so
        that it need not hold all of them. `target`: the version's, with which the batches of its parts must agree.

        Raises:
            FormatError: a segment is not what its version says.
        """
        return cls(schema, refs, data, target)

    def __len__(self) -> int:
        return int(self._firsts[-1])

    def shard(self, index: int) -> Shard:
        """All that the manifest says of one shard."""
        if not 0 <= index < len(self):
            raise IndexError(f"shard {index} of {len(self)}")
        segment = int(np.searchsorted(self._firsts, index, "right")) - 1
        place = index - int(self._firsts[segment])
        ends = self._ends(segment)
        group = int(np.searchsorted(ends, place, "right"))
        first = int(ends[group - 1]) if group else 0
        run, number = divmod(place - first, _RUN)
        return self._run(segment, group, run)[number]

    def shards(self, start: int = 0, stop: int | None = None) -> Iterator[Shard]:
        """The shards from `start` to `stop`, in order; one row group of a segment in memory."""
        stop = len(self) if stop is None else min(stop, len(self))
        for segment, ref in enumerate(self.refs):
            first = int(self._firsts[segment])
            if first + ref.shards <= start or first >= stop:
                continue
            for group, end in enumerate(self._ends(segment)):
                rows = int(end) - (int(self._ends(segment)[group - 1]) if group else 0)
                begin = first + int(end) - rows
                low, high = max(start - begin, 0), min(stop - begin, rows)
                if low < high:
                    table = self._read_group(segment, group)
                    yield from map(self._checked, shards_of(table.slice(low, high - low)))

    def find(self, row: int) -> tuple[int, int]:
        """The shard that holds a row, and the row's place in it."""
        if not 0 <= row < self.starts[-1]:
            raise IndexError(f"row {row} of {self.starts[-1]}")
        shard = int(np.searchsorted(self.starts, row, "right")) - 1
        return shard, row - int(self.starts[shard])

    def batch_rows(self, columns: Sequence[str], target: int) -> Ints:
        """Per shard, the batch rows of the largest part that holds any of `columns`; of none, all rows."""
        raw = self._largest(columns)
        sizes: Ints = batch_rows(self.rows, np.maximum(raw, 0), target)
        return np.where(raw < 0, self.rows, sizes)

    def sizes(self, columns: Sequence[str]) -> tuple[Ints, Ints]:
        """Per shard, stored and raw bytes of all parts that hold any of `columns`."""
        held = self._holding(columns)
        return self._sums(np.where(held, self._per.part_bytes, 0)), self._sums(
            np.where(held, self._per.part_raw, 0)
        )

    def digests(self, index: int, columns: Sequence[str] | None = None) -> list[str]:
        """The parts of a shard, or only those that hold any of `columns`."""
        parts = list(range(*self._part_starts[index : index + 2]))
        if columns is not None:
            held = self._groups_holding(columns)
            parts = [part for part in parts if held[self._per.part_group[part]]]
        return [self._per.part_digest[part].tobytes().hex() for part in parts]

    def every_digest(self) -> list[str]:
        """The parts of all shards in order; one that several have, as often."""
        text = self._per.part_digest.tobytes().hex()
        return [text[at : at + 64] for at in range(0, len(text), 64)]

    def held(self, columns: Sequence[str]) -> tuple[Ints, npt.NDArray[np.uint8], Ints]:
        """The parts that hold any of `columns`, shard by shard: digests [n, 32], bytes.

        Before both: where the parts of each shard begin among them, one longer.
        """
        chosen = self._holding(columns)
        firsts: Ints = np.concatenate([[0], np.cumsum(chosen)])[self._part_starts]
        return firsts, self._per.part_digest[chosen], self._per.part_bytes[chosen]

    def stats(self, column: str) -> pa.ChunkedArray:
        """Per shard, a struct of the column's `min, max, nulls, nans`; null where unknown."""
        return self._known_stats(column)

    # --- inside -------------------------------------------------------------------------------

    def _load(self) -> _Planning:
        loaded = [
            self._planning(decode_segment(data, ref, self.schema, _PLANNING), ref)
            for data, ref in zip(self._data, self.refs, strict=True)
        ]
        return _Planning(*(np.concatenate(found) for found in zip(_EMPTY, *loaded, strict=True)))

    def _planning(self, table: pa.Table, ref: SegmentRef) -> _Planning:
        what = f"segment {ref.digest[:12]}"
        lists = table["parts"].combine_chunks()
        parts = lists.flatten()
        if any(column.null_count for column in (table["rows"], table["raw_bytes"], lists, *parts.flatten())):
            raise FormatError(f"{what}: null in the description of a shard")
        rows, raw_bytes = table["rows"].to_numpy(), table["raw_bytes"].to_numpy()
        sizes, raw_sizes = (parts.field(name).to_numpy() for name in ("bytes", "raw_bytes"))
        if (rows < 1).any() or min(raw_bytes.min(), sizes.min(initial=0), raw_sizes.min(initial=0)) < 0:
            raise FormatError(f"{what}: a shard without rows, or of negative size")
        if (int(rows.sum()), int(raw_bytes.sum()), int(sizes.sum())) != (ref.rows, ref.raw_bytes, ref.bytes):
            raise FormatError(f"{what}: its shards do not add up to what the version says")
        digests = arrays.octets_of_equal_length(parts.field("digest"))
        groups = self._grouped(parts.field("fields"))
        return _Planning(rows, raw_bytes, np.diff(lists.offsets), sizes, raw_sizes, groups, digests)

    def _grouped(self, fields: pa.Array) -> np.ndarray:
        """The number of each list of names, of which there are few different ones."""
        if any("\0" in name for name in self.schema.names):
            names = pc.replace_substring(fields.values, "\0", "\0\1")
            fields = pa.ListArray.from_arrays(fields.offsets, names)
        joined = pc.binary_join(fields, "\0\2").dictionary_encode()
        numbers: npt.NDArray[np.int32] = np.empty(len(joined.dictionary), np.int32)
        for code, text in enumerate(joined.dictionary.to_pylist()):
            if text not in self._field_groups:
                self._field_groups[text] = len(self.fields)
                names = tuple(name.replace("\0\1", "\0") for name in text.split("\0\2")) if text else ()
                self.fields.append(names)
            numbers[code] = self._field_groups[text]
        groups: npt.NDArray[np.int32] = numbers[joined.indices.to_numpy()]
        return groups

    def _groups_holding(self, columns: Sequence[str]) -> npt.NDArray[np.bool_]:
        """Per list of fields, whether any of the columns is in it."""
        return np.array([not set(columns).isdisjoint(names) for names in self.fields], bool)

    def _holding(self, columns: Sequence[str]) -> npt.NDArray[np.bool_]:
        """Per part, whether it holds any of the columns."""
        held: npt.NDArray[np.bool_] = self._groups_holding(columns)[self._per.part_group]
        return held

    def _sums(self, values: Ints) -> Ints:
        """Per shard, the sum of what is given per part."""
        sums: Ints = np.diff(np.concatenate([[0], np.cumsum(values)])[self._part_starts])
        return sums

    def _largest(self, columns: Sequence[str]) -> Ints:
        """Per shard, raw bytes of the largest part that holds any of the columns; -1 if none does."""
        largest = np.full(len(self), -1, np.int64)
        some = self._part_starts[:-1] < self._part_starts[1:]
        if some.any():
            raw = np.where(self._holding(columns), self._per.part_raw, -1)
            largest[some] = np.maximum.reduceat(raw, self._part_starts[:-1][some])
        return largest

    def _stats(self, segment: int, column: str, type_: pa.DataType) -> pa.Array:
        ref = self.refs[segment]
        table = decode_segment(self._data[segment], ref, self.schema, [f"stats.{column}"])
        if "stats" in table.column_names:
            found = table["stats"].combine_chunks()
            at = found.type.get_field_index(column)
            if at >= 0:
                return found.field(at)
        return pa.nulls(ref.shards, type_)

    def _read_stats(self, column: str) -> pa.ChunkedArray:
        type_ = stats_of(self.schema, column)
        chunks = [self._stats(segment, column, type_) for segment in range(len(self.refs))]
        return pa.chunked_array(chunks, type_)

    def _read_group(self, segment: int, group: int) -> pa.Table:
        return decode_segment(self._data[segment], self.refs[segment], self.schema, row_groups=[group])

    def _read_run(self, segment: int, group: int, run: int) -> list[Shard]:
        return [
            self._checked(shard) for shard in shards_of(self._group(segment, group).slice(run * _RUN, _RUN))
        ]

    def _checked(self, shard: Shard) -> Shard:
        if self.target is not None:
            for part in shard.parts:
                if not fits(part, shard.rows, self.target):
                    found = f"{part.batches[0].rows:,} rows a batch"
                    raise FormatError(f"part {part.digest[:12]}: {found}, against the format's rule")
        return shard
