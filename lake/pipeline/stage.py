"""What runs: stages, each an iterator that can tell where it is.

A stage is opened for one epoch, by its node. It is never a generator, which would hide its place on a stack.
"""

from __future__ import annotations

from typing import Any, Protocol


class Stage(Protocol):
    """Items one by one. A position is a JSON document and is that after the last item returned."""

    def next(self) -> Any:
        """The next item.

        Raises:
            StopIteration: there is none; and again at every further call.
        """

    def state(self) -> Any:
        """The position, as JSON values."""

    def restore(self, state: Any) -> None:
        """Go to a position. Called at most once, before anything else, on a stage just opened."""

    def tag(self) -> Any:
        """What identifies the last item in its stream: integers, or tuples of them. Randomness derives from it.

        It depends on where the item came from (epoch, row of the version), not on the order of reading.
        """

    def close(self) -> None:
        """Let go of threads and reads."""


class Over:
    """A stage over one other, at whose position it is and whose tags it passes on."""

    def __init__(self, source: Stage) -> None:
        self._source = source

    def state(self) -> Any:
        return self._source.state()

    def restore(self, state: Any) -> None:
        self._source.restore(state)

    def tag(self) -> Any:
        return self._source.tag()

    def close(self) -> None:
        self._source.close()


class OverAll:
    """A stage over several others."""

    def __init__(self, sources: list[Stage]) -> None:
        self._sources = sources

    def _states(self) -> list[Any]:
        return [source.state() for source in self._sources]

    def _restore(self, states: list[Any]) -> None:
        for source, state in zip(self._sources, states, strict=True):
            source.restore(state)

    def close(self) -> None:
        for source in self._sources:
            source.close()
