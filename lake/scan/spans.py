"""An epoch of a scan with a condition, planned as it goes: the first rows come before the last are looked for.

Only for one reader in stored order, whose batches may end where it pleases: nobody has to know how many rows
there will be. The next shards are looked at while those before them are read.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Final

import numpy as np

from lake import _threads
from lake.plan import EpochPlan
from lake.plan.permutation import Ints
from lake.scan.select import GROUP, Selected, Selecting, Stopped

_MOST: Final = 64  # spans of the largest size that an epoch is divided into, at least

Plan = Callable[[Selected, int | None], EpochPlan]


class Spans:
    """The plans of an epoch, one after the other. For one thread."""

    def __init__(self, selecting: Selecting, plan: Plan, limit: int | None) -> None:
        self.selecting = selecting
        self._plan, self._left = plan, limit
        self._spans = _spans(selecting.visible)
        self._coming: Ints | None = next(self._spans, None)
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def next(self) -> EpochPlan | None:
        """The plan of the next rows; None after the last."""
        while self._coming is not None and self._left != 0:
            if self._thread is not None:
                self._thread.join()
            if self._error is not None:
                raise self._error
            self.selecting.look(self._coming)  # nothing is left to do where the thread was
            found, self._coming = self._coming, next(self._spans, None)
            planned = self._plan(self.selecting.selected(found), self._left)
            if self._left is not None:
                self._left -= planned.rows
            if self._coming is not None and self._left != 0:
                self._thread = _threads.start("lake-look", self._look, self._coming)
            if planned.rows:
                return planned
        return None

    def close(self) -> None:
        """Look for nothing more."""
        self.selecting.stopped = True

    def _look(self, shards: Ints) -> None:
        try:
            self.selecting.look(shards)
        except Stopped:
            pass
        except BaseException as error:
            self._error = error


def _spans(visible: Ints) -> Iterator[Ints]:
    """Shards to be looked at together: one, the rest of its group, then ever more groups."""
    if not len(visible):
        return
    yield visible[:1]
    groups, rest = visible // GROUP, visible[1:]
    first, size = int(groups[0]) + 1, 1
    most = max(1, int(groups[-1]) // _MOST)
    same = rest[rest < first * GROUP]
    if len(same):
        yield same
    while first <= groups[-1]:
        span = rest[(rest >= first * GROUP) & (rest < (first + size) * GROUP)]
        if len(span):
            yield np.ascontiguousarray(span)
        first, size = first + size, min(2 * size, most)
