"""What a loader iterates: one epoch of something, item by item, with the position after each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol


class Reading(Protocol):
    """An epoch that is being read."""

    def next(self) -> Any:
        """The next item.

        Raises:
            StopIteration: there is none.
        """

    def mark(self) -> Any:
        """What `state` needs to tell the position after the last item that `next` returned; cheap."""

    def state(self, mark: Any) -> dict[str, Any]:
        """The position at a mark, of which earlier ones are not asked again."""

    def close(self) -> None:
        """Let go of threads and processes' work."""


class Source(Protocol):
    """Epochs, each of which is read once."""

    def __len__(self) -> int:
        """Items of an epoch for this rank; TypeError where that is unknown."""

    def begin(self) -> Reading:
        """The next epoch, or the rest of the one that was loaded."""

    def state(self) -> dict[str, Any]:
        """Where `begin` would."""

    def load(self, state: Mapping[str, Any]) -> None:
        """Have `begin` go on where a position says."""

    def set_epoch(self, epoch: int) -> None:
        """Have `begin` begin this epoch."""

    def metrics(self) -> dict[str, Any]:
        """What all epochs so far have cost."""

    def close(self) -> None:
        """Let go of everything."""
