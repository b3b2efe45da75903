"""How the bytes of a part are come by: mapped in the lake's folder, whole in the cache, or ranges of it.

Of a bucket, what a scan will read whole is brought into the cache and stays open while somebody wants it. Other
reads take only the bytes of the batches and columns asked for where that costs less, a request counting as
much as `REQUEST` bytes. Whatever this process reads for the first time is verified; damage raises.
"""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Final

import pyarrow as pa

from lake import _os
from lake.cache import DOWNLOADS, Cache, Lease, Pieces
from lake.errors import BudgetError, IntegrityError
from lake.format import names, part
from lake.format.frames import Frame
from lake.format.values import Part
from lake.parts.copies import Copies
from lake.parts.flight import Flight, Pace
from lake.parts.meter import Meter
from lake.parts.opened import Opened, build, build_small, is_small, open_size
from lake.parts.ranges import Ranges
from lake.parts.workers import URGENT, Workers
from lake.stores.base import Store

REQUEST: Final = 2**20  # bytes that a request is worth
FETCHES: Final = 3  # of bytes that turn out not to be what they should be

OPEN_PARTS: Final = 256  # of a folder that are kept mapped
_FRAMED: Final = 4096  # columns of parts of which it is remembered where their values lie
IDLE_PARTS: Final = min(256, _os.open_files() // 4)  # of a bucket that stay open: each takes a descriptor


class Access:
    """The parts of one version. Thread-safe. `cache` None: a part that must be whole is held in memory."""

    def __init__(self, store: Store, cache: Cache | None, stored: pa.Schema) -> None:
        self.copies = Copies(store, None if cache is None else cache.slots)
        self.cache, self._stored = cache, stored
        self.workers = Workers(DOWNLOADS, "lake-request")
        self._in_place = store.local_path(names.LAKE) is not None
        self._ranges = Ranges(self.copies, self.workers)
        self._open: OrderedDict[str, Opened] = OrderedDict()
        self._flights: dict[str, Flight] = {}
        self._idle: dict[str, Opened] = {}  # that nobody wants now, but soon again
        self._wanted: Counter[str] = Counter()  # by how many each part of a bucket is wanted open
        self._order = URGENT + 1  # of the next flight among all
        self._pace = Pace()
        self._doubted: set[str] = set()
        self._seen: dict[str, int] = {}  # bits of the columns of batches that were verified, by part
        self._frames: OrderedDict[tuple[str, str], list[Frame] | None] = OrderedDict()  # by part and column
        self._lock = threading.RLock()

    # --- reading ------------------------------------------------------------------------------

    def opened(self, one: Part) -> Opened | None:
        """The part, if it is open."""
        with self._lock:
            found = self._open.get(one.digest)
            if found is not None:
                self._open.move_to_end(one.digest)
            return found

    def read(
        self, one: Part, indices: Sequence[int], columns: Sequence[str], meter: Meter
    ) -> Opened | list[pa.RecordBatch]:
        """The open part, or these columns of these record batches of it, as stored.

        Raises:
            IntegrityError: damage, or no copy.
        """
        known = self.opened(one)
        if known is not None:
            return known
        if self._in_place:
            return self._kept(one, self._mapped_in_place(one))
        if self.cache is None:
            return Opened.of(one, self.copies.read(one, 0, one.bytes, meter), self._stored)
        with self._lock:
            flight = self._flights.get(one.digest)
        if flight is None:
            lease = self.cache.peek(one.digest)
            if lease is not None:
                meter.add(bytes_from_cache=one.bytes)
                return self._leased(one, lease)
            if not self.costs_less_whole(one, columns, len(indices)):
                return self._ranged(one, indices, columns, meter)
        with self.wanting(one, meter):
            return self._flying(one, indices, columns, meter)

    def batch(self, opened: Opened, index: int, columns: Sequence[str]) -> pa.RecordBatch:
        """Columns of a record batch of an open part, as stored."""
        new = not opened.decoded and not self._has_seen(opened.part, index, columns)
        batch = opened.batch(index, columns, new=new)
        self._see(opened.part, index, columns)
        return batch

    def batches(self, opened: Opened, columns: Sequence[str]) -> list[pa.RecordBatch]:
        """Columns of all record batches of an open part that is `together`, as stored."""
        every = range(len(opened.part.batches))
        unseen = [index for index in every if not self._has_seen(opened.part, index, columns)]
        found = opened.batches(columns, unseen)
        for index in unseen:
            self._see(opened.part, index, columns)
        return found

    def frames(self, opened: Opened, indices: Sequence[int], column: str, width: int) -> list[Frame] | None:
        """Where the values of these record batches lie, of `width` bytes each, to be inflated from an open part.

        None where Arrow has to decode them: they are not all in frames, or not verified yet.
        """
        one = opened.part
        if not all(self._has_seen(one, index, [column]) for index in indices):
            return None
        key = one.digest, column
        with self._lock:
            known = key in self._frames
            found = self._frames.get(key)
        if not known:
            found = opened.frames(column, width)
            with self._lock:
                self._frames[key] = found
                while len(self._frames) > _FRAMED:
                    self._frames.popitem(last=False)
        return None if found is None else [found[index] for index in indices]

    # --- having parts open --------------------------------------------------------------------

    def costs_less_whole(self, one: Part, columns: Sequence[str], batches: int) -> bool:
        """Whether all of a part costs less than these columns of so many of its batches."""
        if self._in_place or self.cache is None:
            return self._in_place
        share = len(columns) / len(one.fields) * batches / len(one.batches)
        return share * one.bytes + 2 * REQUEST * batches >= one.bytes + REQUEST

    def want(self, one: Part, meter: Meter, *, decoded: bool = False) -> None:
        """Have a part of a bucket open, or on its way, until `unwant` is called as often.

        `decoded`: the cache may keep it decoded, for all who read it from now on.
        """
        if self._in_place or self.cache is None:
            return
        with self._lock:
            self._wanted[one.digest] += 1
            if one.digest in self._open or one.digest in self._flights or self._reopened(one, meter, decoded):
                return
        decoded = decoded and one.codec != "none"
        lease = self.cache.peek(one.digest)
        if lease is not None and (lease.layout == "open" or not decoded):
            meter.add(bytes_from_cache=one.bytes)
            opened = Opened.leased(one, lease, self._stored)
            with self._lock:
                if self._wanted[one.digest]:
                    self._open.setdefault(one.digest, opened)
            return
        with self._lock:
            if not self._wanted[one.digest] or one.digest in self._open or one.digest in self._flights:
                return
            self._flights[one.digest] = flight = self._flight(one, meter, decoded, new=lease is None)
        flight.begin()

    def ask(self, one: Part, indices: Iterable[int]) -> None:
        """Have these record batches of a part that is on its way here as soon as can be, and wait for nothing."""
        with self._lock:
            flight = self._flights.get(one.digest)
        if flight is not None:
            flight.ask(indices)

    def loosen(self) -> None:
        """Close what is open, so that no lease on it is in the way: it is opened again when it is read."""
        if not self._in_place:
            with self._lock:
                closed, self._open = self._open, OrderedDict()
            closed.clear()  # to unmap takes its time
            self.release()

    def release(self) -> None:
        """Close what is open though nobody wants it."""
        with self._lock:
            closed, self._idle = self._idle, {}
        closed.clear()

    def has_idle(self, digests: Iterable[str]) -> bool:
        """Whether all of these parts are open though nobody wants them, as those of a folder are."""
        with self._lock:
            found = self._open if self._in_place else self._idle
            return all(digest in found for digest in digests)

    def flying(self) -> int:
        """How many parts are on their way."""
        with self._lock:
            return len(self._flights)

    def unwant(self, one: Part, *, again: bool = False) -> None:
        """Take one `want` back; the part that nobody wants is let go.

        `again`: it will be wanted again, and is in nobody's way: it stays open for a while.
        """
        if self._in_place or self.cache is None:
            return
        with self._lock:
            self._wanted[one.digest] -= 1
            if self._wanted[one.digest] > 0:
                return
            del self._wanted[one.digest]
            opened = self._open.pop(one.digest, None)
            flight = self._flights.pop(one.digest, None)
            idles = again and opened is not None and len(self._idle) < IDLE_PARTS and self.cache.idle.welcome
            if idles and opened is not None:
                self._idle[one.digest] = opened
        if idles:
            self.cache.idle.note(self)
        if flight is not None:
            flight.cancel()

    @contextmanager
    def wanting(self, one: Part, meter: Meter) -> Iterator[None]:
        """Have a part open for as long as this lasts."""
        self.want(one, meter)
        try:
            yield
        finally:
            self.unwant(one)

    def keep(self, one: Part, meter: Meter) -> None:
        """Have a whole part in the cache, fetched if it is not there."""
        while self.cache is not None and not self._in_place:
            try:
                with self.wanting(one, meter):
                    with self._lock:
                        flight = self._flights.get(one.digest)
                    if flight is not None:
                        flight.wait()
                    return
            except IntegrityError:
                if not self.mend(one):
                    raise

    def mend(self, one: Part) -> bool:
        """Whether it makes sense to read a part again that was found damaged.

        The cache verifies its file anew, once; then copies in the store that are damaged are avoided.
        """
        with self._lock:
            self._open.pop(one.digest, None)
            self._idle.pop(one.digest, None)
            doubted = one.digest in self._doubted
            self._doubted.add(one.digest)
        if self.cache is not None and not self._in_place and not doubted:
            self.cache.discard(one.digest)
            return True
        return self.copies.avoid(one)

    # --- inside -------------------------------------------------------------------------------

    def _flying(
        self, one: Part, indices: Sequence[int], columns: Sequence[str], meter: Meter
    ) -> Opened | list[pa.RecordBatch]:
        """The open part, or these batches of one that is on its way."""
        with self._lock:
            flight, found = self._flights.get(one.digest), self._open.get(one.digest)
        if flight is not None:
            data = flight.batches(indices)
            if data is not None:
                try:
                    return self._decoded(one, indices, columns, data, meter)
                except IntegrityError:  # the cache finds that out, too, and fetches it again
                    flight.wait()
            found = self.opened(one)
        return self.read(one, indices, columns, meter) if found is None else found

    def _decoded(
        self, one: Part, indices: Sequence[int], columns: Sequence[str], data: Sequence[bytes], meter: Meter
    ) -> list[pa.RecordBatch]:
        batches = []
        for index, octets in zip(indices, data, strict=True):
            head = self._ranges.head_for(one, octets, index, self._stored, meter)
            new = not self._has_seen(one, index, columns)
            batches.append(
                part.decode_batch(one, index, octets, columns, self._stored, head=head, first_read=new)
            )
            self._see(one, index, columns)
        return batches

    def _ranged(
        self, one: Part, indices: Sequence[int], columns: Sequence[str], meter: Meter
    ) -> list[pa.RecordBatch]:
        new = [not self._has_seen(one, index, columns) for index in indices]
        for attempt in range(FETCHES):
            try:
                batches = self._ranges.batches(one, indices, columns, self._stored, meter, new)
                break
            except IntegrityError as error:
                if attempt == FETCHES - 1:
                    raise IntegrityError(f"{error}, after {FETCHES} fetches", digest=one.digest) from error
        for index in indices:
            self._see(one, index, columns)
        return batches

    def _reopened(self, one: Part, meter: Meter, decoded: bool) -> bool:
        """Whether the part was still open, and is wanted again (with the lock held)."""
        assert self.cache is not None
        opened = self._idle.pop(one.digest, None)
        if opened is None or opened.lease is None or (decoded and not opened.mapped):
            return False
        if not self.cache.again(opened.lease):
            return False
        self._open[one.digest] = opened
        self.cache.idle.note(self)
        meter.add(bytes_from_cache=one.bytes)
        return True

    def _leased(self, one: Part, lease: Lease) -> Opened:
        """The part in the cache; it stays open where it is wanted so, and in nobody's way."""
        assert self.cache is not None
        opened = Opened.leased(one, lease, self._stored)
        with self._lock:
            if self._wanted[one.digest] and not self.cache.crowded:
                self._open[one.digest] = opened
            return opened

    def _kept(self, one: Part, opened: Opened) -> Opened:
        with self._lock:
            opened = self._open.setdefault(one.digest, opened)
            while len(self._open) > OPEN_PARTS:
                self._open.popitem(last=False)
            return opened

    def _mapped_in_place(self, one: Part) -> Opened:
        for key in self.copies.keys(one):
            path = self.copies.store.local_path(key)
            if path is not None and path.exists():
                with pa.memory_map(str(path)) as file:
                    return Opened.of(one, file.read_buffer(), self._stored)
        raise IntegrityError(f"no copy of it in {self.copies.store.url}", digest=one.digest)

    # --- flights ------------------------------------------------------------------------------

    def _flight(self, one: Part, meter: Meter, decoded: bool, *, new: bool) -> Flight:
        self._order += 1
        landed = partial(self._landed, decoded=decoded)
        bring = partial(self._bring, one, at_once=decoded and new and is_small(one))
        return Flight(
            one, self.copies, self.workers, self._pace, meter, landed, priority=self._order, bring=bring
        )

    def _bring(self, one: Part, fetch: Callable[[Pieces], object], *, at_once: bool) -> Lease:
        """A lease on a part, as stored; `at_once`: fetched and decoded in one go, if there is room for that."""
        assert self.cache is not None
        if at_once:
            build = partial(build_small, one, self._stored)
            try:
                return self.cache.opened(one.digest, (one.bytes, open_size(one)), fetch, build)
            except BudgetError:
                pass
        return self.cache.file(one.digest, one.bytes, fetch)

    def _landed(
        self, flight: Flight, lease: Lease | None, error: BaseException | None, *, decoded: bool
    ) -> None:
        opened = None if lease is None else Opened.leased(flight.part, lease, self._stored)
        with self._lock:
            if self._flights.get(flight.part.digest) is not flight:
                return
            del self._flights[flight.part.digest]
            if opened is None:
                return
            self._open[flight.part.digest] = opened
        if decoded and not opened.decoded:
            self._decode(opened)

    def _decode(self, stored: Opened) -> None:
        """Have the cache keep a part decoded in place of as stored, if there is room."""
        assert self.cache is not None
        one = stored.part
        try:
            lease = self.cache.open_file(one.digest, open_size(one), partial(build, stored, self._stored))
        except BudgetError:
            return
        opened = Opened.leased(one, lease, self._stored)
        with self._lock:
            if self._wanted[one.digest]:
                self._open[one.digest] = opened

    # --- what was verified --------------------------------------------------------------------

    def _has_seen(self, one: Part, index: int, columns: Iterable[str]) -> bool:
        bits = _bits(one, index, columns)
        with self._lock:
            return self._seen.get(one.digest, 0) & bits == bits

    def _see(self, one: Part, index: int, columns: Iterable[str]) -> None:
        with self._lock:
            self._seen[one.digest] = self._seen.get(one.digest, 0) | _bits(one, index, columns)


def _bits(one: Part, index: int, columns: Iterable[str]) -> int:
    """A bit for each of the columns of a record batch."""
    places = one.places
    return sum(1 << places[name] for name in columns) << index * len(places)
