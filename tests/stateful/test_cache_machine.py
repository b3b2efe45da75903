"""The cache against a model of what must be true of it, whatever is done to it and in whatever order."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from lake.cache import Cache, Lease, Reservation, Sink, index
from lake.errors import BudgetError
from tests.cache_files import File, on_disk, whole_files

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="crashes are forks that end in the middle")

BUDGET = 1000
FILES = [File.make(i, size) for i, size in enumerate((10, 90, 100, 120, 200, 250, 330, 400))]
CONTENT = {file.digest: file.data for file in FILES} | {
    f"{file.digest}.open": file.data * 2 for file in FILES
}

DOCUMENTS = [File.make(f"document {i}", 40) for i in range(4)]
CONTENT |= {file.digest: file.data for file in DOCUMENTS}

files = st.sampled_from(FILES)
documents = st.sampled_from(DOCUMENTS)
which = st.integers(0, 1)


@dataclass
class Held:
    lease: Lease
    data: bytes


@dataclass
class Reserved:
    reservation: Reservation
    plan: str
    resident: int
    length: int
    position: int = 0


class CacheMachine(RuleBasedStateMachine):
    """Two caches stand for two processes; forks that end half-way stand for those that are killed."""

    leases = Bundle("leases")
    reservations = Bundle("reservations")

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp()) / "cache"
        self.caches = [Cache(self.root, BUDGET, wait=0) for _ in range(2)]
        self.held: list[Held] = []
        self.reserved: list[Reserved] = []
        self.damaged: set[str] = set()

    def teardown(self) -> None:
        self.held.clear()
        for cache in self.caches:
            cache.close()
        shutil.rmtree(self.root.parent)

    # --- getting ----------------------------------------------------------------------------

    @rule(cache=which, file=files)
    def read(self, cache: int, file: File) -> None:
        with self.room_for(file.size), self.caches[cache].file(file.digest, file.size, file.fetch) as lease:
            assert bytes(lease.map()) == CONTENT[lease.path.name]

    @rule(cache=which, file=documents)
    def read_document(self, cache: int, file: File) -> None:
        assert self.caches[cache].blob(file.digest, lambda: file.data) == file.data

    @rule(cache=which, file=files, target=leases)
    def hold(self, cache: int, file: File) -> Held | None:
        with self.room_for(file.size):
            lease = self.caches[cache].file(file.digest, file.size, file.fetch)
            return self.keep(lease, CONTENT[lease.path.name])
        return None

    @rule(cache=which, file=files, target=leases)
    def hold_open(self, cache: int, file: File) -> Held | None:
        with self.room_for(2 * file.size):
            lease = self.caches[cache].open_file(
                file.digest, 2 * file.size, lambda sink: sink.write(file.data * 2)
            )
            return self.keep(lease, file.data * 2)
        return None

    @rule(cache=which, name=st.sampled_from("xyz"), target=leases)
    def hold_block(self, cache: int, name: str) -> Held | None:
        data = name.encode() * 150
        with self.room_for(150):
            return self.keep(self.caches[cache].block(name, 150, lambda sink: sink.write(data)), data)
        return None

    @rule(held=consumes(leases), by_map=st.booleans())
    def release(self, held: Held | None, by_map: bool) -> None:
        if held is not None:
            mapped = held.lease.map() if by_map else None
            held.lease.close()
            assert mapped is None or bytes(mapped) == held.data
            self.held.remove(held)

    @rule(cache=which, file=files)
    def fail_to_fetch(self, cache: int, file: File) -> None:
        def fetch(sink: Sink) -> NoReturn:
            sink.write(file.data[:5])
            raise ConnectionError

        with self.room_for(file.size), contextlib.suppress(ConnectionError):
            self.caches[cache].file(file.digest, file.size, fetch).close()

    # --- reservations -----------------------------------------------------------------------

    @rule(
        cache=which,
        plan=st.sampled_from("pq"),
        order=st.permutations(FILES).map(lambda order: order[:5]),
        resident=st.integers(0, 600),
        target=reservations,
    )
    def reserve(self, cache: int, plan: str, order: list[File], resident: int) -> Reserved | None:
        others = {r.plan: r.resident for r in self.reserved if r.plan != plan}
        if any(r.plan == plan for r in self.reserved):
            return None
        needs = [(file.digest, file.size) for file in order]
        if sum(others.values()) + resident > BUDGET:
            with pytest.raises(BudgetError) as caught:
                self.caches[cache].reserve(plan, "member", resident, needs)
            assert caught.value.holders == (os.getpid(),)
            return None
        reservation = self.caches[cache].reserve(plan, "member", resident, needs)
        self.reserved.append(Reserved(reservation, plan, resident, len(order)))
        return self.reserved[-1]

    @rule(reserved=reservations)
    def advance(self, reserved: Reserved | None) -> None:
        if reserved in self.reserved and reserved.position < reserved.length:
            reserved.position += 1
            reserved.reservation.advance(reserved.position)

    @rule(reserved=consumes(reservations))
    def end(self, reserved: Reserved | None) -> None:
        if reserved is not None:
            reserved.reservation.close()
            self.reserved.remove(reserved)

    # --- harm -------------------------------------------------------------------------------

    @rule(file=files, where=st.sampled_from(["start", "middle", "moved", "published"]))
    def crash(self, file: File, where: str) -> None:
        """A process is killed while it fetches a file."""
        pid = os.fork()
        if pid == 0:
            self.fetch_and_die(file, where)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 9

    def fetch_and_die(self, file: File, where: str) -> NoReturn:
        def fetch(sink: Sink) -> None:
            if where != "start":
                sink.write(file.data[: len(file.data) // 2])
            if where in ("start", "middle"):
                os._exit(9)
            sink.write(file.data[len(file.data) // 2 :])

        try:
            if where == "moved":
                index.finish = lambda *_, **__: os._exit(9)  # type: ignore[assignment]
            with contextlib.suppress(BudgetError):
                self.caches[0].file(file.digest, file.size, fetch)
            os._exit(9)
        finally:
            os._exit(1)

    @rule(file=files | documents)
    def damage(self, file: File) -> None:
        """A byte of a file that nobody uses changes."""
        path = self.root / "files" / file.digest[:2] / file.digest
        if path.exists() and not any(held.lease.path == path for held in self.held):
            data = path.read_bytes()
            path.write_bytes(bytes([data[0] ^ 1]) + data[1:])
            self.damaged.add(file.digest)

    @rule(cache=which)
    def reopen(self, cache: int) -> None:
        """A process ends, and another begins. Its reservations end with it; its leases are the test's."""
        if not self.reserved:
            self.caches[cache].close()
            self.caches[cache] = Cache(self.root, BUDGET, wait=0)

    @rule()
    def lose_the_index(self) -> None:
        if not self.reserved:
            for cache in self.caches:
                cache.close()
            for path in self.root.glob("index.sqlite*"):
                path.unlink()

    @rule(cache=which)
    def clear(self, cache: int) -> None:
        self.caches[cache].clear()
        assert set(whole_files(self.root)) == {held.lease.path.name for held in self.held}

    # --- what must be true ------------------------------------------------------------------

    @invariant()
    def the_budget_holds_and_everything_is_counted(self) -> None:
        assert on_disk(self.root) <= BUDGET
        assert self.caches[0].used == on_disk(self.root)

    @invariant()
    def files_are_what_their_names_say(self) -> None:
        found = whole_files(self.root)
        self.damaged = {name for name in self.damaged if name in found and found[name] != CONTENT[name]}
        for name, data in found.items():
            assert name in self.damaged or name.endswith(".block") or data == CONTENT[name]

    @invariant()
    def leased_files_are_where_they_were(self) -> None:
        for held in self.held:
            assert os.pread(held.lease.fd, 1000, 0) == held.data
            assert held.lease.path.exists()

    @invariant()
    def a_file_is_never_kept_in_two_layouts(self) -> None:
        assert self.caches[0].used <= BUDGET  # looking also clears up
        names = set(whole_files(self.root))
        in_use = {held.lease.path.name for held in self.held}
        for file in FILES:
            assert not {file.digest, f"{file.digest}.open"} <= names or file.digest in in_use

    # --- inside -----------------------------------------------------------------------------

    def keep(self, lease: Lease, data: bytes) -> Held:
        assert bytes(lease.map()) == data
        self.held.append(Held(lease, data))
        return self.held[-1]

    @contextlib.contextmanager
    def room_for(self, size: int) -> Iterator[None]:
        """Room may be refused only if leases, promises and the file together exceed the budget."""
        leased = {held.lease.path: len(held.data) for held in self.held}
        try:
            yield
        except BudgetError:
            promised = sum(reserved.resident for reserved in self.reserved)
            waits = any(reserved.position < reserved.length for reserved in self.reserved)
            assert waits or sum(leased.values()) + promised + size > BUDGET


TestCache: Callable[[], None] = CacheMachine.TestCase
TestCache.settings = settings(
    max_examples=30,
    stateful_step_count=40,
    deadline=None,
    phases=(Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink),  # explaining traces every line
)
