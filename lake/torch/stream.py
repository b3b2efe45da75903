"""A scan as dicts of tensors, on the device asked for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from lake.torch.tensors import Form, tensors

if TYPE_CHECKING:
    from lake.scan import Scan


class TensorStream:
    """Iterates `dict[str, Tensor]`, one for each batch of the scan."""

    def __init__(self, scan: Scan, form: Form, device: Any = None) -> None:
        self.scan, self.form = scan, form
        self.device = None if device is None else torch.device(device)

    def __len__(self) -> int:
        return len(self.scan)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        key = self.scan.snapshot.document.key
        for batch in self.scan:
            yield {name: self._placed(value) for name, value in tensors(batch, self.form, key=key).items()}

    def _placed(self, value: Any) -> Any:
        if self.device is None:
            return value
        if isinstance(value, tuple):
            return tuple(self._placed(part) for part in value)
        return value.to(self.device) if isinstance(value, torch.Tensor) else value
