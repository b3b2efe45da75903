"""A pipeline as a loader reads it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lake.pipeline import Pipeline


class Piping:
    """One epoch of a pipeline."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline, self._items = pipeline, iter(pipeline)

    def next(self) -> Any:
        return next(self._items)

    def state(self) -> dict[str, Any]:
        return self._pipeline.state_dict()

    def close(self) -> None:
        self._items.close()  # type: ignore[attr-defined]  # of a pipeline


class PipeSource:
    """Epochs of a pipeline."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline

    def __len__(self) -> int:
        return len(self._pipeline)

    def begin(self) -> Piping:
        return Piping(self._pipeline)

    def state(self) -> dict[str, Any]:
        return self._pipeline.state_dict()

    def load(self, state: Mapping[str, Any]) -> None:
        self._pipeline.load_state_dict(state)

    def set_epoch(self, epoch: int) -> None:
        self._pipeline.set_epoch(epoch)

    def metrics(self) -> dict[str, Any]:
        return self._pipeline.metrics()

    def close(self) -> None:
        pass
