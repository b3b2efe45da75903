"""What may be split: the rules for pipelines that cannot be cut by position, as a pure check.

A countable pipeline is cut by the positions of its items, whatever the ranks and workers. Any other one is
split into lanes, each of which reads some of the rows; then some stages mean nothing, and ranks would yield
different counts.
"""

from __future__ import annotations

from lake.pipeline.mixture import Mix
from lake.pipeline.node import ENDLESS, Counts, Node, Uncountable, graph
from lake.pipeline.repeat import Repeat
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
