"""What differs between two versions: rows, columns, meta, bytes.

Rows are matched by key, as multisets where keys repeat, and compared in the columns that both versions have with
one type; their order does not count. Without a common key they are compared by content; without any such column all
rows of the one version are removed and all of the other added. Only shards that differ are read, and of those that
share a part with a shard of the other side, only the parts that they do not share.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lake.format.cuts import Hashes
from lake.format.fingerprints import combined, row_fingerprints
from lake.format.schema import stored_schema
from lake.format.values import Shard
from lake.snapshot import Snapshot

Ints: TypeAlias = npt.NDArray[np.int64]
PartId: TypeAlias = tuple[str, tuple[str, ...]]  # digest, and the compared columns in it


@dataclass(frozen=True, slots=True)
class Change:
    """A column or an entry of meta that differs. None: the version has none of that name."""

    name: str
    before: Any
    after: Any


@dataclass(frozen=True, eq=False)
class Rows:
    """Some rows of a version, counted; their keys are read when asked for."""

    snapshot: Snapshot = field(repr=False)
    key: str | None
    numbers: Ints = field(repr=False)  # ascending, in the version

    def __len__(self) -> int:
        return len(self.numbers)

    def keys(self) -> Iterator[Any]:
        """The keys in the version's order, read shard by shard; without a key the rows' numbers."""
        if self.key is None:
            yield from self.numbers.tolist()
            return
        for shard, rows in _by_shard(self.snapshot, self.numbers):
            yield from self.snapshot.reader.rows(shard, rows, [self.key]).column(0).to_pylist()


@dataclass(frozen=True, eq=False)
class Diff:
    """What a version has and another has not. False if nothing differs.

    `added` and `changed` are rows of the later version, `removed` of the earlier; `bytes` are the stored bytes of
    parts that only the later one has.
    """

    added: Rows
    removed: Rows
    changed: Rows
    schema: tuple[Change, ...]
    meta: tuple[Change, ...]
    bytes: int

    def __bool__(self) -> bool:
        return bool(self.schema or self.meta or len(self.added) + len(self.removed) + len(self.changed))


def diff(before: Snapshot, after: Snapshot) -> Diff:
    """What differs from the version `before` to the version `after`, which may be of different datasets."""
    old, new = before.document, after.document
    key = old.key if old.key == new.key else None
    old_types, new_types = stored_schema(old.schema), stored_schema(new.schema)
    both = [name for name in old_types.names if name in new_types.names]
    compared = [name for name in both if old_types.field(name).type == new_types.field(name).type]
    key = key if key in compared else None
    if compared:
        removed, added, changed = _differing(_Side(before, compared, key), _Side(after, compared, key))
    else:
        removed, added, changed = np.arange(old.rows), np.arange(new.rows), np.arange(0)
    return Diff(
        added=Rows(after, key, added),
        removed=Rows(before, key, removed),
        changed=Rows(after, key, changed),
        schema=_changes(_columns(old.schema), _columns(new.schema)),
        meta=_changes(old.meta or {}, new.meta or {}),
        bytes=_new_bytes(before, after),
    )


def _columns(schema: pa.Schema) -> dict[str, str]:
    return {each.name: f"{each.type}{'' if each.nullable else ' not null'}" for each in schema}


def _changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[Change, ...]:
    names = dict.fromkeys([*before, *after])
    found = (Change(name, before.get(name), after.get(name)) for name in names)
    return tuple(
        one for one in found if one.before != one.after or (one.name in before) != (one.name in after)
    )


def _new_bytes(before: Snapshot, after: Snapshot) -> int:
    same = _shared(before, after)
    fresh = {one.digest: one.bytes for _, shard in _shards(after, same) for one in shard.parts}
    known = set(before.manifest.every_digest())
    return sum(size for digest, size in fresh.items() if digest not in known)


def _shards(snapshot: Snapshot, without: Iterable[str]) -> Iterator[tuple[int, Shard]]:
    """The shards and their first rows, but for those of some segments."""
    manifest, start = snapshot.manifest, 0
    for ref in manifest.refs:
        if ref.digest not in without:
            firsts = manifest.starts[start : start + ref.shards].tolist()
            yield from zip(firsts, manifest.shards(start, start + ref.shards), strict=True)
        start += ref.shards


def _by_shard(snapshot: Snapshot, numbers: Ints) -> Iterator[tuple[Shard, Ints]]:
    """The shards that hold these rows, ascending, and the rows counted from each one's first."""
    starts = snapshot.manifest.starts
    places = np.searchsorted(starts, numbers, "right") - 1
    for place in np.unique(places).tolist():
        yield snapshot.manifest.shard(place), numbers[places == place] - starts[place]


# --- rows that differ -------------------------------------------------------------------------


class _One:
    """A shard of one side."""

    def __init__(self, first: int, shard: Shard, compared: frozenset[str]) -> None:
        self.first, self.shard = first, shard
        parts = ((one.digest, tuple(name for name in one.fields if name in compared)) for one in shard.parts)
        self.parts: frozenset[PartId] = frozenset(one for one in parts if one[1])

    @cached_property
    def identity(self) -> tuple[int, frozenset[PartId]]:
        """Equal for shards of the same rows."""
        return self.shard.rows, self.parts


class _Taken(NamedTuple):
    """Rows of one side that the other side may not have, as fingerprints."""

    keys: Hashes
    content: Hashes
    numbers: Ints
    whole: npt.NDArray[np.bool_]  # whether `content` is of all compared columns


class _Side:
    """One of the versions."""

    def __init__(self, snapshot: Snapshot, compared: Sequence[str], key: str | None) -> None:
        self.snapshot, self.compared, self.key = snapshot, list(compared), key
        self._taken: list[_Taken] = []

    def shards(self, without: Iterable[str]) -> list[_One]:
        """The shards, but for those of some segments."""
        return [
            _One(first, shard, frozenset(self.compared)) for first, shard in _shards(self.snapshot, without)
        ]

    def look(self, shard: Shard, columns: Sequence[str], rows: Ints | None = None) -> Hashes:
        """What these columns hold in these rows of a shard, or in all."""
        wanted = [(0, shard.rows)] if rows is None else rows
        read = self.snapshot.reader.read(shard, columns, wanted)
        count = shard.rows if rows is None else len(rows)
        return row_fingerprints([[chunk.array for chunk in chunks] for chunks in read], count)

    def take(self, one: _One) -> None:
        """Take in a shard's rows."""
        content = self.look(one.shard, self.compared)
        keys = content if self.key is None else self.look(one.shard, [self.key])
        self._take(keys, content, one.first + np.arange(one.shard.rows), whole=True)

    def take_rows(self, one: _One, rows: Ints, content: Hashes) -> None:
        """Take in rows of a shard, of which not all columns were looked at."""
        assert self.key is not None
        self._take(self.look(one.shard, [self.key], rows), content, one.first + rows, whole=False)

    def taken(self) -> _Taken:
        """All rows that were taken in."""
        none = np.empty(0, np.uint64)
        empty = _Taken(none, none, none.astype(np.int64), none.astype(np.bool_))
        return _Taken(*map(np.concatenate, zip(empty, *self._taken, strict=True)))

    def settled(self, taken: _Taken, repeated: Hashes) -> _Taken:
        """The same, with all columns looked at where a key comes again, so that its rows can be told apart."""
        again = np.flatnonzero(~taken.whole & np.isin(taken.keys, repeated))
        again = again[np.argsort(taken.numbers[again])]
        content = taken.content.copy()
        looked = [
            self.look(shard, self.compared, rows)
            for shard, rows in _by_shard(self.snapshot, taken.numbers[again])
        ]
        content[again] = np.concatenate([content[:0], *looked])
        return taken._replace(content=content)

    def _take(self, keys: Hashes, content: Hashes, numbers: Ints, *, whole: bool) -> None:
        self._taken.append(_Taken(keys, content, numbers, np.full(len(keys), whole)))


def _differing(old: _Side, new: _Side) -> tuple[Ints, Ints, Ints]:
    """Rows removed (of the old side), added and changed (of the new), ascending."""
    same = _shared(old.snapshot, new.snapshot)
    _take_in(old, new, *_sifted(old.shards(same), new.shards(same)))
    left, right = old.taken(), new.taken()
    repeated = np.concatenate([left.keys[_turns(left.keys) > 0], right.keys[_turns(right.keys) > 0]])
    left, right = old.settled(left, repeated), new.settled(right, repeated)
    gone, come = _unmatched(combined(left.keys, left.content), combined(right.keys, right.content))
    removed, added = _unmatched(left.keys[gone], right.keys[come])
    changed = np.delete(come, added)
    return (
        np.sort(left.numbers[gone[removed]]),
        np.sort(right.numbers[come[added]]),
        np.sort(right.numbers[changed]),
    )


def _shared(before: Snapshot, after: Snapshot) -> set[str]:
    """The segments that both versions have, equally often."""
    old, new = (Counter(ref.digest for ref in each.document.segments) for each in (before, after))
    return {digest for digest, count in old.items() if new[digest] == count}


def _sifted(old: Sequence[_One], new: Sequence[_One]) -> tuple[list[_One], list[_One]]:
    """The shards of each side that the other does not have."""
    common = Counter(one.identity for one in old) & Counter(one.identity for one in new)

    def rest(shards: Sequence[_One]) -> Iterator[_One]:
        left = common.copy()
        for one in shards:
            if not left[one.identity]:
                yield one
            left[one.identity] -= left[one.identity] > 0

    return list(rest(old)), list(rest(new))


def _take_in(old: _Side, new: _Side, left: Sequence[_One], right: Sequence[_One]) -> None:
    """Take in the rows of these shards, but for those that two shards with a part in common show to be equal."""
    waiting = dict(enumerate(left))
    by_part = {part: number for number, one in waiting.items() for part in one.parts}
    for one in right:
        number = next((by_part[part] for part in one.parts if by_part.get(part) in waiting), None)
        if number is not None and _take_pair(old, new, waiting[number], one):
            del waiting[number]
        else:
            new.take(one)
    for other in waiting.values():
        old.take(other)


def _take_pair(old: _Side, new: _Side, left: _One, right: _One) -> bool:
    """Take in the rows in which two shards with a part in common differ; False if their keys are not the same."""
    if old.key is None or left.shard.rows != right.shard.rows:
        return False
    shared = {name for _, names in left.parts & right.parts for name in names}
    if old.key not in shared and not np.array_equal(
        old.look(left.shard, [old.key]), new.look(right.shard, [old.key])
    ):
        return False
    apart = [name for name in old.compared if name not in shared and name != old.key]
    was, now = old.look(left.shard, apart), new.look(right.shard, apart)
    rows = np.flatnonzero(was != now)
    if len(rows):
        old.take_rows(left, rows, was[rows])
        new.take_rows(right, rows, now[rows])
    return True


def _unmatched(left: Hashes, right: Hashes) -> tuple[Ints, Ints]:
    """Where each side has a value that the other has not, or not as often: then the last of them."""
    mine, theirs = (combined(side, _turns(side).astype(np.uint64)) for side in (left, right))
    return np.flatnonzero(~np.isin(mine, theirs)), np.flatnonzero(~np.isin(theirs, mine))


def _turns(values: Hashes) -> Ints:
    """How many equal values come before each."""
    order = np.argsort(values, kind="stable")
    ascending = values[order]
    places = np.arange(len(values))
    firsts = np.maximum.accumulate(np.where(np.diff(ascending, prepend=ascending[:1] + 1) != 0, places, 0))
    turns = np.empty_like(places)
    turns[order] = places - firsts
    return turns
