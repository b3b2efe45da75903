"""The stored copies of parts, and the bytes in them. What a store does not answer at once is asked for again."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Final

from lake.cache import Slots
from lake.cache.holds import Hold
from lake.errors import IntegrityError, NotFoundError, StoreError
from lake.format import names
from lake.format.values import Part
from lake.parts.meter import Meter
from lake.refs import generations
from lake.stores.base import Store

ATTEMPTS: Final = 6
_FIRST_PAUSE: Final = 0.1  # seconds, doubled each time and spread by chance
_LONGEST_PAUSE: Final = 5.0


class Copies:
    """Reads bytes of parts from a store: from the first copy that is there and not known to be damaged. Thread-safe.

    `slots`: a request waits for one.
    """

    def __init__(self, store: Store, slots: Slots | None = None) -> None:
        self.store, self._slots = store, slots
        self._damaged: set[str] = set()
        self._lock = threading.Lock()

    def keys(self, one: Part) -> Iterator[str]:
        """Where copies of a part may be: its own key, then, at the cost of one LIST, the others."""
        keys = names.part_keys(one.digest)
        if keys(0) not in self._damaged:
            yield keys(0)
        for copy in generations(self.store, keys):
            if copy.key not in self._damaged:
                yield copy.key

    def avoid(self, one: Part) -> bool:
        """Whether the part has a further copy: the first, found damaged, is not read any more then."""
        found = [key for key in self.keys(one) if self.store.head(key) is not None]
        if len(found) < 2:
            return False
        with self._lock:
            self._damaged.add(found[0])
        return True

    def read(self, one: Part, start: int, length: int, meter: Meter) -> bytes:
        """Bytes of a part.

        Raises:
            StoreError: the store does not give them.
            IntegrityError: it has no copy.
        """
        buffer = bytearray(length)
        self.read_into(one, start, memoryview(buffer), meter)
        return bytes(buffer)

    def read_into(
        self,
        one: Part,
        start: int,
        buffer: memoryview,
        meter: Meter,
        given_up: Callable[[], bool] = bool,
        sent: Callable[[Hold | None], object] = bool,
    ) -> None:
        """Fill `buffer` with the bytes from `start`.

        `given_up` is asked before each attempt but the first; `sent` is called as a request sets out, with the slot
        that it takes.
        """
        for attempt in range(ATTEMPTS):
            try:
                return self._read_once(one, start, buffer, meter, sent)
            except StoreError as error:
                if not error.retryable or attempt == ATTEMPTS - 1 or given_up():
                    raise
            time.sleep(random.uniform(0.5, 1) * min(_LONGEST_PAUSE, _FIRST_PAUSE * 2**attempt))
        raise AssertionError

    def _read_once(
        self,
        one: Part,
        start: int,
        buffer: memoryview,
        meter: Meter,
        sent: Callable[[Hold | None], object],
    ) -> None:
        for key in self.keys(one):
            meter.add(requests=1)
            try:
                with self._slots.one() if self._slots else nullcontext() as slot:
                    sent(slot)
                    count = self.store.get_into(key, start, buffer)
            except NotFoundError:
                continue
            meter.add(bytes_fetched=count)
            if count < len(buffer):
                what = f"{key} in {self.store.url}: {count:,} of {len(buffer):,} bytes from {start:,}"
                stored = self.store.head(key)
                if stored is not None and stored.size != one.bytes:  # it is the object that is short
                    raise IntegrityError(f"{what}; it has {stored.size:,}", digest=one.digest)
                raise StoreError(what, retryable=True)
            return
        raise IntegrityError(f"no copy of it in {self.store.url}", digest=one.digest)
