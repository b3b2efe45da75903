"""What a pipeline is going to read, before it reads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from lake.pipeline.node import Counts, Node, Uncountable, graph, uses
from lake.plan import Plan


@dataclass(frozen=True, slots=True)
class PipelinePlan:
    """An epoch of a pipeline as numbers, sums over its sources. Prints as a table."""

    items: float | None  # that come out; None: unknown beforehand
    rows: int
    shards: int
    resident_bytes: int  # that this machine's cache holds at once
    fetch_bytes: int  # that this machine reads, cached or not
    memory_bytes: int  # decoded, held at once by the sources
    sources: tuple[tuple[str, Plan], ...]  # each stream of a dataset that is read

    def __str__(self) -> str:
        items = "unknown" if self.items is None else f"{self.items:,.0f}"
        return "\n\n".join([f"items     {items}", *(f"{label}\n{plan}" for label, plan in self.sources)])


def checked(root: Node, epoch: int) -> PipelinePlan:
    """The plan of a pipeline: a source that is read twice counts twice."""
    sources = tuple(_sources(root))
    plans = [plan for _, plan in sources]
    items: float | None
    try:
        items = Counts().of(root, epoch)
    except Uncountable:
        items = None
    return PipelinePlan(
        items,
        sum(plan.rows for plan in plans),
        sum(plan.shards for plan in plans),
        sum(plan.resident_bytes for plan in plans),
        sum(plan.fetch_bytes for plan in plans),
        sum(plan.memory_bytes for plan in plans),
        sources,
    )


def _sources(root: Node) -> Iterator[tuple[str, Plan]]:
    times = uses(root)
    for node in graph(root):
        plan = node.plan()
        if plan is not None:
            yield from [(node.label, plan)] * times[node]
