"""Which files go first when room is needed: a pure function of what is cached and what the live plans need.

A plan says in which order it uses files. So instead of guessing from the past, as least-recently-used does
(which on a cyclic scan a little larger than the cache gets every guess wrong), eviction looks ahead:

1. what no live plan needs, least recently used first;
2. what every live plan has already used this epoch, first what the next epochs come back to last. A plan whose
   next epoch is not known is taken to repeat this one: newest first;
3. small documents (segments of manifests), least recently used first, up to an eighth of the budget; beyond
   that they count as 1;
4. what a plan needs later than the file that room is made for, and beyond its resident window: latest first. But
   the foremost of a group takes nothing that is needed: it waits for the hindmost rather than fetch twice.

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

    def until(self, wanted: Prefixes, position: int) -> Ints:
        """For each file, bytes of the files from `position` to its next use; NEVER: there is none."""
        if not len(self):
            return np.full(len(wanted), NEVER, np.int64)
        which = np.minimum(np.searchsorted(self._distinct, wanted), len(self._distinct) - 1)
        at = np.searchsorted(self._places, which * self._span + position)
        found = self._places[np.minimum(at, len(self) - 1)]
        used = (self._distinct[which] == wanted) & (at < len(self)) & (found // self._span == which)
        position = min(position, len(self))
        return np.where(used, self.starts[found % self._span] - self.starts[position], NEVER)


@dataclass(frozen=True, slots=True)
class Group:
    """The live scans of one plan: where the hindmost of them stands, and what they were promised.

    `epochs` are those that some member is in, oldest first; the hindmost is at `position` of the first.
    `following` is the epoch after them, where it is known. `spread`: some are ahead of the hindmost.
    """

    epochs: tuple[Needs, ...]
    position: int
    resident: int  # bytes
    following: Needs | None = None
    spread: bool = False

    def uses(self, files: Prefixes) -> tuple[Ints, Ints]:
        """For each file, bytes of reading until its next use in these epochs, and in the one after them; or NEVER."""
        ahead, done, position = np.full(len(files), NEVER, np.int64), 0, self.position
        for needs in self.epochs:
            ahead = np.minimum(ahead, _later(needs.until(files, position), done))
            done += int(needs.starts[-1]) - needs.before(position)
            position = 0
        following = self.epochs[-1] if self.following is None else self.following
        return ahead, _later(following.until(files, 0), done)


def horizon(key: str, size: int, groups: Sequence[Group]) -> int:
    """What a plan needs so many bytes of reading ahead, or sooner, stays if room is made for this file.

    That is until the file itself is used; NEVER where those who use it first may wait for others of their group;
    -1 where it may not wait: somebody's window has it, or it is in no plan.
    """
    wanted = np.array([prefix(key)], np.uint64)
    uses = [(int(group.uses(wanted)[0][0]), group) for group in groups]
    if any(until != NEVER and until + size <= group.resident for until, group in uses):
        return -1
    soonest, first = min(uses, key=lambda use: use[0], default=(NEVER, None))
    if first is None or soonest == NEVER:
        return -1
    return NEVER if first.spread else soonest


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

    `horizon`: what a plan needs so many bytes of reading ahead, or sooner, stays.
    """
    ahead = np.full(len(files), NEVER, np.int64)
    later = np.full(len(files), NEVER, np.int64)
    promised = np.zeros(len(files), np.bool_)
    for group in groups:
        until, again = group.uses(files)
        ahead, later = np.minimum(ahead, until), np.minimum(later, again)
        promised |= (until != NEVER) & (until + sizes <= group.resident)
    rank = np.where(later == NEVER, 1, 2)
    rank[documents & _newest(sizes, used, documents, documents_limit)] = 3
    rank[ahead != NEVER] = 4
    order = np.select([rank == 2, rank == 4], [-later.astype(np.float64), -ahead.astype(np.float64)], used)
    may_go = (rank != 4) | ((ahead > horizon) & ~promised)
    chosen = np.lexsort((order, rank))
    chosen = chosen[may_go[chosen]]
    return chosen, int((rank[chosen] < 4).sum())


def _later(until: Ints, by: int) -> Ints:
    return np.where(until == NEVER, NEVER, until + by)


def _newest(
    sizes: Ints, used: NDArray[np.float64], documents: NDArray[np.bool_], limit: int
) -> NDArray[np.bool_]:
    """The documents that fit `limit` bytes, the most recently used of them first."""
    order = np.argsort(-used, kind="stable")
    total = np.cumsum(np.where(documents[order], sizes[order], 0))
    keep = np.empty(len(sizes), np.bool_)
    keep[order] = total <= limit
    return keep
