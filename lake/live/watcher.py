"""The loop that watches one folder: looks, decides with `arrivals` and `policy`, writes the journal, hands over."""

from __future__ import annotations

import logging
import signal
import stat
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from lake import _os, filenames
from lake.live import policy
from lake.live.arrivals import Arrivals, File, Sample, Stamp, cut, present
from lake.live.batch import Batch, FileChanged, Folder
from lake.live.journal import Journal, Open, stamp_of
from lake.live.notices import Listing, Notice, Notices

_TICK: Final = 0.1  # seconds in which a stop is noticed
_LIST: Final = 5.0  # seconds between listings where the system notifies
_SHARE: Final = 20  # a listing that takes a second is followed by so many without one
_DRAIN: Final = 1000  # notices that are taken before anything else is looked at
_SHOWN: Final = 5  # names in a message

_log = logging.getLogger("lake")


@dataclass(frozen=True, slots=True)
class Watched:
    """What one call handed over. `quarantined`: batches that failed too often and were set aside."""

    batches: int = 0
    files: int = 0
    late: int = 0
    quarantined: int = 0


@dataclass(frozen=True, slots=True)
class How:
    """How a folder is watched."""

    every: policy.Every
    settle: float  # seconds
    delete: bool
    single: bool  # each file is handed over by itself, as soon as it is whole
    passing: Callable[[BaseException], bool]  # whether a failure says nothing about the batch


class Watcher:
    """Watches a folder whose journal it holds, until it is told to stop."""

    def __init__(self, root: Path, journal: Journal, hand_over: Callable[[Batch], object], how: How) -> None:
        self._root, self._journal, self._hand_over, self._how = root, journal, hand_over, how
        self._arrivals = Arrivals(how.settle, journal.known())
        self._listing = Listing(root)
        self._again = [(0.0, batch) for batch in journal.unfinished()]  # and when they are due
        self._leftover = journal.deletable() if how.delete else set[File]()
        self._list_at = self._made_at = self._looked_at = -float("inf")
        self._rest = 0.0  # seconds without a listing after the last one
        self._batches = self._files = self._late = self._quarantined = 0

    def run(self, stopping: Callable[[], bool]) -> Watched:
        """Hand over what arrives; what was in hand is finished."""
        with closing(Notices(self._root)) as notices:
            period = _LIST if notices.alive else min(max(self._how.settle / 2, 0.1), 2.0)
            while not stopping():
                now = time.monotonic()
                if now >= self._list_at:
                    self._list(now, period)
                self._retry(now, stopping)
                self._make(now, stopping)
                self._take(notices, stopping)
        return Watched(self._batches, self._files, self._late, self._quarantined)

    # --- looking ------------------------------------------------------------------------------

    def _list(self, now: float, period: float) -> None:
        there = set()
        leftover: list[File] = []
        for path, stamp in self._listing:
            there.add(path)
            self._arrivals.see(path, stamp, now)
            if self._leftover and (file := File(path, stamp)) in self._leftover:
                leftover.append(file)
        self._arrivals.miss(there)
        self._leftover = set()
        self._delete(leftover)
        self._rest = _SHARE * (time.monotonic() - now)
        self._list_at = now + max(period, self._rest)

    def _look_soon(self) -> None:
        self._list_at = min(self._list_at, time.monotonic() + self._rest)

    def _take(self, notices: Notices, stopping: Callable[[], bool]) -> None:
        """Wait a little for notices, and take those that are there."""
        notice = notices.next(_TICK)
        for _ in range(_DRAIN):
            if notice is None or stopping():
                return
            self._notice(notice)
            notice = notices.next(0)

    def _notice(self, notice: Notice) -> None:
        if notice.what == "look":
            self._look_soon()
        elif notice.what == "gone":
            self._arrivals.lose(notice.path)
        elif (stamp := self._regular(notice.path)) and self._listing.nameable(notice.path):
            self._arrivals.see(notice.path, stamp, time.monotonic())
            if self._how.single and (notice.what == "whole" or stamp.size):
                self._whole(notice)

    def _regular(self, path: str) -> Stamp | None:
        with suppress(OSError):
            status = (self._root / path).stat()
            if stat.S_ISREG(status.st_mode):
                return Stamp(status.st_size, status.st_mtime_ns)
        return None

    def _whole(self, notice: Notice) -> None:
        """Hand a file over at once, if nobody is writing to it; where the system cannot tell, if it was closed."""
        written = self._written(notice.path)
        sure = written is False or (written is None and notice.what == "whole")
        if sure and (sample := self._arrivals.single(notice.path)):
            self._single(sample)

    def _written(self, path: str) -> bool | None:
        return _os.being_written(str(self._root / path))

    # --- deciding -----------------------------------------------------------------------------

    def _make(self, now: float, stopping: Callable[[], bool]) -> None:
        """Make batches of what has arrived, if it is time."""
        how = self._how
        often = 0.5 if how.every.bytes is not None else how.every.seconds
        if how.single:
            often = max(how.settle / 4, _TICK)
        if now - self._looked_at < often or not self._arrivals:
            return
        self._looked_at = now
        if how.single:
            for sample in [each for each in self._arrived(now) if not stopping()]:
                self._single(sample)
            return
        if self._again:  # what came first goes first
            return
        samples = self._arrived(now)
        if not how.every.due(now - self._made_at, sum(sample.size for sample in samples)):
            return
        self._made_at = now
        most = min(policy.MOST_BYTES, how.every.bytes or policy.MOST_BYTES)
        for run in cut(samples, policy.MOST_FILES, most):
            if stopping():
                return
            batch = self._journal.begin(run)
            self._arrivals.take(run)
            self._deliver(batch)

    def _arrived(self, now: float) -> list[Sample]:
        """The quiet samples that nobody is writing to."""
        found = []
        for sample in self._arrivals.quiet(now):
            written = [file.path for file in sample.files if self._written(file.path)]
            for path in written:
                self._arrivals.disturb(path, now)
            if not written:
                found.append(sample)
        return found

    def _retry(self, now: float, stopping: Callable[[], bool]) -> None:
        due = [batch for at, batch in self._again if at <= now]
        self._again = [(at, batch) for at, batch in self._again if at > now]
        for place, batch in enumerate(due):
            if stopping():
                self._again += [(now, each) for each in due[place:]]
                return
            self._deliver(batch)

    # --- handing over -------------------------------------------------------------------------

    def _batch(self, number: int | None, samples: list[Sample]) -> Batch:
        stamps = {file.path: file.stamp for sample in samples for file in sample.files}
        name = "" if number is None else self._journal.batch_id(number)
        return Batch(name, Folder(self._root, stamps), samples)

    def _deliver(self, batch: Open) -> None:
        """Hand a batch over that is in the journal, without the files that changed since or went."""
        for _ in range(policy.TRIES):
            batch.samples, lost = present(batch.samples, lambda path: stamp_of(self._root / path))
            if lost:
                self._lost(batch, lost)
            if not batch.samples:
                self._journal.finish(batch, "void")
                return
            try:
                self._hand_over(self._batch(batch.number, batch.samples))
            except FileChanged as error:
                changed = error
            except Exception as error:
                self._failed(batch, error)
                return
            else:
                self._journal.finish(batch, "done")
                self._done(batch.samples)
                return
        self._failed(batch, changed)

    def _single(self, sample: Sample) -> None:
        """Hand one file over; it is in the journal when that is done, or when it failed."""
        try:
            self._hand_over(self._batch(None, [sample]))
        except FileChanged:
            self._look_soon()
            return
        except Exception as error:
            batch = self._journal.begin([sample])
            self._arrivals.take([sample])
            self._failed(batch, error)
            return
        self._journal.begin([sample], state="done")
        self._arrivals.take([sample])
        self._done([sample])

    def _done(self, samples: list[Sample]) -> None:
        files = [file for sample in samples for file in sample.files]
        late = [file.path for sample in samples if sample.late for file in sample.files]
        self._batches, self._files, self._late = (
            self._batches + 1, self._files + len(files), self._late + len(late)
        )  # fmt: skip
        if late:
            _log.warning(
                "%s: %d came after their samples, or again, and are rows of their own: %s",
                self._root, len(late), _shown(late),
            )  # fmt: skip
        if self._how.delete:
            self._delete(files)

    def _delete(self, files: list[File]) -> None:
        if files and self._journal.delete(self._root, files):
            self._look_soon()

    def _lost(self, batch: Open, lost: list[File]) -> None:
        self._journal.drop(batch, lost)
        for file in lost:
            self._arrivals.forget(file.path)
        self._look_soon()

    def _failed(self, batch: Open, error: Exception) -> None:
        """Try again later, or set the batch aside."""
        batch.attempts += 1
        batch.failures += not self._how.passing(error)
        self._journal.fail(batch, f"{type(error).__name__}: {error}")
        names = _shown([file.path for file in batch.files])
        if batch.failures >= policy.TRIES:
            self._journal.finish(batch, "quarantined")
            self._quarantined += 1
            _log.error(
                "%s: batch %s is quarantined after %d failures, the last: %s: %s. Its files stay where they are: %s",
                self._root, self._journal.batch_id(batch.number), batch.failures, type(error).__name__, error, names,
                exc_info=error,
            )  # fmt: skip
            return
        wait = policy.pause(batch.attempts)
        _log.warning(
            "%s: handing over %s failed and is tried again in %.0f s: %s: %s",
            self._root, names, wait, type(error).__name__, error,
        )  # fmt: skip
        self._again.append((time.monotonic() + wait, batch))


@contextmanager
def stoppable(stop: threading.Event | None) -> Iterator[Callable[[], bool]]:
    """Whether to stop: because of `stop`, SIGTERM or the first Ctrl-C; a second one interrupts as ever."""
    asked = threading.Event()

    def ask(number: int, frame: object) -> None:
        if asked.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt
        asked.set()

    main = threading.current_thread() is threading.main_thread()
    before = (
        {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)} if main else {}
    )
    try:
        yield lambda: asked.is_set() or (stop is not None and stop.is_set())
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


def _shown(names: list[str]) -> str:
    more = len(names) - _SHOWN
    return ", ".join(map(filenames.printable, names[:_SHOWN])) + (f" and {more:,} more" if more > 0 else "")
