"""Positions in an epoch, as the small JSON documents that checkpoints keep.

A position names its plan and epoch, the number of partitions, and how many rows all ranks together have
taken: what each partition has given follows from these. Ranks and batch sizes are no part of it.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, cast

from lake.plan.permutation import ALGORITHM

FORMAT: Final = 1

Facts: TypeAlias = Mapping[str, str | int | bool | None]

_LONG: Final = 80  # characters of a fact that a position repeats in full
_COUNTS: Final = ("partitions", "epoch", "rows", "of")

_log = logging.getLogger("lake")


def facts(
    identity: Mapping[str, Any], *, shuffle: bool | str, seed: int, shuffle_window: int, limit: int | None
) -> Facts:
    """What an order depends on, in short: two orders are the same exactly if their facts are.

    `identity` is what the reader adds: version, columns, condition; JSON values. Long ones end in a digest.
    What has no influence is left out: the seed where nothing is shuffled, the window of a full shuffle.

    >>> facts({"columns": ["x"]}, shuffle="full", seed=3, shuffle_window=16, limit=None)
    {'columns': '["x"]', 'shuffle': 'full', 'seed': 3}
    """
    said: dict[str, str | int | bool | None] = {name: _short(value) for name, value in identity.items()}
    said["shuffle"] = shuffle
    if shuffle:
        said["seed"] = seed
    if shuffle is True:
        said["shuffle_window"] = shuffle_window
    if limit is not None:
        said["limit"] = limit
    return said


def _short(value: Any) -> str | int | bool | None:
    if value is None or isinstance(value, bool | int):
        return value
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True, ensure_ascii=False)
    if len(text) <= _LONG:
        return text
    return f"{text[: _LONG // 2]}... sha256:{hashlib.sha256(text.encode()).hexdigest()[:16]}"


@dataclass(frozen=True, slots=True)
class Cursor:
    """A position: `rows` of the epoch's `of` rows have been taken by all ranks together.

    `common` is false for a rank that has ended while others may go on, which only `even=None` allows.
    """

    plan: Facts
    partitions: int
    epoch: int
    rows: int
    of: int
    common: bool = True

    @property
    def whole_plan(self) -> Facts:
        """The plan's facts and what was fixed when the run began: the same in all states of a run."""
        return {**self.plan, "partitions": self.partitions, "of": self.of}

    def state(self) -> dict[str, Any]:
        """The JSON document of this position."""
        document = {"format": FORMAT, "algorithm": ALGORITHM, "plan": dict(self.plan)}
        document |= {name: getattr(self, name) for name in _COUNTS}
        return document if self.common else document | {"common": False}

    @classmethod
    def of_state(cls, state: Mapping[str, Any], plan: Facts) -> Cursor:
        """The position that a document holds, to go on from with `plan`.

        Raises:
            ValueError: a position of another plan (it says what differs), of one rank alone, or none at all.
        """
        cursor = _parse(state)
        _check_same(cursor.plan, plan)
        if not cursor.common:
            raise ValueError(
                "this rank had ended while others went on (even=None): "
                "lake.merge_states of all ranks' states gives a position for all"
            )
        return cursor


def merge_states(states: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The position from which all ranks miss nothing: the smallest of theirs.

    Where they differ, `repeats` in the result says how many rows lie between the smallest and the largest:
    at most so many are given a second time. The log says so too.

    Raises:
        ValueError: no states, or states of different plans.
    """
    cursors = [_parse(state) for state in states]
    if not cursors:
        raise ValueError("merge_states needs the state of each rank: there is none")
    for cursor in cursors:
        _check_same(cursors[0].whole_plan, cursor.whole_plan)
    least = min(cursors, key=_progress)
    repeats = max(map(_progress, cursors)) - _progress(least)
    merged = Cursor(least.plan, least.partitions, least.epoch, least.rows, least.of).state()
    if repeats:
        _log.warning(
            "ranks stopped at different places: going on at row %s of epoch %s, up to %s rows are repeated",
            f"{least.rows:,}",
            least.epoch,
            f"{repeats:,}",
        )
        merged["repeats"] = repeats
    return merged


def _progress(cursor: Cursor) -> int:
    return cursor.epoch * cursor.of + cursor.rows


def _parse(state: Mapping[str, Any]) -> Cursor:
    if not isinstance(state, Mapping) or "format" not in state:
        raise ValueError("not the state of a scan: it has no format")
    for name, known in (("format", FORMAT), ("algorithm", ALGORITHM)):
        if state.get(name) != known:
            raise ValueError(f"a state of {name} {state.get(name)!r}; this release of lake knows {known}")
    plan, counts = state.get("plan"), {name: state.get(name) for name in _COUNTS}
    whole = all(
        isinstance(count, int) and not isinstance(count, bool) and count >= 0 for count in counts.values()
    )
    if not isinstance(plan, Mapping) or not whole:
        raise ValueError(
            "not the state of a scan: " + ", ".join(f"{n}={state.get(n)!r}" for n in ("plan", *_COUNTS))
        )
    cursor = Cursor(dict(plan), common=state.get("common", True) is True, **cast("dict[str, int]", counts))
    if not cursor.partitions or cursor.rows > cursor.of:
        raise ValueError(
            f"not the state of a scan: row {cursor.rows} of {cursor.of}, {cursor.partitions} partitions"
        )
    return cursor


def _check_same(old: Facts, new: Facts) -> None:
    absent = "absent"
    changes = [
        f"{name} was {old.get(name, absent)!r}, is {new.get(name, absent)!r}"
        for name in dict.fromkeys((*old, *new))
        if old.get(name, absent) != new.get(name, absent)
    ]
    if changes:
        raise ValueError("a position of another plan: " + "; ".join(changes))
