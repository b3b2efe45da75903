"""How one stream is split over ranks and workers, and what may be.

A countable pipeline is cut by the positions of its items, whatever the ranks and workers: each worker has the
whole pipeline, and its sources pass over what others take. Any other one is split into lanes, each of which
reads some of the rows; then some stages mean nothing, and ranks would yield different counts.

Splitting is done to the graph, before it runs: a node that passes over items is put as far down as there is
one item for each, so that functions are called for what is wanted and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import Any

from lake.pipeline.batch import Batch
from lake.pipeline.deal import MOST, Dealt, Lane, Laned, Scaled, Sized, Worker, lane_of
from lake.pipeline.map import Map
from lake.pipeline.mixture import Mix
from lake.pipeline.node import ENDLESS, Counts, Node, Run, Uncountable, graph, over
from lake.pipeline.repeat import Repeat
from lake.pipeline.seeds import Seed
from lake.pipeline.stage import passed
from lake.pipeline.take import Take
from lake.pipeline.zipped import Zip


def why_uncountable(node: Node, epoch: int = 0) -> str | None:
    """Why the number of items is unknown; None where it is known."""
    try:
        Counts().of(node, epoch)
    except Uncountable as error:
        return str(error)
    return None


def check_split(root: Node, *, lanes: int, ranks: int = 1, is_even: bool = False) -> None:
    """Refuse what has no meaning on so many lanes and ranks. `is_even`: something makes the ranks' counts equal.

    Raises:
        ValueError: names the stage, and the way out.
    """
    why = why_uncountable(root)
    if why is None:
        return
    if ranks > 1 and not is_even:
        raise ValueError(
            f"{why}, and {ranks} ranks would yield different ones: steps=, even='stop', or where= in samples()"
        )
    if lanes == 1:
        return
    for node in graph(root):
        above = [each for each in node.inputs if why_uncountable(each) is not None]
        if not above:
            continue
        if isinstance(node, Take | Zip) and not node.per_lane:
            raise ValueError(
                f"{node.label} over {above[0].label} would be applied in each of {lanes} lanes: "
                "per_lane=True says that this is meant"
            )
        if isinstance(node, Mix) and not all(_is_endless(each) for each in node.inputs):
            raise ValueError(
                f"{node.label} over {above[0].label} would stop in each of {lanes} lanes on its own: "
                "let every input repeat()"
            )


def _is_endless(node: Node) -> bool:
    if isinstance(node, Repeat) and node.times is None:
        return True
    try:
        return Counts().of(node, 0) == ENDLESS
    except Uncountable:
        return (
            any(_is_endless(each) for each in node.inputs)
            and len(node.inputs) == 1
            and not isinstance(node, Take)
        )


# --- by position ------------------------------------------------------------------------------


def grain_of(root: Node) -> Batch | None:
    """The batches that the items are, or are made of one by one; None where items are no batches."""
    node = root
    while node.one_for_one:
        [node] = node.inputs
    return node if type(node) is Batch else None


def untagged(root: Node) -> Batch | None:
    """The batches whose tags nobody asks for: the items are those, or made of them by functions alone."""
    node = root
    while type(node) is Map and node.call.simple() is not None and not node.call.workers:
        node = node.source
    return node if isinstance(node, Batch) else None


def with_grain(root: Node, changed: Callable[[Batch], Node]) -> Node:
    """The graph with something else for its grain."""
    if root.one_for_one:
        return over(root, lambda node: with_grain(node, changed))
    return changed(root) if type(root) is Batch else root


def ordered(root: Node) -> Node:
    """The graph with results of calls in the order of the items, so that an item is known by its number."""
    return _with_calls(root, ordered=True)


def dealt(root: Node, deal: Worker) -> Node:
    """What one worker makes of a countable pipeline; opened where all of them are."""
    push = _Push(lambda node, scale: Dealt(node, Scaled(deal, scale) if scale > 1 else deal))
    if grain_of(root) is None:
        return push(root)
    return with_grain(root, lambda grain: _sized(grain, push(grain.source), deal))


def _sized(grain: Batch, source: Node, deal: Worker) -> Node:
    return Sized(source, grain.size, grain.collate, grain.drop_last, deal)


class Position:
    """Positions in a countable pipeline, by number: of its items, or of those that its batches are made of."""

    def __init__(self, root: Node, run: Run, at: Any) -> None:
        self._run, self._at, self._passed = run, None, 0
        if at is not None:
            whole = root.open(run)
            state, items = at
            whole.restore(state)
            passed(whole, items)
            self._at = [whole.state(), 0]
            whole.close()
        self._root = with_grain(root, lambda grain: replace(grain, size=1, drop_last=False))
        self._stage = self._opened()

    @property
    def beginning(self) -> Any:
        """The position that this began with, None for that of the epoch."""
        return self._at

    def left(self) -> int:
        """How many there are from the beginning on; `MOST` where there is no end."""
        if Counts().of(self._root, self._run.epoch) == ENDLESS:
            return MOST
        stage = self._opened()
        left = passed(stage, MOST)
        stage.close()
        return left

    def after(self, count: int) -> Any:
        """The position after the first `count` of them; never fewer than in the last call."""
        passed(self._stage, count - self._passed)
        self._passed = count
        return [self._stage.state(), 0]

    def _opened(self) -> Any:
        stage = self._root.open(self._run)
        if self._at is not None:
            stage.restore(self._at[0])
        return stage


# --- seeds that nobody chose ------------------------------------------------------------------


def drawn_seeds(root: Node) -> dict[Seed, str]:
    """Each seed that was drawn, with the stage that drew it."""
    found: dict[Seed, str] = {}
    for node in graph(root):
        for each in fields(node):
            value = getattr(node, each.name)
            seed = value if isinstance(value, Seed) else getattr(value, "seed", None)
            if isinstance(seed, Seed) and seed.drawn:
                found.setdefault(seed, node.label)
    return found


def with_seeds(root: Node, seeds: Mapping[Seed, Seed]) -> Node:
    """The graph with other seeds for these."""

    def changed(node: Node) -> Node:
        found: dict[str, Any] = {}
        for each in fields(node):
            value = getattr(node, each.name)
            if isinstance(value, Seed):
                found[each.name] = seeds.get(value, value)
            elif isinstance(seed := getattr(value, "seed", None), Seed):
                found[each.name] = replace(value, seed=seeds.get(seed, seed))
        return replace(node, **found) if found else node

    return everywhere(root, changed)


# --- by lanes ---------------------------------------------------------------------------------


def laned(root: Node, lane: int, lanes: int, epoch: int) -> Node:
    """What one lane makes of a pipeline: its part of each countable stream, through the stages above those."""
    counts, known = Counts(), dict[Node, Node]()

    def changed(node: Node) -> Node:
        if node not in known:
            known[node] = made(node)
        return known[node]

    def made(node: Node) -> Node:
        if all(getattr(leaf, "replicate", False) for leaf in graph(node) if not leaf.inputs):
            return node
        try:
            items = counts.of(node, epoch)
        except Uncountable:
            return over(node, changed) if node.inputs else Laned(node, Lane(lane, lanes, 1))
        part = lane_of(items, lane, lanes)
        push = _Push(lambda node, scale: Laned(node, replace(part, size=part.size * scale)))
        return push(node)

    return root if lanes == 1 else changed(root)


class _Push:
    """Puts what passes over items as low as there is one item, or one batch, for each."""

    def __init__(self, wrap: Callable[[Node, int], Node]) -> None:
        self._wrap, self._known = wrap, dict[tuple[Node, int], Node]()

    def __call__(self, node: Node, scale: int = 1) -> Node:
        place = node, scale
        if place not in self._known:
            self._known[place] = self._made(node, scale)
        return self._known[place]

    def _made(self, node: Node, scale: int) -> Node:
        if node.one_for_one or isinstance(node, Zip):
            return over(node, lambda each: self(each, scale))
        if isinstance(node, Batch):
            return over(node, lambda each: self(each, scale * node.size))
        return self._wrap(_with_calls(node, workers=0), scale)  # calls ahead would be for others' items


def _with_calls(root: Node, **changes: Any) -> Node:
    def changed(node: Node) -> Node:
        call: Any = getattr(node, "call", None)
        if call is None or all(getattr(call, name) == value for name, value in changes.items()):
            return node
        return replace(node, call=replace(call, **changes))  # type: ignore[call-arg]

    return everywhere(root, changed)


def everywhere(root: Node, changed: Callable[[Node], Node]) -> Node:
    """The graph with every node changed, inputs first; a node that was used twice still is one."""
    known = dict[Node, Node]()

    def made(node: Node) -> Node:
        if node not in known:
            known[node] = changed(over(node, made))
        return known[node]

    return made(root)
