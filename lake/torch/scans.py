"""A scan as a loader reads it: this rank's batches, as tensors, in this process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from lake.plan import Even, Ranks
from lake.scan import Scan
from lake.torch.stream import TensorStream
from lake.torch.tensors import Form


class Scanning:
    """One epoch of a scan."""

    def __init__(self, stream: TensorStream) -> None:
        self._stream, self._items = stream, iter(stream)

    def next(self) -> dict[str, Any]:
        return next(self._items)

    def state(self) -> dict[str, Any]:
        return self._stream.state_dict()

    def close(self) -> None:
        self._items.close()  # type: ignore[attr-defined]  # of a scan


class ScanSource:
    """Epochs of a scan. Its ranks are looked for each time that they matter, until an epoch begins."""

    def __init__(self, scan: Scan, form: Form, find_ranks: Callable[[], Ranks], even: Even | str) -> None:
        self._find, self._ranks = find_ranks, Ranks(0, 1)
        self._is_placed = scan.asked["rank"] is not None
        options = {} if even == "as asked" else {"even": even}
        self._stream = TensorStream(scan.among(**options), form)

    def __len__(self) -> int:
        return len(self._placed())

    def begin(self) -> Scanning:
        return Scanning(self._placed())

    def state(self) -> dict[str, Any]:
        return self._placed().state_dict()

    def load(self, state: Mapping[str, Any]) -> None:
        self._placed().load_state_dict(state)

    def set_epoch(self, epoch: int) -> None:
        self._stream.set_epoch(epoch)

    def metrics(self) -> dict[str, Any]:
        return {**self._stream.metrics()}

    def close(self) -> None:
        pass

    def _placed(self) -> TensorStream:
        """The batches of this rank."""
        if not self._is_placed and (ranks := self._find()) != self._ranks:
            nodes = {"node": ranks.node, "nodes": ranks.nodes}
            scan = self._stream.scan.among(rank=ranks.rank, world_size=ranks.world_size, **nodes)
            self._ranks, self._stream = ranks, TensorStream(scan, self._stream.form)
        return self._stream
