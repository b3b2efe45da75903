"""A scan as a loader reads it: this rank's batches as tensors, by this process, or by others where it is mapped."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from lake.plan import Ranks
from lake.scan import Scan
from lake.torch.feed import Team
from lake.torch.reading import Reading
from lake.torch.stream import TensorStream
from lake.torch.tensors import Form, Tensors


@dataclass(frozen=True)
class Batches:
    """Every `count`-th batch of a rank, from batch `number` of what is left on."""

    epoch: int
    at: Mapping[str, Any] | None
    count: int
    number: int


class ScanJob:
    """Makes batches of a scan."""

    def __init__(self, scan: Scan, form: Form) -> None:
        self._scan, self._form = scan, form

    def open(self, wanted: Batches) -> _Some:
        scan = self._scan
        scan.set_epoch(wanted.epoch)
        if wanted.at is not None:
            scan.load_state_dict(wanted.at)
        convert = Tensors(self._form, key=scan.snapshot.document.key)
        return _Some(scan.every(wanted.count, wanted.number, convert, own=self._form.copy))

    def metrics(self) -> dict[str, float]:
        return self._scan.metrics()


class _Some:
    """The batches that are wanted."""

    def __init__(self, batches: Iterator[Any]) -> None:
        self._batches = batches

    def next(self) -> Any:
        while (made := next(self._batches)) is None:
            pass
        return made

    def close(self) -> None:
        self._batches.close()  # type: ignore[attr-defined]  # of a scan


class Scanning:
    """One epoch of a scan, in this process."""

    def __init__(self, stream: TensorStream) -> None:
        self._stream, self._items = stream, iter(stream)

    def next(self) -> dict[str, Any]:
        return next(self._items)

    def mark(self) -> Any:
        return self._stream.state_dict()

    def state(self, mark: Any) -> dict[str, Any]:
        return dict(mark)

    def close(self) -> None:
        self._items.close()  # type: ignore[attr-defined]  # of a scan


class Fetching:
    """One epoch of a scan, made by workers in turn. `scan` begins where they do, and is not read."""

    def __init__(self, scan: Scan, team: Team, epoch: int, at: Mapping[str, Any] | None) -> None:
        self._scan, self._team, self._number = scan, team, 0
        team.begin([Batches(epoch, at, team.workers, number) for number in range(team.workers)])

    def next(self) -> dict[str, Any]:
        try:
            found: dict[str, Any] = self._team.take(self._number % self._team.workers)
        except StopIteration:
            self._team.finish()
            raise
        self._number += 1
        return found

    def mark(self) -> Any:
        return self._number

    def state(self, mark: Any) -> dict[str, Any]:
        return self._scan.after(mark)

    def close(self) -> None:
        self._team.end()


class ScanSource:
    """Epochs of a scan. Its ranks are looked for each time that they matter, until an epoch begins."""

    def __init__(
        self,
        scan: Scan,
        form: Form,
        find_ranks: Callable[[], Ranks],
        workers: int,
        *,
        options: Mapping[str, Any],
        context: Any,
    ) -> None:
        self._find, self._ranks, self._workers, self._context = find_ranks, Ranks(0, 1), workers, context
        self._is_placed = scan.asked["rank"] is not None
        self._stream = TensorStream(scan.among(**options), form)
        self._team: Team | None = None

    def __len__(self) -> int:
        return len(self._placed())

    def begin(self) -> Reading:
        stream = self._placed()
        if not self._workers:
            return Scanning(stream)
        if self._team is None:
            self._team = Team(ScanJob(stream.scan.among(), stream.form), self._workers, self._context)
        state = stream.state_dict()
        scan, epoch = stream.scan.among(), int(state["epoch"])
        at = state if state["rows"] else None
        stream.set_epoch(epoch + 1)
        return Fetching(scan, self._team, epoch, at)

    def state(self) -> dict[str, Any]:
        return self._placed().state_dict()

    def load(self, state: Mapping[str, Any]) -> None:
        self._placed().load_state_dict(state)

    def set_epoch(self, epoch: int) -> None:
        self._stream.set_epoch(epoch)

    def metrics(self) -> dict[str, Any]:
        if self._team is None:
            return {**self._stream.metrics()}
        told = self._team.metrics()
        return {name: sum(each[name] for each in told) for name in (told[0] if told else {})}

    def close(self) -> None:
        if self._team is not None:
            self._team.close()

    def _placed(self) -> TensorStream:
        """The batches of this rank."""
        if not self._is_placed and (ranks := self._find()) != self._ranks:
            nodes = {"node": ranks.node, "nodes": ranks.nodes}
            scan = self._stream.scan.among(rank=ranks.rank, world_size=ranks.world_size, **nodes)
            self._ranks, self._stream = ranks, TensorStream(scan, self._stream.form)
            self.close()
            self._team = None
        return self._stream
