"""What runs: stages, each an iterator that can tell where it is.

A stage is opened for one epoch, by its node. It is never a generator, which would hide its place on a stack.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol, cast


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


class Seekable(Stage, Protocol):
    """A stage that can go forward without making items: all that are countable, on top of such."""

    def skip(self, count: int) -> int:
        """Pass over so many items, or over all that are left; how many those were.

        Nothing is read where nothing was read before.
        """


class Plentiful(Stage, Protocol):
    """A stage that hands out several items for little more than one."""

    def several(self, count: int) -> list[Any]:
        """The next items, as many as are at hand: one at least, `count` at most. The tag is that of the last.

        Raises:
            StopIteration: there is none.
        """


class Lending(Stage, Protocol):
    """A stage that lets its items be taken from it without being asked for each."""

    def lent(self) -> Iterator[Any]:
        """The next items that are at hand, one at least. Reading them moves this stage; closing it ends them.

        Raises:
            StopIteration: there is none.
        """


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


class OneForOne(Over):
    """A stage that makes one item of each."""

    def skip(self, count: int) -> int:
        return passed(self._source, count)


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


def several(stage: Stage, count: int) -> list[Any]:
    """One to `count` items of a stage; StopIteration if there is none."""
    return cast("Plentiful", stage).several(count) if hasattr(stage, "several") else [stage.next()]


def passed(stage: Stage, count: int) -> int:
    """Pass over `count` items, or all that are left; how many those were. They are made if that is the only way."""
    return cast("Seekable", stage).skip(count) if hasattr(stage, "skip") else read(stage, count)


def read(stage: Stage, count: int) -> int:
    """Make `count` items, or all that are left, for nothing; how many those were."""
    for number in range(count):
        try:
            stage.next()
        except StopIteration:
            return number
    return count
