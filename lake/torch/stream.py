"""A scan as dicts of tensors, on the device asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from lake.scan.batches import Batches
from lake.torch.tensors import Form, Tensors

if TYPE_CHECKING:
    from lake.pipeline.node import Node
    from lake.scan import Scan
    from lake.scan.columns import Columns


class TensorStream:
    """Iterates `dict[str, Tensor]`, one for each batch of the scan; each `iter` is the next epoch.

    It owns the scan's position: while it is iterated, ask this object, not the scan.
    """

    def __init__(self, scan: Scan, form: Form, device: Any = None) -> None:
        self.scan, self.form = scan, form
        self.device = None if device is None else torch.device(device)

    def __repr__(self) -> str:
        return "scan.to_torch()"

    def __len__(self) -> int:
        return len(self.scan)

    @property
    def rows(self) -> int:
        """Rows of an epoch, for all ranks."""
        return self.scan.rows

    def __iter__(self) -> Iterator[dict[str, Any]]:
        convert, device = Tensors(self.form, key=self.scan.snapshot.document.key), self.device

        def render(columns: Columns) -> dict[str, Any]:
            found = convert(columns)
            return (
                found if device is None else {name: _placed(value, device) for name, value in found.items()}
            )

        return self.scan._items(render, own=self.form.copy, outer=self)

    def state_dict(self) -> dict[str, Any]:
        """The position after the last batch handed out: see `Scan.state_dict`."""
        self._check_asked("state_dict")
        return self.scan._position().state()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Begin the next iteration where `state` says: see `Scan.load_state_dict`."""
        self._check_asked("load_state_dict")
        self.scan._end()
        self.scan.load_state_dict(state)

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


def _placed(value: Any, device: torch.device) -> Any:
    if isinstance(value, tuple):
        return tuple(_placed(part, device) for part in value)
    return value.to(device) if isinstance(value, torch.Tensor) else value
