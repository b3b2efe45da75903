"""Which files go first when room is needed: a pure function of what is cached and what the live plans need.

A plan says in which order it uses files. So instead of guessing from the past, as least-recently-used does
(which on a cyclic scan a little larger than the cache gets every guess wrong), eviction looks ahead:

1. what no live plan needs, least recently used first;
2. what every live plan has already used this epoch, newest first: it comes back last;
3. small documents (segments of manifests), least recently used first, up to an eighth of the budget; beyond
   that they count as 1;
4. what a plan needs later than the file that room is made for, and beyond its resident window: latest first.

The rest stays: it is in the window that some reservation was promised, or needed sooner than the newcomer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Prefixes = NDArray[np.uint64]  # the first 8 bytes of each digest

NEVER: Final = np.iinfo(np.int64).max
DOCUMENTS_SHARE: Final = 8  # documents are kept within a budget / 8


def prefix(key: str) -> int:
    """The first 8 bytes of a digest as a number."""
    return int(key[:16], 16)


class Needs:
    """The files that a plan uses in one epoch, in the order in which it is done with them.

    >>> needs = Needs.of([("a" * 64, 10), ("b" * 64, 20), ("a" * 64, 10)])
    >>> len(needs), needs.starts.tolist()
    (3, [0, 10, 30, 40])
    """

    def __init__(self, prefixes: Prefixes, sizes: Ints) -> None:
        if len(prefixes) != len(sizes):
            raise ValueError(f"{len(prefixes)} digests, {len(sizes)} sizes")
        self.prefixes, self.sizes = prefixes, sizes
        self.starts: Ints = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes, dtype=np.int64)])
        self._distinct, which = np.unique(prefixes, return_inverse=True)
        self._span = len(prefixes) + 1
        self._places: Ints = np.sort(which.astype(np.int64) * self._span + np.arange(len(prefixes)))

    @classmethod
    def of(cls, files: Needs | Iterable[tuple[str, int]]) -> Needs:
        """From (digest, bytes) pairs."""
        if isinstance(files, Needs):
            return files
        pairs = list(files)
        prefixes = np.fromiter((prefix(digest) for digest, _ in pairs), np.uint64, len(pairs))
        return cls(prefixes, np.fromiter((size for _, size in pairs), np.int64, len(pairs)))

    def __len__(self) -> int:
        return len(self.prefixes)

    def before(self, position: int) -> int:
        """Bytes of the files before `position`."""
        return int(self.starts[min(position, len(self))])

    def around(self, wanted: Prefixes, position: int) -> tuple[Ints, Ints]:
        """For each file, where it is used last before `position`, and next from there on; -1: not at all."""
        if not len(self):
            nowhere = np.full(len(wanted), -1, np.int64)
            return nowhere, nowhere
        which = np.minimum(np.searchsorted(self._distinct, wanted), len(self._distinct) - 1)
        known = self._distinct[which] == wanted
        at = np.searchsorted(self._places, which * self._span + position)
        before = self._places[np.maximum(at - 1, 0)]
        after = self._places[np.minimum(at, len(self) - 1)]
        last = np.where(known & (at > 0) & (before // self._span == which), before % self._span, -1)
        next_ = np.where(known & (at < len(self)) & (after // self._span == which), after % self._span, -1)
        return last.astype(np.int64), next_.astype(np.int64)


@dataclass(frozen=True, slots=True)
class Group:
    """The live scans of one plan: where the hindmost of them stands, and what they were promised.

    `epochs` are those that some member is in, oldest first; the hindmost is at `position` of the first.
    """

    epochs: tuple[Needs, ...]
    position: int
    resident: int  # bytes

    def uses(self, files: Prefixes) -> tuple[Ints, Ints]:
        """For each file, bytes since its last use and bytes until its next; NEVER where there is none."""
        behind = np.full(len(files), NEVER, np.int64)
        ahead = np.full(len(files), NEVER, np.int64)
        done = 0
        for epoch, needs in enumerate(self.epochs):
            position = min(self.position, len(needs)) if epoch == 0 else 0
            here = needs.starts[position]
            last, next_ = needs.around(files, position)
            behind = np.where(last >= 0, np.minimum(behind, here - needs.starts[last]), behind)
            ahead = np.where(next_ >= 0, np.minimum(ahead, done + needs.starts[next_] - here), ahead)
            done += int(needs.starts[-1] - here)
        return behind, ahead


def horizon(key: str, size: int, groups: Sequence[Group]) -> int:
    """How many bytes of reading lie before the file is used; -1 if it may not wait.

    It may wait where only plans ask for it, and all of them beyond their windows.
    """
    wanted = np.array([prefix(key)], np.uint64)
    ahead = [(int(group.uses(wanted)[1][0]), group.resident) for group in groups]
    if any(until != NEVER and until + size <= resident for until, resident in ahead):
        return -1
    soonest = min((until for until, _ in ahead), default=NEVER)
    return -1 if soonest == NEVER else soonest


def victims(
    files: Prefixes,
    sizes: Ints,
    used: NDArray[np.float64],
    documents: NDArray[np.bool_],
    groups: Sequence[Group],
    *,
    horizon: int = -1,
    documents_limit: int = NEVER,
) -> tuple[Ints, int]:
    """Which files may go, as indices in the order in which they should, and how many of them are not needed.

    `horizon`: bytes of reading before the newcomer is used; what a plan needs sooner than that stays.
    """
    behind = np.full(len(files), NEVER, np.int64)
    ahead = np.full(len(files), NEVER, np.int64)
    promised = np.zeros(len(files), np.bool_)
    for group in groups:
        since, until = group.uses(files)
        behind, ahead = np.minimum(behind, since), np.minimum(ahead, until)
        promised |= (until != NEVER) & (until + sizes <= group.resident)
    rank = np.where(behind == NEVER, 1, 2)
    rank[documents & _newest(sizes, used, documents, documents_limit)] = 3
    rank[ahead != NEVER] = 4
    order = np.select([rank == 2, rank == 4], [behind.astype(np.float64), -ahead.astype(np.float64)], used)
    may_go = (rank != 4) | ((ahead > horizon) & ~promised)
    chosen = np.lexsort((order, rank))
    chosen = chosen[may_go[chosen]]
    return chosen, int((rank[chosen] < 4).sum())


def _newest(
    sizes: Ints, used: NDArray[np.float64], documents: NDArray[np.bool_], limit: int
) -> NDArray[np.bool_]:
    """The documents that fit `limit` bytes, the most recently used of them first."""
    order = np.argsort(-used, kind="stable")
    total = np.cumsum(np.where(documents[order], sizes[order], 0))
    keep = np.empty(len(sizes), np.bool_)
    keep[order] = total <= limit
    return keep
