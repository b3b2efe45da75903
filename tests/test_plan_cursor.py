"""Positions as documents: small, of one plan only, and merged to what no rank misses."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest
from hypothesis import strategies as st

from lake.plan import Cursor, Layout, Ranks, facts, merge_states, plan_epoch
from tests.plans import given

HOW: dict[str, Any] = {"shuffle": True, "seed": 1, "shuffle_window": 16, "limit": None}
PLAN = facts({"version": "ab" * 32, "columns": ["image", "label"], "where": None}, **HOW)


def cursor(rows: int, *, epoch: int = 0, common: bool = True) -> Cursor:
    return Cursor(PLAN, 2, epoch, rows, 1000, common)


@given(st.integers(1, 500), st.integers(0, 99), st.integers(0, 10**12), st.data())
def test_a_position_survives_json(partitions: int, epoch: int, of: int, data: st.DataObject) -> None:
    """What is saved is what is loaded."""
    saved = Cursor(PLAN, partitions, epoch, data.draw(st.integers(0, of)), of)
    assert Cursor.of_state(json.loads(json.dumps(saved.state())), PLAN) == saved


def test_a_position_is_small_whatever_the_plan_says() -> None:
    """A thousand columns and a long condition do not make it long, and still tell plans apart."""
    many: dict[str, Any] = {
        "columns": [f"column_{i}" for i in range(1000)],
        "where": "x = 1 or " * 500 + "y = 1",
    }
    plan = facts(many, **HOW)
    assert len(json.dumps(Cursor(plan, 1000, 3, 10**11, 10**12).state())) < 600
    for name, value in {"columns": [*many["columns"][:-1], "other"], "where": many["where"] + "0"}.items():
        other = facts(many | {name: value}, **HOW)
        with pytest.raises(ValueError, match=f"another plan: {name} was .*, is "):
            Cursor.of_state(Cursor(plan, 1, 0, 0, 10).state(), other)


@pytest.mark.parametrize(
    ("identity", "how", "says"),
    [
        ({"version": "cd" * 32}, {}, f"version was '{'ab' * 32}', is '{'cd' * 32}'"),
        ({"columns": ["label"]}, {}, """columns was '["image", "label"]', is '["label"]'"""),
        ({"where": "label = 3"}, {}, "where was None, is 'label = 3'"),
        ({}, {"seed": 2}, "seed was 1, is 2"),
        ({}, {"shuffle": "full"}, "shuffle was True, is 'full'; shuffle_window was 16, is 'absent'"),
        ({}, {"shuffle_window": 8}, "shuffle_window was 16, is 8"),
        ({}, {"limit": 50}, "limit was 'absent', is 50"),
        ({"where": "x > 1"}, {"seed": 9}, "where was None, is 'x > 1'; seed was 1, is 9"),
    ],
)
def test_a_position_of_another_plan_is_refused(
    identity: dict[str, Any], how: dict[str, Any], says: str
) -> None:
    """The message names what differs, old and new."""
    before: dict[str, Any] = {"version": "ab" * 32, "columns": ["image", "label"], "where": None}
    with pytest.raises(ValueError) as error:
        Cursor.of_state(cursor(10).state(), facts(before | identity, **(HOW | how)))
    assert str(error.value) == f"a position of another plan: {says}"


def test_what_has_no_influence_is_no_difference() -> None:
    """A seed does not matter where nothing is shuffled, nor a window to a full shuffle."""
    assert facts({}, **(HOW | {"shuffle": False})) == facts({}, **(HOW | {"shuffle": False, "seed": 5}))
    full = HOW | {"shuffle": "full"}
    assert facts({}, **full) == facts({}, **(full | {"shuffle_window": 3}))
    assert facts({}, **full) != facts({}, **(full | {"seed": 5}))


STATE = cursor(10).state()


@pytest.mark.parametrize(
    "broken",
    [
        {}, [], None, {"rows": 1},
        STATE | {"format": 2}, STATE | {"algorithm": 2}, STATE | {"format": None},
        STATE | {"rows": -1}, STATE | {"rows": 1001}, STATE | {"rows": "10"}, STATE | {"rows": True},
        STATE | {"epoch": 0.5}, STATE | {"partitions": 0}, STATE | {"plan": "x"}, STATE | {"of": None},
        {name: value for name, value in STATE.items() if name != "epoch"},
    ],
)  # fmt: skip
def test_what_is_no_position_is_refused(broken: Any) -> None:
    """A checkpoint may hold anything; what it holds is named before anything is read."""
    with pytest.raises(ValueError, match="state"):
        Cursor.of_state(broken, PLAN)
    with pytest.raises(ValueError, match="state"):
        merge_states([broken])


def test_a_newer_format_is_named() -> None:
    """Both numbers, so that one knows what to upgrade."""
    with pytest.raises(ValueError, match="algorithm 7; this release of lake knows 1"):
        Cursor.of_state(STATE | {"algorithm": 7}, PLAN)


def test_unequal_ranks_go_on_at_the_smallest(caplog: pytest.LogCaptureFixture) -> None:
    """Nothing is missed; what may repeat is said in the state and in the log."""
    states = [cursor(700).state(), cursor(640).state(), cursor(700).state()]
    with caplog.at_level(logging.WARNING, logger="lake"):
        merged = merge_states(states)
    assert Cursor.of_state(merged, PLAN) == cursor(640)
    assert merged["repeats"] == 60
    assert "row 640 of epoch 0, up to 60 rows" in caplog.text


def test_equal_ranks_merge_to_their_own_position(caplog: pytest.LogCaptureFixture) -> None:
    """One rank's state is enough, and says the same."""
    assert merge_states([STATE, STATE]) == merge_states([STATE]) == STATE
    assert not caplog.text


def test_an_earlier_epoch_is_earlier_than_any_row_of_a_later() -> None:
    """A rank at the end of an epoch and one at the beginning of the next are at the same place."""
    end, begin = cursor(1000).state(), cursor(0, epoch=1).state()
    assert "repeats" not in merge_states([begin, end])
    merged = merge_states([cursor(5, epoch=1).state(), cursor(990).state()])
    assert (merged["epoch"], merged["rows"], merged["repeats"]) == (0, 990, 15)


def test_states_of_different_runs_do_not_merge() -> None:
    """Of different plans, or of one plan begun with other partitions."""
    with pytest.raises(ValueError, match="none"):
        merge_states([])
    with pytest.raises(ValueError, match="partitions was 2, is 4"):
        merge_states([STATE, STATE | {"partitions": 4}])
    with pytest.raises(ValueError, match="seed was 1, is 2"):
        merge_states([STATE, STATE | {"plan": {**PLAN, "seed": 2}}])


def test_a_rank_that_ended_before_others_needs_their_states() -> None:
    """Only even=None lets counts differ; then one rank's end is not the position of all."""
    plans = [
        plan_epoch(
            Layout.of([10], [5]), batch_size=2, ranks=Ranks(rank, 4), even=None, identity={"version": "v"}
        )
        for rank in range(4)
    ]
    assert [len(plan) for plan in plans] == [2, 1, 1, 1]
    for plan in plans:
        with pytest.raises(ValueError, match="merge_states"):
            Cursor.of_state(plan.state(len(plan)), plan.facts)
    ended = merge_states([plan.state(len(plan)) for plan in plans])
    assert Cursor.of_state(ended, plans[0].facts).rows == 10
    stopped = merge_states([plan.state(1) for plan in plans])
    assert (stopped["rows"], stopped["repeats"]) == (8, 2)


def test_positions_never_change() -> None:
    """Checkpoints of old releases are read for ever."""
    saved = (
        '{"format": 1, "algorithm": 1, '
        '"plan": {"version": "v", "shuffle": true, "seed": 1, "shuffle_window": 16}, '
        '"partitions": 2, "epoch": 3, "rows": 40, "of": 100}'
    )
    plan = facts({"version": "v"}, **HOW)
    assert Cursor.of_state(json.loads(saved), plan) == Cursor(plan, 2, 3, 40, 100)
    assert json.dumps(Cursor(plan, 2, 3, 40, 100).state()) == saved
