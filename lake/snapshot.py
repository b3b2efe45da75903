"""One version of a dataset, open for reading: what a scan, a look-up or a query is made of."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Final

from lake.asked import listed
from lake.cache import Cache
from lake.errors import IntegrityError
from lake.format.manifest import Manifest
from lake.format.values import LogEntry, Shard, VersionDocument
from lake.parts import PartReader
from lake.refs import BlobCache, Refs
from lake.stores.base import Store

_SHARDS: Final = 1024  # descriptions kept, of some 10 kB each: shuffles and epochs come back to them


@dataclass(frozen=True)
class Version:
    """What a call that made or found a version returns.

    `bytes` are the stored bytes of its shards, of which the call that made it wrote `bytes_new` and found
    `bytes_reused` in place.
    """

    name: str
    id: str
    data: str  # digest of the logical content: equal data, equal text
    seq: int
    rows: int
    shards: int
    bytes: int
    bytes_new: int
    bytes_reused: int

    @classmethod
    def of(cls, name: str, entry: LogEntry, document: VersionDocument) -> Version:
        """The version that a log entry made."""
        assert entry.version is not None
        return cls(
            name=name,
            id=entry.version,
            data=document.data,
            seq=entry.seq,
            rows=document.rows,
            shards=document.shards,
            bytes=document.bytes,
            bytes_new=entry.bytes_new,
            bytes_reused=entry.bytes_reused,
        )


@dataclass(frozen=True, eq=False)
class Snapshot:
    """A version with what it takes to read it. Pickles small: a process that gets it reads documents itself."""

    refs: Refs
    cache: Cache | None  # None where the lake's folder is read in place
    name: str
    entry: LogEntry

    @property
    def version(self) -> str:
        """The version id."""
        assert self.entry.version is not None
        return self.entry.version

    @property
    def label(self) -> str:
        """The dataset and version, as messages name them."""
        return f"{self.name}@#{self.entry.seq}"

    @cached_property
    def document(self) -> VersionDocument:
        """The version document."""
        return self.refs.version(self.name, self.version)

    def columns(self, asked: Sequence[str] | None) -> list[str]:
        """The columns asked for, all without a choice.

        Raises:
            TypeError: no list.
            ValueError: unknown ones, one twice, or none.
        """
        names = self.document.schema.names
        found = names if asked is None else listed("columns", asked)
        known = set(names)
        if unknown := [name for name in found if name not in known]:
            raise ValueError(f"no column {unknown[0]!r} in {self.name!r}; there are {', '.join(names)}")
        if len(set(found)) < len(found) or not found:
            raise ValueError(f"columns are different names, at least one: {found}")
        return found

    @cached_property
    def manifest(self) -> Manifest:
        """The version's shards."""
        return self.refs.manifest(self.document)

    @cached_property
    def shard(self) -> Callable[[int], Shard]:
        """What the manifest says of a shard, by number; those asked for last are kept."""
        return lru_cache(maxsize=_SHARDS)(self.manifest.shard)

    @cached_property
    def reader(self) -> PartReader:
        """What reads its parts."""
        return PartReader(self.refs, self.document, self.cache)

    @contextmanager
    def located(self, shard: int) -> Iterator[None]:
        """Say of damage that is found meanwhile in which shard it is, and what can be done."""
        try:
            yield
        except IntegrityError as error:
            first, end = self.manifest.starts[shard : shard + 2].tolist()
            where = f"part {error.digest[:12]} of {self.label}, shard {shard:,}, rows {first:,}-{end - 1:,}"
            raise IntegrityError(f"{where}: {error}: lake repair {self.name}", digest=error.digest) from error

    def __reduce__(self) -> tuple[object, ...]:
        return _reopened, (self.refs.store, self.refs.cache, self.cache, self.name, self.entry)


def _reopened(
    store: Store, documents: BlobCache | None, cache: Cache | None, name: str, entry: LogEntry
) -> Snapshot:
    return Snapshot(Refs(store, documents), cache, name, entry)
