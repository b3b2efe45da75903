"""Content-addressed files in one directory, within a budget at every moment, for all processes of a machine.

No daemon, no named shared memory, nothing to clean up by hand. Space is admitted before the first byte is
written; one process fetches what many want; what a scan was promised stays until it has used it. Whoever is
killed takes its leases, downloads and reservations with it, because all of them are holds that the kernel
keeps (`lake.cache.holds`). Nothing that the cache did not write is ever deleted.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

from lake import _os
from lake.cache import eviction, holds, index
from lake.cache.eviction import Needs
from lake.cache.groups import Groups, Reservation
from lake.cache.home import BLOCK, OPEN, STORED, Home
from lake.cache.idle import LOOK_SECONDS, Idle
from lake.cache.index import DOCUMENT, DOOMED, LAYOUTS, Index
from lake.cache.lease import Lease
from lake.cache.room import Room, unlink
from lake.cache.shelf import Shelf
from lake.cache.sink import Memory, Sink
from lake.cache.slots import Slots
from lake.config import format_bytes
from lake.errors import IntegrityError, StoreError

FETCHES: Final = 3  # of bytes that turn out not to be what their digest says
DOWNLOADS: Final = 8  # requests to stores at once
_CROWDED: Final = "select crowded from state"
_CROWDED_SECONDS: Final = 1.0

Found = TypeVar("Found")


@dataclass(frozen=True, slots=True)
class Entry:
    """One whole file of the cache, as `lake.cache` lists it."""

    digest: str
    layout: str  # "stored", "open", "block" or "document"
    bytes: int
    leases: int  # processes and threads that hold it; at least 1 where the system does not tell


@dataclass(frozen=True, slots=True)
class Counters:
    """What this process asked of the cache so far."""

    hits: int = 0
    misses: int = 0
    bytes_hit: int = 0
    bytes_fetched: int = 0
    refetched: int = 0  # misses on what this process had fetched before
    evicted: int = 0  # files


class Cache:
    """The cache in one directory, for any number of threads and processes at once; pickles as its arguments.

    `budget`: bytes, None for no limit, or "auto": half of what the disk would have free without this cache.
    `wait`: seconds until an admission or a reservation gives up with `BudgetError`. `slots`: a request to a store
    holds one of them, so that no more than `DOWNLOADS` of this machine are under way at once. `idle`: who keeps
    leases that nothing uses.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        budget: int | Literal["auto"] | None = "auto",
        *,
        wait: float = 300.0,
    ) -> None:
        self.root = Path(root).absolute()
        self.wait = wait
        self._home = Home(self.root)
        self._index = Index(self._home)
        self._groups = Groups(self._home, self._index)
        self._shelf = Shelf(self._home, self._index)
        self._room = Room(self._home, self._index, self._groups)
        self.slots = Slots(self._home, DOWNLOADS)
        self.idle = Idle(self._are_leases_unwelcome)
        self._tally = dict.fromkeys(Counters.__dataclass_fields__.keys() - {"evicted"}, 0)
        self._lock = threading.Lock()
        self._fetched: set[int] = set()
        self._looked: tuple[float, bool] = (0.0, False)
        holds.at_fork(self)
        self._index.read("select count(*) from files")  # all of it: what is damaged is made anew now
        with self._index.write() as connection:
            self._room.reap(connection, thorough=True)
            used = index.total(connection)
            self._room.budget = (_os.available_disk(self.root) + used) // 2 if budget == "auto" else budget
            self._room.fit(connection)

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickle, (os.fspath(self.root), self.budget, self.wait)

    def __repr__(self) -> str:
        return f"Cache({str(self.root)!r}, {format_bytes(self.used)} of {format_bytes(self.budget)})"

    # --- looking ------------------------------------------------------------------------------

    @property
    def budget(self) -> int | None:
        """Bytes that the files may have together; None: no limit."""
        return self._room.budget

    @property
    def used(self) -> int:
        """Bytes of all files, those being written included."""
        with self._index.write() as connection:
            self._room.reap(connection)
            return index.total(connection)

    @property
    def counters(self) -> Counters:
        """What this process asked so far."""
        with self._lock:
            return Counters(**self._tally, evicted=self._room.evicted)

    @property
    def crowded(self) -> bool:
        """Whether leases stand in somebody's way: copy rather than map until they do not."""
        now = time.monotonic()
        if now - self._looked[0] > 0.05:
            self._looked = now, 0 <= now - self._index.read(_CROWDED)[0][0] < _CROWDED_SECONDS
        return self._looked[1]

    def entries(self) -> list[Entry]:
        """All whole files, by digest."""
        rows = self._index.read("select key, layout, bytes from files where whole = 1")
        counts = holds.counts()
        return [
            Entry(
                key[:64],
                LAYOUTS[STORED] if layout == DOOMED else layout,
                size,
                self._shelf.leases(key, counts),
            )
            for key, layout, size in rows
        ]

    # --- getting ------------------------------------------------------------------------------

    def blob(self, digest: str, fetch: Callable[[], bytes]) -> bytes:
        """The bytes named `digest`: a small document, verified each time; kept if there is room for it.

        Raises:
            IntegrityError: what `fetch` gave has another digest, three times.
        """
        found = self._flight(digest, lambda: self._document(digest))
        if not isinstance(found, holds.Hold):
            return found
        with self._landing(digest, found):
            again = self._document(digest)  # another may have kept it since we looked
            if again is not None:
                return again
            for _ in range(FETCHES):
                data = fetch()
                self._count(bytes_fetched=len(data))
                if hashlib.sha256(data).hexdigest() == digest:
                    self._missed(digest)
                    self._keep(digest, data)
                    return data
            raise _altered(digest)

    def file(self, digest: str, size: int, fetch: Callable[[Sink], object]) -> Lease:
        """A lease on the file named `digest`, open where it is kept open, else as stored.

        `fetch(sink)` writes all `size` bytes, in one process of the machine; others wait for it, and one of
        them takes over if it is killed.

        Raises:
            IntegrityError: what `fetch` wrote has another digest, three times.
            BudgetError: no room.
            StoreError: the disk is full.
        """
        return self._get(digest, STORED, size, fetch, accept=(OPEN, STORED))

    def open_file(self, digest: str, size: int, build: Callable[[Sink], object]) -> Lease:
        """A lease on the decoded form of the file `digest`, which takes the place of the stored one.

        `build(sink)` writes at most `size` bytes. It may lease the stored file meanwhile: both must fit then.
        """
        return self._get(digest, OPEN, size, build, accept=(OPEN,))

    def opened(
        self,
        digest: str,
        sizes: tuple[int, int],
        fetch: Callable[[Memory], object],
        build: Callable[[bytearray, Sink], object],
    ) -> Lease:
        """A lease on the decoded form of a small file, which is never kept as stored: one admission, one file.

        `sizes`: of the stored file, and of what `build(data, sink)` writes at most. `fetch(memory)` puts the bytes
        there as it would write them to a sink; they are verified before they are decoded.

        Raises:
            IntegrityError: what `fetch` gave has another digest, three times.
            BudgetError: no room.
        """

        def fill(sink: Sink) -> None:
            for _ in range(FETCHES):
                memory = Memory(sizes[0])
                fetch(memory)
                self._count(bytes_fetched=sizes[0])
                if hashlib.sha256(memory.data).hexdigest() == digest:
                    build(memory.data, sink)
                    return
            raise _altered(digest)

        return self.open_file(digest, sizes[1], fill)

    def block(self, name: str, size: int, build: Callable[[Sink], object]) -> Lease:
        """A lease on a file that lives only as long as it is leased: built once, mapped by many.

        `name` is any text that says what is in it. It is a file of this directory all the same: one that is
        removed before the system writes it back stays in memory, and no crash leaks memory.
        """
        return self._get(hashlib.sha256(name.encode()).hexdigest(), BLOCK, size, build, accept=(BLOCK,))

    def peek(self, digest: str) -> Lease | None:
        """A lease on the file if it is whole and verified, in either layout; fetches nothing."""
        return self._hit(digest, (OPEN, STORED))

    def again(self, lease: Lease) -> bool:
        """Use a lease once more; False: the file is doubted, or gone, since it was leased."""
        is_good = self._shelf.again(lease)
        if is_good:
            self._count(hits=1, bytes_hit=lease.size)
        return is_good

    def discard(self, digest: str) -> None:
        """Doubt a file: before its next use, in any process, it is verified, and fetched again if damaged."""
        self._shelf.doubt(digest)
        self._shelf.doubt(digest + OPEN)

    def reserve(
        self,
        plan: str,
        member: str,
        resident: int,
        needs: Needs | Iterable[tuple[str, int]],
        *,
        epoch: int = 0,
        position: int = 0,
    ) -> Reservation:
        """Room for a scan's resident window of `resident` bytes; waits for it, holding nothing.

        `needs`: the files that the epoch uses as (digest, bytes), in the order in which the scan is done with
        them; a file may come again. Members of one plan have the same needs and share the room. `member` is
        what messages call this one.

        Raises:
            BudgetError: it cannot fit, or has not within `wait` seconds; `holders` are the pids in its way.
        """
        wanted = Needs.of(needs)
        found = self._groups.join(
            plan, member, resident, epoch, wanted, position, budget=self.budget, wait=self.wait
        )
        return Reservation(self._groups, found, plan, epoch)

    # --- letting go ---------------------------------------------------------------------------

    def clear(self) -> int:
        """Delete every file that nobody uses, and what killed processes left; the bytes this freed."""
        self.idle.release()
        with self._index.write() as connection:
            before = index.total(connection)
            self._room.reap(connection, thorough=True)
        if not self._room.clear():  # what is leased may only idle in other processes
            time.sleep(4 * LOOK_SECONDS)
            self._room.clear()
        return before - self.used

    def close(self) -> None:
        """Give up reservations, idle leases and the connection; other leases stay, and the next use reopens it."""
        self.idle.close()
        self._groups.close()
        self._index.close()

    def __enter__(self) -> Cache:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _are_leases_unwelcome(self) -> bool:
        """Whether somebody waits for the room of what only idles, or the directory it was in is gone."""
        found = self._index.look(_CROWDED)
        return found is None or 0 <= time.monotonic() - found[0][0] < _CROWDED_SECONDS

    # --- misses -------------------------------------------------------------------------------

    def _get(
        self, digest: str, layout: str, size: int, fill: Callable[[Sink], object], *, accept: tuple[str, ...]
    ) -> Lease:
        key = digest + layout
        found = self._flight(key, lambda: self._hit(digest, accept))
        if isinstance(found, Lease):
            return found
        with self._landing(key, found):
            lease = self._verified(digest, accept, key)  # it may also have landed since we looked
            if lease is None:
                self._room.admit(key, size, self.wait, self.idle.give_way)
                lease = self._fill(key, size, fill)
            return lease

    def _hit(self, digest: str, layouts: tuple[str, ...]) -> Lease | None:
        for layout in layouts:
            lease = self._shelf.lease(digest + layout)
            if lease is not None:
                self._count(hits=1, bytes_hit=lease.size)
                return lease
        return None

    def _verified(self, digest: str, layouts: tuple[str, ...], mine: str) -> Lease | None:
        """The first of the layouts that is there and right, where we have the right to write `mine`."""
        for key in (digest + layout for layout in layouts):
            if key == mine:
                lease = self._shelf.lease(key, verify=True)
            elif not os.path.exists(self._home.path(key)):  # noqa: PTH110 - asked for every file fetched
                continue
            else:
                hold = holds.take(self._home.lock(key), exclusive=True, create=True)
                with self._landing(key, hold) if hold else contextlib.nullcontext():
                    lease = self._shelf.lease(key, verify=hold is not None)
            if lease is not None:
                self._count(hits=1, bytes_hit=lease.size)
                return lease
        return None

    def _document(self, digest: str) -> bytes | None:
        data = self._shelf.document(digest)
        if data is not None:
            self._count(hits=1, bytes_hit=len(data))
        return data

    def _flight(self, key: str, look: Callable[[], Found | None]) -> Found | holds.Hold:
        """What `look` finds, or else the sole right to write the file, whichever comes first."""
        for pause in holds.pauses():
            found = look()
            if found is not None:
                return found
            try:
                hold = holds.take(self._home.lock(key), exclusive=True, create=True)
            except FileNotFoundError:  # somebody removed the directory
                self._home.claim()
                continue
            if hold is not None:
                return hold
            time.sleep(pause)
        raise AssertionError

    @contextlib.contextmanager
    def _landing(self, key: str, hold: holds.Hold) -> Iterator[None]:
        """Give the right to write up in the end, and leave nothing half written if that failed."""
        try:
            yield
        except BaseException:
            with contextlib.suppress(StoreError):
                self._abandon(key)
            raise
        finally:
            unlink(self._home.lock(key))
            hold.close()

    def _abandon(self, key: str) -> None:
        unlink(self._home.flight(key))
        with self._index.write() as connection:
            connection.execute("delete from files where key = ? and whole = 0", (key,))

    def _fill(self, key: str, size: int, fill: Callable[[Sink], object]) -> Lease:
        for _ in range(FETCHES):
            sink = Sink(self._home.flight(key), size, named=len(key) == 64, make_room=self._make_room)
            try:
                fill(sink)
                length, checksum = sink.checksum()
                self._count(bytes_fetched=length)
                if length != sink.stat().st_size:
                    raise ValueError(f"{key}: nothing was written from byte {length} on, only beyond")
                if len(key) > 64 or checksum == key:
                    self._missed(key)
                    return self._publish(key, sink, checksum)
            finally:
                sink.release()
        raise _altered(key)

    def _publish(self, key: str, sink: Sink, checksum: str) -> Lease:
        """Put a verified file where everybody finds it."""
        with self._index.write() as connection:
            if len(key) == 64 and index.keys(connection, "key = ? and whole = 1", key + OPEN):
                lease = self._shelf.lease(key + OPEN)
                if lease is not None:  # it was opened meanwhile: never both
                    unlink(self._home.flight(key))
                    index.remove(connection, key)
                    return lease
            self._move(key)
            index.add(connection, key, sink.size)  # in case the index was lost meanwhile
            index.finish(connection, key, sink.stat(), checksum=checksum)
            if key.endswith(OPEN) and not self._room.drop(connection, key[:64]):
                connection.execute(
                    "update files set layout = ? where key = ? and whole = 1", (DOOMED, key[:64])
                )
            hold = holds.share(self._home.path(key))
        if hold is None:
            raise StoreError(f"{key}: another process keeps all others from it", retryable=True)
        return self._shelf.landed(key, hold)

    def _move(self, key: str) -> None:
        source, target = self._home.flight(key), Path(self._home.path(key))
        try:
            target.parent.mkdir(exist_ok=True)
            os.replace(source, target)  # noqa: PTH105
        except FileNotFoundError as error:
            message = f"{self.root} was removed while {key[:12]} was written to it: repeat the call"
            raise StoreError(message, retryable=True) from error

    def _keep(self, digest: str, data: bytes) -> None:
        """Keep a document where there is room for it; it is good without that."""
        try:
            with self._index.write() as connection:
                if not self._room.admitted(connection, digest, len(data), DOCUMENT):
                    return
            sink = Sink(self._home.flight(digest), len(data), named=True, make_room=self._make_room)
            try:
                sink.write(data)
                self._publish(digest, sink, sink.checksum()[1]).close()
            finally:
                sink.release()
        except StoreError:
            self._abandon(digest)

    def _make_room(self, size: int) -> bool:
        return self._room.make(size) or (self.idle.give_way() and self._room.make(size))

    # --- the rest -----------------------------------------------------------------------------

    def _missed(self, key: str) -> None:
        number = eviction.prefix(key)
        self._count(misses=1, refetched=int(number in self._fetched))
        self._fetched.add(number)

    def _count(self, **more: int) -> None:
        with self._lock:
            for name, amount in more.items():
                self._tally[name] += amount

    def before_fork(self) -> None:
        self._lock.acquire()

    def after_fork(self, *, child: bool) -> None:
        if child:
            self._lock = threading.Lock()
        else:
            self._lock.release()


def _unpickle(root: str, budget: int | None, wait: float) -> Cache:
    return Cache(root, budget, wait=wait)


def _altered(key: str) -> IntegrityError:
    return IntegrityError(
        f"{key[:12]} differs from its digest after {FETCHES} fetches: the stored copy is damaged",
        digest=key[:64],
    )
