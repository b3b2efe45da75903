"""A scan as dicts of tensors, on the device asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from lake.asked import by_number
from lake.scan.batches import Batches
from lake.torch.device import MovedItems, MovedReading, Mover, route_to
from lake.torch.tensors import Form, Tensors

if TYPE_CHECKING:
    from lake.pipeline.node import Node
    from lake.scan import Scan


class TensorStream:
    """Iterates `dict[str, Tensor]`, one for each batch of the scan; each `iter` is the next epoch.

    It owns the scan's position: while it is iterated, ask this object, not the scan.
    """

    def __init__(self, scan: Scan, form: Form, device: Any = None) -> None:
        self.scan, self.form = scan, form
        self.device = None if device is None else torch.device(device)
        self._moved: MovedReading | None = None  # the last iteration, where it is ahead of who uses it

    def __repr__(self) -> str:
        return "scan.to_torch()"

    def __len__(self) -> int:
        return len(self.scan)

    def __getitem__(self, index: object) -> NoReturn:
        raise by_number("scan")

    @property
    def rows(self) -> int:
        """Rows of an epoch, for all ranks."""
        return self.scan.rows

    def __iter__(self) -> Iterator[dict[str, Any]]:
        convert = Tensors(self.form, key=self.scan.snapshot.document.key)
        items = self.scan._items(convert, own=self.form.copy, outer=self)
        if self.device is None:
            return items
        self._moved = MovedReading(_Scanned(self.scan, items), Mover(route_to(self.device)))
        return MovedItems(self._moved)

    def state_dict(self) -> dict[str, Any]:
        """The position after the last batch handed out: see `Scan.state_dict`."""
        self._check_asked("state_dict")
        moved = self._moved
        return self.scan._position().state() if moved is None else moved.state(moved.mark())

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Begin the next iteration where `state` says: see `Scan.load_state_dict`."""
        self._check_asked("load_state_dict")
        self._moved = None
        self.scan._end()
        self.scan.load_state_dict(state)

    def copied(self) -> TensorStream:
        """The same with a position of its own: where this one's next `iter` begins."""
        return TensorStream(self.scan.among(), self.form, self.device)

    def hand_over(self, outer: Any) -> None:
        """Have `outer` be asked for the position from now on, until this or the scan is iterated again."""
        self.scan.hand_over(outer)

    def _check_asked(self, name: str) -> None:
        outer = None if self.scan._outer is None else self.scan._outer()
        if outer is not None and outer is not self:
            raise RuntimeError(
                f"{self} is read through {outer}: call {name}() of that, which knows the position"
            )

    def set_epoch(self, epoch: int) -> None:
        """Make the next iteration epoch `epoch`: see `Scan.set_epoch`."""
        self.scan.set_epoch(epoch)

    @property
    def node(self) -> Node:
        """What `lake.mix` makes of it: a pipeline of its batches begins with this."""
        return Batches(self.scan.twin(), partial(TensorStream, form=self.form, device=self.device))

    def close(self) -> None:
        """End the iteration in progress, if there is one; the position stays."""
        self.scan.close()

    def metrics(self) -> dict[str, float]:
        """What reading has cost: see `Scan.metrics`."""
        return self.scan.metrics()


class _Scanned:
    """An iteration of a scan, as what goes to a device."""

    def __init__(self, scan: Scan, items: Any) -> None:
        self._scan, self._items = scan, items

    def next(self) -> dict[str, Any]:
        found: dict[str, Any] = next(self._items)
        return found

    def mark(self) -> dict[str, Any]:
        return self._scan._position().state()

    def state(self, mark: dict[str, Any]) -> dict[str, Any]:
        return dict(mark)

    def close(self) -> None:
        self._items.close()
