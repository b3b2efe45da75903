"""How many requests are under way at once on this machine, whatever processes they are of.

A request holds one of a few files while it lasts, so what a killed process held is free at once. Whoever finds
none free waits at the gate, in the kernel's queue, and only who is first there looks again and again: a crowd
costs no processor time, nobody overtakes, and a request that hangs holds up no more than its own place.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from lake.cache import holds
from lake.cache.home import Home

_LONGEST_PAUSE: Final = 0.004  # seconds between two looks of the first in the queue


class Slots:
    """`limit` slots in one cache directory. Thread-safe."""

    def __init__(self, home: Home, limit: int) -> None:
        self._home, self._limit = home, limit
        self._turns = itertools.count()

    @contextmanager
    def one(self) -> Iterator[holds.Hold]:
        """Hold a slot for as long as this lasts, or until the hold is closed; waits until there is one."""
        try:
            hold = self._taken()
        except FileNotFoundError:  # somebody removed the directory
            self._home.claim()
            hold = self._taken()
        with hold:
            yield hold

    def _taken(self) -> holds.Hold:
        with holds.queue(self._home.slot("gate")):
            for pause in holds.pauses(longest=_LONGEST_PAUSE):
                for _ in range(self._limit):  # from where the last was found: others are likely taken
                    number = next(self._turns) % self._limit
                    hold = holds.take(self._home.slot(str(number)), exclusive=True, create=True)
                    if hold is not None:
                        return hold
                time.sleep(pause)
        raise AssertionError
