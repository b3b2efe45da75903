"""What a scan of a bucket keeps in this machine's cache: room that it is promised, and parts brought in ahead.

A scan is done with parts in an order that its plan knows. Those up to a window's bytes beyond what it is done
with are open or on their way; what it is done with is let go. The scans of one plan share the room.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from lake import _threads, plan
from lake.cache import Needs
from lake.format.values import Part
from lake.parts import Meter
from lake.plan import EpochPlan, Order, Selection
from lake.plan.permutation import Ints
from lake.scan.schedule import Schedule, Step, Unit
from lake.snapshot import Snapshot

AHEAD_BYTES: Final = 64 * 2**20  # brought in beyond the window, where the budget has room
AHEAD_SHARE: Final = 16  # of the budget that this may be
FLIGHTS: Final = 16  # parts on their way beside those of one window

_LOOK_SECONDS: Final = 0.02  # between two looks at parts on their way
_PAUSE_SECONDS: Final = 0.01  # at least between two looks: who wakes up often is in the way of those who work
_SAMPLED: Final = 16  # parts
_TOLD_SECONDS: Final = 0.1  # between two times that the cache is told where a scan is, where all of it fits
_IDLE_SECONDS: Final = 1.0  # after which a thread without work ends


class Residence:
    """One iteration's part of the cache. Thread-safe.

    Raises:
        BudgetError: the window does not fit the cache, or has not within the cache's patience.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        columns: Sequence[str],
        schedule: Schedule,
        selection: Selection | None,
        first: int,
        meter: Meter,
    ) -> None:
        assert snapshot.cache is not None
        self._cache = snapshot.cache
        self._snapshot, self._columns, self._selection = snapshot, list(columns), selection
        self._asked = frozenset(columns)
        self._schedule, self._meter, self._access = schedule, meter, snapshot.reader.access
        self._files = files(snapshot, columns, schedule.plan)
        needs = self._files.needs()
        self._bytes = needs.starts
        budget, shuffled = self._cache.budget, bool(schedule.plan.order.shuffle)
        self._short = budget is not None and int(self._bytes[-1]) > budget  # not everything has room
        batches = 0 if self._short and shuffled else schedule.step_batches
        self._room = room(snapshot, columns, schedule.plan, batches)
        self._tight = self._room < plan.step_bytes(schedule.plan, batches)
        self._decoded = _fits_decoded(snapshot, columns)
        self._all_fits = self._decoded or not self._short
        self._flights = FLIGHTS + min(schedule.plan.order.window, 64)
        self._whole = lru_cache(maxsize=256)(self._read_whole)
        self._wanted: dict[int, Part] = {}  # by the number of the file
        self._done = self._begun = 0  # files
        self._front = first  # the first step that is not gathered
        self._loaded: dict[int, int] = {}  # rows of each block that are in memory, and need no file any more
        self._news = 0  # how often the front moved, or a block was loaded
        self._closed = self._left = False
        self.fail: Callable[[BaseException], object] | None = None  # told of what goes wrong in the thread
        self._thread: threading.Thread | None = None
        self._turn = threading.Condition()
        self._pass_by(first)
        self._reservation = self._cache.reserve(
            _identity(schedule.plan),
            f"scan of {snapshot.label}",
            self._room,
            needs,
            epoch=schedule.plan.epoch,
            position=self._done,
        )
        self._begun = self._done
        self._settled = self._foretold = self._is_anew = False
        self._told = 0.0
        self._access.workers.calm = True
        # All parts are open since the last epoch: then none has to be brought in or let go on the way.
        self._rests = self._all_fits and self._access.has_idle(self._files.names())
        step = next(schedule.steps(first))
        self._bring(len(self._files.blocks) if self._rests else self._first_window(step))
        self._rests = self._rests and not self.waits()

    def at_hand(self, shard: int) -> bool:
        """Whether nothing of a shard has to be waited for: all parts that are read are open."""
        parts = self._snapshot.shard(shard).parts
        read = [one for one in parts if not self._asked.isdisjoint(one.fields)]
        return all(self._access.opened(one) is not None for one in read)

    def waits(self) -> bool:
        """Whether reading waits for a network, by all appearances."""
        return self._access.flying() > 0

    def cramped(self, *, permuted: bool) -> bool:
        """Whether a unit must not keep files mapped: leases would be in somebody's way, or in that of what comes next.

        A permuted unit would keep them for longer, and more of them.
        """
        return self._cache.crowded or self._tight or (permuted and self._short)

    def ask(self, shard: int, first: Callable[[Part], Iterable[int]]) -> None:
        """Have these batches of the parts of a shard that are on their way here as soon as can be."""
        for one in self._whole(shard):
            self._access.ask(one, first(one))

    @contextmanager
    def having(self, shard: int, first: Callable[[Part], Iterable[int]]) -> Iterator[None]:
        """Have the parts of a shard that are read whole open or on their way, of all of them these batches first."""
        wanted: list[Part] = []
        try:
            for one in self._whole(shard):
                if self._access.opened(one) is None:
                    self._access.want(one, self._meter)
                    wanted.append(one)
                    self._access.ask(one, first(one))
            yield
        finally:
            for one in wanted:
                self._access.unwant(one, again=self._all_fits)
            if self._left:  # in the meantime
                self._access.release()

    def settled(self) -> None:
        """The first batch is here: now parts are brought in that are not needed yet."""
        if not self._settled:
            self._settled = True
            self._access.workers.calm = False
            self.passed(self._front)

    def passed(self, front: int) -> None:
        """The steps before `front` are gathered."""
        with self._turn:
            self._front = max(self._front, front)
            for block in [block for block in self._loaded if self._schedule.last_of(block) < self._front]:
                del self._loaded[block]
            self._tell()

    def loaded(self, unit: Unit) -> None:
        """The rows of a unit are in memory: the files that they came from are not needed for them any more."""
        with self._turn:
            self._loaded[unit.block] = self._loaded.get(unit.block, 0) + unit.stop - unit.start
            self._tell()

    def _tell(self) -> None:
        """Have the thread look at what has changed (with the lock held)."""
        self._news += 1
        if self._rests:  # there is nothing to do, but to say that all of it is in use
            return self._cache.idle.note(self)
        hurried = self._settled or self._tight or self._short  # the first batch may wait for room, too
        if hurried and self._thread is None and not self._closed:
            self._thread = _threads.start("lake-ahead", self._work)
        return self._turn.notify()

    def release(self) -> None:
        """Close the parts that are open since the last epoch: they are in the way, or nobody reads them."""
        self._rests, self._is_anew = False, True
        self._access.loosen()

    def close(self, *, early: bool) -> None:
        """Let everything go. `early`: no other epoch is expected, so nothing stays open for one."""
        with self._turn:
            if self._closed:
                return
            self._closed = True
            self._turn.notify()
            thread = self._thread
        if thread is not None:
            thread.join()  # it waits for nothing but the index of the cache
        self._let_all_go()
        if early:
            self._left = True
            self._access.release()
        self._access.workers.calm = False
        self._reservation.close()

    # --- in a thread of its own ---------------------------------------------------------------

    def _work(self) -> None:
        try:
            if self._is_anew:
                self._is_anew = False
                self._let_all_go()
                self._begun = self._done
            self._foretell()
            self._follow()
        except BaseException as error:
            with self._turn:
                self._thread = None
            if self.fail is not None:
                self.fail(error)

    def _foretell(self) -> None:
        """Say what the next epoch will use, where that decides which files are kept for it."""
        order, budget = self._schedule.plan.order, self._cache.budget
        if not self._foretold and order.shuffle is True and budget is not None and self._bytes[-1] > budget:
            self._foretold = True
            following = self._schedule.plan.next_order()
            self._reservation.follow(
                files(self._snapshot, self._columns, self._schedule.plan, following).needs()
            )

    def _follow(self) -> None:
        while True:
            with self._turn:
                front, news = self._front, self._news
            self._advance(front)
            waiting = self._bring(len(self._files.blocks))
            with self._turn:
                idle = news == self._news and not self._closed
                busy = waiting or self._access.flying() > 0
                if idle and not self._turn.wait(_LOOK_SECONDS if busy else _IDLE_SECONDS):
                    idle = not busy
                else:
                    idle = False
                if self._closed or idle:
                    self._thread = None
                    break
                self._turn.wait_for(lambda: self._closed, _PAUSE_SECONDS)
            if self._cache.crowded:
                self._access.loosen()
        if not self._closed:
            self._access.loosen()  # nothing is leased by a scan that does nothing

    def _advance(self, front: int) -> None:
        """Let go what no step from `front` on needs."""
        before = self._done
        self._pass_by(front)
        if self._done > before:
            for number in [number for number in self._wanted if number < self._done]:
                self._let_go(number)
            self._begun = max(self._begun, self._done)
            if not self._all_fits or time.monotonic() - self._told > _TOLD_SECONDS:
                self._told = time.monotonic()
                self._reservation.advance(self._done)

    def _pass_by(self, front: int) -> None:
        """Count the files that no step from `front` on needs."""
        starts = self._schedule.plan.order.starts
        while self._done < len(self._files.blocks):
            block = int(self._files.blocks[self._done])
            is_loaded = self._loaded.get(block, 0) >= starts[block + 1] - starts[block]
            if not is_loaded and self._schedule.last_of(block) >= front:
                break
            self._done += 1

    def _first_window(self, step: Step) -> int:
        """The end of the files of the blocks that the first step needs."""
        shards = self._files.shards[self._done :]
        firsts = np.flatnonzero(np.diff(shards, prepend=-1))
        window = self._schedule.plan.order.window - 1 + len({take.unit.block for take in step.takes})
        return self._done + (int(firsts[window]) if window < len(firsts) else len(shards))

    def _bring(self, end: int) -> bool:
        """Begin to bring in what has room of the files before `end`.

        Returns whether there is more to be begun when something has landed.
        """
        while self._begun < end:
            ahead = self._bytes[self._begun + 1] - self._bytes[self._done]
            if ahead > self._room and self._begun > self._done and not self._rests:
                return False
            if self._access.flying() >= self._flights:
                return True
            number = self._begun
            self._begun += 1
            digest = self._files.digests[number].tobytes().hex()
            for one in self._whole(int(self._files.shards[number])):
                if one.digest == digest:
                    self._access.want(one, self._meter, decoded=self._decoded)
                    self._wanted[number] = one
        return False

    def _let_all_go(self) -> None:
        for number in list(self._wanted):
            self._let_go(number)

    def _let_go(self, number: int) -> None:
        self._access.unwant(self._wanted.pop(number), again=self._all_fits)

    def _read_whole(self, number: int) -> list[Part]:
        """The parts of a shard of which the epoch reads so much that all of it costs less."""
        found, shard = [], self._snapshot.shard(number)
        for one in shard.parts:
            held = one.held(self._columns)
            batches = len(one.batches)
            if self._selection is not None:
                batches = len(np.unique(self._selection.rows(number) // one.batches[0].rows))
            if held and self._access.costs_less_whole(one, held, batches):
                found.append(one)
        return found


class Files(NamedTuple):
    """The parts that an epoch uses on this machine, in the order in which it is done with them."""

    shards: Ints
    blocks: Ints  # the block after which the part is not needed, or not until it comes again
    digests: npt.NDArray[np.uint8]  # [n, 32]
    sizes: Ints

    def names(self) -> Iterator[str]:
        """The digests, as parts have them."""
        return (digest.tobytes().hex() for digest in self.digests)

    def needs(self) -> Needs:
        """The same, as the cache takes it."""
        prefixes = np.ascontiguousarray(self.digests[:, :8]).view(">u8").reshape(-1)
        return Needs(prefixes.astype(np.uint64), self.sizes)


def files(
    snapshot: Snapshot, columns: Sequence[str], planned: EpochPlan, order: Order | None = None
) -> Files:
    """The parts that an epoch uses on this machine; `order`: that of another epoch of the plan."""
    shards, blocks = _shards(planned, order or planned.order)
    firsts, digests, sizes = snapshot.manifest.held(columns)
    counts = np.diff(firsts)[shards]
    parts = plan.ramps(firsts[:-1][shards], counts)
    return Files(np.repeat(shards, counts), np.repeat(blocks, counts), digests[parts], sizes[parts])


def _shards(planned: EpochPlan, order: Order) -> tuple[Ints, Ints]:
    """The shards that an epoch uses on this machine, and after which block it is done with each."""
    found: list[tuple[Ints, Ints, npt.NDArray[np.float64]]] = []
    for number in plan.machine_partitions(planned):
        start, stop = planned.share.partitions.run(number)
        if start == stop:
            continue
        first, last = order.locate(start)[0], order.locate(stop - 1)[0]
        if order.window == len(order.visit):
            places, after = np.arange(order.window), np.full(order.window, last)
        else:
            places = np.arange(first, last + order.window)
            after = np.minimum(places, last)
        progress = (after - first + 1) / (last - first + 1)
        found.append((order.visit.take(places, mode="wrap"), after, progress))
    if not found:
        return order.visit[:0], order.visit[:0]
    shards, blocks, progress = (np.concatenate(arrays) for arrays in zip(*found, strict=True))
    in_turn = np.argsort(progress, kind="stable")  # partitions advance together
    return shards[in_turn], blocks[in_turn]


def room(snapshot: Snapshot, columns: Sequence[str], planned: EpochPlan, batches: int = 0) -> int:
    """Bytes of the cache to ask for: what is kept for steps of so many batches, and something to bring in ahead.

    Without batches, or where the budget has no more, that is the window.

    Raises:
        BudgetError: the window exceeds the budget; says what would not.
    """
    needed, wanted = plan.resident_bytes(planned), plan.step_bytes(planned, batches)
    budget = None if snapshot.cache is None else snapshot.cache.budget
    if budget is None:
        return wanted + AHEAD_BYTES
    if needed > budget:
        smaller = {
            f"columns=[{name!r}]": int(snapshot.manifest.sizes([name])[0].sum()) for name in columns[:64]
        }
        least = min(smaller, key=lambda name: smaller[name])
        plan.check_budget(planned, budget, others={least: smaller[least]})
    return min(budget, wanted + min(AHEAD_BYTES, budget // AHEAD_SHARE))


def stays_open(snapshot: Snapshot, columns: Sequence[str]) -> bool:
    """Whether most parts that hold these columns are still open since they were read last."""
    digests = snapshot.manifest.held(columns)[1]
    some = digests[:: -(-len(digests) // _SAMPLED) or 1]
    return 2 * sum(snapshot.reader.access.has_idle([digest.tobytes().hex()]) for digest in some) > len(some)


def _fits_decoded(snapshot: Snapshot, columns: Sequence[str]) -> bool:
    """Whether the cache may keep all parts that hold these columns decoded, and one as stored besides."""
    assert snapshot.cache is not None
    stored, raw = (sizes for sizes in snapshot.manifest.sizes(columns))
    budget = snapshot.cache.budget
    return budget is None or int(raw.sum()) * 9 // 8 + 4 * int(stored.max(initial=0)) <= budget


def _identity(planned: EpochPlan) -> str:
    """What scans have in common that use the same parts in the same order on this machine."""
    said = [dict(planned.facts), planned.partitions, plan.machine_partitions(planned)]
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()
