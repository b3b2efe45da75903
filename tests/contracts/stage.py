"""What every combinator promises about positions, as one check: give it a function that makes the pipeline anew."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

import numpy as np

from lake.pipeline import Pipeline
from lake.pipeline.node import Readings, Run
from lake.pipeline.stage import passed

LARGEST = 64 * 1024  # bytes of a state


def plain(item: Any) -> Any:
    """An item as values that `==` compares, types of arrays included."""
    if isinstance(item, np.ndarray):
        return ["array", item.dtype.str, item.tolist()]
    if isinstance(item, dict):
        return {key: plain(value) for key, value in item.items()}
    if isinstance(item, tuple | list):
        return type(item)(map(plain, item))
    return item


def items(stream: Iterable[Any], count: int | None = None) -> list[Any]:
    """The first items of a stream, or all of them."""
    return [plain(item) for item in islice(iter(stream), count)]


def resumed(make: Callable[[], Pipeline], state: Any) -> Pipeline:
    """A pipeline as another process would have it: made anew, from a state that was written down."""
    pipeline = make()
    pipeline.load_state_dict(json.loads(json.dumps(state)))
    return pipeline


def run_resume_contract(
    stage: Callable[[], Pipeline], *, epoch: int = 1, most: int = 40, places: Iterable[int] | None = None
) -> list[Any]:
    """Stop after every number of items, and go on: nothing is lost, repeated or changed. Returns the items.

    `most`: items that are looked at, of a stream that may have no end. `places`: where to stop, if not everywhere.
    """
    whole = _epoch(stage(), epoch, most)
    assert _epoch(stage(), epoch, most) == whole, "the same pipeline gives another stream"
    states = list(_states(stage, epoch, len(whole)))
    is_whole = len(whole) < most
    for place in places if places is not None else range(len(whole) + 1):
        _check_resume(stage, states[place], whole[place:], is_whole=is_whole)
    _check_again(stage, states[len(whole) // 3], whole[len(whole) // 3 :], is_whole=is_whole)
    _check_passing(stage, epoch, whole, is_whole=is_whole)
    if is_whole:
        _check_end(stage, epoch)
    return whole


def _epoch(pipeline: Pipeline, epoch: int, most: int) -> list[Any]:
    pipeline.set_epoch(epoch)
    return items(pipeline, most)


def _states(stage: Callable[[], Pipeline], epoch: int, count: int) -> Iterator[Any]:
    """The states of one run after 0, 1, 2... items."""
    pipeline = stage()
    pipeline.set_epoch(epoch)
    yield pipeline.state_dict()
    stream = iter(pipeline)
    for _ in range(count):
        next(stream)
        state = pipeline.state_dict()
        assert len(json.dumps(state)) < LARGEST
        yield state


def _check_resume(stage: Callable[[], Pipeline], state: Any, rest: list[Any], *, is_whole: bool) -> None:
    pipeline = resumed(stage, state)
    assert pipeline.state_dict() == json.loads(json.dumps(state)), "loading changed the state"
    assert items(pipeline, None if is_whole else len(rest)) == rest
    assert items(resumed(stage, state), len(rest)) == rest, "a second resume gives another stream"


def _check_again(stage: Callable[[], Pipeline], state: Any, rest: list[Any], *, is_whole: bool) -> None:
    """A state taken after a resume is as good as one taken in an uninterrupted run."""
    for more in range(min(len(rest), 7) + 1):
        pipeline = resumed(stage, state)
        assert items(pipeline, more) == rest[:more]
        assert (
            items(resumed(stage, pipeline.state_dict()), None if is_whole else len(rest) - more)
            == rest[more:]
        )


def _check_passing(stage: Callable[[], Pipeline], epoch: int, whole: list[Any], *, is_whole: bool) -> None:
    """To pass over items, before or after the first, is to read them for nothing; at the end there are fewer."""
    middle = len(whole) // 2
    for first, over in ((0, middle), (min(2, middle), middle - min(2, middle)), (0, 0)):
        opened = stage().node.open(Run(epoch, {}, Readings()))
        assert [plain(opened.next()) for _ in range(first)] == whole[:first]
        assert passed(opened, over) == over
        assert [plain(opened.next()) for _ in whole[first + over :]] == whole[first + over :]
        opened.close()
    if is_whole:
        opened = stage().node.open(Run(epoch, {}, Readings()))
        assert passed(opened, len(whole) + 5) == len(whole)
        opened.close()


def _check_end(stage: Callable[[], Pipeline], epoch: int) -> None:
    """The end is a position: nothing follows it but the next epoch."""
    pipeline = stage()
    pipeline.set_epoch(epoch)
    stream = iter(pipeline)
    count = sum(1 for _ in stream)
    assert next(stream, None) is None
    following = items(pipeline)
    assert count == 0 or following == _epoch(stage(), epoch + 1, len(following) + 1)

    pipeline.set_epoch(epoch)
    assert len(items(pipeline)) == count
    ended = resumed(stage, pipeline.state_dict())
    assert items(ended) == []
    assert items(ended) == following
