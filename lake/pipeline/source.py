"""Streams that are not read from a lake: sequences, iterables, random numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, ClassVar

from lake.pipeline.node import ENDLESS, FREE, Counts, Node, Run, name_of
from lake.pipeline.seeds import Draws, Seed, word
from lake.pipeline.stage import Stage


@dataclass(frozen=True, eq=False)
class Items(Node):
    """The items of a sequence, by number."""

    name: ClassVar[str] = "from_iterable"
    items: Sequence[Any]
    replicate: bool = field(default=False, metadata=FREE)

    @property
    def outline(self) -> str:
        return f"from_iterable({type(self.items).__name__} of {len(self.items)})"

    def open(self, run: Run) -> Stage:
        return _Items(self.items, run.epoch)

    def count(self, counts: Counts, epoch: int) -> float:
        return len(self.items)


class _Items:
    def __init__(self, items: Sequence[Any], epoch: int) -> None:
        self._items, self._epoch, self._count = items, epoch, 0

    def next(self) -> Any:
        if self._count >= len(self._items):
            raise StopIteration
        item = self._items[self._count]
        self._count += 1
        return item

    def skip(self, count: int) -> int:
        count = min(count, len(self._items) - self._count)
        self._count += count
        return count

    def state(self) -> Any:
        return self._count

    def restore(self, state: Any) -> None:
        self._count = state

    def tag(self) -> Any:
        return self._epoch, self._count

    def close(self) -> None:
        pass


@dataclass(frozen=True, eq=False)
class Iterated(Node):
    """The items of an iterable, from its beginning in each epoch; or of what a function of no argument gives."""

    name: ClassVar[str] = "from_iterable"
    iterable: Iterable[Any] | Callable[[], Iterable[Any]]
    replicate: bool = field(default=False, metadata=FREE)

    @property
    def label(self) -> str:
        return f"from_iterable({name_of(self.iterable)})"

    def open(self, run: Run) -> Stage:
        made = self.iterable() if callable(self.iterable) else self.iterable
        return _Iterated(made, run.epoch)


class Once:
    """What hands an iterator out, once."""

    def __init__(self, iterator: Iterator[Any]) -> None:
        self._iterator: Iterator[Any] | None = iterator
        self.__qualname__ = type(iterator).__name__

    def __call__(self) -> Iterator[Any]:
        if self._iterator is None:
            raise ValueError(
                "from_iterable() was given an iterator, which can be read once: give a function that makes one"
            )
        iterator, self._iterator = self._iterator, None
        return iterator


class _Iterated:
    """Resumes by passing over what was read."""

    def __init__(self, iterable: Iterable[Any], epoch: int) -> None:
        self._items, self._epoch, self._count = iter(iterable), epoch, 0

    def next(self) -> Any:
        item = next(self._items)
        self._count += 1
        return item

    def skip(self, count: int) -> int:
        found = sum(1 for _ in islice(self._items, count))
        self._count += found
        return found

    def state(self) -> Any:
        return self._count

    def restore(self, state: Any) -> None:
        for _ in range(state):
            self.next()

    def tag(self) -> Any:
        return self._epoch, self._count

    def close(self) -> None:
        self._items = iter(())


@dataclass(frozen=True, eq=False)
class Random(Node):
    """Numbers in [0, 1) without end."""

    name: ClassVar[str] = "random_stream"
    seed: Seed

    @property
    def outline(self) -> str:
        return f"random_stream({self.seed})"

    def open(self, run: Run) -> Stage:
        return _Random(Draws(word(self.seed, 2, run.epoch)), run.epoch)

    def count(self, counts: Counts, epoch: int) -> float:
        return ENDLESS


class _Random:
    def __init__(self, draws: Draws, epoch: int) -> None:
        self._draws, self._epoch, self._count = draws, epoch, 0

    def next(self) -> float:
        number = self._draws[self._count]
        self._count += 1
        return number

    def skip(self, count: int) -> int:
        self._count += count
        return count

    def state(self) -> Any:
        return self._count

    def restore(self, state: Any) -> None:
        self._count = state

    def tag(self) -> Any:
        return self._epoch, self._count

    def close(self) -> None:
        pass
