"""The functions that make pipelines of several, or of nothing that a lake holds."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

from lake.pipeline.call import Call
from lake.pipeline.chain import Concat
from lake.pipeline.map import Map
from lake.pipeline.mixture import Mix, Until, checked_weights
from lake.pipeline.node import Node
from lake.pipeline.pipeline import Pipeline, node_of
from lake.pipeline.seeds import Seed
from lake.pipeline.source import Items, Iterated, Once, Random
from lake.pipeline.switch import ChoiceBy, Select, as_weights
from lake.pipeline.zipped import Zip


class Scan(Protocol):
    """What `mix` takes besides pipelines: a scan, or its `to_torch()`."""

    @property
    def node(self) -> Batched: ...


class Batched(Protocol):
    """The node of a scan."""

    @property
    def rows_each(self) -> int: ...


def mix(
    pipes: Sequence[Pipeline] | Sequence[Scan],
    weights: Sequence[float] | None = None,
    *,
    seed: int | None = None,
    until: Until = "any",
) -> Pipeline:
    """Items of several pipelines, each drawn at random by weight; or batches of several scans.

    Ends when one is dry that was asked ("any"), or goes on with the others until all are ("all"). The weights
    may change when a position is resumed. Those of scans are in rows, however many each has in a batch.

    Raises:
        ValueError: no pipelines, or not one weight for each.
    """
    if pipes and not any(isinstance(each, Pipeline) for each in pipes) and all(map(_is_scan, pipes)):
        batched: list[Any] = [each.node for each in pipes]
        given = checked_weights("mix", weights, len(batched))
        weights = [weight / node.rows_each for weight, node in builtins.zip(given, batched, strict=True)]
        pipes = [Pipeline(node) for node in batched]
    nodes = _nodes("mix", pipes)
    if until not in ("any", "all"):
        raise ValueError(f"mix(): until is 'any' or 'all', not {until!r}")
    return Pipeline(Mix(nodes, checked_weights("mix", weights, len(nodes)), Seed.of(seed), until))


def concat(pipes: Sequence[Pipeline]) -> Pipeline:
    """All items of the first, then of the second, and so on."""
    return Pipeline(Concat(_nodes("concat", pipes)))


def zip(*pipes: Pipeline, per_lane: bool = False) -> Pipeline:  # noqa: A001  # meant to be called as lake.zip
    """Tuples of one item from each; ends with the shortest."""
    return Pipeline(Zip(_nodes("zip", pipes), per_lane))


def zip_with(fn: Callable[..., Any], *pipes: Pipeline, per_lane: bool = False, **how: Any) -> Pipeline:
    """`fn` of one item from each; ends with the shortest. Keywords as in `Pipeline.map`."""
    call = Call.of("zip_with", fn, spread=True, **how)
    return Pipeline(Map(Zip(_nodes("zip_with", pipes), per_lane), call))


def select(index: Pipeline, *pipes: Pipeline) -> Pipeline:
    """The next item of the pipeline that `index` names by its number; ends when either has no more.

    Raises:
        ValueError: while iterating: a number that names none.
    """
    return Pipeline(Select(node_of("select", index), _nodes("select", pipes)))


def choice(
    pipes: Sequence[Pipeline], p: float | Sequence[float] | Pipeline = 0.5, *, seed: int | None = None
) -> Pipeline:
    """The next item of a pipeline drawn at random; ends when that one has no more.

    `p`: the probability of the first of two, weights of all, or a pipeline of either.
    """
    nodes = _nodes("choice", pipes)
    if isinstance(p, Pipeline):
        return Pipeline(ChoiceBy(p.node, nodes, Seed.of(seed)))
    return Pipeline(Mix(nodes, as_weights(p, len(nodes)), Seed.of(seed), "any", "choice"))


def from_iterable(
    iterable: Iterable[Any] | Callable[[], Iterable[Any]], *, replicate: bool = False
) -> Pipeline:
    """The items of a sequence, of another iterable, or of what a function makes anew in each epoch.

    A sequence is entered at any place; the others resume by passing over what was read. `replicate`: where a
    pipeline is split, each lane reads all of it instead of its share.
    """
    if isinstance(iterable, str | bytes):
        raise TypeError(f"from_iterable() takes items, not one {type(iterable).__name__}")
    if hasattr(iterable, "__getitem__") and hasattr(iterable, "__len__") and not hasattr(iterable, "keys"):
        return Pipeline(Items(iterable, replicate))  # type: ignore[arg-type]
    if isinstance(iterable, Iterator):
        return Pipeline(Iterated(Once(iterable), replicate))
    if callable(iterable) or hasattr(iterable, "__iter__"):
        return Pipeline(Iterated(iterable, replicate))
    raise TypeError(
        f"from_iterable() takes an iterable or a function that makes one, not {type(iterable).__name__}"
    )


def random_stream(seed: int | None = None) -> Pipeline:
    """Numbers in [0, 1) without end, evenly spread; others in each epoch."""
    return Pipeline(Random(Seed.of(seed)))


def _is_scan(given: object) -> bool:
    return hasattr(getattr(given, "node", None), "rows_each")


def _nodes(called: str, pipes: Iterable[Any]) -> tuple[Node, ...]:
    nodes = tuple([node_of(called, each) for each in pipes])
    if not nodes:
        raise ValueError(f"{called}() needs at least one pipeline")
    return nodes
