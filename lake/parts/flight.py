"""A part on its way into the cache, of which record batches can be had before it is whole.

One process of the machine fetches it; in the others a flight only waits. Bytes that are needed now come before
those that will be; a request that hangs is sent again, and the first answer counts. What hangs is given up: it
takes no thread and no slot from others, though its connection stays open until it is answered or times out.
"""

from __future__ import annotations

import atexit
import math
import os
import threading
import time
import weakref
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from lake import _threads
from lake.cache import Lease, Pieces
from lake.cache.holds import Hold
from lake.format.values import Part
from lake.parts.copies import Copies
from lake.parts.meter import Meter
from lake.parts.workers import URGENT, Work, Workers

REQUEST_BYTES: Final = 8 * 2**20  # of one for what is not needed now, about; Amazon's guidelines say 8 to 16

_HEDGED_SHARE: Final = 20  # at most one request of so many is sent twice
_SLOW: Final = 3  # times the 95th percentile of recent requests
_SLOW_SECONDS: Final = 0.5  # below which nothing is slow, and between two looks
_UNKNOWN_SECONDS: Final = 5.0  # above which a request is slow where none was answered yet
_REQUEST_COST: Final = 2**20  # bytes that a request is worth, besides its own

_ELSEWHERE_SECONDS: Final = 0.05  # after which a part that nobody here fetches is another process's to fetch

_ABSENT, _ASKED, _HERE = range(3)


class _Cancelled(Exception):
    """Nobody wants the part any more."""


class Pace:
    """How long requests take, and which are slow. Thread-safe."""

    def __init__(self) -> None:
        self._recent: deque[float] = deque(maxlen=200)  # seconds for each byte of cost
        self._asked = self._hedged = 0
        self._lock = threading.Lock()

    def note(self, size: int, seconds: float) -> None:
        """A request was answered."""
        with self._lock:
            self._asked += 1
            self._recent.append(seconds / (size + _REQUEST_COST))

    def is_slow(self, size: int, seconds: float) -> bool:
        """Whether a request that has taken so long should be sent again; it then counts as sent."""
        with self._lock:
            if seconds < _SLOW_SECONDS or self._hedged * _HEDGED_SHARE > self._asked:
                return False
            most = _UNKNOWN_SECONDS
            if self._recent:
                usual = sorted(self._recent)[len(self._recent) * 95 // 100]
                most = _SLOW * usual * (size + _REQUEST_COST)
            if seconds < most:
                return False
            self._hedged += 1
            return True


@dataclass(eq=False)
class _Request:
    """Bytes of neighbouring segments that were asked for."""

    segments: range
    start: int
    length: int
    since: float = math.inf  # when it was sent last
    thread: threading.Thread | None = None  # by whom
    slot: Hold | None = None  # and what it takes of those that the machine has


class Flight:
    """One part being fetched into the cache, for as long as somebody wants it.

    `bring(fetch)` gives the lease; if the part is not in the cache, it calls `fetch` with a place for the bytes.
    `landed` is called once, in the flight's own thread, with the lease or the error that it ended with.
    """

    def __init__(
        self,
        one: Part,
        copies: Copies,
        workers: Workers,
        pace: Pace,
        meter: Meter,
        landed: Callable[[Flight, Lease | None, BaseException | None], None],
        *,
        priority: int,
        bring: Callable[[Callable[[Pieces], object]], Lease],
    ) -> None:
        self.part, self.pid = one, os.getpid()
        self._copies, self._workers, self._pace = copies, workers, pace
        self._meter, self._landed, self._priority, self._bring = meter, landed, priority, bring
        self._starts = [
            0,
            *(batch.offset for batch in one.batches[1:]),
            one.bytes,
        ]  # of segments: one a batch
        self._states = bytearray(len(one.batches))
        self._requests: list[_Request] = []
        self._early = set[int]()  # segments that are needed first
        self._sink: Pieces | None = None
        self._readers = 0
        self._error: BaseException | None = None
        self._over = self._cancelled = False
        self._turn = threading.Condition()

    def begin(self) -> None:
        """Start fetching."""
        _begun.add(self)
        _threads.start("lake-fetch", self._run)

    def cancel(self) -> None:
        """Nobody wants it any more."""
        with self._turn:
            self._cancelled = True
            self._turn.notify_all()

    def wait(self) -> None:
        """Have the part here as soon as can be; raises what it ended with otherwise."""
        with self._turn:
            while not self._over:
                if self._sink is not None:
                    self._ask_for(self._sink, range(len(self._states)))
                self._await()
            if self._error is not None:
                raise self._error

    def ask(self, indices: Iterable[int]) -> None:
        """Have these record batches here as soon as can be, and wait for nothing."""
        with self._turn:
            if self._sink is None:
                self._early.update(indices)
            else:
                self._ask_for(self._sink, sorted(indices))

    def batches(self, indices: Sequence[int]) -> list[bytes] | None:
        """The bytes of these record batches, asked for at once if they are not here; None: the part has landed.

        Raises:
            LakeError: what the flight ended with.
        """
        with self._turn:
            while not self._over:
                if self._sink is not None:
                    self._ask_for(self._sink, indices)
                    if all(self._states[index] == _HERE for index in indices):
                        break
                self._await()
            if self._over or self._sink is None:
                if self._error is not None:
                    raise self._error
                return None
            sink = self._sink
            self._readers += 1
        try:
            extents = [self.part.batches[index] for index in indices]
            return [sink.read_at(each.offset, each.meta_length + each.length) for each in extents]
        finally:
            with self._turn:
                self._readers -= 1
                self._turn.notify_all()

    def _await(self) -> None:
        """Wait until something is different, maybe (with the lock held).

        Who waits for another process goes on with all that this one fetches: the other may wait for that.
        """
        if self._sink is not None:
            self._turn.wait()
        elif not self._turn.wait(_ELSEWHERE_SECONDS):
            self._workers.calm = False

    # --- the flight's own thread --------------------------------------------------------------

    def _run(self) -> None:
        lease, error = None, None
        try:
            lease = self._bring(self._fill)
        except BaseException as raised:
            error = raised
        try:
            self._landed(self, lease, error)
        except BaseException as raised:
            error = error or raised
        with self._turn:
            self._over, self._error, self._sink = True, error, None
            self._turn.notify_all()

    def _fill(self, sink: Pieces) -> None:
        """Fetch all bytes: what the cache calls in the one process that fetches, anew if they were wrong."""
        with self._turn:
            self._sink, self._states, self._requests, self._error = (
                sink,
                bytearray(len(self._states)),
                [],
                None,
            )
            self._turn.notify_all()
            self._ask_for(sink, sorted(self._early))
            for segments in self._portions(range(len(self._states))):
                self._workers.submit(self._priority, self._working(sink, segments))
            try:
                while self._readers or not all(state == _HERE for state in self._states):
                    if self._cancelled:
                        raise _Cancelled
                    if self._error is not None:
                        raise self._error
                    if not self._turn.wait(_SLOW_SECONDS):
                        self._hedge(sink)
            finally:
                self._sink = None

    def _portions(self, indices: Iterable[int]) -> Iterable[range]:
        """Those of these segments that nobody has asked for, by request."""
        for run in _runs(index for index in indices if self._states[index] == _ABSENT):
            yield from portions(self._starts, run)

    # --- requests -----------------------------------------------------------------------------

    def _working(self, sink: Pieces, segments: range) -> Work:
        """Work that asks for those of these segments that nobody has asked for when it begins."""

        def work() -> None:
            with self._turn:
                if sink is not self._sink:
                    return
                runs = list(_runs(index for index in segments if self._states[index] == _ABSENT))
                requests = [self._asked(run) for run in runs]
            for request in requests:
                self._carry_out(sink, request)

        return work

    def _ask_for(self, sink: Pieces, indices: Iterable[int]) -> None:
        """Ask now for those of these segments that nobody has asked for (with the lock held)."""
        for segments in list(self._portions(indices)):
            request = self._asked(segments)
            self._workers.submit(URGENT, partial(self._carry_out, sink, request))

    def _asked(self, segments: range) -> _Request:
        for index in segments:
            self._states[index] = _ASKED
        start = self._starts[segments.start]
        request = _Request(segments, start, self._starts[segments.stop] - start)
        self._requests.append(request)
        return request

    def _hedge(self, sink: Pieces) -> None:
        """Send the requests that hang once more, by other threads and in other slots (with the lock held)."""
        now = time.perf_counter()
        for request in self._requests:
            if self._pace.is_slow(request.length, now - request.since):
                request.since = math.inf
                if request.thread is not None:
                    self._workers.give_up(request.thread)
                if request.slot is not None:
                    request.slot.close()
                self._workers.submit(URGENT, partial(self._carry_out, sink, request))

    def _carry_out(self, sink: Pieces, request: _Request) -> None:
        if sink is not self._sink or self._cancelled:
            return
        buffer, begin = memoryview(bytearray(request.length)), 0.0

        def given_up() -> bool:
            return self._cancelled or request not in self._requests

        def sent(slot: Hold | None) -> None:
            nonlocal begin
            begin = request.since = time.perf_counter()
            request.thread, request.slot = threading.current_thread(), slot

        try:
            self._copies.read_into(self.part, request.start, buffer, self._meter, given_up, sent)
            self._land(sink, request, buffer, time.perf_counter() - begin)
        except Exception as error:
            with self._turn:
                if sink is self._sink and request in self._requests:
                    self._error = error
                    self._turn.notify_all()

    def _land(self, sink: Pieces, request: _Request, buffer: memoryview, seconds: float) -> None:
        with self._turn:
            if sink is not self._sink or request not in self._requests:
                return  # the other answer came first
            self._requests.remove(request)
            self._pace.note(request.length, seconds)
            self._readers += 1  # the sink stays open while it is written to
        try:
            sink.write_at(request.start, buffer)
            with self._turn:
                for index in request.segments:
                    self._states[index] = _HERE
        finally:
            with self._turn:
                self._readers -= 1
                self._turn.notify_all()


def portions(starts: Sequence[int], run: range) -> Iterable[range]:
    """A run of segments in portions of about a request's size, as equal as segments allow: no small rest.

    >>> list(portions([0, 5 << 20, 10 << 20, 15 << 20, 20 << 20], range(4)))
    [range(0, 2), range(2, 4)]
    """
    begin, size = starts[run.start], starts[run.stop] - starts[run.start]
    count = max(1, round(size / REQUEST_BYTES))
    first = run.start
    for number in range(1, count + 1):
        stop = bisect_left(starts, begin + size * number / count, first, run.stop)
        if first < stop:
            yield range(first, stop)
            first = stop


def _runs(indices: Iterable[int]) -> Iterable[range]:
    """Ascending numbers as runs of neighbours."""
    first = last = -2
    for index in indices:
        if index != last + 1:
            if last >= 0:
                yield range(first, last + 1)
            first = index
        last = index
    if last >= 0:
        yield range(first, last + 1)


_begun: weakref.WeakSet[Flight] = weakref.WeakSet()


@atexit.register
def _end() -> None:
    """Leave no half file behind where a program ends in the middle of an epoch, by an exception maybe."""
    for each in [each for each in _begun if each.pid == os.getpid()]:
        each.cancel()
