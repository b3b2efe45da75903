"""What a pipeline is made of, before it runs: a graph of frozen nodes, each a combinator and its parameters.

A node never changes, holds no position, and may be used several times: a pipeline that reads one node twice
reads two independent streams of the same items. Everything that walks a graph looks at each node once.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from lake.pipeline.stage import Stage

if TYPE_CHECKING:
    from lake.pipeline.seeds import Seed
    from lake.plan import Plan

ENDLESS = math.inf
FREE = {"identity": False}  # metadata of a field that changes no item: it is in no fingerprint

KEYS_KEPT = 5  # of items that were skipped

_SHORT = 60  # characters of a parameter that a position repeats in full


class Uncountable(TypeError):
    """How many items there are cannot be known without reading them."""


@dataclass(frozen=True)
class RowShuffle:
    """A shuffle of rows that the plan carries out. `buffer`: rows that are mixed, at least; None: all of them."""

    buffer: int | None
    seed: Seed


@dataclass(frozen=True, eq=False)
class Node:
    """One combinator. Subclasses are frozen dataclasses, whose fields hold inputs and parameters."""

    name: ClassVar[str] = ""
    one_for_one: ClassVar[bool] = False  # item n is made of item n of the only input, and of nothing else

    @cached_property
    def inputs(self) -> tuple[Node, ...]:
        """The nodes that this one reads."""
        found: list[Node] = []
        for each in dataclasses.fields(self):
            value = getattr(self, each.name)
            if isinstance(value, Node):
                found.append(value)
            elif isinstance(value, tuple) and value and all(isinstance(part, Node) for part in value):
                found.extend(value)
        return tuple(found)

    @cached_property
    def depth(self) -> int:
        """How many stages an item has passed after this one: what is on top of it makes no difference."""
        return 1 + max((node.depth for node in self.inputs), default=0)

    @property
    def label(self) -> str:
        """The combinator as messages name it."""
        return f"{self.name}()"

    @property
    def outline(self) -> str:
        """What a position depends on, in short: nodes whose outlines are equal can go on from each other's."""
        return self.label

    def open(self, run: Run) -> Stage:
        """The running form of this node, at the beginning of the run's epoch."""
        raise NotImplementedError

    def count(self, counts: Counts, epoch: int) -> float:
        """How many items an epoch has, an integer or ENDLESS.

        Raises:
            Uncountable: that is known only afterwards.
        """
        raise Uncountable(f"{self.label} makes the number of items unknown")

    def shuffled(self, shuffle: RowShuffle) -> Node | None:
        """This node over rows in shuffled order; None where that would not be this node's stream, shuffled."""
        return None

    def plan(self) -> Plan | None:
        """What a source is going to read."""
        return None

    def version(self) -> tuple[str, int, str] | None:
        """The dataset that a source reads: its name, number and version id."""
        return None

    def __getstate__(self) -> dict[str, Any]:  # what was found out about a node does not travel
        return {each.name: getattr(self, each.name) for each in dataclasses.fields(self)}

    def facts(self) -> Mapping[str, Any]:
        """The parameters that the items depend on."""
        inputs = frozenset(map(id, self.inputs))
        return {
            each.name: value
            for each in dataclasses.fields(self)
            if each.metadata.get("identity", True)
            and id(value := getattr(self, each.name)) not in inputs
            and not (isinstance(value, tuple) and value and id(value[0]) in inputs)
        }


class Counts:
    """Counts of the nodes of a graph, each found once."""

    def __init__(self) -> None:
        self._known: dict[tuple[Node, int], float] = {}

    def of(self, node: Node, epoch: int) -> float:
        """How many items an epoch of a node has."""
        place = node, epoch
        if place not in self._known:
            self._known[place] = node.count(self, epoch)
        return self._known[place]


def over(node: Node, changed: Callable[[Node], Node]) -> Node:
    """A node with its inputs changed; the same one if none is."""
    found: dict[str, Any] = {}
    for each in dataclasses.fields(node):
        value = getattr(node, each.name)
        if isinstance(value, Node):
            made: Any = changed(value)
        elif isinstance(value, tuple) and value and all(isinstance(part, Node) for part in value):
            made = tuple([changed(part) for part in value])
            made = value if all(new is old for new, old in zip(made, value, strict=True)) else made
        else:
            continue
        if made is not value:
            found[each.name] = made
    return dataclasses.replace(node, **found) if found else node


def below(node: Node, shuffle: RowShuffle) -> Node | None:
    """A node of one input over rows in shuffled order; None where those are out of reach."""
    [source] = node.inputs
    found = source.shuffled(shuffle)
    return None if found is None else over(node, lambda _: found)


def graph(root: Node) -> dict[Node, int]:
    """The nodes under a root and itself, inputs first, each with its number from 1."""
    numbers: dict[Node, int] = {}
    waiting = [(root, False)]
    while waiting:
        node, seen = waiting.pop()
        if node in numbers:
            continue
        if seen:
            numbers[node] = len(numbers) + 1
        else:
            waiting.append((node, True))
            waiting.extend((each, False) for each in reversed(node.inputs))
    return numbers


def uses(root: Node) -> dict[Node, int]:
    """How many independent streams of each node a root reads."""
    found = dict.fromkeys(graph(root), 0)
    found[root] = 1
    for node in reversed(list(found)):
        for each in node.inputs:
            found[each] += found[node]
    return found


def outline(root: Node) -> list[str]:
    """The outlines of all nodes, inputs first, each with the numbers of its inputs."""
    numbers = graph(root)
    return [" ".join([node.outline, *(f"<{numbers[each]}" for each in node.inputs)]) for node in numbers]


def is_ordered(node: Node) -> bool:
    """Whether a node hands items out in the same order each time; inputs not considered."""
    return bool(getattr(getattr(node, "call", None), "ordered", True))


def short(value: object) -> str:
    """A parameter as text; a long one ends in its digest."""
    text = str(value)
    if len(text) <= _SHORT:
        return text
    return f"{text[: _SHORT // 2]}...{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def name_of(fn: object) -> str:
    """A function as messages name it."""
    inner = getattr(fn, "func", fn)  # of a partial
    name = getattr(inner, "__qualname__", None) or getattr(inner, "__name__", None) or type(inner).__name__
    return str(name).rpartition("<locals>.")[2]


@dataclass(eq=False)
class StageMeter:
    """What a stage has done."""

    items: int = 0
    seconds: float = 0.0  # in the caller's function, in all threads
    skipped: int = 0
    skipped_keys: list[Any] = field(default_factory=list)  # of the first ones
    cut: int = 0  # documents that pack() cut
    sources: list[int] = field(default_factory=list)  # items from each input of a mix

    def facts(self) -> dict[str, Any]:
        """The numbers that are not nothing; items and seconds always."""
        found = {"items": self.items, "seconds": self.seconds, "skipped": self.skipped}
        if self.skipped:
            found["skipped_keys"] = list(self.skipped_keys)  # type: ignore[assignment]
        return found | ({"cut": self.cut} if self.cut else {})


def stage_facts(root: Node, meters: Mapping[Node, StageMeter]) -> dict[str, Any]:
    """What the stages of a graph have done, by number and label: `stages`, and `sources` of mixes.

    Nodes without a name, which only pass over items, have no number.
    """
    named = [node for node in graph(root) if node.name]
    found = [
        (f"{number} {node.label}", meters[node]) for number, node in enumerate(named, 1) if node in meters
    ]
    return {
        "stages": {label: meter.facts() for label, meter in found if not meter.sources},
        "sources": {label: list(meter.sources) for label, meter in found if meter.sources},
    }


def added(*many: Mapping[str, Any]) -> dict[str, Any]:
    """Metrics of several runs as one: numbers and lists of numbers are summed, keys put together.

    >>> added({"rows": 1, "sources": {"mix": [1, 2]}}, {"rows": 2, "sources": {"mix": [3, 4]}})
    {'rows': 3, 'sources': {'mix': [4, 6]}}
    """
    total: dict[str, Any] = {}
    for metrics in many:
        for name, value in metrics.items():
            total[name] = _added(name, total[name], value) if name in total else value
    return total


def _added(name: str, left: Any, right: Any) -> Any:
    if isinstance(left, Mapping):
        return added(left, right)
    if isinstance(left, list):
        joined = [*left, *right][:KEYS_KEPT]
        return joined if name == "skipped_keys" else [a + b for a, b in zip(left, right, strict=True)]
    return left + right


class Run:
    """One opening of a graph: which epoch, and where stages note what they do.

    `untagged`: a node whose items nobody asks for what identifies them.
    """

    def __init__(
        self, epoch: int, meters: dict[Node, StageMeter], reading: Readings, untagged: Node | None = None
    ) -> None:
        self.epoch, self.reading, self.untagged = epoch, reading, untagged
        self._meters = meters

    def at(self, epoch: int) -> Run:
        """The same for another epoch."""
        return Run(epoch, self._meters, self.reading, self.untagged)

    def meter(self, node: Node) -> StageMeter:
        """Where the stages of a node count."""
        return self._meters.setdefault(node, StageMeter())


class Readings:
    """What sources have read: those that are open, and the sum of those that were."""

    def __init__(self) -> None:
        self._open: dict[object, Callable[[], Mapping[str, float]]] = {}
        self._closed: dict[str, float] = {}

    def begin(self, source: object, metrics: Callable[[], Mapping[str, float]]) -> None:
        """A source was opened; `metrics` tells what it has read."""
        self._open[source] = metrics

    def end(self, source: object) -> None:
        """A source is closed."""
        metrics = self._open.pop(source, None)
        if metrics is not None:
            self._closed = _sum(self._closed, metrics())

    def total(self) -> dict[str, float]:
        """All together."""
        total = dict(self._closed)
        for metrics in list(self._open.values()):
            total = _sum(total, metrics())
        return total


def _sum(left: Mapping[str, float], right: Mapping[str, float]) -> dict[str, float]:
    return {name: left.get(name, 0) + right.get(name, 0) for name in {**left, **right}}
