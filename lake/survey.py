"""Everything that a store holds, by what it is to those who collect or verify a whole lake."""

from __future__ import annotations

from dataclasses import dataclass, field

from lake.format import names
from lake.stores.base import LEASE_KEY, Object, Store

BLOBS = ("version", "segment", "part")  # kinds of objects that are named by their own digest


@dataclass
class Survey:
    """Everything stored, by what it is to a collector."""

    now: float  # by the store's clock, before anything was listed
    blobs: dict[str, list[Object]] = field(default_factory=dict)  # stem -> copies
    tmp: list[Object] = field(default_factory=list)
    lists: dict[str, Object] = field(default_factory=dict)  # run -> its list
    claimed: set[str] = field(default_factory=set)  # runs
    swept: dict[str, Object] = field(default_factory=dict)  # run -> its marker
    damaged: list[Object] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, store: Store) -> Survey:
        """What one LIST of the whole store shows."""
        found = cls(store.now())
        for stored in store.list():
            found._add(stored)
        return found

    def _add(self, stored: Object) -> None:
        parsed = names.parse_key(stored.key)
        if parsed is None:
            if stored.key != LEASE_KEY:
                self.foreign.append(stored.key)
        elif parsed.kind in BLOBS:
            self.blobs.setdefault(names.stem(stored.key), []).append(stored)
        elif parsed.kind in ("tmp", "damaged"):
            getattr(self, parsed.kind).append(stored)
        elif parsed.run is not None and parsed.kind == "claimed":
            self.claimed.add(parsed.run)
        elif parsed.run is not None:
            (self.lists if parsed.kind == "condemned" else self.swept)[parsed.run] = stored

    @property
    def bytes(self) -> int:
        """Of all copies of version documents, segments and parts."""
        return sum(copy.size for copies in self.blobs.values() for copy in copies)

    def age(self, stored: Object) -> float:
        """Seconds since the object was written; 0 where the clock was set back since."""
        return max(0.0, self.now - stored.modified)


def copies_of(store: Store, stem: str) -> list[Object]:
    """Every stored copy of an object; costs one LIST."""
    return [found for found in store.list(stem + ".") if names.parse_key(found.key) is not None]
