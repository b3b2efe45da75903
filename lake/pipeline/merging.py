"""Positions of several ranks as one, whether of a scan or of a pipeline."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from lake import plan
from lake.pipeline.pipeline import check_state

_log = logging.getLogger("lake")


def merge_states(states: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The position from which all ranks miss nothing: the smallest of theirs, or their lanes together.

    Where positions differ, `repeats` in the result says how many rows or items lie between the smallest and the
    largest: at most so many are given a second time. The log says so too.

    Raises:
        ValueError: no states, or states of different plans or pipelines.
    """
    states = list(states)
    if not states or "stages" not in states[0]:
        return plan.merge_states(states)
    for state in states:
        check_state(state, states[0]["stages"])
    return _with_lanes(states) if "lanes" in states[0] else _smallest(states)


def _with_lanes(states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    epochs, counts = ({state["epoch"] for state in states}, {state["lanes"]["count"] for state in states})
    if len(epochs) > 1 or len(counts) > 1:
        raise ValueError(
            f"ranks in epochs {sorted(epochs)}, of {sorted(counts)} lanes: what lanes gave can be put together "
            "within one epoch of one run"
        )
    lanes: dict[str, Any] = {}
    for state in states:
        lanes |= state["lanes"]["at"]
    merged = {**states[0], "lanes": {**states[0]["lanes"], "at": lanes}}
    steps = [state["steps"] for state in states if "steps" in state]
    if steps:
        merged["steps"] = min(steps)
    return merged


def _smallest(states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    least = min(states, key=_progress)
    most = max(states, key=_progress)
    if _progress(least) == _progress(most):
        return dict(least)
    merged = dict(least)
    if least["epoch"] == most["epoch"]:
        merged["repeats"] = _progress(most)[1] - _progress(least)[1]
        _log.warning(
            "ranks stopped at different places: going on after item %s of epoch %s, up to %s items are repeated",
            f"{_progress(least)[1]:,}",
            least["epoch"],
            f"{merged['repeats']:,}",
        )
    return merged


def _progress(state: Mapping[str, Any]) -> tuple[int, int]:
    return int(state["epoch"]), int(state.get("items", 0))
