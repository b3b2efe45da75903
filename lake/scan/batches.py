"""A scan as the beginning of a pipeline whose items are its batches: what `lake.mix` makes of scans."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from lake.pipeline.node import Counts, Node, Run
from lake.pipeline.stage import Stage, read

if TYPE_CHECKING:
    from lake.plan import Plan
    from lake.scan.scan import Scan


@dataclass(frozen=True, eq=False)
class Batches(Node):
    """The batches of a scan, in the form that `formed` gives them."""

    name: ClassVar[str] = "scan"
    scan: Scan
    formed: Callable[[Scan], Any]  # a scan's twin that hands out other items and answers for its position

    @property
    def label(self) -> str:
        return f"scan({self.scan.snapshot.name})"

    @property
    def outline(self) -> str:
        return f"scan({self.scan.snapshot.name}, version={self.scan.snapshot.version})"

    @property
    def rows_each(self) -> int:
        """Rows of each batch but the last."""
        return int(self.scan.asked["batch_size"])

    def open(self, run: Run) -> Stage:
        return _Batches(self, run)

    def count(self, counts: Counts, epoch: int) -> float:
        return len(self.scan)

    def plan(self) -> Plan:
        return self.scan.check()

    def version(self) -> tuple[str, int, str]:
        snapshot = self.scan.snapshot
        return snapshot.name, snapshot.entry.seq, snapshot.version

    def facts(self) -> Mapping[str, Any]:
        data = self.scan.snapshot.document.data
        return {"data": data, **self.scan.facts(), "formed": self.formed}


class _Batches:
    def __init__(self, node: Batches, run: Run) -> None:
        scan = node.scan.twin()
        scan.set_epoch(run.epoch)
        self._formed, self._rows, self._run = node.formed(scan), node.rows_each, run
        self._start = self._formed.state_dict()
        self._number = 0  # batches before the next
        self._items: Iterator[Any] | None = None
        self._run.reading.begin(self, scan.metrics)

    def next(self) -> Any:
        if self._items is None:
            self._items = iter(self._formed)
        item = next(self._items)
        self._number += 1
        return item

    def skip(self, count: int) -> int:
        if self._items is not None:
            return read(self, count)
        start = self._start
        count = min(count, -(-(start["of"] - start["rows"]) // self._rows))
        self.restore({**start, "rows": min(start["of"], start["rows"] + count * self._rows)})
        return count

    def state(self) -> Any:
        return self._formed.state_dict()

    def restore(self, state: Any) -> None:
        self._formed.load_state_dict(state)
        self._start, self._number = state, -(-state["rows"] // self._rows)

    def tag(self) -> Any:
        return self._run.epoch, self._number

    def close(self) -> None:
        self._run.reading.end(self)
        self._items = iter(())
        self._formed.close()
